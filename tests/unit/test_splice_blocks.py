"""The last block of a deflate stream of several, and streams that are opened there."""

import random
import zlib
from types import SimpleNamespace
from unittest.mock import Mock

import deflate as libdeflate
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from isal import isal_zlib
from zlib_ng import zlib_ng

from envbuild.oci import deflate, gzip
from tests.deflating import FORGED, LETTERS, deflated, follows, opened, place, text

LIBRARIES = {"zlib": zlib, "zlib-ng": zlib_ng}


@pytest.fixture(params=list(LIBRARIES))
def library(request, monkeypatch):
    monkeypatch.setattr(deflate, "_library", LIBRARIES[request.param])
    return request.param


def opens(stream, content):
    """Whether it is opened, in which case more can follow it."""
    found = opened(stream)
    if found is None:
        return False
    assert follows(found, content)
    assert len(found) - len(stream) in (4, 5)
    changed = sum((one ^ other).bit_count() for one, other in zip(stream, found, strict=False))
    assert changed == 1
    return True


@pytest.mark.parametrize("sizes", [(1, 2000), (300, 3000), (20_000, 1500), (20_000, 2500), (3000, 40, 3000)])
def test_the_last_block_is_found_where_it_begins(sizes, library):
    contents = [text(number, size) for number, size in enumerate(sizes)]
    stream, before = deflated(*contents)
    assert place(stream) == len(before) * 8
    assert opens(stream, b"".join(contents))


def test_what_only_looks_like_a_header_is_passed_over(library):
    for seed in range(100):
        stream, before = deflated(text(seed, 300), text(seed + 1, 300))
        assert place(stream) == len(before) * 8


@pytest.mark.parametrize("flushes", [(zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH), (3, 1, 2, 3), (1,) * 3])
def test_empty_blocks_before_the_last_one_are_no_part_of_its_header(flushes, library):
    found = []
    for seed in range(10):
        compressor, content = zlib.compressobj(6, zlib.DEFLATED, -15), text(seed, 400)
        stream = compressor.compress(content) + b"".join(compressor.flush(it) for it in flushes)
        stream += compressor.compress(content[::-1]) + compressor.flush()
        found.append(opens(stream, content + content[::-1]))
    assert all(found)


def test_what_is_made_to_look_like_the_last_block_is_not_taken_for_it(library, monkeypatch):
    content, forged, true = zlib.decompress(FORGED, -15), 3390, 3880
    assert place(FORGED) == true
    assert opens(FORGED, content)
    ends = forged + deflate._header_size(int.from_bytes(FORGED, "little") >> forged)
    monkeypatch.setattr(deflate, "_first_inside", lambda *_: ends // 8)
    assert place(FORGED) is None
    monkeypatch.setattr(deflate, "_begins", lambda *_: True)
    assert place(FORGED) == forged
    assert zlib.decompressobj(-15).decompress(opened(FORGED) + deflated(b"more")[0]) != content + b"more"


@pytest.mark.parametrize("end", ["d5fc", "55f3", "55cd", "5535"])
def test_bits_behind_the_end_that_could_be_another_distance_and_an_end_are_not_part_of_it(library, end):
    stream = bytes.fromhex("0de281000000008020b0ee2fd17d" + end)
    assert follows(opened(stream), zlib.decompress(stream, -15))


def test_of_many_places_that_look_like_headers_few_are_read(monkeypatch):
    many = int(f"{11117:014b}" * 168, 2).to_bytes(294, "little")
    tail = bytes(number * 37 % 256 for number in range(170))
    stream = b"".join(gzip.stored(many, final=False)) + gzip.deflate_runs(tail)
    read = Mock(side_effect=deflate._header_size)
    monkeypatch.setattr(deflate, "_header_size", read)
    assert zlib.decompress(stream, -15) == many + tail
    assert not opens(stream, many + tail)
    assert read.call_count == deflate._MOST


@pytest.mark.parametrize("level", range(1, 10))
def test_streams_of_many_blocks_as_zip_tools_write_them(level, library):
    found = 0
    for seed in range(8):
        content = text(seed, 9000 + 1000 * seed)
        stream, _ = deflated(content, level=level)
        assert not stream[0] & 1
        found += opens(stream, content)
    assert found >= 7  # a short last block has no codes of its own


def test_streams_of_other_compressors(library):
    content = text(0, 90_000)
    for stream in (
        bytes(libdeflate.deflate_compress(content, 6)),
        zlib_ng.compress(content, 6, -15),
        isal_zlib.compress(content, 3, -15),
    ):
        assert zlib.decompress(stream, -15) == content
        assert not stream[0] & 1
        assert opens(stream, content)


def test_the_place_may_be_anywhere_in_its_byte(library):
    found = [place(deflated(text(seed, 9000))[0]) for seed in range(60)]
    assert {at % 8 for at in found if at} == set(range(8))


def test_a_header_that_lies_where_two_stretches_meet_is_found(monkeypatch, library):
    stream, before = deflated(text(0, 5000), text(1, 400))
    behind = len(stream) - len(before)
    for near in range(behind - 700, behind + 100):
        monkeypatch.setattr(deflate, "_NEAR", (near, 256 << 10))
        assert place(stream) == len(before) * 8


def test_a_last_block_far_from_the_end_is_not_looked_for(monkeypatch):
    first, second = text(0, 5000), text(1, 2000)
    stream, before = deflated(first, second)
    for near, found in ((len(stream) - len(before) - 200, False), (len(stream) - len(before) + 100, True)):
        monkeypatch.setattr(deflate, "_NEAR", (near,))
        assert opens(stream, first + second) == found


def test_a_last_block_whose_codes_are_too_regular_is_not_found(library):
    content = text(0, 3000)
    assert not opens(deflated(content, bytes(100_000))[0], content + bytes(100_000))


@pytest.mark.parametrize("flush", [zlib.Z_PARTIAL_FLUSH, zlib.Z_FULL_FLUSH])
@pytest.mark.parametrize("size", [0, 1, 5, 20, 40, 90])
def test_a_short_last_block_has_fixed_codes(flush, size, library):
    """It is what many tools end a stream with, which they flushed before."""
    for seed in range(20):
        content, last = text(seed, 3000), text(seed + 1, 100)[:size]
        assert opens(deflated(content, last, flush=flush)[0], content + last)


@pytest.mark.parametrize("size", [1, 1000, 30_000, 65_535, 65_536, 200_000])
def test_a_stored_last_block_has_its_size_before_its_content(size, library):
    content, noise = text(0, 3000), random.Random(0).randbytes(size)
    assert opens(deflated(content, b"")[1] + b"".join(gzip.stored(noise)), content + noise)
    for flush in (zlib.Z_PARTIAL_FLUSH, zlib.Z_FULL_FLUSH):
        assert opens(deflated(content, noise, flush=flush)[0], content + noise)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 1200)), min_size=2, max_size=6),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_FILTERED]),
    st.sampled_from([zlib.Z_NO_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH]),
)
def test_no_library_decides_what_is_opened(given_contents, level, memory, way, flush):
    contents = [text(*one) for one in given_contents]
    stream, _ = deflated(*contents, level=level, memory=memory, way=way, flush=flush)
    found = set()
    for library in LIBRARIES.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deflate, "_library", library)
            found.add(opened(stream))
    [one] = found
    assert one is None or follows(one, b"".join(contents))


