"""Write a stamp so that no other stamp is lost, and so that lost replies and lost races are recognised.

The order is: copies of the inputs, then the record, both under names of their content and never overwritten, then the
record's signature if there is a key, then the pointer, which is set only if the model's anchor has not changed. So a
pointer never points to nothing, and a stamp that ends anywhere in between has changed nothing that is read.

A key signs a whole record. So a signed record continues the newest one of its key, whatever the pointer names.
"""

import getpass
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from itertools import takewhile

from envbuild.capture.redact import scrub_line
from envbuild.errors import StampConflict, StampError
from envbuild.files import credentials_path
from envbuild.retry import Retry
from envbuild.stamp.history import (
    REPLACED,
    SIGNATURE_LIMIT,
    Signer,
    Snapshot,
    find_fork,
    read_previous,
    read_snapshot,
    signed_check,
)
from envbuild.stamp.objects import Model, open_model
from envbuild.stamp.record import (
    FOLDER,
    MAX_METADATA,
    Anchor,
    ModelFiles,
    Stamp,
    StampedImage,
    StampEntry,
    dropped,
    later_schema,
    lock_name,
    manifest_name,
    merged,
    pointer,
    record_bytes,
    record_digest,
    record_name,
    rfc3339,
    signature_name,
    stamped,
)
from envbuild.stamp.store import Changed, Unreachable, Unsure

