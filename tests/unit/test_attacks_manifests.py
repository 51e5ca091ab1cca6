"""Documents that are an image manifest to one reader and an index to another, and manifests made to take hours."""

import json
from pathlib import Path

import pytest

from envbuild.diff.images import read_archive
from envbuild.errors import BaseError, BuildError, ManifestError, RegistryError
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_MANIFEST, INDEX, MANIFEST, Descriptor, Image
from envbuild.oci.layout import read_layout, write_archive, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.copy import copy_image
from envbuild.registry.pull import pull
from envbuild.retry import Retry
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry

IMAGE = image_of()
ONCE = Retry(tries=1, first=0, longest=0)
ENTRY = Descriptor(MANIFEST, IMAGE.digest, len(IMAGE.manifest)).to_dict() | {
    "platform": {"os": "linux", "architecture": "amd64"}
}


def changed(**values) -> bytes:
    return json.dumps({**json.loads(IMAGE.manifest), **values}).encode()


BOTH, MISNAMED = "manifest and an index at once", "does not match its media type"
CONFUSING = {
    "both": (changed(manifests=[ENTRY]), MANIFEST, BOTH),
    "both, as an index": (changed(manifests=[ENTRY], mediaType=INDEX), INDEX, BOTH),
    "in another case": (changed(Manifests=[ENTRY]), MANIFEST, BOTH),
    "an index that says it is an image": (
        json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "manifests": [ENTRY]}).encode(),
        MANIFEST,
        MISNAMED,
    ),
    "an image that is said to be an index": (changed(mediaType=INDEX), INDEX, MISNAMED),
    "said to be another thing": (IMAGE.manifest, DOCKER_MANIFEST, "was sent as .*, and its mediaType is"),
    "a key twice": (IMAGE.manifest[:-1] + b',"layers":[]}', MANIFEST, "it has a duplicate key"),
    "a key in two cases": (changed(Layers=[]), MANIFEST, "differ only in their case"),
}


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        for layer in IMAGE.layers:
            fake.put("app", layer.open().read())
        fake.put("app", IMAGE.config)
        fake.put_manifest("app", "good", IMAGE.manifest, MANIFEST)
        yield fake


@pytest.mark.parametrize("kind", CONFUSING)
def test_a_registry_s_document_that_is_two_things_is_refused(registry, kind):
    data, media_type, why = CONFUSING[kind]
    registry.put_manifest("app", "v1", data, media_type)
    source = Reference.parse(f"{registry.host}/app:v1")
    with pytest.raises(RegistryError, match=why):
        pull(source, machine="x86_64", retry=ONCE)
    with pytest.raises(RegistryError, match=why):
        copy_image(source, Reference.parse(f"{registry.host}/other:v1"), retry=ONCE)
    assert not registry.repositories["other"].tags


@pytest.mark.parametrize("kind", CONFUSING)
def test_a_layout_s_document_that_is_two_things_is_refused(tmp_path: Path, kind):
    data, media_type, why = CONFUSING[kind]
    write_layout(IMAGE, tmp_path)
    digest = Digest.of(data)
    (tmp_path / "blobs/sha256" / digest.hex).unlink(missing_ok=True)
    (tmp_path / "blobs/sha256" / digest.hex).write_bytes(data)
    entry = Descriptor(media_type, digest, len(data)).to_dict() | {"platform": ENTRY["platform"]}
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    with pytest.raises(BaseError, match=why):
        read_layout(tmp_path, machine="x86_64")


def test_a_layout_s_index_that_is_an_image_too_is_refused(tmp_path: Path):
    write_layout(IMAGE, tmp_path)
    (tmp_path / "index.json").write_bytes(changed(manifests=[ENTRY], mediaType=INDEX))
    with pytest.raises(BaseError, match=BOTH):
        read_layout(tmp_path, machine="x86_64")


def test_a_layout_s_index_of_gigabytes_is_not_read(tmp_path: Path):
    write_layout(IMAGE, tmp_path)
    with (tmp_path / "index.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BaseError, match=r"index\.json has more than 4 MiB"):
        read_layout(tmp_path, machine="x86_64")


def test_an_archive_s_manifest_that_is_an_index_too_is_refused(tmp_path: Path):
    confusing = Image(changed(manifests=[ENTRY]), IMAGE.config, IMAGE.layers)
    write_archive(confusing, tmp_path / "image.tar")
    with pytest.raises(BuildError, match=BOTH):
        read_archive(tmp_path / "image.tar", machine="x86_64", scratch=lambda: tmp_path)


def _twice(keys: int) -> bytes:
    body = ",".join(f'"k{it}":1' for it in range(keys))
    return f'{{"schema_version":"1.0","x":{{{body},"k{keys - 1}":2}}}}'.encode()


def _faulty(entries: int) -> bytes:
    return f'{{"schema_version":"1.0","distributions":[{",".join(["1"] * entries)}]}}'.encode()


def test_a_key_that_stands_twice_among_a_million_is_found_at_once():
    with pytest.raises(ManifestError, match="the key 'k499999' stands twice"):
        read_manifest(_twice(500_000), "m")  # 8 MiB, for which counting each key takes an hour


def test_a_manifest_of_millions_of_faults_is_refused_with_the_first_of_them():
    with pytest.raises(ManifestError, match=r"distributions\[0\] ") as caught:
        read_manifest(_faulty(4 << 20), "m")
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[" * 1_000_000])
def test_a_manifest_that_is_nested_without_end_is_refused(text):
    with pytest.raises(ManifestError, match="nested too deeply"):
        read_manifest(text.encode(), "m")
