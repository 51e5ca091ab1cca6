"""Content digests (OCI image-spec, descriptor.md, "Digests")."""

import hashlib
import re
from dataclasses import dataclass
from typing import BinaryIO, Self

_SHA256 = re.compile(r"sha256:([0-9a-f]{64})\Z")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A sha256 digest; the only algorithm that envbuild writes or accepts."""

    hex: str
    """64 lower-case hexadecimal digits."""

    def __post_init__(self) -> None:
        if not _SHA256.match(f"sha256:{self.hex}"):
            raise ValueError(f"not a sha256 digest: {self.hex[:80]!r}")

    def __str__(self) -> str:
        return f"sha256:{self.hex}"

    @property
    def short(self) -> str:
        """The first twelve digits, for people."""
        return self.hex[:12]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `sha256:<hex>`; ValueError when it is anything else."""
        match = _SHA256.match(text)
        if match is None:
            raise ValueError(f"not a sha256 digest: {text[:80]!r}")
        return cls(match.group(1))

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The digest of these bytes."""
        return cls(hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, file: BinaryIO) -> tuple[Self, int]:
        """The digest and length of what is left in an open file, in bounded memory."""
        hasher, size = hashlib.sha256(), 0
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            size += len(chunk)
        return cls(hasher.hexdigest()), size
