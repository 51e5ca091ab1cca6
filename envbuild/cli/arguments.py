"""What arguments and options name: records of runs, repositories, bases, platforms and locks."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.cli.console import Progress
from envbuild.cli.options import FactOptions, LockOptions
from envbuild.errors import ManifestError, UsageError, VerifyError, counted

if TYPE_CHECKING:
    from envbuild.build.request import BuildRequest
    from envbuild.lock.model import Lock
    from envbuild.manifest.importers.record import Record
    from envbuild.manifest.model import Model, TrainingManifest
    from envbuild.match.stack import Stack
    from envbuild.oci.image import Image
    from envbuild.oci.reference import Reference
    from envbuild.recipe import Base
    from envbuild.verify.sources import Side

_OPTIONS = {
    "accelerator": "--gpu",
    "framework": "--framework",
    "platform.system": "--ran-on",
    "platform.machine": "--ran-on",
}
"""The option that gives a fact."""


def import_record(
    name: str,
    progress: Progress,
    options: FactOptions | None = None,
    model: str | None = None,
    locks: LockOptions | None = None,
) -> "tuple[str, bytes, TrainingManifest]":
    """Read a file that describes a run (a manifest, a freeze, a lock): its name, and the manifest as bytes and parsed.

    `options` and `model` are facts that the file lacks; what is still missing is reported. `locks` says where wheels
    are, which show what brings an imported module. A manifest to which nothing is added keeps its bytes, as its digest
    may be recorded already.
    """
    from envbuild.manifest.importers.detect import FORMATS, convert, detect
    from envbuild.manifest.importers.environment import RecordOptions, manifest_bytes
    from envbuild.manifest.reader import read_manifest

    it = options or FactOptions()
    given = RecordOptions(python=it.python, gpu=it.gpu, platform=it.ran_on, framework=it.framework, model=model)
    record = open_record(name)
    found = it.kind or detect(record)
    manifest = convert(record, found, given, datetime.now(UTC))
    if found == "capture":
        _report_gaps(manifest, progress)
        manifest = _with_imports(manifest, it, locks, progress)
        facts = given != RecordOptions() or it.imported
        same = not facts or manifest == read_manifest(record.data, record.name)
        return record.name, record.data if same else manifest_bytes(manifest), manifest
    detected = "" if it.kind else "; --from names another format"
    progress.step(f"{record.name} is read as {found}: {FORMATS[found]}{detected}")
    source = manifest.source
    whole = "everything that was installed" if source.complete else "not everything that was installed"
    progress.note(f"{counted(len(manifest.distributions), 'distribution')}, {whole}; Python {manifest.python.version}")
    _report_gaps(manifest, progress)
    if source.unknown:
        lacks = (f"{name} (give {_OPTIONS[name]})" if name in _OPTIONS else name for name in source.unknown)
        progress.note(f"the record lacks: {', '.join(lacks)}")
    data = manifest_bytes(_with_imports(manifest, it, locks, progress))
    return record.name, data, read_manifest(data, record.name)


def _with_imports(
    manifest: "TrainingManifest", facts: FactOptions, locks: LockOptions | None, progress: Progress
) -> "TrainingManifest":
    """Return the manifest with what --imported names, as distributions of the run; UsageError for unknown names."""
    from envbuild.files import cache_folder
    from envbuild.lock.dependencies import find_importers
    from envbuild.lock.model import Target
    from envbuild.lock.resolution import open_session
    from envbuild.lock.settings import read_settings
    from envbuild.match.run import normalize_machine

    names = [it.strip() for text in facts.imported or () for it in text.split(",")]
    if not names:
        return manifest
    if manifest.imported or not all(names):
        what = "the record says what the run imported" if manifest.imported else "a name is empty"
        todo = "leave the option out" if manifest.imported else "give names with commas: --imported pandas,sklearn"
        raise UsageError(what, where=f"--imported {','.join(names)}", todo=todo)
    machine = normalize_machine(manifest.platform.machine or "x86_64")
    target = Target(python=manifest.python.version, machine=machine, glibc="2.17")
    settings = read_settings((locks and locks.find_links) or (), offline=bool(locks and locks.offline))
    many = counted(len(manifest.distributions), "distribution")
    progress.step(f"looking for what brings {', '.join(names)} among {many}")
    with open_session((), target, settings, cache_folder()) as session:
        found = find_importers(names, manifest.distributions, session)
    for name, its in found.items():
        progress.note(f"{name} comes with {', '.join(its)}")
    if locks and not locks.only_imported:
        progress.note("--imported alone leaves nothing out; --only-imported leaves out what these do not require")
    return replace(manifest, imported=tuple(sorted({it for its in found.values() for it in its})))


def open_record(name: str) -> "Record":
    """Open a record: a path, a folder with one, - for stdin, or gs://; at most as large as a manifest may be."""
    from envbuild.capture.redact import scrub_line
    from envbuild.manifest.importers.detect import main_file
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
    path = Path(name)
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


