"""The digests of a model's file: the one that captures of local files have, and that of Cloud Storage."""

import hashlib
from base64 import b64encode
from dataclasses import dataclass
from typing import IO, Any

from envbuild.oci.digest import Digest

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Sums:
    """What a file holds."""

    sha256: Digest
    crc32c: str | None
    """In base64, as Cloud Storage says it; None where nobody asked."""
    size: int


def sums_of(content: IO[bytes]) -> Sums:
    """Read a file to its end; OSError."""
    from google_crc32c import Checksum  # noqa: PLC0415 - comes with Google's client, which few images need

    kind: Any = Checksum  # of a package without types
    sha256, crc32c, size = hashlib.sha256(), kind(), 0
    while piece := content.read(_CHUNK):
        sha256.update(piece)
        crc32c.update(piece)
        size += len(piece)
    return Sums(Digest(sha256.hexdigest()), b64encode(crc32c.digest()).decode(), size)
