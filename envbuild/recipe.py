"""Recipe: what decides the image's bytes; its digest is the environment id."""

import posixpath
from dataclasses import dataclass
from typing import Any

from envbuild.lock.model import Lock, LockedWheel, SystemPackage, Target
from envbuild.match.stack import Stack
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.wheel.install import Scheme

LAYER_FORMAT = 13
"""Raised whenever the same recipe would give other bytes."""
PYTHON_LABEL = "dev.envbuild.python"
VARIANT_LABEL = "dev.envbuild.variant"
CUDA_LABEL = "dev.envbuild.cuda"
DRIVER_LABEL = "dev.envbuild.driver"
"""The lowest NVIDIA driver for the CUDA in the image."""
SLIM_LABEL = "dev.envbuild.slim"
"""The distributions that a slim image leaves out, as only training uses them."""
SLIM_FILES_LABEL = "dev.envbuild.slim-files"
"""The rules by which a slim image leaves out files of its distributions."""
SLIM_OF_LABEL = "dev.envbuild.slim-of"
"""The id of the whole environment of a slim one."""
PREFIX = "/opt/env"
USER = "65532:65532"
"""The conventional non-root user of minimal images; it owns nothing in the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image with the facts from its files."""

    name: str
    """The name to pull it by, by digest if it is in a registry: `debian:bookworm`, `python:3.11.7-slim@sha256:…`."""
    image: Image
    target: Target
    """Python, machine and glibc of the base."""
    python_path: str
    """The interpreter, all links followed: `/usr/bin/python3.11`."""
    asked: str = ""
    """The requested name in a registry, without a digest: `docker.io/library/python:3.11-slim`; else empty."""
    mirror_of: str = ""
    """The name that it was copied from, if known; no byte of an image depends on it."""
    distribution: str = ""
    """The name in its os-release: `Debian GNU/Linux 12 (bookworm)`."""
    interpreter: str = ""
    """A digest of the interpreter's own files, equal for equal interpreters."""

    @property
    def digest(self) -> Digest:
        """The digest of the base's manifest, if possible that in the registry."""
        return self.image.found_as or self.image.digest

    def to_dict(self) -> dict[str, str]:
        """Return the entry for the lock: name, digest and, for a mirror, its origin."""
        entry = {"name": self.asked or self.name, "digest": str(self.digest), "mirror_of": self.mirror_of}
        return {key: text for key, text in entry.items() if text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The environment: wheels, packages, base, variables, labels and user."""

    base_name: str
    """Only for the build context; not part of the environment id."""
    base_digest: Digest
    python_path: str
    target: Target
    wheels: tuple[LockedWheel, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    base_asked: str = ""
    """The base's name for the image's annotations; empty to leave that out."""
    bytecode: str = ""
    """The interpreter that compiles sources, and the format; empty for an image without bytecode."""
    packages: tuple[SystemPackage, ...] = ()
    """Debian packages for a layer between the base and the wheels."""
    owners: tuple[tuple[str, str], ...] = ()
    """Paths, as in RECORD, that several wheels install, and the distribution whose file is used; sorted."""
    compression: Compression = GZIP
    layer_format: int = LAYER_FORMAT
    prefix: str = PREFIX
    user: str = USER

    @property
    def environment(self) -> Digest:
        """The environment id: equal for equal recipes, of which the assembler makes equal images (engines do not)."""
        return Digest.of(canonical_json(self.to_dict()))

    @property
    def owner_by_path(self) -> dict[str, str]:
        """The distribution whose file is used, by path below the prefix."""
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
        """Return everything that decides the bytes; no wheel's address, and the base's name only if annotated."""
        optional: dict[str, Any] = {
            "base_name": self.base_asked,
            "bytecode": self.bytecode,
            "packages": [{"name": it.name, "version": it.version, "sha256": str(it.sha256)} for it in self.packages],
            "owners": dict(self.owners),
            "compression": "" if self.compression == GZIP else str(self.compression),
        }
        return {name: value for name, value in optional.items() if value} | {
            "layer_format": self.layer_format,
            "base": str(self.base_digest),
            "python": {"path": self.python_path, "version": self.target.python},
            "machine": self.target.machine,
            "prefix": self.prefix,
            "user": self.user,
            "variables": dict(self.variables),
            "labels": dict(self.labels),
            "wheels": [
                {"filename": wheel.filename, "sha256": str(wheel.sha256)}
                | ({"left_out": wheel.left_out} if wheel.left_out else {})
                for wheel in self.wheels
            ],
        }


def make_recipe(stack: Stack, lock: Lock, base: Base, bytecode: str = "", compression: Compression = GZIP) -> Recipe:
    """Make the recipe of a stack, a lock and a base; `bytecode` is the result of `compiled_by`, if any.

    A base of this compression is not recompressed.
    """
    if not any(compression.replaces(it.descriptor.media_type) for it in base.image.layers):
        compression = compression.plain
    labels = {VARIANT_LABEL: stack.variant, PYTHON_LABEL: lock.target.python}
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
        compression=compression,
    )
