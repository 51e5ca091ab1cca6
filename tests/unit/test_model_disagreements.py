"""Facts of one manifest that do not fit together are told, and only those."""

import json

import pytest

from envbuild.capture.model import model_facts
from envbuild.capture.record import find_disagreements
from envbuild.manifest.reader import read_manifest
from tests.unit.modelling import MODELS


def manifest(*distributions: str, **facts) -> dict:
    items = [dict(zip(("name", "version"), item.split("=="), strict=True)) for item in distributions]
    return {"distributions": items, **facts}


def model(name: str, version: str, **details) -> dict:
    return {"uri": "x", "written_by": [{"name": name, "version": version}], "details": details}


def tensorflow(version: str, **facts) -> dict:
    return {"name": "tensorflow", "distribution": "tensorflow", "version": version, **facts}


@pytest.mark.parametrize(
    ("name", "wrote", "installed"),
    [
        ("tensorflow", "2.15.1", "tensorflow==2.15.1"),
        ("tensorflow", "2.15.0-rc1", "tensorflow==2.15.0rc1"),
        ("tensorflow", "2.15.0", "tensorflow==2.15.0.post1"),
        ("tensorflow", "2.22.0-dev20261101", "tensorflow==2.22.0.dev20261101"),
        ("torch", "2.14.1+debian", "torch==2.14.1"),
        ("torch", "2.3.1", "torch==2.3.1+cu121"),
        ("torch", "2.3.1+cu121", "torch==2.3.1+cu121"),
        ("pytorch", "2.3.1", "torch==2.3.1"),
        ("keras", "3.15.1", "keras==3.15.1"),
        ("keras", "2.16.0", "tf_keras==2.16.0"),
        ("keras", "2.4.0", "tensorflow==2.4.4"),
        ("somebody", "1.0", "tensorflow==2.15.1"),
    ],
)
def test_the_same_version_agrees(name, wrote, installed):
    assert find_disagreements(manifest(installed, model=model(name, wrote))) == []


@pytest.mark.parametrize(
    ("name", "wrote", "installed", "environment", "means"),
    [
        ("tensorflow", "2.8.4", "tensorflow==2.15.1", "2.15.1", "may differ"),
        ("tensorflow", "1.15.5", "tensorflow==2.15.1", "2.15.1", "only through tf.compat.v1"),
        ("tensorflow", "2.15.0-rc1", "tensorflow==2.15.0", "2.15.0", "may differ"),
        ("tensorflow", "2.15.1", "numpy==1.26.4", "not installed", "not installed"),
        ("keras", "2.15.0", "keras==3.15.1", "3.15.1", "tf-keras with TF_USE_LEGACY_KERAS=1"),
        ("keras", "3.15.1", "jax==0.4.30", "not installed", "not installed"),
        ("torch", "2.3.1+cu121", "torch==2.3.1+cpu", "2.3.1+cpu", "may differ"),
        ("torch", "2.14.1", "torch==2.6.0", "2.6.0", "may differ"),
        ("torch", "2.3.1.post1", "torch==2.3.1.post2", "2.3.1.post2", "may differ"),
    ],
)
def test_another_version_is_told_with_both(name, wrote, installed, environment, means):
    (found,) = find_disagreements(manifest(installed, model=model(name, wrote)))
    assert found["fact"] == f"{name} version"
    assert found["values"] == {"model": wrote, "environment": environment}
    assert wrote in found["message"]
    assert means in found["message"]


def test_a_framework_is_found_whatever_its_distribution_is_called():
    environment = manifest("tensorflow-cpu==2.15.1", frameworks=[tensorflow("2.15.1")])
    assert find_disagreements({**environment, "model": model("tensorflow", "2.15.1")}) == []
    (found,) = find_disagreements({**environment, "model": model("tensorflow", "2.8.4")})
    assert found["values"] == {"model": "2.8.4", "environment": "2.15.1"}


def test_a_sound_manifest_has_none():
    facts = manifest("tensorflow==2.21.0", "keras==3.15.1", model=model_facts(str(MODELS / "saved_model")))
    assert find_disagreements(facts) == []
    assert find_disagreements({}) == []


def test_a_model_that_is_not_there_is_told(tmp_path):
    uri = str(tmp_path / "nothing")
    (found,) = find_disagreements(manifest(model=model_facts(uri)))
    assert found["values"] == {"model_uri": uri, "environment": "there is no such file or folder"}


