"""Facts about an environment, in the same words for each source: image, model, manifest, lock, context, host."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from packaging.utils import canonicalize_name

from envbuild.capture.frameworks import TENSORFLOW
from envbuild.capture.native import component_of, leading_numbers
from envbuild.capture.redact import REDACTED
from envbuild.capture.variables import VARIABLES
from envbuild.lock.model import Lock
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.manifest.model import Contract, Data, Framework, Model, Numerics, TrainingManifest
from envbuild.manifest.packages import Distribution, is_pep440, name_of
from envbuild.manifest.reader import known_accelerator
from envbuild.match.run import CUDA_WHEEL, JAX_PLUGIN, label_cuda
from envbuild.match.stack import Stack

Kind = Literal["model", "image", "manifest", "lock", "context", "host"]
_FAMILIES = (("tensorflow", TENSORFLOW), ("torch", re.compile("torch")), ("jax", re.compile("jax")))
_KERAS = re.compile(r"keras|tf-keras")
_CUDA = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
_CUDNN = re.compile(r"nvidia-cudnn(?:-cu\d+)?")
_FOR_CPU = re.compile(r"tensorflow-cpu(?:-aws)?|intel-tensorflow|tf-nightly-cpu")
_FOR_GPU = re.compile(r"tensorflow-gpu|tf-nightly-gpu")
_PIN = re.compile(r"[\w.\[\],-]+ *===? *([^ ;,]+)")
_THREE = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One distribution."""

    name: str
    """As PEP 503 normalises it."""
    version: str | None
    """None where it is only known by a commit or a folder."""
    content: str | None = None
    """`content_sha256` of the manifest: the paths and hashes of its RECORD, the same for every installer; hex."""
    wheels: frozenset[str] = frozenset()
    """Hex sha256 of the files of which one is, or will be, installed; empty where nobody knows."""
    build: str = ""
    """Of a conda package its build, of a checkout its commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The facts of one source; None, or an empty value, where a fact is not known."""

    name: str
    """As it was given: `churn:7`, `host`."""
    kind: Kind
    python: str | None = None
    """`3.11.7`, or `3.11` where no more is known."""
    pythonless: bool = False
    """Whether somebody looked for a Python, and there is none at all."""
    implementation: str | None = None
    """`cpython`."""
    system: str | None = None
    """`Linux`."""
    machine: str | None = None
    """`x86_64`."""
    libc: str | None = None
    """`glibc`."""
    libc_version: str | None = None
    """`2.36`."""
    packages: Mapping[str, Package] | None = None
    """Every distribution by its normalised name."""
    complete: bool = True
    """Whether what is not among the packages is not there."""
    slim: frozenset[str] = frozenset()
    """Names of packages that only training uses and that were left out on purpose."""
    dropped: frozenset[str] = frozenset()
    """Names of packages that somebody left out by hand."""
    frameworks: tuple[Framework, ...] = ()
    """Every framework with what it was built for; the one that trained, or would serve, first."""
    cuda: str | None = None
    """CUDA's runtime that is in it: `12.5.82`."""
    cudnn: str | None = None
    """cuDNN that is in it: `9.3.0`."""
    variant: Literal["gpu", "cpu"] | None = None
    """What an image or lock was made for."""
    accelerator: Accelerator | None = None
    """GPUs and driver."""
    cpu: Cpu | None = None
    """The CPU; flags are empty where nobody looked."""
    variables: Mapping[str, str] | None = None
    """Values of environment variables, as far as they are known."""
    names: frozenset[str] | None = None
    """Names of all variables that are set, where all of them are known."""
    unset: frozenset[str] | None = None
    """Names of variables that are known not to be set, where not all names are known."""
    numerics: tuple[Numerics, ...] | None = None
    """The settings of the running frameworks."""
    contract: Contract = field(default_factory=Contract)
    """What the program needs from wherever it runs."""
    model: Model | None = None
    """The model's own files."""
    absent_data: frozenset[str] | None = None
    """URIs of the other side's data that cannot be seen from here; None where nobody looked."""
    data: Mapping[str, Data] | None = None
    """What lies now at places that the other side's contract names, by their URI there."""
    trees: Mapping[str, str] | None = None
    """Git tree digests of preprocessing code here, by path: as contracts name it, or where it is imported instead."""

    @property
    def framework(self) -> Framework | None:
        """The framework that trained, or would serve."""
        return self.frameworks[0] if self.frameworks else None


