"""What a run had, as its manifest says it; the release that it names; and which build of that an image gets."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from envbuild.errors import MatchError
from envbuild.manifest.hardware import Gpu
from envbuild.manifest.model import Framework, TrainingManifest
from envbuild.manifest.packages import is_pep440, name_of
from envbuild.manifest.reader import known_accelerator, known_framework
from envbuild.match.openers import find_opener
from envbuild.match.profiles import FRAMEWORKS, Profiles
from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from envbuild.match.stack import Decision, Variant, VariantChoice

NO_FRAMEWORK = FrameworkProfile(name="none", releases=())
"""The profile of a run that used no framework."""
CPU_LABEL = "cpu"
_CUDA_LABEL = re.compile(r"cu(?:da)?(\d{2,3})(?:\.cudnn(\d)(\d*))?\Z")
"""`cu118` of PyTorch, `cuda12.cudnn89` of jaxlib."""
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "x64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_LIKELIEST = "x86_64"
"""What is built for where the record does not say the run's machine."""
_PYTHON_BUILD = re.compile(r"(^|_)py(\d|_|h)")
"""`py310h2b0b2b6_0`, `pyhd8ed1ab_0`, `nompi_py310hb7f3a3a_100`."""
_PART_WHEELS = {"cuda": r"nvidia-cuda-runtime(-cu\d+)?", "cudnn": r"nvidia-cudnn-cu\d+"}
_PART_CONDA = {"cuda": ("cudatoolkit", "cuda-cudart"), "cudnn": ("cudnn",)}
JAX_PLUGIN = re.compile(r"jax-cuda(\d+)-(plugin|pjrt)\Z")
# NCCL alone is no sign of a GPU, as xgboost requires it everywhere; nor is nvidia-ml-py.
CUDA_WHEEL = re.compile(r"nvidia-(?!nccl-).+-cu\d+\Z|nvidia-(cublas|cuda-runtime|cudnn|cufft)\Z|cuda-toolkit\Z")
_CONDA_BUILDS = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", "mkl": "cpu", "eigen": "cpu"}
_GLIBC = "2.17"
"""The oldest glibc that wheels are made for (manylinux2014)."""


class CudaPart(NamedTuple):
    """The version of a part of CUDA, and what states it."""

    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run had, in the profiles' spelling."""

    profile: FrameworkProfile
    release: Release
    own: str
    """The distribution that brought the framework, normalised."""
    python: str
    """Exact, without a vendor's suffix."""
    machine: str
    system: str | None
    """None where the record does not say."""
    machine_known: bool = True
    pins: tuple[tuple[str, str], ...]
    """Normalised names and versions, sorted."""
    label: str = ""
    """Local label of the build that the run had: `cpu`, `cu118`, `cuda12.cudnn89` of jaxlib; else empty."""
    built: str | None = None
    """The CUDA that the framework itself says it was built with."""
    cuda: CudaPart | None = None
    cudnn: CudaPart | None = None
    gpus: tuple[Gpu, ...] = ()
    gpus_known: bool = True
    build: str = ""
    """The build of conda's package that brought the framework; empty for a wheel."""
    complete: bool = True
    """Whether the pins are all that was installed."""
    conda: tuple[tuple[str, str], ...] = ()
    """Normalised names and versions of the Python packages that conda installed."""
    others: tuple[FrameworkProfile, ...] = ()
    moved: bool = False
    """Whether the image is for another machine than the run's."""
    hypothetical: bool = False
    """Whether there was no run, and somebody asks about a release."""
    driver: str | None = None
    """NVIDIA's driver of the run's host, where the record says it."""
    created: str | None = None
    """When the record was made, where it says so: `2023-04-01T12:00:00Z`."""

    @property
    def python_minor(self) -> str:
        """`3.11`."""
        return ".".join(self.python.split(".")[:2])

    @property
    def labelled(self) -> str:
        """The framework's own version with its label: `2.1.0+cu118`."""
        label = f"+{self.label}" if self.label and self.profile.name == "torch" else ""
        return f"{self.release.version}{label}"

    def version_of(self, name: str) -> str | None:
        """The version of a distribution that the run had."""
        return dict(self.pins).get(name)

    def __str__(self) -> str:
        return f"{self.own} {self.labelled} on Python {self.python_minor} and {self.machine}"


