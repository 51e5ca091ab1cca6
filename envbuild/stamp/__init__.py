"""The stamp: which images belong to a model, written on the model itself."""

from envbuild.stamp.history import History, changes, read_history
from envbuild.stamp.objects import read_uri
from envbuild.stamp.record import (
    Content,
    Stamp,
    StampedFile,
    StampedImage,
    StampEntry,
    lock_name,
    manifest_name,
    record_bytes,
    record_digest,
)
from envbuild.stamp.signature import Keys, Proof, Signer
from envbuild.stamp.stamping import Recorded, Seen, StampResult, check_stampable, read_stamp, stamp
from envbuild.stamp.uri import ModelUri, parse_model_uri

__all__ = [
    "Content",
    "History",
    "Keys",
    "ModelUri",
    "Proof",
    "Recorded",
    "Seen",
    "Signer",
    "Stamp",
    "StampEntry",
    "StampResult",
    "StampedFile",
    "StampedImage",
    "changes",
    "check_stampable",
    "lock_name",
    "manifest_name",
    "parse_model_uri",
    "read_history",
    "read_stamp",
    "read_uri",
    "record_bytes",
    "record_digest",
    "stamp",
]
