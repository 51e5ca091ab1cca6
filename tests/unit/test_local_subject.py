"""What is to be reproduced, from a stamped model, a manifest or an image."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from envbuild.capture.files import present
from envbuild.capture.model import model_facts
from envbuild.errors import StampError
from envbuild.local.subject import chosen_side, subject_of_image, subject_of_manifest, subject_of_model
from envbuild.lock.formats import pylock_text
from envbuild.manifest.reader import read_manifest
from envbuild.stamp.record import manifest_name
from envbuild.stamp.stamping import stamp
from envbuild.verify.sources import Side
from envbuild.verify.sources.model import read_model
from tests.unit.attesting import NO_STAMP, REPLACED
from tests.unit.choosing import CUDA, ON_CPU, RUN, image, lock, of_run, stamped
from tests.unit.modelling import MODELS

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GPU, CPU = image("gpu"), image("cpu")
DATA = json.dumps(RUN).encode()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model without a stamp."""
    shutil.copytree(MODELS / "saved_model", tmp_path / "model")
    return tmp_path / "model"


def put_stamp(model: Path, data: bytes = DATA) -> None:
    stamp(str(model), CPU, manifest=data, lock=pylock_text(lock(("tensorflow-cpu", "2.15.1"))), now=NOW)


def test_a_model_is_what_it_is_stamped_with(model):
    put_stamp(model)
    subject = subject_of_model(read_model(str(model)))
    assert (subject.name, subject.model, subject.image) == (str(model), str(model), None)
    assert subject.manifest_bytes == DATA
    assert subject.manifest == read_manifest(DATA, "m")
    assert [(it.slot, it.reference) for it in subject.images] == [(CPU.slot, CPU.reference)]
    assert [it.name for it in subject.locks[CPU.slot].wheels] == ["tensorflow-cpu"]
    assert (subject.side.kind, subject.side.python) == ("model", "3.11.7")


def test_the_newest_stamp_counts(model):
    put_stamp(model)
    newer = json.dumps(RUN | ON_CPU).encode()
    put_stamp(model, newer)
    assert subject_of_model(read_model(str(model))).manifest_bytes == newer


def test_a_damaged_copy_of_the_manifest_is_none(model):
    put_stamp(model)
    [image_now] = subject_of_model(read_model(str(model))).images
    (model / manifest_name(image_now)).write_bytes(b"{}")
    subject = subject_of_model(read_model(str(model)))
    assert (subject.manifest, subject.manifest_bytes, subject.images) == (None, None, (image_now,))


def test_a_model_without_a_stamp_or_with_that_of_another_is_refused(model):
    with pytest.raises(StampError, match=NO_STAMP) as refused:
        subject_of_model(read_model(str(model)))
    assert "--stamp MODEL" in refused.value.todo
    put_stamp(model)
    (model / "saved_model.pb").write_bytes(b"another model")
    with pytest.raises(StampError, match=REPLACED) as refused:
        subject_of_model(read_model(str(model)))
    assert "--stamp MODEL" in refused.value.todo


def test_what_of_a_model_was_changed_after_its_stamp_is_told(model):
    saved = present(model_facts(str(model)))
    put_stamp(model, json.dumps(RUN | {"model": saved}).encode())
    assert subject_of_model(read_model(str(model))).findings == ()
    other = next(it["path"] for it in saved["files"] if it["path"] != "saved_model.pb")
    (model / other).write_bytes(b"another model's")
    (model / "new").touch()
    [lock_copy] = (model / "envbuild").glob("pylock.*")
    lock_copy.unlink()
    found = subject_of_model(read_model(str(model))).findings
    assert [(it.severity, it.rule) for it in found] == [
        ("warning", "artifact-copies"),
        ("error", "artifact-files"),
        ("note", "artifact-files"),
    ]
    assert other in found[1].says


def test_a_manifest_and_an_image_are_taken_as_they_are():
    manifest = read_manifest(DATA, "m")
    run = subject_of_manifest("m", DATA, manifest)
    assert (run.side.kind, run.manifest, run.manifest_bytes, run.images) == ("manifest", manifest, DATA, ())
    side = Side(name="churn:7", kind="image")
    assert (subject_of_image("churn:7", side).side, subject_of_image("churn:7", side).image) == (side, "churn:7")


def test_what_would_run_here_has_the_packages_of_its_lock_and_the_hardware_of_the_run():
    gpu = chosen_side(stamped(GPU, CPU, **ON_CPU), "gpu", "linux/amd64")
    assert (gpu.variant, gpu.machine, gpu.cuda, set(gpu.packages or {})) == (
        "gpu", "x86_64", CUDA[1], {"tensorflow", CUDA[0]},
    )  # fmt: skip
    arm = chosen_side(of_run(), "cpu", "linux/arm64")
    assert (arm.variant, arm.machine, arm.accelerator) == ("cpu", "aarch64", of_run().side.accelerator)
