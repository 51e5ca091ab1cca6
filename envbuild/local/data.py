"""Data of this machine in a container: --data, and paths that hold more than data, which need the user's word."""

import os
import posixpath
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envbuild.capture.redact import scrub_line
from envbuild.errors import UsageError
from envbuild.local.model import WORKSPACE, Mount
from envbuild.manifest.model import Data
from envbuild.stamp.store import encodable

_SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/var")
_HOMES = (Path("/home"), Path("/Users"))
_DEPTH, _ENTRIES = 3, 10_000
"""How far a folder is searched for sockets: three levels of folders below it, and so many entries."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_BUCKET_NAMES = (
    "3 to 63 small letters, digits, dashes and underscores, more with dots, first and last a letter or digit"
)
"""Cloud Storage, "About Cloud Storage buckets", bucket names."""
GCS = "/gcs"
"""Where all buckets are seen."""
_CLOSED = (
    *("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/var/run"),
    *("/opt/env", "/opt/notebook", WORKSPACE),
    *(f"{it}/{name}" for it in ("/usr", "/usr/local") for name in ("bin", "lib", "lib32", "lib64", "sbin")),
    *("/usr/libexec", "/usr/libx32", "/usr/share/ca-certificates", "/usr/share/zoneinfo"),
)
"""What a container cannot do without: nothing may be mounted over it, around it, or in it."""
_KEPT = (*_CLOSED, GCS, "/tmp")  # noqa: S108 - of the container
"""Over or around which nothing may be mounted."""
_CUDA = "/usr/local/cuda"
"""How the names begin of CUDA's folders, `cuda` and `cuda-12.2`, in NVIDIA's images."""
_OPEN = "/run/media"
"""Disks that were plugged in here, which no container has."""
_ELSEWHERE = "map another place, and name it by a variable: --data /data=PATH -e NAME=/data"
_UNSAFE = ",unsafe"
_TODO = "give gs://bucket/folder=./folder, or the absolute path that the run read: /data/train=./train"


def exposure(path: Path) -> str | None:
    """Why a path without links on its way needs `,unsafe`; None for plain data."""
    return reserved(path) or (f"it holds the socket {found}" if (found := socket_in(path)) else None)


def reserved(path: Path) -> str | None:
    """Why a path is not for containers: home folders, their dot folders, the system's folders, and what is above these.

    What lies in the caller's own home is judged by the rules for homes alone, wherever that home is: in /root, in /var.
    """
    own = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - Path's own raises for a user without a home
    # With sudo the caller is root.
    others = [Path(*path.parts[:3]) for it in _HOMES if path.is_relative_to(it) and path != it]
    for home in (it for it in (own, *others) if it != Path("/")):
        if home.is_relative_to(path):
            return f"it is the home folder {home}" if home == path else f"it holds the home folder {home}"
        if path.is_relative_to(home):
            first = path.relative_to(home).parts[0]
            return f"{home / first} is where programs keep settings and keys" if first[0] == "." else None
    if path in _HOMES:
        return "it holds home folders"
    for folder in (Path(it).resolve() for it in _SYSTEM):
        if path.is_relative_to(folder):
            return f"it lies in {folder}, which is the system's" if path != folder else "it is the system's"
        if folder.is_relative_to(path):
            return f"it holds {folder}, which is the system's"
    return None


def socket_in(path: Path) -> Path | None:
    """The path itself or the first file found in it that is a socket: everyone who sees one can talk to its program."""
    if path.is_socket():
        return path
    return next((Path(it.path) for it in islice(_entries(path), _ENTRIES) if _is_socket(it)), None)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder, near things first; what the caller may not read is passed over."""
    waiting = deque([(str(folder), 0)])
    while waiting:
        path, depth = waiting.popleft()
        with suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                yield entry
                if depth < _DEPTH and entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))


def _is_socket(entry: os.DirEntry[str]) -> bool:
    """Whether it is a socket; ordinary entries need no look at the disk."""
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMap:
    """A place of the run and what stands for it here."""

    uri: str
    """`gs://bucket/folder` or an absolute path, without a slash at the end."""
    mount: Mount


