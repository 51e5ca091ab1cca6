"""Shared libraries made for a test, with the functions that it gives them and the name of a real one; nvidia-smi."""

import subprocess
from pathlib import Path

NVML = Path(__file__).with_name("nvml.c")


def shared_library(path: Path, source: str) -> Path:
    """Compile C to a shared library at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return path


def nvidia_smi(folder: Path) -> Path:
    """Write a program that answers as NVIDIA's does on a machine with two GPUs; return its folder, for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nvidia-smi").write_text(
        """#!/bin/sh
case "$*" in
  *compute_cap*) echo "570.86.10, NVIDIA A100-SXM4-40GB, 40960, 8.0, Disabled"
                 echo "570.86.10, NVIDIA T4, 15360, 7.5, [N/A]" ;;
  *) echo "| NVIDIA-SMI 570.86.10   Driver Version: 570.86.10   CUDA Version: 12.8     |" ;;
esac
"""
    )
    (folder / "nvidia-smi").chmod(0o755)
    return folder
