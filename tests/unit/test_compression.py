"""An image of zstd layers: the same files and config as with gzip, its own digest, and its own environment id."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
import zstandard

from envbuild.errors import BuildError
from envbuild.image.assembler import assemble, find_difference
from envbuild.image.child import interpreter_of
from envbuild.image.layers.cache import LayerCache
from envbuild.image.rebase import named_compression
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.image import LAYER_GZIP, LAYER_ZSTD, Image, canonical_json
from envbuild.registry.push import push
from tests.fakes.registry import FakeRegistry
from tests.fakes.wheels import make_wheel
from tests.layers import WheelFiles
from tests.unit.test_assemble import base, recipe
from tests.unit.test_registry_shared import FAST, at, files, shared, wheels

ZSTD = Compression.parse("zstd")


def built(folder, compression: Compression, cache: str = "cache") -> Image:
    made = wheels()
    wanted = recipe(*made, compression=compression)
    return assemble(wanted, base(), files(folder, *made), LayerCache(folder / cache, compression=compression)).image


def of(image: Image) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(image.manifest)
    return value


def as_found(image: Image) -> Image:
    lines = [it["created_by"] for it in json.loads(image.config)["history"]]
    return replace(
        image, layers=tuple(replace(it, created_by=line) for it, line in zip(image.layers, lines, strict=True))
    )


@pytest.mark.parametrize(("text", "level"), [("gzip", 0), ("zstd", 3), ("zstd:1", 1), ("zstd:8", 8)])
def test_it_is_read(text, level):
    assert Compression.parse(text) == Compression(level)
    assert Compression.parse(str(Compression(level))) == Compression(level)


@pytest.mark.parametrize(
    "text", ["", "gzip:6", "zstd:", "zstd:0", "zstd:10", "zstd:-1", "zstd:\u0663", "xz", "ZSTD", "zstd:1:1"]
)
def test_what_is_none_is_refused(text):
    with pytest.raises(ValueError, match="neither"):
        Compression.parse(text)


def test_config_and_files_are_those_of_gzip_and_the_rest_says_so(tmp_path):
    plain, packed = built(tmp_path, GZIP), built(tmp_path, ZSTD)
    assert packed.config == plain.config
    assert [it.diff_id for it in packed.layers] == [it.diff_id for it in plain.layers]
    assert {it["mediaType"] for it in of(plain)["layers"]} == {LAYER_GZIP}
    assert {it["mediaType"] for it in of(packed)["layers"]} == {LAYER_ZSTD}
    for one, other in zip(packed.layers, plain.layers, strict=True):
        with one.open() as file, other.open() as theirs:
            content = zstandard.ZstdDecompressor().stream_reader(file).read()
            assert content == gzip.decompress(theirs.read())
    said = of(packed)["annotations"]
    assert said.pop("dev.envbuild.compression") == "zstd:3"
    assert said.keys() == of(plain)["annotations"].keys()
    assert said["dev.envbuild.environment"] != of(plain)["annotations"]["dev.envbuild.environment"]


def test_the_digest_is_the_same_cold_and_cached_and_that_of_another_level_is_not(tmp_path):
    first = built(tmp_path, ZSTD)
    assert built(tmp_path, ZSTD).manifest == first.manifest
    assert built(tmp_path, ZSTD, "elsewhere").manifest == first.manifest
    assert built(tmp_path, Compression(1)).digest != first.digest


def test_the_known_image_is_compared_with_its_own_compression(tmp_path):
    image, found = as_found(built(tmp_path, ZSTD)), as_found(built(tmp_path, GZIP))
    wanted, cache = recipe(*wheels(), compression=ZSTD), LayerCache(tmp_path / "cache", compression=ZSTD)
    assert find_difference(image, wanted, base(), cache) == ""
    assert find_difference(found, wanted, base(), cache) != ""


def test_the_registry_has_a_layer_of_each_compression_and_notes_for_both(tmp_path):
    made = wheels()

    def published(registry: FakeRegistry, compression: Compression) -> Image:
        with shared(registry) as others:
            cache = LayerCache(tmp_path / str(compression), others, compression=compression)
            done = assemble(recipe(*made, compression=compression), base(), files(tmp_path, *made), cache)
            push(done.image, at(registry), retry=FAST)
            cache.share(done.results)
            assert others.last_error == ""
        return done.image

    with FakeRegistry() as registry:
        published(registry, GZIP)
        image = published(registry, ZSTD)
        assert len(registry.seen("PUT", "manifests/layer")) == 2 * len(image.layers)
        registry.requests.clear()
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "new", others, compression=ZSTD)
            again = assemble(recipe(*made, compression=ZSTD), base(), WheelFiles({}), cache)
        assert not registry.seen("GET", "blobs")
    assert again.image.manifest == image.manifest


@pytest.mark.parametrize("compression", [GZIP, ZSTD], ids=str)
def test_the_interpreter_is_read_from_either(tmp_path, compression):
    assert interpreter_of(as_found(built(tmp_path, compression))) == recipe().python_path


def test_an_annotation_that_is_none_is_refused(tmp_path):
    image = built(tmp_path, ZSTD)
    assert named_compression(image) == ZSTD
    value = of(image)
    value["annotations"]["dev.envbuild.compression"] = "zstd:99"
    with pytest.raises(BuildError, match="zstd:99"):
        named_compression(replace(image, manifest=canonical_json(value)))


def test_a_wheel_in_pieces_above_the_batch_is_the_same_tar(tmp_path):
    big = make_wheel("big", "1", {"big/a.bin": bytes(range(256)) * (20 << 10), "big/b.py": "x = 1\n"})
    images = []
    for compression in (GZIP, ZSTD):
        cache = LayerCache(tmp_path / "cache", compression=compression)
        made = assemble(recipe(big, compression=compression), base(), files(tmp_path, big), cache)
        images.append(made.image)
    assert [it.diff_id for it in images[0].layers] == [it.diff_id for it in images[1].layers]
