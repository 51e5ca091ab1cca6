"""The loader proof: every CUDA library that a framework opens is found in the image; no GPU is needed.

Other projects that open CUDA are judged in `openers`.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from envbuild.errors import VerifyError
from envbuild.manifest.hardware import Native
from envbuild.match.cuda import cudnn_floor, serves
from envbuild.match.openers import component_of, may_open_cuda
from envbuild.match.profiles import Profiles
from envbuild.match.rows import FrameworkWheel
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.rootfs import resolve
from envbuild.recipe import Base, Recipe
from envbuild.verify.cuda.files import PlannedImage, WheelFiles, framework_wheel, plan_image, read_base_files
from envbuild.verify.cuda.openers import judge_openers
from envbuild.verify.cuda.openings import (
    CUDA,
    LoaderFinding,
    Opening,
    core,
    cudnn_openings,
    open_library,
    openings,
    stem,
)
from envbuild.verify.cuda.process import Loaded, MissingLibrary

_LIKELY = re.compile(r"libcudnn_\w+\.so\.\d+|libnvJitLink\.so\.\d+|libtorch_\w+\.so")
_CUDNN = re.compile(r"libcudnn\.so\.\d+")
_PARTS = {
    "ptxas": ("bin/ptxas", "kernels are compiled by the driver, or not at all"),
    "libdevice.10.bc": ("nvvm/libdevice/libdevice.10.bc", "what XLA compiles (jit_compile) fails"),
}
_FLAG = re.compile(r"--xla_gpu_cuda_data_dir=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkBuild:
    """The build of the run's framework that an image has."""

    name: str
    """`tensorflow`."""
    wheel: FrameworkWheel


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderProof:
    """What the loader finds in an image for its framework, and for the other openers of CUDA."""

    framework: str
    """`tensorflow 2.15.1`."""
    cuda: bool
    """False for a CPU build, which opens nothing."""
    openers: tuple[str, ...] = ()
    """The other distributions that open CUDA: `onnxruntime-gpu 1.22.0`."""
    findings: tuple[LoaderFinding, ...]
    """What is found in the loader's order, then what is wrong, then notes."""

    @property
    def faults(self) -> tuple[LoaderFinding, ...]:
        """What makes the proof fail."""
        return tuple(it for it in self.findings if it.kind not in ("found", "warning", "note"))

    @property
    def warnings(self) -> tuple[LoaderFinding, ...]:
        """What fails nothing that the run is known to have used."""
        return tuple(it for it in self.findings if it.kind == "warning")

    @property
    def notes(self) -> tuple[LoaderFinding, ...]:
        """What is worth a line, and fails nothing."""
        return tuple(it for it in self.findings if it.kind == "note")

    @property
    def summary(self) -> str:
        """One line."""
        found, others = sum(it.kind == "found" for it in self.findings), ", ".join(self.openers)
        broken = ", ".join(it.library for it in self.faults if it.kind == "broken")
        lost = ", ".join(dict.fromkeys(it.library for it in self.faults if it.kind != "broken"))
        if lost:
            return f"{self.framework} would not run on a GPU: {lost}"
        if broken:
            return f"the run used what does not load in the image: {broken}"
        if self.cuda:
            also = f"; other openers of CUDA: {others}" if others else ""
            return f"all {found} CUDA libraries that {self.framework} opens or needs are found{also}"
        return f"openers of CUDA: {others}" if others else f"{self.framework} is a CPU build and opens no CUDA library"

    def require(self) -> None:
        """Raise VerifyError with every fault and what to do, unless there is none."""
        if self.faults:
            lines = "\n  - ".join((self.summary, *map(str, self.faults)))
            todo = "; ".join(dict.fromkeys(it.todo for it in self.faults if it.todo))
            raise VerifyError(lines, where="loader proof", todo=todo)


def prove_loading(
    stack: Stack,
    recipe: Recipe,
    base: Base,
    wheels: Mapping[Digest, Path],
    profiles: Profiles,
    facts: Path,
    native: Native | None = None,
) -> LoaderProof:
    """Search as the loader would in the image; `wheels` are verified files by their sha256.

    `facts` is a folder that remembers what was read, by content; `native` has what the run's process had loaded.
    WheelError and BaseError where files cannot be read.
    """
    build = None
    if stack.framework != "none":
        build = FrameworkBuild(name=stack.framework, wheel=framework_wheel(stack, profiles))
    name = f"{build.wheel.distribution} {build.wheel.version}" if build else "no framework"
    cuda = build is not None and build.wheel.cuda is not None
    if not may_open_cuda(stack, ((it.name, it.version) for it in recipe.wheels), profiles):
        return LoaderProof(framework=name, cuda=False, findings=())
    with ExitStack() as opened:
        files = WheelFiles(recipe, wheels, facts, opened)
        image = plan_image(recipe, base, profiles, read_base_files(base, facts), files)
        findings = tuple(_findings(image, build)) if build and cuda else ()
        loaded = native.libraries if native else ()
        openers = judge_openers(image, stack.framework if cuda else "", loaded)
        files.keep()
    return LoaderProof(framework=name, cuda=cuda, openers=openers.names, findings=(*findings, *openers.findings))


