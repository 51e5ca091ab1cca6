"""The facts of a manifest that decide, and the release that it names."""

import re
from dataclasses import dataclass

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from envbuild.errors import MatchError
from envbuild.manifest.model import TrainingManifest
from envbuild.match.profiles import FrameworkProfile, Profiles, Release

REFRESH = "if the release exists, make the profiles anew: python -m envbuild.refresh > profiles/tensorflow.toml"
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "x64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_NEAR = 2
_SHOWN = 5


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
    system: str
    pins: tuple[tuple[str, str], ...]
    """Normalised names and versions, sorted."""
    gpus: tuple[str, ...]
    """Names of the GPUs that the run saw."""

    @property
    def python_minor(self) -> str:
        """`3.11`."""
        return self.python.rpartition(".")[0]

    def __str__(self) -> str:
        return f"{self.own} {self.release.version} on Python {self.python_minor} and {self.machine}"


def read_run(manifest: TrainingManifest, profiles: Profiles) -> Run:
    """Take what decides from a manifest; MatchError where the run had no framework or one that no profile knows."""
    profile, own, version = _framework(manifest, profiles)
    accelerator = manifest.accelerator
    return Run(
        profile=profile,
        release=_release(profile, own, version),
        own=own,
        python=_python(manifest),
        machine=_machine(manifest),
        system=manifest.platform.system or "Linux",
        pins=tuple(sorted((canonicalize_name(it.name), it.version) for it in manifest.distributions)),
        gpus=tuple(gpu.name for gpu in accelerator.gpus) if accelerator else (),
    )


def near(profile: FrameworkProfile, version: Version) -> tuple[str, ...]:
    """At most two releases below and two above, each with why it lost."""
    below = [it for it in profile.releases if it.version < version]
    above = [it for it in profile.releases if it.version > version]
    return tuple(_other(profile, it) for it in (*below[-_NEAR:], *above[:_NEAR]))


def listing(first: str, lines: tuple[str, ...]) -> str:
    """A sentence with one line for each candidate under it."""
    return "\n  - ".join((first, *lines))


def _other(profile: FrameworkProfile, release: Release) -> str:
    pythons = {python: None for wheel in release.wheels for python in wheel.pythons}
    return f"{profile.name} {release.version}: not the run's version (it has wheels for Python {', '.join(pythons)})"


def _framework(manifest: TrainingManifest, profiles: Profiles) -> tuple[FrameworkProfile, str, str]:
    """The profile, the normalised name of the distribution, and its version."""
    framework = manifest.framework
    if framework is None:
        what = (
            f"the manifest names no framework ({', '.join(it.name for it in profiles.frameworks)}); {_found(manifest)}"
        )
        raise MatchError(what, where="framework", todo="capture inside the environment that trained the model")
    profile = next((it for it in profiles.frameworks if it.name == framework.name), None)
    own = canonicalize_name(framework.distribution)
    if profile is None or own not in profile.distributions | {it.name for it in profiles.foreign}:
        known = ", ".join(sorted(name for it in profiles.frameworks for name in it.distributions))
        what = f"no stack serves {own} {framework.version}: the profiles know {known}"
        raise MatchError(what, where="framework.distribution", todo=f"train with one of these; {REFRESH}")
    installed = next((it.version for it in manifest.distributions if canonicalize_name(it.name) == own), None)
    if installed is not None and canonicalize_version(installed) != canonicalize_version(framework.version):
        what = f"the manifest contradicts itself: the framework is {own} {framework.version}, {installed} is installed"
        raise MatchError(what, where="framework.version", todo="capture the run again")
    return profile, own, framework.version


def _found(manifest: TrainingManifest) -> str:
    names = [f"{it.name} {it.version}" for it in manifest.distributions]
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"its distributions are {', '.join(names[:_SHOWN])}{rest}" if names else "it has no distributions at all"


def _release(profile: FrameworkProfile, own: str, text: str) -> Release:
    """Find the release, exact to the patch and to the `.post`."""
    try:
        version = Version(text)
    except InvalidVersion:
        what = f"no stack serves {own}: {text!r} is no version that an index could have"
        raise MatchError(what, where="framework.version", todo="capture the run again") from None
    found = next((it for it in profile.releases if it.version == version), None)
    if found is not None:
        return found
    why = (
        "its local label marks somebody's own build" if version.local else "no release of this version has Linux wheels"
    )
    what = listing(f"no stack serves {own} {text}: {why}", near(profile, version))
    raise MatchError(what, where="framework.version", todo=REFRESH)


def _python(manifest: TrainingManifest) -> str:
    python = manifest.python
    found = re.match(r"\d+\.\d+\.\d+", python.version)
    if python.implementation.lower() != "cpython" or found is None:
        what = f"the framework has wheels for CPython only; the run used {python.implementation} {python.version}"
        raise MatchError(what, where="python", todo="train with CPython")
    return found[0]


def _machine(manifest: TrainingManifest) -> str:
    machine = manifest.platform.machine or "unknown"
    if machine.lower() in _MACHINES:
        return _MACHINES[machine.lower()]
    what = f"the framework has Linux wheels for x86_64 and aarch64; the run's machine is {machine}"
    raise MatchError(what, where="platform.machine", todo="train on one of these machines")
