"""Match a run, or a release without one, to the profiles: the stack, or every candidate and why it lost."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import MatchError, UsageError
from envbuild.manifest.hardware import Gpu
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import name_of
from envbuild.match.cuda import GPU_VARIABLES, CudaPlan, Selection, applies, decide_cuda, decide_variables, plan_cuda
from envbuild.match.driver import decide_driver
from envbuild.match.openers import find_openers, unneeded_of
from envbuild.match.pins import (
    ONLY_IMPORTED,
    Pins,
    decide_pins,
    dropped_from,
    only_imported,
    reasons_of,
    unimported,
    warnings_of,
    without_dropped,
)
from envbuild.match.profiles import Profiles
from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from envbuild.match.run import (
    CPU_LABEL,
    NO_FRAMEWORK,
    Run,
    choose_wheel,
    decide_variant,
    find_release,
    normalize_machine,
    own_builds,
    read_run,
)
from envbuild.match.stack import (
    OWN,
    CudaChoice,
    Decision,
    Gaps,
    Overrides,
    Stack,
    Variant,
    VariantChoice,
    read_overrides,
)

_EXTRA = re.compile(r"cuda\d+(?=-pip\Z|\Z)")
_VALUES = {"framework", "python", "variant", "cuda", "cudnn", "cuda source", "driver", "base", "glibc", "platform"}
"""Decisions that are values of their own, no remarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOptions:
    """What is asked for besides the run itself."""

    variant: VariantChoice = "auto"
    cuda_source: CudaChoice = "auto"
    overrides: Overrides = field(default_factory=Overrides)
    as_of: str | None = None
    """As of which moment in UTC an incomplete record is completed: `none` for no date, None for the record's own."""


def match(  # noqa: PLR0913 - each is an option of the command line
    manifest: TrainingManifest,
    profiles: Profiles,
    variant: VariantChoice = "auto",
    *,
    cuda_source: CudaChoice = "auto",
    overrides: Mapping[str, str] | None = None,
    machine: str | None = None,
    as_of: str | None = None,
    drop: Collection[str] = (),
    imported_only: bool = False,
) -> Stack:
    """Decide what has to be locked for a run; MatchError lists each candidate near it and why it lost.

    `overrides` are values by `base`, `cuda`, `cudnn`, `driver_minimum` or `python`; `machine` replaces the run's.
    What an incomplete record lacks is added as of `as_of` (ISO 8601; a date counts to its end in UTC); UsageError.
    `drop` names distributions of the run that are left out by hand (`NAME=REASON`), UsageError for one that it did not
    have. With `imported_only`, the stack requires what the run imported; UsageError where the manifest does not say it.
    """
    if drop:
        dropped = reasons_of(drop)
        kept = without_dropped(manifest, dropped)
        stack = match(
            kept, profiles, variant,
            cuda_source=cuda_source, overrides=overrides, machine=machine, as_of=as_of, imported_only=imported_only,
        )  # fmt: skip
        return dropped_from(stack, manifest, dropped)
    if imported_only:
        kept, others = only_imported(manifest, profiles, variant)
        stack = match(
            kept, profiles, variant,
            cuda_source=cuda_source, overrides=overrides, machine=machine, as_of=as_of,
        )  # fmt: skip
        value = f"{len(kept.distributions)} of {len(manifest.distributions)}"
        reason = "the run imported these; of the others, the lock has what these require, in the run's version"
        chosen = Decision("imported", value, reason, ONLY_IMPORTED)
        return replace(stack, not_imported=others, decisions=(*stack.decisions, chosen))
    by_hand = read_overrides(overrides)
    options = MatchOptions(variant=variant, cuda_source=cuda_source, overrides=by_hand, as_of=_moment_of(as_of))
    run = read_run(manifest, profiles)
    decisions = (*_used(manifest, run), *_accelerator(manifest))
    if machine and normalize_machine(machine) != run.machine:
        moved_to = normalize_machine(machine)
        reason = f"it was asked for; the run was on {run.machine}"
        decisions += (Decision("platform", f"Linux {moved_to}", reason, "--platform"),)
        # On another machine the build for the CPU need not have a label.
        label = "" if run.label.startswith(CPU_LABEL) else run.label
        system = run.system or "Linux"
        run = replace(run, machine=moved_to, machine_known=True, system=system, label=label, moved=True)
    stack = decide(run, profiles, options)
    others = unimported(manifest, profiles, variant)
    return replace(stack, decisions=(*decisions, *stack.decisions), unimported=others)


