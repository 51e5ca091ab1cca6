"""Layers that are compressed here: the same bytes whoever compresses, and the tar that splicing would give."""

import gzip
import io
import random
import tarfile
import tomllib
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import zstandard

from envbuild.image.layers import writer
from envbuild.image.layers.writer import LayerFile, LayerResult, tar_layer, write_compressed, write_layer
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_ZSTD
from envbuild.wheel.archive import WheelArchive
from envbuild.wheel.install import InstalledFile
from tests.deflating import text
from tests.fakes.wheels import make_wheel

PIECE = 2 << 20


@cache
def a_tar() -> bytes:
    return b"".join(b"%d lines of text, and more of them\n" % number for number in range(650_000))


@cache
def a_text() -> bytes:
    return text(0, 800_000)


def written(chunks, threads: int = 2, compression: Compression = GZIP) -> tuple[bytes, LayerResult]:
    sink = io.BytesIO()
    with ThreadPoolExecutor(threads) as pool:
        result = write_compressed(chunks, sink, pool, compression)
    return sink.getvalue(), result


def members(blob: bytes) -> list[bytes]:
    found = []
    while blob:
        inflater = zlib.decompressobj(31)
        found.append(inflater.decompress(blob))
        assert inflater.eof
        blob = inflater.unused_data
    return found


def test_the_bytes_are_what_they_were_in_every_release():
    blob, result = written([a_tar()])
    assert result == LayerResult(Digest.of(blob), len(blob), Digest.of(a_tar()))
    assert result.digest.hex[:16] == "66ed9078411340bd", "raise the formats of layers and of system packages"


def test_the_release_that_an_error_names_is_the_one_that_envbuild_requires():
    pins = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"deflate=={writer._RELEASE}" in pins
    assert f"zstandard=={writer._ZSTD_RELEASE}" in pins


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_neither_threads_nor_chunks_decide(threads):
    cuts = sorted(random.Random(threads).sample(range(len(a_tar())), 50))
    chunks = [a_tar()[start:end] for start, end in zip([0, *cuts], [*cuts, len(a_tar())], strict=True)]
    assert written(map(memoryview, chunks), threads) == written([a_tar()])


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_pieces_of_one_size_follow_each_other_in_one_member(size):
    blob, _ = written([a_text()[:size]])
    assert members(blob) == [a_text()[:size]]


def test_a_piece_whose_last_block_is_not_found_is_halved():
    noise = random.Random(0).randbytes(PIECE)  # stored
    some, regular = a_text()[:PIECE], a_text()[: PIECE >> 1] + bytes(PIECE >> 1)
    blob, result = written(whole := [some, noise, regular, some, noise])
    assert members(blob) == [b"".join(whole)]
    assert result.diff_id == Digest.of(b"".join(whole))
    assert len(blob) < len(written([some, noise, some, some, noise])[0])


@pytest.mark.parametrize(
    ("level", "digest"), [(1, "655e134de7867a65"), (3, "d7347b65e16bb152"), (9, "cf97f89dc23f06f9")]
)
def test_the_bytes_of_zstd_are_what_they_were_in_every_release(level, digest):
    blob, result = written([a_tar()], compression=Compression(level))
    assert result == LayerResult(Digest.of(blob), len(blob), Digest.of(a_tar()), LAYER_ZSTD)
    assert result.digest.hex[:16] == digest, "raise the format of layers"
    assert zstandard.ZstdDecompressor().decompressobj().decompress(blob) == a_tar()  # the first frame is all


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_neither_threads_nor_chunks_decide_the_bytes_of_zstd(monkeypatch, threads):
    cuts = sorted(random.Random(threads).sample(range(len(a_tar())), 50))
    chunks = [a_tar()[start:end] for start, end in zip([0, *cuts], [*cuts, len(a_tar())], strict=True)]
    once = written([a_tar()], compression=Compression(1))
    monkeypatch.setattr(writer, "_WORKERS", threads)
    assert written(map(memoryview, chunks), threads, Compression(1)) == once


def test_the_tar_is_the_one_that_splicing_gives(tmp_path):
    content = {"a.py": "x = 1\n" * 99, "empty.py": "", "é/long.py": "y" * 9_000_000, f"{'deep/' * 40}z.py": "z"}
    wheel = make_wheel("some", "1.0", content)
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    with WheelArchive(tmp_path / wheel.filename, wheel.filename) as archive, ThreadPoolExecutor(2) as pool:
        files = [LayerFile(InstalledFile(it.name, executable=False, source=it), archive) for it in archive.members]
        files.append(LayerFile(InstalledFile("made", executable=True, source=b"made\n"), None))
        spliced = write_layer(io.BytesIO(), "/opt/env", files, pool)
        found = write_compressed(tar_layer("/opt/env", files, pool), sink := io.BytesIO(), pool)
        zstd = write_layer(packed := io.BytesIO(), "/opt/env", files, pool, compression=Compression(3))
    assert found.diff_id == spliced.diff_id == zstd.diff_id
    packed.seek(0)
    assert zstandard.ZstdDecompressor().stream_reader(packed).read() == gzip.decompress(sink.getvalue())
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(sink.getvalue()))) as tar:
        assert tar.getmember("opt/env/made").mode == 0o755
        assert tar.getmember("opt/env/é/long.py").size == 9_000_000


def test_no_files_are_the_end_of_a_tar():
    with ThreadPoolExecutor(1) as pool:
        assert b"".join(tar_layer("/opt/env", [], pool)) == bytes(1024)
