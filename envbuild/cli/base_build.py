"""`envbuild base build`: a base by Dockerfile.base, for a run or as it is asked for."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import base_push, locking, records
from envbuild.cli.console import Progress
from envbuild.cli.ordering import CreateRepository
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, machine_of, repository
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuild.base.order import BaseOrder
    from envbuild.match.stack import Stack
    from envbuild.oci.reference import Reference

For = Annotated[
    str | None,
    typer.Option("--for", help="A run's manifest: parent and Python are those it needs.", metavar="MANIFEST"),
]
From = Annotated[
    str | None,
    typer.Option("--parent", help="What it stands on: an image reference, a layout, or debian:SUITE.", metavar="REF"),
]
Python = Annotated[str | None, typer.Option(help="Which Python it has to have: 3.11 or 3.11.2.", metavar="VERSION")]
PythonImage = Annotated[
    str | None,
    typer.Option(help="An image with that Python in /usr/local, where the parent's suite lacks it.", metavar="REF"),
]
Package = Annotated[
    list[str] | None,
    typer.Option("--package", help="A Debian package to put in; may be repeated.", metavar="NAME=VERSION"),
]
Sources = Annotated[
    Path | None, typer.Option(help="apt's one-line sources, where the parent's own will not do.", metavar="FILE")
]
Snapshot = Annotated[
    str | None, typer.Option(help="The distribution's archive as it was then: 20240101T000000Z.", metavar="TIME")
]
SnapshotHost = Annotated[str | None, typer.Option(help="Where such archives lie: https://HOST/archive.", metavar="URL")]
Tag = Annotated[str, typer.Option(help="What the engine calls it.", metavar="NAME")]
Push = Annotated[str | None, typer.Option(help="Push it there, too.", metavar="REPO[:TAG]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the docker command, and stop.")]


def run(
    *,
    manifest: For = None,
    variant: locking.Variant = locking.VariantName.AUTO,
    cuda_source: locking.CudaSource = locking.CudaSourceName.AUTO,
    set_: locking.Set = None,
    parent: From = None,
    python: Python = None,
    python_image: PythonImage = None,
    package: Package = None,
    sources: Sources = None,
    snapshot: Snapshot = None,
    snapshot_host: SnapshotHost = None,
    platform: Platform = None,
    tag: Tag = "envbuild-base:latest",
    push: Push = None,
    create_repository: CreateRepository = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build a base by the container engine: certificates, exactly one Python, and packages, on any Debian or Ubuntu.

    Prints its reference by digest where it is pushed, else the engine's id.
    """
    from envbuild.base.order import BaseOrder

    check_stdout()
    _refuse_logins({"--parent": parent, "--python-image": python_image, "--tag": tag})
    target = repository(push, "--push") if push is not None else None
    name = _name(tag)
    with Progress() as progress:
        stack = _matched(manifest, variant, cuda_source, set_, platform, progress) if manifest is not None else None
        machine = stack.machine if stack else machine_of(platform)
        order = BaseOrder(
            parent=parent or (stack.base if stack else ""),
            python=python or (stack.python if stack else ""),
            python_image=python_image or "",
            packages=tuple(package or ()),
            sources=_text(sources) if sources else "",
            snapshot=snapshot or "",
            snapshot_host=snapshot_host or "",
            epoch=os.environ.get("SOURCE_DATE_EPOCH", ""),
        )
        order = _with_python(_with_parent(order), progress)
        if dry_run:
            typer.echo(_command(order, tag, machine))
            return
        if target:
            _check_target(target, progress, create=create_repository)
        result = _built(order, name, tag, machine, progress)
        if target:
            result |= base_push.pushed_by_engine(
                result["id"], target, progress, machine=machine, parent=result["parent"]
            )
    typer.echo(json.dumps(result, indent=2) if as_json else result["image"])


def _refuse_logins(names: "Mapping[str, str | None]") -> None:
    """Refuse them before they are shown, sent as build arguments, or noted."""
    from envbuild.oci.login import refuse_login

    for option, name in names.items():
        refuse_login(name or "", option)


