"""The stamp: written once, merged, never lost, never on the wrong model; in a folder and in a bucket alike."""

import gzip
import json
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import ManifestError, StampConflict, StampError, UsageError
from envbuild.oci.digest import Digest
from envbuild.retry import Retry
from envbuild.stamp.gcs import connected, read_object
from envbuild.stamp.history import read_stamp
from envbuild.stamp.objects import open_model as found_model
from envbuild.stamp.record import StampEntry, pointer, read_record, record_bytes, record_name, stamped
from envbuild.stamp.stamping import StampWriter, check_stampable, stamp
from envbuild.stamp.store import choose_anchor
from tests.fakes.gcs import FakeGcs

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def entry(role="train", variant="cpu", platform="linux/amd64", content=b"image", **other) -> StampEntry:
    digest = Digest.of(content)
    known: dict[str, Any] = {"reference": f"127.0.0.1:5000/a@{digest}", "environment": Digest.of(b"env")}
    return StampEntry(role=role, variant=variant, platform=platform, digest=digest, **known | other)


def write(model: str, item: StampEntry | None = None):
    return stamp(model, item or entry(), manifest=b"{}", lock=b"lock", now=NOW)


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
        path = self.folder / "envbuild/pointer.json"
        return json.loads(path.read_bytes())["objects"]["saved_model.pb"]["metadata"] if path.exists() else {}


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
    # Else the client asks for the bucket by the way, in a thread that nobody waits for.
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
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
    assert found.images == (stamped(entry(), b"{}", b"lock"),)
    assert result.record == f"envbuild/record-{Digest.of(record_bytes(found)).hex}.json"
    assert f"envbuild/manifest-{Digest.of(b'{}').hex}.json" in model.names()
    assert f"envbuild/pylock.{Digest.of(b'lock').hex}.toml" in model.names()


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
    assert {image.slot[:2] for image in found.images} == {("train", "cpu"), ("serve", "cpu"), ("train", "gpu")}
    assert found.previous == second.record
    assert {first.record, second.record, third.record} <= set(model.names())


def test_a_new_image_takes_its_slot_and_the_old_record_stays(model):
    first = write(model.uri)
    write(model.uri, entry(content=b"new"))
    found = read_stamp(model.uri)
    assert found is not None
    assert [image.digest for image in found.images] == [Digest.of(b"new")]
    assert found.previous == first.record


ELSEWHERE = f"127.0.0.1:5000/b@{entry().digest}"


@pytest.mark.parametrize(
    ("again", "tag", "has_zstd"),
    [
        ({}, "v1", True),  # pushed without a tag
        ({"reference": None}, "v1", True),  # written into a layout
        ({"tag": "v1"}, "v1", False),  # the tag names the image of gzip alone by now
        ({"tag": "v2"}, "v2", False),
        ({"reference": ELSEWHERE}, None, False),
    ],
)
def test_the_same_image_in_zstd_is_named_as_long_as_it_is_beside_the_image(model, again, tag, has_zstd):
    zstd = Digest.of(b"zstd")
    write(model.uri, entry(tag="v1", zstd=zstd))
    write(model.uri, entry(**again))
    found = read_stamp(model.uri)
    assert found is not None
    assert [(it.tag, it.zstd) for it in found.images] == [(tag, zstd if has_zstd else None)]


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
    assert {(image.slot, image.digest) for image in found.images} == {(one.slot, one.digest) for one in entries}
    assert all(result.changed for result in results)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "gs://",
        "gs://bucket",
        "gs://bucket/",
        "gs://Bucket/x",
        "s3://bucket/model",
        "gs:///x",
        "file://host/x",
        "a\0b",
    ],
)
def test_what_is_no_address_of_a_model_is_refused(uri):
    with pytest.raises(UsageError):
        check_stampable(uri)


@pytest.mark.parametrize("how", ["file", "link", "pipe"])
def test_what_lies_in_the_stamps_place_is_found_early(tmp_path, how):
    model = InFolder(tmp_path)
    place = model.folder / "envbuild"
    if how == "file":
        place.touch()
    elif how == "link":
        place.symlink_to("nothing")
    else:
        place.mkdir()
        os.mkfifo(place / ".lock")
    with pytest.raises(StampError) as caught:
        check_stampable(model.uri)
    assert str(place) in caught.value.where
    assert caught.value.todo


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
    with pytest.raises(StampError, match="8192 bytes"):
        write(model.uri)
    assert model.metadata() == {"big": "x" * 8000}


def test_a_server_that_is_gone_is_told_in_time(gcs, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "1")
    with pytest.raises(StampError, match="could not be reached"):
        check_stampable("gs://models/runs/1")


def test_a_single_object_is_its_own_anchor(gcs):
    InBucket(gcs)
    gcs.put("models", "runs/model.keras", b"keras")
    write("gs://models/runs/model.keras")
    assert "envbuild-record" in (gcs.metadata("models", "runs/model.keras") or {})


