"""A wheel on the index, opened as an archive by range requests, and what the Python files in it assign and call."""

import ast
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from envbuild.errors import LockError
from envbuild.lock.index import RemoteFile, UnreadableError
from envbuild.lock.settings import bare_url
from profiles.refresh.index import Index, IndexFile

_MEMBER_LIMIT = 4 << 20
_PIECE, _LONGEST = 1 << 20, 1 << 10
_NOT_PLAIN = (ValueError, TypeError, IndexError, RecursionError)


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


def search(
    archive: zipfile.ZipFile, name: str, pattern: re.Pattern[bytes], words: Sequence[bytes]
) -> re.Match[bytes] | None:
    """Find a short text in a large member; no more of it is fetched than that takes.

    Every text that is looked for holds one of the words: they are found much faster than a pattern.
    """
    kept = b""
    with archive.open(name) as file:
        while piece := file.read(_PIECE):
            window = kept + piece
            if any(word in window for word in words) and (found := pattern.search(window)):
                return found
            kept = piece[-_LONGEST:]
    return None


def constants(archive: zipfile.ZipFile, name: str) -> dict[str, object]:
    """The names that a module sets to plain values at its top level; BadZipFile where it is not Python.

    `dict(...)` and `OrderedDict(...)` of one plain value count as plain.
    """
    return dict(_assigned(_parse(archive, name).body))


def assigned(archive: zipfile.ZipFile, name: str, variable: str) -> Iterator[object]:
    """Every plain value that a variable is set to anywhere in a module; BadZipFile as `constants`."""
    return (value for target, value in _assigned(ast.walk(_parse(archive, name))) if target == variable)


def calls(archive: zipfile.ZipFile, name: str, function: str) -> Iterator[tuple[object, ...]]:
    """The arguments of every call of a function with plain values in a module; BadZipFile as `constants`."""
    for node in ast.walk(_parse(archive, name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
            try:
                yield tuple(ast.literal_eval(argument) for argument in node.args)
            except _NOT_PLAIN:
                continue


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, object]]:
    for node in nodes:
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            try:
                yield ast.unparse(target), _plain(node.value)
            except _NOT_PLAIN:
                continue


def _parse(archive: zipfile.ZipFile, name: str) -> ast.Module:
    try:
        return ast.parse(member(archive, name))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise zipfile.BadZipFile(f"{name} cannot be read: {error}") from error


def _plain(node: ast.expr) -> object:
    if isinstance(node, ast.Call):
        return dict(ast.literal_eval(node.args[0]))
    return ast.literal_eval(node)
