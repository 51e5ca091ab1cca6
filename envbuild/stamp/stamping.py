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

from envbuild.errors import StampConflict, StampError
from envbuild.stamp.objects import Model, found
from envbuild.stamp.record import (
    MAX_METADATA,
    Anchor,
    Stamp,
    StampedImage,
    StampEntry,
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
from envbuild.stamp.store import Changed, State

TRIES = 8
_RECORD_LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StampResult:
    """The stamp as it now is on the model."""

    record: str
    """The record's name, inside the model's folder."""
    stamp: Stamp
    changed: bool
    """False when the model bore this very stamp before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The anchor, and the record that it pointed to, at one moment."""

    state: State
    name: str | None
    stamp: Stamp | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    image: StampedImage
    manifest: bytes
    lock: bytes
    now: str


def stamp(model_uri: str, entry: StampEntry, *, manifest: bytes, lock: bytes, now: datetime) -> StampResult:
    """Write an image on a model, next to the images of other roles, variants and platforms.

    An image that the model had in the same place is replaced, and stays in the record before. StampConflict when
    somebody else wrote another image there at the same time, or replaced the model; StampError when the model cannot
    be read or written.
    """
    with found(model_uri) as model:
        return write_stamp(model, entry, manifest=manifest, lock=lock, now=now)


def check_stampable(model_uri: str) -> None:
    """Find out before long work what would make a stamp fail after it; changes nothing."""
    with found(model_uri) as model:
        _look(model)
        model.store.check(model.anchor)


def read_stamp(model_uri: str) -> Stamp | None:
    """Read what a model is stamped with; None when it bears no stamp."""
    with found(model_uri) as model:
        return _look(model).stamp


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
    pause: Callable[[int], None] = some_time,
) -> StampResult:
    """Do what `stamp` says on a model that was found; `pause(tried)` waits between tries."""
    inputs = _Inputs(image=stamped(entry, manifest, lock), manifest=manifest, lock=lock, now=rfc3339(now))
    first = _look(model)
    seen = first
    for tried in range(TRIES):
        result = _attempt(model, inputs, seen, tried)
        if result is not None:
            return result
        pause(tried)
        seen = _look_again(model, inputs.image, first)
    if (result := _done(inputs, seen, TRIES)) is not None:
        return result
    todo = "run the command again when the others have finished"
    raise StampError(f"others kept changing the model's metadata, {TRIES} times", where=model.uri, todo=todo)


def _attempt(model: Model, inputs: _Inputs, seen: _Seen, tried: int) -> StampResult | None:
    """Write everything once, on top of what was seen; None when it was not like that any more."""
    if (done := _done(inputs, seen, tried)) is not None:
        return done
    record, name, data = _next_record(model, inputs, seen)
    values = pointer(record, name)
    _check_size({**seen.state.metadata, **values}, model.uri)
    model.store.create(manifest_name(inputs.image), inputs.manifest)
    model.store.create(lock_name(inputs.image), inputs.lock)
    model.store.create(name, data)
    try:
        model.store.patch(model.anchor, values, seen.state)
    except Changed:
        return None
    return StampResult(record=name, stamp=record, changed=True)


def _done(inputs: _Inputs, seen: _Seen, tried: int) -> StampResult | None:
    """Return the stamp that is there if it says it all: ours of a try whose reply was lost, or an equal one."""
    if seen.stamp is None or seen.name is None or merged(seen.stamp.images, inputs.image) != seen.stamp.images:
        return None
    if not pointer(seen.stamp, seen.name).items() <= dict(seen.state.metadata).items():
        return None
    return StampResult(record=seen.name, stamp=seen.stamp, changed=tried > 0)


def _next_record(model: Model, inputs: _Inputs, seen: _Seen) -> tuple[Stamp, str, bytes]:
    image = inputs.image
    record = Stamp(
        model=model.uri,
        anchor=Anchor(name=model.anchor, generation=seen.state.generation),
        images=merged(seen.stamp.images if seen.stamp else (), image),
        environment=image.environment,
        manifest_sha256=image.manifest_sha256,
        lock_sha256=image.lock_sha256,
        created=inputs.now,
        envbuild=version("envbuild"),
        previous=seen.name,
    )
    data = record_bytes(record)
    return record, record_name(data), data


def _look(model: Model) -> _Seen:
    """Read the anchor's state and the record that it points to."""
    state = model.store.state(model.anchor)
    if state is None:
        raise StampConflict("the model was removed while it was looked at", where=model.uri, todo=_REPLACED)
    name = pointed(state.metadata, model.uri)
    if name is None:
        return _Seen(state=state, name=None, stamp=None)
    data = model.store.read(name, limit=_RECORD_LIMIT)
    if data is None:
        todo = f"copy the folder {name.partition('/')[0]}/ along with the model, or remove its envbuild-* metadata"
        raise StampError(f"the record that the model points to is missing: {name}", where=model.uri, todo=todo)
    return _Seen(state=state, name=name, stamp=read_record(name, data))


_REPLACED = "stamp again only if the model that is there now comes from this run"


def _look_again(model: Model, image: StampedImage, first: _Seen) -> _Seen:
    """Read the model anew; StampConflict when what is there now cannot be joined with `image`."""
    seen = _look(model)
    if seen.state.generation != first.state.generation:
        raise StampConflict("the model was replaced while it was stamped", where=model.uri, todo=_REPLACED)
    before = first.stamp.image(image.slot) if first.stamp else None
    theirs = seen.stamp.image(image.slot) if seen.stamp else None
    if theirs and theirs != before and theirs.digest != image.digest:
        raise StampConflict(
            f"somebody else stamped {' '.join(image.slot)} at the same time: "
            f"theirs is {theirs.image}, ours {image.image}",
            where=model.uri,
            todo="find out which of the two belongs to the model, and stamp that one again",
        )
    return seen


def _check_size(metadata: dict[str, str], where: str) -> None:
    size = metadata_size(metadata)
    if size > MAX_METADATA:
        todo = "remove metadata that the model does not need"
        raise StampError(f"the model's metadata would have {size} of {MAX_METADATA} bytes", where=where, todo=todo)
