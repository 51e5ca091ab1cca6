"""The facts of a manifest that decide, and the release that it names."""

import re
from dataclasses import dataclass

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from envbuild.errors import MatchError
from envbuild.manifest.known import known_accelerator
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import Distribution
from envbuild.match.profiles import FrameworkProfile, Profiles, Release

REFRESH = "if the release exists, make the profiles anew: python -m envbuild.refresh > profiles/tensorflow.toml"
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "x64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_LIKELIEST = "x86_64"
"""What is built for where the record does not say the run's machine."""
_PYTHON_BUILD = re.compile(r"(^|_)py(\d|_|h)")
"""`py310h2b0b2b6_0`, `pyhd8ed1ab_0`, `nompi_py310hb7f3a3a_100`."""
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
    system: str | None
    """None where the record does not say."""
    machine_said: bool
    """Whether the record says the machine."""
    pins: tuple[tuple[str, str], ...]
    """Normalised names and versions, sorted."""
    gpus: tuple[str, ...]
    """Names of the GPUs that the run saw."""
    gpus_said: bool
    """Whether the record says if there were any."""
    build: str
    """The build of conda's package that brought the framework; empty for a wheel."""
    complete: bool
    """Whether the pins are all that was installed."""
    conda: tuple[tuple[str, str], ...]
    """Normalised names and versions of the Python packages that conda installed."""

    @property
    def python_minor(self) -> str:
        """`3.11`."""
        return self.python.rpartition(".")[0]

    def __str__(self) -> str:
        return f"{self.own} {self.release.version} on Python {self.python_minor} and {self.machine}"


def read_run(manifest: TrainingManifest, profiles: Profiles) -> Run:
    """Take what decides from a manifest; MatchError where the run had no framework or one that no profile knows."""
    profile, own, version = _framework(manifest, profiles)
    accelerator = known_accelerator(manifest)
    return Run(
        profile=profile,
        release=_release(profile, own, version),
        own=own,
        python=_python(manifest),
        machine=_machine(manifest),
        system=manifest.platform.system,
        machine_said=manifest.platform.machine is not None,
        pins=_pins(manifest),
        gpus=tuple(gpu.name for gpu in accelerator.gpus) if accelerator else (),
        gpus_said=accelerator is not None,
        build=next((it.origin.build or "" for it in manifest.distributions if canonicalize_name(it.name) == own), ""),
        complete=manifest.source.complete,
        conda=_conda_versions(manifest),
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


def _pins(manifest: TrainingManifest) -> tuple[tuple[str, str], ...]:
    """Name and version of every distribution; MatchError names those whose version the record does not have."""
    lost = [f"{it.name}: {_where_from(it)}" for it in manifest.distributions if it.version is None]
    if lost:
        what = listing("the record does not say which version these had:", tuple(lost))
        todo = (
            "take the record again by `pip inspect`, which says it; or write name==version of a wheel that you made of "
            "it, and give the wheel's folder to pip or uv as find-links"
        )
        raise MatchError(what, where="distributions", todo=todo)
    found = ((canonicalize_name(it.name), it.version or "") for it in manifest.distributions)
    return tuple(sorted(found))


def _where_from(distribution: Distribution) -> str:
    origin = distribution.origin
    place = " at ".join(filter(None, (origin.url, origin.commit or origin.requested_revision)))
    return {"conda": "built by conda", "index": "from an index"}.get(origin.kind, f"installed from {place}")


def _conda_versions(manifest: TrainingManifest) -> tuple[tuple[str, str], ...]:
    """Python packages of conda, told by their build; the names of others can be those of other projects."""
    packages = manifest.conda.packages if manifest.conda else ()
    found = {canonicalize_name(it.name): it.version for it in packages if _PYTHON_BUILD.search(it.build or "")}
    return tuple(sorted((name, version) for name, version in found.items() if _is_version(version)))


def _is_version(text: str) -> bool:
    try:
        return bool(str(Version(text)))
    except InvalidVersion:
        return False


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
    machine = manifest.platform.machine or _LIKELIEST
    if machine.lower() in _MACHINES:
        return _MACHINES[machine.lower()]
    what = f"the framework has Linux wheels for x86_64 and aarch64; the run's machine is {machine}"
    raise MatchError(what, where="platform.machine", todo="train on one of these machines")
