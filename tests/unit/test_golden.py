"""A golden sample keeps arrays of numbers exactly, and refuses everything else with what to do."""

import base64
import hashlib
import json
import math
import pickle
import struct
import zipfile
from array import array
from collections import UserDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.capture.golden import golden_facts, golden_sample
from envbuild.manifest.reader import read_manifest
from tests.unit.modelling import MODELS


class Labels:
    """What becomes an array, as a Series does."""

    def __init__(self, values: list) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.values, dtype=object)


def numbers(facts: dict, kind: str) -> list:
    data = base64.b64decode(facts["data"])
    assert facts["sha256"] == hashlib.sha256(data).hexdigest()
    return array(kind, data).tolist()


def test_lists_are_kept_as_numpy_would():
    sample = golden_sample([[1, 2], [3, 4]], {"b": [1.5, 2], "a": [True, False]})
    (x,), (a, b) = sample["inputs"], sample["outputs"]
    assert (x["name"], x["dtype"], x["shape"], numbers(x, "q")) == ("", "int64", [2, 2], [1, 2, 3, 4])
    assert (a["name"], a["dtype"], a["shape"], numbers(a, "b")) == ("a", "bool", [2], [1, 0])
    assert (b["name"], b["dtype"], b["shape"], numbers(b, "d")) == ("b", "float64", [2], [1.5, 2.0])
    assert (sample["rtol"], sample["atol"]) == (1e-5, 1e-6)


@pytest.mark.parametrize(
    "value",
    [
        ["ja", "nein", None],
        np.array(["ja", "nein", None], dtype=object),
        np.array([b"ja", b"nein", None], dtype=object),
        Labels(["ja", "nein", None]),
    ],
    ids=["list", "text", "bytes", "series"],
)
def test_text_is_kept_with_what_is_missing(value):
    (labels,) = golden_sample([1, 2, 3], {"label": value})["outputs"]
    data = base64.b64decode(labels["data"])
    assert (labels["name"], labels["dtype"], labels["shape"]) == ("label", "object", [3])
    assert (json.loads(data), labels["sha256"]) == (["ja", "nein", None], hashlib.sha256(data).hexdigest())
    (fixed,) = golden_sample([1, 2], np.array([["a"], ["bc"]]))["outputs"]
    assert (fixed["dtype"], fixed["shape"], base64.b64decode(fixed["data"])) == ("object", [2, 1], b'["a","bc"]')


def test_one_number_is_an_array_without_dimensions():
    (y,) = golden_sample(1.0, 2)["outputs"]
    assert (y["shape"], numbers(y, "q")) == ([], [2])


def test_outputs_of_one_row_for_several_are_refused(tmp_path):
    two = np.ones((2, 3))
    for inputs, outputs in ((two, [0.5]), ({"a": two, "b": [1, 2]}, {"y": [[1, 2, 3]]})):
        with pytest.raises(ValueError, match=r"the inputs have 2 rows, .* give the model's outputs for just these"):
            golden_sample(inputs, outputs)
    np.savez(tmp_path / "x.npz", inputs=two, outputs=[0.5])
    with pytest.raises(ValueError, match=r"the outputs the shape \[1\]"):
        golden_facts(tmp_path / "x.npz")
    golden_sample(two, {"y": [0.5, 0.6], "state": [[1.0]]})  # as a recurrent network has
    golden_sample({"nodes": two, "edges": [[0], [1], [1]]}, [0.5])
    golden_sample(two, 0.5)  # a mean
    golden_sample(np.ones((1, 3, 8, 8)), {"boxes": np.ones((17, 4)), "labels": np.ones(17)})
    golden_sample(np.ones((28, 28)), np.ones(10))  # one example, not a batch


def test_a_sample_is_valid_in_a_manifest():
    example = json.loads((MODELS.parents[2] / "envbuild/manifest/examples.json").read_bytes())[0]
    sample = golden_sample({"x": [1.0, math.nan]}, [2.0, 3.0], rtol=0, atol=1)
    golden = read_manifest(json.dumps({**example, "golden": sample}).encode(), "x").golden
    assert golden is not None
    assert (golden.inputs[0].name, golden.inputs[0].shape, golden.atol) == ("x", (2,), 1.0)


