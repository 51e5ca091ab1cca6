"""The registry as a cache: what is published, what is believed, and what is made when the bytes are gone."""

import json
import random
from typing import Any

import pytest

from envbuild.errors import BuildError
from envbuild.image.assembler import assemble, prefetch_layer_keys, wheels_to_read
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import AssemblyOptions
from envbuild.image.layers.plan import plan_layers
from envbuild.image.layers.writer import LayerResult
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.push import Upload, push
from envbuild.registry.shared_cache import SharedCache
from envbuild.retry import Retry
from envbuild.trust import Voucher
from tests.fakes.registry import FakeRegistry
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.layers import WheelFiles
from tests.unit.test_assemble import base, recipe

FAST = Retry(first=0, longest=0.01)
KEY = Digest.of(b"key")


def ignored(*_: object) -> None:
    """Take no notice."""


def same(value: Any) -> Any:
    """A decoder that accepts anything."""
    return value


def at(registry: FakeRegistry) -> Reference:
    return Reference(registry.host, "team/app", "v1")


def shared(registry: FakeRegistry) -> SharedCache:
    return SharedCache(at(registry), retry=FAST)


def wheels() -> list[FakeWheel]:
    large = [make_wheel(name, "1", {f"{name}.bin": random.Random(1).randbytes(5 << 20)}) for name in ("aaa", "bbb")]
    return [*large, make_wheel("small", "1", {"aaa.txt": "x"}), make_wheel("smaller", "1", {"aaa.txt": "y"})]


def files(folder, *made: FakeWheel) -> WheelFiles:
    paths = {}
    for wheel in made:
        path = folder / wheel.filename
        path.write_bytes(wheel.data)
        paths[Digest.of(wheel.data)] = path
    return WheelFiles(paths)


def published(registry: FakeRegistry, folder):
    """Build on one machine, push, and publish."""
    made = wheels()
    with shared(registry) as others, Upload(at(registry), retry=FAST) as upload:
        cache = LayerCache(folder / "one", others)
        done = assemble(recipe(*made), base(), files(folder, *made), cache, AssemblyOptions(on_layer=upload.offer))
        upload.finish(done.image)
        cache.share(done.results)
        assert others.last_error == ""
    return done


def test_an_empty_machine_needs_no_wheel_and_sends_no_layer(tmp_path):
    with FakeRegistry() as registry:
        first = published(registry, tmp_path)
        registry.requests.clear()
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "two", others)
            prefetch_layer_keys(recipe(*wheels()), cache)
            assert wheels_to_read(recipe(*wheels()), cache) == ()
            again = assemble(recipe(*wheels()), base(), WheelFiles({}), cache)
            result = push(again.image, at(registry), retry=FAST)
    assert again.image.digest == first.image.digest
    assert [it.path.rpartition("/")[2] for it in again.overlaps] == ["aaa.txt"]
    assert result.uploaded == 0
    assert not registry.seen("GET", "blobs")
    assert not (tmp_path / "two/blobs").exists()


def test_what_a_full_cache_has_is_published_too(tmp_path):
    with FakeRegistry() as old:
        published(old, tmp_path)
    with FakeRegistry() as registry:
        published(registry, tmp_path)
        before = len(registry.seen("PUT", "manifests/(fact|layer)"))
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "two", others)
            assert wheels_to_read(recipe(*wheels()), cache) == ()
        published(registry, tmp_path)
    assert before > 0
    assert len(registry.seen("PUT", "manifests/(fact|layer)")) == before


def test_what_a_machine_lacks_is_looked_up_at_once_and_only_that(tmp_path):
    with FakeRegistry() as registry:
        published(registry, tmp_path)

        def asked() -> int:
            found = len(registry.seen("GET", "manifests/(fact|layer)"))
            registry.requests.clear()
            return found

        asked()
        with shared(registry) as others:
            prefetch_layer_keys(recipe(*wheels()), LayerCache(tmp_path / "one", others))
            assert asked() == 0
            empty = LayerCache(tmp_path / "two", others)
            prefetch_layer_keys(recipe(*wheels()), empty)
            assert asked() > 0
            assert wheels_to_read(recipe(*wheels()), empty) == ()
            assert asked() <= 1, "for the layer of overlaps, whose key a note gives"


