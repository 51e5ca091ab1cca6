"""MLflow model folders, and W&B's `wandb-metadata.json` with `requirements.txt` beside it."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from envbuild.capture.redact import scrub_command
from envbuild.errors import ManifestError
from envbuild.manifest.hardware import Accelerator, Container, Cpu, Gpu, Host
from envbuild.manifest.importers.conda import pip_lines, python_of, yaml_of
from envbuild.manifest.importers.environment import RecordOptions
from envbuild.manifest.importers.pins import Pins
from envbuild.manifest.importers.record import (
    MLMODEL,
    WANDB_METADATA,
    WANDB_REQUIREMENTS,
    Faults,
    Record,
    clean,
    fact,
    json_of,
    moment,
    text_at,
    text_of,
    texts,
)
from envbuild.manifest.importers.requirements import RequirementsFile, take_lines
from envbuild.manifest.model import Code, Entry, Platform, TrainingManifest

_FILES = (MLMODEL, "python_env.yaml", "conda.yaml", "requirements.txt")
_INFERRED = "MLflow lists what it saw imported, not everything that was installed, and cuts local labels such as +cu121"


def read_mlflow(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read a model folder by any of its files; ManifestError."""
    faults, files = Faults(record.name), {name: record.other(name) for name in _FILES}
    files[record.file if record.file in _FILES else MLMODEL] = record
    read = {name: yaml_of(file) if file else {} for name, file in files.items() if name != "requirements.txt"}
    model, python_env, conda = (it if isinstance(it, dict) else {} for it in read.values())
    versions = {  # the one that MLflow restores first
        "python_env.yaml": text_at(python_env, "python"),
        "conda.yaml": python_of(conda.get("dependencies")),
        MLMODEL: text_at(model, "flavors", "python_function", "python_version"),
    }
    pythons = {name: version for name, version in versions.items() if version}
    pins = Pins.begin(record, options, next(iter(pythons.values()), None), faults=faults)
    file = RequirementsFile(faults)
    if files["requirements.txt"]:
        file.read(files["requirements.txt"])
    elif lines := list(pip_lines(conda.get("dependencies"))):
        for text, place in lines:
            file.take(text, place, record)
    else:
        what = "there is neither requirements.txt nor conda.yaml beside it, so no distribution is known"
        todo = "give the model folder as MLflow wrote it, or its MLmodel file"
        raise ManifestError(what, where=record.name, todo=todo)
    take_lines(file, pins)
    for text in texts(python_env.get("build_dependencies")):
        if "==" in text:  # MLflow names setuptools and wheel without a version where they were not installed
            pins.require(text, "build_dependencies of python_env.yaml")
    version = fact(model, "mlflow_version")
    listed = ", ".join(f"{name} says {it}" for name, it in pythons.items())
    differing = [f"the files differ in Python: {listed}"] if len(set(pythons.values())) > 1 else []
    return pins.manifest(
        complete=False,
        notes=(_INFERRED, *differing, *file.notes),
        tool=f"mlflow {version}" if version else "mlflow",
        created=moment(text_at(model, "utc_time_created")),
    )


_PYTHON = re.compile(r"(?:(?P<name>[A-Za-z]+)\s+)?(?P<version>\S+)")
_LINUX = re.compile(r"Linux-(?P<kernel>.+?)-(?P<machine>[a-z0-9_]+)-with-(?P<libc>glibc|musl)(?P<version>[0-9.]*)")
"""`platform.platform()`: `Linux-5.15.0-1042-gcp-x86_64-with-glibc2.31`."""
_OTHERS = {"macOS": "Darwin", "Darwin": "Darwin", "Windows": "Windows", "Linux": "Linux"}


