"""`envbuild from-manifest`: from a training run's manifest to an image and a stamped model."""

import json
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import typer

from envbuild.cli.arguments import import_record, report_changes, report_decisions, warn_unloadable
from envbuild.cli.command import ADVANCED, grouped, option
from envbuild.cli.console import Progress
from envbuild.cli.options import (
    BuilderOptions,
    BuildOptions,
    CloudOptions,
    FactOptions,
    ImageOptions,
    LockOptions,
    Manifest,
)
from envbuild.cli.serve import ServeOptions, make_serving_image
from envbuild.cli.summary import reference, result_values, summary, write_github_files
from envbuild.cli.targets import check_key
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.build.request import BuildRequest
    from envbuild.manifest.model import TrainingManifest

RoleName = Literal["train", "serve"]


@grouped("serving")
def run(
    manifest: Manifest,
    *,
    role: RoleName = option(ADVANCED, "serve: the same as envbuild serve.", default="train", hidden=True),
    serving: ServeOptions,
    facts: FactOptions,
    image: ImageOptions,
    builder: BuilderOptions,
    cloud: CloudOptions,
    locks: LockOptions,
) -> None:
    """Build the image of a training run, and stamp the model.

    Locks the exact wheels, writes a build context, assembles the image without a Docker daemon, pushes it
    (or writes an OCI layout), and stamps its digest on the model. Prints the digest reference.
    """
    options = BuildOptions(image=image, locks=locks, facts=facts, builder=builder, cloud=cloud)
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
        name, data, parsed = import_record(manifest, progress, facts, locks=locks)
        request = options.build_request(name, data)
        request = replace(request, trusted_keys=(image.signed,) if image.signed is not None else ())
        _build(request, parsed, progress, dry_run=image.dry_run, as_json=image.as_json)


def _check_training(serving: ServeOptions, image: ImageOptions) -> None:
    """Refuse what only a serving image has, and --signed and --minimum-record without a signed stamp; UsageError."""
    default = ServeOptions()
    names = ("server", "server_version", "server_image", "extra", "app", "cmd", "embed_model", "slim", "gate")
    useless = [name for name in (*names, "no_stamp", "parent_key") if getattr(serving, name) != getattr(default, name)]
    if useless:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in useless)
        todo = "use envbuild serve, or leave them out"
        raise UsageError("these are for a serving image", where=f"--role train, {options}", todo=todo)
    of_stamp = {"--minimum-record": image.minimum_record, "--signed": image.signed}
    given = ", ".join(name for name, value in of_stamp.items() if value is not None)
    if given and None in (image.sign, image.stamp):
        todo = "give --stamp MODEL and --sign KEY too, or leave it out"
        raise UsageError("these options matter only if a signed stamp is written", where=given, todo=todo)
    check_key(image.signed)


def _build(
    request: "BuildRequest", manifest: "TrainingManifest", progress: Progress, *, dry_run: bool, as_json: bool
) -> None:
    """Plan and build; print the result, or just the plan."""
    from envbuild.build.build import build
    from envbuild.build.request import check_request, make_plans
    from envbuild.verify.sources import side_of_stack

    check_request(request)
    started = time.monotonic()
    plans = make_plans(request, manifest)
    for plan in plans:
        report_decisions(plan.stack, manifest, progress)
        for line in plan.not_on_index:
            progress.warn(f"{line}; it has to be built (--build) or given (--find-links DIR)")
        report_changes(plan.stack, progress)
        if dry_run:
            warn_unloadable(request, manifest.model, side_of_stack(plan.stack, "the environment"), progress)
    if dry_run and request.cloud and not as_json:
        from envbuild.build.cloud import printed_yaml

        typer.echo(printed_yaml(request).decode(), nl=False)  # as gcloud reads it
        return
    if dry_run and as_json:
        values = [{"base": plan.base, "stack": asdict(plan.stack)} for plan in plans]
        typer.echo(json.dumps(values[0] if len(values) == 1 else {"platforms": values}, indent=2))
        return
    if dry_run:
        for plan in plans:
            typer.echo("\n".join((f"base {plan.base}", *plan.stack.requirements)))
        return
    result = build(request, plans, progress, datetime.now(UTC))
    if result.stamp_record:
        progress.step(f"stamped {request.stamp}")
        progress.note(f"record {result.stamp_record}")
    for line in summary(result, time.monotonic() - started):
        progress.note(line)
    value = result_values(result, time.monotonic() - started)
    write_github_files(value)
    typer.echo(json.dumps(value, indent=2) if as_json else reference(result))