def read_model_object(name: str, limit: int) -> bytes | None:
    with connected(ManifestError) as client:
        return read_object(client, "models", name, limit=limit, error=ManifestError)


def test_objects_are_read_up_to_their_limit(gcs):
    InBucket(gcs)
    gcs.put("models", "manifest.json", b"12345")
    assert read_model_object("manifest.json", 5) == b"12345"
    with pytest.raises(ManifestError, match="more than"):
        read_model_object("manifest.json", 4)
    assert read_model_object("absent.json", 4) is None


@pytest.mark.parametrize(
    ("names", "anchor"),
    [
        (["a.txt", "saved_model.pb", "x.keras"], "saved_model.pb"),
        (["notes.txt", "x.keras"], "x.keras"),
        (["b.onnx", "a.pt"], "a.pt"),
        (["b.onnx", "README"], "b.onnx"),
        (["2/a", "1/saved_model.pb", "1/fingerprint.pb", "envbuild/pointer.json"], "1/saved_model.pb"),
        (["z.bin", "envbuild/record-1.json"], "z.bin"),
        ([], None),
    ],
)
def test_the_anchor_is_what_a_model_is_known_by(names, anchor):
    assert choose_anchor(names) == anchor


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"not json", b'{"schema_version": "2.0"}'])
def test_a_damaged_or_newer_record_is_an_error(data):
    with pytest.raises(StampError):
        read_record(record_name(data), data)


def test_a_record_reads_back_what_it_writes(tmp_path):
    model = InFolder(tmp_path)
    write(model.uri)
    found = read_stamp(model.uri)
    assert found is not None
    data = record_bytes(found)
    assert read_record(record_name(data), data) == found
    assert pointer(found, "x")["envbuild-record"] == "x"


class Between:
    """A store in which something happens right before the pointer is set."""

    def __init__(self, store, call, times=1) -> None:
        self.store, self.call, self.times = store, call, times

    def __getattr__(self, name):
        return getattr(self.store, name)

    def patch(self, name, values, state):
        if self.times:
            self.times -= 1
            self.call()
        self.store.patch(name, values, state)


def writer(model, item, **options):
    image = stamped(item, b"{}", b"lock")
    at_once = Retry(tries=16, first=0)
    return StampWriter(model=model, image=image, manifest=b"{}", lock=b"lock", now=NOW, retry=at_once, **options)


def write_between(model, call, item=None, times=1):
    with found_model(model.uri) as it:
        interrupted = replace(it, store=Between(it.store, call, times))
        return writer(interrupted, item or entry()).write()


def test_a_rival_in_the_same_place_wins_and_is_shown(model):
    with pytest.raises(StampConflict) as caught:
        write_between(model, lambda: write(model.uri, entry(content=b"theirs")))
    assert entry(content=b"theirs").image in str(caught.value)
    assert entry().image in str(caught.value)
    assert model.metadata()["envbuild-image-train-cpu"] == entry(content=b"theirs").reference


def test_a_neighbour_in_another_place_is_merged(model):
    assert write_between(model, lambda: write(model.uri, entry(role="serve"))).changed
    assert {"envbuild-image-train-cpu", "envbuild-image-serve-cpu"} <= model.metadata().keys()


def test_the_same_stamp_by_somebody_else_meanwhile_is_no_conflict(model):
    result = write_between(model, lambda: write(model.uri))
    assert result.record == model.metadata()["envbuild-record"]


def test_a_model_replaced_or_removed_meanwhile_is_refused(model):
    with pytest.raises(StampConflict, match="replaced"):
        write_between(model, lambda: model.replace(b"other graph"))
    assert "envbuild-record" not in (model.metadata() if isinstance(model, InBucket) else {})


def test_without_end_of_changes_the_stamp_gives_up(model):
    others = iter(range(100))
    with pytest.raises(StampError, match="16 times"):
        write_between(model, lambda: write(model.uri, entry(role="serve", content=b"%d" % next(others))), times=99)


def test_platforms_have_a_key_each(model):
    write(model.uri)
    write(model.uri, entry(platform="linux/arm64", content=b"arm"))
    metadata = model.metadata()
    assert metadata["envbuild-image-train-cpu"] == entry().reference
    assert metadata["envbuild-image-train-cpu-linux-arm64"] == entry(content=b"arm").reference


def test_an_unpushed_image_is_named_by_its_digest_and_later_by_its_reference(model):
    layout = replace(entry(), reference=None)
    write(model.uri, layout)
    assert model.metadata()["envbuild-image-train-cpu"] == str(layout.digest)
    assert write(model.uri).changed
    assert not write(model.uri, layout).changed
    assert model.metadata()["envbuild-image-train-cpu"] == entry().reference


