"""What a base has that unpacked Debian packages meet: dpkg's records, folders and links."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuild.errors import BuildError

_STEPS = 400
_FIELD = re.compile(r"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """How a folder of the base is: a layer that fills it has to say so again, or engines make it their own way."""

    mode: int
    owner: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What was read from a base's files; paths are relative to the root."""

    status: str = ""
    """dpkg's database, `var/lib/dpkg/status`; empty where the base is not of Debian's kind."""
    release: Mapping[str, str] = field(default_factory=dict)
    """Its os-release: `ID`, `VERSION_ID`, `VERSION_CODENAME`."""
    folders: Mapping[str, Folder] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    settings: frozenset[str] = frozenset()
    """Files below `etc/`, which a package's own do not replace."""
    libraries: frozenset[str] = frozenset()
    """Names of shared libraries, wherever they lie: `libz.so.1`."""

    @property
    def installed(self) -> dict[str, str]:
        """The version of each installed package, by its name."""
        found = (fields(stanza) for stanza in stanzas(self.status))
        return {it["Package"]: it["Version"] for it in found if it.get("Status", "").endswith(" installed")}


def stanzas(text: str) -> list[str]:
    """Part a control file (deb822(5)) into its stanzas, without the empty lines between them."""
    return [part.strip("\n") for part in re.split(r"\n(?:[ \t]*\n)+", text) if part.strip()]


def fields(stanza: str) -> dict[str, str]:
    """The fields of a stanza, with the lines that go on indented as they are."""
    return dict(_FIELD.findall(stanza))


def placed(path: str, links: Mapping[str, str]) -> str:
    """Where a path leads when the folders on it are followed through links, as dpkg does; never above the root.

    So `lib/x86_64-linux-gnu/libz.so.1` lies in `usr/lib` where the base has merged the two.
    """
    parts, done = path.split("/"), ""
    for _ in range(_STEPS):
        part = parts.pop(0)
        here = posixpath.normpath(f"/{done}/{part}").lstrip("/")
        if not parts:
            return here
        target = links.get(here)
        if target is None:
            done = here
        else:
            done = "" if target.startswith("/") else done
            parts = [*target.strip("/").split("/"), *parts]
    raise BuildError("links of the base or of a package go in circles", where=path, todo="use another base")
