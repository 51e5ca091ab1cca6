"""In what two images differ, grouped by package: as values, as lines for people, and as JSON."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.diff.packages import Package
from envbuild.diff.settings import Setting
from envbuild.oci.rootfs import Node

_WORDS = {"sha256": "content", "extended": "extended attributes", "mtime": "time", "target": "target"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


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
    """In what a changed one differs: names of Node's fields."""

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """What became of it."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    def __str__(self) -> str:
        said = ", ".join(_said(name, self.before, self.after) for name in self.fields if self.before and self.after)
        return f"{_SIGNS[self.kind]} /{self.path}" + (f": {said}" if said else "")

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
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
    """What differs of one package, or of the files that no package has."""

    package: Package | None
    before: str
    """Its version; empty where it is not there, or where that is not known."""
    after: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        counts = Counter(change.kind for change in self.changes)
        said = ", ".join(f"{counts[kind]} {kind}" for kind in ("added", "removed", "changed") if counts[kind])
        kind = self.package.kind if self.package else "files"
        return f"{kind:<8} {self._title()}: {said}"

    def _title(self) -> str:
        if self.package is None:
            return "of no package"
        if self.before and self.after and self.before != self.after:
            return f"{self.package.name} {self.before} -> {self.after}"
        note = "" if self.before == self.after else ", new" if self.after else ", gone"
        version = self.after or self.before
        return f"{self.package.name}{' ' if version else ''}{version}{note}"

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
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
    """In what two images differ."""

    settings: tuple[Setting, ...] = ()
    groups: tuple[Group, ...] = ()
    left_out: int = 0
    """Paths that differ, and that were not to count."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs that counts."""
        return not (self.settings or self.groups)

    @property
    def changes(self) -> tuple[Change, ...]:
        """All paths that differ."""
        return tuple(change for group in self.groups for change in group.changes)

    @property
    def summary(self) -> str:
        """One line."""
        rest = f" ({_number(self.left_out, 'path')} left out)" if self.left_out else ""
        if self.equal:
            return f"equal: all files and settings agree{rest}"
        packages = sum(group.package is not None for group in self.groups)
        paths = f"{_number(len(self.changes), 'path')} in {_number(packages, 'package')}"
        return f"different: {paths}, {_number(len(self.settings), 'setting')}{rest}"

    def lines(self, *, files: bool = False) -> Iterator[str]:
        """Yield the summary, each setting, and each package, with its files where they are asked for."""
        yield self.summary
        yield from (f"config   {setting}" for setting in self.settings)
        for group in self.groups:
            yield str(group)
            yield from (f"  {change}" for change in group.changes if files)

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            "equal": self.equal,
            "left_out": self.left_out,
            "config": [setting.to_dict() for setting in self.settings],
            "packages": [group.to_dict() for group in self.groups],
        }


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _said(field: str, before: Node, after: Node) -> str:
    if field == "kind":
        return f"{before.kind} -> {after.kind}"
    values = [_value(field, node) for node in (before, after)]
    change = "" if field in ("sha256", "extended") else f" {values[0]} -> {values[1]}"
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
