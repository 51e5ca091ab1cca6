"""The stack of a run that used no framework: its own pins, and no CUDA that belongs to a framework."""

from dataclasses import replace

from envbuild.errors import UsageError
from envbuild.manifest.known import known_accelerator
from envbuild.manifest.model import TrainingManifest
from envbuild.match.base import python_base
from envbuild.match.cuda import CudaChoice
from envbuild.match.overrides import Overrides, loud
from envbuild.match.profiles import Profiles
from envbuild.match.run import conda_versions, machine_of, pins_of, python_of
from envbuild.match.stack import Decision, Gaps, Stack
from envbuild.match.variables import GPU_VARIABLES
from envbuild.match.variant import VariantChoice

_GLIBC = "2.17"
"""The oldest glibc that wheels are made for (manylinux2014)."""


def match_without_framework(
    manifest: TrainingManifest,
    profiles: Profiles,
    variant: VariantChoice,
    cuda_source: CudaChoice,
    overrides: Overrides,
    machine: str | None,
    before: str | None,
) -> Stack:
    """Keep every pin; the variant decides only whether the image asks for a GPU. UsageError for a CUDA by hand."""
    hand = [f"--set {key}" for key, _ in overrides.pairs if key in {"cuda", "cudnn", "driver_minimum"}]
    if hand or cuda_source != "auto":
        what = "a run without a framework gets no CUDA but that of its own wheels"
        raise UsageError(what, where=next(iter(hand), "--cuda-source"), todo="leave it out, or name the --framework")
    accelerator = known_accelerator(manifest)
    gpu = variant == "gpu" or (variant == "auto" and accelerator is not None and bool(accelerator.gpus))
    python = overrides.python or python_of(manifest)
    base = python_base(python, _GLIBC, profiles)
    if overrides.base:
        base = replace(base, value=overrides.base)
    reason = "the run used none, so every distribution stays as it was, and no CUDA is chosen"
    source = manifest.framework_source or "manifest: framework"
    seen = "it was asked for" if variant != "auto" else "the run saw GPUs" if gpu else "no GPU is known of the run"
    decisions = (
        Decision(what="framework", value="none", reason=reason, source=source),
        Decision(what="variant", value="gpu" if gpu else "cpu", reason=seen, source="manifest: accelerator"),
        base,
    )
    return Stack(
        framework="none",
        distribution="python",
        version=python,
        variant="gpu" if gpu else "cpu",
        python=python,
        machine=machine_of(machine or manifest.platform.machine or "x86_64"),
        cuda=None,
        cudnn=None,
        cuda_source="none",
        base=base.value,
        glibc_minimum=_GLIBC,
        requirements=tuple(f"{name}=={version}" for name, version in pins_of(manifest)),
        gaps=None
        if manifest.source.complete
        else Gaps(
            versions=_conda_pins(manifest), limits=tuple(it for it in profiles.limits if it.breaks), before=before
        ),
        variables=GPU_VARIABLES if gpu else (),
        changes=(),
        decisions=loud(decisions, overrides),
        overrides=overrides.pairs,
    )


def _conda_pins(manifest: TrainingManifest) -> tuple[str, ...]:
    """The versions of what conda had and the record does not list as a distribution."""
    names = dict(pins_of(manifest))
    return tuple(f"{name}=={version}" for name, version in conda_versions(manifest) if name not in names)
