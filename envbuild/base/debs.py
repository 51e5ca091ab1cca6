"""The files of Debian packages: in the cache, from the mirror, in a build context."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.base.packages import apt_for
from envbuild.base.suites import WITHOUT, Suite
from envbuild.cache import remove
from envbuild.errors import LockError
from envbuild.files import is_no_file, settle, written_aside
from envbuild.lock.model import Lock, SystemPackage
from envbuild.oci.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class DebFiles:
    """Packages' files, in the cache or on the mirror."""

    packages: Sequence[SystemPackage]
    suite: Suite
    status: str
    cache: Path
    offline: bool = False

    def path(self, package: SystemPackage) -> Path:
        """A package's file, verified as it was fetched; LockError where it cannot be had."""
        if not self._is_here(package):
            self.fetch()
        return deb_path(self.cache, package.sha256)

    def fetch(self) -> None:
        """Fetch what lacks, all at once."""
        lacking = [it for it in self.packages if not self._is_here(it)]
        if lacking and self.offline:
            names = ", ".join(it.name for it in lacking)
            raise LockError(f"system packages are not in the cache: {names}", where="--offline", todo=WITHOUT)
        if not lacking:
            return
        with apt_for(self.suite, self.status, self.cache) as apt, tempfile.TemporaryDirectory() as name:
            if not apt.has_lists:
                apt.update(lambda _: None)
            apt.download(lacking, Path(name))
            files = sorted(Path(name).glob("*.deb"))
            found = {sha256: path for path in files for sha256 in [_digest(path)]}
            for it in lacking:
                if it.sha256 not in found:
                    what = f"the mirror serves another file of {it.name} {it.version} than its signed list says"
                    raise LockError(what, where=it.filename, todo=f"find out why before using it; or {WITHOUT}")
                _keep(found[it.sha256], self.cache, it.sha256)

    def _is_here(self, package: SystemPackage) -> bool:
        """Read a package of the cache; a damaged one is removed."""
        place = deb_path(self.cache, package.sha256)
        try:
            if _digest(place) == package.sha256:
                return True
        except OSError as error:
            if not is_no_file(error):
                return False
        remove(place)
        return False


def deb_path(cache: Path, sha256: Digest) -> Path:
    """Where a package with this digest lies in the cache."""
    return cache / "debs" / sha256.hex[:2] / f"{sha256.hex}.deb"


def copy_debs(lock: Lock, cache: Path, folder: Path) -> None:
    """Put fetched packages into `debs/` of a build context, under the names that apt gives them; LockError else."""
    for it in lock.packages:
        source = deb_path(cache, it.sha256)
        if not source.is_file() or _digest(source) != it.sha256:
            raise LockError(
                "a system package is not in the cache", where=it.basename, todo="build again, with a network"
            )
        (folder / "debs").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / "debs" / it.basename)


def _digest(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest.of_file(file)[0]


def _keep(source: Path, cache: Path, sha256: Digest) -> None:
    place = deb_path(cache, sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(place.parent) as (file, temporary), source.open("rb") as original:
        shutil.copyfileobj(original, file)
        settle(file, temporary, place)
