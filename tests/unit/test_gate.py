"""The gate's parts that need no engine: samples as requests, answers as predictions, and the program that asks."""

import dataclasses
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.build.request import BuildRequest
from envbuild.errors import BuildError, MissingComponentError
from envbuild.image.child import Parent
from envbuild.lock.model import Lock, Target
from envbuild.manifest.model import Golden, TrainingManifest
from envbuild.oci.compression import Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.report import SILENT, Reporter
from envbuild.serve import probe
from envbuild.serve.gate import RULES, check_gate, gate
from envbuild.serve.gate_container import Output
from envbuild.serve.gate_request import UnfitError, held_answer, request_of
from envbuild.serve.model import Origin, ServeOrder, Server
from tests.fakes.engine import serving_engine
from tests.fakes.index import closed_port
from tests.fakes.trees import BASE, image_of_layers, image_of_trees, layer_of_tree
from tests.reporting import Calling
from tests.unit.test_golden_check import array_of, golden_of, manifest_with, texts

DOCS = Path(__file__).parents[2] / "docs/serving.md"
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def order_of(folder: Path, **changes: Any) -> ServeOrder:
    """An order for a model that nobody stamped; `changes` are of the ServeOrder."""
    order = BuildRequest(
        manifest_bytes=b"{}", manifest_name="m", variant="auto", base=None, resolver="uv", out=folder / "out", push=None,
        stamp=None, cache=folder / "cache",
    )  # fmt: skip
    return ServeOrder(**{"build_request": order, "model": None} | changes)


def origin_of(train: Image, manifest: TrainingManifest, variant: str = "cpu") -> Origin:
    lock = Lock(target=Target(python="3.11.2", machine="x86_64", glibc="2.36"), wheels=())
    return Origin(
        parent=Parent(image=train, lock=lock), reference=None, manifest=manifest, manifest_bytes=b"{}",
        variant=variant, platform="linux/amd64", environment=Digest("e" * 64),
    )  # fmt: skip


def reporter(told: list[str]) -> Reporter:
    """Whose words are kept."""
    return Calling(step=told.append, note=told.append, warn=told.append)


def said(golden: Golden, answer: Any) -> list[tuple[str, bool, str]]:
    body = answer if isinstance(answer, str) else json.dumps(answer)
    return [(it.id, it.agrees, it.says) for it in held_answer(golden, body)]


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=5))
def test_a_sample_survives_the_way_through_json_without_a_digit_lost(rows):
    """JSON's numbers are read as they were written, so that an echo is exactly the sample."""
    array = array_of([it for row in rows for it in row], shape=(len(rows), 2))
    golden = golden_of([array], [array], rtol=0.0, atol=0.0)
    body, whole = request_of(golden)
    assert whole is golden
    [(rule, agrees, says)] = said(golden, {"predictions": json.loads(body)["instances"]})
    assert (rule, agrees) == ("serve-golden", True), says


def test_several_inputs_are_objects_by_name_and_so_are_several_outputs():
    inputs = [array_of([1, 2], "int64", name="ids"), array_of([1.0, 2.0, 3.0, 4.0], shape=(2, 2), name="x")]
    outputs = [array_of([0.5, 0.25], name="p"), array_of([1, 0], "bool", name="yes")]
    golden = golden_of(inputs, outputs)
    body, _ = request_of(golden)
    assert json.loads(body)["instances"] == [{"ids": 1, "x": [1.0, 2.0]}, {"ids": 2, "x": [3.0, 4.0]}]
    right = [{"p": 0.5, "yes": True}, {"p": 0.25, "yes": False}]
    assert said(golden, {"predictions": right})[0][1]
    wrong = [right[0], {"p": 0.5, "yes": False}]
    [(_, agrees, says)] = said(golden, {"predictions": wrong})
    assert not agrees
    assert "output p" in says
    assert "at [1]: 0.5, and 0.25 was recorded" in says


def test_a_table_is_objects_by_column_and_text_is_compared_as_text():
    columns = (texts("Ulm", None, dtype="str", name="city"), array_of([1.5, float("nan")], name="0"))
    golden = golden_of(columns, [texts("ja", "nein", name="predict"), array_of([0.5, 0.25], name="p")])
    body, _ = request_of(dataclasses.replace(golden, table=True))
    assert json.loads(body)["instances"] == [{"city": "Ulm", "0": 1.5}, {"city": None, "0": "NaN"}]
    right = [{"predict": "ja", "p": 0.5}, {"predict": "nein", "p": 0.25}]
    assert said(golden, {"predictions": right})[0][1]
    [(rule, agrees, says)] = said(golden, {"predictions": [right[0], right[0] | {"p": 0.25}]})
    assert (rule, agrees) == ("serve-golden", False)
    assert "at [1]: ja, and nein was recorded" in says
    [(_, agrees, says)] = said(golden, {"predictions": [it | {"predict": 1} for it in right]})
    assert not agrees
    assert "output predict are not what was recorded; the first is at [0]: 1.0, and ja was recorded" in says


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        ([texts("ja", None)], ["ja", None]),
        ([texts("ja", math.nan)], ["ja", None]),
        ([texts("ja", math.nan)], ["ja", "NaN"]),
        ([texts("ja", "NaN")], ["ja", "NaN"]),
        ([texts(None, None)], [None, "NaN"]),
        ([texts(1.5, math.nan)], [1.5, "NaN"]),
        (
            [texts("ja", "nein", name="predict"), array_of([math.inf, math.nan], name="p")],
            [{"predict": "ja", "p": "Infinity"}, {"predict": "nein", "p": "NaN"}],
        ),
    ],
)
def test_each_output_is_read_as_it_was_recorded(outputs, answer):
    golden = golden_of([array_of([1.0, 2.0])], outputs)
    assert [it[1] for it in said(golden, {"predictions": answer})] == [True]
    wrong = [dict.fromkeys(it, 7) if isinstance(it, dict) else 7 for it in answer]
    assert not said(golden, {"predictions": wrong})[0][1]


