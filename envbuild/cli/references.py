"""References to repositories and bases, platforms and locks, as command lines name them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.cli.console import Progress
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.lock.model import Lock
    from envbuild.oci.image import Image
    from envbuild.oci.reference import Reference
    from envbuild.recipe import Base


def repository(text: str, where: str) -> "Reference":
    """Read the reference that an argument `where` pushes to; UsageError for one that cannot be pushed to."""
    from envbuild.oci.reference import Reference, is_own_tag, refuse_login

    todo = "give a repository such as europe-docker.pkg.dev/PROJECT/REPO/IMAGE or 127.0.0.1:5000/IMAGE"
    refuse_login(text, where)
    if "/" not in text:
        raise UsageError("the repository has no registry", where=f"{where} {text}", todo=todo)
    try:
        reference = Reference.parse(text)
    except ValueError as error:
        raise UsageError(str(error), where=f"{where} {text}", todo=todo) from error
    if reference.tag and is_own_tag(reference.tag):
        todo = "choose another tag; envbuild keeps its own records under such tags"
        raise UsageError("the tag is reserved for envbuild", where=f"{where} {text}", todo=todo)
    if reference.digest:
        todo = "leave out what follows @"
        raise UsageError("a push cannot choose its digest", where=f"{where} {text}", todo=todo)
    return reference


def machine_of(platform: str | None) -> str:
    """Return `x86_64` for `linux/amd64`; this machine's own where none is named; UsageError for one that is unknown."""
    from platform import machine

    from envbuild.oci.layout import ARCHITECTURES

    known = {f"linux/{architecture}": name for name, architecture in ARCHITECTURES.items()}
    if platform is not None and platform not in known:
        raise UsageError(
            "this platform is not known", where=f"--platform {platform}", todo=f"give {' or '.join(known)}"
        )
    return known[platform] if platform else machine()


def base_of(text: str, machine: str, progress: Progress) -> "Base":
    """Read a base and its facts."""
    from envbuild.base.resolve import resolve_base
    from envbuild.files import cache_folder
    from envbuild.registry.pull import pull

    return resolve_base(
        text,
        machine=machine,
        cache=cache_folder(),
        pull=lambda reference, machine: pull(reference, machine=machine),
        report=progress.note,
    )


def check_place(place: "Reference", progress: Progress, *, create: bool) -> None:
    """Check that the repository exists, or create it; RegistryError."""
    from envbuild.registry.artifact_registry import check_repository

    repository = check_repository(place, create=create)
    if repository and repository.created:
        progress.note(f"created {repository.name}")


def read_lock(path: Path, option: str = "--lock ") -> "Lock":
    """Read the lock that an option or argument names; UsageError where there is no such file."""
    from envbuild.lock.formats import read_pylock

    try:
        return read_pylock(path.read_bytes(), str(path), path.parent)
    except FileNotFoundError as error:
        raise UsageError("there is no such file", where=f"{option}{path}", todo="give the path of a lock") from error


def base_named_by(image: "Image", source: str, option: str) -> str:
    """Return the base that the image's annotations name, by digest; UsageError, which names the option, for none."""
    from envbuild.image.rebase import named_base
    from envbuild.oci.digest import Digest
    from envbuild.oci.reference import Reference

    name, digest = named_base(image)
    try:
        return str(replace(Reference.parse(name), digest=Digest.parse(digest)))
    except ValueError as error:
        todo = f"give {option} the base that it was built on"
        raise UsageError("the image's annotations name no base", where=source, todo=todo) from error
