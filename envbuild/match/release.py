"""The stack of a release without any run: what `envbuild profiles show` answers."""

import re
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import MatchError, UsageError
from envbuild.manifest.hardware import Gpu
from envbuild.match.cuda import applies
from envbuild.match.match import MatchOptions, decide
from envbuild.match.profiles import FrameworkProfile, FrameworkWheel, Profiles, Release
from envbuild.match.run import Run, find_release, machine_of
from envbuild.match.stack import Decision, Stack, Variant
from envbuild.match.variant import choose_wheel, own_builds

_EXTRA = re.compile(r"cuda\d+(?=-pip\Z|\Z)")
_VALUES = {"framework", "python", "variant", "cuda", "cudnn", "cuda source", "driver", "base", "glibc", "platform"}
"""Decisions that are values of their own, no remarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseStack:
    """A release's stack, with what is worth knowing about it."""

    stack: Stack
    wheel: FrameworkWheel
    """The row that it rests on."""
    limits: tuple[str, ...]
    """What the release needs of NumPy, protobuf, Keras and the like, with what its wheel should have said."""
    notes: tuple[str, ...]


def show_release(
    text: str,
    profiles: Profiles,
    options: MatchOptions,
    *,
    python: str | None = None,
    machine: str = "x86_64",
    gpus: tuple[str, ...] = (),
) -> ReleaseStack:
    """Decide for `NAME==VERSION` as for a run that had nothing else.

    The newest Python that there is a stack for where none is given, and the variant with CUDA where the distribution
    has one; `none` for the GPUs means the other.
    UsageError for a text that names no release, MatchError as `match`.
    """
    if python is not None and not re.fullmatch(r"\d+\.\d+(\.\d+)?", python):
        raise UsageError(f"{python!r} is not a version of Python", where="--python", todo="give it as 3.11 or 3.11.7")
    named = _gpu_names(gpus)
    run = _run(text, profiles, machine_of(machine), named)
    without = _without_gpu(_parsed(text)[1], gpus, named)
    variant: Variant = "gpu" if _variant(options, run, without).value == "gpu" else "cpu"
    version = python or options.overrides.python
    stack = _first(run, profiles, replace(options, variant=variant), [version] if version else _pythons(run))
    run = replace(run, python=stack.python)
    wheel, kind = choose_wheel(run, stack.variant), _variant(options, run, without)
    decisions = [kind if it.what == "variant" else it for it in stack.decisions]
    if not version:
        newest = "the newest that there is a stack for, as none was asked for"
        decisions = [
            replace(it, reason=f"{newest}; {it.reason.partition('; ')[2]}") if it.what == "python" else it
            for it in decisions
        ]
    hand = [it.requirement for it in profiles.limits if it.covers(wheel.distribution, wheel.version)]
    return ReleaseStack(
        stack=replace(stack, decisions=tuple(decisions)),
        wheel=wheel,
        limits=(*(it for it in wheel.limits if applies(it, stack.python, stack.machine)), *hand),
        notes=_notes(stack, run.release),
    )


