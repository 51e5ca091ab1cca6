"""The trained model, read from its own files without the framework that wrote it. Nothing is ever unpickled."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping, Optional, Set, Tuple

from envbuild.capture.artifacts import (
    read_catboost,
    read_description,
    read_json_model,
    read_lightgbm,
    read_pickled,
    read_skops,
    read_xgboost,
)
from envbuild.capture.files import Facts, present
from envbuild.capture.formats import (
    BYTES,
    SIGNATURE,
    VARINT,
    Hdf5,
    Member,
    add_writer,
    json_object,
    wire_fields,
    wire_values,
    zip_content,
    zip_members,
    zip_search,
)
from envbuild.capture.gcs import Unread
from envbuild.capture.places import MOST_FILES, ModelPlace, RangeReader, place_of, search, short_text
from envbuild.capture.redact import scrub_file_name, scrub_line

LONGEST_SEARCH = 8 << 20
KERAS_VERSION = re.compile(rb'"keras_version": ?"([^"\\]{1,100})"')
TORCH_VERSION = re.compile(rb'"torch_version": ?"([^"\\]{1,100})"')
PROGRAM_SCHEMA = re.compile(rb'"schema_version": ?(\{[^{}]{1,100}\}|\d{1,9})')
MEMBERS = {
    "keras": re.compile(r"metadata\.json|config\.json"),
    "program": re.compile(r"(?:[^/]+/)?(?:models/[^/]+\.json|serialized_exported_program\.json)"),
    "archive": re.compile(r"(?:[^/]+/)?(?:archive_version|archive_format)"),
    "script": re.compile(r"[^/]+/constants\.pkl"),
    "weights": re.compile(r"(?:[^/]+/)?data\.pkl"),
}
"""Members by which an archive is recognised."""


def read_saved_model(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read saved_model.pb, and the fingerprint and Keras's metadata that may lie beside it."""
    facts["format"] = "saved_model"
    source = place.open(path)
    graph = next((field for field in wire_fields(source, 0, source.size) if field[:2] == (2, BYTES)), None)
    if graph is None:
        raise Unread("%s holds no graph" % path)
    _read_meta_graph(facts, source, graph[2], graph[3])
    _read_neighbours(facts, place, path)


