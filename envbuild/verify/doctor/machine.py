"""What a machine has of what envbuild needs: interpreter, resolvers, cache, disk, engine, GPU, indexes and logins."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx

from envbuild.cache import kinds, size_limit
from envbuild.capture.host import accelerator_facts
from envbuild.errors import MissingComponentError
from envbuild.files import cache_folder, credentials_path, home_folder
from envbuild.lock.index import make_client
from envbuild.lock.settings import IndexSettings, bare_url, page_url, read_settings, uv_program
from envbuild.verify.doctor import Check, ok, refused, wrong
from envbuild.verify.findings import Finding

_ABOUT = "google credentials"
_LOGIN = "gcloud auth application-default login"
_STORAGE = "https://storage.googleapis.com"
_SECONDS = 8.0
_APART = 120.0
"""Seconds that clocks may differ; Google refuses tokens that are five minutes off."""
_PROJECT = "pip"
"""Whose page is asked for: the list of all projects can be very long, and any answer will do."""
_LITTLE, _FEW = 1e9, 10e9
"""Bytes: less than the wheels of one framework, and than those and the layers of a GPU build."""
_ENGINE = ("envbuild.engine.client", "envbuild.engine.buildkit")
_SPECS = ("etc/cdi", "var/run/cdi", "run/cdi")


def google_credentials(environ: Mapping[str, str], root: Path) -> Iterator[Finding]:
    """Which Application Default Credentials would be taken; they are not tested."""
    path = _file(environ)
    if path is None and _is_google(environ, root):
        yield ok(_ABOUT, "those of this machine's service account")
    elif path is None:
        says = "there are none; gs:// models and Artifact Registry need them"
        yield wrong(_ABOUT, says, f"{_LOGIN}, where those are wanted", severity="note")
    else:
        yield _described(path)


def storage() -> Iterator[Finding]:
    """Whether Cloud Storage answers; to require a login is an answer too."""
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


def indexes() -> Iterator[Finding]:
    """Whether each index answers, by the settings of uv and pip."""
    settings = read_settings()
    for place in settings.find_links:
        if "://" not in place and not Path(place).is_dir():
            yield wrong("index", f"{place} is not a folder", "correct find-links in the settings of pip or uv")
    if not settings.indexes:
        yield ok("index", f"no index is used, by the settings of pip or uv: {settings.places}")
        return
    with make_client(settings) as client:
        for index in settings.indexes:
            yield from _index(client, index, settings)


def _index(client: httpx.Client, index: str, settings: IndexSettings) -> Iterator[Finding]:
    name, whose = bare_url(index), "pip" if settings.from_pip else "uv"
    try:
        answer = client.head(page_url(index, _PROJECT), timeout=_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        todo = f"check the network, HTTPS_PROXY and the settings of {whose}"
        yield wrong("index", f"{name} does not answer: {str(error) or type(error).__name__}", todo)
        return
    yield answered(name, answer.status_code)
    yield from clock(answer.headers, datetime.now(UTC), name)


def clock(headers: Mapping[str, str], now: datetime, name: str) -> Iterator[Finding]:
    """Compare this machine's clock with the Date of an answer (RFC 9110, section 6.6.1), which caches may have aged."""
    age = headers.get("Age", "")
    try:
        there = parsedate_to_datetime(headers.get("Date", "")) + timedelta(seconds=int(age) if age.isdecimal() else 0)
        apart = (now - there).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a time zone
        return
    if abs(apart) <= _APART:
        yield ok("clock", f"within {_APART / 60:g} minutes of {name}")
        return
    says = f"this machine's clock is {abs(apart) / 60:.0f} minutes {'ahead of' if apart > 0 else 'behind'} {name}"
    why = "certificates and tokens seem expired, or not valid yet, and records get a wrong date"
    yield wrong("clock", says, "set the clock: timedatectl set-ntp true", severity="warning", why=why)


def answered(name: str, status: int) -> Finding:
    """Say what an index's answer means: to have no such project is an answer too."""
    if status in (401, 403, 407):
        todo = "put user and password into the index's address, netrc or keyring, as for pip"
        return wrong("index", f"{name} requires other credentials ({status})", todo)
    if status >= 500:
        return wrong("index", f"{name} fails ({status})", "try again later, or use another index")
    return ok("index", f"{name} answers")


