"""The comparison of two images, grouped by package: as values, as lines for people, and as JSON."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Literal

from envbuild.capture.redact import scrub
from envbuild.diff.facts import ANOTHER, SECRET, without_secrets
from envbuild.diff.layers import BYTECODE, BYTECODE_FOLDER, MARK, RECORD, Package, Packages, Report, read_pair, rows
from envbuild.errors import BuildError
from envbuild.oci.image import Image
from envbuild.oci.rootfs import Node
from envbuild.wheel.install import RecordError

_WORDS = {"sha256": "content", "extended": "extended attributes", "mtime": "time", "target": "target"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting that differs in the configs of two images."""

    name: str
    """`Env PATH`, `Labels maintainer`, `Entrypoint`."""
    before: Any
    """None where it is not set."""
    after: Any

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.before)} -> {_shown(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that differs."""

    path: str
    """Below the root; empty for the root itself."""
    before: Node | None
    """None where it was added."""
    after: Node | None
    """None where it was removed."""
    fields: tuple[str, ...] = ()
    """The differing fields of Node, where it was changed."""

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """Whether it was added, removed or changed."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    def __str__(self) -> str:
        texts = [_field(name, self.before, self.after) for name in self.fields if self.before and self.after]
        return f"{_SIGNS[self.kind]} /{self.path}" + (f": {', '.join(texts)}" if texts else "")

    def to_dict(self) -> dict[str, Any]:
        """The change for --json."""
        fields = [_WORDS.get(name, name) for name in self.fields]
        return {
            "path": f"/{self.path}",
            "change": self.kind,
            "in": fields,
            "before": _node(self.before),
            "after": _node(self.after),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The changes of one package, or of the files without a package."""

    package: Package | None
    before: str
    """Its version; empty where it is absent or not known."""
    after: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        counts = Counter(change.kind for change in self.changes)
        numbers = ", ".join(f"{counts[kind]} {kind}" for kind in ("added", "removed", "changed") if counts[kind])
        kind = self.package.kind if self.package else "files"
        return f"{kind:<8} {self._title()}: {numbers}"

    def _title(self) -> str:
        if self.package is None:
            return "of no package"
        if self.before and self.after and self.before != self.after:
            return f"{self.package.name} {self.before} -> {self.after}"
        note = "" if self.before == self.after else ", new" if self.after else ", gone"
        version = self.after or self.before
        return f"{self.package.name}{' ' if version else ''}{version}{note}"

    def to_dict(self) -> dict[str, Any]:
        """The group for --json."""
        package = self.package
        return {
            "kind": package.kind if package else None,
            "name": package.name if package else None,
            "before": self.before or None,
            "after": self.after or None,
            "files": [change.to_dict() for change in self.changes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The differences of two images."""

    settings: tuple[Setting, ...] = ()
    groups: tuple[Group, ...] = ()
    left_out: int = 0
    """Number of paths that differ and that the rules leave out."""

    @property
    def equal(self) -> bool:
        """Whether there is no difference that counts."""
        return not (self.settings or self.groups)

    @property
    def changes(self) -> tuple[Change, ...]:
        """All paths that differ."""
        return tuple(change for group in self.groups for change in group.changes)

    @property
    def summary(self) -> str:
        """One line."""
        left_out = f" ({_number(self.left_out, 'path')} left out)" if self.left_out else ""
        if self.equal:
            return f"equal: all files and settings agree{left_out}"
        packages = sum(group.package is not None for group in self.groups)
        paths = f"{_number(len(self.changes), 'path')} in {_number(packages, 'package')}"
        return f"different: {paths}, {_number(len(self.settings), 'setting')}{left_out}"

    def lines(self, *, files: bool = False) -> Iterator[str]:
        """Yield the summary, each setting, and each package, with its files if `files` is set."""
        yield self.summary
        yield from (f"config   {setting}" for setting in self.settings)
        for group in self.groups:
            yield str(group)
            yield from (f"  {change}" for change in group.changes if files)

    def to_dict(self) -> dict[str, Any]:
        """The difference for --json."""
        return {
            "equal": self.equal,
            "left_out": self.left_out,
            "config": [asdict(setting) for setting in self.settings],
            "packages": [group.to_dict() for group in self.groups],
        }


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return str(value) if value in (SECRET, ANOTHER) else json.dumps(value, ensure_ascii=False)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _field(field: str, before: Node, after: Node) -> str:
    if field == "kind":
        return f"{before.kind} -> {after.kind}"
    change = "" if field in ("sha256", "extended") else f" {_value(field, before)} -> {_value(field, after)}"
    return _WORDS.get(field, field) + change


def _value(field: str, node: Node) -> str:
    if field == "mode":
        return f"{node.mode:04o}"
    if field == "owner":
        return f"{node.owner[0]}:{node.owner[1]}"
    return str(getattr(node, field))


def _node(node: Node | None) -> dict[str, Any] | None:
    if node is None:
        return None
    return {
        "kind": node.kind,
        "mode": _value("mode", node),
        "owner": _value("owner", node),
        **({"target": node.target} if node.target else {}),
        **({"sha256": node.sha256.hex()} if node.sha256 else {}),
        **({"extended": dict(node.extended)} if node.extended else {}),
        "mtime": node.mtime,
    }


_PLATFORM = ("architecture", "os", "variant")
_SINGLE = ("Entrypoint", "Cmd", "User", "WorkingDir", "StopSignal", "Shell", "Healthcheck", "OnBuild")
_SETS = ("ExposedPorts", "Volumes")
_WRONG = (ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which differences of two images count."""

    ignore: tuple[str, ...] = ()
    """Patterns of paths without the leading slash, as in fnmatch: `*` matches slashes too. All files in a matching
    folder are left out too."""
    as_installed: bool = False
    """Leave out what depends on the installer: bytecode, INSTALLER, REQUESTED, direct_url.json; of RECORD only the
    files and hashes count that are not left out."""
    mtimes: bool = False
    """Whether times count."""

    def ignored(self, path: str, before: Node | None, after: Node | None) -> bool:
        """Whether a path is left out."""
        if self.as_installed:
            kinds = {node.kind for node in (before, after) if node}
            if kinds == {"directory"} and BYTECODE_FOLDER.fullmatch(path):
                return True
            if kinds == {"file"} and _is_of_installer(path):
                return True
        return self._matches(path)

    def _matches(self, path: str) -> bool:
        """Whether a pattern matches a path, or a folder above it."""
        places = [path, *(str(folder) for folder in PurePosixPath(path).parents if folder.name)]
        return any(fnmatchcase(place, pattern.strip("/")) for pattern in self.ignore for place in places)

    def differing(self, path: str, before: Node, after: Node) -> tuple[str, ...]:
        """The fields in which two nodes at a path differ; none where they count as equal."""
        if before.kind != after.kind:
            return ("kind",)
        names = ("sha256", "mode", "owner", "target", "extended", *(("mtime",) if self.mtimes else ()))
        found = tuple(name for name in names if getattr(before, name) != getattr(after, name))
        recorded = self.as_installed and "sha256" in found and RECORD.fullmatch(path)
        if recorded and self._same_record(path, before.text, after.text):
            return tuple(name for name in found if name != "sha256")
        return found

    def _same_record(self, record: str, one: bytes, other: bytes) -> bool:
        """Whether two RECORDs have the same files and hashes, except for what is left out and RECORD itself."""
        try:
            rows_of_both = set(rows(record, one)) ^ set(rows(record, other))
        except RecordError:
            return False
        return all(it == record or _is_of_installer(it) or self._matches(it) for it, _, _ in rows_of_both)


def compare(
    a: Image,
    b: Image,
    rules: Rules | None = None,
    *,
    names: tuple[str, str] = ("the first image", "the second image"),
    report: Report = lambda _label, _done, _total: None,
) -> Difference:
    """Compare two images, the older one first; `names` are for errors, and `report` gets the bytes that were read.

    No layer is read where the configs are the same, as they name the layers by content. BuildError for an image that
    cannot be read; errors of the images' sources, such as RegistryError.
    """
    if a.config_digest == b.config_digest:
        return Difference()
    rules = rules or Rules()
    before, after = read_pair(a, b, names, report)
    changes, left_out = [], 0
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        fields = rules.differing(path, old, new) if old and new else ()
        if not fields and old and new:
            continue
        if rules.ignored(path, old, new):
            left_out += 1
        else:
            changes.append(Change(path=path, before=old, after=new, fields=fields))
    groups = _group(changes, Packages(before), Packages(after)) if changes else ()
    return Difference(settings=_compare_configs(a, b, names), groups=groups, left_out=left_out)


def _is_of_installer(path: str) -> bool:
    return bool(MARK.fullmatch(path) or BYTECODE.fullmatch(path))


def _group(changes: list[Change], before: Packages, after: Packages) -> tuple[Group, ...]:
    """Group paths by owner, the new one where that changed; packages by name, and files without owner last."""
    found: defaultdict[Package | None, list[Change]] = defaultdict(list)
    for change in changes:
        new = after.owner(change.path) if change.after else None
        old = before.owner(change.path) if change.before else None
        found[new or old].append(change)
    return tuple(
        Group(
            package=package,
            before=before.version(package) if package else "",
            after=after.version(package) if package else "",
            changes=tuple(found[package]),
        )
        for package in sorted(found, key=lambda it: (it is None, it.kind if it else "", it.name if it else ""))
    )


def _compare_configs(a: Image, b: Image, names: tuple[str, str]) -> tuple[Setting, ...]:
    """The settings that differ, without secrets; BuildError for an invalid config."""
    sides = []
    for image, name in zip((a, b), names, strict=True):
        try:
            sides.append({key: value for key, value in _settings(json.loads(image.config)) if value is not None})
        except _WRONG as error:
            raise BuildError("the image's config cannot be read", where=name, todo="make the image again") from error
    found = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        old, new = (side.get(name) for side in sides)
        if old != new:
            kind, _, key = name.partition(" ")
            before, after = without_secrets(key or kind, old, new, sure=True)
            found.append(Setting(name=scrub(name), before=before, after=after))
    return tuple(found)


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings in a config (OCI image-spec, config.md); absent and empty are the same."""
    inner: Mapping[str, Any] = config.get("config") or {}
    yield from ((key, config.get(key) or None) for key in _PLATFORM)
    for entry in inner.get("Env") or ():
        variable, _, value = str(entry).partition("=")
        yield f"Env {variable}", value
    for key in _SINGLE:
        single = inner.get(key) or None
        yield key, None if (key, single) == ("WorkingDir", "/") else single
    yield from ((f"Labels {label}", value) for label, value in (inner.get("Labels") or {}).items())
    yield from ((key, sorted(inner.get(key) or ()) or None) for key in _SETS)
