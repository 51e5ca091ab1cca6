"""What a build did, in lines that show where its time and bytes went."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.filesize import decimal

if TYPE_CHECKING:
    from envbuild.oci.image import Layer
    from envbuild.pipeline import Outcome

_NAME = 70
"""Letters of a layer's packages."""


def summary(outcome: "Outcome", seconds: float) -> Iterator[str]:
    """One line for each of our layers: its size, where it was found, how it came to the registry; then the whole."""
    layers = outcome.assembled.image.layers
    ours = layers[len(layers) - len(outcome.assembled.results) :] if outcome.assembled.results else ()
    for layer in ours:
        state = ", ".join(part for part in (layer_state(layer), _sent(outcome, layer)) if part)
        yield f"{decimal(layer.descriptor.size):>9}  {state:<24}  {_short(layer.created_by)}"
    made = sum(not layer.found for layer in ours)
    size = sum(layer.descriptor.size for layer in layers)
    found = f"{made} made, {len(ours) - made} found, {len(layers) - len(ours)} of the base" if ours else "all found"
    sent = f"; {decimal(outcome.pushed.uploaded)} sent" if outcome.pushed else ""
    yield f"{len(layers)} layers, {decimal(size)}: {found}{sent}; {seconds:.1f} s"


def layer_state(layer: "Layer") -> str:
    """`made`, or where it was found: `cache`, `registry`, `base`."""
    return layer.found or ("base" if layer.reused else "made")


def _sent(outcome: "Outcome", layer: "Layer") -> str:
    return outcome.pushed.blobs.get(layer.descriptor.digest, "there") if outcome.pushed else ""


def _short(text: str) -> str:
    return text if len(text) <= _NAME else f"{text[: _NAME - 3]}..."
