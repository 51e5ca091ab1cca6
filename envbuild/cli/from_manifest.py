"""`envbuild from-manifest`: from a training run's manifest to an image and a stamped model."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import locking, records
from envbuild.cli.console import Progress
from envbuild.cli.summary import layer_state, summary
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.pipeline import Order, Outcome, Plan


_DIGEST = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52}")
"""Cut for people; --json has it whole."""


Base = Annotated[
    str | None, typer.Option(help="An image reference, an OCI layout folder, or debian:SUITE.", metavar="REF")
]
Out = Annotated[Path, typer.Option(help="Where the build context and the OCI layout go.", metavar="DIR")]
Push = Annotated[str | None, typer.Option(help="Push to this repository instead of writing a layout.", metavar="REPO")]
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
    platform: locking.Platform = None,
    out: Out = Path("envbuild-out"),
    push: Push = None,
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
    from envbuild.manifest.formats import Given
    from envbuild.match import pairs_of
    from envbuild.pipeline import Order

    _check_given({"--base": base, "--push": push, "--stamp": stamp})
    repository, given = _reference(push), Given(python=python, gpu=gpu, platform=ran_on)
    overrides = pairs_of(set_ or ())
    with Progress() as progress:
        name, data = records.read_record(manifest, kind, given, progress)
        order = Order(
            manifest=data,
            manifest_name=name,
            variant=variant.value,
            base=base,
            cuda_source=cuda_source.value,
            overrides=overrides,
            platform=platform,
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


def _carry_out(order: "Order", progress: Progress, *, dry_run: bool, as_json: bool) -> None:
    """Plan and build; print the result, or just the plan."""
    from envbuild.pipeline import make_plan

    started = time.monotonic()
    plan = make_plan(order)
    _tell_plan(plan, progress)
    if dry_run:
        _print_plan(plan, as_json=as_json)
        return
    outcome = _build(order, plan, progress)
    for line in summary(outcome, time.monotonic() - started):
        progress.note(line)
    if as_json:
        typer.echo(json.dumps(_result(outcome, time.monotonic() - started), indent=2))
    else:
        typer.echo(str(outcome.image or f"{outcome.layout}@{outcome.digest}"))


def _check_given(options: dict[str, str | None]) -> None:
    todo = "give it a value, or leave it out; is a variable unset?"
    for name, value in options.items():
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty", where=name, todo=todo)


def _build(order: "Order", plan: "Plan", progress: Progress) -> "Outcome":
    from envbuild.pipeline import Reporter, build

    reporter = Reporter(
        step=progress.step,
        note=progress.note,
        warn=progress.warn,
        progress=progress.progress,
        compared=locking.counter(progress),
    )
    outcome = build(order, plan, reporter, datetime.now(UTC))
    if outcome.stamped:
        progress.step(f"stamped {order.stamp}")
        progress.note(f"record {outcome.stamped}")
    return outcome


def _reference(text: str | None) -> "Reference | None":
    from envbuild.oci.reference import Reference

    if text is None:
        return None
    todo = "give a repository such as europe-docker.pkg.dev/PROJECT/REPO/IMAGE or 127.0.0.1:5000/IMAGE"
    if "@" in text.partition("/")[0]:
        raise UsageError("a reference holds no user or password", where="--push", todo=f"{todo}; use `docker login`")
    if "/" not in text:
        raise UsageError("there is no registry before the repository", where=f"--push {text}", todo=todo)
    try:
        reference = Reference.parse(text)
    except ValueError as error:
        raise UsageError(str(error), where=f"--push {text}", todo=todo) from error
    if reference.digest:
        raise UsageError("a push cannot choose its digest", where=f"--push {text}", todo="leave out what follows @")
    return reference


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


def _print_plan(plan: "Plan", *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        typer.echo(json.dumps({"base": plan.base, "stack": asdict(plan.stack)}, indent=2))
        return
    typer.echo(f"base {plan.base}")
    for requirement in plan.stack.requirements:
        typer.echo(requirement)


def _result(outcome: "Outcome", seconds: float) -> dict[str, Any]:
    return {
        "environment": str(outcome.recipe.environment),
        "digest": str(outcome.digest),
        "image": str(outcome.image) if outcome.image else None,
        "layout": str(outcome.layout) if outcome.layout else None,
        "layers": [
            {
                "digest": str(layer.descriptor.digest),
                "size": layer.descriptor.size,
                "reused": layer.reused,
                "found": layer_state(layer),
            }
            for layer in outcome.assembled.image.layers
        ],
        "identity": outcome.proof.to_dict(),
        "overrides": dict(outcome.plan.stack.overrides),
        "added": list(outcome.added),
        "stamped": outcome.stamped,
        "seconds": round(seconds, 3),
    }