def test_one_changed_wheel_is_the_only_one_that_is_read(tmp_path):
    with FakeRegistry() as registry:
        published(registry, tmp_path)
        changed = recipe(*wheels()[:2], make_wheel("small", "2"), wheels()[3])
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "two", others)
            needed = {it.name for it in wheels_to_read(changed, cache)}
            assert "small" in needed
            assert needed <= {"small", "smaller"}
            again = assemble(changed, base(), files(tmp_path, make_wheel("small", "2"), wheels()[3]), cache)
            assert again.overlaps == ()


def test_a_layer_whose_blob_is_gone_is_made_when_it_is_sent(tmp_path):
    with FakeRegistry() as registry:
        first = published(registry, tmp_path)
        repository = registry.repositories["team/app"]
        repository.blobs.clear()
        repository.manifests.pop(str(first.image.digest))
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "two", others)
            again = assemble(recipe(*wheels()), base(), files(tmp_path, *wheels()), cache)
            result = push(again.image, at(registry), retry=FAST)
        assert result.uploaded == sum(layer.descriptor.size for layer in again.image.layers) + len(again.image.config)
        assert set(repository.blobs) >= {str(layer.descriptor.digest) for layer in first.image.layers}


def test_a_lie_about_a_layer_is_seen_when_it_has_to_be_made(tmp_path):
    with FakeRegistry() as registry:
        published(registry, tmp_path)
        lie = LayerResult(Digest.of(b"other"), 5, Digest.of(b"tar"))
        with shared(registry) as others:
            key = plan_layers(recipe(*wheels()))[0].key
            registry.repositories["team/app"].blobs[str(lie.digest)] = b"other"
            others.publish({key: lie})
            registry.repositories["team/app"].blobs.clear()
        with shared(registry) as others:
            cache = LayerCache(tmp_path / "two", others)
            again = assemble(recipe(*wheels()), base(), files(tmp_path, *wheels()), cache)
            with pytest.raises(BuildError, match="another layer under") as caught:
                push(again.image, at(registry), retry=FAST)
        assert "--no-remote-cache" in caught.value.todo
        assert str(again.image.digest) not in registry.repositories["team/app"].manifests


def test_a_fact_comes_back_as_it_was():
    value = [["lib/ä.py", "aaa", "bbb"], {"x": None}]
    with FakeRegistry() as registry:
        with shared(registry) as one:
            one.put(KEY, value)
            one.publish({})
        with shared(registry) as two:
            claim = two.get(KEY, same)
            assert claim
            assert (claim.value, claim.voucher) == (value, Voucher.REGISTRY)
            assert claim.source == f"{registry.host}/team/app:fact-{KEY.hex}"
            assert two.get(Digest.of(b"other"), same) is None
            assert two.layer(KEY) is None


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": None},
        {"annotations": {}},
        {"annotations": {"dev.envbuild.key": "sha256:" + "0" * 64, "dev.envbuild.diff-id": "x"}},
        {"layers": []},
        {"layers": [{"mediaType": "text/plain", "digest": f"sha256:{KEY.hex}", "size": 1}]},
        {"layers": [{"digest": "../../x", "size": -1}]},
        {"layers": 7},
    ],
)
def test_an_artifact_that_is_none_of_ours_is_nothing(change):
    with FakeRegistry() as registry:
        with shared(registry) as one:
            one.put(KEY, [])
            one.publish({KEY: LayerResult(Digest.of(b"{}"), 2, Digest.of(b"tar"))})
            assert one.last_error == ""
        repository = registry.repositories["team/app"]
        for tag in (f"layer-{KEY.hex}", f"fact-{KEY.hex}"):
            kind, data = repository.manifests[repository.tags[tag]]
            repository.manifests[repository.tags[tag]] = (kind, json.dumps(json.loads(data) | change).encode())
        with shared(registry) as two:
            assert two.layer(KEY) is None
            claim = two.get(KEY, same)
            assert claim is None or claim.value == []


def test_a_registry_that_refuses_is_no_failure_but_trouble():
    with FakeRegistry() as registry:
        registry.fail("PUT", "manifests/(fact|layer)", status=403, times=9)
        with shared(registry) as one:
            one.put(KEY, 1)
            one.publish({KEY: LayerResult(Digest.of(b"{}"), 2, Digest.of(b"tar"))})
            assert "403" in one.last_error
            assert one.get(KEY, same) is None


def test_a_large_value_is_no_small_fact():
    with FakeRegistry() as registry:
        with shared(registry) as one:
            one.put(KEY, "x" * (2 << 20))
            one.publish({})
        assert not registry.seen("PUT")
