"""What differs where a run used no framework: nothing is chosen but whether the image asks for a GPU."""

from envbuild.errors import UsageError
from envbuild.match.cuda import CudaChoice
from envbuild.match.overrides import Overrides
from envbuild.match.profiles import FrameworkWheel
from envbuild.match.run import Run
from envbuild.match.stack import Decision
from envbuild.match.variant import VariantChoice
from envbuild.oci.digest import Digest

_GLIBC = "2.17"
"""The oldest glibc that wheels are made for (manylinux2014)."""


def refuse_cuda(cuda_source: CudaChoice, overrides: Overrides) -> None:
    """Refuse a CUDA that somebody chose by hand; UsageError."""
    hand = [f"--set {key}" for key, _ in overrides.pairs if key in {"cuda", "cudnn", "driver_minimum"}]
    if hand or cuda_source != "auto":
        what = "a run without a framework gets no CUDA but that of its own wheels"
        raise UsageError(what, where=next(iter(hand), "--cuda-source"), todo="leave it out, or name the --framework")


def decide_variant_without(run: Run, asked: VariantChoice) -> Decision:
    """Return what was asked for, else whether the run saw a GPU."""
    if asked != "auto":
        return Decision(what="variant", value=asked, reason="it was asked for", source="--variant")
    seen = "the run saw GPUs" if run.gpus else "no GPU is known of the run"
    return Decision(what="variant", value="gpu" if run.gpus else "cpu", reason=seen, source="manifest: accelerator")


def empty_wheel(run: Run) -> FrameworkWheel:
    """Return the row of a framework that brings nothing."""
    return FrameworkWheel(
        distribution="python",
        version=run.python,
        machine=run.machine,
        pythons=(run.python_minor,),
        glibc=_GLIBC,
        wheel="manifest: framework",
        sha256=Digest.of(b""),
    )
