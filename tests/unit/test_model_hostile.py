"""No model's file makes a reader raise, hang, run code, or read and inflate much."""

import io
import pickle
import struct
import sys
import threading
import tracemalloc
import zipfile
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.capture.model import facts_of_place, model_facts
from envbuild.capture.places import BUDGET
from tests.unit.modelling import ARTIFACTS, MODELS, MemoryPlace, read_memory

MOST_MEMORY = 16 << 20
NAMES = [path.name for path in ARTIFACTS]
FIELDS = {"uri", "files", "file_count", "size", "format", "written_by", "details", "unread"}


def around(name: str, data: bytes) -> dict[str, bytes]:
    """The file, and what it is read beside."""
    beside = {"saved_model.pb": (MODELS / "saved_model/saved_model.pb").read_bytes()}
    return {**(beside if name in ("fingerprint.pb", "keras_metadata.pb") else {}), name: data}


def checked(name: str, data: bytes) -> dict:
    """Read a file, and hold the reader to its bounds."""
    place = MemoryPlace(around(name, data))
    tracemalloc.start()
    facts = facts_of_place("memory", place)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < MOST_MEMORY
    assert place.read <= 3 * BUDGET
    assert set(facts) <= FIELDS
    for writer in facts["written_by"]:
        assert all(value and value.isprintable() and len(value) <= 200 for value in writer.values())
    return facts


def varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def saved_model(info: bytes) -> bytes:
    return b"\x08\x01" + field(2, field(1, info))


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as written:
        for name, content in members.items():
            written.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize("path", ARTIFACTS, ids=NAMES)
def test_a_file_that_is_cut_short_is_refused_at_every_length(path):
    data = path.read_bytes()
    whole = checked(path.name, data)
    lengths = range(len(data)) if len(data) < 2000 else [*range(600), *range(600, len(data), 97)]
    found = [checked(path.name, data[:length]) for length in lengths]
    versions = {(writer["name"], writer["version"]) for writer in whole["written_by"]}
    for facts in found:
        assert {(writer["name"], writer["version"]) for writer in facts["written_by"]} <= versions
    assert any("unread" in facts for facts in found) or path.suffix in (".pth", ".pbtxt")


@pytest.mark.parametrize("path", ARTIFACTS, ids=NAMES)
def test_changed_bytes_are_read_or_refused(path):
    original = path.read_bytes()
    changes = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=5)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    @given(changes)
    def run(edits):
        data = original
        for where, length, new in edits:
            at = int(where * len(data))
            data = data[:at] + new + data[at + length :]
        checked(path.name, data)

    run()


@pytest.mark.parametrize("path", [path for path in ARTIFACTS if path.stat().st_size < 9000], ids=str)
def test_every_byte_may_be_the_worst(path):
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 500)):
        for worst in (b"\xff", b"\x00", b"\x80"):
            files = around(path.name, data[:at] + worst + data[at + 1 :])
            assert set(facts_of_place("memory", MemoryPlace(files))) <= FIELDS


@pytest.mark.parametrize(
    "name",
    [
        *sorted(set(NAMES) - {"fingerprint.pb"}),
        "x.meta",
        "x.hdf5",
        "x.ckpt",
        "pytorch_model.bin",
        "_CHECKPOINT_METADATA",
    ],
)
@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff" * 200, b"\x0a" * 5000, b"PK\3\4", b"\x89HDF\r\n\x1a\n", b"{" * 70000]
)
def test_rubbish_is_refused(name, data):
    facts = checked(name, data)
    assert facts["written_by"] == []


@pytest.mark.parametrize("length", [1 << 20, 1 << 31, 1 << 62, (1 << 64) - 1, (1 << 70) - 1])
def test_a_length_beyond_the_file_is_refused(length):
    for name, key in (("saved_model.pb", b"\x12"), ("x.meta", b"\x0a"), ("x.pb", b"\x0a"), ("x.onnx", b"\x3a")):
        assert "unread" in checked(name, key + varint(length) + b"x" * 100)
    safe = struct.pack("<Q", length & (1 << 64) - 1) + b'{"__metadata__":{"format":"pt"}}'
    assert "cut short" in checked("x.safetensors", safe)["unread"]


def test_an_endless_number_is_refused():
    assert "not a protocol buffer" in checked("saved_model.pb", b"\x80" * 100000)["unread"]


def test_many_fields_are_refused():
    assert "more than 50000 fields" in checked("x.pb", b"\x0a\0" * 60000)["unread"]


