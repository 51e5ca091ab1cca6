"""The bases that this machine knows: bootstrapped, mirrored, built and pushed here."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from envbuild.base.debian import kept_bases
from envbuild.base.facts import Facts, KnownFacts
from envbuild.base.inspect import inspect
from envbuild.cache import read_entry, write_entry
from envbuild.errors import BaseError, RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference, is_own_tag
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull

_FOLDER = "known"
_LONGEST = 512
_CUDA = re.compile(r"nvidia/cuda:(\d+\.\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBase:
    """One base, and what an environment on it would stand on; what is not known is empty."""

    name: str
    """What --base takes: `debian:bookworm`, `REPO@sha256:...`; an engine's own name where it was not pushed."""
    how: str
    """`bootstrapped`, `mirrored`, `built`, `pushed`."""
    digest: str
    """The manifest's; the engine's id of what was built and not pushed."""
    read_as: str = ""
    """The digest that facts are kept by, where it is another, as for manifests of Docker's media type."""
    parent: str = ""
    """What it was built on, or copied from."""
    python: str = ""
    glibc: str = ""
    machine: str = ""
    """`x86_64`."""
    distribution: str = ""
    cuda: str = ""
    cudnn: str = ""

    @property
    def python_minor(self) -> str:
        """`3.11`."""
        return ".".join(self.python.split(".")[:2])


def remember(base: KnownBase, cache: Path) -> None:
    """Keep it; one of the same name takes the place of the one before."""
    key = Digest.of(base.name.encode()).short
    write_entry(cache / "bases" / _FOLDER, f"{key}.json", asdict(base))


def known_bases(cache: Path) -> tuple[KnownBase, ...]:
    """All that are known, by name."""
    facts = KnownFacts(cache / "bases" / "facts")
    found = [*_bootstrapped(cache, facts), *_remembered(cache, facts)]
    return tuple(sorted(found, key=lambda it: (it.how != "bootstrapped", it.name)))


def tagged_bases(repository: Reference, machine: str, cache: Path) -> tuple[KnownBase, ...]:
    """What a repository has under its tags for a machine, environments left out; RegistryError.

    No layer is read: a base that nobody looked into has no Python and no glibc here.
    """
    with Registry(repository.registry) as registry:
        tags = registry.tags(repository.repository)
    facts = KnownFacts(cache / "bases" / "facts")
    found = (_tagged(replace(repository, tag=tag), machine, facts) for tag in tags if not is_own_tag(tag))
    return tuple(filter(None, found))


def _tagged(reference: Reference, machine: str, facts: KnownFacts) -> KnownBase | None:
    try:
        image = pull(reference, machine=machine)
    except RegistryError:
        return None  # for another machine, or no image
    if json.loads(image.manifest).get("annotations", {}).get(ENVIRONMENT):
        return None
    digest = image.found_as or image.digest
    variables = dict(
        str(it).partition("=")[::2] for it in (json.loads(image.config).get("config") or {}).get("Env") or ()
    )
    base = KnownBase(
        name=str(replace(reference, digest=digest)),
        how="in the registry",
        digest=str(digest),
        machine=machine,
        cuda=variables.get("CUDA_VERSION", ""),
        cudnn=variables.get("NV_CUDNN_VERSION", ""),
    )
    read = facts.facts(image.digest)
    return with_facts(base, read) if read else base


def with_facts(base: KnownBase, facts: Facts) -> KnownBase:
    """The base with what was read from its files."""
    values = asdict(base) | {name: getattr(facts, name) for name in ("python", "glibc", "distribution")}
    return KnownBase(**values)


def cuda_of(name: str) -> str:
    """The CUDA that the name of one of NVIDIA's images says; empty for others."""
    found = _CUDA.search(name)
    return found[1] if found else ""


def _bootstrapped(cache: Path, facts: KnownFacts) -> Iterator[KnownBase]:
    for suite, machine, folder in kept_bases(cache):
        name = f"debian:{suite}"
        with suppress(BaseError, OSError):  # damaged: the next build makes it anew
            image = read_layout(folder, machine=machine)
            base = KnownBase(name=name, how="bootstrapped", digest=str(image.digest), machine=machine)
            yield with_facts(base, inspect(image, name, machine, facts))


def _remembered(cache: Path, facts: KnownFacts) -> Iterator[KnownBase]:
    for path in sorted((cache / "bases" / _FOLDER).glob("*.json")):
        if base := read_entry(path.parent, path.name, _decode):
            yield _completed(base, facts)


def _decode(value: Any) -> KnownBase:
    """Read a record; ValueError for what is none, as anybody may write into the cache."""
    if not all(isinstance(it, str) and len(it) <= _LONGEST for it in value.values()):
        raise ValueError("no record of a base")
    Digest.parse(value["read_as"] or value["digest"])
    return KnownBase(**value)


def _completed(base: KnownBase, facts: KnownFacts) -> KnownBase:
    """With what was read of it meanwhile: a mirror is copied without looking into it."""
    read = None if base.python else facts.facts(Digest.parse(base.read_as or base.digest))
    return with_facts(base, read) if read else base
