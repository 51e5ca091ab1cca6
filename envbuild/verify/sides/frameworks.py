"""Frameworks and CUDA of an environment, told from the names and versions of its distributions alone."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from envbuild.capture.frameworks import TENSORFLOW
from envbuild.manifest.model import Framework
from envbuild.match.run import label_cuda
from envbuild.match.variant import CUDA_WHEEL, JAX_PLUGIN

_FAMILIES = (("tensorflow", TENSORFLOW), ("torch", re.compile("torch")), ("jax", re.compile("jax")))
_KERAS = re.compile(r"keras|tf-keras")
_CUDA = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
_CUDNN = re.compile(r"nvidia-cudnn(?:-cu\d+)?")
_FOR_CPU = re.compile(r"tensorflow-cpu(?:-aws)?|intel-tensorflow|tf-nightly-cpu")
_FOR_GPU = re.compile(r"tensorflow-gpu|tf-nightly-gpu")
_THREE = re.compile(r"\d+\.\d+\.\d+")

Versions = Mapping[str, str | None]
"""Versions by the names of distributions, as PEP 503 normalises them."""


class Built(NamedTuple):
    """What the distributions say of frameworks and CUDA; None where they do not say."""

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
