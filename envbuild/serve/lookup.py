"""The serving image of equal inputs in a registry, by the tag that every push gives it."""

from dataclasses import asdict, replace

from envbuild.image.child import Addition, Parent
from envbuild.image.content import measured
from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.recipe import LAYER_FORMAT
from envbuild.registry.pull import find_tagged
from envbuild.trust import Claim

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


def find_serving(target: Reference, recipe: Digest, machine: str) -> Claim[Image] | None:
    """Find what a repository has as the image of a recipe; None when it has none. RegistryError as `pull`."""
    return find_tagged(replace(target, tag=serving_tag(recipe), digest=None), machine=machine)
