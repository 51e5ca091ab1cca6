"""Google's Application Default Credentials: one file, read-only, and only for who asks for it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envbuild.errors import UsageError
from envbuild.files import credentials_path
from envbuild.local.model import Mount, Settled
from envbuild.verify.findings import Finding

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
"""Names the file (google-auth, `google.auth.default`)."""
TARGET = "/run/secrets/adc.json"
"""Where it lies in the container."""
_PROJECT = "GOOGLE_CLOUD_PROJECT"
_LOGIN = "gcloud auth application-default login, or let GOOGLE_APPLICATION_CREDENTIALS name the file"
_RULE = "credentials-elsewhere"


def adc_mount(environment: Mapping[str, str]) -> Mount:
    """The file of the caller's credentials in the container; UsageError where there is none, or another sort of file.

    GOOGLE_APPLICATION_CREDENTIALS names it; else it is gcloud's, in CLOUDSDK_CONFIG or ~/.config/gcloud.
    """
    path = credentials_path(environment)
    _read(path)
    return Mount(source=path.resolve(), target=TARGET, read_only=True)


def adc_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What tells Google's libraries of the file, and of the caller's project."""
    project = environment.get(_PROJECT)
    return {VARIABLE: TARGET} | ({_PROJECT: project} if project else {})


def adc_findings(settled: Settled) -> Iterator[Finding]:
    """Credentials that say where the real ones are, which the container does not see."""
    for mount in settled.mounts:
        if mount.target == TARGET:
            yield from (_elsewhere(mount.source, doubt) for doubt in _doubts(_read(mount.source)))


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


def _doubts(value: Mapping[str, Any]) -> Iterator[str]:
    """What else these credentials need (google-auth: `external_account`, `impersonated_service_account`)."""
    source = value.get("credential_source")
    if isinstance(source, dict):
        if isinstance(source.get("file"), str):
            yield f"they read the file {source['file']}"
        if "executable" in source:
            yield "they run a program of this machine"
        if "certificate" in source:
            yield "they read a certificate of this machine"
    inner = value.get("source_credentials")
    if isinstance(inner, dict):
        yield from _doubts(inner)


def _elsewhere(path: Path, doubt: str) -> Finding:
    return Finding(
        rule=_RULE,
        about="credentials",
        agrees=False,
        severity="warning",
        says=f"{path}: {doubt}, which the container does not see",
        why="Google's libraries in the container cannot log in.",
        todo="use gcloud auth application-default login on this machine, with --impersonate-service-account if need be",
    )
