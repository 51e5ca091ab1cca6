"""A lock as files: `requirements.txt` with hashes, `pylock.toml` (PEP 751), and folders of wheels."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta
from packaging.pylock import Package, Pylock, PylockValidationError

from envbuild.errors import LockError, UsageError
from envbuild.files import staged_folder, write_whole, written_whole
from envbuild.lock.model import Lock, LockedWheel, SystemPackage, Target, package_of
from envbuild.lock.settings import local_path
from envbuild.oci.digest import Digest
from envbuild.validation import read_values
from envbuild.wheel.name import WheelName
from envbuild.wheel.pylock import parse_pylock

if TYPE_CHECKING:
    from envbuild.lock.identity import Proof
    from envbuild.lock.run import LockResult

WHEELS = "wheels"
"""The folder beside a lock that holds the wheels that no index has."""
PYLOCK, REQUIREMENTS = "pylock.toml", "requirements.txt"
_ADDRESS = re.compile(r"https?://[^\s$]+")
"""Addresses that a requirements file may hold: pip and uv replace `${NAME}` by variables of the environment."""
_LOCK_AGAIN = "give a pylock.toml that envbuild wrote, unchanged"
_LIMIT = 64 << 20
Text = Annotated[str, Meta(min_length=1)]
_CHUNK = 1 << 20


def requirements_text(lock: Lock) -> bytes:
    """A requirements file with hashes; equal locks give equal bytes. Only wheels that no index has have an address."""
    lines = [
        f"# Locked by envbuild for {lock.target}.",
        "# Install with: python -m pip install --require-hashes --no-deps -r requirements.txt",
    ]
    lines += [f"--find-links {WHEELS}"] if any(map(needs_file, lock.wheels)) else []
    lock = replace(lock, wheels=tuple(sorted(lock.wheels, key=lambda wheel: wheel.name)))
    for pin, it in zip(lock.pins, lock.wheels, strict=True):
        what = f"# pip takes no wheel variant from an index: put {it.filename} into {WHEELS}/ as {it.plain_name}."
        lines += [*([what] if it.label else []), f"{pin} \\\n    --hash={it.sha256}"]
    return ("\n".join(lines) + "\n").encode()


def is_local(wheel: LockedWheel) -> bool:
    """Whether a wheel is on this machine only, so that it has to be kept with the lock."""
    return wheel.url.startswith("file:")


def needs_file(wheel: LockedWheel) -> bool:
    """Whether pip needs the wheel's file beside the lock: no index has it, or it is a wheel variant."""
    return is_local(wheel) or wheel.label is not None


def pylock_text(
    lock: Lock,
    proof: "Proof | None" = None,
    built: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
) -> bytes:
    """The lock as PEP 751 has it, with the target under `[tool.envbuild]`; equal locks give equal bytes.

    Wheels of this machine are named by their path under `wheels/` beside the lock. `built` has the sources of built
    wheels, by name; `base` is what is known of the base image.
    """
    target = lock.target
    environment = f"sys_platform == 'linux' and platform_machine == '{target.machine}'"
    lines = [
        'lock-version = "1.0"',
        f"environments = [{toml_string(environment)}]",
        f"requires-python = {toml_string(f'=={target.python_minor}.*')}",
        'created-by = "envbuild"',
        "" if lock.wheels else "packages = []",
        *(line for it in sorted(lock.wheels, key=lambda it: it.name) for line in _package_lines(it)),
        "[tool.envbuild]",
        f"python = {toml_string(target.python)}",
        f"machine = {toml_string(target.machine)}",
        f"glibc = {toml_string(target.glibc)}",
        *_names_line("slim", lock.slim),
        *_names_line("slim-files", lock.slim_files),
        *_names_line("dropped", lock.dropped),
        *_names_line("direct", lock.direct),
        *([f"exclude-newer = {toml_string(lock.as_of)}"] if lock.as_of else []),
        *_reasons_table(lock.drop_reasons),
        *_table("identity", {it.name: it.outcome for it in proof.identities} if proof else {}),
        *_table("built", built or {}),
        *_table("base", base or {}),
        *_table("owners", dict(lock.owners)),
        *(line for it in lock.packages for line in _system_lines(it)),
    ]
    return ("\n".join(lines) + "\n").encode()


