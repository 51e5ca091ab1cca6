"""apt: this machine's sources (sources.list(5)), and Debian packages for a base, found and downloaded by apt itself.

apt runs in a folder of its own, with the base's record of installed packages, so its result is what `apt-get install`
would download in a container of the base. Of this machine only the mirrors are used; its packages are neither read nor
changed (apt-get(8), apt.conf(5)).
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from subprocess import PIPE, STDOUT
from urllib.parse import unquote

from envbuild.errors import BaseError, LockError, MissingComponentError
from envbuild.image.debian.layer import BaseSystem
from envbuild.lock.model import SystemPackage, package_of
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.layout import ARCHITECTURES
from envbuild.process import running
from envbuild.report import Reporter

_ROLLING = ("sid", "unstable", "experimental")
_LINE = re.compile(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:[ \t]+[^\s#]+)*)", re.MULTILINE)
_FIELD = re.compile(r"^([A-Za-z-]+):(.*)$", re.MULTILINE)
WITHOUT = "go without them: --no-system-packages"
SOURCES = Path("/etc/apt")
_PROGRAMS = ("apt-get", "apt-cache")
KEYRINGS = {
    "debian": ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"),
    "ubuntu": ("/usr/share/keyrings/ubuntu-archive-keyring.gpg",),
}
CODENAME = re.compile(r"[a-z]{2,39}")
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


@dataclass(frozen=True, slots=True)
class AptSource:
    """One address that apt reads packages from."""

    address: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str
    """Path of a keyring, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The machine's own mirror, which has other suites than the machine's too."""

    archive: str
    security: str | None
    keyrings: tuple[str, ...] = ()
    """Keyrings of a mirror that signs with a key of its own."""


def find_mirror(folder: Path) -> Mirror:
    """Read the machine's own mirror from apt's folder of settings; BaseError if there is none."""
    sources = [source for source in read_sources(folder) if "main" in source.components]
    security = [source for source in sources if any(suite.endswith("-security") for suite in source.suites)]
    archives = [source for source in sources if source not in security and _likeness(source)]
    if not archives:
        todo = "give --base an image in a registry or an OCI layout, or run on Debian"
        raise BaseError("apt has no Debian mirror in its sources", where=str(folder), todo=todo)
    used = [max(archives, key=_likeness), *sorted(security, key=_likeness, reverse=True)[:1]]
    keyrings = tuple(dict.fromkeys(source.signed_by for source in used if source.signed_by.startswith("/")))
    return Mirror(archive=used[0].address, security=used[1].address if used[1:] else None, keyrings=keyrings)


def _likeness(source: AptSource) -> int:
    """Return how much an address looks like a Debian archive: other archives may have the same suites."""
    last = source.address.rstrip("/").rpartition("/")[2]
    return 2 if last in ("debian", "debian-security") else int("debian" in last)


def source_lines(suite: str, mirror: Mirror) -> dict[str, str]:
    """Return one-line sources by name: the suite itself, its updates, and its security archive."""
    lines = {suite: f"deb {mirror.archive} {suite} main"}
    if suite not in _ROLLING:
        lines[f"{suite}-updates"] = f"deb {mirror.archive} {suite}-updates main"
        if mirror.security:
            lines[f"{suite}-security"] = f"deb {mirror.security} {suite}-security main"
    return lines


def read_sources(folder: Path) -> Sequence[AptSource]:
    """Read all sources of apt; `folder` is `/etc/apt`. Files that cannot be read are left out."""
    found: list[AptSource] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if path.suffix == ".list":
            for options, address, suite, components in _LINE.findall(text):
                signed_by = next((it.partition("=")[2] for it in options.split() if it.startswith("signed-by=")), "")
                found.append(AptSource(address, (suite,), tuple(components.split()), signed_by))
        elif path.suffix == ".sources":
            found += _deb822(text)
    return found


def _deb822(text: str) -> Iterator[AptSource]:
    for stanza in re.split(r"\n\s*\n", text):
        fields = {name.lower(): value.split() for name, value in _FIELD.findall(stanza)}
        if "deb" in fields.get("types", ()) and fields.get("enabled") != ["no"]:
            signed_by = " ".join(fields.get("signed-by", ()))
            suites, components = tuple(fields.get("suites", ())), tuple(fields.get("components", ()))
            yield from (AptSource(address, suites, components, signed_by) for address in fields.get("uris", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The sources of a base's packages."""

    distribution: str
    """`debian`, `ubuntu`."""
    codename: str
    architecture: str
    lines: tuple[str, ...]
    """One-line sources, each with its keyrings."""

    @property
    def key(self) -> str:
        """The name of its folder; mirrors and keys are in it as a digest, as an address may hold a password."""
        value = Digest.of(canonical_json(self.lines))
        return f"{self.distribution}-{self.codename}-{self.architecture}-{value.short}"


