"""Write a stamp so that no other's stamp is lost, and so that a lost reply or a lost race is known for what it is.

The order is: copies of the inputs, then the record, both under names made from their content and never overwritten,
then the record's signature where there is a key, then the pointer, which is set only if the model's anchor still is
what was read. So a pointer never points to nothing, and a stamp that ends anywhere in between has changed nothing that
is read.

A key vouches for a whole record. So a record that is signed continues the newest one that its key has signed, and not
whatever the pointer names.
"""

import getpass
import json
import os
import platform
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from itertools import takewhile
from typing import Any

from envbuild.capture.redact import scrub_line
from envbuild.errors import StampConflict, StampError
from envbuild.files import credentials_path
from envbuild.stamp.history import Snapshot, read_previous, read_snapshot
from envbuild.stamp.objects import Model, open_model
from envbuild.stamp.record import (
    FOLDER,
    MAX_METADATA,
    Anchor,
    Content,
    Stamp,
    StampedImage,
    StampEntry,
    dropped,
    later_schema,
    lock_name,
    manifest_name,
    merged,
    metadata_size,
    pointer,
    record_bytes,
    record_digest,
    record_name,
    rfc3339,
    signature_name,
    stamped,
)
from envbuild.stamp.signature import SIGNATURE_LIMIT, Signer, find_fork, signed_check
from envbuild.stamp.store import Changed, Unreachable, Unsure

TRIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StampResult:
    """The stamp as it now is on the model."""

    record: str
    """The record's name, inside the model's folder."""
    stamp: Stamp
    changed: bool
    """False when the model bore this very stamp before."""
    dropped: tuple[StampedImage, ...] = ()
    """Images that the model bore before, and that this stamp does not name."""
    reason_dropped: str = ""
    """Why it does not."""
    unsigned_now: bool = False
    """Whether it is not signed, and takes the place of a record that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    image: StampedImage
    manifest: bytes
    lock: bytes
    now: str
    by: str | None
    signer: Signer | None
    content: Content | None
    built_on: StampedImage | None


def stamp(  # noqa: PLR0913 - a record says as much
    model_uri: str,
    entry: StampEntry,
    *,
    manifest: bytes,
    lock: bytes,
    now: datetime,
    early: Snapshot | None = None,
    signer: Signer | None = None,
    content: Content | None = None,
    built_on: StampedImage | None = None,
) -> StampResult:
    """Write an image on a model, next to the images of other roles, variants and platforms.

    `content` are the model's files as they were compared with its run. `built_on` is the stamped training image that a
    serving image was built on: StampConflict when another has taken its place since.
    With `signer` the record is signed; images of a record that its keys did not sign are left out.

    An image that the model had in the same place is replaced, and stays in the record before. StampConflict when
    somebody else wrote another image there at the same time, or replaced the model, also since `check_stampable` gave
    `early`; StampError when the model cannot be read or written.
    """
    with open_model(model_uri, signed_check(signer)) as model:
        by = stamper(google=model.uri.startswith("gs://"))
        return write_stamp(
            model,
            entry,
            manifest=manifest,
            lock=lock,
            now=now,
            by=by,
            early=early,
            signer=signer,
            content=content,
            built_on=built_on,
        )


def check_stampable(model_uri: str, signer: Signer | None = None) -> Snapshot:
    """Find out before long work what would make a stamp fail after it; changes nothing. Returns what it saw."""
    with open_model(model_uri, signed_check(signer)) as model:
        seen = read_snapshot(model, signer)
        model.store.check(model.anchor)
        if signer:
            _check_minimum(model, signer, seen)
            if fork := find_fork(model, seen.records, signer):
                raise StampError(fork, where=model.uri)
        return seen


def some_time(tried: int) -> None:
    """Wait up to a tenth of a second, up to twice as long each time: those who met once do not meet again."""
    time.sleep(random.uniform(0, min(0.1 * 2.0**tried, 2.0)))  # noqa: S311 - decides nothing that is secret


def write_stamp(  # noqa: PLR0913 - `by` and `pause` are for this package and its tests
    model: Model,
    entry: StampEntry,
    *,
    manifest: bytes,
    lock: bytes,
    now: datetime,
    by: str | None = None,
    early: Snapshot | None = None,
    pause: Callable[[int], None] = some_time,
    signer: Signer | None = None,
    content: Content | None = None,
    built_on: StampedImage | None = None,
) -> StampResult:
    """Do what `stamp` says on a model that was found; `pause(tried)` waits between tries."""
    image = stamped(entry, manifest, lock)
    inputs = _Inputs(
        image=image,
        manifest=manifest,
        lock=lock,
        now=rfc3339(now),
        by=by,
        signer=signer,
        content=content,
        built_on=built_on,
    )
    first = early or read_snapshot(model, signer)
    seen = _joined(model, inputs, first) if early else first
    reason = ""
    for tried in range(TRIES):
        try:
            return _attempt(model, inputs, seen, tried)
        except Changed as changed:
            reason = str(changed)
            pause(tried)
            seen = _look_again(model, inputs, first)
        except Unsure as unsure:
            return _settled(model, inputs, first, seen, unsure.error)
    if (result := _existing_stamp(inputs, seen, TRIES)) is not None:
        return result
    if reason:
        raise StampError(reason, where=model.uri)
    todo = "run the command again when the others have finished"
    raise StampError(f"others kept changing the model's metadata, {TRIES} times", where=model.uri, todo=todo)


def _attempt(model: Model, inputs: _Inputs, seen: Snapshot, tried: int) -> StampResult:
    """Write everything once, on top of what was seen; Changed when it was not like that any more."""
    if (done := _existing_stamp(inputs, seen, tried)) is not None:
        _create(model, manifest_name(inputs.image), inputs.manifest)
        _create(model, lock_name(inputs.image), inputs.lock)
        return done
    _check_built_on(model, inputs, seen)
    record, name, data = _next_record(model, inputs, seen)
    if inputs.signer:
        _check_minimum(model, inputs.signer, seen)
        if fork := find_fork(model, seen.records, inputs.signer, record):
            raise Changed(fork)  # of somebody who stamps at the same time, and who joins it in a moment
    values = pointer(record, name)
    gone = dropped(seen.state.metadata, values)
    kept = {key: value for key, value in seen.state.metadata.items() if key not in gone}
    _check_size({**kept, **values}, model.uri)
    _create(model, manifest_name(inputs.image), inputs.manifest)
    _create(model, lock_name(inputs.image), inputs.lock)
    _create(model, name, data)
    if inputs.signer:
        _sign(model, name, inputs.signer)
    unsigned = not inputs.signer and seen.name is not None and _has_signature(model, seen.name)
    model.store.patch(model.anchor, {**values, **gone}, seen.state)
    continued = seen.base is not None and seen.base[0] == seen.name
    why = "the model was replaced or copied" if continued else "the record before is not this key's newest"
    if continued and seen.current:
        why = "training stamped another model or environment"
    return StampResult(
        record=name,
        stamp=record,
        changed=True,
        dropped=_dropped(seen, record),
        reason_dropped=why,
        unsigned_now=unsigned,
    )


def _create(model: Model, name: str, data: bytes) -> None:
    """Write an object that is named by its content; StampError where something else lies in its place."""
    if model.store.create(name, data):
        return
    try:
        there = model.store.read(name, limit=len(data))
    except Unreachable:
        raise
    except StampError:  # too large, or no file
        there = None
    if there != data:
        todo = f"remove {name} and stamp again"
        raise StampError(f"{name} has other content than its name says", where=model.uri, todo=todo)


def _check_built_on(model: Model, inputs: _Inputs, seen: Snapshot) -> None:
    """StampConflict where the record that the next one continues has another training image than ours was built on."""
    before, base = inputs.built_on, seen.base[1] if seen.base else None
    if before is None:
        return
    now = (base.image(("train", *inputs.image.slot[1:])) or base.image(before.slot)) if base else None
    if now is None or (now.digest, now.manifest_sha256) != (before.digest, before.manifest_sha256):
        number = f" (record {base.counter})" if base else ""
        what = f"training stamped a new environment{number} while the serving image was built"
        raise StampConflict(what, where=model.uri, todo="run the command again: it builds on the new environment")


def _check_minimum(model: Model, signer: Signer, seen: Snapshot) -> None:
    """StampError where the record that the next one continues has too low a number."""
    newest = seen.base[1].counter if seen.base else 0
    if newest < signer.minimum:
        has = f"the model's newest record by this key is {newest}" if newest else "the model has no record by this key"
        what = f"{has}, and --minimum-record asks for {signer.minimum} or later: newer ones were removed"
        todo = f"restore {FOLDER}/ from where it is kept, or leave --minimum-record out to go on from what is there"
        raise StampError(what, where=model.uri, todo=todo)


def _has_signature(model: Model, name: str) -> bool:
    return model.store.read(signature_name(name), limit=SIGNATURE_LIMIT) is not None


def _sign(model: Model, name: str, signer: Signer) -> None:
    """Write the signature beside a record, and read it back: the pointer moves only to a record that is signed."""
    place, digest = signature_name(name), record_digest(name)
    model.store.create(place, signer.sign(digest))
    if says := signer.fault(model.store.read(place, limit=SIGNATURE_LIMIT) or b"", digest):
        todo = f"remove {place} and stamp again"
        raise StampError(f"the signature read back is not valid: {says}", where=model.uri, todo=todo)


def _dropped(seen: Snapshot, record: Stamp) -> tuple[StampedImage, ...]:
    before = seen.stamp.images if seen.stamp else ()
    return tuple(image for image in before if record.image(image.slot) is None)


def _existing_stamp(inputs: _Inputs, seen: Snapshot, tried: int) -> StampResult | None:
    """Return the stamp that is there if it says it all: ours of a try whose reply was lost, or an equal one."""
    if seen.stamp is None or seen.name is None or merged(seen.images, inputs.image) != seen.images:
        return None
    if seen.base is None or seen.base[0] != seen.name or inputs.content not in (None, seen.stamp.content):
        return None
    if not pointer(seen.stamp, seen.name).items() <= dict(seen.state.metadata).items():
        return None
    return StampResult(record=seen.name, stamp=seen.stamp, changed=tried > 0)


def _next_record(model: Model, inputs: _Inputs, seen: Snapshot) -> tuple[Stamp, str, bytes]:
    image = inputs.image
    anchor = Anchor(name=model.anchor, generation=seen.state.generation)
    kept = _carried_images(seen.base[1], inputs) if seen.base and seen.base[1].anchor == anchor else ()
    record = Stamp(
        model=model.uri,
        anchor=anchor,
        images=merged(kept, image),
        environment=image.environment,
        manifest_sha256=image.manifest_sha256,
        lock_sha256=image.lock_sha256,
        created=inputs.now,
        envbuild=version("envbuild"),
        by=inputs.by,
        previous=seen.base[0] if seen.base else None,
        counter=(seen.base[1].counter if seen.base else 0) + 1,
        content=inputs.content,
        schema_version=later_schema(seen.base[1].schema_version if seen.base and kept else None),
    )
    data = record_bytes(record)
    return record, record_name(data), data


def _carried_images(base: Stamp, inputs: _Inputs) -> tuple[StampedImage, ...]:
    """The images of a record that the next one names too.

    None of other model files than training stamps now, and none that was built on a training image that is replaced.
    """
    image, now = inputs.image, inputs.content
    if image.role != "train":
        return base.images
    if base.content and now and not base.content.is_within(now):
        return ()
    old = base.image(image.slot)
    if old is None or old.digest == image.digest:
        return base.images
    # What has no training image of its own variant and platform was built from another one's manifest.
    return tuple(
        it for it in base.images if it.role != "serve" or base.image(("train", *it.slot[1:])) not in (old, None)
    )


_REPLACED = "stamp again only if the model that is there now comes from this run"


def _look_again(model: Model, inputs: _Inputs, first: Snapshot) -> Snapshot:
    """Read the model anew; StampConflict when what is there now cannot be joined with the image."""
    try:
        return _joined(model, inputs, first)
    except StampConflict:
        raise
    except StampError as error:
        raise _unknown(error) from error


def _joined(model: Model, inputs: _Inputs, first: Snapshot) -> Snapshot:
    """Look at the model; StampConflict when what came since the first look cannot be joined with the image."""
    seen, image = read_snapshot(model, inputs.signer), inputs.image
    if seen.state.generation != first.state.generation:
        raise StampConflict("the model was replaced since the work on its stamp began", where=model.uri, todo=_REPLACED)
    for record, before in _since(model, first, seen):
        had = before.image(image.slot) if before and before.anchor == record.anchor else None
        _check_rival(had, record.image(image.slot), image, model.uri)
    return seen


def _since(model: Model, first: Snapshot, seen: Snapshot) -> list[tuple[Stamp, Stamp | None]]:
    """Return the records written since then, the oldest first, each with the record that it continues."""
    if seen.name == first.name:
        return []
    known = {first.name, *(name for name, *_ in _chain(model, first))}
    newer = takewhile(lambda it: it[0] not in known, _chain(model, seen))
    return [(record, before) for _, record, before in newer][::-1]


def _chain(model: Model, seen: Snapshot) -> Iterator[tuple[str, Stamp, Stamp | None]]:
    """Yield the records of the model's present content, the newest first, each with the record that it continues."""
    name, record = seen.name, seen.stamp
    while name and record and record.anchor.generation == seen.state.generation:
        older = read_previous(model, record)
        before = older.stamp if older else None
        yield name, record, before
        name, record = record.previous, before


