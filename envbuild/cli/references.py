"""What commands on images share: references to repositories, platforms, and getting a base."""

from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.console import Progress
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.recipe import Base

Platform = Annotated[
    str | None, typer.Option(help="linux/amd64 or linux/arm64; by default this machine's.", metavar="PLATFORM")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def repository(text: str, where: str) -> "Reference":
    """Read where an image is to go; `where` is the argument that says so; UsageError when it cannot be meant."""
    from envbuild.oci.reference import Reference, is_own_tag, refuse_login

    todo = "give a repository such as europe-docker.pkg.dev/PROJECT/REPO/IMAGE or 127.0.0.1:5000/IMAGE"
    refuse_login(text, where)
    if "/" not in text:
        raise UsageError("there is no registry before the repository", where=f"{where} {text}", todo=todo)
    try:
        reference = Reference.parse(text)
    except ValueError as error:
        raise UsageError(str(error), where=f"{where} {text}", todo=todo) from error
    if reference.tag and is_own_tag(reference.tag):
        todo = "choose another tag; envbuild keeps what it knows of environments, layers and wheels under such ones"
        raise UsageError("the tag is one of envbuild's own", where=f"{where} {text}", todo=todo)
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
    """Get a base, and what lies in it."""
    from envbuild.base.resolve import resolve_base
    from envbuild.files import cache_folder
    from envbuild.registry import pull

    return resolve_base(
        text,
        machine=machine,
        cache=cache_folder(),
        pull=lambda reference, machine: pull(reference, machine=machine),
        report=progress.note,
    )
