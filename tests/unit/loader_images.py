"""Images of libraries made here, in wheels and bases made here, and what is proved of them."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from envbuild.files import data_folder
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.manifest.hardware import Library, Native, Owner
from envbuild.match.profiles import Profiles, load_profiles
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.recipe import Base, make_recipe
from envbuild.verify.cuda.loader import LoaderProof, prove_loading
from tests.fakes.trees import image_of_trees
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.loading import MACHINE, library

SITE = "/opt/env/lib/python3.11/site-packages"
PROFILES = load_profiles(data_folder("profiles"))
TAG = f"py3-none-manylinux_2_17_{MACHINE}"


@cache
def elf(soname: str, *needs: str, runpath: str = "", rpath: str = "") -> bytes:
    """The bytes of a library that needs others by soname."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stubs = [library(folder / "stubs" / it, flags=["-nostdlib"], source="") for it in needs]
        made = library(folder / soname, stubs, runpath=runpath, rpath=rpath, flags=["-nostdlib"], source="")
        return made.read_bytes()


def nvidia(name: str, version: str, files: Mapping[str, bytes]) -> FakeWheel:
    return make_wheel(
        name, version, {f"nvidia/{path}": data for path, data in files.items()}, tags=[TAG], purelib=False
    )


BASE_FILES = {
    "lib": "-> usr/lib",
    "usr/bin/python3.11": elf("python3.11", "libc.so.6", "ld-linux-x86-64.so.2"),
    f"usr/lib/{MACHINE}-linux-gnu/libc.so.6": elf("libc.so.6", "ld-linux-x86-64.so.2"),
    f"usr/lib/{MACHINE}-linux-gnu/libz.so.1": "-> libz.so.1.2.13",
    f"usr/lib/{MACHINE}-linux-gnu/libz.so.1.2.13": elf("libz.so.1", "libc.so.6"),
}


@dataclass(frozen=True, kw_only=True)
class Made:
    """What an image is made of."""

    wheels: Sequence[FakeWheel]
    files: Mapping[str, object] = field(default_factory=lambda: BASE_FILES)
    env: Sequence[str] = ("PATH=/usr/bin",)
    variables: Mapping[str, str] = field(default_factory=dict)
    framework: str = "tensorflow"
    version: str = "2.15.1"
    cuda: str | None = "12.2"
    variant: str = ""
    """gpu or cpu; that of its CUDA where it is empty."""
    profiles: Profiles = PROFILES
    owners: tuple[tuple[str, str], ...] = ()
    """Which distribution's file the run had of a path below the prefix."""
    loaded: Sequence[str] = ()
    """Paths of the libraries that the run's process had loaded."""

    def prove(self, folder: Path) -> LoaderProof:
        paths, locked = {}, []
        for wheel in self.wheels:
            path, digest = folder / wheel.filename, Digest.of(wheel.data)
            folder.mkdir(exist_ok=True)
            path.write_bytes(wheel.data)
            name, version, *_ = wheel.filename.split("-")
            paths[digest] = path
            locked.append(
                LockedWheel(
                    name=name.replace("_", "-"), version=version, filename=wheel.filename, sha256=digest,
                    size=len(wheel.data), url="",
                )
            )  # fmt: skip
        target = Target(python="3.11.2", machine=MACHINE, glibc="2.36")
        image = image_of_trees(self.files, env=self.env)
        base = Base(name="made here", image=image, target=target, python_path="/usr/bin/python3.11")
        lock = Lock(target=target, wheels=tuple(sorted(locked, key=lambda it: it.name)), owners=self.owners)
        stack, own = self.stack(), Owner(kind="none")
        libraries = (Library(name=it.rpartition("/")[2], path=it, owner=own) for it in self.loaded)
        native = Native(process="run", libraries=tuple(libraries))
        recipe = make_recipe(stack, lock, base)
        return prove_loading(stack, recipe, base, paths, self.profiles, folder / "facts", native)

    def stack(self) -> Stack:
        return Stack(
            framework=self.framework, distribution=self.framework, version=self.version,
            variant=self.variant or ("gpu" if self.cuda else "cpu"),  # type: ignore[arg-type]
            python="3.11.2", machine="x86_64", cuda=self.cuda, cudnn=None,
            cuda_source="wheels", base="", glibc_minimum="2.17", requirements=(),
            variables=tuple(sorted(self.variables.items())), changes=(), decisions=(),
        )  # fmt: skip


def names(proof: LoaderProof, kind: str) -> list[str]:
    return [it.library for it in proof.findings if it.kind == kind]
