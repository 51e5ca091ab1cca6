"""The TPU of this machine."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from envbuild.capture.reading import Facts, read_text

_GOOGLE = "0x1ae0"
_CHIPS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c")
"""PCI devices of Google's that are TPUs, as JAX lists them (jax/_src/hardware_utils.py); others are network cards."""


def tpu_facts(root: str = "/") -> Facts | None:
    """Describe the TPU by its chips or by what the platform says in TPU_ACCELERATOR_TYPE; None without either."""
    kind = re.fullmatch(r"[\w.-]+", os.environ.get("TPU_ACCELERATOR_TYPE", ""))
    chips, source = _chips(root)
    if not (chips or kind):
        return None
    tpu = {"type": kind.group() if kind else None, "chips": chips or None, "libtpu": _libtpu()}
    return {"kind": "tpu", "source": source if chips else "TPU_ACCELERATOR_TYPE", "tpu": tpu}


def _chips(root: str) -> tuple[int, str]:
    """Count the chips on the bus, else the devices that a container was given."""
    devices = [path.parent for path in Path(root, "sys/bus/pci/devices").glob("*.0/vendor") if _says(path, (_GOOGLE,))]
    on_bus = sum(_says(device / "device", _CHIPS) for device in devices)
    if on_bus:
        return on_bus, "/sys/bus/pci/devices"
    accel = len(list(Path(root, "dev").glob("accel[0-9]*")))
    # Any device can be there, so something has to say that these are TPUs.
    said = any(name.startswith("TPU_") for name in os.environ)
    vfio = len(list(Path(root, "dev/vfio").glob("[0-9]*"))) if said else 0
    return (accel, "/dev/accel*") if accel else (vfio, "/dev/vfio")


def _says(path: Path, values: tuple[str, ...]) -> bool:
    return (read_text(path) or "").strip() in values


def _libtpu() -> str | None:
    names = (path.name for entry in sys.path for path in Path(entry or os.curdir).glob("libtpu*.dist-info"))
    matches = (re.fullmatch(r"libtpu(?:_nightly)?-([^-]+)\.dist-info", name) for name in names)
    return next((match.group(1) for match in matches if match), None)
