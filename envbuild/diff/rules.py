"""What is left out of a comparison."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from envbuild.diff.record import BYTECODE, BYTECODE_FOLDER, MARK, RECORD, same_files
from envbuild.oci.rootfs import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as a difference between two images."""

    ignore: tuple[str, ...] = ()
    """Patterns of paths without the leading slash, as fnmatch has them: `*` takes slashes too. What lies in a folder
    that fits is left out with it."""
    as_installed: bool = False
    """Leave out in what installers may differ: bytecode, INSTALLER, REQUESTED, direct_url.json; RECORD counts by the
    files and hashes that it has of what is not left out."""
    mtimes: bool = False
    """Whether times count."""

    def ignored(self, path: str, before: Node | None, after: Node | None) -> bool:
        """Whether a path is left out, whatever lies there."""
        if self.as_installed and _of_installers(path, before, after):
            return True
        return self._fits(path)

    def _fits(self, path: str) -> bool:
        """Whether a pattern names a path, or a folder that it lies in."""
        places = [path, *(str(folder) for folder in PurePosixPath(path).parents if folder.name)]
        return any(fnmatchcase(place, pattern.strip("/")) for pattern in self.ignore for place in places)

    def differing(self, path: str, before: Node, after: Node) -> tuple[str, ...]:
        """In what two nodes at a path differ, by the names of Node's fields; none where they count as equal."""
        if before.kind != after.kind:
            return ("kind",)
        names = ("sha256", "mode", "owner", "target", "extended", *(("mtime",) if self.mtimes else ()))
        found = tuple(name for name in names if getattr(before, name) != getattr(after, name))
        recorded = self.as_installed and "sha256" in found and RECORD.fullmatch(path)
        if recorded and same_files(path, before.text, after.text, self._fits):
            return tuple(name for name in found if name != "sha256")
        return found


def _of_installers(path: str, before: Node | None, after: Node | None) -> bool:
    kinds = {node.kind for node in (before, after) if node}
    if kinds == {"directory"}:
        return bool(BYTECODE_FOLDER.fullmatch(path))
    return kinds == {"file"} and bool(MARK.fullmatch(path) or BYTECODE.fullmatch(path))
