"""The stamp: written once, merged, never lost, never on the wrong model; in a folder and in a bucket alike."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from envbuild.errors import ManifestError, StampConflict, StampError, UsageError
from envbuild.oci.digest import Digest
from envbuild.stamp import StampEntry, check_stampable, read_stamp, read_uri, stamp
from envbuild.stamp.record import Stamp, pointer
from envbuild.stamp.store import choose_anchor
from tests.fakes.gcs import FakeGcs

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def entry(role="train", variant="cpu", platform="linux/amd64", content=b"image") -> StampEntry:
    digest = Digest.of(content)
    return StampEntry(
        role=role,
        variant=variant,
        platform=platform,
        digest=digest,
        reference=f"127.0.0.1:5000/a@{digest}",
        environment=Digest.of(b"env"),
    )


def write(model: str, item: StampEntry | None = None, **changes):
    return stamp(model, item or entry(), manifest=b"{}", lock=b"lock", now=NOW, **changes)


class InFolder:
    """A model in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "model"
        self.uri = str(self.folder)
        self.replace(b"graph")

    def replace(self, data: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "saved_model.pb").write_bytes(data)

    def names(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != ".lock"
        )

    def metadata(self) -> dict[str, str]:
        path = self.folder / "envbuild/saved_model.pb.metadata.json"
        return json.loads(path.read_bytes())["metadata"] if path.exists() else {}


class InBucket:
    """A model in a bucket."""

    uri = "gs://models/runs/1"

    def __init__(self, gcs: FakeGcs) -> None:
        self.gcs = gcs
        gcs.create_bucket("models")
        self.replace(b"graph")

    def replace(self, data: bytes) -> None:
        self.gcs.put("models", "runs/1/saved_model.pb", data)

    def names(self) -> list[str]:
        return sorted(name.removeprefix("runs/1/") for name in self.gcs.names("models"))

    def metadata(self) -> dict[str, str]:
        return self.gcs.metadata("models", "runs/1/saved_model.pb") or {}


@pytest.fixture
def gcs(monkeypatch):
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "5")
    with FakeGcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture(params=["folder", "bucket"])
def model(request, tmp_path):
    return InFolder(tmp_path) if request.param == "folder" else InBucket(request.getfixturevalue("gcs"))


def test_record_and_pointer_name_the_image_by_digest(model):
    result = write(model.uri)
    assert result.changed
    metadata = model.metadata()
    assert metadata["envbuild-image-train-cpu"] == entry().reference
    assert metadata["envbuild-record"] == result.record
    assert sum(len(key) + len(value) for key, value in metadata.items()) < 1024
    found = read_stamp(model.uri)
    assert found is not None
    assert [image.entry for image in found.images] == [entry()]
    assert result.record == f"envbuild/record-{Digest.of(found.to_bytes()).hex}.json"
    assert f"envbuild/manifest-{Digest.of(b'{}').hex}.json" in model.names()
    assert f"envbuild/lock-{Digest.of(b'lock').hex}.toml" in model.names()


def test_the_same_stamp_again_changes_nothing(model):
    first = write(model.uri)
    names, metadata = model.names(), model.metadata()
    again = write(model.uri)
    assert (again.changed, again.record) == (False, first.record)
    assert (model.names(), model.metadata()) == (names, metadata)


def test_roles_and_variants_are_merged_and_history_is_kept(model):
    first = write(model.uri)
    second = write(model.uri, entry(role="serve"))
    third = write(model.uri, entry(variant="gpu", content=b"gpu"))
    found = read_stamp(model.uri)
    assert found is not None
    assert {image.entry.slot[:2] for image in found.images} == {("train", "cpu"), ("serve", "cpu"), ("train", "gpu")}
    assert found.previous == second.record
    assert {first.record, second.record, third.record} <= set(model.names())


def test_a_new_image_takes_its_slot_and_the_old_record_stays(model):
    first = write(model.uri)
    write(model.uri, entry(content=b"new"))
    found = read_stamp(model.uri)
    assert found is not None
    assert [image.entry.digest for image in found.images] == [Digest.of(b"new")]
    assert found.previous == first.record


def test_a_model_that_was_replaced_bears_no_stamp(model):
    write(model.uri)
    model.replace(b"another graph")
    assert read_stamp(model.uri) is None


def test_eight_stampers_at_once_lose_nothing(model):
    entries = [
        entry(role=role, variant=variant, platform=f"linux/{arch}")
        for role in ("train", "serve")
        for variant in ("cpu", "gpu")
        for arch in ("amd64", "arm64")
    ]
    barrier = threading.Barrier(len(entries))

    def run(item):
        barrier.wait()
        return write(model.uri, item)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, entries))
    found = read_stamp(model.uri)
    assert found is not None
    assert {image.entry for image in found.images} == set(entries)
    assert all(result.changed for result in results)


@pytest.mark.parametrize("uri", ["gs://", "gs://bucket", "s3://bucket/model", "gs:///x"])
def test_what_is_no_address_of_a_model_is_refused(uri):
    with pytest.raises(UsageError):
        check_stampable(uri)


