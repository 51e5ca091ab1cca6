"""`envbuild from-manifest`: from a training run's manifest to an image and a stamped model."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import locking, records, references
from envbuild.cli.console import Progress
from envbuild.cli.printed import check_stdout
from envbuild.cli.summary import reference, result, summary
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuild.oci.reference import Reference
    from envbuild.pipeline import Order, Outcome, Plan


_DIGEST = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52}")
"""Cut for people; --json has it whole."""


Base = Annotated[
    str | None, typer.Option(help="An image reference, an OCI layout folder, or debian:SUITE.", metavar="REF")
]
Out = Annotated[Path, typer.Option(help="Where the build context and the OCI layout go.", metavar="DIR")]
Archive = Annotated[
    Path | None, typer.Option(help="Write the image to this file, which docker load and podman load read.")
]
Bytecode = Annotated[
    bool,
    typer.Option("--bytecode/--no-bytecode", help="Compile modules by the base's Python: larger, and faster to start."),
]
Load = Annotated[
    str | None, typer.Option(help="Load the image into the container engine here under this name.", metavar="NAME")
]
Push = Annotated[str | None, typer.Option(help="Push to this repository instead of writing a layout.", metavar="REPO")]
Platforms = Annotated[
    str | None,
    typer.Option(
        help="What to build for: linux/amd64, linux/arm64, or both with a comma; by default what the run had.",
        metavar="PLATFORMS",
    ),
]
StampOn = Annotated[
    str | None, typer.Option(help="Write the digest on this model: gs://..., or a folder.", metavar="MODEL_URI")
]
NoRemoteCache = Annotated[
    bool, typer.Option("--no-remote-cache", help="Build even if the registry has this environment.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan, with reasons, and stop.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def run(
    manifest: records.Manifest,
    *,
    variant: locking.Variant = locking.VariantName.AUTO,
    base: Base = None,
    cuda_source: locking.CudaSource = locking.CudaSourceName.AUTO,
    set_: locking.Set = None,
    platform: Platforms = None,
    out: Out = Path("envbuild-out"),
    push: Push = None,
    archive: Archive = None,
    load: Load = None,
    bytecode: Bytecode = False,
    stamp: StampOn = None,
    resolver: locking.Resolver = locking.ResolverName.UV,
    require_identical: locking.RequireIdentical = False,
    build: locking.Build = False,
    find_links: locking.FindLinks = None,
    offline: locking.Offline = False,
    no_remote_cache: NoRemoteCache = False,
    kind: records.From = None,
    python: records.Python = None,
    gpu: records.Gpu = None,
    ran_on: records.RanOn = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the environment of a training run.

    Locks the exact wheels, writes a build context, assembles the image without a Docker daemon, pushes it
    (or writes an OCI layout), and stamps its digest on the model. Prints the digest reference.
    """
    from envbuild.files import cache_folder
    from envbuild.pipeline import Order

    check_stdout()
    _check_given({"--base": base, "--push": push, "--stamp": stamp, "--load": load, "--platform": platform})
    repository = references.repository(push, "--push") if push is not None else None
    with Progress() as progress:
        name, data = _record(manifest, kind, progress, python=python, gpu=gpu, platform=ran_on)
        order = Order(
            manifest=data,
            manifest_name=name,
            variant=variant.value,
            base=base,
            cuda_source=cuda_source.value,
            overrides=_overrides(set_),
            platforms=_platforms(platform),
            archive=archive,
            load=_name(load),
            bytecode=bytecode,
            resolver=resolver.value,
            out=out,
            push=repository,
            stamp=stamp,
            cache=cache_folder(),
            require_identical=require_identical,
            build=build,
            find_links=tuple(find_links or ()),
            offline=offline,
            remote_cache=not no_remote_cache,
        )
        _carry_out(order, progress, dry_run=dry_run, as_json=as_json)


def _record(manifest: str, kind: records.From, progress: Progress, **known: str | None) -> tuple[str, bytes]:
    from envbuild.manifest.formats import Given

    return records.read_record(manifest, kind, Given(**known), progress)


def _overrides(pairs: locking.Set) -> "Mapping[str, str]":
    from envbuild.match import pairs_of

    return pairs_of(pairs or ())


def _carry_out(order: "Order", progress: Progress, *, dry_run: bool, as_json: bool) -> None:
    """Plan and build; print the result, or just the plan."""
    from envbuild.pipeline import make_plans

    started = time.monotonic()
    plans = make_plans(order)
    for plan in plans:
        _tell_plan(plan, progress)
    if dry_run:
        _print_plans(plans, as_json=as_json)
        return
    outcome = _build(order, plans, progress)
    for line in summary(outcome, time.monotonic() - started):
        progress.note(line)
    if as_json:
        typer.echo(json.dumps(result(outcome, time.monotonic() - started), indent=2))
    else:
        typer.echo(reference(outcome))


def _check_given(options: dict[str, str | None]) -> None:
    todo = "give it a value, or leave it out; is a variable unset?"
    for name, value in options.items():
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty", where=name, todo=todo)


def _build(order: "Order", plans: "Sequence[Plan]", progress: Progress) -> "Outcome":
    from envbuild.pipeline import Reporter, build

    reporter = Reporter(
        step=progress.step,
        note=progress.note,
        warn=progress.warn,
        progress=progress.progress,
        compared=locking.counter(progress),
    )
    outcome = build(order, plans, reporter, datetime.now(UTC))
    if outcome.stamped:
        progress.step(f"stamped {order.stamp}")
        progress.note(f"record {outcome.stamped}")
    return outcome


def _name(text: str | None) -> "Reference | None":
    """What an image is called in an engine: a reference, whose registry may be left out."""
    from envbuild.oci.reference import Reference

    try:
        return Reference.parse(text) if text is not None else None
    except ValueError as error:
        raise UsageError(str(error), where=f"--load {text}", todo="give a name such as churn:7") from error


def _platforms(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if len(set(names)) < len(names) or not all(names):
        raise UsageError("a platform is there twice, or has no name", where=f"--platform {text}", todo="name each once")
    return names


def _tell_plan(plan: "Plan", progress: Progress) -> None:
    stack = plan.stack
    progress.step(f"{stack.distribution} {stack.version} on Python {stack.python}, {stack.variant}")
    for decision in stack.decisions:
        source = _DIGEST.sub(r"sha256:\1...", decision.source)
        tell = progress.warn if decision.warning else progress.note
        tell(f"{decision.what}: {decision.value} - {decision.reason} [{source}]")
    for line in plan.unserved:
        progress.warn(f"{line}; it has to be built (--build) or given (--find-links DIR)")
    for change in stack.changes:
        progress.note(f"{change.before or 'nothing'} -> {change.after or 'dropped'}: {change.reason}")


def _print_plans(plans: "Sequence[Plan]", *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        values = [{"base": plan.base, "stack": asdict(plan.stack)} for plan in plans]
        typer.echo(json.dumps(values[0] if len(values) == 1 else {"platforms": values}, indent=2))
        return
    for plan in plans:
        typer.echo(f"base {plan.base}")
        for requirement in plan.stack.requirements:
            typer.echo(requirement)
