"""Digests, references, tar headers and gzip members."""

import gzip as reader
import io
import json
import tarfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.oci import gzip, tar
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor, canonical_json
from envbuild.oci.reference import Reference

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text", ["", "sha256:", f"sha256:{HEX[:-1]}", f"sha256:{HEX.upper()}", f"sha512:{HEX}", f"sha256:{HEX}\n"]
)
def test_a_digest_is_sha256_and_64_lower_case_hexadecimal_digits(text):
    with pytest.raises(ValueError):
        Digest.parse(text)


def test_a_digest_reads_back_what_it_prints():
    assert Digest.parse(str(Digest(HEX))) == Digest(HEX)
    assert Digest.of_file(io.BytesIO(b"abc")) == (Digest.of(b"abc"), 3)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("python", "docker.io/library/python"),
        ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
        ("nvidia/cuda:11.2.2", "docker.io/nvidia/cuda:11.2.2"),
        ("localhost/a", "localhost/a"),
        ("127.0.0.1:5000/a/b:x", "127.0.0.1:5000/a/b:x"),
        (f"europe-docker.pkg.dev/p/r/i@sha256:{HEX}", f"europe-docker.pkg.dev/p/r/i@sha256:{HEX}"),
    ],
)
def test_a_name_without_a_host_is_docker_hubs(text, whole):
    assert str(Reference.parse(text)) == whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UPPER/case",
        "host.io/",
        "a b",
        "host.io/a:",
        "host.io/a:b c",
        "host.io/a@sha256:1",
        "host.io/a\n",
        "-x.io/a",
    ],
)
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(ValueError):
        Reference.parse(text)


@pytest.mark.parametrize("text", ["./out", "../out", ".work/image", "/srv/out", "~/out", "./out@sha256:" + "0" * 64])
def test_a_path_is_no_image_of_docker_hub_and_the_error_says_whether_it_is_there(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is a path, and there is no such file or folder"):
        Reference.parse(text)
    (tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match="is a path, not a reference"):
        Reference.parse("./here")


def test_a_descriptor_reads_back_what_it_writes():
    descriptor = Descriptor("a/b", Digest(HEX), 5, {"k": "v"})
    assert Descriptor.from_dict(json.loads(canonical_json(descriptor.to_dict()))) == descriptor


paths = st.lists(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=90),
    min_size=1,
    max_size=5,
).map("/".join)


@given(paths, st.sampled_from(["file", "directory"]), st.booleans())
def test_tarfile_reads_every_path_back(path, kind, executable):
    entry = tar.Entry(path, kind, 0o755 if executable else 0o644)
    [found] = tarfile.open(fileobj=io.BytesIO(tar.header(entry) + tar.END)).getmembers()
    assert (found.name, found.mode, found.mtime, found.uid, found.gid) == (
        path.rstrip("/"),
        entry.mode,
        tar.MTIME,
        0,
        0,
    )
    assert found.isdir() == (kind == "directory")


@pytest.mark.parametrize("target", ["lib", "t" * 150, "ü"])
def test_symlinks_keep_their_target(target):
    [found] = tarfile.open(
        fileobj=io.BytesIO(tar.header(tar.Entry("l", "symlink", 0o777, target=target)) + tar.END)
    ).getmembers()
    assert found.issym()
    assert found.linkname == target


def test_sizes_beyond_ustars_eleven_octal_digits_are_kept():
    size = 9 << 30
    block = tar.header(tar.Entry("big", "file", 0o644, size))
    found = tarfile.open(fileobj=io.BytesIO(block), mode="r:").next()
    assert found is not None
    assert found.size == size


runs = st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.integers(1, 800)), max_size=12).map(
    lambda pairs: b"".join(a * n for a, n in pairs)
)


@given(runs)
def test_the_small_encoder_is_deflate(data):
    assert zlib.decompress(gzip.deflate_runs(data), -15) == data


@given(runs, st.integers(0, 3))
def test_members_may_be_concatenated(data, times):
    blob = b"".join([gzip.HEADER, *gzip.stored(data * times), gzip.end(zlib.crc32(data * times), len(data) * times)])
    runs = gzip.HEADER + gzip.deflate_runs(data) + gzip.end(zlib.crc32(data), len(data))
    assert reader.decompress(runs + blob) == data + data * times


@pytest.mark.parametrize("length", [*range(520), 774, 775, 776, 65534, 65535, 65536, 131070, 131071])
def test_runs_and_blocks_of_every_length(length):
    data = b"\0" * length
    assert zlib.decompress(gzip.deflate_runs(data), -15) == data
    assert zlib.decompress(b"".join(gzip.stored(data)), -15) == data
