"""Objects in Cloud Storage, as capture lists and reads them: by ranges, at one generation, and never for long."""

import base64
import json
import subprocess
import sys

import google_crc32c
import pytest

from envbuild.capture import gcs as module
from envbuild.capture.gcs import CloudStorage, Unread
from tests.fakes.gcs import FakeGcs

NO_CREDENTIALS = "no Google credentials here that can be used"
UNREACHED = "could not be reached"


@pytest.fixture
def gcs(monkeypatch):
    with FakeGcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name in ("runs/1/a", "runs/1/b/c", "runs/10/x", "one"):
            server.put("models", name, name.encode())
        yield server


def names(uri: str) -> list[str]:
    return [item["name"] for item in CloudStorage().objects(uri)]


def test_an_object_or_all_below_a_folder_is_listed(gcs):
    assert names("gs://models/one") == ["one"]
    assert names("gs://models/runs/1") == names("gs://models/runs/1/") == ["runs/1/a", "runs/1/b/c"]
    assert names("gs://models") == names("gs://models/") == ["one", "runs/1/a", "runs/1/b/c", "runs/10/x"]
    assert names("gs://models/nothing") == []


def test_what_is_listed_says_size_generation_and_checksum(gcs):
    stored = gcs.buckets["models"].objects["one"]
    crc32c = base64.b64encode(google_crc32c.value(b"one").to_bytes(4, "big")).decode()
    assert list(CloudStorage().objects("gs://models/one")) == [
        {"name": "one", "size": 3, "generation": stored.generation, "crc32c": crc32c}
    ]


def test_the_mark_of_an_empty_folder_is_no_object(gcs):
    gcs.put("models", "runs/1/", b"")
    gcs.put("models", "runs/1/odd/", b"content")
    assert names("gs://models/runs/1") == ["runs/1/a", "runs/1/b/c", "runs/1/odd/"]


def test_pages_are_asked_for_one_after_the_other(gcs):
    for number in range(2001):
        gcs.put("models", f"many/{number:04}", b"")
    objects = CloudStorage().objects("gs://models/many/")
    next(objects)
    assert len(gcs.seen("list")) == 1
    assert len(list(objects)) == 2000
    assert len(gcs.seen("list")) == 3


def test_a_range_is_read_at_its_generation(gcs):
    storage = CloudStorage()
    (item,) = storage.objects("gs://models/one")
    assert storage.read("gs://models/one", item["generation"], 1, 1) == b"n"
    gcs.buckets["models"].versioning = True
    gcs.put("models", "one", b"new")
    assert storage.read("gs://models/one", item["generation"], 0, 3) == b"one"
    (request, *_) = gcs.seen("media")
    assert request.headers["range"] == "bytes=1-1"


def test_what_is_packed_is_read_as_it_is_stored(gcs):
    gcs.buckets["models"].put("packed", b"\x1f\x8bpacked", contentEncoding="gzip")
    storage = CloudStorage()
    (item,) = storage.objects("gs://models/packed")
    assert storage.read("gs://models/packed", item["generation"], 0, 8) == b"\x1f\x8bpacked"


@pytest.mark.parametrize("uri", ["gs://", "gs:///x", "/models/one", "s3://models/one"])
def test_a_uri_without_a_bucket_is_refused(gcs, uri):
    with pytest.raises(Unread, match="names no bucket"):
        names(uri)


def test_a_bucket_that_is_not_there_is_said(gcs):
    with pytest.raises(Unread, match="no such bucket"):
        names("gs://nowhere/")


def test_a_missing_permission_is_named(gcs):
    gcs.deny("storage.objects.list", "models")
    with pytest.raises(Unread, match=r"storage\.objects\.list is missing"):
        names("gs://models/runs/1/")
    gcs.deny("storage.objects.get", "models")
    with pytest.raises(Unread, match=r"storage\.objects\.get is missing"):
        names("gs://models/one")


@pytest.mark.parametrize("code", [400, 429, 500, 503])
def test_what_it_refuses_with_is_said(gcs, code, monkeypatch):
    monkeypatch.setattr(module, "ANSWERING", 0.5)
    gcs.fail("get", status=code, times=100)
    with pytest.raises(Unread, match=str(code)):
        names("gs://models/one")


def test_credentials_that_are_refused_are_said(gcs):
    gcs.fail("get", status=401, times=100)
    with pytest.raises(Unread, match=NO_CREDENTIALS):
        names("gs://models/one")


def test_a_fault_that_passes_is_not_seen(gcs):
    gcs.fail("get", status=503)
    gcs.fail("get", kind="drop")
    assert names("gs://models/one") == ["one"]


def test_an_answer_that_does_not_come_is_not_waited_for(gcs, monkeypatch):
    monkeypatch.setattr(module, "ANSWERING", 0.3)
    gcs.fail("get", kind="stall", times=100)
    with pytest.raises(Unread, match=UNREACHED):
        names("gs://models/one")


def test_its_patience_is_for_all_calls_together(gcs, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0)
    with pytest.raises(Unread, match="took longer"):
        names("gs://models/one")


def test_nobody_listening_is_said(monkeypatch):
    with FakeGcs() as server:
        url = server.url
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    monkeypatch.setattr(module, "ANSWERING", 0.5)
    with pytest.raises(Unread, match=UNREACHED):
        names("gs://models/one")


def test_no_credentials_are_said_and_nothing_of_them(monkeypatch, tmp_path):
    secret = "-----BEGIN PRIVATE KEY-----"
    (tmp_path / "key.json").write_text(json.dumps({"type": "service_account", "private_key": secret}))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(Unread, match=NO_CREDENTIALS) as caught:
        names("gs://models/one")
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_credentials_that_take_long_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(module, "CONNECTING", 0)
    with pytest.raises(Unread, match=NO_CREDENTIALS):
        CloudStorage()


def test_without_googles_library_that_is_said():
    code = (
        "import sys; sys.modules['google.cloud.storage'] = None\n"
        "from envbuild.capture.gcs import *\n"
        "try: list(CloudStorage().objects('gs://models/one'))\n"
        "except Unread as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "google-cloud-storage is not installed here\n"


def test_importing_capture_does_not_import_googles_library():
    code = "import sys, envbuild.capture.gcs; print('google' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
