"""Recipe -> Image, from wheels and a base, without a daemon."""

from envbuild.assemble.image import Assembled, assemble

__all__ = ["Assembled", "assemble"]
