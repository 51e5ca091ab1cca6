"""What a wheel installs: the place of each file, as pip installs it (binary distribution format), and its RECORD.

`read_record` is the one reader of RECORD outside `envbuild.capture`, which runs without envbuild's dependencies.
"""

import configparser
import csv
import hashlib
import io
import posixpath
import re
import struct
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from email.policy import compat32
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar
from zlib import crc32

from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.wheel.archive import Member, WheelArchive, check_name, folders
from envbuild.wheel.name import WheelName

_WRAPPER_SUFFIX = re.compile(r"(\.exe|-script\.py|\.pya)\Z", re.IGNORECASE)
_OWN = re.compile(
    r"bin|lib|share|lib64(/.*)?|(pyvenv\.cfg|bin/python(3(\.\d+)?)?|bin/envbuild-check|share/envbuild)(/.*)?"
)
"""Paths of the environment's own files and links, and paths below them."""
_SHA256 = re.compile(r"sha256=[A-Za-z0-9_-]{43}")
INSTALLER = b"envbuild\n"
_LARGEST_SCRIPT = 1 << 20
"""Bytes: larger files in a scripts folder are programs such as uv or ruff, without an interpreter line."""
_REFERENCE = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attribute>\w+(?:\.\w+)*)\s*(?:\[[^\]]*\])?\s*\Z")
_TEMPLATE = """\
#!{interpreter}
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({attribute}())
"""
_OLD_TEMPLATE = """\
#!{interpreter}
# -*- coding: utf-8 -*-
import re
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit({attribute}())
"""
_NAME = re.compile(r"[^\s/\\\[=][^/\\=]*\Z")
_ROW = struct.Struct(">8s4s")
_FOLDER = b"\0dir"

_Wheel = TypeVar("_Wheel")

Fingerprint = Mapping[bytes, bytes]
"""A hash of the content by a hash of the path, for folders too: it shows which wheels cannot overlap."""