def read_saved_text(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read saved_model.pbtxt, whose lines are the fields."""
    facts["format"] = "saved_model"
    source = place.open(path)
    end = min(source.size, LONGEST_SEARCH)
    found = [
        search(source.windows(0, end), re.compile(rb'^ *%s: "([^"\\\n]{1,100})"$' % name, re.MULTILINE))
        for name in (b"tensorflow_version", b"tensorflow_git_version")
    ]
    add_writer(facts, "tensorflow", *found)
    _read_neighbours(facts, place, path)


def _read_neighbours(facts: Facts, place: ModelPlace, path: str) -> None:
    folder = path[: path.rfind("/") + 1]
    if place.has(folder + "keras_metadata.pb"):
        # Keras 2 describes each layer there, as JSON.
        source = place.open(folder + "keras_metadata.pb")
        pieces = source.windows(0, min(source.size, LONGEST_SEARCH))
        add_writer(facts, "keras", search(pieces, KERAS_VERSION))
    if place.has(folder + "fingerprint.pb"):
        source = place.open(folder + "fingerprint.pb")
        values = wire_values(source, 0, source.size)
        # As tf.saved_model.experimental.Fingerprint.singleprint() returns it.
        facts["details"]["singleprint"] = "/".join(str(values.get(number, 0)) for number in (2, 3, 4, 5))


def read_meta_graph(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read the .meta file of a TensorFlow 1 checkpoint, which is a MetaGraphDef."""
    source = place.open(path)
    _read_meta_graph(facts, source, 0, source.size)
    facts["format"] = "tf_checkpoint"


def _read_meta_graph(facts: Facts, source: RangeReader, start: int, end: int) -> None:
    """Read MetaGraphDef.meta_info_def, which comes first, and nothing behind it."""
    info = next((field for field in wire_fields(source, start, end) if field[:2] == (1, BYTES)), None)
    if info is None:
        raise Unread("%s does not say what wrote it" % source.name)
    tags, texts = [], {}
    for number, kind, first, last in wire_fields(source, info[2], info[3]):
        if kind == BYTES and number == 4:
            tags.append(short_text(source.at(first, last - first)) or "")
        elif kind == BYTES and number in (5, 6):
            texts[number] = short_text(source.at(first, last - first))
    add_writer(facts, "tensorflow", texts.get(5), texts.get(6))
    if tags:
        facts["details"]["tags"] = ",".join(tags[:20])


def read_checkpoint(facts: Facts, place: ModelPlace, path: str) -> None:
    """Take an .index beside its .data files as a TensorFlow 2 checkpoint, which has no version."""
    stem = path[: -len("index")] + "data-"
    if any(file["path"].startswith(stem) for file in place.files):
        facts["format"] = "tf_checkpoint"


def read_graph(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read a frozen GraphDef, which has only the version of its operations."""
    source = place.open(path)
    for number, kind, first, last in wire_fields(source, 0, source.size):
        if (number, kind) not in ((1, BYTES), (2, BYTES), (3, 0), (4, BYTES), (5, BYTES)):
            raise Unread("%s is not a TensorFlow graph" % path)
        facts["format"] = "tf_graph"
        if number == 4:
            facts["details"]["producer"] = str(wire_values(source, first, last).get(1))


def read_container(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read a file by its first bytes, as suffixes such as .keras and .pt have meant several formats."""
    source, suffix = place.open(path), path.rpartition(".")[2]
    head = source.head(len(SIGNATURE))
    if head.startswith(b"PK\3\4"):
        _read_archive(facts, source)
    elif head == SIGNATURE:
        facts["format"] = "hdf5"
        texts = Hdf5(source).texts()
        add_writer(facts, "keras", short_text(texts.get("keras_version")))
        facts["details"]["backend"] = short_text(texts.get("backend"))
    elif re.match(rb"\x80[\2-\5]", head) and suffix in ("pt", "pth", "bin", "ckpt"):
        facts["format"] = "torch"
    elif suffix != "ckpt":
        raise Unread("%s is not what its name says" % path)


def _read_archive(facts: Facts, source: RangeReader) -> None:
    found: Dict[str, Member] = {}
    for member in zip_members(source):
        for kind, pattern in MEMBERS.items():
            if pattern.fullmatch(member.name):
                found.setdefault(member.name if kind == "keras" else kind, member)
    details = facts["details"]
    if {"metadata.json", "config.json"} <= set(found):
        facts["format"] = "keras"
        metadata = json_object(zip_content(source, found["metadata.json"]))
        add_writer(facts, "keras", short_text(metadata.get("keras_version")))
    elif "program" in found or "archive" in found:
        facts["format"] = "torch_export"
        if "program" in found:
            add_writer(facts, "torch", zip_search(source, found["program"], TORCH_VERSION))
            schema = zip_search(source, found["program"], PROGRAM_SCHEMA)
            details["schema_version"] = ".".join(re.findall(r"\d+", schema or "")) or None
    elif "script" in found or "weights" in found:
        facts["format"] = "torchscript" if "script" in found else "torch"


def read_onnx(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read the fields of a ModelProto (onnx.proto) around its graph."""
    source = place.open(path)
    texts, numbers, graph = {}, {}, False
    for number, kind, first, last in wire_fields(source, 0, source.size):
        if kind == BYTES and number in (2, 3):
            texts[number] = short_text(source.at(first, last - first))
        elif kind == BYTES and number == 7:
            graph = True
        elif kind == BYTES and number == 8:
            opset = wire_values(source, first, last)
            domain = re.sub(r"[^\w.-]", "_", short_text(opset.get(1)) or "")
            numbers["opset:" + domain if domain else "opset"] = opset.get(2)
        elif (number, kind) == (1, VARINT):
            numbers["ir_version"] = first
    if "ir_version" not in numbers or not graph:
        raise Unread("%s is not an ONNX model" % path)
    facts["format"] = "onnx"
    add_writer(facts, texts.get(2) or "unknown", texts.get(3))
    facts["details"].update((name, str(value)) for name, value in sorted(numbers.items()))


def read_safetensors(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read the header, which begins with the length of its JSON (safetensors' README, "Format")."""
    source = place.open(path)
    length = int.from_bytes(source.at(0, 8), "little")
    if 8 + length > source.size or source.at(8, 1) != b"{":
        raise Unread("%s is not a safetensors file, or cut short" % path)
    facts["format"] = "safetensors"


def read_orbax(facts: Facts, _place: ModelPlace, _path: str) -> None:
    """Take _CHECKPOINT_METADATA, which has no version, as a mark."""
    facts["format"] = "orbax"


READERS: List[Tuple[str, Callable[[Facts, ModelPlace, str], None]]] = [
    (r"saved_model\.pb", read_saved_model),
    (r"saved_model\.pbtxt", read_saved_text),
    (r".*\.keras", read_container),
    (r".*\.pt2", read_container),
    (r"config_sentence_transformers\.json", read_description),
    (r"config\.json|meta\.json", read_description),
    (r".*\.onnx", read_onnx),
    (r"_CHECKPOINT_METADATA", read_orbax),
    (r".*\.safetensors", read_safetensors),
    (r".*\.(h5|hdf5)", read_container),
    (r".*\.meta", read_meta_graph),
    (r".*\.index", read_checkpoint),
    (r".*\.(pt|pth|ckpt)|(pytorch|adapter)_model.*\.bin", read_container),
    (r"(?!fingerprint|keras_metadata).*\.pb", read_graph),
    (r".*\.(pkl|pickle|joblib|cloudpickle)", read_pickled),
    (r".*\.skops", read_skops),
    (r".*\.(ubj|xgb|model|bst)", read_xgboost),
    (r".*\.cbm", read_catboost),
    (r".*\.json", read_json_model),
    (r".*\.txt", read_lightgbm),
]
"""Names of files and their readers, the most informative first."""
FOLDERS = {"saved_model", "tf_checkpoint", "orbax", "sentence_transformers", "transformers", "spacy"}
"""Formats of several files; in their folder only the files of APART are artifacts of their own."""
APART = re.compile(r".*\.(pkl|pickle|joblib|cloudpickle|skops|cbm|ubj|keras)")
MOST_TRIED = 50
"""Files whose content is looked at; of a folder with more, those that say most."""
READABLE = re.compile("|".join("(?:%s)" % pattern for pattern, _ in READERS))


def model_facts(uri: str, recorded: Optional[Mapping[str, int]] = None, seconds: float = 0) -> Facts:
    """Read a model's files and what wrote them, or why not; for `recorded` and `seconds` see LocalPlace."""
    try:
        place = place_of(uri, recorded, seconds)
    except Unread as error:
        return {"uri": scrub_line(uri), "unread": short_text(str(error))}
    except ValueError:
        return {"uri": scrub_line(uri), "unread": "it is not a valid path, file:// or gs:// address"}
    return facts_of_place(uri, place)


def facts_of_place(uri: str, place: ModelPlace) -> Facts:
    """Read the files of a model: of the file that lies highest and is the first in READERS, what it says."""
    facts: Facts = {"uri": scrub_line(uri), "written_by": [], "details": {}}
    faults = list(place.faults)
    files = sorted(place.files[:MOST_FILES], key=lambda file: str(file["path"]))
    facts["files"] = [dict(file, path=scrub_file_name(file["path"])) for file in files]
    if place.whole:
        facts["file_count"] = len(place.files)
        facts["size"] = sum(file["size"] for file in place.files)
    found, unread = read_artifacts(place)
    faults += unread
    if found:
        facts.update((key, value) for key, value in found[0].items() if key != "path")
    if found[1:]:
        facts["artifacts"] = [present(artifact) for artifact in found]
    more = " (and %d more)" % (len(faults) - 1) if faults[1:] else ""
    facts["unread"] = (short_text(faults[0]) or "") + more if faults else None
    described: Facts = present(facts)
    return described


def read_artifacts(place: ModelPlace) -> Tuple[List[Facts], List[str]]:
    """Read the files that have a reader: those that lie highest first, then by READERS; and why others are unread."""
    ranked = [
        (path.count("/"), rank, path, reader)
        for path in (file["path"] for file in place.files)
        if READABLE.fullmatch(path.rsplit("/")[-1])
        for rank, (pattern, reader) in enumerate(READERS)
        if re.fullmatch(pattern, path.rsplit("/")[-1])
    ]
    found: List[Facts] = []
    damaged: List[str] = []
    others: List[str] = []
    tried = 0
    folders: Set[str] = set()
    read: Set[str] = set()
    for _, _, path, reader in sorted(ranked, key=lambda item: item[:3]):
        inside = not APART.fullmatch(path)
        if any(inside and path.startswith(folder) for folder in folders) or path in read:
            continue
        tried += 1
        if tried > MOST_TRIED:
            break
        facts: Facts = {"path": path, "written_by": [], "details": {}}
        try:
            reader(facts, place, path)
        except Unread as error:
            (damaged if facts.get("format") else others).append(str(error))
        if facts.get("format"):
            read.add(path)
            folder = path[: path.rfind("/") + 1]
            folders |= {folder} if facts["format"] in FOLDERS else set()
            # Of weights in several files that say the same, the first stands for all.
            alike = (dict(it, path="") for it in found if it["path"].startswith(folder))
            if dict(facts, path="") not in alike:
                found.append(facts)
    # Beside a model a file that is none, such as the inputs that lie beside an ONNX model, is no fault.
    return found, damaged if found else others
