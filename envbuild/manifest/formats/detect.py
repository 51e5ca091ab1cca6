"""Which tool wrote a record, by what it holds and what it is called."""

import json
import re
from collections.abc import Callable

from envbuild.errors import ManifestError
from envbuild.manifest.formats.names import MLMODEL, WANDB_METADATA, WANDB_REQUIREMENTS
from envbuild.manifest.formats.record import Record, lines_of, text_of
from envbuild.manifest.model import Format

FORMATS: dict[Format, str] = {
    "pip-freeze": "what `pip freeze` prints",
    "pip-inspect": "what `pip inspect` prints",
    "requirements": "requirements.txt",
    "pylock": "pylock.toml",
    "uv-lock": "uv.lock",
    "conda-environment": "environment.yml, or what `conda env export` prints",
    "conda-list": "what `conda list --json` or `conda list --explicit` prints",
    "mlflow": "an MLflow model folder, or its MLmodel",
    "wandb": "a W&B run's folder `files`, or its wandb-metadata.json",
}
"""What can be read besides envbuild's own manifest."""

_FREEZE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(===?[^\s;,*]+| @ \S+)|-e \S.*|# Editable .*|## .*|")
_PIP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^\]]*\]\s*)?([=<>!~@;(,].*)?|-.*|#.*|\S+://.*|\.{0,2}/.*|")
"""A line that a requirements file could have."""
_INSPECT = re.compile(r"""\s*\{\s*"(version|pip_version|installed)"\s*:""")
"""How the report of `pip inspect` begins, and no manifest."""


def detect(record: Record) -> Format:
    """Say what a record is: `capture` for envbuild's own manifest; ManifestError where nothing fits."""
    text = text_of(record)
    if text.lstrip().startswith("{"):
        return _of_object(record, text)
    found = next((kind for kind, fits in _TESTS if fits(record, text)), None)
    if found is None or not text.strip():
        raise _unknown(record)
    return found


def main_file(has: Callable[[str], bool], where: str) -> str:
    """Choose the file of a folder that its record is read by; ManifestError where there is none."""
    for name in (MLMODEL, WANDB_METADATA, f"files/{WANDB_METADATA}"):
        if has(name):
            return name
    what = f"the folder has neither {MLMODEL} nor {WANDB_METADATA}"
    raise ManifestError(what, where=where, todo="give one file, or the folder of an MLflow model or of a W&B run")


def _of_object(record: Record, text: str) -> Format:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        # Each reader says where its own record breaks off.
        if record.file == WANDB_METADATA:
            return "wandb"
        return "pip-inspect" if _INSPECT.match(text) else "capture"
    if not isinstance(values, dict) or "schema_version" in values:
        return "capture"
    if record.file == WANDB_METADATA:
        return "wandb"
    for kind, keys in _KEYS:
        if keys <= values.keys():
            return kind
    raise _unknown(record)


_KEYS: tuple[tuple[Format, set[str]], ...] = (
    ("pip-inspect", {"installed", "pip_version"}),
    ("pip-inspect", {"installed", "environment"}),
    ("conda-environment", {"dependencies"}),
    ("wandb", {"python", "os"}),
    ("wandb", {"python", "startedAt"}),
)


def _is_conda_list(_record: Record, text: str) -> bool:
    explicit = re.search(r"^@EXPLICIT\s*$", text, re.MULTILINE)
    return bool(explicit or (text.lstrip().startswith("[") and '"version"' in text))


def _is_uv_lock(record: Record, text: str) -> bool:
    return record.file == "uv.lock" or bool(re.search(r"^\[\[package\]\]", text, re.MULTILINE) and "source = {" in text)


def _is_pylock(record: Record, text: str) -> bool:
    named = re.fullmatch(r"pylock(\.[^.]+)?\.toml", record.file)
    return bool(named or (re.search(r"^lock-version\s*=", text, re.MULTILINE) and "packages" in text))


def _is_mlflow(record: Record, text: str) -> bool:
    if record.file in {MLMODEL, "python_env.yaml"} or re.search(r"^flavors:", text, re.MULTILINE):
        return True
    return record.file in {"requirements.txt", "conda.yaml"} and record.other(MLMODEL) is not None


def _is_wandb(record: Record, _text: str) -> bool:
    return record.file == WANDB_REQUIREMENTS and record.other(WANDB_METADATA) is not None


def _is_environment(_record: Record, text: str) -> bool:
    return bool(re.search(r"^dependencies:", text, re.MULTILINE))


def _is_freeze(record: Record, text: str) -> bool:
    """Every line is what pip prints; a file called requirements.txt is taken for what people write, which is less."""
    lines = [it.rstrip() for it in lines_of(record, text)]
    return not re.search(r"require|\.in$", record.file) and all(_FREEZE.fullmatch(it) for it in lines)


def _is_requirements(record: Record, text: str) -> bool:
    if re.search(r"require[^/]*\.(txt|in)$", record.file):
        return True
    return all(_PIP.fullmatch(it.strip()) or it[:1].isspace() for it in lines_of(record, text))


_TESTS: tuple[tuple[Format, Callable[[Record, str], bool]], ...] = (
    ("conda-list", _is_conda_list),
    ("uv-lock", _is_uv_lock),
    ("pylock", _is_pylock),
    ("mlflow", _is_mlflow),
    ("wandb", _is_wandb),
    ("conda-environment", _is_environment),
    ("pip-freeze", _is_freeze),
    ("requirements", _is_requirements),
)
"""The first that fits counts."""


def _unknown(record: Record) -> ManifestError:
    known = "\n".join(f"  {name:18} {what}" for name, what in FORMATS.items())
    what = f"the record is of no kind that can be read; besides the manifest of `envbuild capture` these can:\n{known}"
    return ManifestError(what, where=record.name, todo="if it is one of these, say which: --from FORMAT")
