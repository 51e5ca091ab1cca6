"""Recipe: everything that decides the image's bytes, and nothing else."""

import posixpath
from dataclasses import dataclass
from typing import Any

from envbuild.lock.model import Lock, LockedWheel, SystemPackage, Target
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.wheel.install import Scheme

LAYER_FORMAT = 12
"""Raised whenever the same recipe would give other bytes."""
PYTHON_LABEL = "dev.envbuild.python"
VARIANT_LABEL = "dev.envbuild.variant"
CUDA_LABEL = "dev.envbuild.cuda"
DRIVER_LABEL = "dev.envbuild.driver"
"""The lowest driver of NVIDIA that the CUDA in it works with."""
SLIM_LABEL = "dev.envbuild.slim"
"""The names that an image does without, as only training uses them: what is meant, not what is proved."""
SLIM_OF_LABEL = "dev.envbuild.slim-of"
"""The id of the whole environment that a slim one is a part of."""
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
    asked: str = ""
    """Where it was asked for in a registry, without a digest: `docker.io/library/python:3.11-slim`; empty elsewhere."""
    mirror_of: str = ""
    """What it was copied from, where that is known; no byte of an image depends on it."""
    distribution: str = ""
    """As its os-release says it: `Debian GNU/Linux 12 (bookworm)`."""
    interpreter: str = ""
    """A digest of the interpreter's own files: bases that have it in common have the very same interpreter."""

    @property
    def digest(self) -> Digest:
        """The digest of the base's manifest, where it lies in a registry as that has it."""
        return self.image.found_as or self.image.digest

    def to_dict(self) -> dict[str, str]:
        """What a lock keeps of the base: name, digest and, for a mirror, what it was copied from."""
        said = {"name": self.asked or self.name, "digest": str(self.digest), "mirror_of": self.mirror_of}
        return {key: text for key, text in said.items() if text}


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
    base_asked: str = ""
    """The base's name in the image's annotations; empty where that is left out."""
    bytecode: str = ""
    """By what, and in which format, sources are compiled; empty for an image without bytecode."""
    packages: tuple[SystemPackage, ...] = ()
    """Debian packages that lie between the base and the wheels."""
    owners: tuple[tuple[str, str], ...] = ()
    """Of paths that several wheels install, as RECORD writes them, whose file it has to be; sorted."""
    layer_format: int = LAYER_FORMAT
    prefix: str = PREFIX
    user: str = USER

    @property
    def environment(self) -> Digest:
        """The environment id: equal exactly when the images are equal."""
        return Digest.of(canonical_json(self.to_dict()))

    @property
    def owned(self) -> dict[str, str]:
        """Whose file it has to be, by paths below the prefix."""
        site = Scheme(prefix=self.prefix, python_minor=self.target.python_minor).site_packages
        return {posixpath.normpath(f"{site}/{path}"): name for path, name in self.owners}

    @property
    def pyvenv(self) -> tuple[str, ...]:
        """The lines of pyvenv.cfg, as `python -m venv` writes them (PEP 405)."""
        return (
            f"home = {self.python_path.rpartition('/')[0]}",
            "include-system-site-packages = false",
            f"version = {self.target.python}",
            f"executable = {self.python_path}",
            f"command = {self.python_path} -m venv {self.prefix}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the bytes: of the base's name only what the image says, and no wheel's address."""
        named = {"base_name": self.base_asked} if self.base_asked else {}
        compiled = {"bytecode": self.bytecode} if self.bytecode else {}
        packed = [{"name": it.name, "version": it.version, "sha256": str(it.sha256)} for it in self.packages]
        return (
            named
            | compiled
            | ({"packages": packed} if packed else {})
            | ({"owners": dict(self.owners)} if self.owners else {})
            | {
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
        )


def make_recipe(stack: Stack, lock: Lock, base: Base, bytecode: str = "") -> Recipe:
    """Join the decision, the files and the base; `bytecode` says by what it is compiled, if it is."""
    labels = {
        VARIANT_LABEL: stack.variant,
        PYTHON_LABEL: lock.target.python,
    }
    if stack.framework != "none":
        labels["dev.envbuild.framework"] = f"{stack.distribution}=={stack.version}"
    if stack.cuda:
        labels[CUDA_LABEL] = stack.cuda
    if stack.driver_minimum:
        labels[DRIVER_LABEL] = stack.driver_minimum
    return Recipe(
        base_name=base.name,
        base_digest=base.digest,
        base_asked=base.asked,
        python_path=base.python_path,
        target=lock.target,
        wheels=lock.wheels,
        packages=lock.packages,
        owners=lock.owners,
        variables=stack.variables,
        labels=tuple(sorted(labels.items())),
        bytecode=bytecode,
    )
