"""The stamp: which images belong to a model, written on the model itself."""

from envbuild.stamp.objects import read_uri
from envbuild.stamp.record import Stamp, StampedImage, StampEntry
from envbuild.stamp.stamping import StampResult, check_stampable, read_stamp, stamp
from envbuild.stamp.uri import ModelUri, parse_model_uri

__all__ = [
    "ModelUri",
    "Stamp",
    "StampEntry",
    "StampResult",
    "StampedImage",
    "check_stampable",
    "parse_model_uri",
    "read_stamp",
    "read_uri",
    "stamp",
]