def test_what_lies_behind_much_is_not_looked_for():
    place = MemoryPlace({"x.pb": (b"\x0a" + varint(20000) + bytes(20000)) * 2000 + b"\x22\x02\x08\x07"})
    facts = facts_of_place("memory", place)
    assert facts["unread"] == "what it says lies behind more than 16 MiB"
    assert (facts["format"], facts["details"]) == ("tf_graph", {})
    assert place.read <= BUDGET


def test_a_message_of_another_kind_is_no_onnx_model():
    for data in (field(2, b"someone") + field(3, b"1.0"), b"\x08\x07" + field(2, b"someone") + field(3, b"1.0")):
        facts = checked("x.onnx", data)
        assert facts["unread"] == "x.onnx is not an ONNX model"
        assert facts["written_by"] == []


def test_long_texts_are_cut_short():
    version = checked("saved_model.pb", saved_model(field(5, b"9" * 100000)))["written_by"][0]["version"]
    assert version == "9" * 200
    assert "longer" in checked("saved_model.pb", saved_model(field(5, b"9" * (3 << 20))))["unread"]


def test_control_characters_are_spelled_out():
    (writer,) = checked("saved_model.pb", saved_model(field(5, b"2.1\x1b[31m\xff")))["written_by"]
    assert writer["version"] == "2.1\\x1b[31m\ufffd"


UNPACKS = "unpacks to more than is ever read"


def test_a_bomb_is_not_inflated():
    bomb = archive({"metadata.json": b" " * (64 << 20), "config.json": b""}, zipfile.ZIP_DEFLATED)
    facts = checked("model.keras", bomb)
    assert (facts["format"], facts["unread"]) == ("keras", f"metadata.json in it {UNPACKS}")
    program = archive({"m/models/model.json": b" " * (64 << 20)}, zipfile.ZIP_DEFLATED)
    assert UNPACKS in checked("model.pt2", program)["unread"]


def test_a_lying_size_changes_nothing():
    data = bytearray(archive({"metadata.json": b" " * (64 << 20), "config.json": b""}, zipfile.ZIP_DEFLATED))
    at = data.rindex(b"PK\1\2", 0, data.rindex(b"PK\1\2"))
    data[at + 24 : at + 28] = struct.pack("<L", 10)
    assert UNPACKS in checked("model.keras", bytes(data))["unread"]


def test_a_member_that_points_elsewhere_is_refused():
    data = bytearray(archive({"config.json": b"", "metadata.json": b"{}"}))
    at = data.rindex(b"PK\1\2") + 42
    data[at : at + 4] = struct.pack("<L", 1)
    assert checked("model.keras", bytes(data))["unread"] == "its zip directory is damaged"


@pytest.mark.parametrize("flag", [1, 12, 99])
def test_other_packings_are_refused(flag):
    data = bytearray(archive({"metadata.json": b"{}", "config.json": b""}))
    data[data.index(b"PK\1\2") + 10] = flag
    assert "packed in a way" in checked("model.keras", bytes(data))["unread"]


def test_a_huge_directory_is_refused():
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 16)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, len(entry) * 60000, 4, 0)
    facts = checked("model.pt", b"PK\3\4" + entry * 60000 + end)
    assert facts["unread"] == "its zip directory has more than 50000 members"


@pytest.mark.parametrize(
    "metadata", [b"[" * 100000, b"[]", b"{", b"\xff", b'{"keras_version": {}}', b'{"keras_version": 3}']
)
def test_metadata_that_is_none_is_refused(metadata):
    facts = checked("model.keras", archive({"metadata.json": metadata, "config.json": b""}))
    assert facts["format"] == "keras"
    assert "unread" in facts or facts["written_by"] in ([], [{"name": "keras", "version": "3"}])


def test_nested_metadata_of_safetensors_is_refused():
    header = b'{"__metadata__":{"format":' + b"[" * 60000 + b"}}"
    facts = checked("x.safetensors", struct.pack("<Q", len(header)) + header)
    assert facts["details"] == {}


class Bomb:
    def __reduce__(self):
        return sys.exit, (7,)


def test_no_pickle_is_ever_loaded(tmp_path):
    data = pickle.dumps(Bomb())
    for name in ("a.pkl", "b.pt", "c.ckpt", "pytorch_model.bin", "d.keras", "e.h5"):
        (tmp_path / name).write_bytes(data)
        assert model_facts(str(tmp_path / name))["written_by"] == []
    (tmp_path / "f.pt").write_bytes(archive({"f/data.pkl": data, "f/version": b"3"}))
    assert model_facts(str(tmp_path / "f.pt"))["format"] == "torch"


