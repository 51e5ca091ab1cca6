"""Facts about an environment, in the same words for each source: image, model, manifest, lock, context, host."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from envbuild.capture.frameworks import TENSORFLOW
from envbuild.manifest.artifact import Model
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.manifest.model import Contract, Data, Framework, Numerics
from envbuild.match.run import CUDA_WHEEL, JAX_PLUGIN, label_cuda

Kind = Literal["model", "image", "manifest", "lock", "context", "host"]
_FAMILIES = (("tensorflow", TENSORFLOW), ("torch", re.compile("torch")), ("jax", re.compile("jax")))
_KERAS = re.compile(r"keras|tf-keras")
_CUDA = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
_CUDNN = re.compile(r"nvidia-cudnn(?:-cu\d+)?")
_FOR_CPU = re.compile(r"tensorflow-cpu(?:-aws)?|intel-tensorflow|tf-nightly-cpu")
_FOR_GPU = re.compile(r"tensorflow-gpu|tf-nightly-gpu")
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
