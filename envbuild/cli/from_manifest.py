"""`envbuild from-manifest`: from a training run's manifest to an image and a stamped model."""

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import cloudbuild, locking
from envbuild.cli.attesting import Attesting
from envbuild.cli.console import Progress
from envbuild.cli.github import served_rows, tell_github
from envbuild.cli.grouped import grouped
from envbuild.cli.ordering import Asked, Building, Known, Locks, Outputs, Wanted, ordered
from envbuild.cli.printed import check_stdout
from envbuild.cli.serving import RoleName, Serving, check_training, served_order
from envbuild.cli.summary import (
    plan_lines,
    reference,
    result,
    served_reference,
    served_result,
    served_summary,
    serving_plan,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.build import Order, Outcome, Plan, Reporter
    from envbuild.serve.model import ServeOrder


_DIGEST = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52}")
"""Cut for people; --json has it whole."""


Target = Annotated[
    str,
    typer.Argument(
        help="A manifest, or another tool's record as for `envbuild convert`: a path, - for stdin, or gs://; "
        "with --role serve, a stamped model too.",
        metavar="MANIFEST",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan, with reasons, and stop.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@grouped
def run(
    manifest: Target,
    *,
    serving: Serving,
    wanted: Wanted,
    outputs: Outputs,
    building: Building,
    cloud: cloudbuild.Cloud,
    locks: Locks,
    known: Known,
    attesting: Attesting,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the environment of a training run, or with --role serve the image that serves its model.

    Locks the exact wheels, writes a build context, assembles the image without a Docker daemon, pushes it
    (or writes an OCI layout), and stamps its digest on the model. Prints the digest reference. To serve, MANIFEST may
    be the stamped model: its training image, by digest, gets what serves on top, is tried, pushed and stamped.
    """
    check_stdout()
    asked = Asked(
        wanted=wanted,
        outputs=outputs,
        building=building,
        cloud=cloud,
        locks=locks,
        known=known,
        attesting=attesting,
    )
    with Progress() as progress:
        if serving.role is RoleName.SERVE:
            _serve(served_order(manifest, serving, asked, progress), progress, dry_run=dry_run, as_json=as_json)
            return
        check_training(serving, asked)
        order = replace(
            ordered(manifest, asked, progress),
            minimum_record=serving.minimum_record or 0,
            continued=(serving.signed,) if serving.signed is not None else (),
        )
        _carry_out(order, progress, dry_run=dry_run, as_json=as_json)


def _serve(order: "ServeOrder", progress: Progress, *, dry_run: bool, as_json: bool) -> None:
    """Make what serves; print the result, or just what it would start from and be given."""
    from envbuild.serve.build import serve
    from envbuild.serve.check import check_serving
    from envbuild.serve.origin import find_start

    if dry_run:
        check_serving(order)
        planned = serving_plan(order, find_start(order, _reporter(progress)))
        typer.echo(json.dumps(planned, indent=2) if as_json else "\n".join(plan_lines(planned)))
        return
    started = time.monotonic()
    served = serve(order, _reporter(progress), datetime.now(UTC))
    if served.stamped:
        progress.step(f"stamped {order.order.stamp}")
        progress.note(f"record {served.stamped}")
    for line in served_summary(served, time.monotonic() - started):
        progress.note(line)
    value = served_result(served, time.monotonic() - started)
    tell_github(value, tuple(served_rows(served)))
    typer.echo(json.dumps(value, indent=2) if as_json else served_reference(served))


def _carry_out(order: "Order", progress: Progress, *, dry_run: bool, as_json: bool) -> None:
    """Plan and build; print the result, or just the plan."""
    from envbuild.build import make_plans
    from envbuild.build.plan import check_order

    check_order(order)
    started = time.monotonic()
    plans = make_plans(order)
    for plan in plans:
        _tell_plan(plan, progress)
    if dry_run:
        _print_cloud(order) if order.cloud and not as_json else _print_plans(plans, as_json=as_json)
        return
    outcome = _build(order, plans, progress)
    for line in summary(outcome, time.monotonic() - started):
        progress.note(line)
    value = result(outcome, time.monotonic() - started)
    tell_github(value)
    typer.echo(json.dumps(value, indent=2) if as_json else reference(outcome))


def _build(order: "Order", plans: "Sequence[Plan]", progress: Progress) -> "Outcome":
    from envbuild.build import build

    outcome = build(order, plans, _reporter(progress), datetime.now(UTC))
    if outcome.stamped:
        progress.step(f"stamped {order.stamp}")
        progress.note(f"record {outcome.stamped}")
    return outcome


def _reporter(progress: Progress) -> "Reporter":
    from envbuild.build import Reporter

    return Reporter(
        step=progress.step,
        note=progress.note,
        warn=progress.warn,
        progress=progress.progress,
        compared=locking.counter(progress),
    )


def _tell_plan(plan: "Plan", progress: Progress) -> None:
    stack = plan.stack
    progress.step(f"{stack.title} on Python {stack.python}, {stack.variant}")
    for decision in stack.decisions:
        source = _DIGEST.sub(r"sha256:\1...", decision.source)
        tell = progress.warn if decision.warning else progress.note
        tell(f"{decision.what}: {decision.value} - {decision.reason} [{source}]")
    for line in plan.unserved:
        progress.warn(f"{line}; it has to be built (--build) or given (--find-links DIR)")
    locking.tell_changes(stack, progress)


def _print_cloud(order: "Order") -> None:
    """Print what Cloud Build would be told, as gcloud reads it."""
    from envbuild.build.cloud import printed_yaml

    typer.echo(printed_yaml(order).decode(), nl=False)


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
