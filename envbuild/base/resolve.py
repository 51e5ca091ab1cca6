"""What --base means, and whether what it names fits."""

from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from envbuild.base.debian import debian_base
from envbuild.base.inspect import inspect
from envbuild.errors import BaseError, RegistryError, UsageError
from envbuild.oci.image import Image
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.recipe import Base

SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
"""The Debian release that carries each Python (its package python3-defaults)."""

Pull = Callable[[Reference, str], Image]
Report = Callable[[str], None]


def suite_for(python_minor: str) -> str | None:
    """Return the Debian suite whose Python is this one."""
    return SUITES.get(python_minor)


def resolve_base(
    text: str, *, machine: str, cache: Path, pull: Pull, report: Report, wanted_python: str | None = None
) -> Base:
    """Get the base that `text` names, and read what lies in it.

    `debian:SUITE` is bootstrapped here; an OCI layout is an existing folder, `oci:FOLDER` or `oci:FOLDER:NAME`; all
    else is a registry's reference, with or without `docker://`. Docker Hub's image of Debian is
    `docker://debian:SUITE` or `docker.io/library/debian:SUITE`, as the short name means the bootstrapped one.

    UsageError when it is none of these; BaseError when it cannot be had or cannot carry an environment; RegistryError;
    MissingComponentError where mmdebstrap is absent.
    """
    name, image = _image(text, machine, cache, pull, report, wanted_python)
    target, python_path = inspect(image, name, machine, cache / "bases" / "facts")
    return Base(name=name, image=image, target=target, python_path=python_path)


def _image(
    text: str, machine: str, cache: Path, pull: Pull, report: Report, wanted_python: str | None
) -> tuple[str, Image]:
    if text.startswith("debian:"):
        return text, debian_base(text.removeprefix("debian:"), machine, cache, report)
    if text.startswith("oci:") or _is_layout(text):
        # the folder's own name is no part of what the base is
        return "oci-layout", _layout(text.removeprefix("oci:"), machine)
    try:
        reference = Reference.parse(text.removeprefix("docker://"))
    except ValueError as error:
        todo = "give an image reference, an OCI layout folder, or debian:SUITE"
        raise UsageError(f"this is no base: {error}", where=f"--base {text}", todo=todo) from error
    try:
        image = pull(reference, machine)
    except RegistryError as error:
        raise _with_way_out(error, wanted_python) from error
    # for an index that is the digest of this platform's image
    return str(reference.at(image.found_as or image.digest)), image


def _is_layout(text: str) -> bool:
    try:
        return (Path(text) / "oci-layout").is_file()
    except (OSError, ValueError):  # too long for a file's name, or a NUL in it
        return False


def _layout(text: str, machine: str) -> Image:
    folder, colon, reference = text.rpartition(":")
    if colon and _is_layout(folder) and not _is_layout(text):
        return read_layout(Path(folder), machine=machine, reference=reference)
    return read_layout(Path(text), machine=machine)


def _with_way_out(error: RegistryError, wanted_python: str | None) -> RegistryError:
    """Name the base that needs no registry; for a Python that no suite has there is none."""
    suite = suite_for(".".join((wanted_python or "").split(".")[:2]))
    way_out = f"use --base debian:{suite or 'SUITE'}, which needs no registry" if suite or not wanted_python else ""
    todo = "; or ".join(part for part in (error.todo, way_out) if part)
    return RegistryError(f"the base cannot be had: {error.what}", where=error.where, todo=todo, status=error.status)


def check_base(base: Base, wanted_python: str, glibc_minimum: str) -> list[str]:
    """Compare the base with the run; BaseError when it cannot carry it, remarks on what merely differs."""
    minor = ".".join(wanted_python.split(".")[:2])
    if base.target.python_minor != minor:
        suite = suite_for(minor)
        fitting = f"--base debian:{suite}" if suite else f"an image such as python:{minor}-slim"
        raise BaseError(
            f"the base has Python {base.target.python}, the run used {wanted_python}",
            where=base.name,
            todo=f"use a base with Python {minor}: {fitting}",
        )
    if Version(base.target.glibc) < Version(glibc_minimum):
        raise BaseError(
            f"the base has glibc {base.target.glibc}, the framework's wheel needs {glibc_minimum}",
            where=base.name,
            todo="use a newer base: debian:bullseye has 2.31, debian:bookworm 2.36, debian:trixie 2.41",
        )
    if base.target.python != wanted_python:
        return [
            f"the base has Python {base.target.python}, the run used {wanted_python}: same minor, another patch release"
        ]
    return []
