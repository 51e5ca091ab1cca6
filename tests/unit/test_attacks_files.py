"""What files beside those that the run saved can hide: nothing, however many and however large they are.

Each of these attacks passed on 89833a6; those from `proven` on, on cdce94e.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.attest.bundle import record_keys, record_signer
from envbuild.capture import model as facts_module
from envbuild.capture import places
from envbuild.cli.commands import run
from envbuild.errors import VerifyError
from envbuild.lock.formats import pylock_text
from envbuild.stamp.history import Proof
from envbuild.stamp.stamping import stamp
from envbuild.verify.findings import Finding
from envbuild.verify.sources.model import artifact_findings, content_of, files_now, read_model
from tests.unit.attesting import key_pair
from tests.unit.test_embed import Told, origin_of, refused
from tests.unit.test_sides_model import (
    LOCK,
    NOW,
    InBucket,
    InFolder,
    entry,
    gcs,  # noqa: F401 - a fixture
    local,  # noqa: F401
    manifest_bytes,
    model,  # noqa: F401
    put_stamp,
)

WEIGHTS = "weights.bin"


def files_findings(uri: str, proof: Proof | None = None) -> list[Finding]:
    return [it for it in artifact_findings(read_model(uri, proof)) if it.about == "files" and not it.agrees]


def errors(uri: str, proof: Proof | None = None) -> list[str]:
    return [it.says for it in files_findings(uri, proof) if it.severity == "error"]


def crowd(model: InFolder | InBucket, count: int) -> None:  # noqa: F811
    """Add files that sort before the weights, and behind what the stamp hangs on."""
    for number in range(count):
        model.put(f"t{number:05}", b"")


ATTACKS: dict[str, tuple[Callable[[Any], object], str]] = {
    "changed": (lambda it: it.put(WEIGHTS, b"WEIGHTS"), "weights.bin is not what the run saved"),
    "missing": (lambda it: it.remove(WEIGHTS), "weights.bin is missing"),
}


def lower(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Bring a limit down to 50 files."""
    for module in (places, facts_module):
        monkeypatch.setattr(module, name, 50, raising=False)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("cut", ["MOST_FILES", "MOST_COUNTED"])
def test_no_number_of_other_files_hides_a_changed_or_missing_one(model, monkeypatch, attack, cut):  # noqa: F811
    model.put(WEIGHTS, b"weights")
    put_stamp(model.uri)
    # Ten thousand files take their time; but for one folder the limit comes down to the files instead.
    real = isinstance(model, InFolder) and (cut, attack) == ("MOST_FILES", "changed")
    count = places.MOST_FILES + 10 if real else 60
    if count == 60:
        lower(monkeypatch, cut)
    crowd(model, count)
    assert errors(model.uri) == []
    do, says = ATTACKS[attack]
    do(model)
    assert [it for it in errors(model.uri) if it.startswith(says)], errors(model.uri)


def test_verify_with_the_runs_manifest_sees_it_too(local, tmp_path, monkeypatch, capsys):  # noqa: F811
    """The copy beside the stamp is the attacker's, and lists none of the run's files; the named manifest does."""
    local.put(WEIGHTS, b"weights")
    manifest = tmp_path / "run.json"
    manifest.write_bytes(manifest_bytes(local.uri))
    facts = json.loads(manifest.read_bytes())["model"]
    kept = [it for it in facts["files"] if it["path"] != WEIGHTS]
    copy = manifest_bytes(local.uri, model=facts | {"files": kept, "file_count": len(kept)})
    put_stamp(local.uri, copy, item=replace(entry(), reference=None))
    lower(monkeypatch, "MOST_FILES")
    crowd(local, 60)
    local.remove(WEIGHTS)
    for targets in ([str(manifest), local.uri], [local.uri, str(manifest)]):
        run(["verify", *targets, "--json"])
        out, err = capsys.readouterr()
        assert out, err
        found = json.loads(out)["findings"]
        says = [it["says"] for it in found if it["rule"] == "model-files" and not it["agrees"]]
        assert [it for it in says if WEIGHTS in it]


def test_a_list_of_which_no_file_is_there_is_an_error(model):  # noqa: F811
    facts = json.loads(manifest_bytes(model.uri))["model"]
    alone = {"uri": f"{model.uri}/model.keras", "files": [{"path": "model.keras", "size": 7}], "file_count": 1}
    put_stamp(model.uri, manifest_bytes(model.uri, model=facts | alone))
    assert errors(model.uri) == ["model.keras is missing"]


