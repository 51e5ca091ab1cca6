"""Where each file of a wheel goes, as pip installs it (binary distribution format, "Installing a wheel")."""

import base64
import csv
import hashlib
import io
import posixpath
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from email.policy import compat32

from packaging.utils import InvalidName, InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.wheel.archive import Member, WheelArchive, check_name, folders
from envbuild.wheel.scripts import read_entry_points, script, script_names, with_interpreter

_WRAPPER_SUFFIX = re.compile(r"(\.exe|-script\.py|\.pya)\Z", re.IGNORECASE)
_OWN = re.compile(
    r"bin|lib|share|lib64(/.*)?|(pyvenv\.cfg|bin/python(3(\.\d+)?)?|bin/envbuild-check|share/envbuild)(/.*)?"
)
"""What the environment itself is made of, and what would lie below its files and links."""
_SHA256 = re.compile(r"sha256=[A-Za-z0-9_-]{43}")
INSTALLER = b"envbuild\n"
_LARGEST_SCRIPT = 1 << 20
"""Larger files in a scripts folder are programs such as uv or ruff, which have no interpreter line."""


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file of the environment."""

    path: str
    """Below the prefix: `lib/python3.11/site-packages/six.py`."""
    executable: bool
    source: Member | bytes
    """The wheel's own compressed bytes, or content that installing made."""
    recorded: str = ""
    """What the wheel's RECORD says of its bytes, `sha256=...`; empty where it says nothing or they are not used."""

    @property
    def mode(self) -> int:
        """0755 or 0644: never what the archive or the machine's umask says."""
        return 0o755 if self.executable else 0o644


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
        """What scripts name in their first line."""
        return f"{self.prefix}/bin/python"

    def folder(self, key: str, distribution: str) -> str | None:
        """Return where a `.data/<key>` folder goes, below the prefix; None for an unknown key."""
        headers = f"include/site/python{self.python_minor}/{distribution}"
        site = self.site_packages
        return {"purelib": site, "platlib": site, "scripts": "bin", "headers": headers, "data": ""}.get(key)


def installed_files(archive: WheelArchive, scheme: Scheme) -> list[InstalledFile]:
    """List what installing this wheel puts where, sorted by path; WheelError when it cannot be installed rightly."""
    name, info = _identity(archive)
    entry_points = _entry_points(archive, f"{info}/entry_points.txt", scheme)
    rows = _record(archive, f"{info}/RECORD")
    files: dict[str, InstalledFile] = {}
    record: dict[str, tuple[str, str]] = {}
    generated = {f"{info}/INSTALLER", f"{info}/RECORD", f"{info}/REQUESTED", f"{info}/direct_url.json"}
    for member in archive.members:
        if member.name in generated:
            continue
        file = _placed(archive, member, name, scheme, entry_points)
        if file is None:
            continue
        if file.path in files:
            raise archive.refuse(f"{member.name} would be installed to {file.path}, where another of its files is")
        known = None if isinstance(file.source, bytes) else rows.get(member.name)
        if known:  # as dataclasses.replace, in a third of its time
            file = InstalledFile(file.path, file.executable, file.source, known[0])
        files[file.path] = file
        record[file.path] = known or _hashed(file.source if isinstance(file.source, bytes) else archive.read(member))
    for file in _generated(archive, info, entry_points, scheme):
        files[file.path] = file
        record[file.path] = _hashed(file.source) if isinstance(file.source, bytes) else ("", "")
    path = f"{scheme.site_packages}/{info}/RECORD"
    files[path] = InstalledFile(path, executable=False, source=_record_bytes(record, path, scheme.site_packages))
    _check_paths(archive, files.keys())
    return sorted(files.values(), key=lambda file: file.path)


def _identity(archive: WheelArchive) -> tuple[str, str]:
    """Return the normalised name and the dist-info folder; the file name, the folder and WHEEL must agree."""
    try:
        name, version, _, _ = parse_wheel_filename(archive.filename)
    except (InvalidWheelFilename, InvalidName, InvalidVersion) as error:
        raise archive.refuse(f"has no valid wheel file name: {error}") from error
    folders = {member.name.split("/")[0] for member in archive.members if "/" in member.name}
    infos = [folder for folder in folders if folder.endswith(".dist-info")]
    if len(infos) != 1:
        raise archive.refuse(f"has {len(infos)} .dist-info folders where one is needed")
    if not _same_release(*infos[0].removesuffix(".dist-info").partition("-")[::2], name, version):
        raise archive.refuse(f"its folder {infos[0]} belongs to another release")
    written = str(_headers(archive, infos[0], "WHEEL").get("Wheel-Version", "")).strip()
    if written.split(".")[0] != "1":
        raise archive.refuse(f"its Wheel-Version {written[:20]!r} is not one that is known (1.x)")
    metadata = _headers(archive, infos[0], "METADATA")
    stated = (str(metadata.get("Name", "")).strip(), str(metadata.get("Version", "")).strip())
    if not _same_release(*stated, name, version):
        raise archive.refuse(f"its METADATA is that of another release, {' '.join(stated)[:200]!r}")
    return name, infos[0]


def _headers(archive: WheelArchive, info: str, name: str) -> Message:
    """Read the headers of a metadata file; what follows them is no business of an installer."""
    member = archive.find(f"{info}/{name}")
    if member is None:
        raise archive.refuse(f"has no {name} file")
    return BytesHeaderParser(policy=compat32).parsebytes(archive.read(member))


def _same_release(found_name: str, found_version: str, name: str, version: Version) -> bool:
    return canonicalize_name(found_name) == name and _same_version(found_version, version)


