"""A wheel on the index as an archive of which only what is looked at is fetched."""

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from envbuild.errors import LockError
from envbuild.lock.index import RemoteFile, UnreadableError
from envbuild.lock.settings import bare_url
from envbuild.refresh.index import Index, IndexFile

_MEMBER_LIMIT = 4 << 20
_PIECE, _LONGEST = 1 << 20, 1 << 10


@contextmanager
def remote_wheel(index: Index, file: IndexFile) -> Iterator[zipfile.ZipFile]:
    """Open a wheel on the index; LockError when it is not a zip, a member is damaged, or ranges are not served."""
    where = bare_url(file.url)
    try:
        with RemoteFile(index.client, file.url) as remote, zipfile.ZipFile(remote) as archive:
            yield archive
    except UnreadableError as error:
        what = f"the package index does not serve parts of files (range requests): {error}"
        raise LockError(what, where=where, todo="use another index") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
        raise LockError(f"{file.name} cannot be read: {error}", where=where, todo="report it to the index") from error


def member(archive: zipfile.ZipFile, name: str) -> str:
    """The text of a small member; BadZipFile where it is not small or not text."""
    with archive.open(name) as file:
        data = file.read(_MEMBER_LIMIT + 1)
    if len(data) > _MEMBER_LIMIT:
        raise zipfile.BadZipFile(f"{name} is longer than {_MEMBER_LIMIT} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise zipfile.BadZipFile(f"{name} is not UTF-8") from error


def search(archive: zipfile.ZipFile, name: str, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Find a short text in a large member; no more of it is fetched than that takes."""
    kept = b""
    with archive.open(name) as file:
        while piece := file.read(_PIECE):
            if found := pattern.search(kept + piece):
                return found
            kept = piece[-_LONGEST:]
    return None
