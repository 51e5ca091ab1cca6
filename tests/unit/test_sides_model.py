"""A stamped model as a side: its run by the copies beside the record, and its files as they are now."""

import ast
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from envbuild.capture.model import model_facts
from envbuild.errors import StampError
from envbuild.lock.formats import pylock_text
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from envbuild.verify.findings import Finding
from envbuild.verify.rules import apply_rules
from envbuild.verify.sources import side_of_manifest
from envbuild.verify.sources.model import StampedModel, artifact_findings, files_now
from envbuild.verify.sources.model import read_model as _read_model
from envbuild.verify.sources.model import side_of_model as _side_of_model
from tests.fakes.gcs import FakeGcs
from tests.unit.modelling import MODELS

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TARGET = Target(python="3.11.7", machine="x86_64", glibc="2.36")
WHEEL = LockedWheel(
    name="six", version="1.17.0", filename="six-1.17.0-py3-none-any.whl", sha256=Digest("a" * 64), size=1,
    url="https://index.invalid/six-1.17.0-py3-none-any.whl",
)  # fmt: skip
LOCK = Lock(target=TARGET, wheels=(WHEEL,))


def read_model(uri: str) -> Any:
    """The model, whose parts need not be checked for being there before they are looked at."""
    return _read_model(uri)


def side_of_model(it: StampedModel) -> Any:
    """Its side, likewise."""
    return _side_of_model(it)


def manifest_bytes(uri: str, **facts) -> bytes:
    values = {
        "schema_version": "1.1",
        "created": "2026-01-31T12:00:00Z",
        "python": {"version": "3.11.7", "implementation": "cpython"},
        "platform": {"system": "Linux", "machine": "x86_64"},
        "distributions": [{"name": "six", "version": "1.17.0", "origin": {"kind": "index"}}],
        "model_uri": uri,
        "model": model_facts(uri),
    }
    return json.dumps(values | facts).encode()


def entry(role: str = "train", variant: str = "cpu") -> StampEntry:
    digest = Digest.of(f"{role}{variant}".encode())
    return StampEntry(
        role=role,
        variant=variant,
        platform="linux/amd64",
        digest=digest,
        reference=f"127.0.0.1:5000/a@{digest}",
        environment=Digest.of(b"env"),
    )


def put_stamp(uri: str, manifest: bytes | None = None, lock: Lock = LOCK, item: StampEntry | None = None) -> None:
    data = manifest_bytes(uri) if manifest is None else manifest
    stamp(uri, item or entry(), manifest=data, lock=pylock_text(lock), now=NOW)