@contextmanager
def signed(uri: str, folder: Path, manifest: bytes | None = None) -> Iterator[Proof]:
    """A model whose stamp a key has signed."""
    private, public = key_pair(folder)
    signer = record_signer(str(private))
    data = manifest or manifest_bytes(uri)
    stamp(uri, entry(), manifest=data, lock=pylock_text(LOCK), now=NOW, signer=signer)
    yield Proof(keys=record_keys([str(public)]))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 42)


def test_sparse_files_of_terabytes_do_not_use_up_the_time_of_those_that_the_run_saved(
    local, tmp_path, monkeypatch  # noqa: F811
):  # fmt: skip
    local.put(WEIGHTS, b"weights")
    with signed(local.uri, tmp_path) as proof:
        monkeypatch.setattr(places, "HASHING", 0.1)
        for number in range(8):
            sparse(local.folder / f"!{number}")
        assert errors(local.uri, proof) == []
        local.put(WEIGHTS, b"WEIGHTS")
        for how in (None, proof):
            assert errors(local.uri, how) == ["weights.bin is not what the run saved"]


def test_with_a_key_a_file_that_was_not_hashed_is_an_error(local, tmp_path, monkeypatch):  # noqa: F811
    local.put(WEIGHTS, b"weights")
    with signed(local.uri, tmp_path) as proof:
        monkeypatch.setattr(places, "HASHING", 0)
        local.put(WEIGHTS, b"WEIGHTS")
        [said] = errors(local.uri, proof)
        assert WEIGHTS in said
        assert said.endswith("could not be hashed in time")


def test_a_file_outside_of_the_model_is_not_looked_up(local, tmp_path, monkeypatch):  # noqa: F811
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    facts = json.loads(manifest_bytes(local.uri))["model"]
    files = [*facts["files"], {"path": "../secret", "size": 6}, {"path": str(secret), "size": 6}]
    put_stamp(local.uri, manifest_bytes(local.uri, model=facts | {"files": files, "file_count": len(files)}))
    monkeypatch.setattr(places, "MOST_COUNTED", 1)
    it = read_model(local.uri)
    assert it.model
    assert not [file.path for file in it.model.files if "secret" in file.path]


def proven(uri: str, folder: Path, manifest: bytes | None = None) -> Proof:
    """Stamp a model with its files in the record, as `from-manifest --stamp --sign` does, and return the proof."""
    private, public = key_pair(folder)
    now = files_now(uri)
    content = content_of(now) if now else None
    data = manifest_bytes(uri) if manifest is None else manifest
    signer = record_signer(str(private))
    stamp(uri, entry(), manifest=data, lock=pylock_text(LOCK), now=NOW, content=content, signer=signer)
    return Proof(keys=record_keys([str(public)]))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_name_with_a_password_is_not_the_name_of_a_recorded_file(model, tmp_path, attack):  # noqa: F811
    model.put(WEIGHTS, b"weights")
    proof = proven(model.uri, tmp_path)
    do, says = ATTACKS[attack]
    do(model)
    model.put(f"z:p@{WEIGHTS}", b"weights")
    for how in (None, proof):
        assert errors(model.uri, how) == [says]


def test_two_names_that_a_record_shows_alike_do_not_replace_each_other(local, tmp_path):  # noqa: F811
    local.put("token:one@w.bin", b"weights")
    proof = proven(local.uri, tmp_path)
    assert errors(local.uri, proof) == []
    local.put("token:one@w.bin", b"other")
    local.put("token:two@w.bin", b"weights")
    [says] = errors(local.uri, proof)
    assert says.endswith("is not what the run saved")


def test_weights_whose_name_is_hidden_are_not_embedded_as_others(local, tmp_path):  # noqa: F811
    local.put(WEIGHTS, b"weights")
    put_stamp(local.uri)
    saved = files_now(local.uri)
    (local.folder / WEIGHTS).rename(local.folder / f"z:p@{WEIGHTS}")
    says = refused(origin_of(local.uri, recorded=saved), tmp_path / "cache", Told(), VerifyError)
    assert "weights.bin is missing" in says


