"""The image config and the environment's own files."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envbuild.check import PROGRAM, check_files
from envbuild.errors import BaseError
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.writer import LayerFile, Link
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT, LAYER_GZIP, Descriptor, Image, Layer, canonical_json
from envbuild.recipe import Base, Recipe
from envbuild.wheel.install import InstalledFile

CREATED = "1980-01-01T00:00:00Z"
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OURS = "envbuild: "
"""How the history begins of layers that hold the environment, and of no base's."""
CHECK_LINE = "start-up check"
"""The history's line of the layer with the program that tests what a container has."""


def environment_files(recipe: Recipe) -> tuple[list[LayerFile], list[Link]]:
    """Make what `python -m venv` makes: pyvenv.cfg and the interpreter's links (PEP 405)."""
    text = "\n".join((*recipe.pyvenv, ""))
    file = LayerFile(InstalledFile("pyvenv.cfg", executable=False, source=text.encode()), None)
    versioned = f"python{recipe.target.python_minor}"
    links = [
        Link(f"bin/{versioned}", recipe.python_path),
        Link("bin/python", versioned),
        Link("bin/python3", versioned),
        Link("lib64", "lib"),
    ]
    return [file], links


def checkup_files(recipe: Recipe) -> list[LayerFile]:
    """Make the start-up check and the list that it reads: a layer of their own, as rebasing makes the others anew."""
    return [
        LayerFile(InstalledFile(path, executable=path == PROGRAM, source=content), None)
        for path, content in check_files(recipe).items()
    ]


def annotations(recipe: Recipe) -> dict[str, str]:
    """What the manifest says of the image: its environment and its base (OCI image-spec, annotations.md).

    A base that lies in no registry is named by its digest only: it has different names in different places, and has to
    give one image.
    """
    named = {BASE_NAME: recipe.base_asked} if recipe.base_asked else {}
    return named | {BASE_DIGEST: str(recipe.base_digest), ENVIRONMENT: str(recipe.environment)}


def config_bytes(recipe: Recipe, base: Base, layers: Sequence[Layer]) -> bytes:
    """Serialise the config: the base's, with the environment's variables, labels, user and layers (config.md)."""
    inner = inner_config(base)
    inner["Env"] = _variables(inner.get("Env") or [], recipe)
    inner["Labels"] = dict(inner.get("Labels") or {}) | dict(recipe.labels)
    inner["User"] = recipe.user
    return whole_config(base, inner, layers)


def inner_config(base: Base) -> dict[str, Any]:
    """What the base's config says of running it; BaseError when it cannot be read."""
    return dict(_parsed(base)["config"])


def whole_config(base: Base, inner: Mapping[str, Any], layers: Sequence[Layer]) -> bytes:
    """Serialise a config for the base with layers on top, whose `created_by` gets OURS before it."""
    config = _parsed(base)
    ours = [{"created": CREATED, "created_by": f"{OURS}{layer.created_by}"} for layer in layers]
    return canonical_json(
        {
            "architecture": config["architecture"],
            "os": config["os"],
            **({"variant": config["variant"]} if config.get("variant") else {}),
            "created": CREATED,
            "config": inner,
            "rootfs": {
                "type": "layers",
                "diff_ids": [str(layer.diff_id) for layer in (*base.image.layers, *layers)],
            },
            "history": _base_history(config["history"], len(base.image.layers)) + ours,
        }
    )


def _parsed(base: Base) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(base.image.config)
        return config | {"config": dict(config.get("config") or {}), "history": list(config.get("history") or [])}
    except (ValueError, TypeError, AttributeError) as error:
        raise BaseError("the base's config is not valid JSON", where=base.name) from error


def _base_history(history: list[dict[str, Any]], layers: int) -> list[dict[str, Any]]:
    """Keep the base's history only if it counts its layers rightly; podman refuses one that does not."""
    if sum(not entry.get("empty_layer") for entry in history) == layers:
        return history
    return [{"created": CREATED, "created_by": "base"} for _ in range(layers)]


def _variables(base: Sequence[str], recipe: Recipe) -> list[str]:
    variables = dict(entry.partition("=")[::2] for entry in base)
    path = variables.get("PATH") or DEFAULT_PATH
    ours = {"PATH": f"{recipe.prefix}/bin:{path}", "VIRTUAL_ENV": recipe.prefix, **dict(recipe.variables)}
    return [f"{name}={value}" for name, value in (variables | ours).items()]


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
