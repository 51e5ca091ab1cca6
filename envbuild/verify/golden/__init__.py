"""The golden check: a recorded sample run in an image or by an interpreter, and compared within its tolerance."""

from envbuild.verify.golden.checking import check, golden_check, unfit
from envbuild.verify.golden.model import HeldModel, held
from envbuild.verify.golden.runners import InImage, InInterpreter, Ran, Runner, in_image

__all__ = [
    "HeldModel",
    "InImage",
    "InInterpreter",
    "Ran",
    "Runner",
    "check",
    "golden_check",
    "held",
    "in_image",
    "unfit",
]
