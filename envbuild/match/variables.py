"""Environment variables without which the framework would not find its CUDA in the image."""

from collections.abc import Iterator

from envbuild.match.cuda import CudaPlan
from envbuild.match.facts import within
from envbuild.match.pins import Pins
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.run import Run
from envbuild.match.stack import Decision
from envbuild.match.swap import name_of

SITE_PACKAGES = "/opt/env/lib/python{}/site-packages"
"""Where an image has its distributions, by minor version of Python."""
GPU_VARIABLES = (("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"), ("NVIDIA_VISIBLE_DEVICES", "all"))
"""What NVIDIA's container runtime asks for."""


def decide_variables(
    run: Run, wheel: FrameworkWheel, plan: CudaPlan, pins: Pins, profiles: Profiles
) -> Iterator[Decision]:
    """LD_LIBRARY_PATH where the framework does not look beside itself, XLA_FLAGS where XLA does not."""
    if plan.source != "wheels" or not wheel.distribution.startswith("tensorflow"):
        return
    site = SITE_PACKAGES.format(run.python_minor)
    paths = [(it.folders, it.reason, it.source) for it in profiles.library_paths if wheel.version in it.versions]
    paths += [(plan.folders, plan.reason, plan.origin)] if plan.folders else []
    for folders, reason, source in paths:
        value = ":".join(f"{site}/{folder}" for folder in folders)
        yield Decision(what="LD_LIBRARY_PATH", value=value, reason=reason, source=source)
    rows = (it for it in profiles.compilers if within(it, "tensorflow", wheel.version))
    row = next(rows, None)
    if row and any(name_of(it).startswith("nvidia-cuda-nvcc") for it in pins.requirements):
        value = f"--xla_gpu_cuda_data_dir={site}/{row.folder}"
        yield Decision(what="XLA_FLAGS", value=value, reason=row.reason, source=row.source)
