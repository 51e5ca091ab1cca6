"""The application that an image serves: what a Docker build would take of a folder, and no secret.

.dockerignore is read as Docker reads it, by the matcher of Docker's own client library.
"""

import os
import re
import stat
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from envbuild.capture.places import STAMP_FOLDER
from envbuild.errors import UsageError
from envbuild.image.content import Content
from envbuild.serve.model import APP_FOLDER, ServeOrder
from envbuild.stamp.store import parse_model_uri

IGNORED = (
    ".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", ".env", ".env.*", ".envrc", ".dockerignore", ".ds_store",
    ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints",
)  # fmt: skip
"""What no image needs, wherever it lies and in whatever case, unless .dockerignore brings it back with `!`."""
_IGNORE_FILE = ".dockerignore"
_SECRET_NAMES = (
    "application_default_credentials.json", "credentials.db", "access_tokens.db", "id_rsa", "id_dsa", "id_ecdsa",
    "id_ed25519", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx", ".netrc", "_netrc", ".pypirc", ".pgpass",
    ".my.cnf", ".boto", ".s3cfg", ".htpasswd", ".git-credentials", ".dockercfg", ".docker/config.json", ".vault-token",
    ".aws/credentials", ".kube/config", "kubeconfig", "*.kubeconfig", "kubeconfig.y*ml", "kaggle.json",
    ".config/gh/hosts.yml", ".huggingface/token", ".cargo/credentials", ".cargo/credentials.toml",
    ".streamlit/secrets.toml",
)  # fmt: skip
"""Files that hold keys or credentials, whatever is in them; in lower case."""
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])+(?:Proc-Type|Version|[A-Za-z0-9+/]{16})"
)
"""A key itself, and no program that looks for one."""
_GOOGLE_LOGIN = re.compile(rb'"type"\s*:\s*"(?:service_account|authorized_user)"')
_GOOGLE_SECRET = re.compile(rb'"(?:private_key|refresh_token)"\s*:\s*"[^"]')
_CLUSTER_KEY = re.compile(rb"""client-key-data["']?\s*:\s*["']?[A-Za-z0-9+/]{16}""")
"""Of a kubeconfig under any name."""
_NPM_LOGIN = re.compile(rb"""(?m)^[^#;\n]*_(?:auth|authToken|password)\s*=\s*["']?[^\s"'$]""")
"""What an .npmrc may hold, and does not where it names a registry alone, or a variable with the token."""
_LOOKED_AT = 256 << 10
"""Bytes: no file of keys is larger."""
_TOLD = 10
"""Files that are named; the others are counted."""


def application_of(order: ServeOrder) -> Content:
    """Take the application of an order, without what the command itself writes; UsageError as `application`."""
    assert order.app is not None, "the caller looked"
    return application(order.app, without=tuple(_written(order)))


def _written(order: ServeOrder) -> Iterator[Path]:
    """Else each run would take in what the one before it wrote, and none would be found again."""
    yield order.order.out
    yield order.order.cache
    if order.order.archive:
        yield order.order.archive
    for model in filter(None, (order.model, order.order.stamp)):
        uri = parse_model_uri(model)
        if uri.bucket is None:
            path = Path(uri.path)
            yield (path if path.is_dir() else path.parent) / STAMP_FOLDER


def application(folder: Path, without: Iterable[Path] = ()) -> Content:
    """Take a folder as `/app`: files and links, 0755 where their owner may execute them, and 0644 else.

    `without` are files and folders that are no part of it. UsageError where it is none, has nothing to take, has links
    that leave it, sockets or devices, or holds keys and credentials: a layer can be read by all who may pull it.
    Folders without files are left out.
    """
    if not folder.is_dir():
        raise UsageError("the application is to be a folder", where=str(folder), todo="give the folder with its files")
    root = folder.resolve()
    try:
        found = {path: os.lstat(root / path) for path in _taken(root, _inside(root, without))}
    except OSError as error:
        what = f"the application cannot be read: {error.strerror}"
        raise UsageError(what, where=str(error.filename), todo=f"see that it may be read, or {_OUT}") from error
    files = {path: state for path, state in found.items() if stat.S_ISREG(state.st_mode)}
    links = {path for path, state in found.items() if stat.S_ISLNK(state.st_mode)}
    _check_names(found, root)
    _check_kinds({path: it.st_mode for path, it in found.items() if path not in files and path not in links}, root)
    if not files and not links:
        todo = f"give the folder that has its files, and see what its {_IGNORE_FILE} leaves out"
        raise UsageError("the application has no file", where=str(folder), todo=todo)
    _check_secrets(files, root)
    return Content(
        line="application",
        files={_place(path): root / path for path in files},
        executable=frozenset(_place(path) for path, state in files.items() if state.st_mode & stat.S_IXUSR),
        links={_place(path): _target(root, path) for path in links},
    )


_OUT = f"leave it out by a line in {_IGNORE_FILE}"


def _place(path: str) -> str:
    return f"{APP_FOLDER}/{path}"


def _inside(root: Path, paths: Iterable[Path]) -> frozenset[str]:
    """Where paths lie below the folder: a link by its own place, and what it leads to."""
    places = (place for path in paths for place in (path.absolute().parent.resolve() / path.name, path.resolve()))
    return frozenset(place.relative_to(root).as_posix() for place in places if place.is_relative_to(root))