def registry_logins(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Which registries Docker's settings have a login for, and whether the programs that they name are here."""
    path = Path(environ.get("DOCKER_CONFIG") or Path(home_folder(environ), ".docker"), "config.json")
    try:
        config = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        says = f"there is no {path}; for Google's registries the Google credentials are used"
        yield ok("registry logins", says)
        return
    except (OSError, ValueError, RecursionError) as error:
        says = f"{path} cannot be read ({type(error).__name__})"
        yield wrong("registry logins", says, "correct or remove it, then: docker login REGISTRY", severity="warning")
        return
    yield from logins(config if isinstance(config, dict) else {}, str(path), environ.get("PATH"))


def logins(config: Mapping[str, object], name: str, path: str | None) -> Iterator[Finding]:
    """Say what Docker's settings say; `path` is where programs are looked for."""
    helpers, auths = ({} if not isinstance(it, dict) else it for it in (config.get("credHelpers"), config.get("auths")))
    store = config.get("credsStore")
    named = {str(it) for it in (*helpers.values(), *([store] if store else []))}
    for helper in sorted(named):
        if shutil.which(f"docker-credential-{helper}", path=path) is None:
            says = f"{name} names docker-credential-{helper}, which is not on PATH"
            yield wrong("registry logins", says, "install it, or correct the file", severity="warning")
    hosts = ", ".join(sorted({*map(str, helpers), *map(str, auths)}))
    yield ok("registry logins", f"{name} has {hosts or 'no registry'}{f', and the store {store}' if store else ''}")


def machine_checks(*, offline: bool = False, root: Path = Path("/")) -> tuple[Check, ...]:
    """All checks that need no model and no image; `offline` uses no network."""
    near = (
        Check(about="python", find=_python),
        Check(about="uv", find=_uv),
        Check(about="pip-tools", find=_pip_tools),
        Check(about="cache", find=_cache),
        Check(about="disk", find=_disks),
        Check(about="engine", find=_engine, severity="note", needs=_ENGINE),
        Check(about="buildx", find=_buildx, severity="note", needs=_ENGINE),
        Check(about="gpu", find=partial(_gpu, root), severity="warning"),
        Check(about="registry logins", find=partial(registry_logins, os.environ), severity="warning"),
        Check(about="google credentials", find=partial(google_credentials, os.environ, root), severity="warning"),
    )
    if offline:
        return near
    google = _file(os.environ) is not None or _is_google(os.environ, root)
    stored = (Check(about="cloud storage", find=storage, severity="warning"),) if google else ()
    return (*near, Check(about="index", find=indexes, seconds=20.0), *stored)


def _python() -> Iterator[Finding]:
    libc = " ".join(platform.libc_ver())
    yield ok("python", f"Python {platform.python_version()}, {platform.machine()}, {libc or 'another libc than glibc'}")
    if sys.platform != "linux":
        todo = "build on Linux, or by --builder cloudbuild"
        yield wrong("python", f"this is {sys.platform}, and envbuild is tested on Linux only", todo, severity="warning")


def _uv() -> Iterator[Finding]:
    try:
        program = uv_program()
    except MissingComponentError as error:
        yield refused("uv", error, "warning" if _has_pip_tools() else "error")
        return
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=8, check=False)
    if done.returncode:
        yield wrong("uv", f"{program} ends with {done.returncode}", "reinstall it: python -m pip install uv")
    else:
        yield ok("uv", f"{done.stdout.strip()}, {program}")


def _pip_tools() -> Iterator[Finding]:
    if _has_pip_tools():
        yield ok("pip-tools", f"pip-tools {version('pip-tools')}")
    else:
        todo = "for --resolver pip-tools: python -m pip install pip-tools"
        yield wrong("pip-tools", "pip-tools is not installed; uv does not need it", todo, severity="note")


def _has_pip_tools() -> bool:
    try:
        version("pip-tools")
    except PackageNotFoundError:
        return False
    return True


