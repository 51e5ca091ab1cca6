"""What a SavedModel says of itself that a server goes by, read without TensorFlow.

The messages are those of tensorflow/core/protobuf: SavedModel.meta_graphs = 2; MetaGraphDef.meta_info_def = 1 and
signature_def = 5, a map by name; MetaInfoDef.stripped_op_list = 2; OpList.op = 1; OpDef.name = 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from envbuild.capture.formats import BYTES, wire_fields
from envbuild.capture.gcs import Unread
from envbuild.capture.places import RangeReader, place_of

INTERNAL = "__saved_model_init_op"
"""A signature that TensorFlow writes for itself."""
CUSTOM_PREFIXES = ("SimpleML", "Sentencepiece", "Wordpiece")
"""Operations of TensorFlow Decision Forests and TensorFlow Text, which bear no mark of their library."""
_FILE = "saved_model.pb"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFacts:
    """The names in a SavedModel, sorted."""

    signatures: tuple[str, ...]
    operations: tuple[str, ...]

    @property
    def custom_operations(self) -> tuple[str, ...]:
        """Those that TensorFlow itself has not: `Addons>GeluV2`, as libraries have to name theirs."""
        return tuple(it for it in self.operations if ">" in it or it.startswith(CUSTOM_PREFIXES))


def saved_facts(uri: str) -> SavedFacts | None:
    """Read the first graph of a SavedModel; None where it cannot be read."""
    try:
        place = place_of(uri)
        paths = [str(it["path"]) for it in place.files if str(it["path"]).rpartition("/")[2] == _FILE]
        source = place.open(min(paths, key=lambda path: path.count("/")))
        _, start, end = next(_messages(source, 0, source.size, 2))
        signatures = {_name(source, first, last) for _, first, last in _messages(source, start, end, 5)}
        operations = {
            _name(source, first, last)
            for _, info, info_end in _messages(source, start, end, 1)
            for _, listed, listed_end in _messages(source, info, info_end, 2)
            for _, first, last in _messages(source, listed, listed_end, 1)
        }
    except (Unread, ValueError, StopIteration):
        return None
    return SavedFacts(signatures=tuple(sorted(signatures - {INTERNAL})), operations=tuple(sorted(operations)))


def _messages(source: RangeReader, start: int, end: int, wanted: int) -> Iterator[tuple[int, int, int]]:
    """Yield where the values of one field lie."""
    for number, kind, first, last in wire_fields(source, start, end):
        if (number, kind) == (wanted, BYTES):
            yield number, first, last


def _name(source: RangeReader, start: int, end: int) -> str:
    """The first field of a message, where maps have their key and operations their name."""
    _, first, last = next(_messages(source, start, end, 1))
    return source.at(first, last - first).decode("utf-8", "replace")
