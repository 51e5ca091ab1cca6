"""A lock as files for people and installers: hashed requirements and `pylock.toml` (PEP 751)."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.pylock import Package, PackageWheel, Pylock, PylockValidationError

from envbuild.errors import LockError
from envbuild.lock.faults import describe
from envbuild.lock.identity import Proof
from envbuild.lock.model import Lock, LockedWheel, SystemPackage, Target
from envbuild.lock.system import package_of
from envbuild.oci.digest import Digest

WHEELS = "wheels"
"""The folder beside a lock where the wheels lie that no index has."""
_ADDRESS = re.compile(r"https?://[^\s$]+")
"""What may stand in a requirements file: pip and uv put variables of the environment in place of `${NAME}`."""
_LOCK_AGAIN = "give a pylock.toml that envbuild wrote, unchanged"


def requirements_text(lock: Lock) -> bytes:
    """A requirements file with one hash for each distribution; equal locks give equal bytes, and no index is named.

    Wheels that no index need have are named by their address.
    """
    lines = [
        f"# Locked by envbuild for {describe(lock.target)}.",
        "# Install with: python -m pip install --require-hashes --no-deps -r requirements.txt",
    ]
    lines += [f"--find-links {WHEELS}"] if any(map(is_local, lock.wheels)) else []
    lock = replace(lock, wheels=tuple(_sorted(lock)))
    lines += [f"{pin} \\\n    --hash={it.sha256}" for pin, it in zip(lock.pins, lock.wheels, strict=True)]
    return ("\n".join(lines) + "\n").encode()


def is_local(wheel: LockedWheel) -> bool:
    """Whether a wheel lies on this machine only, so that it has to be kept with the lock."""
    return wheel.url.startswith("file:")


def pylock_text(
    lock: Lock,
    proof: Proof | None = None,
    built: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
) -> bytes:
    """The lock as PEP 751 has it, with the target under `[tool.envbuild]`; equal locks give equal bytes.

    Wheels of this machine are named by their path under `wheels/` beside the lock. `built` says what wheels were built
    from, by name; `base` is what is known of the base image.
    """
    target = lock.target
    lines = [
        'lock-version = "1.0"',
        f"environments = [{toml_string(_environment(target))}]",
        f"requires-python = {toml_string(f'=={target.python_minor}.*')}",
        'created-by = "envbuild"',
        "" if lock.wheels else "packages = []",
        *(line for wheel in _sorted(lock) for line in _package_lines(wheel)),
        "[tool.envbuild]",
        f"python = {toml_string(target.python)}",
        f"machine = {toml_string(target.machine)}",
        f"glibc = {toml_string(target.glibc)}",
        *_names_line("slim", lock.slim),
        *_names_line("dropped", lock.dropped),
        *_names_line("direct", lock.direct),
        *([f"exclude-newer = {toml_string(lock.exclude_newer)}"] if lock.exclude_newer else []),
        *_table("identity", {it.name: it.outcome for it in proof.identities} if proof else {}),
        *_table("built", built or {}),
        *_table("base", base or {}),
        *_table("owners", dict(lock.owners)),
        *(line for it in lock.packages for line in _system_lines(it)),
    ]
    return ("\n".join(lines) + "\n").encode()


def read_pylock(data: bytes, where: str, folder: Path | None = None) -> Lock:
    """Read what `pylock_text` wrote; LockError, naming `where`, for anything else.

    `folder` is where the lock lies, which the paths of wheels start from; without it a lock with such is refused.
    """
    try:
        return _lock(Pylock.from_dict(tomllib.loads(data.decode())), folder)
    except PylockValidationError as error:
        raise LockError(f"not a valid pylock.toml: {error}", where=where, todo=_LOCK_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise LockError(f"not a lock of envbuild: {error}", where=where, todo=_LOCK_AGAIN) from error


def toml_string(text: str) -> str:
    """A basic string of TOML 1.0: JSON's escapes are valid there, and only DEL is left to do."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _sorted(lock: Lock) -> list[LockedWheel]:
    return sorted(lock.wheels, key=lambda wheel: wheel.name)


def _environment(target: Target) -> str:
    return f"sys_platform == 'linux' and platform_machine == '{target.machine}'"


