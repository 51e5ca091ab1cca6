"""An index over images of several platforms (OCI image-spec, image-index.md)."""

import json
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from envbuild.errors import BuildError
from envbuild.oci.image import (
    INDEX,
    LAYER_ZSTD,
    MANIFEST,
    Image,
    canonical_json,
    image_index,
    manifest_bytes,
    platform_name,
    top_index,
)
from envbuild.oci.layout import read_layout, write_layout
from tests.fakes.images import image_of


def image(architecture: str, variant: str = "", **more: Any) -> Image:
    plain = image_of([architecture.encode(), b"shared"], architecture=architecture)
    config = canonical_json(json.loads(plain.config) | ({"variant": variant} if variant else {}) | more)
    return replace(plain, config=config, manifest=manifest_bytes(config, plain.layers, {}))


AMD, ARM, V6, V7 = image("amd64"), image("arm64", "v8"), image("arm", "v6"), image("arm", "v7")


def test_the_order_in_which_images_are_given_decides_nothing():
    assert {image_index(some).digest for some in permutations([AMD, ARM, V6, V7])} == {
        image_index([AMD, V6, V7, ARM]).digest
    }
    assert [platform_name(one) for one in image_index([ARM, V7, V6, AMD]).images] == [
        "linux/amd64",
        "linux/arm/v6",
        "linux/arm/v7",
        "linux/arm64/v8",
    ]


def test_of_one_platform_gzip_comes_first_and_zstd_is_marked():
    zstd = replace(AMD.layers[-1], descriptor=replace(AMD.layers[-1].descriptor, media_type=LAYER_ZSTD))
    layers = (*AMD.layers[:-1], zstd)
    packed = replace(AMD, layers=layers, manifest=manifest_bytes(AMD.config, layers, {}))
    made = image_index([packed, ARM, AMD])
    assert made.images == (AMD, packed, ARM)
    marks = [it.get("annotations") for it in json.loads(made.data)["manifests"]]
    assert marks == [None, {"io.github.containers.compression.zstd": "true"}, None]
    alone = json.loads(image_index([packed, ARM]).data)["manifests"]  # as it was before
    assert not any("annotations" in it for it in alone)
    with pytest.raises(BuildError, match="each for another platform"):
        image_index([packed, packed])


def test_it_says_what_the_specification_asks_for():
    value = json.loads(image_index([ARM, AMD], {"a": "b"}).data)
    assert value == {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "annotations": {"a": "b"},
        "manifests": [
            {
                "mediaType": MANIFEST,
                "digest": str(one.digest),
                "size": len(one.manifest),
                "platform": platform,
            }
            for one, platform in (
                (AMD, {"architecture": "amd64", "os": "linux"}),
                (ARM, {"architecture": "arm64", "os": "linux", "variant": "v8"}),
            )
        ],
    }
    assert "annotations" not in json.loads(image_index([AMD]).data)


def test_what_a_config_says_of_its_system_is_kept():
    windows = image("amd64", "", **{"os": "windows", "os.version": "10.0.14393.1066", "os.features": ["win32k"]})
    platform = json.loads(image_index([windows]).data)["manifests"][0]["platform"]
    assert platform == {
        "architecture": "amd64",
        "os": "windows",
        "os.version": "10.0.14393.1066",
        "os.features": ["win32k"],
    }


@pytest.mark.parametrize("images", [[], [AMD, AMD], [AMD, ARM, image("amd64", created="1980-01-01T00:00:00Z")]])
def test_a_platform_twice_or_never_is_refused(images):
    with pytest.raises(BuildError, match="each for another platform"):
        image_index(images)


def test_a_layout_of_an_index_gives_each_machine_its_image(tmp_path):
    index = image_index([ARM, AMD])
    write_layout(index, tmp_path, name="latest")
    (entry,) = json.loads((tmp_path / "index.json").read_bytes())["manifests"]
    assert (entry["mediaType"], entry["digest"]) == (INDEX, str(index.digest))
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "latest"}
    assert "platform" not in entry
    assert read_layout(tmp_path, machine="x86_64").digest == AMD.digest
    assert read_layout(tmp_path, machine="aarch64", reference="latest").digest == ARM.digest
    # Two manifests, two configs, the index, and three layers, of which one is in both images.
    assert len(list((tmp_path / "blobs/sha256").iterdir())) == 8


def test_an_index_json_names_the_image_once_for_each_name():
    entries = json.loads(top_index(ARM, [{"a": "1"}, {"a": "2"}]))["manifests"]
    assert [(one["digest"], one["annotations"]) for one in entries] == [
        (str(ARM.digest), {"a": "1"}),
        (str(ARM.digest), {"a": "2"}),
    ]
    assert entries[0]["platform"] == {"architecture": "arm64", "os": "linux", "variant": "v8"}
    assert len(json.loads(top_index(ARM))["manifests"]) == 1
