"""The contract of a run, met as far as it can be: variables, data, credentials, and the model itself."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from envbuild.capture.redact import REDACTED
from envbuild.capture.variables import VARIABLE, VARIABLES
from envbuild.errors import UsageError
from envbuild.local.adc import VARIABLE as ADC
from envbuild.local.adc import adc_mount, adc_variables
from envbuild.local.data import (
    DataMap,
    check_mounts,
    is_free,
    is_seen,
    mounts_below,
    place_of,
    read_maps,
    resolve_here,
    rewritten,
    shown,
)
from envbuild.local.dotenv import read_dotenv
from envbuild.local.exposure import reserved
from envbuild.local.model import Mount, Settled, Subject
from envbuild.manifest.model import Data
from envbuild.stamp.store import ModelUri, encodable, parse_model_uri
from envbuild.trust import Claim, Voucher
from envbuild.verify.rules.contract import NUMERIC

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

Given = dict[str, tuple[str, str]]
"""Values with where they come from, by name."""


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
    the working folder. UsageError for an option, a file, a map or credentials that cannot be meant. No message shows a
    value.
    """
    mapped = read_maps(maps, environment.get("HOME"))
    given = _of_run(subject, mapped) | _of_files(env_files, environment) | _of_options(options, environment)
    given = {name: _mapped(*it, mapped) for name, it in given.items()}
    mounts = [it.mount for it in mapped]
    if yes_data:
        places = run_places(subject, {name: value for name, (value, _) in given.items()})
        mounts += mounts_below([place for _, place in places], Path.cwd(), mounts)
    named, more = _model(subject, mapped, mounts)
    given, mounts = named | given, [*mounts, *more]
    if with_adc:
        given = _with_adc(given, environment)
        mounts.append(adc_mount(environment))
    check_mounts(mounts)
    return Settled(
        variables={name: value for name, (value, _) in sorted(given.items())},
        mounts=tuple(mounts),
        missing=_missing(subject, given),
        where={name: source for name, (_, source) in sorted(given.items())},
    )


def _missing(subject: Subject, given: Given) -> tuple[str, ...]:
    needed = {it.name for it in subject.contract.variables if it.present}
    return tuple(sorted(needed - given.keys() - _OF_CONTAINERS))


def _of_run(subject: Subject, maps: Sequence[DataMap]) -> Given:
    """What the run recorded, and the places of its data, as far as that is of use on another machine."""
    recorded = dict(subject.manifest.variables) if subject.manifest else {}
    places = {it.variable: it.uri for it in subject.contract.data if it.variable}
    needed = {it.name for it in subject.contract.variables} | places.keys()
    found = {}
    for name, text in {**places, **recorded}.items():
        value = _PATHS_OF_XLA.sub("", text).strip() if name == "XLA_FLAGS" else text
        wanted = name in NUMERIC or (name in needed and _is_portable(name, value, places, maps))
        known = (value or name in needed) and REDACTED not in value
        if wanted and known and (name not in _DEVICES or value.partition(":")[0] == "cpu"):
            found[name] = (value, "run")
    found.pop(ADC, None)
    return found


def _is_portable(name: str, value: str, places: Mapping[str, str], maps: Sequence[DataMap]) -> bool:
    """Whether a value is no matter of the run's machine or job: Vertex AI's are what can be found here."""
    if name not in _OF_MACHINES or name in places or name == _FORMAT:
        return True
    return name.startswith("AIP_") and rewritten(value, maps) != value


def _of_files(paths: Sequence[Path], environment: Mapping[str, str]) -> Given:
    """What `.env` files say; credentials that they name are of this machine, and only come by --with-adc."""
    found: dict[str, str] = {}
    for path in paths:
        found |= read_dotenv(path, {**environment, **found})
    found.pop(ADC, None)
    for name, value in found.items():
        _check(name, value)
    return {name: (value, ".env") for name, value in found.items()}


def _of_options(options: Sequence[str], environment: Mapping[str, str]) -> Given:
    """What `-e` says; a value that is written out goes before the caller's own."""
    parts = [_option(number, text, environment) for number, text in enumerate(options, 1)]
    return dict(sorted(parts, key=lambda it: it[1][1] == "option"))


def _option(number: int, text: str, environment: Mapping[str, str]) -> tuple[str, tuple[str, str]]:
    name, equals, value = text.partition("=")
    if not VARIABLE.fullmatch(name):
        # Without a = it may be a value that was meant to stay secret.
        where = f"-e {shown(repr(name))}=..." if equals and name else "--env"
        todo = "give NAME=VALUE, or NAME alone; no name has spaces or what cannot be printed in it"
        raise UsageError(f"-e number {number} names no variable", where=where, todo=todo)
    if equals:
        _check(name, value)
        return name, (value, "option")
    if name == ADC:
        todo = "give --with-adc, which mounts the file that it names"
        raise UsageError("the file that this names is not in the container", where=f"-e {name}", todo=todo)
    if name not in environment:
        raise UsageError(
            "this variable is not set here", where=f"-e {shown(name)}", todo="set it, or give -e NAME=VALUE"
        )
    _check(name, environment[name])
    return name, (environment[name], "shell")


def _check(name: str, value: str) -> None:
    if "\0" in value or not encodable(value):
        raise UsageError("the value of this variable is no text", where=name, todo="give it as UTF-8, without NUL")


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
    uri = _model_uri(text) if text else None
    return Claim(uri, Voucher.MODEL, subject.name) if uri else None


def _model_uri(text: str) -> ModelUri | None:
    with suppress(UsageError):  # other tools have schemes of their own
        return parse_model_uri(text)
    return None


def _mapped(value: str, source: str, maps: Sequence[DataMap]) -> tuple[str, str]:
    """A value as the container needs it; what the run says stays the run's, whatever place it names."""
    here = rewritten(value, maps)
    return (here, "data") if here != value and source != "run" else (here, source)


def _model(subject: Subject, maps: Sequence[DataMap], mounts: Sequence[Mount]) -> tuple[Given, list[Mount]]:
    """The variables that name the model, and its own mount; nothing where it is not to be found from here."""
    recorded = recorded_model(subject)
    text = subject.named or subject.model
    uri = _model_uri(text) if text else recorded.value if recorded else None
    place, mount = _place_of_model(uri, maps, mounts, named=recorded is None) if uri else (None, None)
    if place is None:
        return {}, []
    needed = {it.name for it in subject.contract.variables}
    names = (MODEL, _SERVED) if _SERVED in needed else (MODEL,)
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


def _with_adc(given: Given, environment: Mapping[str, str]) -> Given:
    """The caller's project gives way to one that was named; the file does not."""
    named = {name: (value, "adc") for name, value in adc_variables(environment).items()}
    return named | given | {ADC: named[ADC]}
