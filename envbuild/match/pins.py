"""The run's pins: what a variant, a machine, a source of CUDA or a person changes about them, and rules they break."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name, canonicalize_version
from packaging.version import Version

from envbuild.errors import UsageError
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import is_pep440, name_of
from envbuild.manifest.reader import known_framework
from envbuild.match.cuda import CudaPlan, Selection, applies, cudnn_floor, is_version, serves
from envbuild.match.openers import Opened, cpu_build, find_opener, opener_warnings
from envbuild.match.profiles import Profiles
from envbuild.match.rows import FrameworkWheel, Limit, public_version
from envbuild.match.run import CPU_LABEL, CUDA_WHEEL, JAX_PLUGIN, Run
from envbuild.match.stack import Decision, PinChange, Stack

REASON = "--drop"
"""Why a distribution is left out that a person names, unless they give a reason."""
ONLY_IMPORTED = "--only-imported"
"""Why a distribution is left out that the run neither imported nor required for that."""
_REPRODUCED = "the run had this version all the same, and the image keeps it"
_REFUSED = "the record pins this version, which locking refuses"
_SHARED = {"cudnn": "nvidia/cudnn/lib/libcudnn.so.N", "nccl": "nvidia/nccl/lib/libnccl.so.2"}
"""Files that the wheels of all CUDAs install to the same path."""
_MAJOR = re.compile(r"nvidia-(?:cublas|cudnn|cuda-runtime)(?:-cu(\d+))?\Z")
"""Without a number it is that of CUDA 13."""


class Pins(NamedTuple):
    """Requirements with what was changed about the run's."""

    requirements: tuple[str, ...]
    """Sorted by normalised name."""
    changes: tuple[PinChange, ...]
    decisions: tuple[Decision, ...]


def decide_pins(selection: Selection, plan: CudaPlan, *, keep_others: bool) -> Pins:
    """Keep each pin that the choice allows, other frameworks' builds and CUDA if `keep_others`; add what is missing."""
    run, wheel = selection.run, selection.wheel
    changes = [change for pin in run.pins if (change := _change(selection, plan, *pin, keep_others=keep_others))]
    changed = {change.name for change in changes}
    kept = [f"{name}=={version}" for name, version in run.pins if name not in changed]
    have = [*kept, *(change.after for change in changes if change.after)]
    own = (wheel.pin, wheel.stands_for) if run.release.wheels else ()
    missing = _missing(have, filter(None, own))
    # What is missing takes the place of the framework's distributions that were dropped.
    for index, change in enumerate(changes):
        if missing and change.after is None and change.name in run.profile.distributions:
            changes[index] = replace(change, after=missing.pop(0))
    changes += [_added(pin, f"{wheel.pin} needs it on Linux {wheel.machine}") for pin in missing]
    # A CUDA build of PyTorch requires Triton as well.
    triton = [text for text in wheel.limits if wheel.cuda_requirements and name_of(text) == "triton"]
    wanted = _missing(have, [*plan.requirements, *(text for text in triton if applies(text, run.python, run.machine))])
    rows = (
        row for row in selection.profiles.repairs if wheel.version in row.versions and run.python_minor in row.pythons
    )
    repair = next(rows, None) if wheel.distribution.startswith("tensorflow") else None
    broken = [text for text in wanted if repair and name_of(text) in repair.drop]
    for text in (text for text in wanted if text not in broken):
        bare = text.partition(";")[0].strip() if Requirement(text).marker else text
        changes.append(_added(bare, f"CUDA for {wheel.pin}, which the run did not have as a wheel"))
    if not run.complete:
        limits = (
            row for row in selection.profiles.limits if row.undeclared and any(row.covers(*pin) for pin in run.pins)
        )
        reasons = {row.requirement: row.reason for row in limits}
        have = [*have, *(change.after for change in changes if change.after)]
        changes += [_added(text, reasons[text]) for text in _missing(have, reasons)]
    decisions: tuple[Decision, ...] = ()
    if repair and broken:
        value = f"without {', '.join(broken)}"
        decisions = (Decision("cuda requirements", value, repair.reason, repair.source),)
    requirements = [*kept, *(change.after for change in changes if change.after)]
    return Pins(tuple(sorted(requirements, key=lambda text: (name_of(text), text))), tuple(changes), decisions)


