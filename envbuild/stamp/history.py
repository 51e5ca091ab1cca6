"""All that a model was ever stamped with: its records, from the newest back to the first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from envbuild.errors import StampConflict, StampError, VerifyError
from envbuild.stamp.objects import Model, found, read_records
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
from envbuild.stamp.signature import Proof, Signer, newest_signed, prove, records_of, unproven, vouching
from envbuild.stamp.store import State


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
    base: tuple[str, Stamp] | None = None
    """The record that the next one continues, and its name: this one, or for a key the newest that it has signed."""
    records: Mapping[str, Stamp] = field(default_factory=dict)
    """With a key, all records for the model."""

    @property
    def name(self) -> str | None:
        """The record's name."""
        return self.record.name if self.record else None

    @property
    def stamp(self) -> Stamp | None:
        """What the record says."""
        return self.record.stamp if self.record else None

    @property
    def continued(self) -> Stamp | None:
        """The record that the next one continues, where it was written for this very content of the anchor."""
        stamp = self.base[1] if self.base else None
        return stamp if stamp and stamp.anchor.generation == self.state.generation else None

    @property
    def current(self) -> bool:
        """Whether the record is of this very content: what replaced it, or a copy, may have kept the metadata."""
        return self.stamp is not None and self.stamp.anchor.generation == self.state.generation

    @property
    def images(self) -> tuple[StampedImage, ...]:
        """What this very content was stamped with."""
        return self.stamp.images if self.stamp and self.current else ()


def read_stamp(model_uri: str) -> Stamp | None:
    """Read what a model is stamped with; None when it bears no stamp."""
    with found(model_uri) as model:
        return look(model).stamp


def look(model: Model, signer: Signer | None = None) -> Seen:
    """Read the anchor's state, the record that it points to, and the record that the next one continues."""
    state = model.store.state(model.anchor)
    if state is None:
        raise StampConflict("the model was removed while it was looked at", where=model.uri, todo=_REPLACED)
    name = pointed(state.metadata, model.uri)
    records = records_of(model, name) if signer else {}
    base = newest_signed(model, records, signer) if signer else None
    if name is None:
        return Seen(state=state, record=None, base=base, records=records)
    data = model.store.read(name, limit=RECORD_LIMIT)
    if data is None:
        command = model.store.unpointing(model.anchor)
        todo = f"copy its folder {FOLDER}/ from where it was stamped, or remove the pointer and stamp anew: {command}"
        raise StampError(f"the record that the model points to is missing: {name}", where=model.uri, todo=todo)
    record = read_record(name, data)
    if signer is None:
        base = (name, record)
    return Seen(state=state, record=Recorded(name=name, stamp=record, data=data), base=base, records=records)


_REPLACED = "stamp again only if the model that is there now comes from this run"


def previous(model: Model, record: Stamp) -> Recorded | None:
    """Read the record that a record continues; None when it continues none."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The records of a model, the newest first; none where it bears no stamp."""

    model: str
    current: bool
    """Whether the model still is the one that the newest record was written for."""
    records: tuple[Recorded, ...]
    proven: Stamp | None = None
    """The newest record's stamp where a key was asked for, and signed it."""
    left: Stamp | None = None
    """Where there is no record, the newest one that was written for another content of the file, or another file."""
    anchor: str = ""
    """The file that would bear the stamp."""
    signature: bool = False
    """Whether a signature of the newest record lies beside it, whoever signed; only where that was asked for."""

    @property
    def signed(self) -> bool | None:
        """Whether a key signed the newest record; None where nobody checked the signature that is there."""
        return True if self.proven else None if self.signature else False

    @property
    def displaced(self) -> bool:
        """Whether the records that are there were written for another file of the model."""
        return self.left is not None and self.left.anchor.name != self.anchor

    @property
    def unstamped(self) -> str:
        """Why there is no record, as a sentence."""
        if self.left is None:
            return "the model bears no stamp"
        name, when = self.left.anchor.name, self.left.created
        if self.displaced:
            return f"{self.anchor} bears no stamp; the records in envbuild/, the newest of {when}, are for {name}"
        return f"the model was replaced or copied after it was stamped at {when}: {name} is another file"


def read_history(model_uri: str, *, whole: bool = True, proof: Proof | None = None, signature: bool = False) -> History:
    """Read what a model is stamped with, and was before if `whole`; StampError where it cannot be read.

    With `proof` it is VerifyError where the newest record is not proven, and where there is none; the records before it
    end with the first that none of the keys signed. `signature` asks whether an unproven record has any signature.
    """
    with found(model_uri, vouching(proof.keys if proof else None)) as model:
        seen = look(model)
        if seen.record is None:
            empty = History(
                model=model.uri, current=True, records=(), left=_left(model, seen.state), anchor=model.anchor
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


def _left(model: Model, state: State) -> Stamp | None:
    """Find the newest record for another content of the anchor, whatever the folder was called; else for another file.

    The other files beside a model that is one file are no business of it.
    """
    read = read_records(model.store, filter(is_record_name, model.store.records()))
    records = [
        it
        for _, it in read
        if (it.anchor.generation != state.generation if it.anchor.name == model.anchor else not model.is_file)
    ]
    return max(records, key=lambda it: (it.anchor.name == model.anchor, it.created), default=None)


def _before(model: Model, newest: Recorded, proof: Proof | None) -> Iterator[Recorded]:
    """Names are digests of what they name, so that no record comes before itself."""
    stamp = newest.stamp
    while stamp is not None and (older := previous(model, stamp)) is not None:
        if proof and older.stamp and (fault := unproven(model, older.name, older.stamp, proof.keys)):
            older = Recorded(name=older.name, stamp=None, data=older.data, fault=fault)
        yield older
        stamp = older.stamp


def changes(before: Stamp | None, after: Stamp) -> tuple[tuple[StampedImage | None, StampedImage | None], ...]:
    """What a record changed against the one before it: pairs of images of one slot, None where there was none."""
    old = {image.slot: image for image in before.images} if before else {}
    new = {image.slot: image for image in after.images}
    pairs = ((old.get(slot), new.get(slot)) for slot in sorted(old.keys() | new.keys()))
    return tuple(pair for pair in pairs if pair[0] != pair[1])
