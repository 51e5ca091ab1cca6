"""Where this machine gets its Debian packages from (sources.list(5), both of its formats)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import BaseError

_ROLLING = ("sid", "unstable", "experimental")
_LINE = re.compile(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:[ \t]+[^\s#]+)*)", re.MULTILINE)
_FIELD = re.compile(r"^([A-Za-z-]+):(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One address that apt reads packages from."""

    address: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str
    """Path of a keyring, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The machine's own mirror; other suites than the machine's lie in the same place."""

    archive: str
    security: str | None
    keyrings: tuple[str, ...] = ()
    """Keyrings that a mirror with a key of its own names."""


def find_mirror(folder: Path) -> Mirror:
    """Read the machine's own mirror from apt's folder of settings; BaseError where there is none."""
    sources = [source for source in read_sources(folder) if "main" in source.components]
    security = [source for source in sources if any(suite.endswith("-security") for suite in source.suites)]
    archives = [source for source in sources if source not in security and _likeness(source)]
    if not archives:
        todo = "on another system than Debian give --base an image of a registry or an OCI layout"
        raise BaseError("apt names no Debian mirror", where=str(folder), todo=todo)
    used = [max(archives, key=_likeness), *sorted(security, key=_likeness, reverse=True)[:1]]
    keyrings = tuple(dict.fromkeys(source.signed_by for source in used if source.signed_by.startswith("/")))
    return Mirror(archive=used[0].address, security=used[1].address if used[1:] else None, keyrings=keyrings)


def _likeness(source: Source) -> int:
    """How much an address looks like a Debian archive, as others may have a suite and a component of those names."""
    last = source.address.rstrip("/").rpartition("/")[2]
    return 2 if last in ("debian", "debian-security") else int("debian" in last)


def source_lines(suite: str, mirror: Mirror) -> dict[str, str]:
    """Write the one-line sources for a suite: by name the suite itself, its updates, and its security archive."""
    lines = {suite: f"deb {mirror.archive} {suite} main"}
    if suite not in _ROLLING:
        lines[f"{suite}-updates"] = f"deb {mirror.archive} {suite}-updates main"
        if mirror.security:
            lines[f"{suite}-security"] = f"deb {mirror.security} {suite}-security main"
    return lines


def read_sources(folder: Path) -> Sequence[Source]:
    """Read what apt itself reads, `folder` being `/etc/apt`; files that cannot be read are left out."""
    found: list[Source] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if path.suffix == ".list":
            found += _one_line(text)
        elif path.suffix == ".sources":
            found += _deb822(text)
    return found


def _one_line(text: str) -> Iterator[Source]:
    for options, address, suite, components in _LINE.findall(text):
        signed_by = next((it.partition("=")[2] for it in options.split() if it.startswith("signed-by=")), "")
        yield Source(address=address, suites=(suite,), components=tuple(components.split()), signed_by=signed_by)


def _deb822(text: str) -> Iterator[Source]:
    for stanza in re.split(r"\n\s*\n", text):
        fields = {name.lower(): value.split() for name, value in _FIELD.findall(stanza)}
        if "deb" in fields.get("types", ()) and fields.get("enabled") != ["no"]:
            signed_by = " ".join(fields.get("signed-by", ()))
            suites, components = tuple(fields.get("suites", ())), tuple(fields.get("components", ()))
            for address in fields.get("uris", ()):
                yield Source(address=address, suites=suites, components=components, signed_by=signed_by)