class InFolder:
    """A SavedModel in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "model"
        self.uri = str(self.folder)
        shutil.copytree(MODELS / "saved_model", self.folder)

    def put(self, name: str, data: bytes) -> None:
        (self.folder / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def copies(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder)) for path in self.folder.glob("envbuild/*") if "record" not in path.name
        )


class InBucket:
    """A SavedModel in a bucket."""

    uri = "gs://models/runs/1"

    def __init__(self, gcs: FakeGcs) -> None:
        self.gcs = gcs
        gcs.create_bucket("models")
        for path in (MODELS / "saved_model").iterdir():
            self.put(path.name, path.read_bytes())

    def put(self, name: str, data: bytes) -> None:
        self.gcs.put("models", f"runs/1/{name}", data)

    def remove(self, name: str) -> None:
        del self.gcs.buckets["models"].objects[f"runs/1/{name}"]

    def copies(self) -> list[str]:
        names = [name.removeprefix("runs/1/") for name in self.gcs.names("models") if "/envbuild/" in name]
        return [name for name in names if "record" not in name]


@pytest.fixture
def gcs(monkeypatch):
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "5")
    with FakeGcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture(params=["folder", "bucket"])
def model(request, tmp_path):
    return InFolder(tmp_path) if request.param == "folder" else InBucket(request.getfixturevalue("gcs"))


@pytest.fixture
def local(tmp_path):
    return InFolder(tmp_path)


def faults(it: StampedModel) -> dict[str, Finding]:
    return {found.about: found for found in artifact_findings(it) if not found.agrees}


def test_a_stamped_model_is_its_run(model):
    put_stamp(model.uri)
    it = read_model(model.uri)
    manifest = read_manifest(manifest_bytes(model.uri), "m")
    assert it.manifest == manifest
    assert it.locks == {("train", "cpu", "linux/amd64"): LOCK}
    side = side_of_model(it)
    assert side == replace(side_of_manifest(manifest, model.uri), kind="model")
    assert (side.name, side.kind, side.python) == (model.uri, "model", "3.11.7")
    assert side.model.format == "saved_model"
    assert side.model.written_by[0].name == "tensorflow"


def test_a_model_that_is_given_by_its_stamped_file_is_its_whole_folder(model):
    put_stamp(model.uri)
    it = read_model(f"{model.uri}/saved_model.pb")
    assert it.uri == model.uri
    assert list(artifact_findings(it)) == list(artifact_findings(read_model(model.uri)))
    model.put("keras_metadata.pb", b"other")
    assert "keras_metadata.pb" in faults(read_model(f"{model.uri}/saved_model.pb"))["files"].says


def test_one_file_that_is_the_whole_model_stays_it(tmp_path):
    uri = str(tmp_path / "a.keras")
    Path(uri).write_bytes(b"one")
    put_stamp(uri)
    (tmp_path / "b.keras").write_bytes(b"two")
    it = read_model(uri)
    assert (it.uri, [file.path for file in it.model.files]) == (uri, ["a.keras"])


def test_a_model_as_it_was_stamped_agrees(model):
    put_stamp(model.uri)
    put_stamp(model.uri, item=entry("serve"))
    found = list(artifact_findings(read_model(model.uri)))
    assert [(it.id, it.agrees) for it in found] == [
        ("artifact-stamp", True), ("artifact-copies", True), ("artifact-files", True)
    ]  # fmt: skip


def test_a_model_without_a_stamp_says_only_what_its_files_say(model):
    it = read_model(model.uri)
    assert (it.manifest, it.locks, it.stamp) == (None, {}, None)
    side = side_of_model(it)
    assert (side.packages, side.python, side.model.format) == (None, None, "saved_model")
    assert faults(it).keys() == {"stamp"}


def test_where_there_is_no_model_it_is_said(tmp_path):
    with pytest.raises(StampError) as caught:
        read_model(str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in caught.value.where


def test_files_that_changed_after_the_run_are_named_with_both_values(model):
    put_stamp(model.uri)
    model.put("fingerprint.pb", b"another")
    found = faults(read_model(model.uri))
    assert found.keys() == {"files"}
    old = (MODELS / "saved_model/fingerprint.pb").stat().st_size
    assert "fingerprint.pb is not what the run saved" in found["files"].says
    assert f"fingerprint.pb {old} bytes" in found["files"].wanted
    assert "fingerprint.pb 7 bytes" in found["files"].found
    assert found["files"].why
    assert found["files"].todo


def test_a_file_of_the_same_size_but_other_content_changed(model):
    put_stamp(model.uri)
    data = (MODELS / "saved_model/fingerprint.pb").read_bytes()
    model.put("fingerprint.pb", bytes([data[0] ^ 1]) + data[1:])
    assert faults(read_model(model.uri)).keys() == {"files"}


def test_a_file_that_is_gone_and_one_that_is_new(model):
    put_stamp(model.uri)
    model.remove("fingerprint.pb")
    model.put("keras_metadata.pb", b"x")
    found = [it for it in artifact_findings(read_model(model.uri)) if not it.agrees]
    assert [(it.severity, it.says) for it in found] == [
        ("error", "fingerprint.pb is missing"), ("note", "keras_metadata.pb is new since the run")
    ]  # fmt: skip
    assert [(it.wanted, it.found) for it in found][1][0] == "no keras_metadata.pb"


def test_a_model_that_was_replaced_after_the_stamp_is_found(gcs):
    model = InBucket(gcs)
    put_stamp(model.uri)
    metadata = gcs.metadata("models", "runs/1/saved_model.pb")
    gcs.put("models", "runs/1/saved_model.pb", b"another", metadata=metadata)
    found = faults(read_model(model.uri))
    assert found.keys() == {"stamp", "files"}
    assert "saved_model.pb at generation" in found["stamp"].wanted


def test_a_local_model_that_was_replaced_bears_no_stamp(local):
    put_stamp(local.uri)
    local.put("saved_model.pb", b"another")
    assert faults(read_model(local.uri)).keys() == {"stamp"}


def test_copies_that_are_gone_or_altered_are_not_believed(model):
    put_stamp(model.uri)
    lock, manifest = sorted(model.copies(), key=lambda name: "manifest" in name)[-2:]
    model.remove(lock)
    model.put(manifest, manifest_bytes(model.uri, created="2020-01-31T12:00:00Z"))
    it = read_model(model.uri)
    assert (it.manifest, it.locks) == (None, {})
    assert it.faults == {lock: "missing", manifest: "its content does not match the record"}
    found = faults(it)
    assert found.keys() == {lock, manifest}
    assert {one.id for one in found.values()} == {"artifact-copies"}
    assert side_of_model(it).packages is None


def test_a_copy_that_cannot_be_read_is_told(local):
    stamp(local.uri, entry(), manifest=b"{}", lock=b"lock", now=NOW)
    it = read_model(local.uri)
    assert sorted(it.faults) == [name for name in local.copies() if "manifest-" in name or "pylock." in name]
    assert {"no schema_version" in text or "not a lock" in text for text in it.faults.values()} == {True}


def test_the_manifest_is_that_of_the_image_for_training(local):
    other = manifest_bytes(local.uri, created="2020-01-31T12:00:00Z")
    put_stamp(local.uri)
    put_stamp(local.uri, other, item=entry("serve"))
    it = read_model(local.uri)
    assert it.manifest.created == "2026-01-31T12:00:00Z"
    assert it.locks.keys() == {("train", "cpu", "linux/amd64"), ("serve", "cpu", "linux/amd64")}
    put_stamp(local.uri, other, item=entry("train", "gpu"))
    assert read_model(local.uri).manifest.created == "2020-01-31T12:00:00Z"


def test_a_lock_with_wheels_of_its_own_machine_is_read(local):
    wheel = replace(WHEEL, url="file:///house/six-1.17.0-py3-none-any.whl")
    put_stamp(local.uri, lock=Lock(target=TARGET, wheels=(wheel,)))
    it = read_model(local.uri)
    assert it.faults == {}
    assert [found.sha256 for found in it.locks["train", "cpu", "linux/amd64"].wheels] == [wheel.sha256]


def test_a_model_that_was_copied_to_a_bucket_is_compared_by_size(local, gcs):
    manifest = manifest_bytes(local.uri)
    bucket = InBucket(gcs)
    put_stamp(bucket.uri, manifest)
    [found] = [it for it in artifact_findings(read_model(bucket.uri)) if it.about == "files"]
    assert found.agrees
    assert "of 2 only the size could be compared" in found.says


def test_a_single_file_may_have_another_name_by_now(tmp_path):
    before, now = tmp_path / "model.keras", tmp_path / "served" / "churn.keras"
    now.parent.mkdir()
    for path in (before, now):
        shutil.copyfile(MODELS / "model.keras", path)
    put_stamp(str(now), manifest_bytes(str(before)))
    assert faults(read_model(str(now))) == {}
    now.write_bytes(b"another")
    put_stamp(str(now), manifest_bytes(str(before)))
    assert faults(read_model(str(now))).keys() == {"files"}


def test_of_a_folder_that_was_recorded_whole_one_file_may_be_stamped(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    shutil.copyfile(MODELS / "model.keras", folder / "model.keras")
    (folder / "log.txt").write_text("loss")
    put_stamp(str(folder / "model.keras"), manifest_bytes(str(folder)))
    assert faults(read_model(str(folder / "model.keras"))) == {}


def test_a_list_that_was_cut_says_nothing_of_what_is_missing(local):
    facts = model_facts(local.uri)
    put_stamp(local.uri, manifest_bytes(local.uri, model=facts | {"files": facts["files"][:1]}))
    assert faults(read_model(local.uri)) == {}


def test_a_run_that_recorded_no_files_says_nothing_of_them(local):
    values = json.loads(manifest_bytes(local.uri))
    del values["model"]
    put_stamp(local.uri, json.dumps(values).encode())
    it = read_model(local.uri)
    first, *others = artifact_findings(it)
    assert [found.about for found in others] == ["copies"]
    assert first.says.startswith("saved_model.pb still is the file that was stamped at 2026-11-21")
    assert first.says.endswith("; the model's other files are not recorded, and were not compared")
    assert side_of_model(it).model.format == "saved_model"


@pytest.mark.parametrize("path", sorted(MODELS.iterdir()), ids=lambda path: path.name)
def test_every_format_is_read_as_a_capture_reads_it(path):
    now = files_now(str(path))
    manifest = read_manifest(manifest_bytes(str(path)), "m")
    assert now == manifest.model


def test_of_a_model_of_one_file_the_stamp_says_all(tmp_path):
    path = tmp_path / "model.keras"
    shutil.copyfile(MODELS / "model.keras", path)
    values = json.loads(manifest_bytes(str(path)))
    del values["model"]
    put_stamp(str(path), json.dumps(values).encode())
    first, *_ = artifact_findings(read_model(str(path)))
    assert first.says == "model.keras still is the file that was stamped at 2026-11-21T12:00:00Z"


def with_weights(local: InFolder) -> Path:
    """A stamped model whose run knew its weights, and the folder of those."""
    weights = local.folder / "variables"
    weights.mkdir(exist_ok=True)
    (weights / "variables.data-00000-of-00001").write_bytes(b"weights")
    put_stamp(local.uri)
    return weights


def test_weights_that_changed_under_an_untouched_anchor_are_found(local):
    weights = with_weights(local)
    assert faults(read_model(local.uri)) == {}
    (weights / "variables.data-00000-of-00001").write_bytes(b"weightz")
    found = faults(read_model(local.uri))
    assert found.keys() == {"files"}
    assert found["files"].severity == "error"
    assert "variables/variables.data-00000-of-00001 is not what the run saved" in found["files"].says


def test_weights_that_are_gone_are_found(local):
    shutil.rmtree(with_weights(local))
    found = faults(read_model(local.uri))
    assert (found["files"].severity, found["files"].says) == (
        "error", "variables/variables.data-00000-of-00001 is missing"
    )  # fmt: skip


@pytest.fixture
def open_to_all():
    """A model where another user may look, too; the folders of pytest are closed, and so may TMPDIR be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield InFolder(Path(folder))


