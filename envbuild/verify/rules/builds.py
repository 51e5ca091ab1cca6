"""The frameworks of a side: by which distribution, in which version, and for which device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.utils import canonicalize_name

from envbuild.capture.frameworks import TENSORFLOW
from envbuild.manifest.model import Framework
from envbuild.verify.rules.releases import label
from envbuild.verify.sides.side import Side

_ALONE = ("torch", "jax", "keras")
"""Frameworks that have one distribution, of their own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One framework as it is installed."""

    distribution: str
    version: str
    device: Literal["gpu", "cpu"] | None
    """What it was built for; None where nothing tells."""
    facts: Framework | None
    """What is known besides."""


def family(distribution: str) -> str | None:
    """The framework that a distribution brings: `tensorflow` of `tensorflow-cpu`; None where it brings none."""
    if TENSORFLOW.fullmatch(distribution):
        return "tensorflow"
    return distribution if distribution in _ALONE else None


def builds(side: Side) -> dict[str, Build]:
    """Each framework by its name, the one that trained first; those that are not listed are among the packages."""
    found: dict[str, Build] = {}
    for it in side.frameworks:
        distribution: str = canonicalize_name(it.distribution)
        if family(distribution) == it.name:  # tf-keras may be listed as Keras, which it lies beside
            found.setdefault(it.name, _build(side, distribution, it.version, it))
    for name, distribution, version in _among_packages(side):
        found.setdefault(name, _build(side, distribution, version, None))
    return found


def _among_packages(side: Side) -> Iterator[tuple[str, str, str]]:
    """`tensorflow` before what it may consist of, such as tensorflow-intel, then by name."""
    packages = side.packages or {}
    for name in sorted(packages, key=lambda it: (it != "tensorflow", it)):
        if (framework := family(name)) and (version := packages[name].version):
            yield framework, name, version


def _build(side: Side, distribution: str, version: str, facts: Framework | None) -> Build:
    return Build(
        distribution=distribution, version=version, device=_device(side, distribution, version, facts), facts=facts
    )


def _device(side: Side, distribution: str, version: str, facts: Framework | None) -> Literal["gpu", "cpu"] | None:
    """The strongest sign first: the name and label are the build's own, the variant is what it was chosen for.

    A plain wheel of TensorFlow is built with CUDA, whether anybody has a GPU for it or not.
    """
    if family(distribution) == "keras":
        return None  # it computes by another framework, and is the same file for any device
    local = label(version)
    if "-cpu" in distribution or local.startswith("cpu"):
        return "cpu"
    if distribution.endswith("-gpu") or local.startswith("cu"):
        return "gpu"
    if side.variant:
        return side.variant
    if distribution == "jax" and _without_plugin(side):
        return "cpu"
    return "gpu" if facts and facts.cuda and side.accelerator and side.accelerator.gpus else None


def _without_plugin(side: Side) -> bool:
    """JAX finds a GPU by a plugin of its own, or in its early days by a jaxlib built for CUDA."""
    packages = side.packages or {}
    lib = packages.get("jaxlib")
    return (
        side.complete
        and lib is not None
        and not label(lib.version or "").startswith("cu")
        and not any(name.startswith(("jax-cuda", "jax-rocm")) for name in packages)
    )
