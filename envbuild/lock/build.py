"""Wheels of what no index has as a wheel: a commit or a source distribution, built apart and with a fixed date."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import LockError, MissingComponentError
from envbuild.lock.download import fetch
from envbuild.lock.faults import Fault, can_build
from envbuild.lock.model import LockedWheel, Target
from envbuild.lock.settings import IndexSettings, uv_environment, uv_program, without_credentials
from envbuild.lock.tags import best_wheel, glibc_minor, parsed_wheel, same_version
from envbuild.manifest.packages import Distribution
from envbuild.oci.digest import Digest

_EPOCH = "315532800"
"""1980-01-01, the first time that a zip can hold: SOURCE_DATE_EPOCH of every build."""
_FORMAT = 1
"""Raised when the same source would give another wheel."""
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SAID = 1500
"""Characters of what a failed program said that are shown, from the end."""
_NOTE = "wheel.json"
"""Beside a built wheel, what it was when it was built."""
_OWN = "build its wheel where that works and give its folder: --find-links DIR"

Ran = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A project as it is at a commit of its repository."""

    name: str
    """Normalised."""
    version: str
    repository: str
    commit: str
    subdirectory: str = ""
    patch: str = ""
    """Changes to the commit, as `git diff --binary` writes them."""

    def __str__(self) -> str:
        changed = f" with changes sha256:{Digest.of(self.patch.encode()).hex}" if self.patch else ""
        return f"{self.repository} at {self.commit}{changed}"

    @property
    def identity(self) -> dict[str, str]:
        """Everything that decides what is built."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    """A source distribution on an index."""

    file: LockedWheel
    """Name, digest and place, which are the same for all files."""

    def __str__(self) -> str:
        return f"{self.file.filename} {self.file.sha256}"

    @property
    def name(self) -> str:
        """Normalised."""
        return self.file.name

    @property
    def version(self) -> str:
        """As the file's name has it."""
        return self.file.version

    @property
    def identity(self) -> dict[str, str]:
        """Everything that decides what is built."""
        return {"filename": self.file.filename, "sha256": self.file.sha256.hex}


Source = Commit | Sdist


class _BuildFailedError(Exception):
    """Why a source gives no wheel that can be used."""


def commit_of(distribution: Distribution) -> Commit | None:
    """The commit of a distribution that came from version control or is editable; None when it is not known."""
    origin = distribution.origin
    if not can_build(distribution) or not distribution.version:
        return None
    return Commit(
        name=canonicalize_name(distribution.name),
        version=distribution.version,
        repository=origin.remote or origin.url or "",
        commit=origin.commit or "",
        subdirectory=origin.subdirectory or "",
        patch=(origin.patch or "") if origin.dirty else "",
    )


def build_wheel(
    source: Source, target: Target, settings: IndexSettings, cache: Path, told: Callable[[str], object]
) -> Path | Fault:
    """Build a wheel for `target`, or take the one that was built before; a Fault says why there can be none.

    It runs the project's own build code, as this user. MissingComponentError when git is absent.
    """
    facts = {"source": source.identity, "python": target.python_minor, "machine": target.machine, "format": _FORMAT}
    folder = cache / "built" / Digest.of(json.dumps(facts, sort_keys=True).encode()).hex
    try:
        built = _kept(folder)
        if built is None:
            told(f"building {source.name} {source.version} from {source}")
            built = _build_into(folder, source, target, settings)
        _check_glibc(built.name, target)
    except _BuildFailedError as error:
        why = f"no wheel could be built from {source}: {error}"
        return Fault(requirement=f"{source.name}=={source.version}", why=why, todo=_OWN)
    return built


def _kept(folder: Path) -> Path | None:
    """The wheel that was built before, if its bytes are what they were."""

    def decode(value: Any) -> Path:
        path = folder / Path(value["filename"]).name
        if str(Digest.of(path.read_bytes())) != value["sha256"]:
            raise ValueError("its bytes are not what they were")
        return path

    return read_entry(folder, _NOTE, decode)


def _build_into(folder: Path, source: Source, target: Target, settings: IndexSettings) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as name:
        aside, built = Path(name), Path(name) / "wheel"
        if settings.offline and not (isinstance(source, Commit) and source.repository.startswith("file:")):
            raise _BuildFailedError("it would have to be fetched, and --offline forbids that")
        project = _downloaded(source, settings, aside) if isinstance(source, Sdist) else _checked_out(source, aside)
        _uv_build(source, project, built, target, settings)
        _check(source, [*built.glob("*.whl")], target)
        [wheel] = built.glob("*.whl")
        write_entry(built, _NOTE, {"filename": wheel.name, "sha256": str(Digest.of(wheel.read_bytes()))})
        remove(folder)
        built.rename(folder)
        return folder / wheel.name