def read_pylock(data: bytes, where: str, folder: Path | None = None) -> Lock:
    """Read what `pylock_text` wrote; LockError, naming `where`, for anything else.

    `folder` is the lock's own, which the paths of wheels start from; without it a lock with such paths is refused.
    """
    try:
        return _lock(parse_pylock(tomllib.loads(data.decode())), folder)
    except PylockValidationError as error:
        raise LockError(f"not a valid pylock.toml: {error}", where=where, todo=_LOCK_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise LockError(f"not a lock of envbuild: {error}", where=where, todo=_LOCK_AGAIN) from error


def toml_string(text: str) -> str:
    """A basic string of TOML 1.0: JSON's escapes are valid there, and only DEL needs another."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def read_existing_lock(folder: Path) -> Lock | None:
    """The lock in a folder, if there is one; LockError for another program's, UsageError where none can be written."""
    path = folder / PYLOCK
    for other in (it for it in (path, folder / REQUIREMENTS) if it.exists() and not it.is_file()):
        todo = "give another folder by --out, or remove it"
        raise UsageError("the file cannot be written: something else has its name", where=str(other), todo=todo)
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT)
    except FileNotFoundError:
        return None
    try:
        return read_pylock(data, str(path), folder)
    except LockError as error:
        todo = "give another folder by --out, or remove the file"
        raise LockError(f"the folder has another lock: {error.what}", where=str(path), todo=todo) from error


def write_lock(folder: Path, run: "LockResult") -> None:
    """Write requirements.txt, pylock.toml and the wheels that no index has, all of it or nothing."""
    with staged_folder(folder) as staged:
        copy_local(run.lock, staged)
        write_whole(staged / REQUIREMENTS, requirements_text(run.lock))
        write_whole(staged / PYLOCK, pylock_text(run.lock, run.proof, dict(run.built)))


def copy_local(lock: Lock, folder: Path) -> None:
    """Copy the wheels that no index has to `wheels/` beside the lock."""
    for wheel in filter(is_local, lock.wheels):
        _copy(wheel, local_path(wheel.url), folder / WHEELS / wheel.plain_name)


def write_wheelhouse(folder: Path, wheels: Mapping[Digest, Path], locked: Iterable[LockedWheel]) -> None:
    """Copy fetched wheels into a folder for `--find-links`, and keep the files that it has already."""
    for wheel in locked:
        place = folder / wheel.filename
        if not place.exists():
            _copy(wheel, wheels[wheel.sha256], place)
            continue
        with place.open("rb") as file:
            same = Digest.of_file(file) == (wheel.sha256, wheel.size)
        if not same:
            todo = "remove it, or give another folder by --download"
            raise LockError("the folder has a file of this name with other content", where=str(place), todo=todo)


def _copy(wheel: LockedWheel, source: Path | None, place: Path) -> None:
    """Copy a wheel and check the copy: a folder's file may have changed since it was locked."""
    assert source is not None, "only wheels of this machine are copied"
    hasher, size = hashlib.sha256(), 0
    with source.open("rb") as original, written_whole(place) as file:
        while chunk := original.read(_CHUNK):
            hasher.update(chunk)
            size += file.write(chunk)
        if (hasher.hexdigest(), size) != (wheel.sha256.hex, wheel.size):
            raise LockError("a wheel changed since it was locked", where=str(source), todo="lock again")


def _package_lines(wheel: LockedWheel) -> Iterator[str]:
    yield "[[packages]]"
    yield f"name = {toml_string(wheel.name)}"
    yield f"version = {toml_string(wheel.version)}"
    yield "[[packages.wheels]]"
    yield f"name = {toml_string(wheel.filename)}"
    if is_local(wheel):
        yield f"path = {toml_string(f'{WHEELS}/{wheel.plain_name}')}"
    else:
        yield f"url = {toml_string(wheel.url)}"
    yield f"size = {wheel.size}"
    yield f'hashes = {{ sha256 = "{wheel.sha256.hex}" }}'
    yield ""


