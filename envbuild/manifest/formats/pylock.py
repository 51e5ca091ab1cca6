"""`pylock.toml` (PEP 751), as pip, uv and others write it, and as envbuild itself does."""

from collections.abc import Iterator

from packaging.pylock import Package, Pylock, PylockValidationError

from envbuild.errors import ManifestError
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import PLATFORM, Pins, file_name, index_origin, origin_of, sha256_of
from envbuild.manifest.formats.record import Faults, Record, clean, text_at, text_of, toml_of
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Distribution, Origin


def read_pylock(record: Record, given: Given) -> Found:
    """Read what such a file has an installer install, without extras and with its default groups; ManifestError."""
    pylock, faults = _pylock(record), Faults(record.name)
    ours = (pylock.tool or {}).get("envbuild")
    python = exact_python(text_at(ours, "python"), given, record.name)
    platform = known_platform(_platform(text_at(ours, "machine"), text_at(ours, "glibc")), given)
    pins = Pins(Surroundings(python=python, system=platform.system, machine=platform.machine), faults)
    _check_target(pylock, pins)
    for index, package in enumerate(pylock.packages):
        _take(package, f"packages[{index}]", pylock, pins)
    faults.check()
    return Found(
        python=python,
        platform=platform,
        distributions=pins.distributions,
        complete=True,
        tool=clean(pylock.created_by),
        notes=tuple(_left_out(pylock)),
    )


def _pylock(record: Record) -> Pylock:
    try:
        return Pylock.from_dict(toml_of(record, text_of(record)))
    except (PylockValidationError, ValueError, RecursionError) as error:
        what = f"this is no valid pylock.toml: {clean(str(error))}"
        raise ManifestError(what, where=record.name, todo="have the tool that locked write it again") from error


def _platform(machine: str | None, glibc: str | None) -> Platform:
    """What envbuild locked for; other tools do not say it."""
    return Platform(
        system="Linux" if machine else None,
        machine=clean(machine) if machine else None,
        libc="glibc" if glibc else None,
        libc_version=clean(glibc) if glibc else None,
    )


def _check_target(pylock: Pylock, pins: Pins) -> None:
    """Refuse a run that the lock is not for."""
    run = pins.surroundings
    if pylock.requires_python and not pylock.requires_python.contains(run.version, prereleases=True):
        what = f"requires-python: the lock is for Python {pylock.requires_python}, the run's is {run.python}"
        pins.faults.add(what, "give the Python that the run had")
    answers = [run.holds(it) for it in pylock.environments or ()]
    if answers and not any(it is not False for it in answers):
        pins.faults.add("environments: the lock is for none like the run's", "say where the run was: --ran-on")


def _take(package: Package, place: str, pylock: Pylock, pins: Pins) -> None:
    holds = pins.surroundings.holds(package.marker, pylock.default_groups or ())
    if holds is None:
        what = f"{place}: whether {package.name} was installed depends on where: {package.marker}"
        return pins.faults.add(what, PLATFORM)
    if not holds:
        return None
    origin, version = _origin(package), str(package.version) if package.version else _version(package)
    return pins.add(Distribution(name=package.name, version=version, origin=origin), place)


def _origin(package: Package) -> Origin:
    if package.vcs:
        vcs = package.vcs
        place = origin_of(f"{vcs.type}+{vcs.url or vcs.path}").url
        asked = vcs.requested_revision
        return Origin(
            kind="vcs",
            url=place,
            commit=clean(vcs.commit_id),
            requested_revision=asked and clean(asked),
            subdirectory=vcs.subdirectory and clean(vcs.subdirectory),
        )
    if package.directory:
        return Origin(kind="editable", url=origin_of(package.directory.path).url)
    if package.archive:
        archive = package.archive
        digest = sha256_of(archive.hashes.get("sha256"))
        return Origin(kind="archive", url=origin_of(archive.url or archive.path or "").url, sha256=digest)
    return index_origin(package.index, tuple(sorted(_hashes(package))))


def _hashes(package: Package) -> set[str]:
    hashes = [it.hashes for it in package.wheels or ()] + ([package.sdist.hashes] if package.sdist else [])
    return {digest for it in hashes if (digest := sha256_of(it.get("sha256")))}


def _version(package: Package) -> str | None:
    """Take the version from the name of a file, where the package itself has none."""
    archive = package.archive
    names = [it.filename for it in package.wheels or ()] + [(archive.url or archive.path or "") if archive else ""]
    return next((read[1] for name in names if (read := file_name(name))), None)


def _left_out(pylock: Pylock) -> Iterator[str]:
    extras, groups = pylock.extras or (), set(pylock.dependency_groups or ()) - set(pylock.default_groups or ())
    if extras or groups:
        names = ", ".join(sorted({*extras, *groups}))
        yield f"the lock's extras and groups are left out, as installers do unless told otherwise: {names}"
