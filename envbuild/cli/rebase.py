"""`envbuild rebase`: an image on a patched base, with the same environment layers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.arguments import base_named_by, base_of, check_place, parse_platform, read_lock
from envbuild.cli.command import WHAT, WHERE, grouped, option, what_option
from envbuild.cli.console import Progress
from envbuild.cli.options import AsJson, CreateRepository, Platform, read_reference, repository
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.image.rebase import Rebased
    from envbuild.oci.reference import Reference


@grouped()
def run(
    image: Annotated[str, typer.Argument(help="An image that envbuild pushed.", metavar="IMAGE")],
    *,
    base: Annotated[str, what_option("--base", help="The new base, as in from-manifest.", metavar="REF")],
    old_base: str | None = option(WHAT, "The image's base, if its annotations do not name it.", "REF"),
    lock: Path | None = option(WHAT, "The image's pylock.toml: then the result has its environment id.", "FILE"),
    push: str | None = option(WHERE, "Push it there; by default to its own repository.", "REPO[:TAG]"),
    create_repository: CreateRepository = False,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Put an image's environment onto another base.

    Such as the patched base of the same name. The environment's layers stay the same blobs: no wheel is read, and
    blobs of the registry are not sent. Prints the new image's reference by digest; only a tag of --push moves.
    """
    from envbuild.image.rebase import named_compression, rebase
    from envbuild.registry.pull import pull

    if create_repository and push is None:
        todo = "give --push REPO too, or leave it out"
        raise UsageError("the image's own repository exists", where="--create-repository", todo=todo)
    source, machine = _image(image), parse_platform(platform)
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
        if named_compression(found).base:
            progress.warn("the new base's layers stay as they are; build with --recompress-base to recompress them")
        for line in rebased.dropped:
            progress.warn(f"left out, as it does not fit the new base: {line}")
        if rebased.dropped and locked:
            progress.warn("so the image has no environment id")
        result = _pushed(rebased, source, target, progress)
    typer.echo(json.dumps(result, indent=2) if as_json else result["image"])


def _image(text: str) -> "Reference":
    from envbuild.oci.reference import lies_here

    if lies_here(text):
        todo = f"push it to a registry, and give its name there; a registry's image of this name is docker://{text}"
        raise UsageError("only an image in a registry can be rebased", where=f"IMAGE {text}", todo=todo)
    return read_reference(text.removeprefix("docker://"), "IMAGE", "give the reference of an image in a registry")


def _pushed(rebased: "Rebased", source: "Reference", target: "Reference", progress: Progress) -> dict[str, Any]:
    from envbuild.registry.pull import environment_tag
    from envbuild.registry.push import push

    environment = rebased.recipe.environment if rebased.recipe else None
    done = push(
        rebased.image,
        target,
        # The environment tag is for layers of this repository only.
        tags=(environment_tag(environment),) if environment and target.name == source.name else (),
        report=progress,
    )
    progress.note(f"{done.uploaded / 1e6:.1f} MB sent, {done.not_sent / 1e6:.1f} MB were there")
    return {
        "image": str(done.reference),
        "digest": str(done.reference.digest),
        "environment": str(environment) if environment else None,
        "kept": rebased.kept,
        "dropped": list(rebased.dropped),
        "sent": done.uploaded,
    }
