"""Images as `docker save` gives them, in the forms of older and newer engines."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard

from envbuild.engine.load import load_into, save_image
from envbuild.errors import BuildError, MissingComponentError
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Descriptor, Layer
from envbuild.oci.reference import Reference
from tests.fakes.engine import VERSION, client_of, serving_engine
from tests.fakes.trees import image_of_layers, layer_of_tree
from tests.unit.test_engine_builds import Told

ID = "sha256:" + "a" * 64


def layer(name: str) -> bytes:
    """A layer of one file."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(member(name, 3), io.BytesIO(b"abc"))
    return data.getvalue()


def member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


BELOW, ABOVE = layer("below"), layer("above")
CONFIG = json.dumps({
    "architecture": "amd64",
    "os": "linux",
    "rootfs": {"type": "layers", "diff_ids": [str(Digest.of(BELOW)), str(Digest.of(ABOVE)), str(Digest.of(BELOW))]},
    "history": [{"created_by": "one"}, {"created_by": "no", "empty_layer": True}, {"created_by": "two"}, {"created_by": "three"}],
}).encode()  # fmt: skip


def archive(**changes: bytes | None) -> bytes:
    """What Docker 20.10 gives: a layer that is there twice is a link the second time."""
    files = {
        "1/VERSION": b"1.0",
        "1/json": b"{}",
        "1/layer.tar": BELOW,
        "2/layer.tar": ABOVE,
        "config.json": CONFIG,
        "manifest.json": json.dumps([{"Config": "config.json", "Layers": ["1/layer.tar", "2/layer.tar"]}]).encode(),
        "repositories": b"{}",
    } | changes
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            if content is not None:
                tar.addfile(member(name, len(content)), io.BytesIO(content))
        link = member("3/layer.tar", 0)
        link.type, link.linkname = tarfile.SYMTYPE, "../1/layer.tar"
        tar.addfile(link)
    return data.getvalue()


@pytest.fixture
def save():
    with serving_engine() as engine, client_of(engine) as client:

        def save(data: bytes, folder: Path | None, known: tuple[Layer, ...] = ()):
            engine.images, engine.archive = {ID}, data
            return save_image(client, ID, folder, known, Told())

        yield save


def contents(image) -> list[bytes]:
    return [gzip.decompress(data) for data in map(read, image.layers)]


def read(layer: Layer) -> bytes:
    with layer.open() as file:
        return file.read()


@pytest.mark.parametrize("form", ["plain", "gzip", "zstd"])
def test_the_layers_come_in_the_configs_order_with_their_lines(save, tmp_path, form):
    # Engines with containerd's store save layers as a registry has them, those of gzip with several members too.
    packed = {"gzip": gzip.compress(ABOVE[:7]) + gzip.compress(ABOVE[7:]), "zstd": zstandard.compress(ABOVE)}
    image = save(archive(**({"2/layer.tar": packed[form]} if form in packed else {})), tmp_path)
    assert contents(image) == [BELOW, ABOVE, BELOW]
    assert image.config == CONFIG
    assert [it.created_by for it in image.layers] == ["one", "two", "three"]
    for it in image.layers:
        data = read(it)
        assert it.descriptor == Descriptor(LAYER_GZIP, Digest.of(data), len(data))
    described = json.loads(image.manifest)
    assert [it["digest"] for it in described["layers"]] == [str(it.descriptor.digest) for it in image.layers]


def test_the_bases_layers_are_taken_as_its_registry_has_them(save, tmp_path):
    known = Layer(Descriptor(LAYER_GZIP, Digest("d" * 64), 5), Digest.of(BELOW), lambda: io.BytesIO(b"base"))
    image = save(archive(), tmp_path, (known,))
    assert [it.descriptor.digest.hex[:1] for it in image.layers][::2] == ["d", "d"]
    assert read(image.layers[0]) == b"base"
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_folder_it_is_only_known_what_they_are(save, tmp_path):
    image = save(archive(), None)
    assert [it.descriptor for it in image.layers[:2]] == [
        Descriptor(LAYER_TAR, Digest.of(data), len(data)) for data in (BELOW, ABOVE)
    ]
    with pytest.raises(BuildError, match="not kept"):
        image.layers[0].open()


@pytest.mark.parametrize(
    "changes", [{"manifest.json": None}, {"2/layer.tar": None}, {"config.json": None}, {"manifest.json": b"[]"}]
)
def test_an_archive_that_lacks_something_is_refused(save, tmp_path, changes):
    with pytest.raises(BuildError):
        save(archive(**changes), tmp_path)


@pytest.mark.parametrize(("version", "refused"), [("20.10.24+dfsg1", True), ("23.0.0", False), ("dev", False)])
def test_docker_gets_layers_of_zstd_only_from_the_release_that_reads_them(version, refused):
    image = image_of_layers(layer_of_tree({"a": b"x"}), layer_of_tree({"b": b"x"}, LAYER_ZSTD))
    with serving_engine() as engine, client_of(engine) as client:
        engine.version = {**VERSION, "Components": [{"Name": "Engine", "Version": version}]}
        error, says = (MissingComponentError, "cannot read layers of zstd") if refused else (BuildError, "has neither")
        with pytest.raises(error, match=says):
            load_into(client, image, [Reference.parse("x:1")], Told())
        assert [it.path for it in engine.requests] == ([] if refused else ["/images/load"])
