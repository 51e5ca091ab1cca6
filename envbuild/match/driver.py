"""The lowest NVIDIA driver that a host needs: for CUDA at all, and where a GPU needs its code compiled from PTX."""

import re
from collections.abc import Iterator

from packaging.version import Version

from envbuild.manifest.hardware import Gpu
from envbuild.match.facts import Generation, Toolkit
from envbuild.match.overrides import Overrides
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.run import Run
from envbuild.match.stack import Decision

Number = tuple[int, int]
_DRIVER = re.compile(r"\d+(\.\d+)*")


def decide_driver(
    run: Run, wheel: FrameworkWheel, cuda: str, overrides: Overrides, profiles: Profiles
) -> tuple[Decision, ...]:
    """The driver floor as the first decision, and a warning for each GPU that the build cannot serve."""
    minimum, reason, source = _floor(cuda, profiles)
    known = {gpu.name: capability_of(gpu, profiles) for gpu in run.gpus}
    gpus = {name: capability for name, capability in known.items() if capability}
    compiled = [name for name, it in gpus.items() if not _machine_code(wheel, it) and _ptx(wheel, it)]
    toolkit = max(_toolkits(wheel, cuda, profiles), key=lambda it: Version(it.driver), default=None)
    if compiled and toolkit and Version(toolkit.driver) > Version(minimum or "0"):
        why = f"{', '.join(compiled)} has no machine code in the wheel; compiling its PTX takes the driver of CUDA"
        minimum, reason, source = toolkit.driver, f"{why} {toolkit.cuda} itself", toolkit.source
    for name, row in _new(gpus, profiles):
        if row.driver and Version(row.driver) > Version(minimum or "0"):
            minimum, reason, source = row.driver, f"the first driver for the generation of {name}", row.source
    if overrides.driver_minimum:
        reason = f"{reason}, which would be {minimum}"
        minimum = overrides.driver_minimum
    driver = [Decision(what="driver", value=f">={minimum}", reason=reason, source=source)] if minimum else []
    return (
        *driver,
        *_host(run, minimum),
        *(_not_served(name, it, wheel) for name, it in gpus.items() if not _serves(wheel, it)),
        *(it for name, gpu in gpus.items() if _serves(wheel, gpu) for it in _not_made_for(name, gpu, cuda, profiles)),
        *(_unknown(name, run) for name, it in known.items() if it is None),
    )


def capability_of(gpu: Gpu, profiles: Profiles) -> Number | None:
    """The compute capability as it was recorded, else by the words of the GPU's name; None where neither tells."""
    words = set(re.split(r"[^A-Za-z0-9]+", gpu.name))
    by_name = next((it for it in profiles.capabilities if words & set(it.words)), None)
    text = gpu.compute_capability or (by_name.capability if by_name else "")
    return _number(text) if text else None


def _number(text: str) -> Number:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _built_for(wheel: FrameworkWheel, *, ptx: bool) -> Iterator[Number]:
    """`sm_80` is machine code, `compute_80` PTX too, and of `7.0` it is not said: taken for both."""
    for text in wheel.compute_capabilities:
        kind, _, digits = text.rpartition("_")
        if not (ptx and kind == "sm"):
            yield _number(digits) if "." in digits else (int(digits[:-1]), int(digits[-1]))


def _machine_code(wheel: FrameworkWheel, gpu: Number) -> bool:
    """Machine code runs on GPUs of the same major version with an equal or higher minor one."""
    return any(it[0] == gpu[0] and it[1] <= gpu[1] for it in _built_for(wheel, ptx=False))


def _ptx(wheel: FrameworkWheel, gpu: Number) -> bool:
    return any(it <= gpu for it in _built_for(wheel, ptx=True))


def _serves(wheel: FrameworkWheel, gpu: Number) -> bool:
    return not wheel.compute_capabilities or _machine_code(wheel, gpu) or _ptx(wheel, gpu)


def _not_served(name: str, gpu: Number, wheel: FrameworkWheel) -> Decision:
    built = ", ".join(wheel.compute_capabilities)
    reason = f"{wheel.pin} was built for {built}, so it cannot use a GPU of {gpu[0]}.{gpu[1]}"
    return Decision(what="gpu", value=name, reason=reason, source=wheel.source, warning=True)


def _new(gpus: dict[str, Number], profiles: Profiles) -> list[tuple[str, Generation]]:
    return [(name, it) for name, gpu in gpus.items() for it in profiles.generations if _among(gpu, it)]


def _among(gpu: Number, row: Generation) -> bool:
    return _number(row.lowest) <= gpu <= _number(row.highest)


def _not_made_for(name: str, gpu: Number, cuda: str, profiles: Profiles) -> Iterator[Decision]:
    """GPUs that came after the image's CUDA, or that it dropped; `12` alone can be any 12."""
    version = tuple(int(it) for it in cuda.split("."))
    for row in (it for it in profiles.generations if _among(gpu, it)):
        if row.last_cuda and version[0] > int(row.last_cuda):
            reason = (
                f"CUDA {version[0]} has no support for GPUs of {gpu[0]}.{gpu[1]}; {row.last_cuda} was the last with it"
            )
            yield Decision(what="gpu", value=name, reason=reason, source=row.source, warning=True)
        if row.first_cuda and version < _number(row.first_cuda)[: len(version)]:
            reason = (
                f"the first CUDA for GPUs of {gpu[0]}.{gpu[1]} is {row.first_cuda}: the libraries of CUDA {cuda} and "
                "its cuDNN were made before, and may have no code that runs on it"
            )
            yield Decision(what="gpu", value=name, reason=reason, source=row.source, warning=True)


def _unknown(name: str, run: Run) -> Decision:
    """Somebody who names a GPU wants to know whether it serves; a run had one that did."""
    reason = "the compute capability of a GPU of this name is not known, so nothing is checked for it"
    return Decision(what="gpu", value=name, reason=reason, source="profiles/cuda.toml: capabilities", warning=run.asked)


def _host(run: Run, minimum: str | None) -> Iterator[Decision]:
    """The run's own driver, where the image would not start on it: its host is often the one to come, too."""
    if minimum and run.driver and _DRIVER.fullmatch(run.driver) and Version(run.driver) < Version(minimum):
        reason = f"the run's host had this one, and the image needs {minimum} or later: it does not run there as it is"
        source = "manifest: accelerator.driver"
        yield Decision(what="driver of the run", value=run.driver, reason=reason, source=source, warning=True)


def _floor(cuda: str, profiles: Profiles) -> tuple[str | None, str, str]:
    major, minor = (".".join(cuda.split(".")[:count]) for count in (1, 2))
    row = next((it for it in profiles.drivers if it.cuda in {major, minor}), None)
    if row is None:
        return None, "", ""
    return row.minimum, f"the lowest driver on the host that runs CUDA {row.cuda}", row.source


def _toolkits(wheel: FrameworkWheel, cuda: str, profiles: Profiles) -> list[Toolkit]:
    """Those that the framework's PTX and the image's libraries came from."""
    return [it for it in profiles.toolkits if it.cuda in {wheel.cuda, cuda}]
