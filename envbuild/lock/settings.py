"""Where packages come from: uv's own settings, and pip's where uv has none."""

import configparser
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import url2pathname

import platformdirs

from envbuild.errors import LockError, MissingComponentError
from envbuild.files import cache_folder, home_folder

# Settings of uv that change what is resolved, or that point it at somebody's project.
_NOT_FOR_US = frozenset({
    "UV_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_EXCLUDE", "UV_NO_BINARY", "UV_NO_BINARY_PACKAGE", "UV_OVERRIDE",
    "UV_PRERELEASE", "UV_PROJECT", "UV_PYTHON", "UV_RESOLUTION", "UV_SYSTEM_PYTHON", "UV_TORCH_BACKEND",
    "UV_WORKING_DIR",
})  # fmt: skip

_TRUE = frozenset({"1", "true", "yes", "on"})
_QUERY = re.compile(r"(://[^\s?`\"<>]*)\?[^\s`\"<>]*?(?=[)\]}'.,:;]*(?:[\s`\"<>]|$))")
"""The query of an address in a text, without the marks of the sentence that it stands in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """The indexes and folders that packages are looked up in; addresses may hold credentials."""

    default: str | None
    """The default index; None when only `find_links` count."""
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    """Absolute folders, or addresses of pages."""
    from_pip: bool = False
    """True when `default` and `extra` are pip's."""
    certificates: str | None = None
    """pip's own CA bundle."""
    ca_bundle: str | None = None
    """The CA bundle of `--ca-bundle`, which replaces all others."""
    trusted_hosts: tuple[str, ...] = ()
    """pip's trusted-host: hosts whose certificates are not checked."""
    keyring: bool = False
    """True when pip or uv is set to ask the program `keyring` for passwords."""
    offline: bool = False
    """True when only folders of this machine may be used."""

    @property
    def indexes(self) -> tuple[str, ...]:
        """All indexes, the default one last, as uv asks them."""
        return (*self.extra, *((self.default,) if self.default else ()))

    @property
    def places(self) -> str:
        """Everything above for people, without credentials."""
        return ", ".join(bare_url(place) for place in (*self.indexes, *self.find_links))


def bare_url(url: str) -> str:
    """The address without user name, password, query and fragment: queries hold tokens and signatures."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def local_path(url: str) -> Path | None:
    """The path that a `file://` address names; None for any other address."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def page_url(url: str, project: str = "") -> str:
    """The address of an index's page, of `project` if named, without login; the query stays, as it may be a token."""
    parts = urlsplit(url)
    path = f"{parts.path.rstrip('/')}/{project}/" if project else parts.path
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, parts.query, ""))


def without_credentials(output: str) -> str:
    """A program's output without logins and queries in its addresses, valid or not."""
    return _QUERY.sub(r"\1", re.sub(r"(?<=://)[^/\n]*@", "", output))


def uv_program() -> str:
    """Find the uv binary: that of the installed package, else that on PATH; MissingComponentError."""
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - the package may be absent where the binary is not

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise MissingComponentError("uv is not installed", todo="python -m pip install uv, or use --resolver pip-tools")
    return found


def read_settings(find_links: Sequence[Path] = (), *, offline: bool = False) -> IndexSettings:
    """Read the settings of uv and of pip, each from the environment and its configuration files.

    pip's indexes count when uv has none of its own; pip's `find-links` count always. The folders in `find_links` come
    before those; LockError when one does not exist. `offline` leaves only the folders of this machine.
    """
    folders = [_check_folder(path) for path in find_links]
    # Not in the threads: uv_program uses sysconfig, which two threads cannot initialise at once (Python 3.11).
    ask = partial(_uv_settings, uv_program())
    bare = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    bare |= _cache_place() | {"UV_NO_CONFIG": "1"}
    with ThreadPoolExecutor(2) as pool:
        own, builtin = pool.map(ask, (uv_environment(), bare))
    pip = _pip_settings()
    ours = own.default != builtin.default or bool(own.extra)
    from_pip = not ours and any(key in pip for key in ("index-url", "extra-index-url", "no-index"))
    indexes = own
    if from_pip:
        default = None if pip.get("no-index", "").lower() in _TRUE else pip.get("index-url", own.default)
        indexes = IndexSettings(default=default, extra=tuple(pip.get("extra-index-url", "").split()))
    # pip ignores folders that do not exist, uv would stop.
    links = [_absolute(place) for place in (*own.find_links, *pip.get("find-links", "").split())]
    folders += [it for it in links if "://" in it or Path(it).exists()]
    settings = IndexSettings(
        default=_with_password(indexes.default) if indexes.default else None,
        extra=tuple(map(_with_password, indexes.extra)) if indexes.default else (),
        find_links=tuple(dict.fromkeys(folders)),
        from_pip=from_pip,
        certificates=pip.get("cert"),
        trusted_hosts=tuple(pip.get("trusted-host", "").split()),
        keyring="subprocess" in {os.environ.get("UV_KEYRING_PROVIDER"), pip.get("keyring-provider")},
    )
    return folders_only(settings) if offline else settings