def test_of_a_table_that_is_too_large_for_a_request_the_last_rows_are_cut():
    words = [str(it) for it in range(1030)]
    golden = golden_of([texts(*words, name="word")], [texts(*words)])
    body, cut = request_of(dataclasses.replace(golden, table=True))
    assert json.loads(body)["instances"][-1] == {"word": "1023"}
    assert said(cut, {"predictions": words[:1024]})[0][1]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("<html>busy</html>", "the answer has no predictions: <html>busy</html>"),
        ({"outputs": []}, 'the answer has no predictions: {"outputs": []}'),
        ({"predictions": 3}, 'the predictions are not a list: {"predictions": 3}'),
        ({"predictions": [[1.0], [2.0, 3.0]]}, "the predictions do not all have the same shape"),
        ({"predictions": ["a", "b"]}, 'a prediction is not a number: "a"'),
        ({"predictions": [{"a": 1}, {"b": 1}]}, "the predictions do not all have the same outputs"),
        ({"predictions": [2.0]}, "output has the shape [1], and [2] was recorded"),
        ({"predictions": [2.0, "NaN"]}, "nan, and 4.0 was recorded"),
        ({"predictions": [2.0, 10**400]}, "inf, and 4.0 was recorded"),
        ("[" * 900 + "]" * 900, "no predictions"),
        ('{"predictions": ' + "[" * 90 + "]" * 90 + "}", "the predictions have 90 dimensions"),
    ],
)
def test_an_answer_that_is_not_the_recorded_one_says_what_it_is(answer, says):
    golden = golden_of([array_of([1.0, 2.0])], [array_of([2.0, 4.0])])
    [(rule, agrees, found)] = said(golden, answer)
    assert (rule, agrees) == ("serve-golden", False)
    assert says in found


def test_a_sample_that_is_too_large_for_a_request_loses_its_last_rows():
    values = [float(it) for it in range(3000)]
    golden = golden_of([array_of(values)], [array_of(values, shape=(3000, 1))])
    body, cut = request_of(golden)
    assert json.loads(body)["instances"] == values[:1024]
    assert said(cut, {"predictions": [[it] for it in values[:1024]]})[0][1]
    total = dataclasses.replace(golden, outputs=(array_of([1.0]),))
    with pytest.raises(UnfitError, match="no row for each instance"):
        request_of(total)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ([dataclasses.replace(array_of([1.0]), shape=())], "has no batch"),
        ([array_of([1.0], name="a"), array_of([1.0, 2.0], name="b")], "batches of one length"),
        ([array_of([1.0], name="0"), array_of([2.0], name="1")], "go by their places"),
        ([array_of([1.0, 0.0], "complex64")], "no numbers of the type complex64"),
        ([array_of([0.5] * 400_000, shape=(1, 400_000))], "larger than a request"),
    ],
)
def test_what_cannot_be_said_in_json_is_not_asked(inputs, why):
    with pytest.raises(UnfitError, match=why):
        request_of(golden_of(inputs, [array_of([1.0])]))


class Answers(BaseHTTPRequestHandler):
    """A server that is right on one route, and wrong in its own way on each of the others."""

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.server.event.wait(5)  # type: ignore[attr-defined]
        elif self.path == "/drip":
            self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            while not self.server.event.wait(0.2):  # type: ignore[attr-defined]
                self.wfile.write(b"x")
        elif self.path == "/noise":
            self.wfile.write(b"hello\r\n")
        else:
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()
            self.wfile.write(b"so \xff")

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def answering() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.event = threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield server.server_port
        finally:
            server.event.set()  # type: ignore[attr-defined]
            server.shutdown()


