"""Debian packages that a run had loaded libraries from, unpacked into one layer between the base and the wheels."""

from envbuild.image.debian.ground import Folder, Ground
from envbuild.image.debian.layer import LINE, SystemLayer, packages_key, packages_line

__all__ = ["LINE", "Folder", "Ground", "SystemLayer", "packages_key", "packages_line"]
