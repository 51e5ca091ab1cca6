"""What TensorFlow writes: SavedModels, checkpoints and graphs (the .proto files in tensorflow/core/protobuf)."""

from __future__ import annotations

import re

from envbuild.capture.gcs import Unread
from envbuild.capture.model.places import Place
from envbuild.capture.model.protobuf import BYTES, wire_fields, wire_values
from envbuild.capture.model.source import Source, said, search
from envbuild.capture.reading import Facts

LONGEST_SEARCH = 8 << 20
KERAS_VERSION = re.compile(rb'"keras_version": ?"([^"\\]{1,100})"')


def read_saved_model(facts: Facts, place: Place, path: str) -> None:
    """Read saved_model.pb, and the fingerprint and Keras's metadata that may lie beside it."""
    facts["format"] = "saved_model"
    source = place.open(path)
    graph = next((field for field in wire_fields(source, 0, source.size) if field[:2] == (2, BYTES)), None)
    if graph is None:
        raise Unread("%s holds no graph" % path)
    _read_meta_graph(facts, source, graph[2], graph[3])
    _read_beside(facts, place, path)


def read_saved_text(facts: Facts, place: Place, path: str) -> None:
    """Read saved_model.pbtxt, whose lines are the fields."""
    facts["format"] = "saved_model"
    source = place.open(path)
    end = min(source.size, LONGEST_SEARCH)
    found = [
        search(source.windows(0, end), re.compile(rb'^ *%s: "([^"\\\n]{1,100})"$' % name, re.MULTILINE))
        for name in (b"tensorflow_version", b"tensorflow_git_version")
    ]
    add_writer(facts, "tensorflow", *found)
    _read_beside(facts, place, path)


def read_meta_graph(facts: Facts, place: Place, path: str) -> None:
    """Read the .meta file of a TensorFlow 1 checkpoint, which is a MetaGraphDef."""
    source = place.open(path)
    _read_meta_graph(facts, source, 0, source.size)
    facts["format"] = "tf_checkpoint"


def read_checkpoint(facts: Facts, place: Place, path: str) -> None:
    """Take an .index beside its .data files as a TensorFlow 2 checkpoint, which says no version."""
    stem = path[: -len("index")] + "data-"
    if any(file["path"].startswith(stem) for file in place.files):
        facts["format"] = "tf_checkpoint"


def read_graph(facts: Facts, place: Place, path: str) -> None:
    """Read a frozen GraphDef, which says no version but that of its operations."""
    source = place.open(path)
    for number, kind, first, last in wire_fields(source, 0, source.size):
        if (number, kind) not in ((1, BYTES), (2, BYTES), (3, 0), (4, BYTES), (5, BYTES)):
            raise Unread("%s is no graph of TensorFlow's" % path)
        facts["format"] = "tf_graph"
        if number == 4:
            facts["details"]["producer"] = str(wire_values(source, first, last).get(1))


def add_writer(facts: Facts, name: str, version: str | None, git_version: str | None = None) -> None:
    """Say who wrote a model, where the model says so."""
    if version:
        facts["written_by"].append({"name": name, "version": version, "git_version": git_version})


def _read_meta_graph(facts: Facts, source: Source, start: int, end: int) -> None:
    """Read MetaGraphDef.meta_info_def, which comes first, and nothing behind it."""
    info = next((field for field in wire_fields(source, start, end) if field[:2] == (1, BYTES)), None)
    if info is None:
        raise Unread("%s does not say what wrote it" % source.name)
    tags, texts = [], {}
    for number, kind, first, last in wire_fields(source, info[2], info[3]):
        if kind == BYTES and number == 4:
            tags.append(said(source.at(first, last - first)) or "")
        elif kind == BYTES and number in (5, 6):
            texts[number] = said(source.at(first, last - first))
    add_writer(facts, "tensorflow", texts.get(5), texts.get(6))
    if tags:
        facts["details"]["tags"] = ",".join(tags[:20])


def _read_beside(facts: Facts, place: Place, path: str) -> None:
    folder = path[: path.rfind("/") + 1]
    if place.has(folder + "keras_metadata.pb"):
        # Keras 2 describes each layer there, as JSON.
        source = place.open(folder + "keras_metadata.pb")
        pieces = source.windows(0, min(source.size, LONGEST_SEARCH))
        add_writer(facts, "keras", search(pieces, KERAS_VERSION))
    if place.has(folder + "fingerprint.pb"):
        source = place.open(folder + "fingerprint.pb")
        values = wire_values(source, 0, source.size)
        # What tf.saved_model.experimental.Fingerprint.singleprint() gives.
        facts["details"]["singleprint"] = "/".join(str(values.get(number, 0)) for number in (2, 3, 4, 5))
        facts["details"]["uuid"] = said(values.get(7))
