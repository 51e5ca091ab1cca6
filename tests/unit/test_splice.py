"""Deflate streams of others, opened so that more can follow them, and layers of them: one gzip member."""

import io
import random
import subprocess
import tarfile
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zlib_ng import zlib_ng

from envbuild.image.layers.writer import LayerFile, tar_layer, write_compressed, write_layer
from envbuild.oci import deflate
from envbuild.oci.deflate import LastBlockError
from envbuild.oci.gzip import LAST
from envbuild.wheel.archive import WheelArchive
from envbuild.wheel.install import InstalledFile
from tests.deflating import follows, opened, text
from tests.fakes.zips import Part, archive

LIBRARIES = {"zlib": zlib, "zlib-ng": zlib_ng}
contents = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.text(alphabet="ab \n", min_size=1, max_size=3000).map(str.encode),
    st.integers(1, 70_000).map(bytes),
    st.tuples(st.integers(0, 1000), st.integers(1, 70_000)).map(lambda it: random.Random(it[0]).randbytes(it[1])),
)
levels, ways = st.integers(0, 9), st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY])


def deflated(content, level=6, way=zlib.Z_DEFAULT_STRATEGY):
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15, 9, way)
    return compressor.compress(content) + compressor.flush()


@pytest.fixture(params=list(LIBRARIES))
def library(request, monkeypatch):
    monkeypatch.setattr(deflate, "_library", LIBRARIES[request.param])
    return request.param


@given(contents, levels, ways)
def test_what_is_opened_can_be_followed_and_no_library_decides_how(content, level, way):
    stream = deflated(content, level, way)
    found = set()
    for it in LIBRARIES.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deflate, "_library", it)
            found.add(opened(stream))
    [one] = found
    assert one is not None or not stream[0] & 1
    if one is not None:
        assert follows(one, content)
        assert len(one) - len(stream) in (4, 5)


def test_both_forms_of_the_end_occur(library):
    contents = [bytes(range(200, 200 + size)) for size in range(1, 50)]  # literals of nine bits end at any bit
    assert {len(opened(deflated(it))) - len(deflated(it)) for it in contents} == {4, 5}


def test_bits_behind_the_end_are_never_taken_for_a_block(library):
    """Whoever made them."""
    odd_ones = 0
    for size in range(1, 120):
        content = bytes(i * 7 % 251 for i in range(size))
        stream = deflated(content)
        for bit in range(8):
            odd = stream[:-1] + bytes((stream[-1] | 1 << bit,))
            if odd != stream and stands_for(odd, content):
                odd_ones += 1
                assert opened(odd) == opened(stream)
                assert zlib.decompress(opened(odd) + LAST, -15) == content
    assert odd_ones


def stands_for(stream, content):
    decoder = zlib.decompressobj(-15)
    try:
        return decoder.decompress(stream) == content and decoder.eof
    except zlib.error:
        return False


def with_bits_behind(content):
    """A stream whose last byte has ones where no bit belongs to it."""
    stream = deflated(content)
    odd = (stream[:-1] + bytes((stream[-1] | 0xFF << bits & 0xFF,)) for bits in range(9))
    return next(it for it in odd if stands_for(it, content))


def flushed(content, *ways):
    """A stream of several blocks, which other tools end with an empty one."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(content) + b"".join(map(compressor.flush, ways)) + compressor.flush()


STREAMS = {
    "usual": deflated,
    "fast": lambda it: deflated(it, 1),
    "stored blocks": lambda it: deflated(it, 0),
    "fixed codes": lambda it: deflated(it, 9, zlib.Z_FIXED),
    "bits behind": with_bits_behind,
    "flushed": lambda it: flushed(it, zlib.Z_FULL_FLUSH),
    "flushed twice": lambda it: flushed(it, zlib.Z_PARTIAL_FLUSH, zlib.Z_SYNC_FLUSH),
    "empty block first": lambda it: b"\0\0\0\xff\xff" + deflated(it),
}
LARGE = {"": b"", "words": text(0, 450_000), "noise": random.Random(0).randbytes(3 << 20), "zeros": bytes(5 << 20)}


@given(
    st.lists(st.tuples(st.sampled_from(list(STREAMS)), st.sampled_from(list(LARGE)), contents), min_size=1, max_size=4),
    st.integers(1, 3),
)
@example([("fixed codes", "words", b""), ("usual", "", b"")], 2)
@example([("usual", large, b"end") for large in LARGE], 1)
@settings(max_examples=8)
def test_a_layer_is_one_member(files, threads):
    """A reader that stops after the first member reads all of it, whatever streams the wheel has."""
    whole = [LARGE[large] + content for _, large, content in files]
    parts = [
        Part(name=b"a/%d" % number, data=content, packed=STREAMS[files[number][0]](content))
        for number, content in enumerate(whole)
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(threads) as pool:
        path = Path(folder, "a.whl")
        path.write_bytes(archive(parts))
        with WheelArchive(path, "a.whl") as wheel:
            items = [LayerFile(InstalledFile(it.name, executable=False, source=it), wheel) for it in wheel.members]
            try:
                write_layer(sink := io.BytesIO(), "/opt/env", items, pool)
            except LastBlockError:
                write_compressed(tar_layer("/opt/env", items, pool), sink := io.BytesIO(), pool)
    reader = zlib.decompressobj(31)
    assert reader.decompress(sink.getvalue()).endswith(bytes(1024))
    assert reader.eof
    assert not reader.unused_data
    sink.seek(0)
    with tarfile.open(fileobj=sink, mode="r|gz") as tar:  # stops after the first member
        found = {it.name: file.read() for it in tar if (file := tar.extractfile(it))}
    assert found == {f"opt/env/a/{number}": content for number, content in enumerate(whole)}
    done = subprocess.run(["gzip", "-t"], input=sink.getvalue(), capture_output=True, check=True)
    assert not done.stderr