def _used(manifest: TrainingManifest, run: Run) -> tuple[Decision, ...]:
    """Which of several frameworks the run used, and what says so."""
    if not run.others or run.profile is NO_FRAMEWORK:
        return ()
    others = f"{', '.join(it.name for it in run.others)} stays as it was installed"
    source = manifest.framework_source or "manifest: framework, numerics, native, model"
    return (Decision("used", run.profile.name, f"the run used it; {others}", source),)


def _accelerator(manifest: TrainingManifest) -> tuple[Decision, ...]:
    """Warn of a TPU, as no profile knows what it needs of its host, and of a record that contradicts itself."""
    accelerator, source = manifest.accelerator, "manifest: accelerator"
    if accelerator and accelerator.kind == "tpu":
        reason = "no image for TPUs is made; the run's wheels for it stay, and nothing else is prepared"
        return (Decision("accelerator", "TPU", reason, source, warning=True),)
    if accelerator and accelerator.kind == "none" and accelerator.gpus:
        reason = f"the record says that there was none, and lists {len(accelerator.gpus)} GPU(s), which are passed over"
        return (Decision("accelerator", "none", reason, source, warning=True),)
    return ()


def decide(run: Run, profiles: Profiles, options: MatchOptions) -> Stack:
    """Return the stack that serves a run; MatchError as `match`."""
    overrides, no_framework = options.overrides, run.profile is NO_FRAMEWORK
    run = replace(run, python=overrides.python) if overrides.python else run
    if no_framework:
        hand = [f"--set {key}" for key, _ in overrides.pairs if key in {"cuda", "cudnn", "driver_minimum"}]
        if hand or options.cuda_source != "auto":
            what = "a run without a framework gets no CUDA except that of its own wheels"
            todo = "leave it out, or name the --framework"
            raise UsageError(what, where=next(iter(hand), "--cuda-source"), todo=todo)
    kind = decide_variant(run, options.variant, profiles)
    variant: Variant = "gpu" if kind.value == "gpu" else "cpu"
    wheel = choose_wheel(run, variant)
    selection = Selection(run=run, wheel=wheel, cuda_source=options.cuda_source, overrides=overrides, profiles=profiles)
    plan = plan_cuda(selection)
    # What was installed and not used stays as it was, unless --variant cpu or another machine is asked for.
    keep_others = not run.moved and options.variant != "cpu" and (no_framework or bool(run.others))
    pins = decide_pins(selection, plan, keep_others=keep_others or (no_framework and variant == "gpu"))
    base = decide_base(wheel, plan, run.python, overrides, profiles)
    openers = find_openers(pins.requirements, profiles)
    # Beside a framework, what runs on the CPU too may never have used the GPU.
    for_gpu = [it for it in openers if variant == "gpu" and (no_framework or it.row.for_gpu)]
    paths = tuple(decide_variables(selection, plan, pins.requirements, for_gpu))
    cuda = plan.version or ""
    driver = tuple(decide_driver(run, wheel, cuda, overrides, profiles, for_gpu)) if cuda or for_gpu else ()
    warnings = warnings_of(run, wheel, pins, variant, openers, profiles)
    unneeded = tuple(unneeded_of(openers, run.pins)) if variant == "cpu" else ()
    decisions = (*_facts(run, wheel), *_assumptions(run, options), kind, *decide_cuda(selection, plan), *driver)
    return Stack(
        framework=run.profile.name,
        distribution=wheel.distribution,
        version=wheel.version,
        variant=variant,
        python=run.python,
        machine=run.machine,
        cuda=plan.version,
        cudnn=plan.cudnn,
        cuda_source=plan.source,
        base=base.value,
        glibc_minimum=wheel.glibc,
        driver_minimum=next((it.value.removeprefix(">=") for it in driver if it.what == "driver"), None),
        requirements=pins.requirements,
        gaps=_gaps(run, pins, profiles, _as_of(run, options), unneeded),
        variables=tuple(sorted([*(GPU_VARIABLES if variant == "gpu" else ()), *((it.what, it.value) for it in paths)])),
        changes=pins.changes,
        decisions=overrides.mark_overridden((*decisions, *pins.decisions, *paths, base, *warnings)),
        overrides=overrides.pairs,
    )


