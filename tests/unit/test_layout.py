"""The OCI layout (OCI image-spec, image-layout.md)."""

import io
import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.errors import BaseError, BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_MANIFEST, INDEX, MANIFEST, Descriptor, Image, canonical_json
from envbuild.oci.layout import blob_path, find_layout, read_layout, write_layout
from envbuild.oci.rootfs import read_tree
from tests.fakes.images import config_of, docker_manifest_of, image_of
from tests.fakes.trees import BASE, image_of_trees

IMAGE = image_of()


def write(folder: Path, image: Image = IMAGE, **more) -> Path:
    write_layout(image, folder, **more)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(folder: Path, data: bytes, media_type: str = MANIFEST, **more: Any) -> dict:
    digest = Digest.of(data)
    path = folder / "blobs/sha256" / digest.hex
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return Descriptor(media_type, digest, len(data)).to_dict() | more


def change(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def index(folder: Path, *entries: dict) -> None:
    (folder / "index.json").write_bytes(canonical_json({"schemaVersion": 2, "manifests": list(entries)}))


def platform(architecture: str, **more: str) -> dict:
    return {"platform": {"os": "linux", "architecture": architecture, **more}}


def contents(image: Image) -> list[bytes]:
    found = []
    for layer in image.layers:
        with layer.open() as file:
            found.append(file.read())
    return found


def test_what_was_written_is_read(tmp_path):
    image = read_layout(write(tmp_path), machine="x86_64")
    assert (image.manifest, image.config) == (IMAGE.manifest, IMAGE.config)
    assert contents(image) == contents(IMAGE)
    assert [layer.diff_id for layer in image.layers] == [layer.diff_id for layer in IMAGE.layers]
    assert all(layer.reused for layer in image.layers)


def test_a_layout_is_three_things(tmp_path):
    found = files(write(tmp_path, name="latest"))
    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads(found["index.json"])["manifests"]
    assert entry == {
        "mediaType": MANIFEST,
        "digest": str(IMAGE.digest),
        "size": len(IMAGE.manifest),
        "annotations": {"org.opencontainers.image.ref.name": "latest"},
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    for name, data in found.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{Digest.of(data).hex}"
    assert len(found) == 2 + len(IMAGE.layers) + 2


def test_writing_twice_gives_the_same_files_and_opens_no_layer_again(tmp_path):
    before = files(write(tmp_path))

    def fails():
        raise AssertionError("opened")

    layers = tuple(replace(layer, open=fails) for layer in IMAGE.layers)
    assert files(write(tmp_path, Image(IMAGE.manifest, IMAGE.config, layers))) == before


def test_a_blob_of_another_length_is_written_again(tmp_path):
    before = files(write(tmp_path))
    blob = tmp_path / "blobs/sha256" / IMAGE.layers[0].descriptor.digest.hex
    change(blob, b"cut off")
    assert files(write(tmp_path)) == before


@pytest.mark.parametrize("data", [b"", b"other", contents(IMAGE)[1] + b"x"])
def test_bytes_that_are_not_the_descriptors_leave_no_image(data, tmp_path):
    wrong = replace(IMAGE.layers[1], open=partial(io.BytesIO, data))
    with pytest.raises(BuildError, match="digest"):
        write(tmp_path, Image(IMAGE.manifest, IMAGE.config, (IMAGE.layers[0], wrong)))
    assert set(files(tmp_path)) == {f"blobs/sha256/{IMAGE.layers[0].descriptor.digest.hex}"}


def test_an_interrupted_write_leaves_the_image_that_was_there(tmp_path):
    before = files(write(tmp_path))

    def interrupted():
        raise KeyboardInterrupt

    other = image_of([b"three"])
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, Image(other.manifest, other.config, (replace(other.layers[0], open=interrupted),)))
    assert files(tmp_path) == before


def test_dockers_media_types_become_ocis_for_the_same_blobs(tmp_path):
    write(tmp_path)
    index(tmp_path, put(tmp_path, docker_manifest_of(IMAGE), DOCKER_MANIFEST))
    image = read_layout(tmp_path, machine="x86_64")
    value = json.loads(image.manifest)
    assert (value["mediaType"], value["layers"]) == (MANIFEST, json.loads(IMAGE.manifest)["layers"])
    assert (image.config, contents(image)) == (IMAGE.config, contents(IMAGE))


def test_of_many_platforms_the_machines_is_read(tmp_path):
    arm = image_of([b"arm"], architecture="arm64")
    write(write(tmp_path), arm)
    inner = {
        "manifests": [
            put(tmp_path, b"{}", platform={"os": "unknown", "architecture": "unknown"}),
            put(tmp_path, b"{}", platform={"os": "windows", "architecture": "amd64"}),
            put(tmp_path, IMAGE.manifest, **platform("amd64")),
            put(tmp_path, arm.manifest, **platform("arm64", variant="v8")),
        ]
    }
    index(tmp_path, put(tmp_path, canonical_json(inner), INDEX))
    assert read_layout(tmp_path, machine="x86_64").digest == IMAGE.digest
    assert read_layout(tmp_path, machine="aarch64").digest == arm.digest


def test_where_the_index_names_no_platform_the_config_does(tmp_path):
    write(tmp_path)
    index(tmp_path, put(tmp_path, IMAGE.manifest))
    assert read_layout(tmp_path, machine="x86_64").digest == IMAGE.digest
    with pytest.raises(BaseError, match="no images for linux/arm64"):
        read_layout(tmp_path, machine="aarch64")


def test_of_several_images_one_is_chosen_by_name(tmp_path):
    other = image_of([b"other"])
    write(write(tmp_path), other)
    named = [(IMAGE, {"org.opencontainers.image.ref.name": "a"}), (other, {"org.opencontainers.image.ref.name": "b"})]
    index(tmp_path, *(put(tmp_path, image.manifest, annotations=name) for image, name in named))
    assert read_layout(tmp_path, machine="x86_64", reference="b").digest == other.digest
    with pytest.raises(BaseError, match=r"2 images.*oci:FOLDER:NAME"):
        read_layout(tmp_path, machine="x86_64")
    with pytest.raises(BaseError, match="no image named 'c'"):
        read_layout(tmp_path, machine="x86_64", reference="c")


def test_a_layer_with_other_content_fails_the_one_who_reads_it_to_its_end(tmp_path):
    write(tmp_path)
    layer = read_layout(tmp_path, machine="x86_64").layers[0]
    path = tmp_path / "blobs/sha256" / layer.descriptor.digest.hex
    data = path.read_bytes()
    change(path, data[:-1] + bytes([data[-1] ^ 1]))
    with layer.open() as file, pytest.raises(BaseError, match="other content") as caught:
        file.read()
    assert caught.value.where == str(path)
    for cut in (data[:-1], data + b"x"):
        path.write_bytes(cut)
        with layer.open() as file, pytest.raises(BaseError) as caught:
            file.read()
        assert caught.value.where == str(path)
    path.unlink()
    with pytest.raises(BaseError) as caught:
        layer.open()
    assert caught.value.where == str(path)


def test_whoever_fails_over_damaged_bytes_before_their_end_hears_where_they_lie(tmp_path):
    write(tmp_path, image_of_trees({**BASE, "large": random.Random(1).randbytes(3 << 20)}))
    image = read_layout(tmp_path, machine="x86_64")
    path = tmp_path / "blobs/sha256" / image.layers[0].descriptor.digest.hex
    data = path.read_bytes()
    change(path, b"no gzip at all" + data[14:])
    with pytest.raises(BaseError) as caught:
        read_tree(image, "a base")
    assert caught.value.where == str(path)
    change(path, data)
    assert read_tree(image, "a base")


def test_right_bytes_are_not_blamed_for_their_readers(tmp_path):
    write(tmp_path)
    layer = read_layout(tmp_path, machine="x86_64").layers[0]
    for error in (ValueError("of its own"), BuildError("of its own"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, layer.open():
            raise error
        assert caught.value is error


def _unlink_layer(folder: Path) -> None:
    (folder / "blobs/sha256" / IMAGE.layers[0].descriptor.digest.hex).unlink()


def _shorten_layer(folder: Path) -> None:
    change(folder / "blobs/sha256" / IMAGE.layers[0].descriptor.digest.hex, b"x")


def _change_config(folder: Path) -> None:
    change(folder / "blobs/sha256" / IMAGE.config_digest.hex, b"{}")


def _too_few_diff_ids(folder: Path) -> None:
    config = config_of(IMAGE.layers[:1])
    value = json.loads(IMAGE.manifest) | {"config": put(folder, config)}
    index(folder, put(folder, canonical_json(value)))


def _huge_config(folder: Path) -> None:
    value = json.loads(IMAGE.manifest)
    value["config"]["size"] = 5 << 20
    index(folder, put(folder, canonical_json(value)))


def _in_itself(folder: Path) -> None:
    value: dict = {"manifests": [put(folder, IMAGE.manifest, **platform("amd64"))]}
    for _ in range(9):
        value = {"manifests": [put(folder, canonical_json(value), INDEX)]}
    index(folder, *value["manifests"])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / "oci-layout").unlink(), "oci-layout: No such file"),
        (lambda folder: (folder / "oci-layout").write_text('{"imageLayoutVersion":"2"}'), "version"),
        (lambda folder: (folder / "index.json").unlink(), "index.json: No such file"),
        (lambda folder: (folder / "index.json").write_text("{"), "malformed .Expecting"),
        (lambda folder: (folder / "index.json").write_text("[]"), "malformed .list"),
        (lambda folder: (folder / "index.json").write_text("[" * 100_000), "malformed .maximum recursion"),
        (index, "no images for linux/amd64"),
        (_unlink_layer, "No such file"),
        (_shorten_layer, "has 1 bytes"),
        (_change_config, "has other content"),
        (_too_few_diff_ids, "2 layers, and its config names 1"),
        (_huge_config, "too large"),
        (_in_itself, "nested too deep"),
    ],
)
def test_broken_layouts_are_refused_in_words(damage, why, tmp_path):
    damage(write(tmp_path))
    with pytest.raises(BaseError, match=why) as caught:
        read_layout(tmp_path, machine="x86_64")
    assert caught.value.where == str(tmp_path)


