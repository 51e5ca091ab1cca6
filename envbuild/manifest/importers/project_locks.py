"""`poetry.lock`, `pdm.lock`, `Pipfile.lock` and `uv.lock`: what these tools install in the run's environment."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from envbuild.errors import ManifestError
from envbuild.manifest.importers.environment import RecordOptions
from envbuild.manifest.importers.pins import (
    PLATFORM,
    Pins,
    index_origin,
    of_address,
    origin_of,
    parse_requirement,
    sha256_of,
)
from envbuild.manifest.importers.record import (
    Record,
    clean,
    dicts,
    json_of,
    quoted,
    text_at,
    text_of,
    texts,
    toml_of,
)
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import Distribution, Origin

_FREEZE = "give what `pip list --format=json` prints in the run's environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    """One package of a lock."""

    name: str
    version: str | None
    address: str | None
    """Where it comes from, as pip writes it; None for an index."""
    hashes: tuple[str, ...]
    python: str | None
    """The versions of Python that it is for."""
    marker: str | None
    """When it is installed; None where the lock does not say."""
    requires: tuple[tuple[str, str], ...] = ()
    """What it requires: names, each with the marker or nothing."""


def read_poetry_lock(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read what `poetry install` installs: all groups, no extras; ManifestError."""
    values = toml_of(record, text_of(record))
    old_files = values.get("metadata", {}).get("files", {}) if isinstance(values.get("metadata"), dict) else {}
    items = dicts(values.get("package"))
    packages = [_of_poetry(it, old_files) for it in items if it.get("optional") is not True]
    optional = {text_at(it, "name") or "" for it in items if it.get("optional") is True}
    indexes = {text_at(it, "source", "url") or "" for it in items if text_at(it, "source", "type") == "legacy"}
    notes = [f"packages of extras are left out: {', '.join(sorted(optional))}"] if optional else []
    notes += [f"the lock names the index {it}; give it to pip's or uv's settings" for it in sorted(indexes)]
    return _environment(packages, "poetry", None, record, options, notes)