@pytest.mark.parametrize("tolerance", [-1e-9, math.nan, math.inf])
def test_a_tolerance_that_is_none_is_refused(tolerance):
    for how in ({"rtol": tolerance}, {"atol": tolerance}):
        with pytest.raises(ValueError, match="rtol and atol"):
            golden_sample([1], [1], **how)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, "different lengths") for value in ([[1], [2, 3]], [[1], 2])),
        *((value, "not an array of numbers or text") for value in ([None], [True, 1], [{}], object())),
        ([1, "x"], "the outputs has type list and holds int, str: convert it to text"),
        (
            {"label": np.array([b"x", {}], dtype=object)},
            "output 'label' has type object and holds dict, str: convert it",
        ),
        ({"when": np.array(["2024-01-01"], dtype="datetime64[D]")}, r"output 'when' has type datetime64\[D\]; use"),
        ([1 << 64], "64 bits"),
        ({"id": np.array([1 << 70, 1], dtype=object)}, "output 'id' holds a number that takes more than 64 bits"),
        ({"jpeg": np.array([b"\xff\xd8\xff"])}, r"output 'jpeg' holds bytes that are not UTF-8: .* \(uint8\)"),
        ([], "or none"),
        ([[]], "or none"),
        ({}, "1 to 1024 arrays"),
        ({str(number): [1] for number in range(1025)}, "1 to 1024 arrays"),
        *((value, "take fewer rows") for value in ([0.0] * 131073, [[0.0] * 1024] * 129, ["x" * 1024] * 1024)),
    ],
)
def test_what_is_no_small_array_is_refused(value, reason):
    with pytest.raises(ValueError, match=reason):
        golden_sample([1], value)


def test_an_array_of_one_mebibyte_is_kept():
    assert golden_sample(1, [0.0] * 131072)["outputs"][0]["shape"] == [131072]


@pytest.mark.parametrize("golden", [[1], {"inputs": [1]}, 7, ((1,),), b"x", object()])
def test_what_is_no_sample_is_refused(golden):
    with pytest.raises(ValueError, match="golden_sample"):
        golden_facts(golden)


def test_a_sample_comes_in_three_ways():
    sample = golden_sample([1], [2.0])
    assert golden_facts(None) is None
    assert golden_facts(sample) == golden_facts(UserDict(sample)) == golden_facts(([1], [2.0])) == sample


def test_what_numpy_saved_is_read():
    sample = golden_facts(MODELS / "golden.npz")
    assert sample == golden_facts(str(MODELS / "golden.npz"))
    assert sample is not None
    mask, x = sample["inputs"]
    (y,) = sample["outputs"]
    assert (mask["name"], mask["dtype"], mask["shape"], numbers(mask, "b")) == ("mask", "bool", [2], [1, 0])
    assert (x["name"], x["dtype"], x["shape"], numbers(x, "f")) == ("x", "float32", [2, 3], [0, 1, 2, 3, 4, 5])
    assert (y["name"], y["dtype"], y["shape"], numbers(y, "d")) == ("", "float64", [2, 1], [1.5, 2.5])


def npy(descr: object, shape: object, data: bytes, *, fortran: object = False, version: int = 1) -> bytes:
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<L", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def npz(path, method: int = zipfile.ZIP_STORED, /, **arrays: Any) -> str:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return str(path)


ONE = npy("<f4", (1,), struct.pack("<f", 1))


