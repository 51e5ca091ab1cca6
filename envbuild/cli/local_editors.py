"""`envbuild local --devcontainer` and `--compose`: the files that editors and Compose read."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envbuild.cli.console import Progress
from envbuild.cli.local_options import Mode
from envbuild.cli.local_parts import Prepared
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.local.image import Here
    from envbuild.local.model import Launch

_OURS = b"Written by envbuild"
"""In the first line of what was written before."""


def written(mode: Mode, ready: Prepared, here: "Here", launch: "Launch", progress: Progress) -> int:
    """Write what was asked for into this folder, print the paths, and leave alone what is somebody else's."""
    from envbuild.local.editors import compose, devcontainer, left_out

    if here.digest is None:
        progress.warn("the image lies in this engine only: what is written serves on this machine alone")
    if omitted := left_out(launch, ready.settled):
        names = ", ".join(sorted(omitted))
        progress.note(f"the manifest's values of {names} may be secret, and are left out; give -e NAME=VALUE for each")
    image, name = here.digest or here.image, Path.cwd().name or "envbuild"
    files = {}
    if mode.devcontainer:
        gpu = ready.choice.variant == "gpu"
        data = devcontainer(image, launch, ready.settled, name, optional_gpu=gpu)
        files[Path(".devcontainer/devcontainer.json")] = data
    if mode.compose:
        files[Path("compose.yaml")] = compose(image, launch, ready.settled, name)
    for path in files:
        _check_place(path)
    for path, data in files.items():
        _write(path, data)
        typer.echo(path)
    return 0


def _check_place(path: Path) -> None:
    """Refuse to replace what envbuild did not write; a link may lead anywhere."""
    if path.is_symlink() or (path.exists() and not _is_ours(path)):
        todo = "move it away, or write in another folder"
        raise UsageError("this is there already, and is not envbuild's", where=str(path), todo=todo)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _OURS in file.readline(1000)
    except OSError:
        return False


def _write(path: Path, data: bytes) -> None:
    from envbuild.files import write_whole

    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        todo = "start in a folder that this user may write"
        raise UsageError(f"it cannot be written: {error.strerror}", where=str(path), todo=todo) from error
