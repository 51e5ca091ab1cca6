"""Which build of the framework an image gets: for a GPU or for the CPU, as the run had it or as it was asked for."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace

from envbuild.errors import MatchError
from envbuild.manifest.packages import name_of
from envbuild.match.profiles import FrameworkWheel
from envbuild.match.run import CPU_LABEL, NO_FRAMEWORK, Run, label_cuda, listing, releases_near
from envbuild.match.stack import Decision, Variant, VariantChoice

JAX_PLUGIN = re.compile(r"jax-cuda(\d+)-(plugin|pjrt)\Z")
# NCCL alone is no sign of a GPU, as xgboost requires it everywhere; nor is nvidia-ml-py.
CUDA_WHEEL = re.compile(r"nvidia-(?!nccl-).+-cu\d+\Z|nvidia-(cublas|cuda-runtime|cudnn|cufft)\Z|cuda-toolkit\Z")
_CONDA_BUILDS = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", "mkl": "cpu", "eigen": "cpu"}
_GLIBC = "2.17"
"""The oldest glibc that wheels are made for (manylinux2014)."""


def decide_variant(run: Run, choice: VariantChoice) -> Decision:
    """Return what was asked for, else what the run used; MatchError where its record does not tell."""
    if choice != "auto":
        return Decision(what="variant", value=choice, reason="it was asked for", source="--variant")
    if run.profile is NO_FRAMEWORK:
        reason = "the run saw GPUs" if run.gpus else "no GPU is known of the run"
        return Decision(
            what="variant", value="gpu" if run.gpus else "cpu", reason=reason, source="manifest: accelerator"
        )
    evidence = next(_evidence(run), None)
    if evidence is None:
        # The wheel runs with and without a GPU: an image for the wrong one is large, or slow.
        what = f"the record does not say whether the run used a GPU: {run.own} {run.labelled} runs with and without"
        todo = 'give --gpu none, or --gpu "Tesla T4"; or choose what to build by --variant cpu or --variant gpu'
        raise MatchError(what, where="accelerator", todo=todo)
    source = "manifest: framework, accelerator, distributions"
    return Decision(what="variant", value=evidence[0], reason=evidence[1], source=source)


def _evidence(run: Run) -> Iterator[tuple[Variant, str]]:
    """Yield what shows the variant, the strongest sign first."""
    plugins = (name for name, _ in run.pins if JAX_PLUGIN.match(name))
    plugin = next(plugins, None) if run.profile.name == "jax" or not run.others else None
    if not any(it.cuda for it in own_builds(run)):
        yield "cpu", f"the run's {run.own} {run.labelled} has no CUDA build for Linux {run.machine}"
    if run.profile.name == "jax" and run.complete and not run.label and not plugin:
        yield "cpu", "the run had no plug-in of JAX for CUDA"
    if run.gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in run.gpus))
        yield "gpu", f"the run saw {len(run.gpus)} GPU(s): {names}"
    # Distributions that nobody installs without a GPU in mind.
    if run.own == "tensorflow-gpu":
        yield "gpu", "the run used tensorflow-gpu"
    if label_cuda(run.label):
        yield "gpu", f"the run had a build for CUDA, by its label +{run.label}"
    others = _cuda_of_others(run)
    wheels = (name for name, _ in run.pins if CUDA_WHEEL.match(name) and name not in others)
    if wheel := plugin or next(wheels, None):
        yield "gpu", f"the run had CUDA from wheels, such as {wheel}"
    if run.gpus_known:
        own = f" of {run.own}" if run.others else ""
        yield "cpu", f"the run saw no GPU and had no CUDA wheels{own}"
    if conda := re.match("|".join(_CONDA_BUILDS), run.build):
        yield ("gpu" if _CONDA_BUILDS[conda[0]] == "gpu" else "cpu"), f"the run had conda's build {run.build}"


def _cuda_of_others(run: Run) -> set[str]:
    """Return what the run's other frameworks require for CUDA, unless the run had all that its own build requires."""
    pins = dict(run.pins)
    own = ([name_of(it) for it in wheel.cuda_requirements if ";" not in it] for wheel in own_builds(run))
    if any(it and pins.keys() >= set(it) for it in own):
        return set()
    label = pins.get("torch", "").partition("+")[2]
    with_cuda = {"torch": not label.startswith(CPU_LABEL), "jax": any(map(JAX_PLUGIN.match, pins))}
    profiles = (it for it in run.others if with_cuda.get(it.name))
    return {name_of(it) for profile in profiles for wheel in profile.wheels for it in wheel.cuda_requirements}


def choose_wheel(run: Run, variant: Variant) -> FrameworkWheel:
    """Return the run's own build where it is of the variant, else the nearest; MatchError has each and why it lost."""
    if run.profile is NO_FRAMEWORK:
        return FrameworkWheel(
            distribution="python",
            version=run.python,
            machine=run.machine,
            pythons=(run.python_minor,),
            glibc=_GLIBC,
            wheel="manifest: framework",
            sha256=hashlib.sha256().hexdigest(),
        )
    faults = [(wheel, _faults(run, wheel, variant)) for wheel in candidates(run)]
    fitting = [wheel for wheel, found in faults if not found]
    if fitting:
        return min(fitting, key=lambda it: _rank(run, it)).cited_for(run.python_minor)
    lost = [
        f"{it.distribution}{f'[{it.extra}]' if it.extra and it.distribution == 'jax' else ''}=={it.version} "
        f"for {it.machine}: {'; '.join(found)}"
        for it, found in faults
    ]
    notes = run.release.notes if variant == "gpu" else ()
    what = listing(
        f"no stack serves {run}, variant {variant}", (*lost, *notes, *releases_near(run.profile, run.release.version))
    )
    todo = "choose the other --variant, or train with a Python and on a machine that the release has wheels for"
    raise MatchError(what, where="framework, python, platform", todo=todo)


def candidates(run: Run) -> tuple[FrameworkWheel, ...]:
    """Return the builds of the release: those on the default index, and those that only a local label names."""
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
    """Return the builds that the run's own version can be, on its machine.

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
    major = int((wheel.cuda or "0").split(".")[0])
    plugins = {int(match[1]) for name, _ in run.pins if (match := JAX_PLUGIN.match(name))}
    had = plugins or ({int(run.cuda.version.split(".")[0])} if run.cuda else set())
    near = major in had or (bool(label_cuda(run.label)) and wheel.extra is None)
    return place, wheel.version != run.labelled, wheel.version != run.plain, not near, major


def _faults(run: Run, wheel: FrameworkWheel, variant: Variant) -> tuple[str, ...]:
    # The run's own distribution stays beside the wheel with its code where it is only a name for that.
    own = (it for it in run.release.wheels if (it.distribution, it.machine) == (run.own, wheel.machine))
    stub = next((it for it in own if it.stands_for == wheel.pin), wheel)
    code = next((it for it in run.release.wheels if it.pin == wheel.stands_for), stub)
    lacking = next((it for it in (wheel, code) if run.python_minor not in it.pythons), None)
    pythons = f"has wheels for Python {', '.join(lacking.pythons if lacking else ())}, not for {run.python_minor}"
    checks = (
        (wheel.machine == run.machine, f"the machine is {run.machine}"),
        ((wheel.cuda is not None) == (variant == "gpu"), f"is a {'CUDA' if wheel.cuda else 'CPU'} build"),
        (lacking is None, pythons if lacking in (None, wheel) else f"{code.pin} {pythons}"),
    )
    return tuple(fault for passed, fault in checks if not passed)
