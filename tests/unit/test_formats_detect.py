"""Which tool wrote a record; and what its reader may add to one, or to a manifest."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.cli.options import FormatName
from envbuild.errors import ManifestError, UsageError
from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.manifest.importers.detect import FORMATS, convert, detect, main_file
from envbuild.manifest.importers.environment import RecordOptions, supplement
from envbuild.manifest.model import Format, Platform, TrainingManifest
from envbuild.manifest.reader import known_accelerator, manifest_dict
from tests.fuzz.seeds import SEEDS
from tests.unit.converting import NOW, read, record_of, refusal
from tests.unit.test_formats_conda import EXPLICIT, EXPORT, LIST
from tests.unit.test_formats_locks import PYLOCK, UV_LOCK
from tests.unit.test_formats_runs import FOLDER, INSPECT, LISTED, MLMODEL, wandb
from tests.unit.test_formats_text import FREEZE, REQUIREMENTS

SAMPLES: dict[Format, str] = {
    "pip-freeze": FREEZE,
    "pip-list": SEEDS["pip-list"][0].decode(),
    "pip-inspect": json.dumps(INSPECT),
    "requirements": REQUIREMENTS,
    "pylock": PYLOCK,
    "uv-lock": UV_LOCK,
    "poetry-lock": SEEDS["poetry-lock"][0].decode(),
    "pdm-lock": SEEDS["pdm-lock"][0].decode(),
    "pipfile-lock": SEEDS["pipfile-lock"][0].decode(),
    "conda-environment": EXPORT,
    "conda-list": json.dumps(LIST, indent=2),
    "pixi-lock": SEEDS["pixi-lock"][0].decode(),
    "conda-lock": SEEDS["conda-lock"][0].decode(),
    "mlflow": MLMODEL,
    "wandb": wandb(),
}
ALL: dict[str, Any] = {"python": "3.11.7", "platform": "linux/amd64", "gpu": "none"}


def test_every_format_can_be_named_and_is_documented():
    assert set(get_args(Format)) - {"capture"} == set(FORMATS) == set(SAMPLES) == set(get_args(FormatName))


@pytest.mark.parametrize("mark", ["", "﻿"], ids=["plain", "marked"])
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_record_is_known_by_what_it_holds(kind, mark):
    assert detect(record_of("stdin", mark + SAMPLES[kind])) == kind


@pytest.mark.parametrize(
    ("name", "text", "beside", "kind"),
    [
        ("requirements.txt", "idna==3.20\n", {}, "requirements"),
        ("requirements-gpu.txt", "idna==3.20\n", {}, "requirements"),
        ("freeze.txt", "idna==3.20\n", {}, "pip-freeze"),
        ("stdin", "idna==3.20 # why\n", {}, "requirements"),
        ("stdin", "idna\n", {}, "requirements"),
        ("stdin", "numpy==1.26.4 \\\n    --hash=sha256:ab\n", {}, "requirements"),
        ("requirements.txt", LISTED, {"wandb-metadata.json": wandb()}, "wandb"),
        ("requirements.txt", "idna==3.20\n", FOLDER, "mlflow"),
        ("conda.yaml", FOLDER["conda.yaml"], FOLDER, "mlflow"),
        ("conda.yaml", FOLDER["conda.yaml"], {}, "conda-environment"),
        ("python_env.yaml", FOLDER["python_env.yaml"], {}, "mlflow"),
        ("pylock.gpu.toml", "x = 1\n", {}, "pylock"),
        ("explicit.txt", EXPLICIT, {}, "conda-list"),
        ("env.json", json.dumps({"name": "x", "dependencies": []}), {}, "conda-environment"),
        ("manifest.json", '{"schema_version": "1.0"}', {}, "capture"),
        ("manifest.json", '{"schema_version": "1.', {}, "capture"),
    ],
)
def test_its_name_and_neighbours_tell_what_its_lines_leave_open(name, text, beside, kind):
    assert detect(record_of(name, text, beside)) == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n \n",
        "hello world\n",
        "[tool.poetry]\nname = 'x'\n",
        "a: b\nc: d\n",
        "{}",
        '{"_meta": {}}',
        "<html></html>",
    ],
)
def test_what_is_nothing_known_is_answered_by_what_can_be_read(text):
    with pytest.raises(ManifestError) as caught:
        detect(record_of("thing", text))
    assert all(kind in str(caught.value) for kind in FORMATS)
    assert "--from" in caught.value.todo


def test_what_powershell_writes_is_known_too():
    assert detect(record_of("stdin", SAMPLES["pip-inspect"].encode("utf-16"))) == "pip-inspect"
    assert detect(record_of("stdin", SAMPLES["conda-list"].encode("utf-16"))) == "conda-list"


@pytest.mark.parametrize("name", ["wandb-metadata.json", "inspect.json"])
def test_a_report_that_breaks_off_is_no_manifest(name):
    text = SAMPLES["pip-inspect"] if name == "inspect.json" else SAMPLES["wandb"]
    said = refusal(name, text[:-20], {"requirements.txt": LISTED})
    assert "the record is not JSON" in said
    assert "have the tool write it again" in said


def test_what_one_says_is_believed():
    assert read("requirements.txt", "idna==3.20\npip==26\n", kind="pip-freeze", python="3.11.7").source.complete
    said = refusal("requirements.txt", "idna==3.20\n", kind="uv-lock", python="3.11.7")
    assert "not TOML" in said


def test_a_folder_is_read_by_the_file_that_tells_what_it_is():
    assert main_file({"MLmodel", "requirements.txt"}.__contains__, "x") == "MLmodel"
    assert main_file({"files/wandb-metadata.json"}.__contains__, "x") == "files/wandb-metadata.json"
    with pytest.raises(ManifestError, match="neither MLmodel nor"):
        main_file({"requirements.txt"}.__contains__, "x")


@pytest.mark.parametrize("kind", SAMPLES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_broken_records_are_read_or_refused(kind, data):
    content = SAMPLES[kind].encode()
    at, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 60))
    broken = content[:at] + data.draw(st.binary(max_size=12)) + content[at + length :]
    record = record_of("stdin", broken, {"requirements.txt": LISTED})
    try:
        manifest = convert(record, kind, RecordOptions(**ALL), NOW)
    except (ManifestError, UsageError):
        return
    assert isinstance(manifest, TrainingManifest)


def captured(**changes) -> str:
    values = manifest_dict(read("freeze.txt", "idna==3.20\n", python="3.11.7"))
    values |= {"source": {"format": "capture"}, "platform": {"system": "Linux", "machine": "x86_64"}}
    return json.dumps(values | changes)


def test_a_manifest_stays_as_it_is():
    manifest = read("manifest.json", captured())
    assert manifest.source.format == "capture"
    assert read("manifest.json", captured(), python="3.11.7", platform="linux/amd64", gpu="none") == manifest


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"python": "3.10.12"}, "the record says Python 3.11.7"),
        ({"platform": "linux/arm64"}, "the record says Linux x86_64"),
        ({"gpu": "Tesla T4"}, "the record says none"),
    ],
)
def test_a_captured_manifest_is_never_contradicted(option, says):
    with pytest.raises(UsageError) as caught:
        read("manifest.json", captured(), **option)
    assert says in str(caught.value)


def test_the_gpus_of_a_manifest_are_compared_by_name():
    accelerator = {"gpus": [{"name": "Tesla T4"}, {"name": "Tesla T4"}]}
    assert read("manifest.json", captured(accelerator=accelerator), gpu="tesla t4").accelerator
    with pytest.raises(UsageError, match="the record says tesla t4"):
        read("manifest.json", captured(accelerator=accelerator), gpu="none")


def test_what_a_converted_manifest_does_not_know_can_be_given_later():
    first = read("freeze.txt", "idna==3.20\n", python="3.11.7")
    later = supplement(first, RecordOptions(gpu="Tesla T4", platform="linux/arm64"), "x")
    assert later.accelerator == Accelerator(gpus=(Gpu(name="Tesla T4"),), source="--gpu")
    assert (later.platform.system, later.platform.machine) == ("Linux", "aarch64")
    assert set(first.source.unknown) - set(later.source.unknown) == {
        "accelerator", "platform.system", "platform.machine",
    }  # fmt: skip


def test_where_the_model_lies_is_given_once():
    manifest = read("freeze.txt", "idna==3.20\n", python="3.11.7", model="gs://user:canary@models/1")
    assert manifest.model_uri == "gs://models/1"
    assert "model_uri" not in manifest.source.unknown
    assert read("m.json", captured(model_uri="gs://models/1"), model="gs://models/1").model_uri == "gs://models/1"
    with pytest.raises(UsageError, match="the record says gs://models/1"):
        read("m.json", captured(model_uri="gs://models/1"), model="gs://models/2")


def test_an_absent_accelerator_means_none_in_a_capture_only():
    manifest = read("manifest.json", captured())
    assert known_accelerator(manifest) == Accelerator(kind="none")
    assert known_accelerator(replace(manifest, source=replace(manifest.source, unknown=("accelerator",)))) is None
    assert known_accelerator(read("freeze.txt", "idna==3.20\n", python="3.11.7")) is None


def test_machines_have_several_names():
    windows = captured(platform={"system": "Windows", "machine": "x64"})
    assert read("manifest.json", windows, platform="windows/amd64").platform == Platform(
        system="Windows", machine="x64"
    )
