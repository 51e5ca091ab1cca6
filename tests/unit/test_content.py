"""A layer of files of one's own: the same bytes on any machine, streamed, and of nothing that changed meanwhile."""

import gzip
import os
import tarfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
import zstandard

from envbuild.errors import BuildError
from envbuild.image.content import Content, hash_content
from envbuild.image.layers.writer import LayerResult
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.tar import MTIME

CHUNK = 16 * 65535


def written(content: Content, compression: Compression = GZIP) -> tuple[LayerResult, bytes]:
    spec, sink = hash_content(content).spec, BytesIO()
    assert spec.writer is not None
    with ThreadPoolExecutor(1) as pool:
        return spec.writer(sink, pool, compression), sink.getvalue()


def files_of(folder: Path, names: list[str], *, mode: int, when: int) -> dict[str, bytes | Path]:
    """The same files, made in this order with these modes and times."""
    found: dict[str, bytes | Path] = {}
    for name in names:
        path = folder / name
        path.parent.mkdir(mode=0o700 | mode, parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
        path.chmod(mode)
        os.utime(path, (when, when))
        found[f"/app/{name}"] = path
    return found


def test_equal_files_give_equal_bytes_whatever_made_them(tmp_path):
    names = ["b.py", "a/z.py", "a.py", "a-b/x"]
    one = files_of(tmp_path / "one", names, mode=0o600, when=1)
    other = files_of(tmp_path / "other", names[::-1], mode=0o666, when=2_000_000_000)
    in_memory = {path: path.removeprefix("/app/").encode() * 1000 for path in one}
    made = [written(Content("application", files, frozenset({"/app/b.py"}))) for files in (one, other, in_memory)]
    assert made[0] == made[1] == made[2]
    assert made[0][0].digest == Digest.of(made[0][1])
    assert made[0][0].digest.hex == "2b42cc16dc836995d5e351eba017bbf226f2a38ac4a2b9a50fd7e16658c01e88"


def test_a_tar_of_plain_modes_owners_and_times_with_its_folders_first():
    long, odd = f"/app/{'d/' * 90}file", "/app/grüße zum\nTag.txt"
    files: dict[str, bytes | Path] = {long: b"1", odd: b"2", "/app/run": b"", "/app/a": b"3"}
    result, blob = written(Content("x", files, frozenset({"/app/run"}), {"/app/link": "a"}))
    data = gzip.decompress(blob)
    assert result.diff_id == Digest.of(data)
    with tarfile.open(fileobj=BytesIO(data)) as archive:
        members = {it.name: it for it in archive}
        assert {f"/{name}" for name, it in members.items() if it.isreg()} == set(files)
        for path, content in files.items():
            file = archive.extractfile(path[1:])
            assert file is not None
            assert file.read() == content
    assert list(members)[:2] == ["app", "app/a"]
    assert {(it.uid, it.gid, it.mtime) for it in members.values()} == {(0, 0, MTIME)}
    assert {name: it.mode for name, it in members.items() if it.mode not in (0o644, 0o755)} == {"app/link": 0o777}
    assert [name for name, it in members.items() if it.isreg() and it.mode == 0o755] == ["app/run"]
    assert (members["app/link"].linkname, members["app"].isdir()) == ("a", True)


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, 2 * CHUNK + 1])
def test_files_of_any_size_come_out_as_they_are(tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "weights").write_bytes(data)
    known = {"/model/weights": Digest.of(data)}
    result, blob = written(Content("model", {"/model/weights": tmp_path / "weights"}, known=known))
    with tarfile.open(fileobj=BytesIO(gzip.decompress(blob))) as archive:
        file = archive.extractfile("model/weights")
        assert file is not None
        assert file.read() == data
    assert result.size == len(blob)


def test_large_files_are_streamed(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(32 << 20)
    tracemalloc.start()
    try:
        spec = hash_content(Content("model", {"/model/large": large})).spec
        assert spec.writer is not None
        with Path(os.devnull).open("wb") as sink, ThreadPoolExecutor(1) as pool:
            assert spec.writer(sink, pool, GZIP).size > 32 << 20
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_a_layer_of_zstd_has_the_same_tar():
    content = Content("model", {"/model/a": b"weights" * 300_000, "/model/b": b""}, links={"/model/c": "a"})
    (plain, blob), (packed, other) = written(content), written(content, Compression(3))
    assert packed.diff_id == plain.diff_id
    assert zstandard.ZstdDecompressor().stream_reader(other).read() == gzip.decompress(blob)


def test_the_key_is_of_paths_contents_and_who_may_execute():
    plain = Content("x", {"/app/a": b"1"})
    others = [
        Content("x", {"/app/b": b"1"}), Content("x", {"/app/a": b"2"}), Content("x", {"/app/a": b"1"}, links={"/b": "a"}),
        Content("x", {"/app/a": b"1"}, frozenset({"/app/a"})),
    ]  # fmt: skip
    assert len({hash_content(it).key for it in (plain, *others)}) == 5
    assert hash_content(plain).key == hash_content(Content("another line", {"/app/a": b"1"})).key


@pytest.mark.parametrize("after", [b"other", b"longer than before", b"", None])
def test_a_file_that_changes_meanwhile_is_refused(tmp_path, after):
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    found = hash_content(Content("x", {"/app/file": path}))
    path.unlink() if after is None else path.write_bytes(after)
    write = found.spec.writer
    assert write is not None
    with ThreadPoolExecutor(1) as pool, pytest.raises(BuildError) as caught:
        write(BytesIO(), pool, GZIP)
    assert str(path) in str(caught.value)
    with pytest.raises(BuildError):
        found.files[0].read()


def test_a_file_that_is_not_what_it_was_said_to_be_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"bytes")
    with pytest.raises(BuildError, match="changed while it was put into a layer"):
        written(Content("x", {"/m/file": tmp_path / "file"}, known={"/m/file": Digest.of(b"other")}))


@pytest.mark.parametrize(
    "path", ["app/a", "/app/../etc/passwd", "/app//a", "/app/", "/", "/app/.wh.a", "/app/a\0b", "/app/\udcff"]
)
def test_what_is_no_path_in_a_layer_is_refused(path):
    with pytest.raises(BuildError):
        hash_content(Content("x", {path: b""}))


def test_a_path_is_no_file_and_folder_at_once_and_pipes_are_not_waited_for(tmp_path):
    with pytest.raises(BuildError, match="/app/a would be a file and a folder"):
        written(Content("x", {"/app/a": b"", "/app/a/b": b""}))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BuildError) as caught:
        hash_content(Content("x", {"/app/pipe": tmp_path / "pipe"}))
    assert caught.value.where == str(tmp_path / "pipe")
