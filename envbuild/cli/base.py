"""`envbuild base`: list, show, build, mirror and push base images."""

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import base_build
from envbuild.cli.command import App, examples, what_option
from envbuild.cli.console import Progress, check_stdout
from envbuild.cli.options import AsJson, CreateRepository, Platform
from envbuild.cli.references import base_of, check_place, machine_of, repository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.base.catalogue import KnownBase, MissingBase
    from envbuild.match.profiles import Profiles
    from envbuild.oci.reference import Reference

app = App(help="List, show, build, mirror and push base images.")
app.command("build", epilog=base_build.EXAMPLES)(base_build.run)

Ref = Annotated[str, typer.Argument(help="An image reference, an OCI layout folder, or debian:SUITE.", metavar="REF")]
Target = Annotated[
    str, typer.Argument(help="The repository to push to; by default the tag stays.", metavar="TARGET_REPO[:TAG]")
]
Only = Annotated[
    str | None,
    what_option(
        "--platform", help="Copy only this platform's image; by default all, under the same digest.", metavar="PLATFORM"
    ),
]
InRegistry = Annotated[
    str | None, what_option("--registry", help="Also list the tags of this repository.", metavar="REPO")
]


@app.command("list", epilog=examples("envbuild base list", "envbuild base list --registry gcr.io/acme/python"))
def list_bases(*, registry: InRegistry = None, platform: Platform = None, as_json: AsJson = False) -> None:
    """List the bases that this machine knows: bootstrapped, mirrored, built and pushed here.

    For each: Python, glibc, CUDA and the releases that it serves. Then the missing bases of the matrix, and the command
    that makes each.
    """
    from envbuild.base.catalogue import known_bases, missing, serves, tagged_bases
    from envbuild.files import cache_folder, data_folder
    from envbuild.match.profiles import load_profiles

    check_stdout()
    machine, profiles = machine_of(platform), load_profiles(data_folder("profiles"))
    tagged: Sequence[KnownBase] = ()
    if registry is not None:
        tagged = tagged_bases(repository(registry, "--registry"), machine, cache_folder())
    known = _existing(known_bases(cache_folder()), tagged)
    wanted = missing(known, profiles, machine)
    if as_json:
        bases = [asdict(it) | {"serves": serves(it, profiles)} for it in known]
        typer.echo(json.dumps({"bases": bases, "missing": [asdict(it) for it in wanted]}, indent=2))
    else:
        _print_list(known, wanted, profiles)


def _existing(known: "Sequence[KnownBase]", tagged: "Sequence[KnownBase]") -> "Sequence[KnownBase]":
    """Return each base once, without those that the engine has no longer."""
    from envbuild.base.build import engine_images

    here = engine_images() if any(it.how == "built" for it in known) else None
    known = [it for it in known if here is None or it.how != "built" or it.digest in here]
    digests = {it.digest for it in known}
    return (*known, *(it for it in tagged if it.digest not in digests))


def _print_list(known: "Sequence[KnownBase]", wanted: "Sequence[MissingBase]", profiles: "Profiles") -> None:
    from envbuild.base.catalogue import serves

    for base in known:
        typer.echo(base.name)
        typer.echo(f"  {_facts(base)}")
        for line in serves(base, profiles):
            typer.echo(f"  serves {line}")
    if wanted:
        typer.echo("not here:")
    for row in wanted:
        typer.echo(f"  {row.what}, for {'; '.join(row.serves)}")
        typer.echo(f"    {row.command}")


def _facts(base: "KnownBase") -> str:
    from envbuild.oci.layout import ARCHITECTURES

    origin = {"mirrored": "mirrored from ", "pushed": "pushed, on ", "built": "built on "}
    facts = (
        f"{origin[base.how]}{base.parent}" if base.parent and base.how in origin else base.how,
        f"linux/{ARCHITECTURES.get(base.machine, base.machine)}" if base.machine else "",
        f"Python {base.python}" if base.python else "not inspected: envbuild base show",
        f"glibc {base.glibc}" if base.glibc else "",
        f"CUDA {base.cuda}" if base.cuda else "",
        f"cuDNN {base.cudnn}" if base.cudnn else "",
        base.distribution,
        "" if base.digest in base.name else base.digest,
    )
    return ", ".join(filter(None, facts))


