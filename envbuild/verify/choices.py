"""What both images of a pair choose by their variables, and what they hold."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.oci.rootfs import Node, Tree, resolve
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.holdings import Holdings

DECIDING = (
    *("PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONSTARTUP"),
    *("PYTHONPYCACHEPREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"),
)
"""Variables that decide which Python is started, and which modules and libraries it finds."""
WHOLE: Mapping[str, Severity] = {
    "PYTHONHOME": "error",
    "PYTHONPLATLIBDIR": "error",
    "PYTHONUSERBASE": "warning",
    "PYTHONSTARTUP": "warning",
    "PYTHONPYCACHEPREFIX": "warning",
    "LD_PRELOAD": "error",
    "LD_AUDIT": "error",
}
"""Those of which any other value matters; a start-up file is read by interactive sessions alone."""
_SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
_WHY = "what training's Python imports or loads can be another file in serving, and predictions can differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What an image's config decides."""

    variables: Mapping[str, str]
    folder: str
    """Where programs start, which empty and relative entries go by."""
    script: str | None = None
    """The folder that the command makes Python search first, if it does."""

    def entries(self, name: str) -> tuple[str, ...]:
        """The folders of a search path, absolute and in their order."""
        value = self.variables.get(name, "")
        parts = re.split("[:;]", value) if value else ()
        return tuple(dict.fromkeys(posixpath.normpath(posixpath.join("/", self.folder, it)) for it in parts))

    @property
    def led(self) -> tuple[str, ...]:
        """Folders and files that any of the variables names, without the leading slash."""
        files = " ".join(self.variables.get(name, "") for name in WHOLE).replace(":", " ").split()
        return tuple(it.strip("/") for it in (*files, *(it for name in _SEARCHED for it in self.entries(name))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both images, as far as this looks at them."""

    before: Holdings
    after: Holdings
    train: Configured
    serve: Configured
    caches: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    """Of /etc/ld.so.cache, path by name, where the two are others."""
    vouched: frozenset[str] = frozenset()
    """What lies in layers of serving that its history calls our bytecode."""

    def is_new(self, path: str) -> bool:
        """Whether serving has another file at a path than training, and none of a package that says so."""
        old, new = self.before.tree.get(path), self.after.tree.get(path)
        if new is None or new.kind == "directory" or (old and old.kind == new.kind and same(old, new)):
            return False
        return not self.after.owner(path) and not self.after.system.owner(path)


def same_choices(train: Configured, serve: Configured) -> bool:
    """Whether both decide the same by their variables."""
    one, other = ([(it.variables.get(name, ""), it.entries(name)) for name in DECIDING] for it in (train, serve))
    return one == other


def fault(
    about: str, says: str, todo: str, severity: Severity = "error", values: tuple[str, str] = ("", "")
) -> Finding:
    """What does not agree, with the values of training and serving."""
    rule = "shared-system" if about.startswith(("LD_", "loader")) else "shared-files"
    return Finding(
        about=about, rule=rule, agrees=False, severity=severity, says=says, why=_WHY, todo=todo,
        wanted=values[0], found=values[1],
    )  # fmt: skip


def node_at(tree: Tree, path: str | None) -> Node | None:
    """What a path without the leading slash leads to; None where it leads nowhere."""
    real = resolve(tree, f"/{path}") if path else None
    return tree.get(real[1:]) if real else None


def equal(one: Node | None, other: Node | None) -> bool:
    """Whether both are there and the same, or neither is."""
    return one is other or bool(one and other and same(one, other))


def same(one: Node, other: Node) -> bool:
    """Whether both have the same content, or lead to the same place."""
    return (one.kind, one.sha256, one.target) == (other.kind, other.sha256, other.target)