_RETRY = Retry(tries=16, first=0.05, factor=2, longest=1.0, jitter=1.0)
"""After a lost race; with full jitter, so that those who met once do not meet again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampResult:
    """The stamp that the model has now."""

    record: str
    """The record's name, inside the model's folder."""
    stamp: Stamp
    changed: bool
    """False when the model had this stamp before."""
    dropped: tuple[StampedImage, ...] = ()
    """Images of the former stamp that this one does not keep."""
    reason_dropped: str = ""
    """Why they are not kept."""
    unsigned_now: bool = False
    """Whether it is not signed, and replaces a record that is."""


def stamp(  # noqa: PLR0913 - a record has as many parts
    model_uri: str,
    entry: StampEntry,
    *,
    manifest: bytes,
    lock: bytes,
    now: datetime,
    stamp_before: Snapshot | None = None,
    signer: Signer | None = None,
    content: ModelFiles | None = None,
    built_on: StampedImage | None = None,
) -> StampResult:
    """Write an image on a model, next to the images of other roles, variants and platforms.

    `content` are the model's files as they were compared with its run. `built_on` is the stamped training image that a
    serving image was built on: StampConflict when another has replaced it since. With `signer` the record is signed;
    images of a record that its keys did not sign are left out.

    An image that the model had in the same slot is replaced, and stays in the record before. StampConflict when another
    command wrote another image there at the same time, or the model was replaced, also since `check_stampable` returned
    `stamp_before`; StampError when the model cannot be read or written.
    """
    with open_model(model_uri, signed_check(signer)) as model:
        writer = StampWriter(
            model=model,
            image=stamped(entry, manifest, lock),
            manifest=manifest,
            lock=lock,
            now=now,
            by=stamper(google=model.uri.startswith("gs://")),
            signer=signer,
            content=content,
            built_on=built_on,
        )
        return writer.write(stamp_before)


def check_stampable(model_uri: str, signer: Signer | None = None) -> Snapshot:
    """Find out before long work what would make a stamp fail after it; changes nothing. Returns the present state."""
    with open_model(model_uri, signed_check(signer)) as model:
        snapshot = read_snapshot(model, signer)
        model.store.check(model.anchor)
        if signer:
            _check_minimum(model, signer, snapshot)
            if fork := find_fork(model, snapshot.records, signer):
                raise StampError(fork, where=model.uri)
        return snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StampWriter:
    """Writes one image on a model."""

    model: Model
    image: StampedImage
    manifest: bytes
    lock: bytes
    now: datetime
    by: str | None = None
    signer: Signer | None = None
    content: ModelFiles | None = None
    built_on: StampedImage | None = None
    retry: Retry = _RETRY

    def write(self, stamp_before: Snapshot | None = None) -> StampResult:
        """Write the stamp; errors as `stamp`."""
        first = stamp_before or read_snapshot(self.model, self.signer)
        now, reason = self._join(first) if stamp_before else first, ""
        for number in range(self.retry.tries):
            try:
                return self._attempt(now, number)
            except Changed as changed:
                reason = str(changed)
                time.sleep(self.retry.pause(number + 1))
                now = self._join_again(first)
            except Unsure as unsure:
                then, now = now, self._join_again(first)
                if result := self._existing(now, retried=True):
                    return result
                if now.state.metageneration != then.state.metageneration:
                    raise unsure.error from unsure
                raise self._unknown(unsure.error) from unsure
        if result := self._existing(now, retried=True):
            return result
        if reason:
            raise StampError(reason, where=self.model.uri)
        what = f"other commands changed the model's metadata {self.retry.tries} times"
        raise StampError(what, where=self.model.uri, todo="run the command again when they have finished")

    def _unknown(self, error: StampError) -> StampError:
        todo = "run `envbuild inspect` when Cloud Storage answers again; if the stamp is missing, stamp again"
        return StampError(f"unknown whether the stamp was written: {error.what}", where=error.where, todo=todo)

    def _attempt(self, now: Snapshot, number: int) -> StampResult:
        """Write everything once, on top of what was read; Changed when the model has changed since."""
        if result := self._existing(now, retried=number > 0):
            self._create_inputs()
            return result
        self._check_built_on(now)
        record = self._next_record(now)
        data = record_bytes(record)
        name = record_name(data)
        if self.signer:
            _check_minimum(self.model, self.signer, now)
            if fork := find_fork(self.model, now.records, self.signer, record):
                raise Changed(fork)  # of a command that stamps at the same time, and will continue that record
        values = pointer(record, name)
        removed = dropped(now.state.metadata, values)
        metadata = {key: text for key, text in now.state.metadata.items() if key not in removed} | values
        size = sum(len(key.encode()) + len(text.encode()) for key, text in metadata.items())
        if size > MAX_METADATA:
            what = f"the model's metadata would have {size} of {MAX_METADATA} bytes"
            raise StampError(what, where=self.model.uri, todo="remove metadata that the model does not need")
        self._create_inputs()
        self._create(name, data)
        if self.signer:
            self._sign(name, self.signer)
        unsigned = False
        if not self.signer and now.name is not None:
            unsigned = self.model.store.read(signature_name(now.name), limit=SIGNATURE_LIMIT) is not None
        self.model.store.patch(self.model.anchor, {**values, **removed}, now.state)
        reason = "the current record was not signed by this key"
        if now.predecessor and now.predecessor[0] == now.name:
            replaced = "the model was replaced or copied"
            reason = "training stamped another model or environment" if now.current else replaced
        before = now.stamp.images if now.stamp else ()
        return StampResult(
            record=name,
            stamp=record,
            changed=True,
            dropped=tuple(image for image in before if record.image(image.slot) is None),
            reason_dropped=reason,
            unsigned_now=unsigned,
        )

    def _create_inputs(self) -> None:
        self._create(manifest_name(self.image), self.manifest)
        self._create(lock_name(self.image), self.lock)

    def _create(self, name: str, data: bytes) -> None:
        """Write an object that is named by its content; StampError if another has its name."""
        if self.model.store.create(name, data):
            return
        try:
            existing = self.model.store.read(name, limit=len(data))
        except Unreachable:
            raise
        except StampError:  # too large, or not a file
            existing = None
        if existing != data:
            what = f"{name} has other content than its name requires"
            raise StampError(what, where=self.model.uri, todo=f"remove {name} and stamp again")

    def _check_built_on(self, now: Snapshot) -> None:
        """StampConflict if the record that the next one continues has another training image than `built_on`."""
        before, last = self.built_on, now.predecessor[1] if now.predecessor else None
        if before is None:
            return
        train = (last.image(("train", *self.image.slot[1:])) or last.image(before.slot)) if last else None
        if train is None or (train.digest, train.manifest_sha256) != (before.digest, before.manifest_sha256):
            number = f" (record {last.counter})" if last else ""
            what = f"training stamped a new environment{number} while the serving image was built"
            todo = "run the command again: it builds on the new environment"
            raise StampConflict(what, where=self.model.uri, todo=todo)

    def _sign(self, name: str, signer: Signer) -> None:
        """Write the signature beside a record, and read it back: the pointer moves only to a signed record."""
        place, digest = signature_name(name), record_digest(name)
        self.model.store.create(place, signer.sign(digest))
        if fault := signer.fault(self.model.store.read(place, limit=SIGNATURE_LIMIT) or b"", digest):
            what = f"the signature read back is not valid: {fault}"
            raise StampError(what, where=self.model.uri, todo=f"remove {place} and stamp again")

    def _existing(self, now: Snapshot, *, retried: bool) -> StampResult | None:
        """Return the existing stamp if it is this one: of a try whose reply was lost, or an equal one by this key."""
        if now.stamp is None or now.name is None or merged(now.images, self.image) != now.images:
            return None
        if now.predecessor is None or now.predecessor[0] != now.name or self.content not in (None, now.stamp.content):
            return None
        if not pointer(now.stamp, now.name).items() <= dict(now.state.metadata).items():
            return None
        if self.signer:
            signature = self.model.store.read(signature_name(now.name), limit=SIGNATURE_LIMIT) or b""
            if not self.signer.has_signed(signature, record_digest(now.name)):
                return None
        return StampResult(record=now.name, stamp=now.stamp, changed=retried)

    def _next_record(self, now: Snapshot) -> Stamp:
        name, last = now.predecessor or (None, None)
        anchor = Anchor(name=self.model.anchor, generation=now.state.generation)
        carried = self._carried_images(last) if last and last.anchor == anchor else ()
        return Stamp(
            model=self.model.uri,
            anchor=anchor,
            images=merged(carried, self.image),
            environment=self.image.environment,
            manifest_sha256=self.image.manifest_sha256,
            lock_sha256=self.image.lock_sha256,
            created=rfc3339(self.now),
            envbuild=version("envbuild"),
            by=self.by,
            previous=name,
            counter=(last.counter if last else 0) + 1,
            content=self.content,
            schema_version=later_schema(last.schema_version if last and carried else None),
        )

    def _carried_images(self, last: Stamp) -> tuple[StampedImage, ...]:
        """The images of the predecessor that the next record keeps.

        If training stamps other model files: none. If it replaces a training image: not the serving images built on it.
        """
        if self.image.role != "train":
            return last.images
        if last.content and self.content and not last.content.is_within(self.content):
            return ()
        old = last.image(self.image.slot)
        if old is None or old.digest == self.image.digest:
            return last.images
        # A serving image without a training image of its variant and platform was built from another one's manifest.
        return tuple(
            it for it in last.images if it.role != "serve" or last.image(("train", *it.slot[1:])) not in (old, None)
        )

    def _join_again(self, first: Snapshot) -> Snapshot:
        """Read the model after a try; StampConflict as `_join`."""
        try:
            return self._join(first)
        except StampConflict:
            raise
        except StampError as error:
            raise self._unknown(error) from error

    def _join(self, first: Snapshot) -> Snapshot:
        """Read the model again; StampConflict when records written since `first` contradict this stamp."""
        now = read_snapshot(self.model, self.signer)
        if now.state.generation != first.state.generation:
            what = "the model was replaced since the work on its stamp began"
            raise StampConflict(what, where=self.model.uri, todo=REPLACED)
        if now.name == first.name:
            return now
        known = {first.name, *(name for name, *_ in self._records(first))}
        newer = takewhile(lambda it: it[0] not in known, self._records(now))
        for _, record, before in list(newer)[::-1]:
            old = before.image(self.image.slot) if before and before.anchor == record.anchor else None
            new = record.image(self.image.slot)
            if new is not None and new != old and new.digest != self.image.digest:
                slot = " ".join(self.image.slot)
                what = f"another command stamped {slot} at the same time: {new.image} instead of {self.image.image}"
                todo = "find out which of the two belongs to the model, and stamp that one again"
                raise StampConflict(what, where=self.model.uri, todo=todo)
        return now

    def _records(self, now: Snapshot) -> Iterator[tuple[str, Stamp, Stamp | None]]:
        """Yield the records of the model's present content, the newest first, each with the one that it continues."""
        name, record = now.name, now.stamp
        while name and record and record.anchor.generation == now.state.generation:
            older = read_previous(self.model, record)
            before = older.stamp if older else None
            yield name, record, before
            name, record = record.previous, before


