"""A manifest against the profiles: the stack that serves the run, or every candidate and why it lost."""

import re
from collections.abc import Iterator
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import MatchError
from envbuild.manifest.model import TrainingManifest
from envbuild.match.base import decide_base
from envbuild.match.pins import Pins, decide_pins
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.run import Run, listing, near, read_run
from envbuild.match.stack import CudaSource, Decision, Gaps, Stack, Variant

VariantChoice = Literal["auto", "gpu", "cpu"]
SITE_PACKAGES = "/opt/env/lib/python{}/site-packages"
"""Where an image has its distributions, by minor version of Python."""
_GPU_VARIABLES = (("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"), ("NVIDIA_VISIBLE_DEVICES", "all"))
# NCCL alone is no sign of a GPU: xgboost requires it everywhere.
_CUDA_WHEEL = re.compile(r"nvidia-(?!nccl-).+-cu\d+\Z")
_CONDA_BUILD = re.compile(r"^(cuda|gpu|cpu|mkl|eigen)")
_CONDA_BUILDS = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", "mkl": "cpu", "eigen": "cpu"}


def match(manifest: TrainingManifest, profiles: Profiles, variant: VariantChoice = "auto") -> Stack:
    """Decide what has to be locked for a run; MatchError lists each candidate near it and why it lost."""
    run = read_run(manifest, profiles)
    kind = _decide_variant(run, variant)
    wheel = _choose(run, "gpu" if kind.value == "gpu" else "cpu")
    pins = decide_pins(run, wheel, profiles)
    base = decide_base(wheel, run.python, profiles)
    paths = _library_paths(run, wheel, profiles)
    return Stack(
        framework=run.profile.name,
        distribution=wheel.distribution,
        version=wheel.version,
        variant="gpu" if wheel.cuda else "cpu",
        python=run.python,
        machine=run.machine,
        cuda=wheel.cuda,
        cudnn=wheel.cudnn,
        cuda_source=_cuda_source(wheel),
        base=base.value,
        glibc_minimum=wheel.glibc,
        requirements=pins.requirements,
        gaps=None if run.complete else _gaps(run, pins),
        variables=tuple(sorted([*(_GPU_VARIABLES if wheel.cuda else ()), *((it.what, it.value) for it in paths)])),
        changes=pins.changes,
        decisions=(*_facts(run, wheel), *_assumed(run), kind, *_cuda(wheel, profiles), *pins.decisions, *paths, base),
    )


def _decide_variant(run: Run, asked: VariantChoice) -> Decision:
    if asked != "auto":
        return Decision(what="variant", value=asked, reason="it was asked for", source="--variant")
    own = [it for it in run.release.wheels if (it.distribution, it.machine) == (run.own, run.machine)]
    cuda_wheels = [name for name, _ in run.pins if _CUDA_WHEEL.match(name)]
    conda = _CONDA_BUILD.search(run.build)
    if not any(it.cuda for it in own):
        value, reason = "cpu", f"the run's {run.own} {run.release.version} is no CUDA build for Linux {run.machine}"
    elif run.gpus:
        value, reason = "gpu", f"the run saw {len(run.gpus)} GPU(s): {', '.join(dict.fromkeys(run.gpus))}"
    elif run.own == "tensorflow-gpu":
        value, reason = "gpu", "the run used tensorflow-gpu"
    elif cuda_wheels:
        value, reason = "gpu", f"the run had CUDA from wheels, such as {cuda_wheels[0]}"
    elif run.gpus_said:
        value, reason = "cpu", "the run saw no GPU and had no CUDA wheels"
    elif conda:
        value, reason = _CONDA_BUILDS[conda[1]], f"the run had conda's build {run.build}"
    else:
        raise _undecided(run)
    return Decision(
        what="variant", value=value, reason=reason, source="manifest: framework, accelerator, distributions"
    )


def _undecided(run: Run) -> MatchError:
    """A wheel that serves both ways, and a record that does not say which: the one image is large, the other slow."""
    what = f"whether the run used a GPU is not in its record: {run.own} {run.release.version} runs with and without"
    todo = 'say it: --gpu none, or --gpu "Tesla T4"; or choose what to build by --variant cpu or --variant gpu'
    return MatchError(what, where="accelerator", todo=todo)


def _choose(run: Run, variant: Variant) -> FrameworkWheel:
    """The run's own distribution where it is of the variant, else `-cpu`, else the framework's plain one."""
    faults = [(wheel, _faults(run, wheel, variant)) for wheel in run.release.wheels]
    fitting = [wheel for wheel, found in faults if not found]
    order = (run.own, f"{run.profile.name}-cpu", run.profile.name)
    for name in order:
        for wheel in fitting:
            if wheel.distribution == name:
                return wheel
    if fitting:
        return fitting[0]
    lost = (f"{it.pin} for {it.machine}: {'; '.join(found)}" for it, found in faults)
    what = listing(f"no stack serves {run}, variant {variant}", (*lost, *near(run.profile, run.release.version)))
    todo = "choose the other --variant, or train with a Python and on a machine that the release has wheels for"
    raise MatchError(what, where="framework, python, platform", todo=todo)