class Late:
    """A decoder that keeps some bytes until more come or the stream ends, as one that looks at whole words does."""

    def __init__(self, behind, decoder=None):
        self._behind, self._decoder = behind, decoder or zlib.decompressobj(-15, bytes(1 << 15))
        self._kept = b""

    def decompress(self, data, _most=0):
        data, whole = self._kept + data, self._decoder.copy()
        output = whole.decompress(data)
        if whole.eof:
            self._decoder = whole
            return output
        self._kept = data[max(len(data) - self._behind, 0) :]
        return self._decoder.decompress(data[: len(data) - len(self._kept)])

    unconsumed_tail = b""

    @property
    def eof(self):
        return self._decoder.eof

    @property
    def unused_data(self):
        return self._decoder.unused_data

    def copy(self):
        found = Late(self._behind, self._decoder.copy())
        found._kept = self._kept
        return found


def late(behind):
    """A library whose decoders are late, but for those that give the content."""
    return SimpleNamespace(decompressobj=lambda _, *window: Late(behind) if window else zlib.decompressobj(-15))


@pytest.mark.parametrize("behind", range(9))
def test_a_library_that_decodes_a_word_later_finds_the_same(behind, monkeypatch):
    usual = [LETTERS[:number] for number in range(600, 3200, 200)]
    streams = [deflated(text(seed, 500), text(seed, 300, some))[0] for seed in range(8) for some in usual]
    expected = [place(stream) for stream in streams]
    assert None not in expected
    monkeypatch.setattr(deflate, "_library", late(behind))
    assert [place(stream) for stream in streams] == expected


@pytest.mark.parametrize("behind", [0, 3, 8])
def test_where_the_search_begins_is_the_same_for_a_library_that_decodes_later(behind, monkeypatch):
    stream, before = deflated(text(0, 500), text(1, 400))
    last = len(stream) - len(before)

    def found() -> list[int | None]:
        places = []
        for near in range(last - 40, last + 140):
            monkeypatch.setattr(deflate, "_NEAR", (near,))
            places.append(place(stream))
        return places

    expected = found()
    assert expected == sorted(expected, key=lambda it: it is not None)
    assert set(expected) == {None, len(before) * 8}
    monkeypatch.setattr(deflate, "_library", late(behind))
    assert found() == expected


@given(st.integers(0, 99), st.data())
def test_a_damaged_stream_is_opened_for_what_it_stands_for_only(seed, data):
    content = text(seed, 4000)
    stream = bytearray(deflated(text(seed, 700), content)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(1, len(stream) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = opened(bytes(stream))
    except deflate.DamagedStreamError:
        return
    assert found is None or follows(found, zlib.decompress(bytes(stream), -15))


@given(st.binary(min_size=1, max_size=2000))
@example(b"\x04" + bytes(60))  # a block whose lengths have no code
def test_bytes_that_are_no_stream_open_nothing(stream):
    try:
        content = zlib.decompressobj(-15)
        whole = content.decompress(stream)
        assert content.eof
        assert not content.unused_data
    except (zlib.error, AssertionError):
        with pytest.raises(deflate.DamagedStreamError):
            opened(stream)
    else:
        assert follows(opened(stream), whole)
