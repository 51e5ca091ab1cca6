"""What must agree with what, proved from files: an image and its lock, and that its loader finds what it opens."""

from envbuild.verify.cuda.loader import LoaderFinding, LoaderProof, prove_loading
from envbuild.verify.findings import Finding
from envbuild.verify.matched import Run
from envbuild.verify.verifying import Inquiry, verify_image

__all__ = ["Finding", "Inquiry", "LoaderFinding", "LoaderProof", "Run", "prove_loading", "verify_image"]
