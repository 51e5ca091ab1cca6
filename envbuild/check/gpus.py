"""GPUs of NVIDIA: their number, driver, memory and compute capability."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from envbuild.check.asked import content, is_release
from envbuild.check.words import finding, numbers, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from envbuild.check.asked import Asked
    from envbuild.check.words import Finding

NEARLY = 0.95
"""Drivers keep some of a GPU's memory to themselves, each its own share."""
GIB = 1 << 30
NVML_NOT_LOADED = 9
"""NVML_ERROR_DRIVER_NOT_LOADED (nvml.h)."""


class Gpus:
    """What this container sees of NVIDIA's GPUs."""

    def __init__(self) -> None:
        self.driver = ""
        self.each: list[tuple[int | None, str]] = []
        """Bytes of memory, None where nobody tells, and compute capability."""
        self.trouble = ""
        """Why the driver does not answer."""


def gpu_findings(asked: Asked, root: str = "/") -> Iterator[Finding]:
    """Yield what is wrong with the GPUs, where any are needed or the image is for them."""
    needs = [it for it in asked.said("gpu") if it.get("count") != 0]
    if not needs and "gpu" not in asked.said("variant"):
        return
    gpus = seen(root)
    if gpus.trouble:
        todo = "restart the machine if its driver was updated; see what nvidia-smi says on it"
        says = "NVIDIA's driver does not answer: %s" % shown(gpus.trouble)
        yield finding("gpu", says, todo, "error" if needs else "warning")
    count = max([it.get("count") or 1 for it in needs] or [0])
    if len(gpus.each) < max(count, 1):
        yield too_few(len(gpus.each), count)
    if gpus.each:
        yield from driver_findings(asked, needs, gpus.driver)
        for need in needs:
            yield from memory_findings(need.get("memory"), [it for it, _ in gpus.each])
            yield from capability_findings(need.get("capabilities"), [it for _, it in gpus.each])


def too_few(found: int, count: int) -> Finding:
    """Return that there are fewer GPUs than are needed, or none where the image is for them."""
    todo = "start the container with its GPUs (--gpus all), on a machine with NVIDIA's driver and container toolkit"
    if count:
        says = "%s visible, and the program needs %d" % ("%d GPUs are" % found if found else "no GPU is", count)
        return finding("gpu", says, todo)
    says = "no GPU is visible, and the environment is made for one: the program computes on the CPU, if it can"
    return finding("gpu", says, todo, "warning")


def driver_findings(asked: Asked, needs: list[dict[str, Any]], driver: str) -> Iterator[Finding]:
    """Yield that the driver is older than what was built for it needs, or that nobody tells."""
    floor = max(asked.said("driver") + [it["driver"] for it in needs if it.get("driver")], key=numbers, default="")
    cuda = "".join(" with CUDA %s" % shown(it, 20) for it in asked.said("cuda")[:1])
    needed = "and the environment%s needs %s" % (cuda, floor)
    if floor and not is_release(driver):
        says = "nobody tells the driver's version%s, %s" % (" (%s)" % shown(driver) if driver else "", needed)
        yield finding("driver", says, "see what nvidia-smi says on the machine", "warning")
    elif floor and numbers(driver) < numbers(floor):
        todo = "update the machine's driver to %s or later, or use the image for the CPU" % floor
        yield finding("driver", "the driver is %s, %s" % (driver, needed), todo)


def memory_findings(wanted: int | None, found: list[int | None]) -> Iterator[Finding]:
    """Yield that the largest GPU has less memory than is needed, or that nobody tells."""
    if wanted is None:
        return
    largest = max([it for it in found if it is not None] or [0])
    if not largest:
        says = "nobody tells how much memory the GPU has, and the program needs %.1f GiB" % (wanted / GIB)
        todo = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield finding("gpu memory", says, todo, "warning")
    elif largest < wanted * NEARLY:
        says = "the GPU has %.1f GiB of memory, and the program needs %.1f GiB" % (largest / GIB, wanted / GIB)
        todo = "use a larger GPU or MIG instance, or try it with smaller batches"
        yield finding("gpu memory", says, todo)


def capability_findings(wanted: list[str] | None, found: list[str]) -> Iterator[Finding]:
    """Yield that a GPU is older than all that the framework was built for."""
    for capability in dict.fromkeys(it for it in found if it and wanted):
        if all(numbers(capability) < numbers(it) for it in wanted or ()):
            says = "the GPU has compute capability %s, and the program needs %s"
            todo = "use a newer GPU, or a release of the framework that was built for this one"
            yield finding("gpu", says % (capability, min(wanted or (), key=numbers)), todo)


def seen(root: str = "/") -> Gpus:
    """Ask NVIDIA's management library (NVML), else the kernel."""
    gpus = Gpus()
    try:
        import ctypes

        library = ctypes.CDLL("libnvidia-ml.so.1")
    except (ImportError, OSError):
        look_at_kernel(gpus, root)
        return gpus
    start = getattr(library, "nvmlInitWithFlags", None)
    code = start(0) if start else library.nvmlInit_v2()
    if code:
        look_at_kernel(gpus, root)
        gpus.trouble = "" if code == NVML_NOT_LOADED else "error %d of NVML" % code
        return gpus
    try:
        ask_nvml(gpus, library, ctypes)
    finally:
        library.nvmlShutdown()
    return gpus


def look_at_kernel(gpus: Gpus, root: str) -> None:
    """Note the driver that the kernel has loaded, and the devices that this container was given."""
    try:
        text = content(os.path.join(root, "proc/driver/nvidia/version")).decode("utf-8", "replace")
        names = os.listdir(os.path.join(root, "dev"))
    except OSError:
        return
    versions = [it for it in text.split() if "." in it and it.replace(".", "").isdigit()]
    gpus.driver = versions[0] if versions else ""
    gpus.each = [(None, "") for it in names if it.startswith("nvidia") and it[len("nvidia") :].isdigit()]


def ask_nvml(gpus: Gpus, library: Any, ctypes: Any) -> None:
    """Note what NVML tells; not every user, driver and model allows all questions."""

    def told(name: str, *arguments: Any) -> bool:
        function = getattr(library, name, None)
        return function is not None and function(*arguments) == 0

    text, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    if told("nvmlSystemGetDriverVersion", text, 96):
        gpus.driver = text.value.decode("ascii", "replace")
    told("nvmlDeviceGetCount_v2", ctypes.byref(count))
    for at in range(min(count.value, 1024)):
        device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if told("nvmlDeviceGetHandleByIndex_v2", at, ctypes.byref(device)):
            known = told("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
            capability = "%d.%d" % (major.value, minor.value) if known else ""
            gpus.each += [(it, capability) for it in memories(device, told, ctypes)]


def memories(device: Any, told: Callable[..., bool], ctypes: Any) -> list[int | None]:
    """Return a GPU's memory in bytes, or that of each of its parts where MIG divides it."""
    mode, other, slots = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    parts = []
    if told("nvmlDeviceGetMigMode", device, ctypes.byref(mode), ctypes.byref(other)) and mode.value:
        told("nvmlDeviceGetMaxMigDeviceCount", device, ctypes.byref(slots))
        for at in range(min(slots.value, 64)):
            part = ctypes.c_void_p()
            if told("nvmlDeviceGetMigDeviceHandleByIndex", device, at, ctypes.byref(part)):
                parts.append(part)
    found: list[int | None] = []
    for part in parts or [device]:
        sizes = (ctypes.c_ulonglong * 3)()  # in all, free, used
        found.append(sizes[0] if told("nvmlDeviceGetMemoryInfo", part, ctypes.byref(sizes)) else None)
    return found
