"""The bases that this machine knows (bootstrapped, mirrored, built, pushed), what each serves, and those missing."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.version import Version

from envbuild.base.build import decide_python
from envbuild.base.debian import kept_bases
from envbuild.base.resolve import Facts, KnownFacts, inspect, known_facts, suite_for
from envbuild.cache import read_entry, write_entry
from envbuild.errors import BaseError, MatchError, RegistryError, UsageError
from envbuild.match.match import MatchOptions, show_release
from envbuild.match.profiles import Profiles
from envbuild.match.rows import FrameworkProfile, Release
from envbuild.match.stack import Variant
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference, is_own_tag
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull

_FOLDER = "known"
_LONGEST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBase:
    """One base with its facts; unknown facts are empty."""

    name: str
    """The value for --base: `debian:bookworm`, `REPO@sha256:...`; an engine's own name if it was not pushed."""
    how: str
    """`bootstrapped`, `mirrored`, `built`, `pushed`."""
    digest: str
    """The manifest's digest; the engine's id if it was not pushed."""
    read_as: str = ""
    """The digest of the facts, if it is another one, as for manifests of Docker's media type."""
    parent: str = ""
    """The image that it was built on, or copied from."""
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
    """Keep a base; it replaces one of the same name."""
    key = Digest.of(base.name.encode()).short
    write_entry(cache / "bases" / _FOLDER, f"{key}.json", asdict(base))


def known_bases(cache: Path) -> tuple[KnownBase, ...]:
    """Return all known bases, by name."""
    facts, found = known_facts(cache), list[KnownBase]()
    for suite, machine, folder in kept_bases(cache):
        name = f"debian:{suite}"
        with suppress(BaseError, OSError):  # damaged: the next build makes it again
            image = read_layout(folder, machine=machine)
            base = KnownBase(name=name, how="bootstrapped", digest=str(image.digest), machine=machine)
            found.append(with_facts(base, inspect(image, name, machine, facts)))
    for path in sorted((cache / "bases" / _FOLDER).glob("*.json")):
        if noted := read_entry(path.parent, path.name, _decode):
            read = None if noted.python else facts.facts(Digest.parse(noted.read_as or noted.digest))
            found.append(with_facts(noted, read) if read else noted)
    return tuple(sorted(found, key=lambda it: (it.how != "bootstrapped", it.name)))


def tagged_bases(repository: Reference, machine: str, cache: Path) -> tuple[KnownBase, ...]:
    """Return the images of a repository's tags for a machine, without environments; RegistryError.

    No layer is read: a base whose facts are not cached has no Python and no glibc here.
    """
    with Registry(repository.registry) as registry:
        tags = registry.tags(repository.repository)
    facts = known_facts(cache)
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
    inner = json.loads(image.config).get("config") or {}
    variables = dict(str(it).partition("=")[::2] for it in inner.get("Env") or ())
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
    """Return the base with facts from its files."""
    return replace(base, python=facts.python, glibc=facts.glibc, distribution=facts.distribution)


def _decode(value: Any) -> KnownBase:
    """Read a record; ValueError if it is malformed, as other programs can write into the cache."""
    if not all(isinstance(it, str) and len(it) <= _LONGEST for it in value.values()):
        raise ValueError("the record of a base has a value that is too long or not text")
    Digest.parse(value["read_as"] or value["digest"])
    return KnownBase(**value)