def _check_minimum(model: Model, signer: Signer, now: Snapshot) -> None:
    """StampError if the record that the next one continues has too low a number."""
    newest = now.predecessor[1].counter if now.predecessor else 0
    if newest < signer.minimum:
        has = f"the model's newest record by this key is {newest}" if newest else "the model has no record by this key"
        what = f"{has}, and --minimum-record requires {signer.minimum} or later: newer ones were removed"
        todo = f"restore {FOLDER}/ from a backup, or omit --minimum-record to continue the present record"
        raise StampError(what, where=model.uri, todo=todo)


_LONGEST = 200
_IMPERSONATED = re.compile(r"/serviceAccounts/([^/:]+):generateAccessToken\Z")
_CREDENTIALS_LIMIT = 1024 * 1024


def stamper(*, google: bool) -> str | None:
    """Return the author of a stamp; None if unknown, or if ENVBUILD_BY is set and empty.

    ENVBUILD_BY if it is set; else the account that Google's default credentials name in their file, if `google`; else
    `user@host`.
    """
    chosen = os.environ.get("ENVBUILD_BY")
    if chosen is not None:
        return _line(chosen)
    if google and (account := _line(_google_account())):
        return account
    try:
        return _line(f"{getpass.getuser()}@{platform.node()}")
    except (KeyError, OSError, ImportError):
        return None


def _line(text: str) -> str | None:
    """One printable line without secrets, as a record cannot be changed."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return scrub_line(line)[:_LONGEST].strip() or None


def _google_account() -> str:
    """The account in the file that google.auth.default() reads first; no request is sent, no secret returned.

    google-auth, `google/auth/_default.py`; empty if there is none.
    """
    try:
        with credentials_path(os.environ).open("rb") as file:
            value = json.loads(file.read(_CREDENTIALS_LIMIT))
        impersonated = _IMPERSONATED.search(str(value.get("service_account_impersonation_url") or ""))
        return impersonated[1] if impersonated else str(value.get("client_email") or value.get("account") or "")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
