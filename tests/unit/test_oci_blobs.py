"""Blobs in a layout: shared with the cache once they were read, and replaced where they are damaged."""

import os
import stat
from contextlib import ExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from envbuild.errors import BuildError
from envbuild.files import share
from envbuild.oci.blobs import is_blob, keep_layers
from envbuild.oci.image import Image, Layer
from envbuild.oci.layout import write_archive, write_layout
from envbuild.registry.transport import verified_chunks
from tests.fakes.images import image_of


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def never_opened():
    raise AssertionError("opened")


def other_byte(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def change(path: Path, data: bytes) -> None:
    """What a broken disk does to a file: its size and times stay."""
    state = path.stat()
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.fixture
def cached(tmp_path) -> Image:
    """An image whose layers lie in a cache."""

    def kept(layer: Layer) -> Layer:
        path = tmp_path / "cache" / layer.descriptor.digest.hex
        path.parent.mkdir(exist_ok=True)
        with layer.open() as file:
            path.write_bytes(file.read())
        return replace(layer, path=path, open=lambda: path.open("rb"))

    image = image_of([b"one" * 999, b"two" * 999])
    return replace(image, layers=tuple(kept(layer) for layer in image.layers))


def source(image: Image, number: int = 0) -> Path:
    path = image.layers[number].path
    assert path
    return path


def placed(image: Image, folder: Path, number: int = 0) -> Path:
    return folder / "blobs/sha256" / image.layers[number].descriptor.digest.hex


def unopened(image: Image) -> Image:
    return replace(image, layers=tuple(replace(layer, open=never_opened) for layer in image.layers))


def test_layers_of_the_cache_are_shared_and_not_copied(cached, tmp_path):
    write_layout(unopened(cached), tmp_path / "out")
    for number in (0, 1):
        file, ours = placed(cached, tmp_path / "out", number), source(cached, number)
        assert file.read_bytes() == ours.read_bytes()
        assert mode(file) == mode(ours) == 0o444
        # One file on a file system without clones; on another, a clone with blocks of its own to be.
        assert file.stat().st_mtime_ns == ours.stat().st_mtime_ns
    assert [path.name for path in tmp_path.rglob(".new-*")] == []


def test_across_file_systems_they_are_copied(cached, tmp_path):
    away = Path("/dev/shm") / f"envbuild-{os.getpid()}-{cached.digest.short}"
    assert away.parent.stat().st_dev != tmp_path.stat().st_dev
    try:
        assert not share(source(cached), away / "file", mode=0o444)
        assert list(away.iterdir()) == []
        write_layout(unopened(cached), away)  # the cached file is read once: what opens it would read it before
        assert placed(cached, away).read_bytes() == source(cached).read_bytes()
        right = source(cached).read_bytes()
        change(source(cached), other_byte(right))
        placed(cached, away).unlink()
        again = replace(cached.layers[0], open=lambda: BytesIO(right))
        write_layout(replace(cached, layers=(again, *cached.layers[1:])), away)
        assert placed(cached, away).read_bytes() == right
    finally:
        for path in sorted(away.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        away.rmdir()


def into_an_archive(layer: Layer, image: Image, folder: Path) -> None:
    write_archive(image, folder / "image.tar", ())


def into_a_registry(layer: Layer, image: Image, folder: Path) -> None:
    list(verified_chunks(layer.open, layer.descriptor, lambda _: None, lambda: None))


def into_a_layout(layer: Layer, image: Image, folder: Path) -> None:
    write_layout(replace(image, layers=(replace(layer, path=None), *image.layers[1:])), folder / "out")


@pytest.mark.parametrize("go", [into_an_archive, into_a_registry, into_a_layout])
def test_a_flipped_bit_is_found_wherever_a_blob_goes(cached, tmp_path, go):
    layer = cached.layers[0]
    change(layer.path, other_byte(layer.path.read_bytes()))
    with pytest.raises(BuildError, match=r"digest|descriptor"):
        go(layer, cached, tmp_path)
    assert not is_blob(layer.path, layer.descriptor)


def test_a_blob_that_was_written_to_is_replaced(cached, tmp_path):
    plain = replace(cached, layers=tuple(replace(layer, path=None) for layer in cached.layers))
    write_layout(plain, tmp_path / "out")
    path = placed(cached, tmp_path / "out")
    right = path.read_bytes()
    change(path, other_byte(right))
    write_layout(plain, tmp_path / "out")
    assert path.read_bytes() == right
    assert mode(path) == 0o444


def test_a_right_blob_is_read_and_kept(cached, tmp_path):
    write_layout(cached, tmp_path / "out")
    path = placed(cached, tmp_path / "out")
    before = path.stat().st_ino
    write_layout(unopened(cached), tmp_path / "out")
    assert path.stat().st_ino == before


def test_who_writes_to_a_shared_blob_is_found_out_in_the_cache_too(cached, tmp_path):
    write_layout(cached, tmp_path / "out")
    path, ours = placed(cached, tmp_path / "out"), source(cached)
    if path.samefile(ours):
        change(path, other_byte(path.read_bytes()))
    else:
        change(ours, other_byte(ours.read_bytes()))
    assert not is_blob(ours, cached.layers[0].descriptor)
    with pytest.raises(BuildError, match="has the digest") as caught:
        write_layout(cached, tmp_path / "new")
    assert caught.value.where == str(ours)
    assert not (tmp_path / "new" / "index.json").exists()


def test_a_share_replaces_what_is_there_whole(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    assert share(tmp_path / "a", tmp_path / "b", mode=0o444)
    assert (tmp_path / "b").read_text() == "a"
    assert share(tmp_path / "a", tmp_path / "b", mode=0o444)
    assert not share(tmp_path / "absent", tmp_path / "b", mode=0o444)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_layers_from_afar_are_fetched_once_until_the_end(tmp_path):
    image, fetched = image_of([b"one" * 999, b"two" * 999]), list[int]()

    def far(place: int, layer: Layer) -> Layer:
        return replace(layer, origin="host/name", open=lambda: fetched.append(place) or layer.open())  # type: ignore[func-returns-value]

    def read(image: Image) -> list[bytes]:
        found = []
        for layer in image.layers:
            with layer.open() as file:
                found.append(file.read())
        return found

    whole = replace(image, layers=tuple(far(*it) for it in enumerate(image.layers)))
    content = read(image)
    with ExitStack() as until:
        one, same = keep_layers([whole, whole], tmp_path, until)
        assert (read(one), read(one), read(same), fetched) == (content, content, content, [0, 1])
    assert (read(one), fetched) == (content, [0, 1, 0, 1])
    assert not any((tmp_path / "bases").iterdir())
    made = tmp_path / "blobs" / "sha256" / image.layers[0].descriptor.digest.hex  # as the cache has it
    made.parent.mkdir(parents=True)
    for data in (b"damaged", content[0]):
        made.write_bytes(data)
        assert read(one) == content
    assert fetched[4:] == [0, 1, 1]


def test_layers_from_afar_are_read_where_the_cache_cannot_be_written():
    image = image_of([b"one" * 999])
    with ExitStack() as until:
        [found] = keep_layers(
            [replace(image, layers=(replace(image.layers[0], origin="host/name"),))], Path("/proc/no"), until
        )
        with found.layers[0].open() as file:
            assert file.read()