def read_maps(texts: Sequence[str], home: str | None) -> tuple[DataMap, ...]:
    """Read `URI=PATH`, `URI=PATH:rw`; read-only by default, as what trains must not change what it learns from.

    A place in Cloud Storage is seen at /gcs/bucket/..., as on Vertex AI ("Prepare training code", Cloud Storage FUSE).
    `,unsafe` at the end allows a path that holds more than data. UsageError for such a path without it, for what names
    no place, for a path that is not there, and for two maps of one place.
    """
    maps = tuple(_map(text, home) for text in texts)
    for number, it in enumerate(maps):
        if any(other.mount.target == it.mount.target for other in maps[:number]):
            todo = "leave out one of them"
            raise UsageError("two folders cannot stand for one place", where=_option(it.uri), todo=todo)
    return maps


def rewritten(value: str, maps: Iterable[DataMap]) -> str:
    """The value as the container needs it, if it is a mapped place or lies in one; the longest one counts."""
    for it in sorted(maps, key=lambda it: len(it.uri), reverse=True):
        if value == it.uri or value.startswith(f"{it.uri}/"):
            return it.mount.target + value[len(it.uri) :]
    return value


def seen_at(place: str) -> str | None:
    """The path of a place in the container, if it were mounted as it should be; None for a URL."""
    if place.startswith("gs://"):
        return f"/gcs/{place[5:]}"
    if place.startswith("file://"):
        place = unquote(urlsplit(place).path)
    return None if "://" in place or not place else posixpath.normpath(posixpath.join(WORKSPACE, place))


def is_seen(path: str, mounts: Iterable[Mount]) -> bool:
    """Whether a path of the container lies in what is mounted."""
    return any(within(path, it.target) for it in mounts)


def within(path: str, folder: str) -> bool:
    """Whether a path is the folder or lies in it, by whole components."""
    return path == folder or path.startswith(f"{folder}/")


def place_of(data: Data, variables: Mapping[str, str]) -> str:
    """Where the container will look for data: where its variable points now, else where the run had it."""
    return (variables.get(data.variable) if data.variable else None) or data.uri


def mounts_below(places: Iterable[str], folder: Path, mounts: Sequence[Mount]) -> Iterator[Mount]:
    """Places of the run that lie in a folder here: read-only, at the path that the program knows.

    A link in the folder that leads out of it does not lie in it. What is mounted already is left out.
    """
    for path in sorted(it for place in places if not place.startswith("gs://") and (it := seen_at(place))):
        source = resolve_here(path)
        if source is None or is_seen(path, mounts) or not is_free(path):
            continue
        if source.is_relative_to(folder.resolve()) and exposure(source) is None:
            mount = Mount(source=source, target=path, read_only=True)
            mounts = (*mounts, mount)
            yield mount


def workspace_mount(warn: Callable[[str], object]) -> Mount:
    """The working folder in the container; UsageError where it is a home folder or one of the system's."""
    folder = Path.cwd().resolve()
    if reason := reserved(folder):
        todo = "start in a folder that holds the project alone: mkdir work && cd work"
        raise UsageError(f"the program would see this whole folder, and {reason}", where=str(folder), todo=todo)
    if found := socket_in(folder):
        warn(f"the program can talk to the socket {found}; start in another folder if it must not")
    return Mount(source=folder, target=WORKSPACE)


def check_mounts(mounts: Sequence[Mount]) -> None:
    """Check that engines can mount each path, and that each mount within another has a place there.

    The engine would make that place otherwise, as root, in the folder here.
    """
    for it in mounts:
        if not encodable(str(it.source)):
            todo = "rename it, in UTF-8"
            raise UsageError("engines cannot mount this path", where=message_text(str(it.source)), todo=todo)
    for outer, inner in permutations(mounts, 2):
        if inner.target != outer.target and within(inner.target, outer.target):
            place = outer.source / inner.target[len(outer.target) + 1 :]
            if not place.exists() or place.is_dir() != inner.source.is_dir():
                kind = "folder" if inner.source.is_dir() else "file"
                what = f"{inner.target} lies in {outer.target}, and {outer.source} has no such {kind}"
                raise UsageError(what, where=str(inner.source), todo=f"make an empty {kind} there: {place}")


