"""Write the profiles from the wheels on the package index, or compare them with the wheels.

    python -m profiles.refresh [NAME...] [--check] [--folder DIR]

Reads METADATA and build information of every release by range requests, from the index that pip or uv is set to. All
files are written, or none. NAME is a framework, or openers: the other projects that open CUDA, of which the newest
patch of each minor release is read (2 GB). --check writes nothing and exits with 16 where a release has no row, a row
has no release, or a row differs from its wheel.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.cli.console import Progress, printable
from envbuild.errors import EnvbuildError, VerifyError
from envbuild.files import data_folder, staged_folder
from envbuild.lock.settings import read_settings
from envbuild.match.profiles import FRAMEWORKS, load_framework, load_openers
from envbuild.match.rows import FrameworkProfile
from profiles.refresh.compare import differences, opener_differences
from profiles.refresh.index import Index
from profiles.refresh.jax import read_jax
from profiles.refresh.openers import read_openers
from profiles.refresh.rows import Report
from profiles.refresh.tensorflow import read_tensorflow
from profiles.refresh.toml import openers_to_toml, to_toml
from profiles.refresh.torch import read_torch

OPENERS = "openers"
NAMES = (*FRAMEWORKS, OPENERS)
READERS: dict[str, Callable[[Index, Report], FrameworkProfile]] = {
    "tensorflow": read_tensorflow,
    "torch": read_torch,
    "jax": read_jax,
}
"""By the framework's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What one file of the profiles was read to."""

    text: str
    count: str
    """`77 releases, 240 rows`."""
    differences: Callable[[Any], Iterable[str]]
    """Compares what is kept with it."""


_MEBI = 1 << 20


def run(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code, which is that of envbuild's error of this class."""
    parser = argparse.ArgumentParser("python -m profiles.refresh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; the frameworks by default")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--folder", type=Path, default=data_folder("profiles"), help="where the profiles are")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown framework {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    names = list(dict.fromkeys(options.names or FRAMEWORKS))
    try:
        (_check if options.check else _refresh)(names, options.folder)
    except EnvbuildError as error:
        sys.stderr.write(f"error: {printable(str(error))}\n")
        return error.exit_code
    return 0


def _refresh(names: Sequence[str], folder: Path) -> None:
    with Progress() as progress:
        texts = {name: rows.text for name, rows in _read(names, progress)}
        with staged_folder(folder) as staged:
            for name, text in texts.items():
                (staged / f"{name}.toml").write_text(text, "utf-8")
    for name in texts:
        sys.stdout.write(f"{folder / name}.toml\n")


def _check(names: Sequence[str], folder: Path) -> None:
    kept = {name: load_openers(folder) if name == OPENERS else load_framework(folder, name) for name in names}
    with Progress() as progress:
        lines = [line for name, rows in _read(names, progress) for line in rows.differences(kept[name])]
    if lines:
        what = "\n  - ".join((f"the profiles differ from the index in {len(lines)} places", *lines))
        raise VerifyError(what, where=str(folder), todo="review the differences, then run: python -m profiles.refresh")
    sys.stdout.write(f"{', '.join(names)}: every release has its rows, and every row matches its wheel\n")


def _read_rows(name: str, index: Index, report: Report) -> Rows:
    if name == OPENERS:
        openers = read_openers(index, report)
        text, count = openers_to_toml(openers), f"{len(openers)} rows"
        return Rows(text=text, count=count, differences=lambda kept: opener_differences(kept, openers))
    profile = READERS[name](index, report)
    count = f"{len(profile.releases)} releases, {len(profile.wheels)} rows"
    return Rows(text=to_toml(profile), count=count, differences=lambda kept: differences(kept, profile))


def _read(names: Iterable[str], progress: Progress) -> Iterator[tuple[str, Rows]]:
    """Read one file's rows after the other, each in parallel."""
    with Index.open(read_settings()) as index:
        for name in names:
            started, before = time.monotonic(), index.received
            progress.step(f"reading {name}")

            def report(done: int, total: int, name: str = name, before: int = before) -> None:
                if done == 0:
                    progress.note(f"{total} {'releases' if name == 'jax' else 'wheels'}")
                received = index.received - before
                progress.progress(name, received, received if done == total else None)

            rows = _read_rows(name, index, report)
            seconds, size = time.monotonic() - started, (index.received - before) / _MEBI
            progress.note(f"{rows.count}, {size:.0f} MiB in {seconds:.0f} s")
            yield name, rows


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
