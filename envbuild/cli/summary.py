"""What a build did: lines that show where its time and bytes went, and the whole as JSON."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

if TYPE_CHECKING:
    from envbuild.oci.image import Layer
    from envbuild.pipeline import Outcome, Part

_NAME = 70
"""Letters of a layer's packages."""


def summary(outcome: "Outcome", seconds: float) -> Iterator[str]:
    """One line for each of our layers: its size, where it was found, how it came to the registry; then the whole."""
    for part in outcome.parts:
        yield from _part_lines(part, several=len(outcome.parts) > 1)
    sent = f"{decimal(outcome.pushed.uploaded)} sent to the registry, " if outcome.pushed else ""
    loaded = f"{decimal(outcome.loaded.sent)} to the engine, " if outcome.loaded else ""
    yield f"{sent}{loaded}{seconds:.1f} s"


def _part_lines(part: "Part", *, several: bool) -> Iterator[str]:
    layers = part.assembled.image.layers
    ours = layers[len(layers) - len(part.assembled.results) :] if part.assembled.results else ()
    for layer in ours:
        state = ", ".join(text for text in (_found(layer), _sent(part, layer)) if text)
        yield f"{decimal(layer.descriptor.size):>9}  {state:<24}  {_short(layer.created_by)}"
    made, base = sum(not layer.found for layer in ours), len(layers) - len(ours)
    found = f"{made} made, {len(ours) - made} found, {base} of the base" if ours else "all found in the registry"
    platform = f"{part.platform}: " if several else ""
    yield f"{platform}{len(layers)} layers, {decimal(sum(layer.descriptor.size for layer in layers))}: {found}"


def _found(layer: "Layer") -> str:
    """`made`, or where it was found: `cache`, `registry`, `base`."""
    return layer.found or ("base" if layer.reused else "made")


def _sent(part: "Part", layer: "Layer") -> str:
    return part.pushed.blobs.get(layer.descriptor.digest, "there") if part.pushed else ""


def _short(text: str) -> str:
    return text if len(text) <= _NAME else f"{text[: _NAME - 3]}..."


def reference(outcome: "Outcome") -> str:
    """What the next program finds the image by: in the registry, else in the engine, else as a file or folder."""
    if outcome.image:
        return str(outcome.image)
    return outcome.loaded.id if outcome.loaded else f"{outcome.archive or outcome.layout}@{outcome.digest}"


def result(outcome: "Outcome", seconds: float) -> dict[str, Any]:
    """The whole for the next program; of several platforms each has its own part."""
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
        "layers": [
            {
                "digest": str(layer.descriptor.digest),
                "size": layer.descriptor.size,
                "reused": layer.reused,
                "found": _found(layer),
            }
            for layer in layers
        ],
        "identity": part.proof.to_dict(),
        "overrides": dict(part.plan.stack.overrides),
        "added": list(part.added),
    }
