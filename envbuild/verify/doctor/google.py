"""Google's credentials, as far as files and firmware tell, and whether Cloud Storage answers."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from envbuild.files import credentials_path
from envbuild.lock.settings import bare_url
from envbuild.verify.doctor.checking import ok, wrong
from envbuild.verify.findings import Finding

_ABOUT = "google credentials"
_LOGIN = "gcloud auth application-default login"
_STORAGE = "https://storage.googleapis.com"
_SECONDS = 8.0


def google_credentials(environ: Mapping[str, str], root: Path) -> Iterator[Finding]:
    """Which Application Default Credentials would be taken; nobody is asked whether they are still good."""
    path = _file(environ)
    if path is None and _is_google(environ, root):
        yield ok(_ABOUT, "those of this machine's service account")
    elif path is None:
        says = "there are none: gs:// models and Artifact Registry need them"
        yield wrong(_ABOUT, says, f"{_LOGIN}, where those are wanted", severity="note")
    else:
        yield _described(path)


def has_google(environ: Mapping[str, str], root: Path) -> bool:
    """Whether there seem to be any."""
    return _file(environ) is not None or _is_google(environ, root)


def storage() -> Iterator[Finding]:
    """Whether Cloud Storage answers; that it wants a login is an answer too."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/") or _STORAGE
    address = host if "://" in host else f"http://{host}"
    name = bare_url(address)
    try:
        status = httpx.head(f"{address}/", timeout=_SECONDS, follow_redirects=False).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        todo = "check the network and HTTPS_PROXY; without it only models in folders can be stamped"
        says = f"{name} does not answer: {str(error) or type(error).__name__}"
        yield wrong("cloud storage", says, todo, severity="warning")
        return
    if status >= 500:
        yield wrong("cloud storage", f"{name} fails ({status})", "try again later", severity="warning")
    else:
        yield ok("cloud storage", f"{name} answers")


def _file(environ: Mapping[str, str]) -> Path | None:
    """The file that google-auth takes (its `default`): the variable's, even if it is not there, else gcloud's."""
    path = credentials_path(environ)
    return path if environ.get("GOOGLE_APPLICATION_CREDENTIALS") or path.exists() else None


def _is_google(environ: Mapping[str, str], root: Path) -> bool:
    if environ.get("NO_GCE_CHECK", "").lower() in ("true", "1"):
        return False
    try:
        return (root / "sys/class/dmi/id/product_name").read_text(errors="replace").startswith("Google")
    except OSError:
        return False


def _described(path: Path) -> Finding:
    try:
        value = json.loads(path.read_bytes())
        kind, project = str(value["type"]), value.get("quota_project_id") or value.get("project_id")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        says = f"{path} cannot be used ({type(error).__name__})"
        return wrong(_ABOUT, says, f"correct GOOGLE_APPLICATION_CREDENTIALS, or: {_LOGIN}", severity="warning")
    return ok(_ABOUT, f"{kind} of {path}{f', project {project}' if project else ''}")
