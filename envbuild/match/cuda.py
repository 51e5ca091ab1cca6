"""Where CUDA comes from, and which: one source for an image, never two. And which variables find it in the image."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import Version

from envbuild.errors import MatchError
from envbuild.manifest.packages import name_of
from envbuild.match.openers import Opened, library_folders
from envbuild.match.profiles import Profiles
from envbuild.match.rows import CudaBase, FrameworkWheel, WheelSet
from envbuild.match.run import CUDA_WHEEL, CudaPart, Run, label_cuda
from envbuild.match.stack import CudaChoice, CudaSource, Decision, Overrides

SITE_PACKAGES = "/opt/env/lib/python{}/site-packages"
"""Where an image has its distributions, by minor version of Python."""
GPU_VARIABLES = (("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"), ("NVIDIA_VISIBLE_DEVICES", "all"))
"""What NVIDIA's container runtime reads."""
_CUDA_IMAGE = re.compile(r"nvidia/cuda:(\d+\.\d+(?:\.\d+)?)")
_CUDNN_TAG = re.compile(r"-cudnn(\d+)-")
_CUDNN = re.compile(r"nvidia-cudnn-cu\d+\Z")
# What is a part of the CUDA Toolkit, and so changes with it: neither cuDNN nor NCCL, nor TensorRT.
_TOOLKIT = re.compile(
    r"cuda-toolkit\Z|nvidia-(cublas|cuda-[a-z]+|cufft|cufile|curand|cusolver|cusparse|nvjitlink|nvtx|nvvm)(-cu\d+)?\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The run, the build of the framework that was chosen for it, and the options that CUDA depends on."""

    run: Run
    wheel: FrameworkWheel
    cuda_source: CudaChoice
    overrides: Overrides
    profiles: Profiles

    @property
    def cudnn_floor(self) -> CudaPart | None:
        """The lowest cuDNN that the build takes."""
        return cudnn_floor(self.wheel, self.profiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaPlan:
    """CUDA of an image."""

    source: CudaSource
    version: str | None = None
    """As exactly as it is known; None without CUDA."""
    cudnn: str | None = None
    """As exactly as it is known."""
    requirements: tuple[str, ...] = ()
    """What has to be installed for it, where the run does not have it."""
    forced: tuple[str, ...] = ()
    """Those of them that replace what the run had."""
    folders: tuple[str, ...] = ()
    """Where the loader has to look, below site-packages."""
    base: CudaBase | None = None
    """The image that brings it; None where a person names it."""
    reason: str = ""
    alternative: str = ""
    """Text that names another possible source, appended to the reason."""
    origin: str = ""
    """What the reason rests on."""


def plan_cuda(selection: Selection) -> CudaPlan:
    """Choose source and versions; MatchError where what was asked for is not available."""
    wheel, overrides, choice = selection.wheel, selection.overrides, selection.cuda_source
    if wheel.cuda is None:
        return _no_cuda(selection)
    if _CUDA_IMAGE.search(overrides.base):
        if choice == "wheels":
            raise overrides.refused("base", "CUDA was asked for from wheels, and an image has one source of it")
        choice = "base"
    if choice == "base" and selection.run.profile.name != "tensorflow":
        what = f"{wheel.pin} takes its CUDA from wheels: no base has all the libraries that it is linked with"
        raise MatchError(what, where="--cuda-source base", todo="leave it out, and choose a base without CUDA")
    if choice != "base" and (wheel.cuda_requirements or brings_cuda(selection.run, wheel)):
        return _from_framework(selection)
    wheel_set = None if wheel.cuda_requirements else _wheel_set(selection)
    base = _base(selection)
    if choice == "auto" and wheel_set and base and _nearer(selection.run, base, wheel_set):
        choice = "base"
    if wheel_set and choice != "base":
        return _from_set(selection, wheel_set)
    unknown = selection.run.hypothetical and not overrides.cuda
    if choice != "wheels" and (base or overrides.base or unknown):
        return _from_base(selection, base)
    raise _refusal(selection, choice)


def brings_cuda(run: Run, wheel: FrameworkWheel) -> bool:
    """Whether its CUDA is inside, or among the run's own wheels: a labelled build, or PyTorch before 1.13."""
    labelled = bool(label_cuda(run.label)) and "+" in f"{wheel.version} {wheel.stands_for}"
    return labelled or (wheel.distribution == "torch" and wheel.cuda is not None and not wheel.cuda_requirements)


def applies(requirement: str, python: str, machine: str) -> bool:
    """Whether a requirement's marker, if it has one, is true in the image."""
    marker = Requirement(requirement).marker
    full = python if python.count(".") > 1 else f"{python}.0"
    facts = {"python_full_version": full, "python_version": ".".join(full.split(".")[:2]), "extra": ""}
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": machine}
    return marker is None or marker.evaluate(facts | linux | {"implementation_name": "cpython"})


def cudnn_floor(wheel: FrameworkWheel, profiles: Profiles) -> CudaPart | None:
    """Return the lowest cuDNN that the build takes, and what states it; None where that is not known."""
    if wheel.cudnn_built:
        return CudaPart(wheel.cudnn_built, wheel.source)
    rows = (it for it in profiles.cudnn_floors if it.covers("tensorflow", wheel.version))
    if wheel.distribution.startswith("tensorflow") and (row := next(rows, None)):
        return CudaPart(row.minimum, row.source)
    return CudaPart(wheel.cudnn, wheel.source) if wheel.cudnn else None


def serves(version: str, floor: str) -> bool:
    """Whether a cuDNN is of the floor's major version, and of its minor version or a later one."""
    release, lowest = Version(version).release, Version(floor).release
    return release[0] == lowest[0] and (len(release) < 2 or release[:2] >= lowest[:2])


def is_version(exact: str, prefix: str) -> bool:
    """Whether a version is, or begins with, another one: 12.5.1 with 12.5."""
    return exact == prefix or exact.startswith(f"{prefix}.")


def decide_cuda(selection: Selection, plan: CudaPlan) -> tuple[Decision, ...]:
    """Return the choice in words: the versions, how they differ from the run's, and where they come from."""
    run, wheel, floor = selection.run, selection.wheel, selection.cudnn_floor
    if plan.source == "none":
        return ()
    built = (
        "what the wheel was built with" if plan.version == wheel.cuda else f"the release was built with {wheel.cuda}"
    )
    if brings_cuda(run, wheel) and run.label:
        built = f"what the label of {run.own} {run.label} says"
    toolkit = [text for text in plan.requirements if _TOOLKIT.match(name_of(text))]
    if any("==" not in text and not run.version_of(name_of(text)) for text in toolkit):
        built += "; its wheels are not pinned, so the newest of the index is installed"
    cudnn = _cudnn_requirement(plan.requirements)
    newest = f"the newest that {cudnn} allows is installed; " if cudnn and "." not in f"{plan.cudnn}" else ""
    least = f"the release takes {floor.version} or a later one of the same major version" if floor else "of the build"
    differs = plan.source == "base" and floor is not None and not serves(plan.cudnn or floor.version, floor.version)
    least += ("; the base has another one" if differs else "") + _compare(run.cudnn, plan.cudnn)
    value, source = plan.cudnn or "as its build brings it", floor.source if floor else wheel.source
    return (
        Decision("cuda", f"{plan.version}", built + _compare(run.cuda, plan.version), wheel.source),
        Decision("cudnn", value, newest + least, source, warning=differs),
        Decision("cuda source", plan.source, plan.reason + plan.alternative, plan.origin),
    )


def _compare(part: CudaPart | None, version: str | None) -> str:
    if part is None or version is None:
        return ""
    shorter = min(part.version.count("."), version.count("."), 1) + 1
    same = part.version.split(".")[:shorter] == version.split(".")[:shorter]
    return f"; the run had {'the same' if same else 'another one'}, {part}"


def decide_variables(
    selection: Selection, plan: CudaPlan, requirements: tuple[str, ...], openers: Iterable[Opened]
) -> Iterator[Decision]:
    """Yield LD_LIBRARY_PATH where a library does not look beside itself, XLA_FLAGS where XLA does not."""
    version, paths = selection.wheel.version, list[tuple[tuple[str, ...], str, str]]()
    tensorflow = plan.source == "wheels" and selection.wheel.distribution.startswith("tensorflow")
    site = SITE_PACKAGES.format(selection.run.python_minor)
    if tensorflow:
        rows = (row for row in selection.profiles.library_paths if version in row.versions)
        paths += [(row.folders, row.reason, row.source) for row in rows]
        paths += [(plan.folders, plan.reason, plan.origin)] if plan.folders else []
    for it in openers if plan.source != "base" else ():
        if it.row.needs_path and (folders := library_folders(it, requirements)):
            reason = f"{it.pin} opens CUDA by name, and does not look for NVIDIA's wheels beside it"
            paths.append((folders, reason, it.row.source))
    if paths:
        value = ":".join(dict.fromkeys(f"{site}/{folder}" for folders, _, _ in paths for folder in folders))
        reason, source = ("; ".join(dict.fromkeys(texts)) for texts in list(zip(*paths, strict=True))[1:])
        yield Decision("LD_LIBRARY_PATH", value, reason, source)
    if not tensorflow:
        return
    compiler = next((row for row in selection.profiles.compilers if row.covers("tensorflow", version)), None)
    if compiler and any(name_of(text).startswith("nvidia-cuda-nvcc") for text in requirements):
        value = f"--xla_gpu_cuda_data_dir={site}/{compiler.folder}"
        yield Decision("XLA_FLAGS", value, compiler.reason, compiler.source)


def _no_cuda(selection: Selection) -> CudaPlan:
    for key, _ in selection.overrides.pairs:
        if key in {"cuda", "cudnn", "driver_minimum"}:
            raise selection.overrides.refused(key, "the cpu variant has no CUDA")
    if selection.cuda_source != "auto":
        what = f"the cpu variant has no CUDA, so it cannot come from {selection.cuda_source}"
        raise MatchError(what, where="--cuda-source", todo="leave it out, or choose --variant gpu")
    return CudaPlan(source="none")


def _from_framework(selection: Selection) -> CudaPlan:
    """The framework's own requirements, or what its build holds."""
    run, wheel, overrides = selection.run, selection.wheel, selection.overrides
    own = tuple(text for text in wheel.cuda_requirements if applies(text, run.python, run.machine))
    requirements = _with_cuda(selection, own) if overrides.cuda else own
    if overrides.cudnn:
        requirements = _with_cudnn(selection, requirements)
    exact = wheel.cuda if not overrides.cuda or is_version(f"{wheel.cuda}", overrides.cuda) else overrides.cuda
    extra = f"the wheel requires NVIDIA's wheels{f' by its extra {wheel.extra}' if wheel.extra else ''}"
    return CudaPlan(
        source="wheels",
        version=exact,
        cudnn=_cudnn(selection, requirements),
        requirements=requirements,
        forced=tuple(text for text in requirements if text not in own),
        reason=extra if own else "its CUDA is inside the build, or among the run's own wheels",
        origin=wheel.source,
    )


def _cudnn(selection: Selection, requirements: tuple[str, ...]) -> str | None:
    """The version that the run had as a wheel, else the one that is pinned, else the major version of a range."""
    requirement = _cudnn_requirement(requirements)
    name = requirement.name if requirement else f"nvidia-cudnn-cu{f'{selection.wheel.cuda}'.partition('.')[0]}"
    if not selection.overrides.cudnn and (had := selection.run.version_of(name)):
        return had
    if requirement and (pins := [part.version for part in requirement.specifier if part.operator == "=="]):
        return pins[0].removesuffix(".*")
    known = selection.wheel.cudnn_built or selection.wheel.cudnn
    return known.partition(".")[0] if requirement and known else known


def _cudnn_requirement(requirements: tuple[str, ...]) -> Requirement | None:
    return next((Requirement(it) for it in requirements if it.startswith("nvidia-cudnn-cu")), None)


def _wheel_set(selection: Selection) -> WheelSet | None:
    sets = (row for row in selection.profiles.wheel_sets if selection.wheel.cuda in row.serves)
    return next(
        (row for row in sets if not selection.overrides.cuda or is_version(row.cuda, selection.overrides.cuda)), None
    )


def _base(selection: Selection) -> CudaBase | None:
    """An image with the CUDA that the release was built with; one whose distribution has the run's Python first."""
    wheel, cuda = selection.wheel, selection.overrides.cuda
    rows = [
        row for row in selection.profiles.bases if row.cuda == wheel.cuda and Version(row.glibc) >= Version(wheel.glibc)
    ]
    rows = [row for row in rows if not cuda or is_version(row.cuda, cuda)]
    return min(rows, key=lambda row: row.python != selection.run.python_minor, default=None)


def _nearer(run: Run, base: CudaBase, wheel_set: WheelSet) -> bool:
    """Whether the base has the nearer CUDA to the run's and can have its Python, and the run had none from wheels."""
    if run.cuda is None or base.python != run.python_minor or any(CUDA_WHEEL.match(name) for name, _ in run.pins):
        return False
    had, *others = ((*Version(it).release, 0)[:2] for it in (run.cuda.version, base.cuda, wheel_set.cuda))
    near, far = ((abs(had[0] - it[0]), abs(had[1] - it[1])) for it in others)
    return near < far


def _from_set(selection: Selection, wheel_set: WheelSet) -> CudaPlan:
    requirements = (*wheel_set.requirements, _nearest_cudnn(selection, wheel_set))
    if selection.overrides.cudnn:
        requirements = _with_cudnn(selection, requirements)
    base = any(row.cuda == selection.wheel.cuda for row in selection.profiles.bases)
    other = f"; a base with CUDA {selection.wheel.cuda} serves too, by --cuda-source base" if base else ""
    return CudaPlan(
        source="wheels",
        version=wheel_set.cuda,
        cudnn=_cudnn(selection, requirements),
        requirements=requirements,
        forced=requirements[-1:] if selection.overrides.cudnn else (),
        folders=wheel_set.folders,
        reason=wheel_set.reason,
        alternative=other,
        origin=wheel_set.source,
    )


def _nearest_cudnn(selection: Selection, wheel_set: WheelSet) -> str:
    """The lowest from the run's version on, else the highest; the first where the run's is not known."""
    floor, part = selection.cudnn_floor, selection.run.cudnn
    versions = {text: text.partition("==")[2] for text in wheel_set.cudnn}
    fitting = [text for text, version in versions.items() if floor is None or serves(version, floor.version)]
    if part is None:
        return fitting[0]
    had = Version(part.version).release[:3]
    return next((text for text in fitting if Version(versions[text]).release[:3] >= had), fitting[-1])


def _from_base(selection: Selection, base: CudaBase | None) -> CudaPlan:
    wheel, overrides, run = selection.wheel, selection.overrides, selection.run
    if overrides.cudnn:
        raise overrides.refused("cudnn", "cuDNN comes with the base", "set the base, or --cuda-source wheels")
    image, tag = _CUDA_IMAGE.search(overrides.base), _CUDNN_TAG.search(overrides.base)
    own = base if not overrides.base else None
    reason = "the base brings CUDA, so that no wheel does"
    if run.cuda and base and selection.cuda_source == "auto" and _wheel_set(selection):
        reason = f"CUDA {base.cuda} is nearest to the run's {run.cuda}; wheels serve too, by --cuda-source wheels"
    return CudaPlan(
        source="base",
        version=own.cuda if own else overrides.cuda or (image[1] if image else wheel.cuda),
        cudnn=(own.cudnn if own else tag[1] if image and tag else None) or wheel.cudnn,
        base=base,
        reason=reason,
        origin=base.source if base else "--set base" if overrides.base else wheel.source,
    )


def _refusal(selection: Selection, choice: CudaChoice) -> MatchError:
    wheel, overrides = selection.wheel, selection.overrides
    if overrides.cuda:
        known = {row.cuda for row in selection.profiles.wheel_sets if wheel.cuda in row.serves}
        known |= {row.cuda for row in selection.profiles.bases if row.cuda == wheel.cuda}
        names = ", ".join(sorted(known)) or "none"
        why = f"no wheels and no base of that CUDA are known for {wheel.pin}; known are {names}"
        return overrides.refused("cuda", why)
    if choice == "wheels":
        what = f"{wheel.pin} needs CUDA {wheel.cuda}, and the index has no wheels of it"
        return MatchError(what, where="profiles/cuda.toml: wheel_set", todo="use --cuda-source base, or --variant cpu")
    what = f"{wheel.pin} needs CUDA {wheel.cuda} from its base, and no image with it is known"
    todo = "use --variant cpu, or name a base that has it and Python by --set base=IMAGE"
    return MatchError(what, where="profiles/cuda.toml: base", todo=todo)


def _with_cuda(selection: Selection, requirements: tuple[str, ...]) -> tuple[str, ...]:
    """The requirements with another CUDA Toolkit of the same major version; MatchError where no row has its pins."""
    wheel, overrides, built = selection.wheel, selection.overrides, f"{selection.wheel.cuda}"
    parts = [text for text in requirements if _TOOLKIT.match(name_of(text))]
    if is_version(built, overrides.cuda) and all("==" in text for text in parts):
        return requirements
    if Version(overrides.cuda).major != Version(built).major:
        raise overrides.refused(
            "cuda", f"{wheel.pin} was built with {built}, and opens libraries of that major version"
        )
    pins = _pins(selection.profiles, overrides.cuda, wheel.machine)
    missing = [name_of(text) for text in parts if name_of(text) not in pins]
    if missing or not parts:
        why = f"no wheels of that CUDA are known for {', '.join(missing) or wheel.pin}"
        raise overrides.refused("cuda", why)
    # An exact requirement is what an override is there to replace.
    ranges = [text for text in parts if "==" not in text]
    fits = {text: Requirement(text).specifier.contains(pins[name_of(text)].partition("==")[2]) for text in ranges}
    if broken := [text for text in ranges if not fits[text]]:
        raise overrides.refused("cuda", f"{wheel.pin} requires {', '.join(broken)}")
    return tuple(pins[name_of(text)] if text in parts else text for text in requirements)


def _pins(profiles: Profiles, cuda: str, machine: str) -> dict[str, str]:
    """Exact pins of one CUDA by name, from whichever framework requires them."""
    rows = (it for profile in profiles.frameworks for it in profile.wheels if it.machine == machine)
    texts = (text for it in rows if it.cuda and is_version(it.cuda, cuda) for text in it.cuda_requirements)
    return {name_of(text): text for text in texts if "==" in text and not Requirement(text).marker}


def _with_cudnn(selection: Selection, requirements: tuple[str, ...]) -> tuple[str, ...]:
    """The requirements with another cuDNN; MatchError where the framework would refuse it."""
    version, floor = selection.overrides.cudnn, selection.cudnn_floor
    if floor and not serves(version, floor.version):
        why = f"{selection.wheel.pin} takes {floor.version} or a later one of the same major version"
        raise selection.overrides.refused("cudnn", why)
    name = next((name for text in requirements if _CUDNN.match(name := name_of(text))), None)
    if name is None:
        raise selection.overrides.refused("cudnn", f"no wheel of cuDNN is required for {selection.wheel.pin}")
    exact = f"{name}=={version}" if version.count(".") >= 3 else f"{name}=={version}.*"
    return tuple(exact if name_of(text) == name else text for text in requirements)
