"""Wheels that the run installed from an address: fetched from there, whatever an index has under their name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envbuild.errors import LockError
from envbuild.lock.download import fetch_unlocked, forget_damaged, wheel_path
from envbuild.lock.faults import NEWER_GLIBC, OWN_WHEEL, PUBLISH, Fault, describe, listed, newer_glibc
from envbuild.lock.index import local_path
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.settings import IndexSettings, bare_url
from envbuild.lock.tags import best_wheel, same_version
from envbuild.manifest.packages import Distribution, Origin
from envbuild.oci.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """A wheel from an address that the run's record names."""

    wheel: LockedWheel
    path: Path
    """Its file on this machine, by the wheel's own name."""
    hashed: bool
    """Whether the record has a hash of it."""

    @property
    def requirement(self) -> str:
        """What a resolver is asked for: this very file."""
        return f"{self.wheel.name} @ {self.path.as_uri()}"

    def misfit(self, target: Target) -> Fault | None:
        """Say why the wheel cannot be used on the target; None where it can."""
        wheel = self.wheel
        if best_wheel([(wheel.filename, wheel)], target) is not None:
            return None
        pin, newer = f"{wheel.name}=={wheel.version}", newer_glibc([wheel.filename], target)
        if newer:
            return Fault(requirement=pin, why=NEWER_GLIBC, todo="", glibc=newer)
        why = f"the run's wheel {wheel.url} does not fit {describe(target)}"
        return Fault(requirement=pin, why=why, todo=OWN_WHEEL)


def fetch_direct(
    distributions: Iterable[Distribution],
    settings: IndexSettings,
    cache: Path,
    folder: Path,
    say: Callable[[str], object],
) -> dict[str, Direct | Fault]:
    """Fetch the wheels of distributions that were installed from an address, by name; a Fault where that fails.

    A folder that find-links names is looked into first, and nothing is fetched with `--offline`. `folder` gets a link
    to each wheel under its own name. The hashes are not compared with the record's here: `lock` does that for all.
    """
    found: dict[str, Direct | Fault] = {}
    for it in distributions:
        if is_wheel_address(it.origin) and not settings.offline:
            name = str(canonicalize_name(it.name))
            try:
                found[name] = _fetched(it, settings, cache, folder, say)
            except LockError as error:
                why = f"its wheel cannot be fetched from {error.where}: {error.what}"
                found[name] = Fault(requirement=f"{name}=={it.version}", why=why, todo=f"{PUBLISH}; or {error.todo}")
    return found


def is_wheel_address(origin: Origin) -> bool:
    """Whether a distribution was installed from a wheel on a server, and from no index."""
    parts = urlsplit(origin.url or "")
    return origin.kind == "archive" and parts.scheme in {"http", "https"} and parts.path.endswith(".whl")


def elsewhere(locked: Lock, distributions: Iterable[Distribution], settings: IndexSettings) -> Iterator[str]:
    """Say what the record has from one place and the lock from another, unless the hash shows that it is the same."""
    run = {str(canonicalize_name(it.name)): it for it in distributions}
    asked = {_index(it) for it in settings.indexes}
    others: dict[str, list[str]] = {}
    for wheel in locked.wheels:
        had = run.get(wheel.name)
        if had is None or not same_version(had.version, wheel.version) or had.origin.kind not in {"index", "archive"}:
            continue
        place, hashes = bare_url(had.origin.url or ""), {had.origin.sha256, *had.origin.hashes}
        same = wheel.url == place or wheel.sha256.hex in hashes or _index(place) in asked
        if place and not same and local_path(wheel.url) is None:
            others.setdefault(place, []).append(f"{wheel.name} {wheel.version}")
    here = " or ".join(map(bare_url, settings.indexes))
    for place, names in others.items():
        are = "is" if len(names) == 1 else "are"
        yield f"{listed(names)} {are} recorded from {place} and taken from {here}"


def unhashed(locked: Lock, direct: Mapping[str, Direct | Fault]) -> Iterator[str]:
    """Say of which wheels that came from an address the record has no hash."""
    for name in locked.direct:
        it = direct[name]
        if isinstance(it, Direct) and not it.hashed:
            yield f"the record has no hash of {it.wheel.url}: locked is what is there now, {it.wheel.sha256}"


def _fetched(
    distribution: Distribution, settings: IndexSettings, cache: Path, folder: Path, say: Callable[[str], object]
) -> Direct:
    origin, url = distribution.origin, bare_url(distribution.origin.url or "")
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    _check_name(filename, distribution, url)
    known = Digest(origin.sha256) if origin.sha256 else None
    if source := _beside(filename, settings.find_links):
        with source.open("rb") as file:
            sha256 = Digest.of_file(file)[0]
    elif known and _is_kept(known, cache):
        sha256 = known
    else:
        say(f"fetching {url}")
        sha256 = fetch_unlocked(url, cache, settings)
    source = source or wheel_path(cache, sha256)
    link = folder / filename
    link.symlink_to(source)
    wheel = LockedWheel(
        name=canonicalize_name(distribution.name),
        version=distribution.version or "",
        filename=filename,
        sha256=sha256,
        size=source.stat().st_size,
        url=url if source.is_relative_to(cache) else source.as_uri(),
    )
    return Direct(wheel=wheel, path=link, hashed=known is not None)


def _check_name(filename: str, distribution: Distribution, url: str) -> None:
    """LockError where an address ends in no wheel's file name, or in that of another distribution or version."""
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise LockError(f"no wheel's file name: {error}", where=url, todo=OWN_WHEEL) from error
    same = name == canonicalize_name(distribution.name) and same_version(distribution.version, str(version))
    if "/" in filename or not same:
        what = f"it is a wheel of {name} {version}, not of {distribution.name} {distribution.version}"
        raise LockError(what, where=url, todo=OWN_WHEEL)


def _beside(filename: str, find_links: Sequence[str]) -> Path | None:
    paths = (Path(place) / filename for place in find_links if "://" not in place)
    return next((path for path in paths if path.is_file()), None)


def _is_kept(sha256: Digest, cache: Path) -> bool:
    """Whether the cache has the wheel, whose bytes are what they were."""
    forget_damaged(cache, sha256)
    return wheel_path(cache, sha256).is_file()


def _index(address: str) -> str:
    return bare_url(address).rstrip("/").lower()
