"""Which build of the framework an image gets: for a GPU or for the CPU, as the run had it or as it was asked for."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from envbuild.errors import MatchError
from envbuild.match.profiles import FrameworkProfile, FrameworkWheel
from envbuild.match.run import CPU_LABEL, Run, label_cuda, listing, near
from envbuild.match.stack import Decision, Variant
from envbuild.match.swap import name_of

VariantChoice = Literal["auto", "gpu", "cpu"]
JAX_PLUGIN = re.compile(r"jax-cuda(\d+)-(plugin|pjrt)\Z")
# NCCL alone is no sign of a GPU, as xgboost requires it everywhere; nor is nvidia-ml-py.
CUDA_WHEEL = re.compile(r"nvidia-(?!nccl-).+-cu\d+\Z|nvidia-(cublas|cuda-runtime|cudnn|cufft)\Z|cuda-toolkit\Z")
_CONDA_BUILD = re.compile(r"^(cuda|gpu|cpu|mkl|eigen)")
_CONDA_BUILDS = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", "mkl": "cpu", "eigen": "cpu"}


def decide_variant(run: Run, asked: VariantChoice) -> Decision:
    """What was asked for, else what the run used; MatchError where its record does not tell."""
    if asked != "auto":
        return Decision(what="variant", value=asked, reason="it was asked for", source="--variant")
    found = next(_evidence(run), None)
    if found is None:
        raise _undecided(run)
    source = "manifest: framework, accelerator, distributions"
    return Decision(what="variant", value=found[0], reason=found[1], source=source)


def _evidence(run: Run) -> Iterator[tuple[Variant, str]]:
    """What tells the variant, the strongest sign first."""
    if not any(it.cuda for it in own_builds(run)):
        yield "cpu", f"the run's {run.own} {run.labelled} is no CUDA build for Linux {run.machine}"
    if run.profile.name == "jax" and run.complete and not run.label and not _plugin(run):
        yield "cpu", "the run had no plug-in of JAX for CUDA"
    if run.gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in run.gpus))
        yield "gpu", f"the run saw {len(run.gpus)} GPU(s): {names}"
    yield from _builds(run)
    if run.gpus_said:
        own = f" of {run.own}" if run.beside else ""
        yield "cpu", f"the run saw no GPU and had no CUDA wheels{own}"
    if conda := _CONDA_BUILD.search(run.build):
        yield ("gpu" if _CONDA_BUILDS[conda[1]] == "gpu" else "cpu"), f"the run had conda's build {run.build}"


def _builds(run: Run) -> Iterator[tuple[Variant, str]]:
    """Distributions that nobody installs without a GPU in mind."""
    if run.own == "tensorflow-gpu":
        yield "gpu", "the run used tensorflow-gpu"
    if label_cuda(run.label):
        yield "gpu", f"the run had a build for CUDA, by its label +{run.label}"
    others = set() if _has_own_cuda(run) else {name for it in run.beside for name in _cuda_names(run, it)}
    wheels = (name for name, _ in run.pins if CUDA_WHEEL.match(name) and name not in others)
    if wheel := _plugin(run) or next(wheels, None):
        yield "gpu", f"the run had CUDA from wheels, such as {wheel}"


def _plugin(run: Run) -> str | None:
    names = (name for name, _ in run.pins if JAX_PLUGIN.match(name))
    return next(names, None) if run.profile.name == "jax" or not run.beside else None


def _has_own_cuda(run: Run) -> bool:
    """Whether the run had everything that its build of the framework requires for CUDA."""
    names = {name for name, _ in run.pins}
    needs = ([name_of(it) for it in wheel.cuda_requirements if ";" not in it] for wheel in own_builds(run))
    return any(it and names.issuperset(it) for it in needs)


def _cuda_names(run: Run, profile: FrameworkProfile) -> set[str]:
    """What another framework of the run requires for CUDA in any of its releases, if the run had it with CUDA."""
    label = (run.version_of("torch") or "").partition("+")[2]
    plugin = any(JAX_PLUGIN.match(name) for name, _ in run.pins)
    if not {"torch": not label.startswith(CPU_LABEL), "jax": plugin}.get(profile.name):
        return set()
    return {name_of(it) for release in profile.releases for wheel in release.wheels for it in wheel.cuda_requirements}


def _undecided(run: Run) -> MatchError:
    """A wheel that serves both ways, and a record that does not say which: the one image is large, the other slow."""
    what = f"whether the run used a GPU is not in its record: {run.own} {run.labelled} runs with and without"
    todo = 'say it: --gpu none, or --gpu "Tesla T4"; or choose what to build by --variant cpu or --variant gpu'
    return MatchError(what, where="accelerator", todo=todo)


def choose_wheel(run: Run, variant: Variant) -> FrameworkWheel:
    """The run's own build where it is of the variant, else the nearest one; MatchError has each and why it lost."""
    faults = [(wheel, _faults(run, wheel, variant)) for wheel in candidates(run)]
    fitting = [wheel for wheel, found in faults if not found]
    if fitting:
        return min(fitting, key=lambda it: _rank(run, it)).cited_for(run.python_minor)
    lost = [f"{_name(it)} for {it.machine}: {'; '.join(found)}" for it, found in faults]
    notes = run.release.notes if variant == "gpu" else ()
    what = listing(
        f"no stack serves {run}, variant {variant}", (*lost, *notes, *near(run.profile, run.release.version))
    )
    todo = "choose the other --variant, or train with a Python and on a machine that the release has wheels for"
    raise MatchError(what, where="framework, python, platform", todo=todo)


