"""What must agree with what, proved from files: that an image's loader finds what its framework opens."""

from envbuild.verify.loader import prove_loading
from envbuild.verify.proof import LoaderFinding, LoaderProof

__all__ = ["LoaderFinding", "LoaderProof", "prove_loading"]