def _check_rival(before: StampedImage | None, after: StampedImage | None, image: StampedImage, where: str) -> None:
    """StampConflict when a record put another image into the place of ours, be it one that was there before."""
    if after is None or after == before or after.digest == image.digest:
        return
    raise StampConflict(
        f"somebody else stamped {' '.join(image.slot)} at the same time: theirs is {after.image}, ours {image.image}",
        where=where,
        todo="find out which of the two belongs to the model, and stamp that one again",
    )


def _settled(model: Model, inputs: _Inputs, first: Snapshot, then: Snapshot, error: StampError) -> StampResult:
    """Find out what became of a pointer when no answer tells: set, never to be set any more, or not to be known."""
    now = _look_again(model, inputs, first)
    if (done := _existing_stamp(inputs, now, TRIES)) is not None:
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


_LONGEST = 200
_IMPERSONATED = re.compile(r"/serviceAccounts/([^/:]+):generateAccessToken\Z")
_CREDENTIALS_LIMIT = 1024 * 1024


def stamper(*, google: bool) -> str | None:
    """Return who is recorded to have stamped; None where nobody can tell, or where ENVBUILD_BY is set and empty.

    ENVBUILD_BY if it is set; else the account that Google's default credentials name in their file, if `google`; else
    `user@host`.
    """
    told = os.environ.get("ENVBUILD_BY")
    if told is not None:
        return _line(told)
    return (google and _line(_account(_credentials()))) or _line(_here())


def _line(text: str) -> str | None:
    """One line of it that people can read, without what looks like a secret: it can never be taken back."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return scrub_line(line)[:_LONGEST].strip() or None


def _here() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
    return f"{user}@{platform.node()}"


def _credentials() -> dict[str, Any]:
    """Read the file that google.auth.default() looks into first, and nothing that has to be asked for."""
    try:
        with credentials_path(os.environ).open("rb") as file:
            value = json.loads(file.read(_CREDENTIALS_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _account(credentials: dict[str, Any]) -> str:
    """Name the account of the credentials' file (google-auth, `google/auth/_default.py`): only what is no secret."""
    impersonated = _IMPERSONATED.search(str(credentials.get("service_account_impersonation_url") or ""))
    if impersonated:
        return impersonated[1]
    return str(credentials.get("client_email") or credentials.get("account") or "")
