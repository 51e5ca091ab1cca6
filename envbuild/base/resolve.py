"""What --base means, and whether what it names fits."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from envbuild.base.debian import debian_base
from envbuild.base.facts import KnownFacts
from envbuild.base.inspect import inspect
from envbuild.errors import BaseError, RegistryError, UsageError
from envbuild.oci.image import Image
from envbuild.oci.layout import read_layout
from envbuild.oci.login import exists, refuse_login
from envbuild.oci.reference import Reference
from envbuild.recipe import Base

SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
"""The Debian release that carries each Python (its package python3-defaults)."""
PYTHONS = {suite: python for python, suite in SUITES.items()}
_PYTHON_IMAGE = re.compile(r"/library/python:(\d+\.\d+(?:\.\d+)?)")
"""Docker's official image of Python, or a mirror of it by the same path: the tag begins with the version."""

Pull = Callable[[Reference, str], Image]
Report = Callable[[str], None]


def suite_for(python_minor: str) -> str | None:
    """Return the Debian suite whose Python is this one."""
    return SUITES.get(python_minor)


def known_facts(cache: Path) -> KnownFacts:
    """What is known of bases in the cache."""
    return KnownFacts(cache / "bases" / "facts")


def registry_reference(text: str) -> Reference | None:
    """Where in a registry a base lies; None for `debian:SUITE` and OCI layouts; UsageError when it is no base."""
    if text.startswith(("debian:", "oci:")) or _is_layout(text):
        return None
    refuse_login(text, "--base")
    if exists(text):
        why = "the folder is no OCI layout, as it has no file oci-layout" if Path(text).is_dir() else "a file is none"
        todo = f"give the folder of an OCI layout, or debian:SUITE; a registry's image of this name is docker://{text}"
        raise UsageError(f"this is no base: {why}", where=f"--base {text}", todo=todo)
    try:
        return Reference.parse(text.removeprefix("docker://"))
    except ValueError as error:
        todo = "give an image reference, an OCI layout folder, or debian:SUITE"
        raise UsageError(f"this is no base: {error}", where=f"--base {text}", todo=todo) from error


def resolve_base(
    text: str,
    *,
    machine: str,
    cache: Path,
    pull: Pull,
    report: Report,
    wanted_python: str | None = None,
) -> Base:
    """Get the base that `text` names, and read what lies in it.

    `debian:SUITE` is bootstrapped here; an OCI layout is an existing folder, `oci:FOLDER` or `oci:FOLDER:NAME`; all
    else is a registry's reference, with or without `docker://`. Docker Hub's image of Debian is
    `docker://debian:SUITE` or `docker.io/library/debian:SUITE`, as the short name means the bootstrapped one.
    With what an earlier run noted in the cache, no layer is read again.

    UsageError when it is none of these; BaseError when it cannot be had or cannot carry an environment; RegistryError;
    MissingComponentError where mmdebstrap is absent.
    """
    reference, known = registry_reference(text), known_facts(cache)
    found = _pulled(reference, machine, pull, wanted_python) if reference else _local(text, machine, cache, report)
    facts = inspect(found.image, found.name if reference else text, machine, known)
    base = Base(
        name=found.name,
        image=found.image,
        asked=found.asked,
        target=facts.target(machine),
        python_path=facts.python_path,
        distribution=facts.distribution,
        interpreter=facts.interpreter,
    )
    upstream = known.mirror_of(base.digest) if reference else ""
    return base if upstream in ("", base.asked) else replace(base, mirror_of=upstream)


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    image: Image
    asked: str = ""


def _pulled(reference: Reference, machine: str, pull: Pull, wanted_python: str | None) -> _Found:
    try:
        image = pull(reference, machine)
    except RegistryError as error:
        raise _with_way_out(error, wanted_python) from error
    asked = replace(reference, tag=reference.tag if reference.digest else reference.target, digest=None)
    # for an index that is the digest of this platform's image
    return _Found(str(reference.at(image.found_as or image.digest)), image, str(asked))


def _local(text: str, machine: str, cache: Path, report: Report) -> _Found:
    if text.startswith("debian:"):
        return _Found(text, debian_base(text.removeprefix("debian:"), machine, cache, report))
    # the folder's own name is no part of what the base is
    return _Found("oci-layout", layout_image(text, machine))


def _is_layout(text: str) -> bool:
    return bool(text) and exists(f"{text}/oci-layout")


def layout_image(text: str, machine: str) -> Image:
    """Read the image of an OCI layout: an existing folder, `oci:FOLDER` or `oci:FOLDER:NAME`; BaseError."""
    text = text.removeprefix("oci:")
    folder, colon, reference = text.rpartition(":")
    if colon and _is_layout(folder) and not _is_layout(text):
        return read_layout(Path(folder), machine=machine, reference=reference)
    return read_layout(Path(text), machine=machine)


def _with_way_out(error: RegistryError, wanted_python: str | None) -> RegistryError:
    """Name the base that needs no registry; for a Python that no suite has there is none."""
    suite = suite_for(_minor(wanted_python or ""))
    way_out = f"use --base debian:{suite or 'SUITE'}, which needs no registry" if suite or not wanted_python else ""
    todo = "; or ".join(part for part in (error.todo, way_out) if part)
    return RegistryError(f"the base cannot be had: {error.what}", where=error.where, todo=todo, status=error.status)


def refuse_base(text: str, machine: str, cache: Path, wanted_python: str, glibc_minimum: str) -> None:
    """Refuse a base that cannot carry the run, as far as that is known before anything is fetched: BaseError.

    The name says it of Debian's releases and of Python's own images; an OCI layout is read.
    """
    reference = registry_reference(text)
    if reference or text.startswith("debian:"):
        named = _PYTHON_IMAGE.search(f"{reference}") if reference else None
        python = named[1] if named else PYTHONS.get(text.removeprefix("debian:"))
        if python:
            _check_python(python, wanted_python, text)
        return
    facts = inspect(layout_image(text, machine), text, machine, known_facts(cache))
    _check_python(facts.python, wanted_python, text)
    _check_glibc(facts.glibc, glibc_minimum, text)


def check_base(base: Base, wanted_python: str, glibc_minimum: str, *, where: str = "") -> list[str]:
    """Compare the base with the run; BaseError when it cannot carry it, remarks on what merely differs.

    `where` is what the base was asked for by, as layouts have no name of their own.
    """
    _check_python(base.target.python, wanted_python, where or base.name)
    _check_glibc(base.target.glibc, glibc_minimum, where or base.name)
    if base.target.python != wanted_python:
        return [
            f"the base has Python {base.target.python}, the run used {wanted_python}: same minor, another patch release"
        ]
    return []


def _check_python(python: str, wanted: str, where: str) -> None:
    """BaseError where the run used another minor version of Python; of the base's, that may be all that is known."""
    minor = _minor(wanted)
    if _minor(python) == minor:
        return
    suite = suite_for(minor)
    fitting = f"--base debian:{suite}" if suite else f"an image such as python:{minor}-slim"
    what = f"the base has Python {python}, the run used {wanted}"
    raise BaseError(what, where=where, todo=f"use a base with Python {minor}: {fitting}")


def _check_glibc(glibc: str, minimum: str, where: str) -> None:
    if Version(glibc) < Version(minimum):
        todo = "use a newer base: debian:bullseye has 2.31, debian:bookworm 2.36, debian:trixie 2.41"
        raise BaseError(f"the base has glibc {glibc}, the framework's wheel needs {minimum}", where=where, todo=todo)


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])
