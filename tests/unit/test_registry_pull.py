import json

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST, Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.pull import fetch_manifest, pull
from envbuild.registry.push import push
from envbuild.retry import Retry
from tests.fakes.images import config_of, docker_manifest_of, image_of, layer_of
from tests.fakes.registry import FakeRegistry

FAST = Retry(first=0, longest=0.01)
CHANGES = {
    "short": lambda data: data[:-1],
    "long": lambda data: data + b"x",
    "other": lambda data: data[:-1] + b"x",
    "empty": lambda _: b"",
}


def store(registry: FakeRegistry, image: Image, tag: str = "v1", data: bytes = b"", media_type: str = MANIFEST) -> str:
    for layer in image.layers:
        with layer.open() as file:
            registry.put("base", file.read())
    registry.put("base", image.config)
    return registry.put_manifest("base", tag, data or image.manifest, media_type)


def get(registry: FakeRegistry, *, machine: str = "x86_64", **where) -> Image:
    return pull(Reference(registry.host, "base", **(where or {"tag": "v1"})), machine=machine, retry=FAST)


def contents(image: Image) -> list[bytes]:
    found = []
    for layer in image.layers:
        with layer.open() as file:
            found.append(file.read())
    return found


def test_what_was_pushed_is_pulled():
    image = image_of()
    with FakeRegistry() as registry:
        push(image, Reference(registry.host, "base", "v1"), retry=FAST)
        pulled = get(registry)
        assert (pulled.manifest, pulled.config) == (image.manifest, image.config)
        assert contents(pulled) == contents(image)
    assert [layer.diff_id for layer in pulled.layers] == [layer.diff_id for layer in image.layers]
    assert [layer.created_by for layer in pulled.layers] == [layer.created_by for layer in image.layers]
    assert all(layer.reused for layer in pulled.layers)


def test_layers_are_not_read_before_they_are_opened():
    image = image_of()
    with FakeRegistry() as registry:
        store(registry, image)
        get(registry)
    assert len(registry.seen("GET", "blobs")) == 1, "the config"


@pytest.mark.parametrize("media_type", [INDEX, DOCKER_INDEX])
@pytest.mark.parametrize(("machine", "architecture"), [("x86_64", "amd64"), ("aarch64", "arm64")])
def test_an_index_is_resolved_to_the_machines_platform(media_type, machine, architecture):
    images = {name: image_of([name.encode()], architecture=name) for name in ("amd64", "arm64")}
    with FakeRegistry() as registry:
        entries: list[dict[str, object]] = [
            {"digest": str(Digest.of(b"attestation")), "platform": {"os": "unknown", "architecture": "unknown"}}
        ]
        for name, image in images.items():
            digest = store(registry, image, tag=name)
            entries.append(
                {"mediaType": MANIFEST, "digest": digest, "size": 1, "platform": {"os": "linux", "architecture": name}}
            )
        index = canonical_json({"schemaVersion": 2, "mediaType": media_type, "manifests": entries})
        registry.put_manifest("base", "v1", index, media_type)
        assert get(registry, machine=machine).manifest == images[architecture].manifest
        with pytest.raises(RegistryError, match="no image for linux/s390x") as caught:
            get(registry, machine="s390x")
    assert "linux/arm64" in caught.value.todo


def test_dockers_media_types_become_ocis():
    image = image_of()
    with FakeRegistry() as registry:
        store(registry, image, data=docker_manifest_of(image), media_type=DOCKER_MANIFEST)
        assert get(registry).manifest == image.manifest


def test_a_manifest_without_its_own_type_has_the_answers():
    image = image_of()
    data = canonical_json(
        {key: value for key, value in json.loads(docker_manifest_of(image)).items() if key != "mediaType"}
    )
    with FakeRegistry() as registry:
        store(registry, image, data=data, media_type=DOCKER_MANIFEST)
        assert get(registry).manifest == image.manifest


def test_a_reference_by_digest_gets_that_manifest_or_an_error():
    image = image_of()
    with FakeRegistry() as registry:
        store(registry, image)
        assert get(registry, digest=image.digest).digest == image.digest
        registry.fail("GET", "manifests", kind="body", body=image_of([b"evil"]).manifest)
        with pytest.raises(RegistryError, match="another manifest"):
            get(registry, digest=image.digest)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_layer_of_other_bytes_is_found_when_it_is_read_to_its_end(change):
    image = image_of([b"one" * 1000])
    with FakeRegistry() as registry:
        store(registry, image)
        pulled = get(registry)
        blobs = registry.repositories["base"].blobs
        name = str(image.layers[0].descriptor.digest)
        blobs[name] = change(blobs[name])
        with pytest.raises(RegistryError, match="has another digest"):
            contents(pulled)


