"""One base taken away from under an environment, and another put there: layers stay what they are, by digest.

The result is the image that building on the new base would give, as layers of wheels and that of the start-up check
depend on the interpreter's minor version only. What depends on more is made again (the virtual environment's own files)
or left out (bytecode).
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
    inner_config,
    whole_config,
)
from envbuild.image.debian.layer import LINE
from envbuild.image.layers.plan import check_depth
from envbuild.image.layers.writer import write_layer
from envbuild.lock.model import Lock
from envbuild.oci.image import ENVIRONMENT, LAYER_GZIP, Descriptor, Image, Layer, manifest_bytes
from envbuild.recipe import PYTHON_LABEL, Base, Recipe

ENVIRONMENT_LINE = "virtual environment"
"""The history's line of the layer with the virtual environment's own files."""
BYTECODE_LINE = "bytecode"
"""How the history's line of a layer with bytecode begins; distributions follow, or words."""
STDLIB_WORDS = "standard library"
_SAID = frozenset({BASE_NAME, BASE_DIGEST, ENVIRONMENT})
_CUDA = "CUDA_VERSION"
"""The variable by which a base with CUDA says which; NVIDIA's images have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The image on its new base, and what became of its layers."""

    image: Image
    recipe: Recipe | None
    """What it would be built from; None without a lock."""
    kept: int
    """Layers of the old image that it has too."""
    dropped: tuple[str, ...] = ()
    """The history's lines of layers that do not fit the new base."""


def named_base(image: Image) -> tuple[str, str]:
    """The base that an image says it stands on: name without digest, and digest; empty where it does not say."""
    said = _annotations(image)
    return str(said.get(BASE_NAME) or ""), str(said.get(BASE_DIGEST) or "")


def named_environment(image: Image) -> str:
    """The environment id that an image says it has; empty where it does not say."""
    return str(_annotations(image).get(ENVIRONMENT) or "")


def rebase(image: Image, old: Base, new: Base, lock: Lock | None = None) -> Rebased:
    """Put the environment of an image that stands on `old` onto `new`, without reading one of its layers.

    With the lock that the image was built from, the result says which environment it is, and is the image that building
    gives. Without, it does not say: an environment's id is a digest over its wheels too, which no image lists.
    BaseError when the image does not stand on `old` or cannot stand on `new`; VerifyError when the lock is another's.
    """
    ours = _own_layers(image, old)
    # It may have been got from a mirror, and the image has the name that it was built with.
    old = replace(old, asked=named_base(image)[0])
    _check_fit(old, new)
    old_recipe = _recipe(image, old, lock) if lock else None
    if new.digest == old.digest and new.asked == old.asked:
        return Rebased(image=image, recipe=old_recipe, kept=len(image.layers))
    _check_system(ours, old, new)
    layers, dropped = _fitting(ours, old, new)
    # An image that lacks something is not what its recipe gives, so it must not be found by that name; of one with
    # bytecode nobody knows whether the new base's standard library would have got some.
    recipe = _moved(old_recipe, new) if old_recipe and not old_recipe.bytecode and not dropped else None
    check_depth(len(layers), len(new.image.layers))
    config = whole_config(new, _inner(image, old, new), layers)
    others = {key: text for key, text in _annotations(image).items() if key not in _SAID}
    everything = (*new.image.layers, *layers)
    manifest = manifest_bytes(config, everything, others | (annotations(recipe) if recipe else _base_only(new)))
    had = {layer.descriptor.digest for layer in image.layers}
    return Rebased(
        image=Image(manifest, config, everything),
        recipe=recipe,
        kept=sum(layer.descriptor.digest in had for layer in layers),
        dropped=dropped,
    )


def _own_layers(image: Image, old: Base) -> tuple[Layer, ...]:
    """The layers above the base, which the image's history must call ours."""
    said, count = named_base(image)[1], len(old.image.layers)
    if said not in (str(old.digest), str(old.image.digest)):
        raise _not_on(old, f"the image says that it stands on {said or 'no base'}, which is not {old.digest}")
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
    """Refuse a base on which the layers would not work as they do on the old one."""
    todo = "choose a base with the same Python and CUDA, and a glibc that is not older; or build the environment anew"
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


def _check_system(ours: Sequence[Layer], old: Base, new: Base) -> None:
    """Refuse to move packages, which were chosen for what the old base has, and bring its records with them."""
    if new.digest != old.digest and any(layer.created_by.startswith(LINE) for layer in ours):
        what = (
            "the image has system packages that were chosen for its base, with that base's record of what is installed"
        )
        raise BaseError(what, where=new.name, todo="build the environment anew on the new base")


def _cuda(base: Base) -> str:
    return ".".join(_variables(inner_config(base)).get(_CUDA, "").split(".")[:2])


def _fitting(ours: Sequence[Layer], old: Base, new: Base) -> tuple[list[Layer], tuple[str, ...]]:
    """The layers for the new base, and the lines of those that are left out."""
    same = bool(old.interpreter) and old.interpreter == new.interpreter
    layers, dropped = [], []
    for layer in ours:
        line = layer.created_by
        # Bytecode is run without a look at its source: that of a standard library which the new base has corrected
        # would bring the faults back, and no version or interpreter tells whether it has.
        stale = line.startswith(BYTECODE_LINE) and (STDLIB_WORDS in line or not same)
        if stale:
            dropped.append(line)
        elif line == ENVIRONMENT_LINE and old.target.python != new.target.python:
            layers.append(_environment_layer(new))
        else:
            layers.append(layer)
    return layers, tuple(dropped)


