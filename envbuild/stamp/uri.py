"""Where a model or another object lies: `gs://bucket/path`, `file:///path`, or a plain path."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from envbuild.capture.redact import scrub_line
from envbuild.errors import UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
LONGEST_NAME = 1024
"""Bytes of an object's name (Cloud Storage, "About Cloud Storage objects")."""
_TODO = "give gs://bucket/path, file:///path, or the path of a file or folder"
_LOGIN = "leave out what stands before the @; gcloud auth application-default login says who you are"


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
    """Read the place of a model; UsageError for another scheme, for a bucket alone, or for what is no name."""
    scheme = _SCHEME.match(text)
    if not text or (scheme is not None and any(ord(letter) < 32 for letter in text)):
        raise UsageError("this names no model", where=_shown(text), todo=_TODO)
    if scheme is None:  # a path of this machine, which may have any character but NUL
        return _local(text, text)
    rest = text[scheme.end() :]
    match scheme.group(1).lower():
        case "gs":
            return _object(text, rest)
        case "file":
            return _file(text, rest)
        case other:
            raise UsageError(f"models in {other}:// are not supported", where=_shown(text), todo=_TODO)


def encodable(text: str) -> bool:
    """Whether a text is UTF-8: names of files need not be, and are then read with parts that cannot be written."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _shown(text: str) -> str:
    """The address without user and password, for messages."""
    return scrub_line(text).encode(errors="backslashreplace").decode() or "''"


def _object(text: str, rest: str) -> ModelUri:
    bucket, _, name = rest.partition("/")
    if "@" in bucket:
        raise UsageError("a model's address holds no user or password", where=_shown(text), todo=_LOGIN)
    if not _BUCKET.match(bucket):
        raise UsageError("what follows gs:// is not a bucket's name", where=_shown(text), todo=_TODO)
    path = name.removesuffix("/")
    if not path or path in {".", ".."} or not encodable(path) or len(path.encode()) > LONGEST_NAME:
        raise UsageError("this names no object in the bucket", where=_shown(text), todo=_TODO)
    return ModelUri(bucket=bucket, path=path, folder=name.endswith("/"))


def _file(text: str, rest: str) -> ModelUri:
    host, slash, path = rest.partition("/")
    if not slash or host not in {"", "localhost"}:
        raise UsageError("a file URI has an absolute path of this machine", where=_shown(text), todo=_TODO)
    return _local(text, unquote(slash + path))


def _working_folder() -> str:
    """Return the working folder as the shell calls it, which may be by a link; empty where that is another folder."""
    name = os.environ.get("PWD", "")
    try:
        return name if Path(name).is_absolute() and Path(name).samefile(".") else ""
    except (OSError, ValueError):
        return ""


def _local(text: str, path: str) -> ModelUri:
    if "\0" in path:
        raise UsageError("this is not a path", where=repr(text), todo=_TODO)
    absolute = str(Path(_working_folder(), path).absolute())
    if "/../" in f"{absolute}/":
        # Behind a link, `..` is where the kernel finds it; what follows the last one stays as it is written.
        above, _, below = f"{absolute}/".rpartition("/../")
        absolute = str(Path(os.path.realpath(f"{above}/.."), below))
    if absolute == "/":
        raise UsageError("this names no model", where=text, todo=_TODO)
    return ModelUri(bucket=None, path=absolute, folder=path.endswith("/"))
