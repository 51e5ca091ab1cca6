"""What a stamp needs of the place where a model lies, and which object of a model is its anchor."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from envbuild.errors import StampError
from envbuild.stamp.record import FOLDER

MODEL_SUFFIXES = (
    *(".keras", ".h5", ".hdf5", ".pt", ".pth", ".pt2", ".ckpt", ".onnx", ".safetensors", ".bin"),
    *(".pkl", ".pickle", ".joblib", ".tflite", ".gguf", ".msgpack", ".npz", ".ubj"),
)
"""Files that hold a model."""

SAVED_MODEL = "saved_model.pb"

MOST_NAMES = 1000
"""How many names of a folder are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An object as it was at one moment."""

    generation: str
    """Changes with the content."""
    metageneration: str
    """Changes with the metadata, and begins anew with each generation."""
    metadata: Mapping[str, str]
    """Everybody's, not only envbuild's."""


class Changed(Exception):  # noqa: N818 - not an error yet: the stamp looks again and decides
    """The object is not in the state that was asked for any more; never leaves this package."""


class Unsure(Exception):  # noqa: N818 - not an error yet either
    """Nobody can tell from the answers whether a change was made; never leaves this package."""

    def __init__(self, error: StampError) -> None:
        super().__init__(str(error))
        self.error = error
        """What is told if it was not."""


class Unreachable(StampError):  # noqa: N818 - nobody outside of this package tells it from its parent
    """What is there cannot be known now; a second try may tell."""


class Store(Protocol):
    """The folder that holds a model; names are relative to it, with `/` between their parts. All raise StampError."""

    @property
    def where(self) -> str:
        """The folder's URI, for messages."""
        ...

    def names(self, *, deep: bool) -> Mapping[str, str]:
        """Objects in the folder itself, or in all below it: the first thousand, each with the record it points to.

        Of an object without a pointer the record is the empty text.
        """
        ...

    def records(self) -> Iterable[str]:
        """All names in the stamp's folder that begin as those of records do, however many there are."""
        ...

    def state(self, name: str) -> State | None:
        """The object's state now; None when there is no such object."""
        ...

    def read(self, name: str, *, limit: int) -> bytes | None:
        """An object's content; None when there is no such object. One of more than `limit` bytes is refused.

        Unreachable when the object may be readable, and the place that it lies in does not answer.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write an object that is named by its content; False where one is there already, which is left alone."""
        ...

    def patch(self, name: str, values: Mapping[str, str | None], state: State) -> None:
        """Set these keys of the metadata, or remove those without a value, if the object still is in this state.

        Changed when it is not, which is so too when an earlier try had been made and its reply was lost; Unsure when
        the change may have been made, or may still be, without an answer that says so.
        """
        ...

    def check(self, name: str) -> None:
        """Change nothing, and raise StampError when it is certain already that this object cannot be stamped."""
        ...

    def unpointing(self, name: str) -> str:
        """Return the command by which a person removes the object's pointer."""
        ...


def choose_anchor(names: Iterable[str], pointing: Collection[str] = ()) -> str | None:
    """Choose the object that carries the pointer; None when there is no object.

    `saved_model.pb` in the folder itself; else one that bears a pointer, so that a file more moves no stamp; else the
    only one there with a suffix of MODEL_SUFFIXES; else the first by `order`.
    """
    own = [name for name in names if is_model_file(name)]
    whole = [name for name in own if "/" not in name and name.endswith(MODEL_SUFFIXES)]
    if SAVED_MODEL in own:
        return SAVED_MODEL
    if bearers := [name for name in own if name in pointing]:
        return min(bearers, key=order)
    return whole[0] if len(whole) == 1 else min(own, key=order, default=None)


def is_model_file(name: str) -> bool:
    """Whether a name in the model's folder can be that of one of its files: not the stamp's, nor a folder's."""
    parts = name.split("/")
    return parts[0] != FOLDER and not {"", ".", ".."} & set(parts)


def order(name: str) -> tuple[int, bool, str]:
    """Sort key: the folder before those below it, `saved_model.pb` before other names, then by name."""
    return name.count("/"), name.rpartition("/")[2] != SAVED_MODEL, name
