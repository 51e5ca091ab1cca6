"""The program that the base's own interpreter runs: one source after the other comes in, its bytecode goes out.

Marshalled code depends on what else lives in the interpreter: a constant is written as a reference where something else
holds it too (cpython issue 129724). So the same few files are always compiled together, in a fork of their own, and the
process that forks reads, imports and keeps nothing. For the same reason this text decides bytes: whoever changes it
raises `FORMAT`.

In: two lengths, the path, the source; two lengths of 0 after the last file of a fork. Out: a mark, a length, the
bytecode (PEP 552, unchecked). Python 3.7 and later.
"""

import _imp
import gc
import marshal
import posix
import sys
from posix import _exit

COMPILED, REFUSED, DIED = b"+", b"-", b"!"
ENDED = 7
"""The status of a fork when there is nothing more to do."""


def serve() -> None:
    """Keep a fork waiting for the next files until there are none; not before one byte says that limits are set."""
    if not posix.read(0, 1):
        return
    while True:
        pid = posix.fork()
        if not pid:
            _answer()
        status = posix.waitpid(pid, 0)[1]
        if status == ENDED << 8:
            return
        if status:
            posix.write(1, DIED + bytes(4))


def _answer() -> None:
    try:
        path, source = _request()
        while path:
            mark, data = _compiled(path, source)
            _send(mark + len(data).to_bytes(4, "little") + data)
            path, source = _request()
        _exit(0)
    except EOFError:
        _exit(ENDED)
    finally:
        _exit(1)


def _request() -> "tuple[str, bytes]":
    lengths = _read(8)
    path = _read(int.from_bytes(lengths[:4], "little")).decode()
    return path, _read(int.from_bytes(lengths[4:], "little"))


def _read(size: int) -> bytes:
    pieces = []
    while size:
        piece = posix.read(0, size)
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _send(data: bytes) -> None:
    while data:
        data = data[posix.write(1, data) :]


def _compiled(path: str, source: bytes) -> "tuple[bytes, bytes]":
    try:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
        body = marshal.dumps(code)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever a compiler says of a source, importing it would say too
        return REFUSED, b""
    magic = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
    unchecked = (1).to_bytes(4, "little")
    return COMPILED, magic + unchecked + _imp.source_hash(int.from_bytes(magic, "little"), source) + body


if __name__ == "__main__":
    gc.disable()
    serve()
