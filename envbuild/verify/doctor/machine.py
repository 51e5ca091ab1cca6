"""What a machine has of what envbuild needs: interpreter, resolvers, cache, disk, engine, GPU; and what is near it."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from envbuild.cache import kinds, size_limit
from envbuild.capture.accelerator import accelerator_facts
from envbuild.errors import MissingComponentError
from envbuild.files import cache_folder
from envbuild.lock.settings import uv_program
from envbuild.verify.doctor.checking import Check, ok, refused, wrong
from envbuild.verify.doctor.google import google_credentials, has_google, storage
from envbuild.verify.doctor.network import indexes, registry_logins
from envbuild.verify.findings import Finding

_LITTLE, _FEW = 1e9, 10e9
"""Bytes: less than the wheels of one framework, and than those and the layers of a GPU build."""
_ENGINE = ("envbuild.engine.client", "envbuild.engine.buildkit")
_SPECS = ("etc/cdi", "var/run/cdi", "run/cdi")


def machine_checks(*, offline: bool = False, root: Path = Path("/")) -> tuple[Check, ...]:
    """All that can be said without a model or an image; `offline` asks nothing over a network."""
    near = (
        Check(about="python", find=_python),
        Check(about="uv", find=_uv),
        Check(about="pip-tools", find=_pip_tools),
        Check(about="cache", find=_cache),
        Check(about="disk", find=_disks),
        Check(about="engine", find=_engine, severity="note", needs=_ENGINE),
        Check(about="buildx", find=_buildx, severity="note", needs=_ENGINE),
        Check(about="gpu", find=partial(_gpu, root), severity="warning"),
        Check(about="registry logins", find=partial(registry_logins, os.environ), severity="warning"),
        Check(about="google credentials", find=partial(google_credentials, os.environ, root), severity="warning"),
    )
    if offline:
        return near
    stored = (Check(about="cloud storage", find=storage, severity="warning"),) if has_google(os.environ, root) else ()
    return (*near, Check(about="index", find=indexes, seconds=20.0), *stored)


def _python() -> Iterator[Finding]:
    libc = " ".join(platform.libc_ver())
    yield ok("python", f"Python {platform.python_version()}, {platform.machine()}, {libc or 'another libc than glibc'}")
    if sys.platform != "linux":
        todo = "build on Linux, or by --builder cloudbuild"
        yield wrong("python", f"this is {sys.platform}, and envbuild is tried on Linux only", todo, severity="warning")


def _uv() -> Iterator[Finding]:
    try:
        program = uv_program()
    except MissingComponentError as error:
        yield refused("uv", error, "warning" if _has_pip_tools() else "error")
        return
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=8, check=False)
    if done.returncode:
        yield wrong("uv", f"{program} ends with {done.returncode}", "reinstall it: python -m pip install uv")
    else:
        yield ok("uv", f"{done.stdout.strip()}, {program}")


def _pip_tools() -> Iterator[Finding]:
    if _has_pip_tools():
        yield ok("pip-tools", f"pip-tools {version('pip-tools')}")
    else:
        todo = "python -m pip install pip-tools, where --resolver pip-tools is wanted"
        yield wrong("pip-tools", "pip-tools is not installed, and uv serves without it", todo, severity="note")


def _has_pip_tools() -> bool:
    try:
        version("pip-tools")
    except PackageNotFoundError:
        return False
    return True


def _cache() -> Iterator[Finding]:
    folder = cache_folder()
    if not os.access(_existing(folder), os.W_OK):
        todo = "set ENVBUILD_CACHE to a folder that this user may write"
        why = "a cache that cannot be written serves only where all that is needed lies in it"
        yield wrong("cache", f"{folder} cannot be written", todo, why=why)
        return
    size, limit = sum(it.size for it in kinds(folder)), size_limit()
    most = f", of {limit / 1e9:.1f} GB that it may" if limit else ""
    yield ok("cache", f"{folder} holds {size / 1e9:.1f} GB{most}")


def _disks() -> Iterator[Finding]:
    """Room where the cache lies, and for temporary files where that is another disk."""
    places = {"cache": _existing(cache_folder()), "temporary files": Path(os.environ.get("TMPDIR") or "/tmp")}  # noqa: S108 - looked at, not written
    seen = set[int]()
    for name, place in places.items():
        device = place.stat().st_dev
        if device not in seen:
            seen.add(device)
            yield room(f"{place}, for the {name},", shutil.disk_usage(place).free)


def room(place: str, free: int) -> Finding:
    """Say whether so many bytes are enough."""
    says = f"{place} has {free / 1e9:.1f} GB free"
    if free >= _FEW:
        return ok("disk", says)
    todo = "free some space, or set ENVBUILD_CACHE and TMPDIR to another disk; envbuild cache prune removes what is old"
    why = "wheels and layers of a framework with CUDA take up to 10 GB"
    return wrong("disk", says, todo, severity="error" if free < _LITTLE else "warning", why=why)


def _existing(folder: Path) -> Path:
    return next(it for it in (folder, *folder.parents) if it.exists())


def _engine() -> Iterator[Finding]:
    from envbuild.engine.client import connected  # noqa: PLC0415 - Docker's library is slow to import

    with connected(
        "only `local --venv` serves of local, and --builder docker, --load and capture --image cannot be used"
    ) as client:
        said = client.version()
        names = [str(it.get("Name")) for it in said.get("Components") or ()]
        kind = "podman" if any("podman" in name.lower() for name in names) else "Docker"
        yield ok("engine", f"{kind} {said.get('Version')}, API {said.get('ApiVersion')}")


def _buildx() -> Iterator[Finding]:
    from envbuild.engine.buildkit import find_client  # noqa: PLC0415

    client = find_client()
    if client and client.buildx:
        yield ok("buildx", f"{client.path} has the plugin buildx")
        return
    has = f"{client.path} has no plugin buildx" if client else "no docker command that can use BuildKit is on PATH"
    todo = "install Docker's buildx plugin, where --builder-name is wanted"
    yield wrong("buildx", f"{has}: --builder-name cannot be used", todo, severity="note")


def _gpu(root: Path) -> Iterator[Finding]:
    facts = accelerator_facts(str(root))
    if facts.get("kind") != "nvidia":
        yield ok(
            "gpu", f"{facts.get('kind') if facts.get('kind') != 'none' else 'no'} accelerator; building needs none"
        )
        return
    yield driver_finding(facts)
    yield _toolkit(root)


def driver_finding(facts: Mapping[str, object]) -> Finding:
    """Say what the driver says of itself and of its GPUs."""
    gpus = facts.get("gpus")
    names = [str(it.get("name")) for it in gpus] if isinstance(gpus, list) else []
    if not names:
        todo = "see nvidia-smi; after an update of the driver this machine has to start anew"
        return wrong("gpu", "there is a driver of NVIDIA, and it shows no GPU", todo, severity="warning")
    cuda = f", for CUDA up to {facts['cuda_maximum']}" if facts.get("cuda_maximum") else ""
    return ok("gpu", f"{', '.join(names)}, driver {facts.get('driver') or 'unknown'}{cuda}")


def _toolkit(root: Path) -> Finding:
    specs = [path for folder in _SPECS for path in (root / folder).glob("nvidia*")]
    if specs:
        return ok("gpu toolkit", f"{specs[0]} tells engines of the GPUs")
    if program := shutil.which("nvidia-ctk") or shutil.which("nvidia-container-runtime"):
        return ok("gpu toolkit", program)
    todo = "install nvidia-container-toolkit, then: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    why = "containers here do not see the GPUs"
    return wrong("gpu toolkit", "the NVIDIA container toolkit is not installed", todo, severity="warning", why=why)