def asked(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-I", "-S", probe.__file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=20).stdout)


def test_the_probe_says_what_came_whatever_came(tmp_path):
    (tmp_path / "body").write_bytes(b'{"instances": []}')
    with answering() as port:
        assert asked("GET", port, "/health", 5) == {"status": 200, "body": "so \ufffd"}
        assert asked("GET", port, "/broken", 5)["status"] == 500
        assert asked("POST", port, "/predict", 5, tmp_path / "body") == {"status": 200, "body": '{"instances": []}'}
        assert asked("GET", port, "/noise", 5)["broken"].startswith("BadStatusLine")
    assert asked("GET", port, "/health", 5) == {"refused": True}


@pytest.mark.parametrize("route", ["/silent", "/drip"])
def test_the_probe_does_not_wait_longer_than_it_is_told(route):
    with answering() as port:
        assert asked("GET", port, route, 0.3) == {"late": True}


def test_of_what_is_printed_the_last_lines_are_kept_and_all_is_counted():
    output = Output(2000)
    for data in (b"one\ntw", b"o\n\n", b"x" * 1000 + b"\n", b"last"):
        output.add(data)
    assert output.lines == ("one", "two", "x" * 500, "last")
    assert not output.flooded
    output.add(b"line\n" * 300)
    assert (len(output.lines), output.flooded) == (12, True)
    endless = Output(10**9)
    for _ in range(100):
        endless.add(b"y" * 10_000)
    assert (len(endless.lines), len(endless.lines[0])) == (1, 500)


def test_a_line_that_comes_in_pieces_is_kept_as_one_that_comes_whole():
    text = b"begins " + b"again " * 99 + b"\nshort\n" + b"x" * 700 + b"end"
    whole = Output(10**9)
    whole.add(text)
    for size in (1, 7, 499, 500, 501, 601, 602):
        output = Output(10**9)
        for start in range(0, len(text), size):
            output.add(text[start : start + size])
        assert output.lines == whole.lines
    first, second, unfinished = whole.lines
    assert first.startswith("begins again")
    assert len(first) <= 500
    assert second == "short"
    assert (len(unfinished), unfinished[-4:]) == (500, "xend")


def test_without_an_engine_auto_says_so_and_require_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{closed_port()}")
    image, told = image_of_trees(BASE), list[str]()
    origin = origin_of(image, manifest_with(None))
    server = Server(health="/health", predict="/predict")
    [finding] = gate(order_of(tmp_path), origin, image, server, reporter(told))
    assert (finding.id, finding.severity, finding.agrees) == ("serve-untried", "warning", False)
    assert finding.says == "the image was not tried: no container engine answers"
    assert any("[serve-untried]" in line for line in told)
    assert "`envbuild deploy-check MODEL IMAGE --golden`" in finding.todo
    with pytest.raises(MissingComponentError):
        gate(order_of(tmp_path, gate="require"), origin, image, server, reporter([]))
    assert gate(order_of(tmp_path, gate="off"), origin, image, server, reporter([])) == ()


@pytest.mark.parametrize(
    ("below", "own", "todo"),
    [("zstd", "gzip", "build the training image with --compression gzip"), ("gzip", "zstd", "give --compression gzip")],
)
def test_an_engine_that_cannot_read_zstd_counts_as_none(tmp_path, monkeypatch, below, own, todo):
    image = image_of_layers(layer_of_tree(BASE, Compression.parse(below).media_type))
    origin, told = origin_of(image, manifest_with(None)), list[str]()
    order = order_of(tmp_path)
    order = dataclasses.replace(
        order, build_request=dataclasses.replace(order.build_request, compression=Compression.parse(own))
    )
    with serving_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        [finding] = gate(order, origin, image, Server(), reporter(told))
        assert (finding.id, finding.severity) == ("serve-untried", "warning")
        assert finding.says == "the image was not tried: Docker 20.10.24 cannot read layers of zstd"
        assert finding.todo.startswith(f"{todo}, or")
        required = dataclasses.replace(order, gate="require")
        for refused in (lambda: gate(required, origin, image, Server(), SILENT), lambda: check_gate(required, origin)):
            with pytest.raises(MissingComponentError) as caught:
                refused()
            assert finding.todo.startswith(f"{caught.value.todo}; `envbuild deploy-check")
        check_gate(order, origin)


def test_an_engine_that_answers_but_cannot_run_the_image_says_how_to_do_without(tmp_path, monkeypatch):
    image = image_of_trees(BASE)
    with serving_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        engine.events = [{"error": "operation not permitted"}]
        with pytest.raises(BuildError, match="the engine did not load the image: operation not permitted") as caught:
            gate(order_of(tmp_path), origin_of(image, manifest_with(None)), image, Server(), SILENT)
    assert caught.value.todo.endswith("; --gate off makes the image without starting it")


def test_where_it_is_required_the_engine_is_asked_before_anything_is_made(tmp_path, monkeypatch):
    required, origin = order_of(tmp_path, gate="require"), origin_of(image_of_trees(BASE), manifest_with(None))
    with serving_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        check_gate(required, origin)
        with pytest.raises(MissingComponentError, match=r"the engine is linux/amd64, .* for linux/arm64"):
            check_gate(required, dataclasses.replace(origin, platform="linux/arm64"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///none.sock")
    with pytest.raises(MissingComponentError) as caught:
        check_gate(required)
    assert caught.value.where == "unix:///none.sock"
    for other in ("auto", "off"):
        check_gate(order_of(tmp_path, gate=other))


def test_the_documented_rules_are_the_gates():
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `serve-")]
    assert {row.split("`")[1] for row in rows} == set(RULES)
