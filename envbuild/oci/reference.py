"""Image references (OCI distribution-spec, "Pulling manifests"; the grammar is that of distribution/reference)."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from envbuild.errors import UsageError
from envbuild.oci.digest import Digest

_OWN_TAG = re.compile(r"(?:env|serve|layer|fact|stamped|pushing|sha256)-[0-9a-f]{12,64}")
DOCKER_HUB = "docker.io"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?\Z")
_DIGEST = re.compile(r"@[a-z0-9]+:[0-9a-fA-F]*\Z")
_MALFORMED = re.compile(r"@sha(?:256|384|512):\w*\Z")
"""A malformed digest, which is not shown, as it could be a password and a host."""
PATH_STARTS = (".", "/", "~")
"""How paths begin, and no reference."""
_PATHS = ("oci:", "oci-archive:", "docker-archive:")
"""Prefixes of paths, which may contain an @."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference of an image: registry host, repository, and a tag or a digest or neither."""

    registry: str
    """Host, with port where it has one: `127.0.0.1:5000`, `europe-docker.pkg.dev`."""
    repository: str
    """Path inside the registry: `project/repo/image`."""
    tag: str | None = None
    digest: Digest | None = None

    def __post_init__(self) -> None:
        port = self.registry.rpartition("]")[2].partition(":")[2]
        if not _HOST.match(self.registry) or (port and not 0 < int(port) <= 65535):
            raise ValueError(f"not a registry host: {self.registry!r}")
        if len(self.repository) > 255 or not _REPOSITORY.match(self.repository):
            raise ValueError(f"not a repository name (a-z, 0-9, '.', '_', '-', '/'): {self.repository!r}")
        if self.tag is not None and not _TAG.match(self.tag):
            raise ValueError(f"not a tag: {self.tag!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[host/]path[:tag][@sha256:hex]`; a name without a host is Docker Hub's; ValueError else."""
        if text.startswith(PATH_STARTS):
            why = "not a reference" if lies_here(text) else "and there is no such file or folder"
            raise ValueError(f"{text!r} is a path, {why}")
        name, at, digest = text.partition("@")
        head, slash, tail = name.partition("/")
        if slash and ("." in head or ":" in head or head == "localhost"):
            registry, path = head, tail
        else:
            registry, path = DOCKER_HUB, name if slash else f"library/{name}"
        path, colon, tag = path.partition(":")
        return cls(registry, path, tag if colon else None, Digest.parse(digest) if at else None)

    @property
    def name(self) -> str:
        """Registry and repository, without tag or digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def target(self) -> str:
        """The digest, else the tag, else `latest`."""
        return str(self.digest or self.tag or "latest")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"

    def at(self, digest: Digest) -> Self:
        """Return the same repository by digest."""
        return replace(self, tag=None, digest=digest)


def is_own_tag(tag: str) -> bool:
    """Whether a tag is one of envbuild's own: for images, layers, facts, stamps, and statements."""
    return _OWN_TAG.fullmatch(tag) is not None


def refuse_login(text: str, where: str) -> None:
    """Refuse a reference with a user or password, without showing it; `where` is the argument. UsageError.

    Paths of existing files and folders are allowed.
    """
    name = _DIGEST.sub("", text)
    if "@" not in name or name.startswith(_PATHS) or exists(name):
        return
    if _MALFORMED.search(name) and name.count("@") == 1:
        todo = "write the digest in full: sha256: and 64 hexadecimal digits"
        raise UsageError("the part after the @ is not a digest", where=where, todo=todo)
    todo = "remove the part before the @, and use `docker login`"
    raise UsageError("a reference holds no user or password", where=where, todo=todo)


def split_digest(text: str) -> tuple[str, Digest | None]:
    """Return the path and the digest of `FOLDER@sha256:...` and `FILE@sha256:...`; None for what has no digest."""
    path, at, digest = text.rpartition("@")
    try:
        return (path, Digest.parse(digest)) if at and path else (text, None)
    except ValueError:
        return text, None


def lies_here(text: str) -> bool:
    """Whether a text names an OCI layout or an archive on this machine, by its digest or without."""
    return text.startswith(_PATHS) or exists(split_digest(text)[0])


def exists(path: str) -> bool:
    """Whether a path exists; False for texts that cannot be paths."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a file's name, or a NUL in it
        return False
