"""The difference of two images, grouped by package: as values, as lines for people, and as JSON."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.diff.facts import ANOTHER, SECRET
from envbuild.diff.packages import Package
from envbuild.oci.rootfs import Node

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

    def to_dict(self) -> dict[str, Any]:
        """The setting for --json."""
        return {"name": self.name, "before": self.before, "after": self.after}


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
            "config": [setting.to_dict() for setting in self.settings],
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
