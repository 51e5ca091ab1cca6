import os
import signal
import socket
import threading
import time
from dataclasses import replace
from io import BytesIO

import pytest

from envbuild.errors import BuildError, RegistryError, UsageError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull
from envbuild.registry.push import Upload, check_push, push
from envbuild.retry import Retry
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry
from tests.reporting import Recorder

FAST = Retry(first=0, longest=0.01)
CHANGES = {
    "short": lambda data: data[:-1],
    "long": lambda data: data + b"x",
    "other": lambda data: data[:-1] + b"x",
    "empty": lambda _: b"",
}
UPLOAD = "/blobs/uploads/[0-9a-f]"


def at(registry: FakeRegistry, tag: str = "v1") -> Reference:
    return Reference(registry.host, "team/app", tag)


def with_first_layer(image: Image, **changes) -> Image:
    return replace(image, layers=(replace(image.layers[0], **changes), *image.layers[1:]))


def test_push_stores_all_blobs_the_manifest_and_every_tag():
    image = image_of()
    with FakeRegistry() as registry:
        result = push(image, at(registry), tags=["env-1", "v1"], retry=FAST)
        stored = registry.repositories["team/app"]
    assert result.reference == at(registry).at(image.digest)
    assert result.uploaded == sum(layer.descriptor.size for layer in image.layers) + len(image.config)
    assert result.not_sent == 0
    assert stored.tags == {"v1": str(image.digest), "env-1": str(image.digest)}
    assert stored.manifests[str(image.digest)][1] == image.manifest
    assert set(stored.blobs) == {str(image.config_digest), *(str(layer.descriptor.digest) for layer in image.layers)}


def test_push_without_a_tag_is_by_digest_only():
    with FakeRegistry() as registry:
        push(image_of(), Reference(registry.host, "app"), retry=FAST)
    assert registry.tags == {}
    assert len(registry.repositories["app"].manifests) == 1


def test_uploads_are_one_post_and_one_put_of_known_length():
    image = image_of()
    with FakeRegistry() as registry:
        push(image, at(registry), retry=FAST)
    puts = registry.seen("PUT", UPLOAD)
    sizes = sorted([len(image.config), *(layer.descriptor.size for layer in image.layers)])
    assert sorted(int(one.headers["content-length"]) for one in puts) == sizes
    assert len(registry.seen("POST")) == len(puts)
    assert not registry.seen("PATCH")
    assert not any("transfer-encoding" in one.headers for one in registry.requests)


def test_the_same_blob_in_several_layers_is_sent_once():
    with FakeRegistry() as registry:
        push(image_of([b"same", b"other", b"same"]), at(registry), retry=FAST)
    assert len(registry.seen("PUT", UPLOAD)) == 3


@pytest.mark.parametrize("damaged", [False, True])
def test_a_cached_layer_is_hashed_as_it_is_sent_and_opened_again_only_where_it_is_damaged(tmp_path, damaged):
    image = image_of([b"one" * 999, b"two"])
    with image.layers[0].open() as file:
        right = file.read()
    path, opened = tmp_path / "cached", list[str]()
    path.write_bytes(right[:-1] + b"x" if damaged else right)

    def remade() -> BytesIO:
        opened.append("again")
        return BytesIO(right)

    with FakeRegistry() as registry:
        push(with_first_layer(image, path=path, open=remade), at(registry), retry=FAST)
        stored = registry.repositories["team/app"].blobs
    assert stored[str(image.layers[0].descriptor.digest)] == right
    assert opened == (["again"] if damaged else [])


@pytest.mark.parametrize("trust_registry", [True, False])
def test_who_does_not_believe_a_manifest_looks_for_each_blob(trust_registry):
    image = image_of([b"one", b"two"])
    lost = image.layers[0].descriptor
    with FakeRegistry() as registry:
        push(image, at(registry), retry=FAST)
        del registry.repositories["team/app"].blobs[str(lost.digest)]
        with Upload(at(registry), retry=FAST, trust_registry=trust_registry) as upload:
            result = upload.finish(image)
        there = str(lost.digest) in registry.repositories["team/app"].blobs
    assert (there, result.uploaded) == ((False, 0) if trust_registry else (True, lost.size))


def test_an_image_that_is_there_is_only_tagged():
    image = image_of()
    with FakeRegistry() as registry:
        push(image, at(registry, "old"), retry=FAST)
        registry.requests.clear()
        result = push(image, at(registry, "new"), tags=["old"], retry=FAST)
    assert result.uploaded == 0
    assert result.not_sent > 0
    assert not registry.seen("POST")
    assert [one.path for one in registry.seen("PUT")] == ["/v2/team/app/manifests/new"]


