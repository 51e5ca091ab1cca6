"""`envbuild serve`: the image that serves a model, on top of the image that trained it."""

import json
import shlex
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild.cli.arguments import import_record, warn_unloadable
from envbuild.cli.command import HOW, WHAT, WHERE, flag, grouped, option
from envbuild.cli.console import Progress, one_line
from envbuild.cli.options import BuildOptions, FactOptions, ImageOptions, LockOptions, check_not_empty
from envbuild.cli.summary import (
    plan_lines,
    serving_plan,
    serving_reference,
    serving_result,
    serving_rows,
    serving_summary,
    write_github_files,
)
from envbuild.cli.targets import IMAGES, check_key, kind_of, marks_of
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.serve.model import ServeOrder
    from envbuild.serve.origin import Start

ServerName = Literal["fastapi", "tf-serving", "triton"]
GateName = Literal["auto", "require", "off"]
Model = Annotated[
    str,
    typer.Argument(
        help="A stamped model: gs://, a file or folder; or the manifest of its run, whose image is then built first.",
        metavar="MODEL",
    ),
]


@dataclass(kw_only=True, repr=False, eq=False)
class ServeOptions:
    """What is put on top of the training image, and how it is tested."""

    server: ServerName | None = option(
        WHAT, "fastapi is installed; the others bring their own runtime, which is checked."
    )
    server_version: str | None = option(WHAT, "The release of tf-serving or triton.", "VERSION")
    server_image: str | None = option(WHAT, "The image of tf-serving or triton; stamped by digest.", "REF")
    extra: list[str] | None = option(
        WHAT, "Add this and what it needs, and change no version; repeatable.", "REQUIREMENT"
    )
    app: Path | None = option(WHAT, "Put the files of this folder into /app.", "DIR")
    cmd: str | None = option(WHAT, "The command that the image starts, as for a shell.", "COMMAND")
    embed_model: bool = flag(WHAT, "Put the model into /model, each file checked.")
    slim: bool = flag(HOW, "Leave out what only training needs.")
    gate: GateName = option(HOW, "Test the image before it is pushed; auto: if there is an engine.", default="auto")
    no_stamp: bool = flag(WHERE, "Do not stamp the model.")
    parent_key: str | None = option(HOW, "The key that signed the training image; by default --sign's own.", "KEY")


@grouped()
def run(model: Model, *, serving: ServeOptions, image: ImageOptions, locks: LockOptions, record: FactOptions) -> None:
    """Make the image that serves a model.

    Takes the training image that the model is stamped with, adds what serves on top, tests it, pushes it (or writes an
    OCI layout), and stamps the model. Prints the reference by digest.
    """
    with Progress() as progress:
        make_serving_image(model, serving, BuildOptions(image=image, locks=locks, facts=record), progress)


def make_serving_image(model: str, serving: ServeOptions, options: BuildOptions, progress: Progress) -> None:
    """Make the image and print the result, or the plan."""
    from envbuild.serve.build import check_serving, serve
    from envbuild.serve.origin import find_start

    started = time.monotonic()
    order = _order(model, serving, options, progress)
    as_json = options.image.as_json
    if options.image.dry_run:
        check_serving(order)
        start = find_start(order, progress)
        _warn_unloadable(order, start, progress)
        planned = serving_plan(order, start)
        typer.echo(json.dumps(planned, indent=2) if as_json else "\n".join(plan_lines(planned)))
        return
    served = serve(order, progress, datetime.now(UTC))
    if served.stamped:
        progress.step(f"stamped {order.build_request.stamp}")
        progress.note(f"record {served.stamped}")
    for line in serving_summary(served, time.monotonic() - started):
        progress.note(line)
    value = serving_result(served, time.monotonic() - started)
    write_github_files(value, tuple(serving_rows(served)))
    typer.echo(json.dumps(value, indent=2) if as_json else serving_reference(served))


def _warn_unloadable(order: "ServeOrder", start: "Start", progress: Progress) -> None:
    """Warn in a dry run of what may keep the stamped environment from loading its model.

    Of what is added above no versions are known yet. Servers of their own are compared with the model in another way.
    """
    from envbuild.serve.build import OWN_RUNTIME
    from envbuild.verify.sources import side_of_lock

    if start.stamped and start.lock and order.server not in OWN_RUNTIME:
        there = replace(side_of_lock(start.lock, "the serving image"), complete=not order.extras)
        warn_unloadable(order.build_request, start.stamped.model or start.manifest.model, there, progress)