def read_run(manifest: TrainingManifest, profiles: Profiles) -> Run:
    """Take from a manifest what matching needs; MatchError where its framework is unknown, or no profile has it.

    A run without any framework's distribution used none, unless a framework wrote its model.
    """
    accelerator, pins = known_accelerator(manifest), pins_of(manifest)
    installed = [it for it in profiles.frameworks if it.distributions & dict(pins).keys()]
    none = manifest.framework_source or (pins and not (installed or manifest.frameworks or _model_writer(manifest)))
    if manifest.framework is None and none:
        profile, own, version = NO_FRAMEWORK, "python", ""
        release = Release(version=Version("0"), wheels=())
    else:
        profile, own, version = _framework(manifest, profiles)
        release = find_release(profile, own, version, profiles)
    return Run(
        profile=profile,
        release=release,
        own=own,
        python=python_of(manifest),
        machine=normalize_machine(manifest.platform.machine or _LIKELIEST),
        system=manifest.platform.system,
        machine_known=manifest.platform.machine is not None,
        pins=pins,
        label=(dict(pins).get("jaxlib", "") if profile.name == "jax" else version).partition("+")[2],
        built=manifest.framework.cuda if manifest.framework else None,
        cuda=_cuda_part(manifest, "cuda"),
        cudnn=_cuda_part(manifest, "cudnn"),
        gpus=accelerator.gpus if accelerator and accelerator.kind != "none" else (),
        gpus_known=accelerator is not None,
        build=next((it.origin.build or "" for it in manifest.distributions if canonicalize_name(it.name) == own), ""),
        complete=manifest.source.complete,
        conda=conda_versions(manifest),
        others=tuple(it for it in installed if it is not profile),
        driver=accelerator.driver if accelerator else None,
        created=None if "created" in manifest.source.unknown else manifest.created,
    )


def frameworks_of(manifest: TrainingManifest) -> tuple[str, ...]:
    """The frameworks whose profiles a run needs: its own, and any whose name begins a distribution's; all if unsure."""
    own = manifest.framework.name if manifest.framework else None
    names = [canonicalize_name(it.name) for it in manifest.distributions]
    found = tuple(it for it in FRAMEWORKS if it == own or any(name.startswith(it) for name in names))
    return found if own in FRAMEWORKS else FRAMEWORKS


def label_cuda(label: str) -> tuple[str, str | None] | None:
    """CUDA and cuDNN that a local label stands for: `cu118` is 11.8; None for any other label."""
    found = _CUDA_LABEL.match(label)
    if found is None:
        return None
    number, major, minor = found.groups()
    cuda = number if len(number) == 2 else f"{number[:2]}.{number[2]}"
    return cuda, ".".join(filter(None, (major, minor))) or None


def releases_near(profile: FrameworkProfile, version: Version) -> tuple[str, ...]:
    """Return at most two releases below and two above, each with why it does not serve."""
    below = [it for it in profile.releases if it.version < version]
    above = [it for it in profile.releases if it.version > version]
    lines = []
    for it in (*below[-2:], *above[:2]):
        pythons = ", ".join(dict.fromkeys(python for wheel in it.wheels for python in wheel.pythons))
        lines.append(f"{profile.name} {it.version}: another version (it has wheels for Python {pythons})")
    return tuple(lines)


def _framework(manifest: TrainingManifest, profiles: Profiles) -> tuple[FrameworkProfile, str, str]:
    """The profile, the normalised name of the distribution, and its version."""
    framework = known_framework(manifest) or _only_independent(manifest, profiles)
    if framework is None:
        raise _unknown_framework(manifest, profiles)
    profile = next((it for it in profiles.frameworks if it.name == framework.name), None)
    own = canonicalize_name(framework.distribution)
    if profile is None or own not in profile.distributions | {it.name for it in profiles.foreign}:
        known = ", ".join(sorted(name for it in profiles.frameworks for name in it.distributions))
        what = f"no stack serves {own} {framework.version}: the profiles know {known}"
        raise MatchError(what, where="framework.distribution", todo="train with one of these")
    installed = next((it.version for it in manifest.distributions if canonicalize_name(it.name) == own), None)
    if installed is not None and canonicalize_version(installed) != canonicalize_version(framework.version):
        what = f"the manifest contradicts itself: the framework is {own} {framework.version}, {installed} is installed"
        raise MatchError(what, where="framework.version", todo="capture the run again")
    return profile, own, framework.version


def _only_independent(manifest: TrainingManifest, profiles: Profiles) -> Framework | None:
    """Return the framework that no other one requires, if there is just one: TensorFlow 2.12 requires JAX."""
    installed = [it for it in manifest.frameworks if it.name != "keras"]
    pins = {f"{canonicalize_name(it.distribution)}=={it.version}" for it in installed}
    wheels = (it for profile in profiles.frameworks for it in profile.wheels if it.pin in pins)
    required = {name_of(it) for wheel in wheels for it in wheel.limits}
    independent = [it for it in installed if canonicalize_name(it.distribution) not in required]
    return independent[0] if len(independent) == 1 else None


