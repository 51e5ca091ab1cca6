"""MLflow model folders: MLmodel, python_env.yaml, conda.yaml and requirements.txt."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from envbuild.errors import ManifestError
from envbuild.manifest.formats.conda_environment import pip_lines, python_of
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.names import MLMODEL
from envbuild.manifest.formats.pins import Pins
from envbuild.manifest.formats.record import Faults, Record, clean, moment, text_at, texts
from envbuild.manifest.formats.requirement_files import RequirementsFile
from envbuild.manifest.formats.requirements import take_lines
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.formats.yaml_text import yaml_of
from envbuild.manifest.model import Platform

_FILES = (MLMODEL, "python_env.yaml", "conda.yaml", "requirements.txt")
_INFERRED = "MLflow lists what it saw imported, not everything that was installed, and cuts local labels such as +cu121"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The files of a model folder that say something of the environment; absent ones are None."""

    model: Any
    python_env: Any
    conda: Any
    requirements: Record | None


def read_mlflow(record: Record, given: Given) -> Found:
    """Read a model folder by any of its files; ManifestError."""
    folder, faults = _folder(record), Faults(record.name)
    pythons = dict(_pythons(folder))
    python = exact_python(next(iter(pythons.values()), None), given, record.name)
    platform = known_platform(Platform(), given)
    pins = Pins(Surroundings(python=python, system=platform.system, machine=platform.machine), faults)
    file = _requirements(folder, record, faults)
    take_lines(file, pins)
    for text in texts(folder.python_env.get("build_dependencies")):
        if "==" in text:  # MLflow names setuptools and wheel without a version where they were not installed
            pins.require(text, "build_dependencies of python_env.yaml")
    faults.check()
    version = text_at(folder.model, "mlflow_version")
    return Found(
        python=python,
        platform=platform,
        distributions=pins.distributions,
        complete=False,
        notes=(_INFERRED, *_differing(pythons), *file.notes),
        tool=f"mlflow {clean(version)}" if version else "mlflow",
        created=moment(text_at(folder.model, "utc_time_created")),
    )


def _folder(record: Record) -> _Folder:
    files = {name: record if record.file == name else record.other(name) for name in _FILES}
    if record.file not in _FILES:
        files[MLMODEL] = record
    values = {name: _object(file) for name, file in files.items() if name != "requirements.txt"}
    return _Folder(
        model=values[MLMODEL],
        python_env=values["python_env.yaml"],
        conda=values["conda.yaml"],
        requirements=files["requirements.txt"],
    )


def _object(record: Record | None) -> Any:
    values = yaml_of(record) if record else {}
    return values if isinstance(values, dict) else {}


def _pythons(folder: _Folder) -> Iterator[tuple[str, str]]:
    """Yield what each file says, the one that MLflow restores first."""
    flavor = text_at(folder.model, "flavors", "python_function", "python_version")
    said = {
        "python_env.yaml": text_at(folder.python_env, "python"),
        "conda.yaml": python_of(folder.conda.get("dependencies")),
        MLMODEL: flavor,
    }
    yield from ((name, version) for name, version in said.items() if version)


def _differing(pythons: dict[str, str]) -> Iterator[str]:
    if len(set(pythons.values())) > 1:
        yield "the files differ in Python: " + ", ".join(f"{name} says {it}" for name, it in pythons.items())


def _requirements(folder: _Folder, record: Record, faults: Faults) -> RequirementsFile:
    """Read requirements.txt, else what conda.yaml has below `pip:`."""
    file = RequirementsFile(faults)
    lines = list(pip_lines(folder.conda.get("dependencies")))
    if folder.requirements:
        file.read(folder.requirements)
    elif lines:
        for text, place in lines:
            file.take(text, place, record)
    else:
        what = "there is neither requirements.txt nor conda.yaml beside it, so no distribution is known"
        raise ManifestError(
            what, where=record.name, todo="give the model folder as MLflow wrote it, or its MLmodel file"
        )
    return file