def _environment_layer(base: Base) -> Layer:
    """The virtual environment's own files, which name the interpreter's whole version."""
    recipe, sink = _bare(base), BytesIO()
    files, links = environment_files(recipe)
    with ThreadPoolExecutor(1) as pool:
        result = write_layer(sink, recipe.prefix, files, pool, links)
    descriptor = Descriptor(LAYER_GZIP, result.digest, result.size)
    return Layer(descriptor, result.diff_id, partial(BytesIO, sink.getvalue()), ENVIRONMENT_LINE)


def _bare(base: Base) -> Recipe:
    return Recipe(
        base_name=base.name,
        base_digest=base.digest,
        base_asked=base.asked,
        python_path=base.python_path,
        target=base.target,
        wheels=(),
        variables=(),
        labels=(),
    )


def _inner(image: Image, old: Base, new: Base) -> dict[str, Any]:
    """The new base's, with what the image has otherwise than the old one: that is what the environment brought."""
    had, has, merged = inner_config(old), _config_of(image), inner_config(new)
    special = {"Env", "Labels", "User"}
    merged |= {key: it for key, it in has.items() if key not in special and it != had.get(key)}
    merged["Env"] = [f"{name}={text}" for name, text in (_variables(merged) | _own_variables(image, old, new)).items()]
    merged["Labels"] = dict(merged.get("Labels") or {}) | _relabelled(_own_labels(image, old), new)
    merged["User"] = has.get("User", "")
    return merged


def _own_variables(image: Image, old: Base, new: Base) -> dict[str, str]:
    """What the environment sets; PATH begins with its own folders and goes on with the base's."""
    had, has = _variables(inner_config(old)), _variables(_config_of(image))
    ours = {name: text for name, text in has.items() if name == "PATH" or had.get(name) != text}
    base_path = had.get("PATH") or DEFAULT_PATH
    if not has.get("PATH", "").endswith(f":{base_path}"):
        todo = "rebase the image that envbuild pushed"
        raise BaseError("the image's PATH does not go on with that of its base", where=old.name, todo=todo)
    path = _variables(inner_config(new)).get("PATH") or DEFAULT_PATH
    return ours | {"PATH": has["PATH"].removesuffix(base_path) + path}


def _own_labels(image: Image, old: Base) -> dict[str, str]:
    had = dict(inner_config(old).get("Labels") or {})
    return {key: text for key, text in (_config_of(image).get("Labels") or {}).items() if had.get(key) != text}


def _relabelled(labels: Mapping[str, str], new: Base) -> dict[str, str]:
    return {key: new.target.python if key == PYTHON_LABEL else text for key, text in labels.items()}


def _variables(inner: Mapping[str, Any]) -> dict[str, str]:
    return dict(str(entry).partition("=")[::2] for entry in inner.get("Env") or ())


def derive_recipe(image: Image, old: Base, lock: Lock) -> Recipe:
    """What an image on `old` was built from, if the lock is its own: variables, labels and user are what it has.

    BaseError when its PATH is not one on that base; BuildError when its config cannot be read.
    """
    own = _own_variables(image, old, old)
    return replace(
        _bare(old),
        target=lock.target,
        wheels=lock.wheels,
        packages=lock.packages,
        owners=lock.owners,
        variables=tuple((name, text) for name, text in own.items() if name not in ("PATH", "VIRTUAL_ENV")),
        labels=tuple(sorted(_own_labels(image, old).items())),
        user=str(_config_of(image).get("User", "")),
        bytecode=compiled_by(old.interpreter) if _has_bytecode(image) else "",
    )


def _recipe(image: Image, old: Base, lock: Lock) -> Recipe:
    """What the image was built from, which its environment id proves."""
    recipe, said = derive_recipe(image, old, lock), named_environment(image)
    if said != str(recipe.environment):
        what = f"the lock gives the environment {recipe.environment.short}, and the image says {said or 'none'}"
        todo = (
            "give the pylock.toml that the image was built from; leave it out if another release of envbuild built it"
        )
        raise VerifyError(what, where="--lock", todo=todo)
    return recipe


def _has_bytecode(image: Image) -> bool:
    return any(layer.created_by.startswith(f"{OURS}{BYTECODE_LINE}") for layer in image.layers)


def _moved(recipe: Recipe, new: Base) -> Recipe:
    return replace(
        recipe,
        base_name=new.name,
        base_digest=new.digest,
        base_asked=new.asked,
        python_path=new.python_path,
        target=new.target,
        labels=tuple(sorted(_relabelled(dict(recipe.labels), new).items())),
    )


def _base_only(base: Base) -> dict[str, str]:
    return {key: text for key, text in annotations(_bare(base)).items() if key != ENVIRONMENT}


def _annotations(image: Image) -> dict[str, str]:
    value = json.loads(image.manifest).get("annotations")
    return dict(value) if isinstance(value, dict) else {}


def _config_of(image: Image) -> dict[str, Any]:
    try:
        inner = dict(json.loads(image.config).get("config") or {})
    except (ValueError, TypeError, AttributeError) as error:
        raise BuildError("the image's config is not valid JSON", where=str(image.digest)) from error
    if not (isinstance(inner.get("Env") or [], list) and isinstance(inner.get("Labels") or {}, dict)):
        raise BuildError("the image's config has variables or labels that are none", where=str(image.digest))
    return inner
