"""Deflate streams of others, opened so that more can follow them in one gzip member."""

import gzip as reader
import random
import subprocess
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from isal import isal_zlib
from zlib_ng import zlib_ng

from envbuild.oci import deflate, gzip
from envbuild.oci.deflate import continued
from envbuild.oci.gzip import LAST, Part

LIBRARIES = {"zlib": zlib, "zlib-ng": zlib_ng, "isal": isal_zlib}
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
            found.add(continued(stream, content))
    [opened] = found
    assert opened is not None or not stream[0] & 1
    if opened is not None:
        follower = deflated(b"more")
        assert zlib.decompress(opened + follower, -15) == content + b"more"
        assert len(opened) - len(stream) in (4, 5)


def test_both_forms_of_the_end_occur(library):
    contents = [bytes(range(200, 200 + size)) for size in range(1, 50)]  # literals of nine bits end at any bit
    assert {len(continued(deflated(it), it) or b"") - len(deflated(it)) for it in contents} == {4, 5}


def test_bits_behind_the_end_are_never_taken_for_a_block(library):
    """Whoever made them: the stream is left as it is, or what comes out is the content and nothing else."""
    refused = 0
    for size in range(1, 120):
        content = bytes(i * 7 % 251 for i in range(size))
        stream = deflated(content)
        for bit in range(8):
            odd = stream[:-1] + bytes((stream[-1] | 1 << bit,))
            if odd == stream or zlib.decompressobj(-15).decompress(odd) != content:
                continue
            opened = continued(odd, content)
            refused += opened is None
            if opened is not None:
                assert zlib.decompress(opened + LAST, -15) == content
    assert refused


def test_another_content_opens_nothing(library):
    assert continued(deflated(b"content"), b"contenT") is None
    assert continued(deflated(b"content"), b"conten") is None


@given(st.lists(st.tuples(contents, levels, st.booleans()), max_size=8))
@example([(b"a", 6, True), (b"b", 6, False)])
def test_members_hold_all_parts_in_their_order_and_are_few(given_parts):
    parts, ends = [], 0
    for content, level, ours in given_parts:
        stream = deflated(content, level)
        opened = continued(stream, content)
        if ours:
            parts.append(Part(gzip.deflate_runs(content, final=False), content))
        elif len(content) % 2:
            parts.append(Part(b"".join(gzip.stored(content, final=False)), content))
        else:
            parts.append(Part(opened or stream, content, final=opened is None))
        ends += parts[-1].final
    gathered = list(gzip.gathered(parts, zlib.crc32))
    assert len(gathered) == ends + bool(parts and not parts[-1].final)
    whole = b"".join(it[0] for it in given_parts)
    assert b"".join(part.plain for part in gathered) == whole
    assert reader.decompress(as_members([*gathered, LAST_PART])) == whole


LAST_PART = Part(LAST, b"", final=True)


def as_members(parts):
    members = gzip.Members()
    return b"".join(piece for part in parts for piece in members.add(part))


@given(st.lists(st.lists(contents, max_size=4), max_size=4))
def test_a_member_goes_on_over_parts_that_were_gathered_apart(jobs):
    gathered = [gzip.gathered([Part(gzip.deflate_runs(it, final=False), it) for it in job], zlib.crc32) for job in jobs]
    blob = as_members([*(part for parts in gathered for part in parts), LAST_PART])
    assert reader.decompress(blob) == b"".join(it for job in jobs for it in job)
    whole = zlib.decompressobj(31)
    whole.decompress(blob)
    assert whole.eof
    assert not whole.unused_data  # one member


def test_what_was_counted_later_is_checked_at_the_end():
    """A large file's pieces are passed on one by one, and counted when the last of them was."""
    stream = deflated(b"one and two", 6)
    pieces = [
        Part(stream[:5], b"one and"),
        Part(stream[5:], b" two"),
        Part(b"", b"", True, zlib.crc32(b"one and two"), 11),
    ]
    assert reader.decompress(as_members(pieces)) == b"one and two"
    with pytest.raises(OSError, match="CRC"):
        reader.decompress(as_members([*pieces[:2], Part(b"", b"", True, 1, 11)]))


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 2000))
def test_checksums_are_combined_as_zlib_combines_them(first, second, times):
    after = second * times
    assert gzip.combined(zlib.crc32(first), zlib.crc32(after), len(after)) == zlib.crc32(first + after)


def test_gnu_gzip_reads_a_member_of_many_streams():
    contents = [bytes([n % 251]) * (n * 37 % 5000 + 1) for n in range(400)]
    opened = [(continued(deflated(it), it), it) for it in contents]
    [part] = gzip.gathered((Part(stream, it) for stream, it in opened if stream), zlib.crc32)
    blob = as_members([part, LAST_PART])
    done = subprocess.run(["gzip", "-dc"], input=blob, capture_output=True, check=True)
    assert done.stdout == part.plain
    assert not done.stderr
