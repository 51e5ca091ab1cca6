"""Who stamps: what this machine knows of that by itself, without a network and without a secret."""

import getpass
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.capture.redact import scrub_line
from envbuild.files import home_folder

_LONGEST = 200
_IMPERSONATED = re.compile(r"/serviceAccounts/([^/:]+):generateAccessToken\Z")
_CREDENTIALS_LIMIT = 1024 * 1024


def stamper(*, google: bool) -> str | None:
    """Return who is recorded to have stamped; None where nobody can tell, or where ENVBUILD_BY is set and empty.

    ENVBUILD_BY if it is set; else the account that Google's default credentials name in their file, if `google`; else
    `user@host`.
    """
    told = os.environ.get("ENVBUILD_BY")
    if told is not None:
        return _line(told)
    return (google and _line(_account(_credentials()))) or _line(_here())


def _line(text: str) -> str | None:
    """One line of it that people can read, without what looks like a secret: it can never be taken back."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return scrub_line(line)[:_LONGEST].strip() or None


def _here() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
    return f"{user}@{platform.node()}"


def credentials_path(environ: Mapping[str, str]) -> Path:
    """Where the file of Application Default Credentials lies, or would lie (google-auth, `google.auth.default`)."""
    if named := environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return Path(named)
    home = home_folder(environ)
    return Path(environ.get("CLOUDSDK_CONFIG") or home / ".config/gcloud") / "application_default_credentials.json"


def _credentials() -> dict[str, Any]:
    """Read the file that google.auth.default() looks into first, and nothing that has to be asked for."""
    try:
        with credentials_path(os.environ).open("rb") as file:
            value = json.loads(file.read(_CREDENTIALS_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _account(credentials: dict[str, Any]) -> str:
    """Name the account of the credentials' file (google-auth, `google/auth/_default.py`): only what is no secret."""
    impersonated = _IMPERSONATED.search(str(credentials.get("service_account_impersonation_url") or ""))
    if impersonated:
        return impersonated[1]
    return str(credentials.get("client_email") or credentials.get("account") or "")