_TITLES = {"tensorflow": "TensorFlow", "torch": "PyTorch", "jax": "JAX"}
_NEWEST_GLIBC = "9"
"""For a missing base: every suite with it has a glibc that is new enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBase:
    """A base of the matrix that this machine does not know."""

    what: str
    """`Python 3.10`, `CUDA 11.2, Python 3.9`."""
    serves: tuple[str, ...]
    command: str
    """The command that builds or copies it."""


def serves(base: KnownBase, profiles: Profiles, variants: Sequence[Variant] = ("gpu", "cpu")) -> tuple[str, ...]:
    """List the releases that can be built on a base: `TensorFlow 2.5 - 2.11 gpu, 1.15 - 2.11 cpu`.

    For gpu, CUDA is the base's if it has one, or from wheels. Empty if the base's Python or glibc is unknown.
    """
    if not (base.python and base.glibc and base.machine):
        return ()
    return tuple(filter(None, (_line(framework, variants, base, profiles) for framework in profiles.frameworks)))


def _line(framework: FrameworkProfile, variants: Sequence[Variant], base: KnownBase, profiles: Profiles) -> str:
    by_minor = groupby(framework.releases, key=lambda it: ".".join(map(str, it.version.release[:2])))
    minors = [(minor, list(group)) for minor, group in by_minor]
    spans: dict[str, list[str]] = {}
    for variant in variants:
        fits = ((minor, any(_fits(framework, it, variant, base, profiles) for it in group)) for minor, group in minors)
        if found := ", ".join(_spans(fits)):
            spans.setdefault(found, []).append(variant)
    text = ", ".join(f"{span} {' and '.join(several)}" for span, several in spans.items())
    return f"{_TITLES[framework.name]} {text}" if text else ""


def _spans(fits: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """`2.5 - 2.10` for neighbours that all fit."""
    for fit, group in groupby(fits, key=lambda it: it[1]):
        names = [name for name, _ in group]
        if fit:
            yield names[0] if len(names) == 1 else f"{names[0]} - {names[-1]}"


def _fits(framework: FrameworkProfile, release: Release, variant: Variant, base: KnownBase, profiles: Profiles) -> bool:
    by_base = variant == "gpu" and bool(base.cuda)
    wheels = [it for it in release.wheels if it.machine == base.machine and base.python_minor in it.pythons]
    # A decision takes a millisecond and more, so the rows are filtered first.
    if by_base:
        wheels = [it for it in wheels if it.cuda and framework.name == "tensorflow" and _same(base.cuda, it.cuda)]
    asked = MatchOptions(variant=variant, cuda_source="base" if by_base else "auto")
    names = dict.fromkeys(it.distribution for it in wheels)
    return any(_stands(f"{name}=={release.version}", asked, base, profiles) for name in names)


def _same(cuda: str, minor: str) -> bool:
    """Whether `11.2.2` is a release of `11.2`."""
    return f"{cuda}.".startswith(f"{minor}.")


def _stands(release: str, asked: MatchOptions, base: KnownBase, profiles: Profiles) -> bool:
    try:
        stack = show_release(release, profiles, asked, python=base.python, machine=base.machine).stack
    except (MatchError, UsageError):
        return False
    if stack.cuda_source == "base" and not _same(base.cuda, f"{stack.cuda}"):
        return False
    # CUDA of a base beside that of wheels would be two in one image.
    if stack.cuda_source == "wheels" and base.cuda:
        return False
    return Version(stack.glibc_minimum) <= Version(base.glibc)


def missing(known: Sequence[KnownBase], profiles: Profiles, machine: str) -> tuple[MissingBase, ...]:
    """List the rows of the matrix without a known base: each Python, then each CUDA with each Python."""
    here = [it for it in known if it.machine == machine]
    plain = {it.python_minor for it in here if not it.cuda}
    cuda = {(".".join(it.cuda.split(".")[:2]), it.python_minor) for it in here if it.cuda}
    wheels = (it for framework in profiles.frameworks for release in framework.releases for it in release.wheels)
    pythons = sorted({python for it in wheels if it.machine == machine for python in it.pythons}, key=Version)
    found = [_plain(python, machine, profiles) for python in pythons if python not in plain]
    if machine == "x86_64":  # the only machine with NVIDIA's images of these versions
        versions = dict.fromkeys(it.cuda for it in profiles.bases)
        rows = ((it, python) for it in versions for python in pythons if (it, python) not in cuda)
        found += [_with_cuda(version, python, profiles) for version, python in rows]
    return tuple(it for it in found if it is not None and it.serves)


def _plain(python: str, machine: str, profiles: Profiles) -> MissingBase | None:
    wanted = KnownBase(name="", how="", digest="", python=python, glibc=_NEWEST_GLIBC, machine=machine)
    suite = profiles.python_suite(python)
    if debian := suite_for(python):
        command = f"envbuild base show debian:{debian}"
    elif suite:
        image = profiles.python_image.format(python=python, suite=suite.name)
        command = f"envbuild base mirror {image} REPOSITORY"
    else:
        return None
    return MissingBase(what=f"Python {python}", serves=serves(wanted, profiles), command=command)


def _with_cuda(cuda: str, python: str, profiles: Profiles) -> MissingBase | None:
    """Choose the parent whose distribution has the Python, else the first that the official Python image fits.

    Without such an image, the base is made of NVIDIA's packages.
    """
    rows = sorted((it for it in profiles.bases if it.cuda == cuda), key=lambda it: it.python != python)
    here = (it for it in rows if not it.withdrawn)
    row = next((it for it in here if it.python == python or decide_python(it.image, python, profiles)), None)
    suite = profiles.python_suite(python)
    if row is None and suite is None:
        return None
    parent, glibc = (f"--parent {row.image}", row.glibc) if row else (f"--cuda {cuda}", suite.glibc if suite else "")
    command = f"envbuild base build {parent} --python {python} --push REPOSITORY:TAG"
    name = KnownBase(name="", how="", digest="", python=python, glibc=glibc, machine="x86_64", cuda=cuda)
    served = serves(name, profiles, ("gpu",))
    return MissingBase(what=f"CUDA {cuda}, Python {python}", serves=served, command=command)
