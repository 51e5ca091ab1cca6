"""What commands that read a record share: its options, where it lies, and what is told about it."""

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.console import Progress
from envbuild.errors import ManifestError, UsageError, counted

if TYPE_CHECKING:
    from envbuild.manifest.importers.environment import RecordOptions
    from envbuild.manifest.importers.record import Record
    from envbuild.manifest.model import TrainingManifest

_OPTIONS = {
    "accelerator": "--gpu",
    "framework": "--framework",
    "platform.system": "--ran-on",
    "platform.machine": "--ran-on",
}
"""The option that gives a fact."""


class FormatName(StrEnum):
    """What --from takes: the formats of `envbuild.manifest.importers`, so that --help need not load them."""

    PIP_FREEZE = "pip-freeze"
    PIP_LIST = "pip-list"
    PIP_INSPECT = "pip-inspect"
    REQUIREMENTS = "requirements"
    PYLOCK = "pylock"
    UV_LOCK = "uv-lock"
    POETRY_LOCK = "poetry-lock"
    PDM_LOCK = "pdm-lock"
    PIPFILE_LOCK = "pipfile-lock"
    CONDA_ENVIRONMENT = "conda-environment"
    CONDA_LIST = "conda-list"
    PIXI_LOCK = "pixi-lock"
    CONDA_LOCK = "conda-lock"
    MLFLOW = "mlflow"
    WANDB = "wandb"


class FrameworkName(StrEnum):
    """What --framework takes."""

    TENSORFLOW = "tensorflow"
    TORCH = "torch"
    JAX = "jax"
    NONE = "none"


Manifest = Annotated[
    str,
    typer.Argument(
        help="A manifest, or another tool's record as for `envbuild convert`: a path, - for stdin, or gs://.",
        metavar="MANIFEST",
    ),
]
From = Annotated[FormatName | None, typer.Option("--from", help="What the record is, where it cannot be told.")]
Python = Annotated[
    str | None, typer.Option(help="The run's Python, as in 3.10.12, where the record does not say.", metavar="VERSION")
]
Gpu = Annotated[
    str | None,
    typer.Option(
        help='The run\'s GPU, such as "Tesla T4", or none, where the record does not say.', metavar="NAME|none"
    ),
]
Framework = Annotated[
    FrameworkName | None,
    typer.Option(help="Which framework the run used, where several are installed and the record does not say."),
]
RanOn = Annotated[
    str | None,
    typer.Option(help="Where it ran, such as linux/amd64, where the record does not say.", metavar="OS/MACHINE"),
]


def read_record(name: str, kind: FormatName | None, given: "RecordOptions", progress: Progress) -> tuple[str, bytes]:
    """Return what a record is called and the bytes of the manifest it makes, as `read_run`."""
    called, data, _ = read_run(name, kind, given, progress)
    return called, data


def read_run(
    name: str, kind: FormatName | None, given: "RecordOptions", progress: Progress
) -> "tuple[str, bytes, TrainingManifest]":
    """Return what a record is called and the manifest it makes, and tell what the record does not say.

    A manifest that nothing was added to keeps its bytes, as its digest may stand elsewhere already; it may have many
    megabytes, and is parsed once.
    """
    from envbuild.manifest import read_manifest
    from envbuild.manifest.importers.detect import FORMATS, convert, detect
    from envbuild.manifest.importers.environment import RecordOptions, manifest_bytes

    record = open_record(name)
    found = kind.value if kind else detect(record)
    manifest = convert(record, found, given, datetime.now(UTC))
    if found == "capture":
        _tell_gaps(manifest, progress)
        same = given == RecordOptions() or manifest == read_manifest(record.data, record.name)
        return record.name, record.data if same else manifest_bytes(manifest), manifest
    sure = "" if kind else "; if it is something else, say so by --from"
    progress.step(f"{record.name} is read as {found}: {FORMATS[found]}{sure}")
    _tell(manifest, progress)
    data = manifest_bytes(manifest)
    return record.name, data, read_manifest(data, record.name)


