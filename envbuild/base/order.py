"""What Dockerfile.base is given: the order for a base, and how it gets its Python."""

import re
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from packaging.version import Version

from envbuild.errors import UsageError
from envbuild.match.profiles import Profiles
from envbuild.match.stack import Decision

_PYTHON = re.compile(r"3\.\d+(?:\.\d+)?\Z")
# Debian policy manual, 5.6.1 "Source" and 5.6.12 "Version".
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?=[A-Za-z0-9][A-Za-z0-9.+~:-]*\Z")
_SNAPSHOT = re.compile(r"\d{8}T\d{6}Z\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOrder:
    """A base that is wanted."""

    parent: str
    """As the engine knows it: a reference, best by digest, or the engine's own id."""
    python: str = ""
    """What its Python has to be: `3.11` or `3.11.2`; empty for the suite's."""
    python_image: str = ""
    """An image with that Python in /usr/local; empty where the parent or its distribution has it."""
    packages: tuple[str, ...] = ()
    """Debian packages, each as NAME=VERSION."""
    sources: str = ""
    """apt's one-line sources, where the parent's own will not do."""
    snapshot: str = ""
    """The day of the distribution's archive: `20240101T000000Z`."""
    snapshot_host: str = ""
    """Where such archives lie, up to the distribution's name."""
    epoch: str = ""
    """SOURCE_DATE_EPOCH, in seconds since 1970; empty for the Dockerfile's own."""

    def __post_init__(self) -> None:
        if self.python and not _PYTHON.match(self.python):
            todo = "give it as 3.11 or 3.11.2"
            raise UsageError(f"{self.python!r} is no version of Python 3", where="--python", todo=todo)
        for package in self.packages:
            if not _PACKAGE.match(package):
                todo = "give NAME=VERSION; `apt-cache madison NAME` on the parent lists the versions"
                raise UsageError(f"{package!r} is no Debian package with its version", where="--package", todo=todo)
        _check_snapshot(self.snapshot, self.snapshot_host)
        _check_open(self.sources, "--sources")
        if self.epoch and not self.epoch.isdecimal():
            todo = "set it to seconds since 1970, or leave it unset"
            raise UsageError(f"{self.epoch!r} is no time", where="SOURCE_DATE_EPOCH", todo=todo)

    @property
    def arguments(self) -> dict[str, str]:
        """The build arguments; those at their defaults are left out."""
        given = {
            "PARENT": self.parent,
            "PYTHON_IMAGE": self.python_image,
            "PYTHON_VERSION": self.python,
            "PACKAGES": " ".join(self.packages),
            "SOURCES": self.sources,
            "SNAPSHOT": self.snapshot,
            "SNAPSHOT_HOST": self.snapshot_host.rstrip("/"),
            "SOURCE_DATE_EPOCH": self.epoch,
        }
        return {name: value for name, value in given.items() if value}

    def command(self, dockerfile: Path, tag: str, platform: str) -> str:
        """The same build by hand, for a shell; no file but the Dockerfile is sent."""
        words = ["docker", "build", "--platform", platform, "--tag", tag]
        for name, value in self.arguments.items():
            words += ["--build-arg", f"{name}={value}"]
        return f"{shlex.join([*words, '-'])} < {shlex.quote(str(dockerfile))}"


def _check_snapshot(snapshot: str, host: str) -> None:
    if bool(snapshot) != bool(host):
        todo = "give both, such as --snapshot 20240101T000000Z --snapshot-host https://HOST/archive"
        raise UsageError("--snapshot and --snapshot-host belong together", where="--snapshot", todo=todo)
    if not snapshot:
        return
    try:
        datetime.strptime(snapshot, "%Y%m%dT%H%M%S%z")
        right = _SNAPSHOT.match(snapshot)
    except ValueError:
        right = None
    if not right:
        todo = "give it as 20240101T000000Z"
        raise UsageError(f"{snapshot!r} names no snapshot", where="--snapshot", todo=todo)
    if not re.match(r"https?://[^\s'\"]+\Z", host):
        raise UsageError(f"{host!r} is no address", where="--snapshot-host", todo="give it as https://HOST/archive")
    _check_open(host, "--snapshot-host")


def _check_open(text: str, where: str) -> None:
    """Refuse what may not become part of an image, as build arguments do."""
    for word in text.split():
        if "://" in word and "@" in urlsplit(word).netloc:
            what = "an address of packages holds a password, and addresses stay in the image's history"
            todo = "name an address without one; give --sources FILE where this machine's own has it"
            raise UsageError(what, where=where, todo=todo)


def decide_python(parent: str, python: str, profiles: Profiles) -> Decision | None:
    """Say which image brings a Python that the parent's distribution has not; None where that is not known.

    Python's own images of the newest suite whose glibc is not newer than the parent's. `parent` is a base of
    `profiles/cuda.toml`, with or without a digest; of others nothing is known.
    """
    row = next((it for it in profiles.bases if parent.partition("@")[0] in _names(it.image)), None)
    exact = python.count(".") > 1
    if row is None or not python or (row.python == python and not exact):
        return None
    minor = ".".join(python.split(".")[:2])
    suites = [it for it in profiles.suites if Version(it.glibc) <= Version(row.glibc)]
    suite = next((it for it in suites if it.has_image(python)), None)
    if suite is None:
        return None
    image = profiles.python_image.format(python=python, suite=suite.name)
    lack = f"another patch release of {minor}" if row.python == minor else f"Python {row.python}"
    reason = f"the parent's distribution has {lack}; glibc {suite.glibc} of this image is not newer than {row.glibc}"
    return Decision(what="python image", value=image, reason=reason, source=suite.source)


def _names(image: str) -> tuple[str, ...]:
    return image, image.removeprefix("docker.io/"), image.removeprefix("docker.io/library/")
