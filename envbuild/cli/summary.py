"""The result of a build: lines on its layers, bytes and time for people, and JSON."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from envbuild.errors import counted

if TYPE_CHECKING:
    from envbuild.build.order import Outcome, Part
    from envbuild.oci.image import Layer
    from envbuild.registry.push import PushResult
    from envbuild.serve.model import ServeOrder, ServeResult
    from envbuild.serve.origin import Start

_NAME = 70
"""Characters of a layer's packages at most."""


def summary(outcome: "Outcome", seconds: float) -> Iterator[str]:
    """Yield a line for each of our layers: size, where it was found, how it came to the registry; then the totals."""
    for part in outcome.parts:
        yield from _part_lines(part, several=len(outcome.parts) > 1)
    sent = f"{decimal(outcome.pushed.uploaded)} sent to the registry, " if outcome.pushed else ""
    loaded = f"{decimal(outcome.loaded.sent)} to the engine, " if outcome.loaded else ""
    yield f"{sent}{loaded}{seconds:.1f} s"


def _part_lines(part: "Part", *, several: bool) -> Iterator[str]:
    layers = part.assembled.image.layers
    ours = layers[len(layers) - len(part.assembled.results) :] if part.assembled.results else ()
    for layer in ours:
        yield _line(layer, part.pushed)
    platform = f"{part.platform}: " if several else ""
    size = decimal(sum(layer.descriptor.size for layer in layers))
    made = sum(not layer.found for layer in ours or layers)
    base = sum(_layer_source(layer) == "base" for layer in layers)
    origins = f"{made} made, {len(layers) - base - made} found, {base} of the base"
    if not ours and all(layer.found == "registry" for layer in layers):
        origins = "all found in the registry"
    yield f"{platform}{counted(len(layers), 'layer')}, {size}: {origins}"


def _layer_source(layer: "Layer") -> str:
    """Return `made`, or where it was found: `cache`, `registry`, `base`."""
    return layer.found or ("base" if layer.reused else "made")


def _line(layer: "Layer", pushed: "PushResult | None") -> str:
    sent = pushed.blobs.get(layer.descriptor.digest, "there") if pushed else ""
    name = layer.created_by
    short = name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
    return f"{decimal(layer.descriptor.size):>9}  {', '.join(filter(None, (_layer_source(layer), sent))):<24}  {short}"


def reference(outcome: "Outcome") -> str:
    """Return the image's reference in the registry, else its id in the engine, else its file or folder."""
    if outcome.image:
        return str(outcome.image)
    return outcome.loaded.id if outcome.loaded else f"{outcome.archive or outcome.layout}@{outcome.digest}"


def result(outcome: "Outcome", seconds: float) -> dict[str, Any]:
    """Return the result as --json prints it; of several platforms each has its own part."""
    values: dict[str, Any] = {
        "digest": str(outcome.digest),
        "image": str(outcome.image) if outcome.image else None,
        "layout": str(outcome.layout) if outcome.layout else None,
        "archive": str(outcome.archive) if outcome.archive else None,
        "loaded": outcome.loaded.id if outcome.loaded else None,
        "stamped": outcome.stamped,
        "seconds": round(seconds, 3),
    }
    parts = {part.platform: _part_result(part) for part in outcome.parts}
    return values | (next(iter(parts.values())) if len(parts) == 1 else {"platforms": parts})


def _part_result(part: "Part") -> dict[str, Any]:
    layers = part.assembled.image.layers
    return {
        "environment": str(part.recipe.environment),
        "layers": [_layer_result(layer) for layer in layers],
        "identity": part.proof.to_dict(),
        "overrides": dict(part.plan.stack.overrides),
        "added": [f"{it.name}=={it.version}" for it in part.proof.those("added")],
        "dropped": list(part.lock.dropped),
        "imports": part.imports.to_dict() if part.imports else None,
    }


def _layer_result(layer: "Layer") -> dict[str, Any]:
    return {
        "digest": str(layer.descriptor.digest),
        "size": layer.descriptor.size,
        "reused": layer.reused,
        "found": _layer_source(layer),
    }


def serving_plan(order: "ServeOrder", start: "Start") -> dict[str, Any]:
    """Return the plan of a serving image, before anything is pulled or built."""
    where = order.order
    return {
        "parent": start.image.image if start.image else None,
        "variant": start.variant,
        "platform": start.platform,
        "server": order.server,
        "extras": list(order.extras),
        "app": str(order.app) if order.app else None,
        "cmd": list(order.cmd),
        "embed": order.embed,
        "slim": order.slim,
        "gate": order.gate,
        "push": str(where.push) if where.push else None,
        "stamp": where.stamp,
    }


def plan_lines(planned: dict[str, Any]) -> Iterator[str]:
    """Yield the plan's lines for people, without what is empty."""
    built = f"to be built: {planned['variant']} {planned['platform']}"
    for name, value in (planned | {"parent": planned["parent"] or built}).items():
        if value:
            text = " ".join(map(str, value)) if isinstance(value, list) else "yes" if value is True else str(value)
            yield f"{name} {text}"


def serving_summary(served: "ServeResult", seconds: float) -> Iterator[str]:
    """Yield a line for each layer on top of the training image; then the totals."""
    if served.runtime is None:
        known, layers = {it.diff_id for it in served.origin.parent.image.layers}, served.image.layers
        ours = [it for it in layers if it.diff_id not in known]
        for layer in ours:
            yield _line(layer, served.pushed)
        size = decimal(sum(layer.descriptor.size for layer in layers))
        yield f"{len(layers)} layers, {size}: {len(layers) - len(ours)} of the training image, {len(ours)} on top"
    sent = f"{decimal(served.pushed.uploaded)} sent to the registry, " if served.pushed else ""
    yield f"{sent}{seconds:.1f} s"


def serving_reference(served: "ServeResult") -> str:
    """Return the image's reference in the registry, else its id in the engine, else its file or folder."""
    if served.reference:
        return str(served.reference)
    return served.loaded or f"{served.archive or served.layout}@{served.digest}"


def serving_result(served: "ServeResult", seconds: float) -> dict[str, Any]:
    """Return the result as --json prints it."""
    origin = served.origin
    return {
        "role": "serve",
        "parent": str(origin.reference or origin.parent.digest),
        "digest": str(served.digest),
        "image": str(served.reference) if served.reference else None,
        "layout": str(served.layout) if served.layout else None,
        "archive": str(served.archive) if served.archive else None,
        "loaded": served.loaded,
        "stamped": served.stamped,
        "seconds": round(seconds, 3),
        "variant": origin.variant,
        "platform": origin.platform,
        "environment": str(origin.environment),
        "added": [f"{it.name}=={it.version}" for it in served.above.wheels],
        "dropped": list(served.slimmed.dropped) if served.slimmed else [],
        "found": served.found,
        "layers": [_layer_result(layer) for layer in served.image.layers],
        "findings": [it.to_dict() for it in served.findings],
    }
