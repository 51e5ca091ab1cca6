"""A record of any format -> the manifest. Pure: the files beside the record come by a function."""

from collections.abc import Callable
from datetime import datetime

from envbuild.manifest.formats.conda_environment import read_environment
from envbuild.manifest.formats.conda_list import read_list
from envbuild.manifest.formats.found import Found, manifest_of
from envbuild.manifest.formats.given import Given, supplement
from envbuild.manifest.formats.mlflow import read_mlflow
from envbuild.manifest.formats.pip_inspect import read_inspect
from envbuild.manifest.formats.pylock import read_pylock
from envbuild.manifest.formats.record import Record
from envbuild.manifest.formats.requirements import read_freeze, read_requirements
from envbuild.manifest.formats.uv_lock import read_uv_lock
from envbuild.manifest.formats.wandb import read_wandb
from envbuild.manifest.model import Format, TrainingManifest
from envbuild.manifest.reader import read_manifest

_READERS: dict[Format, Callable[[Record, Given], Found]] = {
    "pip-freeze": read_freeze,
    "pip-inspect": read_inspect,
    "requirements": read_requirements,
    "pylock": read_pylock,
    "uv-lock": read_uv_lock,
    "conda-environment": read_environment,
    "conda-list": read_list,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}


def convert(record: Record, kind: Format, given: Given, now: datetime) -> TrainingManifest:
    """Make a manifest of a record, with what was given; ManifestError, and UsageError where the two differ."""
    if kind == "capture":
        manifest = read_manifest(record.data, record.name)
    else:
        manifest = manifest_of(_READERS[kind](record, given), record, kind=kind, given=given, now=now)
    return supplement(manifest, given, record.name)
