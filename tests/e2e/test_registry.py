"""Push and pull against Debian's docker-registry."""

import hashlib
import os
import tempfile
import time
import uuid
from pathlib import Path

import httpx
import pytest

from envbuild.errors import BuildError, RegistryError
from envbuild.oci.blobs import GrowingBlob
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_TAR, Descriptor, Image, Layer, manifest_bytes
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull
from envbuild.registry.push import Upload, push
from envbuild.retry import Retry
from tests.fakes.images import config_of, docker_manifest_of, image_of

pytestmark = pytest.mark.real
FAST = Retry(first=0.05)


@pytest.fixture
def reference(registry) -> Reference:
    return Reference(registry.host, f"test/{uuid.uuid4().hex}", "v1")


def tags(reference: Reference) -> list[str]:
    answer = httpx.get(f"http://{reference.registry}/v2/{reference.repository}/tags/list", trust_env=False)
    return sorted(answer.json().get("tags") or []) if answer.status_code == 200 else []


def big_layer(folder: Path, size: int) -> Layer:
    path, block, hasher = folder / "layer", os.urandom(1 << 20), hashlib.sha256()
    with path.open("wb") as file:
        for number in range(size >> 20):
            piece = number.to_bytes(8) + block[8:]
            file.write(piece)
            hasher.update(piece)
    digest = Digest(hasher.hexdigest())
    return Layer(Descriptor(LAYER_TAR, digest, path.stat().st_size), digest, lambda: path.open("rb"))


def image_with(layers: tuple[Layer, ...]) -> Image:
    config = config_of(layers)
    return Image(manifest=manifest_bytes(config, layers, {}), config=config, layers=layers)


def test_an_image_goes_there_and_comes_back(reference):
    image = image_of([b"one", b"two" * 9999, b"one"])
    result = push(image, reference, tags=["env-1"], retry=FAST)
    assert str(result.reference) == f"{reference.name}@{image.digest}"
    assert tags(reference) == ["env-1", "v1"]
    pulled = pull(result.reference, machine="x86_64", retry=FAST)
    assert (pulled.manifest, pulled.config) == (image.manifest, image.config)
    for layer, original in zip(pulled.layers, image.layers, strict=True):
        with layer.open() as got, original.open() as sent:
            assert got.read() == sent.read()


def test_the_second_push_sends_nothing(reference):
    first = push(image_of(), reference, retry=FAST)
    second = push(image_of(), reference, tags=["again"], retry=FAST)
    assert (second.uploaded, second.not_sent) == (0, first.uploaded)
    assert tags(reference) == ["again", "v1"]


def test_large_layers_stream(reference):
    with tempfile.TemporaryDirectory() as folder:
        image = image_with((big_layer(Path(folder), 64 << 20),))
        assert push(image, reference, retry=FAST).uploaded > 64 << 20
    with pull(reference, machine="x86_64", retry=FAST).layers[0].open() as file:
        assert Digest.of_file(file)[0] == image.layers[0].descriptor.digest


def test_a_layer_goes_while_it_is_written(reference, tmp_path):
    image = image_with((big_layer(tmp_path, 64 << 20),))
    layer = image.layers[0]
    path = tmp_path / "growing"
    path.touch()
    with Upload(reference, retry=FAST) as upload, GrowingBlob(path, layer.diff_id, "layer", 1) as blob:
        upload.follow(blob)
        with path.open("ab") as file, layer.open() as source:
            while piece := source.read(7 << 20):
                file.write(piece)
                time.sleep(0.01)
        blob.finish(layer.descriptor, layer.diff_id)
        with Registry(reference.registry) as client:
            while not client.has_blob(reference.repository, layer.descriptor.digest):
                time.sleep(0.01)
        path.unlink()
        (tmp_path / "layer").unlink()  # nothing is left that could be sent again
        upload.offer(layer)
        assert upload.finish(image).uploaded > 64 << 20
    with pull(reference.at(image.digest), machine="x86_64", retry=FAST).layers[0].open() as file:
        assert Digest.of_file(file)[0] == layer.descriptor.digest


def test_a_layer_of_other_bytes_leaves_no_tag(reference):
    with tempfile.TemporaryDirectory() as folder:
        layer = big_layer(Path(folder), 4 << 20)
        with (Path(folder) / "layer").open("r+b") as file:
            file.write(b"changed!")
        with pytest.raises(BuildError, match="a layer has the digest"):
            push(image_with((layer,)), reference, retry=FAST)
    assert tags(reference) == []


def test_blobs_are_mounted_from_another_repository(reference):
    image = image_of()
    push(image, reference, retry=FAST)
    digest = image.layers[0].descriptor.digest
    with Registry(reference.registry, retry=FAST) as client:
        other = f"{reference.repository}/other"
        assert not client.has_blob(other, digest)
        assert client.mount(other, digest, source=reference.repository)
        assert client.has_blob(other, digest)
        assert not client.mount(other, Digest.of(b"unknown"), source=reference.repository)


def test_dockers_manifest_is_pulled_in_ocis_words(reference):
    image = image_of()
    push(image, reference, retry=FAST)
    data = docker_manifest_of(image)
    with Registry(reference.registry, retry=FAST) as client:
        client.put_manifest(
            reference.repository, "docker", data, "application/vnd.docker.distribution.manifest.v2+json"
        )
    by_tag = Reference(reference.registry, reference.repository, "docker")
    assert pull(by_tag, machine="x86_64", retry=FAST).manifest == image.manifest


def test_what_is_not_there_is_named(reference):
    with pytest.raises(RegistryError) as caught:
        pull(reference, machine="x86_64", retry=FAST)
    assert caught.value.status == 404
