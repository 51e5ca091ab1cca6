"""What the container gets: variables from the run, `.env` files and options, data, credentials and the model."""

import io
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream
from dotenv.variables import parse_variables

from envbuild.capture.redact import REDACTED
from envbuild.capture.variables import VARIABLE, VARIABLES
from envbuild.errors import UsageError
from envbuild.files import credentials_path
from envbuild.local.data import (
    DataMap,
    check_mounts,
    is_free,
    is_seen,
    message_text,
    mounts_below,
    place_of,
    read_maps,
    reserved,
    resolve_here,
    rewritten,
    seen_at,
)
from envbuild.local.model import Choice, Mount, Settled, Subject
from envbuild.manifest.hardware import Accelerator
from envbuild.manifest.model import Data
from envbuild.stamp.store import ModelUri, encodable, parse_model_uri
from envbuild.trust import Claim, Voucher
from envbuild.verify.findings import Finding
from envbuild.verify.rules.contract import NUMERIC
from envbuild.verify.rules.hardware import cuda_of
from envbuild.verify.rules.packages import minimum_driver
from envbuild.verify.sources import Side

_SINGLE_QUOTED = re.compile(r"\s*(?:export\s+)?[^=]*=[^\S\r\n]*'")
"""A value in which shells and Compose replace nothing."""
_TODO = "write NAME=value on a line of its own, with quotes around what has spaces or line ends"
ADC = "GOOGLE_APPLICATION_CREDENTIALS"
"""Names the file (google-auth, `google.auth.default`)."""
TARGET = "/run/secrets/adc.json"
"""Where it lies in the container."""
_PROJECT = "GOOGLE_CLOUD_PROJECT"
_LOGIN = "gcloud auth application-default login, or let GOOGLE_APPLICATION_CREDENTIALS name the file"
MODEL = "ENVBUILD_MODEL"
"""Where the model lies, as the container sees it."""
_ELSEWHERE = "/envbuild"
"""The folder that it lies in if the container needs the path that it has here."""
_OF_CONTAINERS = frozenset({"HOME", "HOSTNAME", "PATH", "PWD"})
"""Set in every container."""
_OF_JOBS = frozenset({"CLUSTER_SPEC", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"})
_OF_USERS = frozenset({"LOGNAME", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "USER"})
_OF_MACHINES = (frozenset(VARIABLES.split()) - NUMERIC) | _OF_CONTAINERS | _OF_JOBS | _OF_USERS
"""What was right on the run's machine, or for one process of a job."""
_DEVICES = frozenset({"JAX_DEFAULT_DEVICE", "JAX_PLATFORMS", "JAX_PLATFORM_NAME", "KERAS_TORCH_DEVICE"})
"""What fails where there is no such device."""
_PATHS_OF_XLA = re.compile(r"--xla_(?:gpu_cuda_data_dir|dump_\w+)=\S*")
_SERVED = "AIP_STORAGE_URI"
"""Where Vertex AI says that the model lies ("Custom container requirements for inference")."""
_FORMAT = "AIP_DATA_FORMAT"
_ELSEWHERE_BY = {
    "file": "read the file {}",
    "executable": "run a program of this machine",
    "certificate": "read a certificate of this machine",
}
"""What credentials need besides, by the key in `credential_source`."""
_ADC_TODO = "use gcloud auth application-default login on this machine, with --impersonate-service-account if need be"
SourcedVariables = dict[str, tuple[str, str]]
"""Values with where they come from, by name."""
_ARCHITECTURE = re.compile(r"(?:(?:sm|compute)_)?(\d+?)\.?(\d)[af]?")


def read_dotenv(path: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read variables as python-dotenv does; `${NAME}` stands for an earlier one, else for one of `environment`.

    A name alone takes the value that it has in `environment`. What would be empty only as nothing gives its `${NAME}`
    is left out, so that it does not pass for given. UsageError, which never shows a value, for what cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError("this file is not UTF-8", where=str(path), todo="save it as UTF-8") from error
    except OSError as error:
        todo = "correct it, or name another one by --env-file"
        raise UsageError(f"this file cannot be read: {error.strerror}", where=str(path), todo=todo) from error
    found: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        name, value, source = binding.key, binding.value, binding.original.string
        if binding.error or (name is not None and not VARIABLE.fullmatch(name)):
            blank = source[: len(source) - len(source.lstrip())]
            line = binding.original.line + len(re.findall(r"\r\n|\n|\r", blank))
            raise UsageError("this line sets no variable", where=f"{path}, line {line}", todo=_TODO)
        if name is None:
            continue
        if value is None:
            value = environment.get(name)
        elif value and not _SINGLE_QUOTED.match(source):
            atoms, known = parse_variables(value), {**environment, **found}
            value = "".join(atom.resolve(known) for atom in atoms) or None
        if value is not None:
            found[name] = value
    return found


def adc_mount(environment: Mapping[str, str]) -> Mount:
    """The file of the caller's credentials in the container; UsageError where there is none, or another sort of file.

    GOOGLE_APPLICATION_CREDENTIALS names it; else it is gcloud's, in CLOUDSDK_CONFIG or ~/.config/gcloud.
    """
    path = credentials_path(environment)
    _read(path)
    return Mount(source=path.resolve(), target=TARGET, read_only=True)


def adc_findings(settled: Settled) -> Iterator[Finding]:
    """Credentials that say where the real ones are, which the container does not see.

    google-auth: `external_account`, `impersonated_service_account`.
    """
    for path in (it.source for it in settled.mounts if it.target == TARGET):
        value: Any = _read(path)
        while isinstance(value, dict):
            source = value.get("credential_source")
            source = source if isinstance(source, dict) else {}
            for need in (text.format(source[key]) for key, text in _ELSEWHERE_BY.items() if key in source):
                yield Finding(
                    rule="credentials-elsewhere",
                    about="credentials",
                    agrees=False,
                    severity="warning",
                    says=f"{path}: they {need}, which the container does not see",
                    why="Google's libraries in the container cannot log in.",
                    todo=_ADC_TODO,
                )
            value = value.get("source_credentials")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        what = f"there are no Application Default Credentials: {error.strerror}"
        raise UsageError(what, where=str(path), todo=_LOGIN) from error
    except (ValueError, RecursionError):
        value = None  # what json says of it may quote it
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise UsageError("this file holds no Application Default Credentials", where=str(path), todo=_LOGIN)
    return value


def settle(
    subject: Subject,
    *,
    options: Sequence[str],
    env_files: Sequence[Path],
    maps: Sequence[str],
    with_adc: bool,
    environment: Mapping[str, str],
    yes_data: bool = False,
) -> Settled:
    """Gather what the container gets: by the run, by `.env` files, by options, each going before those named earlier.

    Of this machine's files it gets what `maps` and the subject's name say, and with `yes_data` what the run read below
    the working folder. UsageError for an option, a file, a map or invalid credentials. No message shows a
    value.
    """
    mapped = read_maps(maps, environment.get("HOME"))
    given_by_options = [_option(number, text, environment) for number, text in enumerate(options, 1)]
    # A value that is written out goes before the caller's own.
    given_by_options.sort(key=lambda it: it[1][1] == "option")
    given = _of_run(subject, mapped) | _of_files(env_files, environment) | dict(given_by_options)
    for name, (value, source) in given.items():
        here = rewritten(value, mapped)
        # What the run says stays the run's, whatever place it names.
        given[name] = (here, "data" if here != value and source != "run" else source)
    mounts = [it.mount for it in mapped]
    if yes_data:
        places = run_places(subject, {name: value for name, (value, _) in given.items()})
        mounts += mounts_below([place for _, place in places], Path.cwd(), mounts)
    named, more = _model(subject, mapped, mounts)
    given, mounts = named | given, [*mounts, *more]
    if with_adc:
        # The caller's project gives way to one that was named; the file does not.
        project = {_PROJECT: (environment[_PROJECT], "adc")} if environment.get(_PROJECT) else {}
        given = project | given | {ADC: (TARGET, "adc")}
        mounts.append(adc_mount(environment))
    check_mounts(mounts)
    needed = {it.name for it in subject.contract.variables if it.present}
    given = dict(sorted(given.items()))
    return Settled(
        variables={name: value for name, (value, _) in given.items()},
        mounts=tuple(mounts),
        missing=tuple(sorted(needed - given.keys() - _OF_CONTAINERS)),
        where={name: source for name, (_, source) in given.items()},
    )


def _of_run(subject: Subject, maps: Sequence[DataMap]) -> SourcedVariables:
    """What the run recorded, and the places of its data, as far as that is of use on another machine."""
    recorded = dict(subject.manifest.variables) if subject.manifest else {}
    places = {it.variable: it.uri for it in subject.contract.data if it.variable}
    needed = {it.name for it in subject.contract.variables} | places.keys()

    def is_portable(name: str, value: str) -> bool:
        """Whether a value does not depend on the run's machine or job; Vertex AI's places are mapped."""
        if name not in _OF_MACHINES or name in places or name == _FORMAT:
            return True
        return name.startswith("AIP_") and rewritten(value, maps) != value

    found = {}
    for name, text in {**places, **recorded}.items():
        value = _PATHS_OF_XLA.sub("", text).strip() if name == "XLA_FLAGS" else text
        is_wanted = name in NUMERIC or (name in needed and is_portable(name, value))
        is_known = (value or name in needed) and REDACTED not in value
        if is_wanted and is_known and (name not in _DEVICES or value.partition(":")[0] == "cpu"):
            found[name] = (value, "run")
    found.pop(ADC, None)
    return found


def _of_files(paths: Sequence[Path], environment: Mapping[str, str]) -> SourcedVariables:
    """What `.env` files say; credentials that they name are of this machine, and only come by --with-adc."""
    found: dict[str, str] = {}
    for path in paths:
        found |= read_dotenv(path, {**environment, **found})
    found.pop(ADC, None)
    for name, value in found.items():
        _check(name, value)
    return {name: (value, ".env") for name, value in found.items()}


def _option(number: int, text: str, environment: Mapping[str, str]) -> tuple[str, tuple[str, str]]:
    name, equals, value = text.partition("=")
    if not VARIABLE.fullmatch(name):
        # Without a = it may be a value that was meant to stay secret.
        where = f"-e {message_text(repr(name))}=..." if equals and name else "--env"
        todo = "give NAME=VALUE, or NAME alone; no name has spaces or what cannot be printed in it"
        raise UsageError(f"-e number {number} names no variable", where=where, todo=todo)
    if not equals and name == ADC:
        todo = "give --with-adc, which mounts the file that it names"
        raise UsageError("the file that this names is not in the container", where=f"-e {name}", todo=todo)
    if not equals and name not in environment:
        where = f"-e {message_text(name)}"
        raise UsageError("this variable is not set here", where=where, todo="set it, or give -e NAME=VALUE")
    value, source = (value, "option") if equals else (environment[name], "shell")
    _check(name, value)
    return name, (value, source)


def _check(name: str, value: str) -> None:
    if "\0" in value or not encodable(value):
        todo = "give it as UTF-8, without NUL"
        raise UsageError("the value of this variable is not valid text", where=name, todo=todo)


def run_places(subject: Subject, variables: Mapping[str, str]) -> list[tuple[Data, str]]:
    """What the run read, each with the place where its program will look for it; a model if nobody named one here."""
    places = [(it, place_of(it, variables)) for it in subject.contract.data]
    model = recorded_model(subject)
    if model and model.value.bucket is None and resolve_here(model.value.path):
        places.append((Data(uri=model.value.path), model.value.path))
    return places


def recorded_model(subject: Subject) -> Claim[ModelUri] | None:
    """Where the run's manifest says that its model lies, if nobody named the model; None for other tools' schemes."""
    text = subject.manifest.model_uri if subject.manifest and not subject.model else None
    uri = _model_uri(text)
    return Claim(uri, Voucher.MODEL, subject.name) if uri else None


def _model_uri(text: str | None) -> ModelUri | None:
    with suppress(UsageError):  # other tools have schemes of their own
        return parse_model_uri(text) if text else None
    return None


def _model(subject: Subject, maps: Sequence[DataMap], mounts: Sequence[Mount]) -> tuple[SourcedVariables, list[Mount]]:
    """The variables that name the model, and its own mount; nothing where it is not to be found from here."""
    recorded = recorded_model(subject)
    text = subject.named or subject.model
    uri = _model_uri(text) if text else recorded.value if recorded else None
    place, mount = _place_of_model(uri, maps, mounts, named=recorded is None) if uri else (None, None)
    if place is None:
        return {}, []
    is_served = any(it.name == _SERVED for it in subject.contract.variables)
    names = (MODEL, _SERVED) if is_served else (MODEL,)
    return dict.fromkeys(names, (place, "model")), [mount] if mount else []


def _place_of_model(
    uri: ModelUri, maps: Sequence[DataMap], mounts: Sequence[Mount], *, named: bool
) -> tuple[str | None, Mount | None]:
    """Where the container sees the model; a local one that was named is mounted read-only, by the path it has here."""
    if uri.bucket is not None:
        return rewritten(str(uri), maps), None
    path = posixpath.normpath(uri.path)
    if is_seen(path, mounts):
        return path, None
    if not named or not Path(uri.path).exists():
        return None, None
    source = Path(uri.path).resolve()
    if (reason := reserved(source)) and not reserved(Path(path)):
        raise UsageError(f"the model is a link to {source}, and {reason}", where=path, todo="name that path itself")
    target = path if is_free(path) else f"{_ELSEWHERE}/{posixpath.basename(path)}"
    return target, Mount(source=source, target=target, read_only=True)


def contract_json(subject: Subject, choice: Choice, settled: Settled) -> bytes:
    """The contract of a run as ENVBUILD_CONTRACT has it: names of variables, places of data, GPUs, packages.

    No value of a variable is in it. Data in Cloud Storage that is not mapped is left out: only the program can read it.
    """
    contract = subject.contract
    # An image that is built here has its lock in it.
    lock = subject.locks.get(choice.pull.slot) if choice.pull else None
    value = {
        "variables": sorted({it.name for it in contract.variables if it.present}),
        "data": [found for it in contract.data if (found := _data(it, settled))],
        "gpu": _gpu(subject.side) if choice.gpus else {},
        "packages": {it.name: it.version for it in lock.wheels} if lock else {},
    }
    said = {name: it for name, it in value.items() if it}
    return json.dumps(said, sort_keys=True, separators=(",", ":")).encode("ascii")


def _data(data: Data, settled: Settled) -> dict[str, Any] | None:
    """One place, by its path in the container; of a pattern such as training-* the folder, whose size nobody knows."""
    place = place_of(data, settled.variables)
    path = seen_at(place)
    if path is None or REDACTED in place or (place.startswith("gs://") and not is_seen(path, settled.mounts)):
        return None
    if "*" in path:
        return {"path": posixpath.dirname(path[: path.index("*") + 1]), "uri": data.uri}
    # Who names another place means other data.
    sizes = {"size": data.size, "objects": data.objects} if path == seen_at(data.uri) else {}
    return {"path": path, "uri": data.uri} | {name: it for name, it in sizes.items() if it is not None}


def _gpu(side: Side) -> dict[str, Any]:
    accelerator, framework = side.accelerator or Accelerator(), side.framework
    sizes = [it.memory for it in accelerator.gpus if not (it.mig and it.mig.enabled)]
    known = [size for size in sizes if size]
    floor = minimum_driver(cuda_of(side) or "")
    names = framework.compute_capabilities if framework else ()  # sm_80, compute_80
    capabilities = {(int(it[1]), int(it[2])) for name in names if (it := _ARCHITECTURE.fullmatch(name))}
    values = {
        "count": len(accelerator.gpus) or None,
        "memory": min(known) if known and len(known) == len(accelerator.gpus) else None,
        "driver": floor[0] if floor else None,
        "capabilities": [f"{major}.{minor}" for major, minor in sorted(capabilities)] or None,
    }
    return {name: value for name, value in values.items() if value is not None}