def find_suite(base: BaseSystem, machine: str, folder: Path) -> Suite:
    """Return the sources for a base; BaseError for another system, MissingComponentError without a mirror of it."""
    if lacking := [it for it in _PROGRAMS if shutil.which(it) is None]:
        what = f"the base lacks Debian packages of the run, and {lacking[0]}, which finds them, is not installed"
        raise MissingComponentError(what, where="PATH", todo=f"build on Debian or Ubuntu; or {WITHOUT}")
    distribution, codename = base.release.get("ID", ""), base.release.get("VERSION_CODENAME", "")
    if distribution not in KEYRINGS or not CODENAME.fullmatch(codename):
        what = f"system packages are for Debian and Ubuntu, and the base is {distribution or 'neither'} {codename}"
        raise BaseError(what.rstrip(), where="the base's os-release", todo=WITHOUT)
    if distribution == "debian":
        try:
            mirror = find_mirror(folder)
        except BaseError as error:
            what = "the base is Debian, and apt here has no Debian mirror in its sources"
            raise MissingComponentError(what, where=str(folder), todo=f"build on Debian; or {WITHOUT}") from error
        lines = list(source_lines(codename, mirror).values())
    else:
        mirror = _ubuntu_mirror(folder)
        suites = (codename, f"{codename}-updates", f"{codename}-security")
        lines = [f"deb {mirror.archive} {suite} main universe" for suite in suites]
    keys = dict.fromkeys(it for it in (*KEYRINGS[distribution], *mirror.keyrings) if Path(it).exists())
    signed = f"deb [signed-by={','.join(keys)}] " if keys else "deb "
    signed_lines = tuple(signed + line.removeprefix("deb ") for line in lines)
    architecture = ARCHITECTURES[machine]
    return Suite(distribution=distribution, codename=codename, architecture=architecture, lines=signed_lines)


def _ubuntu_mirror(folder: Path) -> Mirror:
    for it in read_sources(folder):
        if "main" in it.components and it.address.rstrip("/").rpartition("/")[2] in ("ubuntu", "ubuntu-ports"):
            keyrings = (it.signed_by,) if it.signed_by.startswith("/") else ()
            return Mirror(archive=it.address, security=None, keyrings=keyrings)
    what = "the base is Ubuntu, and apt here has no Ubuntu mirror in its sources"
    raise MissingComponentError(what, where=str(folder), todo=f"build on Ubuntu; or {WITHOUT}")


def lost_archives(messages: str) -> set[str]:
    """Return the suites that a mirror no longer has or signs, by apt's messages."""
    return {*_GONE.findall(messages), *_EXPIRED.findall(messages)}


def hide_password(line: str) -> str:
    """Remove the login from addresses in a line."""
    return re.sub(r"//[^/@\s]*@", "//", line)


