"""The Debian packages that a run had libraries loaded from: chosen for the base of its image, locked, downloaded."""

import posixpath
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuild.base.apt import SOURCES, WITHOUT, Suite, apt_for, find_suite
from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import LockError
from envbuild.files import is_no_file, settle, written_aside
from envbuild.image.debian.layer import BaseSystem, Folder, SystemLayer
from envbuild.lock.model import Lock, SystemPackage
from envbuild.lock.system import BaseContents, choose_packages, distribution_name, find_missing, wanted_packages
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.rootfs import read_tree, resolve
from envbuild.recipe import Base
from envbuild.report import SILENT, Reporter

_FORMAT = 1
"""Raised whenever something else would be read from the same base."""
_STATUS = "/var/lib/dpkg/status"
_RELEASES = ("/etc/os-release", "/usr/lib/os-release")
_RELEASE_LINE = re.compile(r"""^([A-Z_]+)=(["']?)([^"'\n]*)\2$""", re.MULTILINE)
_RELEASE_KEYS = ("ID", "VERSION_ID", "VERSION_CODENAME")


def read_base_system(image: Image, name: str, folder: Path) -> BaseSystem:
    """Read dpkg's records, folders and links of a base; BaseError as `read_tree`. `folder` remembers them."""
    entry = f"system-{image.digest.hex}-{_FORMAT}.json"
    if (known := read_entry(folder, entry, _decode)) is not None:
        return known
    tree = read_tree(image, name)
    texts = {
        path: tree[place[1:]].content.decode(errors="replace")
        for path in (_STATUS, *_RELEASES)
        if (place := resolve(tree, path)) and place != "/"
    }
    release = next((texts[it] for it in _RELEASES if it in texts), "")
    fields = {key: value for key, _, value in _RELEASE_LINE.findall(release)}
    if "VERSION_CODENAME" not in fields and (words := re.search(r"\(([a-z]+)\)", fields.get("VERSION", ""))):
        fields["VERSION_CODENAME"] = words[1]  # older releases have it in words only: `9 (stretch)`
    system = BaseSystem(
        status=texts.get(_STATUS, ""),
        release={key: fields[key] for key in _RELEASE_KEYS if key in fields},
        folders={
            path: Folder(mode=node.mode, owner=node.owner) for path, node in tree.items() if node.kind == "directory"
        },
        links={path: node.target for path, node in tree.items() if node.kind == "link"},
        settings=frozenset(path for path in tree if path.startswith("etc/") and tree[path].kind == "file"),
        libraries=frozenset(posixpath.basename(path) for path in tree if ".so" in path),
    )
    value = asdict(system) | {"settings": sorted(system.settings), "libraries": sorted(system.libraries)}
    write_entry(folder, entry, value)
    return system


def _decode(value: Any) -> BaseSystem:
    folders = {key: Folder(mode=it["mode"], owner=tuple(it["owner"])) for key, it in value.pop("folders").items()}
    settings, libraries = (frozenset(value.pop(key)) for key in ("settings", "libraries"))
    return BaseSystem(folders=folders, settings=settings, libraries=libraries, **value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebFiles:
    """The files of packages, in the cache or on the mirror."""

    packages: Sequence[SystemPackage]
    suite: Suite
    status: str
    cache: Path
    offline: bool = False

    def path(self, package: SystemPackage) -> Path:
        """Return a package's verified file; LockError if it is unavailable."""
        if not self._is_cached(package):
            self.fetch()
        return deb_path(self.cache, package.sha256)

    def fetch(self) -> None:
        """Download all packages that are not in the cache."""
        lacking = [it for it in self.packages if not self._is_cached(it)]
        if lacking and self.offline:
            names = ", ".join(it.name for it in lacking)
            raise LockError(f"system packages are not in the cache: {names}", where="--offline", todo=WITHOUT)
        if not lacking:
            return
        with apt_for(self.suite, self.status, self.cache) as apt, tempfile.TemporaryDirectory() as name:
            if not apt.has_lists:
                apt.update(SILENT)
            apt.download(lacking, Path(name))
            files = {_digest(path): path for path in sorted(Path(name).glob("*.deb"))}
            for it in lacking:
                if it.sha256 not in files:
                    what = f"the mirror serves another file of {it.name} {it.version} than its signed list states"
                    raise LockError(what, where=it.filename, todo=f"find out why before using it; or {WITHOUT}")
                place = deb_path(self.cache, it.sha256)
                place.parent.mkdir(parents=True, exist_ok=True)
                with written_aside(place.parent) as (file, temporary), files[it.sha256].open("rb") as original:
                    shutil.copyfileobj(original, file)
                    settle(file, temporary, place)

    def _is_cached(self, package: SystemPackage) -> bool:
        """Read a package in the cache; a damaged one is removed."""
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
    """Return the path in the cache for a package with this digest."""
    return cache / "debs" / sha256.hex[:2] / f"{sha256.hex}.deb"


def copy_debs(lock: Lock, cache: Path, folder: Path) -> None:
    """Copy cached packages into `debs/` of a build context, under apt's names for them; LockError if one is absent."""
    for it in lock.packages:
        source = deb_path(cache, it.sha256)
        if not source.is_file() or _digest(source) != it.sha256:
            todo = "build again, with a network"
            raise LockError("a system package is not in the cache", where=it.basename, todo=todo)
        (folder / "debs").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / "debs" / it.basename)