def _gpu_names(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs by name, which `none` among them denies; UsageError for a name that is empty, or for both at once."""
    none = [it for it in gpus if it.strip().lower() == "none"]
    if not all(it.strip() for it in gpus) or (none and len(gpus) > 1):
        what = "--gpu takes the name of a GPU, or none alone"
        raise UsageError(what, where=f"--gpu {', '.join(map(repr, gpus))}", todo='give --gpu H100, or --gpu "Tesla T4"')
    return () if none else gpus


def _pythons(run: Run) -> list[str]:
    """Those of the release on the machine, the newest first; of any machine where it has none there."""
    wheels = run.release.wheels
    here = [it for it in wheels if it.machine == run.machine] or wheels
    return sorted({minor for it in here for minor in it.pythons}, key=Version, reverse=True)


def _without_gpu(extras: set[str], gpus: tuple[str, ...], named: tuple[str, ...]) -> Decision | None:
    """Why the variant is the one for the CPU; None where nothing says so."""
    if gpus:
        none = Decision(what="variant", value="cpu", reason="there is no GPU to run on", source="--gpu none")
        return None if named else none
    if not extras or any("cuda" in it for it in extras):
        return None
    reason = f"the extra {', '.join(sorted(extras))} brings no CUDA; what else it requires is not listed"
    return Decision(what="variant", value="cpu", reason=reason, source="extras that were asked for")


def _variant(options: MatchOptions, run: Run, without: Decision | None) -> Decision:
    """What was asked for, else the one with CUDA."""
    if options.variant != "auto":
        return Decision(what="variant", value=options.variant, reason="it was asked for", source="--variant")
    if without:
        return without
    builds = own_builds(run)
    if cuda := next((it for it in builds if it.cuda), None):
        reason = "the release has a CUDA build"
        if cuda.distribution != run.own:
            reason = f"{run.own} has no wheel of this version, and {cuda.pin} has the same code for CUDA"
        return Decision(what="variant", value="gpu", reason=reason, source=cuda.source)
    source = builds[0].source if builds else "profiles"
    other = next((it for it in run.release.wheels if it.cuda and it.machine == run.machine), None)
    reason = f"{run.own} has no CUDA build of this version"
    reason += f"; {other.pin} is one, by --variant gpu" if other else ""
    return Decision(what="variant", value="cpu", reason=reason, source=source)


def _run(text: str, profiles: Profiles, machine: str, gpus: tuple[str, ...]) -> Run:
    name, extras, version = _parsed(text)
    profile = next((it for it in profiles.frameworks if name in it.distributions), None)
    if profile is None:
        known = ", ".join(sorted(name for it in profiles.frameworks for name in it.distributions))
        raise MatchError(f"no profile knows {name}", where=name, todo=f"give a release of one of: {known}")
    release = find_release(profile, name, version, profiles, where=text)
    cuda = _cuda_extras(text, profile, release, extras, machine)
    plugins = [f"jax-{it}-plugin" for it in cuda if profile.name == "jax"]
    return Run(
        profile=profile,
        release=release,
        own=name,
        python="",
        machine=machine,
        system="Linux",
        pins=((name, version), *((it, version) for it in plugins)),
        label=version.partition("+")[2],
        gpus=tuple(Gpu(name=it) for it in gpus),
        hypothetical=True,
    )


def _cuda_extras(text: str, profile: FrameworkProfile, release: Release, extras: set[str], machine: str) -> list[str]:
    """`cuda12` for each extra that brings it; MatchError for one that is unknown or not available."""
    found = []
    for extra in sorted(extras):
        lost = next((it for it in release.notes if it.startswith(f"{extra}:") and machine in it), None)
        cuda = sorted({it.extra for it in release.wheels if it.extra and it.machine == machine})
        if extra not in (release.extras or cuda) or lost:
            known = ", ".join(release.extras or cuda) or "none"
            unknown = f"the profiles know no extra {extra} of {profile.name} {release.version}; they know {known}"
            todo = f"leave it out, or ask for {', '.join(cuda)}" if cuda else "leave it out; no extra brings CUDA here"
            what = f"{profile.name}[{extra}]=={release.version} is not available: {lost}" if lost else unknown
            raise MatchError(what, where=text, todo=todo)
        found += [match[0] for match in [_EXTRA.match(extra)] if match]
    return found


def _parsed(text: str) -> tuple[str, set[str], str]:
    """Name, extras and exact version."""
    wrong = UsageError(f"{text!r} names no release", where=text, todo="give NAME==VERSION: tensorflow==2.15.1")
    try:
        found = Requirement(text)
    except InvalidRequirement:
        raise wrong from None
    pins = [it.version for it in found.specifier if it.operator == "=="]
    if len(pins) != 1 or len(found.specifier) != 1 or pins[0].endswith("*") or found.marker or found.url:
        raise wrong
    return canonicalize_name(found.name), {str(canonicalize_name(it)) for it in found.extras}, pins[0]


def _first(run: Run, profiles: Profiles, options: MatchOptions, pythons: list[str]) -> Stack:
    """The stack for the first Python that has one; else the error that says why the first of them has none."""
    first: MatchError | None = None
    for python in pythons:
        try:
            return decide(replace(run, python=python), profiles, options)
        except MatchError as error:
            first = first or error
    raise first or MatchError(f"no stack serves {run}")


def _notes(stack: Stack, release: Release) -> tuple[str, ...]:
    """Warnings first, then whatever is set or left out, then what the release offers and cannot keep."""
    remarks = sorted(stack.decisions, key=lambda it: not it.warning)
    told = [
        f"{f'{it.what} {it.value}'.rstrip()}: {it.reason}" for it in remarks if it.warning or it.what not in _VALUES
    ]
    return (*told, *(it for it in release.notes if not any(it in line for line in told)))
