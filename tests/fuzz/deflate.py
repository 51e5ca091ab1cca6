"""Deflate streams for the fuzzer."""

import zlib

from tests.deflating import FORGED, deflated, follows, opened, text

_MOST = 1 << 20


def stream_seeds() -> list[bytes]:
    """Streams of one block and of several, each with codes of its own."""
    contents = [text(seed, 120) for seed in range(4)]
    flushes = [zlib.Z_NO_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]
    ways = [zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_FIXED]
    several = [deflated(*contents, way=way, flush=flush, memory=2)[0] for way in ways for flush in flushes]
    return [FORGED, deflated(contents[0])[0], *several]


def continue_a_stream(data: bytes) -> None:
    """A stream that is opened stands for its content, whatever follows it."""
    decoder = zlib.decompressobj(-15)
    try:
        content = decoder.decompress(data, _MOST)
    except zlib.error:
        return
    if not decoder.eof or decoder.unused_data:
        return
    found = opened(data)
    assert found is None or follows(found, content)