def _package_lines(wheel: LockedWheel) -> Iterator[str]:
    yield "[[packages]]"
    yield f"name = {toml_string(wheel.name)}"
    yield f"version = {toml_string(wheel.version)}"
    yield "[[packages.wheels]]"
    yield f"name = {toml_string(wheel.filename)}"
    if is_local(wheel):
        yield f"path = {toml_string(f'{WHEELS}/{wheel.filename}')}"
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


def _table(name: str, values: Mapping[str, str]) -> list[str]:
    lines = [f"{toml_string(key)} = {toml_string(value)}" for key, value in sorted(values.items())]
    return ["", f"[tool.envbuild.{name}]", *lines] if lines else []


def _lock(parsed: Pylock, folder: Path | None) -> Lock:
    """The lock in a valid pylock.toml; ValueError when it is not one of ours."""
    ours: Any = (parsed.tool or {}).get("envbuild")
    target = _target(ours)
    wheels = {package.name: _wheel(package, folder) for package in parsed.packages}
    addressed = {str(name) for name, wheel in wheels.items() if _ADDRESS.fullmatch(wheel.url)}
    if len(wheels) < len(parsed.packages):
        raise ValueError("a distribution stands there twice")
    return Lock(
        target=target,
        wheels=tuple(wheels[name] for name in sorted(wheels)),
        packages=_packages(ours),
        owners=_texts(ours, "owners"),
        base=_texts(ours, "base"),
        slim=_names(ours, "slim"),
        dropped=_names(ours, "dropped"),
        direct=tuple(it for it in _names(ours, "direct") if it in addressed),
        exclude_newer=moment if isinstance(moment := ours.get("exclude-newer"), str) else None,
    )


def _texts(ours: Mapping[str, Any], key: str) -> tuple[tuple[str, str], ...]:
    found = ours.get(key)
    texts = found.items() if isinstance(found, dict) else ()
    return tuple(sorted((key, text) for key, text in texts if isinstance(text, str)))


def _names_line(key: str, names: Sequence[str]) -> list[str]:
    return [f"{key} = [{', '.join(map(toml_string, names))}]"] if names else []


def _names(ours: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = ours.get(key)
    return tuple(sorted(it for it in found if isinstance(it, str))) if isinstance(found, list) else ()


def _packages(ours: Mapping[str, Any]) -> tuple[SystemPackage, ...]:
    found = ours.get("packages", [])
    if not isinstance(found, list) or not all(isinstance(it, Mapping) for it in found):
        raise ValueError("tool.envbuild.packages is no list of tables")
    packages = {it.name: it for it in map(package_of, found)}
    if len(packages) < len(found):
        raise ValueError("a system package stands there twice")
    return tuple(packages[name] for name in sorted(packages))


def _target(value: Any) -> Target:
    if not isinstance(value, Mapping):
        raise ValueError("tool.envbuild is missing")  # noqa: TRY004 - one kind of error for one kind of file
    texts = [value.get(key) for key in ("python", "machine", "glibc")]
    python, machine, glibc = (text if isinstance(text, str) else "" for text in texts)
    if not (python and machine and glibc):
        raise ValueError("tool.envbuild does not say python, machine and glibc")
    return Target(python=python, machine=machine, glibc=glibc)


def _url(wheel: PackageWheel, folder: Path | None) -> str | None:
    if wheel.path is None or folder is None:
        return wheel.url
    if wheel.path != f"{WHEELS}/{wheel.filename}":
        raise ValueError(f"{wheel.path} does not lie in {WHEELS}/")
    return (folder.absolute() / wheel.path).as_uri()


def _wheel(package: Package, folder: Path | None) -> LockedWheel:
    found = package.wheels or ()
    if len(found) != 1:
        raise ValueError(f"{package.name} has {len(found)} wheels")
    wheel = found[0]
    url = _url(wheel, folder)
    if not (package.version and url and wheel.size and wheel.size > 0 and "sha256" in wheel.hashes):
        raise ValueError(f"{package.name} lacks version, url, size or sha256")
    return LockedWheel(
        name=package.name,
        version=str(package.version),
        filename=wheel.filename,
        sha256=Digest(wheel.hashes["sha256"].lower()),
        size=wheel.size,
        url=url,
    )
