"""A serving image that is built: written or loaded, published with its attestations, and stamped on the model."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from envbuild.attest.attach import attest
from envbuild.attest.parts import read_parts
from envbuild.attest.statement import DEBIAN, Facts
from envbuild.build.outputs import (
    build_options,
    check_model_files,
    load_into_engine,
    report_stamps,
    signer_for,
    tag_as_stamped,
    write_into_archive,
)
from envbuild.build.request import LAYOUT_NAME, BuildRequest
from envbuild.files import staged_folder
from envbuild.image.rebase import base_below, named_base, named_compression
from envbuild.lock.formats import pylock_text
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.layout import write_layout
from envbuild.registry.push import publish
from envbuild.report import Reporter
from envbuild.serve.compatible import RELATION
from envbuild.serve.model import NOT_STARTED, UNTRIED, ServeOrder, ServeResult
from envbuild.stamp.history import Snapshot
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp


def place(order: BuildRequest, image: Image, report: Reporter, *, pushed: bool) -> tuple[Path | None, str | None]:
    """Write the image wherever it is wanted; return its layout and the engine's name of it.

    An OCI layout is written where nothing else was asked for. BuildError, MissingComponentError.
    """
    layout = None if pushed or order.archive or order.load else order.out
    if layout:
        report.step(f"writing the OCI layout {layout}")
        # What a layout has already stays where it is; a new one appears whole.
        if (layout / "index.json").exists():
            write_layout(image, layout, name=LAYOUT_NAME)
        else:
            with staged_folder(layout) as staged:
                write_layout(image, staged, name=LAYOUT_NAME)
    if order.archive:
        write_into_archive(order, order.archive, image, report)
    return layout, load_into_engine(order.load, image, report).id if order.load else None


def stamp_served(
    order: ServeOrder, served: ServeResult, now: datetime, stamp_before: Snapshot, report: Reporter
) -> str:
    """Stamp the image on the model that was there at the start; return the record's name.

    Without a stamped training image, the one that was built is stamped first, so that both can be compared.
    """
    model, origin = order.build_request.stamp, served.origin
    assert model is not None, "the caller looked"
    signer = signer_for(order.build_request, order.training_keys)
    content = check_model_files(order.build_request, origin.manifest, stamp_before, report)
    write = partial(
        stamp, model, manifest=origin.manifest_bytes, now=now, stamp_before=stamp_before, signer=signer, content=content
    )
    entry = partial(
        StampEntry,
        variant=origin.variant,
        platform=origin.platform,
        environment=origin.environment,
        overrides=origin.overrides,
        identity=origin.identity,
    )
    results, built_on = [], origin.built_on
    if origin.pylock:
        tag_as_stamped(origin.reference, report)
        reference = str(origin.reference) if origin.reference else None
        compression = named_compression(origin.parent.image)
        train = entry(role="train", reference=reference, digest=origin.parent.digest, compression=compression)
        results.append(write(train, lock=origin.pylock))
        built_on = results[-1].stamp.image(train.slot)
    tag_as_stamped(served.pushed.reference if served.pushed else None, report)
    tried = any(it.id.startswith("serve-") and it.id != UNTRIED for it in served.findings)
    serve = entry(
        role="serve",
        reference=str(served.reference) if served.reference else None,
        digest=served.digest,
        tag=order.build_request.push.tag if order.build_request.push and served.pushed else None,
        relation=RELATION if served.runtime else None,
        gate=None if served.runtime or tried else NOT_STARTED,
    )
    results.append(write(serve, lock=joined_lock(served), built_on=built_on))
    report_stamps(results, report, signed=signer is not None)
    return results[-1].record


def joined_lock(served: ServeResult) -> bytes:
    """The training lock joined with what is above it, as PEP 751 has it."""
    below = served.slimmed.lock if served.slimmed else served.origin.parent.lock
    wheels = tuple(sorted((*below.wheels, *served.above.wheels), key=lambda it: it.name))
    base = dict(served.origin.parent.lock.base)
    return pylock_text(replace(below, wheels=wheels), base=base)


def publish_served(order: ServeOrder, served: ServeResult, report: Reporter, started: datetime) -> None:
    """Attach what is wanted to the image that was built and pushed, and only then set its tags; errors as `attest`.

    A reused image keeps what its builder attached.
    """
    if served.pushed is None:
        return
    if served.found:
        report.note("the reused image keeps the SBOM and provenance that its builder attached")
        publish({served.pushed.reference: served.tags})
        return
    origin = served.origin
    name, digest = named_base(origin.parent.image)
    asked = dict(origin.parent.lock.base).get("name", "")
    model = origin.stamped.model if origin.stamped else None
    request, wheels = order.build_request, (*origin.parent.lock.wheels, *served.above.wheels)
    facts = Facts(
        reference=served.pushed.reference,
        image=served.image,
        locks=(served.slimmed.lock if served.slimmed else origin.parent.lock, served.above),
        lock_digests=(Digest.of(joined_lock(served)),),
        role="serve",
        variant=origin.variant,
        platform=origin.platform,
        environment=origin.environment,
        base_name=name or (asked if asked.startswith(DEBIAN) else ""),  # a folder of this machine is never named
        base_digest=Digest.parse(digest) if digest else origin.parent.digest,
        manifest=Digest.of(origin.manifest_bytes),
        model=origin.stamped.uri if origin.stamped else None,
        model_files=tuple((it.path, Digest(it.sha256)) for it in (model.files if model else ()) if it.sha256),
        run=origin.manifest if origin.stamped else None,
        read_parts=partial(
            read_parts,
            base_below(origin.parent.image),
            wheels,
            request.index_settings(),
            request.cache,
            report,
            proven=bool(request.attestations.key),
        ),
        parent=origin.reference,
        parameters=tuple(_parameters(order)),
        started=started,
        finished=datetime.now(UTC),
    )
    publish({facts.reference: served.tags}, lambda: attest(facts, request.attestations, report))


def _parameters(order: ServeOrder) -> Iterator[tuple[str, str]]:
    yield from build_options(order.build_request)
    texts = {"server": order.server or "", "extra": ", ".join(order.extras), "cmd": " ".join(order.cmd)}
    yield from ((name, text) for name, text in texts.items() if text)
    flags = {"app": order.app is not None, "embed-model": order.embed, "slim": order.slim}
    yield from ((name, "yes") for name, on in flags.items() if on)
    yield "gate", order.gate
