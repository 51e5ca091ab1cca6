"""NVIDIA's driver of a host, against the CUDA that is to run on it."""

from collections.abc import Iterator

from packaging.version import Version

from envbuild.manifest.hardware import Accelerator
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.gpu import needs_gpu
from envbuild.verify.rules.known import cuda_major, minimum_driver
from envbuild.verify.rules.releases import as_version, numbers
from envbuild.verify.rules.saying import agree, differs
from envbuild.verify.sides.side import Side

_COMPATIBLE = "It runs by CUDA's minor version compatibility; only what is compiled from PTX needs the newer driver."


def driver(wanted: Side, found: Side) -> Iterator[Finding]:
    """The driver's version against the lowest one of the CUDA's major version, and the newest CUDA that it serves."""
    there, cuda = found.accelerator, cuda_of(wanted)
    if found.kind != "host" or there is None or there.kind != "nvidia" or cuda is None or wanted.variant == "cpu":
        return
    if there.driver or there.cuda_maximum:
        yield _compared(cuda, there, None if needs_gpu(wanted) else "warning")


def cuda_of(side: Side) -> str | None:
    """CUDA that is to run: what is there, or what the framework was built with; the higher one where they differ.

    Else the major version that its wheels are named after.
    """
    built = side.framework.cuda if side.framework else None
    told = max((it for it in (side.cuda, built) if it), key=lambda it: (numbers(it)[:2], it), default=None)
    return told or cuda_major({it.name: it.version for it in (side.packages or {}).values()})


def _compared(cuda: str, there: Accelerator, severity: Severity | None) -> Finding:
    row, version = minimum_driver(cuda), as_version(there.driver)
    too_old = row is not None and version is not None and version < Version(row[0])
    serves = numbers(there.cuda_maximum)
    below = bool(serves) and serves[:1] < numbers(cuda)[:1]
    least = f"driver {row[0]} or later" if row else f"a driver that serves CUDA {cuda}"
    by_version = there.driver and not (below and not too_old)
    has = f"driver {there.driver}" if by_version else f"a driver that serves CUDA {there.cuda_maximum}"
    if too_old or below:
        return _too_old(cuda, least, has, severity)
    if (there.driver and not version) or not (serves or (row and version)):
        return _unknown(cuda, least, has)
    if serves and serves[:2] < numbers(cuda)[:2]:
        return _compatible(cuda, f"{there.cuda_maximum}")
    return agree("driver", "driver", f"{has} serves CUDA {cuda}", wanted=least, found=has)


def _unknown(cuda: str, least: str, has: str) -> Finding:
    says = f"CUDA {cuda} needs {least}, and it is not known whether {has} is that"
    todo = "see what nvidia-smi says on the host"
    return differs("driver", "driver", says, wanted=least, found=has, todo=todo, severity="warning")


def _too_old(cuda: str, least: str, has: str, severity: Severity | None) -> Finding:
    says = f"CUDA {cuda} needs {least}, and the host has {has}"
    todo = "update the driver of the host, or take an image with an older CUDA or without one: `--variant cpu`"
    return differs("driver", "driver", says, wanted=least, found=has, todo=todo, severity=severity)


def _compatible(cuda: str, serves: str) -> Finding:
    return differs(
        "driver",
        "driver",
        f"CUDA {cuda} is to run, and the driver came with CUDA {serves}",
        wanted=f"CUDA {cuda}",
        found=f"CUDA {serves}",
        todo="nothing, unless it says that PTX cannot be compiled; then update the driver",
        severity="note",
        why=_COMPATIBLE,
    )