def test_blobs_that_are_there_are_not_sent():
    with FakeRegistry() as registry:
        push(image_of([b"base"]), at(registry), retry=FAST)
        registry.requests.clear()
        result = push(image_of([b"base", b"more"]), at(registry), retry=FAST)
    assert len(registry.seen("PUT", UPLOAD)) == 2
    assert result.not_sent == image_of([b"base"]).layers[0].descriptor.size


def test_the_config_goes_after_the_layers_and_tags_come_last():
    image = image_of()
    with FakeRegistry() as registry:
        push(image, at(registry), retry=FAST)
    puts = [one.path for one in registry.seen("PUT")]
    assert image.config_digest.hex in puts[-3]
    assert puts[-2:] == [f"/v2/team/app/manifests/{image.digest}", "/v2/team/app/manifests/v1"]


def test_progress_of_each_blob_ends_at_its_size():
    image, recorder = image_of(), Recorder()
    with FakeRegistry() as registry:
        push(image, at(registry), report=recorder, retry=FAST)
    sizes = {layer.created_by: layer.descriptor.size for layer in image.layers} | {"config": len(image.config)}
    assert {name: (done, size) for name, done, size in recorder.bytes} == {
        f"pushing {name}": (size, size) for name, size in sizes.items()
    }


@pytest.mark.parametrize(
    ("method", "path", "fault"),
    [
        ("HEAD", "manifests", {"times": 2, "status": 503}),
        ("HEAD", "blobs", {"times": 2, "status": 500}),
        ("POST", "uploads", {"times": 2, "status": 502}),
        ("POST", "uploads", {"times": 2, "status": 429, "headers": {"Retry-After": "7"}}),
        ("PUT", UPLOAD, {"times": 2, "status": 500}),
        ("PUT", UPLOAD, {"times": 2, "kind": "reset"}),
        ("PUT", UPLOAD, {"kind": "lost"}),
        ("PUT", "manifests/sha256", {"times": 2, "status": 504}),
        ("PUT", "manifests/v1", {"kind": "lost"}),
        ("GET", "/v2/$", {"times": 2, "status": 503}),
    ],
)
def test_what_passes_is_tried_again(method, path, fault):
    image = image_of()
    with FakeRegistry() as registry:
        registry.fail(method, path, **fault)
        result = push(image, at(registry), retry=FAST)
    assert registry.tags == {"team/app:v1": str(image.digest)}
    assert result.uploaded > 0


def test_a_blob_whose_reply_was_lost_is_not_sent_again():
    with FakeRegistry() as registry:
        registry.fail("PUT", UPLOAD, kind="lost")
        push(image_of([b"x"]), at(registry), retry=FAST)
    assert len(registry.seen("PUT", UPLOAD)) == 2, "one layer and the config"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "uploads"), ("PUT", UPLOAD), ("PUT", "manifests/sha256"), ("GET", "manifests")]
)
@pytest.mark.parametrize("status", [500, 403])
def test_a_failure_that_stays_leaves_no_tag(method, path, status):
    with FakeRegistry() as registry:
        registry.fail(method, path, times=99, status=status)
        with pytest.raises(RegistryError) as caught:
            push(image_of(), at(registry), retry=FAST)
    assert caught.value.status == status
    assert caught.value.exit_code == 14
    assert type(caught.value) is RegistryError
    assert registry.tags == {}


def test_the_number_of_tries_is_three_and_said():
    with FakeRegistry() as registry:
        registry.fail("PUT", "manifests/sha256", times=99, status=500)
        with pytest.raises(RegistryError, match="3 tries"):
            push(image_of(), at(registry), retry=FAST)
    assert len(registry.seen("PUT", "manifests")) == 3


@pytest.mark.parametrize("fault", [{"kind": "digest"}, {"kind": "body", "body": b"{}"}])
def test_a_registry_that_does_not_confirm_the_image_gets_no_tag(fault):
    with FakeRegistry() as registry:
        registry.fail("GET", "manifests/sha256", times=2, **fault)
        with pytest.raises(RegistryError, match="does not confirm"):
            push(image_of(), at(registry), retry=FAST)
    assert registry.tags == {}


