"""The stamp of what serves a model, which comes last: what it is, what it was made from, and how it was compared."""

from dataclasses import replace
from datetime import datetime

from envbuild.build import Reporter
from envbuild.build.stamping import report_stamps, signer_for, stamp_content
from envbuild.errors import RegistryError
from envbuild.lock.formats import pylock_text
from envbuild.oci.reference import Reference
from envbuild.registry.tags import stamped_tag, tag_stamped
from envbuild.serve.compatible import RELATION
from envbuild.serve.model import Served, ServeOrder
from envbuild.stamp.history import Snapshot
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp


def stamp_served(order: ServeOrder, served: Served, now: datetime, early: Snapshot, report: Reporter) -> str:
    """Write the image on the model that was there at first; return the record's name.

    Of a manifest, the training image that was made of it is stamped first, so that both can be held against each other.
    """
    model, origin = order.order.stamp, served.origin
    assert model is not None, "the caller looked"
    manifest, signer = origin.manifest_bytes, signer_for(order.order, order.training_keys)
    files = stamp_content(order.order, origin.manifest, early, report)
    results, built_on = [], origin.built_on
    if origin.pylock:
        _tag(origin.reference, report)
        entry = _of_training(served)
        lock = origin.pylock
        results.append(
            stamp(model, entry, manifest=manifest, lock=lock, now=now, early=early, signer=signer, content=files)
        )
        built_on = results[-1].stamp.image(entry.slot)
    _tag(served.pushed.reference if served.pushed else None, report)
    lock, entry = joined_lock(served), _of_serving(order, served)
    results.append(
        stamp(
            model,
            entry,
            manifest=manifest,
            lock=lock,
            now=now,
            early=early,
            signer=signer,
            content=files,
            built_on=built_on,
        )
    )
    report_stamps(results, report, signed=signer is not None)
    return results[-1].record


def joined_lock(served: Served) -> bytes:
    """The training lock joined with what is above it, as PEP 751 has it."""
    below = served.slimmed.lock if served.slimmed else served.origin.parent.lock
    wheels = tuple(sorted((*below.wheels, *served.above.wheels), key=lambda it: it.name))
    base = dict(served.origin.parent.lock.base)
    return pylock_text(replace(below, wheels=wheels), base=base)


def _of_serving(order: ServeOrder, served: Served) -> StampEntry:
    origin = served.origin
    return StampEntry(
        role="serve",
        variant=origin.variant,
        platform=origin.platform,
        reference=str(served.reference) if served.reference else None,
        digest=served.digest,
        environment=origin.environment,
        overrides=origin.overrides,
        identity=origin.identity,
        tag=order.order.push.tag if order.order.push and served.pushed else None,
        relation=RELATION if served.runtime else None,
    )


def _of_training(served: Served) -> StampEntry:
    origin = served.origin
    return StampEntry(
        role="train",
        variant=origin.variant,
        platform=origin.platform,
        reference=str(origin.reference) if origin.reference else None,
        digest=origin.parent.digest,
        environment=origin.environment,
        overrides=origin.overrides,
        identity=origin.identity,
    )


def _tag(reference: Reference | None, report: Reporter) -> None:
    """Give an image a tag that a cleanup policy can keep it by; without one it is on the model all the same."""
    if reference is None:
        return
    assert reference.digest is not None, "a push ends with a reference by digest"
    try:
        tag_stamped(reference)
    except RegistryError as error:
        tag = stamped_tag(reference.digest)
        report.warn(
            f"the image has not got the tag {tag}, by which cleanup policies keep what is stamped: {error.what}"
        )
