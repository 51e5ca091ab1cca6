"""The model's files on this machine, wherever it lies."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.cache import workplace
from envbuild.capture.gcs import Unread
from envbuild.capture.model import READERS, facts_of_place
from envbuild.capture.places import STAMP_FOLDER, LocalPlace, place_of
from envbuild.errors import StampError
from envbuild.manifest.model import Model
from envbuild.report import Reporter
from envbuild.stamp.store import ModelUri, parse_model_uri

_TODO = "give the URI of the model's file or folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model whose files lie on a disk here."""

    uri: str
    format: str | None
    """As the manifest names formats; None where nothing fits."""
    folder: Path
    """What it lies in, and what no link of it may lead out of where it is embedded."""
    files: Mapping[str, Path]
    """Where each file lies, by its path inside the model."""
    start: str
    """What is loaded: the path of a file inside the model, or of a folder; empty for the model's own."""
    size: int
    """Bytes."""
    digests: Mapping[str, str]
    """Hex sha256 of the files, by their paths inside the model."""
    generations: Mapping[str, int]
    """Of the objects that were downloaded, by their paths inside the model."""

    def differing(self, recorded: Model | None) -> tuple[str, ...]:
        """Files that are not those of a record, as far as it has digests."""
        known = {file.path: file.sha256 for file in recorded.files} if recorded else {}
        return tuple(
            path for path, digest in known.items() if digest and path in self.digests and digest != self.digests[path]
        )


@contextmanager
def open_model(model_uri: str, cache: Path, report: Reporter) -> Iterator[LocalModel]:
    """Yield a model; one in Cloud Storage lies on the cache's disk meanwhile.

    StampError where it cannot be read, UsageError for an invalid URI.
    """
    uri = parse_model_uri(model_uri)
    if uri.bucket is None:
        yield _read(str(uri), uri.path, {})
        return
    with workplace(cache) as folder:
        path, generations = _downloaded(uri, folder, report)
        yield _read(str(uri), str(path), generations)


def _read(uri: str, path: str, generations: Mapping[str, int]) -> LocalModel:
    try:
        place = place_of(path)
    except Unread as error:
        raise StampError(f"the model cannot be read: {error}", where=uri, todo=_TODO) from error
    if not isinstance(place, LocalPlace) or not place.files:
        raise StampError(f"the model cannot be read: {'; '.join(place.faults)}", where=uri, todo=_TODO)
    files = {str(file["path"]): file for file in place.files}
    found = facts_of_place(uri, place).get("format")
    return LocalModel(
        uri=uri,
        format=str(found) if found else None,
        folder=Path(place.folder),
        files={name: Path(place.folder, name) for name in files},
        start=_start(files),
        size=sum(int(file["size"]) for file in place.files),
        digests={name: str(file["sha256"]) for name, file in files.items() if file.get("sha256")},
        generations=generations,
    )


def _start(paths: Mapping[str, Any]) -> str:
    """The file that says most about the model, as capture chooses it; of a SavedModel the folder that it lies in."""
    ranked = (
        (path.count("/"), rank, path)
        for path in paths
        for rank, (pattern, _) in enumerate(READERS)
        if re.fullmatch(pattern, path.rpartition("/")[2])
    )
    path = min(ranked, default=(0, 0, ""))[2]
    return path.rpartition("/")[0] if re.fullmatch(r"(?:.*/)?saved_model\.pb(?:txt)?", path) else path


def _downloaded(uri: ModelUri, folder: Path, report: Reporter) -> tuple[Path, dict[str, int]]:
    """Download a model's objects at the generations that they have now; return its file or folder, and those."""
    from envbuild.stamp.gcs import connected, storage_errors  # noqa: PLC0415 - Google's client takes a second to load

    assert uri.bucket is not None
    with connected() as client, storage_errors(str(uri), uri.bucket, "storage.objects.get"):
        blobs = dict(_blobs(client, uri.bucket, uri))
        total, done = sum(int(blob.size or 0) for blob in blobs.values()), 0
        _check(blobs, total, uri, folder)
        report.note(f"downloading the model: {len(blobs)} files, {total} bytes")
        for path, blob in blobs.items():
            target = folder / "model" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            blob.download_to_filename(str(target), if_generation_match=blob.generation)
            done += int(blob.size or 0)
            report.progress("model", done, total)
    whole = folder / "model"
    alone = set(blobs) == {uri.name} and not uri.folder
    return whole / uri.name if alone else whole, {path: int(blob.generation) for path, blob in blobs.items()}


def _blobs(client: Any, bucket: str, uri: ModelUri) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a model by their paths inside it; of a single object by its name."""
    blob = None if uri.folder else client.bucket(bucket).get_blob(uri.path)
    if blob is not None:
        yield uri.name, blob
        return
    prefix = f"{uri.path}/"
    for blob in client.list_blobs(bucket, prefix=prefix):
        path = blob.name.removeprefix(prefix)
        if path and not path.endswith("/") and not path.startswith(STAMP_FOLDER):
            yield path, blob


def _check(blobs: Mapping[str, Any], total: int, uri: ModelUri, folder: Path) -> None:
    if not blobs:
        raise StampError("there is no model here: no object", where=str(uri), todo=_TODO)
    for path in blobs:
        if path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
            todo = "copy the model to a folder whose objects have plain names"
            raise StampError(f"an object's name is not the path of a file: {path!r}", where=str(uri), todo=todo)
    free = shutil.disk_usage(folder).free
    if total > free:
        todo = "free space there, or set ENVBUILD_CACHE to a folder on another disk"
        raise StampError(f"the model has {total} bytes, and {free} are free", where=str(folder), todo=todo)