def test_weights_that_may_not_be_read_are_no_agreement(open_to_all):
    """As another user, since root may read everything; what Python loads lies where that user may not look."""
    local = open_to_all
    weights = with_weights(local)
    code = (
        "import sys, os; sys.path.insert(0, sys.argv[2]); "
        "from envbuild.verify.sources.model import artifact_findings, read_model; "
        "read_model(sys.argv[1]); os.getuid() or os.setuid(65534); "
        "print([(it.severity, it.says) for it in artifact_findings(read_model(sys.argv[1])) if not it.agrees])"
    )
    for place, says in (
        (weights / "variables.data-00000-of-00001", "is not readable"),
        (weights, "is missing, or cannot be seen: "),
    ):
        mode = place.stat().st_mode
        place.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", code, local.uri, str(Path(__file__).parents[2])],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        place.chmod(mode)
        [(severity, said)] = ast.literal_eval(done.stdout)
        assert severity == "error"
        assert f"variables/variables.data-00000-of-00001 {says}" in said


def test_two_manifests_that_differ_in_a_digest_alone_differ(local):
    values = json.loads(manifest_bytes(local.uri))
    before = side_of_manifest(read_manifest(json.dumps(values).encode(), "a"), "a")
    assert [it for it in apply_rules(before, before) if not it.agrees] == []
    values["model"]["files"][0]["sha256"] = "f" * 64
    after = side_of_manifest(read_manifest(json.dumps(values).encode(), "b"), "b")
    found = [it for it in apply_rules(before, after) if not it.agrees]
    assert [(it.id, it.severity) for it in found] == [("model-files", "error")]
    assert values["model"]["files"][0]["path"] in found[0].says


def test_a_manifest_against_a_model_with_other_weights_differs(local):
    weights = with_weights(local)
    run = side_of_manifest(read_manifest(manifest_bytes(local.uri), "a"), "a")
    (weights / "variables.data-00000-of-00001").write_bytes(b"other")
    found = [it for it in apply_rules(run, side_of_model(read_model(local.uri))) if not it.agrees]
    assert [(it.id, it.severity) for it in found] == [("model-files", "error")]
