"""The facts of a manifest that decide, and the release that it names."""

import re
from dataclasses import dataclass

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from envbuild.errors import MatchError
from envbuild.manifest.hardware import Gpu
from envbuild.manifest.model import Framework, TrainingManifest
from envbuild.manifest.packages import Origin, is_pep440, name_of
from envbuild.manifest.reader import known_accelerator, known_framework
from envbuild.match.profiles import FRAMEWORKS, FrameworkProfile, Profiles, Release

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
_NEAR = 2
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaPart:
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
    """`x86_64` or `aarch64`."""
    system: str | None
    """None where the record does not say."""
    machine_known: bool = True
    """Whether the record says the machine."""
    pins: tuple[tuple[str, str], ...]
    """Normalised names and versions, sorted."""
    label: str = ""
    """Local label of the build that the run had: `cpu`, `cu118`, `cuda12.cudnn89` of jaxlib; else empty."""
    built: str | None = None
    """The CUDA that the framework itself says it was built with."""
    cuda: CudaPart | None = None
    """The CUDA that the run used, where its record says so."""
    cudnn: CudaPart | None = None
    """The cuDNN that the run used, where its record says so."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that the run saw."""
    gpus_known: bool = True
    """Whether the record says if there were any."""
    build: str = ""
    """The build of conda's package that brought the framework; empty for a wheel."""
    complete: bool = True
    """Whether the pins are all that was installed."""
    conda: tuple[tuple[str, str], ...] = ()
    """Normalised names and versions of the Python packages that conda installed."""
    others: tuple[FrameworkProfile, ...] = ()
    """The other frameworks that were installed."""
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
        return f"{self.release.version}+{self.label}" if self.label and self.profile.name == "torch" else self.plain

    @property
    def plain(self) -> str:
        """The framework's version without a label."""
        return str(self.release.version)

    def version_of(self, name: str) -> str | None:
        """The version of a distribution that the run had."""
        return dict(self.pins).get(name)

    def __str__(self) -> str:
        return f"{self.own} {self.labelled} on Python {self.python_minor} and {self.machine}"


def read_run(manifest: TrainingManifest, profiles: Profiles) -> Run:
    """Take what decides from a manifest; MatchError where the run's framework is not known, or no profile knows it."""
    if manifest.framework_source and manifest.framework is None:
        profile, own, version = NO_FRAMEWORK, "python", ""
        release = Release(version=Version("0"), wheels=())
    else:
        profile, own, version = _framework(manifest, profiles)
        release = find_release(profile, own, version, profiles)
    accelerator, pins = known_accelerator(manifest), pins_of(manifest)
    return Run(
        profile=profile,
        release=release,
        own=own,
        python=python_of(manifest),
        machine=machine_of(manifest.platform.machine or _LIKELIEST),
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
        others=tuple(it for it in profiles.frameworks if it is not profile and it.distributions & dict(pins).keys()),
        driver=accelerator.driver if accelerator else None,
        created=None if "created" in manifest.source.unknown else manifest.created,
    )


def frameworks_of(manifest: TrainingManifest) -> tuple[str, ...]:
    """The frameworks whose profiles a run is matched to: its own, and those that it may have had beside; else all.

    The distributions of a framework begin with its name.
    """
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
    near = [
        (it, dict.fromkeys(python for wheel in it.wheels for python in wheel.pythons))
        for it in (*below[-_NEAR:], *above[:_NEAR])
    ]
    return tuple(
        f"{profile.name} {it.version}: another version (it has wheels for Python {', '.join(pythons)})"
        for it, pythons in near
    )


def listing(first: str, lines: tuple[str, ...]) -> str:
    """Return a sentence with one line for each candidate under it."""
    return "\n  - ".join((first, *lines))


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
    names = [it.name for it in manifest.frameworks if it.name != "keras"]
    if names:
        what = f"the run had {', '.join(names)}, and neither its process nor its model shows which of them it used"
        todo = (
            f"give {', '.join(f'--framework {it}' for it in names)}, or --framework none; other commands take the "
            "manifest that `envbuild convert` then writes"
        )
        return MatchError(what, where="framework", todo=todo)
    pins = [f"{it.name} {it.version}" for it in manifest.distributions]
    more = f" and {len(pins) - _SHOWN} more" if len(pins) > _SHOWN else ""
    listed = f"its distributions are {', '.join(pins[:_SHOWN])}{more}" if pins else "it has no distributions at all"
    what = f"the record names none of {', '.join(it.name for it in profiles.frameworks)}; {listed}"
    todo = (
        "for scikit-learn, XGBoost and others give --framework none (other commands take the manifest that `envbuild "
        "convert --framework none` writes); else capture inside the environment that trained the model"
    )
    return MatchError(what, where="framework", todo=todo)


def pins_of(manifest: TrainingManifest) -> tuple[tuple[str, str], ...]:
    """Name and version of every distribution; MatchError names those whose version the record does not have."""
    unknown = [f"{it.name}: {_place_of(it.origin)}" for it in manifest.distributions if it.version is None]
    if unknown:
        what = listing("the record does not say which version these had:", tuple(unknown))
        todo = (
            "take the record again by `pip inspect`, which says it; or write name==version of a wheel that you made of "
            "it, and give the wheel's folder to pip or uv as find-links"
        )
        raise MatchError(what, where="distributions", todo=todo)
    found = ((canonicalize_name(it.name), it.version or "") for it in manifest.distributions)
    return tuple(sorted(found))


def _place_of(origin: Origin) -> str:
    place = " at ".join(filter(None, (origin.url, origin.commit or origin.requested_revision)))
    return {"conda": "built by conda", "index": "from an index"}.get(origin.kind, f"installed from {place}")


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
    what = listing(f"no stack serves {own} {text}: {why}", releases_near(profile, version))
    raise MatchError(what, where=where, todo=todo)


def _cuda_part(manifest: TrainingManifest, part: str) -> CudaPart | None:
    """Return a part of CUDA: what was loaded, else what was installed, else what packages state."""
    components = manifest.native.components if manifest.native else ()
    found = [it for it in components if it.name == part]
    for component in sorted(found, key=lambda it: not it.loaded):
        return CudaPart(version=component.version, source=component.source)
    for name, version in pins_of(manifest):
        if re.fullmatch(_PART_WHEELS[part], name):
            return CudaPart(version=version, source=f"distribution {name}")
    for package in manifest.conda.packages if manifest.conda else ():
        if package.name in _PART_CONDA[part]:
            return CudaPart(version=package.version, source=f"conda package {package.name}")
    return None


def python_of(manifest: TrainingManifest) -> str:
    """Return the run's exact Python, without a vendor's suffix; MatchError where it is not CPython."""
    python = manifest.python
    found = re.match(r"\d+\.\d+\.\d+", python.version)
    if python.implementation.lower() != "cpython" or found is None:
        what = f"the framework has wheels for CPython only; the run used {python.implementation} {python.version}"
        raise MatchError(what, where="python", todo="train with CPython")
    return found[0]


def machine_of(text: str) -> str:
    """`x86_64` or `aarch64` by any of its names, with or without the system: `linux/arm64`; else MatchError."""
    name = text.lower().removeprefix("linux/")
    if name in _MACHINES:
        return _MACHINES[name]
    what = f"the frameworks have Linux wheels for x86_64 and aarch64, not for {text}"
    raise MatchError(what, where="platform.machine", todo="train on, or ask for, one of these machines")