Versions = Mapping[str, str | None]
"""Versions by the names of distributions, as PEP 503 normalises them."""


class Built(NamedTuple):
    """Frameworks and CUDA by the distributions; None where these do not tell."""

    frameworks: tuple[Framework, ...]
    """The one that computes first, Keras last."""
    variant: Literal["gpu", "cpu"] | None
    cuda: str | None
    """The runtime among the distributions: `12.5.82`."""
    cudnn: str | None
    """`9.3.0`."""


def frameworks_of(versions: Versions) -> Built:
    """Tell frameworks, variant, CUDA and cuDNN.

    A plain `tensorflow` without CUDA's wheels has no variant, as CUDA may come from the system.
    """
    frameworks = tuple(_frameworks(versions))
    cudnn = _version(versions, _CUDNN)
    three = _THREE.match(cudnn or "")
    return Built(
        frameworks=frameworks,
        variant=_variant(versions, frameworks),
        cuda=_version(versions, _CUDA),
        cudnn=three[0] if three else cudnn,
    )


def _frameworks(versions: Versions) -> Iterator[Framework]:
    for name, distributions in (*_FAMILIES, ("keras", _KERAS)):
        # tensorflow-intel and the like only lie beside the plain name
        found = sorted((it for it in versions if distributions.fullmatch(it)), key=lambda it: (it != name, it))
        version = versions[found[0]] if found else None
        if version:
            cuda, cudnn = _built_for(name, version, versions)
            yield Framework(name=name, distribution=found[0], version=version, cuda=cuda, cudnn=cudnn)


def _built_for(framework: str, version: str, versions: Versions) -> tuple[str | None, str | None]:
    """CUDA and cuDNN that it was built for, where a name or a label has them."""
    plugins = map(JAX_PLUGIN.match, sorted(versions)) if framework == "jax" else ()
    if plugin := next(filter(None, plugins), None):
        return plugin[1], None
    of_label = (versions.get("jaxlib") if framework == "jax" else None) or version
    cuda, cudnn = label_cuda(of_label.partition("+")[2]) or (None, None)
    # two digits are JAX's major version, but PyTorch's were 9.2 and before
    return (f"9.{cuda[1]}" if cuda and re.fullmatch(r"9\d", cuda) else cuda), cudnn


def _variant(versions: Versions, frameworks: tuple[Framework, ...]) -> Literal["gpu", "cpu"] | None:
    if any(CUDA_WHEEL.match(name) or JAX_PLUGIN.match(name) or _FOR_GPU.fullmatch(name) for name in versions):
        return "gpu"
    if any(it.cuda for it in frameworks):
        return "gpu"
    first = next((it for it in frameworks if it.name != "keras"), None)
    if first and (_FOR_CPU.fullmatch(first.distribution) or "+cpu" in first.version):
        return "cpu"
    return None


def _version(versions: Versions, names: re.Pattern[str]) -> str | None:
    return next((version for name, version in sorted(versions.items()) if names.fullmatch(name)), None)


def module_name(path: str) -> str:
    """The name under which a file or folder of code is imported: `features` of `src/features.py`."""
    return path.rstrip("/").rpartition("/")[2].removesuffix(".py")


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
        frameworks=_frameworks_of_run(manifest, versions),
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


def _frameworks_of_run(manifest: TrainingManifest, versions: Versions) -> tuple[Framework, ...]:
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


def side_of_stack(stack: Stack, name: str) -> Side:
    """What an environment of this stack will be, as far as that is known before it is locked."""
    pins = ((name_of(it), _PIN.match(it)) for it in stack.requirements)
    versions = {name: pin[1] if pin and is_pep440(pin[1]) else None for name, pin in pins}
    return Side(
        name=name,
        kind="lock",
        python=stack.python,
        packages={it: Package(name=it, version=version) for it, version in versions.items()},
        complete=stack.gaps is None and not stack.not_imported,
        frameworks=frameworks_of(versions).frameworks,
        variables=dict(stack.variables),
    )


def side_of_lock(lock: Lock, name: str, variables: Mapping[str, str] | None = None) -> Side:
    """What an environment of these wheels is; `variables` are those that its image sets, None where they are unknown.

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
        variables=variables,
    )
