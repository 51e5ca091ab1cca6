"""Recipe -> Image, from wheels and a base, without a daemon."""

from envbuild.assemble.cache import LayerCache
from envbuild.assemble.image import Assembled, assemble, wheels_to_read

__all__ = ["Assembled", "LayerCache", "assemble", "wheels_to_read"]
