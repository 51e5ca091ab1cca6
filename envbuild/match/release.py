"""The stack of a release without any run: what `envbuild profiles show` answers."""

import re
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import MatchError, UsageError
from envbuild.manifest.hardware import Gpu
from envbuild.match.cuda import applies
from envbuild.match.limits import hand_limits
from envbuild.match.match import Asked, decide
from envbuild.match.profiles import FrameworkProfile, FrameworkWheel, Profiles, Release
from envbuild.match.run import Run, find_release, machine_of
from envbuild.match.stack import Decision, Stack
from envbuild.match.variant import choose_wheel, own_builds

_EXTRA = re.compile(r"cuda\d+")
_VALUES = {"framework", "python", "variant", "cuda", "cudnn", "cuda source", "driver", "base", "glibc", "platform"}
"""Decisions that are values of their own, no remarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
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
    asked: Asked,
    *,
    python: str | None = None,
    machine: str = "x86_64",
    gpus: tuple[str, ...] = (),
) -> Shown:
    """Decide for `NAME==VERSION` as for a run that had nothing else.

    The newest Python that there is a stack for where none is given, and the variant with CUDA where there is one.
    UsageError for a text that names no release, MatchError as `match`.
    """
    if python is not None and not re.fullmatch(r"\d+\.\d+(\.\d+)?", python):
        raise UsageError(f"{python!r} is no version of Python", where="--python", todo="give it as 3.11 or 3.11.7")
    run = _run(text, profiles, machine_of(machine), gpus)
    kind = _variant(asked, own_builds(run))
    asked = replace(asked, variant="gpu" if kind.value == "gpu" else "cpu")
    minors = {minor: None for it in run.release.wheels if it.machine == run.machine for minor in it.pythons}
    newest = sorted(minors, key=Version, reverse=True)
    stack = _first(run, profiles, asked, [python] if python else newest)
    wheel = choose_wheel(replace(run, python=stack.python), stack.variant)
    decisions = tuple(kind if it.what == "variant" else it for it in stack.decisions)
    hand = [it.requirement for it in hand_limits(wheel, profiles)]
    return Shown(
        stack=replace(stack, decisions=decisions),
        wheel=wheel,
        limits=(*(it for it in wheel.limits if applies(it, stack.python, stack.machine)), *hand),
        notes=_notes(stack, run.release),
    )


def _variant(asked: Asked, builds: tuple[FrameworkWheel, ...]) -> Decision:
    """What was asked for, else the one with CUDA."""
    if asked.variant != "auto":
        return Decision(what="variant", value=asked.variant, reason="it was asked for", source="--variant")
    cuda = next((it for it in builds if it.cuda), None)
    if cuda:
        return Decision(what="variant", value="gpu", reason="the release has a CUDA build", source=cuda.source)
    source = builds[0].source if builds else "profiles"
    return Decision(what="variant", value="cpu", reason="the release has no CUDA build", source=source)


def _run(text: str, profiles: Profiles, machine: str, gpus: tuple[str, ...]) -> Run:
    name, extras, version = _parsed(text)
    profile = _profile(name, profiles)
    release = find_release(profile, name, version)
    plugins = [f"jax-{it}-plugin" for it in sorted(extras) if profile.name == "jax" and _EXTRA.fullmatch(it)]
    return Run(
        profile=profile,
        release=release,
        own=name,
        python="",
        machine=machine,
        system="Linux",
        machine_said=True,
        pins=((name, version), *((it, version) for it in plugins)),
        label=version.partition("+")[2],
        built=None,
        cuda=None,
        cudnn=None,
        gpus=tuple(Gpu(name=it) for it in gpus),
        gpus_said=True,
        build="",
        complete=True,
        conda=(),
        asked=True,
    )


def _parsed(text: str) -> tuple[str, set[str], str]:
    """Name, extras and exact version."""
    wrong = UsageError(f"{text!r} names no release", where="RELEASE", todo="give NAME==VERSION: tensorflow==2.15.1")
    try:
        found = Requirement(text)
    except InvalidRequirement:
        raise wrong from None
    pins = [it.version for it in found.specifier if it.operator == "=="]
    if len(pins) != 1 or len(found.specifier) != 1 or pins[0].endswith("*") or found.marker or found.url:
        raise wrong
    return canonicalize_name(found.name), found.extras, pins[0]


def _profile(name: str, profiles: Profiles) -> FrameworkProfile:
    found = next((it for it in profiles.frameworks if name in it.distributions), None)
    if found is None:
        known = ", ".join(sorted(name for it in profiles.frameworks for name in it.distributions))
        raise MatchError(f"no profile knows {name}", where="RELEASE", todo=f"give a release of one of: {known}")
    return found


def _first(run: Run, profiles: Profiles, asked: Asked, pythons: list[str]) -> Stack:
    """The stack for the first Python that has one; else the error that says why the first of them has none."""
    first: MatchError | None = None
    for python in pythons:
        try:
            return decide(replace(run, python=python), profiles, asked)
        except MatchError as error:
            first = first or error
    raise first or MatchError(f"no stack serves {run}")


def _notes(stack: Stack, release: Release) -> tuple[str, ...]:
    """Warnings first, then whatever is set or left out, then what the release offers and cannot keep."""
    remarks = sorted(stack.decisions, key=lambda it: not it.warning)
    told = [f"{it.what} {it.value}: {it.reason}" for it in remarks if it.warning or it.what not in _VALUES]
    return (*told, *(it for it in release.notes if not any(it in line for line in told)))
