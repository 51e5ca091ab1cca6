"""Records of runs: where they are, and which facts they lack."""

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.cli.console import Progress
from envbuild.cli.options import FactOptions, FormatName
from envbuild.errors import ManifestError, UsageError, counted

if TYPE_CHECKING:
    from envbuild.manifest.importers.environment import RecordOptions
    from envbuild.manifest.importers.record import Record
    from envbuild.manifest.model import TrainingManifest
    from envbuild.match.stack import Stack

_OPTIONS = {
    "accelerator": "--gpu",
    "framework": "--framework",
    "platform.system": "--ran-on",
    "platform.machine": "--ran-on",
}
"""The option that gives a fact."""


def given_facts(options: FactOptions, model: str | None = None) -> "RecordOptions":
    """Return the facts that options give."""
    from envbuild.manifest.importers.environment import RecordOptions

    return RecordOptions(
        python=options.python,
        gpu=options.gpu,
        platform=options.ran_on,
        framework=options.framework,
        model=model,
    )


def read_record(name: str, kind: FormatName | None, given: "RecordOptions", progress: Progress) -> tuple[str, bytes]:
    """Return the name of a record and the bytes of the manifest it makes, as `read_run`."""
    return read_run(name, kind, given, progress)[:2]


def read_run(
    name: str, kind: FormatName | None, given: "RecordOptions", progress: Progress
) -> "tuple[str, bytes, TrainingManifest]":
    """Return the name of a record and the manifest it makes, and report what the record lacks.

    A manifest that nothing is added to keeps its bytes, as its digest may be recorded already.
    """
    from envbuild.manifest.importers.detect import FORMATS, convert, detect
    from envbuild.manifest.importers.environment import RecordOptions, manifest_bytes
    from envbuild.manifest.reader import read_manifest

    record = open_record(name)
    found = kind or detect(record)
    manifest = convert(record, found, given, datetime.now(UTC))
    if found == "capture":
        _report_gaps(manifest, progress)
        same = given == RecordOptions() or manifest == read_manifest(record.data, record.name)
        return record.name, record.data if same else manifest_bytes(manifest), manifest
    detected = "" if kind else "; --from names another format"
    progress.step(f"{record.name} is read as {found}: {FORMATS[found]}{detected}")
    source = manifest.source
    whole = "everything that was installed" if source.complete else "not everything that was installed"
    progress.note(f"{counted(len(manifest.distributions), 'distribution')}, {whole}; Python {manifest.python.version}")
    _report_gaps(manifest, progress)
    unknown = [f"{name} (give {_OPTIONS[name]})" if name in _OPTIONS else name for name in source.unknown]
    if unknown:
        progress.note(f"the record lacks: {', '.join(unknown)}")
    data = manifest_bytes(manifest)
    return record.name, data, read_manifest(data, record.name)


def open_record(name: str) -> "Record":
    """Open a record: a path, a folder with one, - for stdin, or gs://; at most as large as a manifest may be."""
    from envbuild.capture.redact import scrub_line
    from envbuild.manifest.importers.record import Record
    from envbuild.manifest.reader import MAX_MANIFEST

    scheme = re.match("[A-Za-z][A-Za-z0-9+.-]*(?=://)", name)
    if not name or (scheme and scheme.group() != "gs"):
        where = scrub_line(name) or "an empty name"
        raise UsageError("a record cannot be read from here", where=where, todo="give a path, - for stdin, or gs://")
    if name == "-":
        if sys.stdin is None:
            raise ManifestError("standard input is closed", where="-", todo="give the record's path, or pipe it in")
        return Record(name="stdin", data=sys.stdin.buffer.read(MAX_MANIFEST + 1))
    if name.startswith("gs://"):
        return _in_bucket(name)
    return _on_disk(Path(name))


def _on_disk(path: Path) -> "Record":
    from envbuild.manifest.importers.detect import main_file
    from envbuild.manifest.importers.record import Record

    if path.is_dir():
        path /= main_file(lambda name: (path / name).is_file(), str(path))
    data = _read(path)
    if data is None:
        todo = "give the record's path, or make one with `envbuild capture --out manifest.json`"
        raise ManifestError("the record cannot be read: No such file or directory", where=str(path), todo=todo)
    return Record(name=str(path), data=data, beside=_folder_reader(path.parent))


def _folder_reader(folder: Path) -> Callable[[str], bytes | None]:
    """Return a reader of the folder's files; a link out of it is refused, as the record may be another person's."""

    def read(path: str) -> bytes | None:
        found = folder / path
        if not found.resolve().is_relative_to(folder.resolve()):
            what = "this link leads out of the record's folder"
            raise ManifestError(what, where=str(found), todo="replace the link by the file")
        return _read(found)

    return read


def _read(path: Path) -> bytes | None:
    """Read a file, at most as large as a manifest may be; None where there is none."""
    from envbuild.manifest.reader import MAX_MANIFEST

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
    from envbuild.manifest.reader import MAX_MANIFEST
    from envbuild.stamp.gcs import connected, read_object
    from envbuild.stamp.store import parse_model_uri

    place = parse_model_uri(uri)
    with connected(ManifestError) as client:
        return read_object(client, place.bucket or "", place.path, limit=MAX_MANIFEST, error=ManifestError)


def report_changes(stack: "Stack", progress: Progress) -> None:
    """Report how the requirements differ from the run's distributions."""
    for change in stack.changes:
        progress.note(f"{change.before or 'nothing'} -> {change.after or 'dropped'}: {change.reason}")


def _report_gaps(manifest: "TrainingManifest", progress: Progress) -> None:
    """Warn of what could not be recorded."""
    for note in manifest.source.notes:
        progress.warn(note)
    if manifest.installation.unreadable:
        what = "distributions of the run whose name or version no index can have are left out"
        progress.warn(f"{what}: {', '.join(manifest.installation.unreadable)}")
