"""The image config, the environment's own files, and the comparison of an existing image with the expected one.

The expected image is put together from the inputs of the build. Compared are the number and order of layers, the config
(entrypoint, user, environment, labels, history) and the manifest, byte for byte, and the digests of layers that this
machine made. The contents of the other layers stay the registry's claim, and so does which of the few optional layers
are empty.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envbuild.check import PROGRAM, check_files
from envbuild.errors import BaseError
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.writer import LayerFile, Link
from envbuild.oci.compression import GZIP
from envbuild.oci.digest import Digest
from envbuild.oci.image import COMPRESSION, ENVIRONMENT, Descriptor, Image, Layer, canonical_json
from envbuild.recipe import Base, Recipe
from envbuild.wheel.install import InstalledFile

CREATED = "1980-01-01T00:00:00Z"
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OURS = "envbuild: "
"""The beginning of the history lines of envbuild's layers."""
CHECK_LINE = "start-up check"
"""The history line of the layer with the start-up check."""
_SETTABLE = re.compile(r"[^=\0\ud800-\udfff]+(?:=[^\0\ud800-\udfff]*)?")
"""An entry of Env that can be a variable of a process."""
_LONGEST = 120
"""Characters of a value in a message."""


def environment_files(recipe: Recipe) -> tuple[list[LayerFile], list[Link]]:
    """Return the files of `python -m venv`: pyvenv.cfg and the interpreter's links (PEP 405)."""
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


def startup_check_files(recipe: Recipe) -> list[LayerFile]:
    """Return the start-up check and its list: a layer of their own, which stays when an image is rebased."""
    return [
        LayerFile(InstalledFile(path, executable=path == PROGRAM, source=content), None)
        for path, content in check_files(recipe).items()
    ]


def annotations(recipe: Recipe) -> dict[str, str]:
    """Return the manifest's annotations: environment, base, and compression (OCI image-spec, annotations.md).

    A base outside registries is named by its digest only: it may have other names elsewhere, and must give one image.
    """
    named = {BASE_NAME: recipe.base_asked} if recipe.base_asked else {}
    if recipe.compression != GZIP:
        named[COMPRESSION] = str(recipe.compression)
    return named | {BASE_DIGEST: str(recipe.base_digest), ENVIRONMENT: str(recipe.environment)}


def config_bytes(recipe: Recipe, base: Base, layers: Sequence[Layer]) -> bytes:
    """Serialise the config: the base's, with the environment's variables, labels, user and layers (config.md)."""
    inner = inner_config(base)
    path = f"{recipe.prefix}/bin:{variables_of(inner).get('PATH') or DEFAULT_PATH}"
    variables = {"PATH": path, "VIRTUAL_ENV": recipe.prefix, **dict(recipe.variables)}
    inner = extend_config(inner, variables, dict(recipe.labels)) | {"User": recipe.user}
    return whole_config(base, inner, layers)


def inner_config(base: Base) -> dict[str, Any]:
    """Return the `config` object of the base's config; BaseError if it cannot be read."""
    return dict(_parse(base)["config"])


def variables_of(inner: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of a `config` object, as far as a process can have them."""
    entries = inner.get("Env")
    texts = [it for it in entries if isinstance(it, str)] if isinstance(entries, list) else []
    return dict(it.partition("=")[::2] for it in texts if _SETTABLE.fullmatch(it))


def extend_config(inner: dict[str, Any], variables: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a `config` object with more environment variables and labels, which replace those of the same name."""
    lines = [f"{name}={value}" for name, value in {**variables_of(inner), **variables}.items()]
    return inner | {"Env": lines, "Labels": {**(inner.get("Labels") or {}), **labels}}


def whole_config(base: Base, inner: Mapping[str, Any], layers: Sequence[Layer]) -> bytes:
    """Serialise a config for the base with layers on top, whose `created_by` gets the prefix OURS."""
    config, count = _parse(base), len(base.image.layers)
    history = config["history"]
    if sum(not entry.get("empty_layer") for entry in history) != count:  # podman refuses such a history
        history = [{"created": CREATED, "created_by": "base"} for _ in range(count)]
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
            "history": history + ours,
        }
    )


