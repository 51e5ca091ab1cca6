"""The model in an image: found where a server looks, held against the stamped one, and never taken for another."""

import json
from dataclasses import replace
from typing import Any

import pytest

from envbuild.oci.digest import Digest
from envbuild.verify.findings import Finding
from envbuild.verify.rules import apply_rules
from envbuild.verify.rules.model import model_files
from envbuild.verify.sources import Side
from envbuild.verify.sources.image import side_of_image
from tests.fakes.trees import BASE, image_of_trees
from tests.unit.test_rules import RUN, saved

OWN = {"model/": 0o755, "model/weights": b"7 bytes"}
OTHER = {"srv/other/": 0o755, "srv/other/weights": b"others."}
URI = "gs://acme/churn"
MODEL = replace(saved(RUN, uri=URI, weights=Digest.of(b"7 bytes").hex), kind="model")


def side(*trees: dict[str, Any], env: tuple[str, ...] = (), folder: str = "", name: str = "docker://churn:7") -> Side:
    made = image_of_trees(BASE, *trees, env=("PATH=/usr/bin", *env))
    value = json.loads(made.config)
    value["config"]["WorkingDir"] = folder
    image = replace(made, config=json.dumps(value).encode())
    return side_of_image(image, name, machine="x86_64", report=lambda *_: None)


def found(image: Side, model: Side = MODEL) -> Finding | None:
    there = apply_rules(model, image, (model_files,))
    assert {(it.rule, it.agrees) for it in apply_rules(image, model, (model_files,))} == {
        (it.rule, it.agrees) for it in there
    }
    return there[0] if there else None


@pytest.mark.parametrize(
    ("trees", "env", "folder"),
    [
        ((OWN,), (), ""),
        ((OWN, OTHER), (), "/srv"),
        ((OWN, {"model/envbuild/record.json": b"{}"}), (), ""),
        (({"srv/m/weights": b"7 bytes"}, OTHER), ("ENVBUILD_MODEL_FOLDER=/srv/m",), ""),
        (({"srv/m/weights": b"7 bytes"}, OTHER), ("ENVBUILD_MODEL_FOLDER=./m/",), "/srv"),
        (({"srv/m/weights": b"7 bytes"}, OTHER), ("AIP_STORAGE_URI=/srv/m", "ENVBUILD_MODEL_FOLDER=/srv/other"), ""),
        (({"srv/a b/weights": b"7 bytes"},), ("AIP_STORAGE_URI=file:///srv/a%20b",), ""),
        (({"srv/weights": b"7 bytes"}, OTHER), ("AIP_STORAGE_URI=/srv/weights",), ""),
        ((OTHER,), (f"AIP_STORAGE_URI={URI}/",), ""),
    ],
)
def test_the_stamped_model_is_found_where_a_server_looks(trees, env, folder):
    it = found(side(*trees, env=env, folder=folder))
    assert it
    assert it.agrees, it


@pytest.mark.parametrize(
    ("trees", "env", "folder", "says"),
    [
        (({"model/weights": b"others."},), (), "", "weights is not the same"),
        ((OWN, OTHER, {".wh.model": b"", "model": "-> /srv/other"}), (), "", "/model is a link to /srv/other"),
        ((OTHER, {"model/weights": "-> /srv/other/weights"}), (), "", "/model/weights is a link"),
        ((OTHER, {"srv/l": "-> /srv/other"}), ("ENVBUILD_MODEL_FOLDER=/srv/l",), "", "/srv/l is a link"),
        ((OTHER, {"l": "-> /srv"}), ("ENVBUILD_MODEL_FOLDER=/l/other",), "", "/l is a link to /srv"),
        ((OTHER,), ("ENVBUILD_MODEL_FOLDER=/srv/other/weights",), "", "weights is not the same"),
        ((OWN, OTHER), ("ENVBUILD_MODEL_FOLDER=other",), "/srv", "weights is not the same"),
        ((OWN, OTHER), ("AIP_STORAGE_URI=/srv/other",), "", "weights is not the same"),
        ((OWN,), ("AIP_STORAGE_URI=gs://evil/other",), "", "takes its model from gs://evil/other, another place"),
        ((OWN,), ("AIP_STORAGE_URI=s3://evil/other",), "", "takes its model from s3://evil/other, another place"),
        ((OWN,), ("ENVBUILD_MODEL_FOLDER=/",), "", "it is all of the image"),
    ],
)
def test_another_model_is_never_taken_for_it(trees, env, folder, says):
    it = found(side(*trees, env=env, folder=folder))
    assert it
    assert (it.agrees, it.severity, it.rule) == (False, "error", "model-files")
    assert says in it.says


def test_what_is_given_at_the_start_is_a_warning_and_an_image_without_a_model_says_nothing():
    assert found(side(OTHER)) is None
    it = found(side(OTHER, env=("AIP_STORAGE_URI=/mnt/model",)))
    assert it
    assert (it.agrees, it.severity) == (False, "warning")
    assert "docker://churn:7:/mnt/model, where nothing lies" in it.says
    run = found(side(env=("AIP_STORAGE_URI=gs://acme/copy",)), replace(MODEL, kind="manifest"))
    assert run
    assert run.severity == "warning"


def test_models_in_two_images_are_two():
    one, other = side(OWN), side({"model/weights": b"others."}, name="other:1")
    assert [it.severity for it in apply_rules(one, other, (model_files,))] == ["warning"]
