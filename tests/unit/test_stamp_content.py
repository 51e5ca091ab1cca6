"""A stamp belongs to its model: the files are held against the manifest, the anchor stays, and the record has them all.

All of these fail on 89833a6, where `--stamp` looks at no file but the anchor, but for the two that old records and
manifests still read.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.attest.bundle import record_keys, record_signer
from envbuild.capture import files as hashing
from envbuild.capture.model import model_facts
from envbuild.errors import StampError
from envbuild.stamp import directory
from envbuild.stamp.history import Proof, read_history, read_stamp
from envbuild.stamp.record import ModelFiles, StampedFile, read_record, record_bytes, record_name
from envbuild.stamp.stamping import check_stampable, stamp
from envbuild.verify.sources.model import artifact_findings, content_of, files_now, read_model
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import serving
from tests.unit.attesting import NO_RECORD, key_pair
from tests.unit.modelling import MODELS
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site, manifest_of
from tests.unit.test_sides_model import NOW, entry, gcs, manifest_bytes  # noqa: F401 - a fixture


class Put:
    """A folder of files, of this machine or in a bucket."""

    def __init__(self, uri: str, gcs: FakeGcs | None) -> None:  # noqa: F811
        self.uri, self.gcs = uri, gcs

    def put(self, name: str, data: bytes = b"x") -> None:
        if self.gcs:
            self.gcs.put("models", f"m/{name}", data)
        else:
            path = Path(self.uri, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@pytest.fixture(params=["folder", "bucket"])
def files(request, tmp_path):
    if request.param == "folder":
        return Put(str(tmp_path / "m"), None)
    server = request.getfixturevalue("gcs")
    server.create_bucket("models")
    return Put("gs://models/m", server)


def write(uri: str, role: str = "train", manifest: bytes | None = None, signer: Any = None) -> Any:
    now = files_now(uri)
    content = content_of(now) if now else None
    data = manifest_bytes(uri) if manifest is None else manifest
    return stamp(uri, entry(role), manifest=data, lock=b"", now=NOW, content=content, signer=signer)


@pytest.mark.parametrize("anchor", ["model.keras", "model.safetensors", "config.json", "1/weights.h5"])
def test_a_thousand_checkpoints_that_sort_before_it_leave_the_anchor_in_its_place(files, anchor):
    files.put(anchor)
    first = write(files.uri)
    for number in range(1001):
        files.put(f"!checkpoint-{number:04}.keras" if anchor != "config.json" else f"!checkpoint-{number:04}")
    assert first.stamp.anchor.name == anchor
    found = read_stamp(files.uri)
    assert found == first.stamp
    second = write(files.uri, "serve")
    assert (second.stamp.previous, second.stamp.counter) == (first.record, 2)


def test_a_replaced_anchor_stays_the_anchor(files):
    files.put("model.safetensors", b"one")
    write(files.uri)
    files.put("a.safetensors")
    files.put("model.safetensors", b"two")
    assert write(files.uri).stamp.anchor.name == "model.safetensors"


def test_the_anchor_of_a_record_is_never_looked_up_outside_of_the_folder(tmp_path):
    model = Put(str(tmp_path / "m"), None)
    model.put("model.keras")
    (tmp_path / "secret").write_bytes(b"")
    result = write(model.uri)
    for number, name in enumerate(("../secret", str(tmp_path / "secret"), "envbuild/pointer.json", "")):
        value = json.loads(record_bytes(result.stamp)) | {"created": f"2027-01-0{number + 1}T00:00:00Z"}
        value["anchor"]["name"] = name
        data = json.dumps(value).encode()
        model.put(record_name(data), data)
    model.put("model.keras", b"other")
    read_history(model.uri)
    assert write(model.uri).stamp.anchor.name == "model.keras"


def test_a_record_that_may_not_be_read_is_no_reason_to_take_an_older_one(tmp_path, monkeypatch):
    model = Put(str(tmp_path / "m"), None)
    model.put("model.keras")
    write(model.uri)
    pointer, regular = Path(model.uri, "envbuild/pointer.json"), directory._regular
    older = pointer.read_bytes()
    newest = Path(model.uri, write(model.uri, "serve").record)
    pointer.write_bytes(older)

    def refused(path: Path, flags: int) -> Any:
        if path == newest:
            raise PermissionError(13, "Permission denied")
        return regular(path, flags)

    monkeypatch.setattr(directory, "_regular", refused)
    with pytest.raises(StampError) as caught:
        read_history(model.uri)
    assert caught.value.where == str(newest)


def test_the_placeholder_of_a_folder_is_no_model_and_no_anchor(gcs):  # noqa: F811
    gcs.create_bucket("models")
    for name in ("m/", "m/variables/"):
        gcs.put("models", name, b"")
    for uri in ("gs://models/m", "gs://models/m/"):
        with pytest.raises(StampError) as caught:
            check_stampable(uri)
        assert caught.value.where == "gs://models/m"
    gcs.put("models", "m/model.keras", b"1")
    assert write("gs://models/m/").stamp.anchor.name == "model.keras"
    gcs.put("models", "m/model.keras", b"2")
    assert read_stamp("gs://models/m") is None


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.bin", "w.pkl", "w.joblib", "w.onnx"])
def test_what_holds_weights_is_chosen_before_what_does_not(tmp_path, name):
    model = Put(str(tmp_path / "m"), None)
    for each in ("config.json", name):
        model.put(each)
    assert write(model.uri).stamp.anchor.name == name


def faults(uri: str, proof: Proof | None = None) -> list[tuple[str, str]]:
    found = artifact_findings(read_model(uri, proof))
    return [(it.severity, it.says) for it in found if not it.agrees and it.about == "files"]


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
def test_weights_that_were_replaced_beside_the_anchor_are_seen(files, listed):
    """Also where the run's manifest lists no files at all, as another tool's record does."""
    files.put("config.json", b"{}")
    files.put("weights-1.bin", b"one")
    files.put("weights-2.bin", b"two")
    write(files.uri, manifest=None if listed else manifest_bytes(files.uri, model=None))
    assert faults(files.uri) == []
    files.put("weights-2.bin", b"owt")
    [(severity, says)] = faults(files.uri)
    assert (severity, says) == ("error", f"weights-2.bin is not what {'the run saved' if listed else 'was stamped'}")


def test_a_local_manifests_files_are_compared_by_content_in_a_bucket(tmp_path, gcs):  # noqa: F811
    """A capture of local files has sha256, and a bucket crc32c: the record has both since it was stamped."""
    local = Put(str(tmp_path / "m"), None)
    gcs.create_bucket("models")
    bucket = Put("gs://models/m", gcs)
    for files in (local, bucket):
        files.put("config.json", b"{}")
        files.put("weights.dat", b"one")
    write(bucket.uri, manifest=manifest_bytes(local.uri))
    bucket.put("weights.dat", b"two")
    assert faults(bucket.uri) == [("error", "weights.dat is not what the run saved")]


def test_with_a_key_an_object_that_was_written_anew_with_the_same_checksum_is_an_error(tmp_path, gcs):  # noqa: F811
    gcs.create_bucket("models")
    bucket = Put("gs://models/m", gcs)
    bucket.put("config.json", b"{}")
    bucket.put("weights.dat", b"one")
    private, public = key_pair(tmp_path)
    write(bucket.uri, signer=record_signer(str(private)))
    proof = Proof(keys=record_keys([str(public)]))
    assert faults(bucket.uri, proof) == []
    bucket.put("weights.dat", b"one")
    assert faults(bucket.uri) == []
    assert faults(bucket.uri, proof) == [("error", "weights.dat is written again since it was stamped")]


def test_a_record_of_before_reads_back_as_the_bytes_that_it_was(files):
    files.put("model.keras")
    old = stamp(files.uri, entry(), manifest=manifest_bytes(files.uri), lock=b"", now=NOW)
    assert b'"content"' not in record_bytes(old.stamp)
    data = record_bytes(old.stamp).replace(b'"schema_version":"1.2"', b'"schema_version":"1.1"')
    assert record_bytes(read_record(record_name(data), data)) == data
    new = write(files.uri)
    assert (new.changed, new.stamp.previous) == (True, old.record)
    assert not write(files.uri).changed


def test_a_record_with_files_reads_back(tmp_path):
    model = Put(str(tmp_path / "m"), None)
    model.put("model.keras")
    found = write(model.uri).stamp
    file = StampedFile(path="model.keras", size=1, sha256=found.anchor.generation.removeprefix("sha256:"))
    assert found.content == ModelFiles(files=(file,), file_count=1)
    data = record_bytes(found)
    assert read_record(record_name(data), data) == found


@pytest.mark.parametrize(
    "file", [{"path": "a\nb", "size": 1}, {"path": "a", "size": -1}, {"path": "a", "size": 1, "sha256": "x"}, "a"]
)
def test_a_record_with_impossible_files_is_refused(tmp_path, file):
    model = Put(str(tmp_path / "m"), None)
    model.put("model.keras")
    value = json.loads(record_bytes(write(model.uri).stamp))
    value["content"]["files"] = [file]
    data = json.dumps(value).encode()
    with pytest.raises(StampError, match=NO_RECORD):
        read_record(record_name(data), data)


def test_a_local_file_is_read_once_for_as_long_as_it_is_the_same(tmp_path, monkeypatch):
    def read_bytes() -> int:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(fields["rchar"])

    monkeypatch.setattr(hashing, "SETTLED", -60)
    model = Put(str(tmp_path / "m"), None)
    model.put("config.json", b"{}")
    model.put("weights.dat", bytes(size := 20_000_000))
    before = read_bytes()
    check_stampable(model.uri)
    write(model.uri)
    read_model(model.uri)
    assert read_bytes() - before < 2 * size
    model.put("weights.dat", b"1" * size)
    assert faults(model.uri) == [("error", "weights.dat is not what the run saved")]


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    with serving(TENSORFLOW, TOOL) as server:
        yield server.url


class Trained(Site):
    """A run that saved a model into `model`, and its manifest."""

    def __init__(self, folder: Path, index: str) -> None:
        super().__init__(folder, index)
        shutil.rmtree(folder / "model")
        shutil.copytree(MODELS / "saved_model", folder / "model")
        graph = folder / "model/saved_model.pb"
        graph.write_bytes(graph.read_bytes().replace(b"2.21.0", b"2.15.1"))  # what the run has
        facts = {key: value for key, value in model_facts(str(folder / "model")).items() if value is not None}
        self.manifest.write_text(json.dumps(manifest_of(model=facts)))

    def stamps(self, *options: str) -> tuple[int, str]:
        done = self.build("--out", "out", *options)
        return done.returncode, " ".join(done.stderr.split())


@pytest.fixture
def trained(tmp_path, index):
    return Trained(tmp_path, index)


def test_another_model_is_refused_before_anything_is_built_with_both_named(trained):
    (trained.folder / "other").mkdir()
    (trained.folder / "other/model.joblib").write_bytes(b"sklearn")
    code, says = trained.stamps("--stamp", "other")
    assert code == 15
    assert f"{trained.folder}/model: " in says
    assert "saved_model.pb" in says
    assert "model.joblib is not in the manifest" in says
    assert "where: other" in says
    assert "--stamp-anyway" in says
    assert not (trained.folder / "out").exists()
    assert not (trained.folder / "other/envbuild").exists()


def test_appended_changed_and_missing_files_are_refused_and_the_manifest_itself_is_not(trained):
    model = trained.folder / "model"
    shutil.copyfile(trained.manifest, model / "manifest.json")
    assert trained.stamps("--stamp", "model")[0] == 0
    (model / "adapter.bin").write_bytes(b"1")
    code, says = trained.stamps("--stamp", "model")
    assert (code, "adapter.bin is not in the manifest" in says) == (15, True)
    (model / "adapter.bin").unlink()
    old = (model / "saved_model.pb").read_bytes()
    (model / "saved_model.pb").write_bytes(old[:-1] + b"!")
    code, says = trained.stamps("--stamp", "model")
    assert (code, "saved_model.pb is not what the run saved" in says) == (15, True)


def test_a_folder_may_have_a_file_of_its_own_name(trained):
    model = trained.folder / "model"
    shutil.copyfile(model / "saved_model.pb", model / "model")
    facts = {key: value for key, value in model_facts(str(model)).items() if value is not None}
    trained.manifest.write_text(json.dumps(manifest_of(model=facts)))
    assert trained.stamps("--stamp", "model")[0] == 0


def test_what_is_forced_is_in_the_record_and_said_by_who_reads_it(trained):
    (trained.folder / "model/README").write_bytes(b"1")
    code, says = trained.stamps("--stamp", "model", "--stamp-anyway")
    assert code == 0
    assert "stamping model although the model is not the one that" in says
    found = read_stamp(str(trained.folder / "model"))
    assert found
    assert found.content
    assert found.content.forced.startswith("README is not in the manifest")
    [(severity, said)] = faults(str(trained.folder / "model"))
    assert (severity, "README is not in the manifest" in said) == ("warning", True)


def test_a_manifest_that_lists_no_files_stamps_with_a_note(trained):
    trained.manifest.write_text(json.dumps(manifest_of()))
    code, says = trained.stamps("--stamp", "model")
    assert code == 0
    assert "lists no files of the model" in says
    assert read_stamp(str(trained.folder / "model")).content.files  # type: ignore[union-attr]


def test_anyway_without_a_model_is_a_usage_error(trained):
    code, says = trained.stamps("--stamp-anyway")
    assert (code, "--stamp-anyway" in says) == (2, True)


@pytest.mark.parametrize("name", ["fingerprint.pb", "added.bin"])
def test_a_record_without_files_does_not_vouch_for_files_that_changed_since_the_stamp_in_place(trained, name):
    """On 6aa7f22 the second stamp is written, with the warning that the record lists no files."""
    model = str(trained.folder / "model")
    trained.manifest.write_text(json.dumps(manifest_of()))
    assert trained.stamps("--stamp", "model")[0] == 0
    code, says = trained.stamps("--stamp", "model")
    assert (code, "the model already has this stamp, of " in says) == (0, True)
    Path(model, name).write_bytes(b"other")
    code, says = trained.stamps("--stamp", "model")
    how = "not what was stamped" if name == "fingerprint.pb" else "not in the stamp"
    assert (code, f"lists no files: {name} is {how}" in says) == (15, True)
    assert "the model is not the one that was stamped at 20" in says
    assert "--stamp-anyway" in says
    assert trained.stamps("--stamp", "model", "--stamp-anyway")[0] == 0
    for options in ((), ("--stamp-anyway",)):  # what was forced stays in the record
        assert trained.stamps("--stamp", "model", *options)[0] == 0
        found = read_stamp(model)
        assert found.content.forced.startswith(f"{name} is {how}")  # type: ignore[union-attr]


def test_what_only_the_stamp_lists_is_as_when_it_was_stamped(tmp_path):
    """On 6aa7f22 it is as the run saved it, though the run's manifest lists nothing."""
    model = Put(str(tmp_path / "m"), None)
    for name in ("config.json", "weights.bin"):
        model.put(name)
    write(model.uri, manifest=manifest_bytes(model.uri, model=None))
    [says] = [it.says for it in artifact_findings(read_model(model.uri)) if it.about == "files"]
    assert says == "the model's 2 files are as when it was stamped"
    write(model.uri)
    [says] = [it.says for it in artifact_findings(read_model(model.uri)) if it.about == "files"]
    assert says == "the model's 2 files are as the run saved them"