def test_a_file_is_no_layout(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "absent", tmp_path):
        with pytest.raises(BaseError) as caught:
            read_layout(path, machine="x86_64")
        assert caught.value.where == str(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["manifests", "layers", "config", "digest", "size", "platform"]), inner, max_size=4
        )
    ),
    max_leaves=9,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON)
def test_no_index_whatsoever_brings_a_traceback(tmp_path, value):
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (tmp_path / "index.json").write_text(json.dumps(value))
    with pytest.raises(BaseError):
        read_layout(tmp_path, machine="x86_64")


def test_an_image_is_read_by_its_digest_when_another_has_taken_its_place(tmp_path: Path):
    other, folder = image_of_trees(BASE), tmp_path / "a"
    write(write(folder), other)
    assert read_layout(folder, machine="x86_64").digest == other.digest
    for image in (IMAGE, other):
        assert read_layout(folder, machine="x86_64", digest=image.digest).digest == image.digest
    assert find_layout(IMAGE.digest, (tmp_path / "no", tmp_path)) == folder
    assert find_layout(Digest.of(b""), (folder, tmp_path)) is None
    with pytest.raises(BaseError):
        read_layout(folder, machine="aarch64", digest=IMAGE.digest)
    change(blob_path(folder, IMAGE.digest), b"{}")
    for digest in (IMAGE.digest, IMAGE.config_digest, Digest.of(b"")):
        with pytest.raises(BaseError):
            read_layout(folder, machine="x86_64", digest=digest)
