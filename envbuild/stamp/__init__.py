"""The stamp: the images of a model, written on the model."""

from envbuild.stamp.record import Stamp, StampedImage, StampEntry
from envbuild.stamp.write import StampResult, check_stampable, read_stamp, read_uri, stamp

__all__ = [
    "Stamp",
    "StampEntry",
    "StampResult",
    "StampedImage",
    "check_stampable",
    "read_stamp",
    "read_uri",
    "stamp",
]
