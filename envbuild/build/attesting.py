"""What is said of the images of an order beside them in the registry: after the push, before their tags."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from envbuild.attest.attach import attest, check_key, sign
from envbuild.attest.statement import DEBIAN, Facts
from envbuild.build.order import PLATFORMS, Order, Part, Reporter
from envbuild.errors import UsageError
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe
from envbuild.registry.push import PushResult
from envbuild.registry.tags import publish


def check_attestations(order: Order) -> None:
    """Fail before the long work where nothing could be signed; UsageError, and what `check_key` raises."""
    if order.attestations.key and order.push is None:
        what, todo = "signatures lie beside an image in a registry, and nothing is pushed", "give --push REPO too"
        raise UsageError(what, where="--sign", todo=todo)
    check_key(order.attestations)


def publish_parts(
    order: Order, parts: Sequence[Part], pushed: PushResult | None, report: Reporter, started: datetime
) -> None:
    """Attach what is wanted to each image that was built and pushed, sign their index, and only then set tags.

    A reused image keeps what its builder attached. Errors as `attest`.
    """
    tags = {part.pushed.reference: part.tags for part in parts if part.pushed}
    index = pushed.reference if pushed and len(parts) > 1 else None
    if index:
        tags[index] = (order.push.tag,) if order.push and order.push.tag else ()

    def attach() -> None:
        for part in parts:
            if part.pushed and part.found:
                report.note("the reused image keeps the SBOM and provenance that its builder attached")
            elif part.pushed:
                attest(_facts(order, part, part.pushed, started), order.attestations, report)
        if index:
            sign(index, order.attestations, report)

    publish(tags, attach)


def _facts(order: Order, part: Part, pushed: PushResult, started: datetime) -> Facts:
    recipe = part.recipe
    return Facts(
        reference=pushed.reference,
        image=part.assembled.image,
        locks=(part.lock,),
        lock_digests=(Digest.of(part.pylock),),
        role="train",
        variant=part.plan.stack.variant,
        platform=PLATFORMS[recipe.target.machine],
        environment=recipe.environment,
        base_name=public_base(recipe),
        base_digest=recipe.base_digest,
        manifest=Digest.of(order.manifest),
        parameters=(*build_options(order), *_overrides(part)),
        started=started,
        finished=datetime.now(UTC),
    )


def public_base(recipe: Recipe) -> str:
    """What the base is called where that is the same for everybody; empty where it lies in a folder here."""
    return recipe.base_asked or (recipe.base_name if recipe.base_name.startswith(DEBIAN) else "")


def build_options(order: Order) -> Iterator[tuple[str, str]]:
    """The options that say how it is built, chosen or not; where it goes and where wheels lie here is left out."""
    yield "builder", order.builder
    yield "resolver", order.resolver
    yield "cuda-source", order.cuda_source
    flags = {
        "build": order.build,
        "bytecode": order.bytecode,
        "offline": order.offline,
        "require-identical": order.require_identical,
    }
    yield from ((name, "yes") for name, on in flags.items() if on)


def _overrides(part: Part) -> Iterator[tuple[str, str]]:
    """What was set by hand; a base may be a folder here, and the base is said elsewhere."""
    yield from ((f"set {key}", value) for key, value in part.plan.stack.overrides if key != "base")
