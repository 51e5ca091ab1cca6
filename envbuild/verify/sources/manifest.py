"""A training manifest, and a lock, as sources."""

from collections.abc import Iterable
from dataclasses import replace

from packaging.utils import canonicalize_name

from envbuild.capture.native import component_of, leading_numbers
from envbuild.capture.redact import REDACTED
from envbuild.capture.variables import VARIABLES
from envbuild.lock.model import Lock
from envbuild.manifest.hardware import Component, Cpu
from envbuild.manifest.model import Contract, Framework, TrainingManifest
from envbuild.manifest.packages import Distribution, Origin
from envbuild.manifest.reader import known_accelerator
from envbuild.match.stack import Variant
from envbuild.verify.sources import Built, Package, Side, frameworks_of


def side_of_manifest(manifest: TrainingManifest, name: str) -> Side:
    """What a run had; the names of all its variables are not known, as only those on an allow-list are recorded."""
    platform, contract = manifest.platform, manifest.contract or Contract()
    packages = _packages(manifest)
    built = frameworks_of({it.name: it.version for it in packages.values()})
    return Side(
        name=name,
        kind="manifest",
        python=manifest.python.version,
        implementation=manifest.python.implementation,
        system=platform.system,
        machine=platform.machine,
        libc=platform.libc,
        libc_version=platform.libc_version,
        packages=packages,
        complete=manifest.source.complete,
        frameworks=_frameworks(manifest, built),
        cuda=_part(manifest, "cuda", built.cuda),
        cudnn=_part(manifest, "cudnn", built.cudnn),
        accelerator=known_accelerator(manifest),
        cpu=None if "cpu" in manifest.source.unknown or manifest.cpu == Cpu() else manifest.cpu,
        variables=_variables(manifest),
        unset=_unset(manifest),
        numerics=manifest.numerics or None,
        contract=contract,
        model=manifest.model,
        trees={it.path: it.git_tree for it in contract.preprocessing if it.git_tree} or None,
    )


def _packages(manifest: TrainingManifest) -> dict[str, Package]:
    return {package.name: package for package in map(_package, manifest.distributions)}


def _package(distribution: Distribution) -> Package:
    """Of one that was changed after its installation, nobody knows what its files are."""
    known = not distribution.changed_files
    return Package(
        name=canonicalize_name(distribution.name),
        version=distribution.version,
        content=distribution.content_sha256 if known else None,
        wheels=_wheels(distribution.origin) if known else frozenset(),
        build=_build(distribution.origin),
    )


def _wheels(origin: Origin) -> frozenset[str]:
    """The files that can have been installed; a digest of sources, or of a conda package, is of none of them."""
    if origin.kind == "archive":
        path = (origin.url or "").partition("#")[0].partition("?")[0]
        return frozenset({origin.sha256} if origin.sha256 and path.endswith(".whl") else ())
    return frozenset(origin.hashes)


def _build(origin: Origin) -> str:
    """A conda package's build, or a checkout's commit, told apart from one that was changed after it."""
    changes = f" with changes {(origin.diff_sha256 or '')[:12]}".rstrip() if origin.dirty else ""
    return origin.build or (origin.commit + changes if origin.commit else "")


def _frameworks(manifest: TrainingManifest, built: Built) -> tuple[Framework, ...]:
    """The one that trained first; manifests of schema 1.0 have no other, and converted ones not how it was built."""
    first = (manifest.framework,) if manifest.framework else ()
    found = (*first, *(it for it in manifest.frameworks if it not in first))
    told = {it.name: it.cuda for it in built.frameworks}
    unknown = manifest.source.unknown
    return tuple(replace(it, cuda=told.get(it.name)) if f"frameworks.{it.name}.cuda" in unknown else it for it in found)


def _variables(manifest: TrainingManifest) -> dict[str, str] | None:
    """The recorded values, without those that a secret was cut out of: nobody knows what they were."""
    if "variables" in manifest.source.unknown:
        return None
    return {name: value for name, value in manifest.variables if REDACTED not in value}


def _unset(manifest: TrainingManifest) -> frozenset[str] | None:
    """What a capture would have recorded if it had been set; of other records nobody knows what they looked for."""
    source = manifest.source
    by_envbuild = source.format == "capture" and (source.tool or "").startswith("envbuild ")
    if not by_envbuild or "variables" in source.unknown:
        return None
    return frozenset(VARIABLES.split()) - {name for name, _ in manifest.variables}


def _part(manifest: TrainingManifest, part: str, of_wheels: str | None) -> str | None:
    """A part of CUDA: what was loaded, else what wheels bring, as frameworks look there first, else what lay there."""
    components = manifest.native.components if manifest.native else ()
    first = min((it for it in components if it.name == part), key=_rank, default=None)
    return first.version if first else of_wheels or _conda_part(manifest, part)


def _rank(component: Component) -> tuple[bool, bool]:
    return not component.loaded, not component.source.startswith("distribution ")


def _conda_part(manifest: TrainingManifest, part: str) -> str | None:
    packages = manifest.conda.packages if manifest.conda else ()
    found = (leading_numbers(it.version) for it in packages if component_of(it.name) == part)
    return next(filter(None, found), None)


def side_of_lock(lock: Lock, name: str, variables: Iterable[tuple[str, str]] = ()) -> Side:
    """What an environment of these wheels is; `variables` are those that its image sets.

    How a framework was built is told only where a name or a local label says it; what a wheel holds is not looked up.
    """
    built = frameworks_of({wheel.name: wheel.version for wheel in lock.wheels})
    return Side(
        name=name,
        kind="lock",
        python=lock.target.python,
        implementation="cpython",
        system="Linux",
        machine=lock.target.machine,
        libc="glibc",
        libc_version=lock.target.glibc,
        packages={
            it.name: Package(name=it.name, version=it.version, wheels=frozenset({it.sha256.hex})) for it in lock.wheels
        },
        slim=frozenset(lock.slim),
        dropped=frozenset(lock.dropped),
        frameworks=built.frameworks,
        cuda=built.cuda or _inside(built),
        cudnn=built.cudnn,
        variant=built.variant or _without_plugin(built),
        variables=dict(variables) or None,
    )


def _inside(built: Built) -> str | None:
    """PyTorch's builds with a label bring their CUDA, those of before 2.0 inside; jaxlib takes the system's."""
    return next((it.cuda for it in built.frameworks if it.name == "torch"), None)


def _without_plugin(built: Built) -> Variant | None:
    """JAX computes on a GPU only with a plug-in, or before them with a jaxlib whose label says so."""
    computing = [it.name for it in built.frameworks if it.name != "keras"]
    return "cpu" if computing == ["jax"] else None