def _same_version(text: str, version: Version) -> bool:
    try:
        return Version(text.replace("_", "-")) == version
    except InvalidVersion:
        return False


def _entry_points(archive: WheelArchive, name: str, scheme: Scheme) -> dict[str, str]:
    member = archive.find(name)
    if member is None:
        return {}
    try:
        return script_names(read_entry_points(archive.read(member).decode()), scheme.python_minor)
    except ValueError as error:
        raise archive.refuse(str(error)) from error


def _record(archive: WheelArchive, name: str) -> dict[str, tuple[str, str]]:
    """Read RECORD: digest and size of each file that has both."""
    member = archive.find(name)
    if member is None:
        raise archive.refuse("has no RECORD")
    try:
        rows = list(csv.reader(io.StringIO(archive.read(member).decode(), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise archive.refuse(f"its RECORD cannot be read: {error}") from error
    found: dict[str, tuple[str, str]] = {}
    for path, digest, size in (row for row in rows if len(row) == 3):
        known = archive.find(path)
        if known is not None and size not in ("", str(known.size)):
            raise archive.refuse(f"{path} has {known.size} bytes where its RECORD says {size[:20]!r}")
        if found.get(path, (digest, size)) != (digest, size):
            raise archive.refuse(f"its RECORD says two things of {path}")
        # Another hash than sha256 is allowed and never seen; what stands here is written into the new RECORD.
        if known is not None and size and _SHA256.fullmatch(digest):
            found[path] = (digest, size)
    return found


def _placed(
    archive: WheelArchive, member: Member, distribution: str, scheme: Scheme, entry_points: dict[str, str]
) -> InstalledFile | None:
    """Say where a member goes and what becomes of it; None for a wrapper that the entry point replaces."""
    head, _, rest = member.name.partition("/")
    if not head.endswith(".data") or not rest:
        return InstalledFile(f"{scheme.site_packages}/{member.name}", member.executable, member)
    key, _, path = rest.partition("/")
    folder = scheme.folder(key, distribution)
    if folder is None or not path:
        raise archive.refuse(f"{member.name} is in no known folder of the wheel's data")
    if key == "scripts":
        return _script(archive, member, path, scheme, entry_points)
    target = _through_lib64(f"{folder}/{path}".lstrip("/"))
    if _OWN.fullmatch(target):
        raise archive.refuse(f"{member.name} would replace the environment's own {target}")
    return InstalledFile(target, member.executable, member)


def _through_lib64(path: str) -> str:
    """Follow the link lib64 -> lib that virtual environments have on 64-bit Linux."""
    return path.replace("lib64/", "lib/", 1) if path.startswith("lib64/") else path


def _script(
    archive: WheelArchive, member: Member, path: str, scheme: Scheme, entry_points: dict[str, str]
) -> InstalledFile | None:
    name = path.rpartition("/")[2]
    if _WRAPPER_SUFFIX.sub("", name) in entry_points:
        return None  # setuptools wrote it for an entry point; pip, too, makes its own instead
    target = f"bin/{path}"
    if _OWN.fullmatch(target):
        raise archive.refuse(f"{member.name} would replace the environment's interpreter or its check")
    if member.size < _LARGEST_SCRIPT:
        content = archive.read(member)
        changed = with_interpreter(content, scheme.interpreter)
        if changed != content:
            return InstalledFile(target, executable=True, source=changed)
    return InstalledFile(target, executable=True, source=member)


def _generated(
    archive: WheelArchive, info: str, entry_points: dict[str, str], scheme: Scheme
) -> Iterable[InstalledFile]:
    """Make what every installer adds: console scripts, INSTALLER and REQUESTED (every locked wheel was asked for)."""
    for name, reference in entry_points.items():
        try:
            content = script(name, reference, scheme.interpreter, scheme.python_minor)
        except ValueError as error:
            raise archive.refuse(str(error)) from error
        if _OWN.fullmatch(f"bin/{name}"):
            raise archive.refuse(f"entry point {name} would replace the environment's interpreter or its check")
        yield InstalledFile(f"bin/{name}", executable=True, source=content)
    folder = f"{scheme.site_packages}/{info}"
    yield InstalledFile(f"{folder}/INSTALLER", executable=False, source=INSTALLER)
    yield InstalledFile(f"{folder}/REQUESTED", executable=False, source=b"")


def _check_paths(archive: WheelArchive, paths: Collection[str]) -> None:
    """Hold what will be written to the same rules as what was read: entry points name files too."""
    for path in paths:
        check_name(path, archive.filename)
    if both := sorted(folders(paths).intersection(paths)):
        raise archive.refuse(f"{both[0]} would be installed as a file and as a folder")


def _hashed(content: bytes) -> tuple[str, str]:
    return record_hash(hashlib.sha256(content).digest()), str(len(content))


def record_hash(digest: bytes) -> str:
    """Write a SHA-256 digest as RECORD has it (binary distribution format, "The .dist-info directory")."""
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _record_bytes(rows: dict[str, tuple[str, str]], own_path: str, site_packages: str) -> bytes:
    """Write RECORD for the files as they are installed, with paths relative to site-packages."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    rows = rows | {own_path: ("", "")}
    for path, (digest, size) in sorted((_relative(path, site_packages), row) for path, row in rows.items()):
        writer.writerow((path, digest, size))
    return text.getvalue().encode()


def _relative(path: str, site_packages: str) -> str:
    if path.startswith(f"{site_packages}/"):
        return path.removeprefix(f"{site_packages}/")
    return posixpath.relpath(f"/{path}", f"/{site_packages}")
