"""The ready server's protocols: what goes in and out of a model, exactly, and what is refused in which words."""

import base64
import math
import struct

import pytest

from tests.unit.serving_app import Served, load, same

BY_TYPE = {
    "BOOL": ("bool", [True, False]),
    "UINT8": ("uint8", [0, 255]),
    "UINT16": ("uint16", [0, 65535]),
    "UINT32": ("uint32", [0, 2**32 - 1]),
    "UINT64": ("uint64", [0, 2**64 - 1]),
    "INT8": ("int8", [-128, 127]),
    "INT16": ("int16", [-(2**15), 2**15 - 1]),
    "INT32": ("int32", [-(2**31), 2**31 - 1]),
    "INT64": ("int64", [-(2**63), 2**63 - 1]),
    "FP16": ("float16", [1.5, -65504.0]),
    "FP32": ("float32", [0.5, 3.4028234663852886e38]),
    "FP64": ("float64", [0.1, 1.7976931348623157e308]),
    "BYTES": ("bytes", ["one", "ü\n"]),
}
ROWS = (None, 2)


@pytest.fixture(scope="module")
def it():
    return load()


@pytest.fixture(scope="module")
def pairs(it):
    """Two inputs, rows of float32 and words."""
    return Served(it, same(it, x=("float32", ROWS), words=("bytes", (None,))), most_rows=3)


def tensor(datatype="FP32", data=(1, 2), shape=(1, 2), **other):
    return {"inputs": [{"name": "x", "shape": list(shape), "datatype": datatype, "data": data, **other}]}


@pytest.mark.parametrize("datatype", BY_TYPE)
def test_every_datatype_comes_back_as_it_was_by_both_protocols(it, datatype):
    dtype, values = BY_TYPE[datatype]
    served = Served(it, same(it, x=(dtype, (None,))))
    status, answer = served.post("/v2/models/model/infer", {"id": "7", **tensor(datatype, values, [2])})
    output = {"name": "x", "shape": [2], "datatype": datatype, "data": values}
    assert (status, answer) == (200, {"model_name": "model", "id": "7", "outputs": [output]})
    assert served.post("/predict", {"instances": values, "parameters": {}}) == (200, {"predictions": values})


def test_a_float32_is_not_rounded_on_its_way_out(it):
    exact = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    _, answer = Served(it, same(it, x=("float32", (None,)))).post("/predict", {"instances": [0.1]})
    assert answer == {"predictions": [exact]}


def test_what_json_has_no_number_for_is_taken_and_given_as_words(it):
    served = Served(it, same(it, x=("float32", ROWS)))
    words = [["NaN", 1.0], ["Infinity", "-Infinity"]]
    assert served.post("/predict", {"instances": words}) == (200, {"predictions": words})
    _, answer = served.post("/v2/models/model/infer", b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [NaN, -Infinity]}]}')  # fmt: skip
    assert answer["outputs"][0]["data"] == ["NaN", "-Infinity"]


def test_bytes_that_are_no_text_travel_in_base64(it):
    served = Served(it, same(it, x=("bytes", (None,))))
    data = {"b64": base64.b64encode(b"\xff\x00").decode()}
    assert served.post("/predict", {"instances": [data]}) == (200, {"predictions": [data]})


