"""What a model is stamped with, and was before; and whether its stamp is proven, unsigned, foreign or outdated.

A record's signature is beside it and is written before the pointer moves, so that no pointer names a record whose
signature is missing. How a key signs and verifies is in `envbuild.attest.bundle`.
"""

import os.path
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from envbuild.errors import StampConflict, StampError, UsageError, VerifyError
from envbuild.oci.digest import Digest
from envbuild.stamp.objects import Model, SignedCheck, open_model, read_records
from envbuild.stamp.record import (
    FOLDER,
    RECORD_LIMIT,
    Stamp,
    StampedImage,
    is_record_name,
    pointed,
    read_record,
    record_digest,
    signature_name,
)
from envbuild.stamp.store import State, Unreachable, parse_model_uri
from envbuild.trust import Claim, Voucher

SIGNATURE_LIMIT = 1024 * 1024
"""Bytes of a signature that is read."""
REPLACED = "stamp again only if the model that is there now comes from this run"


class Keys(Protocol):
    """The keys that a reader accepts."""

    def fault(self, bundle: bytes, record: Digest) -> str:
        """The fault of a record's signature; empty if one of the keys signed this record."""
        ...


class Signer(Keys, Protocol):
    """A key that signs records, and the keys whose records it continues: itself, and others that are given."""

    @property
    def minimum(self) -> int:
        """The lowest counter of a record that it continues; 0 where it may write the first one."""
        ...

    def sign(self, record: Digest) -> bytes:
        """Sign a record; returns the signature's bundle."""
        ...

    def has_signed(self, bundle: bytes, record: Digest) -> bool:
        """Whether the key itself signed a record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The proof that a reader requires of a stamp."""

    keys: Keys
    minimum: int = 0
    """The lowest counter that is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """A record as it was read."""

    name: str
    stamp: Stamp | None
    """None if the record is missing or not trusted; then the records before it are unknown."""
    data: bytes = b""
    """Its bytes, with fields of a newer minor version."""
    fault: str = ""
    """Why `stamp` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The anchor, and the record that it pointed to, at one moment."""

    state: State
    record: RecordFile | None
    """None without a stamp."""
    predecessor: tuple[str, Stamp] | None = None
    """The record that the next one continues, with its name: this one, or with a key the newest that the key signed."""
    records: Mapping[str, Stamp] = field(default_factory=dict)
    """With a key, all records for the model."""
    is_file: bool = False
    """Whether the model was given as one file."""

    @property
    def name(self) -> str | None:
        """The record's name."""
        return self.record.name if self.record else None

    @property
    def stamp(self) -> Stamp | None:
        """The record's stamp."""
        return self.record.stamp if self.record else None

    @property
    def continued(self) -> Stamp | None:
        """The record that the next one continues, if it was written for the anchor's present content."""
        stamp = self.predecessor[1] if self.predecessor else None
        return stamp if stamp and stamp.anchor.generation == self.state.generation else None

    @property
    def current(self) -> bool:
        """Whether the record is for the anchor's present content: a replacement may have kept the metadata."""
        return self.stamp is not None and self.stamp.anchor.generation == self.state.generation

    @property
    def images(self) -> tuple[StampedImage, ...]:
        """The images of the present content."""
        return self.stamp.images if self.stamp and self.current else ()


def read_stamp(model_uri: str) -> Stamp | None:
    """Read a model's stamp; None if it has none."""
    with open_model(model_uri) as model:
        return read_snapshot(model).stamp


