"""Layers and archives that are made to fill memory or never end: each is refused, with the layer and the limit."""

import gzip
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

from envbuild.diff.images import read_archive
from envbuild.diff.layers import read_layer
from envbuild.errors import BaseError, BuildError
from envbuild.oci import deflate, rootfs, tar
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_ZSTD, Descriptor, Layer
from envbuild.oci.rootfs import read_tree
from tests.fakes.trees import image_of_layers

MEGA = 1 << 20


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def long_name(kind: bytes, length: int) -> bytes:
    return header("././@LongLink", length, kind) + b"a" * length + bytes(-length % 512) + header("short", 0)


def pax_record(key: bytes, value: bytes) -> bytes:
    length = next(it for it in range(len(key) + len(value), 1 << 40) if len(b"%d %s=%s\n" % (it, key, value)) == it)
    return b"%d %s=%s\n" % (length, key, value)


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header("pax", len(records), kind) + records + bytes(-len(records) % 512) + header("short", 0)


def old_sparse(size: int) -> bytes:
    """A file that is said to have `size` bytes, none of which the archive has (GNU tar, `struct sparse`)."""
    block = bytearray(header("hole", 0, tarfile.GNUTYPE_SPARSE))
    block[386:410] = b"%011o\0%011o\0" % (0, 0)
    block[483:495] = b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def layer_of(tar: bytes) -> Layer:
    packed = gzip.compress(tar, 1)
    return Layer(Descriptor(LAYER_GZIP, Digest.of(packed), len(packed)), Digest.of(tar), lambda: io.BytesIO(packed))


