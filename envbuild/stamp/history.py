"""What a model is stamped with, and was before: its records, from the newest to the first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from envbuild.errors import StampConflict, StampError, VerifyError
from envbuild.stamp.objects import Model, open_model, read_records
from envbuild.stamp.record import (
    FOLDER,
    RECORD_LIMIT,
    Stamp,
    StampedImage,
    is_record_name,
    pointed,
    read_record,
    signature_name,
)
from envbuild.stamp.signature import Proof, Signer, newest_signed, prove, records_of, signed_check, unproven
from envbuild.stamp.store import State


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
    base: tuple[str, Stamp] | None = None
    """The record that the next one continues, with its name: this one, or with a key the newest that the key signed."""
    records: Mapping[str, Stamp] = field(default_factory=dict)
    """With a key, all records for the model."""

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
        stamp = self.base[1] if self.base else None
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
        raise StampConflict("the model was removed meanwhile", where=model.uri, todo=_REPLACED)
    name = pointed(state.metadata, model.uri)
    records = records_of(model, name) if signer else {}
    base = newest_signed(model, records, signer) if signer else None
    if name is None:
        return Snapshot(state=state, record=None, base=base, records=records)
    data = model.store.read(name, limit=RECORD_LIMIT)
    if data is None:
        command = model.store.unpointing(model.anchor)
        todo = f"copy its folder {FOLDER}/ from where it was stamped, or remove the pointer and stamp anew: {command}"
        raise StampError(f"the record that the model points to is missing: {name}", where=model.uri, todo=todo)
    record = read_record(name, data)
    if signer is None:
        base = (name, record)
    return Snapshot(state=state, record=RecordFile(name=name, stamp=record, data=data), base=base, records=records)


_REPLACED = "stamp again only if the model that is there now comes from this run"


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
    """Without a record, the newest one for another content of the file, or another file."""
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
            empty = History(
                model=model.uri, current=True, records=(), left=_displaced_stamp(model, seen.state), anchor=model.anchor
            )
            if proof:
                todo = "stamp it with its run: envbuild from-manifest MANIFEST --push REPO --sign KEY --stamp MODEL"
                raise VerifyError(f"{empty.unstamped}, so no key can have signed it", where=model.uri, todo=todo)
            return empty
        assert seen.stamp is not None, "look reads it"
        proven = prove(model, seen.record.name, seen.stamp, seen.state.generation, proof) if proof else None
        records = (seen.record, *_before(model, seen.record, proof)) if whole else (seen.record,)
        there = signature and not proof and model.store.state(signature_name(seen.record.name)) is not None
        return History(model=model.uri, current=seen.current, records=records, proven=proven, signature=there)


def _displaced_stamp(model: Model, state: State) -> Stamp | None:
    """Find the newest record for another content of the anchor, else for another file.

    A model that is one file ignores the other files beside it.
    """
    read = read_records(model.store, filter(is_record_name, model.store.records()))
    records = [
        it
        for _, it in read
        if (it.anchor.generation != state.generation if it.anchor.name == model.anchor else not model.is_file)
    ]
    return max(records, key=lambda it: (it.anchor.name == model.anchor, it.created), default=None)


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
