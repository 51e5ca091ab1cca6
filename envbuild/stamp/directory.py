"""A model in a folder of this machine, with the semantics that Cloud Storage has."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

from envbuild.errors import StampError
from envbuild.files import write_whole
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.stamp.record import FOLDER
from envbuild.stamp.store import Anchor, choose_anchor


class DirectoryStore:
    """A model's folder, or a folder with a single-file model.

    The anchor's metadata lies in `envbuild/<anchor>.metadata.json`; it belongs to the anchor's content, so that a
    replaced model has none, as in Cloud Storage, and a copied folder keeps its own.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise StampError(
                "there is no model here", where=str(path), todo="give the folder or file of the saved model"
            )
        self._folder = path if path.is_dir() else path.parent
        self._name = None if path.is_dir() else path.name

    def anchor(self) -> Anchor:
        """Find the anchor and read its metadata."""
        with _translated(self._folder):
            name = self._name or choose_anchor(path.name for path in self._folder.iterdir() if path.is_file())
            if name is None:
                todo = "give the folder that the model was saved to"
                raise StampError("the folder holds no file of a model", where=str(self._folder), todo=todo)
            with (self._folder / name).open("rb") as file:
                digest, _ = Digest.of_file(file)
            return self._with_metadata(name, str(digest))

    def _metadata_path(self, name: str) -> Path:
        return self._folder / FOLDER / f"{name}.metadata.json"

    def _with_metadata(self, name: str, generation: str) -> Anchor:
        try:
            value = json.loads(self._metadata_path(name).read_bytes())
        except FileNotFoundError:
            value = {}
        except ValueError as error:
            todo = "restore or delete the file; the records beside it are whole"
            raise StampError("the pointer is damaged", where=str(self._metadata_path(name)), todo=todo) from error
        if value.get("generation") != generation:
            value = {}
        count, metadata = int(value.get("metageneration", 1)), dict(value.get("metadata", {}))
        return Anchor(name=name, generation=generation, metageneration=count, metadata=metadata)

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None when there is none."""
        with _translated(self._folder):
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def create(self, name: str, data: bytes) -> None:
        """Write a file whose name its content decides."""
        with _translated(self._folder):
            if not (self._folder / name).exists():
                write_whole(self._folder / name, data)

    def patch(self, anchor: Anchor, metadata: Mapping[str, str]) -> bool:
        """Merge into the anchor's metadata under a lock, if nothing changed since it was read."""
        with _translated(self._folder), self._locked():
            now = self.anchor()
            if (now.generation, now.metageneration) != (anchor.generation, anchor.metageneration):
                return False
            value = {
                "generation": anchor.generation,
                "metageneration": anchor.metageneration + 1,
                "metadata": {**now.metadata, **metadata},
            }
            write_whole(self._metadata_path(anchor.name), canonical_json(value))
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = self._folder / FOLDER
        folder.mkdir(exist_ok=True)
        with (folder / ".lock").open("w") as file:
            flock(file, LOCK_EX)
            yield


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        todo = "stamping writes beside the model: run as a user who may write there"
        raise StampError(
            f"the model's folder cannot be used: {error.strerror}", where=str(folder), todo=todo
        ) from error
