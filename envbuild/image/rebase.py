"""Rebasing: the layers of an environment, unchanged and unread, on another base.

The result is the image that building on the new base would give, as layers of wheels and of the start-up check depend
on the interpreter's minor version only. The virtual environment's own files are made again, and bytecode is dropped.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any

from packaging.version import Version

from envbuild.errors import BaseError, BuildError, VerifyError
from envbuild.image.bytecode.compiler import compiled_by
from envbuild.image.config import (
    BASE_DIGEST,
    BASE_NAME,
    DEFAULT_PATH,
    OURS,
    annotations,
    environment_files,
    extend_config,
    inner_config,
    variables_of,
    whole_config,
)
from envbuild.image.debian.layer import LINE
from envbuild.image.layers.plan import check_depth
from envbuild.image.layers.writer import write_layer
from envbuild.lock.model import Lock
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.image import COMPRESSION, ENVIRONMENT, Image, Layer, history_lines, manifest_bytes
from envbuild.recipe import PYTHON_LABEL, Base, Recipe

ENVIRONMENT_LINE = "virtual environment"
"""The history line of the layer with the virtual environment's own files."""
BYTECODE_LINE = "bytecode"
"""The beginning of the history line of a layer with bytecode; distributions follow, or words."""
STDLIB_WORDS = "standard library"
_REPLACED = frozenset({BASE_NAME, BASE_DIGEST, ENVIRONMENT, COMPRESSION})
_CUDA = "CUDA_VERSION"
"""The variable with the version of CUDA; NVIDIA's images set it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The image on its new base, and a summary of its layers."""

    image: Image
    recipe: Recipe | None
    """The recipe that builds it; None without a lock."""
    kept: int
    """Number of layers that it shares with the old image."""
    dropped: tuple[str, ...] = ()
    """History lines of layers that do not fit the new base."""


def annotations_of(image: Image) -> dict[str, str]:
    """Return the annotations of an image's manifest."""
    value = json.loads(image.manifest).get("annotations")
    return dict(value) if isinstance(value, dict) else {}


def named_base(image: Image) -> tuple[str, str]:
    """Return the base in an image's annotations: name without digest, and digest; empty if absent."""
    annotated = annotations_of(image)
    return str(annotated.get(BASE_NAME) or ""), str(annotated.get(BASE_DIGEST) or "")


def base_below(image: Image) -> Image | None:
    """The image of the layers below those that envbuild made: its base, without a manifest of its own.

    None where an engine built the image, whose history does not tell them apart.
    """
    lines = history_lines(json.loads(image.config), len(image.layers))
    own = [number for number, it in enumerate(lines) if it.startswith(OURS)]
    return replace(image, layers=image.layers[: own[0]]) if own else None


def named_environment(image: Image) -> str:
    """Return the environment id in an image's annotations; empty if absent."""
    return str(annotations_of(image).get(ENVIRONMENT) or "")


def named_compression(image: Image) -> Compression:
    """Return the compression of an environment's layers, in the image's annotations; BuildError if it is invalid."""
    try:
        return Compression.parse(annotations_of(image).get(COMPRESSION) or str(GZIP))
    except (ValueError, AttributeError) as error:
        what, todo = f"the image's annotation {COMPRESSION} is invalid: {error}", "use the image that envbuild pushed"
        raise BuildError(what, where=str(image.digest), todo=todo) from error


