"""The record's published schema: what is written is valid, and the documentation names every key."""

import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from envbuild.cli.commands import run
from envbuild.oci.compression import Compression
from envbuild.oci.digest import Digest
from envbuild.stamp.history import read_history
from envbuild.stamp.record import ModelFiles, StampedFile, read_record, record_bytes, record_name
from envbuild.stamp.stamping import stamp
from tests.unit.test_stamp import NOW, InBucket, InFolder, entry, gcs, model, write  # noqa: F401 - fixtures

SCHEMA = json.loads(resources.files("envbuild.stamp").joinpath("schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
PAGE = (Path(__file__).parents[2] / "docs/stamp.md").read_text("utf-8")


def records(uri):
    return [json.loads(record_bytes(it.stamp)) for it in read_history(uri).records if it.stamp]


def test_the_schema_is_one_and_is_printed(capsys):
    VALIDATOR.check_schema(SCHEMA)
    assert run(["schema", "--record"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
    assert run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Training manifest"


def test_every_record_that_is_written_is_valid(model, monkeypatch):  # noqa: F811
    write(model.uri)
    monkeypatch.setenv("ENVBUILD_BY", "")
    unpushed = {"reference": None, "overrides": (("base", "debian:bookworm"),), "identity": "1 of 2 identical"}
    write(model.uri, entry(role="serve", **unpushed))
    write(model.uri, entry(variant="gpu", platform="linux/arm64/v8", content=b"arm"))
    found = records(model.uri)
    assert len(found) == 3
    for record in found:
        VALIDATOR.validate(record)
    assert [("by" in record) for record in found] == [False, False, True]


def test_the_schema_knows_every_key_that_is_written(tmp_path):
    model = InFolder(tmp_path)  # noqa: F811
    file = StampedFile(path="w", size=1, sha256="a" * 64, crc32c="AAAAAA==", generation=1)
    content = ModelFiles(files=(file,), file_count=1, forced="w is new")
    item = entry(
        tag="v1", relation="verified-compatible", gate="untried", compression=Compression(3), zstd=Digest("f" * 64)
    )
    stamp(model.uri, item, manifest=b"{}", lock=b"lock", now=NOW, content=content)
    (record,) = records(model.uri)
    VALIDATOR.validate(record)
    assert record["content"].keys() == SCHEMA["properties"]["content"]["properties"].keys()
    assert record["content"]["files"][0].keys() == SCHEMA["$defs"]["file"]["properties"].keys()
    assert record.keys() == SCHEMA["properties"].keys()
    assert record["anchor"].keys() == SCHEMA["properties"]["anchor"]["properties"].keys()
    assert record["images"][0].keys() == SCHEMA["$defs"]["image"]["properties"].keys()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema_version"], "2.0"),
        (["images"], []),
        (["images", 0, "digest"], "sha512:00"),
        (["images", 0, "reference"], "127.0.0.1:5000/a:latest"),
        (["images", 0, "overrides"], {"a": 1}),
        (["previous"], "../secret"),
        (["created"], "yesterday"),
        (["by"], None),
        (["images", 0, "compression"], "gzip"),
        (["images", 0, "compression"], "zstd:3+all"),
        (["anchor"], {"name": "saved_model.pb"}),
    ],
)
def test_what_no_record_says_is_not_valid(tmp_path, path, value):
    model = InFolder(tmp_path)  # noqa: F811
    write(model.uri)
    (record,) = records(model.uri)
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not VALIDATOR.is_valid(record)


def keys(schema):
    for key, part in schema.get("properties", {}).items():
        yield key
        yield from keys(part)
    for part in schema.get("$defs", {}).values():
        yield from keys(part)


def test_the_documentation_names_every_key_of_record_and_pointer(tmp_path):
    model = InFolder(tmp_path)  # noqa: F811
    write(model.uri)
    write(model.uri, entry(platform="linux/arm64"))
    told = set(re.findall(r"`([a-zA-Z0-9_.-]+)`", PAGE))
    assert set(keys(SCHEMA)) - told == set()
    fixed = {key for key in model.metadata() if not key.startswith("envbuild-image-")}
    assert fixed - told == set()
    assert "`envbuild-image-ROLE-VARIANT`" in PAGE
    assert "`envbuild-image-ROLE-VARIANT-OS-ARCH`" in PAGE


def test_a_record_from_before_by_was_written_reads_back_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVBUILD_BY", "")
    model = InFolder(tmp_path)  # noqa: F811
    result = write(model.uri)
    data = (model.folder / result.record).read_bytes()
    assert b'"by"' not in data
    old = read_record(record_name(data), data)
    assert (old.by, record_bytes(old)) == (None, data)


def test_a_relation_is_kept_and_an_image_without_one_is_written_as_it_always_was(tmp_path):
    model = InFolder(tmp_path)  # noqa: F811
    old = (model.folder / write(model.uri).record).read_bytes()
    assert b'"relation"' not in old
    assert record_bytes(read_record(record_name(old), old)) == old
    of_serving = {"role": "serve", "relation": "verified-compatible", "gate": "untried"}
    new = (model.folder / write(model.uri, entry(**of_serving)).record).read_bytes()
    train, serve = sorted(read_record(record_name(new), new).images, key=lambda it: it.role != "train")
    assert (train.relation, serve.relation, serve.more) == (None, "verified-compatible", {})
    assert (train.gate, serve.gate) == (None, "untried")
    tried = (model.folder / write(model.uri, entry(role="serve")).record).read_bytes()
    again = (model.folder / write(model.uri, entry(**of_serving)).record).read_bytes()
    assert [b'"gate"' in it for it in (old, new, tried, again)] == [False, True, False, False]


def who(model, monkeypatch, **environment):  # noqa: F811
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    done = stamp(model.uri, entry(), manifest=b"{}", lock=b"lock", now=NOW)
    return done.stamp.by


ACCOUNTS = {
    "key": ({"type": "service_account", "client_email": "train@p.iam.gserviceaccount.com"}, "train@p"),
    "impersonated": (
        {
            "type": "impersonated_service_account",
            "service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/"
            "serviceAccounts/stamp@p.iam.gserviceaccount.com:generateAccessToken",
            "source_credentials": {"refresh_token": "1//canary"},
        },
        "stamp@p",
    ),
    "person": ({"type": "authorized_user", "account": "me@example.com", "refresh_token": "1//canary"}, "me@example"),
    "nameless person": ({"type": "authorized_user", "account": "", "refresh_token": "1//canary"}, "somebody@"),
    "no object": ([], "somebody@"),
}


@pytest.mark.parametrize("kind", ACCOUNTS)
@pytest.mark.parametrize("how", ["named", "well known"])
def test_the_account_of_the_credentials_is_recorded_and_no_secret_of_theirs(gcs, monkeypatch, tmp_path, kind, how):  # noqa: F811
    credentials, expected = ACCOUNTS[kind]
    path = tmp_path / "application_default_credentials.json"
    path.write_text(json.dumps(credentials))
    monkeypatch.setenv("LOGNAME", "somebody")
    model = InBucket(gcs)  # noqa: F811
    named = {"GOOGLE_APPLICATION_CREDENTIALS": path} if how == "named" else {"CLOUDSDK_CONFIG": tmp_path}
    assert who(model, monkeypatch, **named).startswith(expected)
    assert "canary" not in str({name: gcs.data("models", f"runs/1/{name}") for name in model.names()})


def test_a_folder_is_stamped_by_the_user_and_anyone_may_say_another_name(tmp_path, monkeypatch):
    model = InFolder(tmp_path)  # noqa: F811
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    (tmp_path / "application_default_credentials.json").write_text('{"client_email": "train@p"}')
    assert who(model, monkeypatch, LOGNAME="somebody").startswith("somebody@")
    monkeypatch.setenv("ENVBUILD_BY", "ci job 7\n\x1b[31m" + "x" * 500)
    result = stamp(model.uri, entry(role="serve"), manifest=b"{}", lock=b"lock", now=NOW)
    assert result.stamp.by == ("ci job 7  [31m" + "x" * 500)[:200]


def test_inspect_shows_who(tmp_path, monkeypatch, capsys):
    model = InFolder(tmp_path)  # noqa: F811
    monkeypatch.setenv("ENVBUILD_BY", "ci job 7")
    write(model.uri)
    assert run(["inspect", model.uri]) == 0
    assert "2026-11-21T12:00:00Z, envbuild 0.1.0, by ci job 7" in capsys.readouterr().out