def candidates(run: Run) -> tuple[FrameworkWheel, ...]:
    """The builds of the release: those on the default index, and those that are told by a local label alone."""
    return (*run.release.wheels, *(it for wheel in run.release.wheels for it in _labelled(run, wheel)))


def _labelled(run: Run, wheel: FrameworkWheel) -> Iterator[FrameworkWheel]:
    """Builds that no row has, as the default index has none of them: their CUDA is what the label says."""
    if run.profile.name == "torch" and (wheel.cuda or run.label.startswith(CPU_LABEL)):
        label = run.label if run.label.startswith(CPU_LABEL) else CPU_LABEL
        yield _bare(wheel, version=f"{wheel.version}+{label}")
    cuda = label_cuda(run.label)
    if cuda and wheel.extra is None:
        jaxlib = run.version_of("jaxlib")
        bare = _bare(wheel, version=run.labelled, stands_for=f"jaxlib=={jaxlib}" if jaxlib else wheel.stands_for)
        yield replace(bare, cuda=cuda[0], cudnn=cuda[1])


def _bare(wheel: FrameworkWheel, *, version: str, stands_for: str | None = None) -> FrameworkWheel:
    """The same release without any of the row's CUDA."""
    limits = tuple(it for it in wheel.limits if not it.startswith("triton"))
    plain = replace(wheel, cuda=None, cudnn=None, cudnn_built=None, compute_capabilities=(), libraries=())
    return replace(plain, cuda_requirements=(), limits=limits, version=version, stands_for=stands_for)


def own_builds(run: Run) -> tuple[FrameworkWheel, ...]:
    """The builds that the run's own version can be, on its machine.

    After tensorflow-gpu ended, its version can only have meant the build for CUDA that tensorflow became.
    """
    found = [it for it in candidates(run) if it.machine == run.machine and it.version == run.labelled]
    here = [it.cited_for(run.python_minor) for it in found]
    own = tuple(it for it in here if it.distribution == run.own)
    ended = run.own == "tensorflow-gpu" and not own
    return tuple(it for it in here if it.distribution == "tensorflow") if ended else own


def _rank(run: Run, wheel: FrameworkWheel) -> tuple[int, ...]:
    """Low is near: the run's distribution and version, then its plug-in, then the CUDA that runs on most drivers."""
    order = (run.own, f"{run.profile.name}-cpu", run.profile.name)
    place = order.index(wheel.distribution) if wheel.distribution in order else len(order)
    return place, wheel.version != run.labelled, bool(wheel.version != run.plain), *_plugin_rank(run, wheel)


def _plugin_rank(run: Run, wheel: FrameworkWheel) -> tuple[int, int]:
    major = int((wheel.cuda or "0").split(".")[0])
    plugins = {int(found[1]) for name, _ in run.pins if (found := JAX_PLUGIN.match(name))}
    had = plugins or ({int(run.cuda.version.split(".")[0])} if run.cuda else set())
    labelled = bool(label_cuda(run.label)) and wheel.extra is None
    return (0 if labelled or major in had else 1), major


def _faults(run: Run, wheel: FrameworkWheel, variant: Variant) -> tuple[str, ...]:
    code = next((it for it in run.release.wheels if it.pin == wheel.stands_for), _stub(run, wheel))
    lacking = next((it for it in (wheel, code) if run.python_minor not in it.pythons), None)
    pythons = f"has wheels for Python {', '.join(lacking.pythons if lacking else ())}, not for {run.python_minor}"
    build = "is a CUDA build" if wheel.cuda else "is a CPU build"
    checks = (
        (wheel.machine == run.machine, f"the machine is {run.machine}"),
        ((wheel.cuda is not None) == (variant == "gpu"), build),
        (lacking is None, pythons if lacking in (None, wheel) else f"{code.pin} {pythons}"),
    )
    return tuple(fault for passed, fault in checks if not passed)


def _stub(run: Run, wheel: FrameworkWheel) -> FrameworkWheel:
    """The run's own distribution, which stays beside the wheel with its code where it is only a name for that."""
    own = (it for it in run.release.wheels if (it.distribution, it.machine) == (run.own, wheel.machine))
    return next((it for it in own if it.stands_for == wheel.pin), wheel)


def _name(wheel: FrameworkWheel) -> str:
    extra = f"[{wheel.extra}]" if wheel.extra and wheel.distribution == "jax" else ""
    return f"{wheel.distribution}{extra}=={wheel.version}"