def read_snapshot(model: Model, signer: Signer | None = None) -> Snapshot:
    """Read the anchor's state, the record that it points to, and the record that the next one continues."""
    state = model.store.state(model.anchor)
    if state is None:
        raise StampConflict("the model was removed meanwhile", where=model.uri, todo=REPLACED)
    name = pointed(state.metadata, model.uri)
    records = records_of(model, name) if signer else {}
    predecessor = newest_signed(model, records, signer) if signer else None
    if name is None:
        return Snapshot(state=state, record=None, predecessor=predecessor, records=records, is_file=model.is_file)
    data = model.store.read(name, limit=RECORD_LIMIT)
    if data is None:
        command = model.store.unpointing(model.anchor)
        todo = f"copy its folder {FOLDER}/ from where it was stamped, or remove the pointer and stamp anew: {command}"
        raise StampError(f"the record that the model points to is missing: {name}", where=model.uri, todo=todo)
    record = read_record(name, data)
    if signer is None:
        predecessor = (name, record)
    file = RecordFile(name=name, stamp=record, data=data)
    return Snapshot(state=state, record=file, predecessor=predecessor, records=records, is_file=model.is_file)


def read_previous(model: Model, record: Stamp) -> RecordFile | None:
    """Read the record that a record continues; None when it continues none."""
    name = record.previous
    if name is None:
        return None
    data = model.store.read(name, limit=RECORD_LIMIT)
    if data is None:
        return RecordFile(name=name, stamp=None, fault="not there any more")
    try:
        return RecordFile(name=name, stamp=read_record(name, data), data=data)
    except StampError as error:
        return RecordFile(name=name, stamp=None, data=data, fault=error.what)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The records of a model, the newest first; none if it has no stamp."""

    model: str
    current: bool
    """Whether the newest record is for the model's present content."""
    records: tuple[RecordFile, ...]
    proven: Stamp | None = None
    """The newest record's stamp if a key was required, and signed it."""
    left: Stamp | None = None
    """Without a record: the newest one that is left of a replaced content of the file, or of another file."""
    anchor: str = ""
    """The file that would have the stamp."""
    signature: bool = False
    """Whether the newest record has a signature of any key; read only if requested."""

    @property
    def signed(self) -> bool | None:
        """Whether a key signed the newest record; None if its signature was not checked."""
        return True if self.proven else None if self.signature else False

    @property
    def displaced(self) -> bool:
        """Whether the existing records are for another file of the model."""
        return self.left is not None and self.left.anchor.name != self.anchor

    @property
    def unstamped(self) -> str:
        """Why there is no record, as a sentence."""
        if self.left is None:
            return "the model has no stamp"
        name, when = self.left.anchor.name, self.left.created
        if self.displaced:
            return f"{self.anchor} has no stamp; the records in envbuild/, the newest of {when}, are for {name}"
        return f"the model was replaced or copied after it was stamped at {when}: {name} is another file"


def read_history(model_uri: str, *, whole: bool = True, proof: Proof | None = None, signature: bool = False) -> History:
    """Read what a model is stamped with, and was before if `whole`; StampError if it cannot be read.

    With `proof`, VerifyError if the newest record is not proven or missing; the records before it end with the first
    that none of the keys signed. `signature` tells whether an unproven record has any signature.
    """
    with open_model(model_uri, signed_check(proof.keys if proof else None)) as model:
        seen = read_snapshot(model)
        if seen.record is None:
            # The newest record for another content of the anchor, else for another file. A model that is one file
            # ignores the other files beside it.
            others = [
                it
                for _, it in read_records(model.store, filter(is_record_name, model.store.records()))
                if (
                    it.anchor.generation != seen.state.generation
                    if it.anchor.name == model.anchor
                    else not model.is_file
                )
            ]
            left = max(others, key=lambda it: (it.anchor.name == model.anchor, it.created), default=None)
            empty = History(model=model.uri, current=True, records=(), left=left, anchor=model.anchor)
            if proof:
                todo = "stamp it with its run: envbuild from-manifest MANIFEST --push REPO --sign KEY --stamp MODEL"
                raise VerifyError(f"{empty.unstamped}, so no key can have signed it", where=model.uri, todo=todo)
            return empty
        assert seen.stamp is not None, "read_snapshot reads it"
        proven = prove(model, seen.record.name, seen.stamp, seen.state.generation, proof) if proof else None
        records = (seen.record, *_before(model, seen.record, proof)) if whole else (seen.record,)
        there = signature and not proof and model.store.state(signature_name(seen.record.name)) is not None
        return History(model=model.uri, current=seen.current, records=records, proven=proven, signature=there)


