"""Objects by their URI: a model's folder and its anchor, and inputs such as a manifest."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from envbuild.errors import StampError
from envbuild.stamp.directory import DirectoryStore
from envbuild.stamp.record import FOLDER, RECORD_LIMIT, Stamp, is_record_name, read_record
from envbuild.stamp.store import (
    LONGEST_NAME,
    SAVED_MODEL,
    ModelUri,
    Store,
    Unreachable,
    choose_anchor,
    encodable,
    is_model_file,
    order,
    parse_model_uri,
)

_LONGEST_OWN = len(f"/{FOLDER}/record-{64 * '0'}.json")
"""Bytes that the longest name of a stamp's objects adds to the folder's name."""
_READERS = 8
"""Records that are read at the same time; Google's client keeps ten connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that exists."""

    uri: str
    store: Store
    anchor: str
    """Name of the object that carries the pointer, inside the store's folder."""
    is_file: bool = False
    """Whether the URI names the anchor itself, and not its folder."""


SignedCheck = Callable[[Model, str, Stamp], bool]
"""Returns whether the reader's key signed a record of a model."""


@contextmanager
def open_model(model_uri: str, is_signed: SignedCheck | None = None) -> Iterator[Model]:
    """Yield the model at a URI; UsageError for an invalid URI, StampError when there is no model.

    With `is_signed`, only signed records select the file of a folder that has the stamp.
    """
    uri = parse_model_uri(model_uri)
    with ExitStack() as stack:
        own, parent = _stores(uri, stack)
        if not uri.folder and parent.state(uri.name) is not None:
            _check_name(uri, uri.parent, uri.name)
            if any(map(is_record_name, own.records())):
                what = "an object has the same name as this folder, which is a stamped model"
                todo = f"remove the object, or give the folder as {uri}/"
                raise StampError(what, where=str(uri), todo=todo)
            yield Model(uri=str(uri), store=parent, anchor=uri.name, is_file=True)
            return
        _check_name(uri, uri.path, "")
        anchor = _anchor(own, is_signed and partial(is_signed, Model(uri=str(uri), store=own, anchor="")))
        if anchor is None:
            todo = "save the model there first, or give the URI of its file or folder"
            raise StampError("there is no model: no file or object here", where=str(uri), todo=todo)
        _check_name(uri, uri.path, anchor)
        yield Model(uri=str(uri), store=own, anchor=anchor)


def _anchor(store: Store, is_signed: Callable[[str, Stamp], bool] | None) -> str | None:
    """Choose the object that carries the pointer: the one that did before, so that a new file does not move a stamp.

    A stamped folder below is another model.
    """
    if store.state(SAVED_MODEL):
        return SAVED_MODEL
    if before := _anchor_before(store, is_signed):
        return before
    near = store.names(deep=False)
    pointing = [name for name, record in near.items() if record and not is_signed]
    return choose_anchor(near, pointing) or choose_anchor(store.names(deep=True))


def _anchor_before(store: Store, is_signed: Callable[[str, Stamp], bool] | None) -> str | None:
    """The anchor that a record names and that still exists: one with a pointer, else the newest record's."""
    names = {name for name in store.records() if is_record_name(name)}
    read = [(name, it) for name, it in read_records(store, names) if is_model_file(it.anchor.name)]
    records = [it for name, it in read if is_signed is None or is_signed(name, it)]
    states = {name: store.state(name) for name in {it.anchor.name for it in records}}
    there = {name: state for name, state in states.items() if state}
    if bearers := [name for name, state in there.items() if state.metadata.get("envbuild-record") in names]:
        return min(bearers, key=order)
    newest = max(records, key=lambda it: (it.anchor.name in there, it.created, it.counter), default=None)
    return newest.anchor.name if newest and newest.anchor.name in there else None


def read_records(store: Store, names: Iterable[str]) -> list[tuple[str, Stamp]]:
    """Read records by their names; skip unusable ones: too large, damaged, a link out of the folder.

    Unreachable if one may be readable, and its storage does not answer.
    """

    def read(name: str) -> Stamp | None:
        try:
            return read_record(name, store.read(name, limit=RECORD_LIMIT) or b"")
        except Unreachable:  # it may be the newest record
            raise
        except StampError:
            return None

    with ThreadPoolExecutor(_READERS) as pool:
        each = sorted(names)
        return [(name, stamp) for name, stamp in zip(each, pool.map(read, each), strict=True) if stamp]


def _check_name(uri: ModelUri, folder: str, anchor: str) -> None:
    """StampError for names that a stamp cannot use: not UTF-8, or too long for an object of the stamp."""
    if not encodable(anchor):
        what = f"the name of the model's file is not UTF-8: {anchor!a}"
        raise StampError(what, where=str(uri), todo="give the file a name in UTF-8")
    if uri.bucket is not None and (size := len(folder.encode()) + _LONGEST_OWN) > LONGEST_NAME:
        what = f"the model's name is too long: the record beside it would have {size} of {LONGEST_NAME} bytes"
        raise StampError(what, where=str(uri), todo="copy the model to a shorter name: gcloud storage cp -r")


def _stores(uri: ModelUri, stack: ExitStack) -> tuple[Store, Store]:
    """Return the store of the URI as a folder, and that of the folder it lies in."""
    if uri.bucket is None:
        return DirectoryStore(uri.path), DirectoryStore(uri.parent)
    from envbuild.stamp.gcs import GcsStore, connected  # noqa: PLC0415 - Google's client takes a second to load

    client = stack.enter_context(connected())
    return GcsStore(client, uri.bucket, uri.path), GcsStore(client, uri.bucket, uri.parent)
