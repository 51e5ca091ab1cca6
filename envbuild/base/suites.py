"""Where a base's own Debian or Ubuntu packages are, by the mirrors of this machine."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from envbuild.base.apt import Mirror, Source, find_mirror, read_sources, source_lines
from envbuild.errors import BaseError, MissingComponentError
from envbuild.image.debian import Ground
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.layout import ARCHITECTURES

WITHOUT = "go without them: --no-system-packages"
SOURCES = Path("/etc/apt")
_PROGRAMS = ("apt-get", "apt-cache")
_KEYRINGS = {
    "debian": ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"),
    "ubuntu": ("/usr/share/keyrings/ubuntu-archive-keyring.gpg",),
}
_CODENAME = re.compile(r"[a-z]{2,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Where a base's packages come from."""

    distribution: str
    """`debian`, `ubuntu`."""
    codename: str
    architecture: str
    lines: tuple[str, ...]
    """One-line sources, each with its keyrings."""

    @property
    def key(self) -> str:
        """The name of its folder: mirrors and keys are in it, by a digest, as an address may hold a password."""
        value = Digest.of(canonical_json(self.lines))
        return f"{self.distribution}-{self.codename}-{self.architecture}-{value.short}"


def find_suite(ground: Ground, machine: str, folder: Path) -> Suite:
    """Where the packages of a base are; MissingComponentError where this machine knows no such place."""
    _check_programs()
    distribution, codename = ground.release.get("ID", ""), ground.release.get("VERSION_CODENAME", "")
    if distribution not in _KEYRINGS or not _CODENAME.fullmatch(codename):
        what = f"system packages are for Debian and Ubuntu, and the base is {distribution or 'neither'} {codename}"
        raise BaseError(what.rstrip(), where="the base's os-release", todo=WITHOUT)
    keys, lines = _lines(distribution, codename, folder)
    signed = f"deb [signed-by={','.join(keys)}] " if keys else "deb "
    return Suite(
        distribution=distribution,
        codename=codename,
        architecture=ARCHITECTURES[machine],
        lines=tuple(signed + line.removeprefix("deb ") for line in lines),
    )


def _check_programs() -> None:
    if lacking := [it for it in _PROGRAMS if shutil.which(it) is None]:
        what = f"the base lacks Debian packages of the run, and {lacking[0]}, which finds them, is absent"
        raise MissingComponentError(what, where="PATH", todo=f"build on Debian or Ubuntu; or {WITHOUT}")


def _lines(distribution: str, codename: str, folder: Path) -> tuple[list[str], list[str]]:
    """The keyrings and the sources of a suite, by the mirror of this machine."""
    if distribution == "debian":
        mirror = _debian_mirror(folder)
        lines = list(source_lines(codename, mirror).values())
    else:
        mirror = _ubuntu_mirror(folder)
        suites = (codename, f"{codename}-updates", f"{codename}-security")
        lines = [f"deb {mirror.archive} {suite} main universe" for suite in suites]
    keys = [it for it in (*_KEYRINGS[distribution], *mirror.keyrings) if Path(it).exists()]
    return list(dict.fromkeys(keys)), lines


def _debian_mirror(folder: Path) -> Mirror:
    try:
        return find_mirror(folder)
    except BaseError as error:
        what = "the base is of Debian, and apt here names no mirror of Debian's"
        raise MissingComponentError(what, where=str(folder), todo=f"build on Debian; or {WITHOUT}") from error


def _ubuntu_mirror(folder: Path) -> Mirror:
    found = [it for it in read_sources(folder) if "main" in it.components and _is_ubuntu(it)]
    if not found:
        what = "the base is of Ubuntu, and apt here names no mirror of Ubuntu's"
        raise MissingComponentError(what, where=str(folder), todo=f"build on Ubuntu; or {WITHOUT}")
    keyrings = (found[0].signed_by,) if found[0].signed_by.startswith("/") else ()
    return Mirror(archive=found[0].address, security=None, keyrings=keyrings)


def _is_ubuntu(source: Source) -> bool:
    return source.address.rstrip("/").rpartition("/")[2] in ("ubuntu", "ubuntu-ports")
