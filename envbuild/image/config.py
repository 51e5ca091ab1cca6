"""The image config and the environment's own files."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envbuild.check import PROGRAM, check_files
from envbuild.errors import BaseError
from envbuild.oci.image import ENVIRONMENT, Layer, canonical_json
from envbuild.recipe import Base, Recipe
from envbuild.wheel.install import InstalledFile
from envbuild.wheel.layer import LayerFile, Link

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
