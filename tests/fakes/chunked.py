"""Bodies of requests as the servers of the tests read them: of a stated length, or in chunks (RFC 9112, section 7.1)."""

from collections.abc import Iterator
from email.message import Message
from io import BufferedIOBase

_PIECE = 1 << 16


def is_chunked(headers: Message) -> bool:
    """Whether a request leaves open how long its body is."""
    return str(headers.get("Transfer-Encoding", "")).lower() == "chunked"


def body_pieces(file: BufferedIOBase, headers: Message) -> Iterator[bytes]:
    """Yield a request's body in pieces, each as it comes; ConnectionError where the client hangs up before its end."""
    if not is_chunked(headers):
        yield from _exactly(file, int(headers.get("Content-Length") or 0))
        return
    while length := int(_line(file), 16):
        yield from _exactly(file, length)
        _line(file)
    _line(file)


def _exactly(file: BufferedIOBase, length: int) -> Iterator[bytes]:
    while length > 0:
        piece = file.read(min(_PIECE, length))
        if not piece:
            raise ConnectionError("the client hung up")
        length -= len(piece)
        yield piece


def _line(file: BufferedIOBase) -> bytes:
    line = file.readline()
    if not line:
        raise ConnectionError("the client hung up")
    return line.strip()
