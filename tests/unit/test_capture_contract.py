"""What a program needs: variables, data and where each piece of it is known from."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from envbuild.capture import capture, keras_callback
from envbuild.capture.contract import contract_facts, data_facts
from envbuild.capture.variables import recorded_variables
from envbuild.manifest.model import Data, RequiredVariable
from tests.fakes.gcs import FakeGcs

SECRET = "hunter2SuperSecretValue99"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def gcs(monkeypatch):
    with FakeGcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.bucket("b")
        yield server


def places(*data: str, requires: tuple[str, ...] = (), **limits) -> list[dict]:
    """What is recorded of places, without what is absent."""
    found = data_facts(data, requires, **limits)
    return [{key: value for key, value in item.items() if value is not None} for item in found]


def sha256(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_without_needs_there_is_no_contract():
    assert contract_facts((), (), ()) is None


def test_names_of_variables_are_recorded_once_and_never_their_values(monkeypatch):
    monkeypatch.setenv("API_KEY", SECRET)
    facts = contract_facts(["MODEL_DIR", "API_KEY", "MODEL_DIR"], (), ())
    assert facts == {"variables": [{"name": "API_KEY", "present": True}, {"name": "MODEL_DIR", "present": False}]}
    assert facts["variables"][0].keys() == set(RequiredVariable.__dataclass_fields__)


def test_of_a_name_with_its_value_only_the_name_is_kept():
    facts = contract_facts([f"DB_PASSWORD={SECRET}", f"X={SECRET}=y"], (), ())
    assert facts is not None
    assert [item["name"] for item in facts["variables"]] == ["DB_PASSWORD", "X"]


def test_a_token_that_was_given_as_a_name_is_cut():
    facts = contract_facts(["ghp_" + SECRET], (), ())
    assert facts == {"variables": [{"name": "[redacted]", "present": False}]}


@pytest.mark.parametrize("name", ["", f"={SECRET}", f"MY {SECRET}", f"A\n{SECRET}", f"A\x00{SECRET}", f"A\x1b{SECRET}"])
def test_what_cannot_name_a_variable_is_refused_without_repeating_it(name):
    with pytest.raises(ValueError, match="requires: number 2 is not the name of a variable") as caught:
        contract_facts(["GOOD", name], (), ())
    assert SECRET not in str(caught.value)


def test_a_file_is_recorded_by_its_content(tmp_path):
    (tmp_path / "train.csv").write_text("a,b\n1,2\n")
    uri = str(tmp_path / "train.csv")
    assert places(uri) == [{"uri": uri, "checksum": sha256("a,b\n1,2\n"), "size": 8}]
    file_uri = (tmp_path / "train.csv").as_uri()
    assert places(f"TRAIN={file_uri}") == [
        {"uri": file_uri, "variable": "TRAIN", "checksum": sha256("a,b\n1,2\n"), "size": 8}
    ]


def test_a_folder_is_recorded_by_what_it_lists():
    for name, text in {"b/1.csv": "one", "a.csv": "two!", "b/\u00e9": ""}.items():
        path = Path("data", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    os.mkfifo("data/pipe")
    lines = [["a.csv", 4, sha256("two!")[7:]], ["b/1.csv", 3, sha256("one")[7:]], ["b/\u00e9", 0, sha256("")[7:]]]
    listing = "".join(json.dumps(line) + "\n" for line in lines)
    assert places("data") == [{"uri": "data", "checksum": sha256(listing), "size": 7, "objects": 3}]
    assert places("data/") == [{"uri": "data/", "checksum": sha256(listing), "size": 7, "objects": 3}]
    Path("data/a.csv").rename("data/c.csv")
    assert places("data")[0]["checksum"] != sha256(listing)


def test_an_empty_folder_has_no_objects():
    Path("data").mkdir()
    assert places("data") == [{"uri": "data", "checksum": sha256(""), "size": 0, "objects": 0}]


NO_OBJECT = "there is no such object or folder"
UNREAD = {
    "there is no such file or folder": ["/nowhere/x.csv", "", "a\x00b", "x" * 5000],
    "only gs:// and local places are read": [
        "bq://project.dataset.table",
        "s3://bucket/x",
        "https://example.com/x.csv",
    ],
    "it names no bucket; gs://BUCKET/NAME does": ["gs://", "gs:///*"],
}


@pytest.mark.parametrize(
    ("place", "reason"), [(place, reason) for reason, places in UNREAD.items() for place in places]
)
def test_it_is_said_why_a_place_was_not_read(place, reason):
    (item,) = places(place)
    assert item["unread"] == reason
    assert item.keys() == {"uri", "unread"}


def test_a_file_that_may_not_be_read_is_no_fault(tmp_path):
    # Tests may run as root, who may read everything else.
    (tmp_path / "x").symlink_to("/proc/self/mem")
    assert places(str(tmp_path / "x"))[0]["unread"] == "it cannot be read: Input/output error"


def test_a_name_before_the_place_is_its_variable_unless_there_is_such_a_path(tmp_path):
    Path("year=2024").mkdir()
    assert places("year=2024") == [{"uri": "year=2024", "checksum": sha256(""), "size": 0, "objects": 0}]
    assert places("NAME=s3://b/x=y")[0]["variable"] == "NAME"
    assert places("data/year=2024")[0]["uri"] == "data/year=2024"


def test_an_object_has_generation_and_checksum(gcs):
    gcs.put("b", "data/train.csv", b"123456789")
    stored = gcs.bucket("b").objects["data/train.csv"]
    assert places("gs://b/data/train.csv") == [
        {"uri": "gs://b/data/train.csv", "generation": stored.generation, "checksum": "crc32c:4waSgw==", "size": 9}
    ]


def test_a_folder_of_objects_is_recorded_by_what_it_lists(gcs):
    for name in ("data/b", "data/a/1", "other"):
        gcs.put("b", name, b"123456789")
    objects = gcs.bucket("b").objects
    lines = [[name, objects[name].generation, "4waSgw=="] for name in ("data/a/1", "data/b")]
    checksum = sha256("".join(json.dumps(line) + "\n" for line in lines))
    for uri in ("gs://b/data/", "gs://b/data"):
        assert places(uri) == [{"uri": uri, "checksum": checksum, "size": 18, "objects": 2}]
    gcs.put("b", "data/b", b"123456789")
    assert places("gs://b/data")[0]["checksum"] != checksum


def test_a_pattern_stands_for_the_objects_that_match(gcs):
    for name in ("d/training-00000.jsonl", "d/training-00001.jsonl", "d/test-00000.jsonl"):
        gcs.put("b", name, b"12")
    (item,) = places("gs://b/d/training-*")
    assert (item["objects"], item["size"]) == (2, 4)
    assert places("gs://b/d/validation-*")[0]["unread"] == NO_OBJECT


def test_it_is_said_why_a_bucket_was_not_read(gcs):
    gcs.put("b", "x", b"1")
    gcs.deny("storage.objects.get", "b")
    assert places("gs://b/x")[0]["unread"] == "Cloud Storage refused: permission storage.objects.get is missing (403)"
    assert places("gs://absent/")[0]["unread"] == "there is no such bucket or object in Cloud Storage (404)"
    assert places("gs://b/none/")[0]["unread"] == NO_OBJECT


def test_vertex_ai_s_datasets_are_data(gcs, monkeypatch):
    gcs.put("b", "train", b"123456789")
    monkeypatch.setenv("AIP_TRAINING_DATA_URI", "gs://b/train")
    monkeypatch.setenv("AIP_TEST_DATA_URI", "bq://p.d.t")
    monkeypatch.setenv("AIP_VALIDATION_DATA_URI", "")
    test, train = places()
    assert (test["variable"], test["uri"]) == ("AIP_TEST_DATA_URI", "bq://p.d.t")
    assert (train["variable"], train["checksum"]) == ("AIP_TRAINING_DATA_URI", "crc32c:4waSgw==")
    assert train.keys() | test.keys() | {"objects"} == set(Data.__dataclass_fields__)


def test_a_place_that_is_given_and_named_by_a_variable_is_recorded_once(monkeypatch):
    monkeypatch.setenv("AIP_TRAINING_DATA_URI", "bq://p.d.t")
    assert [item["variable"] for item in places("bq://p.d.t")] == ["AIP_TRAINING_DATA_URI"]


def test_required_variables_that_name_a_place_are_data(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TABLES", "gs:///x")
    monkeypatch.setenv("SECRET_KEY", SECRET)
    monkeypatch.setenv("NOT_REQUIRED", str(tmp_path / "data"))
    found = places(requires=("DATA_DIR", "TABLES", "SECRET_KEY", "ABSENT"))
    assert [(item["variable"], item["uri"]) for item in found] == [
        ("DATA_DIR", str(tmp_path / "data")),
        ("TABLES", "gs:///x"),
    ]


@pytest.mark.parametrize("value", ["/", "..", "../work", "/nowhere", "work", "."])
def test_variables_that_name_the_program_s_surroundings_are_not(monkeypatch, tmp_path, value):
    Path("work").mkdir()
    monkeypatch.setenv("SOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places(requires=("SOME", "HOME")) == []


def test_a_working_folder_that_is_gone_is_no_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME", str(tmp_path))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert places(requires=("SOME",)) == []


def test_reading_ends_when_its_time_is_over(tmp_path):
    # Zeros without end take no space.
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 42)
    (tmp_path / "small").write_text("x")
    huge, small = places(str(tmp_path / "huge"), str(tmp_path / "small"), seconds=0.2)
    assert huge["unread"] == small["unread"] == "reading all data takes too long"


def test_reading_ends_at_so_many_files(tmp_path, gcs):
    for number in range(4):
        (tmp_path / "work" / str(number)).write_text("x")
        gcs.put("b", f"d/{number}", b"x")
    for uri in (str(tmp_path / "work"), "gs://b/d"):
        assert places(uri, most=3)[0]["unread"] == "it holds more than 3 objects"
        assert places(uri, most=4)[0]["objects"] == 4


def test_what_a_place_says_of_users_is_cut():
    (item,) = places(f"https://user:{SECRET}@example.com/x?token={SECRET}")
    assert item["uri"] == "https://example.com/x?token=[redacted]"


def test_all_parts_are_in_the_contract(tmp_path):
    (tmp_path / "work" / "prep.py").write_text("1")
    facts = contract_facts(["X"], ["/nowhere"], ["prep.py", "prep.py"])
    assert facts is not None
    assert facts.keys() == {"variables", "data", "preprocessing"}
    assert [item["path"] for item in facts["preprocessing"]] == ["prep.py"]


@pytest.mark.parametrize("name", ["requires", "variables", "data", "preprocessing", "load", "command"])
def test_one_text_in_place_of_a_list_is_an_error_at_the_call(name):
    calls: list[Any] = [capture, keras_callback]
    for call in calls:
        for value in ("BUCKET", b"BUCKET"):
            with pytest.raises(ValueError, match=f"{name} is one text, and must be a list of texts") as caught:
                call(**{name: value})
            assert "BUCKET" not in str(caught.value)


def test_code_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="preprocessing: there is no file or folder typo"):
        contract_facts((), (), ["typo"])


def test_a_name_that_is_no_text_is_not_recorded(monkeypatch):
    monkeypatch.setitem(os.environ, "A\udcff", "1")
    monkeypatch.setenv("B", "1")
    assert recorded_variables(["A\udcff", "B"]).keys() & {"A\udcff", "B"} == {"B"}
