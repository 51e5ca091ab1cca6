"""What a package's scripts would do, which nobody runs here (Debian Policy, chapter 6; update-alternatives(1))."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envbuild.image.debian.deb import Deb, Item
from envbuild.image.debian.ground import fields

_CHOSEN = "etc/alternatives"
_ADMIN = "var/lib/dpkg/alternatives"
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_HARMLESS = re.compile(
    r"set -e|exit 0|ldconfig|:|true|then|fi|esac|;;|case \"?\$1\"? in|[\w|*-]+\)"
    r"|if \[ \"?\$1\"? = \"?configure\"? \](?:; then)?|dpkg-maintscript-helper (?:rm_conffile|mv_conffile) .*"
)
"""What comes to nothing in a new image: the loader finds libraries in its own folders without ldconfig's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A name for one of several files, as `update-alternatives --install` is told it."""

    link: str
    name: str
    path: str
    priority: int


def read_alternatives(deb: Deb) -> tuple[Alternative, ...]:
    """The names that a package would give its files, where its script says it without variables."""
    found = (_alternative(line) for line in _lines(deb))
    return tuple(it for it in found if it)


def left_undone(deb: Deb) -> bool:
    """Whether a package's `postinst` does more than what needs no doing, or is done here."""
    return any(not _HARMLESS.fullmatch(line) and _alternative(line) is None for line in _lines(deb))


def make_alternatives(debs: Sequence[Deb], links: Mapping[str, str]) -> Iterator[Item]:
    """Yield the links and the records of names; what the base has chosen for a name stays chosen."""
    named: dict[str, list[Alternative]] = {}
    for deb in debs:
        for it in read_alternatives(deb):
            named.setdefault(it.name, []).append(it)
    for name in sorted(named.keys() - {path.rpartition("/")[2] for path in links if path.startswith(f"{_CHOSEN}/")}):
        choices = sorted(named[name], key=lambda it: (-it.priority, it.path))
        yield _link(choices[0].link[1:], f"/{_CHOSEN}/{name}")
        yield _link(f"{_CHOSEN}/{name}", choices[0].path)
        rows = "".join(f"{it.path}\n{it.priority}\n" for it in sorted(choices, key=lambda it: it.path))
        text = f"auto\n{choices[0].link}\n\n{rows}\n".encode()
        yield Item(path=f"{_ADMIN}/{name}", kind="file", mode=0o644, size=len(text), source=text)


def remarks(deb: Deb) -> Iterator[str]:
    """Say what a person has to know of a package that was only unpacked."""
    name = fields(deb.control)["Package"]
    if left_undone(deb):
        yield f"{name} was unpacked only: its postinst does more than tell the loader, and was not run"
    if any(it.path.startswith("etc/ld.so.conf.d/") for it in deb.items):
        yield f"{name} adds folders of libraries by /etc/ld.so.conf.d, which count when ldconfig has run in the image"


def _lines(deb: Deb) -> list[str]:
    text = deb.scripts.get("postinst", b"").decode(errors="replace").replace("\\\n", " ")
    return [" ".join(line.split()) for line in _COMMENT.sub("", text).splitlines() if line.strip()]


def _alternative(line: str) -> Alternative | None:
    if not line.startswith("update-alternatives --install ") or set("$`;&|<>*") & set(line):
        return None
    try:
        words = shlex.split(line)[2:]
        link, name, path, priority = words
        found = Alternative(link=link, name=name, path=path, priority=int(priority))
    except ValueError:
        return None
    safe = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[\w.+~:@-]+)+")
    right = safe.fullmatch(link) and safe.fullmatch(path) and safe.fullmatch(f"/{name}") and "/" not in name
    return found if right else None


def _link(path: str, target: str) -> Item:
    return Item(path=path, kind="symlink", mode=0o777, target=target)
