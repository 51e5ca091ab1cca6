"""A dozen of what `python -m tests.faults` does by the hundred, and what the runs look for."""

import json

import httpx
import pytest

from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from tests.corpus import FILENAME, many
from tests.fakes.images import image_of
from tests.faults import kills, pushes
from tests.faults.proxy import KINDS, FaultyRegistry, Weather
from tests.faults.site import FaultError, check_cache, make_site, tags_of
from tests.layers import layer_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def site(tmp_path_factory, registry):
    made = make_site(tmp_path_factory.mktemp("faults") / "site")
    push(made.image(), Reference(registry.host, pushes.MOUNTED, "v1"), retry=pushes.RETRY)
    return made


def test_pushes_under_faults_end_right_or_with_a_clear_error(site, registry):
    ended = [pushes.run(seed, site, registry.host) for seed in range(12)]
    assert sum(it.right for it in ended) >= 6
    assert {it.by for it in ended} == {"library", "command"}


def test_the_same_seed_has_the_same_weather(site, registry):
    assert Weather.of(5) == Weather.of(5) != Weather.of(6)
    assert {kind for seed in range(200) for kind in Weather.of(seed).kinds} == set(KINDS)
    request = "PUT /v2/manifests/v1"
    assert [Weather.of(5).fault(request, n) for n in range(9)] == [Weather.of(5).fault(request, n) for n in range(9)]


@pytest.mark.parametrize("kind", KINDS)
def test_one_fault_of_each_kind_for_each_request_is_overcome_or_told(kind, registry, site):
    image = image_of([b"one", kind.encode() * 999])
    weather = Weather(seed=1, kinds=(kind,), chance=1.0, most=1, login=kind == "expired")
    reference = Reference(registry.host, f"kinds/{kind.replace(' ', '-')}", "v1")
    with FaultyRegistry(registry.host, weather) as proxy:
        through = Reference(proxy.host, reference.repository, "v1")
        error = pushes.push_through(image, through)
        assert any(fault.startswith(kind) for fault in proxy.faults)
    found = tags_of(registry.host, reference.repository).get("v1")
    # A digest that is not the manifest's is never taken; all other single faults are overcome.
    assert bool(error) == (kind == "digest")
    assert found == (None if error else str(image.digest))


def test_a_killed_build_leaves_nothing_that_the_next_one_stumbles_over(site, registry):
    within = min(kills.typical(site), 3.0)
    for seed in range(3):
        assert kills.run(seed, site, registry.host, within).checked


def test_what_the_runs_look_for_is_found(site, registry, tmp_path):
    reference = Reference(registry.host, "looked/for", "v1")
    push(image_of([b"soon gone"]), reference, retry=pushes.RETRY)
    layer = image_of([b"soon gone"]).layers[0].descriptor.digest
    httpx.delete(f"http://{registry.host}/v2/looked/for/blobs/{layer}", trust_env=False)
    with pytest.raises(FaultError, match="has a blob"):
        tags_of(registry.host, "looked/for")
    (tmp_path / "blobs/sha256").mkdir(parents=True)
    (tmp_path / "blobs/sha256" / ("0" * 64)).write_bytes(b"other")
    with pytest.raises(FaultError, match="is not what its name says"):
        check_cache(tmp_path)
    (tmp_path / "blobs/sha256" / ("0" * 64)).unlink()
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers/a.json").write_text(json.dumps({"digest": "sha256:" + "1" * 64, "size": 1}))
    (tmp_path / "blobs/sha256" / ("1" * 64)).write_bytes(b"")
    with pytest.raises(FaultError):
        check_cache(tmp_path)


@pytest.mark.slow
def test_a_hundred_thousand_files_are_no_matter(tmp_path):
    (tmp_path / FILENAME).write_bytes(many(100_000)())
    assert len(layer_of(tmp_path / FILENAME)) > 100_000 * 20
