"""How layers are compressed: gzip, or zstd (RFC 8878) at a level; and the tar of a layer, whichever it is."""

import re
from dataclasses import dataclass, replace
from typing import BinaryIO, Self, cast

import zstandard

from envbuild.oci.deflate import GZIP_ERRORS, open_gzip
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD

COMPRESSION_ERRORS: tuple[type[Exception], ...] = (*GZIP_ERRORS, zstandard.ZstdError)
"""Exceptions of reading a damaged layer."""
DEFAULT_LEVEL, _HIGHEST_LEVEL = 3, 8
"""Of zstd; higher levels need more than 250 MB for four layers at a time."""
_BASE = "+base"
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The first bytes of a zstd frame without content (RFC 8878, 3.1.2)."""


@dataclass(frozen=True, slots=True)
class Compression:
    """The compression of an image's layers."""

    level: int = 0
    """Of zstd; 0 for gzip, whose bytes are mostly those of the wheels."""
    base: bool = False
    """Whether it is that of the base's layers too: those of another are recompressed."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `gzip`, `zstd` or `zstd:3`, each with `+base` or without it; ValueError."""
        plain = text.removesuffix(_BASE)
        name, colon, level = plain.partition(":")
        if name == "gzip" and not colon:
            return cls(base=plain != text)
        if name == "zstd" and (not colon or (level.isascii() and level.isdecimal())):
            found = cls(int(level) if colon else DEFAULT_LEVEL, plain != text)
            if 1 <= found.level <= _HIGHEST_LEVEL:
                return found
        raise ValueError(f"{text!r:.80} is neither gzip, nor zstd, nor zstd:1 to zstd:{_HIGHEST_LEVEL}")

    def __str__(self) -> str:
        return (f"zstd:{self.level}" if self.level else "gzip") + (_BASE if self.base else "")

    @property
    def plain(self) -> Self:
        """The compression of one layer."""
        return replace(self, base=False)

    @property
    def media_type(self) -> str:
        """The media type of a layer."""
        return LAYER_ZSTD if self.level else LAYER_GZIP

    def replaces(self, media_type: str) -> bool:
        """Whether a layer of the base that has this media type is recompressed."""
        return self.base and media_type != self.media_type


GZIP = Compression()


def media_type_of(head: bytes) -> str:
    """Return the media type of a layer that begins with these four bytes."""
    if head.startswith(b"\x1f\x8b"):
        return LAYER_GZIP
    return LAYER_ZSTD if head.startswith(b"\x28\xb5\x2f\xfd") or _SKIPPABLE.match(head) else LAYER_TAR


def open_layer(file: BinaryIO, media_type: str) -> BinaryIO:
    """Read the tar of a layer; one of COMPRESSION_ERRORS if it is damaged.

    A zstd layer that ends too early gives less, without an error: compare the diff id.
    """
    if media_type == LAYER_ZSTD:
        # A layer may have several frames, as those of zstd:chunked and pzstd have.
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
        return cast("BinaryIO", reader)
    return open_gzip(file) if media_type == LAYER_GZIP else file