def rebase(image: Image, old: Base, new: Base, lock: Lock | None = None) -> Rebased:
    """Put the environment of an image on `old` onto `new`, without reading a layer.

    With the lock that the image was built from, the result has an environment id, and is the image that building gives.
    Without, it has none: the id is a digest of the wheels too, which no image lists. The new base's layers stay as they
    are, whether the old one's were recompressed or not.
    BaseError if the image is not on `old` or does not fit `new`; VerifyError if the lock is another image's.
    """
    ours = _own_layers(image, old)
    # It may come from a mirror, and the image has the name that it was built with.
    old = replace(old, asked=named_base(image)[0])
    _check_fit(old, new)
    old_recipe = _recipe(image, old, lock) if lock else None
    if new.digest == old.digest and new.asked == old.asked:
        return Rebased(image=image, recipe=old_recipe, kept=len(image.layers))
    if new.digest != old.digest and any(layer.created_by.startswith(LINE) for layer in ours):
        what = (
            "the image has system packages that were chosen for its base, with that base's record of what is installed"
        )
        raise BaseError(what, where=new.name, todo="build the environment again on the new base")
    compression = named_compression(image).plain
    layers, dropped = _select_layers(ours, old, new, compression)
    # An image that lacks a layer is not what its recipe gives, so it must not have its id; of one with bytecode it is
    # unknown whether the new base's standard library would get a layer.
    recipe = None
    if old_recipe and not old_recipe.bytecode and not dropped:
        recipe = replace(
            old_recipe,
            base_name=new.name,
            base_digest=new.digest,
            base_asked=new.asked,
            python_path=new.python_path,
            target=new.target,
            labels=tuple(sorted(_relabelled(dict(old_recipe.labels), new).items())),
            compression=compression,
        )
    check_depth(len(layers), len(new.image.layers))
    config = whole_config(new, _inner(image, old, new), layers)
    others = {key: text for key, text in annotations_of(image).items() if key not in _REPLACED}
    added = annotations(recipe or replace(_bare(new), compression=compression))
    if recipe is None:
        del added[ENVIRONMENT]
    everything = (*new.image.layers, *layers)
    manifest = manifest_bytes(config, everything, others | added)
    had = {layer.descriptor.digest for layer in image.layers}
    return Rebased(
        image=Image(manifest, config, everything),
        recipe=recipe,
        kept=sum(layer.descriptor.digest in had for layer in layers),
        dropped=dropped,
    )


def _own_layers(image: Image, old: Base) -> tuple[Layer, ...]:
    """Return the layers above the base, which must be envbuild's by the image's history."""
    annotated, count = named_base(image)[1], len(old.image.layers)
    if annotated not in (str(old.digest), str(old.image.digest)):
        raise _not_on(old, f"the base in the image's annotations is {annotated or 'missing'}, not {old.digest}")
    if [it.diff_id for it in image.layers[:count]] != [it.diff_id for it in old.image.layers]:
        raise _not_on(old, "the image's layers do not begin with those of its base")
    own = image.layers[count:]
    foreign = [layer.created_by for layer in own if not layer.created_by.startswith(OURS)]
    if foreign or not own:
        what = f"a layer on its base is not of envbuild: {foreign[0][:120]!r}" if own else "nothing is on its base"
        todo = "rebase the image that envbuild pushed, and build on the result again"
        raise BaseError(f"the image cannot be rebased: {what}", where=str(image.digest), todo=todo)
    return tuple(replace(layer, created_by=layer.created_by.removeprefix(OURS), reused=True) for layer in own)


def _not_on(old: Base, what: str) -> BaseError:
    return BaseError(what, where=old.name, todo="give --old-base the base that the image was built on")


def _check_fit(old: Base, new: Base) -> None:
    """Refuse a base on which the layers would work differently."""
    todo = "choose a base with the same Python and CUDA, and a glibc that is not older; or build the environment again"
    pairs = [
        ("machine", old.target.machine, new.target.machine),
        ("Python", old.target.python_minor, new.target.python_minor),
        ("interpreter's path", old.python_path, new.python_path),
        ("CUDA", _cuda(old), _cuda(new)),
    ]
    wrong = [
        f"its {what} is {there or 'absent'}, not {here or 'absent'}" for what, here, there in pairs if here != there
    ]
    if Version(new.target.glibc) < Version(old.target.glibc):
        wrong.append(f"its glibc {new.target.glibc} is older than {old.target.glibc}")
    if wrong:
        raise BaseError(f"the new base does not fit the environment: {'; '.join(wrong)}", where=new.name, todo=todo)


def _cuda(base: Base) -> str:
    return ".".join(variables_of(inner_config(base)).get(_CUDA, "").split(".")[:2])


def _select_layers(
    ours: Sequence[Layer], old: Base, new: Base, compression: Compression
) -> tuple[list[Layer], tuple[str, ...]]:
    """Return the layers for the new base, and the history lines of dropped ones."""
    same = bool(old.interpreter) and old.interpreter == new.interpreter
    layers, dropped = [], []
    for layer in ours:
        line = layer.created_by
        # Python runs this bytecode without checking its source: the old standard library's would undo corrections of
        # the new base, and no version shows whether there are any.
        if line.startswith(BYTECODE_LINE) and (STDLIB_WORDS in line or not same):
            dropped.append(line)
        elif line == ENVIRONMENT_LINE and old.target.python != new.target.python:
            recipe, sink = _bare(new), BytesIO()
            files, links = environment_files(recipe)
            with ThreadPoolExecutor(1) as pool:
                result = write_layer(sink, recipe.prefix, files, pool, links, compression)
            opener = partial(BytesIO, sink.getvalue())
            layers.append(Layer(result.descriptor, result.diff_id, opener, ENVIRONMENT_LINE))
        else:
            layers.append(layer)
    return layers, tuple(dropped)


