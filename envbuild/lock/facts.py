"""What wheels contain, read without downloading them: size, a digest of RECORD, and what METADATA requires."""

import base64
import email.message
import email.parser
import email.policy
import hashlib
import io
import itertools
import re
import threading
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, cast

from msgspec import Meta
from packaging.utils import canonicalize_name

from envbuild.cache import read_entry, remove, write_entry
from envbuild.capture.distributions import record_content
from envbuild.errors import LockError
from envbuild.lock.download import forget_damaged, remembered_digest, wheel_path
from envbuild.lock.index import Client, IndexFile, RemoteFile, UnreadableError, in_parallel, size_of
from envbuild.lock.metadata import Description, Document, read_metadata
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import bare_url, local_path
from envbuild.oci.digest import Digest
from envbuild.report import SILENT, Reporter, count
from envbuild.trust import Voucher
from envbuild.validation import read_values
from envbuild.wheel.install import read_record

_LIMIT = 64 << 20
"""Bytes that RECORD or METADATA may have; TensorFlow's RECORD has 2 MB."""
_HEADER = 30 + 512
"""A local file header with its name and extra field, generously (APPNOTE.TXT, section 4.3.7)."""
_GAP = 256 << 10
"""Bytes between two members that are cheaper to fetch than another request."""
_CHUNK = 1 << 20
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512"})
"""Hashes that RECORD may use (binary distribution format: sha256 or better)."""
_KINDS = {True: ("claims", Voucher.INDEX), False: ("facts", Voucher.LOCAL)}
"""Kind of cache entry and voucher: of a wheel that only the index has (True), of a file of this machine (False)."""
_TRUTHS = ("truths", Voucher.LOCAL)  # results of hashing every file of a wheel
_UNLISTED = re.compile(r"[^/]+\.dist-info/RECORD(\.jws|\.p7s)?")
_NOT_A_WHEEL = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError)
_DESCRIBING = re.compile(r"((?:.+/)?[^/]+\.dist-info)/(METADATA|sboms/.+)")
_DESCRIPTION = "-description-2"
"""The end of the name of a description's cache entry; its number is raised when something else is read."""
_MARKED = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")

WheelFile = IndexFile | LockedWheel
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """What one wheel says about itself."""

    size: Annotated[int, Meta(ge=0)]
    """Bytes."""
    content: str | None = None
    """`record_content` of its RECORD; None when RECORD lists nothing, or is not complete."""
    doubt: str = ""
    """Why its RECORD proves nothing: `has files that its RECORD does not list`."""
    requires: tuple[str, ...] = ()
    """Requires-Dist of its METADATA, as written."""


def read_classifiers(client: Client, wheel: WheelFile) -> tuple[str, ...]:
    """The classifiers of a wheel, read without downloading it; none where that cannot be done."""
    with suppress(UnreadableError, LockError), _open_wheel(wheel, local_path(wheel.url), client) as (archive, _):
        if member := _members(archive).get("METADATA"):
            return tuple(map(str, _headers(_text(archive, member)).get_all("Classifier", [])))
    return ()


