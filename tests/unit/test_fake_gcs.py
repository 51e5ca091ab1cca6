"""The fake of Cloud Storage does what Google's storage-testbench did with the same client, row by row."""

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core.exceptions import (
    BadRequest,
    Forbidden,
    NotFound,
    NotModified,
    PreconditionFailed,
    ServiceUnavailable,
    TooManyRequests,
)
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.exceptions import ConnectionError as RequestsConnectionError

from tests.fakes.gcs import FakeGcs

QUICK = DEFAULT_RETRY.with_timeout(5).with_delay(initial=0.01, maximum=0.05)


@pytest.fixture
def gcs():
    with FakeGcs() as server:
        server.bucket("b")
        yield server


@pytest.fixture
def bucket(gcs, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    # Else the client asks for the bucket by the way, in a thread that nobody waits for.
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    with Client(project=None) as client:
        yield client.bucket("b")


def upload(bucket, name="a/x.json", data=b"data", **how):
    blob = bucket.blob(name)
    blob.upload_from_string(data, retry=QUICK, **how)
    return blob


def test_what_is_uploaded_is_listed_and_downloaded(bucket):
    upload(bucket, content_type="application/json")
    blob = bucket.get_blob("a/x.json")
    assert (blob.size, blob.content_type, blob.metageneration) == (4, "application/json", 1)
    assert blob.download_as_bytes() == b"data"
    assert bucket.blob("a/x.json").download_as_bytes(start=1, end=2) == b"at"


def test_large_objects_are_uploaded_in_pieces(gcs, bucket):
    data = bytes(range(256)) * 4096
    blob = bucket.blob("big", chunk_size=256 * 1024)
    blob.metadata = {"k": "v"}
    blob.upload_from_string(data, if_generation_match=0, retry=QUICK)
    assert len(gcs.seen("resume")) == 0
    blob = bucket.blob("bigger", chunk_size=256 * 1024)
    with blob.open("wb", if_generation_match=0) as file:
        file.write(data)
    assert len(gcs.seen("resume")) >= 4
    assert gcs.data("b", "big") == gcs.data("b", "bigger") == data
    assert gcs.metadata("b", "big") == {"k": "v"}


def test_a_missing_object_or_bucket_is_404(bucket):
    assert bucket.get_blob("absent") is None
    with pytest.raises(NotFound, match="No such object"):
        bucket.blob("absent").reload()
    with pytest.raises(NotFound, match="bucket does not exist"):
        list(bucket.client.list_blobs("absent"))


def test_listing_has_prefixes_delimiters_and_pages(bucket):
    for name in ["m/a", "m/b/c", "m/b/d", "m/e", "n"]:
        upload(bucket, name)
    found = bucket.client.list_blobs("b", prefix="m/", delimiter="/", page_size=2)
    assert [blob.name for blob in found] == ["m/a", "m/e"]
    assert found.prefixes == {"m/b/"}
    assert [blob.name for blob in bucket.client.list_blobs("b", page_size=2)] == ["m/a", "m/b/c", "m/b/d", "m/e", "n"]


def test_content_makes_generations_and_metadata_makes_metagenerations(bucket):
    first = upload(bucket)
    first.metadata = {"k": "v"}
    first.patch()
    assert first.metageneration == 2
    second = upload(bucket)
    assert second.generation > first.generation
    second.reload()
    assert (second.metageneration, second.metadata) == (1, None)


@pytest.mark.parametrize("condition", ["if_generation_match", "if_metageneration_match"])
def test_a_patch_under_a_wrong_condition_is_412(bucket, condition):
    blob = upload(bucket)
    blob.metadata = {"k": "v"}
    with pytest.raises(PreconditionFailed):
        blob.patch(**{condition: 5})
    blob.reload()
    assert (blob.metadata, blob.metageneration) == (None, 1)


def test_reading_and_deleting_obey_conditions(bucket):
    blob = upload(bucket)
    with pytest.raises(NotModified):
        blob.reload(if_generation_not_match=blob.generation)
    with pytest.raises(PreconditionFailed):
        blob.download_as_bytes(if_generation_match=5)
    with pytest.raises(PreconditionFailed):
        blob.delete(if_generation_match=5)
    blob.delete(if_generation_match=blob.generation)
    assert bucket.get_blob(blob.name) is None


def test_create_only_leaves_what_is_there(bucket):
    upload(bucket, if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        upload(bucket, data=b"other", if_generation_match=0)
    assert bucket.blob("a/x.json").download_as_bytes() == b"data"


def test_of_two_writers_with_the_same_view_one_wins(bucket):
    blob, start = upload(bucket), threading.Barrier(2)

    def write(value):
        mine = bucket.blob(blob.name)
        mine.metadata = {"winner": value}
        start.wait()
        try:
            mine.patch(if_metageneration_match=1)
        except PreconditionFailed:
            return "lost"
        return value

    with ThreadPoolExecutor(2) as pool:
        results = sorted(pool.map(write, ["a", "b"]))
    blob.reload()
    assert results.count("lost") == 1
    assert blob.metadata["winner"] in results


def test_patch_merges_metadata_and_null_deletes(bucket):
    blob = upload(bucket)
    blob.metadata = {"keep": "1", "drop": "2"}
    blob.patch()
    other = bucket.blob(blob.name)
    other.metadata = {"drop": None, "new": "3"}
    other.patch()
    blob.reload()
    assert blob.metadata == {"keep": "1", "new": "3"}
    blob.metadata = None
    blob.patch()
    assert bucket.get_blob(blob.name).metadata is None


def test_update_replaces_metadata(bucket):
    blob = upload(bucket)
    blob.metadata = {"a": "1"}
    blob.patch()
    other = bucket.blob(blob.name)
    other.metadata = {"b": "2"}
    other.update()
    assert bucket.get_blob(blob.name).metadata == {"b": "2"}


def test_a_generation_that_is_gone_is_404(bucket):
    old = upload(bucket)
    upload(bucket, data=b"new")
    with pytest.raises(NotFound):
        bucket.blob(old.name, generation=old.generation).download_as_bytes()


def test_versions_are_kept_where_that_is_on(gcs, bucket):
    gcs.bucket("b").versioning = True
    old = upload(bucket)
    upload(bucket, data=b"new")
    assert len(list(bucket.client.list_blobs("b", versions=True))) == 2
    assert bucket.blob(old.name, generation=old.generation).download_as_bytes() == b"data"


def test_holds_are_stored_and_copies_carry_metadata(bucket):
    blob = upload(bucket)
    blob.temporary_hold = True
    blob.metadata = {"k": "v"}
    blob.patch()
    assert bucket.get_blob(blob.name).temporary_hold
    copy = bucket.copy_blob(blob, bucket, "copy")
    assert (copy.metadata, copy.temporary_hold) == ({"k": "v"}, None)


def test_more_than_8_kib_of_metadata_is_400(bucket):
    blob = upload(bucket)
    blob.metadata = {"k": "x" * (8 * 1024 - 1)}
    blob.patch()
    blob.metadata = {"k": "x" * (8 * 1024)}
    with pytest.raises(BadRequest):
        blob.patch()


DENIED = {
    "get": ("storage.objects.get", lambda bucket: bucket.blob("a/x.json").reload()),
    "media": ("storage.objects.get", lambda bucket: bucket.blob("a/x.json").download_as_bytes()),
    "list": ("storage.objects.list", lambda bucket: list(bucket.list_blobs())),
    "absent": ("storage.objects.list", lambda bucket: bucket.blob("absent").reload()),
    "insert": ("storage.objects.create", lambda bucket: upload(bucket, "new")),
    "patch": ("storage.objects.update", lambda bucket: bucket.blob("a/x.json").patch()),
    "delete": ("storage.objects.delete", lambda bucket: bucket.blob("a/x.json").delete()),
}


@pytest.mark.parametrize("operation", DENIED)
def test_what_is_denied_is_403(gcs, bucket, operation):
    permission, call = DENIED[operation]
    upload(bucket)
    gcs.deny(permission, "b")
    with pytest.raises(Forbidden, match=permission):
        call(bucket)


def test_scripted_statuses_pass_after_their_times(gcs, bucket):
    gcs.fail("insert", status=503, times=2)
    upload(bucket, if_generation_match=0)
    assert len(gcs.seen("insert")) == 3
    gcs.fail("get")
    with pytest.raises(ServiceUnavailable):
        bucket.blob("a/x.json").reload(retry=None)


def test_a_dropped_connection_does_nothing_and_a_lost_reply_did_it(gcs, bucket):
    blob = upload(bucket)
    blob.metadata = {"k": "v"}
    gcs.fail("patch", kind="drop")
    blob.patch(if_metageneration_match=1, retry=QUICK)
    blob.metadata = {"k": "w"}
    gcs.apply_then_drop("patch")
    with pytest.raises(PreconditionFailed):
        blob.patch(if_metageneration_match=2, retry=QUICK)
    assert gcs.metadata("b", blob.name) == {"k": "w"}


def test_a_download_that_broke_off_is_resumed(gcs, bucket):
    upload(bucket, data=b"0123456789" * 10_000)
    gcs.fail("media", kind="half")
    assert bucket.blob("a/x.json").download_as_bytes(retry=QUICK) == b"0123456789" * 10_000
    assert "range" in gcs.seen("media")[-1].headers


def test_what_is_stored_gzipped_is_unpacked_on_its_way(gcs, bucket):
    gcs.bucket("b").put("z", gzip.compress(b"z" * 1000, mtime=0), contentEncoding="gzip")
    assert bucket.blob("z").download_as_bytes() == b"z" * 1000


def test_names_need_no_care(bucket):
    for name in ["ä b/#1?x=%2F", "a//b", "o/o"]:
        upload(bucket, name, data=name.encode())
        assert bucket.get_blob(name).download_as_bytes() == name.encode()


def hold(gcs, blob, kind):
    match kind:
        case "Temporary hold":
            blob.temporary_hold = True
        case "Event-Based hold":
            blob.event_based_hold = True
        case "retention policy":
            gcs.bucket("b").retention = 3600.0
            return
        case "object retention":
            blob.retention.mode = "Unlocked"
            blob.retention.retain_until_time = datetime.now(UTC) + timedelta(hours=1)
        case _:
            raise ValueError(kind)
    blob.patch()


HOLDS = ["Temporary hold", "Event-Based hold", "retention policy", "object retention"]


@pytest.mark.parametrize("kind", HOLDS)
def test_what_is_held_or_retained_keeps_its_content_and_takes_metadata(gcs, bucket, kind):
    blob = upload(bucket)
    hold(gcs, blob, kind)
    said = "retention policy" if kind == "object retention" else kind
    calls = (
        lambda: upload(bucket, data=b"other"),
        blob.delete,
        lambda: bucket.copy_blob(upload(bucket, "new"), bucket, "a/x.json"),
    )
    for call in calls:
        with pytest.raises(Forbidden, match=f"{said}.*cannot be deleted, overwritten or archived until"):
            call()
    blob.metadata = {"k": "v"}
    blob.patch()
    found = bucket.get_blob(blob.name)
    assert (found.generation, found.metadata, found.download_as_bytes()) == (blob.generation, {"k": "v"}, b"data")


def test_a_hold_ends_and_may_be_given_to_all_that_is_new(gcs, bucket):
    gcs.bucket("b").default_hold = True
    blob = upload(bucket)
    assert bucket.get_blob(blob.name).event_based_hold
    blob.event_based_hold = False
    blob.patch()
    blob.delete()
    assert bucket.get_blob(blob.name) is None


def test_a_bucket_whose_requesters_pay_wants_to_know_who(gcs, bucket):
    upload(bucket)
    gcs.bucket("b").requester_pays = True
    gcs.bucket("b").payers = {"mine"}
    with pytest.raises(BadRequest, match="requester pays bucket but no user project provided"):
        bucket.blob("a/x.json").reload()
    with pytest.raises(Forbidden, match=r"serviceusage\.services\.use"):
        bucket.client.bucket("b", user_project="theirs").blob("a/x.json").reload()
    mine = bucket.client.bucket("b", user_project="mine")
    blob = upload(mine, "new")
    blob.metadata = {"k": "v"}
    blob.patch()
    assert blob.download_as_bytes() == b"data"
    assert [it.name for it in bucket.client.list_blobs(mine)] == ["a/x.json", "new"]


def test_an_object_is_not_changed_too_often(gcs, bucket):
    blob = upload(bucket)
    gcs.bucket("b").update_interval = 3600.0
    blob.metadata = {"k": "v"}
    with pytest.raises(TooManyRequests, match="rate limit for object mutation"):
        blob.patch(retry=None)
    upload(bucket, "another")
    gcs.bucket("b").update_interval = 0.01
    blob.patch(retry=QUICK)
    assert blob.metageneration == 2


def test_access_lists_are_refused_where_access_is_uniform(gcs, bucket):
    gcs.bucket("b").uniform_access = True
    blob = upload(bucket)
    blob.metadata = {"k": "v"}
    blob.patch()
    with pytest.raises(BadRequest, match="uniform bucket-level access"):
        upload(bucket, "new", predefined_acl="publicRead")


def test_replacing_needs_the_right_to_delete(gcs, bucket):
    upload(bucket)
    gcs.deny("storage.objects.delete", "b")
    with pytest.raises(Forbidden, match=r"storage\.objects\.delete"):
        upload(bucket, if_generation_match=0)
    upload(bucket, "new", if_generation_match=0)


def test_older_versions_have_metadata_and_an_end_of_their_own(gcs, bucket):
    gcs.bucket("b").versioning = True
    old, new = upload(bucket), upload(bucket, data=b"new")
    was = bucket.blob(old.name, generation=old.generation)
    was.metadata = {"k": "old"}
    was.patch()
    assert bucket.get_blob(old.name).metadata is None
    assert bucket.get_blob(old.name, generation=old.generation).metadata == {"k": "old"}
    bucket.blob(old.name).delete()
    assert bucket.get_blob(old.name) is None
    assert bucket.get_blob(old.name, generation=new.generation).size == 3
    bucket.blob(old.name, generation=old.generation).delete()
    assert [it.generation for it in bucket.client.list_blobs("b", versions=True)] == [new.generation]


def test_what_is_removed_for_good_is_kept_a_while(gcs, bucket):
    gcs.bucket("b").soft_delete = True
    blob = upload(bucket)
    blob.delete()
    assert list(bucket.client.list_blobs("b")) == []
    assert [it.generation for it in bucket.client.list_blobs("b", soft_deleted=True)] == [blob.generation]
    assert bucket.get_blob(blob.name, generation=blob.generation, soft_deleted=True).size == 4


def test_a_reset_connection_does_nothing(gcs, bucket):
    gcs.fail("insert", kind="reset")
    upload(bucket, if_generation_match=0)
    assert len(gcs.seen("insert")) == 2
    gcs.fail("insert", kind="reset")
    with pytest.raises(RequestsConnectionError, match="reset"):
        bucket.blob("new").upload_from_string(b"", retry=None)
    assert gcs.names("b") == ["a/x.json"]


def test_a_late_request_is_held_against_what_is_there_by_then(gcs, bucket):
    blob = upload(bucket)
    for expected in ({"k": "late"}, {"k": "soon"}):
        gcs.fail("patch", kind="late")
        late = bucket.blob(blob.name)
        late.metadata = {"k": "late"}
        with pytest.raises(RequestsConnectionError):
            late.patch(if_metageneration_match=bucket.get_blob(blob.name).metageneration, retry=None)
        if expected == {"k": "soon"}:
            late.metadata = expected
            late.patch()
        gcs.apply_late()
        assert gcs.metadata("b", blob.name) == expected


def test_requests_are_told_apart_by_their_client_and_wait_at_the_gate(gcs, bucket):
    upload(bucket)
    gcs.fail("get", status=503, client="two", after=1, times=1)
    told = []

    def gate(request) -> bool:
        told.append(request.client)
        return True

    gcs.gate = gate
    with Client(project=None, client_options={"api_endpoint": gcs.url_of("two")}) as two:
        blob = two.bucket("b").blob("a/x.json")
        blob.reload(retry=None)
        bucket.get_blob("a/x.json", retry=None)
        with pytest.raises(ServiceUnavailable):
            blob.reload(retry=None)
        assert blob.download_as_bytes(retry=None) == b"data"
    assert told == ["two", "", "two", "two"]
    gcs.gate = lambda request: False
    with pytest.raises(RequestsConnectionError):
        bucket.blob("a/x.json").reload(retry=None)
