"""Settling a contract: which source provides a variable, what is missing, and where data and model are seen."""

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import UsageError
from envbuild.local.contract import settle
from envbuild.local.model import Mount, Settled, Subject
from envbuild.manifest.model import Contract, Data, RequiredVariable
from envbuild.verify.sources import side_of_manifest
from tests.unit.test_sides_manifest import a_manifest

SECRET = "ghp_0123456789abcdefghijABCDEF"


def subject(
    *needed: str,
    recorded: dict[str, str] | None = None,
    data: tuple[Data, ...] = (),
    model: str | None = None,
    **more: Any,
) -> Subject:
    """A run that had `needed`, and recorded some values."""
    contract = Contract(variables=tuple(RequiredVariable(name=it, present=True) for it in needed), data=data)
    manifest = a_manifest(variables=tuple((recorded or {}).items()), contract=contract, **more)
    return Subject(name="run.json", side=side_of_manifest(manifest, "run.json"), manifest=manifest, model=model)


def settled(
    it: Subject, *options: str, files=(), maps=(), with_adc=False, yes_data=False, **environment: str
) -> Settled:
    return settle(
        it, options=options, env_files=files, maps=maps, with_adc=with_adc, environment=environment, yes_data=yes_data
    )


@pytest.fixture
def env_file(tmp_path):
    def write(text: str, name: str = ".env") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_each_source_goes_before_those_named_earlier(env_file):
    names = ("OMP_NUM_THREADS", "FILE", "LATER", "SHELL_ONE", "OPTION")
    run = subject(*names, recorded=dict.fromkeys(names, "run"))
    files = (
        env_file("FILE=first\nLATER=first\nSHELL_ONE=first\nOPTION=first\n"),
        env_file("LATER=${FILE}+second\n", "more.env"),
    )
    found = settled(run, "OPTION=given", "SHELL_ONE", "OPTION", files=files, SHELL_ONE="caller", OPTION="caller")
    assert found.variables == {
        "OMP_NUM_THREADS": "run",
        "FILE": "first",
        "LATER": "first+second",
        "SHELL_ONE": "caller",
        "OPTION": "given",
    }
    assert found.where == {
        "OMP_NUM_THREADS": "run",
        "FILE": ".env",
        "LATER": ".env",
        "SHELL_ONE": "shell",
        "OPTION": "option",
    }
    assert found.missing == ()


def test_of_the_run_comes_what_changes_numbers_or_is_needed_and_nothing_of_its_machine():
    recorded = {
        "TF_DETERMINISTIC_OPS": "1",
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir=/usr/local/cuda --xla_cpu_enable_fast_math=false",
        "JAX_PLATFORMS": "cpu,cuda",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
        "HOME": "/home/trainer",
        "CUDA_VISIBLE_DEVICES": "3",
        "AIP_MODEL_DIR": "gs://jobs/17/model/",
        "AIP_DATA_FORMAT": "csv",
        "NOT_NEEDED": "x",
        "BUCKET": "acme",
        "EMPTY": "",
        "KEY": "[redacted]",
        "URL": "https://[redacted]@db/x",
    }
    needed = [it for it in recorded if it != "NOT_NEEDED"]
    found = settled(subject(*needed, recorded=recorded))
    assert found.variables == {
        "TF_DETERMINISTIC_OPS": "1",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=false",
        "AIP_DATA_FORMAT": "csv",
        "BUCKET": "acme",
        "EMPTY": "",
    }
    # HOME is set in every container.
    assert found.missing == (
        "AIP_MODEL_DIR", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "KEY", "LD_LIBRARY_PATH", "URL",
    )  # fmt: skip
    only_cpu = settled(subject(recorded={"JAX_PLATFORMS": "cpu"}))
    assert only_cpu.variables == {"JAX_PLATFORMS": "cpu"}


def test_a_variable_that_the_run_did_not_have_is_not_missing():
    contract = Contract(variables=(RequiredVariable(name="OPTIONAL", present=False),))
    manifest = a_manifest(contract=contract)
    it = Subject(name="run", side=side_of_manifest(manifest, "run"), manifest=manifest)
    assert settled(it).missing == ()


