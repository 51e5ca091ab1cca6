"""Registries and indexes that drip, are silent, never stop or go in circles: each command ends, and says why."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO

import pytest

from envbuild import network, report
from envbuild.cli.console import Progress
from envbuild.errors import LockError, RegistryError
from envbuild.lock import index as lock_index
from envbuild.lock import resolution
from envbuild.lock.index import LateClient, files_of
from envbuild.lock.resolvers import PipToolsResolver, UvResolver
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest
from envbuild.oci.image import MANIFEST, Descriptor
from envbuild.registry import client as registry_client
from envbuild.registry import transport
from envbuild.registry.auth import Credentials
from envbuild.registry.client import Registry
from envbuild.retry import Retry
from tests.fakes.registry import FakeRegistry
from tests.unit.locking import HERE

ONCE = Retry(tries=1, first=0, longest=0)
NO_ANSWER = "no answer in time"
NOBODY = Credentials(username="", password="")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
LISTENING = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
"""The answer to a registry's client that asks whether it has to log in."""


@contextmanager
def server(answer) -> Iterator[str]:
    """A server that answers each connection by `answer(socket, stopped)`; yields its host."""
    stopped, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def handle(opened: socket.socket) -> None:
        with opened, suppress(OSError):
            if (got := opened.recv(1 << 16)).startswith(b"GET /v2/ "):
                opened.sendall(LISTENING)
                got = opened.recv(1 << 16)
            if got:
                answer(opened, stopped)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield "{}:{}".format(*listener.getsockname())
    finally:
        stopped.set()
        listener.close()


def dripping(opened: socket.socket, stopped: threading.Event) -> None:
    """A body of many bytes, one at a time."""
    opened.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not stopped.wait(0.02):
        opened.sendall(b" ")


def dripping_head(opened: socket.socket, stopped: threading.Event) -> None:
    """Headers without end, one byte at a time."""
    opened.sendall(HEAD + b"X-More: ")
    while not stopped.wait(0.02):
        opened.sendall(b"a")


def silent(_: socket.socket, stopped: threading.Event) -> None:
    stopped.wait()


def pouring(opened: socket.socket, stopped: threading.Event) -> None:
    """A body without a stated length that never ends."""
    opened.sendall(HEAD + b"\r\n")
    while not stopped.is_set():
        opened.sendall(b"<a href='x-1.0-py3-none-any.whl'>" * 1000)