def _unknown_framework(manifest: TrainingManifest, profiles: Profiles) -> MatchError:
    pins = {canonicalize_name(it.name) for it in manifest.distributions}
    installed = [it.name for it in profiles.frameworks if it.distributions & pins]
    names = [it.name for it in manifest.frameworks if it.name != "keras"] or installed
    own = "for commands without that option, write a manifest with `envbuild convert` first"
    if names:
        what = f"the run had {', '.join(names)}, and neither its process nor its model shows which of them it used"
        todo = f"give {', '.join(f'--framework {it}' for it in names)}, or --framework none; {own}"
        return MatchError(what, where="framework", todo=todo)
    writer = _model_writer(manifest)
    what = (
        f"{writer} wrote the model, and the record has no distribution of it"
        if writer
        else "the record has no distributions at all"
    )
    todo = f"capture inside the environment that trained, or give --framework none; {own}"
    return MatchError(what, where="distributions", todo=todo)


def _model_writer(manifest: TrainingManifest) -> str | None:
    """The framework that wrote the run's model; of ONNX, which any runtime loads, none."""
    model = manifest.model
    writers = model.written_by if model and model.format != "onnx" else ()
    return next((it.name for it in writers if it.name in {*FRAMEWORKS, "keras"}), None)


def pins_of(manifest: TrainingManifest) -> tuple[tuple[str, str], ...]:
    """Name and version of every distribution, but of those whose version the record does not have; a lock needs it."""
    return tuple(sorted((canonicalize_name(it.name), it.version) for it in manifest.distributions if it.version))


def conda_versions(manifest: TrainingManifest) -> tuple[tuple[str, str], ...]:
    """Return Python packages of conda, recognised by their build; the names of others can be other projects'."""
    packages = manifest.conda.packages if manifest.conda else ()
    versions = {canonicalize_name(it.name): it.version for it in packages if _PYTHON_BUILD.search(it.build or "")}
    return tuple(sorted((name, version) for name, version in versions.items() if is_pep440(version)))


def find_release(
    profile: FrameworkProfile, own: str, text: str, profiles: Profiles, where: str = "framework.version"
) -> Release:
    """Find the release, exact to the patch and to the `.post`; MatchError names those near it."""
    try:
        version = Version(text)
    except InvalidVersion:
        what = f"no stack serves {own}: {text!r} is not a version that an index could have"
        raise MatchError(what, where=where, todo="capture the run again") from None
    label = version.local or ""
    torch = profile.name == "torch"
    builds = [it.label for it in profiles.builds if torch and it.covers(version)]
    known = not label or label in builds or (torch and label.split(".")[0] == CPU_LABEL)
    found = next((it for it in profile.releases if it.version == Version(version.public)), None)
    if found is not None and known:
        return found
    oldest = profile.releases[0].version
    todo = f"if the release exists, update envbuild; in its repository: python -m profiles.refresh {profile.name}"
    why = "no release of this version has Linux wheels"
    if version < oldest:
        why, todo = f"the profiles begin with {oldest}", f"train with {oldest} or a later one"
    elif not known:
        others = f"; the known builds are {', '.join(f'+{it}' for it in (*builds, CPU_LABEL))}" if builds else ""
        why = f"its local label marks somebody's own build{others}"
        todo = f"use {own} {version.public} or a known build"
    what = "\n  - ".join((f"no stack serves {own} {text}: {why}", *releases_near(profile, version)))
    raise MatchError(what, where=where, todo=todo)


def _cuda_part(manifest: TrainingManifest, part: str) -> CudaPart | None:
    """Return a part of CUDA: what was loaded, else what was installed, else what packages state."""
    components = manifest.native.components if manifest.native else ()
    found = [it for it in components if it.name == part]
    for component in sorted(found, key=lambda it: not it.loaded):
        return CudaPart(component.version, component.source)
    for name, version in pins_of(manifest):
        if re.fullmatch(_PART_WHEELS[part], name):
            return CudaPart(version, f"distribution {name}")
    for package in manifest.conda.packages if manifest.conda else ():
        if package.name in _PART_CONDA[part]:
            return CudaPart(package.version, f"conda package {package.name}")
    return None


def python_of(manifest: TrainingManifest) -> str:
    """Return the run's exact Python, without a vendor's suffix; MatchError where it is not CPython."""
    python = manifest.python
    found = re.match(r"\d+\.\d+\.\d+", python.version)
    if python.implementation.lower() != "cpython" or found is None:
        what = f"the framework has wheels for CPython only; the run used {python.implementation} {python.version}"
        raise MatchError(what, where="python", todo="train with CPython")
    return found[0]


