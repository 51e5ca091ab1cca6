"""The cache folder: small entries in it, its contents by kind, and pruning.

Everything in it can be built or fetched again, and is content-addressed or verified when it is read. So removing a
part harms at most a run that uses it at this moment, which fails with a message and works when it is run again.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from envbuild.errors import UsageError
from envbuild.files import is_no_file, write_whole
from envbuild.trust import Voucher

T = TypeVar("T")

KINDS = {
    "wheels": "wheels from indexes",
    "blobs": "layers, as they are pushed",
    "pushed": "repositories that have layers",
    "layers": "layers of environments by key",
    "notes": "paths that several wheels have",
    "facts": "metadata of wheels",
    "claims": "metadata of wheels from indexes",
    "truths": "results of verifying wheels",
    "digests": "hashes of wheels in folders of find-links",
    "loading": "requirements of shared libraries in wheels and bases",
    "bases": "base images",
    "built": "wheels built from source",
    "debs": "Debian packages",
    "apt": "package lists of Debian mirrors",
    "interpreters": "interpreters of bases",
    "bytecode": "compiled wheels",
}
"""The folders in it, and their contents."""
_WHOLE = frozenset({"apt", "bases", "built", "interpreters"})
"""Kinds whose folders are usable only as a whole."""
_OURS = re.compile(r"\.new-.*|[\w.-]*[0-9a-f]{12,64}[\w.-]*")
"""Names of cache items: with a digest, or unfinished. The folder may hold other files too."""
_IN_USE = 3600.0
"""Seconds since its last use in which an item may belong to a run."""
_UNFINISHED = 24 * 3600.0
"""Seconds after which a temporary file or folder is a leftover of a killed run."""
_PLACE = "bases"
"""The cache's folder for temporary work, whose leftovers `cache prune` removes."""
_ENTRY_FORMAT = 1
"""Raised when the format of entries changes."""
_HEAD, _MIDDLE, _END = b'{"entry":', b',"sha256":"', b'"}'
_NO_ENTRY = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
"""The errors of decoding an invalid entry."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def write_entry(folder: Path, name: str, value: Any, origin: Voucher = Voucher.LOCAL) -> None:
    """Write a small value to the file `name` below `folder`, with its name, its origin and a checksum."""
    entry = {"format": _ENTRY_FORMAT, "name": name, "origin": origin, "value": value}
    body = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
    path = folder / name
    if path.is_dir():
        remove(path)
    write_whole(path, _HEAD + body + _MIDDLE + hashlib.sha256(body).hexdigest().encode() + _END)


def read_entry(
    folder: Path, name: str, decode: Callable[[Any], T] = lambda it: it, origin: Voucher = Voucher.LOCAL
) -> T | None:
    """Return the decoded value that `write_entry` wrote under this name and origin; None if there is none.

    An invalid entry is removed, so that the value can be computed and written again. An entry that cannot be read now,
    as with too many open files, stays.
    """
    path = folder / name
    try:
        data = path.read_bytes()
        body = data[len(_HEAD) : -len(_MIDDLE) - 64 - len(_END)]
        if data != _HEAD + body + _MIDDLE + hashlib.sha256(body).hexdigest().encode() + _END:
            raise ValueError("it has another checksum")
        entry = json.loads(body)
        if (entry["format"], entry["name"], entry["origin"]) != (_ENTRY_FORMAT, name, origin):
            raise ValueError("it is another entry")
        return decode(entry["value"])
    except OSError as error:
        wrong = is_no_file(error)
    except _NO_ENTRY:
        wrong = True
    if wrong:
        remove(path)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file, or one folder that is usable as a whole."""

    kind: str
    path: Path
    size: int
    """Bytes of its files."""
    used: float
    """When it was written or read last, in seconds since 1970; file systems note reading once a day."""

    @property
    def unfinished(self) -> bool:
        """Whether it is a temporary file or folder of a run."""
        return self.path.name.startswith(".new-")


def kinds(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the number of items, and their bytes, of every kind in the cache."""
    found = list(_things(folder))
    sizes = {name: [it.size for it in found if it.kind == name] for name in KINDS}
    return {name: (len(its), sum(its)) for name, its in sizes.items()}


def prune(folder: Path, *, keep: int, now: float | None = None, dry_run: bool = False) -> tuple[Item, ...]:
    """Remove the least recently used items until at most `keep` bytes are left; return the removed ones.

    Leftovers of killed runs go after a day, or first if room is needed. What was used in the last hour stays, so that
    other runs are not disturbed.
    """
    now = time.time() if now is None else now
    found = sorted(_things(folder), key=lambda it: (not it.unfinished, it.used, it.path))
    size, removed = sum(it.size for it in found), []
    for thing in found:
        idle = now - thing.used
        if (thing.unfinished and idle > _UNFINISHED) or (size > keep and idle > _IN_USE):
            removed.append(thing)
            size -= thing.size
    return tuple(thing for thing in removed if dry_run or remove(thing.path))


@contextmanager
def workplace(cache: Path) -> Iterator[Path]:
    """Yield an empty folder on the cache's disk, and remove it when the block ends."""
    place = cache / _PLACE
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-verify-", dir=place) as name:
        yield Path(name)


def read_size(text: str, where: str) -> int:
    """Read `20GB`, `500 MB` or a number of bytes; UsageError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{text!r} is not a size", where=where, todo="give a number of bytes, or a size such as 20GB or 500MB"
        )
    return int(float(found[1]) * 1000 ** _POWERS[found[2].lower()])


def size_limit() -> int | None:
    """The size limit of the cache in bytes, by ENVBUILD_CACHE_LIMIT; None if it is not set."""
    text = os.environ.get("ENVBUILD_CACHE_LIMIT", "").strip()
    return read_size(text, "ENVBUILD_CACHE_LIMIT") if text else None


def _things(folder: Path) -> Iterator[Item]:
    for kind in KINDS:
        paths: Iterable[Path] = (Path(place) / name for place, _, names in os.walk(folder / kind) for name in names)
        if kind in _WHOLE:
            paths = ()
            with suppress(OSError):  # it is not there, or another user's
                paths = list((folder / kind).iterdir())
        for path in (it for it in paths if _OURS.fullmatch(it.name)):
            with suppress(OSError):  # removed meanwhile
                files = [Path(place) / name for place, _, names in os.walk(path) for name in names]
                states = [it.lstat() for it in files or [path]]
                used = max(max(it.st_atime, it.st_mtime) for it in states)
                yield Item(kind=kind, path=path, size=sum(it.st_size for it in states), used=used)


def remove(path: Path) -> bool:
    """Remove a file, a link or a folder, its name first, so that no other run sees half of it; False if it stays."""
    try:
        if path.is_dir() and not path.is_symlink():
            aside = path.with_name(f".new-{secrets.token_hex(8)}")
            path.rename(aside)
            shutil.rmtree(aside)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