def decide_base(
    wheel: FrameworkWheel, plan: CudaPlan, python: str, overrides: Overrides, profiles: Profiles
) -> Decision:
    """Return Python's own slim image of the run's exact Python, or the image with CUDA where that comes from it."""
    minor = ".".join(python.split(".")[:2])
    if overrides.base:
        has = f"it has to have Python {python}, glibc {wheel.glibc} or later"
        cuda = f", and CUDA {plan.version}" if plan.source == "base" else ""
        return Decision("base", overrides.base, has + cuda, wheel.source)
    if row := plan.base:  # such an image has no Python, and its distribution has just one
        other = "" if row.python == minor else f", and its distribution has only {row.python}"
        if row.withdrawn:
            packages = f"envbuild base build --cuda {row.cuda} --python {python}"
            mirror = f"envbuild base build --parent MIRROR --python {minor}"
            reason = f"{row.reason}. {row.withdrawn}: make one of NVIDIA's packages, {packages}, or on a mirror of it"
            reason += f", {mirror}, and name it by --set base=IMAGE"
            return Decision("base", row.image, reason, row.source, warning=True)
        build = f"envbuild base build --parent {row.image} --python {minor}, and name it by --set base=IMAGE"
        reason = f"{row.reason}. It has no Python{other}: make one with it, {build}"
        return Decision("base", row.image, reason, row.source)
    if plan.source == "base":
        reason = f"no image with CUDA {plan.version} and Python is known; name one by --set base=IMAGE"
        return Decision("base", "", reason, "profiles/cuda.toml: base", warning=True)
    suite = profiles.python_suite(python, oldest=wheel.glibc)
    name = profiles.python_image.format(python=python, suite=(suite or profiles.suites[0]).name)
    if suite is None:
        known = f"no slim image of Python {python} is known on a suite with glibc {wheel.glibc}"
        reason, source = f"{known}: name a base by --set base=IMAGE", "profiles/cuda.toml: suite"
        return Decision("base", name, reason, source)
    whose = "the run's Python" if python.count(".") > 1 else "the newest patch release of this Python"
    return Decision("base", name, f"{whose}; {suite.reason}", suite.source)


def _facts(run: Run, wheel: FrameworkWheel) -> tuple[Decision, ...]:
    """What follows from the manifest and the wheel's row alone."""
    if run.profile is NO_FRAMEWORK:
        reason = "the run used neither TensorFlow, PyTorch nor JAX, so no CUDA is chosen"
        none = Decision("framework", "none", reason, "manifest: distributions")
        if run.others:
            none = Decision("framework", "none", "the run used none, so no CUDA is chosen", "--framework")
        python = Decision("python", run.python, OWN, "manifest: python.version")
        reason = "the oldest that wheels are built for; locking takes only wheels that run on the base's glibc"
        lowest = Decision("glibc", f">={wheel.glibc}", reason, "PEP 599: manylinux2014")
        return (none, python, lowest, *_other_system(run))
    own = (wheel.distribution, wheel.version) == (run.own, run.labelled)
    whose = "what was asked for" if run.hypothetical else OWN
    same = whose if own else f"the same version as {whose}, {run.own}, for this variant"
    if "+" in wheel.version:
        same += "; its label is of PyTorch's own index, which has to be in the settings of pip or uv"
    pythons = f"{whose}; there are wheels for {', '.join(wheel.pythons)}"
    glibc = "the lowest that the wheel's platform tags accept"
    decisions = [
        Decision("framework", wheel.pin, same, wheel.source),
        Decision("python", run.python, pythons, wheel.source),
        Decision("glibc", f">={wheel.glibc}", glibc, wheel.source),
    ]
    if wheel.extra and wheel.distribution == "jax":
        decisions.append(_extra(run, wheel))
    return (*decisions, *_other_system(run))