def test_a_version_folder_below_the_model_is_found(gcs, tmp_path):
    gcs.put("models", "deep/1/saved_model.pb", b"graph")
    write("gs://models/deep")
    assert "envbuild-record" in gcs.metadata("models", "deep/1/saved_model.pb")
    (tmp_path / "deep/1").mkdir(parents=True)
    (tmp_path / "deep/1/saved_model.pb").write_bytes(b"graph")
    assert write(str(tmp_path / "deep")).changed
    assert (tmp_path / "deep/envbuild/pointer.json").exists()


def test_two_models_in_one_folder_do_not_meet(tmp_path):
    for name in ("a.keras", "b.keras"):
        (tmp_path / name).write_bytes(name.encode())
        write(str(tmp_path / name), entry(content=name.encode()))
    for name in ("a.keras", "b.keras"):
        found = read_stamp((tmp_path / name).as_uri())
        assert found is not None
        assert [image.digest for image in found.images] == [Digest.of(name.encode())]


@pytest.mark.parametrize("permission", ["storage.objects.get", "storage.objects.create", "storage.objects.update"])
def test_a_missing_permission_is_found_early_and_nothing_is_written(gcs, permission):
    model = InBucket(gcs)
    gcs.deny(permission, "models")
    with pytest.raises(StampError, match=permission):
        check_stampable(model.uri)
    gcs.bucket("models").denied.clear()
    before = gcs.bucket("models").objects["runs/1/saved_model.pb"]
    check_stampable(model.uri)
    assert model.names() == ["saved_model.pb"]
    assert gcs.bucket("models").objects["runs/1/saved_model.pb"] == before


def test_a_listing_that_is_not_allowed_and_a_bucket_that_is_not_there(gcs):
    gcs.bucket("models")
    with pytest.raises(StampError, match="bucket absent "):
        check_stampable("gs://absent/model")
    gcs.deny("storage.objects.list", "models")
    with pytest.raises(StampError, match=r"storage\.objects\.(get|list)"):
        check_stampable("gs://models/absent")


def test_a_server_that_keeps_refusing_is_quoted(gcs, monkeypatch):
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "0.3")
    model = InBucket(gcs)
    gcs.fail("patch", status=503, times=99)
    with pytest.raises(StampError, match="kept answering 503"):
        write(model.uri)


def test_without_credentials_the_login_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(StampError, match="no Google credentials") as caught:
        check_stampable("gs://models/runs/1")
    assert "gcloud auth application-default login" in caught.value.todo


def test_a_gzipped_object_is_not_read_beyond_its_limit(gcs):
    gcs.bucket("models").put("z", gzip.compress(b"z" * 100_000), contentEncoding="gzip")
    with pytest.raises(ManifestError, match="more than"):
        read_model_object("z", 99_999)
    assert len(read_model_object("z", 100_000) or b"") == 100_000


def test_a_pointer_to_what_is_no_record_is_refused(gcs):
    model = InBucket(gcs)
    gcs.put("models", "runs/1/saved_model.pb", b"graph", metadata={"envbuild-record": "../../secret"})
    with pytest.raises(StampError, match="no record that envbuild wrote"):
        write(model.uri)


def test_a_record_that_is_gone_or_altered_is_refused(model):
    name = write(model.uri).record
    alter(model, name, b"{}")
    with pytest.raises(StampError, match="not what its name says"):
        read_stamp(model.uri)
    alter(model, name, None)
    with pytest.raises(StampError, match="missing"):
        write(model.uri)


def alter(model, name, data) -> None:
    if isinstance(model, InFolder):
        path = model.folder / name
        path.write_bytes(data) if data is not None else path.unlink()
    elif data is not None:
        model.gcs.put("models", f"runs/1/{name}", data)
    else:
        model.gcs.bucket("models").remove(f"runs/1/{name}")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"objects": 7}', b'{"objects": {"saved_model.pb": {"generation": 1}}}'])
def test_a_damaged_pointer_file_is_an_error(tmp_path, data):
    model = InFolder(tmp_path)
    write(model.uri)
    (model.folder / "envbuild/pointer.json").write_bytes(data)
    with pytest.raises(StampError) as caught:
        read_stamp(model.uri)
    assert caught.value.where == str(model.folder / "envbuild/pointer.json")


def test_what_the_file_system_refuses_is_told(tmp_path):
    model = InFolder(tmp_path)
    (model.folder / "envbuild").write_bytes(b"")
    with pytest.raises(StampError, match="file system refused"):
        write(model.uri)


def test_stampers_in_other_processes_lose_nothing(tmp_path):
    model = InFolder(tmp_path)
    entries = [entry(role, variant) for role in ("train", "serve") for variant in ("cpu", "gpu")]
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert all(result.changed for result in pool.map(write, [model.uri] * 4, entries))
    found = read_stamp(model.uri)
    assert found is not None
    assert len(found.images) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"role": "Train"},
        {"variant": "a b"},
        {"platform": "linux"},
        {"reference": "h:5/a:tag"},
        {"digest": Digest.of(b"2")},
    ],
)
def test_an_entry_whose_parts_do_not_fit_is_refused(change):
    with pytest.raises(ValueError):
        replace(entry(), **change)
