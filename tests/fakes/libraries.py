"""Shared libraries made for a test: with the functions that it gives them, and the name of a real one."""

import subprocess
from pathlib import Path

NVML = Path(__file__).with_name("nvml.c")


def shared_library(path: Path, source: str) -> Path:
    """Compile C to a shared library at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return path