def _other_system(run: Run) -> Iterator[Decision]:
    """What a run on macOS or Windows becomes."""
    if run.system not in {None, "Linux"}:
        reason = f"the run was on {run.system}; the image takes the Linux wheels of the same versions"
        platform = f"Linux {run.machine}"
        yield Decision("platform", platform, reason, "manifest: platform.system")


def _extra(run: Run, wheel: FrameworkWheel) -> Decision:
    """Which of JAX's extras brings CUDA, and which of the others cannot."""
    major = f"{wheel.cuda}".split(".")[0]
    had = any(name.startswith(f"jax-cuda{major}-") for name, _ in run.pins)
    reason = "the run's own plug-in" if had else "the run had no plug-in that says another one"
    if run.hypothetical:
        reason = "it was asked for" if had else "none was asked for, and this one runs on the oldest drivers"
    notes = "".join(f"; {it}" for it in run.release.notes if re.match(r"cuda\d+:", it))
    return Decision("extra", f"{wheel.extra}", reason + notes, wheel.source)


def _assumptions(run: Run, options: MatchOptions) -> Iterator[Decision]:
    """What the record does not say, and is taken for what it most likely was."""
    if not run.machine_known or run.system is None:
        reason = "the run's record does not say; most runs are there, and --ran-on says otherwise"
        source = "manifest: source.unknown"
        yield Decision("platform", f"Linux {run.machine}", reason, source)
    if not run.complete:
        reason = "the run's record does not list everything that was installed; where it does, set source.complete "
        reason += "to true in the manifest that `envbuild convert` writes"
        value = "what they require is added, in versions that fit them"
        yield Decision("distributions", value, reason, "manifest: source.complete")
        as_of, source = _as_of(run, options), "--exclude-newer"
        if options.as_of:
            reason = "it was asked for"
        elif as_of is None:
            reason = f"the record has no date; {source} DATE gives one"
        else:
            reason, source = f"the record was made then; {source} gives another date, or none", "manifest: created"
        yield Decision("as of", as_of or "now", reason, source)


def _moment_of(date: str | None) -> str | None:
    """Return a date's last second, or a moment, in UTC; UsageError where it is neither, nor `none`."""
    if date in {None, "none"}:
        return date
    try:
        moment = datetime.fromisoformat(f"{date}")
        if len(f"{date}") <= len("2023-04-01"):
            moment = datetime.combine(moment, time(23, 59, 59))
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        todo = "give a date or a moment, such as 2023-04-01 or 2023-04-01T12:00:00Z, or none"
        raise UsageError(f"{date} is not a date", where=f"--exclude-newer {date}", todo=todo) from error
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_of(run: Run, options: MatchOptions) -> str | None:
    """Return the moment that added distributions have to be older than; None where there is no such limit."""
    if options.as_of:
        return None if options.as_of == "none" else options.as_of
    return None if run.complete else run.created


