"""What is known of a pushed image that statements about it are made from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference

DEBIAN = "debian:"
"""What stands before the suite, in the name of a base that was made of Debian's own packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One image, and everything that went into it."""

    reference: Reference
    """By digest, as the registry confirmed it."""
    image: Image
    locks: tuple[Lock, ...]
    """Whose wheels are in it: the environment's, and what is above it."""
    lock_digests: tuple[Digest, ...] = ()
    """Of the lock files, as they are stamped."""
    role: str
    variant: str
    platform: str
    environment: Digest
    base_name: str
    """As it was asked for; a path of this machine is never told."""
    base_digest: Digest
    manifest: Digest
    """Of the training manifest."""
    model: str | None = None
    """The URI of the model that is served; a path of this machine is never told, only its last part."""
    model_files: tuple[tuple[str, Digest], ...] = ()
    """The model's files by their paths in its folder, as far as their digests are known."""
    parent: Reference | None = None
    """The training image that it starts with."""
    parameters: tuple[tuple[str, str], ...] = field(default_factory=tuple)
    """The options that say how it was built, those too that were left as they are by default."""
    started: datetime
    finished: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is attached to each image that is pushed."""

    statements: bool = True
    """Bill of materials and provenance."""
    key: str | None = None
    """What signs: a file with a private key, or `gcpkms://projects/...`; None to sign nothing."""


class Teller(Protocol):
    """Where it is told what goes on."""

    @property
    def note(self) -> Callable[[str], None]:
        """Say a detail."""

    @property
    def warn(self) -> Callable[[str], None]:
        """Say what somebody has to know."""
