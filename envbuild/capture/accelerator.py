"""The accelerator: NVIDIA's GPUs, a TPU, or none."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from envbuild.capture.files import Facts, decoded, output_of, read_text
from envbuild.capture.frameworks import NUMBERS, answer

_GOOGLE = "0x1ae0"
_TPU_CHIPS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c")
"""PCI devices of Google's that are TPUs, as JAX lists them (jax/_src/hardware_utils.py); others are network cards."""


def accelerator_facts(root: str = "/") -> Facts:
    """Ask NVIDIA's driver in three ways, then look for a TPU; /proc, /sys and /dev lie in `root`."""
    return _nvml() or _nvidia_smi() or kernel_driver(root) or tpu_facts(root) or {"kind": "none"}


def _nvidia_facts(source: str, driver: str | None, cuda_maximum: str | None, gpus: list[Facts]) -> Facts:
    return {"kind": "nvidia", "source": source, "driver": driver, "cuda_maximum": cuda_maximum, "gpus": gpus}


def _nvml() -> Facts | None:
    """Ask the driver through nvidia-ml-py, where it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml as nv
        # Counted: other users of NVML in this process keep it.
        nv.nvmlInit()
        try:
            handles = [answer(nv, "nvmlDeviceGetHandleByIndex()", at) for at in range(nv.nvmlDeviceGetCount())]
            gpus = [_nvml_gpu(nv, handle) for handle in handles if handle is not None]
            cuda = answer(nv, "nvmlSystemGetCudaDriverVersion()")
            maximum = "%d.%d" % (cuda // 1000, cuda % 1000 // 10) if cuda else None
            driver = decoded(nv.nvmlSystemGetDriverVersion())
            return _nvidia_facts("nvml", driver, maximum, [gpu for gpu in gpus if gpu["name"]])
        finally:
            nv.nvmlShutdown()
    except Exception:
        # Not installed, without a driver, or another module of that name.
        return None


def _nvml_gpu(nv: Any, handle: Any) -> Facts:
    """Describe one GPU by the answers that it gives: not every user, driver and model allows all questions."""
    capability = answer(nv, "nvmlDeviceGetCudaComputeCapability()", handle)
    mode, mig = answer(nv, "nvmlDeviceGetMigMode()", handle), None
    if mode:
        slots = answer(nv, "nvmlDeviceGetMaxMigDeviceCount()", handle) if mode[0] else 0
        # An empty slot is an error.
        parts = [answer(nv, "nvmlDeviceGetMigDeviceHandleByIndex()", handle, at) for at in range(slots or 0)]
        names = [_nvml_name(nv, part) for part in parts if part is not None]
        # NVIDIA A100-SXM4-40GB MIG 1g.5gb
        mig = {"enabled": bool(mode[0]), "instances": [name.rpartition(" MIG ")[2] for name in names if name]}
    return {
        "name": _nvml_name(nv, handle),
        "memory": answer(nv, "nvmlDeviceGetMemoryInfo().total", handle),
        "compute_capability": "%d.%d" % tuple(capability) if capability else None,
        "mig": mig,
    }


def _nvml_name(nv: Any, handle: Any) -> str | None:
    name = answer(nv, "nvmlDeviceGetName()", handle)
    return decoded(name) if name else None


def _nvidia_smi() -> Facts | None:
    """Ask the program that comes with the driver; after one failure it is not started again."""
    head = output_of("nvidia-smi")
    if head is None:
        return None
    query, form = "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader,nounits"
    # Drivers before 510 refuse the whole query because of compute_cap.
    table = output_of("nvidia-smi", query + ",compute_cap,mig.mode.current", form)
    table = table or output_of("nvidia-smi", query, form) or ""
    rows = [[*re.split(r"\s*,\s*", line), "", ""] for line in table.splitlines() if line.count(",") > 1]
    if not rows:
        return None
    maximum = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", head)
    instances = _smi_instances() if any(row[4] == "Enabled" for row in rows) else {}
    gpus = [_smi_gpu(row, instances.get(at, [])) for at, row in enumerate(rows)]
    return _nvidia_facts("nvidia-smi", rows[0][0], maximum.group(1) if maximum else None, gpus)


def _smi_gpu(row: list[str], instances: list[str]) -> Facts:
    """Describe one GPU; its missing features are `[N/A]`, forbidden ones `[Insufficient Permissions]`."""
    enabled = {"Enabled": True, "Disabled": False}.get(row[4])
    return {
        "name": row[1],
        "memory": int(row[2]) * 2**20 if row[2].isdigit() else None,
        "compute_capability": row[3] if NUMBERS.fullmatch(row[3]) else None,
        "mig": None if enabled is None else {"enabled": enabled, "instances": instances},
    }


def _smi_instances() -> dict[int, list[str]]:
    """Map each GPU's place in the list to the profiles of its parts."""
    found: dict[int, list[str]] = {}
    gpu = -1
    for line in (output_of("nvidia-smi", "-L") or "").splitlines():
        if line.startswith("GPU "):
            gpu += 1
        found.setdefault(gpu, []).extend(re.findall(r"^\s+MIG (\S+)", line))
    return found


def kernel_driver(root: str = "/") -> Facts | None:
    """Read which driver the kernel has loaded and which of its GPUs this container can use."""
    text = read_text(os.path.join(root, "proc/driver/nvidia/version")) or ""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    gpus = []
    for path in sorted(Path(root, "proc/driver/nvidia/gpus").glob("*/information")):
        values = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", read_text(path) or "", re.MULTILINE))
        if values.get("Model") and os.path.exists(os.path.join(root, "dev/nvidia" + values.get("Device Minor", "?"))):
            gpus.append({"name": values["Model"]})
    return _nvidia_facts("/proc/driver/nvidia/version", match.group(1), None, gpus) if match else None


def tpu_facts(root: str = "/") -> Facts | None:
    """Describe the TPU by its chips or by the platform's TPU_ACCELERATOR_TYPE; None without either."""
    kind = re.fullmatch(r"[\w.-]+", os.environ.get("TPU_ACCELERATOR_TYPE", ""))
    chips, source = _tpu_chips(root)
    if not (chips or kind):
        return None
    names = (path.name for entry in sys.path for path in Path(entry or os.curdir).glob("libtpu*.dist-info"))
    matches = (re.fullmatch(r"libtpu(?:_nightly)?-([^-]+)\.dist-info", name) for name in names)
    libtpu = next((match.group(1) for match in matches if match), None)
    tpu = {"type": kind.group() if kind else None, "chips": chips or None, "libtpu": libtpu}
    return {"kind": "tpu", "source": source if chips else "TPU_ACCELERATOR_TYPE", "tpu": tpu}


def _tpu_chips(root: str) -> tuple[int, str]:
    """Count the chips on the bus, else the devices that a container has."""
    ids = [
        [(read_text(path.with_name(name)) or "").strip() for name in ("vendor", "device")]
        for path in Path(root, "sys/bus/pci/devices").glob("*.0/vendor")
    ]
    on_bus = sum(vendor == _GOOGLE and device in _TPU_CHIPS for vendor, device in ids)
    if on_bus:
        return on_bus, "/sys/bus/pci/devices"
    accel = len(list(Path(root, "dev").glob("accel[0-9]*")))
    # VFIO devices can be of any kind, so a variable has to name the TPU.
    named = any(name.startswith("TPU_") for name in os.environ)
    vfio = len(list(Path(root, "dev/vfio").glob("[0-9]*"))) if named else 0
    return (accel, "/dev/accel*") if accel else (vfio, "/dev/vfio")