def open_record(name: str) -> "Record":
    """Open a record: a path, a folder that holds one, - for stdin, or gs://; never more than a manifest may have."""
    from envbuild.capture.redact import scrub_line
    from envbuild.manifest.importers.record import Record

    scheme = re.match("[A-Za-z][A-Za-z0-9+.-]*(?=://)", name)
    if not name or (scheme and scheme.group() != "gs"):
        where = scrub_line(name) or "an empty name"
        raise UsageError("no record can be read from there", where=where, todo="give a path, - for stdin, or gs://")
    if name == "-":
        return Record(name="stdin", data=_stdin())
    if name.startswith("gs://"):
        return _in_bucket(name)
    return _on_disk(Path(name))


def _stdin() -> bytes:
    from envbuild.manifest import MAX_MANIFEST

    if sys.stdin is None:
        raise ManifestError("standard input is closed", where="-", todo="give the record's path, or pipe it in")
    return sys.stdin.buffer.read(MAX_MANIFEST + 1)


def _on_disk(path: Path) -> "Record":
    from envbuild.manifest.importers.detect import main_file
    from envbuild.manifest.importers.record import Record

    if path.is_dir():
        path /= main_file(lambda name: (path / name).is_file(), str(path))
    data = _read(path)
    if data is None:
        todo = "give the record's path, or make one with `envbuild capture --out manifest.json`"
        raise ManifestError("the record cannot be read: No such file or directory", where=str(path), todo=todo)
    return Record(name=str(path), data=data, beside=_beside(path.parent))


def _beside(folder: Path) -> Callable[[str], bytes | None]:
    """Read files of a folder; a link out of it is refused, as the record may be somebody else's."""

    def read(path: str) -> bytes | None:
        found = folder / path
        if not found.resolve().is_relative_to(folder.resolve()):
            what = "this leads out of the record's folder"
            raise ManifestError(what, where=str(found), todo="put the file itself there")
        return _read(found)

    return read


def _read(path: Path) -> bytes | None:
    """Read a file, never more than a manifest may have; None where there is none."""
    from envbuild.manifest import MAX_MANIFEST

    try:
        with path.open("rb") as file:
            return file.read(MAX_MANIFEST + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ManifestError(f"the record cannot be read: {reason}", where=str(path), todo="check the path") from error


def _in_bucket(uri: str) -> "Record":
    from envbuild.manifest.importers.detect import main_file
    from envbuild.manifest.importers.record import Record

    if uri.endswith("/"):
        uri += main_file(lambda name: _object(uri + name) is not None, uri)
    data = _object(uri)
    if data is None:
        raise ManifestError("there is no such object", where=uri, todo="check the bucket's and the object's name")
    return Record(name=uri, data=data, beside=lambda path: _object(f"{uri.rpartition('/')[0]}/{path}"))


def _object(uri: str) -> bytes | None:
    """Read an object; None where there is none."""
    from envbuild.manifest import MAX_MANIFEST
    from envbuild.stamp import parse_model_uri
    from envbuild.stamp.gcs import connected, read_object

    place = parse_model_uri(uri)
    with connected(ManifestError) as client:
        return read_object(client, place.bucket or "", place.path, limit=MAX_MANIFEST, error=ManifestError)


def _tell(manifest: "TrainingManifest", progress: Progress) -> None:
    source = manifest.source
    whole = "everything that was installed" if source.complete else "not everything that was installed"
    progress.note(f"{counted(len(manifest.distributions), 'distribution')}, {whole}; Python {manifest.python.version}")
    _tell_gaps(manifest, progress)
    unknown = [f"{name} ({_OPTIONS[name]} says it)" if name in _OPTIONS else name for name in source.unknown]
    if unknown:
        progress.note(f"the record does not say: {', '.join(unknown)}")


def _tell_gaps(manifest: "TrainingManifest", progress: Progress) -> None:
    """Warn of what whoever recorded the run could not keep."""
    for note in manifest.source.notes:
        progress.warn(note)
    if manifest.installation.unreadable:
        what = "distributions of the run whose name or version no index can have are left out"
        progress.warn(f"{what}: {', '.join(manifest.installation.unreadable)}")
