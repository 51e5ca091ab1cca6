"""`envbuild base`: looking at base images, making them, and having them in a registry of one's own."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import base_build, base_list, base_push
from envbuild.cli.console import Progress
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, base_of, machine_of, repository

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.recipe import Base

app = typer.Typer(
    help="Look at base images, make them, and have them in a registry of your own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("build")(base_build.run)
app.command("list")(base_list.run)
app.command("push")(base_push.run)

Ref = Annotated[str, typer.Argument(help="An image reference, an OCI layout folder, or debian:SUITE.", metavar="REF")]
Target = Annotated[str, typer.Argument(help="Where it goes; by default it keeps its tag.", metavar="TARGET_REPO[:TAG]")]
Only = Annotated[
    str | None,
    typer.Option(
        "--platform", help="Copy only this platform's image; by default all, under the same digest.", metavar="PLATFORM"
    ),
]


@app.command("show")
def show(ref: Ref, *, platform: Platform = None, as_json: AsJson = False) -> None:
    """Show what an environment on this base would stand on: Python, glibc, distribution, size.

    The base's layers are read once; what lies in them is kept in the cache.
    """
    check_stdout()
    with Progress() as progress:
        base = base_of(ref, machine_of(platform), progress)
    shown = _shown(base)
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(base.name if "@" in base.name else f"{base.name}@{base.digest}")
    typer.echo(f"  Python {base.target.python}, {base.python_path}")
    typer.echo(f"  glibc {base.target.glibc}, {base.distribution or 'a distribution that does not say its name'}")
    typer.echo(f"  {shown['platform']}, {shown['layers']} layers, {shown['size'] / 1e6:.1f} MB")
    if base.mirror_of:
        typer.echo(f"  a mirror of {base.mirror_of}")


def _shown(base: "Base") -> dict[str, Any]:
    from envbuild.oci.layout import ARCHITECTURES

    return {
        **base.to_dict(),
        "platform": f"linux/{ARCHITECTURES.get(base.target.machine, base.target.machine)}",
        "python": base.target.python,
        "python_path": base.python_path,
        "glibc": base.target.glibc,
        "distribution": base.distribution,
        "layers": len(base.image.layers),
        "size": sum(layer.descriptor.size for layer in base.image.layers),
    }


@app.command("mirror")
def mirror(source: Ref, target: Target, *, platform: Only = None, as_json: AsJson = False) -> None:
    """Copy a base into a registry of your own, byte for byte, and print its reference there by digest.

    Layers that the registry has in another repository are mounted; all others are streamed, and nothing is
    kept here. debian:SUITE and OCI layouts are pushed.
    """
    from envbuild.base.resolve import registry_reference

    check_stdout()
    place, found = repository(target, "TARGET_REPO"), registry_reference(source)
    machine = machine_of(platform) if platform or found is None else None
    with Progress() as progress:
        result = (
            _copied(found, place, machine, progress)
            if found
            else base_push.pushed(source, place, machine_of(platform), progress)
        )
        progress.note(
            f"{result['sent'] / 1e6:.1f} MB sent, {result['mounted'] / 1e6:.1f} MB mounted, "
            f"{result['existing'] / 1e6:.1f} MB were there"
        )
    typer.echo(json.dumps(result, indent=2) if as_json else result["image"])


def _copied(source: "Reference", target: "Reference", machine: str | None, progress: Progress) -> dict[str, Any]:
    from dataclasses import replace

    from envbuild.base.resolve import known_facts
    from envbuild.files import cache_folder
    from envbuild.registry import copy_image, pull

    if machine:
        pull(source, machine=machine)  # refuses an image that is for another one
    progress.step(f"copying {source} to {target}")
    done = copy_image(source, target, machine=machine, report=progress.progress)
    known, name = known_facts(cache_folder()), str(replace(source, digest=None))
    for digest in done.manifests:
        known.remember_mirror(digest, name)
    _keep(done.reference, name, machine or machine_of(None))
    return {
        "image": str(done.reference),
        "digest": str(done.reference.digest),
        "source": str(source),
        "manifests": len(done.manifests),
        "sent": done.sent,
        "mounted": done.mounted,
        "existing": done.existing,
    }


def _keep(mirror: "Reference", name: str, machine: str) -> None:
    """Note it for `base list` by the digest of this machine's image, under which facts are kept."""
    from envbuild.errors import RegistryError
    from envbuild.registry import pull

    try:
        image = pull(mirror, machine=machine)
    except RegistryError:
        return  # it has none for this machine
    digest = str(image.found_as or image.digest)
    base_push.keep(str(mirror), "mirrored", digest=digest, parent=name, machine=machine, read_as=str(image.digest))