def _findings(image: PlannedImage, build: FrameworkBuild) -> Iterator[LoaderFinding]:
    process, lost = image.process()
    losses = [(Opening(name=image.program), missing) for missing in lost]
    plan = openings(build.name, build.wheel, image.site, image.wheels.files)
    # read at once what is likely to be loaded; the rest is read when it is
    names, files = {posixpath.basename(it.name) for it in plan}, image.wheels.files
    image.wheels.warm(it for it in files if (name := posixpath.basename(it)) in names or _LIKELY.fullmatch(name))
    for opening in plan:
        losses += open_library(process, opening)
    for library in [it for it in process.loaded if _CUDNN.fullmatch(posixpath.basename(it.path))]:
        for opening in cudnn_openings(library.real, image.siblings(library.real), f"{build.wheel.cuda}"):
            losses += open_library(process, opening)
    libraries = [it for it in process.loaded if it.real and CUDA.fullmatch(posixpath.basename(it.path))]
    for library in libraries:
        via, _, owner = library.via.partition(" of ")
        via = f"{via} of {image.short(owner)}" if owner else via
        name, version = posixpath.basename(library.path), image.version(library.real)
        says = f"{image.short(library.real)}{f' ({version})' if version else ''}, by {via}"
        yield LoaderFinding(kind="found", library=name, says=says, path=library.real, via=via, version=version)
    yield from _missing(image, build, losses)
    for library in libraries:
        yield from _fit(image, build, library)
    yield from _two_sources(image)
    yield from _compiler_findings(image, build)


def _missing(
    image: PlannedImage, build: FrameworkBuild, losses: Sequence[tuple[Opening, MissingLibrary]]
) -> Iterator[LoaderFinding]:
    """One finding for each library: a fault where anything needs it, else a note, else nothing."""
    for name in dict.fromkeys(missing.name for _, missing in losses):
        found = [(opening, missing) for opening, missing in losses if missing.name == name and not opening.quiet]
        needed = [it for it in found if not it[0].without]
        for opening, missing in (needed or found)[:1]:
            by = f"{image.short(missing.needed_by)} needs it, and " if missing.needed_by else ""
            where, todo = _remedy(image, build, name)
            without = f"; {opening.without}" if opening.without else ""
            yield LoaderFinding(
                kind="note" if opening.without else "missing",
                library=image.short(name),
                says=f"{by}{image.short(missing.why)}{where}{without}",
                todo="" if opening.without else todo,
            )


def _remedy(image: PlannedImage, build: FrameworkBuild, name: str) -> tuple[str, str]:
    """Where it lies all the same, and what can be done."""
    base = posixpath.basename(name)
    if places := [posixpath.dirname(path) for path in image.places(base) if resolve(image.tree, path)]:
        row = "a [[library_path]] row in profiles/cuda.toml, or ENV in the base"
        return f"; it lies in {image.short(places[0])}", f"put {places[0]} on LD_LIBRARY_PATH: {row}"
    requirement = build.wheel.requirement(component_of(base))
    if requirement:
        todo = f"install {requirement}, which brings {base}"
    else:
        todo = f"give a base that has {base} by --base" + (", or use --variant cpu" if CUDA.fullmatch(base) else "")
    return "; it is nowhere in the image", todo


def _fit(image: PlannedImage, build: FrameworkBuild, library: Loaded) -> Iterator[LoaderFinding]:
    """The version of a library against the one that the framework was built with."""
    name, version, pin = posixpath.basename(library.path), image.version(library.real), build.wheel.pin
    if _CUDNN.fullmatch(name) and (floor := cudnn_floor(build.wheel, image.profiles)):
        needs = f"{pin} takes cuDNN {floor.version} or a later minor version of it ({floor.source})"
        if "." not in version:
            yield LoaderFinding(kind="note", library=name, says=f"{needs}; the version of this one is unknown")
        elif not serves(version, floor.version):
            todo = f"install cuDNN {floor.version} or a later minor version of the same major one"
            yield LoaderFinding(kind="unfit", library=name, says=f"{needs}; this is {version}", todo=todo)
    built = f"{build.wheel.cuda}"
    if stem(name) == "cudart" and version and Version(version).release[:2] < Version(built).release[:2]:
        says = f"CUDA {version} is older than the {built} that {pin} was built with"
        yield LoaderFinding(kind="note", library=name, says=says)


def _two_sources(image: PlannedImage) -> Iterator[LoaderFinding]:
    """CUDA has one source in an image: which of two copies is taken depends on who loads it first."""
    wheels, base = (
        {core(path): path for path in paths if core(path)} for paths in (image.wheels.files, image.base.tree)
    )
    for name in sorted(wheels.keys() & base.keys()):
        library = posixpath.basename(wheels[name])
        says = f"it comes from a wheel ({image.short('/' + wheels[name])}) and from the base (/{base[name]})"
        todo = "give a base without CUDA by --base, or take CUDA from the base by --cuda-source base"
        yield LoaderFinding(kind="twice", library=library, says=says, todo=todo)


def _compiler_findings(image: PlannedImage, build: FrameworkBuild) -> Iterator[LoaderFinding]:
    """Note what XLA's own compiler does not find: it starts ptxas and reads libdevice, both in a few folders.

    PyTorch compiles with what Triton brings.
    """
    if build.name not in ("tensorflow", "jax"):
        return
    flag = _FLAG.search(image.variables.get("XLA_FLAGS", ""))
    folders = [flag[1]] if flag else []
    if build.name == "jax":
        folders += [f"{image.site}/nvidia/{folder}" for folder in ("cuda_nvcc", "cu13")]
    elif not any(it.covers(build.name, build.wheel.version) for it in image.profiles.compilers):
        folders.append(f"{image.site}/nvidia/cuda_nvcc")  # by itself, except for the releases that these rows name
    folders.append("/usr/local/cuda")
    for name, (place, without) in _PARTS.items():
        if not any(resolve(image.tree, f"{folder}/{place}") for folder in folders):
            says = f"it is in none of the folders where XLA looks for it ({', '.join(folders)}); {without}"
            yield LoaderFinding(kind="note", library=name, says=says)
