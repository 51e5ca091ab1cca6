"""Objects by their URI: a model's folder and anchor, and inputs such as a manifest."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, StampError
from envbuild.stamp.directory import DirectoryStore, read_file
from envbuild.stamp.store import Store, choose_anchor
from envbuild.stamp.uri import ModelUri, parse_model_uri


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that was found."""

    uri: str
    store: Store
    anchor: str
    """Name of the object that carries the pointer, inside the store's folder."""


@contextmanager
def found(model_uri: str) -> Iterator[Model]:
    """Yield the model at a URI; UsageError when it is no URI of one, StampError when there is no model."""
    uri = parse_model_uri(model_uri)
    with ExitStack() as stack:
        own, parent = _stores(uri, stack)
        if not uri.folder and parent.state(uri.name) is not None:
            yield Model(uri=str(uri), store=parent, anchor=uri.name)
            return
        anchor = choose_anchor(own.names(deep=False)) or choose_anchor(own.names(deep=True))
        if anchor is None:
            todo = "save the model there first, or give the URI of its file or folder"
            raise StampError("there is no model here: no file or object", where=str(uri), todo=todo)
        yield Model(uri=str(uri), store=own, anchor=anchor)


def read_uri(uri: str, *, limit: int, error: type[EnvbuildError] = StampError) -> bytes:
    """Read `gs://bucket/object`, or a file, of at most `limit` bytes; `error` when that cannot be done."""
    place = parse_model_uri(uri)
    if place.bucket is None:
        data = read_file(Path(place.path), limit=limit, error=error)
    else:
        from envbuild.stamp.gcs import connected, read_object  # noqa: PLC0415 - Google's client takes a second to load

        with connected(error) as client:
            data = read_object(client, place.bucket, place.path, limit=limit, error=error)
    if data is None:
        raise error("there is no such object", where=str(place), todo="check the bucket's and the object's name")
    return data


def _stores(uri: ModelUri, stack: ExitStack) -> tuple[Store, Store]:
    """Return the store of the URI as a folder, and that of the folder it lies in."""
    if uri.bucket is None:
        return DirectoryStore(uri.path), DirectoryStore(uri.parent)
    from envbuild.stamp.gcs import GcsStore, connected  # noqa: PLC0415 - Google's client takes a second to load

    client = stack.enter_context(connected())
    return GcsStore(client, uri.bucket, uri.path), GcsStore(client, uri.bucket, uri.parent)