def _change(selection: Selection, plan: CudaPlan, name: str, version: str, *, keep_others: bool) -> PinChange | None:
    """Why a pin of the run cannot stay, and what takes its place; None where it stays."""
    forced = next((text for text in plan.forced if name_of(text) == name), None)
    after, reason = (
        forced,
        "overridden by hand" if forced else _why_dropped(selection, plan, name, version, keep_others),
    )
    if reason is None:
        after, reason = _other_build(selection, name, version, keep_others)
    if reason is None and selection.wheel.cuda is None and not keep_others:
        after, reason = _other_project(selection, name, version)
    pin = f"{name}=={version}"
    return PinChange(name, pin, after, reason) if reason and after != pin else None


def _why_dropped(selection: Selection, plan: CudaPlan, name: str, version: str, keep_others: bool) -> str | None:
    run, wheel, profiles = selection.run, selection.wheel, selection.profiles
    if foreign := next((row.reason for row in profiles.foreign if row.name == name), None):
        return foreign
    if name in run.profile.distributions:
        return _why_other_framework(run, selection, name, version)
    if not keep_others and plan.source == "base" and CUDA_WHEEL.match(name):
        return "CUDA comes from the base, and an image has one source of it"
    without_cuda = wheel.cuda is None and not keep_others
    if without_cuda and any(fnmatchcase(name, pattern) for pattern in profiles.nvidia_wheels):
        return "the cpu variant has no wheel of NVIDIA's"
    if without_cuda and any(fnmatchcase(name, pattern) for pattern in profiles.cuda_only):
        return "it serves a GPU only, which the cpu variant does without"
    return None


def _why_other_framework(run: Run, selection: Selection, name: str, version: str) -> str | None:
    """Why a distribution with the framework's code is not kept, given the build that was chosen."""
    wheel, variant = selection.wheel, "gpu" if selection.wheel.cuda else "cpu"
    if name == wheel.distribution:
        if canonicalize_version(version) == canonicalize_version(wheel.version):
            return None
        if public_version(version) != public_version(wheel.version):
            return f"the run's framework says that it is {wheel.version}"
        return f"the {variant} variant is the build {wheel.version}"
    # Whether it has a CUDA build for the run's machine: in its release, else in the newest with one.
    releases = (run.release, *reversed(run.profile.releases))
    rows = (row for release in releases for row in release.wheels)
    cuda = next((row.cuda for row in rows if (row.distribution, row.machine) == (name, run.machine)), None)
    if (cuda is None) != (wheel.cuda is None):
        return f"the {variant} variant has the same code from {wheel.distribution}"
    here = any((row.distribution, row.machine) == (name, run.machine) for row in run.release.wheels)
    return None if here else f"it has no wheel for Linux {run.machine}, where {wheel.distribution} has the same code"


def _other_build(selection: Selection, name: str, version: str, keep_others: bool) -> tuple[str | None, str | None]:
    """The build of the same version that fits the variant, of projects whose builds differ by a label."""
    public, _, label = version.partition("+")
    run, wheel = selection.run, selection.wheel
    if keep_others and run.profile.name != ("jax" if name == "jaxlib" else "torch"):
        return None, None
    if name == "jaxlib" and wheel.cuda is None and label:
        return f"jaxlib=={public}", "the build without a label is for the CPU"
    if name not in selection.profiles.labelled:
        return None, None
    if wheel.cuda is None and (run.moved or not label.startswith(CPU_LABEL)):
        # Whether PyTorch without a label is a CUDA build on this machine, in the run's version of it.
        torch_version = public_version((run.version_of("torch") or "").partition("+")[0])
        torch = next((row for row in selection.profiles.frameworks if row.name == "torch"), None)
        releases = (it for it in (torch.releases if torch else ()) if it.version == torch_version)
        rows = [row for release in releases for row in release.wheels if row.machine == run.machine]
        is_cuda = any(row.cuda for row in rows) if rows else run.machine == "x86_64"
        cpu = f"{name}=={public}" + (f"+{CPU_LABEL}" if is_cuda else "")
        return cpu, "the cpu variant has its build for the CPU, which on x86_64 is on PyTorch's own index only"
    if wheel.cuda and wheel.distribution == "torch" and label.startswith(CPU_LABEL):
        _, plus, own = wheel.version.partition("+")
        return f"{name}=={public}{plus}{own}", "the gpu variant has its build for CUDA, the same one as of torch"
    return None, None


def _other_project(selection: Selection, name: str, version: str) -> tuple[str | None, str | None]:
    """The build for the CPU of a project that has it under another name."""
    opener = find_opener(name, version, selection.profiles)
    release = cpu_build(opener, version) if opener else None
    if not opener or not release:
        return None, None
    if selection.run.version_of(opener.cpu):
        return None, f"the cpu variant has {opener.cpu} instead, which the run had, too"
    near = "" if Version(release) == Version(version) else f"; {release} is the nearest release of it to {version}"
    return f"{opener.cpu}=={release}", f"the cpu variant has the same code from {opener.cpu}{near}"


