"""What other frameworks write: ONNX, safetensors, Orbax."""

from __future__ import annotations

import json
import re

from envbuild.capture.gcs import Unread
from envbuild.capture.model.containers import json_object
from envbuild.capture.model.places import Place
from envbuild.capture.model.protobuf import BYTES, VARINT, wire_fields, wire_values
from envbuild.capture.model.source import BUDGET, Source, said
from envbuild.capture.model.tensorflow import add_writer
from envbuild.capture.reading import Facts

LONGEST_METADATA = 64 << 10
SAFE_METADATA = re.compile(rb'\{"__metadata__":(\{.*)', re.DOTALL)


def read_onnx(facts: Facts, place: Place, path: str) -> None:
    """Read the fields of a ModelProto (onnx.proto) around its graph."""
    source = place.open(path)
    texts, numbers, graph = {}, {}, (0, 0)
    for number, kind, first, last in wire_fields(source, 0, source.size):
        if kind == BYTES and number in (2, 3):
            texts[number] = said(source.at(first, last - first))
        elif kind == BYTES and number == 7:
            graph = (first, last)
        elif kind == BYTES and number == 8:
            opset = wire_values(source, first, last)
            domain = re.sub(r"[^\w.-]", "_", said(opset.get(1)) or "")
            numbers["opset:" + domain if domain else "opset"] = opset.get(2)
        elif (number, kind) == (1, VARINT):
            numbers["ir_version"] = first
    if "ir_version" not in numbers or not graph[1]:
        raise Unread("%s is no ONNX model" % path)
    facts["format"] = "onnx"
    add_writer(facts, texts.get(2) or "unknown", texts.get(3))
    facts["details"].update((name, str(value)) for name, value in sorted(numbers.items()))
    # Only what keeps its weights elsewhere is small.
    if source.size <= BUDGET // 4:
        facts["details"]["external_data"] = ",".join(sorted(_external(source, *graph))) or None


def read_safetensors(facts: Facts, place: Place, path: str) -> None:
    """Read the header: its length, then JSON, the metadata first (safetensors' README, "Format")."""
    source = place.open(path)
    length = int.from_bytes(source.at(0, 8), "little")
    if 8 + length > source.size or source.at(8, 1) != b"{":
        raise Unread("%s is no safetensors file, or cut short" % path)
    facts["format"] = "safetensors"
    found = SAFE_METADATA.match(source.at(8, min(length, LONGEST_METADATA)))
    try:
        metadata = json.JSONDecoder().raw_decode(found.group(1).decode("utf-8", "replace"))[0] if found else {}
    except (ValueError, RecursionError):
        metadata = {}
    facts["details"]["metadata_format"] = said(metadata.get("format"))


def read_orbax(facts: Facts, place: Place, path: str) -> None:
    """Read _CHECKPOINT_METADATA, which says no version."""
    facts["format"] = "orbax"
    source = place.open(path)
    handlers = json_object(source.at(0, min(source.size, LONGEST_METADATA))).get("item_handlers")
    names = handlers.values() if isinstance(handlers, dict) else [handlers]
    facts["details"]["item_handlers"] = said(",".join(sorted(name for name in names if isinstance(name, str))))


def _external(source: Source, start: int, end: int) -> set[str]:
    """Return the files that hold the graph's weights (onnx.proto, TensorProto.external_data)."""
    found = set()
    for number, kind, first, last in wire_fields(source, start, end):
        if (number, kind) != (5, BYTES):
            continue
        for inner, inner_kind, at, stop in wire_fields(source, first, last):
            if (inner, inner_kind) == (13, BYTES):
                entry = wire_values(source, at, stop)
                if entry.get(1) == b"location":
                    found.add(said(entry.get(2)) or "")
    return found
