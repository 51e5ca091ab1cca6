"""Tars that engines are sent: files and folders, of which none is held whole."""

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

_CHUNK = 1 << 20


def tarred(files: Mapping[str, bytes | Path], folders: Mapping[str, int]) -> Iterator[bytes]:
    """Yield a tar of folders with these modes, and of files that everybody may read.

    Nothing stands behind its end, as TarFile would have it: podman leaves there, and what is still written to it then
    breaks its pipe (buildah #6573).
    """
    for name, mode in folders.items():
        yield _header(name, tarfile.DIRTYPE, mode)
    for name, content in files.items():
        yield from _entry(name, content)
    yield bytes(2 * tarfile.BLOCKSIZE)


def parents(names: Iterable[str]) -> dict[str, None]:
    """The folders that relative paths lie in, those above before those below."""
    return {str(folder): None for name in names for folder in reversed(PurePosixPath(name).parents[:-1])}


def _entry(name: str, content: bytes | Path) -> Iterator[bytes]:
    """A file as large as it was when it was opened, whatever is written to it meanwhile."""
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        yield _header(name, tarfile.REGTYPE, 0o644, size)
        left = size
        while left and (data := file.read(min(_CHUNK, left))):
            left -= len(data)
            yield data
        yield bytes(left) + bytes(-size % tarfile.BLOCKSIZE)


def _header(name: str, kind: bytes, mode: int, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size = kind, mode, size
    return info.tobuf(tarfile.PAX_FORMAT)