def network_variables() -> dict[str, str]:
    """Return the environment variables that lead to the network."""
    return {name: it for name, it in os.environ.items() if name.lower().endswith("_proxy") or name.startswith("SSL_")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Apt:
    """apt in a folder of its own, with a base's packages as the installed ones."""

    suite: Suite
    folder: Path
    settings: Path
    """The file for APT_CONFIG."""

    def versions(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the available versions of packages, apt's choice first; unknown names are left out."""
        status, output = self._run("apt-cache", "madison", *names)
        found: dict[str, list[str]] = {}
        for line in output.splitlines() if status == 0 else ():
            name, version, *_ = (part.strip() for part in (*line.split("|"), ""))
            if name in names and version and version not in found.setdefault(name, []):
                found[name].append(version)
        return {name: tuple(versions) for name, versions in found.items()}

    def resolve(self, requests: Sequence[tuple[str, str]]) -> tuple[SystemPackage, ...]:
        """Return packages with their dependencies that the base lacks, sorted by name; LockError if apt fails."""
        words = [f"{name}={version}" for name, version in requests]
        status, output = self._run("apt-get", "install", "--print-uris", "--yes", "--no-remove", *words)
        if status:
            what = f"apt cannot install the run's system packages: {_reason(output)}"
            raise LockError(what, where=self.suite.codename, todo=WITHOUT)
        return tuple(sorted(map(_package, _ADDRESS.finditer(output)), key=lambda it: it.name))

    def download(self, packages: Sequence[SystemPackage], target: Path) -> None:
        """Download packages into a folder; LockError if the mirror no longer has one."""
        words = [f"{it.name}={it.version}" for it in packages]
        status, output = self._run("env", f"--chdir={target}", "apt-get", "download", *words)
        if status:
            what = f"system packages cannot be downloaded: {_reason(output)}"
            todo = f"build again, which locks the current packages; or {WITHOUT}"
            raise LockError(what, where=self.suite.codename, todo=todo)

    def update(self, report: Reporter) -> None:
        """Download the signed lists of the mirror; LockError if that fails.

        Reports if an old suite has lost its updates or security archive, or their signature has expired.
        """
        status, output = self._run("apt-get", "update")
        for suite in sorted(lost_archives(output) - {self.suite.codename}):
            report.step(f"the mirror no longer has {suite}: system packages are looked for without it")
            status = 0
        if status or not self.has_lists:
            todo = f"check that apt's own mirror serves {self.suite.codename} (apt-get update); or {WITHOUT}"
            raise LockError(f"cannot download apt's lists: {_reason(output)}", where=self.suite.codename, todo=todo)

    @property
    def has_lists(self) -> bool:
        """Whether lists were downloaded, now or earlier."""
        return any((self.folder / "var/lib/apt/lists").glob("*Packages*"))

    def _run(self, *command: str) -> tuple[int, str]:
        fixed = {"LC_ALL": "C.UTF-8", "HOME": "/root", "APT_CONFIG": str(self.settings)}
        fixed["PATH"] = os.environ.get("PATH", os.defpath)
        with running(command, network_variables() | fixed, stdout=PIPE, stderr=STDOUT) as process:
            output, _ = process.communicate()
            return process.returncode, output.decode(errors="replace")


@contextmanager
def apt_for(suite: Suite, status: str, cache: Path) -> Iterator[Apt]:
    """Yield apt for a base with this dpkg status; one run works in the folder, and others wait."""
    folder = cache / "apt" / suite.key
    settings = ("etc/apt/apt.conf.d", "etc/apt/preferences.d")
    for part in (*settings, "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
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
        what = f"the mirror offers a package that cannot be locked: {error}"
        raise LockError(what, where=name, todo=WITHOUT) from error


def _reason(output: str) -> str:
    """Return the end of apt's messages, without passwords."""
    lines = output.splitlines()
    starts = ("E:", "Err:")
    first = next((at for at, it in enumerate(lines) if "unmet dependencies" in it or it.startswith(starts)), 0)
    return "; ".join(filter(None, (hide_password(line.strip()) for line in lines[first:][:8])))
