"""Signatures of records: whether a model's stamp is proven, unsigned, foreign or outdated.

A record's signature is beside it and is written before the pointer moves, so that no pointer names a record whose
signature is missing. How a key signs and verifies is in `envbuild.attest.bundle`.
"""

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from envbuild.errors import StampError, UsageError
from envbuild.oci.digest import Digest
from envbuild.stamp.objects import Model, SignedCheck, read_records
from envbuild.stamp.record import Stamp, is_record_name, record_digest, signature_name
from envbuild.stamp.store import Unreachable, parse_model_uri
from envbuild.trust import Claim, Voucher

SIGNATURE_LIMIT = 1024 * 1024
"""Bytes of a signature that is read."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The proof that a reader requires of a stamp."""

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
            f"{number}, and --minimum-record asks for {proof.minimum} or later; an older stamp was put back: find out "
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
    one was hidden from the signer, has another key, or was written at the same time. In the last case the same stamp
    is written again, after the other's: `pending` is that one before it is written.
    """
    newest = newest_signed(model, records, keys)
    line = _line(records, newest[0]) if newest else []
    written = [*(records[it] for it in line if it in records), *([pending] if pending else [])]
    for name, stamp in records.items():
        if name in line or unproven(model, name, stamp, keys):
            continue
        common = next((it for it in _line(records, name) if it in line), line[-1])
        rival = line[max(line.index(common) - 1, 0)]
        again = any(_repeats(it, stamp, records.get(stamp.previous or "")) for it in written)
        if not again and rival in records and not unproven(model, rival, records[rival], keys):
            return _forked(name, stamp, rival, records[rival])
    return ""


def _line(records: Mapping[str, Stamp], name: str) -> list[str]:
    """Return a record, the one that it continues, and so on; the last is the name of one that is missing, or empty."""
    line = [name]
    while (stamp := records.get(line[-1])) is not None:
        line.append(stamp.previous or "")
    return line


def _repeats(later: Stamp, stamp: Stamp, before: Stamp | None) -> bool:
    """Whether a later record has the image that `stamp` added to the record `before`, and was written by one call."""
    added = set(stamp.images) - set(before.images if before else ())
    same = (later.created, later.by) == (stamp.created, stamp.by)
    return same and later.counter > stamp.counter and added <= set(later.images)


def _forked(name: str, stamp: Stamp, rival: str, other: Stamp) -> str:
    return (
        f"the model has two signed histories: record {stamp.counter}, {name}, is not continued by record "
        f"{other.counter}, {rival}; if a stamp is being written now, run this again; else a record was put back, two "
        "stamps were written at the same time, or one was written without --signed for the other's key: find out which "
        "one belongs to the model, and move the other away, with its signature "
        f"({signature_name(name)} or {signature_name(rival)}) and all records that continue it"
    )


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
