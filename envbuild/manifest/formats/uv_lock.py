"""`uv.lock`: what `uv sync` installs of a project in the run's environment."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envbuild.errors import ManifestError
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import PLATFORM, Pins, index_origin, origin_of, sha256_of
from envbuild.manifest.formats.record import Faults, Record, clean, text_at, text_of, toml_of
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Distribution, Origin

_DEFAULT_GROUP = "dev"
"""The one that `uv sync` installs unless it is told otherwise."""
_AGAIN = "write it again: uv lock"
_OTHERWISE = "for what they hold, take `uv pip freeze`, or `uv export --format pylock.toml` with the run's options"

Values = Mapping[str, Any]


def read_uv_lock(record: Record, given: Given) -> Found:
    """Read what `uv sync` installs: the project's dependencies and its group dev; ManifestError."""
    values, faults = toml_of(record, text_of(record)), Faults(record.name)
    platform, python = known_platform(Platform(), given), exact_python(None, given, record.name)
    surroundings = Surroundings(python=python, system=platform.system, machine=platform.machine)
    _check_python(values, surroundings, faults)
    walk = _Walk(_packages(values, record), Pins(surroundings, faults))
    roots = walk.roots()
    for root in roots:
        walk.follow(root)
    faults.check()
    return Found(
        python=python,
        platform=platform,
        distributions=walk.pins.distributions,
        complete=True,
        tool="uv",
        notes=tuple(_left_out(roots)),
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    """Follows dependencies from the project."""

    packages: list[Values]
    pins: Pins
    seen: set[tuple[int, str]] = field(default_factory=set)

    def roots(self) -> list[Values]:
        """The project at `.`; of a workspace without one, all its members."""
        members = [it for it in self.packages if _folder(it) is not None]
        roots = [it for it in members if _folder(it) == "."] or members
        if not roots:
            self.pins.faults.add("package: the lock has no project", _AGAIN)
        return roots

    def follow(self, root: Values) -> None:
        """Take all that a project depends on."""
        waiting = deque(_dependencies(root, "dependencies"))
        waiting += _dependencies(root.get("dev-dependencies"), _DEFAULT_GROUP)
        while waiting:
            dependency = waiting.popleft()
            package = self._package(dependency)
            if package is not None:
                waiting += self._reached(package, dependency)

    def _reached(self, package: Values, dependency: Values) -> Iterator[Values]:
        """Take a package, and give what it needs in turn, for each extra once."""
        for extra in ("", *(it for it in dependency.get("extra", ()) if isinstance(it, str))):
            if (id(package), extra) in self.seen:
                continue
            self.seen.add((id(package), extra))
            if extra:
                yield from _dependencies(package.get("optional-dependencies"), extra)
            else:
                self._take(package)
                yield from _dependencies(package, "dependencies")

    def _package(self, dependency: Values) -> Values | None:
        """Find what a dependency stands for in the run; None where its marker excludes it."""
        name = text_at(dependency, "name") or ""
        if not self._holds(dependency.get("marker"), f"whether {name} was installed"):
            return None
        found = [it for it in self.packages if it.get("name") == name and _fits(it, dependency)]
        if len(found) > 1:
            found = [it for it in found if self._forked(it, name)]
        if len(found) != 1:
            what = f"package: {name or 'a dependency'} is there {len(found)} times for this environment"
            self.pins.faults.add(what, _AGAIN if len(found) == 0 else PLATFORM)
        return found[0] if len(found) == 1 else None

    def _forked(self, package: Values, name: str) -> bool:
        """Whether a fork of the resolution is the run's."""
        markers = package.get("resolution-markers")
        question = f"which {name} was installed"
        return not markers or any(self._holds(it, question) for it in markers)

    def _holds(self, text: Any, question: str) -> bool:
        try:
            marker = Marker(text) if isinstance(text, str) and len(text) < 4000 else None
        except (InvalidMarker, RecursionError):
            self.pins.faults.add(f"package: this is no marker: {clean(str(text))}", _AGAIN)
            return False
        holds = self.pins.surroundings.holds(marker)
        if holds is None:
            self.pins.faults.add(f"package: {question} depends on where: {clean(str(marker))}", PLATFORM)
        return bool(holds)

    def _take(self, package: Values) -> None:
        origin = _origin(package)
        if origin is not None:
            name, version = text_at(package, "name") or "", text_at(package, "version")
            self.pins.add(Distribution(name=name, version=version, origin=origin), f"package {clean(name)}")


def _packages(values: Values, record: Record) -> list[Values]:
    packages = values.get("package")
    if values.get("version") != 1 or not isinstance(packages, list):
        what = f"this is no uv.lock of version 1: it says version {clean(str(values.get('version')))}"
        raise ManifestError(what, where=record.name, todo="write it with a uv that writes version 1")
    return [it for it in packages if isinstance(it, dict) and text_at(it, "name")]


def _check_python(values: Values, run: Surroundings, faults: Faults) -> None:
    wanted = text_at(values, "requires-python")
    try:
        fits = not wanted or SpecifierSet(wanted).contains(run.version, prereleases=True)
    except InvalidSpecifier:
        fits = True
    if not fits:
        what = f"requires-python: the lock is for Python {wanted}, the run's is {run.python}"
        faults.add(what, "give the Python that the run had")


def _dependencies(holder: Any, key: str) -> list[Values]:
    items = holder.get(key) if isinstance(holder, dict) else None
    return [it for it in items if isinstance(it, dict)] if isinstance(items, list) else []


def _fits(package: Values, dependency: Values) -> bool:
    return all(key not in dependency or package.get(key) == dependency[key] for key in ("version", "source"))


def _folder(package: Values) -> str | None:
    """The folder of a project of the workspace; None for what comes from elsewhere."""
    return text_at(package, "source", "editable") or text_at(package, "source", "virtual")


def _origin(package: Values) -> Origin | None:
    """Say where a package comes from; None for the project itself and for what is never installed."""
    source = package.get("source")
    git, url, path = (text_at(source, key) for key in ("git", "url", "path"))
    folder = text_at(source, "editable") or text_at(source, "directory")
    if text_at(source, "virtual") or folder == ".":
        return None
    if git:
        return _git(git)
    if url or path:
        digest = next(iter(_hashes(package)), None)
        return Origin(kind="archive", url=origin_of(url or path or "").url, sha256=digest)
    if folder:
        return Origin(kind="editable", url=origin_of(folder).url)
    return index_origin(text_at(source, "registry"), tuple(sorted(_hashes(package))))


def _git(address: str) -> Origin:
    """Read `https://host/repository?subdirectory=x&rev=main#commit`."""
    bare, _, commit = address.partition("#")
    try:
        query = parse_qs(urlsplit(bare).query)
    except ValueError:
        query = {}
    asked = next((query[key][0] for key in ("rev", "tag", "branch") if key in query), "")
    subdirectory = query.get("subdirectory", [""])[0]
    return Origin(
        kind="vcs",
        url=clean(bare.partition("?")[0], 4000),
        commit=clean(commit) or None,
        requested_revision=clean(asked) or None,
        subdirectory=clean(subdirectory) or None,
    )


def _hashes(package: Values) -> set[str]:
    files = [*_dependencies(package, "wheels"), package.get("sdist")]
    return {digest for it in files if (digest := sha256_of(text_at(it, "hash")))}


def _left_out(roots: list[Values]) -> Iterator[str]:
    """Say what of the project itself is not taken."""
    for root in roots:
        name = clean(text_at(root, "name") or "")
        if text_at(root, "source", "editable"):
            yield f"the project {canonicalize_name(name)} itself is left out: the lock does not have its files"
        extras, groups = (root.get(key) for key in ("optional-dependencies", "dev-dependencies"))
        names = {*(extras if isinstance(extras, dict) else ()), *(groups if isinstance(groups, dict) else ())}
        if others := sorted(names - {_DEFAULT_GROUP}):
            yield f"extras and groups of {name} are left out: {', '.join(others)}; {_OTHERWISE}"
