"""Debian packages for a base, found and fetched by apt itself in a folder of its own (apt-get(8), apt.conf(5)).

The base's own record of what is installed is given to apt, so what comes out is what `apt-get install` would fetch in a
container of it. Nothing of this machine's own packages is read or changed, only where its mirror is.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from subprocess import PIPE, STDOUT
from urllib.parse import unquote

from envbuild.base.process import running
from envbuild.base.suites import WITHOUT, Suite
from envbuild.errors import LockError
from envbuild.lock.model import SystemPackage
from envbuild.lock.system import package_of

_ADDRESS = re.compile(r"'([^']+)' (\S+)_([^_\s]+)_([^_\s]+)\.deb (\d+) SHA256:([0-9a-f]{64})")
_GONE = re.compile(r"repository '\S+ (\S+) Release' (?:does not have|no longer has) a Release file")
_EXPIRED = re.compile(r"Release file for \S+?/dists/(\S+?)/(?:In)?Release is expired")
_SETTINGS = """Dir "{folder}/";
Dir::State::status "{status}";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::Cache::pkgcache "";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
Acquire::ForceHash "sha256";
Acquire::Retries "3";
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apt:
    """apt in a folder of its own, with a base's packages as those that are installed."""

    suite: Suite
    folder: Path
    settings: Path
    """What APT_CONFIG names."""

    def versions(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The versions that there are of packages, apt's choice first; names that nobody has are left out."""
        status, output = self._run("apt-cache", "madison", *names)
        found: dict[str, list[str]] = {}
        for line in output.splitlines() if status == 0 else ():
            name, version, *_ = (part.strip() for part in (*line.split("|"), ""))
            if name in names and version and version not in found.setdefault(name, []):
                found[name].append(version)
        return {name: tuple(versions) for name, versions in found.items()}

    def resolve(self, requests: Sequence[tuple[str, str]]) -> tuple[SystemPackage, ...]:
        """The packages themselves and what they need that the base lacks, sorted by name; LockError where apt fails."""
        words = [f"{name}={version}" for name, version in requests]
        status, output = self._run("apt-get", "install", "--print-uris", "--yes", "--no-remove", *words)
        if status:
            raise LockError(
                f"apt cannot install the run's system packages: {_said(output)}",
                where=self.suite.codename,
                todo=WITHOUT,
            )
        found = [_package(match) for match in _ADDRESS.finditer(output)]
        return tuple(sorted(found, key=lambda it: it.name))

    def download(self, packages: Sequence[SystemPackage], target: Path) -> None:
        """Put packages' files into a folder; LockError where the mirror has one no more."""
        words = [f"{it.name}={it.version}" for it in packages]
        status, output = self._run("env", f"--chdir={target}", "apt-get", "download", *words)
        if status:
            what = f"system packages cannot be fetched: {_said(output)}"
            raise LockError(
                what, where=self.suite.codename, todo=f"build again, which locks what there is now; or {WITHOUT}"
            )

    def update(self, say: Callable[[str], object]) -> None:
        """Get the signed lists of the mirror; LockError where it cannot be had.

        An old suite may have lost its updates or security archive, or nobody signs it any more: `say` is told.
        """
        status, output = self._run("apt-get", "update")
        for gone in sorted({*_GONE.findall(output), *_EXPIRED.findall(output)} - {self.suite.codename}):
            say(f"the mirror has no {gone} any more: system packages are looked for without")
            status = 0
        if status or not self.has_lists:
            todo = f"check that apt's own mirror serves {self.suite.codename} (apt-get update); or {WITHOUT}"
            raise LockError(f"apt's lists cannot be had: {_said(output)}", where=self.suite.codename, todo=todo)

    @property
    def has_lists(self) -> bool:
        """Whether lists were got, now or earlier."""
        return any((self.folder / "var/lib/apt/lists").glob("*Packages*"))

    def _run(self, *command: str) -> tuple[int, str]:
        kept = {
            name: it for name, it in os.environ.items() if name.lower().endswith("_proxy") or name.startswith("SSL_")
        }
        fixed = {
            "LC_ALL": "C.UTF-8",
            "HOME": "/root",
            "APT_CONFIG": str(self.settings),
            "PATH": os.environ.get("PATH", os.defpath),
        }
        with running(command, kept | fixed, stdout=PIPE, stderr=STDOUT) as process:
            output, _ = process.communicate()
            return process.returncode, output.decode(errors="replace")


@contextmanager
def apt_for(suite: Suite, status: str, cache: Path) -> Iterator[Apt]:
    """Yield apt for a base whose dpkg status is given; of several runs one works in the folder, and the others wait."""
    folder = cache / "apt" / suite.key
    for part in (
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
    ):
        (folder / part).mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        texts = {"etc/apt/sources.list": "\n".join([*suite.lines, ""]), "status": status}
        texts["conf"] = _SETTINGS.format(folder=folder, status=folder / "status", architecture=suite.architecture)
        for name, text in texts.items():
            (folder / name).write_text(text)
        yield Apt(suite=suite, folder=folder, settings=folder / "conf")


def _package(match: re.Match[str]) -> SystemPackage:
    address, name, version, architecture, size, sha256 = match.groups()
    path = unquote(address)
    start = path.find("/pool/") + 1 or path.rfind("/") + 1
    value = {
        "name": name,
        "version": unquote(version),
        "architecture": architecture,
        "filename": path[start:],
        "sha256": sha256,
        "size": int(size),
    }
    try:
        return package_of(value)
    except ValueError as error:
        raise LockError(f"the mirror offers what cannot be locked: {error}", where=name, todo=WITHOUT) from error


def _said(output: str) -> str:
    """The end of what apt printed, without passwords."""
    lines = output.splitlines()
    first = next(
        (at for at, line in enumerate(lines) if "unmet dependencies" in line or line.startswith(("E:", "Err:"))), 0
    )
    told = [re.sub(r"//[^/@\s]*@", "//", line.strip()) for line in lines[first:][:8]]
    return "; ".join(line for line in told if line)