def resolve_here(path: str) -> Path | None:
    """A file, folder or socket without links on its way, which engines and kernels follow differently; None without."""
    try:
        found = Path(path).resolve(strict=True)
        return found if found.is_dir() or found.is_file() or found.is_socket() else None
    except (OSError, ValueError, RuntimeError):  # none, or it may not be looked at, or a circle of links
        return None


def is_free(path: str) -> bool:
    """Whether something may be mounted at a path of the container: nothing else needs it."""
    if within(path, _OPEN):
        return True
    needed = any(within(path, it) for it in _CLOSED) or any(within(it, path) for it in _KEPT)
    return path != "/" and not needed and not path.startswith(_CUDA)


def message_text(text: str) -> str:
    """A text of the caller's in one line, for messages, without what looks like a secret.

    What follows the `=` of a mapping is a path, whatever the place before it is called.
    """
    parts = [text] if {"?", "@"} & set(text) else text.split("=")
    return "=".join(map(scrub_line, parts)).encode(errors="backslashreplace").decode()


def _map(text: str, home: str | None) -> DataMap:
    where = _option(text)
    place, source, writable = _split(text.removesuffix(_UNSAFE), home)
    if not text.endswith(_UNSAFE) and (reason := exposure(source)):
        todo = f"map a folder of data alone, or give {where}{_UNSAFE} if the program may have all of it"
        raise UsageError(f"{source} is not mounted without {_UNSAFE}: {reason}", where=where, todo=todo)
    uri = _uri(place, text)
    target = seen_at(uri) or uri
    if target == GCS:
        raise UsageError("this names no bucket", where=where, todo="map them one by one: gs://bucket=./folder")
    if within(target, WORKSPACE):
        what = f"{WORKSPACE} is this folder in the container, so that relative data lies there already"
        raise UsageError(what, where=where, todo=f"put the data into this folder, or {_ELSEWHERE}")
    if not is_free(target):
        what = f"nothing can be mounted at {target}, which the container needs itself"
        raise UsageError(what, where=where, todo=_ELSEWHERE)
    return DataMap(uri=uri, mount=Mount(source=source, target=target, read_only=not writable))


def _split(text: str, home: str | None) -> tuple[str, Path, bool]:
    """Place, path here, and whether it may be written: at the one `=` behind which something is here."""
    readings, missing = [], []
    for cut in re.finditer("=", text):
        path = re.sub(r":r[wo]\Z", "", text[cut.end() :])
        missing.append(message_text(path) or "''")
        if home and path.startswith("~/"):  # which no shell replaces behind a =
            path = home + path[1:]
        if path and (source := resolve_here(path)):
            readings.append((text[: cut.start()], source, text.endswith(":rw")))
    if not missing:
        raise UsageError("this maps nothing", where=_option(text), todo=_TODO)
    if not readings:
        what = f"there is no such file or folder here: {' or '.join(missing)}"
        raise UsageError(what, where=_option(text), todo="correct the path")
    if len(readings) > 1:
        raise UsageError("this can be read in two ways", where=_option(text), todo="give an absolute path after the =")
    return readings[0]


def _uri(place: str, text: str) -> str:
    where = _option(text)
    if not place.isprintable() or not encodable(place):
        raise UsageError("this names no place", where=where, todo=_TODO)
    if not place.startswith("gs://"):
        path = seen_at(place)
        if path is None or not place.startswith(("/", "file://")):
            todo = f"{_TODO}; a relative path lies in the working folder, which the container has"
            raise UsageError("this names no place of a run that could be mapped", where=where, todo=todo)
        return path.replace("//", "/")  # two slashes may lead by POSIX
    bucket, _, name = place.removeprefix("gs://").partition("/")
    name = name.removesuffix("/")
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"what follows gs:// is not a bucket's name: {_BUCKET_NAMES}", where=where, todo=_TODO)
    if name and {"", ".", ".."} & set(name.split("/")):
        raise UsageError("no path can stand for this name", where=where, todo="map a folder around it")
    if "*" in name:
        todo = f"map the folder: gs://{bucket}/{name[: name.index('*')].rpartition('/')[0]}"
        raise UsageError("a pattern names no folder", where=where, todo=todo)
    return f"gs://{bucket}/{name}".removesuffix("/")


def _option(text: str) -> str:
    return f"--data {message_text(text)}"
