"""What wheels say about themselves, read without downloading them: size, content, and what they require."""

import base64
import csv
import email.parser
import email.policy
import hashlib
import io
import itertools
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from packaging.utils import canonicalize_name

from envbuild.cache import read_entry, remove, write_entry
from envbuild.capture.distributions import record_content
from envbuild.errors import LockError
from envbuild.lock.download import forget_damaged, wheel_path
from envbuild.lock.index import local_path, size_of
from envbuild.lock.model import LockedWheel
from envbuild.lock.remote import RemoteFile, UnreadableError, damaged
from envbuild.lock.web import Web, in_parallel
from envbuild.oci.digest import Digest
from envbuild.trust import Voucher

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
"""Where facts are kept and who vouches for them: whether only an index has the wheel."""
_TRUTHS = ("truths", Voucher.LOCAL)
_UNLISTED = re.compile(r"[^/]+\.dist-info/RECORD(\.jws|\.p7s)?")
_NOT_A_WHEEL = (
    zipfile.BadZipFile,
    csv.Error,
    zipfile.LargeZipFile,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    EOFError,
)
_MARKED = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")

T = TypeVar("T")
Counted = Callable[[int, int], object]
"""Called with how many are done, of how many; by one thread at a time."""


class WheelFile(Protocol):
    """A wheel somewhere: of an index, or locked."""

    @property
    def filename(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def sha256(self) -> Digest | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """What one wheel says about itself."""

    size: int
    """Bytes."""
    content: str | None = None
    """What `record_content` makes of its RECORD; None when that says nothing, or not the truth."""
    doubt: str = ""
    """Why its RECORD proves nothing, whether it is true or not: `has files that its RECORD does not list`."""
    requires: tuple[str, ...] = ()
    """Requires-Dist of its METADATA, as written."""


def read_metadata(client: Web, wheel: WheelFile) -> str:
    """METADATA of a wheel, read in place; empty where that cannot be done."""
    path = local_path(wheel.url)
    try:
        with ExitStack() as stack:
            file: BinaryIO | RemoteFile = path.open("rb") if path else RemoteFile(client, wheel.url)
            stack.enter_context(cast("io.IOBase", file))
            archive = stack.enter_context(zipfile.ZipFile(cast("BinaryIO", file)))
            member = _members(archive).get("METADATA")
            return _text(archive, member) if member else ""
    except (*_NOT_A_WHEEL, UnreadableError, OSError, ValueError):
        return ""


class FactReader:
    """Reads facts and keeps them in the cache by the wheel's digest, apart from those that only an index claims."""

    def __init__(self, client: Web, cache: Path | None, true: Mapping[Digest, Collection[str]] | None = None) -> None:
        self._client, self._cache, self._true = client, cache, true or {}

    def facts(self, wheel: WheelFile) -> WheelFacts | None:
        """The facts of a wheel; None where its server sends no ranges. LockError when it is no wheel."""
        known = self._kept(wheel, *_KINDS[self._file(wheel) is None], _facts)
        if known:
            return known
        file = self._checked_file(wheel)
        try:
            found = _facts_of(wheel, file, self._client)
        except UnreadableError:
            return None
        self._keep(wheel, *_KINDS[file is None], asdict(found))
        return found

    def modules(self, wheel: WheelFile) -> frozenset[str] | None:
        """What a wheel has to import, by its top-level names; None where its server sends no ranges. LockError."""
        files = self.files(wheel)
        return None if files is None else frozenset(filter(None, map(_top_level, files)))

    def files(self, wheel: WheelFile) -> tuple[str, ...] | None:
        """The paths in a wheel; None where its server sends no ranges. LockError when it is no wheel."""
        try:
            with _opened(wheel, self._checked_file(wheel), self._client) as archive:
                return tuple(archive.namelist())
        except UnreadableError:
            return None

    def extras(self, wheel: WheelFile) -> frozenset[str] | None:
        """The extras that a wheel has, normalised; None where it cannot be read now."""
        try:
            with _opened(wheel, self._checked_file(wheel), self._client) as archive:
                member = _members(archive).get("METADATA")
                return extras_of(_text(archive, member)) if member else None
        except (UnreadableError, LockError):
            return None

    def untruths(self, wheels: Sequence[LockedWheel]) -> list[str]:
        """Why RECORD proves nothing for each of these wheels, as it is not true; empty where it is, or may be.

        Every file of a wheel that is here is hashed, once; of one that is not, nothing is known.
        """
        return in_parallel(self._untruth, wheels)

    def known_untruth(self, wheel: LockedWheel) -> str:
        """As `untruths`, but for a wheel of the cache only what was found out before."""
        if local_path(wheel.url) is not None:
            return self._untruth(wheel)
        return self._kept(wheel, *_TRUTHS, _text_of) or ""

    def _untruth(self, wheel: LockedWheel) -> str:
        if self._file(wheel) is None:
            return ""
        known = self._kept(wheel, *_TRUTHS, _text_of)
        if known is not None:
            return known
        if (file := self._checked_file(wheel)) is None:
            return ""
        found = _untruth_of(wheel, file, self._true.get(wheel.sha256, ()))
        self._keep(wheel, *_TRUTHS, found)
        return found

    def all_facts(self, wheels: Sequence[WheelFile], told: Counted = lambda *_: None) -> list[WheelFacts | None]:
        """The facts of each wheel, read in parallel."""
        lock, numbers = threading.Lock(), itertools.count(1)

        def one(wheel: WheelFile) -> WheelFacts | None:
            found = self.facts(wheel)
            with lock:
                told(next(numbers), len(wheels))
            return found

        return in_parallel(one, wheels)

    def size(self, wheel: WheelFile) -> int:
        """The size of a wheel in bytes; LockError when its server does not tell."""
        path = local_path(wheel.url)
        found = self.facts(wheel) if path is None else None
        return found.size if found else size_of(self._client, wheel.url)

    def false_claims(self, wheels: Iterable[LockedWheel]) -> list[LockedWheel]:
        """The wheels in the cache that are not what an index said of them in its answers to range requests."""
        here = [wheel for wheel in wheels if self._file(wheel)]
        claims = [(wheel, self._kept(wheel, *_KINDS[True], _facts)) for wheel in here]
        false = [wheel for wheel, known in claims if known and self._differ(self.facts(wheel), known)]
        for wheel in false:
            if self._cache:
                remove(self._cache / _name(wheel, "claims"))
        return false

    @staticmethod
    def _differ(found: WheelFacts | None, claimed: WheelFacts) -> bool:
        return found is not None and not found.doubt and found != claimed

    def _file(self, wheel: WheelFile) -> Path | None:
        """The verified file in the cache, else that in a folder of this machine."""
        if self._cache and wheel.sha256:
            path = wheel_path(self._cache, wheel.sha256)
            if path.exists():
                return path
        return local_path(wheel.url)

    def _checked_file(self, wheel: WheelFile) -> Path | None:
        """Return the local wheel after checking its hash."""
        try:
            if self._cache and wheel.sha256 and forget_damaged(self._cache, wheel.sha256):
                return local_path(wheel.url)
        except OSError:
            return local_path(wheel.url)
        return self._file(wheel)

    def _kept(self, wheel: WheelFile, kind: str, origin: Voucher, decode: Callable[[Any], T]) -> T | None:
        return read_entry(self._cache, _name(wheel, kind), decode, origin) if self._cache and wheel.sha256 else None

    def _keep(self, wheel: WheelFile, kind: str, origin: Voucher, value: Any) -> None:
        if self._cache and wheel.sha256:
            write_entry(self._cache, _name(wheel, kind), value, origin)


def _name(wheel: WheelFile, kind: str) -> str:
    assert wheel.sha256, "nothing is kept of a wheel that has no digest"
    return f"{kind}/{wheel.sha256.hex[:2]}/{wheel.sha256.hex}.json"


def _facts(value: Any) -> WheelFacts:
    found = WheelFacts(**(value | {"requires": tuple(value["requires"])}))
    texts = (found.doubt, *found.requires, found.content or "")
    if type(found.size) is not int or found.size < 0 or not all(isinstance(it, str) for it in texts):
        raise ValueError("they are no facts of a wheel")
    return found


def _text_of(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value)} is no text")
    return value


