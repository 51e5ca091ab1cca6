"""Recipe: everything that decides the image's bytes, and nothing else."""

from dataclasses import dataclass
from typing import Any

from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json

LAYER_FORMAT = 1
"""Raised whenever the same recipe would give other bytes."""
PREFIX = "/opt/env"
USER = "65532:65532"
"""The conventional non-root user of minimal images; it owns nothing in the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image and what was read from its files."""

    name: str
    """As it was asked for, by digest where it lies in a registry: `debian:bookworm`, `python:3.11.7-slim@sha256:…`."""
    image: Image
    target: Target
    """Python, machine and glibc that lie in the base."""
    python_path: str
    """The interpreter, all links followed: `/usr/bin/python3.11`."""

    @property
    def digest(self) -> Digest:
        """The digest of the base's manifest."""
        return self.image.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The environment: wheels, what they stand on, and how they are started."""

    base_name: str
    base_digest: Digest
    python_path: str
    target: Target
    wheels: tuple[LockedWheel, ...]
    variables: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    layer_format: int = LAYER_FORMAT
    prefix: str = PREFIX
    user: str = USER

    @property
    def environment(self) -> Digest:
        """The environment id: equal exactly when the images are equal."""
        return Digest.of(canonical_json(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the bytes; neither the base's name nor a wheel's address is part of it."""
        return {
            "layer_format": self.layer_format,
            "base": str(self.base_digest),
            "python": {"path": self.python_path, "version": self.target.python},
            "machine": self.target.machine,
            "prefix": self.prefix,
            "user": self.user,
            "variables": dict(self.variables),
            "labels": dict(self.labels),
            "wheels": [{"filename": wheel.filename, "sha256": str(wheel.sha256)} for wheel in self.wheels],
        }


def make_recipe(stack: Stack, lock: Lock, base: Base) -> Recipe:
    """Join the decision, the files and the base."""
    labels = {
        "dev.envbuild.framework": f"{stack.distribution}=={stack.version}",
        "dev.envbuild.variant": stack.variant,
        "dev.envbuild.python": lock.target.python,
    }
    if stack.cuda:
        labels["dev.envbuild.cuda"] = stack.cuda
    return Recipe(
        base_name=base.name,
        base_digest=base.digest,
        python_path=base.python_path,
        target=lock.target,
        wheels=lock.wheels,
        variables=stack.variables,
        labels=tuple(sorted(labels.items())),
    )
