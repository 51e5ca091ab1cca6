"""Weights & Biases: `wandb-metadata.json` with `requirements.txt` beside it; who ran it and where is never read."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from envbuild.capture.redact import scrub_command
from envbuild.errors import ManifestError
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.names import WANDB_METADATA, WANDB_REQUIREMENTS
from envbuild.manifest.formats.pins import Pins
from envbuild.manifest.formats.record import Faults, Record, clean, json_of, moment, text_at, text_of, texts
from envbuild.manifest.formats.requirement_files import RequirementsFile
from envbuild.manifest.formats.requirements import take_lines
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.hardware import Accelerator, Container, Cpu, Gpu, Host
from envbuild.manifest.model import Code, Entry, Platform

_PYTHON = re.compile(r"(?:(?P<name>[A-Za-z]+)\s+)?(?P<version>\S+)")
_LINUX = re.compile(r"Linux-(?P<kernel>.+?)-(?P<machine>[a-z0-9_]+)-with-(?P<libc>glibc|musl)(?P<version>[0-9.]*)")
"""`platform.platform()`: `Linux-5.15.0-1042-gcp-x86_64-with-glibc2.31`."""
_OTHERS = {"macOS": "Darwin", "Darwin": "Darwin", "Windows": "Windows", "Linux": "Linux"}


def read_wandb(record: Record, given: Given) -> Found:
    """Read the two files by either of them; ManifestError."""
    metadata, listed = _files(record)
    facts = json_of(metadata, text_of(metadata))
    said = _PYTHON.fullmatch(text_at(facts, "python") or "")
    python = exact_python(said["version"] if said else None, given, metadata.name)
    platform = known_platform(_platform(clean(text_at(facts, "os") or "")), given)
    faults = Faults(listed.name)
    pins = Pins(Surroundings(python=python, system=platform.system, machine=platform.machine), faults)
    file = RequirementsFile(faults)
    file.read(listed)
    take_lines(file, pins)
    faults.check()
    docker = text_at(facts, "docker")
    return Found(
        python=python,
        implementation=clean(said["name"].lower()) if said and said["name"] else "cpython",
        platform=platform,
        distributions=pins.distributions,
        complete=True,
        notes=tuple(file.notes),
        tool="wandb",
        created=moment(text_at(facts, "startedAt")),
        accelerator=_accelerator(facts),
        cpu=Cpu(model=_fact(facts, "cpu", "model"), count=_number(facts, "cpu_count_logical")),
        code=_code(facts),
        entry=_entry(facts),
        host=Host(container=Container(image=clean(docker), source="WANDB_DOCKER")) if docker else None,
    )


def _files(record: Record) -> tuple[Record, Record]:
    """The metadata and the requirements; ManifestError where one is absent."""
    metadata = record.other(WANDB_METADATA) if record.file == WANDB_REQUIREMENTS else record
    listed = record if record.file == WANDB_REQUIREMENTS else record.other(WANDB_REQUIREMENTS)
    for name, file in ((WANDB_METADATA, metadata), (WANDB_REQUIREMENTS, listed)):
        if file is None:
            todo = "give the run's folder `files`, which has both"
            raise ManifestError(f"there is no {name} beside it", where=record.name, todo=todo)
    assert metadata
    assert listed
    return metadata, listed


def _platform(text: str) -> Platform:
    linux = _LINUX.fullmatch(text)
    if linux:
        return Platform(
            system="Linux",
            machine=linux["machine"],
            libc=linux["libc"],
            libc_version=linux["version"] or None,
            kernel=clean(linux["kernel"]),
        )
    parts = text.split("-")
    return Platform(system=_OTHERS.get(parts[0]), machine="arm64" if "arm64" in parts else None)


def _accelerator(facts: Any) -> Accelerator | None:
    """The GPUs that W&B saw; None where it names none, as then it may not have looked."""
    cuda = _fact(facts, "cudaVersion") or _fact(facts, "cuda_version")
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
        if name := _fact(device, "name"):
            yield Gpu(name=name, memory=_number(device, "memoryTotal") or _number(device, "memory_total"))
    if not devices and (name := _fact(facts, "gpu")):
        yield from [Gpu(name=name)] * min(_number(facts, "gpu_count") or 1, 64)


def _code(facts: Any) -> Code | None:
    commit, remote = _fact(facts, "git", "commit"), text_at(facts, "git", "remote")
    return Code(commit=commit, remote=clean(remote, 4000) or None if remote else None) if commit else None


def _entry(facts: Any) -> Entry | None:
    """The program, without its folder, which may name who ran it, and its arguments."""
    path = text_at(facts, "codePath") or text_at(facts, "codePathLocal") or text_at(facts, "program")
    if not path:
        return None
    program = PurePosixPath(path.replace("\\", "/")).name if path.startswith(("/", "~")) or ":" in path else path
    arguments = facts.get("args")
    private = [it for key in ("username", "email", "host") if len(it := text_at(facts, key) or "") > 2 and it != "root"]
    words = scrub_command([program, *texts(arguments)])
    return Entry(command=tuple(_without(clean(word), private) for word in words))


def _without(word: str, private: list[str]) -> str:
    for it in private:
        word = re.sub(rf"(?<!\w){re.escape(it)}(?!\w)", "[redacted]", word)
    return word


def _fact(values: Any, *keys: str) -> str | None:
    text = text_at(values, *keys)
    return clean(text) or None if text else None


def _number(values: Any, key: str) -> int | None:
    """A whole number; protobuf writes large ones as texts."""
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