class FactReader:
    """Reads facts and keeps them in the cache by the wheel's digest, apart from those that only an index claims."""

    def __init__(
        self, client: Client, cache: Path | None, verified_members: Mapping[Digest, Collection[str]] | None = None
    ) -> None:
        self._client, self._cache, self._verified_members = client, cache, verified_members or {}

    def digest(self, path: Path) -> Digest:
        """The sha256 of a wheel in a folder; OSError."""
        return remembered_digest(path, self._cache)

    def facts(self, wheel: WheelFile) -> WheelFacts | None:
        """The facts of a wheel; None where its server sends no ranges. LockError when it is not a wheel."""
        known = self._load(wheel, *_KINDS[self._find_file(wheel) is None], WheelFacts)
        if known:
            return known
        file = self._find_intact_file(wheel)
        try:
            with _open_wheel(wheel, file, self._client) as (archive, opened):
                members = _members(archive)
                if isinstance(opened, RemoteFile):
                    _prefetch(opened, members.values())
                texts = {name: _text(archive, member) for name, member in members.items()}
                record = texts.get("RECORD", "")
                doubt, size = _doubt(archive, record), opened.seek(0, io.SEEK_END)
        except UnreadableError:
            return None
        content, requires = None if doubt else record_content(record), requirements_of(texts.get("METADATA", ""))
        found = WheelFacts(size=size, content=content, doubt=doubt, requires=requires)
        self._store(wheel, *_KINDS[file is None], asdict(found))
        return found

    def modules(self, wheel: WheelFile) -> frozenset[str] | None:
        """The top-level names that a wheel has to import; None where its server sends no ranges. LockError."""
        files = self.files(wheel)
        return None if files is None else frozenset(filter(None, map(_top_level, files)))

    def files(self, wheel: WheelFile) -> Mapping[str, int] | None:
        """The size of each file of a wheel, by its path; None where its server sends no ranges.

        LockError when it is not a wheel.
        """
        try:
            with _open_wheel(wheel, self._find_intact_file(wheel), self._client) as (archive, _):
                return {it.filename: it.file_size for it in archive.infolist()}
        except UnreadableError:
            return None

    def extras(self, wheel: WheelFile) -> frozenset[str] | None:
        """The extras that a wheel has, normalised; None where it cannot be read now."""
        file = self._find_intact_file(wheel)
        with suppress(UnreadableError, LockError), _open_wheel(wheel, file, self._client) as (archive, _):
            member = _members(archive).get("METADATA")
            return extras_of(_text(archive, member)) if member else None
        return None

    def is_verified(self, wheel: WheelFile) -> bool:
        """Whether the cache has a wheel, whose bytes are as locked."""
        return bool(self._cache and wheel.sha256 and wheel_path(self._cache, wheel.sha256).exists())

    def describe(self, wheel: LockedWheel, *, fetch: bool = True, verified: bool = False) -> Description | None:
        """What a wheel says about itself and about what it carries; None where it cannot be read now.

        Without `fetch` no index is asked; of a `verified` wheel the cache has the bytes that are locked.
        """
        if verified and not self.is_verified(wheel):
            return None
        kind = _KINDS[self._find_file(wheel) is None]
        if known := self._load(wheel, *kind, Description, _DESCRIPTION):
            return known
        file = self._find_intact_file(wheel)
        if file is None and not fetch:
            return None
        with suppress(UnreadableError, LockError), _open_wheel(wheel, file, self._client) as (archive, opened):
            found = _describe(archive, opened)
            if found:
                self._store(wheel, *_KINDS[file is None], asdict(found), _DESCRIPTION)
            return found
        return None

    def mismatches(self, wheels: Sequence[LockedWheel]) -> list[str]:
        """Why the RECORD of each wheel is wrong, by hashing every file; empty if right, or without the file."""
        return in_parallel(self._mismatch, wheels)

    def known_mismatch(self, wheel: LockedWheel) -> str:
        """As `mismatches`, but for a wheel of the cache only what was found out before."""
        if local_path(wheel.url) is not None:
            return self._mismatch(wheel)
        return self._load(wheel, *_TRUTHS, str) or ""

    def _mismatch(self, wheel: LockedWheel) -> str:
        if self._find_file(wheel) is None:
            return ""
        known = self._load(wheel, *_TRUTHS, str)
        file = None if known is not None else self._find_intact_file(wheel)
        if file is None:
            return known or ""
        with _open_wheel(wheel, file, self._client) as (archive, _):  # installers do not compare files with RECORD
            member = _members(archive).get("RECORD")
            rows = _rows(_text(archive, member) if member else "")
            verified = self._verified_members.get(wheel.sha256, ())
            unread = [it for it in _listed(archive) if it.filename not in verified]
            right = all(_is_as_recorded(archive, it, rows.get(it.filename, "")) for it in unread)
        found = "" if right else "has files that are not what its RECORD says"
        self._store(wheel, *_TRUTHS, found)
        return found

    def all_facts(self, wheels: Sequence[WheelFile], reporter: Reporter = SILENT) -> list[WheelFacts | None]:
        """The facts of each wheel, read in parallel; a note now and then says how many are read."""
        numbers, lock, note = itertools.count(1), threading.Lock(), count(reporter, "wheels read")

        def one(wheel: WheelFile) -> WheelFacts | None:
            found = self.facts(wheel)
            with lock:
                note(next(numbers), len(wheels))
            return found

        return in_parallel(one, wheels)

    def size(self, wheel: WheelFile) -> int:
        """The size of a wheel in bytes; LockError when its server does not give it."""
        path = local_path(wheel.url)
        found = self.facts(wheel) if path is None else None
        return found.size if found else size_of(self._client, wheel.url)

    def find_false_claims(self, wheels: Iterable[LockedWheel]) -> list[LockedWheel]:
        """The wheels in the cache that differ from what an index sent of them in answers to range requests."""
        false = []
        for wheel in wheels:
            claimed = self._load(wheel, *_KINDS[True], WheelFacts) if self._find_file(wheel) else None
            found = self.facts(wheel) if claimed else None
            if found and not found.doubt and found != claimed:
                false.append(wheel)
                if self._cache:
                    remove(self._cache / _name(wheel, "claims"))
        return false

    def _find_file(self, wheel: WheelFile) -> Path | None:
        """The verified file in the cache, else the file in a folder of this machine."""
        if self._cache and wheel.sha256:
            path = wheel_path(self._cache, wheel.sha256)
            if path.exists():
                return path
        return local_path(wheel.url)

    def _find_intact_file(self, wheel: WheelFile) -> Path | None:
        """As `_find_file`, after checking the hash of a file in the cache."""
        with suppress(OSError):
            if not (self._cache and wheel.sha256 and forget_damaged(self._cache, wheel.sha256)):
                return self._find_file(wheel)
        return local_path(wheel.url)

    def _load(self, wheel: WheelFile, kind: str, origin: Voucher, of: type[T], end: str = "") -> T | None:
        if not (self._cache and wheel.sha256):
            return None
        return read_entry(self._cache, _name(wheel, kind, end), partial(read_values, kind=of), origin)

    def _store(self, wheel: WheelFile, kind: str, origin: Voucher, value: Any, end: str = "") -> None:
        if self._cache and wheel.sha256:
            write_entry(self._cache, _name(wheel, kind, end), value, origin)


