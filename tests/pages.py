"""What is generated from the code, tables in docs/ and the manifest's schema: `python -m tests.pages --write`."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from envbuild.cli import commands
from envbuild.verify.rules.catalogue import CATALOGUE, TITLES
from tests import manifest_schema

DOCS = Path(__file__).parents[1] / "docs"


def exit_codes() -> str:
    """Each exit code and its meaning."""
    rows = [f"|{code}|{meaning.replace('|', '/')}|" for code, meaning in sorted(commands.EXIT_CODES.items())]
    return "\n".join(("|exit code|meaning|", "|---|---|", *rows))


def comparison_rules() -> str:
    """The rules that compare two targets."""
    rows = [f"|`{it.id}`|{it.severity}|{it.title}|{it.why}|" for it in CATALOGUE]
    return "\n".join(("|rule|default|requires|otherwise|", "|---|---|---|---|", *rows))


def other_rules() -> str:
    """The rules about one target, by their names."""
    known = {it.id for it in CATALOGUE}
    rows = [f"|`{name}`|{title}|" for name, title in TITLES.items() if name not in known]
    return "\n".join(("|rule|requires|", "|---|---|", *rows))


GENERATED: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "exit-codes.md": {"exit codes": exit_codes},
    "findings.md": {"comparisons": comparison_rules, "others": other_rules},
}
"""The generated parts of each page."""


def render(page: str, text: str) -> str:
    """Return a page with its generated parts replaced; ValueError where one has no place in it."""
    for name, generate in GENERATED[page].items():
        start, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        before, found, after = text.partition(start)
        if not found or end not in after:
            raise ValueError(f"{page} has no place for {name}")
        text = f"{before}{start}{generate()}\n{end}{after.partition(end)[2]}"
    return text


def main() -> int:
    """Print the pages that are out of date, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages")
    write = parser.parse_args().write
    stale = [page for page in GENERATED if render(page, (DOCS / page).read_text()) != (DOCS / page).read_text()]
    for page in stale:
        print(page)
        if write:
            (DOCS / page).write_text(render(page, (DOCS / page).read_text()))
    made = [path for path, text in manifest_schema.files().items() if path.read_text("utf-8") != text]
    for path in made:
        print(path.name)
        if write:
            path.write_text(manifest_schema.files()[path], encoding="utf-8")
    return int(bool(stale or made) and not write)


if __name__ == "__main__":
    sys.exit(main())
