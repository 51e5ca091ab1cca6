"""What is said of a serving image beside it in the registry: after the push, before its tags and the stamp."""

from collections.abc import Iterator
from datetime import UTC, datetime

from envbuild.attest.attach import attest
from envbuild.attest.statement import DEBIAN, Facts
from envbuild.build import Reporter
from envbuild.build.attesting import build_options
from envbuild.image.rebase import named_base
from envbuild.oci.digest import Digest
from envbuild.registry.tags import publish
from envbuild.serve.model import Origin, Served, ServeOrder
from envbuild.serve.stamping import joined_lock


def publish_served(order: ServeOrder, served: Served, report: Reporter, started: datetime) -> None:
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
    name, digest = _base(origin)
    facts = Facts(
        reference=served.pushed.reference,
        image=served.image,
        locks=(served.slimmed.lock if served.slimmed else origin.parent.lock, served.above),
        lock_digests=(Digest.of(joined_lock(served)),),
        role="serve",
        variant=origin.variant,
        platform=origin.platform,
        environment=origin.environment,
        base_name=name,
        base_digest=digest,
        manifest=Digest.of(origin.manifest_bytes),
        model=origin.stamped.uri if origin.stamped else None,
        model_files=tuple(_files(origin)),
        parent=origin.reference,
        parameters=tuple(_parameters(order)),
        started=started,
        finished=datetime.now(UTC),
    )
    wanted = order.order.attestations
    publish({facts.reference: served.tags}, lambda: attest(facts, wanted, report))


def _base(origin: Origin) -> tuple[str, Digest]:
    """What the training image stands on; a folder of this machine is never named."""
    name, digest = named_base(origin.parent.image)
    asked = dict(origin.parent.lock.base).get("name", "")
    found = name or (asked if asked.startswith(DEBIAN) else "")
    return found, Digest.parse(digest) if digest else origin.parent.digest


def _files(origin: Origin) -> Iterator[tuple[str, Digest]]:
    """The model's files as they are now, which were held against the run's."""
    model = origin.stamped.model if origin.stamped else None
    for file in model.files if model else ():
        if file.sha256:
            yield file.path, Digest(file.sha256)


def _parameters(order: ServeOrder) -> Iterator[tuple[str, str]]:
    yield from build_options(order.order)
    texts = {"server": order.server or "", "extra": ", ".join(order.extras), "cmd": " ".join(order.cmd)}
    yield from ((name, text) for name, text in texts.items() if text)
    flags = {"app": order.app is not None, "embed-model": order.embed, "slim": order.slim}
    yield from ((name, "yes") for name, on in flags.items() if on)
    yield "gate", order.gate
