"""CUDA and cuDNN that are there at run time."""

from collections.abc import Iterator

from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.known import cudnn_floor
from envbuild.verify.rules.releases import as_version, numbers, same_numbers
from envbuild.verify.rules.saying import agree, anew, brings_all, differs
from envbuild.verify.sides.side import Side

_MINOR = "It serves the same programs, with other kernels and other choices of algorithms, so last digits may move."
_REFUSED = "The framework was compiled with a newer cuDNN and refuses this one when it first needs it."


def cuda(wanted: Side, found: Side) -> Iterator[Finding]:
    """The version of CUDA's runtime."""
    yield from _library("cuda", "CUDA", wanted, found, (wanted.cuda, found.cuda))


def cudnn(wanted: Side, found: Side) -> Iterator[Finding]:
    """The version of cuDNN."""
    yield from _library("cudnn", "cuDNN", wanted, found, (wanted.cudnn, found.cudnn))


def _library(
    rule: str, about: str, wanted: Side, found: Side, versions: tuple[str | None, str | None]
) -> Iterator[Finding]:
    """Held to the minor version: a patch keeps kernels and interfaces."""
    one, other = versions
    if brings_all(wanted, found) or not (one and other):
        return
    if same_numbers(one, other, 2):
        yield agree(rule, about, other, wanted=one, found=other)
        return
    refused = rule == "cudnn" and _below_floor(found)
    severity: Severity = "warning" if same_numbers(one, other, 1) and not refused else "error"
    why = _REFUSED if refused else _MINOR if severity == "warning" else ""
    yield differs(rule, about, wanted=one, found=other, todo=anew(found), severity=severity, why=why)


def _below_floor(side: Side) -> bool:
    """Whether a side's cuDNN is older than the one that its framework takes, of the same major version."""
    framework, there = side.framework, numbers(side.cudnn)
    if framework is None or as_version(framework.version) is None:
        return False
    least = numbers(cudnn_floor(framework.name, framework.version))
    return len(there) > 1 and there[:1] == least[:1] and there[:2] < least[:2]
