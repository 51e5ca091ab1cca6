"""Signatures of records: which stamp of a model is proven, and what makes one unsigned, foreign or out of date.

A record's signature lies beside it and is written before the pointer moves, so that no pointer names a record whose
signature is still to come. How a key signs and checks is not known here: see `envbuild.attest.records`.
"""

import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from envbuild.errors import StampError, UsageError
from envbuild.oci.digest import Digest
from envbuild.stamp.objects import Model, read_records
from envbuild.stamp.record import Stamp, is_record_name, record_digest, signature_name
from envbuild.stamp.store import Unreachable
from envbuild.stamp.uri import parse_model_uri
from envbuild.trust import Claim, Voucher

SIGNATURE_LIMIT = 1024 * 1024
"""Bytes of a signature that is read."""


class Keys(Protocol):
    """The keys that a reader accepts."""

    def fault(self, bundle: bytes, record: Digest) -> str:
        """What is wrong with a signature of a record; empty if one of the keys signed this record."""
        ...


class Signer(Keys, Protocol):
    """A key that signs records, and the keys whose records it continues: itself, and others that were named."""

    def sign(self, record: Digest) -> bytes:
        """Sign a record; returns the signature's bundle."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a reader requires of a stamp."""

    keys: Keys
    minimum: int = 0
    """The lowest counter that is accepted."""


def prove(model: Model, name: str, stamp: Stamp, generation: str, proof: Proof) -> Stamp:
    """Return the stamp if a key signed it for this model and none newer is known; else VerifyError.

    `name` is the record's name, `generation` that of the model's anchor as it is now.
    """
    claim = Claim(stamp, Voucher.MODEL, f"{model.uri}, {name}")
    return claim.prove(lambda it: _fault(model, name, it, generation, proof))


def _fault(model: Model, name: str, stamp: Stamp, generation: str, proof: Proof) -> str:
    """Why a stamp is not proven, and what to do; empty if it is."""
    if not _is_of(model, stamp):
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
            f"{number}, and --minimum-record asks for {proof.minimum} or later; an older stamp was put back: find out "
            "who did that, and stamp the model again with --sign KEY"
        )
    others = signed_records(model, proof.keys, above=stamp.counter - 1)
    if other := next((it for it in others if it[0] != name), None):
        what = f"another record {stamp.counter}" if other[1].counter == stamp.counter else f"record {other[1].counter}"
        return (
            f"{number}, and {what} is signed too: {other[0]}; if a stamp is being written now, "
            "run this again; else an older stamp was put back, or the newer one broke off: stamp the model again with "
            "--sign KEY"
        )
    return ""


def signed_records(
    model: Model, keys: Keys, *, above: int = -1, preferred: str | None = None
) -> Iterator[tuple[str, Stamp]]:
    """Yield the records that a key signed for this model and that have a higher counter; the highest comes first.

    Of several with one counter the `preferred` comes first. Records that cannot be read are skipped, as nobody can use
    them: a file that is too large or damaged, a folder, a link out of the model's folder.
    """
    names = [it for it in model.store.records() if is_record_name(it)]
    found = read_records(model.store, names)
    records = [(name, it) for name, it in found if it.counter > above and _is_of(model, it)]
    for name, stamp in sorted(records, key=lambda it: (it[1].counter, it[0] == preferred), reverse=True):
        if not unproven(model, name, stamp, keys):
            yield name, stamp


def unproven(model: Model, name: str, stamp: Stamp, keys: Keys) -> str:
    """Why none of the keys vouches for a record of this model; empty if one does."""
    if not _is_of(model, stamp):
        return f"the record was written for {stamp.model} ({stamp.anchor.name}), and not for this model"
    try:
        return _unsigned(model, name, keys)
    except Unreachable:
        raise
    except StampError as error:
        return f"the record's signature cannot be read: {error.what}"


def _unsigned(model: Model, name: str, keys: Keys) -> str:
    bundle = model.store.read(signature_name(name), limit=SIGNATURE_LIMIT)
    if bundle is None:
        return f"the stamp is not signed: {signature_name(name)} is not there"
    says = keys.fault(bundle, record_digest(name))
    return f"the stamp's signature does not hold: {says}" if says else ""


def _is_of(model: Model, stamp: Stamp) -> bool:
    """Whether a record was written for the model at this place, given by its folder or by its file."""
    own = parse_model_uri(model.uri)
    try:
        said = parse_model_uri(stamp.model)
    except UsageError:
        return False
    folder = own.parent if model.is_file else own.path
    plain = os.path.normpath if own.bucket is None else str  # an object's name may have any dots and slashes
    places = (plain(folder), plain(os.path.join(folder, model.anchor)))  # noqa: PTH118 - names of objects too
    return stamp.anchor.name == model.anchor and said.bucket == own.bucket and plain(said.path) in places
