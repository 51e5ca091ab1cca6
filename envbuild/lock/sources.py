"""Wheels that no index has: fetched from the address in the run's record, or built from a commit or an sdist."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name

from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import LockError, MissingComponentError
from envbuild.lock.download import fetch, fetch_unlocked, forget_damaged, remembered_digest, wheel_path
from envbuild.lock.faults import NEWER_GLIBC, OWN_WHEEL, PUBLISH, Fault, can_build, listed, newer_glibc
from envbuild.lock.model import Lock, LockedWheel, Target, best_wheel, glibc_minor, same_version
from envbuild.lock.settings import IndexSettings, bare_url, local_path, uv_environment, uv_program, without_credentials
from envbuild.manifest.packages import Distribution
from envbuild.oci.digest import Digest
from envbuild.report import Reporter
from envbuild.wheel.name import WheelName, parsed_wheel

_EPOCH = "315532800"
"""SOURCE_DATE_EPOCH of every build: 1980-01-01, the first time that a zip can hold."""
_FORMAT = 1
"""Raised when the same source would give another wheel."""
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_OUTPUT = 1500
"""Characters of a failed program's output that are shown, from the end."""
_NOTE = "wheel.json"
"""The file beside a built wheel with its name and digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """A wheel from an address that the run's record names (direct URL, PEP 610)."""

    wheel: LockedWheel
    path: Path
    """Its file on this machine, under the wheel's plain name, as uv takes no other from an address."""
    hashed: bool
    """Whether the record has a hash of it."""

    @property
    def requirement(self) -> str:
        """The requirement for exactly this file."""
        return f"{self.wheel.name} @ {self.path.as_uri()}"

    def find_fault(self, target: Target) -> Fault | None:
        """Say why the wheel cannot be used on the target; None where it can."""
        wheel = self.wheel
        if best_wheel([(wheel.filename, wheel)], target) is not None:
            return None
        pin, newer = f"{wheel.name}=={wheel.version}", newer_glibc([wheel.filename], target)
        if newer:
            return Fault(pin, NEWER_GLIBC, "", glibc=newer)
        why = f"the run's wheel {wheel.url} does not fit {target}"
        return Fault(pin, why, OWN_WHEEL)


def fetch_direct(
    distributions: Iterable[Distribution], settings: IndexSettings, cache: Path, folder: Path, reporter: Reporter
) -> dict[str, Direct | Fault]:
    """Fetch the wheels of distributions that were installed from an address, by name; a Fault where that fails.

    Folders of find-links come first. `folder` gets a link to each wheel; `lock` compares hashes with the record's.
    """
    found: dict[str, Direct | Fault] = {}
    for it in distributions:
        parts = urlsplit(it.origin.url or "")
        on_server = it.origin.kind == "archive" and parts.scheme in {"http", "https"} and parts.path.endswith(".whl")
        if on_server and not settings.offline:
            name = str(canonicalize_name(it.name))
            try:
                found[name] = _fetch_one(it, settings, cache, folder, reporter)
            except LockError as error:
                why = f"its wheel cannot be fetched from {error.where}: {error.what}"
                found[name] = Fault(f"{name}=={it.version}", why, f"{PUBLISH}; or {error.todo}")
    return found


def note_other_places(locked: Lock, distributions: Iterable[Distribution], settings: IndexSettings) -> Iterator[str]:
    """Name what the record has from one place and the lock from another, unless the hash shows that it is the same."""
    run = {str(canonicalize_name(it.name)): it for it in distributions}
    indexes = {bare_url(it).rstrip("/").lower() for it in settings.indexes}
    others: dict[str, list[str]] = {}
    for wheel in locked.wheels:
        had = run.get(wheel.name)
        if had is None or not same_version(had.version, wheel.version) or had.origin.kind not in {"index", "archive"}:
            continue
        place, hashes = bare_url(had.origin.url or ""), {had.origin.sha256, *had.origin.hashes}
        same = wheel.url == place or wheel.sha256.hex in hashes or place.rstrip("/").lower() in indexes
        if place and not same and local_path(wheel.url) is None:
            others.setdefault(place, []).append(f"{wheel.name} {wheel.version}")
    here = " or ".join(map(bare_url, settings.indexes))
    for place, names in others.items():
        yield f"recorded from {place}, taken from {here}: {listed(names)}"


def note_unhashed(locked: Lock, direct: Mapping[str, Direct | Fault]) -> Iterator[str]:
    """Name the wheels from an address of which the record has no hash."""
    for name in locked.direct:
        it = direct[name]
        if isinstance(it, Direct) and not it.hashed:
            yield f"the record has no hash of {it.wheel.url}: locked is what is there now, {it.wheel.sha256}"