def _order(target: str, serving: ServeOptions, options: BuildOptions, progress: Progress) -> "ServeOrder":
    """Check the options, read the target if it is a manifest, and make the serve order; UsageError, ManifestError."""
    from envbuild.serve.model import ServeOrder

    options.check()
    check_not_empty({
        "--cmd": serving.cmd, "--server-version": serving.server_version, "--server-image": serving.server_image,
    })  # fmt: skip
    if options.builder.template:
        where = f"--template {options.builder.template}, --role serve"
        raise UsageError("a serving image has no build context", where=where, todo="leave it out")
    model = _model(target, options)
    name, data = model or "", b""
    if model is None:
        record = target if target == "-" else kind_of(target)[1]
        name, data, _ = import_record(record, progress, options.facts, locks=options.locks)
    _check_stamp(model, serving, options.image)
    if serving.parent_key is not None:
        _check_parent_key(model, serving.parent_key)
    request = options.build_request(name, data)
    image = options.image
    stamp = None if serving.no_stamp else model or image.stamp
    unloadable: Literal["warn", "refuse"] = "warn" if serving.gate == "off" or image.stamp_anyway else "refuse"
    return ServeOrder(
        build_request=replace(request, stamp=stamp, bytecode=image.bytecode is not False, unloadable=unloadable),
        model=model,
        extras=tuple(serving.extra or ()),
        server=serving.server,
        server_version=serving.server_version,
        server_image=serving.server_image,
        app=serving.app,
        cmd=words_of(serving.cmd),
        embed=serving.embed_model,
        slim=serving.slim,
        parent_key=serving.parent_key or "",
        gate=serving.gate,
        signed=(image.signed,) if image.signed is not None else (),
    )


def _model(target: str, options: BuildOptions) -> str | None:
    """Return the model's name; None for a manifest or another tool's record; UsageError for all else."""
    record, locks = options.facts, options.locks
    if target == "-" or record.kind:
        return None
    kind, name = kind_of(target)
    if kind == "manifest":
        return None
    if kind != "model":
        from envbuild.oci.reference import lies_here

        marks = " and ".join(marks_of(Path(name)))
        what = f"{'an' if kind == 'image' else 'a'} {kind} cannot be served{marks and f': it has {marks}'}"
        todo = "give a stamped model, or the manifest of its run"
        if kind == "image" and lies_here(name):
            todo = (
                "give the model that is stamped with it; its training image is taken from --out or a folder beside it"
            )
        elif kind == "image" and not name.startswith(IMAGES):
            what = "there is no such file or folder, and an image in a registry cannot be served"
        raise UsageError(what, where=one_line(target), todo=todo)
    of_run = {
        "--python": record.python,
        "--gpu": record.gpu,
        "--framework": record.framework,
        "--imported": record.imported,
        "--ran-on": record.ran_on,
        "--set": locks.set_,
        "--exclude-newer": locks.exclude_newer,
    }
    if useless := [option for option, value in of_run.items() if value]:
        what, where = "these complete a run's record, and a stamped model needs none", ", ".join(useless)
        raise UsageError(what, where=f"{one_line(name)}, {where}", todo="leave them out")
    return name


def _check_stamp(model: str | None, serving: ServeOptions, image: ImageOptions) -> None:
    """Refuse contradictions about the stamp that is read and the one that is written."""
    if image.stamp and model:
        where, todo = f"{one_line(model)}, --stamp {one_line(image.stamp)}", "leave out --stamp"
        raise UsageError("the model itself is stamped", where=where, todo=f"{todo}; --no-stamp stamps nothing")
    if image.stamp and serving.no_stamp:
        raise UsageError("these contradict each other", where="--stamp, --no-stamp", todo="leave out one of them")
    if image.signed is not None and model is None:
        what, todo = "--signed checks the stamp of a model, and a manifest is given", "give the stamped model"
        raise UsageError(what, where="--signed", todo=todo)
    check_key(image.signed)
    if image.minimum_record is None:
        return
    if image.signed is None and image.sign is None:
        todo = "give --signed KEY too, or leave it out"
        raise UsageError("only a signed record's number counts", where="--minimum-record", todo=todo)
    if model is None and image.stamp is None:
        what = "--minimum-record checks the stamp of a model, and what is given is read as a manifest"
        todo = "give the stamped model, as model:FOLDER where its folder has other files, or leave it out"
        raise UsageError(what, where="--minimum-record", todo=todo)


def _check_parent_key(model: str | None, key: str) -> None:
    where = f"--parent-key {one_line(key)}"
    if model is None:
        what, todo = "the training image of a manifest is built here", "give a stamped model, or leave it out"
        raise UsageError(what, where=where, todo=todo)
    try:
        check_key(key)
    except UsageError as error:
        raise UsageError(error.what, where=where, todo=error.todo) from error


def words_of(cmd: str | None) -> tuple[str, ...]:
    """Return the words of --cmd, as a shell reads them; UsageError."""
    try:
        return tuple(shlex.split(cmd or ""))
    except ValueError as error:
        todo = "close every quote, or start a script of --app"
        raise UsageError(f"not a command: {error}", where=f"--cmd {one_line(cmd or '')}", todo=todo) from error