def _facts_of(wheel: WheelFile, path: Path | None, client: Web) -> WheelFacts:
    try:
        with ExitStack() as stack:
            file: BinaryIO | RemoteFile = path.open("rb") if path else RemoteFile(client, wheel.url)
            stack.enter_context(cast("io.IOBase", file))
            archive = stack.enter_context(zipfile.ZipFile(cast("BinaryIO", file)))
            members = _members(archive)
            if isinstance(file, RemoteFile):
                _prefetch(file, members.values())
            texts = {name: _text(archive, member) for name, member in members.items()}
            doubt = _doubt(archive, texts.get("RECORD", ""))
            size = file.seek(0, io.SEEK_END)
    except (*_NOT_A_WHEEL, OSError, ValueError) as error:
        raise damaged(wheel.filename, wheel.url, error) from error
    content = None if doubt else record_content(texts.get("RECORD", ""))
    return WheelFacts(size=size, content=content, doubt=doubt, requires=requirements_of(texts.get("METADATA", "")))


@contextmanager
def _opened(wheel: WheelFile, path: Path | None, client: Web) -> Iterator[zipfile.ZipFile]:
    """A wheel in place; LockError when it is none."""
    try:
        with ExitStack() as stack:
            file: BinaryIO | RemoteFile = path.open("rb") if path else RemoteFile(client, wheel.url)
            stack.enter_context(cast("io.IOBase", file))
            yield stack.enter_context(zipfile.ZipFile(cast("BinaryIO", file)))
    except (*_NOT_A_WHEEL, OSError, ValueError) as error:
        raise damaged(wheel.filename, wheel.url, error) from error