def test_an_image_that_is_there_is_asked_for_once_and_once_more_before_it_is_tagged():
    image = image_of()
    with FakeRegistry() as registry:
        push(image, at(registry), retry=FAST)
        before = len(registry.requests)
        assert push(image, at(registry), retry=FAST).uploaded == 0
        again = [(one.method, one.path) for one in registry.requests[before:]]
    manifests = "/v2/team/app/manifests"
    there = [("GET", "/v2/"), ("GET", f"{manifests}/{image.digest}")]
    assert again == [*there, *there, ("HEAD", f"{manifests}/v1")]


def test_a_blob_that_has_another_size_there_ends_the_push():
    image = image_of()
    with FakeRegistry() as registry:
        push(image, at(registry), retry=FAST)
        first = image.layers[0]
        lie = replace(first, descriptor=replace(first.descriptor, size=7))
        other = replace(image, layers=(lie, *image.layers[1:]), manifest=image.manifest + b" ")
        with pytest.raises(RegistryError, match="bytes there, not 7"):
            push(other, at(registry, "other"), retry=FAST)
    assert "other" not in {name.partition(":")[2] for name in registry.tags}


def test_a_registry_that_takes_the_manifest_for_another_gets_no_tag():
    with FakeRegistry() as registry:
        registry.fail("PUT", "manifests/sha256", kind="digest")
        with pytest.raises(RegistryError, match="other bytes"):
            push(image_of(), at(registry), retry=FAST)
    assert registry.tags == {}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_layer_of_other_bytes_is_a_build_error_and_never_stored(change):
    image = image_of()
    with image.layers[0].open() as file:
        wrong = change(file.read())
    bad = with_first_layer(image, open=lambda: BytesIO(wrong))
    with FakeRegistry() as registry, pytest.raises(BuildError, match="a layer has the digest"):
        push(bad, at(registry), retry=FAST)
    assert registry.tags == {}
    assert str(Digest.of(wrong)) not in registry.repositories["team/app"].blobs


def test_a_file_that_cannot_be_opened_stops_the_push():
    def gone():
        raise BuildError("the layer is gone")

    with FakeRegistry() as registry, pytest.raises(BuildError, match="gone"):
        push(with_first_layer(image_of(), open=gone), at(registry), retry=FAST)
    assert registry.tags == {}


def test_the_first_failure_cuts_the_other_uploads():
    image = image_of([b"a", b"b" * 50_000])
    small, big = (layer.descriptor.digest.hex for layer in image.layers)
    with FakeRegistry() as registry:
        registry.fail("PUT", big, kind="stall")
        registry.fail("PUT", small, status=400)
        started = time.monotonic()
        with pytest.raises(RegistryError, match="400"):
            push(image, at(registry), retry=FAST)
        assert time.monotonic() - started < 5
    assert registry.tags == {}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("push")]