def extras_of(metadata: str) -> frozenset[str]:
    """Provides-Extra of METADATA, normalised, and the extras in markers: old tools wrote no Provides-Extra."""
    headers = _headers(metadata)
    marked = [name for text in headers.get_all("Requires-Dist", []) for name in _MARKED.findall(str(text))]
    return frozenset(canonicalize_name(str(name).strip()) for name in (*headers.get_all("Provides-Extra", []), *marked))


def requirements_of(metadata: str) -> tuple[str, ...]:
    """Requires-Dist of METADATA, as written, on one line each."""
    return tuple(" ".join(str(value).split()) for value in _headers(metadata).get_all("Requires-Dist", []))


def _headers(metadata: str) -> email.message.Message:
    return email.parser.HeaderParser(policy=email.policy.compat32).parsestr(metadata)


def _name(wheel: WheelFile, kind: str, end: str = "") -> str:
    assert wheel.sha256, "only wheels with a digest are kept"
    return f"{kind}/{wheel.sha256.hex[:2]}/{wheel.sha256.hex}{end}.json"


@contextmanager
def _open_wheel(
    wheel: WheelFile, path: Path | None, client: Client
) -> Iterator[tuple[zipfile.ZipFile, BinaryIO | RemoteFile]]:
    """A wheel and its file, in place; LockError when it cannot be read as a wheel."""
    try:
        with ExitStack() as stack:
            file: BinaryIO | RemoteFile = path.open("rb") if path else RemoteFile(client, wheel.url)
            stack.enter_context(cast("io.IOBase", file))
            yield stack.enter_context(zipfile.ZipFile(cast("BinaryIO", file))), file
    except _NOT_A_WHEEL as error:
        own = "give the folder that has this wheel: --find-links DIR"
        todo = own if wheel.url.startswith("file:") else "lock another version, and report it to the index"
        what = f"{wheel.filename} cannot be read as a wheel: {error}"
        raise LockError(what, where=bare_url(wheel.url), todo=todo) from error