@pytest.mark.parametrize(
    ("content", "dtype", "data"),
    [
        (npy(">i2", (2,), b"\1\2\3\4"), "int16", b"\2\1\4\3"),
        (npy("|u1", (), b"\7"), "uint8", b"\7"),
        (npy("|b1", (1,), b"\1"), "bool", b"\1"),
        (npy("<f2", (0, 3), b""), "float16", b""),
        (npy(">c8", (1,), b"abcdefgh"), "complex64", b"dcbahgfe"),
        (npy("<f8", (1,), bytes(8), version=2), "float64", bytes(8)),
        (npy("<f8", (1,), bytes(8), version=3, fortran=True), "float64", bytes(8)),
        (npy("<U2", (2,), "a\0Kö".encode("utf-32-le")), "object", b'["a","K\\u00f6"]'),
        (npy(">U1", (1,), "a".encode("utf-32-be")), "object", b'["a"]'),
    ],
)
def test_types_and_byte_orders_of_npy_files(tmp_path, content, dtype, data):
    facts = golden_facts(npz(tmp_path / "x.npz", zipfile.ZIP_DEFLATED, inputs=content, outputs=content))
    assert facts is not None
    assert (facts["inputs"][0]["dtype"], base64.b64decode(facts["inputs"][0]["data"])) == (dtype, data)


NO_NUMBERS = [
    npy("|O", (1,), pickle.dumps([1])),
    npy("<V2", (1,), bytes(2)),
    npy([("a", "<f4")], (1,), bytes(4)),
]
NO_NPY = [
    npy("<f4", (5,), bytes(16)),
    npy("<U3", (2,), bytes(12)),
    npy("<U1", (1,), b"\xff" * 4),
    npy("<f4", (-1, -4), bytes(16)),
    npy("<f4", (-1,), b""),
    npy("<f4", ("x",), bytes(16)),
    npy("<f4", 4, bytes(16)),
    npy("<f4", (1 << 70,), bytes(16)),
    b"\x93NUMPY\1\0\xff\xff" + b"[" * 5000,
    b"\x93NUMPY\1\0\x10\0__import__('os')",
    b"",
    ONE[:20],
]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((content, "use numbers") for content in NO_NUMBERS),
        (npy("<f4", (2, 2), bytes(16), fortran=True), "ascontiguousarray"),
        (npy("<f8", (131073,), bytes(8 * 131073)), "take fewer rows"),
        (npy("<f8", (1 << 20,), bytes(8 << 20)), "more than is ever read|longer"),
        *((content, r"not a \.npy file") for content in NO_NPY),
    ],
)
def test_an_npy_file_that_is_none_is_refused(tmp_path, content, reason):
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with pytest.raises(ValueError, match=reason):
            golden_facts(npz(tmp_path / "x.npz", method, inputs=ONE, outputs=content))


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        golden_facts(tmp_path / "nothing.npz")
    with pytest.raises(ValueError, match="not a regular file"):
        golden_facts("/dev/zero")
    (tmp_path / "x.npz").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="not a zip archive"):
        golden_facts(tmp_path / "x.npz")


@pytest.mark.parametrize("names", [("inputs",), ("outputs/y",), ("inputs", "out"), ("x", "y"), ()])
def test_members_that_are_missing_are_asked_for(tmp_path, names):
    with pytest.raises(ValueError, match="needs members"):
        golden_facts(npz(tmp_path / "x.npz", **dict.fromkeys(names, ONE)))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=5))
def test_changed_files_are_read_or_refused(tmp_path_factory, edits):
    data = (MODELS / "golden.npz").read_bytes()
    for where, length, new in edits:
        at = int(where * len(data))
        data = data[:at] + new + data[at + length :]
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    path.write_bytes(data)
    found = outcome(path)
    assert isinstance(found, dict) or str(found).startswith("golden sample: ")


def outcome(path) -> dict | str | None:
    try:
        return golden_facts(path)
    except ValueError as error:
        return str(error)


def test_what_a_file_holds_besides_is_not_looked_at(tmp_path):
    more = {f"other{number}": b"\x93NUMPY" for number in range(300)}
    facts = golden_facts(npz(tmp_path / "x.npz", inputs=ONE, outputs=ONE, **more))
    assert facts is not None
    assert len(facts["inputs"]) == len(facts["outputs"]) == 1


@pytest.mark.parametrize("name", ["ghp_0123456789abcdefghij0123456789abcdef", "password: x", "a\nb"])
def test_a_name_that_the_record_would_change_is_refused(name):
    with pytest.raises(ValueError, match="rename it") as refused:
        golden_sample({name: [1]}, [1])
    assert repr(name[:4]) in str(refused.value)
    assert name not in str(refused.value)