def _missing(kept: Iterable[str], wanted: Iterable[str]) -> list[str]:
    names = {name_of(it) for it in kept}
    return [it for it in wanted if name_of(it) not in names]


def _added(requirement: str, reason: str) -> PinChange:
    return PinChange(name_of(requirement), None, requirement, reason)


def reasons_of(texts: Iterable[str]) -> dict[NormalizedName, str]:
    """Read what `--drop` names, `NAME` or `NAME=REASON`: the reason by normalised name; UsageError for a version."""
    reasons = {}
    for text in texts:
        name, _, reason = text.partition("=")
        reason = reason.strip()
        if reason.startswith("="):
            what, todo = "a distribution is left out by its name, without a version", f"give --drop {name}"
            raise UsageError(what, where=f"--drop {text}", todo=todo)
        if not reason.isprintable():
            what, todo = f"the reason {reason!a} is not printable text", "write it in one line of UTF-8"
            raise UsageError(what, where=f"--drop {name}", todo=todo)
        reasons[canonicalize_name(name.strip())] = reason or REASON
    return reasons


def without_dropped(manifest: TrainingManifest, dropped: Mapping[NormalizedName, str]) -> TrainingManifest:
    """Return the manifest without them; UsageError for unknown distributions, and for a framework that the run used.

    `dropped` has a reason by name.
    """
    if unknown := sorted(set(dropped) - {canonicalize_name(it.name) for it in manifest.distributions}):
        todo = "give the name of a distribution of the run; what another one requires goes only with that one"
        raise UsageError(f"the run does not have {', '.join(unknown)}", where=f"--drop {unknown[0]}", todo=todo)
    used = known_framework(manifest)
    if used and dropped.get(canonicalize_name(used.distribution), ONLY_IMPORTED) != ONLY_IMPORTED:
        todo = "keep it, or give --framework none if the run used no framework"
        raise UsageError(f"{used.distribution} is the run's framework", where=f"--drop {used.distribution}", todo=todo)
    return _without(manifest, dropped)


def _without(manifest: TrainingManifest, dropped: Collection[NormalizedName]) -> TrainingManifest:
    framework = manifest.framework
    lost = framework is not None and canonicalize_name(framework.distribution) in dropped
    kept = tuple(it for it in manifest.distributions if canonicalize_name(it.name) not in dropped)
    frameworks = tuple(it for it in manifest.frameworks if canonicalize_name(it.distribution) not in dropped)
    return replace(
        manifest,
        distributions=kept,
        imported=tuple(it for it in manifest.imported if canonicalize_name(it) not in dropped),
        framework=None if lost else framework,
        frameworks=frameworks,
    )


def unimported(manifest: TrainingManifest, profiles: Profiles, variant: str) -> tuple[NormalizedName, ...]:
    """Names of what the run did not import, sorted; none where the manifest does not say it.

    The framework that a person named counts as imported; with any framework so do NVIDIA's wheels, some of whose
    libraries are loaded later.
    """
    names = {canonicalize_name(it.name) for it in manifest.distributions}
    kept = {canonicalize_name(it) for it in manifest.imported}
    if not kept:
        return ()
    if manifest.framework and manifest.framework_source:
        kept.add(canonicalize_name(manifest.framework.distribution))
    # The variant decides about NVIDIA's wheels, also about those that something else requires.
    if variant == "cpu" or kept & {name for it in profiles.frameworks for name in it.distributions}:
        patterns = (*profiles.nvidia_wheels, *profiles.cuda_only)
        kept |= {name for name in names if any(fnmatchcase(name, it) for it in patterns)}
    return tuple(sorted(names - kept))


def only_imported(
    manifest: TrainingManifest, profiles: Profiles, variant: str
) -> tuple[TrainingManifest, tuple[NormalizedName, ...]]:
    """Return the manifest with what the run imported alone, and the others; UsageError where it does not say which."""
    names = {canonicalize_name(it.name) for it in manifest.distributions}
    imported = {canonicalize_name(it) for it in manifest.imported}
    name = "name them by --imported pandas,sklearn, modules too"
    if not imported:
        todo = f"capture at the end of the training, in its own process (envbuild.capture()), or {name}; "
        todo += "or leave each out by --drop NAME"
        raise UsageError("the manifest does not say what the run imported", where=ONLY_IMPORTED, todo=todo)
    if unknown := sorted(imported - names):
        what = f"the run does not have {', '.join(unknown)}, which the manifest names as imported"
        todo = f"write names of distributions there, not of modules; or take all out, and {name}"
        raise UsageError(what, where="imported", todo=todo)
    others = unimported(manifest, profiles, variant)
    return _without(manifest, others), others