def test_an_absent_model_is_refused_before_anything_is_written(model, tmp_path):
    uri = str(tmp_path / "absent") if isinstance(model, InFolder) else "gs://models/absent"
    with pytest.raises(StampError, match="no model"):
        check_stampable(uri)


def test_metadata_of_others_stays(gcs):
    model = InBucket(gcs)
    gcs.put("models", "runs/1/saved_model.pb", b"graph", metadata={"owner": "somebody"})
    write(model.uri)
    assert model.metadata()["owner"] == "somebody"


def test_a_lost_reply_is_no_conflict(gcs):
    model = InBucket(gcs)
    gcs.apply_then_drop("patch", times=1)
    assert write(model.uri).changed
    assert model.metadata()["envbuild-image-train-cpu"] == entry().reference


def test_errors_that_pass_are_tried_again(gcs):
    model = InBucket(gcs)
    gcs.fail("patch", status=503, times=2)
    gcs.fail("insert", status=503, times=1)
    assert write(model.uri).changed


def test_somebody_elses_image_for_the_same_role_is_a_conflict_that_shows_both(gcs):
    model = InBucket(gcs)
    gcs.before("patch", lambda: write(model.uri, entry(content=b"theirs")))
    with pytest.raises(StampConflict) as caught:
        write(model.uri)
    assert str(Digest.of(b"theirs")) in str(caught.value)
    assert str(Digest.of(b"image")) in str(caught.value)
    assert model.metadata()["envbuild-image-train-cpu"] == entry(content=b"theirs").reference


def test_somebody_elses_role_is_merged(gcs):
    model = InBucket(gcs)
    gcs.before("patch", lambda: write(model.uri, entry(role="serve")))
    assert write(model.uri).changed
    assert {"envbuild-image-train-cpu", "envbuild-image-serve-cpu"} <= model.metadata().keys()


def test_a_model_replaced_meanwhile_is_a_conflict(gcs):
    model = InBucket(gcs)
    gcs.before("patch", lambda: model.replace(b"other graph"))
    with pytest.raises(StampConflict, match="replaced"):
        write(model.uri)
    assert model.metadata() == {}


@pytest.mark.parametrize("permission", ["storage.objects.get", "storage.objects.create", "storage.objects.update"])
def test_a_missing_permission_is_named(gcs, permission):
    model = InBucket(gcs)
    gcs.deny(permission, "models")
    with pytest.raises(StampError, match=permission) as caught:
        write(model.uri)
    assert caught.value.exit_code == 15
    assert "gs://models" in caught.value.todo


def test_metadata_beyond_8_kib_is_refused_before_it_is_sent(gcs):
    model = InBucket(gcs)
    gcs.put("models", "runs/1/saved_model.pb", b"graph", metadata={"big": "x" * 8000})
    with pytest.raises(StampError, match="8 KiB"):
        write(model.uri)
    assert model.metadata() == {"big": "x" * 8000}


def test_a_server_that_is_gone_is_told_in_time(gcs, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "1")
    with pytest.raises(StampError, match="cannot be reached"):
        check_stampable("gs://models/runs/1")


def test_a_single_object_is_its_own_anchor(gcs):
    InBucket(gcs)
    gcs.put("models", "runs/model.keras", b"keras")
    write("gs://models/runs/model.keras")
    assert "envbuild-record" in (gcs.metadata("models", "runs/model.keras") or {})


def test_objects_are_read_up_to_their_limit(gcs):
    InBucket(gcs)
    gcs.put("models", "manifest.json", b"12345")
    assert read_uri("gs://models/manifest.json", limit=5, error=ManifestError) == b"12345"
    with pytest.raises(ManifestError, match="more than"):
        read_uri("gs://models/manifest.json", limit=4, error=ManifestError)
    with pytest.raises(ManifestError, match="no such object"):
        read_uri("gs://models/absent.json", limit=4, error=ManifestError)


@pytest.mark.parametrize(
    ("names", "anchor"),
    [
        (["a.txt", "saved_model.pb", "x.keras"], "saved_model.pb"),
        (["notes.txt", "x.keras"], "x.keras"),
        (["b.onnx", "a.pt"], "a.pt"),
        (["z.bin", "envbuild/record-1.json"], "z.bin"),
        ([], None),
    ],
)
def test_the_anchor_is_what_a_model_is_known_by(names, anchor):
    assert choose_anchor(names) == anchor


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"not json", b'{"schema_version": "2.0"}'])
def test_a_damaged_or_newer_record_is_an_error(data):
    with pytest.raises(StampError):
        Stamp.from_bytes(data, "here")


def test_a_record_reads_back_what_it_writes(tmp_path):
    model = InFolder(tmp_path)
    write(model.uri)
    found = read_stamp(model.uri)
    assert found is not None
    assert Stamp.from_bytes(found.to_bytes(), "here") == found
    assert pointer(found, "x")["envbuild-record"] == "x"