def _gaps(run: Run, pins: Pins, profiles: Profiles, as_of: str | None, unneeded: Iterable[str]) -> Gaps | None:
    """How to complete a record: exclusions, bounds and dates for what the lock adds; None if nothing is missing.

    Bounds are conda's versions and the profiles' limits. Extras that the run did not have leave gaps too.
    """
    if run.complete and not any("[" in it.after for it in pins.changes if it.after and not it.before):
        return None
    kept = {name_of(it) for it in pins.requirements}
    without = sorted({*unneeded, *(it.name for it in pins.changes if it.before)} - kept)
    pinned = [it for it in pins.changes if it.before and "==" in it.before and it.name in without]
    pairs = ((f"{it.before}", it.after) for it in pinned if it.after)
    versions = [f"{name}=={version}" for name, version in run.conda if name not in kept]
    names = {name for name, _ in run.conda} | kept
    exact = {name_of(it): it.partition(";")[0].partition("==")[2].strip() for it in pins.requirements if "==" in it}
    limits = [it for it in profiles.limits if any(it.covers(*pin) for pin in exact.items())]
    bounds = [it.requirement for it in limits if name_of(it.requirement) not in names]
    return Gaps(
        without=tuple(without),
        replaced=tuple(sorted(pairs)),
        versions=(*versions, *dict.fromkeys(bounds)),
        limits=() if run.complete else tuple(it for it in profiles.limits if it.breaks),
        before=as_of,
    )


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

    By default for the newest Python that has a stack, and with CUDA where the distribution has it, unless `gpus` has
    `none`. UsageError for a text that names no release, MatchError as `match`.
    """
    if python is not None and not re.fullmatch(r"\d+\.\d+(\.\d+)?", python):
        raise UsageError(f"{python!r} is not a version of Python", where="--python", todo="give it as 3.11 or 3.11.7")
    named = _gpu_names(gpus)
    run = _run(text, profiles, normalize_machine(machine), named)
    without = _without_gpu(_parsed(text)[1], gpus, named)
    variant: Variant = "gpu" if _variant(options, run, without).value == "gpu" else "cpu"
    version = python or options.overrides.python
    here = [it for it in run.release.wheels if it.machine == run.machine] or run.release.wheels
    newest = sorted({minor for it in here for minor in it.pythons}, key=Version, reverse=True)
    stack = _first(run, profiles, replace(options, variant=variant), [version] if version else newest)
    run = replace(run, python=stack.python)
    wheel, kind = choose_wheel(run, stack.variant), _variant(options, run, without)
    decisions = [kind if it.what == "variant" else it for it in stack.decisions]
    if not version:
        why = "the newest that there is a stack for, as none was asked for"
        pairs = ((it, f"{why}; {it.reason.partition('; ')[2]}") for it in decisions)
        decisions = [replace(it, reason=reason) if it.what == "python" else it for it, reason in pairs]
    remarks = [
        it for it in sorted(stack.decisions, key=lambda it: not it.warning) if it.warning or it.what not in _VALUES
    ]
    lines = [f"{f'{it.what} {it.value}'.rstrip()}: {it.reason}" for it in remarks]
    lines += [it for it in run.release.notes if not any(it in line for line in lines)]
    hand = [it.requirement for it in profiles.limits if it.covers(wheel.distribution, wheel.version)]
    return ReleaseStack(
        stack=replace(stack, decisions=tuple(decisions)),
        wheel=wheel,
        limits=(*(it for it in wheel.limits if applies(it, stack.python, stack.machine)), *hand),
        notes=tuple(lines),
    )


def _gpu_names(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs by name, which `none` among them denies; UsageError for a name that is empty, or for both at once."""
    none = [it for it in gpus if it.strip().lower() == "none"]
    if not all(it.strip() for it in gpus) or (none and len(gpus) > 1):
        what = "--gpu takes the name of a GPU, or none alone"
        raise UsageError(what, where=f"--gpu {', '.join(map(repr, gpus))}", todo='give --gpu H100, or --gpu "Tesla T4"')
    return () if none else gpus


def _without_gpu(extras: set[str], gpus: tuple[str, ...], named: tuple[str, ...]) -> Decision | None:
    """Why the variant is the one for the CPU; None where nothing says so."""
    if gpus:
        none = Decision("variant", "cpu", "there is no GPU to run on", "--gpu none")
        return None if named else none
    if not extras or any("cuda" in it for it in extras):
        return None
    reason = f"the extra {', '.join(sorted(extras))} brings no CUDA; what else it requires is not listed"
    return Decision("variant", "cpu", reason, "extras that were asked for")


def _variant(options: MatchOptions, run: Run, without: Decision | None) -> Decision:
    """What was asked for, else the one with CUDA."""
    if options.variant != "auto":
        return Decision("variant", options.variant, "it was asked for", "--variant")
    if without:
        return without
    builds = own_builds(run)
    if cuda := next((it for it in builds if it.cuda), None):
        reason = "the release has a CUDA build"
        if cuda.distribution != run.own:
            reason = f"{run.own} has no wheel of this version, and {cuda.pin} has the same code for CUDA"
        return Decision("variant", "gpu", reason, cuda.source)
    source = builds[0].source if builds else "profiles"
    other = next((it for it in run.release.wheels if it.cuda and it.machine == run.machine), None)
    reason = f"{run.own} has no CUDA build of this version"
    reason += f"; {other.pin} is one, by --variant gpu" if other else ""
    return Decision("variant", "cpu", reason, source)


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
