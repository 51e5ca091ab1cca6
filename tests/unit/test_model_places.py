"""Where a model lies: odd folders and files are listed or their fault is said, and nothing blocks."""

import os
import socket
import threading

import pytest

from envbuild.capture import places
from envbuild.capture.gcs import Unread
from envbuild.capture.model import model_facts
from tests.fakes.gcs import FakeGcs
from tests.unit.modelling import MODELS


def paths(facts: dict) -> list[str]:
    return [file["path"] for file in facts.get("files", [])]


UNREAD = {
    "there is no such file or folder": ["/nowhere/model", "file:///nowhere/model", "a\0b", ""],
    "only paths, file:// and gs:// are read": [
        "s3://bucket/model", "https://example.com/model", "file://elsewhere/model", "file://[",
    ],
    "it names no bucket": ["gs://"],
    "zero is not a regular file": ["/dev/zero"],
}  # fmt: skip


@pytest.mark.parametrize(("uri", "reason"), [(uri, reason) for reason, uris in UNREAD.items() for uri in uris])
def test_what_is_no_model_is_said(uri, reason):
    facts = model_facts(uri)
    assert facts["uri"] == uri.replace("\0", "\\x00")
    assert reason in facts["unread"]


def test_no_password_of_an_address_is_kept():
    facts = model_facts("https://user:hunter2SuperSecret@example.com/model")
    assert facts == {"uri": "https://example.com/model", "unread": model_facts("https://example.com/model")["unread"]}


def test_a_file_uri_is_a_path():
    facts = model_facts((MODELS / "model.keras").as_uri())
    assert (facts["format"], paths(facts)) == ("keras", ["model.keras"])


def test_a_name_with_spaces_and_percents_is_found(tmp_path):
    folder = tmp_path / "a b%20c"
    folder.mkdir()
    (folder / "x").write_bytes(b"1")
    assert paths(model_facts(folder.as_uri())) == paths(model_facts(str(folder))) == ["x"]


def test_an_empty_folder_is_said(tmp_path):
    facts = model_facts(str(tmp_path))
    assert facts["unread"] == "the folder is empty"
    assert facts["file_count"] == 0


def test_what_a_stamp_wrote_is_no_part_of_the_model(tmp_path):
    for path in ("saved_model.pb", "envbuild/pointer.json", "assets/envbuild/words.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    assert paths(model_facts(str(tmp_path))) == ["assets/envbuild/words.txt", "saved_model.pb"]


def test_links_to_files_and_folders_are_followed(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/1").write_bytes(b"weights")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.bin").symlink_to("../blobs/1")
    (tmp_path / "model/folder").symlink_to("../blobs")
    facts = model_facts(str(tmp_path / "model"))
    assert paths(facts) == ["folder/1", "model.bin"]
    assert facts["files"][0]["sha256"] == facts["files"][1]["sha256"]
    assert "unread" not in facts


def test_a_link_to_a_folder_around_it_ends(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "x").write_bytes(b"")
    facts = model_facts(str(tmp_path))
    assert paths(facts) == ["x"]
    assert facts["unread"] == "a/up/ links to a folder that it lies in"


def test_a_broken_link_is_said_and_the_rest_read(tmp_path):
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "model.keras").write_bytes((MODELS / "model.keras").read_bytes())
    facts = model_facts(str(tmp_path))
    assert facts["format"] == "keras"
    assert facts["unread"] == "gone cannot be read: No such file or directory"
    assert model_facts(str(tmp_path / "gone"))["unread"] == facts["unread"]


def test_pipes_and_sockets_are_never_opened(tmp_path):
    for name in ("saved_model.pb", "model.keras", "model.pt"):
        os.mkfifo(tmp_path / name)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    found: dict = {}
    reading = threading.Thread(target=lambda: found.update(model_facts(str(tmp_path))), daemon=True)
    reading.start()
    reading.join(10)
    listening.close()
    assert found["unread"] == "model.keras is not a regular file (and 3 more)"
    assert found["file_count"] == 0


