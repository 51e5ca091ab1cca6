"""The lowest NVIDIA driver that a host needs: for CUDA at all, and where a GPU needs its code compiled from PTX."""

import re
from collections.abc import Iterator, Sequence

from packaging.version import Version

from envbuild.manifest.hardware import Gpu
from envbuild.match.openers import Opened, highest_floor
from envbuild.match.profiles import Profiles
from envbuild.match.rows import FrameworkWheel, Generation
from envbuild.match.run import Run
from envbuild.match.stack import Decision, Overrides

Number = tuple[int, int]
_DRIVER = re.compile(r"\d+(\.\d+)*")


def decide_driver(
    run: Run, wheel: FrameworkWheel, cuda: str, overrides: Overrides, profiles: Profiles, openers: Sequence[Opened]
) -> Iterator[Decision]:
    """Yield the driver floor as the first decision, and a warning for each GPU that the build cannot serve.

    `cuda` is empty where only `openers`, the run's other projects for GPUs, have any.
    """
    known = {gpu.name: capability_of(gpu, profiles) for gpu in run.gpus}
    gpus = {name: capability for name, capability in known.items() if capability}
    minimum, reason, source = _floor(wheel, cuda, gpus, profiles)
    highest = highest_floor(openers, profiles)
    if highest and Version(highest[0].minimum) > Version(minimum or "0"):
        row, opened = highest
        minimum, source = row.minimum, row.source
        reason = f"the lowest driver on the host that runs CUDA {row.cuda}, which {opened.pin} was built for"
    if overrides.driver_minimum:
        reason = f"{reason}, which would be {minimum}"
        minimum = overrides.driver_minimum
    if minimum:
        yield Decision("driver", f">={minimum}", reason, source)
        # The run's own driver, where the image would not start on it: the image often runs on that host, too.
        if run.driver and _DRIVER.fullmatch(run.driver) and Version(run.driver) < Version(minimum):
            why = f"the run's host had this one, and the image needs {minimum} or later: it does not run there as it is"
            source = "manifest: accelerator.driver"
            yield Decision("driver of the run", run.driver, why, source, warning=True)
    built = ", ".join(wheel.compute_capabilities)
    served = {name: it for name, it in gpus.items() if not built or _machine_code(wheel, it) or _ptx(wheel, it)}
    for name, gpu in gpus.items():
        if name not in served:
            reason = f"{wheel.pin} was built for {built}, so it cannot use a GPU of {gpu[0]}.{gpu[1]}"
            yield Decision("gpu", name, reason, wheel.source, warning=True)
    for name, gpu in served.items() if cuda else ():
        yield from _unsupported(name, gpu, cuda, profiles)
    for name in (name for name, capability in known.items() if capability is None):
        reason = "the compute capability of a GPU of this name is not known, so nothing is checked for it"
        source = "profiles/cuda.toml: capabilities"
        # Who names a GPU wants to know whether it serves; a run had one that did.
        yield Decision("gpu", name, reason, source, warning=run.hypothetical)


def _floor(
    wheel: FrameworkWheel, cuda: str, gpus: dict[str, Number], profiles: Profiles
) -> tuple[str | None, str, str]:
    """The lowest driver, why, and what states it."""
    major, minor = (".".join(cuda.split(".")[:count]) for count in (1, 2))
    minimum, reason, source = None, "", ""
    if row := next((it for it in profiles.drivers if it.cuda in {major, minor}), None):
        minimum, reason, source = row.minimum, f"the lowest driver on the host that runs CUDA {row.cuda}", row.source
    compiled = [name for name, it in gpus.items() if not _machine_code(wheel, it) and _ptx(wheel, it)]
    # The toolkits that the framework's PTX and the image's libraries came from.
    toolkits = (it for it in profiles.toolkits if it.cuda in {wheel.cuda, cuda})
    toolkit = max(toolkits, key=lambda it: Version(it.driver), default=None)
    if compiled and toolkit and Version(toolkit.driver) > Version(minimum or "0"):
        why = f"{', '.join(compiled)} has no machine code in the wheel; compiling its PTX takes the driver of CUDA"
        minimum, reason, source = toolkit.driver, f"{why} {toolkit.cuda} itself", toolkit.source
    for name, gpu in gpus.items():
        for generation in _generations(gpu, profiles):
            if generation.driver and Version(generation.driver) > Version(minimum or "0"):
                reason = f"the first driver for the generation of {name}"
                minimum, source = generation.driver, generation.source
    return minimum, reason, source


def capability_of(gpu: Gpu, profiles: Profiles) -> Number | None:
    """Return the recorded compute capability, else that of the GPU's name; None where neither is known."""
    words = set(re.split(r"[^A-Za-z0-9]+", gpu.name))
    by_name = next((it for it in profiles.capabilities if words & set(it.words)), None)
    text = gpu.compute_capability or (by_name.capability if by_name else "")
    return _number(text) if text else None


def _number(text: str) -> Number:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _built_for(wheel: FrameworkWheel, *, ptx: bool) -> Iterator[Number]:
    """`sm_80` is machine code, `compute_80` PTX too; `7.0` does not say which, and counts as both."""
    for text in wheel.compute_capabilities:
        kind, _, digits = text.rpartition("_")
        if not (ptx and kind == "sm"):
            yield _number(digits) if "." in digits else (int(digits[:-1]), int(digits[-1]))


def _machine_code(wheel: FrameworkWheel, gpu: Number) -> bool:
    """Machine code runs on GPUs of the same major version with an equal or higher minor one."""
    return any(it[0] == gpu[0] and it[1] <= gpu[1] for it in _built_for(wheel, ptx=False))


def _ptx(wheel: FrameworkWheel, gpu: Number) -> bool:
    return any(it <= gpu for it in _built_for(wheel, ptx=True))


def _generations(gpu: Number, profiles: Profiles) -> list[Generation]:
    return [it for it in profiles.generations if _number(it.lowest) <= gpu <= _number(it.highest)]


def _unsupported(name: str, gpu: Number, cuda: str, profiles: Profiles) -> Iterator[Decision]:
    """GPUs that came after the image's CUDA, or that it dropped; `12` alone can be any 12."""
    version, capability = tuple(int(it) for it in cuda.split(".")), f"{gpu[0]}.{gpu[1]}"
    for row in _generations(gpu, profiles):
        if row.last_cuda and version[0] > int(row.last_cuda):
            reason = f"CUDA {version[0]} has no support for GPUs of {capability}; {row.last_cuda} was the last with it"
            yield Decision("gpu", name, reason, row.source, warning=True)
        if row.first_cuda and version < _number(row.first_cuda)[: len(version)]:
            reason = f"the first CUDA for GPUs of {capability} is {row.first_cuda}: the libraries of CUDA {cuda} and "
            reason += "its cuDNN were made before, and may have no code that runs on it"
            yield Decision("gpu", name, reason, row.source, warning=True)
