"""Write a stamp so that no other's stamp is lost, and so that a lost reply or a lost race is known for what it is.

The order is: copies of the inputs, then the record, both under names made from their content and never overwritten,
then the pointer, which is set only if the model's anchor still is what was read. So a pointer never points to nothing,
and a stamp that ends anywhere in between has changed nothing that is read.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from itertools import pairwise

from envbuild.errors import StampConflict, StampError
from envbuild.stamp.objects import Model, found
from envbuild.stamp.record import (
    FOLDER,
    MAX_METADATA,
    Anchor,
    Stamp,
    StampedImage,
    StampEntry,
    dropped,
    later_schema,
    lock_name,
    manifest_name,
    merged,
    metadata_size,
    pointed,
    pointer,
    read_record,
    record_bytes,
    record_name,
    rfc3339,
    stamped,
)
from envbuild.stamp.store import Changed, State, Unsure
from envbuild.stamp.who import stamper

TRIES = 16
RECORD_LIMIT = 4 * 1024 * 1024
"""Bytes of a record that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampResult:
    """The stamp as it now is on the model."""

    record: str
    """The record's name, inside the model's folder."""
    stamp: Stamp
    changed: bool
    """False when the model bore this very stamp before."""
    left: tuple[StampedImage, ...] = ()
    """Images of what was there before the model was replaced, or that it is a copy of: they are in the history only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One record, by its name inside the model's folder."""

    name: str
    stamp: Stamp | None
    """None where there is no such record to be trusted; then nobody knows what was before it."""
    data: bytes = b""
    """The bytes that are there, with all that a newer minor version says."""
    fault: str = ""
    """Why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The anchor, and the record that it pointed to, at one moment."""

    state: State
    record: Recorded | None
    """None without a stamp; else one that has been read."""

    @property
    def name(self) -> str | None:
        """The record's name."""
        return self.record.name if self.record else None

    @property
    def stamp(self) -> Stamp | None:
        """What the record says."""
        return self.record.stamp if self.record else None

    @property
    def current(self) -> bool:
        """Whether the record is of this very content: what replaced it, or a copy, may have kept the metadata."""
        return self.stamp is not None and self.stamp.anchor.generation == self.state.generation

    @property
    def images(self) -> tuple[StampedImage, ...]:
        """What this very content was stamped with."""
        return self.stamp.images if self.stamp and self.current else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    image: StampedImage
    manifest: bytes
    lock: bytes
    now: str
    by: str | None


def stamp(
    model_uri: str,
    entry: StampEntry,
    *,
    manifest: bytes,
    lock: bytes,
    now: datetime,
    early: Seen | None = None,
) -> StampResult:
    """Write an image on a model, next to the images of other roles, variants and platforms.

    An image that the model had in the same place is replaced, and stays in the record before. StampConflict when
    somebody else wrote another image there at the same time, or replaced the model, also since `check_stampable` gave
    `early`; StampError when the model cannot be read or written.
    """
    with found(model_uri) as model:
        by = stamper(google=model.uri.startswith("gs://"))
        return write_stamp(model, entry, manifest=manifest, lock=lock, now=now, by=by, early=early)


def check_stampable(model_uri: str) -> Seen:
    """Find out before long work what would make a stamp fail after it; changes nothing. Returns what it saw."""
    with found(model_uri) as model:
        seen = look(model)
        model.store.check(model.anchor)
        return seen


def read_stamp(model_uri: str) -> Stamp | None:
    """Read what a model is stamped with; None when it bears no stamp."""
    with found(model_uri) as model:
        return look(model).stamp


def some_time(tried: int) -> None:
    """Wait up to a tenth of a second, up to twice as long each time: those who met once do not meet again."""
    time.sleep(random.uniform(0, min(0.1 * 2.0**tried, 2.0)))  # noqa: S311 - decides nothing that is secret


def write_stamp(
    model: Model,
    entry: StampEntry,
    *,
    manifest: bytes,
    lock: bytes,
    now: datetime,
    by: str | None = None,
    early: Seen | None = None,
    pause: Callable[[int], None] = some_time,
) -> StampResult:
    """Do what `stamp` says on a model that was found; `pause(tried)` waits between tries."""
    inputs = _Inputs(image=stamped(entry, manifest, lock), manifest=manifest, lock=lock, now=rfc3339(now), by=by)
    first = early or look(model)
    seen = _joined(model, inputs.image, first) if early else first
    for tried in range(TRIES):
        try:
            return _attempt(model, inputs, seen, tried)
        except Changed:
            pause(tried)
            seen = _look_again(model, inputs.image, first)
        except Unsure as unsure:
            return _settled(model, inputs, first, seen, unsure.error)
    if (result := _done(inputs, seen, TRIES)) is not None:
        return result
    todo = "run the command again when the others have finished"
    raise StampError(f"others kept changing the model's metadata, {TRIES} times", where=model.uri, todo=todo)


def _attempt(model: Model, inputs: _Inputs, seen: Seen, tried: int) -> StampResult:
    """Write everything once, on top of what was seen; Changed when it was not like that any more."""
    if (done := _done(inputs, seen, tried)) is not None:
        return done
    record, name, data = _next_record(model, inputs, seen)
    values = pointer(record, name)
    gone = dropped(seen.state.metadata, values)
    kept = {key: value for key, value in seen.state.metadata.items() if key not in gone}
    _check_size({**kept, **values}, model.uri)
    model.store.create(manifest_name(inputs.image), inputs.manifest)
    model.store.create(lock_name(inputs.image), inputs.lock)
    model.store.create(name, data)
    model.store.patch(model.anchor, {**values, **gone}, seen.state)
    return StampResult(record=name, stamp=record, changed=True, left=_left(seen, record))