def hdf5(messages: bytes) -> bytes:
    """A file whose root has these messages, of the object header's version 1."""
    superblock = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(48) + struct.pack("<Q", 96) + bytes(24)
    return superblock + struct.pack("<BBHLLL", 1, 0, 1, 1, len(messages), 0) + messages


def message(kind: int, content: bytes) -> bytes:
    return struct.pack("<HHB3x", kind, len(content), 0) + content


def test_a_cycle_in_hdf5_ends():
    again = message(0x10, struct.pack("<QQ", 112, 24))
    assert "damaged" in checked("model.h5", hdf5(again))["unread"]


def test_a_heap_that_goes_nowhere_is_refused():
    kind, space = bytes([0x19, 1, 0, 0, 16, 0, 0, 0]), bytes([1, 0, 0, 0, 0, 0, 0, 0])
    head = struct.pack("<BxHHH", 1, 8, 8, 8) + b"keras_v\0" + kind + space
    for heap in (b"GCOL\x01\0\0\0" + struct.pack("<Q", 1 << 60), b"x" * 16):
        start = 96 + 16 + 8 + len(head) + 16
        data = hdf5(message(0x0C, head + struct.pack("<LQL", 5, start, 2)))
        for size in (0, 1 << 40):
            assert "unread" in checked("model.h5", data + heap + struct.pack("<HH4xQ", 1, 1, size) * 5000)


def test_a_text_longer_than_is_read_hides_no_other():
    data = (MODELS / "model.h5").read_bytes()
    at = data.index(b"model_config")
    config = data.index(b'{"class_name": "Sequential"')
    value = data.index(data[config - 8 : config - 4], at)
    changed = data[:value] + struct.pack("<L", 1 << 30) + data[value + 4 :]
    assert checked("model.h5", changed)["written_by"] == [{"name": "keras", "version": "3.15.1"}]


def test_random_text_is_never_a_version_of_a_saved_model_in_text():
    text = b'meta_graphs {\n  node {\n    doc: "\\ntensorflow_version: \\"1.0\\""\n  }\n}\n'
    assert checked("saved_model.pbtxt", text)["written_by"] == []
    assert checked("saved_model.pbtxt", b'  my_tensorflow_version: "1.0"\n')["written_by"] == []


def test_a_long_text_is_read_to_its_bound():
    facts = checked("saved_model.pbtxt", b"#\n" * (32 << 20))
    assert facts["written_by"] == []


def test_special_files_under_every_name_are_not_opened(tmp_path):
    for name in NAMES:
        (tmp_path / name).symlink_to("/dev/zero")
    found: dict = {}
    thread = threading.Thread(target=lambda: found.update(model_facts(str(tmp_path))), daemon=True)
    thread.start()
    thread.join(20)
    assert found["file_count"] == 0
    assert found["unread"].endswith(f"is not a regular file (and {len(set(NAMES)) - 1} more)")


def test_a_deflated_member_that_is_damaged_is_refused():
    packed = archive({"metadata.json": b"{}" + bytes(100), "config.json": b""}, zipfile.ZIP_DEFLATED)
    compressed = zlib.compressobj(6, zlib.DEFLATED, -15)
    content = compressed.compress(b"{}" + bytes(100)) + compressed.flush()
    assert content in packed
    assert "damaged" in checked("model.keras", packed.replace(content, b"\xff" * len(content)))["unread"]


def test_reading_in_memory_is_reading():
    assert read_memory("model.onnx", (MODELS / "model.onnx").read_bytes())["format"] == "onnx"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.model", b"gbtree"),
        ("x.model", b"binfgbtree"),
        ("key.pkl", b"\x80\x04}K\x01" + b"2\x86" * 80 + b"K\x01s."),
        ("class.pkl", b"\x80\x04K\x01" + b"2\x86" * 80 + b"K\x01\x93."),
        ("mark.pkl", b"(" * 999 + b"t."),
        (
            "shape.pkl",
            b"\x80\x04cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}(X\x05\0\0\0shapeJ\xff\xff\xff\xff\x85ub.",
        ),
        ("zlib.pkl", zlib.compress(b"\x80\x04" + b"\x8e" + (1 << 40).to_bytes(8, "little") + bytes(1 << 20))),
    ],
)
def test_a_file_that_is_made_to_exhaust_its_reader_is_read_or_refused_at_once(name, data):
    facts = facts_of_place("memory", MemoryPlace({name: data}))
    assert set(facts) <= FIELDS
