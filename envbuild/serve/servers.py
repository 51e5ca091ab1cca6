"""What answers requests in a serving image: the ready server, or the application's own."""

from pathlib import Path
from typing import assert_never

from envbuild.errors import UsageError
from envbuild.files import data_folder
from envbuild.image.content import Content
from envbuild.manifest.artifact import Model
from envbuild.recipe import PREFIX
from envbuild.serve.application import application_of
from envbuild.serve.model import APP_FOLDER, PORT, Origin, ServeOrder, Server

REQUIREMENTS = ("fastapi>=0.100", "uvicorn>=0.23", "prometheus-client>=0.17")
"""Of the ready server. So wide that an old environment, none of whose pins can move, finds releases that fit it."""
SERVED = ("saved_model", "keras", "hdf5", "onnx", "torchscript")
"""Formats of models that the ready server loads, as manifests name them."""
_HEALTH, _PREDICT = "/health", "/predict"


def server_parts(order: ServeOrder, origin: Origin) -> Server:
    """Say what the image gets on top so that it answers requests.

    UsageError for a model that the ready server cannot load, and for a server that comes as an image of its own.
    """
    match order.server:
        case None:
            return Server(cmd=order.cmd, ports=(PORT,))
        case "fastapi":
            return _fastapi(order, origin)
        case "tf-serving" | "triton":
            todo = "leave out --app, --cmd, --embed-model and --slim: the model is only held against that server"
            raise UsageError(f"{order.server} is an image of its own, and nothing is put into it", todo=todo)
        case _:
            assert_never(order.server)


def _fastapi(order: ServeOrder, origin: Origin) -> Server:
    model = (origin.stamped and origin.stamped.model) or origin.manifest.model
    files = _files(order)
    if f"{APP_FOLDER}/serving/loading.py" in files:
        _check_model(model)
    return Server(
        requirements=REQUIREMENTS,
        files=files,
        cmd=order.cmd or (f"{PREFIX}/bin/python", f"{APP_FOLDER}/serve.py"),
        ports=(PORT,),
        health=_HEALTH,
        predict=_PREDICT,
    )


def _files(order: ServeOrder) -> dict[str, bytes | Path]:
    """The server's files, but for those that the application brings of the same name, which take their place."""
    folder = data_folder("templates") / "server" / "fastapi"
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*.py"))
    ours = {f"{APP_FOLDER}/{path}": folder / path for path in paths}
    theirs = application_of(order) if order.app else Content("", {})
    return {path: file for path, file in ours.items() if path not in theirs.files and path not in theirs.links}


def _check_model(model: Model | None) -> None:
    """Refuse a format that no loader of the server knows; what nobody could read is left to the server's start."""
    if model is None or model.format is None or model.format in SERVED:
        return
    what = f"the server fastapi serves {', '.join(SERVED)}, and the model is {model.format}"
    todo = "save the model as one of these, or bring a serving/loading.py that loads it: --app DIR"
    raise UsageError(what, where=model.uri, todo=todo)
