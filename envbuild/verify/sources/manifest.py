"""A training manifest, and a lock, as sources: nothing where the record does not say."""

from collections.abc import Iterable
from dataclasses import replace

from packaging.utils import canonicalize_name

from envbuild.capture.native import component_of, leading_numbers
from envbuild.capture.redact import REDACTED
from envbuild.capture.variables import VARIABLES
from envbuild.lock.model import Lock
from envbuild.manifest.hardware import Cpu
from envbuild.manifest.model import Contract, Framework, TrainingManifest
from envbuild.manifest.packages import Distribution
from envbuild.manifest.reader import known_accelerator
from envbuild.verify.sources import Package, Side, Versions, frameworks_of


def side_of_manifest(manifest: TrainingManifest, name: str) -> Side:
    """What a run had; the names of all its variables are not known, as only those on an allow-list are recorded."""
    platform, contract, source = manifest.platform, manifest.contract or Contract(), manifest.source
    packages = {package.name: package for package in map(_package, manifest.distributions)}
    versions = {it.name: it.version for it in packages.values()}
    built = frameworks_of(versions)
    # a value that a secret was cut out of is not known
    values = {key: value for key, value in manifest.variables if REDACTED not in value}
    # what a capture would have recorded if it had been set; of other records that is not known
    captured = source.format == "capture" and (source.tool or "").startswith("envbuild ")
    unset = frozenset(VARIABLES.split()) - {name for name, _ in manifest.variables} if captured else None
    known = "variables" not in source.unknown
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
        complete=source.complete,
        frameworks=_frameworks(manifest, versions),
        cuda=_part(manifest, "cuda", built.cuda),
        cudnn=_part(manifest, "cudnn", built.cudnn),
        accelerator=known_accelerator(manifest),
        cpu=None if "cpu" in source.unknown or manifest.cpu == Cpu() else manifest.cpu,
        variables=values if known else None,
        unset=unset if known else None,
        numerics=manifest.numerics or None,
        contract=contract,
        model=manifest.model,
        trees={it.path: it.git_tree for it in contract.preprocessing if it.git_tree} or None,
    )


def _package(distribution: Distribution) -> Package:
    """The files of one that was changed after its installation are not known."""
    origin, known = distribution.origin, not distribution.changed_files
    wheels = frozenset(origin.hashes)
    if origin.kind == "archive":  # a digest of sources, or of a conda package, is not one of an installed file
        path = (origin.url or "").partition("#")[0].partition("?")[0]
        wheels = frozenset({origin.sha256} if origin.sha256 and path.endswith(".whl") else ())
    # a conda package's build, or a checkout's commit, with a mark if it was changed after it
    changes = f" with changes {(origin.diff_sha256 or '')[:12]}".rstrip() if origin.dirty else ""
    return Package(
        name=canonicalize_name(distribution.name),
        version=distribution.version,
        content=distribution.content_sha256 if known else None,
        wheels=wheels if known else frozenset(),
        build=origin.build or (origin.commit + changes if origin.commit else ""),
    )


def _frameworks(manifest: TrainingManifest, versions: Versions) -> tuple[Framework, ...]:
    """The one that trained first; manifests of schema 1.0 have no other, and converted ones not how it was built."""
    first = (manifest.framework,) if manifest.framework else ()
    found = (*first, *(it for it in manifest.frameworks if it not in first))
    by_name = {it.name: it.cuda for it in frameworks_of(versions).frameworks}
    unknown = manifest.source.unknown
    return tuple(
        replace(it, cuda=by_name.get(it.name)) if f"frameworks.{it.name}.cuda" in unknown else it for it in found
    )


def _part(manifest: TrainingManifest, part: str, of_wheels: str | None) -> str | None:
    """A part of CUDA: what was loaded, else what wheels bring, as frameworks look there first, else what lay there."""
    components = [it for it in (manifest.native.components if manifest.native else ()) if it.name == part]
    if components:
        return min(components, key=lambda it: (not it.loaded, not it.source.startswith("distribution "))).version
    packages = manifest.conda.packages if manifest.conda else ()
    conda = (leading_numbers(it.version) for it in packages if component_of(it.name) == part)
    return of_wheels or next(filter(None, conda), None)


def side_of_lock(lock: Lock, name: str, variables: Iterable[tuple[str, str]] = ()) -> Side:
    """What an environment of these wheels is; `variables` are those that its image sets.

    How a framework was built is known only where a name or a local label says it; the wheels are not read.
    """
    wheels, target = lock.wheels, lock.target
    built = frameworks_of({wheel.name: wheel.version for wheel in wheels})
    # PyTorch's builds with a label bring their CUDA, those of before 2.0 inside; jaxlib takes the system's
    inside = next((it.cuda for it in built.frameworks if it.name == "torch"), None)
    # JAX computes on a GPU only with a plug-in, or before them with a jaxlib whose label says so
    only_jax = [it.name for it in built.frameworks if it.name != "keras"] == ["jax"]
    return Side(
        name=name,
        kind="lock",
        python=target.python,
        implementation="cpython",
        system="Linux",
        machine=target.machine,
        libc="glibc",
        libc_version=target.glibc,
        packages={
            it.name: Package(name=it.name, version=it.version, wheels=frozenset({it.sha256.hex})) for it in wheels
        },
        slim=frozenset(lock.slim),
        dropped=frozenset(lock.dropped),
        frameworks=built.frameworks,
        cuda=built.cuda or inside,
        cudnn=built.cudnn,
        variant=built.variant or ("cpu" if only_jax else None),
        variables=dict(variables) or None,
    )