def dropped_from(stack: Stack, manifest: TrainingManifest, dropped: Mapping[NormalizedName, str]) -> Stack:
    """Return the stack without them, and with each as a change of the run's pins; `dropped` has a reason by name."""
    versions = {canonicalize_name(it.name): it.version for it in manifest.distributions}
    changes = [
        PinChange(it, f"{it}=={version}" if (version := versions[it]) else it, None, reason)
        for it, reason in sorted(dropped.items())
    ]
    gaps = stack.gaps
    unused = {name for name, reason in dropped.items() if reason == ONLY_IMPORTED}
    return replace(
        stack,
        requirements=tuple(it for it in stack.requirements if name_of(it) not in dropped),
        gaps=replace(gaps, without=tuple(sorted({*gaps.without, *dropped}))) if gaps else None,
        changes=(*(it for it in stack.changes if it.name not in dropped), *changes),
        dropped=tuple(sorted(dropped)),
        not_imported=tuple(sorted({*stack.not_imported, *unused})),
    )


def warnings_of(
    run: Run, wheel: FrameworkWheel, pins: Pins, variant: str, openers: Sequence[Opened], profiles: Profiles
) -> Iterator[Decision]:
    """Yield a warning for each rule that the pins break, and for what the run's other projects lack."""
    yield from _lost_label(run, wheel)
    yield from _mixed_labels(pins.requirements, profiles)
    yield from _broken_limits(run, wheel, profiles)
    yield from _bad_wheels(pins.requirements, wheel, profiles)
    yield from _idle_cuda(variant, pins.requirements)
    yield from _other_cuda(run, wheel, pins.requirements, profiles)
    torch = wheel if run.profile.name == "torch" else None
    yield from opener_warnings(openers, pins.requirements, variant, torch)


def _mixed_labels(requirements: Iterable[str], profiles: Profiles) -> Iterator[Decision]:
    """Warn of projects of PyTorch whose labels name different builds; a project without a label need not differ."""
    own = [it for it in requirements if name_of(it) in profiles.labelled and "+" in it]
    if len({it.partition("+")[2] for it in own}) > 1:
        reason = "their labels name different builds, and what is compiled for one of them does not load beside another"
        yield Decision("labels", ", ".join(own), reason, "profiles/cuda.toml: labelled", warning=True)


def _broken_limits(run: Run, wheel: FrameworkWheel, profiles: Profiles) -> Iterator[Decision]:
    """Yield each pin of the run that its framework, or another of its distributions, does not allow."""
    pins = {name: version for name, version in run.pins if name not in run.profile.distributions}
    reported = set()
    for broken in broken_profile_limits(pins | {wheel.distribution: wheel.version}, profiles.limits):
        limit, refused = broken.limit, broken.limit.breaks and not run.complete
        reason = f"{broken.pin} needs {limit.requirement}: {limit.reason}; {_REFUSED if refused else _REPRODUCED}"
        if limit.breaks:
            reported.add(broken.other)
        yield Decision("limit", broken.other, reason, limit.source, warning=limit.breaks is not None)
    with_code = next((it for it in run.release.wheels if it.pin == wheel.stands_for), wheel)
    for text in with_code.limits:
        requirement, version = Requirement(text), run.version_of(name_of(text))
        pin = f"{name_of(text)}=={version}"
        if not version or pin in reported or not applies(text, run.python, run.machine):
            continue
        if is_pep440(version) and not requirement.specifier.contains(version, prereleases=True):
            needs = f"{wheel.pin} needs {requirement.name}{requirement.specifier}: its wheel requires it"
            yield Decision("limit", pin, f"{needs}; {_REPRODUCED}", with_code.source, warning=True)


class BrokenLimit(NamedTuple):
    """Two versions that do not go together."""

    pin: str
    """What needs another version: `tensorflow==2.12.0`."""
    other: str
    """What it does not work with: `numpy==2.0.2`."""
    limit: Limit


def broken_profile_limits(pins: Mapping[str, str], limits: Iterable[Limit]) -> Iterator[BrokenLimit]:
    """Yield each limit of the profiles (not of a wheel's METADATA) that these versions break; by normalised name."""
    for limit in limits:
        other = name_of(limit.requirement)
        for name in limit.distributions:
            covered = other in pins and limit.covers(name, pins.get(name, ""))
            if covered and not limit.allows(pins[other]):
                yield BrokenLimit(f"{name}=={pins[name]}", f"{other}=={pins[other]}", limit)


