"""What must agree with what, proved from files: an image and its lock, and that its loader finds what it opens."""

from envbuild.verify.findings import Finding
from envbuild.verify.loader import prove_loading
from envbuild.verify.matched import Run
from envbuild.verify.proof import LoaderFinding, LoaderProof
from envbuild.verify.verifying import Inquiry, verify_image

__all__ = ["Finding", "Inquiry", "LoaderFinding", "LoaderProof", "Run", "prove_loading", "verify_image"]
