"""An image of zstd layers: the same files and config as with gzip, its own digest, and its own environment id."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
import zstandard

from envbuild.errors import BaseError, BuildError
from envbuild.image.assembler import assemble, find_difference
from envbuild.image.child import interpreter_of
from envbuild.image.layers.cache import LayerCache
from envbuild.image.rebase import named_compression
from envbuild.lock.model import Lock
from envbuild.lock.settings import read_settings
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_ZSTD, Image, canonical_json
from envbuild.recipe import Base, Recipe
from envbuild.registry.push import push
from envbuild.report import SILENT
from envbuild.verify.image import Inquiry, Subject, base_finding, verify_image
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import image_of_layers, layer_of_tree
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
@pytest.mark.parametrize("ending", ["", "+base"])
def test_it_is_read(text, level, ending):
    found = Compression(level, base=bool(ending))
    assert Compression.parse(text + ending) == found
    assert Compression.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "gzip:6", "zstd:", "zstd:0", "zstd:10", "zstd:-1", "zstd:\u0663", "xz", "ZSTD", "zstd:1:1", "zstd+base+base"],
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


def on_base(folder, made, compression: Compression, cache: str = "cache") -> tuple[Recipe, Base, Image]:
    """An image on a base of two layers, of gzip and of zstd."""
    below = image_of_layers(layer_of_tree({"a": b"a" * 9999}), layer_of_tree({"b": b"b" * 9999}, LAYER_ZSTD))
    on = replace(base(), image=below)
    wanted = recipe(*made, compression=compression, base_digest=on.digest)
    kept = LayerCache(folder / cache, compression=compression)
    return wanted, on, assemble(wanted, on, files(folder, *made), kept).image


def unread(on: Base) -> Base:
    """A base none of whose layers can be read."""

    def never() -> Any:
        raise AssertionError("a layer was read")

    return replace(on, image=replace(on.image, layers=tuple(replace(it, open=never) for it in on.image.layers)))


@pytest.mark.parametrize(("text", "kept"), [("zstd", 1), ("gzip", 0)])
def test_a_base_is_compressed_anew_where_it_is_not_of_the_images_compression(tmp_path, text, kept):
    made, anew = wheels(), Compression.parse(f"{text}+base")
    _, _, plain = on_base(tmp_path, made, anew.plain)
    wanted, on, image = on_base(tmp_path, made, anew)
    assert {it["mediaType"] for it in of(image)["layers"]} == {anew.media_type}
    assert (image.config, [it.diff_id for it in image.layers]) == (plain.config, [it.diff_id for it in plain.layers])
    same = [one.descriptor == other.descriptor for one, other in zip(image.layers, plain.layers, strict=True)]
    assert same == [number != 1 - kept for number in range(len(same))]
    for layer in image.layers:
        with layer.open() as file:
            assert Digest.of(file.read()) == layer.descriptor.digest
    assert named_compression(image) == anew
    assert of(image)["annotations"]["org.opencontainers.image.base.digest"] == str(on.digest)
    assert of(image)["annotations"]["dev.envbuild.environment"] != of(plain)["annotations"]["dev.envbuild.environment"]
    assert on_base(tmp_path, made, anew, "elsewhere")[2].manifest == image.manifest
    cache = LayerCache(tmp_path / "cache", compression=anew)
    assert find_difference(as_found(image), wanted, on, cache) == ""
    assert find_difference(as_found(image), wanted, on, LayerCache(tmp_path / "new", compression=anew)) == ""
    assert find_difference(as_found(plain), wanted, on, cache) != ""


def test_a_base_is_compressed_anew_once(tmp_path):
    made, anew = wheels(), Compression.parse("zstd+base")
    wanted, on, image = on_base(tmp_path, made, anew)
    again = assemble(wanted, unread(on), WheelFiles({}), LayerCache(tmp_path / "cache", compression=anew)).image
    assert again.manifest == image.manifest
    assert [it.found for it in again.layers][:2] == ["cache", ""]


def test_a_machine_without_the_base_takes_its_layers_from_the_registry(tmp_path):
    made, anew = wheels(), Compression.parse("zstd+base")
    wanted, on, image = on_base(tmp_path, made, anew)
    with FakeRegistry() as registry:
        push(image, at(registry), retry=FAST)
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "cache", others, compression=anew)
            cache.share(assemble(wanted, on, files(tmp_path, *made), cache).results)
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "new", others, compression=anew)
            again = assemble(wanted, unread(on), WheelFiles({}), cache).image
    assert again.manifest == image.manifest
    assert again.layers[0].found == "registry"


def test_verifying_knows_a_base_by_its_content_only_where_it_was_compressed_anew(tmp_path):
    made, anew = wheels(), Compression.parse("zstd+base")
    lock = Lock(target=base().target, wheels=recipe(*made).wheels)
    _, on, image = on_base(tmp_path, made, anew)
    found = base_finding(Subject.of(image, on, lock))
    assert (found.agrees, found.says.endswith("recompressed")) == (True, True)
    _, on, plain = on_base(tmp_path, made, ZSTD)
    assert base_finding(Subject.of(plain, on, lock)).agrees
    mixed = replace(plain, layers=(image.layers[0], *plain.layers[1:]))
    assert not base_finding(Subject.of(mixed, on, lock)).agrees
    other = replace(image.layers[0], diff_id=image.layers[1].diff_id)
    assert not base_finding(Subject.of(replace(image, layers=(other, *image.layers[1:])), on, lock)).agrees


def test_a_base_whose_layer_is_not_as_declared_is_not_compressed_anew(tmp_path):
    bad = replace(layer_of_tree({"a": b"a"}), open=layer_of_tree({"a": b"b"}).open)
    on = replace(base(), image=image_of_layers(bad))
    with pytest.raises(BaseError, match="does not match the diff id"):
        assemble(
            recipe(compression=Compression(3, base=True)),
            on,
            WheelFiles({}),
            LayerCache(tmp_path / "cache", compression=ZSTD),
        )


def test_a_wheel_in_pieces_above_the_batch_is_the_same_tar(tmp_path):
    big = make_wheel("big", "1", {"big/a.bin": bytes(range(256)) * (20 << 10), "big/b.py": "x = 1\n"})
    images = []
    for compression in (GZIP, ZSTD):
        cache = LayerCache(tmp_path / "cache", compression=compression)
        made = assemble(recipe(big, compression=compression), base(), files(tmp_path, big), cache)
        images.append(made.image)
    assert [it.diff_id for it in images[0].layers] == [it.diff_id for it in images[1].layers]


def test_verifying_finds_an_annotation_that_names_no_compression(tmp_path):
    made = wheels()
    lock = Lock(target=base().target, wheels=recipe(*made).wheels)
    _, on, image = on_base(tmp_path, made, ZSTD)
    value = of(image)
    value["annotations"]["dev.envbuild.compression"] = "lz4"
    inquiry = Inquiry(
        image=replace(image, manifest=canonical_json(value)), base=on, lock=lock, cache=tmp_path / "cache",
        settings=read_settings(),
    )  # fmt: skip
    [found] = verify_image(inquiry, SILENT)
    assert (found.about, found.agrees, "lz4" in found.says) == ("environment", False, True)
