"""The options of `envbuild from-manifest --role serve`, and the order that they make."""

import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.console import Progress
from envbuild.cli.ordering import Asked, check_asked, check_given, order_of, read
from envbuild.cli.targets import IMAGES, in_one_line, kind_of, marks_of
from envbuild.cli.vouching import MinimumRecord, Signed, check_key
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.serve.model import ServeOrder


class RoleName(StrEnum):
    """The values of --role."""

    TRAIN = "train"
    SERVE = "serve"


class ServerName(StrEnum):
    """The values of --server."""

    FASTAPI = "fastapi"
    TF_SERVING = "tf-serving"
    TRITON = "triton"


class GateName(StrEnum):
    """The values of --gate."""

    AUTO = "auto"
    REQUIRE = "require"
    OFF = "off"


Role = Annotated[RoleName, typer.Option(help="train: the run's environment; serve: that, with what serves on top.")]
Extra = Annotated[
    list[str] | None,
    typer.Option(help="To serve: add this and what it needs, moving nothing; may be repeated.", metavar="REQUIREMENT"),
]
App = Annotated[Path | None, typer.Option(help="To serve: put the files of this folder into /app.", metavar="DIR")]
Cmd = Annotated[str | None, typer.Option(help="To serve: what is started, in words as for a shell.", metavar="COMMAND")]
EmbedModel = Annotated[
    bool, typer.Option("--embed-model", help="To serve: put the model into /model, each file checked.")
]
Server = Annotated[
    ServerName | None,
    typer.Option(help="To serve: fastapi is put in; the others bring their own runtime, which is checked."),
]
ServerVersion = Annotated[str | None, typer.Option(help="The release of tf-serving or triton.", metavar="VERSION")]
ServerImage = Annotated[
    str | None, typer.Option(help="The image of tf-serving or triton, which is stamped by digest.", metavar="REF")
]
Slim = Annotated[bool, typer.Option("--slim", help="To serve: leave out what only training needs.")]
Gate = Annotated[
    GateName, typer.Option(help="To serve: try the image before it is pushed; auto: where there is an engine.")
]
ParentKey = Annotated[
    str | None,
    typer.Option(
        help="To serve: the public key that signed the training image; by default --sign's own.", metavar="KEY"
    ),
]
NoStamp = Annotated[bool, typer.Option("--no-stamp", help="To serve: leave the model's stamp as it is.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What serves the model."""

    role: Role = RoleName.TRAIN
    server: Server = None
    server_version: ServerVersion = None
    server_image: ServerImage = None
    extra: Extra = None
    app: App = None
    cmd: Cmd = None
    embed_model: EmbedModel = False
    slim: Slim = False
    gate: Gate = GateName.AUTO
    no_stamp: NoStamp = False
    signed: Signed = None
    minimum_record: MinimumRecord = None
    parent_key: ParentKey = None


def check_training(serving: Serving, asked: Asked) -> None:
    """Refuse what only an image that serves has, and a lowest record where none is signed; UsageError."""
    given = {
        "--server": serving.server,
        "--server-version": serving.server_version,
        "--server-image": serving.server_image,
        "--extra": serving.extra,
        "--app": serving.app,
        "--cmd": serving.cmd,
        "--embed-model": serving.embed_model,
        "--slim": serving.slim,
        "--gate": serving.gate is not GateName.AUTO,
        "--no-stamp": serving.no_stamp,
        "--parent-key": serving.parent_key is not None,
    }
    if useless := [name for name, value in given.items() if value]:
        what, todo = "these are for an image that serves", "give --role serve too, or leave them out"
        raise UsageError(what, where=f"--role train, {', '.join(useless)}", todo=todo)
    of_record = {"--minimum-record": serving.minimum_record, "--signed": serving.signed}
    if None in (asked.attesting.sign, asked.outputs.stamp) and any(it is not None for it in of_record.values()):
        given_too = ", ".join(name for name, value in of_record.items() if value is not None)
        todo = "give --stamp MODEL and --sign KEY too, or leave it out"
        raise UsageError("training reads signed records only to continue them", where=given_too, todo=todo)
    check_key(serving.signed)


def served_order(target: str, serving: Serving, asked: Asked, progress: Progress) -> "ServeOrder":
    """Read the target if it is a manifest, and make the order; UsageError for what cannot be meant, ManifestError."""
    from envbuild.serve.model import ServeOrder

    check_asked(asked)
    texts = {"--cmd": serving.cmd, "--server-version": serving.server_version, "--server-image": serving.server_image}
    check_given(texts)
    _check_context(asked)
    model = _model(target, asked)
    name, data = (model, b"") if model else read(_plain(target), asked.known, progress)
    _check_stamp(model, serving, asked)
    _check_signed(model, serving, asked)
    _check_parent_key(model, serving.parent_key)
    order = order_of(name, data, asked)
    stamp = None if serving.no_stamp else model or asked.outputs.stamp
    minimum = serving.minimum_record or 0
    return ServeOrder(
        order=replace(order, stamp=stamp, bytecode=asked.building.bytecode is not False, minimum_record=minimum),
        model=model,
        extras=tuple(serving.extra or ()),
        server=serving.server.value if serving.server else None,
        server_version=serving.server_version,
        server_image=serving.server_image,
        app=serving.app,
        cmd=words_of(serving.cmd),
        embed=serving.embed_model,
        slim=serving.slim,
        parent_key=serving.parent_key or "",
        gate=serving.gate.value,
        signed=(serving.signed,) if serving.signed is not None else (),
    )


def _model(target: str, asked: Asked) -> str | None:
    """The model's name; None for a manifest or another tool's record; UsageError for all else."""
    if target == "-" or asked.known.kind:
        return None
    kind, name = kind_of(target)
    if kind not in ("model", "manifest"):
        todo = "give a stamped model, or the manifest of its run"
        raise UsageError(_unserved(kind, name), where=in_one_line(target), todo=todo)
    if kind == "manifest":
        return None
    known = {"--python": asked.known.python, "--gpu": asked.known.gpu, "--ran-on": asked.known.ran_on}
    known |= {"--set": " ".join(asked.wanted.set_ or ()), "--exclude-newer": asked.locks.exclude_newer}
    if useless := [option for option, value in known.items() if value]:
        what = "these say what a run was, and a stamped model says it itself"
        raise UsageError(what, where=f"{in_one_line(name)}, {', '.join(useless)}", todo="leave them out")
    return name


def _unserved(kind: str, name: str) -> str:
    from envbuild.oci.reference import exists

    if kind == "image" and not name.startswith(IMAGES) and not exists(name):
        return "nothing lies there, and an image in a registry is nothing that could be served"
    marks = " and ".join(marks_of(Path(name)))
    return f"{'an' if kind == 'image' else 'a'} {kind} is nothing that could be served{marks and f': it has {marks}'}"


def _plain(target: str) -> str:
    return target if target == "-" else kind_of(target)[1]


def _check_context(asked: Asked) -> None:
    if asked.building.template:
        what, todo = "a serving image has no build context", "leave it out"
        raise UsageError(what, where=f"--template {asked.building.template}, --role serve", todo=todo)


def _check_stamp(model: str | None, serving: Serving, asked: Asked) -> None:
    stamp = asked.outputs.stamp
    if stamp and model:
        what, todo = (
            "the model that is given is the one that is stamped",
            "leave out --stamp; --no-stamp stamps nothing",
        )
        raise UsageError(what, where=f"{in_one_line(model)}, --stamp {in_one_line(stamp)}", todo=todo)
    if stamp and serving.no_stamp:
        raise UsageError("these contradict each other", where="--stamp, --no-stamp", todo="leave out one of them")


def _check_signed(model: str | None, serving: Serving, asked: Asked) -> None:
    if serving.signed is not None and model is None:
        what, todo = "--signed is about the stamp of a model, and a manifest is given", "give the stamped model"
        raise UsageError(what, where="--signed", todo=todo)
    check_key(serving.signed)
    if serving.minimum_record is None:
        return
    if serving.signed is None and asked.attesting.sign is None:
        todo = "give --signed KEY too, or leave it out"
        raise UsageError("only a signed record's number counts", where="--minimum-record", todo=todo)
    if model is None and asked.outputs.stamp is None:
        what = "--minimum-record is about the stamp of a model, and what is given is read as a manifest"
        todo = "give the stamped model, as model:FOLDER where its folder has other files, or leave it out"
        raise UsageError(what, where="--minimum-record", todo=todo)


def _check_parent_key(model: str | None, key: str | None) -> None:
    from envbuild.verify.signed import check_public_key

    if key is None:
        return
    where = f"--parent-key {in_one_line(key)}"
    if model is None:
        what, todo = "the training image of a manifest is built here", "give a stamped model, or leave it out"
        raise UsageError(what, where=where, todo=todo)
    try:
        check_public_key(key)
    except UsageError as error:
        raise UsageError(error.what, where=where, todo=error.todo) from error


def words_of(cmd: str | None) -> tuple[str, ...]:
    """The words of --cmd, as a shell reads them; UsageError."""
    try:
        return tuple(shlex.split(cmd or ""))
    except ValueError as error:
        todo = "close every quote, or start a script of --app"
        raise UsageError(f"this is no command: {error}", where=f"--cmd {in_one_line(cmd or '')}", todo=todo) from error
