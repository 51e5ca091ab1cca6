"""What kind of thing an argument names: told from how it is written, and from what lies there."""

import os
from errno import ENAMETOOLONG
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.verify.sides import Kind

FORMS: Final = (
    "A model (gs://, a file or folder), an image (a reference, an OCI layout, an archive, docker-daemon:NAME), "
    "a manifest or another tool's record, a pylock.toml, a build context, or host"
)
IMAGES: Final = ("docker://", "oci:", "docker-daemon:", "docker-archive:", "oci-archive:")
"""How images are written that are no plain references."""
_MODELS: Final = (".keras", ".h5", ".hdf5", ".pt", ".pth", ".pt2", ".onnx", ".safetensors", ".pb")
_MARKS: "Final[dict[tuple[str, ...], Kind]]" = {
    ("oci-layout",): "image",  # first, as `from-manifest --out` writes image and context into one folder
    ("Dockerfile", "pylock.toml"): "context",
    ("MLmodel",): "manifest",
    ("wandb-metadata.json",): "manifest",
}
"""Files by which a folder is told."""
_RECORDS: Final = (".json", ".txt", ".yml", ".yaml", ".in")


def kind_of(text: str) -> "tuple[Kind, str]":
    """Return what a target is and what it is called without `KIND:` before it; UsageError where nothing lies there.

    `model:`, `image:`, `manifest:`, `lock:` and `context:` say it; else `host` is this machine, gs:// and file:// are
    models, and what lies here tells by its name and content. All else is an image in a registry.
    """
    from envbuild.oci.login import refuse_login
    from envbuild.verify.sides import Kind

    refuse_login(text, "TARGET")
    if text == "host":
        return "host", text
    for kind in get_args(Kind):
        if text.startswith(f"{kind}:") and kind != "host":
            return kind, text.removeprefix(f"{kind}:")
    if not text.strip():
        raise UsageError("a target has no name", where="TARGET", todo=f"give one of these. {FORMS}")
    return (_remote(text) or _lying(Path(text), text)), text


def _remote(text: str) -> "Kind | None":
    """What is told by the way it is written alone."""
    if text.startswith(IMAGES):
        return "image"
    if text.startswith("gs://"):
        return "manifest" if text.endswith(_RECORDS) else "model"
    return "model" if text.startswith("file://") else None


def _lying(path: Path, text: str) -> "Kind":
    try:
        if path.is_dir():
            return _folder(path)
        if path.is_file():
            return _file(path)
    except OSError as error:
        if error.errno == ENAMETOOLONG:  # an image in a registry has no such bounds
            return "image"
        raise UsageError(
            f"this cannot be looked at: {error.strerror}", where=in_one_line(text), todo="see its permissions"
        ) from error
    if text.startswith(("/", "./", "../", "~")) or path.name.endswith((*_RECORDS, *_MODELS, ".toml")):
        raise UsageError("nothing lies there", where=f"TARGET {in_one_line(text)}", todo=f"give one of these. {FORMS}")
    return "image"


def in_one_line(text: str) -> str:
    """A name or a sentence, without anything that would move a terminal or end a line."""
    from envbuild.cli.console import printable

    return printable(text).replace("\n", "\\n")


def _folder(path: Path) -> "Kind":
    """A stamped model first, as who may write to its folder must not decide that it is none."""
    if _is_stamped(path):
        return "model"
    if marks := marks_of(path):
        return _MARKS[marks]
    if _without_lock(path):
        todo = "give the folder context/ that `envbuild from-manifest --out` wrote, whole; a model is model:FOLDER"
        what = "this is a build context without its lock: a Dockerfile, no pylock.toml, and nothing of a model"
        raise UsageError(what, where=f"TARGET {in_one_line(str(path))}", todo=todo)
    return "model"


def _is_stamped(path: Path) -> bool:
    from envbuild.stamp.record import FOLDER, is_record_name

    own = path / FOLDER
    return own.is_dir() and any(is_record_name(f"{FOLDER}/{it.name}") for it in own.iterdir())


def marks_of(path: Path) -> tuple[str, ...]:
    """The files that make a folder something else than a model; empty where there are none."""
    return next((marks for marks in _MARKS if all(os.path.isfile(path / name) for name in marks)), ())  # noqa: PTH113 - raises nothing


def _without_lock(path: Path) -> bool:
    """Whether a Dockerfile lies there, and nothing that is read of models, in any folder, nor a stamp."""
    from envbuild.capture.model import READABLE
    from envbuild.stamp.record import FOLDER

    if not (path / "Dockerfile").is_file() or (path / FOLDER).is_dir():
        return False
    return not any(READABLE.fullmatch(name) for _, _, names in os.walk(path) for name in names)


def _file(path: Path) -> "Kind":
    if path.name == "pylock.toml" or (path.name.startswith("pylock.") and path.suffix == ".toml"):
        return "lock"
    if path.suffix in _MODELS:
        return "model"
    if path.suffix in _RECORDS or path.name == "uv.lock":
        return "manifest"
    return "image"
