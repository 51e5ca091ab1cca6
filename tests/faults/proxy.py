"""A proxy in front of a real registry, in which things go wrong: what, is decided by a seed.

Which fault a request meets depends on the seed, on what is asked for and on how often it was asked for before, and not
on the order in which parallel requests come in: the same seed meets the same faults.
"""

import io
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from typing import Self
from urllib.parse import SplitResult, parse_qs, urlsplit

from tests.fakes.chunked import body_pieces, is_chunked
from tests.fakes.web import WebHandler, WebServer

KINDS = (
    "cut request", "cut reply", "truncated", "lost", "status 500", "status 502", "status 503", "status 429", "slow",
    "digest", "garbage", "expired", "mount refused", "reset",
)  # fmt: skip
"""`cut request`: the registry sees half of the body; `cut reply` and `truncated`: the client sees half of the answer,
and then a reset or an end; `lost`: done, but no answer; `status`: answered without the registry; `slow`: in small pieces
with pauses; `digest`: another Docker-Content-Digest; `garbage`: another body; `expired`: the token is none any more;
`mount refused`: as if blobs could not be mounted; `reset`: before anything was read."""
_PIECE = 1 << 16
_GARBAGE = b'{"schemaVersion": [[[\xff\0'
_NOT_PASSED = {"connection", "transfer-encoding", "authorization", "keep-alive"}


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What goes wrong in one run, and how often."""

    seed: int
    kinds: tuple[str, ...]
    chance: float
    """Of a fault, for each request."""
    most: int
    """A request that is made again and again meets no more faults than this; 3 tries end before that, or do not."""
    login: bool
    """Whether tokens are asked for."""

    @classmethod
    def of(cls, seed: int) -> Self:
        """The weather of a seed: from a rare fault to a registry that hardly works."""
        chosen = random.Random(seed)
        kinds = KINDS if chosen.random() < 0.3 else tuple(chosen.sample(KINDS, chosen.randint(1, 4)))
        chance, most = chosen.choice((0.05, 0.15, 0.3, 0.6)), chosen.choice((1, 1, 2, 2, 4))
        return cls(seed=seed, kinds=kinds, chance=chance, most=most, login="expired" in kinds or chosen.random() < 0.3)

    def fault(self, request: str, before: int) -> str:
        """The fault of a request that was made so often before; empty for none."""
        chosen = random.Random(f"{self.seed} {request} {before}")
        return chosen.choice(self.kinds) if before < self.most and chosen.random() < self.chance else ""


FAIR = Weather(seed=0, kinds=(), chance=0, most=0, login=False)


@dataclass
class FaultyRegistry(WebServer):
    """`with FaultyRegistry(host, weather) as proxy: proxy.host` is `127.0.0.1:PORT`."""

    upstream: str
    weather: Weather
    faults: list[str] = field(default_factory=list)
    """What went wrong, as it happened: `status 500: PUT manifests/v1`."""
    seen: Counter[str] = field(default_factory=Counter)
    tokens: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    subjects: int = 0
    """The status that answers artifacts with a subject, which the registry never gets then; 0 lets them pass."""

    def __post_init__(self) -> None:
        self.listen(_Handler, proxy=self)

    def fault(self, request: str) -> str:
        """Take the fault of a request."""
        with self.lock:
            kind = self.weather.fault(request, self.seen[request])
            self.seen[request] += 1
            if kind:
                self.faults.append(f"{kind}: {request}")
            return kind

    def token(self) -> str:
        """Make a token."""
        with self.lock:
            token = f"token-{self.weather.seed}-{len(self.tokens)}-{random.random()}"
            self.tokens.add(token)
            return token


class _Cut(Exception):  # noqa: N818 - an event, not an error
    """The connection ends here."""


class _Handler(WebHandler):
    proxy: FaultyRegistry

    def do_GET(self) -> None:
        try:
            self._act()
        except (_Cut, OSError):
            self._reset()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _act(self) -> None:
        url = urlsplit(self.path)
        if self.proxy.subjects and self.command == "PUT" and "/manifests/" in url.path:
            body = b"".join(body_pieces(self.rfile, self.headers))
            if b'"subject"' in body:
                self._reply(self.proxy.subjects, b'{"errors": [{"code": "MANIFEST_INVALID"}]}', {})
                return
            self._act_on(url, io.BytesIO(body))
            return
        self._act_on(url, self.rfile)

    def _act_on(self, url: SplitResult, source: io.BufferedIOBase) -> None:
        self.body = source
        kind = self.proxy.fault(f"{self.command} {_named(self.path)}")
        if kind == "reset":
            raise _Cut
        if kind.startswith("status "):
            self._swallow()
            after = {"Retry-After": "1"} if kind in ("status 429", "status 503") else {}
            self._reply(int(kind[7:]), b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "not now"}]}', after)
        elif url.path == "/token":
            body = json.dumps({"token": self.proxy.token(), "expires_in": 300}).encode()
            self._answer(kind, 200, {"Content-Type": "application/json"}, iter([body]), len(body))
        elif not self._allowed(kind):
            self._swallow()
            realm = f'Bearer realm="http://{self.proxy.host}/token",service="faulty",scope="{_scope(url.path)}"'
            self._reply(401, b'{"errors": [{"code": "UNAUTHORIZED"}]}', {"WWW-Authenticate": realm})
        elif kind == "mount refused" and "mount=" in url.query and len(self.path) % 2:
            self._reply(405, b'{"errors": [{"code": "UNSUPPORTED"}]}', {})
        else:
            self._pass(kind, url.path if kind == "mount refused" and "mount=" in url.query else self.path)

    def _allowed(self, kind: str) -> bool:
        if not self.proxy.weather.login:
            return True
        _, _, token = self.headers.get("Authorization", "").partition(" ")
        with self.proxy.lock:
            # For this request alone: what others meet must not depend on when it came.
            return token in self.proxy.tokens and kind != "expired"

    def _pass(self, kind: str, path: str) -> None:
        """Let the registry do it, and hand on what it says."""
        connection = HTTPConnection(self.proxy.upstream, timeout=60)
        try:
            # The registry's own Location names the host that it was asked by, so the client comes back to the proxy.
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_PASSED}
            connection.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            chunked = is_chunked(self.headers)
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            for piece in self._body(kind):
                connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if chunked:
                connection.send(b"0\r\n\r\n")
            answer = connection.getresponse()
            if kind == "lost":
                answer.read()
                raise _Cut
            self._hand_on(kind, answer)
        finally:
            connection.close()

    def _hand_on(self, kind: str, answer: HTTPResponse) -> None:
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _NOT_PASSED}
        length = int(headers.pop("Content-Length", 0))
        if kind == "digest" and "Docker-Content-Digest" in headers:
            headers["Docker-Content-Digest"] = f"sha256:{random.Random(self.path).randbytes(32).hex()}"
        pieces = iter(lambda: answer.read(_PIECE), b"")
        self._answer(kind, answer.status, headers, pieces, length)

    def _body(self, kind: str) -> Iterator[bytes]:
        length = int(self.headers.get("Content-Length") or 0)
        unknown = is_chunked(self.headers)
        allowed = _PIECE if unknown else length // 2
        for piece in body_pieces(self.body, self.headers):
            if kind == "cut request" and allowed <= len(piece):
                yield piece[:allowed]
                raise _Cut
            allowed -= len(piece)
            if kind == "slow":
                time.sleep(0.002)
            yield piece
        if kind == "cut request" and (length or unknown):
            raise _Cut

    def _swallow(self) -> None:
        for _ in body_pieces(self.body, self.headers):
            pass

    def _answer(self, kind: str, status: int, headers: Mapping[str, str], pieces: Iterator[bytes], length: int) -> None:
        if kind == "garbage" and self.command != "HEAD":
            pieces, length = iter([_GARBAGE]), len(_GARBAGE)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            self.wfile.flush()
            return
        half = length // 2
        for piece in pieces:
            if kind in ("cut reply", "truncated"):
                self._end_early(kind, piece[:half])
                return
            if kind == "slow":
                time.sleep(0.002)
            self.wfile.write(piece)
        self.wfile.flush()

    def _end_early(self, kind: str, piece: bytes) -> None:
        self.wfile.write(piece)
        self.wfile.flush()
        if kind == "cut reply":
            raise _Cut
        self.close_connection = True

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._answer("", status, {"Content-Type": "application/json", **headers}, iter([body]), len(body))

    def _reset(self) -> None:
        """Close with a reset, as a crashed server or a broken line does."""
        self.close_connection = True
        try:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        except OSError:
            pass
        self.wfile = self.rfile = _Nothing()  # type: ignore[assignment]


class _Nothing:
    """Stands for the streams of a connection that was cut."""

    closed = True

    def close(self) -> None: ...

    def flush(self) -> None: ...


def _named(path: str) -> str:
    """What a request is for, without what the registry makes up for each upload."""
    url = urlsplit(path)
    digest = parse_qs(url.query).get("digest") or parse_qs(url.query).get("mount") or [""]
    plain = re.sub(r"/uploads/[^/]+", "/uploads/ID", url.path)
    # Repositories of two runs have different names.
    return f"{re.sub(r'^/v2/.*?/(blobs|manifests|tags)/', r'/v2/', plain)} {digest[0]}".strip()


def _scope(path: str) -> str:
    found = re.match(r"/v2/(.+?)/(?:blobs|manifests|tags)/", path)
    return f"repository:{found[1]}:pull,push" if found else "registry:catalog:*"
