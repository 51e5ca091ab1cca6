"""What is fuzzed: each target takes bytes, and raises only what is a defect."""

import functools
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from envbuild.capture.conda import _conda_package
from envbuild.capture.distributions import identity, origin_of
from envbuild.capture.frameworks import build_info
from envbuild.capture.golden import golden_facts
from envbuild.capture.integrity import listed_files
from envbuild.capture.native import debian_packages, mapped_libraries
from envbuild.capture.program import read_settings
from envbuild.capture.redact import scrub
from envbuild.errors import ManifestError, UsageError
from envbuild.manifest.importers.detect import convert, detect
from envbuild.manifest.importers.environment import RecordOptions, manifest_bytes
from envbuild.manifest.importers.record import Record
from envbuild.manifest.model import Format
from envbuild.manifest.reader import manifest_dict, read_manifest
from tests.fuzz.deflate import continue_a_stream
from tests.fuzz.wheels import read_a_wheel, read_changed_parts
from tests.unit.modelling import read_memory

SLOWEST = 5.0
"""Seconds; what a reader takes longer for is a way to hang it."""
FOUND = Path(__file__).with_name("found")
"""What once was a defect: TARGET/NAME."""
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MODEL_NAMES = (
    "saved_model.pb",
    "saved_model.pbtxt",
    "model.keras",
    "model.h5",
    "model.pt2",
    "model.pt",
    "model.onnx",
    "model.safetensors",
    "model.ckpt-7.meta",
    "frozen_graph.pb",
    "_CHECKPOINT_METADATA",
)
_NEEDED = {"distributions": [], "python": {"version": "3.11.7", "implementation": "cpython"}, "platform": {}}


def read_a_manifest(data: bytes) -> None:
    """A manifest, or its error."""
    try:
        manifest = read_manifest(data, "fuzz")
    except ManifestError:
        return
    assert read_manifest(json.dumps(manifest_dict(manifest)).encode(), "fuzz") == manifest


def cut_secrets(data: bytes) -> None:
    """Redaction ends soon, and cuts a token wherever it stands."""
    token = "ghp_" + "a1B2" * 9
    assert token not in scrub(f"{data.decode('utf-8', 'replace')} {token}")


def read_build_info(data: bytes) -> None:
    """TensorFlow's build_info.py is read, never run."""
    build_info(data.decode("utf-8", "replace"))


def read_a_record(kind: Format, data: bytes) -> None:
    """A record of another tool becomes a manifest that can be read again, or an error; files beside it are itself."""
    record = Record(name=kind, data=data, beside=lambda _name: data)
    try:
        manifest = convert(record, kind, RecordOptions(python="3.11.7", gpu="none", platform="linux/amd64"), NOW)
    except (ManifestError, UsageError):
        return
    assert read_manifest(manifest_bytes(manifest), "fuzz") == manifest


def tell_the_format(data: bytes) -> None:
    """Any bytes have a format, or none."""
    try:
        detect(Record(name="fuzz", data=data))
    except ManifestError:
        return


def read_a_model(name: str, data: bytes) -> None:
    """What a model's file says fits the schema, whatever it says."""
    facts = read_memory(name, data)
    shape = _NEEDED | {"schema_version": "1.1", "created": "2026-11-21T12:00:00Z", "model": facts}
    read_manifest(json.dumps(shape).encode(), "fuzz")


def in_a_file(name: str, read: Callable[[str], object], data: bytes) -> None:
    """Give a reader the bytes as a file; ValueError is its way to refuse."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        try:
            read(str(path))
        except ValueError:
            return


def _origin(path: str) -> object:
    return origin_of(str(Path(path).parent), "pip", None, {}, patch=False)


def _packages(path: str) -> object:
    return debian_packages(path.removesuffix("var/lib/dpkg/status"))


def _listed(path: str) -> object:
    return list(listed_files(str(Path(path).parent), None) or ())


def _of_conda(path: str) -> object:
    package = _conda_package(path)
    return list(listed_files(f"{Path(path).parent}/lib/x-1.dist-info", package) or ()) if package else None


TARGETS: dict[str, Callable[[bytes], None]] = {
    "manifest": read_a_manifest,
    "redact": cut_secrets,
    "build_info": read_build_info,
    "detect": tell_the_format,
    "settings": functools.partial(in_a_file, "capture.json", read_settings),
    "settings.toml": functools.partial(in_a_file, "envbuild.toml", read_settings),
    "golden.npz": functools.partial(in_a_file, "golden.npz", golden_facts),
    "direct_url": functools.partial(in_a_file, "x-1.dist-info/direct_url.json", _origin),
    "metadata": functools.partial(in_a_file, "x-1.dist-info/METADATA", lambda path: identity(str(Path(path).parent))),
    "record": functools.partial(in_a_file, "x-1.dist-info/RECORD", _listed),
    "conda-meta": functools.partial(in_a_file, "conda-meta/x-1-0.json", _of_conda),
    "maps": functools.partial(in_a_file, "maps", mapped_libraries),
    "dpkg": functools.partial(in_a_file, "var/lib/dpkg/status", _packages),
    **{kind: functools.partial(read_a_record, kind) for kind in get_args(Format) if kind != "capture"},
    **{name: functools.partial(read_a_model, name) for name in MODEL_NAMES},
    "deflate": continue_a_stream,
    "wheel": read_a_wheel,
    "wheel-parts": read_changed_parts,
}


def checked(name: str, data: bytes) -> None:
    """Run a target and hold it to its time."""
    began = time.process_time()
    TARGETS[name](data)
    assert time.process_time() - began < SLOWEST, name