def _fetch_one(
    distribution: Distribution, settings: IndexSettings, cache: Path, folder: Path, reporter: Reporter
) -> Direct:
    origin, url = distribution.origin, bare_url(distribution.origin.url or "")
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    try:
        parsed = WheelName.parse(filename)
    except InvalidWheelFilename as error:
        raise LockError(f"not the file name of a wheel: {error}", where=url, todo=OWN_WHEEL) from error
    same = parsed.name == canonicalize_name(distribution.name)
    if "/" in filename or not same or not same_version(distribution.version, str(parsed.version)):
        what = f"it is a wheel of {parsed.name} {parsed.version}, not of {distribution.name} {distribution.version}"
        raise LockError(what, where=url, todo=OWN_WHEEL)
    sha256 = known = Digest(origin.sha256) if origin.sha256 else None
    paths = (Path(place) / filename for place in settings.find_links if "://" not in place)
    source = next((path for path in paths if path.is_file()), None)
    if source:
        sha256 = remembered_digest(source, cache)
    elif sha256 is None or forget_damaged(cache, sha256) or not wheel_path(cache, sha256).is_file():
        reporter.note(f"fetching {url}")
        sha256 = fetch_unlocked(url, cache, settings)
    assert sha256 is not None, "the file's digest is known by now"
    path, link = source or wheel_path(cache, sha256), folder / parsed.plain
    link.symlink_to(path)
    wheel = LockedWheel(
        name=parsed.name, version=distribution.version or "", filename=filename, sha256=sha256,
        size=path.stat().st_size,
        url=url if path.is_relative_to(cache) else path.as_uri(),
    )  # fmt: skip
    return Direct(wheel=wheel, path=link, hashed=known is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A project at a commit of its repository."""

    name: str
    """Normalised."""
    version: str
    repository: str
    commit: str
    subdirectory: str = ""
    patch: str = ""
    """Changes to the commit, as `git diff --binary` writes them."""


class _BuildFailedError(Exception):
    """Why a source gives no usable wheel."""


def describe_source(source: Commit | LockedWheel) -> str:
    """The commit, or the file name and digest of a source distribution."""
    if isinstance(source, LockedWheel):
        return f"{source.filename} {source.sha256}"
    changed = f" with changes sha256:{Digest.of(source.patch.encode()).hex}" if source.patch else ""
    return f"{source.repository} at {source.commit}{changed}"


def commit_of(distribution: Distribution) -> Commit | None:
    """The commit of a distribution that came from version control or is editable; None when it is not known."""
    origin = distribution.origin
    if not can_build(distribution) or not distribution.version:
        return None
    return Commit(
        name=canonicalize_name(distribution.name), version=distribution.version,
        repository=origin.remote or origin.url or "", commit=origin.commit or "",
        subdirectory=origin.subdirectory or "", patch=(origin.patch or "") if origin.dirty else "",
    )  # fmt: skip


def build_wheel(
    source: Commit | LockedWheel, target: Target, settings: IndexSettings, cache: Path, reporter: Reporter
) -> Path | Fault:
    """Build a wheel by the project's own code, as this user, or take the one built before; a Fault says why not."""
    identity = asdict(source)
    if isinstance(source, LockedWheel):
        identity = {"filename": source.filename, "sha256": source.sha256.hex}
    facts = {"source": identity, "python": target.python_minor, "machine": target.machine, "format": _FORMAT}
    folder = cache / "built" / Digest.of(json.dumps(facts, sort_keys=True).encode()).hex

    def decode(value: Any) -> Path:
        path = folder / Path(value["filename"]).name
        if str(Digest.of(path.read_bytes())) != value["sha256"]:
            raise ValueError("the bytes have changed")
        return path

    try:
        built = read_entry(folder, _NOTE, decode)
        if built is None:
            reporter.note(f"building {source.name} {source.version} from {describe_source(source)}")
            built = _build_into(folder, source, target, settings)
        _check_glibc(built.name, target)
    except _BuildFailedError as error:
        why = f"no wheel could be built from {describe_source(source)}: {error}"
        todo = "build its wheel where that works and give its folder: --find-links DIR"
        return Fault(f"{source.name}=={source.version}", why, todo)
    return built


def _build_into(folder: Path, source: Commit | LockedWheel, target: Target, settings: IndexSettings) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as name:
        work, built = Path(name), Path(name) / "wheel"
        if settings.offline and not (isinstance(source, Commit) and source.repository.startswith("file:")):
            raise _BuildFailedError("it would have to be fetched, and --offline forbids that")
        if isinstance(source, LockedWheel):
            try:
                [(_, path)] = fetch([source], work / "download", settings=settings)
            except LockError as error:
                raise _BuildFailedError(error.what) from error
            project = path.rename(work / source.filename)
        else:
            project = _check_out(source, work / "source")
        _uv_build(source, project, built, target, settings)
        wheel = _check_built_wheel(source, [*built.glob("*.whl")], target)
        write_entry(built, _NOTE, {"filename": wheel.name, "sha256": str(Digest.of(wheel.read_bytes()))})
        remove(folder)
        built.rename(folder)
        return folder / wheel.name


def _check_out(source: Commit, folder: Path) -> Path:
    """Clone with history and tags, from which many projects compute their version; return the project's folder."""
    if shutil.which("git") is None:
        raise MissingComponentError("git is not installed", todo="apt-get install git, or lock without --build")
    if not _COMMIT.fullmatch(source.commit):
        raise _BuildFailedError(f"{source.commit!r} is not a commit of git")
    _git("clone", "--quiet", "--no-checkout", "--", source.repository, str(folder))
    within = ("-C", str(folder))
    if _git(*within, "cat-file", "-e", source.commit, check=False).returncode:
        _git(*within, "fetch", "--quiet", "origin", source.commit)
    _git(*within, "checkout", "--quiet", "--detach", source.commit)
    _git(*within, "submodule", "--quiet", "update", "--init", "--recursive")
    if source.patch:
        _git(*within, "apply", "--binary", "-", text=source.patch)
    project = (folder / source.subdirectory).resolve()
    if not project.is_relative_to(folder.resolve()) or not project.is_dir():
        raise _BuildFailedError(f"the commit has no folder {source.subdirectory}")
    return project


def _git(*arguments: str, text: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    done = _run_program(["git", *arguments], os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}, text)
    if check and done.returncode:
        command = arguments[0] if arguments[0] != "-C" else arguments[2]
        raise _BuildFailedError(f"git {command}: {_end_of(done.stderr)}")
    return done


def _uv_build(
    source: Commit | LockedWheel, project: Path, built: Path, target: Target, settings: IndexSettings
) -> None:
    pretended = f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{re.sub(r'[^A-Za-z0-9]+', '_', source.name).upper()}"
    # The run's version is right for this commit, also where tags are missing or changes would be marked in it.
    environment = uv_environment(settings) | {"SOURCE_DATE_EPOCH": _EPOCH, pretended: source.version}
    # A wheel that is not pure needs an interpreter of the target's minor version; else this one serves.
    done = _run_program([uv_program(), "python", "find", "--no-project", "--system", target.python_minor], environment)
    python = done.stdout.strip() if not done.returncode else sys.executable
    command = [uv_program(), "build", "--wheel", "--python", python, *([] if settings.default else ["--no-index"])]
    done = _run_program([*command, "--out-dir", str(built), str(project)], environment)
    if done.returncode:
        raise _BuildFailedError(_end_of(done.stderr or done.stdout))


def _check_built_wheel(source: Commit | LockedWheel, wheels: list[Path], target: Target) -> Path:
    """The one wheel that was built; refuse another release than the run's, and what does not run on the target."""
    if len(wheels) != 1:
        raise _BuildFailedError(f"the build made {len(wheels)} wheels")
    filename = wheels[0].name
    parsed = parsed_wheel(filename)
    if parsed is None or parsed.name != source.name or not same_version(source.version, str(parsed.version)):
        raise _BuildFailedError(f"it gives {filename}, which is not {source.name} {source.version}")
    if best_wheel([(filename, filename)], target) is None:
        raise _BuildFailedError(f"it gives {filename}; build where Python {target.python_minor} on {target.machine} is")
    return wheels[0]


def _check_glibc(filename: str, target: Target) -> None:
    """Refuse a native wheel that was built against a newer glibc than the target has."""
    parsed = parsed_wheel(filename)
    host = Target(python=target.python, machine=platform.machine(), glibc=platform.libc_ver()[1] or "2.0")
    native = parsed and any(tag.platform.startswith("linux_") for tag in parsed.tags)
    if native and glibc_minor(host) > glibc_minor(target):
        raise _BuildFailedError(f"built here it needs glibc {host.glibc}, the target has {target.glibc}")


def _run_program(command: list[str], env: Mapping[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    # A group-writable mask would go into the modes of the wheel's files.
    return subprocess.run(command, env=env, input=text, capture_output=True, text=True, check=False, umask=0o022)


def _end_of(output: str) -> str:
    text = without_credentials(output).strip()
    return ("... " if len(text) > _OUTPUT else "") + text[-_OUTPUT:] if text else "it gave no reason"
