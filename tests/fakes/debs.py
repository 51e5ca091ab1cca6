"""Debian packages, made as deb(5) says."""

import gzip
import io
import lzma
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import zstandard

PACKERS = {
    "": bytes,
    ".gz": lambda it: gzip.compress(it, mtime=0),
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def folder(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    return entry(name, tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    found = entry(name, kind, mode=0o777)
    found.linkname = target
    return found


def entry(name: str, kind: bytes, mode: int = 0o644, owner: tuple[int, int] = (0, 0)) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode = kind, mode
    found.uid, found.gid = owner
    found.mtime = 1_700_000_000
    return found


def tar_of(members: Sequence[tarfile.TarInfo | tuple[str, bytes] | tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A tar of folders, links, and files with their content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            first, data = (member, b"") if isinstance(member, tarfile.TarInfo) else member
            info = entry(first, tarfile.REGTYPE) if isinstance(first, str) else first
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def ar_of(members: Mapping[str, bytes]) -> bytes:
    parts = [b"!<arch>\n"]
    for name, data in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
        parts += [header.encode(), data, b"\n" * (len(data) % 2)]
    return b"".join(parts)


def deb_of(
    name: str,
    members: Sequence[tarfile.TarInfo | tuple[str, bytes] | tuple[tarfile.TarInfo, bytes]],
    *,
    version: str = "1.0-1",
    scripts: Mapping[str, bytes] | None = None,
    more: str = "",
    packed: str = ".xz",
) -> bytes:
    """A package with these members."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n{more}Description: made here\n for tests\n"
    texts = [("./control", control.encode()), *((f"./{key}", data) for key, data in (scripts or {}).items())]
    pack = PACKERS[packed]
    return ar_of(
        {
            "debian-binary": b"2.0\n",
            f"control.tar{packed}": pack(tar_of([folder("./"), *texts])),
            f"data.tar{packed}": pack(tar_of([folder("./"), *members])),
        }
    )


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