def _lost_label(run: Run, wheel: FrameworkWheel) -> Iterator[Decision]:
    """Warn of a build for another CUDA than the index has: its label was lost, or it was not a wheel."""
    if run.built and wheel.cuda and not (is_version(run.built, wheel.cuda) or is_version(wheel.cuda, run.built)):
        reason = f"the run's {run.own} was built with CUDA {run.built}, the wheel of that version with {wheel.cuda}: "
        reason += "a tool that drops labels such as +cu118 recorded it, or another build was installed"
        yield Decision("build", wheel.pin, reason, "manifest: framework.cuda", warning=True)


def _bad_wheels(requirements: Iterable[str], wheel: FrameworkWheel, profiles: Profiles) -> Iterator[Decision]:
    """Warn of a cuDNN that the framework would refuse, and of wheels of two CUDA in one environment."""
    pins = {name_of(it): it.partition("==")[2] for it in requirements}
    floor, own = cudnn_floor(wheel, profiles), f"{wheel.cuda}".split(".")[0]
    cudnn = pins.get(f"nvidia-cudnn-cu{own}", "").removesuffix(".*")
    if wheel.cuda and floor and is_pep440(cudnn) and not serves(cudnn, floor.version):
        takes = f"{wheel.pin} takes {floor.version} or a later one of the same major version"
        reason = f"{takes}; the run had another one and is reproduced"
        yield Decision("limit", f"nvidia-cudnn-cu{own}=={cudnn}", reason, floor.source, warning=True)
    for library, file in _SHARED.items():
        names = sorted(it for it in pins if re.fullmatch(rf"nvidia-{library}-cu\d+", it))
        if len(names) > 1:
            reason = (
                f"they all install {file}; the image has the run's, if recorded, else the one that pip installs last"
            )
            source = f"files of {' and '.join(names)} on the package index"
            yield Decision(f"{library} twice", ", ".join(names), reason, source, warning=True)
    libraries = ((name, JAX_PLUGIN.match(name) or _MAJOR.match(name)) for name in pins)
    majors = {match[1] or "13": name for name, match in libraries if match}
    if len(majors) > 1:
        reason = "wheels of two major versions of CUDA are in one environment"
        drivers = [it.minimum for it in profiles.drivers if it.cuda == max(majors, key=int)]
        reason += "".join(f"; the higher one takes driver {it} or later" for it in drivers)
        yield Decision(
            "cuda twice",
            ", ".join(majors[it] for it in sorted(majors)),
            reason,
            "manifest: distributions",
            warning=True,
        )


def _idle_cuda(variant: str, requirements: Iterable[str]) -> Iterator[Decision]:
    """Warn of CUDA wheels in an image for the CPU."""
    names = [it for it in map(name_of, requirements) if CUDA_WHEEL.match(it) or it.startswith("nvidia-nccl-")]
    if variant == "cpu" and names:
        reason = "the image is for the CPU and keeps these CUDA wheels of the run; --variant cpu leaves them out"
        yield Decision("unused cuda", ", ".join(names), reason, "manifest: distributions", warning=True)


def _other_cuda(run: Run, wheel: FrameworkWheel, requirements: Iterable[str], profiles: Profiles) -> Iterator[Decision]:
    """Warn of frameworks beside the run's own one whose wheels require a CUDA that the image does not have."""
    if wheel.cuda is None:
        return
    pins = {name_of(it): it.partition("==")[2] for it in requirements}
    rows = (it for profile in profiles.frameworks if profile is not run.profile for it in profile.wheels)
    for row in (it for it in rows if it.machine == run.machine and pins.get(it.distribution) == it.version):
        if row.extra is not None or not row.cuda_requirements:
            continue  # only rows that require CUDA without any extra
        missing = []
        for it in (it for it in row.cuda_requirements if applies(it, run.python, run.machine)):
            version = pins.get(name_of(it))
            if version and is_pep440(version):
                lacking = not Requirement(it).specifier.contains(version, prereleases=True)
            else:  # the lock of a record with gaps adds it
                lacking = not version and run.complete and (version is None or "==" in it)
            missing += [it] if lacking else []
        if not run.complete and f"{row.cuda}".partition(".")[0] != wheel.cuda.partition(".")[0]:
            reason = f"the lock adds its CUDA {row.cuda} beside the CUDA {wheel.cuda} of {wheel.pin}"
            yield Decision("cuda twice", row.pin, reason, row.source, warning=True)
        if missing:
            needed = f"its wheel requires {', '.join(missing)}"
            reason = f"{needed}; the image has the CUDA of {wheel.pin}: these are missing, or have other versions"
            yield Decision("cuda of another", row.pin, reason, row.source, warning=True)
