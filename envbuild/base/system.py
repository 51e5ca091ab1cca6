"""What unpacked Debian packages meet in a base, read from its layers once and kept."""

import posixpath
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuild.base.apt import SOURCES, WITHOUT, Apt, Suite, apt_for, find_suite
from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import LockError
from envbuild.files import is_no_file, settle, written_aside
from envbuild.image.debian.layer import Folder, Ground, SystemLayer
from envbuild.lock.model import Lock, SystemPackage
from envbuild.lock.system import BaseContents, Chosen, Missing, choose, distribution_name, find_missing, wanted_packages
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.rootfs import Tree, contents, read_tree, resolve
from envbuild.recipe import Base

_FORMAT = 1
"""Raised whenever something else would be read from the same bytes."""
_STATUS = "/var/lib/dpkg/status"
_RELEASES = ("/etc/os-release", "/usr/lib/os-release")
_MOST = 64 << 20
"""Bytes of a file that is read whole; a database of ten thousand packages has 20 MB."""
_LINE = re.compile(r"""^([A-Z_]+)=(["']?)([^"'\n]*)\2$""", re.MULTILINE)
_KEYS = ("ID", "VERSION_ID", "VERSION_CODENAME")


def read_ground(image: Image, name: str, cache: Path) -> Ground:
    """What lies in a base, from the cache where it was read before; BaseError when a layer cannot be read."""
    folder, kept = cache / "bases" / "facts", f"{image.digest.hex}-ground-{_FORMAT}.json"
    if (found := read_entry(folder, kept, _decode)) is not None:
        return found
    ground = _read(image, name)
    value = asdict(ground) | {"settings": sorted(ground.settings), "libraries": sorted(ground.libraries)}
    write_entry(folder, kept, value)
    return ground


def _decode(value: Any) -> Ground:
    folders = {key: Folder(mode=it["mode"], owner=tuple(it["owner"])) for key, it in value.pop("folders").items()}
    settings, libraries = (frozenset(value.pop(key)) for key in ("settings", "libraries"))
    return Ground(folders=folders, settings=settings, libraries=libraries, **value)


def _read(image: Image, name: str) -> Ground:
    tree = read_tree(image, name)
    texts = _texts(image, tree, name)
    return Ground(
        status=texts.get(_STATUS, ""),
        release=_release(next((texts[it] for it in _RELEASES if it in texts), "")),
        folders={
            path: Folder(mode=node.mode, owner=node.owner) for path, node in tree.items() if node.kind == "directory"
        },
        links={path: node.target for path, node in tree.items() if node.kind == "link"},
        settings=frozenset(path for path in tree if path.startswith("etc/") and tree[path].kind == "file"),
        libraries=frozenset(posixpath.basename(path) for path in tree if ".so" in path),
    )


def _texts(image: Image, tree: Tree, name: str) -> dict[str, str]:
    """The files that are read whole, by the path that they are asked for under."""
    places = {place[1:]: path for path in (_STATUS, *_RELEASES) if (place := resolve(tree, path))}
    found = contents(image, tree, places, name)
    return {places[place]: content.read(_MOST).decode(errors="replace") for place, _, content in found}


def _release(text: str) -> dict[str, Any]:
    """What os-release(5) says of the distribution; older ones name the release only in words: `9 (stretch)`."""
    said = {key: value for key, _, value in _LINE.findall(text)}
    if "VERSION_CODENAME" not in said and (words := re.search(r"\(([a-z]+)\)", said.get("VERSION", ""))):
        said["VERSION_CODENAME"] = words[1]
    return {key: said[key] for key in _KEYS if key in said}


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


Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What the base lacks of the run's system, and how it gets into the image."""

    packages: tuple[SystemPackage, ...] = ()
    """With everything that they need and the base lacks; sorted by name."""
    layer: SystemLayer | None = None
    """What the assembler unpacks them with; None where there are none."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def fetch(self) -> None:
        """Have the packages' files in the cache; LockError where they cannot be had."""
        if self.layer:
            for package in self.packages:
                self.layer.find(package)