def test_what_names_a_mapped_place_is_rewritten_whoever_gave_it(tmp_path, env_file):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    data = Data(uri="gs://acme/churn/train-*", variable="AIP_TRAINING_DATA_URI", size=12)
    recorded = {
        "AIP_TRAINING_DATA_URI": "gs://acme/churn/train-*",
        "AIP_MODEL_DIR": "gs://jobs/17/model/",
        "OTHER": "gs://acme/churn-old",
    }
    it = subject("AIP_MODEL_DIR", "OTHER", recorded=recorded, data=(data,), model="gs://jobs/17/model")
    maps = (f"gs://acme/churn={tmp_path}/in", f"gs://jobs/17={tmp_path}/out:rw")
    found = settled(it, "MINE=gs://acme/churn", files=[env_file("YOURS=gs://jobs/17/x\n")], maps=maps)
    assert found.variables == {
        "AIP_TRAINING_DATA_URI": "/gcs/acme/churn/train-*",
        "AIP_MODEL_DIR": "/gcs/jobs/17/model/",
        "OTHER": "gs://acme/churn-old",
        "MINE": "/gcs/acme/churn",
        "YOURS": "/gcs/jobs/17/x",
        "ENVBUILD_MODEL": "/gcs/jobs/17/model",
    }
    assert found.where["MINE"] == found.where["YOURS"] == "data"
    # What the run says stays the run's: only who gave a value can have it taken from the shell again.
    assert found.where["AIP_MODEL_DIR"] == found.where["OTHER"] == "run"
    assert found.mounts == (
        Mount(source=tmp_path / "in", target="/gcs/acme/churn", read_only=True),
        Mount(source=tmp_path / "out", target="/gcs/jobs/17"),
    )


def test_local_data_of_the_run_is_mounted_only_below_this_folder_and_by_yes_data(tmp_path, monkeypatch):
    work = tmp_path / "work"
    for folder in ("data/inner", "work/here", "work/moved", "work/data/inner"):
        (tmp_path / folder).mkdir(parents=True)
    (work / "out").symlink_to(tmp_path / "data")
    monkeypatch.chdir(work)
    data = (
        Data(uri=f"{tmp_path}/data"),
        Data(uri=f"{work}/data"),
        Data(uri=f"file://{work}/data/inner"),
        Data(uri=f"{work}/out"),
        Data(uri=f"{work}/here/../../data"),
        Data(uri="here"),
        Data(uri="/nowhere/at/all"),
        Data(uri="/old/place", variable="DATA"),
        Data(uri="gs://acme/x"),
        Data(uri="bq://project.dataset"),
    )
    assert settled(subject(data=data), f"DATA={work}/moved").mounts == ()
    found = settled(subject(data=data), f"DATA={work}/moved", yes_data=True)
    assert found.mounts == tuple(
        Mount(source=it, target=str(it), read_only=True) for it in (work / "data", work / "moved")
    )


