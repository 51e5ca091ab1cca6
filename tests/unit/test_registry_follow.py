"""A layer that is sent while it is written; whatever becomes of that, the registry gets the same image."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.blobs import AbandonedError, GrowingBlob
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor, Image, Layer
from envbuild.oci.reference import Reference
from envbuild.registry.auth import Credentials
from envbuild.registry.push import PARALLEL, PushResult, Upload, publish, push
from envbuild.retry import Retry
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry
from tests.reporting import Recorder

FAST = Retry(first=0, longest=0.01)
UPLOAD = "/blobs/uploads/[0-9a-f]"
STEPS = 5
KEY = Digest.of(b"key")


@dataclass(frozen=True)
class Writer:
    """Writes the second layer of an image into a file, and lets it be followed."""

    image: Image
    path: Path
    upload: Upload

    @property
    def layer(self) -> Layer:
        return self.image.layers[1]

    @property
    def data(self) -> bytes:
        with self.layer.open() as file:
            return file.read()

    def write(self, blob: GrowingBlob, data: bytes, *, then: float = 0.03) -> None:
        with self.path.open("ab") as file:
            for number in range(STEPS):
                file.write(data[number * len(data) // STEPS : (number + 1) * len(data) // STEPS])
                file.flush()
                time.sleep(then)
        blob.finish(self.layer.descriptor, self.layer.diff_id)

    def written(self, data: bytes | None = None) -> None:
        with self.growing() as blob:
            self.write(blob, self.data if data is None else data)

    @contextmanager
    def growing(self) -> Iterator[GrowingBlob]:
        self.path.touch()
        with GrowingBlob(self.path, KEY, "the layer", 10) as blob:
            self.upload.follow(blob)
            yield blob

    def finish(self):
        self.upload.offer(self.layer)
        return finished(self.upload, self.image)


def finished(upload: Upload, image: Image) -> PushResult:
    """End the upload, and tag what was sent."""
    result = upload.finish(image)
    publish({result.reference: ["v1"]}, retry=FAST)
    return result


@pytest.fixture
def registry():
    with FakeRegistry() as found:
        yield found


@pytest.fixture
def image() -> Image:
    return image_of([b"one", bytes(range(256)) * 2000])


@pytest.fixture
def writer(registry, image, tmp_path):
    with Upload(at(registry), retry=FAST) as upload:
        yield Writer(image=image, path=tmp_path / "layer", upload=upload)


def at(registry: FakeRegistry) -> Reference:
    return Reference(registry.host, "team/app", "v1")


def stored(registry: FakeRegistry, image: Image) -> bool:
    found = registry.repositories["team/app"]
    return set(found.blobs) >= {str(it.descriptor.digest) for it in image.layers} and found.tags == {
        "v1": str(image.digest)
    }


def test_a_layer_is_sent_while_it_is_written(registry, image, writer):
    with writer.growing() as blob:
        writer.write(blob, writer.data)
        before = registry.seen("PATCH")
    result = writer.finish()
    assert before, "the request came while the layer was written"
    assert stored(registry, image)
    assert result.blobs[writer.layer.descriptor.digest] == "sent"
    assert result.uploaded == sum(it.descriptor.size for it in image.layers) + len(image.config)
    [sent] = registry.seen("PATCH")
    assert sent.headers["transfer-encoding"] == "chunked"
    assert "content-range" not in sent.headers
    assert not [it for it in registry.seen("PUT", UPLOAD) if it.headers["content-length"] == str(len(writer.data))]


def test_what_was_sent_counts_though_somebody_else_was_first(registry, image, writer):
    writer.written()
    writer.upload.offer(writer.layer)
    push(image, at(registry), retry=FAST)
    result = finished(writer.upload, image)
    assert result.blobs == {writer.layer.descriptor.digest: "sent"}
    assert result.uploaded == writer.layer.descriptor.size


def test_who_asked_is_told_of_what_has_landed(registry, image, tmp_path):
    landed: list[GrowingBlob] = []
    with Upload(at(registry), retry=FAST, on_sent=landed.append) as upload:
        writer = Writer(image=image, path=tmp_path / "layer", upload=upload)
        writer.written()
        writer.finish()
        registry.fail("PATCH", status=405)
        (tmp_path / "layer").unlink()
        writer.written()
    assert [(it.key, it.descriptor, it.diff_id) for it in landed] == [
        (KEY, writer.layer.descriptor, writer.layer.diff_id)
    ]


def test_what_is_there_is_told_while_it_goes(registry, image, tmp_path):
    recorder = Recorder()
    with Upload(at(registry), retry=FAST, report=recorder) as upload:
        writer = Writer(image=image, path=tmp_path / "layer", upload=upload)
        writer.written()
        writer.finish()
    ours = [(done, total) for name, done, total in recorder.bytes if name == "pushing the layer"]
    assert len(ours) > 1
    size = writer.layer.descriptor.size
    assert [done for done, _ in ours] == sorted(done for done, _ in ours)
    assert all(total and done < total for done, total in ours[:-1])
    assert ours[-1] == (size, size)


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("PATCH", {"status": 405}),
        ("PATCH", {"status": 503}),
        ("PATCH", {"status": 404}),
        ("PATCH", {"kind": "reset"}),
        ("PATCH", {"kind": "lost"}),
        ("POST", {"status": 500}),
        ("PUT", {"status": 500}),
        ("PUT", {"kind": "lost"}),
        ("PUT", {"kind": "reset"}),
    ],
)
def test_a_layer_whose_way_failed_is_sent_as_others_are(registry, image, writer, method, fault):
    registry.fail(method, UPLOAD if method != "POST" else "uploads/$", **fault)
    writer.written()
    writer.finish()
    assert stored(registry, image)


def test_a_registry_that_failed_once_is_not_tried_again(registry, image, writer):
    registry.fail("PATCH", status=405, times=9)
    writer.written()
    writer.finish()
    other = Writer(image=image_of([b"three", b"four" * 5000]), path=writer.path.with_name("more"), upload=writer.upload)
    other.written()
    other.finish()
    assert len(registry.seen("PATCH")) == 1
    assert stored(registry, other.image)


def test_one_that_waited_while_another_failed_is_sent_as_others_are(registry, tmp_path):
    image = image_of([bytes([number]) * 5000 for number in range(PARALLEL + 1)])
    registry.fail("PATCH", status=405, times=9)
    with Upload(at(registry), retry=FAST) as upload, ExitStack() as stack:
        blobs = []
        for number, layer in enumerate(image.layers):
            path = tmp_path / f"{number}"
            path.touch()
            blobs.append((layer, path, stack.enter_context(GrowingBlob(path, KEY, "the layer", 10))))
            upload.follow(blobs[-1][-1])
        for layer, path, blob in blobs:
            with layer.open() as file:
                path.write_bytes(file.read())
            blob.finish(layer.descriptor, layer.diff_id)
        finished(upload, image)
    assert stored(registry, image)


def test_other_bytes_than_the_layers_are_never_stored_as_it(registry, image, writer):
    writer.written(writer.data[:-1] + b"x")
    writer.finish()
    assert stored(registry, image)
    assert all(registry.repositories["team/app"].blobs[str(it.descriptor.digest)] for it in image.layers)


@pytest.mark.parametrize("data", [b"", b"short"], ids=["nothing", "short"])
def test_a_file_of_another_length_is_not_ended_with_the_layers_digest(registry, image, writer, data):
    writer.written(data)
    writer.finish()
    assert stored(registry, image)
    assert len(registry.seen("PUT", UPLOAD)) == len(image.layers) + 1, "none for the one that was abandoned"


def test_one_that_is_abandoned_is_sent_as_others_are(registry, image, writer):
    with writer.growing() as blob:
        blob.abandon()
        writer.write(blob, writer.data)
    assert blob.descriptor is None
    writer.finish()
    assert stored(registry, image)


def test_of_one_that_is_abandoned_no_more_is_sent(registry, image, writer):
    with writer.growing() as blob:
        file = FileIO(writer.path)
        pieces = blob.pieces(file, lambda: None)
        writer.path.write_bytes(bytes(9 << 20))
        next(pieces)
        blob.abandon()
        with pytest.raises(AbandonedError):
            next(pieces)
        file.close()
    writer.finish()
    assert stored(registry, image)


def test_a_login_that_ended_meanwhile_is_renewed(image, tmp_path):
    with FakeRegistry(login="bearer", anonymous_pull=True) as registry:
        login = Credentials(username="user", password="letmein")
        with Upload(at(registry), retry=FAST, credentials=login) as upload:
            writer = Writer(image=image, path=tmp_path / "layer", upload=upload)
            with writer.growing() as blob:
                while not registry.tokens:
                    time.sleep(0.01)
                registry.tokens.clear()
                writer.write(blob, writer.data)
            writer.upload.offer(writer.layer)
            result = writer.upload.finish(image)
        publish({result.reference: ["v1"]}, credentials=login, retry=FAST)
        assert stored(registry, image)


def test_an_error_elsewhere_ends_who_waits_for_the_rest(registry, image, tmp_path):
    started = time.monotonic()
    blob = GrowingBlob(tmp_path / "layer", KEY, "the layer", 10)
    blob.path.touch()

    def fail() -> None:
        with Upload(at(registry), retry=FAST) as upload:
            upload.follow(blob)
            while not registry.seen("PATCH"):
                time.sleep(0.01)
            raise RegistryError("elsewhere")

    with pytest.raises(RegistryError, match="elsewhere"):
        fail()
    assert time.monotonic() - started < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("push", "follow"))]


def test_the_file_may_be_renamed_and_gone_meanwhile(registry, image, writer):
    with writer.growing() as blob:
        moved = writer.path.with_name("moved")
        writer.path.rename(moved)
        moved.write_bytes(writer.data)
        moved.unlink()
        blob.finish(writer.layer.descriptor, writer.layer.diff_id)
    writer.finish()
    assert stored(registry, image)
    assert len(registry.seen("PATCH")) == 1


def test_a_file_that_cannot_be_opened_is_no_matter(registry, image, writer):
    with GrowingBlob(writer.path, KEY, "the layer", 10) as blob:
        writer.upload.follow(blob)  # nothing is there
        writer.write(blob, writer.data)
    writer.finish()
    assert stored(registry, image)
    assert not registry.seen("PATCH")


def test_one_that_nobody_finishes_is_abandoned(tmp_path):
    path = tmp_path / "layer"
    path.write_bytes(b"some")
    with pytest.raises(ZeroDivisionError), GrowingBlob(path, KEY, "it", 10) as blob:
        raise ZeroDivisionError
    with path.open("rb", buffering=0) as file, pytest.raises(AbandonedError):
        list(blob.pieces(file, lambda: None))
    blob.finish(Descriptor("any", image_of().digest, 4), KEY)
    assert blob.descriptor is None