def _bare(base: Base) -> Recipe:
    return Recipe(
        base_name=base.name,
        base_digest=base.digest,
        base_asked=base.asked,
        python_path=base.python_path,
        target=base.target,
    )


def _inner(image: Image, old: Base, new: Base) -> dict[str, Any]:
    """Return the new base's config, with the differences between the image's and the old base's."""
    had, has, merged = inner_config(old), _config_of(image), inner_config(new)
    special = {"Env", "Labels", "User"}
    merged |= {key: it for key, it in has.items() if key not in special and it != had.get(key)}
    labels = _relabelled(_own_labels(image, old), new)
    return extend_config(merged, _own_variables(image, old, new), labels) | {"User": has.get("User", "")}


def _own_variables(image: Image, old: Base, new: Base) -> dict[str, str]:
    """Return the environment's variables; PATH has its own folders before those of the base."""
    had, has = variables_of(inner_config(old)), variables_of(_config_of(image))
    ours = {name: text for name, text in has.items() if name == "PATH" or had.get(name) != text}
    base_path = had.get("PATH") or DEFAULT_PATH
    if not has.get("PATH", "").endswith(f":{base_path}"):
        todo = "rebase the image that envbuild pushed"
        raise BaseError("the image's PATH does not end with that of its base", where=old.name, todo=todo)
    path = variables_of(inner_config(new)).get("PATH") or DEFAULT_PATH
    return ours | {"PATH": has["PATH"].removesuffix(base_path) + path}


def _own_labels(image: Image, old: Base) -> dict[str, str]:
    had = dict(inner_config(old).get("Labels") or {})
    return {key: text for key, text in (_config_of(image).get("Labels") or {}).items() if had.get(key) != text}


def _relabelled(labels: Mapping[str, str], new: Base) -> dict[str, str]:
    return {key: new.target.python if key == PYTHON_LABEL else text for key, text in labels.items()}


def derive_recipe(image: Image, old: Base, lock: Lock) -> Recipe:
    """Return the recipe of an image on `old`, with its lock and its own variables, labels and user.

    BaseError if its PATH does not end with the base's; BuildError if its config cannot be read.
    """
    own = _own_variables(image, old, old)
    has_bytecode = any(layer.created_by.startswith(f"{OURS}{BYTECODE_LINE}") for layer in image.layers)
    return replace(
        _bare(old),
        target=lock.target,
        wheels=lock.wheels,
        packages=lock.packages,
        owners=lock.owners,
        variables=tuple((name, text) for name, text in own.items() if name not in ("PATH", "VIRTUAL_ENV")),
        labels=tuple(sorted(_own_labels(image, old).items())),
        user=str(_config_of(image).get("User", "")),
        bytecode=compiled_by(old.interpreter) if has_bytecode else "",
        compression=named_compression(image),
    )


def _recipe(image: Image, old: Base, lock: Lock) -> Recipe:
    """Return the recipe of the image, which its environment id proves."""
    recipe, annotated = derive_recipe(image, old, lock), named_environment(image)
    if annotated != str(recipe.environment):
        what = f"the lock gives the environment {recipe.environment.short}, and the image has {annotated or 'none'}"
        todo = (
            "give the pylock.toml that the image was built from; leave it out if another release of envbuild built it"
        )
        raise VerifyError(what, where="--lock", todo=todo)
    return recipe


def _config_of(image: Image) -> dict[str, Any]:
    try:
        inner = dict(json.loads(image.config).get("config") or {})
    except (ValueError, TypeError, AttributeError) as error:
        raise BuildError("the image's config is not valid JSON", where=str(image.digest)) from error
    if not (isinstance(inner.get("Env") or [], list) and isinstance(inner.get("Labels") or {}, dict)):
        raise BuildError("the image's config has variables or labels that are none", where=str(image.digest))
    return inner
