"""A record of any format -> the manifest. Pure: the files beside the record come by a function."""

from collections.abc import Callable
from datetime import datetime
from importlib import import_module

from envbuild.manifest.formats.found import Found, manifest_of
from envbuild.manifest.formats.given import Given, supplement
from envbuild.manifest.formats.record import Record
from envbuild.manifest.model import Format, TrainingManifest
from envbuild.manifest.reader import read_manifest

_READERS: dict[Format, tuple[str, str]] = {
    "pip-freeze": ("requirements", "read_freeze"),
    "pip-list": ("pip_list", "read_pip_list"),
    "pip-inspect": ("pip_inspect", "read_inspect"),
    "requirements": ("requirements", "read_requirements"),
    "pylock": ("pylock", "read_pylock"),
    "uv-lock": ("uv_lock", "read_uv_lock"),
    "poetry-lock": ("project_locks", "read_poetry_lock"),
    "pdm-lock": ("project_locks", "read_pdm_lock"),
    "pipfile-lock": ("project_locks", "read_pipfile_lock"),
    "conda-environment": ("conda_environment", "read_environment"),
    "conda-list": ("conda_list", "read_list"),
    "pixi-lock": ("conda_locks", "read_pixi_lock"),
    "conda-lock": ("conda_locks", "read_conda_lock"),
    "mlflow": ("mlflow", "read_mlflow"),
    "wandb": ("wandb", "read_wandb"),
}
"""Module and function, which is loaded when a record needs it: envbuild's own manifest needs none of them."""


def convert(record: Record, kind: Format, given: Given, now: datetime) -> TrainingManifest:
    """Make a manifest of a record, with what was given; ManifestError, and UsageError where the two differ."""
    if kind == "capture":
        manifest = read_manifest(record.data, record.name)
    else:
        manifest = manifest_of(_reader(kind)(record, given), record, kind=kind, given=given, now=now)
    return supplement(manifest, given, record.name)


def _reader(kind: Format) -> Callable[[Record, Given], Found]:
    module, name = _READERS[kind]
    read: Callable[[Record, Given], Found] = getattr(import_module(f"envbuild.manifest.formats.{module}"), name)
    return read