def _top_level(path: str) -> str:
    """`numpy` of `numpy/core/x.so`, `six` of `six.py`; empty for metadata (binary distribution format)."""
    first, *rest = path.split("/")
    if first.endswith(".data") and rest[:1] in (["purelib"], ["platlib"]):
        first = "".join(rest[1:2])
    return "" if first.endswith((".dist-info", ".data")) else first.partition(".")[0]


def _untruth_of(wheel: WheelFile, path: Path, true: Collection[str]) -> str:
    """Hash what is not known to be `true`, against RECORD, which installers do not do."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = _members(archive).get("RECORD")
            rows = _rows(_text(archive, member) if member else "")
            unread = [it for it in _listed(archive) if it.filename not in true]
            right = all(_is_as_recorded(archive, it, rows.get(it.filename, "")) for it in unread)
    except (*_NOT_A_WHEEL, OSError, ValueError) as error:
        raise damaged(wheel.filename, wheel.url, error) from error
    return "" if right else "has files that are not what its RECORD says"


def _rows(record: str) -> dict[str, str]:
    return {row[0]: row[1] for row in csv.reader(record.splitlines()) if len(row) > 1 and row[1]}


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


def _prefetch(file: RemoteFile, members: Iterable[zipfile.ZipInfo]) -> None:
    """Get both in one request where they lie together, which they mostly do."""
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


def extras_of(metadata: str) -> frozenset[str]:
    """Provides-Extra of METADATA, normalised, and what markers name: old tools wrote no more."""
    headers = email.parser.HeaderParser(policy=email.policy.compat32).parsestr(metadata)
    named = [name for text in headers.get_all("Requires-Dist", []) for name in _MARKED.findall(str(text))]
    return frozenset(canonicalize_name(str(name).strip()) for name in (*headers.get_all("Provides-Extra", []), *named))


def requirements_of(metadata: str) -> tuple[str, ...]:
    """Requires-Dist of METADATA, as written, on one line each."""
    headers = email.parser.HeaderParser(policy=email.policy.compat32).parsestr(metadata)
    return tuple(" ".join(str(value).split()) for value in headers.get_all("Requires-Dist", []))