def test_a_model_that_cannot_be_read_is_another_matter():
    assert find_disagreements(manifest(model=model_facts("s3://bucket/model"))) == []


def test_builds_over_each_other_are_told():
    (found,) = find_disagreements(manifest("tensorflow==2.15.1", "tensorflow_cpu==2.15.0", "tensorflow-text==2.15.0"))
    assert found["values"] == {"tensorflow": "2.15.1", "tensorflow-cpu": "2.15.0"}
    (found,) = find_disagreements(manifest("tensorflow-cpu==2.15.1", "tf-nightly==2.22.0.dev1"))
    assert "lie over each other" in found["message"]


@pytest.mark.parametrize("shim", ["tensorflow-cpu-aws", "tensorflow-macos", "tensorflow-intel"])
def test_what_tensorflow_itself_depends_on_is_no_second_build(shim):
    assert find_disagreements(manifest("tensorflow==2.13.0", f"{shim}==2.13.0")) == []
    assert find_disagreements(manifest(f"{shim}==2.13.0", "tensorflow-gpu==2.12.0")) != []


def component(name: str, version: str, loaded: bool = True) -> dict:
    return {"name": name, "version": version, "source": "file name", "loaded": loaded}


@pytest.mark.parametrize(("name", "built", "loaded"), [("cuda", "12.5.1", "11.8.89"), ("cudnn", "9", "8.9.7")])
def test_another_cuda_than_it_was_built_for_is_told(name, built, loaded):
    framework = tensorflow("2.21.0", **{name: built})
    facts = manifest(framework=framework, native={"components": [component(name, loaded)]})
    (found,) = find_disagreements(facts)
    assert found["values"] == {"framework": built, "environment": loaded}


def test_the_same_major_version_of_cuda_agrees():
    framework = tensorflow("2.21.0", cuda="12.5.1")
    loaded = [component("cuda", "12.9.37"), component("cublas", "11.1")]
    assert find_disagreements(manifest(framework=framework, native={"components": loaded})) == []
    installed = [component("cuda", "11.8", loaded=False)]
    assert find_disagreements(manifest(framework=framework, native={"components": installed})) == []
    assert find_disagreements(manifest(framework=tensorflow("2.21.0"), native={"components": loaded})) == []


def test_a_backend_that_the_run_did_not_use_is_told():
    facts = manifest("keras==3.15.1", framework=tensorflow("2.21.0"), variables={"KERAS_BACKEND": "jax"})
    (found,) = find_disagreements(facts)
    assert found["values"] == {"KERAS_BACKEND": "jax", "framework": "tensorflow"}
    assert find_disagreements({**facts, "variables": {"KERAS_BACKEND": "tensorflow"}}) == []
    assert find_disagreements({**facts, "distributions": [{"name": "keras", "version": "2.15.0"}]}) == []


def test_a_model_of_another_backend_is_told():
    facts = manifest("keras==3.15.1", model=model("keras", "3.15.1", backend="torch"))
    (found,) = find_disagreements({**facts, "variables": {"KERAS_BACKEND": "jax"}})
    assert found["values"] == {"model": "torch", "KERAS_BACKEND": "jax"}


def test_changed_files_are_told_by_distribution():
    items = [
        {"name": "numpy", "version": "1.26.4", "changed_files": 3},
        {"name": "a", "version": "1", "changed_files": 0},
    ]
    (found,) = find_disagreements({"distributions": items})
    assert found["fact"] == "files of numpy"
    assert found["values"] == {"RECORD": "1.26.4", "environment": "3 files differ"}


def test_what_is_told_is_valid_in_a_manifest():
    example = json.loads((MODELS.parents[2] / "envbuild/manifest/examples.json").read_bytes())[0]
    facts = manifest(
        "tensorflow==2.15.1", "tensorflow-cpu==2.15.0", "keras==3.0.0",
        framework=tensorflow("2.15.1", cuda="12"), native={"components": [component("cuda", "11.8")]},
        variables={"KERAS_BACKEND": "jax"}, model=model("keras", "2.1", backend="torch"),
    )  # fmt: skip
    facts["distributions"][0]["changed_files"] = 1
    found = find_disagreements(facts)
    assert len(found) == 6
    read = read_manifest(json.dumps({**example, "disagreements": found}).encode(), "x")
    assert [item.message for item in read.disagreements] == [item["message"] for item in found]
