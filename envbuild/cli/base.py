"""`envbuild base`: list, show, build, mirror and push base images."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.arguments import base_of, check_place, import_record, parse_platform, report_decisions
from envbuild.cli.command import ADVANCED, HOW, WHAT, WHERE, App, examples, flag, grouped, option
from envbuild.cli.console import Progress
from envbuild.cli.options import (
    AsJson,
    CreateRepository,
    CudaSource,
    Platform,
    Set,
    VariantName,
    read_reference,
    repository,
)
from envbuild.errors import RegistryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.base.build import BaseOrder
    from envbuild.base.catalogue import KnownBase, MissingBase
    from envbuild.match.profiles import Profiles
    from envbuild.match.stack import Stack
    from envbuild.oci.reference import Reference

app = App(help="List, show, build, mirror and push base images.")

Ref = Annotated[str, typer.Argument(help="An image reference, an OCI layout folder, or debian:SUITE.", metavar="REF")]
Target = Annotated[
    str, typer.Argument(help="The repository to push to; by default the tag stays.", metavar="TARGET_REPO[:TAG]")
]


@dataclass(kw_only=True, repr=False, eq=False)
class BaseOptions:
    """The options of `envbuild base build`."""

    manifest: str | None = option(WHAT, "A run's manifest: build what it needs, on its parent.", "MANIFEST", "--for")
    variant: VariantName = option(WHAT, "With --for: auto is gpu if the run used GPUs.", default="auto")
    cuda_source: CudaSource = "auto"
    set_: Set = None
    parent: str | None = option(WHAT, "The parent: an image reference, a layout, or debian:SUITE.", "REF")
    python: str | None = option(WHAT, "The Python to install: 3.11 or 3.11.2.", "VERSION")
    python_image: str | None = option(
        HOW, "An image with that Python in /usr/local, if the parent's suite lacks it.", "REF"
    )
    cuda: str | None = option(WHAT, "Install NVIDIA's packages of this CUDA, with cuDNN, as in 10.1.", "VERSION")
    package: list[str] | None = option(WHAT, "Install this Debian package; repeatable.", "NAME=VERSION")
    sources: Path | None = option(HOW, "Replace the parent's one-line sources of apt.", "FILE")
    snapshot: str | None = option(HOW, "Use the distribution's archive of this time: 20240101T000000Z.", "TIME")
    snapshot_host: str | None = option(ADVANCED, "The host of such archives: https://HOST/archive.", "URL")
    platform: Platform = None
    tag: str = option(WHERE, "Its name in the engine.", "NAME", default="envbuild-base:latest")
    push: str | None = option(WHERE, "Push it there, too.", "REPO[:TAG]")
    create_repository: CreateRepository = False
    dry_run: bool = flag(HOW, "Print the docker command, and stop.")
    as_json: AsJson = False


@app.command(
    "build",
    epilog=examples(
        "envbuild base build --for manifest.json",
        "envbuild base build --parent debian:bookworm --python 3.11 --push europe-docker.pkg.dev/acme/ml/python:3.11",
    ),
)
@grouped()
def build(*, options: BaseOptions) -> None:
    """Build a base by the container engine: certificates, exactly one Python, and packages, on any Debian or Ubuntu.

    Prints its reference by digest where it is pushed, else the engine's id.
    """
    target = repository(options.push, "--push") if options.push is not None else None
    name = read_reference(options.tag, "--tag", "give a name such as base:3.11")
    if name.digest:
        raise UsageError("a tag cannot have a digest", where=f"--tag {options.tag}", todo="leave out what follows @")
    with Progress() as progress:
        order, machine = _order(options, progress)
        if options.dry_run:
            from envbuild.files import base_dockerfile
            from envbuild.oci.layout import ARCHITECTURES

            typer.echo(order.command(base_dockerfile(), options.tag, f"linux/{ARCHITECTURES[machine]}"))
            return
        if target:  # fails before the long work
            from envbuild.registry.push import check_push

            check_place(target, progress, create=options.create_repository)
            check_push(target)
        result = _built(order, name, options.tag, machine, progress)
        if target:
            result |= push_from_engine(result["id"], target, progress, machine=machine, parent=result["parent"])
    typer.echo(json.dumps(result, indent=2) if options.as_json else result["image"])


def _order(options: BaseOptions, progress: Progress) -> "tuple[BaseOrder, str]":
    """Return what to build, and for which machine."""
    from envbuild.base.build import BaseOrder, decide_archive, decide_python
    from envbuild.files import data_folder
    from envbuild.match.profiles import load_profiles
    from envbuild.oci.reference import refuse_login

    refuse_login(options.parent or "", "--parent")  # before it is shown, sent as a build argument, or noted
    refuse_login(options.python_image or "", "--python-image")
    stack = _stack(options.manifest, options, progress) if options.manifest is not None else None
    try:
        sources = options.sources.read_text().strip() if options.sources else ""
    except (OSError, ValueError) as error:
        todo = "give the path of a file with lines such as: deb http://HOST/debian bookworm main"
        raise UsageError("the sources cannot be read", where=f"--sources {options.sources}", todo=todo) from error
    profiles, python = load_profiles(data_folder("profiles"), ()), options.python or (stack.python if stack else "")
    machine = stack.machine if stack else parse_platform(options.platform)
    archive, parent = None, options.parent or (stack.base if stack else "")
    # Make a base of NVIDIA's packages where that is asked for, or the image with CUDA is gone.
    gone = next((it.cuda for it in profiles.bases if it.withdrawn and it.image == parent and not options.parent), "")
    if cuda := options.cuda or gone:
        archive, decision = decide_archive(cuda, python, options.parent or "", profiles, machine)
        progress.note(f"{decision.what}: {decision.value} - {decision.reason} [{decision.source}]")
        parent = decision.value
    order = BaseOrder(
        parent=parent,
        python=python,
        python_image=options.python_image or "",
        archive=archive,
        packages=tuple(options.package or ()),
        sources=sources,
        snapshot=options.snapshot or "",
        snapshot_host=options.snapshot_host or "",
        epoch=os.environ.get("SOURCE_DATE_EPOCH", ""),
    )
    if not order.parent:
        todo = "give --for MANIFEST, or --parent REF, such as --parent debian:bookworm"
        raise UsageError("the base has no parent", where="--parent", todo=todo)
    # Choose the image with a Python that the parent's distribution lacks.
    if not order.python_image and (choice := decide_python(order.parent, order.python, profiles)):
        progress.note(f"{choice.what}: {choice.value} - {choice.reason} [{choice.source}]")
        order = replace(order, python_image=choice.value)
    return order, machine


def _stack(manifest: str, options: BaseOptions, progress: Progress) -> "Stack":
    """Match the run, and report the decisions."""
    from envbuild.files import data_folder
    from envbuild.lock.system import wanted_packages
    from envbuild.match.match import match
    from envbuild.match.profiles import load_profiles
    from envbuild.match.stack import pairs_of

    found = import_record(manifest, progress)[2]
    stack = match(
        found,
        load_profiles(data_folder("profiles")),
        options.variant,
        cuda_source=options.cuda_source,
        overrides=pairs_of(options.set_ or ()),
        machine=options.platform,
    )
    report_decisions(stack, found, progress)
    if packages := ", ".join(f"{it.name}={it.version}" for it in wanted_packages(found.native)):
        # Another suite has other versions, so the base does not get them.
        progress.note(f"the run had libraries of {packages}: from-manifest adds those that a base lacks")
    return stack


def _built(order: "BaseOrder", name: "Reference", tag: str, machine: str, progress: Progress) -> dict[str, Any]:
    from envbuild.base.build import find_parent, make_base, pinned
    from envbuild.files import base_dockerfile, cache_folder

    parent = find_parent(order.parent, machine, cache_folder(), progress)
    progress.step(f"building {tag} on {parent.name}")
    order = replace(
        order,
        sources=order.sources or ("" if order.snapshot else parent.sources),
        python_image=pinned(order.python_image, progress) if order.python_image else "",
    )
    base = make_base(order, parent, base_dockerfile(), name, machine, progress)
    inside = asdict(base.inside)
    progress.note(f"Python {base.inside.python}, glibc {base.inside.glibc}, {base.inside.distribution}")
    remember_base(tag, "built", digest=base.id, parent=parent.name, **inside)
    given = {"parent": parent.name, "python_image": order.python_image, "packages": order.packages}
    return {"image": base.id, "id": base.id, "tag": tag} | given | inside


def push_from_engine(
    name: str, target: "Reference", progress: Progress, *, machine: str | None, parent: str = ""
) -> dict[str, Any]:
    """Push one of the engine's images, for `machine` where one is named; the digest is the registry's."""
    from envbuild.base.build import push_base
    from envbuild.base.catalogue import known_bases
    from envbuild.files import cache_folder

    progress.step(f"pushing {name} to {target}")
    reference, inside = push_base(name, target, progress, machine=machine)
    known = known_bases(cache_folder())
    parent = parent or next((it.parent for it in known if name in (it.name, it.digest)), "")
    remember_base(str(reference), "pushed", parent=parent, **asdict(inside))
    return {"image": str(reference), "digest": str(reference.digest), "source": name} | asdict(inside)


def remember_base(reference: str, how: str, *, digest: str = "", parent: str = "", **facts: str) -> None:
    """Remember a base for `base list`, which looks up the facts that are not given."""
    from envbuild.base.catalogue import KnownBase, remember
    from envbuild.base.resolve import cuda_of
    from envbuild.files import cache_folder

    digest = digest or reference.rpartition("@")[2]
    facts = {"cuda": cuda_of(parent)} | facts
    remember(KnownBase(name=reference, how=how, digest=digest, parent=parent, **facts), cache_folder())


@app.command("list", epilog=examples("envbuild base list", "envbuild base list --registry gcr.io/acme/python"))
@grouped()
def list_bases(
    *,
    registry: str | None = option(WHAT, "Also list the tags of this repository.", "REPO"),
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """List the bases that this machine knows: bootstrapped, mirrored, built and pushed here.

    For each: Python, glibc, CUDA and the releases that it serves. Then the missing bases of the matrix, and the command
    that makes each.
    """
    from envbuild.base.catalogue import known_bases, missing, serves, tagged_bases
    from envbuild.files import cache_folder, data_folder
    from envbuild.match.profiles import load_profiles

    machine, profiles = parse_platform(platform), load_profiles(data_folder("profiles"))
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

    refuse_login(name, "NAME")
    place = repository(target, "TARGET_REPO")
    with Progress() as progress:
        check_place(place, progress, create=create_repository)
        if not name.startswith("sha256:") and registry_reference(name) is None:  # debian:SUITE or a layout
            result = _pushed(name, place, parse_platform(platform), progress)
            progress.note(f"{result['sent'] / 1e6:.1f} MB sent, {result['existing'] / 1e6:.1f} MB were there")
        else:
            machine = parse_platform(platform) if platform else None
            result = push_from_engine(name, place, progress, machine=machine)
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
    remember_base(str(done.reference), "pushed", parent=parent, machine=machine, **facts)
    return {
        "image": str(done.reference),
        "digest": str(done.reference.digest),
        "source": source,
        "manifests": 1,
        "sent": done.uploaded,
        "mounted": 0,
        "existing": done.not_sent,
    }


@app.command(
    "show", epilog=examples("envbuild base show debian:bookworm", "envbuild base show python:3.11-slim --json")
)
def show(ref: Ref, *, platform: Platform = None, as_json: AsJson = False) -> None:
    """Show the facts of a base: Python, glibc, distribution, size.

    The base's layers are read once; their facts are kept in the cache.
    """
    from envbuild.oci.layout import ARCHITECTURES

    with Progress() as progress:
        base = base_of(ref, parse_platform(platform), progress)
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
@grouped()
def mirror(
    source: Ref,
    target: Target,
    *,
    platform: str | None = option(
        WHAT, "Copy only this platform's image; by default all, under the same digest.", "PLATFORM"
    ),
    as_json: AsJson = False,
) -> None:
    """Copy a base into another registry, byte for byte, and print its reference there by digest.

    Layers that the registry has in another repository are mounted; all others are streamed, and nothing is
    kept here. debian:SUITE and OCI layouts are pushed.
    """
    from envbuild.base.resolve import registry_reference

    place, found = repository(target, "TARGET_REPO"), registry_reference(source)
    machine = parse_platform(platform) if platform or found is None else None
    with Progress() as progress:
        result = (
            _copied(found, place, machine, progress)
            if found
            else _pushed(source, place, parse_platform(platform), progress)
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
    _remember_mirror(done.reference, name, machine or parse_platform(None))
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
    from envbuild.registry.pull import pull

    try:
        image = pull(mirror, machine=machine)
    except RegistryError:
        return  # it has none for this machine
    digest = str(image.found_as or image.digest)
    facts = {"parent": name, "machine": machine, "read_as": str(image.digest)}
    remember_base(str(mirror), "mirrored", digest=digest, **facts)
