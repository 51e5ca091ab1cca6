"""The serving image of equal inputs in a registry, by the tag that every push gives it."""

import json
from dataclasses import asdict, replace

from envbuild.assemble.child import Addition, Parent
from envbuild.assemble.content import measured
from envbuild.errors import RegistryError
from envbuild.lock import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.recipe import LAYER_FORMAT
from envbuild.registry import pull

RECIPE_LABEL = "dev.envbuild.serving"
"""The label that names what a serving image was made from, by the digest of all that decides its bytes."""


def recipe_digest(parent: Parent, above: Lock, addition: Addition, compiled: str) -> Digest:
    """Everything that decides a serving image's bytes; `compiled` says by what, and is empty without bytecode.

    BuildError for a file that cannot be read.
    """
    config = asdict(replace(addition, contents=()))
    wheels = [[it.filename, str(it.sha256)] for it in above.wheels]
    contents = [[it.line, str(measured(it).key)] for it in addition.contents]
    value = [LAYER_FORMAT, parent.name, str(parent.digest), wheels, config, contents, compiled]
    return Digest.of(canonical_json(value))


def labelled(addition: Addition, recipe: Digest) -> Addition:
    """The same, whose image says what it was made from."""
    return replace(addition, labels=(*addition.labels, (RECIPE_LABEL, str(recipe))))


def serving_tag(recipe: Digest) -> str:
    """`serve-a1b2c3d4e5f6`: a guess only, so what it names is looked at."""
    return f"serve-{recipe.short}"


def find_serving(target: Reference, recipe: Digest, parent: Parent) -> Image | None:
    """Find the image of a recipe in a repository; None when it has none that says so and stands on the parent.

    That it is what it says rests on who may push to the repository. RegistryError as `pull`.
    """
    tagged = replace(target, tag=serving_tag(recipe), digest=None)
    try:
        image = pull(tagged, machine=parent.lock.target.machine)
    except RegistryError as error:
        if error.status == 404:
            return None
        raise
    below = [it.descriptor.digest for it in parent.image.layers]
    labels = (json.loads(image.config).get("config") or {}).get("Labels") or {}
    stands = [it.descriptor.digest for it in image.layers[: len(below)]] == below
    if not stands or labels.get(RECIPE_LABEL) != str(recipe):
        return None
    return replace(image, layers=tuple(replace(it, found="registry") for it in image.layers))