def test_a_forced_stamp_is_one_line_about_the_files(trained):
    """On 6aa7f22 an agreement stands beside the warning."""
    (trained.folder / "model/README").write_bytes(b"1")
    assert trained.stamps("--stamp", "model", "--stamp-anyway")[0] == 0
    [line] = [it for it in artifact_findings(read_model(str(trained.folder / "model"))) if it.about == "files"]
    assert (line.severity, line.agrees) == ("warning", False)
    assert line.says.startswith("it was stamped with --stamp-anyway, although README is not in the manifest")


class Touched(dict[str, bytes]):
    """Files of an index; whoever reads one changes the model as well."""

    path: Path

    def __getitem__(self, name: str) -> bytes:
        self.path.write_bytes(b"while it was built")
        return super().__getitem__(name)


def test_what_is_forced_because_the_model_changed_during_the_build_is_said(tmp_path):
    """On 6aa7f22 it is in the record, and no line says so."""
    with serving(TENSORFLOW, TOOL) as server:
        site = Trained(tmp_path, server.url)
        server.files = Touched(server.files)
        server.files.path = tmp_path / "model/README"
        code, says = site.stamps("--stamp", "model", "--stamp-anyway")
    assert code == 0
    assert "stamping model although" in says
    assert "README is not in the manifest" in says


def test_what_was_forced_for_a_manifest_need_not_be_forced_again_for_it_and_for_no_other(trained):
    """On 6aa7f22 only the serving image may be stamped without the option."""
    (trained.folder / "model/README").write_bytes(b"1")
    assert trained.stamps("--stamp", "model", "--stamp-anyway")[0] == 0
    assert trained.stamps("--stamp", "model")[0] == 0
    assert read_stamp(str(trained.folder / "model")).content.forced  # type: ignore[union-attr]
    trained.manifest.write_text(trained.manifest.read_text().replace("{", "{ ", 1))
    code, says = trained.stamps("--stamp", "model")
    assert (code, "README is not in the manifest" in says) == (15, True)
