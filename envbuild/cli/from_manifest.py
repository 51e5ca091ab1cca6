"""`envbuild from-manifest`: from a training run's manifest to an image and a stamped model."""

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild.cli.command import advanced_option, grouped
from envbuild.cli.console import Progress, check_stdout
from envbuild.cli.github import report_result
from envbuild.cli.options import FactOptions, ImageOptions, LockOptions, Manifest
from envbuild.cli.order import BuilderOptions, CloudOptions, OrderOptions
from envbuild.cli.records import report_changes
from envbuild.cli.serve import ServeOptions, make_serving_image
from envbuild.cli.summary import reference, result, summary
from envbuild.cli.targets import check_key
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.build.order import Order, Plan

_DIGEST = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52}")
"""Shortened for people; --json has it whole."""

RoleName = Literal["train", "serve"]


@grouped("serving")
def run(
    manifest: Manifest,
    *,
    role: Annotated[RoleName, advanced_option(help="serve: the same as envbuild serve.", hidden=True)] = "train",
    serving: ServeOptions,
    record: FactOptions,
    image: ImageOptions,
    builder: BuilderOptions,
    cloud: CloudOptions,
    locks: LockOptions,
) -> None:
    """Build the image of a training run, and stamp the model.

    Locks the exact wheels, writes a build context, assembles the image without a Docker daemon, pushes it
    (or writes an OCI layout), and stamps its digest on the model. Prints the digest reference.
    """
    check_stdout()
    options = OrderOptions(image=image, locks=locks, record=record, builder=builder, cloud=cloud)
    with Progress() as progress:
        if role == "serve":
            progress.note("--role serve is a command now: envbuild serve MODEL")
            make_serving_image(manifest, serving, options, progress)
            return
        _check_training(serving, image)
        options.check()
        if image.stamp_anyway and image.stamp is None:
            todo = "give --stamp MODEL_URI too, or leave it out"
            raise UsageError("no model is stamped", where="--stamp-anyway", todo=todo)
        order = options.order(*options.read(manifest, progress))
        order = replace(order, continued=(image.signed,) if image.signed is not None else ())
        _build(order, progress, dry_run=image.dry_run, as_json=image.as_json)


def _check_training(serving: ServeOptions, image: ImageOptions) -> None:
    """Refuse what only a serving image has, and a lowest record where none is signed; UsageError."""
    default = ServeOptions()
    names = ("server", "server_version", "server_image", "extra", "app", "cmd", "embed_model", "slim", "gate")
    useless = [name for name in (*names, "no_stamp", "parent_key") if getattr(serving, name) != getattr(default, name)]
    if useless:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in useless)
        todo = "use envbuild serve, or leave them out"
        raise UsageError("these are for a serving image", where=f"--role train, {options}", todo=todo)
    of_record = {"--minimum-record": image.minimum_record, "--signed": image.signed}
    given = ", ".join(name for name, value in of_record.items() if value is not None)
    if given and None in (image.sign, image.stamp):
        todo = "give --stamp MODEL and --sign KEY too, or leave it out"
        raise UsageError("training reads signed records only to continue them", where=given, todo=todo)
    check_key(image.signed)


def _build(order: "Order", progress: Progress, *, dry_run: bool, as_json: bool) -> None:
    """Plan and build; print the result, or just the plan."""
    from envbuild.build.build import build
    from envbuild.build.order import check_order, make_plans

    check_order(order)
    started = time.monotonic()
    plans = make_plans(order)
    for plan in plans:
        _report_plan(plan, progress)
    if dry_run and order.cloud and not as_json:
        from envbuild.build.cloud import printed_yaml

        typer.echo(printed_yaml(order).decode(), nl=False)  # as gcloud reads it
        return
    if dry_run:
        _print_plans(plans, as_json=as_json)
        return
    outcome = build(order, plans, progress, datetime.now(UTC))
    if outcome.stamped:
        progress.step(f"stamped {order.stamp}")
        progress.note(f"record {outcome.stamped}")
    for line in summary(outcome, time.monotonic() - started):
        progress.note(line)
    value = result(outcome, time.monotonic() - started)
    report_result(value)
    typer.echo(json.dumps(value, indent=2) if as_json else reference(outcome))


def _report_plan(plan: "Plan", progress: Progress) -> None:
    stack = plan.stack
    progress.step(f"{stack.title} on Python {stack.python}, {stack.variant}")
    for decision in stack.decisions:
        source = _DIGEST.sub(r"sha256:\1...", decision.source)
        report = progress.warn if decision.warning else progress.note
        report(f"{decision.what}: {decision.value} - {decision.reason} [{source}]")
    for line in plan.unserved:
        progress.warn(f"{line}; it has to be built (--build) or given (--find-links DIR)")
    report_changes(stack, progress)


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
