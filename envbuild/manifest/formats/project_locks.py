"""`poetry.lock`, `pdm.lock` and `Pipfile.lock`: what these tools install of a project in the run's environment."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import PLATFORM, Pins, of_address, sha256_of
from envbuild.manifest.formats.record import Faults, Record, clean, json_of, quoted, text_at, text_of, texts, toml_of
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
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


def read_poetry_lock(record: Record, given: Given) -> Found:
    """Read what `poetry install` installs: all groups, no extras; ManifestError."""
    values = toml_of(record, text_of(record))
    old_files = values.get("metadata", {}).get("files", {}) if isinstance(values.get("metadata"), dict) else {}
    items = _dicts(values.get("package"))
    packages = [_of_poetry(it, old_files) for it in items if it.get("optional") is not True]
    optional = {text_at(it, "name") or "" for it in items if it.get("optional") is True}
    indexes = {text_at(it, "source", "url") or "" for it in items if text_at(it, "source", "type") == "legacy"}
    notes = [f"packages of extras are left out: {', '.join(sorted(optional))}"] if optional else []
    notes += [f"the lock names the index {it}; give it to pip's or uv's settings" for it in sorted(indexes)]
    return _found(packages, "poetry", None, record, given, notes)


def read_pdm_lock(record: Record, given: Given) -> Found:
    """Read what `pdm install` installs: the groups default and dev; ManifestError."""
    values = toml_of(record, text_of(record))
    items, wanted = _dicts(values.get("package")), {"default", "dev"}
    groups = {group for it in items for group in texts(it.get("groups"))}
    packages = [_of_pdm(it) for it in items if wanted & set(texts(it.get("groups", ["default"])))]
    left = sorted(groups - wanted)
    notes = [f"groups of the lock are left out: {', '.join(left)}"] if left else []
    return _found(packages, "pdm", None, record, given, notes)


def read_pipfile_lock(record: Record, given: Given) -> Found:
    """Read what `pipenv install` installs: the category default; ManifestError."""
    values = json_of(record, text_of(record))
    default = values.get("default") if isinstance(values, dict) else None
    items = default.items() if isinstance(default, dict) else ()
    packages = [_of_pipfile(name, it) for name, it in items if isinstance(it, dict)]
    python = next(
        filter(None, (text_at(values, "_meta", "requires", it) for it in ("python_full_version", "python_version"))),
        None,
    )
    left = sorted(it for it in values if it not in {"_meta", "default"} and values[it])
    notes = [f"categories of the lock are left out: {', '.join(left)}"] if left else []
    return _found(packages, "pipenv", python, record, given, notes)


def _found(
    packages: list[_Package], tool: str, python: str | None, record: Record, given: Given, notes: Iterable[str]
) -> Found:
    """Take the packages whose markers hold in the run's environment; ManifestError."""
    faults, platform = Faults(record.name), known_platform(Platform(), given)
    run = Surroundings(
        python=exact_python(python, given, record.name), system=platform.system, machine=platform.machine
    )
    pins = Pins(run, faults)
    for package in _needed(packages, run, faults):
        place = f"package {clean(package.name)}"
        if package.address:
            pins.add(of_address(package.address, name=package.name, version=package.version), place)
        elif package.version:
            origin = Origin(kind="index", hashes=package.hashes)
            pins.add(Distribution(name=package.name, version=package.version, origin=origin), place)
        else:
            faults.add(f"{place}: there is no version", _FREEZE)
    if not pins.found:
        faults.add("the lock has no package for this environment", _FREEZE)
    faults.check()
    return Found(
        python=run.python,
        platform=platform,
        distributions=pins.distributions,
        complete=True,
        tool=tool,
        notes=tuple(notes),
    )


def _needed(packages: list[_Package], run: Surroundings, faults: Faults) -> list[_Package]:
    """Leave out what the run's environment has no use for.

    Before version 2.1, poetry.lock has no markers of packages: one that others require, but never here, is left out.
    """
    kept = [it for it in packages if _is_for(it, run) and _holds(it.marker, it.name, run, faults)]
    while True:
        required: dict[str, bool] = {}
        here = {it.name for it in kept}
        for package in packages:
            for name, marker in package.requires:
                holds = package.name in here and _holds(marker, name, run, faults)
                required[name] = required.get(name, False) or holds
        needed = [it for it in kept if it.marker is not None or required.get(it.name, True)]
        if len(needed) == len(kept):
            return kept
        kept = needed


def _is_for(package: _Package, run: Surroundings) -> bool:
    try:
        return SpecifierSet(package.python or "").contains(run.version, prereleases=True)
    except InvalidSpecifier:  # Poetry's own, with || in it
        return True


def _holds(text: str | None, name: str, run: Surroundings, faults: Faults) -> bool:
    """Whether a marker holds; one about an extra does, as the lock has such a package only where it was asked for."""
    if not text or "extra" in text:
        return True
    try:
        holds = run.holds(Marker(text)) if len(text) < 4000 else None
    except (InvalidMarker, RecursionError):
        holds = None
    what = f"package {clean(name)}: whether it was installed depends on where: {quoted(text)}"
    if holds is None and (what, PLATFORM) not in faults.found:
        faults.add(what, PLATFORM)
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
    requires = item.get("dependencies")
    return _Package(
        name=str(canonicalize_name(name)),
        version=text_at(item, "version"),
        address=address,
        hashes=_hashes(text_at(it, "hash") for it in _dicts(files)),
        python=text_at(item, "python-versions"),
        marker=marker if isinstance(marker, str) else "" if "groups" in item else None,
        requires=tuple(_poetry_requires(requires if isinstance(requires, dict) else {})),
    )


def _poetry_requires(requires: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a package requires; a list has one entry for each version."""
    for name, value in requires.items():
        for it in value if isinstance(value, list) else [value]:
            yield str(canonicalize_name(name)), text_at(it, "markers") or ""


def _of_pdm(item: dict[str, Any]) -> _Package:
    commit = text_at(item, "revision") or text_at(item, "ref") or ""
    git = _address(text_at(item, "git"), commit, text_at(item, "subdirectory"))
    requires = (_requirement(it) for it in texts(item.get("dependencies")))
    return _Package(
        name=str(canonicalize_name(text_at(item, "name") or "")),
        version=text_at(item, "version"),
        address=git or text_at(item, "url") or text_at(item, "path"),
        hashes=_hashes(text_at(it, "hash") for it in _dicts(item.get("files"))),
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


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text) if len(text) < 4000 else None
    except (InvalidRequirement, RecursionError):
        return None


def _address(git: str | None, commit: str, subdirectory: str | None) -> str | None:
    """Return where a package comes from as pip writes it; None where there is no repository."""
    if not git:
        return None
    at = f"@{commit}" if commit else ""
    return f"git+{git.removeprefix('git+')}{at}" + (f"#subdirectory={subdirectory}" if subdirectory else "")


def _hashes(digests: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({it for it in map(sha256_of, digests) if it}))


def _dicts(items: Any) -> list[dict[str, Any]]:
    return [it for it in items if isinstance(it, dict)] if isinstance(items, list) else []
