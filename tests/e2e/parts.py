"""What the end-to-end tests use around the services: training environments, the command line, pip in containers."""

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker

from envbuild.lock.settings import IndexSettings, read_settings, uv_environment
from tests.e2e.services import ContainerFailed, Engine, command_output, report_of
from tests.environ import cleaned

_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_PIP_SCRIPT = """set -e
test -x "$PYTHON" || python3 -m venv "$(dirname "$(dirname "$PYTHON")")"
"$PYTHON" -m pip --version >/dev/null 2>&1 || "$PYTHON" -m ensurepip
"$PYTHON" -m pip install --no-cache-dir "$@"
"""


def cache_folder() -> Path:
    """The folder that outlives a session: ENVBUILD_TEST_CACHE, else in the user's cache."""
    folder = Path(os.environ.get("ENVBUILD_TEST_CACHE") or "~/.cache/envbuild-tests").expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def train_env(cache: Path, python: str, *requirements: str) -> Path:
    """Return the python of a virtual environment with these requirements, made once for each interpreter and list.

    The requirements are what `uv pip install` takes, so options such as `--no-deps` are possible.
    """
    interpreter = find_python(python)
    key = hashlib.sha256(json.dumps([str(interpreter), *requirements]).encode()).hexdigest()[:16]
    folder = cache / "venvs" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two sessions, one installs and the other waits for it
        if not folder.exists():
            _install_aside(interpreter, requirements, folder)
    return folder / "bin" / "python"


def _install_aside(interpreter: Path, requirements: Sequence[str], folder: Path) -> None:
    """Make the environment under another name first: an interrupted run leaves none that looks complete."""
    uv, environment = str(Path(sys.executable).parent / "uv"), uv_environment(read_settings())
    aside = folder.with_suffix(".new")
    shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
    try:
        # relocatable: the scripts in bin/ must not name the folder that is about to be renamed
        command_output(uv, "venv", "-q", "--relocatable", "--python", str(interpreter), str(aside), env=environment)
        if requirements:
            command_output(uv, "pip", "install", "-q", "--python", str(aside), *requirements, env=environment)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def find_python(version: str) -> Path:
    """Find an interpreter of a version such as `3.11`: the tests' own, Debian's, then PATH and pyenv."""
    pyenv = (
        Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser().glob(f"versions/{version}.*/bin/python{version}")
    )
    found = (sys.executable, f"/usr/bin/python{version}", shutil.which(f"python{version}"), *sorted(pyenv))
    for candidate in (Path(name) for name in found if name):
        if candidate.exists() and _version_of(candidate) == version:
            return candidate
    raise AssertionError(f"no Python {version} among {[name for name in found if name]}")


def _version_of(python: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def envbuild(
    cache: Path,
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    input: str | None = None,  # noqa: A002 - the name that subprocess.run has
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a clean environment, with the downloads and bases of earlier sessions."""
    ours = {"ENVBUILD_CACHE": str(cache / "envbuild"), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "envbuild", *map(str, arguments)],
        env=cleaned(os.environ) | ours | dict(env or {}),
        cwd=cwd, input=input or "", capture_output=True, text=True, check=False,
    )  # fmt: skip
    if check and done.returncode:
        raise AssertionError(report_of(done))
    return done


def pip_in_container(engine: Engine, image: str, python: str, requirements: Sequence[str]) -> str:
    """Install requirements with pip inside the image; return the id of the resulting image.

    `python` is a path inside the image; where nothing is there yet, `python3 -m venv` makes it an environment first.
    """
    options = index_access()
    # what `exec` is given does not become part of the committed config
    given = {"environment": options.pop("environment") | {"PYTHON": python}, "user": "0"}
    container = engine.client.containers.run(image, ["infinity"], entrypoint=["sleep"], detach=True, **options)
    try:
        status, output = container.exec_run(["sh", "-c", _PIP_SCRIPT, "sh", *requirements], **given)
        if status:
            raise ContainerFailed(f"exit status {status} of pip in {image}\n{output.decode(errors='replace')}")
        made = container.commit()
    finally:
        container.remove(force=True, v=True)
    own = engine.client.images.get(image).attrs["Config"]
    lines = [f"FROM {made.id}", *(f"{word.upper()} {json.dumps(own[word] or [])}" for word in ("Entrypoint", "Cmd"))]
    return str(engine.client.images.build(fileobj=io.BytesIO("\n".join(lines).encode()), rm=True)[0].id)


def index_access() -> dict[str, Any]:
    """Options of `Engine.run` that let pip in the container use the index that pip has here.

    The bridge reaches what the machine reaches, but an image knows neither the certificate authorities that this
    machine believes nor its settings; an index or proxy on loopback needs the machine's own network.
    """
    settings = read_settings()
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    options: dict[str, Any] = {"environment": proxies | _pip_variables(settings)}
    if bundle := _host_bundle(settings):
        # as `volumes`, docker-py would write it into the config of what is committed from the container
        options["mounts"] = [docker.types.Mount(_BUNDLE, bundle, type="bind", read_only=True)]
        options["environment"] |= {"PIP_CERT": _BUNDLE, "SSL_CERT_FILE": _BUNDLE}
    if any(_on_loopback(url) for url in (*settings.indexes, *proxies.values())):
        options["network_mode"] = "host"
    return options


def _pip_variables(settings: IndexSettings) -> dict[str, str]:
    found = {
        "PIP_INDEX_URL": settings.default or "",
        "PIP_EXTRA_INDEX_URL": " ".join(settings.extra),
        "PIP_TRUSTED_HOST": " ".join(settings.trusted_hosts),
        "PIP_DEFAULT_TIMEOUT": os.environ.get("PIP_DEFAULT_TIMEOUT", ""),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }
    return {name: value for name, value in found.items() if value}


def _host_bundle(settings: IndexSettings) -> str | None:
    found = (settings.certificates, os.environ.get("SSL_CERT_FILE"), _BUNDLE)
    return next((str(Path(path).resolve()) for path in found if path and Path(path).is_file()), None)


def _on_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")