def _taken(root: Path, without: frozenset[str]) -> Iterator[str]:
    """Yield the paths of everything but folders that nothing leaves out; OSError."""
    patterns = _patterns(root)
    # `!src` brings no src/.env back: only what names it does.
    brought_back = _matcher([it[1:] for it in patterns if it.startswith("!") and _has_part(it[1:], IGNORED)])
    for path in _matcher(patterns).walk(str(root)):
        ignored = (_has_part(path, IGNORED) and not brought_back.matches(path)) or _is_below(path, without)
        if not ignored and not stat.S_ISDIR(os.lstat(root / path).st_mode):
            yield path


def _is_below(path: str, places: frozenset[str]) -> bool:
    """Whether a path is one of the places, or lies in one."""
    return bool(places) and any(it in places for it in (path, *map(str, PurePosixPath(path).parents)))


def _matcher(patterns: Iterable[str]) -> Any:
    from docker.utils.build import Pattern, PatternMatcher  # noqa: PLC0415 - Docker's library is slow to import
    from docker.utils.fnmatch import fnmatchcase as matches  # noqa: PLC0415

    class Cased(Pattern):  # type: ignore[misc]  # Docker tells Data from data, and its Python client does not
        def match(self, filepath: str) -> bool:
            return bool(matches(filepath, self.cleaned_pattern))

    found = PatternMatcher([])
    found.patterns = [it for it in map(Cased, patterns) if it.dirs]
    for pattern in found.patterns:
        try:
            pattern.match("")
        except re.error as error:
            what = f"a line of {_IGNORE_FILE} is no pattern: {pattern.cleaned_pattern!r}"
            raise UsageError(what, where=_IGNORE_FILE, todo="write it as Docker's documentation says") from error
    return found


def _patterns(root: Path) -> list[str]:
    """The lines of .dockerignore, without comments; OSError."""
    file = root / _IGNORE_FILE
    if not os.path.lexists(file):
        return []
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError(f"{_IGNORE_FILE} is not UTF-8", where=str(file), todo="save it as UTF-8") from error
    return [line for line in lines if line and not line.startswith("#")]


def _has_part(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(part, pattern) for part in path.lower().split("/") for pattern in patterns)


def _check_names(paths: Iterable[str], root: Path) -> None:
    for path in paths:
        if path != path.encode(errors="replace").decode():
            raise UsageError(f"a file's name is not UTF-8: {path!a}", where=str(root), todo=f"rename it, or {_OUT}")


def _check_kinds(modes: dict[str, int], root: Path) -> None:
    for path, mode in sorted(modes.items()):
        kind = "a socket" if stat.S_ISSOCK(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
        what = f"{path!r} is {kind}, which no image can have"
        raise UsageError(what, where=str(root), todo=f"give the folder without it, or {_OUT}")


def _target(root: Path, path: str) -> str:
    """Where a link points in the image: the same file, by a relative path; UsageError where that is not in the folder.

    Links to links are followed, so that none leads through a place outside.
    """
    aim = Path(os.path.realpath(root / path))
    if not aim.is_relative_to(root):
        what = f"the link {path!r} leads out of the application, to {aim}"
        raise UsageError(what, where=str(root), todo=f"put a copy of it there, or {_OUT}")
    # The folder that the link itself lies in is none behind a link, as no link to a folder is gone into.
    target = os.path.relpath(aim, (root / path).parent)
    if target != target.encode(errors="replace").decode():
        raise UsageError(f"the link {path!r} has a target that is not UTF-8", where=str(root), todo=_OUT)
    return target


def _check_secrets(paths: Iterable[str], root: Path) -> None:
    """Refuse keys and credentials, by their names."""
    found = sorted(path for path in paths if _is_secret(path, root / path))
    if not found:
        return
    more = [f"and {len(found) - _TOLD} more"] if len(found) > _TOLD else []
    lines = ["the application holds keys or credentials, and a layer can be read by all who may pull it:"]
    lines += [*map(repr, found[:_TOLD]), *more]
    todo = f"leave them out by lines in {_IGNORE_FILE}, and mount them when the container runs"
    raise UsageError("\n  - ".join(lines), where=str(root), todo=todo)


def _is_secret(path: str, file: Path) -> bool:
    named = any(fnmatchcase(f"/{path.lower()}", f"*/{pattern}") for pattern in _SECRET_NAMES)
    return named or _holds_secret(file)


def _holds_secret(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            data = _plain(opened.read(_LOOKED_AT))
    except OSError as error:
        what = f"the application cannot be read: {error.strerror}"
        raise UsageError(what, where=str(file), todo=f"see that it may be read, or {_OUT}") from error
    google = _GOOGLE_LOGIN.search(data) and _GOOGLE_SECRET.search(data)
    npm = file.name.lower() == ".npmrc" and _NPM_LOGIN.search(data)
    return bool(_PRIVATE_KEY.search(data) or _CLUSTER_KEY.search(data) or google or npm)


def _plain(data: bytes) -> bytes:
    """Text in UTF-16 or UTF-32 as it would be in ASCII, as far as it is that."""
    wide = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in data[:2]
    return data.replace(b"\0", b"") if wide else data