END = bytes(1024)
ATTACKS = {
    "long name": (long_name(tarfile.GNUTYPE_LONGNAME, 2 * MEGA), "header of an entry has more than 1048576 bytes"),
    "long link": (long_name(tarfile.GNUTYPE_LONGLINK, 2 * MEGA), "header of an entry has more than 1048576 bytes"),
    "pax": (pax(pax_record(b"comment", b"a" * 2 * MEGA)), "header of an entry has more than 1048576 bytes"),
    "global pax": (
        pax(pax_record(b"comment", b"a" * 2 * MEGA), tarfile.XGLTYPE),
        "header of an entry has more than 1048576 bytes",
    ),
    "global records": (
        pax(b"".join(pax_record(b"key%d" % it, b"") for it in range(2000)), tarfile.XGLTYPE),
        "more than 1000 global PAX records",
    ),
    "chain": (header("././@LongLink", 512, tarfile.GNUTYPE_LONGNAME).ljust(1024, b"a") * 900, "too many headers"),
    "sparse map": (
        pax(pax_record(b"GNU.sparse.major", b"1") + pax_record(b"GNU.sparse.minor", b"0"))
        + b"1000000\n"
        + b"1\n" * MEGA,
        "header of an entry has more than 1048576 bytes",
    ),
    "sparse": (old_sparse(1 << 60), "unpacks to more than 1073741824 bytes"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_layer_whose_headers_never_end_is_refused_by_each_reader(attack, tmp_path):
    tar, said = ATTACKS[attack][0] + END, ATTACKS[attack][1]
    layer = layer_of(tar)
    with pytest.raises(BuildError, match=said) as caught:
        read_layer(layer, "an image")
    assert str(layer.descriptor.digest) in str(caught.value)
    with pytest.raises(BaseError, match=said) as caught:
        read_tree(image_of_layers(layer), "a base")
    assert str(layer.descriptor.digest) in str(caught.value)
    if attack != "sparse":  # an archive's entries are read as files of theirs, however long they say to be
        (tmp_path / "image.tar").write_bytes(tar)
        with pytest.raises(BuildError, match=said):
            read_archive(tmp_path / "image.tar", machine="x86_64", scratch=lambda: tmp_path)


def test_a_layer_of_more_entries_than_any_real_one_is_refused(monkeypatch):
    monkeypatch.setattr(tar, "ENTRY_LIMIT", 100)
    assert len(read_layer(layer_of(b"".join(header(f"f{it}", 0) for it in range(99)) + END), "x").nodes) == 100
    with pytest.raises(BuildError, match="more than 100 entries"):
        read_layer(layer_of(b"".join(header(f"f{it}", 0) for it in range(101)) + END), "x")


@pytest.mark.parametrize("place", ["file", "after the end"])
def test_a_layer_that_expands_without_end_is_refused(place, monkeypatch):
    monkeypatch.setattr(deflate, "_UNSUSPICIOUS", 8 * MEGA)
    zeros = 64 * MEGA
    with io.BytesIO() as sink:
        with gzip.GzipFile(fileobj=sink, mode="wb", compresslevel=1) as packed:
            packed.write(header("zeros", zeros) if place == "file" else END)
            for _ in range(zeros // MEGA):
                packed.write(bytes(MEGA))
        blob = sink.getvalue()
    layer = Layer(Descriptor(LAYER_GZIP, Digest.of(blob), len(blob)), Digest.of(b""), lambda: io.BytesIO(blob))
    with pytest.raises(BuildError, match="unpacks to") as caught:
        read_layer(layer, "x")
    assert caught.value.where == "x"


def zstd_layer(*parts: bytes) -> Layer:
    plain = b"".join(parts)
    packed = zstandard.compress(plain)
    return Layer(Descriptor(LAYER_ZSTD, Digest.of(packed), len(packed)), Digest.of(plain), lambda: io.BytesIO(packed))


def test_a_file_of_zeros_in_a_layer_of_zstd_is_read_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(deflate, "_UNSUSPICIOUS", 8 * MEGA)
    layer = zstd_layer(header("zeros", 64 * MEGA), bytes(64 * MEGA), END)
    assert "zeros" in read_layer(layer, "x").nodes
    assert "zeros" in read_tree(image_of_layers(layer), "x")
    monkeypatch.setattr(rootfs, "_ZSTD_LIMIT", 32 * MEGA)
    with pytest.raises(BuildError, match="unpacks to"):
        read_layer(layer, "x")


@pytest.mark.parametrize("parts", [(header("f", 0),), (header("f", 600), bytes(1024))], ids=["empty", "files"])
def test_headers_of_a_layer_of_zstd_are_limited_as_all_of_another(parts, monkeypatch):
    monkeypatch.setattr(deflate, "_UNSUSPICIOUS", MEGA)
    with pytest.raises(BuildError, match="headers unpack to"):
        read_layer(zstd_layer(b"".join(parts) * 2100, END), "x")
    assert read_layer(zstd_layer(b"".join(parts) * 2000, END), "x").nodes


def test_ordinary_long_names_and_records_are_read():
    names = ["d/" + "n" * 4000, "ü" * 300]
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with io.BytesIO() as sink:
            with tarfile.open(fileobj=sink, mode="w", format=form) as archive:
                for name in names:
                    info = tarfile.TarInfo(name)
                    info.pax_headers = {"SCHILY.xattr.user.note": "x" * 60000} if form == tarfile.PAX_FORMAT else {}
                    archive.addfile(info)
            assert set(names) < set(read_layer(layer_of(sink.getvalue()), "x").nodes)


_READER = """
import resource, sys
from pathlib import Path
from envbuild.diff.images import read_archive
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_archive(Path(sys.argv[1]), machine="x86_64", scratch=None)
except Exception as error:
    print(type(error).__name__)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_an_archive_that_claims_a_long_name_takes_no_memory(tmp_path: Path):
    path = tmp_path / "image.tar"
    with path.open("wb") as file:
        file.write(header("././@LongLink", 1 << 29, tarfile.GNUTYPE_LONGNAME))
        file.truncate(1 << 30)
    done = subprocess.run([sys.executable, "-c", _READER, str(path)], capture_output=True, text=True, check=True)
    kind, kilobytes = done.stdout.split()
    assert kind == "BuildError"
    assert int(kilobytes) < 50_000