def test_a_model_that_only_the_manifest_names_is_data_of_the_run(tmp_path, monkeypatch):
    work = tmp_path / "work"
    for folder in (work / "model", tmp_path / "model"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(work)
    own = Mount(source=work / "model", target=f"{work}/model", read_only=True)
    for place in (f"{work}/model", "model"):
        assert settled(subject(model_uri=place)) == Settled()
        found = settled(subject(model_uri=place), yes_data=True)
        assert (found.variables, found.mounts) == ({"ENVBUILD_MODEL": f"{work}/model"}, (own,))
    outside = subject(model_uri=f"{tmp_path}/model")
    assert settled(outside) == settled(outside, yes_data=True) == Settled()
    mapped = settled(outside, maps=[f"{tmp_path}/model={tmp_path}/model"])
    assert mapped.variables == {"ENVBUILD_MODEL": f"{tmp_path}/model"}
    assert settled(subject(model_uri="gs://jobs/17/model")).variables == {"ENVBUILD_MODEL": "gs://jobs/17/model"}


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_local_model_is_mounted_at_its_own_path(tmp_path, kind):
    model = tmp_path / "ein Modell ü"
    model.mkdir() if kind == "folder" else model.write_bytes(b"x")
    found = settled(subject("AIP_STORAGE_URI", model=model.as_uri()))
    assert found.variables == {"ENVBUILD_MODEL": str(model), "AIP_STORAGE_URI": str(model)}
    assert found.mounts == (Mount(source=model, target=str(model), read_only=True),)
    assert settled(subject(model=str(model)), "ENVBUILD_MODEL=mine").variables == {"ENVBUILD_MODEL": "mine"}


def test_a_model_whose_path_the_container_needs_or_cannot_follow_is_seen_elsewhere(tmp_path, monkeypatch):
    found = settled(subject(model="/etc/passwd"))
    assert found.variables == {"ENVBUILD_MODEL": "/envbuild/passwd"}
    assert found.mounts == (Mount(source=Path("/etc/passwd"), target="/envbuild/passwd", read_only=True),)
    (tmp_path / "work").mkdir()
    (tmp_path / "model").touch()
    monkeypatch.chdir(tmp_path / "work")
    assert settled(subject(model="../model")).mounts[0].target == f"{tmp_path}/model"
    (tmp_path / "work/model").symlink_to("/etc")
    with pytest.raises(UsageError, match="link to /etc") as error:
        settled(subject(model="model"))
    assert error.value.todo == "name that path itself"


@pytest.mark.parametrize("model", ["models:/churn/7", "/nowhere/at/all"])
def test_a_model_that_cannot_be_seen_is_not_named(model):
    assert settled(subject(model=model)) == Settled()


def test_a_model_in_a_bucket_keeps_its_name_without_a_map():
    assert settled(subject(model="gs://jobs/17/model/")).variables == {"ENVBUILD_MODEL": "gs://jobs/17/model"}


@pytest.mark.parametrize(
    "option",
    [
        f"={SECRET}",
        f" {SECRET}",
        f"A {SECRET}=1",
        "NOT_SET_ANYWHERE",
        SECRET,
        f"A={SECRET}\udce9",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_without_its_value(option):
    with pytest.raises(UsageError) as error:
        settled(subject(), option, GOOGLE_APPLICATION_CREDENTIALS="/home/me/key.json")
    assert SECRET not in str(error.value)
    assert "\udce9" not in str(error.value)
    assert error.value.todo


def test_what_is_no_name_is_said():
    with pytest.raises(UsageError) as error:
        settled(subject(), "A=1", "A B=c")
    assert (error.value.what, error.value.where) == ("-e number 2 names no variable", "-e 'A B'=...")


def test_odd_names_are_taken_as_engines_and_env_files_take_them(env_file):
    found = settled(subject(), "1A=b", "a.b=c", files=[env_file("2A=d\n")])
    assert found.variables == {"1A": "b", "2A": "d", "a.b": "c"}


def test_odd_values_arrive_as_they_are():
    value = "a=b\nc 'd' \"e\" ${F} $G ü€\t"
    assert settled(subject(), f"ODD={value}", "EMPTY=").variables == {"ODD": value, "EMPTY": ""}


def test_credentials_come_only_when_they_are_asked_for(tmp_path, env_file):
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"type": "authorized_user", "refresh_token": SECRET}))
    it = subject("GOOGLE_APPLICATION_CREDENTIALS", recorded={"GOOGLE_APPLICATION_CREDENTIALS": "/old/key.json"})
    mine = {"GOOGLE_APPLICATION_CREDENTIALS": str(key), "GOOGLE_CLOUD_PROJECT": "acme"}
    files = [env_file(f"GOOGLE_APPLICATION_CREDENTIALS={key}\n")]
    without = settled(it, files=files, **mine)
    assert (without.variables, without.mounts) == ({}, ())
    assert without.missing == ("GOOGLE_APPLICATION_CREDENTIALS",)
    found = settled(it, files=files, with_adc=True, **mine)
    assert found.variables == {
        "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/adc.json",
        "GOOGLE_CLOUD_PROJECT": "acme",
    }
    assert set(found.where.values()) == {"adc"}
    assert found.missing == ()
    assert found.mounts == (Mount(source=key, target="/run/secrets/adc.json", read_only=True),)
    other = settled(it, "GOOGLE_CLOUD_PROJECT=other", with_adc=True, **mine)
    assert other.variables["GOOGLE_CLOUD_PROJECT"] == "other"