class FilePattern(NamedTuple):
    """Files of these names in folders of these names, or in all folders."""

    names: tuple[str, ...]
    """Shell patterns."""
    folders: tuple[str, ...] = ()

    def matches(self, path: str) -> bool:
        """Whether a path of a wheel, or of site-packages, is one of them."""
        *folders, name = path.split("/")
        if self.folders and set(self.folders).isdisjoint(folders):
            return False
        return any(fnmatchcase(name, it) for it in self.names)


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file of the environment."""

    path: str
    """Below the prefix: `lib/python3.11/site-packages/six.py`."""
    executable: bool
    source: Member | bytes
    """The wheel's own compressed bytes, or generated content."""
    recorded: str = ""
    """The hash in the wheel's RECORD, `sha256=...`; empty if there is none or the content is generated."""

    @property
    def mode(self) -> int:
        """0755 or 0644, whatever the archive or the machine's umask has."""
        return 0o755 if self.executable else 0o644

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The folders of the environment (sysconfig's `venv` scheme)."""

    prefix: str
    """Absolute: `/opt/env`."""
    python_minor: str

    @property
    def site_packages(self) -> str:
        """Below the prefix; purelib and platlib are the same folder in a virtual environment."""
        return f"lib/python{self.python_minor}/site-packages"

    @property
    def interpreter(self) -> str:
        """The interpreter in the first line of scripts."""
        return f"{self.prefix}/bin/python"

    def folder(self, key: str, distribution: str) -> str | None:
        """Return the place of a `.data/<key>` folder, below the prefix; None for an unknown key."""
        headers = f"include/site/python{self.python_minor}/{distribution}"
        site = self.site_packages
        return {"purelib": site, "platlib": site, "scripts": "bin", "headers": headers, "data": ""}.get(key)


def installed_files(archive: WheelArchive, scheme: Scheme, left_out: Sequence[FilePattern] = ()) -> list[InstalledFile]:
    """List the files that installing this wheel writes, sorted by path; WheelError if it cannot be installed.

    Its RECORD does not list what is `left_out`.
    """
    name, info = _identity(archive)
    try:
        member = archive.find(f"{info}/entry_points.txt")
        entry_points = read_entry_points(archive.read(member).decode()) if member else {}
        scripts = script_names(entry_points, scheme.python_minor)
    except ValueError as error:
        raise archive.refuse(str(error)) from error
    rows = _record(archive, f"{info}/RECORD")
    files: dict[str, InstalledFile] = {}
    record: dict[str, tuple[str, str]] = {}
    generated = {f"{info}/INSTALLER", f"{info}/RECORD", f"{info}/REQUESTED", f"{info}/direct_url.json"}
    for member in archive.members:
        file = None if member.name in generated else _place(archive, member, name, scheme, scripts)
        if file is None or any(it.matches(member.name) for it in left_out):
            continue
        if file.path in files:
            raise archive.refuse(f"{member.name} would be installed to {file.path}, where another of its files is")
        known = None if isinstance(file.source, bytes) else rows.get(member.name)
        if known:  # as dataclasses.replace, in a third of its time
            file = InstalledFile(file.path, file.executable, file.source, known[0])
        files[file.path] = file
        content = file.source if isinstance(file.source, bytes) else b"" if known else archive.read(member)
        record[file.path] = known or hash_and_size(content)
    for path, content in _generated_files(archive, info, scripts, scheme).items():
        files[path] = InstalledFile(path, executable=path.startswith("bin/"), source=content)
        record[path] = hash_and_size(content)
    own = f"{scheme.site_packages}/{info}/RECORD"
    record[own] = ("", "")
    root = f"{scheme.site_packages}/"
    paths = {it: it[len(root) :] if it.startswith(root) else posixpath.relpath(f"/{it}", f"/{root}") for it in record}
    text = write_record(Row(paths[path], *row) for path, row in record.items())
    files[own] = InstalledFile(own, executable=False, source=text)
    for path in files:
        check_name(path, archive.filename)  # entry points name files too
    if both := sorted(folders(files).intersection(files)):
        raise archive.refuse(f"{both[0]} would be installed as a file and as a folder")
    return sorted(files.values(), key=lambda file: file.path)


def _identity(archive: WheelArchive) -> tuple[str, str]:
    """Return the normalised name and the dist-info folder; the file name, the folder and WHEEL must agree."""
    try:
        parsed = WheelName.parse(archive.filename)
    except InvalidWheelFilename as error:
        raise archive.refuse(f"has no valid wheel file name: {error}") from error
    name, version = parsed.name, parsed.version
    tops = {member.name.split("/")[0] for member in archive.members if "/" in member.name}
    infos = [folder for folder in tops if folder.endswith(".dist-info")]
    if len(infos) != 1:
        raise archive.refuse(f"has {len(infos)} .dist-info folders where one is needed")
    if not _same_release(*infos[0].removesuffix(".dist-info").partition("-")[::2], name, version):
        raise archive.refuse(f"its folder {infos[0]} belongs to another release")
    written = str(_headers(archive, infos[0], "WHEEL").get("Wheel-Version", "")).strip()
    if written.split(".")[0] != "1":
        raise archive.refuse(f"its Wheel-Version {written[:20]!r} is not supported (only 1.x is)")
    metadata = _headers(archive, infos[0], "METADATA")
    stated = (str(metadata.get("Name", "")).strip(), str(metadata.get("Version", "")).strip())
    if not _same_release(*stated, name, version):
        raise archive.refuse(f"its METADATA is that of another release, {' '.join(stated)[:200]!r}")
    return name, infos[0]


def _headers(archive: WheelArchive, info: str, name: str) -> Message:
    member = archive.find(f"{info}/{name}")
    if member is None:
        raise archive.refuse(f"has no {name} file")
    return BytesHeaderParser(policy=compat32).parsebytes(archive.read(member))


def _same_release(found_name: str, found_version: str, name: str, version: Version) -> bool:
    try:
        return canonicalize_name(found_name) == name and Version(found_version.replace("_", "-")) == version
    except InvalidVersion:
        return False


def _record(archive: WheelArchive, name: str) -> dict[str, tuple[str, str]]:
    """Read hash and size of each file that has both in RECORD."""
    member = archive.find(name)
    if member is None:
        raise archive.refuse("has no RECORD")
    found: dict[str, tuple[str, str]] = {}
    try:
        for path, digest, size in read_record(archive.read(member).decode()):
            known = archive.find(path)
            if known is not None and size not in ("", str(known.size)):
                raise archive.refuse(f"{path} has {known.size} bytes where its RECORD says {size[:20]!r}")
            if found.get(path, (digest, size)) != (digest, size):
                raise archive.refuse(f"its RECORD has two different rows for {path}")
            # Hashes other than sha256 are allowed but not in use; what stands here is written into the new RECORD.
            if known is not None and size and _SHA256.fullmatch(digest):
                found[path] = (digest, size)
    except (UnicodeDecodeError, RecordError) as error:
        raise archive.refuse(f"its RECORD cannot be read: {error}") from error
    return found


def _place(
    archive: WheelArchive, member: Member, distribution: str, scheme: Scheme, scripts: dict[str, str]
) -> InstalledFile | None:
    """Return the installed file of a member; None for a wrapper that an entry point replaces."""
    head, _, tail = member.name.partition("/")
    if not head.endswith(".data") or not tail:
        return InstalledFile(f"{scheme.site_packages}/{member.name}", member.executable, member)
    key, _, path = tail.partition("/")
    folder = scheme.folder(key, distribution)
    if folder is None or not path:
        raise archive.refuse(f"{member.name} is in no known folder of the wheel's data")
    target = f"{folder}/{path}".lstrip("/")
    if target.startswith("lib64/"):  # a link to lib in virtual environments on 64-bit Linux
        target = target.replace("lib64/", "lib/", 1)
    if key == "scripts" and _WRAPPER_SUFFIX.sub("", path.rpartition("/")[2]) in scripts:
        return None  # setuptools wrote it for an entry point; pip, too, writes its own instead
    if _OWN.fullmatch(target):
        raise archive.refuse(f"{member.name} would replace the environment's own {target}")
    if key == "scripts" and member.size < _LARGEST_SCRIPT:
        content = archive.read(member)
        changed = with_interpreter(content, scheme.interpreter)
        if changed != content:
            return InstalledFile(target, executable=True, source=changed)
    return InstalledFile(target, member.executable or key == "scripts", member)


def _generated_files(archive: WheelArchive, info: str, scripts: dict[str, str], scheme: Scheme) -> dict[str, bytes]:
    """Make what every installer adds: console scripts, INSTALLER and REQUESTED (every locked wheel is requested)."""
    files = {}
    for name, reference in scripts.items():
        try:
            content = script(name, reference, scheme.interpreter, scheme.python_minor)
        except ValueError as error:
            raise archive.refuse(str(error)) from error
        if _OWN.fullmatch(f"bin/{name}"):
            raise archive.refuse(f"entry point {name} would replace the environment's interpreter or its check")
        files[f"bin/{name}"] = content
    folder = f"{scheme.site_packages}/{info}"
    return files | {f"{folder}/INSTALLER": INSTALLER, f"{folder}/REQUESTED": b""}


def read_entry_points(text: str) -> dict[str, str]:
    """Return names and references of console and GUI scripts; ValueError if the file is malformed."""
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(f"entry_points.txt: {error}") from error
    found: dict[str, str] = {}
    for group in ("console_scripts", "gui_scripts"):
        if parser.has_section(group):
            found |= dict(parser.items(group))
    return found


def script_names(entry_points: dict[str, str], python_minor: str) -> dict[str, str]:
    """Apply pip's own rule: scripts of pip and easy_install are named after the Python that they run on."""
    result = dict(entry_points)
    versioned = {"pip": ("pip3", f"pip{python_minor}"), "easy_install": (f"easy_install-{python_minor}",)}
    for tool, names in versioned.items():
        if tool in result:
            others = re.compile(rf"{tool}-?(\d+(\.\d+)?)?")
            kept = {name: value for name, value in result.items() if not others.fullmatch(name)}
            result = kept | dict.fromkeys((tool, *names), result[tool])
    return result


def script(name: str, reference: str, interpreter: str, python_minor: str) -> bytes:
    """Return the text of one script, as pip writes it; ValueError if the reference is not a callable."""
    match = _REFERENCE.match(reference)
    if match is None or not _NAME.match(name) or name in (".", ".."):
        raise ValueError(f"entry point {name} = {reference} does not name a callable")
    attribute = match["attribute"]
    template = _TEMPLATE if tuple(map(int, python_minor.split("."))) >= (3, 9) else _OLD_TEMPLATE
    return template.format(
        interpreter=interpreter, module=match["module"], name=attribute.split(".")[0], attribute=attribute
    ).encode()


def with_interpreter(content: bytes, interpreter: str) -> bytes:
    """Point a script that starts with `#!python` at the environment's interpreter (binary distribution format)."""
    if not content.startswith(b"#!python"):
        return content
    return f"#!{interpreter}\n".encode() + content.partition(b"\n")[2]


def fingerprint(files: Iterable[InstalledFile]) -> Fingerprint:
    """Make the fingerprint of a wheel's installed files."""
    found: dict[bytes, bytes] = {}
    for file in files:
        found[_short_hash(file.path, 8)] = _short_hash(repr(content_of(file)), 4)
        folder = file.path.rpartition("/")[0]
        while folder and (key := _short_hash(folder, 8)) not in found:
            found[key] = _FOLDER
            folder = folder.rpartition("/")[0]
    return found


def content_of(file: InstalledFile) -> tuple[int, int]:
    """Return CRC and size of an installed file, which identify equal files of different wheels."""
    source = file.source
    return crc32(source) if isinstance(source, bytes) else source.crc32, file.size


def _short_hash(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def find_wheels_to_compare(prints: Mapping[_Wheel, Fingerprint]) -> list[_Wheel]:
    """Return the wheels that may have different content at one path; the others have not."""
    contents: dict[bytes, bytes] = {}
    clashing: set[bytes] = set()
    for rows in prints.values():
        clashing |= {path for path, content in rows.items() if contents.setdefault(path, content) != content}
    return [wheel for wheel, rows in prints.items() if not clashing.isdisjoint(rows)]


def to_text(rows: Fingerprint) -> str:
    """Write a fingerprint for a note."""
    return b64encode(b"".join(_ROW.pack(path, rows[path]) for path in sorted(rows))).decode()


def from_text(text: str) -> Fingerprint:
    """Read what `to_text` wrote; ValueError, TypeError or struct.error for anything else."""
    return dict(_ROW.iter_unpack(b64decode(text, validate=True)))


class RecordError(ValueError):
    """A RECORD that is not valid CSV."""


class Row(NamedTuple):
    """One file; hash and size are empty where RECORD does not give them."""

    path: str
    """As written: relative to site-packages, or absolute."""
    hash: str = ""
    """`sha256=` and the digest in URL-safe base64 without padding."""
    size: str = ""


def read_record(text: str, *, strict: bool = False) -> Iterator[Row]:
    """Yield the rows of a RECORD; RecordError if it is not valid CSV, in `strict` mode also for unbalanced quotes."""
    try:
        for row in csv.reader(io.StringIO(text, newline=""), strict=strict):
            if row and row[0]:
                path, digest, size = (*row, "", "")[:3]
                yield Row(path, digest.rstrip("="), size)  # CatBoost 1.0's has padding
    except csv.Error as error:
        raise RecordError(str(error)) from error


def write_record(rows: Iterable[Row]) -> bytes:
    """Write a RECORD, sorted by path."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue().encode()


def record_hash(digest: bytes) -> str:
    """Write a SHA-256 digest as RECORD has it."""
    return f"sha256={urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def hash_and_size(content: bytes) -> tuple[str, str]:
    """Return the last two columns of the row of a file with this content."""
    return record_hash(hashlib.sha256(content).digest()), str(len(content))