def _command(order: "BaseOrder", tag: str, machine: str) -> str:
    from envbuild.files import base_dockerfile
    from envbuild.oci.layout import ARCHITECTURES

    return order.command(base_dockerfile(), tag, f"linux/{ARCHITECTURES[machine]}")


def _check_target(target: "Reference", progress: Progress, *, create: bool) -> None:
    """Fail before the long work when its result would have nowhere to go."""
    from envbuild.registry import check_push

    base_push.check_place(target, progress, create=create)
    check_push(target)


def _name(tag: str) -> "Reference":
    from envbuild.oci.reference import Reference

    try:
        name = Reference.parse(tag)
    except ValueError as error:
        raise UsageError(str(error), where=f"--tag {tag}", todo="give a name such as base:3.11") from error
    if name.digest:
        raise UsageError("a name holds no digest", where=f"--tag {tag}", todo="leave out what follows @")
    return name


def _text(sources: Path) -> str:
    try:
        return sources.read_text().strip()
    except (OSError, ValueError) as error:
        todo = "give the path of a file with lines such as: deb http://HOST/debian bookworm main"
        raise UsageError("the sources cannot be read", where=f"--sources {sources}", todo=todo) from error


def _matched(
    name: str,
    variant: locking.VariantName,
    cuda_source: locking.CudaSourceName,
    set_: list[str] | None,
    platform: str | None,
    progress: Progress,
) -> "Stack":
    from envbuild.files import data_folder
    from envbuild.lock.system import wanted_packages
    from envbuild.manifest import read_manifest
    from envbuild.manifest.importers.environment import RecordOptions
    from envbuild.match.match import match
    from envbuild.match.profiles import load_profiles
    from envbuild.match.stack import pairs_of

    where, data = records.read_record(name, None, RecordOptions(), progress)
    found = read_manifest(data, where)
    stack = match(
        found,
        load_profiles(data_folder("profiles")),
        variant.value,
        cuda_source=cuda_source.value,
        overrides=pairs_of(set_ or ()),
        machine=platform,
    )
    progress.step(f"{stack.title} on Python {stack.python}, {stack.variant}")
    for it in stack.decisions:
        (progress.warn if it.warning else progress.note)(f"{it.what}: {it.value} - {it.reason} [{it.source}]")
    if packages := ", ".join(f"{it.name}={it.version}" for it in wanted_packages(found.native)):
        # Another suite has other versions, so they are not asked for here.
        progress.note(
            f"the run had libraries of {packages}: from-manifest puts in what a base lacks, --package this base"
        )
    return stack


def _with_parent(order: "BaseOrder") -> "BaseOrder":
    """Refuse to guess: without a run, or a parent, nothing says what the base is for."""
    if not order.parent:
        todo = "give --for MANIFEST, or --parent REF, such as --parent debian:bookworm"
        raise UsageError("nothing says what the base stands on", where="--parent", todo=todo)
    return order


def _with_python(order: "BaseOrder", progress: Progress) -> "BaseOrder":
    """Choose the image that brings a Python that the parent's distribution lacks, where that is known."""
    from dataclasses import replace

    from envbuild.base.order import decide_python
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
    from dataclasses import asdict, replace

    from envbuild.base.making import find_parent, make_base, pinned
    from envbuild.files import base_dockerfile, cache_folder

    parent = find_parent(order.parent, machine, cache_folder(), progress)
    progress.step(f"building {tag} on {parent.name}")
    order = replace(
        order,
        sources=order.sources or ("" if order.snapshot else parent.sources),
        python_image=pinned(order.python_image, progress) if order.python_image else "",
    )
    made = make_base(order, parent, base_dockerfile(), name, machine, progress)
    inside = asdict(made.inside)
    progress.note(f"Python {made.inside.python}, glibc {made.inside.glibc}, {made.inside.distribution}")
    base_push.keep(tag, "built", digest=made.id, parent=parent.name, **inside)
    asked = {"parent": parent.name, "python_image": order.python_image, "packages": order.packages}
    return {"image": made.id, "id": made.id, "tag": tag} | asked | inside