def report_decisions(stack: "Stack", manifest: "TrainingManifest", progress: Progress) -> None:
    """Report what was decided for a run, and why; --json has digests whole.

    A run without a framework is named after the libraries that wrote its model, in the versions that it gets.
    """
    from envbuild.verify.sources import side_of_stack

    names = [stack.title] if stack.framework != "none" else []
    if manifest.model and not names:
        packages = side_of_stack(stack, "").packages or {}
        writers = (*manifest.model.written_by, *(it for one in manifest.model.artifacts for it in one.written_by))
        there = (packages.get(it.name) for it in writers)
        names = list(dict.fromkeys(f"{it.name} {it.version or ''}".strip() for it in there if it))
    title = f"{', '.join(names)} on Python" if names else "Python"
    progress.step(f"{title} {stack.python}, {stack.variant.upper()}")
    for it in stack.decisions:
        source = re.sub(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}", r"\1...", it.source)
        (progress.warn if it.warning else progress.note)(f"{it.what}: {it.value} - {it.reason} [{source}]")


def report_changes(stack: "Stack", progress: Progress) -> None:
    """Report how the requirements differ from the run's; a note on the lock names what the run did not import."""
    for change in (it for it in stack.changes if it.name not in stack.not_imported):
        progress.note(f"{change.before or 'nothing'} -> {change.after or 'dropped'}: {change.reason}")


def warn_unloadable(request: "BuildRequest", model: "Model | None", environment: "Side", progress: Progress) -> None:
    """Warn in a dry run of what may keep an environment from loading the model, and how the run itself ends."""
    from envbuild.build.outputs import check_loading

    try:
        check_loading(request, model, environment, progress)
    except VerifyError as error:
        ends = f"without --dry-run this ends with exit code {error.exit_code}"
        progress.warn(f"{error.what}\n  {ends}; {error.todo}")


def _report_gaps(manifest: "TrainingManifest", progress: Progress) -> None:
    """Warn of what could not be recorded."""
    for note in manifest.source.notes:
        progress.warn(note)
    if manifest.installation.unreadable:
        what = "distributions whose name or version is not valid on a package index are left out"
        progress.warn(f"{what}: {', '.join(manifest.installation.unreadable)}")


def parse_platform(platform: str | None) -> str:
    """Return `x86_64` for `linux/amd64`; this machine's own where none is named; UsageError for one that is unknown."""
    from platform import machine

    from envbuild.oci.layout import ARCHITECTURES

    known = {f"linux/{architecture}": name for name, architecture in ARCHITECTURES.items()}
    if platform is not None and platform not in known:
        todo = f"give {' or '.join(known)}"
        raise UsageError("this platform is not known", where=f"--platform {platform}", todo=todo)
    return known[platform] if platform else machine()


def base_of(text: str, machine: str, progress: Progress, python: str | None = None) -> "Base":
    """Resolve a base and read its facts; an error suggests a base with this version of Python."""
    from envbuild.base.resolve import resolve_base
    from envbuild.files import cache_folder
    from envbuild.registry.pull import pull

    return resolve_base(
        text,
        machine=machine,
        cache=cache_folder(),
        pull=lambda reference, machine: pull(reference, machine=machine),
        report=progress,
        wanted_python=python,
    )


def check_place(place: "Reference", progress: Progress, *, create: bool) -> None:
    """Check that the repository exists, or create it; RegistryError."""
    from envbuild.registry.artifact_registry import ensure_repository

    repository = ensure_repository(place, create=create)
    if repository and repository.created:
        progress.note(f"created {repository.name}")


def read_lock(path: Path, option: str = "--lock ") -> "Lock":
    """Read the lock that an option or argument names; UsageError where there is no such file."""
    from envbuild.lock.formats import read_pylock

    try:
        return read_pylock(path.read_bytes(), str(path), path.parent)
    except FileNotFoundError as error:
        raise UsageError("there is no such file", where=f"{option}{path}", todo="give the path of a lock") from error


def base_named_by(image: "Image", source: str, option: str) -> str:
    """Return the base that the image's annotations name, by digest; UsageError, which names the option, for none."""
    from envbuild.image.rebase import named_base
    from envbuild.oci.digest import Digest
    from envbuild.oci.reference import Reference

    name, digest = named_base(image)
    try:
        return str(replace(Reference.parse(name), digest=Digest.parse(digest)))
    except ValueError as error:
        todo = f"give {option} the base that it was built on"
        raise UsageError("the image's annotations name no base", where=source, todo=todo) from error
