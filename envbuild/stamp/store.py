"""Where a model lies: its URI, and what a stamp needs of the storage there."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from envbuild.capture.redact import scrub_line
from envbuild.errors import StampError, UsageError
from envbuild.stamp.record import FOLDER

MODEL_SUFFIXES = (
    *(".keras", ".h5", ".hdf5", ".pt", ".pth", ".pt2", ".ckpt", ".onnx", ".safetensors", ".bin"),
    *(".pkl", ".pickle", ".joblib", ".tflite", ".gguf", ".msgpack", ".npz", ".ubj"),
)
"""Suffixes of files that hold a model."""
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
    """That of other programs, too."""


class Changed(Exception):  # noqa: N818 - not an error yet: the stamp looks again and decides
    """The object is no longer in the expected state; never leaves this package."""


class Unsure(Exception):  # noqa: N818 - not an error yet either
    """The answers do not tell whether a change was made; never leaves this package."""

    def __init__(self, error: StampError) -> None:
        super().__init__(str(error))
        self.error = error
        """The error if it was not."""


class Unreachable(StampError):  # noqa: N818 - nobody outside of this package tells it from its parent
    """The storage does not answer; a second try may succeed."""


class Store(Protocol):
    """The folder that holds a model; names are relative to it, with `/` between their parts. All raise StampError."""

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

        Unreachable when the object may be readable, and its storage does not answer.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write an object that is named by its content; False if one exists, which is left alone."""
        ...

    def patch(self, name: str, values: Mapping[str, str | None], state: State) -> None:
        """Set these keys of the metadata, or remove those without a value, if the object still is in this state.

        Changed when it is not, also after an earlier try whose reply was lost; Unsure when no answer tells whether the
        change was made.
        """
        ...

    def check(self, name: str) -> None:
        """Change nothing; StampError when it is certain that this object cannot be stamped."""
        ...

    def unpointing(self, name: str) -> str:
        """Return the command by which a person removes the object's pointer."""
        ...


def choose_anchor(names: Iterable[str], pointing: Collection[str] = ()) -> str | None:
    """Choose the object that carries the pointer; None when there is no object.

    `saved_model.pb` in the folder itself; else one with a pointer, so that a new file does not move a stamp; else the
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
    """Whether a name in the model's folder can be one of its files: not the stamp's, nor a folder's."""
    parts = name.split("/")
    return parts[0] != FOLDER and not {"", ".", ".."} & set(parts)


def order(name: str) -> tuple[int, bool, str]:
    """Sort key: the folder before those below it, `saved_model.pb` before other names, then by name."""
    return name.count("/"), name.rpartition("/")[2] != SAVED_MODEL, name


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
LONGEST_NAME = 1024
"""Bytes of an object's name (Cloud Storage, "About Cloud Storage objects")."""
_TODO = "give gs://bucket/path, file:///path, or the path of a file or folder"
_LOGIN = "leave out the part before the @; log in with gcloud auth application-default login"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUri:
    """The place of an object or of a folder of objects."""

    bucket: str | None
    """None for a path of this machine."""
    path: str
    """Object name inside the bucket, or absolute path; without a slash at the end."""
    folder: bool = False
    """True when a slash at the end said that it is a folder."""

    def __str__(self) -> str:
        return Path(self.path).as_uri() if self.bucket is None else f"gs://{self.bucket}/{self.path}"

    @property
    def parent(self) -> str:
        """The folder that holds it; empty for the bucket itself."""
        return self.path.rpartition("/")[0] or ("/" if self.bucket is None else "")

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


def parse_model_uri(text: str) -> ModelUri:
    """Parse the place of a model; UsageError for another scheme, a bucket alone, or an invalid name."""
    scheme = _SCHEME.match(text)
    shown = scrub_line(text).encode(errors="backslashreplace").decode() or "''"  # without user and password
    if not text or (scheme is not None and any(ord(letter) < 32 for letter in text)):
        raise UsageError("not a model's path or URI", where=shown, todo=_TODO)
    if scheme is None:  # a path of this machine, which may have any character but NUL
        return _local(text, text)
    name, (first, slash, rest) = scheme.group(1).lower(), text[scheme.end() :].partition("/")
    if name == "file":
        if not slash or first not in {"", "localhost"}:
            raise UsageError("a file URI has an absolute path of this machine", where=shown, todo=_TODO)
        return _local(text, unquote(slash + rest, errors="surrogateescape"))
    if name != "gs":
        raise UsageError(f"models in {name}:// are not supported", where=shown, todo=_TODO)
    if "@" in first:
        raise UsageError("a model's address holds no user or password", where=shown, todo=_LOGIN)
    if not _BUCKET.match(first):
        raise UsageError("invalid bucket name after gs://", where=shown, todo=_TODO)
    path = rest.removesuffix("/")
    if not path or path in {".", ".."} or not encodable(path) or len(path.encode()) > LONGEST_NAME:
        raise UsageError("the URI names no object in the bucket", where=shown, todo=_TODO)
    return ModelUri(bucket=first, path=path, folder=rest.endswith("/"))


def encodable(text: str) -> bool:
    """Whether a text is UTF-8: names of files need not be."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _local(text: str, path: str) -> ModelUri:
    if "\0" in path:
        raise UsageError("this is not a path", where=repr(text), todo=_TODO)
    # The working folder by its name in the shell, which may be a link.
    name, folder = os.environ.get("PWD", ""), ""
    with suppress(OSError, ValueError):
        folder = name if Path(name).is_absolute() and Path(name).samefile(".") else ""
    absolute = str(Path(folder, path).absolute())
    if "/../" in f"{absolute}/":
        # Behind a link, `..` is where the kernel finds it; what follows the last one stays as it is written.
        above, _, below = f"{absolute}/".rpartition("/../")
        absolute = str(Path(os.path.realpath(f"{above}/.."), below))
    if absolute == "/":
        raise UsageError("not a model's path or URI", where=text, todo=_TODO)
    return ModelUri(bucket=None, path=absolute, folder=path.endswith("/"))
