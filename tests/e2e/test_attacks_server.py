"""Clients that hold the ready server's connections: it is a process with few files, and goes on answering."""

import json
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.test_server import Serving, serving
from tests.unit.serving_app import FOLDER

pytestmark = pytest.mark.real

HALF_OPEN = 2400
WIDE_MODEL = '''
"""A model that answers with as many numbers as it is asked for."""
import numpy as np
from serving.arrays import Tensor
from serving.model import Model

def load_model(place):
    x = Tensor("x", "float32", (None,))
    call = lambda arrays: {"y": np.zeros((len(arrays["x"]), int(arrays["x"].max())), "int8")}
    return Model(platform="wide", inputs=(x,), outputs=(Tensor("y", "int8", (None, None)),), call=call)
'''
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PARTS = {
    "nothing": b"",
    "half a header": b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ",
    "half a body": HEAD + b'Content-Length: 100\r\n\r\n{"instances": [',
    "half a chunk": CHUNKED + b'64\r\n{"instances": [',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The server with a model of its own, and a Python that may have 1,024 files open."""
    folder = tmp_path_factory.mktemp("attacked")
    shutil.copytree(FOLDER, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "app/serving/loading.py").write_text(WIDE_MODEL)
    (folder / "python").write_text(f'#!/bin/sh\nulimit -n 1024\nexec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    return folder


@contextmanager
def attacked(folder: Path, **settings: str) -> Iterator[Serving]:
    settings = {"ENVBUILD_MODEL_FOLDER": str(folder), **settings}
    with serving(folder / "python", folder / "log", folder / "app", **settings) as it:
        yield it
        answer = it.post("/predict", {"instances": [2.0]})
        assert answer == {"predictions": [[0, 0]]}
        assert "Traceback" not in it.log.read_text()


def connected(it: Serving, data: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(it.url.rpartition(":")[2])), 30)
    client.sendall(data)
    return client


def answer_of(client: socket.socket) -> bytes:
    """Read until the server closes the connection; TimeoutError where it does not."""
    data = b""
    try:
        while part := client.recv(1 << 16):
            data += part
    except ConnectionError:
        pass
    return data


def asked(width: int) -> bytes:
    body = json.dumps({"instances": [width]}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def test_half_open_connections_leave_room_for_health_and_predictions(folder):
    """What is sent of 2,400 requests never becomes a whole one, and the server may have 1,024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HALF_OPEN + 200), hard))
    try:
        with attacked(folder, ENVBUILD_REQUEST_SECONDS="600") as it, ExitStack() as stack:
            parts = list(PARTS.values())
            with ThreadPoolExecutor(6) as pool:  # faster than the server accepts
                for client in pool.map(lambda number: connected(it, parts[number % len(parts)]), range(HALF_OPEN)):
                    stack.enter_context(client)
            assert it.get("/health").status_code == 200  # all that came before were accepted
            for _ in range(10):
                began = time.monotonic()
                assert it.get("/health").status_code == 200
                assert time.monotonic() - began < 1
                assert it.post("/predict", {"instances": [1.0]}) == {"predictions": [[0]]}
                for part in parts:
                    stack.enter_context(connected(it, part))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def hurried(folder) -> Iterator[Serving]:
    """A server that gives clients a second."""
    with attacked(folder, ENVBUILD_REQUEST_SECONDS="1") as it:
        yield it


@pytest.mark.parametrize("part", PARTS)
def test_a_request_that_does_not_come_to_its_end_is_cut_off(hurried, part):
    with connected(hurried, PARTS[part]) as client:
        assert answer_of(client).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


def test_a_request_that_drips_is_cut_off_all_the_same(hurried):
    with connected(hurried, PARTS["half a body"]) as client:
        client.settimeout(0.1)
        answer = b""
        while not answer:
            client.sendall(b" ")
            with suppress(TimeoutError):
                answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_without_a_length_is_refused_and_not_read_for_ever(hurried):
    """Before, the refusal was sent, and what came after it was read and thrown away without end."""
    with connected(hurried, CHUNKED) as client:
        sent, began = 0, time.monotonic()
        try:
            while time.monotonic() < began + 20:
                client.sendall(b"10000\r\n%s\r\n" % (b" " * 65536))
                sent += 65536
        except ConnectionError:
            assert sent > 1_500_000
            return
        raise AssertionError(f"{sent} bytes were read")


def test_a_body_of_a_chunk_for_every_byte_is_refused(hurried):
    with connected(hurried, CHUNKED + b"1\r\n \r\n" * 10_001) as client:
        assert answer_of(client).startswith(b"HTTP/1.1 400 ")


def test_rubbish_after_a_refusal_closes_the_connection(hurried):
    head = HEAD.replace(b"/predict", b"/none") + b"Transfer-Encoding: chunked\r\n\r\n"
    with connected(hurried, head) as client:
        answer = client.recv(1 << 16)
        client.sendall(b"no size of a chunk\r\n")
        answer += answer_of(client)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("requests", [1, 3])
def test_a_response_that_is_not_taken_is_cut_off(hurried, requests):
    """Also where the next requests, in the same packet, wait for it."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", int(hurried.url.rpartition(":")[2])))
        client.sendall(asked(10_000_000) * requests)
        end = time.monotonic() + 30
        while open_connections(hurried):
            assert time.monotonic() < end, "the server keeps the response for ever"
            time.sleep(0.1)
        assert len(answer_of(client)) < 20_000_000


def open_connections(it: Serving) -> int:
    """How many connections the server has, as its kernel says it."""
    port = f":{int(it.url.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[1].endswith(port) and fields[3] == "01" for fields in lines)