def test_a_file_that_became_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"PK")
    place = places.LocalPlace(str(tmp_path))
    (tmp_path / "model.keras").unlink()
    os.mkfifo(tmp_path / "model.keras")
    with pytest.raises(Unread, match="not a regular file"):
        place.open("model.keras")


def test_a_file_that_became_shorter_is_said(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(bytes(100000))
    source = places.LocalPlace(str(tmp_path)).open("model.keras")
    path.write_bytes(b"")
    with pytest.raises(Unread, match="it became shorter"):
        source.at(0, 10)


def test_a_file_that_cannot_be_read_has_no_digest(tmp_path):
    # Even root cannot read the start of a process's memory.
    (tmp_path / "saved_model.pb").symlink_to("/proc/self/mem")
    (tmp_path / "x").write_bytes(b"")
    facts = model_facts(str(tmp_path))
    assert [file.get("sha256", "")[:4] for file in facts["files"]] == ["", "e3b0"]
    assert facts["unread"].startswith("1 of its files have no digest")


def test_digests_end_after_their_time(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"1")
    monkeypatch.setattr(places, "HASHING", 0)
    facts = model_facts(str(tmp_path))
    assert "sha256" not in facts["files"][0]
    assert facts["unread"].startswith("1 of ")


def test_of_many_files_the_first_are_listed_and_all_are_counted(tmp_path):
    for number in range(places.MOST_FILES + 1):
        (tmp_path / f"{number:05}").touch()
    facts = model_facts(str(tmp_path))
    assert facts["file_count"] == places.MOST_FILES + 1
    assert (len(facts["files"]), facts["files"][-1]["path"]) == (places.MOST_FILES, f"{places.MOST_FILES - 1:05}")


def test_of_too_many_files_not_even_the_number_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "MOST_COUNTED", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    facts = model_facts(str(tmp_path))
    assert facts["unread"] == "it has more than 3 files"
    assert not {"file_count", "size"} & set(facts)
    assert paths(facts) == ["0", "1", "2"]


def test_names_that_are_no_text_are_spelled_out(tmp_path):
    (tmp_path / "a\nb").touch()
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff", os.O_CREAT))
    assert paths(model_facts(str(tmp_path))) == ["a\\nb", "\\udcff"]


@pytest.fixture
def gcs(monkeypatch):
    with FakeGcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.bucket("models")
        yield server


def test_an_object_that_is_not_there_is_said(gcs):
    facts = model_facts("gs://models/runs/1")
    assert facts["unread"] == "there is no such object or folder in Cloud Storage"


def test_a_missing_permission_is_named(gcs):
    gcs.put("models", "runs/1/saved_model.pb", (MODELS / "saved_model/saved_model.pb").read_bytes())
    gcs.deny("storage.objects.get", "models")
    facts = model_facts("gs://models/runs/1/")
    assert paths(facts) == ["saved_model.pb"]
    assert facts["unread"] == "Cloud Storage refused: permission storage.objects.get is missing (403)"
    gcs.deny("storage.objects.list", "models")
    facts = model_facts("gs://models/runs/1/")
    assert "storage.objects.list" in facts["unread"]
    assert "file_count" not in facts


def test_the_content_that_was_listed_is_the_one_that_is_read(gcs):
    gcs.put("models", "m/model.onnx", (MODELS / "model.onnx").read_bytes())
    gcs.before("media", lambda: gcs.put("models", "m/model.onnx", b"other"))
    facts = model_facts("gs://models/m")
    assert facts["unread"].endswith("(404)")


def test_a_listing_that_breaks_off_keeps_what_came(gcs):
    for number in range(1001):
        gcs.put("models", f"m/{number:04}", b"1")
    gcs.before("list", lambda: None)
    gcs.fail("list", status=403)
    facts = model_facts("gs://models/m/")
    assert len(paths(facts)) == 1000
    assert "storage.objects.list is missing" in facts["unread"]
    assert "file_count" not in facts