def read_wandb(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read the two files by either of them; ManifestError."""
    metadata, listed = _files(record)
    facts = json_of(metadata, text_of(metadata))
    match = _PYTHON.fullmatch(text_at(facts, "python") or "")
    platform = _platform(fact(facts, "os") or "")
    python = match["version"] if match else None
    pins = Pins.begin(metadata, options, python, platform, Faults(listed.name))
    file = RequirementsFile(pins.faults)
    file.read(listed)
    take_lines(file, pins)
    docker, commit = fact(facts, "docker"), fact(facts, "git", "commit")
    return pins.manifest(
        implementation=clean(match["name"].lower()) if match and match["name"] else "cpython",
        complete=True,
        notes=tuple(file.notes),
        tool="wandb",
        created=moment(text_at(facts, "startedAt")),
        accelerator=_accelerator(facts),
        cpu=Cpu(model=fact(facts, "cpu", "model"), count=_number(facts, "cpu_count_logical")),
        code=Code(commit=commit, remote=fact(facts, "git", "remote", longest=4000)) if commit else None,
        entry=_entry(facts),
        host=Host(container=Container(image=docker, source="WANDB_DOCKER")) if docker else None,
    )


def _files(record: Record) -> tuple[Record, Record]:
    """The metadata and the requirements; ManifestError where one is absent."""
    metadata = record.other(WANDB_METADATA) if record.file == WANDB_REQUIREMENTS else record
    listed = record if record.file == WANDB_REQUIREMENTS else record.other(WANDB_REQUIREMENTS)
    if metadata is None or listed is None:
        what = f"there is no {WANDB_METADATA if metadata is None else WANDB_REQUIREMENTS} beside it"
        raise ManifestError(what, where=record.name, todo="give the run's folder `files`, which has both")
    return metadata, listed


def _platform(text: str) -> Platform:
    linux = _LINUX.fullmatch(text)
    if linux:
        libc = {"libc": linux["libc"], "libc_version": linux["version"] or None}
        return Platform(system="Linux", machine=linux["machine"], kernel=clean(linux["kernel"]), **libc)
    parts = text.split("-")
    return Platform(system=_OTHERS.get(parts[0]), machine="arm64" if "arm64" in parts else None)


def _accelerator(facts: Any) -> Accelerator | None:
    """The GPUs that W&B saw; None where it names none, as then it may not have looked."""
    cuda = fact(facts, "cudaVersion") or fact(facts, "cuda_version")
    gpus = tuple(_gpus(facts))
    if not gpus:
        looked = _number(facts, "gpu_count") == 0
        return Accelerator(kind="none", source=WANDB_METADATA) if looked else None
    return Accelerator(
        gpus=gpus, source=WANDB_METADATA, cuda_maximum=cuda if re.fullmatch(r"\d+(\.\d+)*", cuda or "") else None
    )


def _gpus(facts: Any) -> Iterator[Gpu]:
    listed = [facts.get(key) for key in ("gpu_nvidia", "gpu_devices")] if isinstance(facts, dict) else []
    devices = next((it for it in listed if isinstance(it, list) and it), [])
    for device in devices[:64]:
        if name := fact(device, "name"):
            yield Gpu(name=name, memory=_number(device, "memoryTotal") or _number(device, "memory_total"))
    if not devices and (name := fact(facts, "gpu")):
        yield from [Gpu(name=name)] * min(_number(facts, "gpu_count") or 1, 64)


def _entry(facts: Any) -> Entry | None:
    """The program, without its folder, which may name who ran it, and its arguments."""
    path = text_at(facts, "codePath") or text_at(facts, "codePathLocal") or text_at(facts, "program")
    if not path:
        return None
    program = PurePosixPath(path.replace("\\", "/")).name if path.startswith(("/", "~")) or ":" in path else path
    arguments = facts.get("args")
    private = [it for key in ("username", "email", "host") if len(it := text_at(facts, key) or "") > 2 and it != "root"]
    words = map(clean, scrub_command([program, *texts(arguments)]))
    names = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, private))})(?!\w)") if private else None
    return Entry(command=tuple(names.sub("[redacted]", word) if names else word for word in words))


def _number(values: Any, key: str) -> int | None:
    """A whole number; protobuf writes large ones as texts."""
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