@pytest.mark.usefixtures("interrupts_return")
def test_ctrl_c_cuts_all_uploads():
    with FakeRegistry() as registry:
        registry.fail("PUT", UPLOAD, kind="stall", times=9)

        def interrupt():
            while not registry.seen("PUT"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            push(image_of(), at(registry), retry=FAST)
        assert time.monotonic() - started < 5
    assert registry.tags == {}


def test_a_registry_that_is_down_cannot_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(RegistryError, match=host) as caught:
        push(image_of(), Reference(host, "app", "v1"), retry=FAST)
    assert caught.value.status is None
    assert caught.value.todo


def test_what_is_no_registry_is_called_so():
    with FakeRegistry() as registry:
        registry.fail("GET", "/v2/$", status=200, headers={"Content-Type": "text/html"}, body=b"<html>Welcome")
        with pytest.raises(RegistryError, match="not as a registry"):
            push(image_of(), at(registry), retry=FAST)


def test_a_registry_that_lets_nobody_in_is_heard():
    with FakeRegistry() as registry:
        body = b'{"errors":[{"code":"DENIED","message":"this address is not on the list"}]}'
        registry.fail("GET", "/v2/$", status=403, body=body)
        with pytest.raises(RegistryError, match="DENIED: this address is not on the list") as caught:
            push(image_of(), at(registry), retry=FAST)
    assert caught.value.status == 403
    assert caught.value.todo


def test_the_registrys_own_words_are_shown_without_control_characters_and_secrets():
    body = b'{"errors":[{"code":"DENIED","message":"no\\u001b[31m https://x.y/z?sig=s3cret Bearer abcdefghijkl"}]}'
    with FakeRegistry() as registry:
        registry.fail("POST", "uploads", times=9, status=403, body=body)
        with pytest.raises(RegistryError) as caught:
            push(image_of(), at(registry), retry=FAST)
    text = str(caught.value)
    assert "DENIED: no" in text
    assert "docker login" in text
    assert not {"\x1b", "s3cret", "abcdefghijkl"} & {
        part for part in ("\x1b", "s3cret", "abcdefghijkl") if part in text
    }


def test_a_repository_that_does_not_exist_is_named():
    with FakeRegistry() as registry:
        registry.fail("POST", "uploads", status=404, body=b'{"errors":[{"code":"NAME_UNKNOWN"}]}')
        with pytest.raises(RegistryError, match=r"team/app does not exist.*NAME_UNKNOWN"):
            push(image_of(), at(registry), retry=FAST)


def test_a_registry_that_allows_no_pushes_or_none_at_all_is_an_error_with_advice():
    body = b'{"errors":[{"code":"UNSUPPORTED"}]}'
    with FakeRegistry() as registry:
        registry.fail("POST", "uploads", times=9, status=405, body=body)
        with pytest.raises(RegistryError, match="refused with 405: UNSUPPORTED") as caught:
            push(image_of(), at(registry), retry=FAST)
        assert "read-only" in caught.value.todo
        registry.fail("GET", "manifests", times=9, status=405)
        with pytest.raises(RegistryError, match="refused with 405") as caught:
            pull(at(registry), machine="x86_64")
        assert "may be no registry" in caught.value.todo


def test_every_refusal_has_advice():
    with FakeRegistry() as registry:
        registry.fail("POST", "uploads", times=9, status=418)
        with pytest.raises(RegistryError, match="refused with 418") as caught:
            push(image_of(), at(registry), retry=FAST)
    assert caught.value.todo


def test_a_wrong_tag_is_refused_before_anything_is_sent():
    with FakeRegistry() as registry:
        with pytest.raises(UsageError, match="not a tag"):
            push(image_of(), at(registry), tags=["no/tag"], retry=FAST)
        with pytest.raises(UsageError, match="not what the reference says"):
            push(image_of(), Reference(registry.host, "app", None, Digest.of(b"other")), retry=FAST)
    assert registry.requests == []


def test_the_right_to_push_is_checked_without_leaving_anything():
    with FakeRegistry() as registry:
        check_push(at(registry), retry=FAST)
        assert registry.uploads == {}
        registry.fail("DELETE", status=405)
        check_push(at(registry), retry=FAST)
        registry.fail("POST", "uploads", status=403)
        with pytest.raises(RegistryError, match=r"push team/app \(403\)"):
            check_push(at(registry), retry=FAST)
    assert not registry.repositories["team/app"].blobs


def test_mount_shares_a_blob_of_the_same_registry():
    with FakeRegistry() as fake, Registry(fake.host, retry=FAST) as registry:
        digest = Digest.parse(fake.put("base", b"blob"))
        assert registry.mount("app", digest, source="base")
        assert registry.has_blob("app", digest)
        assert not registry.mount("app", Digest.of(b"unknown"), source="base")
        fake.fail("POST", "mount", status=401)
        fake.fail("POST", "mount", status=401)
        assert not registry.mount("other", digest, source="base")


def test_layers_that_this_machine_pushed_to_another_repository_are_mounted(tmp_path):
    image = image_of([b"one" * 999, b"two" * 999])
    digest = image.layers[0].descriptor.digest
    with FakeRegistry() as fake:

        def arrivals(name: str) -> list[str]:
            pushed = push(image, Reference(fake.host, name), retry=FAST, cache=tmp_path)
            return [pushed.blobs[it.descriptor.digest] for it in image.layers]

        assert arrivals("team/one") == ["sent", "sent"]
        assert arrivals("team/two") == ["mounted", "mounted"]
        del fake.repositories["team/two"].blobs[str(digest)]  # where they were pushed to last
        assert arrivals("team/three") == ["sent", "mounted"]
        assert arrivals("team/four") == ["mounted", "mounted"]
    [entry] = (tmp_path / "pushed").iterdir()
    entry.write_bytes(entry.read_bytes()[:-9])
    with FakeRegistry() as fake:
        assert arrivals("team/one") == ["sent", "sent"]


def test_retry_after_is_honoured_and_bounded():
    retry = Retry(first=1, longest=20)
    assert retry.pause(1, 7) == 7
    assert retry.pause(1, 86400) == 20
    assert 0.75 <= retry.pause(1) <= 1.25
    assert 2.25 <= retry.pause(2) <= 3.75
    assert retry.pause(9) <= 25