def _downloaded(source: Sdist, settings: IndexSettings, aside: Path) -> Path:
    try:
        [(_, path)] = fetch([source.file], aside / "download", settings=settings)
    except LockError as error:
        raise _BuildFailedError(error.what) from error
    return path.rename(aside / source.file.filename)


def _checked_out(source: Commit, aside: Path) -> Path:
    """Clone with history and tags, from which many projects compute their version."""
    folder = aside / "source"
    if shutil.which("git") is None:
        raise MissingComponentError("git is not installed", todo="apt-get install git, or lock without --build")
    if not _COMMIT.fullmatch(source.commit):
        raise _BuildFailedError(f"{source.commit!r} is no commit of git")
    _git("clone", "--quiet", "--no-checkout", "--", source.repository, str(folder))
    within = ("-C", str(folder))
    if _git(*within, "cat-file", "-e", source.commit, check=False).returncode:
        _git(*within, "fetch", "--quiet", "origin", source.commit)
    _git(*within, "checkout", "--quiet", "--detach", source.commit)
    _git(*within, "submodule", "--quiet", "update", "--init", "--recursive")
    if source.patch:
        _git(*within, "apply", "--binary", "-", said=source.patch)
    project = (folder / source.subdirectory).resolve()
    if not project.is_relative_to(folder.resolve()) or not project.is_dir():
        raise _BuildFailedError(f"the commit has no folder {source.subdirectory}")
    return project


def _git(*arguments: str, said: str = "", check: bool = True) -> Ran:
    done = _run(["git", *arguments], os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}, said)
    if check and done.returncode:
        raise _BuildFailedError(f"git {arguments[0] if arguments[0] != '-C' else arguments[2]}: {_last(done.stderr)}")
    return done


def _uv_build(source: Source, project: Path, built: Path, target: Target, settings: IndexSettings) -> None:
    pretended = f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{re.sub(r'[^A-Za-z0-9]+', '_', source.name).upper()}"
    # The run's version holds for this commit, also where tags are missing or changes would be marked in it.
    environment = uv_environment(settings) | {"SOURCE_DATE_EPOCH": _EPOCH, pretended: source.version}
    command = [uv_program(), "build", "--wheel", "--python", _python(target, environment)]
    command += [] if settings.default else ["--no-index"]
    done = _run([*command, "--out-dir", str(built), str(project)], environment)
    if done.returncode:
        raise _BuildFailedError(_last(done.stderr or done.stdout))


def _python(target: Target, environment: Mapping[str, str]) -> str:
    """An interpreter of the target's minor version, which a wheel that is not pure needs; else this one."""
    done = _run([uv_program(), "python", "find", "--no-project", "--system", target.python_minor], environment)
    return done.stdout.strip() if not done.returncode else sys.executable


def _check(source: Source, wheels: list[Path], target: Target) -> None:
    """Refuse what is another release than the run's, or does not run on the target."""
    if len(wheels) != 1:
        raise _BuildFailedError(f"the build made {len(wheels)} wheels")
    filename = wheels[0].name
    parsed = parsed_wheel(filename)
    if parsed is None or parsed[0] != source.name or not same_version(source.version, str(parsed[1])):
        raise _BuildFailedError(f"it gives {filename}, which is not {source.name} {source.version}")
    if best_wheel([(filename, filename)], target) is None:
        raise _BuildFailedError(f"it gives {filename}; build where Python {target.python_minor} on {target.machine} is")


def _check_glibc(filename: str, target: Target) -> None:
    """Refuse a native wheel that was built against a newer glibc than the target has."""
    parsed = parsed_wheel(filename)
    host = Target(python=target.python, machine=platform.machine(), glibc=platform.libc_ver()[1] or "2.0")
    native = parsed is not None and any(tag.platform.startswith("linux_") for tag in parsed[3])
    if native and glibc_minor(host) > glibc_minor(target):
        raise _BuildFailedError(f"built here it needs glibc {host.glibc}, the target has {target.glibc}")


def _run(command: list[str], environment: Mapping[str, str], said: str = "") -> Ran:
    # A group-writable mask would go into the modes of the wheel's files.
    return subprocess.run(
        command, env=dict(environment), input=said, capture_output=True, text=True, check=False, umask=0o022
    )


def _last(said: str) -> str:
    text = without_credentials(said).strip()
    return ("... " if len(text) > _SAID else "") + text[-_SAID:] if text else "it gave no reason"
