"""What an image that was found in a registry has to be: put together anew from the inputs, and compared byte for byte.

Everything but the contents of the layers is held against the inputs of the build: the number and order of layers, the
config (entrypoint, user, environment, labels, history) and the manifest. Layers that this machine made are held against
the registry's by their digests. What is in the other layers stays the registry's claim, and so does whether there is
something to put into the few layers that are optional.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envbuild.image.cache import LayerCache
from envbuild.image.config import OURS
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor, Image, Layer

_SHOWN = 120
"""Letters of a value in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A layer that the inputs ask for."""

    label: str
    """What the image's history says."""
    key: Digest | None
    """Its key in the cache; None where that depends on wheels that nobody read here."""
    optional: bool = False
    """Whether the layer may be absent: its contents are not known here."""


def find_problem(
    found: Image, below: Image, slots: Sequence[Slot], cache: LayerCache, put_together: Callable[[list[Layer]], Image]
) -> str:
    """Say how an image differs from what `put_together` makes of its layers above `below`; empty where it does not.

    `slots` are the layers that may lie there, lowest first.
    """
    layers = found.layers[len(below.layers) :]
    filled = _filled(layers, slots)
    if isinstance(filled, str):
        return filled
    for layer, slot in zip(layers, filled, strict=True):
        known = cache.get(slot.key) if slot.key else None
        has = (layer.descriptor.digest, layer.descriptor.size, layer.diff_id)
        if known and has != (known.result.digest, known.result.size, known.result.diff_id):
            return f"its layer {slot.label} is {layer.descriptor.digest}, and this machine made {known.result.digest}"
    plain = [
        replace(it, descriptor=Descriptor(LAYER_GZIP, it.descriptor.digest, it.descriptor.size), created_by=slot.label)
        for it, slot in zip(layers, filled, strict=True)
    ]
    wanted = put_together(plain)
    try:
        return _difference("config", found.config, wanted.config) or _difference(
            "manifest", found.manifest, wanted.manifest
        )
    except RecursionError:
        return "its config or manifest is nested too deeply"


def _filled(layers: Sequence[Layer], slots: Sequence[Slot]) -> list[Slot] | str:
    """The slot of each layer, or what is wrong: a layer has no slot, or a slot that is not optional has no layer."""
    filled: list[Slot] = []
    lines = [it.created_by or "without a line in the history" for it in layers]
    for slot in slots:
        line = lines[len(filled)] if len(filled) < len(lines) else "absent"
        if line == f"{OURS}{slot.label}":
            filled.append(slot)
        elif not slot.optional:
            return f"layer {len(filled) + 1} above its base is {_short(line)}, and has to be {_short(slot.label)}"
    if len(filled) < len(lines):
        return f"layer {len(filled) + 1} above its base is {_short(lines[len(filled)])}, and there has to be none"
    return filled


def _difference(what: str, found: bytes, wanted: bytes) -> str:
    if found == wanted:
        return ""
    return _different(what, json.loads(found), json.loads(wanted)) or f"its {what} is written in other bytes"


def _different(where: str, found: Any, wanted: Any) -> str:
    """The first value that differs in two JSON documents; empty if none does."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        pairs = [(f"{where}.{key}", found.get(key), wanted.get(key)) for key in sorted({*found, *wanted})]
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        pairs = [(f"{where}[{number}]", *pair) for number, pair in enumerate(zip(found, wanted, strict=True))]
    else:
        same = found == wanted and type(found) is type(wanted)
        return "" if same else f"its {_short(where)} is {_short(found)}, and has to be {_short(wanted)}"
    return next(filter(None, (_different(*it) for it in pairs)), "")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    line = "".join(letter if letter.isprintable() else " " for letter in text[:_SHOWN])
    return line if len(text) <= _SHOWN else f"{line}…"