def _before(model: Model, newest: RecordFile, proof: Proof | None) -> Iterator[RecordFile]:
    """The records before the newest; as names are digests, none continues itself."""
    stamp = newest.stamp
    while stamp is not None and (older := read_previous(model, stamp)) is not None:
        if proof and older.stamp and (fault := unproven(model, older.name, older.stamp, proof.keys)):
            older = RecordFile(name=older.name, stamp=None, data=older.data, fault=fault)
        yield older
        stamp = older.stamp


def changes(before: Stamp | None, after: Stamp) -> tuple[tuple[StampedImage | None, StampedImage | None], ...]:
    """The changes of a record from the one before it: pairs of images of one slot, None if there was none."""
    old = {image.slot: image for image in before.images} if before else {}
    new = {image.slot: image for image in after.images}
    pairs = ((old.get(slot), new.get(slot)) for slot in sorted(old.keys() | new.keys()))
    return tuple(pair for pair in pairs if pair[0] != pair[1])


def prove(model: Model, name: str, stamp: Stamp, generation: str, proof: Proof) -> Stamp:
    """Return the stamp if a key signed it for this model and none newer is known; else VerifyError.

    `name` is the record's name, `generation` that of the model's anchor as it is now.
    """
    claim = Claim(stamp, Voucher.MODEL, f"{model.uri}, {name}")
    return claim.prove(lambda it: _fault(model, name, it, generation, proof))


def _fault(model: Model, name: str, stamp: Stamp, generation: str, proof: Proof) -> str:
    """Why a stamp is not proven, and what to do; empty if it is."""
    if not _is_of(model, stamp) or stamp.anchor.name != model.anchor:
        return (
            f"the stamp was written for {stamp.model} ({stamp.anchor.name}), and not for this model; stamp this model "
            "with --sign, or mount or link a folder that was copied at the path that it was stamped at"
        )
    if says := _unsigned(model, name, proof.keys):
        return (
            f"{says}; give the key that signed it, or let training stamp it again: from-manifest MANIFEST --push REPO "
            "--stamp MODEL --sign KEY"
        )
    if stamp.anchor.generation != generation:
        return (
            f"the model was replaced after it was stamped at {stamp.created}: {stamp.anchor.name} is another file; "
            "restore the model, or stamp it again from its run with --sign KEY"
        )
    number = f"the stamp is record {stamp.counter} of the model"
    if stamp.counter < proof.minimum:
        return (
            f"{number}, and --minimum-record requires {proof.minimum} or later; an older stamp was put back: find out "
            "who did that, and stamp the model again with --sign KEY"
        )
    records = records_of(model)
    for other, it in records.items():
        if other == name or it.counter < stamp.counter or unproven(model, other, it, proof.keys):
            continue
        what = f"another record {it.counter}" if it.counter == stamp.counter else f"record {it.counter}"
        return (
            f"{number}, and {what} is signed too: {other}; if a stamp is being written now, "
            "run this again; else an older stamp was put back, or the newer one broke off: stamp the model again with "
            "--sign KEY"
        )
    return find_fork(model, records, proof.keys)


def records_of(model: Model, preferred: str | None = None) -> dict[str, Stamp]:
    """Read the records for this model by name, the highest counter first; of several with one counter the `preferred`.

    Unusable records are skipped: too large, damaged, a folder, a link out of the model's folder.
    """
    names = [it for it in model.store.records() if is_record_name(it)]
    records = [(name, it) for name, it in read_records(model.store, names) if _is_of(model, it)]
    return dict(sorted(records, key=lambda it: (it[1].counter, it[0] == preferred), reverse=True))


