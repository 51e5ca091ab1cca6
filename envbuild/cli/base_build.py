"""`envbuild base build`: build a base by Dockerfile.base, for a run, or by options."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import records
from envbuild.cli.command import advanced_option, examples, grouped, how_option, what_option, where_option
from envbuild.cli.console import Progress, check_stdout
from envbuild.cli.options import AsJson, CreateRepository, CudaSource, Platform, Set, VariantName
from envbuild.cli.references import check_place, machine_of, repository
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.base.build import BaseOrder
    from envbuild.match.stack import Stack
    from envbuild.oci.reference import Reference

Python = Annotated[str | None, what_option(help="The Python to install: 3.11 or 3.11.2.", metavar="VERSION")]
Push = Annotated[str | None, where_option(help="Push it there, too.", metavar="REPO[:TAG]")]
EXAMPLES = examples(
    "envbuild base build --for manifest.json",
    "envbuild base build --parent debian:bookworm --python 3.11 --push europe-docker.pkg.dev/acme/ml/python:3.11",
)


@dataclass(kw_only=True, repr=False, eq=False)
class BaseOptions:
    """The options of `envbuild base build`."""

    manifest: Annotated[
        str | None,
        what_option("--for", help="A run's manifest: build what it needs, on its parent.", metavar="MANIFEST"),
    ] = None
    variant: Annotated[VariantName, what_option(help="With --for: auto is gpu if the run used GPUs.")] = "auto"
    cuda_source: CudaSource = "auto"
    set_: Set = None
    parent: Annotated[
        str | None,
        what_option("--parent", help="The parent: an image reference, a layout, or debian:SUITE.", metavar="REF"),
    ] = None
    python: Python = None
    python_image: Annotated[
        str | None,
        how_option(help="An image with that Python in /usr/local, if the parent's suite lacks it.", metavar="REF"),
    ] = None
    package: Annotated[
        list[str] | None,
        what_option("--package", help="Install this Debian package; repeatable.", metavar="NAME=VERSION"),
    ] = None
    sources: Annotated[
        Path | None, how_option(help="Replace the parent's one-line sources of apt.", metavar="FILE")
    ] = None
    snapshot: Annotated[
        str | None, how_option(help="Use the distribution's archive of this time: 20240101T000000Z.", metavar="TIME")
    ] = None
    snapshot_host: Annotated[
        str | None, advanced_option(help="The host of such archives: https://HOST/archive.", metavar="URL")
    ] = None
    platform: Platform = None
    tag: Annotated[str, where_option(help="Its name in the engine.", metavar="NAME")] = "envbuild-base:latest"
    push: Push = None
    create_repository: CreateRepository = False
    dry_run: Annotated[bool, how_option("--dry-run", help="Print the docker command, and stop.")] = False
    as_json: AsJson = False


@grouped()
def run(*, options: BaseOptions) -> None:
    """Build a base by the container engine: certificates, exactly one Python, and packages, on any Debian or Ubuntu.

    Prints its reference by digest where it is pushed, else the engine's id.
    """
    check_stdout()
    target = repository(options.push, "--push") if options.push is not None else None
    name = _name(options.tag)
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
    from envbuild.base.build import BaseOrder
    from envbuild.oci.reference import refuse_login

    for option, value in {"--parent": options.parent, "--python-image": options.python_image}.items():
        refuse_login(value or "", option)  # before they are shown, sent as build arguments, or noted
    stack = _stack(options.manifest, options, progress) if options.manifest is not None else None
    order = BaseOrder(
        parent=options.parent or (stack.base if stack else ""),
        python=options.python or (stack.python if stack else ""),
        python_image=options.python_image or "",
        packages=tuple(options.package or ()),
        sources=_text(options.sources) if options.sources else "",
        snapshot=options.snapshot or "",
        snapshot_host=options.snapshot_host or "",
        epoch=os.environ.get("SOURCE_DATE_EPOCH", ""),
    )
    if not order.parent:
        todo = "give --for MANIFEST, or --parent REF, such as --parent debian:bookworm"
        raise UsageError("the base has no parent", where="--parent", todo=todo)
    return _with_python(order, progress), stack.machine if stack else machine_of(options.platform)


def _name(tag: str) -> "Reference":
    from envbuild.oci.reference import Reference, refuse_login

    refuse_login(tag, "--tag")
    try:
        name = Reference.parse(tag)
    except ValueError as error:
        raise UsageError(str(error), where=f"--tag {tag}", todo="give a name such as base:3.11") from error
    if name.digest:
        raise UsageError("a tag cannot have a digest", where=f"--tag {tag}", todo="leave out what follows @")
    return name


def _text(sources: Path) -> str:
    try:
        return sources.read_text().strip()
    except (OSError, ValueError) as error:
        todo = "give the path of a file with lines such as: deb http://HOST/debian bookworm main"
        raise UsageError("the sources cannot be read", where=f"--sources {sources}", todo=todo) from error


def _stack(manifest: str, options: BaseOptions, progress: Progress) -> "Stack":
    """Match the run, and report the decisions."""
    from envbuild.files import data_folder
    from envbuild.lock.system import wanted_packages
    from envbuild.manifest.importers.environment import RecordOptions
    from envbuild.manifest.reader import read_manifest
    from envbuild.match.match import match
    from envbuild.match.profiles import load_profiles
    from envbuild.match.stack import pairs_of

    where, data = records.read_record(manifest, None, RecordOptions(), progress)
    found = read_manifest(data, where)
    stack = match(
        found,
        load_profiles(data_folder("profiles")),
        options.variant,
        cuda_source=options.cuda_source,
        overrides=pairs_of(options.set_ or ()),
        machine=options.platform,
    )
    progress.step(f"{stack.title} on Python {stack.python}, {stack.variant}")
    for it in stack.decisions:
        (progress.warn if it.warning else progress.note)(f"{it.what}: {it.value} - {it.reason} [{it.source}]")
    if packages := ", ".join(f"{it.name}={it.version}" for it in wanted_packages(found.native)):
        # Another suite has other versions, so the base does not get them.
        progress.note(f"the run had libraries of {packages}: from-manifest adds those that a base lacks")
    return stack


def _with_python(order: "BaseOrder", progress: Progress) -> "BaseOrder":
    """Choose the image with a Python that the parent's distribution lacks."""
    from envbuild.base.build import decide_python
    from envbuild.files import data_folder
    from envbuild.match.profiles import load_profiles

    decision = (
        None
        if order.python_image
        else decide_python(order.parent, order.python, load_profiles(data_folder("profiles"), ()))
    )
    if decision is None:
        return order
    progress.note(f"{decision.what}: {decision.value} - {decision.reason} [{decision.source}]")
    return replace(order, python_image=decision.value)


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
    from envbuild.base.catalogue import KnownBase, cuda_of, remember
    from envbuild.files import cache_folder

    digest = digest or reference.rpartition("@")[2]
    facts = {"cuda": cuda_of(parent)} | facts
    remember(KnownBase(name=reference, how=how, digest=digest, parent=parent, **facts), cache_folder())