def _top_level(path: str) -> str:
    """`numpy` of `numpy/core/x.so`, `six` of `six.py`; empty for metadata (binary distribution format)."""
    return module_path(path).partition("/")[0].partition(".")[0]


def module_path(path: str) -> str:
    """Where a file of a wheel lies in site-packages; empty for metadata, and for what is installed elsewhere."""
    first, _, below = path.partition("/")
    folder, _, inside = below.partition("/")
    if first.endswith(".data"):
        return inside if folder in ("purelib", "platlib") else ""
    return "" if first.endswith(".dist-info") else path


def _rows(record: str) -> dict[str, str]:
    return {row.path: row.hash for row in read_record(record) if row.hash}


def _listed(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [it for it in archive.infolist() if not it.is_dir() and not _UNLISTED.fullmatch(it.filename)]


def _doubt(archive: zipfile.ZipFile, record: str) -> str:
    """Why RECORD proves nothing, as far as the archive's directory shows it."""
    rows, members = _rows(record), _listed(archive)
    if any(it.filename not in rows for it in members):
        return "has files that its RECORD does not list"
    if any(rows[it.filename].partition("=")[0] not in _ALGORITHMS for it in members):
        return "has a RECORD with weak hashes"
    if len({it.filename for it in members}) < len(members):
        return "has files twice"
    return ""


def _is_as_recorded(archive: zipfile.ZipFile, member: zipfile.ZipInfo, recorded: str) -> bool:
    algorithm, _, value = recorded.partition("=")
    if algorithm not in _ALGORITHMS:
        return False
    hasher = hashlib.new(algorithm)
    with archive.open(member) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return base64.urlsafe_b64encode(hasher.digest()).decode().rstrip("=") == value.rstrip("=")


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """RECORD and METADATA of the wheel's own dist-info folder."""
    found = {}
    for member in archive.infolist():
        folder, _, name = member.filename.partition("/")
        if folder.endswith(".dist-info") and name in {"RECORD", "METADATA"}:
            found[name] = member
    return found


def _describe(archive: zipfile.ZipFile, opened: BinaryIO | RemoteFile) -> Description | None:
    """Read METADATA of a wheel and of its vendored distributions, and hash its own bills of materials."""
    files = {it.filename: it for it in archive.infolist() if not it.is_dir()}
    members = {it: place for path, it in files.items() if (place := _DESCRIBING.fullmatch(path))}
    if isinstance(opened, RemoteFile):
        _prefetch(opened, members)
    metadata, documents = [], []
    for member, place in sorted(members.items(), key=lambda it: it[0].filename):
        if place[2] == "METADATA":
            metadata.append(read_metadata(_text(archive, member), place[1]))
        elif "/" not in place[1]:
            with archive.open(member) as file:
                digest, _ = Digest.of_file(cast("BinaryIO", file))
            documents.append(Document(path=member.filename, sha256=digest.hex))
    own, vendored = ([it for it in metadata if it and ("/" in it.path) == inside] for inside in (False, True))
    return Description(metadata=own[0], vendored=tuple(vendored), documents=tuple(documents)) if own else None


def _prefetch(file: RemoteFile, members: Iterable[zipfile.ZipInfo]) -> None:
    """Get both in one request where they are close together, as in most wheels."""
    spans = [(it.header_offset, it.header_offset + it.compress_size + _HEADER) for it in members]
    if not spans:
        return
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    if end - start < sum(last - first for first, last in spans) + _GAP:
        file.prefetch(start, end - start)
    for first, last in spans:
        file.prefetch(first, last - first)


def _text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    with archive.open(member) as file:
        data = file.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise zipfile.BadZipFile(f"{member.filename} is longer than {_LIMIT} bytes")
    return data.decode("utf-8", "replace")
