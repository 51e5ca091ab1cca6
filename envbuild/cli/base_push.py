"""`envbuild base push`: a base that was made here, into a registry."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.console import Progress
from envbuild.cli.ordering import CreateRepository
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, base_of, machine_of, repository

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference

Name = Annotated[
    str, typer.Argument(help="What the engine calls it, an OCI layout folder, or debian:SUITE.", metavar="NAME|REF")
]
Target = Annotated[str, typer.Argument(help="Where it goes.", metavar="TARGET_REPO[:TAG]")]


def run(
    name: Name,
    target: Target,
    *,
    create_repository: CreateRepository = False,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Push a base that was built or bootstrapped here, and print its reference by the digest that the registry has.

    What `base build` made is in the engine; debian:SUITE and layouts need none. A base of another registry is copied
    by `base mirror`.
    """
    from envbuild.oci.reference import refuse_login

    check_stdout()
    refuse_login(name, "NAME")
    place = repository(target, "TARGET_REPO")
    with Progress() as progress:
        check_place(place, progress, create=create_repository)
        if is_local(name):
            result = pushed(name, place, machine_of(platform), progress)
            progress.note(f"{result['sent'] / 1e6:.1f} MB sent, {result['existing'] / 1e6:.1f} MB were there")
        else:
            asked = machine_of(platform) if platform else None
            result = pushed_by_engine(name, place, progress, machine=asked)
    typer.echo(json.dumps(result, indent=2) if as_json else result["image"])


def check_place(place: "Reference", progress: Progress, *, create: bool) -> None:
    """See that the repository is there, or create it; RegistryError."""
    from envbuild.registry import check_repository

    repository = check_repository(place, create=create)
    if repository and repository.created:
        progress.note(f"created {repository.name}")
    if repository and repository.hint:
        progress.warn(repository.hint)


def is_local(name: str) -> bool:
    """Whether it is `debian:SUITE` or a layout, which no engine has to have."""
    from envbuild.base.resolve import registry_reference

    return not name.startswith("sha256:") and registry_reference(name) is None


def pushed_by_engine(
    name: str, target: "Reference", progress: Progress, *, machine: str | None, parent: str = ""
) -> dict[str, Any]:
    """Push one of the engine's images, for `machine` where one is named; the digest is the registry's."""
    from dataclasses import asdict

    from envbuild.base.build import push_base

    progress.step(f"pushing {name} to {target}")
    reference, inside = push_base(name, target, progress, machine=machine)
    keep(str(reference), "pushed", parent=parent or _parent_of(name), **asdict(inside))
    return {"image": str(reference), "digest": str(reference.digest), "source": name} | asdict(inside)


def _parent_of(name: str) -> str:
    from envbuild.base.catalogue import known_bases
    from envbuild.files import cache_folder

    return next((it.parent for it in known_bases(cache_folder()) if name in (it.name, it.digest)), "")


def keep(reference: str, how: str, *, digest: str = "", parent: str = "", **facts: str) -> None:
    """Note a base for `base list`; what is not given is looked up when it is listed."""
    from envbuild.base.catalogue import KnownBase, cuda_of, remember
    from envbuild.files import cache_folder

    digest = digest or reference.rpartition("@")[2]
    facts = {"cuda": cuda_of(parent)} | facts
    remember(KnownBase(name=reference, how=how, digest=digest, parent=parent, **facts), cache_folder())


def pushed(source: str, target: "Reference", machine: str, progress: Progress) -> dict[str, Any]:
    """Push what was bootstrapped, or a layout, without an engine."""
    from dataclasses import replace

    from envbuild.registry import push

    base = base_of(source, machine, progress)
    suite = source.removeprefix("debian:") if source.startswith("debian:") else None
    progress.step(f"pushing {source} to {target}")
    done = push(base.image, replace(target, tag=target.tag or suite), report=progress.progress)
    facts = {"python": base.target.python, "glibc": base.target.glibc, "distribution": base.distribution}
    keep(str(done.reference), "pushed", parent=source if suite else "", machine=machine, **facts)
    return {
        "image": str(done.reference),
        "digest": str(done.reference.digest),
        "source": source,
        "manifests": 1,
        "sent": done.uploaded,
        "mounted": 0,
        "existing": done.existing,
    }
