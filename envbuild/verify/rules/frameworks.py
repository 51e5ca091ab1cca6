"""The frameworks: by which distribution, in which version, and for which device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.utils import canonicalize_name

from envbuild.capture.frameworks import TENSORFLOW
from envbuild.manifest.model import Framework
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import agree, brings_all, differs, with_pin
from envbuild.verify.rules.versions import label, same_numbers, same_release
from envbuild.verify.sources import Side

_ALONE = ("torch", "jax", "keras")
"""Frameworks that have one distribution, of their own name."""
_NO_LABEL = "no local label"
"""Tools that write versions down drop labels, so this does not prove another build."""


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
            device = _device(side, distribution, it.version, it)
            found.setdefault(it.name, Build(distribution=distribution, version=it.version, device=device, facts=it))
    packages = side.packages or {}
    # `tensorflow` before what it may consist of, such as tensorflow-intel, then by name
    for name in sorted(packages, key=lambda it: (it != "tensorflow", it)):
        if (framework := family(name)) and framework not in found and (version := packages[name].version):
            device = _device(side, name, version, None)
            found[framework] = Build(distribution=name, version=version, device=device, facts=None)
    return found


def _device(side: Side, distribution: str, version: str, facts: Framework | None) -> Literal["gpu", "cpu"] | None:
    """The strongest sign first: the name and label are the build's own, the variant is what it was chosen for.

    A plain wheel of TensorFlow is built with CUDA, whether there is a GPU for it or not.
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


def framework(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each framework of the first source, under whichever distribution the other has it."""
    there = builds(found)
    for name, build in builds(wanted).items() if not brings_all(wanted, found) else ():
        one, todo = build.version, with_pin(found, f"{build.distribution}=={build.version}")
        if other := there.get(name):
            if same_release(one, other.version):
                brought = f" by {other.distribution}" if other.distribution != build.distribution else ""
                yield agree("framework", name, other.version + brought, wanted=one, found=other.version)
            else:
                names = (f"{other.distribution} {other.version}",)
                yield differs("framework", name, wanted=one, found=other.version, todo=todo, packages=names)
        elif found.packages is not None and found.complete and build.distribution not in found.dropped:
            others = " and ".join(f"{it} {other.version}" for it, other in there.items())
            says = f"wanted {one}, and it is not there" + (f"; {others} is" if others else "")
            yield differs("framework", name, says, wanted=one, found=others, todo=todo)


def framework_build(wanted: Side, found: Side) -> Iterator[Finding]:
    """Device, CUDA, label and commit of frameworks that have the same version."""
    there = builds(found)
    for name, build in builds(wanted).items() if not brings_all(wanted, found) else ():
        other = there.get(name)
        if other and same_release(build.version, other.version):
            yield from _compare_builds(found, name, build, other)


def _compare_builds(found: Side, name: str, build: Build, other: Build) -> Iterator[Finding]:
    pairs = list(_facts(build, other))
    wrong = next(((one, two) for one, two in pairs if not _same(one, two)), None)
    if wrong:
        # for another device on purpose: by its variant, or as a build that can do more
        chosen = build.device != other.device and other.device in (found.variant, "gpu")
        severity: Severity | None = "note" if _NO_LABEL in wrong or chosen else None
        todo = with_pin(found, f"{build.distribution}=={build.version}")
        if build.device and other.device and build.device != other.device:
            todo = f"nothing if that is meant; else choose `--variant {build.device}`, or compare predictions"
        yield differs("framework-build", name, wanted=wrong[0], found=wrong[1], todo=todo, severity=severity)
    elif pairs:
        yield agree("framework-build", name, ", ".join(two for _, two in pairs))


def _facts(build: Build, other: Build) -> Iterator[tuple[str, str]]:
    """What tells one build from another, where both have it: device, CUDA, commit, label."""
    if build.device and other.device:
        yield f"built for the {build.device.upper()}", f"built for the {other.device.upper()}"
    here, there = build.facts, other.facts
    if here and there and here.cuda and there.cuda:
        yield f"built with CUDA {here.cuda}", f"built with CUDA {there.cuda}"
    if here and there and here.git_version and there.git_version:
        yield f"built from {here.git_version}", f"built from {there.git_version}"
    labels = label(build.version), label(other.version)
    if any(labels):
        one, two = (f"+{it}" if it else _NO_LABEL for it in labels)
        yield one, two


def _same(one: str, other: str) -> bool:
    """Of CUDA the first two numbers count."""
    before, _, version = one.rpartition(" ")
    return same_numbers(version, other.rpartition(" ")[2], 2) if before.endswith("CUDA") else one == other
