"""What was compiled before: one archive for each wheel, interpreter and prefix."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.cache import read_entry, remove, write_entry
from envbuild.files import settle, written_aside
from envbuild.oci.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many sources have bytecode, and how many have not."""

    compiled: int = 0
    refused: int = 0
    """Those that do not compile."""
    gave_up: tuple[str, ...] = ()
    """Paths of those that met a limit."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            compiled=self.compiled + other.compiled,
            refused=self.refused + other.refused,
            gave_up=tuple(sorted({*self.gave_up, *other.gave_up})),
        )

    def to_dict(self) -> dict[str, Any]:
        """The tally as it is noted."""
        return {"compiled": self.compiled, "refused": self.refused, "gave_up": list(self.gave_up)}

    @classmethod
    def from_dict(cls, value: Any) -> "Tally":
        """Read a tally; ValueError when it is none."""
        try:
            compiled, refused, paths = (value[name] for name in ("compiled", "refused", "gave_up"))
        except (KeyError, TypeError) as error:
            raise ValueError("it is no tally of bytecode") from error
        if not all(type(it) is int and it >= 0 for it in (compiled, refused)):
            raise ValueError(f"numbers of modules cannot be {compiled!r} and {refused!r}")
        if not isinstance(paths, list) or not all(isinstance(it, str) and it.isprintable() for it in paths):
            raise ValueError("paths without bytecode have to be a list of text")
        return cls(compiled=compiled, refused=refused, gave_up=tuple(paths))


@dataclass(frozen=True, slots=True)
class Compiled:
    """An archive of bytecode files, named by where they go below the prefix."""

    path: Path
    tally: Tally


class Store:
    """The folder of archives; what lies in it is checked when it is read, and made again when it is damaged."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "bytecode"

    def get(self, key: Digest) -> Compiled | None:
        """Return what was compiled for a key, if it is there as it was written."""
        found = read_entry(self._folder, self._name(key), _decode)
        path = self._path(key)
        if found is None or not path.is_file():
            return None
        archive, tally = found
        with path.open("rb") as file:
            digest, _ = Digest.of_file(file)
        return Compiled(path, tally) if digest == archive else None

    def make(self, key: Digest, write: Callable[[BinaryIO], Tally]) -> Compiled:
        """Make and keep the archive for a key."""
        path = self._path(key)
        with written_aside(path.parent) as (file, temporary):
            tally = write(file)
            file.flush()
            with temporary.open("rb") as written:
                digest, _ = Digest.of_file(written)
            if path.is_dir():
                remove(path)
            settle(file, temporary, path)
        write_entry(self._folder, self._name(key), {"archive": str(digest), "tally": tally.to_dict()})
        return Compiled(path, tally)

    def _path(self, key: Digest) -> Path:
        return self._folder / key.hex[:2] / f"{key.hex}.zip"

    def _name(self, key: Digest) -> str:
        return f"{key.hex[:2]}/{key.hex}.json"


def _decode(value: Any) -> tuple[Digest, Tally]:
    return Digest.parse(value["archive"]), Tally.from_dict(value["tally"])
