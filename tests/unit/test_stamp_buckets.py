"""The stamp in buckets with settings of their own, and what is told when nobody can know."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from envbuild.errors import StampConflict, StampError, UsageError
from envbuild.stamp.history import read_history, read_stamp
from envbuild.stamp.objects import open_model as found_model
from envbuild.stamp.record import stamped
from envbuild.stamp.stamping import StampWriter, check_stampable, stamp
from tests.unit.test_stamp import (  # noqa: F401 - fixtures
    NOW,
    InBucket,
    InFolder,
    entry,
    gcs,
    model,
    read_model_object,
    write,
)

ANCHOR = "runs/1/saved_model.pb"


SETTINGS = {
    "temporary hold": lambda bucket: bucket.put(ANCHOR, b"graph", {"owner": "somebody"}, temporaryHold=True),
    "event-based hold": lambda bucket: bucket.put(ANCHOR, b"graph", {"owner": "somebody"}, eventBasedHold=True),
    "hold on all that is new": lambda bucket: setattr(bucket, "default_hold", True),
    "retention": lambda bucket: setattr(bucket, "retention", 3600.0),
    "versioning": lambda bucket: setattr(bucket, "versioning", True),
    "uniform access": lambda bucket: setattr(bucket, "uniform_access", True),
    "soft delete": lambda bucket: setattr(bucket, "soft_delete", True),
    "no right to delete": lambda bucket: bucket.denied.add("storage.objects.delete"),
    "slow": lambda bucket: setattr(bucket, "update_interval", 0.05),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_model_is_stamped_whatever_keeps_its_content(gcs, setting):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    bucket = gcs.bucket("models")
    SETTINGS[setting](bucket)
    check_stampable(model.uri)
    assert model.names() == ["saved_model.pb"]
    first = write(model.uri)
    assert not write(model.uri).changed
    gcs.apply_then_drop("insert")
    gcs.apply_then_drop("patch")
    second = write(model.uri, entry(role="serve"))
    assert [it.name for it in read_history(model.uri).records] == [second.record, first.record]
    assert bucket.objects[ANCHOR].data == b"graph"
    assert bucket.archived == bucket.softly_deleted == []
    assert model.metadata().get("owner") == ("somebody" if setting in {"temporary hold", "event-based hold"} else None)


def test_the_newest_version_of_a_model_is_the_one_that_is_stamped(gcs):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    gcs.bucket("models").versioning = True
    write(model.uri)
    model.replace(b"another graph")
    assert read_stamp(model.uri) is None
    write(model.uri, entry(content=b"new"))
    ((name, old),) = [one for one in gcs.bucket("models").archived if one[0] == ANCHOR]
    assert (name, old.properties["metadata"]["envbuild-image-train-cpu"]) == (ANCHOR, entry().reference)
    assert model.metadata()["envbuild-image-train-cpu"] == entry(content=b"new").reference


def test_who_uses_a_bucket_may_have_to_pay(gcs, monkeypatch):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    bucket = gcs.bucket("models")
    bucket.requester_pays, bucket.payers = True, {"mine"}
    for call in (lambda: write(model.uri), lambda: check_stampable(model.uri)):
        with pytest.raises(StampError, match="requires a project that pays") as caught:
            call()
        assert "GOOGLE_CLOUD_QUOTA_PROJECT" in caught.value.todo
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "theirs")
    with pytest.raises(StampError, match=r"serviceusage\.services\.use is missing on the project that pays") as caught:
        write(model.uri)
    assert "roles/serviceusage.serviceUsageConsumer" in caught.value.todo
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "mine")
    gcs.requests.clear()
    check_stampable(model.uri)
    write(model.uri)
    assert len(read_history(model.uri).records) == 1
    gcs.put("models", "manifest.json", b"{}")
    assert read_model_object("manifest.json", 9) == b"{}"
    assert {it.parameters.get("userProject") for it in gcs.requests} == {"mine"}


def test_what_else_forbids_is_quoted(gcs):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    said = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: 7"
    gcs.fail("patch", status=403, message=said)
    with pytest.raises(StampError, match="prohibited by organization's policy") as caught:
        write(model.uri)
    assert "storage.objects.update" in caught.value.todo


def test_a_bucket_that_may_only_be_read_is_refused_before_anything_is_written(gcs):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    for permission in ("storage.objects.create", "storage.objects.update", "storage.objects.delete"):
        gcs.deny(permission, "models")
    with pytest.raises(StampError, match=r"storage\.objects\.update"):
        check_stampable(model.uri)
    with pytest.raises(StampError, match=r"storage\.objects\.create"):
        write(model.uri)
    assert (model.names(), model.metadata()) == (["saved_model.pb"], {})


def test_a_model_that_was_replaced_during_the_build_is_refused(model):  # noqa: F811
    early = check_stampable(model.uri)

    def write_now(item):
        return stamp(model.uri, item, manifest=b"{}", lock=b"lock", now=NOW, stamp_before=early)

    assert write_now(entry()).changed
    assert write_now(entry(role="serve")).changed
    model.replace(b"another graph")
    with pytest.raises(StampConflict, match="replaced since the work on its stamp began"):
        write_now(entry())
    assert read_stamp(model.uri) is None


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon"])
def test_a_patience_that_is_no_number_of_seconds_is_refused(gcs, monkeypatch, text):  # noqa: F811
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", text)
    with pytest.raises(UsageError, match="not a number of seconds") as caught:
        check_stampable(InBucket(gcs).uri)
    assert caught.value.where == "ENVBUILD_GCS_TIMEOUT"


def test_a_pointer_without_an_answer_is_looked_for(gcs, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "0.3")
    model = InBucket(gcs)  # noqa: F811
    gcs.fail("patch", kind="lost", times=99)
    assert write(model.uri).changed
    assert model.metadata()["envbuild-image-train-cpu"] == entry().reference


def test_what_cannot_be_known_is_told_so(gcs, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "0.3")
    model = InBucket(gcs)  # noqa: F811
    gcs.fail("patch", kind="late", times=99)
    with pytest.raises(StampError, match="unknown whether the stamp was written") as caught:
        write(model.uri)
    assert "envbuild inspect" in caught.value.todo
    assert read_stamp(model.uri) is None
    gcs.apply_late()
    assert read_stamp(model.uri) is not None


def test_a_lost_answer_and_a_look_that_fails_leave_it_unknown(gcs, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "0.3")
    model = InBucket(gcs)  # noqa: F811
    gcs.apply_then_drop("patch")
    gcs.fail("get", "saved_model", status=503, times=99, after=2)  # the anchor is looked up by name, then read
    with pytest.raises(StampError, match="unknown whether"):
        write(model.uri)
    gcs.faults.clear()
    assert read_stamp(model.uri) is not None


def test_a_refusal_that_nothing_came_before_is_certain(gcs):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    gcs.fail("patch", status=403)
    with pytest.raises(StampError, match=r"^permission storage\.objects\.update is missing"):
        write(model.uri)


def test_whoever_puts_the_old_image_back_meanwhile_is_no_less_a_rival(gcs):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    write(model.uri)

    def there_and_back():
        write(model.uri, entry(content=b"theirs"))
        write(model.uri)

    gcs.before("patch", there_and_back)
    with pytest.raises(StampConflict, match="at the same time"):
        write(model.uri, entry(content=b"ours"))
    assert model.metadata()["envbuild-image-train-cpu"] == entry().reference


def test_of_eight_for_one_role_one_wins_and_the_others_are_shown_both(model):  # noqa: F811
    start = threading.Barrier(8)

    def run(number):
        with found_model(model.uri) as it:
            start.wait()
            item = entry(content=b"%d" % number)
            try:
                return StampWriter(
                    model=it, image=stamped(item, b"{}", b"lock"), manifest=b"{}", lock=b"lock", now=NOW
                ).write(), item
            except StampConflict as conflict:
                return conflict, item

    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(run, range(8)))
    conflicts = [(str(it), item) for it, item in ended if isinstance(it, StampConflict)]
    for told, item in conflicts:
        assert str(item.digest) in told
    assert len(read_history(model.uri).records) == 8 - len(conflicts)
    stamp_now = read_stamp(model.uri)
    assert stamp_now is not None
    assert stamp_now.images[0].digest in {item.digest for it, item in ended if not isinstance(it, StampConflict)}


def test_metadata_beyond_8_kib_is_refused_in_a_folder_too(tmp_path):
    model = InFolder(tmp_path)  # noqa: F811
    write(model.uri)
    path = model.folder / "envbuild/pointer.json"
    path.write_text(path.read_text().replace('"envbuild-schema":', f'"big":"{"x" * 8000}","envbuild-schema":'))
    with pytest.raises(StampError, match="8192 bytes"):
        write(model.uri, entry(role="serve"))
    assert model.metadata()["big"] == "x" * 8000