def test_several_inputs_and_outputs_go_by_name(pairs):
    instances = [{"x": [1.0, 2.0], "words": "a"}, {"words": "b", "x": [3.0, 4.0]}]
    assert pairs.post("/v1/models/model:predict", {"instances": instances}) == (200, {"predictions": instances})
    words = {"name": "words", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    body = {"inputs": [*tensor()["inputs"], words], "outputs": [{"name": "words"}]}
    assert pairs.post("/v2/models/model/infer", body)[1]["outputs"] == [words]


def test_nested_and_flat_data_are_the_same(it):
    served = Served(it, same(it, x=("int64", (None, 2))))
    answers = [served.post("/v2/models/model/infer", tensor("INT64", data, [2, 2])) for data in ([1, 2, 3, 4], [[1, 2], [3, 4]])]  # fmt: skip
    assert answers[0] == answers[1]
    assert answers[0][1]["outputs"][0]["data"] == [1, 2, 3, 4]


BINARY = "binary tensor data extension"
NO_JSON = "no JSON"
NUMBERS = "input 'x' must be numbers"
OBJECT = '"parameters" is to be an object'
TOO_LARGE = "input 'x' has a number too large"
REFUSED = {
    "no JSON": (b"{", NO_JSON),
    "deep JSON": (b"[" * 9000, NO_JSON),
    "a list": (b"[1]", "no JSON object"),
    "no instances": ({"instance": [1]}, "instances"),
    "none at all": ({"instances": []}, "at least one"),
    "too many": ({"instances": [[1, 2]] * 4}, "4 instances, and a request may have 3"),
    "parameters": ({"instances": [[1, 2]], "parameters": [1]}, "parameters"),
    "no parameters": ({"instances": [[1, 2]], "parameters": []}, OBJECT),
    "a row too long": ({"instances": [[1, 2, 3]]}, "'x' has shape [1, 3], and the model takes [any, 2]"),
    "ragged rows": ({"instances": [[1, 2], [3]]}, f"{NUMBERS}, in rows of equal length"),
    "a word": ({"instances": [["one", 2]]}, NUMBERS),
    "null": ({"instances": [[None, 2]]}, NUMBERS),
    "truth": ({"instances": [[True, False]]}, "true and false are no numbers"),
    "truth among numbers": ({"instances": [[True, 1]]}, "both numbers and true or false"),
    "too large": ({"instances": [[1e39, 1]]}, "no number as large"),
    "too large for any type": (b'{"instances": [[1e400, NaN]]}', f"{TOO_LARGE} for any type"),
    "too large beside a word": (b'{"instances": [["-Infinity", -1e400]]}', TOO_LARGE),
    "too large an integer": ({"instances": [[0.5, 10**400]]}, TOO_LARGE),
    "too many digits": (b'{"instances": [[1, -%s]]}' % (b"9" * 5001), TOO_LARGE),
    "another name": ({"instances": [{"y": [1, 2]}]}, "instance 0 has no input 'x'"),
    "one too many": ({"instances": [{"x": [1, 2], "y": 1}]}, "instance 0 has an input 'y', and the model takes 'x'"),
    "some named": ({"instances": [{"x": [1, 2]}, [1, 2]]}, "instance 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_instances_that_cannot_be_meant_are_refused_by_name(it, case):
    body, words = REFUSED[case]
    status, answer = Served(it, same(it, x=("float32", ROWS)), most_rows=3).post("/predict", body)
    assert status == 400
    assert list(answer) == ["error"]
    assert words in answer["error"]


def test_several_inputs_have_to_be_named(pairs):
    assert pairs.post("/predict", {"instances": [[1, 2]]})[1]["error"].endswith("an object of 'x', 'words'")
    status, answer = pairs.post("/predict", {"instances": [{"x": [1, 2]}]})
    assert (status, answer["error"]) == (400, "instance 0 has no input 'words', and the model takes 'x', 'words'")


REFUSED_TENSORS = {
    "nothing": ({}, "inputs"),
    "an id that is no text": ({"id": 7, **tensor()}, '"id"'),
    "another name": (tensor(name="y"), "no input 'y'; it takes 'x'"),
    "twice": ({"inputs": tensor()["inputs"] * 2}, "'x' is there twice"),
    "another type": (tensor("FP64"), "input 'x' is FP64, and the model takes FP32"),
    "no type": (tensor("FLOAT"), "'FLOAT', which is none of BOOL"),
    "no shape": (tensor(shape=[1, -2]), "'x' has no shape"),
    "too few": (tensor(data=[1]), "'x' has the shape [1, 2], and data of the shape [1]"),
    "nested otherwise": (tensor(data=[[1], [2]]), "data of the shape [2, 1]"),
    "another shape": (tensor(shape=[2, 1]), "the model takes [any, 2]"),
    "no data": (tensor(data=None), "'x' must be numbers"),
    "too large for any type": (b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1e400, 1]}]}', "'x' has a number too large"),
    "a shape of many digits": (b'{"inputs": [{"name": "x", "shape": [%s], "datatype": "FP32", "data": [1]}]}' % (b"9" * 5001), "'x' has no shape"),
    "parameters that are false": (tensor(parameters=False), OBJECT),
    "too many rows": (tensor(data=[0] * 8, shape=[4, 2]), "'x' has 4 rows, and a request may have 3"),
    "an output that is none": ({"outputs": [{"name": "z"}], **tensor()}, "no output 'z'; it has 'x'"),
    "binary input": (tensor(parameters={"binary_data_size": 8}), BINARY),
    "binary output": ({"parameters": {"binary_data_output": True}, **tensor()}, BINARY),
    "binary one": ({"outputs": [{"name": "x", "parameters": {"binary_data": True}}], **tensor()}, BINARY),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_TENSORS)
def test_tensors_that_cannot_be_meant_are_refused_by_name(it, case):
    body, words = REFUSED_TENSORS[case]
    status, answer = Served(it, same(it, x=("float32", ROWS)), most_rows=3).post("/v2/models/model/infer", body)
    assert status == 400
    assert words in answer["error"]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", 128), ("uint8", -1), ("int64", 2**63), ("int32", 1.5), ("uint64", 1e300), ("bool", 1), ("float16", 7e4)],
)
def test_no_number_is_changed_to_fit(it, dtype, value):
    status, answer = Served(it, same(it, x=(dtype, (None,)))).post("/predict", {"instances": [value]})
    assert status == 400
    assert f"input 'x' takes {dtype}" in answer["error"]


def test_a_number_that_no_integer_type_holds_is_one_for_floats_alone(it):
    for dtype, code in {"float32": 200, "float64": 200, "int64": 400, "uint64": 400}.items():
        served = Served(it, same(it, x=(dtype, (None,))))
        assert [served.post("/predict", {"instances": [value]})[0] for value in (2**64, -(10**30))] == [code] * 2
    assert Served(it, same(it, x=("float64", (None,)))).post("/predict", {"instances": [10**30]}) == (200, {"predictions": [1e30]})  # fmt: skip


def test_no_parameters_may_be_null_as_clients_send_it(it):
    served = Served(it, same(it, x=("float32", ROWS)))
    assert served.post("/predict", {"instances": [[1, 2]], "parameters": None})[0] == 200
    assert served.post("/v2/models/model/infer", tensor(parameters=None))[0] == 200


def test_whole_numbers_may_be_written_with_a_point(it):
    assert Served(it, same(it, x=("int32", (None,)))).post("/predict", {"instances": [2.0]})[1] == {"predictions": [2]}


def test_a_model_that_says_nothing_of_its_inputs_is_served(it):
    model = it.model.Model(platform="pytorch", inputs=(), outputs=(), call=lambda arrays: {"y": next(iter(arrays.values()))})  # fmt: skip
    served = Served(it, model)
    assert served.post("/predict", {"instances": [[0.5], [2]]}) == (200, {"predictions": [[0.5], [2.0]]})
    assert served.post("/predict", {"instances": [[1e39], [2]]})[0] == 400
    _, answer = served.post("/v2/models/model/infer", tensor("FP64", [0.1, math.pi]))
    assert answer["outputs"] == [{"name": "y", "shape": [1, 2], "datatype": "FP64", "data": [0.1, math.pi]}]
