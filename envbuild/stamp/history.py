"""All that a model was ever stamped with: its records, from the newest back to the first."""

from collections.abc import Iterator
from dataclasses import dataclass

from envbuild.stamp.objects import Model, found
from envbuild.stamp.record import Stamp, StampedImage
from envbuild.stamp.stamping import Recorded, look, previous


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The records of a model, the newest first; none where it bears no stamp."""

    model: str
    current: bool
    """Whether the model still is the one that the newest record was written for."""
    records: tuple[Recorded, ...]


def read_history(model_uri: str, *, whole: bool = True) -> History:
    """Read what a model is stamped with, and was before if `whole`; StampError where it cannot be read."""
    with found(model_uri) as model:
        seen = look(model)
        if seen.record is None:
            return History(model=model.uri, current=True, records=())
        records = (seen.record, *_before(model, seen.record)) if whole else (seen.record,)
        return History(model=model.uri, current=seen.current, records=records)


def _before(model: Model, newest: Recorded) -> Iterator[Recorded]:
    """Names are digests of what they name, so that no record comes before itself."""
    stamp = newest.stamp
    while stamp is not None and (older := previous(model, stamp)) is not None:
        yield older
        stamp = older.stamp


def changes(before: Stamp | None, after: Stamp) -> tuple[tuple[StampedImage | None, StampedImage | None], ...]:
    """What a record changed against the one before it: pairs of images of one slot, None where there was none."""
    old = {image.slot: image for image in before.images} if before else {}
    new = {image.slot: image for image in after.images}
    pairs = ((old.get(slot), new.get(slot)) for slot in sorted(old.keys() | new.keys()))
    return tuple(pair for pair in pairs if pair[0] != pair[1])