@app.command(
    "push", epilog=examples("envbuild base push envbuild-base:latest europe-docker.pkg.dev/acme/ml/python:3.11")
)
def push(
    name: Annotated[
        str, typer.Argument(help="The engine's name of it, an OCI layout folder, or debian:SUITE.", metavar="NAME|REF")
    ],
    target: Target,
    *,
    create_repository: CreateRepository = False,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Push a base that was built or bootstrapped here, and print its reference by the registry's digest.

    A base of `base build` is in the engine; debian:SUITE and layouts need none. `base mirror` copies a base of another
    registry.
    """
    from envbuild.base.resolve import registry_reference
    from envbuild.oci.reference import refuse_login

    check_stdout()
    refuse_login(name, "NAME")
    place = repository(target, "TARGET_REPO")
    with Progress() as progress:
        check_place(place, progress, create=create_repository)
        if not name.startswith("sha256:") and registry_reference(name) is None:  # debian:SUITE or a layout
            result = _pushed(name, place, machine_of(platform), progress)
            progress.note(f"{result['sent'] / 1e6:.1f} MB sent, {result['existing'] / 1e6:.1f} MB were there")
        else:
            machine = machine_of(platform) if platform else None
            result = base_build.push_from_engine(name, place, progress, machine=machine)
    typer.echo(json.dumps(result, indent=2) if as_json else result["image"])


def _pushed(source: str, target: "Reference", machine: str, progress: Progress) -> dict[str, Any]:
    """Push a bootstrapped base, or a layout, without an engine."""
    from envbuild.registry.push import push

    base = base_of(source, machine, progress)
    suite = source.removeprefix("debian:") if source.startswith("debian:") else None
    progress.step(f"pushing {source} to {target}")
    done = push(base.image, replace(target, tag=target.tag or suite), report=progress)
    facts = {"python": base.target.python, "glibc": base.target.glibc, "distribution": base.distribution}
    parent = source if suite else ""
    base_build.remember_base(str(done.reference), "pushed", parent=parent, machine=machine, **facts)
    return {
        "image": str(done.reference),
        "digest": str(done.reference.digest),
        "source": source,
        "manifests": 1,
        "sent": done.uploaded,
        "mounted": 0,
        "existing": done.existing,
    }


@app.command(
    "show", epilog=examples("envbuild base show debian:bookworm", "envbuild base show python:3.11-slim --json")
)
def show(ref: Ref, *, platform: Platform = None, as_json: AsJson = False) -> None:
    """Show the facts of a base: Python, glibc, distribution, size.

    The base's layers are read once; their facts are kept in the cache.
    """
    from envbuild.oci.layout import ARCHITECTURES

    check_stdout()
    with Progress() as progress:
        base = base_of(ref, machine_of(platform), progress)
    shown: dict[str, Any] = {
        **base.to_dict(),
        "platform": f"linux/{ARCHITECTURES.get(base.target.machine, base.target.machine)}",
        "python": base.target.python,
        "python_path": base.python_path,
        "glibc": base.target.glibc,
        "distribution": base.distribution,
        "layers": len(base.image.layers),
        "size": sum(layer.descriptor.size for layer in base.image.layers),
    }
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(base.name if "@" in base.name else f"{base.name}@{base.digest}")
    typer.echo(f"  Python {base.target.python}, {base.python_path}")
    typer.echo(f"  glibc {base.target.glibc}, {base.distribution or 'a distribution without a name'}")
    typer.echo(f"  {shown['platform']}, {shown['layers']} layers, {shown['size'] / 1e6:.1f} MB")
    if base.mirror_of:
        typer.echo(f"  a mirror of {base.mirror_of}")


@app.command("mirror", epilog=examples("envbuild base mirror python:3.11-slim europe-docker.pkg.dev/acme/ml/python"))
def mirror(source: Ref, target: Target, *, platform: Only = None, as_json: AsJson = False) -> None:
    """Copy a base into another registry, byte for byte, and print its reference there by digest.

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
            else _pushed(source, place, machine_of(platform), progress)
        )
        progress.note(
            f"{result['sent'] / 1e6:.1f} MB sent, {result['mounted'] / 1e6:.1f} MB mounted, "
            f"{result['existing'] / 1e6:.1f} MB were there"
        )
    typer.echo(json.dumps(result, indent=2) if as_json else result["image"])


def _copied(source: "Reference", target: "Reference", machine: str | None, progress: Progress) -> dict[str, Any]:
    from envbuild.base.resolve import known_facts
    from envbuild.files import cache_folder
    from envbuild.registry.copy import copy_image
    from envbuild.registry.pull import pull

    if machine:
        pull(source, machine=machine)  # refuses an image that is for another one
    progress.step(f"copying {source} to {target}")
    done = copy_image(source, target, machine=machine, report=progress)
    known, name = known_facts(cache_folder()), str(replace(source, digest=None))
    for digest in done.manifests:
        known.remember_mirror(digest, name)
    _remember_mirror(done.reference, name, machine or machine_of(None))
    return {
        "image": str(done.reference),
        "digest": str(done.reference.digest),
        "source": str(source),
        "manifests": len(done.manifests),
        "sent": done.sent,
        "mounted": done.mounted,
        "existing": done.existing,
    }


def _remember_mirror(mirror: "Reference", name: str, machine: str) -> None:
    """Remember it for `base list` by the digest of this machine's image, under which facts are kept."""
    from envbuild.errors import RegistryError
    from envbuild.registry.pull import pull

    try:
        image = pull(mirror, machine=machine)
    except RegistryError:
        return  # it has none for this machine
    digest = str(image.found_as or image.digest)
    facts = {"parent": name, "machine": machine, "read_as": str(image.digest)}
    base_build.remember_base(str(mirror), "mirrored", digest=digest, **facts)
