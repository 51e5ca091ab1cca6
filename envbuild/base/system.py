"""The Debian packages that a run had libraries loaded from, for the base of its image: decided, locked, at hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.base.debs import DebFiles
from envbuild.base.ground import read_ground
from envbuild.base.packages import Apt, apt_for
from envbuild.base.suites import SOURCES, WITHOUT, Suite, find_suite
from envbuild.errors import LockError
from envbuild.image.debian import Ground, SystemLayer
from envbuild.lock.model import SystemPackage
from envbuild.lock.system import (
    BaseContents,
    Chosen,
    Missing,
    choose,
    distribution_name,
    find_missing,
    wanted_packages,
)
from envbuild.manifest.model import TrainingManifest
from envbuild.recipe import Base

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
