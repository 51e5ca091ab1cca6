"""What files beside those that the run saved can hide: nothing, however many and however large they are.

Each of these attacks passed on 89833a6.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.attest.records import record_keys, record_signer
from envbuild.capture.model import facts as facts_module
from envbuild.capture.model import places
from envbuild.cli.commands import run
from envbuild.lock import pylock_text
from envbuild.stamp import Proof, stamp
from envbuild.verify.findings import Finding
from envbuild.verify.sides.model import artifact_findings, read_model
from tests.unit.attesting import key_pair
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
    # In a bucket, whose fake takes its time, the limit comes down to the files instead.
    count = places.MOST_FILES + 10 if isinstance(model, InFolder) and cut == "MOST_FILES" else 60
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
def signed(uri: str, folder: Path) -> Iterator[Proof]:
    """A model whose stamp a key has signed."""
    private, public = key_pair(folder)
    signer = record_signer(str(private))
    data = manifest_bytes(uri)
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
        monkeypatch.setattr(places, "HASHING", 0.5)
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