def _left(seen: Seen, record: Stamp) -> tuple[StampedImage, ...]:
    before = seen.stamp.images if seen.stamp else ()
    return tuple(image for image in before if record.image(image.slot) is None)


def _done(inputs: _Inputs, seen: Seen, tried: int) -> StampResult | None:
    """Return the stamp that is there if it says it all: ours of a try whose reply was lost, or an equal one."""
    if seen.stamp is None or seen.name is None or merged(seen.images, inputs.image) != seen.images:
        return None
    if not pointer(seen.stamp, seen.name).items() <= dict(seen.state.metadata).items():
        return None
    return StampResult(record=seen.name, stamp=seen.stamp, changed=tried > 0)


def _next_record(model: Model, inputs: _Inputs, seen: Seen) -> tuple[Stamp, str, bytes]:
    image = inputs.image
    record = Stamp(
        model=model.uri,
        anchor=Anchor(name=model.anchor, generation=seen.state.generation),
        images=merged(seen.images, image),
        environment=image.environment,
        manifest_sha256=image.manifest_sha256,
        lock_sha256=image.lock_sha256,
        created=inputs.now,
        envbuild=version("envbuild"),
        by=inputs.by,
        previous=seen.name,
        schema_version=later_schema(seen.stamp.schema_version if seen.stamp and seen.images else None),
    )
    data = record_bytes(record)
    return record, record_name(data), data


def look(model: Model) -> Seen:
    """Read the anchor's state and the record that it points to."""
    state = model.store.state(model.anchor)
    if state is None:
        raise StampConflict("the model was removed while it was looked at", where=model.uri, todo=_REPLACED)
    name = pointed(state.metadata, model.uri)
    if name is None:
        return Seen(state=state, record=None)
    data = model.store.read(name, limit=RECORD_LIMIT)
    if data is None:
        command = model.store.unpointing(model.anchor)
        todo = f"copy its folder {FOLDER}/ from where it was stamped, or remove the pointer and stamp anew: {command}"
        raise StampError(f"the record that the model points to is missing: {name}", where=model.uri, todo=todo)
    return Seen(state=state, record=Recorded(name=name, stamp=read_record(name, data), data=data))


_REPLACED = "stamp again only if the model that is there now comes from this run"


def _look_again(model: Model, image: StampedImage, first: Seen) -> Seen:
    """Read the model anew; StampConflict when what is there now cannot be joined with `image`."""
    try:
        return _joined(model, image, first)
    except StampConflict:
        raise
    except StampError as error:
        raise _unknown(error) from error


def _joined(model: Model, image: StampedImage, first: Seen) -> Seen:
    """Look at the model; StampConflict when what came since the first look cannot be joined with `image`."""
    seen = look(model)
    if seen.state.generation != first.state.generation:
        raise StampConflict("the model was replaced since the work on its stamp began", where=model.uri, todo=_REPLACED)
    had = next((one for one in first.images if one.slot == image.slot), None)
    for before, after in pairwise([had, *(record.image(image.slot) for record in _since(model, first, seen))]):
        _check_rival(before, after, image, model.uri)
    return seen


def _since(model: Model, first: Seen, seen: Seen) -> list[Stamp]:
    """Return the records written after the first look, the oldest first, back to one that is gone or altered."""
    newer: list[Stamp] = []
    name, record = seen.name, seen.stamp
    while record is not None and name != first.name:
        newer.insert(0, record)
        older = previous(model, record)
        name, record = record.previous, older.stamp if older else None
    return newer


def previous(model: Model, record: Stamp) -> Recorded | None:
    """Read the record before a record; None when there was none."""
    name = record.previous
    if name is None:
        return None
    data = model.store.read(name, limit=RECORD_LIMIT)
    if data is None:
        return Recorded(name=name, stamp=None, fault="not there any more")
    try:
        return Recorded(name=name, stamp=read_record(name, data), data=data)
    except StampError as error:
        return Recorded(name=name, stamp=None, data=data, fault=error.what)


def _check_rival(before: StampedImage | None, after: StampedImage | None, image: StampedImage, where: str) -> None:
    """StampConflict when a record put another image into the place of ours, be it one that was there before."""
    if after is None or after == before or after.digest == image.digest:
        return
    raise StampConflict(
        f"somebody else stamped {' '.join(image.slot)} at the same time: theirs is {after.image}, ours {image.image}",
        where=where,
        todo="find out which of the two belongs to the model, and stamp that one again",
    )


def _settled(model: Model, inputs: _Inputs, first: Seen, then: Seen, error: StampError) -> StampResult:
    """Find out what became of a pointer when no answer tells: set, never to be set any more, or not to be known."""
    now = _look_again(model, inputs.image, first)
    if (done := _done(inputs, now, TRIES)) is not None:
        return done
    if now.state.metageneration != then.state.metageneration:
        raise error
    raise _unknown(error)


def _unknown(error: StampError) -> StampError:
    todo = "look with `envbuild inspect` when Cloud Storage answers again; if it is not there, stamp again"
    return StampError(f"it cannot be known whether the stamp was written: {error.what}", where=error.where, todo=todo)


def _check_size(metadata: dict[str, str], where: str) -> None:
    size = metadata_size(metadata)
    if size > MAX_METADATA:
        todo = "remove metadata that the model does not need"
        raise StampError(f"the model's metadata would have {size} of {MAX_METADATA} bytes", where=where, todo=todo)
