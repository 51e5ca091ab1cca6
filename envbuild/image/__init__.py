"""Recipe -> Image, from wheels and a base, without a daemon."""

from envbuild.image.cache import LayerCache
from envbuild.image.image import Assembled, Compiling, assemble, cache_keys, find_difference, wheels_to_read
from envbuild.image.making import Begun
from envbuild.image.rebase import Rebased, derive_recipe, named_base, named_environment, rebase
from envbuild.image.source import WheelFiles
from envbuild.wheel.layer import LayerResult

__all__ = [
    "Assembled",
    "Begun",
    "Compiling",
    "LayerCache",
    "LayerResult",
    "Rebased",
    "WheelFiles",
    "assemble",
    "cache_keys",
    "derive_recipe",
    "find_difference",
    "named_base",
    "named_environment",
    "rebase",
    "wheels_to_read",
]
