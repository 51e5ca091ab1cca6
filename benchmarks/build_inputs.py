"""What is built: locked wheels, the folder that holds them under their own names, and the base that they stand on."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pip

from envbuild.base.resolve import resolve_base
from envbuild.lock.download import fetch
from envbuild.lock.formats import pylock_text, requirements_text
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolvers import UvResolver
from envbuild.lock.settings import read_settings, uv_environment
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_TAR, Descriptor, Image, Layer, canonical_json, manifest_bytes
from envbuild.recipe import Base
from envbuild.registry.pull import pull
from envbuild.report import SilentReporter

BIN = Path(sys.executable).parent
MACHINE = "x86_64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requirements, and the one small package that changes."""

    requirements: tuple[str, ...]
    before: str
    """The small package as it is first: `idna==3.7`."""
    after: str
    module: str
    """What the container imports."""
    gpu: str | None
    """The run's GPU, for the whole command; None where there is no framework that it could serve."""


_SMALL = {"before": "idna==3.7", "after": "idna==3.6"}
WORKLOADS: Mapping[str, Workload] = {
    "small": Workload(requirements=("numpy==1.26.4", "requests", "pandas"), module="pandas", gpu=None, **_SMALL),
    "tensorflow-cpu": Workload(requirements=("tensorflow-cpu==2.15.1",), module="tensorflow", gpu="none", **_SMALL),
    "tensorflow-gpu": Workload(
        requirements=("tensorflow[and-cuda]==2.15.1",), module="tensorflow", gpu="Tesla T4", **_SMALL
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A lock, and a folder with all that a builder needs for it: `wheels/` and `requirements.txt`."""

    lock: Lock
    context: Path

    @property
    def wheels(self) -> list[Path]:
        """The wheel files."""
        return sorted((self.context / "wheels").glob("*.whl"))

    @property
    def size(self) -> int:
        """Bytes of all wheels."""
        return sum(wheel.size for wheel in self.lock.wheels)


def debian_base(cache: Path) -> Base:
    """Debian with its Python, bootstrapped once."""
    return registry_base("debian:bookworm", cache)


def registry_base(name: str, cache: Path) -> Base:
    """A base, which the cache then knows."""
    return resolve_base(
        name,
        machine=MACHINE,
        cache=cache,
        pull=lambda reference, machine: pull(reference, machine=machine),
        report=StderrNotes(),
    )


def locked(workload: Workload, target: Target, cache: Path, folder: Path) -> tuple[Inputs, Inputs]:
    """Lock a workload before and after the change, and fetch what the cache does not have yet."""
    folder.mkdir(parents=True, exist_ok=True)
    pins = [_pins((*workload.requirements, changed), target, folder) for changed in (workload.before, workload.after)]
    locks = [UvResolver().resolve(tuple(found), target) for found in pins]
    return (_inputs(locks[0], cache, folder / "before"), _inputs(locks[1], cache, folder / "after"))


def _pins(requirements: tuple[str, ...], target: Target, folder: Path) -> list[str]:
    path = folder / "requirements.in"
    path.write_text("\n".join(requirements))
    platform = f"{target.machine}-manylinux_{target.glibc.replace('.', '_')}"
    options = ["--python-version", target.python, "--python-platform", platform, "--only-binary", ":all:"]
    command = [str(BIN / "uv"), "pip", "compile", "-q", "--no-header", "--no-annotate", *options, str(path)]
    environment = uv_environment(read_settings())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.split()


def _inputs(lock: Lock, cache: Path, context: Path) -> Inputs:
    """Hard links, as a build context may not point out of itself."""
    (context / "wheels").mkdir(parents=True, exist_ok=True)
    for wheel, path in fetch(lock.wheels, cache):
        place = context / "wheels" / wheel.filename
        if not place.exists():
            os.link(path, place)
    (context / "requirements.txt").write_bytes(requirements_text(lock))
    (context / "pylock.toml").write_bytes(pylock_text(lock))
    return Inputs(lock=lock, context=context)


def tools_image(folder: Path) -> Image:
    """pip and uv as here, in an image of their own: peers mount it, as bases without them need it."""
    path = folder / "tools.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(BIN / "uv", "uv")
        archive.add(Path(pip.__file__).parent, "pip", filter=_without_bytecode)
    with path.open("rb") as file:
        digest, size = Digest.of_file(file)
    layer = Layer(Descriptor(LAYER_TAR, digest, size), digest, lambda: path.open("rb"))
    rootfs = {"type": "layers", "diff_ids": [str(digest)]}
    config = canonical_json({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs})
    return Image(manifest_bytes(config, (layer,), {}), config, (layer,))


def _without_bytecode(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("__pycache__") else member


def say(text: str) -> None:
    """Progress goes where the table does not."""
    print(text, file=sys.stderr, flush=True)


class StderrNotes(SilentReporter):
    """Notes go where progress goes."""

    def note(self, text: str, /) -> None:
        """Print it."""
        say(text)
