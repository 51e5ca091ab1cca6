"""Checks of an order for a serving image, before anything but the files of --app is read."""

from pathlib import Path
from typing import NoReturn

from packaging.requirements import InvalidRequirement, Requirement

from envbuild.build.order import check_outputs
from envbuild.errors import UsageError
from envbuild.serve.compatible import version_in
from envbuild.serve.contents import application_of
from envbuild.serve.model import ServeOrder

OWN_RUNTIME = frozenset({"tf-serving", "triton"})
"""Servers that bring their own libraries: nothing is built for them, and only compatibility is checked."""

_SUCH = {"tf-serving": "2.15.1", "triton": "24.02"}


def check_serving(order: ServeOrder) -> None:
    """Refuse options that do not go together, naming both sides; UsageError."""
    _check_builder(order)
    if order.server in OWN_RUNTIME:
        _check_own_runtime(order)
    else:
        _check_built(order)
    for text in order.extras:
        check_requirement(text)
    if order.app:
        _check_apart(order.app, order.order.out)
        application_of(order)
    if order.server not in OWN_RUNTIME:  # for which nothing is written
        check_outputs(order.order, context=False)


def _check_builder(order: ServeOrder) -> None:
    if order.order.builder != "assemble":
        what = "layers on top of an image are put together by envbuild itself"
        _refuse(f"--builder {order.order.builder}, --role serve", what, "leave out --builder")
    if len(order.order.platforms) > 1:
        what = "a serving image is tried and stamped for one platform at a time"
        _refuse(f"--platform {','.join(order.order.platforms)}, --role serve", what, "run it once for each platform")


def _check_own_runtime(order: ServeOrder) -> None:
    given = {
        "--extra": order.extras,
        "--app": order.app,
        "--cmd": order.cmd,
        "--embed-model": order.embed,
        "--slim": order.slim,
        "--gate require": order.gate == "require",
        "--archive": order.order.archive,
        "--load": order.order.load,
    }
    if order.server_version and order.server and version_in(order.server, order.server_version) is None:
        what, todo = f"invalid version of {order.server}", f"give one such as {_SUCH[order.server]}"
        _refuse(f"--server-version {order.server_version}", what, todo)
    if useless := [name for name, value in given.items() if value]:
        what = f"{order.server} brings its own runtime: nothing is built, and the model is compared with its release"
        _refuse(f"--server {order.server}, {', '.join(useless)}", what, "leave out all but --server and its release")


def _check_built(order: ServeOrder) -> None:
    of_others = {"--server-version": order.server_version, "--server-image": order.server_image}
    if useless := [name for name, value in of_others.items() if value]:
        chosen = f"--server {order.server}" if order.server else "no --server"
        what = "these name a release of a server that brings its own runtime"
        _refuse(
            f"{', '.join(useless)}, {chosen}", what, "give --server tf-serving or --server triton, or leave them out"
        )
    if order.server is None and not order.cmd:
        what = "nothing says what the image starts"
        _refuse("--role serve", what, 'give --server fastapi, or --app DIR --cmd "python /app/serve.py"')
    if order.app and not order.app.is_dir():
        _refuse(f"--app {order.app}", "there is no such folder", "give the folder whose files go to /app")
    if order.embed and order.model is None:
        what = "a manifest has no model to put into the image"
        _refuse("--embed-model, a manifest", what, "give the stamped model instead of the manifest")


def _check_apart(app: Path, out: Path) -> None:
    """Refuse an output folder that holds the application: nothing would be left of it."""
    if app.resolve().is_relative_to(out.resolve()):
        what = "the application's folder is what is written to"
        _refuse(f"--app {app}, --out {out}", what, "give --out another folder; it may lie in the application's")


def check_requirement(text: str) -> None:
    """Raise UsageError for an invalid requirement (PEP 508)."""
    try:
        Requirement(text)
    except InvalidRequirement as error:
        todo = "give a name, with a version where it matters: --extra 'fastapi>=0.115'"
        raise UsageError(f"invalid requirement: {error}", where=f"--extra {text}", todo=todo) from error


def _refuse(where: str, what: str, todo: str) -> NoReturn:
    raise UsageError(what, where=where, todo=todo)