def _parse(base: Base) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(base.image.config)
        inner = dict(config.get("config") or {})
        _check(inner)
        return config | {"config": inner, "history": list(config.get("history") or [])}
    except (ValueError, TypeError, AttributeError) as error:
        raise BaseError("the base's config is not valid JSON", where=base.name) from error


def _check(inner: Mapping[str, Any]) -> None:
    texts = all(isinstance(line, str) for line in inner.get("Env") or ())
    if not texts or not isinstance(inner.get("Labels") or {}, dict):
        raise TypeError("Env or Labels are of another type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A layer that an image of the inputs has, or may have."""

    label: str
    """Its line in the image's history."""
    key: Digest | None
    """Its key in the cache; None if that depends on wheels that were not read here."""
    optional: bool = False
    """Whether the layer may be absent: its contents are unknown here."""


def find_problem(
    found: Image, below: Image, slots: Sequence[Slot], cache: LayerCache, join: Callable[[list[Layer]], Image]
) -> str:
    """Describe how an image differs from what `join` makes of its layers above `below`; empty if it does not.

    `slots` are the layers that may be there, lowest first.
    """
    layers = found.layers[len(below.layers) :]
    filled = _fill(layers, slots)
    if isinstance(filled, str):
        return filled
    for layer, slot in zip(layers, filled, strict=True):
        known = cache.get(slot.key) if slot.key else None
        has = (layer.descriptor.digest, layer.descriptor.size, layer.diff_id)
        if known and has != (known.result.digest, known.result.size, known.result.diff_id):
            return f"its layer {slot.label} is {layer.descriptor.digest}, and this machine made {known.result.digest}"
    media_type = cache.compression.media_type
    plain = [
        replace(it, descriptor=Descriptor(media_type, it.descriptor.digest, it.descriptor.size), created_by=slot.label)
        for it, slot in zip(layers, filled, strict=True)
    ]
    expected = join(plain)
    pairs = [("config", found.config, expected.config), ("manifest", found.manifest, expected.manifest)]
    try:
        for what, actual, wanted in pairs:
            if actual != wanted:
                return _first_difference(what, json.loads(actual), json.loads(wanted)) or f"its {what} has other bytes"
    except RecursionError:
        return "its config or manifest is nested too deeply"
    return ""


def _fill(layers: Sequence[Layer], slots: Sequence[Slot]) -> list[Slot] | str:
    """Return the slot of each layer, or the problem: a layer without slot, or a required slot without layer."""
    filled: list[Slot] = []
    lines = [it.created_by or "without a line in the history" for it in layers]
    for slot in slots:
        line = lines[len(filled)] if len(filled) < len(lines) else "absent"
        if line == f"{OURS}{slot.label}":
            filled.append(slot)
        elif not slot.optional:
            return f"layer {len(filled) + 1} above its base is {_short(line)}, not {_short(slot.label)}"
    if len(filled) < len(lines):
        return f"layer {len(filled) + 1} above its base is {_short(lines[len(filled)])}, which should not be there"
    return filled


def _first_difference(where: str, found: Any, expected: Any) -> str:
    """Describe the first value that differs in two JSON documents; empty if none does."""
    if isinstance(found, dict) and isinstance(expected, dict):
        pairs = [(f"{where}.{key}", found.get(key), expected.get(key)) for key in sorted({*found, *expected})]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(f"{where}[{number}]", *pair) for number, pair in enumerate(zip(found, expected, strict=True))]
    else:
        same = found == expected and type(found) is type(expected)
        return "" if same else f"its {_short(where)} is {_short(found)}, not {_short(expected)}"
    return next(filter(None, (_first_difference(*it) for it in pairs)), "")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    line = "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST])
    return line if len(text) <= _LONGEST else f"{line}…"