def swallowing(opened: socket.socket, stopped: threading.Event) -> None:
    """Open an upload, and take it a few packets at a time."""
    opened.sendall(b"HTTP/1.1 202 Accepted\r\nLocation: /v2/app/blobs/uploads/1\r\nContent-Length: 0\r\n\r\n")
    while not stopped.wait(0.05):
        opened.recv(1 << 16)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Measure rates over a fraction of a second."""
    monkeypatch.setattr(network, "RATE_SECONDS", 0.3)
    monkeypatch.setattr(report, "SILENCE", 0.2)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    said: list[str] = []
    with report.announcing(said.append):
        yield said


def registry_of(host: str) -> Registry:
    return Registry(host, credentials=NOBODY, retry=ONCE)


def index_of(host: str) -> IndexSettings:
    return IndexSettings(default=f"http://{host}/simple")


@pytest.mark.parametrize("answer", [dripping, dripping_head])
def test_a_registry_that_drips_ends(answer):
    with server(answer) as host, registry_of(host) as registry:
        for asked in (lambda: registry.manifest("app", "v1"), lambda: registry.tags("app")):
            with pytest.raises(RegistryError, match="slower than 1000 bytes a second"):
                asked()


def test_a_blob_that_drips_ends():
    with server(dripping) as host, registry_of(host) as registry:
        file = registry.open_blob("app", Descriptor(MANIFEST, Digest.of(b""), 1_000_000))
        with file, pytest.raises(RegistryError, match="slower than 1000 bytes a second"):
            file.read()


@pytest.mark.parametrize("answer", [dripping, dripping_head])
def test_an_index_that_drips_ends(answer, monkeypatch):
    monkeypatch.setattr("envbuild.lock.index.RETRY", Retry(tries=1))
    with (
        server(answer) as host,
        LateClient(index_of(host)) as client,
        pytest.raises(LockError, match="slower than 1000 bytes a second"),
    ):
        files_of(client, index_of(host), "x")


def test_a_page_that_is_slow_but_not_dripping_has_a_deadline(monkeypatch):
    monkeypatch.setattr(network, "LOWEST_RATE", 0)
    monkeypatch.setattr(network, "DOCUMENT_SECONDS", 0.3)
    with (
        server(dripping) as host,
        registry_of(host) as registry,
        pytest.raises(RegistryError, match=NO_ANSWER),
    ):
        registry.manifest("app", "v1")


def test_a_page_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(lock_index, "PAGE_LIMIT", 1 << 20)
    with (
        server(pouring) as host,
        LateClient(index_of(host)) as client,
        pytest.raises(LockError, match="has more than 1 MiB"),
    ):
        files_of(client, index_of(host), "x")


def test_an_upload_that_is_taken_drop_by_drop_ends(monkeypatch):
    monkeypatch.setattr(network, "LOWEST_RATE", 100_000_000)
    data = bytes(64 << 20)
    descriptor = Descriptor(MANIFEST, Digest.of(data), len(data))
    with (
        server(swallowing) as host,
        registry_of(host) as registry,
        pytest.raises(RegistryError, match="slower than 100000000 bytes a second"),
    ):
        registry.put_blob("app", descriptor, lambda: BytesIO(data))


def test_a_silent_registry_is_named_with_what_was_asked_and_a_manifest_s_answer_is_not_waited_for_long(
    lines, monkeypatch
):
    monkeypatch.setattr(transport, "ANSWER", 0.7)
    with server(silent) as host, registry_of(host) as registry, pytest.raises(RegistryError, match=NO_ANSWER):
        registry.put_manifest("app", "v1", b"{}", MANIFEST)
    assert any(line.startswith("waiting for 127.0.0.1: PUT /v2/app/manifests/v1 (") for line in lines)


def test_a_silent_host_is_named_more_seldom_the_longer_it_is_silent(lines, monkeypatch):
    monkeypatch.setattr(report, "SILENCE", 0.1)
    monkeypatch.setattr(transport, "ANSWER", 0.8)
    with server(silent) as host, registry_of(host) as registry, pytest.raises(RegistryError, match=NO_ANSWER):
        registry.put_manifest("app", "v1", b"{}", MANIFEST)
    assert 1 <= len(lines) <= 3, "after 1, 3 and 6 times SILENCE"


def test_who_answers_late_and_then_at_once_is_not_slow():
    def late(opened: socket.socket, stopped: threading.Event) -> None:
        stopped.wait(0.8)
        opened.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")
        stopped.wait(1)

    with server(late) as host, registry_of(host) as registry:
        assert registry.manifest("app", "v1").data == b"{}"


def test_a_consumer_that_takes_its_time_is_not_a_slow_server():
    data = bytes(8 << 20)
    with FakeRegistry() as fake, registry_of(fake.host) as registry:
        digest = Digest.parse(fake.put("app", data))
        with registry.open_blob("app", Descriptor(MANIFEST, digest, len(data))) as file:
            for _ in range(8):
                time.sleep(0.1)
                file.read(1 << 20)


def listing(body: bytes, link: str):
    """Each page says that there is another one."""

    def answer(opened: socket.socket, _: threading.Event) -> None:
        head = (
            f'HTTP/1.1 200 OK\r\nConnection: close\r\nLink: <{link}>; rel="next"\r\nContent-Length: {len(body)}\r\n\r\n'
        )
        opened.sendall(head.encode() + body)

    return answer


def test_a_list_of_tags_without_end_ends(monkeypatch):
    monkeypatch.setattr(registry_client, "_PAGES", 20)
    pages = listing(b'{"name": "app", "tags": ["v1"]}', "/v2/app/tags/list?n=1000&last=v1")
    with server(pages) as host, registry_of(host) as registry:
        with pytest.raises(RegistryError, match="lists the tags of app on more than 20 pages"):
            registry.tags("app")
        monkeypatch.setattr(registry_client, "_LISTING_SECONDS", 0.0)
        with pytest.raises(RegistryError, match="has not listed the tags of app after 0 s"):
            registry.tags("app")


def test_a_list_of_referrers_that_leads_to_itself_ends(monkeypatch):
    monkeypatch.setattr(registry_client, "_PAGES", 20)
    digest = Digest.of(b"")
    pages = listing(b'{"manifests": []}', f"/v2/app/referrers/{digest}?n=1")
    with (
        server(pages) as host,
        registry_of(host) as registry,
        pytest.raises(RegistryError, match=r"lists the referrers of .* on more than 20 pages"),
    ):
        registry.referrers("app", digest)


def test_redirects_in_a_circle_end(monkeypatch):
    def around(opened: socket.socket, _: threading.Event) -> None:
        where = b"http://%s:%d/simple/x/" % (opened.getsockname()[0].encode(), opened.getsockname()[1])
        opened.sendall(
            b"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: " + where + b"\r\n\r\n"
        )

    with server(around) as host, registry_of(host) as registry, pytest.raises(RegistryError, match="redirects without"):
        registry.manifest("app", "v1")
    with (
        server(around) as host,
        LateClient(index_of(host)) as client,
        pytest.raises(LockError, match="redirects"),
    ):
        files_of(client, index_of(host), "x")


def test_a_long_retry_after_is_said_and_capped(lines, monkeypatch):
    paused: list[float] = []
    monkeypatch.setattr(transport.Transport, "pause", lambda _, seconds: paused.append(seconds))
    with FakeRegistry() as fake, Registry(fake.host, credentials=NOBODY) as registry:
        fake.put_manifest("app", "v1", b"{}", MANIFEST)
        fake.fail("GET", "manifests", status=429, headers={"Retry-After": "86400"})
        registry.manifest("app", "v1")
    assert paused == [60.0]
    assert [line for line in lines if line.startswith("waiting 60 s before the next try: ") and "429" in line]


@pytest.mark.parametrize("resolver", [UvResolver, PipToolsResolver])
def test_a_resolver_whose_index_drips_ends(resolver, lines, monkeypatch, tmp_path):
    monkeypatch.setattr(resolution, "RESOLVER_SECONDS", 1.0)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with server(dripping) as host:
        monkeypatch.setenv("UV_DEFAULT_INDEX" if resolver is UvResolver else "PIP_INDEX_URL", f"http://{host}/simple")
        with pytest.raises(LockError, match="did not end within"):
            resolver().resolve(("x==1.0",), HERE)
    assert any("which asks the package index" in line for line in lines)


def test_a_command_says_on_stderr_what_is_waited_for(capsys, monkeypatch):
    monkeypatch.setattr(transport, "ANSWER", 0.5)
    with Progress(), server(silent) as host, registry_of(host) as registry, pytest.raises(RegistryError):
        registry.manifest("app", "v1")
    report.announce("after its end nothing is said")
    said = capsys.readouterr().err
    assert "  waiting for 127.0.0.1: GET /v2/app/manifests/v1 (" in said
    assert "after" not in said