def _cache() -> Iterator[Finding]:
    folder = cache_folder()
    if not os.access(_existing(folder), os.W_OK):
        todo = "set ENVBUILD_CACHE to a folder that this user may write"
        why = "a cache that cannot be written serves only where all that is needed lies in it"
        yield wrong("cache", f"{folder} cannot be written", todo, why=why)
        return
    size, limit = sum(size for _, size in kinds(folder).values()), size_limit()
    most = f", of {limit / 1e9:.1f} GB that it may" if limit else ""
    yield ok("cache", f"{folder} holds {size / 1e9:.1f} GB{most}")


def _disks() -> Iterator[Finding]:
    """Room where the cache lies, and for temporary files where that is another disk."""
    places = {"cache": _existing(cache_folder()), "temporary files": Path(os.environ.get("TMPDIR") or "/tmp")}  # noqa: S108 - looked at, not written
    seen = set[int]()
    for name, place in places.items():
        device = place.stat().st_dev
        if device not in seen:
            seen.add(device)
            yield room(f"{place}, for the {name},", shutil.disk_usage(place).free)


def room(place: str, free: int) -> Finding:
    """Whether so many free bytes are enough."""
    says = f"{place} has {free / 1e9:.1f} GB free"
    if free >= _FEW:
        return ok("disk", says)
    todo = "free some space, or set ENVBUILD_CACHE and TMPDIR to another disk; envbuild cache prune removes what is old"
    why = "wheels and layers of a framework with CUDA take up to 10 GB"
    return wrong("disk", says, todo, severity="error" if free < _LITTLE else "warning", why=why)


def _existing(folder: Path) -> Path:
    return next(it for it in (folder, *folder.parents) if it.exists())


def _engine() -> Iterator[Finding]:
    from envbuild.engine.client import connected  # noqa: PLC0415 - Docker's library is slow to import

    with connected(
        "only `local --venv` serves of local, and --builder docker, --load and capture --image cannot be used"
    ) as client:
        said = client.version()
        names = [str(it.get("Name")) for it in said.get("Components") or ()]
        kind = "podman" if any("podman" in name.lower() for name in names) else "Docker"
        yield ok("engine", f"{kind} {said.get('Version')}, API {said.get('ApiVersion')}")


def _buildx() -> Iterator[Finding]:
    from envbuild.engine.buildkit import find_client  # noqa: PLC0415

    client = find_client()
    if client and client.buildx:
        yield ok("buildx", f"{client.path} has the plugin buildx")
        return
    has = f"{client.path} has no plugin buildx" if client else "no docker command that can use BuildKit is on PATH"
    todo = "install Docker's buildx plugin, where --builder-name is wanted"
    yield wrong("buildx", f"{has}: --builder-name cannot be used", todo, severity="note")


def _gpu(root: Path) -> Iterator[Finding]:
    facts = accelerator_facts(str(root))
    if facts.get("kind") != "nvidia":
        yield ok(
            "gpu", f"{facts.get('kind') if facts.get('kind') != 'none' else 'no'} accelerator; building needs none"
        )
        return
    yield driver_finding(facts)
    specs = [str(path) for folder in _SPECS for path in (root / folder).glob("nvidia*")]
    if specs:
        yield ok("gpu toolkit", f"{specs[0]} describes the GPUs to engines")
    elif program := shutil.which("nvidia-ctk") or shutil.which("nvidia-container-runtime"):
        yield ok("gpu toolkit", program)
    else:
        todo = "install nvidia-container-toolkit, then: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        says, why = "the NVIDIA container toolkit is not installed", "containers here do not see the GPUs"
        yield wrong("gpu toolkit", says, todo, severity="warning", why=why)


def driver_finding(facts: Mapping[str, object]) -> Finding:
    """The driver and its GPUs."""
    gpus = facts.get("gpus")
    names = [str(it.get("name")) for it in gpus] if isinstance(gpus, list) else []
    if not names:
        todo = "see nvidia-smi; after an update of the driver restart this machine"
        return wrong("gpu", "the NVIDIA driver shows no GPU", todo, severity="warning")
    cuda = f", for CUDA up to {facts['cuda_maximum']}" if facts.get("cuda_maximum") else ""
    return ok("gpu", f"{', '.join(names)}, driver {facts.get('driver') or 'unknown'}{cuda}")
