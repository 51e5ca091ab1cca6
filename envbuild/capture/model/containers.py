"""What lies in zip archives, HDF5 files and pickles: Keras and PyTorch. Nothing is ever unpickled."""

from __future__ import annotations

import json
import re
from typing import Dict

from envbuild.capture.gcs import Unread
from envbuild.capture.model.hdf5 import SIGNATURE, Hdf5
from envbuild.capture.model.places import Place
from envbuild.capture.model.source import Source, said
from envbuild.capture.model.tensorflow import add_writer
from envbuild.capture.model.zipped import Member, zip_content, zip_members, zip_search
from envbuild.capture.reading import Facts

TORCH_VERSION = re.compile(rb'"torch_version": ?"([^"\\]{1,100})"')
SCHEMA_VERSION_OF = re.compile(rb'"schema_version": ?(\{[^{}]{1,100}\}|\d{1,9})')
PICKLE = "%s is a pickle, which is never loaded: that would run what is in it"
TELLING = {
    "keras": re.compile(r"metadata\.json|config\.json"),
    "program": re.compile(r"(?:[^/]+/)?(?:models/[^/]+\.json|serialized_exported_program\.json)"),
    "archive": re.compile(r"(?:[^/]+/)?(?:archive_version|archive_format)"),
    "script": re.compile(r"[^/]+/constants\.pkl"),
    "weights": re.compile(r"(?:[^/]+/)?data\.pkl"),
}
"""Members by which an archive is recognised."""


def read_container(facts: Facts, place: Place, path: str) -> None:
    """Read a file by its first bytes, as suffixes such as .keras and .pt have meant several formats."""
    source, suffix = place.open(path), path.rpartition(".")[2]
    head = source.head(len(SIGNATURE))
    if suffix in ("pkl", "pickle", "joblib"):
        raise Unread(PICKLE % path)
    if head.startswith(b"PK\3\4"):
        _read_archive(facts, source)
    elif head == SIGNATURE:
        _read_hdf5(facts, source)
    elif re.match(rb"\x80[\2-\5]", head) and suffix in ("pt", "pth", "bin", "ckpt"):
        facts["format"] = "torch"
    elif suffix != "ckpt":
        raise Unread("%s is not what its name says" % path)


def _read_hdf5(facts: Facts, source: Source) -> None:
    facts["format"] = "hdf5"
    texts = Hdf5(source).texts()
    add_writer(facts, "keras", said(texts.get("keras_version")))
    facts["details"]["backend"] = said(texts.get("backend"))


def _read_archive(facts: Facts, source: Source) -> None:
    found: Dict[str, Member] = {}
    for member in zip_members(source):
        for kind, pattern in TELLING.items():
            if pattern.fullmatch(member.name):
                found.setdefault(member.name if kind == "keras" else kind, member)
    if {"metadata.json", "config.json"} <= set(found):
        _read_keras(facts, source, found["metadata.json"])
    elif "program" in found or "archive" in found:
        _read_program(facts, source, found)
    elif "script" in found:
        facts["format"] = "torchscript"
    elif "weights" in found:
        facts["format"] = "torch"


def _read_keras(facts: Facts, source: Source, member: Member) -> None:
    facts["format"] = "keras"
    metadata = json_object(zip_content(source, member))
    add_writer(facts, "keras", said(metadata.get("keras_version")))
    # 2026-11-21@10:20:59 would be cut as if it were user@host.
    facts["details"]["date_saved"] = said(str(metadata.get("date_saved", "")).replace("@", " "))


def _read_program(facts: Facts, source: Source, found: Dict[str, Member]) -> None:
    facts["format"] = "torch_export"
    if "program" in found:
        add_writer(facts, "torch", zip_search(source, found["program"], TORCH_VERSION))
        schema = zip_search(source, found["program"], SCHEMA_VERSION_OF)
        facts["details"]["schema_version"] = ".".join(re.findall(r"\d+", schema or "")) or None


def json_object(data: bytes) -> Facts:
    """Parse a small JSON object; Unread if it is none."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unread("what should be JSON in it is none")
    return value