def newest_signed(model: Model, records: Mapping[str, Stamp], keys: Keys) -> tuple[str, Stamp] | None:
    """Return the first record that one of the keys signed, and its name; None where there is none."""
    return next(((name, it) for name, it in records.items() if not unproven(model, name, it, keys)), None)


def find_fork(model: Model, records: Mapping[str, Stamp], keys: Keys, pending: Stamp | None = None) -> str:
    """Say which signed record is not in the history of the newest one; empty if there is one history.

    A signer continues the newest record of the keys that it was given. So two records continue the same one only if
    one was hidden from the signer, has another key, or was written at the same time. In the last case the loser writes
    its stamp again, after the winner's; `pending` is that second record while it is not written yet.
    """
    newest = newest_signed(model, records, keys)
    line = _line(records, newest[0]) if newest else []
    written = [*(records[it] for it in line if it in records), *([pending] if pending else [])]
    for name, stamp in records.items():
        if name in line or unproven(model, name, stamp, keys):
            continue
        common = next((it for it in _line(records, name) if it in line), line[-1])
        rival = line[max(line.index(common) - 1, 0)]
        before = records.get(stamp.previous or "")
        added = set(stamp.images) - set(before.images if before else ())
        # Whether the same call wrote a later record with the images that this one added.
        again = any(
            (it.created, it.by) == (stamp.created, stamp.by) and it.counter > stamp.counter and added <= set(it.images)
            for it in written
        )
        if not again and rival in records and not unproven(model, rival, records[rival], keys):
            return (
                f"the model has two signed histories: record {stamp.counter}, {name}, is not continued by record "
                f"{records[rival].counter}, {rival}; if a stamp is being written now, run this again; else a record "
                "was put back, two stamps were written at the same time, or one was written without --signed for the "
                "other's key: find out which one belongs to the model, and move the other away, with its signature "
                f"({signature_name(name)} or {signature_name(rival)}) and all records that continue it"
            )
    return ""


def _line(records: Mapping[str, Stamp], name: str) -> list[str]:
    """Return a record, the one that it continues, and so on; the last is the name of one that is missing, or empty."""
    line = [name]
    while (stamp := records.get(line[-1])) is not None:
        line.append(stamp.previous or "")
    return line


def unproven(model: Model, name: str, stamp: Stamp, keys: Keys) -> str:
    """Why none of the keys proves a record of this model; empty if one does."""
    if not _is_of(model, stamp):
        return f"the record was written for {stamp.model}, and not for this model"
    try:
        return _unsigned(model, name, keys)
    except Unreachable:
        raise
    except StampError as error:
        return f"the record's signature cannot be read: {error.what}"


def signed_check(keys: Keys | None) -> SignedCheck | None:
    """The check whether one of the keys proves a record; None without keys."""
    return (lambda model, name, stamp: not unproven(model, name, stamp, keys)) if keys else None


def _unsigned(model: Model, name: str, keys: Keys) -> str:
    bundle = model.store.read(signature_name(name), limit=SIGNATURE_LIMIT)
    if bundle is None:
        return f"the stamp is not signed: {signature_name(name)} is not there"
    says = keys.fault(bundle, record_digest(name))
    return f"the stamp's signature does not hold: {says}" if says else ""


def _is_of(model: Model, stamp: Stamp) -> bool:
    """Whether a record was written for this model, given by its folder or by its file.

    Its anchor may be another: a new file beside the model must not begin another history.
    """
    own = parse_model_uri(model.uri)
    try:
        said = parse_model_uri(stamp.model)
    except UsageError:
        return False
    folder = own.parent if model.is_file else own.path
    plain = os.path.normpath if own.bucket is None else str  # an object's name may have any dots and slashes
    anchor = model.anchor if model.is_file else stamp.anchor.name
    places = (plain(folder), plain(os.path.join(folder, anchor)))  # noqa: PTH118 - names of objects too
    return said.bucket == own.bucket and plain(said.path) in places