def _digest(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest.of_file(file)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The packages of the run's system that the base lacks, and how they get into the image."""

    packages: tuple[SystemPackage, ...] = ()
    """With their dependencies that the base lacks; sorted by name."""
    layer: SystemLayer | None = None
    """Unpacks them; None if there are none."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def fetch(self) -> None:
        """Download the packages into the cache; LockError if one is unavailable."""
        if self.layer:
            for package in self.packages:
                self.layer.find(package)


def lock_system(
    manifest: TrainingManifest,
    base: Base,
    cache: Path,
    report: Reporter,
    *,
    offline: bool = False,
    sources: Path = SOURCES,
) -> System:
    """Find the packages that the run had libraries loaded from and that the base lacks.

    `sources` is this machine's folder of apt settings, which names the mirrors. MissingComponentError if apt or a
    mirror is absent, LockError if packages are unavailable.
    """
    libraries = manifest.native.libraries if manifest.native else ()
    if not wanted_packages(manifest.native) and not any(it.owner.kind in ("rpm", "apk") for it in libraries):
        return System()
    system = read_base_system(base.image, base.name, cache / "bases" / "facts")
    missing = find_missing(manifest.native, BaseContents(installed=system.installed, libraries=system.libraries))
    if not missing.packages:
        return System(warnings=missing.warnings, notes=missing.notes)
    if not system.status:
        name = base.distribution or "the base"
        lacks = (
            f"{name} has no Debian packages: the image lacks {', '.join(it.libraries)} of the run's {it.name}"
            for it in missing.packages
        )
        return System(warnings=(*missing.warnings, *lacks), notes=missing.notes)
    suite = find_suite(system, base.target.machine, sources)
    ours = f"{suite.distribution} {suite.codename}"
    report.step(f"looking for {len(missing.packages)} system packages of the run in {ours}")
    with apt_for(suite, system.status, cache) as apt:
        if not offline:
            apt.update(report)
        elif not apt.has_lists:
            what = f"apt's lists of {ours} are not in the cache"
            raise LockError(what, where="--offline", todo=f"build once with a network; or {WITHOUT}")
        names = [name for it in missing.packages for name in (it.name, *it.other_names)]
        chosen = choose_packages(missing.packages, apt.versions(names), distribution_name(manifest.platform), ours)
        packages = apt.resolve(chosen.requests) if chosen.requests else ()
    if changed := [it for it in packages if it.name in ("libc6", "libpython3-stdlib", "python3-minimal")]:
        what = f"the run's system packages would replace the base's {changed[0].name}"
        raise LockError(what, where=base.name, todo=f"take a newer base; or {WITHOUT}")
    files = DebFiles(packages=packages, suite=suite, status=system.status, cache=cache, offline=offline)
    installed = system.installed
    replaced = (
        f"{it.name} {it.version} replaces the base's {installed[it.name]}, as the run's packages need it"
        for it in packages
        if it.name in installed
    )
    return System(
        packages=packages,
        layer=SystemLayer(base=system, find=files.path) if packages else None,
        warnings=(*missing.warnings, *chosen.warnings, *replaced),
        notes=missing.notes,
    )


def unpacker(packages: Sequence[SystemPackage], base: Base, cache: Path, folder: Path) -> SystemLayer | None:
    """Return what unpacks locked packages; None for none. MissingComponentError, LockError, BaseError.

    Packages are downloaded into `cache`; `folder` keeps what is read from the base.
    """
    if not packages:
        return None
    system = read_base_system(base.image, base.name, folder)
    suite = find_suite(system, base.target.machine, SOURCES)
    files = DebFiles(packages=packages, suite=suite, status=system.status, cache=cache)
    return SystemLayer(base=system, find=files.path)
