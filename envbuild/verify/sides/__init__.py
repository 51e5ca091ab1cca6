"""Targets of a verification, read into what they say."""

from envbuild.verify.sides.side import Kind, Package, Side

__all__ = ["Kind", "Package", "Side"]