def _faults(run: Run, wheel: FrameworkWheel, variant: Variant) -> tuple[str, ...]:
    code = next((it for it in run.release.wheels if it.pin == wheel.stands_for), wheel)
    pythons = f"has wheels for Python {', '.join(code.pythons)}, the run used {run.python_minor}"
    build = "is a CUDA build" if wheel.cuda else "is a CPU build"
    checks = (
        (wheel.machine == run.machine, f"the run's machine is {run.machine}"),
        ((wheel.cuda is not None) == (variant == "gpu"), build),
        (
            {run.python_minor} <= set(wheel.pythons) & set(code.pythons),
            f"{code.pin} {pythons}" if code != wheel else pythons,
        ),
    )
    return tuple(fault for passed, fault in checks if not passed)


def _facts(run: Run, wheel: FrameworkWheel) -> tuple[Decision, ...]:
    """What follows from the manifest and the wheel's row alone."""
    same = (
        "the run's own"
        if wheel.distribution == run.own
        else f"the same version as the run's {run.own}, for this variant"
    )
    decisions = [
        Decision(what="framework", value=wheel.pin, reason=same, source=wheel.source),
        Decision(
            what="python",
            value=run.python,
            reason=f"the run's; there are wheels for {', '.join(wheel.pythons)}",
            source=wheel.source,
        ),
        Decision(
            what="glibc",
            value=f">={wheel.glibc}",
            reason="the lowest that the wheel's platform tags accept",
            source=wheel.source,
        ),
    ]
    if run.system not in {None, "Linux"}:
        reason = f"the run was on {run.system}; the image takes the Linux wheels of the same versions"
        platform = f"Linux {run.machine}"
        decisions.append(Decision(what="platform", value=platform, reason=reason, source="manifest: platform.system"))
    return tuple(decisions)


def _assumed(run: Run) -> Iterator[Decision]:
    """What the record does not say, and is taken for what it most likely was."""
    if not run.machine_said or run.system is None:
        reason = "the run's record does not say; most runs are there, and --platform says otherwise"
        source = "manifest: source.unknown"
        yield Decision(what="platform", value=f"Linux {run.machine}", reason=reason, source=source)
    if not run.complete:
        reason = (
            "the run's record does not list everything that was installed; where it does, set source.complete to true "
            "in the manifest that `envbuild convert` writes"
        )
        value = "what they require is added, in versions that the index has now"
        yield Decision(what="distributions", value=value, reason=reason, source="manifest: source.complete")


def _gaps(run: Run, pins: Pins) -> Gaps:
    """What fills the gaps of a record: never what the variant excludes, and in conda's version where conda had it."""
    kept = {canonicalize_name(Requirement(it).name) for it in pins.requirements}
    without = sorted({it.name for it in pins.changes if it.before} - kept)
    versions = tuple(f"{name}=={version}" for name, version in run.conda if name not in kept)
    return Gaps(without=tuple(without), versions=versions)


def _cuda_source(wheel: FrameworkWheel) -> CudaSource:
    if wheel.cuda is None:
        return "none"
    return "wheels" if wheel.cuda_requirements else "base"


def _cuda(wheel: FrameworkWheel, profiles: Profiles) -> tuple[Decision, ...]:
    if wheel.cuda is None:
        return ()
    fromwhere = _cuda_source(wheel)
    why = (
        "the wheel has an extra that requires NVIDIA's wheels"
        if fromwhere == "wheels"
        else "the wheel requires none of NVIDIA's"
    )
    driver = next((it for it in profiles.drivers if it.cuda == wheel.cuda.split(".")[0]), None)
    decisions = [
        Decision(what="cuda", value=wheel.cuda, reason="what the wheel was built with", source=wheel.source),
        Decision(what="cudnn", value=f"{wheel.cudnn}", reason="what the wheel was built with", source=wheel.source),
        Decision(what="cuda source", value=fromwhere, reason=why, source=wheel.source),
    ]
    if driver:
        reason = f"the lowest driver on the host that runs CUDA {driver.cuda}"
        decisions.append(Decision(what="driver", value=f">={driver.minimum}", reason=reason, source=driver.source))
    return tuple(decisions)


def _library_paths(run: Run, wheel: FrameworkWheel, profiles: Profiles) -> tuple[Decision, ...]:
    """LD_LIBRARY_PATH for the few releases that do not find NVIDIA's wheels beside them."""
    site = SITE_PACKAGES.format(run.python_minor)
    return tuple(
        Decision(
            what="LD_LIBRARY_PATH",
            value=":".join(f"{site}/{folder}" for folder in row.folders),
            reason=row.reason,
            source=row.source,
        )
        for row in profiles.library_paths
        if wheel.cuda_requirements and wheel.version in row.versions
    )
