"""Parity: the recorded sample in an environment, and how far off the nearest and the furthest predictions are."""

import dataclasses
import json
import sys

import pytest

from envbuild.cli.console import Progress
from envbuild.errors import UsageError, VerifyError
from envbuild.local.model import Subject
from envbuild.local.preflight import parity
from envbuild.manifest.reader import read_manifest
from envbuild.verify.golden.arrays import deviation
from envbuild.verify.golden.check import judged
from envbuild.verify.golden.runners import InInterpreter
from envbuild.verify.sources import Side
from tests.unit.test_from_manifest import manifest_of
from tests.unit.test_golden_check import DOUBLED, array_of, environment, golden_of, keras_file

__all__ = ["environment"]
SIDE = Side(name="m", kind="model")


def subject_of(golden, **facts) -> Subject:
    manifest = dataclasses.replace(read_manifest(json.dumps(manifest_of()).encode(), "m"), golden=golden)
    return Subject(name="m", side=SIDE, manifest=manifest, **facts)


def found(subject: Subject, folder):
    with Progress() as told:
        return list(parity(subject, InInterpreter(name=sys.executable), cache=folder, report=told))


@pytest.mark.parametrize(
    ("by", "says"),
    [
        (2, "the model gives what was recorded: 1 output, 2 numbers, exactly"),
        (2.000001, "within 1e-06 + 1e-05 * |recorded|; the largest difference is 1.9e-06"),
        (2.5, "the largest deviation is 1 at [1]: 5.0, and 4.0 was recorded"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_the_largest_difference_is_said_within_the_tolerance_too(tmp_path, by, says):
    model = keras_file(tmp_path / "saved/model.keras", by=by)
    [finding] = found(subject_of(DOUBLED, model=str(model)), tmp_path)
    assert says in finding.says
    assert finding.between == (model.as_uri(), sys.executable)


def test_neither_sample_nor_model_is_guessed(tmp_path):
    with pytest.raises(UsageError, match="there is no model to run"):
        found(subject_of(DOUBLED), tmp_path)
    with pytest.raises(UsageError, match="there is no sample to run"):
        found(Subject(name="image", side=SIDE, image="image", model="m"), tmp_path)
    [finding] = found(subject_of(None, model="m"), tmp_path)
    assert finding.id == "golden-sample"


def test_a_model_that_only_the_manifest_names_is_not_read_outside_of_this_folder(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/link").symlink_to("/etc")
    monkeypatch.chdir(tmp_path / "work")
    for place in (str(tmp_path), "/etc", "file:///etc", "..", "link"):
        it = subject_of(DOUBLED)
        assert it.manifest is not None
        claimed = dataclasses.replace(it, manifest=dataclasses.replace(it.manifest, model_uri=place))
        with pytest.raises(VerifyError, match="give the model itself as TARGET"):
            found(claimed, tmp_path)


def test_of_several_outputs_the_largest_difference_counts_and_the_furthest_beyond_comes_first():
    wanted = golden_of([], [array_of([1.0], "float64", name="a"), array_of([100.0, 0.0], "float64", name="b")])
    [fine] = judged(wanted, [array_of([1.0], "float64", name="a"), array_of([100.0009, 0.0], "float64", name="b")])
    assert fine.says.endswith("the largest difference is 0.0009")
    far = deviation(array_of([100.0, 0.0]), array_of([100.0009, 0.0001]), rtol=1e-5, atol=1e-6)
    assert (far.beyond, far.place, round(far.largest, 6)) == (1, (1,), 0.0001)
    assert deviation(array_of([], shape=(0, 3)), array_of([], shape=(0, 3)), rtol=0, atol=0).largest == 0.0