def read_pdm_lock(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read what `pdm install` installs: the groups default and dev; ManifestError."""
    values = toml_of(record, text_of(record))
    items, wanted = dicts(values.get("package")), {"default", "dev"}
    groups = {group for it in items for group in texts(it.get("groups"))}
    packages = [_of_pdm(it) for it in items if wanted & set(texts(it.get("groups", ["default"])))]
    left = sorted(groups - wanted)
    notes = [f"groups of the lock are left out: {', '.join(left)}"] if left else []
    return _environment(packages, "pdm", None, record, options, notes)


def read_pipfile_lock(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read what `pipenv install` installs: the category default; ManifestError."""
    values = json_of(record, text_of(record))
    default = values.get("default") if isinstance(values, dict) else None
    items = default.items() if isinstance(default, dict) else ()
    packages = [_of_pipfile(name, it) for name, it in items if isinstance(it, dict)]
    required = ("_meta", "requires")
    python = text_at(values, *required, "python_full_version") or text_at(values, *required, "python_version")
    left = sorted(it for it in values if it not in {"_meta", "default"} and values[it])
    notes = [f"categories of the lock are left out: {', '.join(left)}"] if left else []
    return _environment(packages, "pipenv", python, record, options, notes)


def _environment(
    packages: list[_Package],
    tool: str,
    python: str | None,
    record: Record,
    options: RecordOptions,
    notes: Iterable[str],
) -> TrainingManifest:
    """Take the packages whose markers hold in the run's environment; ManifestError."""
    pins = Pins.begin(record, options, python)
    for package in _needed(packages, pins):
        place = f"package {clean(package.name)}"
        if package.address:
            pins.add(of_address(package.address, name=package.name, version=package.version), place)
        elif package.version:
            origin = Origin(kind="index", hashes=package.hashes)
            pins.add(Distribution(name=package.name, version=package.version, origin=origin), place)
        else:
            pins.faults.add(f"{place}: there is no version", _FREEZE)
    if not pins.found:
        pins.faults.add("the lock has no package for this environment", _FREEZE)
    return pins.manifest(complete=True, tool=tool, notes=tuple(notes))


def _needed(packages: list[_Package], pins: Pins) -> list[_Package]:
    """Leave out what is never required here: before version 2.1, poetry.lock has no markers of packages."""

    def holds(marker: str | None, name: str) -> bool:
        # A lock has a package of an extra only where it was asked for.
        return "extra" in (marker or "") or _holds(marker, f"{clean(name)}: whether it was installed", pins)

    kept = [it for it in packages if pins.surroundings.has_python(it.python) and holds(it.marker, it.name)]
    while True:
        required: dict[str, bool] = {}
        here = {it.name for it in kept}
        for package in packages:
            for name, marker in package.requires:
                required[name] = required.get(name, False) or (package.name in here and holds(marker, name))
        needed = [it for it in kept if it.marker is not None or required.get(it.name, True)]
        if len(needed) == len(kept):
            return kept
        kept = needed


def _holds(text: Any, question: str, pins: Pins) -> bool:
    """Whether a marker holds; a fault where that depends on what is not known, or where it is no marker."""
    if not text:
        return True
    try:
        holds = pins.surroundings.holds(Marker(text)) if isinstance(text, str) and len(text) < 4000 else None
    except (InvalidMarker, RecursionError):
        pins.faults.add(
            f"package {question}: this is not a marker: {quoted(str(text))}",
            "write the lock again with the tool that made it",
        )
        return False
    fault = (f"package {question} depends on where: {quoted(str(text))}", PLATFORM)
    if holds is None and fault not in pins.faults.found:
        pins.faults.add(*fault)
    return bool(holds)


def _of_poetry(item: dict[str, Any], old_files: Any) -> _Package:
    name, source = text_at(item, "name") or "", item.get("source")
    kind, url = text_at(source, "type"), text_at(source, "url")
    commit = text_at(source, "resolved_reference") or text_at(source, "reference") or ""
    address = _address(url if kind == "git" else None, commit, text_at(source, "subdirectory"))
    address = address or (url if kind in {"url", "file", "directory"} else None)
    markers = item.get("markers")  # a table where groups differ
    marker = " or ".join(f"({it})" for it in texts([*markers.values()])) if isinstance(markers, dict) else markers
    files = item.get("files") or (old_files.get(name) if isinstance(old_files, dict) else None)
    dependencies = item.get("dependencies")
    entries = dependencies.items() if isinstance(dependencies, dict) else ()
    # A list has one entry for each version.
    requires = [(other, it) for other, value in entries for it in (value if isinstance(value, list) else [value])]
    return _Package(
        name=str(canonicalize_name(name)),
        version=text_at(item, "version"),
        address=address,
        hashes=_hashes(text_at(it, "hash") for it in dicts(files)),
        python=text_at(item, "python-versions"),
        marker=marker if isinstance(marker, str) else "" if "groups" in item else None,
        requires=tuple((str(canonicalize_name(other)), text_at(it, "markers") or "") for other, it in requires),
    )


def _of_pdm(item: dict[str, Any]) -> _Package:
    commit = text_at(item, "revision") or text_at(item, "ref") or ""
    git = _address(text_at(item, "git"), commit, text_at(item, "subdirectory"))
    requires = (parse_requirement(it) for it in texts(item.get("dependencies")))
    return _Package(
        name=str(canonicalize_name(text_at(item, "name") or "")),
        version=text_at(item, "version"),
        address=git or text_at(item, "url") or text_at(item, "path"),
        hashes=_hashes(text_at(it, "hash") for it in dicts(item.get("files"))),
        python=text_at(item, "requires_python"),
        marker=text_at(item, "marker"),
        requires=tuple((str(canonicalize_name(it.name)), str(it.marker or "")) for it in requires if it),
    )


def _of_pipfile(name: str, item: dict[str, Any]) -> _Package:
    git = _address(text_at(item, "git"), text_at(item, "ref") or "", text_at(item, "subdirectory"))
    version = text_at(item, "version")
    return _Package(
        name=str(canonicalize_name(name)),
        version=version.lstrip("=").strip() if version else None,
        address=git or text_at(item, "file") or text_at(item, "path"),
        hashes=_hashes(texts(item.get("hashes"))),
        python=None,
        marker=text_at(item, "markers") or "",
    )


def _address(git: str | None, commit: str, subdirectory: str | None) -> str | None:
    """Return where a package comes from as pip writes it; None where there is no repository."""
    if not git:
        return None
    at = f"@{commit}" if commit else ""
    return f"git+{git.removeprefix('git+')}{at}" + (f"#subdirectory={subdirectory}" if subdirectory else "")


def _hashes(digests: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({it for it in map(sha256_of, digests) if it}))


_DEFAULT_GROUP = "dev"
"""The one that `uv sync` installs by default."""
_AGAIN = "write it again: uv lock"
_OTHERWISE = "for what they hold, take `uv pip freeze`, or `uv export --format pylock.toml` with the run's options"

Values = Mapping[str, Any]


def read_uv_lock(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read what `uv sync` installs: the project's dependencies and its group dev; ManifestError."""
    values, pins = toml_of(record, text_of(record)), Pins.begin(record, options)
    packages, pythons = values.get("package"), text_at(values, "requires-python")
    if values.get("version") != 1 or not isinstance(packages, list):
        what = f"this is not a uv.lock of version 1: it says version {clean(str(values.get('version')))}"
        raise ManifestError(what, where=record.name, todo="write it with a uv that writes version 1")
    if not pins.surroundings.has_python(pythons):
        what = f"requires-python: the lock is for Python {pythons}, the run's is {pins.surroundings.python}"
        pins.faults.add(what, "give the Python that the run had")
    walk = _Walk([it for it in dicts(packages) if text_at(it, "name")], pins)
    roots = walk.roots()
    for root in roots:
        walk.follow(root)
    return pins.manifest(complete=True, tool="uv", notes=tuple(_left_out(roots)))


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
                if (origin := _uv_origin(package)) is not None:
                    name, version = text_at(package, "name") or "", text_at(package, "version")
                    self.pins.add(Distribution(name=name, version=version, origin=origin), f"package {clean(name)}")
                yield from _dependencies(package, "dependencies")

    def _package(self, dependency: Values) -> Values | None:
        """Find what a dependency stands for in the run; None where its marker excludes it."""
        name = text_at(dependency, "name") or ""
        if not _holds(dependency.get("marker"), f"{name}: whether it was installed", self.pins):
            return None
        pins = [key for key in ("version", "source") if key in dependency]
        found = [it for it in self.packages if it.get("name") == name]
        found = [it for it in found if all(it.get(key) == dependency[key] for key in pins)]
        if len(found) > 1:  # forks of the resolution
            markers = [(it, it.get("resolution-markers")) for it in found]
            question = f"{name}: which was installed"
            found = [
                it for it, any_of in markers if not any_of or any(_holds(one, question, self.pins) for one in any_of)
            ]
        if len(found) != 1:
            what = f"package: {name or 'a dependency'} is there {len(found)} times for this environment"
            self.pins.faults.add(what, _AGAIN if len(found) == 0 else PLATFORM)
        return found[0] if len(found) == 1 else None


def _dependencies(holder: Any, key: str) -> list[Values]:
    return [*dicts(holder.get(key))] if isinstance(holder, dict) else []


def _folder(package: Values) -> str | None:
    """The folder of a project of the workspace; None for what comes from elsewhere."""
    return text_at(package, "source", "editable") or text_at(package, "source", "virtual")


def _uv_origin(package: Values) -> Origin | None:
    """Say where a package comes from; None for the project itself and for what is never installed."""
    source = package.get("source")
    git, url, path = (text_at(source, key) for key in ("git", "url", "path"))
    folder = text_at(source, "editable") or text_at(source, "directory")
    if text_at(source, "virtual") or folder == ".":
        return None
    if git:
        return _git(git)
    if url or path:
        digest = next(iter(_uv_hashes(package)), None)
        return Origin(kind="archive", url=origin_of(url or path or "").url, sha256=digest)
    if folder:
        return Origin(kind="editable", url=origin_of(folder).url)
    return index_origin(text_at(source, "registry"), _uv_hashes(package))


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


def _uv_hashes(package: Values) -> tuple[str, ...]:
    return _hashes(text_at(it, "hash") for it in (*_dependencies(package, "wheels"), package.get("sdist")))


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