def test_a_layer_whose_connection_breaks_is_read_on_from_there():
    image = image_of([bytes(range(256)) * 9])
    with FakeRegistry() as registry:
        store(registry, image)
        pulled = get(registry)
        registry.fail("GET", "blobs", kind="half", times=2)
        assert contents(pulled) == contents(image)
        assert len([one for one in registry.seen("GET", "blobs") if "range" in one.headers]) == 2
        registry.fail("GET", "blobs", kind="half", times=99)
        with pytest.raises(RegistryError) as caught:
            contents(pulled)
        assert (registry.host in caught.value.where, caught.value.status) == (True, None)


def test_a_layer_that_is_closed_early_is_no_error():
    image = image_of([b"one" * 100_000])
    with FakeRegistry() as registry:
        store(registry, image)
        with get(registry).layers[0].open() as file:
            assert file.read(10)


def test_a_wrong_config_is_refused():
    image = image_of()
    with FakeRegistry() as registry:
        store(registry, image)
        registry.repositories["base"].blobs[str(image.config_digest)] = image.config.replace(b"/bin", b"/bad")
        with pytest.raises(RegistryError) as caught:
            get(registry)
        assert str(image.config_digest) in caught.value.what


def test_an_image_that_is_not_there_is_named():
    with FakeRegistry() as registry, pytest.raises(RegistryError, match="base:v1 does not exist") as caught:
        get(registry)
    assert caught.value.status == 404
    assert "latest" not in caught.value.todo


@pytest.mark.parametrize(
    ("repository", "what", "todo"),
    [
        ("library/modle", "there is no file or folder modle here, and docker.io/library/modle does not exist", ""),
        ("library/model", "docker.io/library/model does not exist", ""),  # docker://model, as the folder exists
        ("team/app", "docker.io/team/app does not exist", "if it is private: docker login docker.io"),
    ],
)
def test_docker_hub_hides_what_does_not_exist(repository, what, todo, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    with FakeRegistry() as registry, Registry(registry.host, retry=FAST) as client:
        registry.fail("GET", status=401)
        with pytest.raises(RegistryError) as caught:
            fetch_manifest(client, Reference("docker.io", repository), "latest")
    assert caught.value.what == what
    assert todo in caught.value.todo


def test_another_architecture_is_refused():
    with FakeRegistry() as registry:
        store(registry, image_of(architecture="arm64"))
        with pytest.raises(RegistryError, match="for linux/arm64, not for linux/amd64"):
            get(registry)


def changed(**changes) -> bytes:
    return canonical_json(json.loads(image_of().manifest) | changes)


UNREADABLE = [
    b"<html>",
    b"[]",
    b"[" * 100_000,
    b'{"schemaVersion":2}',
    b'{"schemaVersion":2,"manifests":[7]}',
    changed(layers=[]),
    changed(config={"mediaType": "x", "digest": "md5:1", "size": 2}),
]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"schemaVersion":1,"name":"base","fsLayers":[]}', "schema 1"),
        (b"x" * (5 << 20), "over 4 MiB"),
        (
            changed(config={"mediaType": "application/vnd.helm", "digest": "sha256:" + "0" * 64, "size": 2}),
            "is not an image",
        ),
        *((data, "cannot be read") for data in UNREADABLE),
    ],
)
def test_a_manifest_that_is_none_is_refused(data, words):
    image = image_of()
    with FakeRegistry() as registry:
        store(registry, image, data=data)
        with pytest.raises(RegistryError, match=words):
            get(registry)


def test_layers_that_lie_elsewhere_are_refused():
    image = image_of([b"x"])
    value = json.loads(image.manifest)
    value["layers"][0]["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
    with FakeRegistry() as registry:
        store(registry, image, data=canonical_json(value))
        with pytest.raises(RegistryError, match="foreign"):
            get(registry)


def test_credentials_do_not_follow_a_redirect_to_another_host(monkeypatch, tmp_path):
    image = image_of()
    with FakeRegistry() as store_host, FakeRegistry(login="basic") as registry:
        config = json.dumps({"auths": {registry.host: {"username": "user", "password": "letmein"}}})
        (tmp_path / "config.json").write_text(config)
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        store(registry, image)
        store(store_host, image)
        registry.blob_host = store_host.host
        pulled = get(registry)
        assert contents(pulled) == contents(image)
    assert all("authorization" in one.headers for one in registry.seen("GET", "blobs"))
    assert store_host.seen("GET", "blobs.*sig=hush")
    assert not any("authorization" in one.headers for one in store_host.requests)


def test_an_error_behind_a_redirect_does_not_show_the_signature():
    image = image_of()
    with FakeRegistry() as store_host, FakeRegistry() as registry:
        store(registry, image)
        registry.blob_host = store_host.host
        with pytest.raises(RegistryError) as caught:
            get(registry)
    assert store_host.host in caught.value.where
    assert "hush" not in str(caught.value)


def test_config_of_fits_its_layers():
    layer = layer_of(b"x")
    assert json.loads(config_of([layer]))["rootfs"]["diff_ids"] == [str(layer.diff_id)]
