"""What dpkg writes down of an installed package, so that it, apt and scanners know it (dpkg(1), deb-conffiles(5))."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from envbuild.image.debian.deb import Deb, Item
from envbuild.image.debian.ground import fields, stanzas

DPKG = "var/lib/dpkg"
_SCRIPTS = frozenset({"preinst", "postinst", "prerm", "postrm", "config"})


def records(status: str, debs: Sequence[Deb]) -> Iterator[Item]:
    """Yield the database with the packages in it, and what is kept of each beside it."""
    text = _status(status, debs).encode()
    yield Item(path=f"{DPKG}/status", kind="file", mode=0o644, size=len(text), source=text)
    for deb in debs:
        for name, data in _kept(deb).items():
            mode = 0o755 if name.rpartition(".")[2] in _SCRIPTS else 0o644
            yield Item(path=f"{DPKG}/info/{name}", kind="file", mode=mode, size=len(data), source=data)


def conffiles(deb: Deb) -> tuple[str, ...]:
    """The settings of a package, relative to the root."""
    lines = deb.scripts.get("conffiles", b"").decode().splitlines()
    return tuple(line.strip().lstrip("/") for line in lines if line.startswith("/"))


def _status(status: str, debs: Sequence[Deb]) -> str:
    ours = {_key(deb.control): deb for deb in debs}
    kept = [it for it in stanzas(status) if _key(it) not in ours]
    return "\n\n".join([*kept, *(_installed(ours[key]) for key in sorted(ours))]) + "\n\n"


def _key(stanza: str) -> tuple[str, str]:
    """A name may be installed for several architectures, if it says so of itself."""
    said = fields(stanza)
    return said.get("Package", ""), said.get("Architecture", "") if said.get("Multi-Arch") == "same" else ""


def _installed(deb: Deb) -> str:
    """A package's stanza as dpkg has it: with its state, and the digests that its settings had."""
    first, _, rest = deb.control.partition("\n")
    digests = _digests(deb)
    lines = [f" /{path} {digests[path]}" for path in conffiles(deb) if path in digests]
    return "\n".join([first, "Status: install ok installed", *(["Conffiles:", *lines] if lines else []), rest])


def _digests(deb: Deb) -> Mapping[str, str]:
    wanted = set(conffiles(deb))
    return {it.path: _md5(it) for it in deb.items if it.path in wanted and it.kind == "file"}


def _md5(item: Item) -> str:
    hasher = hashlib.md5(usedforsecurity=False)
    for piece in item.content():
        hasher.update(piece)
    return hasher.hexdigest()


def _kept(deb: Deb) -> dict[str, bytes]:
    said = fields(deb.control)
    name = said["Package"] + (f":{said['Architecture']}" if said.get("Multi-Arch") == "same" else "")
    listed = "".join(f"/{path}\n" for path in (".", *(item.path for item in deb.items)))
    return {f"{name}.list": listed.encode()} | {f"{name}.{kind}": data for kind, data in deb.scripts.items()}
