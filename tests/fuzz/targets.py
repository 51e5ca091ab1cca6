"""What is fuzzed: each target takes bytes, and raises only what is a defect."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from envbuild.capture.frameworks import build_info
from envbuild.capture.redact import scrub
from envbuild.errors import ManifestError
from envbuild.manifest import manifest_dict, read_manifest

SLOWEST = 5.0
"""Seconds; what a reader takes longer for is a way to hang it."""
FOUND = Path(__file__).with_name("found")
"""What once was a defect: TARGET/NAME."""


def read_a_manifest(data: bytes) -> None:
    """A manifest, or its error."""
    try:
        manifest = read_manifest(data, "fuzz")
    except ManifestError:
        return
    assert read_manifest(json.dumps(manifest_dict(manifest)).encode(), "fuzz") == manifest


def cut_secrets(data: bytes) -> None:
    """Redaction ends, and doing it twice changes nothing."""
    text = data.decode("utf-8", "replace")
    assert scrub(scrub(text)) == scrub(text)


def read_build_info(data: bytes) -> None:
    """TensorFlow's build_info.py is read, never run."""
    build_info(data.decode("utf-8", "replace"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "manifest": read_a_manifest,
    "redact": cut_secrets,
    "build_info": read_build_info,
}


def checked(name: str, data: bytes) -> None:
    """Run a target and hold it to its time."""
    began = time.monotonic()
    TARGETS[name](data)
    assert time.monotonic() - began < SLOWEST, name