def folders_only(settings: IndexSettings) -> IndexSettings:
    """Leave only the folders of this machine."""
    links = tuple(place for place in settings.find_links if "://" not in place)
    return replace(settings, default=None, extra=(), find_links=links, from_pip=False, offline=True)


def uv_environment(settings: IndexSettings | None = None) -> dict[str, str]:
    """The environment for uv: without variables that would change the result, with pip's settings where they count."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_US}
    environment |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    environment |= _cache_place()
    links = [_absolute(place) for place in environment.get("UV_FIND_LINKS", "").split(",") if place]
    if settings is not None:
        links = list(settings.find_links)
        environment |= _certificates(settings)
        environment |= {"UV_NO_CONFIG": "1"} if settings.offline else {}  # its find-links would be read too
        environment |= {"UV_KEYRING_PROVIDER": "subprocess"} if settings.keyring else {}
        if settings.from_pip:
            # pip takes the best version of all indexes, and the run's environment was most likely installed that way.
            environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
            environment |= {"UV_DEFAULT_INDEX": settings.default or "", "UV_INDEX": " ".join(settings.extra)}
        if settings.trusted_hosts:
            environment.setdefault("UV_INSECURE_HOST", " ".join(settings.trusted_hosts))
    environment["UV_FIND_LINKS"] = ",".join(links)
    return {name: value for name, value in environment.items() if value}


def _cache_place() -> dict[str, str]:
    """UV_CACHE_DIR, where uv cannot write its default cache: users of containers often have no home."""
    if chosen := os.environ.get("UV_CACHE_DIR"):
        return {"UV_CACHE_DIR": chosen}
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/nonexistent", ".cache"), "uv")
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
    if os.access(place, os.W_OK):
        return {}
    ours = cache_folder() / "uv"
    ours.mkdir(parents=True, exist_ok=True)  # the error names the folder, and uv's would not
    return {"UV_CACHE_DIR": str(ours)}


def pip_environment(settings: IndexSettings) -> dict[str, str]:
    """The environment for pip, with uv's settings where those count."""
    environment = dict(os.environ)
    if not settings.from_pip:
        environment |= {"PIP_INDEX_URL": settings.default or "", "PIP_EXTRA_INDEX_URL": " ".join(settings.extra)}
        environment |= {"PIP_NO_INDEX": "" if settings.default else "1"}
    environment["PIP_FIND_LINKS"] = " ".join(settings.find_links)
    if settings.ca_bundle:
        # REQUESTS_CA_BUNDLE overrides PIP_CERT.
        environment |= dict.fromkeys(("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), settings.ca_bundle)
        environment["SSL_CERT_DIR"] = ""
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "NO_COLOR": "1"}
    return {name: value for name, value in environment.items() if value}


def _certificates(settings: IndexSettings) -> dict[str, str]:
    """Variables that make uv trust the certificates that pip trusts: pip's bundle, else the system's."""
    if settings.ca_bundle:
        others = dict.fromkeys(("SSL_CERT_DIR", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"), "")
        return others | {"SSL_CERT_FILE": settings.ca_bundle}
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("UV_SYSTEM_CERTS"):
        return {}
    if settings.certificates:
        return {"SSL_CERT_FILE": settings.certificates}
    return {"UV_SYSTEM_CERTS": "true"} if ssl.get_default_verify_paths().cafile else {}


def _uv_settings(uv: str, environment: Mapping[str, str]) -> IndexSettings:
    """Read uv's settings by compiling nothing: uv prints them as options of a requirements file."""
    command = [uv, "pip", "compile", "-", "--no-header", "--emit-index-url", "--emit-find-links"]
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        done = subprocess.run(
            [*command, "--python", sys.executable],
            cwd=folder, env=dict(environment), input="", capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        where = without_credentials(done.stderr.strip())
        raise LockError("uv's settings cannot be read", where=where, todo="correct uv.toml or UV_*")
    found: dict[str, list[str]] = {"--index-url": [], "--extra-index-url": [], "--find-links": []}
    for option, _, value in (line.partition(" ") for line in done.stdout.splitlines() if line.startswith("--")):
        found.setdefault(option, []).append(value)
    default, extra, links = (tuple(found[option]) for option in ("--index-url", "--extra-index-url", "--find-links"))
    return IndexSettings(default=next(iter(default), None), extra=extra, find_links=links)


def _with_password(url: str) -> str:
    """Add an index's user and password from the environment (UV_INDEX_NAME_USERNAME)."""
    entries = f"{os.environ.get('UV_INDEX', '')} {os.environ.get('UV_DEFAULT_INDEX', '')}".split()
    for name, _, place in (entry.partition("=") for entry in entries):
        key = f"UV_INDEX_{re.sub('[^A-Za-z0-9]', '_', name).upper()}"
        user, password = os.environ.get(f"{key}_USERNAME"), os.environ.get(f"{key}_PASSWORD")
        if place == url and user and "@" not in urlsplit(url).netloc:
            secret = f":{quote(password, safe='')}" if password else ""
            return url.replace("://", f"://{quote(user, safe='')}{secret}@", 1)
    return url


def _pip_settings() -> dict[str, str]:
    """Pip's settings by name: environment, `[install]`, `[global]`. Read here, as pip takes 0.3 s to start."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _pip_files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError) as error:
            raise LockError(f"pip's settings cannot be read: {error}", where=str(path), todo="correct them") from error
        for section in found.keys() & set(parser.sections()):
            found[section] |= {_pip_name(name): value for name, value in parser.items(section) if value}
    own = {_pip_name(name[4:]): value for name, value in os.environ.items() if name.startswith("PIP_") and value}
    return found["global"] | found["install"] | own


def _pip_files() -> list[Path]:
    """Pip's configuration files, the strongest last."""
    chosen = os.environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    macos = sys.platform == "darwin"
    multiple = (platformdirs.site_data_dir if macos else platformdirs.site_config_dir)("pip", False, multipath=True)
    folders = [*multiple.split(os.pathsep), *(() if macos else ("/etc",))]
    home = home_folder(os.environ)
    own = user = home / ".config" / "pip"
    with suppress(RuntimeError):  # no home
        own = Path(platformdirs.user_config_dir("pip", False, roaming=True))
    if not (chosen and Path(chosen).exists()):
        folders += [str(home / ".pip"), str(own if own.is_dir() or not macos else user)]
    files = [Path(folder, "pip.conf") for folder in (*folders, sys.prefix)]
    return [*files, *([Path(chosen)] if chosen else [])]


def _pip_name(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _check_folder(path: Path) -> str:
    if not path.is_dir():
        todo = "give the folder that holds the wheels, such as `envbuild lock --download DIR` makes"
        # An address of a page may be given by mistake; a path keeps one of its slashes.
        shown = without_credentials(re.sub(r"^([A-Za-z][\w+.-]*):/+(?:.*@)?", r"\1://", str(path)))
        raise LockError("the folder of wheels does not exist", where=f"--find-links {shown}", todo=todo)
    return str(path.absolute())


def _absolute(place: str) -> str:
    """A folder's absolute path, as resolvers run in a folder of their own; addresses stay."""
    if place.startswith("file://"):
        place = place.removeprefix("file://")
    return place if "://" in place else str(Path(place).expanduser().absolute())
