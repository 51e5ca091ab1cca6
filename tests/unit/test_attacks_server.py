"""Requests that are made to stop the ready server: each is refused with its reason, and none becomes a traceback."""

import json
import resource
from typing import Any

import numpy as np
import pytest

from tests.unit.serving_app import Served, load, model_of, same

PREDICT, INFER = "/predict", "/v2/models/model/infer"


@pytest.fixture(scope="module")
def it():
    return load()


@pytest.mark.parametrize(
    ("files", "settings", "waiting"),
    [(256, {}, 112), (4096, {}, 256), (4096, {"most_waiting": 1000}, 496), (20, {}, 8), (2, {}, 1)],
)
def test_waiting_requests_leave_connections_to_health(it, files, settings, waiting):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        assert it.connections.leave_room(it.settings.Settings(**settings)).most_waiting == waiting
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def tensor(data: Any = (), shape: Any = (1,), datatype: Any = "FP32", name: str = "x") -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": data}


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def inputs(*tensors: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"inputs": list(tensors), **other}


OPEN = {
    # a model that does not say what it takes: nothing but the server's own limits stands before it
    "product of a shape of 1 MB": (INFER, inputs(tensor([1], [10**17] * 55_000)), "has 55000 dimensions"),
    "product of large dimensions": (INFER, inputs(tensor([1], [10**17] * 32)), "a shape of more values than its data"),
    "rank": (INFER, inputs(tensor([1], [1] * 33)), "has 33 dimensions, and a tensor may have 32"),
    "no values of a huge shape": (INFER, inputs(tensor([], [0, 2**31])), "a shape of more values"),
    "a dimension that no array has": (INFER, inputs(tensor([], [0, 2**70])), "shape"),
    "an empty array of an overflowing product": (INFER, inputs(tensor([], [0, 2**62, 2**62])), "a shape of more"),
    "strings in 40 lists": (INFER, inputs(tensor(nested("a", 40), [1], "BYTES")), "dimensions"),
    "numbers in 50 lists": (PREDICT, {"instances": nested(1, 50)}, "input '' "),
    "a datatype of lists": (INFER, inputs(tensor([1], [1], nested("FP32", 900))), "datatype"),
    "an output twice": (INFER, inputs(tensor([1]), outputs=[{"name": "x"}] * 2), "names an output twice"),
    "an output a hundred thousand times": (INFER, inputs(tensor([1]), outputs=[{"name": "x"}] * 100_000), "twice"),
    "many inputs": (INFER, inputs(*(tensor([1], name=str(at)) for at in range(20_000))), "there are 20000 inputs"),
    "many names": (PREDICT, {"instances": [{str(at): 1 for at in range(100_000)}]}, "has 100000 inputs"),
    "one long string among numbers": (PREDICT, {"instances": ["a" * 700_000, *["1"] * 1000]}, "must be numbers"),
    "a list for every number": (PREDICT, {"instances": [[[1]] * 300_000]}, "lists and objects"),
    "many integers that no type holds": (PREDICT, {"instances": [[10**4000] * 300]}, "too large for any type"),
    "an integer of a million digits": (PREDICT, b'{"instances": [%s]}' % (b"9" * 1_000_000), "too large for any type"),
    "text that is not UTF-8": (PREDICT, b'{"instances": ["\xff"]}', "the body is no JSON"),
    "UTF-16": (PREDICT, '{"instances": [1]}'.encode("utf-16"), "the body is no JSON"),
    "lists without end": (PREDICT, b'{"instances": ' + b"[" * 9000, "the body is no JSON"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPEN)
def test_a_request_that_costs_more_than_it_should_is_refused(it, case, caplog):
    path, value, words = OPEN[case]
    model = it.model.Model(platform="open", inputs=(), outputs=(), call=lambda arrays: {"x": next(iter(arrays.values()))})  # fmt: skip
    status, answer = Served(it, model, most_bytes=2_000_000).post(path, value)
    assert (status, list(answer)) == (400, ["error"]), answer
    assert words in answer["error"]
    assert not [record for record in caplog.records if record.exc_info]


TAKEN = {
    "twice the same key": b'{"instances": [[7]], "instances": [[1, 2]]}',
    "numbers as words": b'{"instances": [["NaN", -Infinity]]}',
    "a long fraction": b'{"instances": [[0.%s, 1]]}' % (b"1" * 100_000),
    "a long exponent": b'{"instances": [[1e-%s, 1]]}' % (b"9" * 1000),
    "a mark of bytes in front": b'\xef\xbb\xbf{"instances": [[1, 2]]}',
    "a surrogate in a name that is not read": b'{"instances": [[1, 2]], "\\ud800": 1}',
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_only_looks_odd_is_answered(it, case):
    assert Served(it, same(it, x=("float32", (None, 2)))).post(PREDICT, TAKEN[case])[0] == 200


def wide(it, array: Any, **settings: Any) -> Served:
    """A server of a model that always answers with this array."""
    return Served(it, model_of(it, same(it, x=("float32", (None,))).inputs, lambda _: {"y": array}), **settings)


@pytest.mark.parametrize("path", [PREDICT, INFER])
@pytest.mark.parametrize(
    "array",
    [
        np.broadcast_to(np.float32(1), (1, 10**12)),  # no memory is behind it; as text it would be terabytes
        np.full((1, 300), 0.1, "float64"),
        np.full((1, 30), "a" * 40, dtype=object),
        np.broadcast_to(np.array("a" * 40, dtype="U40"), (1, 30)),
    ],
    ids=["broadcast", "numbers", "objects", "strings"],
)
def test_a_response_that_is_too_large_is_refused_and_the_next_one_answered(it, path, array):
    body = {"instances": [1]} if path == PREDICT else inputs(tensor([1]))
    status, answer = wide(it, array, most_answer_bytes=1000).post(path, body)
    assert (status, "more than 1000 bytes" in answer["error"]) == (400, True)
    assert "ENVBUILD_MAX_RESPONSE_BYTES" in answer["error"]
    assert wide(it, np.ones((1, 100), "int8"), most_answer_bytes=1000).post(path, body)[0] == 200


def test_a_response_in_many_parts_is_the_same_json(it):
    rows = np.arange(300 * 700, dtype="int32").reshape(300, 700)
    call = lambda _: {"a": rows, "b": rows[:, 0]}  # noqa: E731
    served = Served(it, model_of(it, same(it, x=("float32", (None,))).inputs, call))
    _, answer = served.post(PREDICT, {"instances": [0] * 300})
    assert answer == {"predictions": [{"a": row.tolist(), "b": int(row[0])} for row in rows]}
    _, answer = served.post(INFER, inputs(tensor([0] * 300, [300])))
    assert [json.dumps(it["data"]) for it in answer["outputs"]] == [
        json.dumps(rows.ravel().tolist()), json.dumps(rows[:, 0].tolist())
    ]  # fmt: skip


def test_the_description_names_every_route_that_the_server_has(it):
    served = Served(it, same(it, x=("float32", (None,))), predict_route="/v1/endpoints/7:predict")
    described = served.ask("GET", "/openapi.json").json()
    routes = {(path, method.lower()) for method, path, *_ in it.app.Routes(served.settings, served.worker).table()}
    assert {(path, method) for path, methods in described["paths"].items() for method in methods} == {
        it for it in routes if it[0] != "/openapi.json"
    }
