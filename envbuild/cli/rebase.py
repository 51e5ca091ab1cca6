"""`envbuild rebase`: an image on a patched base, with the environment's layers as they are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.base_push import check_place
from envbuild.cli.console import Progress
from envbuild.cli.ordering import CreateRepository
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, base_of, machine_of, repository
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.image.rebase import Rebased
    from envbuild.lock import Lock
    from envbuild.oci.image import Image
    from envbuild.oci.reference import Reference

ImageRef = Annotated[str, typer.Argument(help="An image that envbuild pushed.", metavar="IMAGE")]
NewBase = Annotated[str, typer.Option("--base", help="The new base, as in from-manifest.", metavar="REF")]
OldBase = Annotated[
    str | None, typer.Option(help="The base that the image stands on, where it does not say.", metavar="REF")
]
LockFile = Annotated[
    Path | None,
    typer.Option(
        "--lock", help="The image's pylock.toml: then the result says which environment it is.", metavar="FILE"
    ),
]
Push = Annotated[
    str | None, typer.Option(help="Where it goes; by default the image's own repository.", metavar="REPO[:TAG]")
]


def run(
    image: ImageRef,
    *,
    base: NewBase,
    old_base: OldBase = None,
    lock: LockFile = None,
    push: Push = None,
    create_repository: CreateRepository = False,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Put an image's environment onto another base, such as the patched one of the same name.

    The environment's layers stay the same blobs: no wheel is read, and what the registry has is not sent.
    Prints the new image's reference by digest; no tag moves but those that --push names.
    """
    from envbuild.image.rebase import rebase
    from envbuild.registry import pull

    check_stdout()
    if create_repository and push is None:
        todo = "give --push REPO too, or leave it out"
        raise UsageError("the image's own repository is there already", where="--create-repository", todo=todo)
    source, machine = _image(image), machine_of(platform)
    target = repository(push, "--push") if push is not None else replace(source, tag=None, digest=None)
    locked = read_lock(lock) if lock else None
    with Progress() as progress:
        if push is not None:
            check_place(target, progress, create=create_repository)
        progress.step(f"rebasing {source} onto {base}")
        found = pull(source, machine=machine)
        old = base_of(old_base or base_named_by(found, str(source), "--old-base"), machine, progress)
        rebased = rebase(found, old, base_of(base, machine, progress), locked)
        progress.note(f"{rebased.kept} layers are kept")
        for line in rebased.dropped:
            progress.warn(f"left out, as it does not fit the new base: {line}")
        if rebased.dropped and locked:
            progress.warn("so the image does not say which environment it is")
        result = _pushed(rebased, source, target, progress)
    typer.echo(json.dumps(result, indent=2) if as_json else result["image"])


def _image(text: str) -> "Reference":
    from envbuild.oci.reference import Reference, exists

    if exists(text):
        todo = f"push it to a registry, and give its name there; a registry's image of this name is docker://{text}"
        raise UsageError("only an image in a registry can be rebased", where=f"IMAGE {text}", todo=todo)
    try:
        return Reference.parse(text.removeprefix("docker://"))
    except ValueError as error:
        todo = "give the reference of an image in a registry"
        raise UsageError(f"this is no image: {error}", where=f"IMAGE {text}", todo=todo) from error


def read_lock(path: Path, option: str = "--lock ") -> "Lock":
    """Read what --lock names, or an argument; UsageError where there is no such file."""
    from envbuild.lock import read_pylock

    try:
        return read_pylock(path.read_bytes(), str(path), path.parent)
    except FileNotFoundError as error:
        raise UsageError("there is no such file", where=f"{option}{path}", todo="give the path of a lock") from error


def base_named_by(image: "Image", source: str, option: str) -> str:
    """The base that the image's annotations name, by its digest; UsageError, which names the option, where none is."""
    from envbuild.image.rebase import named_base
    from envbuild.oci.digest import Digest
    from envbuild.oci.reference import Reference

    name, digest = named_base(image)
    try:
        return str(replace(Reference.parse(name), digest=Digest.parse(digest)))
    except ValueError as error:
        todo = f"give {option} the base that it was built on"
        raise UsageError("the image does not say where its base lies", where=source, todo=todo) from error


def _pushed(rebased: "Rebased", source: "Reference", target: "Reference", progress: Progress) -> dict[str, Any]:
    from envbuild.registry import environment_tag, push

    environment = rebased.recipe.environment if rebased.recipe else None
    done = push(
        rebased.image,
        target,
        # Of layers that another repository had, nobody here knows what their wheels give.
        tags=(environment_tag(environment),) if environment and target.name == source.name else (),
        report=progress.progress,
    )
    progress.note(f"{done.uploaded / 1e6:.1f} MB sent, {done.existing / 1e6:.1f} MB were there")
    return {
        "image": str(done.reference),
        "digest": str(done.reference.digest),
        "environment": str(environment) if environment else None,
        "kept": rebased.kept,
        "dropped": list(rebased.dropped),
        "sent": done.uploaded,
    }