def lock_system(
    manifest: TrainingManifest, base: Base, cache: Path, say: Say, *, offline: bool = False, sources: Path = SOURCES
) -> System:
    """Find the packages that the run had libraries loaded from and the base lacks; nothing for a run without such.

    The base's layers are read where nobody did so before. `sources` is apt's folder of settings here, which says where
    the mirrors are. MissingComponentError where apt or a mirror is absent,
    LockError where the packages cannot be had.
    """
    if not _has_system_libraries(manifest):
        return System()
    ground = read_ground(base.image, base.name, cache)
    missing = find_missing(manifest.native, BaseContents(installed=ground.installed, libraries=ground.libraries))
    if not missing.packages:
        return System(warnings=missing.warnings, notes=missing.notes)
    if not ground.status:
        return System(warnings=(*missing.warnings, *(_foreign_base(base, missing))), notes=missing.notes)
    suite = find_suite(ground, base.target.machine, sources)
    say(f"looking for {len(missing.packages)} system packages of the run in {suite.distribution} {suite.codename}")
    chosen, packages = _locked(manifest, missing, suite, ground, cache, say, offline=offline)
    _check_libc(packages, base)
    files = DebFiles(packages=packages, suite=suite, status=ground.status, cache=cache, offline=offline)
    replaced = [it for it in packages if it.name in ground.installed]
    return System(
        packages=packages,
        layer=SystemLayer(ground=ground, find=files.path) if packages else None,
        warnings=(*missing.warnings, *chosen.warnings, *_replaced(replaced, ground)),
        notes=missing.notes,
    )


def unpacker(packages: Sequence[SystemPackage], base: Base, cache: Path, folder: Path) -> SystemLayer | None:
    """What unpacks locked packages: their files are fetched into `cache`, and `folder` keeps what the base says.

    None for no packages. MissingComponentError, LockError and BaseError as `lock_system`.
    """
    if not packages:
        return None
    ground = read_ground(base.image, base.name, folder)
    suite = find_suite(ground, base.target.machine, SOURCES)
    return SystemLayer(
        ground=ground, find=DebFiles(packages=packages, suite=suite, status=ground.status, cache=cache).path
    )


def _has_system_libraries(manifest: TrainingManifest) -> bool:
    libraries = manifest.native.libraries if manifest.native else ()
    return bool(wanted_packages(manifest.native)) or any(it.owner.kind in ("rpm", "apk") for it in libraries)


def _foreign_base(base: Base, missing: Missing) -> list[str]:
    what = base.distribution or "the base"
    return [
        f"{what} has no packages of Debian's kind: the image lacks {', '.join(it.libraries)} of the run's {it.name}"
        for it in missing.packages
    ]


def _locked(
    manifest: TrainingManifest, missing: Missing, suite: Suite, ground: Ground, cache: Path, say: Say, *, offline: bool
) -> tuple[Chosen, tuple[SystemPackage, ...]]:
    with apt_for(suite, ground.status, cache) as apt:
        _refresh(apt, say, offline=offline)
        names = [name for it in missing.packages for name in (it.name, *it.other_names)]
        run, ours = distribution_name(manifest.platform), f"{suite.distribution} {suite.codename}"
        chosen = choose(missing.packages, apt.versions(names), run, ours)
        return chosen, apt.resolve(chosen.requests) if chosen.requests else ()


def _refresh(apt: Apt, say: Say, *, offline: bool) -> None:
    if not offline:
        apt.update(say)
    elif not apt.has_lists:
        what = f"apt's lists of {apt.suite.distribution} {apt.suite.codename} are not in the cache"
        raise LockError(what, where="--offline", todo=f"build once with a network; or {WITHOUT}")


def _check_libc(packages: Sequence[SystemPackage], base: Base) -> None:
    """What was read of the base would not hold any more."""
    if changed := [it for it in packages if it.name in ("libc6", "libpython3-stdlib", "python3-minimal")]:
        what = f"the run's system packages would replace the base's {changed[0].name}"
        raise LockError(what, where=base.name, todo=f"take a newer base; or {WITHOUT}")


def _replaced(packages: Sequence[SystemPackage], ground: Ground) -> list[str]:
    had = ground.installed
    return [
        f"{it.name} {it.version} replaces the base's {had[it.name]}, as the run's packages need it" for it in packages
    ]