def _system_lines(package: SystemPackage) -> Iterator[str]:
    yield ""
    yield "[[tool.envbuild.packages]]"
    for key in ("name", "version", "architecture", "filename"):
        yield f"{key} = {toml_string(getattr(package, key))}"
    yield f'sha256 = "{package.sha256.hex}"'
    yield f"size = {package.size}"


def _names_line(key: str, names: Sequence[str]) -> list[str]:
    return [f"{key} = [{', '.join(map(toml_string, names))}]"] if names else []


def _table(name: str, values: Mapping[str, str]) -> list[str]:
    lines = [f"{toml_string(key)} = {toml_string(value)}" for key, value in sorted(values.items())]
    return ["", f"[tool.envbuild.{name}]", *lines] if lines else []


def _reasons_table(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Names by reason, as hundreds can have the same one."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    lines = [line for reason, its in sorted(names.items()) for line in _names_line(toml_string(reason), its)]
    return ["", "[tool.envbuild.drop-reasons]", *lines] if lines else []


@dataclass(frozen=True, kw_only=True)
class _Table:
    """`[tool.envbuild]` of a lock."""

    python: Text
    machine: Text
    glibc: Text
    exclude_newer: str | None = None
    slim: tuple[str, ...] = ()
    slim_files: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    drop_reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)
    direct: tuple[str, ...] = ()
    owners: dict[str, str] = field(default_factory=dict)
    base: dict[str, str] = field(default_factory=dict)
    packages: tuple[dict[str, Any], ...] = ()


def _lock(parsed: Pylock, folder: Path | None) -> Lock:
    """The lock in a valid pylock.toml; ValueError when envbuild did not write it."""
    written = (parsed.tool or {}).get("envbuild")
    if not isinstance(written, dict):
        raise ValueError("it has no table [tool.envbuild]")  # noqa: TRY004 - a fault of the file
    ours = {key.replace("-", "_"): value for key, value in written.items()}
    table = read_values(ours, _Table, "tool.envbuild")
    wheels = {str(package.name): _wheel(package, folder) for package in parsed.packages}
    packages = {it.name: it for it in map(package_of, table.packages)}
    if len(wheels) < len(parsed.packages) or len(packages) < len(table.packages):
        raise ValueError("a distribution or a system package is listed twice")
    return Lock(
        target=Target(python=table.python, machine=table.machine, glibc=table.glibc),
        wheels=tuple(wheels[name] for name in sorted(wheels)),
        packages=tuple(packages[name] for name in sorted(packages)),
        owners=tuple(sorted(table.owners.items())),
        base=tuple(sorted(table.base.items())),
        slim=tuple(sorted(table.slim)),
        slim_files=tuple(sorted(table.slim_files)),
        dropped=tuple(sorted(table.dropped)),
        drop_reasons=tuple(sorted((name, reason) for reason, its in table.drop_reasons.items() for name in its)),
        direct=tuple(it for it in sorted(table.direct) if it in wheels and _ADDRESS.fullmatch(wheels[it].url)),
        as_of=table.exclude_newer,
    )


def _wheel(package: Package, folder: Path | None) -> LockedWheel:
    wheels = package.wheels or ()
    if len(wheels) != 1:
        raise ValueError(f"{package.name} has {len(wheels)} wheels")
    wheel = wheels[0]
    url = wheel.url
    if wheel.path is not None and folder is not None:
        if wheel.path != f"{WHEELS}/{WheelName.parse(wheel.filename).plain}":
            raise ValueError(f"{wheel.path} is not in {WHEELS}/")
        url = (folder.absolute() / wheel.path).as_uri()
    if not (package.version and url and wheel.size and wheel.size > 0 and "sha256" in wheel.hashes):
        raise ValueError(f"{package.name} lacks version, url, size or sha256")
    version, sha256 = str(package.version), Digest(wheel.hashes["sha256"].lower())
    return LockedWheel(
        name=package.name, version=version, filename=wheel.filename, sha256=sha256, size=wheel.size, url=url
    )