def test_with_a_key_a_file_that_could_be_compared_by_size_alone_is_an_error(local, gcs, tmp_path):  # noqa: F811
    """A capture of local files has sha256 alone, and a bucket crc32c alone; a stamp's record has both."""
    bucket = InBucket(gcs)
    for it in (local, bucket):
        it.put(WEIGHTS, b"weights")
    with signed(bucket.uri, tmp_path, manifest_bytes(local.uri)) as proof:
        bucket.put(WEIGHTS, b"WEIGHTS")
        assert errors(bucket.uri) == []
        [found] = [it for it in files_findings(bucket.uri, proof) if WEIGHTS in it.says]
        assert (found.severity, found.says.endswith("by size only")) == ("error", True)
        assert "stamp the model again" in found.todo
    (tmp_path / "2").mkdir()
    bucket.put(WEIGHTS, b"weights")
    proof = proven(bucket.uri, tmp_path / "2", manifest_bytes(local.uri))
    assert errors(bucket.uri, proof) == []
    bucket.put(WEIGHTS, b"WEIGHTS")
    assert errors(bucket.uri, proof) == ["weights.bin is not what the run saved"]


def test_with_a_key_a_link_out_of_the_model_is_an_error(local, tmp_path):  # noqa: F811
    local.put(WEIGHTS, b"weights")
    proof = proven(local.uri, tmp_path)
    path = local.folder / WEIGHTS
    path.rename(local.folder / "kept")
    path.symlink_to("kept")
    assert errors(local.uri, proof) == []
    (local.folder / "kept").rename(tmp_path / "kept")
    for target in (tmp_path / "kept", f"/proc/self/cwd/{os.path.relpath(tmp_path / 'kept')}"):
        path.unlink()
        path.symlink_to(target)
        assert errors(local.uri, proof) == ["weights.bin is reached by a link out of the model's folder"]
        assert errors(local.uri) == []


def test_with_a_key_files_beyond_the_list_of_the_record_are_an_error(model, tmp_path, monkeypatch):  # noqa: F811
    lower(monkeypatch, "MOST_FILES")
    crowd(model, 60)
    proof = proven(model.uri, tmp_path)
    model.put("t00059", b"other")
    assert errors(model.uri) == []
    [says] = errors(model.uri, proof)
    assert says == "the record lists 50 of the model's 62 files, and the others were not compared"


def test_files_that_were_added_before_the_stamp_do_not_make_the_list_of_the_run_short(
    local, tmp_path, monkeypatch  # noqa: F811
):  # fmt: skip
    manifest = manifest_bytes(local.uri)
    lower(monkeypatch, "MOST_FILES")
    crowd(local, 60)
    assert errors(local.uri, proven(local.uri, tmp_path, manifest)) == []


def test_the_other_files_of_a_model_in_the_root_of_a_bucket_are_missed(gcs, local):  # noqa: F811
    gcs.create_bucket("root")
    gcs.put("root", "saved_model.pb", (local.folder / "saved_model.pb").read_bytes())
    local.put(WEIGHTS, b"weights")
    put_stamp("gs://root/saved_model.pb", manifest_bytes(local.uri))
    assert any("weights.bin" in it and it.endswith("missing") for it in errors("gs://root/saved_model.pb"))


@pytest.mark.parametrize("name", ["m#1", "m?1"])
def test_the_files_of_a_uri_are_those_of_the_model_that_it_names(local, tmp_path, name):  # noqa: F811
    local.put(WEIGHTS, b"weights")
    other = tmp_path / name
    shutil.copytree(local.folder, other)
    local.folder.rename(tmp_path / "m")
    put_stamp(f"file://{other}", manifest_bytes(str(other)))
    (other / WEIGHTS).write_bytes(b"WEIGHTS")
    assert errors(f"file://{other}") == ["weights.bin is not what the run saved"]


def test_links_between_folders_do_not_multiply_without_end(local, monkeypatch):  # noqa: F811
    local.put(WEIGHTS, b"weights")
    put_stamp(local.uri)
    monkeypatch.setattr(places, "MOST_COUNTED", 1000)
    for number in range(14):
        folder = local.folder / f"d{number}"
        folder.mkdir()
        for link in range(8):
            (folder / f"l{link}").symlink_to(f"../d{number + 1}")
    assert errors(local.uri) == []
    local.put(WEIGHTS, b"WEIGHTS")
    assert errors(local.uri) == ["weights.bin is not what the run saved"]
