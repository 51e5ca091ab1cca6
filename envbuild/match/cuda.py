"""Where CUDA comes from, and which: one source for an image, never two."""

import re
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import Version

from envbuild.errors import MatchError
from envbuild.match.facts import CudaBase, WheelSet, within
from envbuild.match.overrides import Overrides
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.run import Had, Run, label_cuda
from envbuild.match.stack import CudaSource, Decision
from envbuild.match.swap import is_toolkit, is_version, name_of, serves, swap_cuda, swap_cudnn
from envbuild.match.variant import CUDA_WHEEL

CudaChoice = Literal["auto", "wheels", "base"]
_CUDA_IMAGE = re.compile(r"nvidia/cuda:(\d+\.\d+(?:\.\d+)?)")
_CUDNN_TAG = re.compile(r"-cudnn(\d+)-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What CUDA is chosen by."""

    run: Run
    wheel: FrameworkWheel
    asked: CudaChoice
    overrides: Overrides
    profiles: Profiles


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
    """Where the loader has to be sent, below site-packages."""
    base: CudaBase | None = None
    """The image that brings it; None where that is named by hand."""
    reason: str = ""
    """Why this source."""
    instead: str = ""
    """Which other one there is."""
    origin: str = ""
    """What the reason rests on."""


def plan_cuda(question: Question) -> CudaPlan:
    """Choose source and versions; MatchError where what was asked for cannot be had."""
    wheel, overrides = question.wheel, question.overrides
    if wheel.cuda is None:
        return _none(question)
    asked = _by_base(question)
    if asked == "base" and question.run.profile.name != "tensorflow":
        what = f"{wheel.pin} takes its CUDA from wheels: no base has all the libraries that it is linked with"
        raise MatchError(what, where="--cuda-source base", todo="leave it out, and choose a base without CUDA")
    if asked != "base" and (wheel.cuda_requirements or brings_cuda(question.run, wheel)):
        return _own(question)
    found = None if wheel.cuda_requirements else _set(question)
    base = _base(question)
    if asked == "auto" and found and base and _nearer(question.run, base, found):
        asked = "base"
    if found and asked != "base":
        return _from_set(question, found)
    unknown = question.run.asked and not overrides.cuda
    if asked != "wheels" and (base or overrides.base or unknown):
        return _from_base(question, base)
    raise _refusal(question, asked)


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


def cudnn_floor(wheel: FrameworkWheel, profiles: Profiles) -> Had | None:
    """The lowest cuDNN that the build takes, and what says so; None where that is not known."""
    if wheel.cudnn_built:
        return Had(version=wheel.cudnn_built, source=wheel.source)
    rows = (it for it in profiles.cudnn_floors if within(it, "tensorflow", wheel.version))
    row = next(rows, None) if wheel.distribution.startswith("tensorflow") else None
    if row:
        return Had(version=row.minimum, source=row.source)
    return Had(version=wheel.cudnn, source=wheel.source) if wheel.cudnn else None


def decide_cuda(question: Question, plan: CudaPlan) -> tuple[Decision, ...]:
    """The choice in words: the versions, how they differ from the run's, and where they come from."""
    run, wheel = question.run, question.wheel
    if plan.source == "none":
        return ()
    built = (
        f"the release was built with {wheel.cuda}" if plan.version != wheel.cuda else "what the wheel was built with"
    )
    if brings_cuda(run, wheel) and run.label:
        built = f"what the label of {run.own} {run.label} says"
    floor = cudnn_floor(wheel, question.profiles)
    tag_differs = plan.source == "base" and floor is not None and not serves(plan.cudnn or floor.version, floor.version)
    least = f"the release takes {floor.version} or a later one of the same major version" if floor else "of the build"
    toolkit = [it for it in plan.requirements if is_toolkit(name_of(it))]
    open_ = [it for it in toolkit if "==" not in it and not run.version_of(name_of(it))]
    newest = "; its wheels are not pinned, so the newest of the index is installed" if open_ else ""
    wanted = _cudnn_requirement(plan.requirements)
    ranged = wanted if wanted and "." not in f"{plan.cudnn}" else None
    return (
        Decision(
            what="cuda",
            value=f"{plan.version}",
            reason=built + newest + _differs(run.cuda, plan.version),
            source=wheel.source,
        ),
        Decision(
            what="cudnn",
            value=plan.cudnn or "as its build brings it",
            reason=(f"the newest that {ranged} allows is installed; " if ranged else "")
            + least
            + ("; the base has another one" if tag_differs else "")
            + _differs(run.cudnn, plan.cudnn),
            source=floor.source if floor else wheel.source,
            warning=tag_differs,
        ),
        Decision(what="cuda source", value=plan.source, reason=plan.reason + plan.instead, source=plan.origin),
    )


def _differs(had: Had | None, version: str | None) -> str:
    if had is None or version is None:
        return ""
    shorter = min(had.version.count("."), version.count("."), 1) + 1
    same = had.version.split(".")[:shorter] == version.split(".")[:shorter]
    return f"; the run had {'the same' if same else 'another one'}, {had}"


def _none(question: Question) -> CudaPlan:
    for key, _ in question.overrides.pairs:
        if key in {"cuda", "cudnn", "driver_minimum"}:
            raise question.overrides.refused(key, "the cpu variant has no CUDA")
    if question.asked != "auto":
        what = f"the cpu variant has no CUDA, so it cannot come from {question.asked}"
        raise MatchError(what, where="--cuda-source", todo="leave it out, or choose --variant gpu")
    return CudaPlan(source="none")


def _by_base(question: Question) -> CudaChoice:
    """A base that is named and has CUDA is the one source."""
    if not _CUDA_IMAGE.search(question.overrides.base):
        return question.asked
    if question.asked == "wheels":
        raise question.overrides.refused("base", "CUDA was asked for from wheels, and an image has one source of it")
    return "base"


def _own(question: Question) -> CudaPlan:
    """The framework's own requirements, or what its build holds."""
    run, wheel, overrides = question.run, question.wheel, question.overrides
    own = tuple(it for it in wheel.cuda_requirements if applies(it, run.python, run.machine))
    found = own
    if overrides.cuda:
        found = swap_cuda(wheel, own, overrides, question.profiles)
    floor = cudnn_floor(wheel, question.profiles)
    if overrides.cudnn:
        found = swap_cudnn(wheel, found, overrides, floor.version if floor else None)
    exact = wheel.cuda if not overrides.cuda or is_version(f"{wheel.cuda}", overrides.cuda) else overrides.cuda
    extra = f"the wheel requires NVIDIA's wheels{f' by its extra {wheel.extra}' if wheel.extra else ''}"
    return CudaPlan(
        source="wheels",
        version=exact,
        cudnn=_cudnn(question, found),
        requirements=found,
        forced=tuple(it for it in found if it not in own),
        reason=extra if own else "its CUDA is inside the build, or among the run's own wheels",
        origin=wheel.source,
    )


def _cudnn(question: Question, requirements: tuple[str, ...]) -> str | None:
    """The version that the run had as a wheel, else the one that is pinned, else the major version of a range."""
    wheel, run = question.wheel, question.run
    wanted = _cudnn_requirement(requirements)
    name = wanted.name if wanted else f"nvidia-cudnn-cu{f'{wheel.cuda}'.partition('.')[0]}"
    had = run.version_of(name) if not question.overrides.cudnn else None
    pinned = next((it.version for it in wanted.specifier if it.operator == "=="), None) if wanted else None
    known = wheel.cudnn_built or wheel.cudnn
    return had or (pinned.removesuffix(".*") if pinned else known.partition(".")[0] if wanted and known else known)


def _cudnn_requirement(requirements: tuple[str, ...]) -> Requirement | None:
    return next((Requirement(it) for it in requirements if it.startswith("nvidia-cudnn-cu")), None)


def _set(question: Question) -> WheelSet | None:
    asked = question.overrides.cuda
    sets = (it for it in question.profiles.wheel_sets if question.wheel.cuda in it.serves)
    return next((it for it in sets if not asked or is_version(it.cuda, asked)), None)


def _base(question: Question) -> CudaBase | None:
    """An image with the CUDA that the release was built with; one whose distribution has the run's Python first."""
    wheel, asked = question.wheel, question.overrides.cuda
    rows = [it for it in question.profiles.bases if it.cuda == wheel.cuda and Version(it.glibc) >= Version(wheel.glibc)]
    rows = [it for it in rows if not asked or is_version(it.cuda, asked)]
    return min(rows, key=lambda it: it.python != question.run.python_minor, default=None)


def _nearer(run: Run, base: CudaBase, found: WheelSet) -> bool:
    """Whether the base has the nearer CUDA to the run's and can have its Python, and the run had none from wheels."""
    if run.cuda is None or base.python != run.python_minor or any(CUDA_WHEEL.match(name) for name, _ in run.pins):
        return False
    return _distance(run.cuda.version, base.cuda) < _distance(run.cuda.version, found.cuda)


def _distance(had: str, version: str) -> tuple[int, int]:
    """By how many major and minor versions two of CUDA differ."""
    left, right = (*Version(had).release, 0)[:2], (*Version(version).release, 0)[:2]
    return abs(left[0] - right[0]), abs(left[1] - right[1])


def _from_set(question: Question, found: WheelSet) -> CudaPlan:
    overrides, floor = question.overrides, cudnn_floor(question.wheel, question.profiles)
    requirements = (*found.requirements, _nearest_cudnn(question.run, found, floor))
    forced: tuple[str, ...] = ()
    if overrides.cudnn:
        requirements = swap_cudnn(question.wheel, requirements, overrides, floor.version if floor else None)
        forced = requirements[-1:]
    bases = [it.cuda for it in question.profiles.bases if it.cuda == question.wheel.cuda]
    other = f"; a base with CUDA {bases[0]} can be had by --cuda-source base" if bases else ""
    return CudaPlan(
        source="wheels",
        version=found.cuda,
        cudnn=_cudnn(question, requirements),
        requirements=requirements,
        forced=forced,
        folders=found.folders,
        reason=found.reason,
        instead=other,
        origin=found.source,
    )


def _nearest_cudnn(run: Run, found: WheelSet, floor: Had | None) -> str:
    """The lowest from the run's version on, else the highest; the first where the run's is not known."""
    versions = {text: text.partition("==")[2] for text in found.cudnn}
    fitting = [text for text, version in versions.items() if floor is None or serves(version, floor.version)]
    if run.cudnn is None:
        return fitting[0]
    had = Version(run.cudnn.version).release[:3]
    return next((it for it in fitting if Version(versions[it]).release[:3] >= had), fitting[-1])


def _from_base(question: Question, base: CudaBase | None) -> CudaPlan:
    wheel, overrides = question.wheel, question.overrides
    if overrides.cudnn:
        raise overrides.refused("cudnn", "cuDNN comes with the base", "set the base, or --cuda-source wheels")
    named = _CUDA_IMAGE.search(overrides.base)
    brought = named[1] if named else wheel.cuda
    said = _CUDNN_TAG.search(overrides.base) if named else None
    reason = "the base brings CUDA, so that no wheel does"
    if question.run.cuda and base and question.asked == "auto" and _set(question):
        reason = (
            f"CUDA {base.cuda} is nearest to the run's {question.run.cuda}; wheels serve too, by --cuda-source wheels"
        )
    return CudaPlan(
        source="base",
        version=base.cuda if base and not overrides.base else overrides.cuda or brought,
        cudnn=(base.cudnn if base and not overrides.base else said[1] if said else None) or wheel.cudnn,
        base=base,
        reason=reason,
        origin=base.source if base else "--set base" if overrides.base else wheel.source,
    )


def _refusal(question: Question, asked: CudaChoice) -> MatchError:
    wheel, profiles, overrides = question.wheel, question.profiles, question.overrides
    if overrides.cuda:
        known = {it.cuda for it in profiles.wheel_sets if wheel.cuda in it.serves}
        known |= {it.cuda for it in profiles.bases if it.cuda == wheel.cuda}
        names = ", ".join(sorted(known)) or "none"
        why = f"no wheels and no base of that CUDA are known for {wheel.pin}; known are {names}"
        return overrides.refused("cuda", why)
    if asked == "wheels":
        what = f"{wheel.pin} needs CUDA {wheel.cuda}, and the index has no wheels of it"
        return MatchError(what, where="profiles/cuda.toml: wheel_set", todo="use --cuda-source base, or --variant cpu")
    what = f"{wheel.pin} needs CUDA {wheel.cuda} from its base, and no image with it is known"
    todo = "use --variant cpu, or name a base that has it and Python by --set base=IMAGE"
    return MatchError(what, where="profiles/cuda.toml: base", todo=todo)
