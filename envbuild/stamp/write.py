"""Stamping: read, merge, write the record, and move the pointer only if nobody else moved it."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from envbuild.errors import EnvbuildError, StampConflict, StampError
from envbuild.oci.digest import Digest
from envbuild.stamp.directory import DirectoryStore
from envbuild.stamp.gcs import GcsStore, read_object
from envbuild.stamp.record import Stamp, StampedImage, StampEntry, content_name, pointer, record_name
from envbuild.stamp.store import Anchor, Store, parse_model_uri

_TRIES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StampResult:
    """What stamping did."""

    record: str
    """The record's name, relative to the model's folder."""
    changed: bool
    """False when the model bore this very stamp before."""


def _sleep(attempt: int) -> None:
    time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 5)))  # noqa: S311 - jitter, no secret


def open_store(model_uri: str) -> Store:
    """Open the folder of a model."""
    uri = parse_model_uri(model_uri)
    return GcsStore(uri.bucket, uri.path) if uri.bucket else DirectoryStore(Path(uri.path))


def check_stampable(model_uri: str) -> None:
    """Fail early when there is no model at this address, or it cannot be read."""
    open_store(model_uri).anchor()


def read_stamp(model_uri: str) -> Stamp | None:
    """Return the record that the model points to; None when it bears no stamp."""
    store = open_store(model_uri)
    return _current(store, store.anchor(), model_uri)


def read_uri(uri: str, *, limit: int, error: type[EnvbuildError]) -> bytes:
    """Read a `gs://` object of at most `limit` bytes; faults are raised as `error`."""
    parsed = parse_model_uri(uri)
    if parsed.bucket is None:
        raise error("this is no address in Cloud Storage", where=uri, todo="give gs://BUCKET/OBJECT")
    return read_object(parsed.bucket, parsed.path, limit, error)


def stamp(
    model_uri: str,
    entry: StampEntry,
    *,
    manifest: bytes,
    lock: bytes,
    now: datetime,
    sleep: Callable[[int], None] = _sleep,
) -> StampResult:
    """Write an image on a model: a new record beside it, then the pointer in the anchor's metadata.

    StampConflict when the model was replaced meanwhile, or somebody else stamped another image for the same role,
    variant and platform; other roles' images are merged. A lost reply is recognised, and is no conflict.
    """
    image = StampedImage(entry=entry, manifest=Digest.of(manifest), lock=Digest.of(lock))
    store = open_store(model_uri)
    anchor = first = store.anchor()
    before = _current(store, anchor, model_uri)
    seen = before.find(entry.slot) if before else None
    for attempt in range(_TRIES):
        current = _current(store, anchor, model_uri) if attempt else before
        found = current.find(entry.slot) if current else None
        if current and found == image:
            return StampResult(record=content_name("record", Digest.of(current.to_bytes())), changed=attempt > 0)
        if found != seen:
            raise _conflict(model_uri, entry, found)
        if not attempt:
            store.create(content_name("manifest", image.manifest), manifest)
            store.create(content_name("lock", image.lock), lock)
        record = _next(model_uri, anchor, current, image, now)
        name = content_name("record", Digest.of(record.to_bytes()))
        store.create(name, record.to_bytes())
        if store.patch(anchor, pointer(record, name)):
            return StampResult(record=name, changed=True)
        sleep(attempt)
        anchor = store.anchor()
        if (anchor.name, anchor.generation) != (first.name, first.generation):
            todo = "run envbuild again for the model that is there now"
            raise StampConflict("the model was replaced while its image was stamped", where=model_uri, todo=todo)
    raise StampConflict("others keep changing the model's metadata", where=model_uri, todo="try again later")


def _current(store: Store, anchor: Anchor, model_uri: str) -> Stamp | None:
    name = record_name(anchor.metadata)
    if name is None:
        return None
    data = store.read(name)
    if data is None:
        todo = "restore the envbuild folder beside the model, or remove the object's envbuild-* metadata"
        raise StampError("the model points to a record that is gone", where=f"{model_uri}: {name}", todo=todo)
    return Stamp.from_bytes(data, f"{model_uri}: {name}")


def _next(model_uri: str, anchor: Anchor, current: Stamp | None, image: StampedImage, now: datetime) -> Stamp:
    record = Stamp(
        model=model_uri,
        anchor=anchor.name,
        generation=anchor.generation,
        images=current.images if current else (),
        created=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        envbuild=_version(),
        previous=record_name(anchor.metadata),
    )
    return record.with_image(image)


def _version() -> str:
    try:
        return version("envbuild")
    except PackageNotFoundError:
        return "unknown"


def _conflict(model_uri: str, entry: StampEntry, found: StampedImage | None) -> StampConflict:
    theirs = found.entry.digest if found else "none"
    return StampConflict(
        f"somebody else stamped the {entry.role} image ({entry.variant}, {entry.platform}) at the same time: "
        f"theirs is {theirs}, ours {entry.digest}",
        where=model_uri,
        todo="decide which one it is, and stamp that one again",
    )