def normalize_machine(text: str) -> str:
    """`x86_64` or `aarch64` by any of its names, with or without the system: `linux/arm64`; else MatchError."""
    name = text.lower().removeprefix("linux/")
    if name in _MACHINES:
        return _MACHINES[name]
    what = f"the frameworks have Linux wheels for x86_64 and aarch64, not for {text}"
    raise MatchError(what, where="platform.machine", todo="train on, or ask for, one of these machines")


def decide_variant(run: Run, choice: VariantChoice, profiles: Profiles) -> Decision:
    """Return what was asked for, else what the run used; MatchError where its record does not tell."""
    if choice != "auto":
        return Decision("variant", choice, "it was asked for", "--variant")
    if run.profile is NO_FRAMEWORK:
        value, reason = ("gpu", "the run saw GPUs") if run.gpus else ("cpu", "no GPU is known of the run")
        openers = (it for name, version in run.pins if (it := find_opener(name, version, profiles)) and it.for_gpu)
        if not run.gpus_known and (opener := next(openers, None)):
            value, reason = "gpu", f"the run had {opener.distribution}, which is a build for GPUs"
        return Decision("variant", value, reason, "manifest: accelerator, distributions")
    evidence = next(_evidence(run), None)
    if evidence is None:
        # The wheel runs with and without a GPU: an image for the wrong one is large, or slow.
        what = f"the record does not say whether the run used a GPU: {run.own} {run.labelled} runs with and without"
        todo = 'give --gpu none, or --gpu "Tesla T4"; or choose what to build by --variant cpu or --variant gpu'
        raise MatchError(what, where="accelerator", todo=todo)
    source = "manifest: framework, accelerator, distributions"
    return Decision("variant", evidence[0], evidence[1], source)


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
            distribution="python", version=run.python, machine=run.machine, pythons=(run.python_minor,),
            glibc=_GLIBC, wheel="manifest: framework", sha256=hashlib.sha256().hexdigest(),
        )  # fmt: skip
    faults = [(wheel, _faults(run, wheel, variant)) for wheel in candidates(run)]
    fitting = [wheel for wheel, found in faults if not found]
    if fitting:
        return min(fitting, key=lambda it: _rank(run, it)).cited_for(run.python_minor)
    lost = []
    for it, found in faults:
        extra = f"[{it.extra}]" if it.extra and it.distribution == "jax" else ""
        lost.append(f"{it.distribution}{extra}=={it.version} for {it.machine}: {'; '.join(found)}")
    notes = run.release.notes if variant == "gpu" else ()
    near = releases_near(run.profile, run.release.version)
    what = "\n  - ".join((f"no stack serves {run}, variant {variant}", *lost, *notes, *near))
    todo = "choose the other --variant, or train with a Python and on a machine that the release has wheels for"
    raise MatchError(what, where="framework, python, platform", todo=todo)


def candidates(run: Run) -> tuple[FrameworkWheel, ...]:
    """Return the builds of the release: those on the default index, and those that only a local label names."""
    return (*run.release.wheels, *(it for wheel in run.release.wheels for it in _labelled(run, wheel)))


def _labelled(run: Run, wheel: FrameworkWheel) -> Iterator[FrameworkWheel]:
    """Builds with a local label (`+cpu`, `+cu118`), which the default index lacks; the label says which CUDA."""
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
    return place, wheel.version != run.labelled, wheel.version != str(run.release.version), not near, major


def _faults(run: Run, wheel: FrameworkWheel, variant: Variant) -> tuple[str, ...]:
    # The run's own distribution may be an empty package that requires the wheel with the code: then both stay.
    own = (it for it in run.release.wheels if (it.distribution, it.machine) == (run.own, wheel.machine))
    stub = next((it for it in own if it.stands_for == wheel.pin), wheel)
    code = next((it for it in run.release.wheels if it.pin == wheel.stands_for), stub)
    lacking = next((it for it in (wheel, code) if run.python_minor not in it.pythons), None)
    faults = [f"the machine is {run.machine}"] if wheel.machine != run.machine else []
    faults += [f"is a {'CUDA' if wheel.cuda else 'CPU'} build"] if (wheel.cuda is None) == (variant == "gpu") else []
    if lacking:
        pythons = f"has wheels for Python {', '.join(lacking.pythons)}, not for {run.python_minor}"
        faults.append(pythons if lacking is wheel else f"{code.pin} {pythons}")
    return tuple(faults)
