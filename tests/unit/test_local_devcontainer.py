"""devcontainer.json: what editors accept, by digest, with no secret and nothing of this machine's home."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft201909Validator

from envbuild.local.editors import devcontainer
from envbuild.local.model import Launch, Mount, Port, Settled

SCHEMA = json.loads((Path(__file__).parents[1] / "data/devcontainer.schema.json").read_bytes())
USER = {"HOME": "/tmp/home", "LOGNAME": "user", "USER": "user"}
IMAGE = f"europe-docker.pkg.dev/acme/ml/churn@sha256:{'ab' * 32}"
SECRET = "hunter2-0123456789"
LAUNCH = Launch(
    image="sha256:of-the-engine",
    command=("/opt/env/bin/envbuild-check", "--", "/bin/sh"),
    variables={
        "TF_DETERMINISTIC_OPS": "1",
        "BUCKET": "acme",
        "TEMPLATE": "${localEnv:HOME} and ${x} and $y",
        "API_TOKEN": SECRET,
        "DATABASE": f"postgres://me:{SECRET}@db/x",
        "MINE": SECRET,
        "SEED": "q3Jx8ZkL0vW2mN5bT7yR",
        "OUT": "/workspace/Run1/Output",
        "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/adc.json",
        "ENVBUILD_CONTRACT": '{"variables":["API_TOKEN"]}',
    },
    mounts=(
        Mount(source=Path("/home/me/project"), target="/workspace"),
        Mount(source=Path('/data/a, "b" = ü'), target="/gcs/acme/p", read_only=True),
        Mount(source=Path("/data/${localEnv:HOME}"), target="/out"),
    ),
    ports=(Port(host=0, container=8888),),
    shm_size=1 << 30,
    gpus="runtime",
    user="0:0",
)
SETTLED = Settled(
    variables=LAUNCH.variables,
    where={
        "MINE": "shell",
        "SEED": ".env",
        "API_TOKEN": ".env",
        "DATABASE": "option",
        "OUT": "option",
        "BUCKET": "run",
    },
)


def written(launch: Launch = LAUNCH, *, optional_gpu: bool = True) -> dict:
    remark, text = devcontainer(IMAGE, launch, SETTLED, "Churn 7", optional_gpu=optional_gpu).split(b"\n", 1)
    assert remark.startswith(b"// Written by envbuild local --devcontainer")
    value = json.loads(text)
    Draft201909Validator(SCHEMA).validate(value)
    return value


def test_it_is_what_editors_accept():
    value = written()
    assert value.pop("containerEnv")
    assert value.pop("mounts")
    assert value == {
        "name": "Churn 7",
        "image": IMAGE,
        "hostRequirements": {"gpu": "optional"},
        "workspaceFolder": "/workspace",
        "workspaceMount": "type=bind,source=${localWorkspaceFolder},target=/workspace",
        "containerUser": "0:0",
        "remoteUser": "0:0",
        "updateRemoteUserUID": False,
        "init": True,
        "runArgs": ["--shm-size=1073741824"],
        "postStartCommand": ["/opt/env/bin/envbuild-check"],
        "forwardPorts": [8888],
        "customizations": {
            "vscode": {
                "extensions": ["ms-python.python", "ms-toolsai.jupyter"],
                "settings": {"python.defaultInterpreterPath": "/opt/env/bin/python"},
            }
        },
    }


def test_nothing_is_said_of_what_is_not_wanted():
    value = written(Launch(image="x", command=("sh",)), optional_gpu=False)
    assert {"hostRequirements", "mounts", "runArgs", "forwardPorts", "postStartCommand"}.isdisjoint(value)
    assert value["containerEnv"] == USER
    assert value["remoteUser"] == f"${{localEnv:UID:{os.getuid()}}}:${{localEnv:GID:{os.getgid()}}}"


def test_values_that_may_be_secret_are_taken_from_the_editor():
    assert SECRET not in json.dumps(written())
    variables = written()["containerEnv"]
    assert variables == {
        **USER,
        "TF_DETERMINISTIC_OPS": "1",
        "BUCKET": "acme",
        "TEMPLATE": "${localEnv:ENVBUILD_NOTHING:$}{localEnv:HOME} and ${localEnv:ENVBUILD_NOTHING:$}{x} and $y",
        "API_TOKEN": "${localEnv:API_TOKEN}",
        "DATABASE": "${localEnv:DATABASE}",
        "MINE": "${localEnv:MINE}",
        "SEED": "${localEnv:SEED}",
        "OUT": "/workspace/Run1/Output",
        "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/adc.json",
        "ENVBUILD_CONTRACT": '{"variables":["API_TOKEN"]}',
    }


def test_a_value_that_is_made_of_a_secret_is_one():
    values = {"PASSWORD": "hunter2", "LINK": "db;me;hunter2", "OUT_KEY": "/workspace/out", "BEST": "/workspace/out/1"}
    variables = written(replace(LAUNCH, variables=values))["containerEnv"]
    assert variables["LINK"] == "${localEnv:LINK}"
    assert variables["BEST"] == "/workspace/out/1"


def test_a_secret_whose_name_cannot_be_referred_to_is_passed_on_by_the_engine():
    value = written(replace(LAUNCH, variables={"a:token": SECRET}, shm_size=None))
    assert (value["containerEnv"], value["runArgs"]) == (USER, ["--env=a:token"])


def test_mounts_are_lines_of_csv_as_the_engine_reads_them():
    mounts = written()["mounts"]
    assert list(csv.reader(mounts)) == [
        ["type=bind", 'source=/data/a, "b" = ü', "target=/gcs/acme/p", "readonly"],
        ["type=bind", "source=/data/${localEnv:ENVBUILD_NOTHING:$}{localEnv:HOME}", "target=/out"],
    ]


def test_some_of_the_gpus_are_chosen_by_a_variable():
    value = written(replace(LAUNCH, devices=("0", "GPU-1")))
    assert value["containerEnv"]["CUDA_VISIBLE_DEVICES"] == "0,GPU-1"
    assert "CUDA_VISIBLE_DEVICES" not in written(replace(LAUNCH, devices=("0",)), optional_gpu=False)["containerEnv"]


@pytest.mark.parametrize("wrong", [{"image": 5}, {"unknown": 1}, {"mounts": [{"type": "bind", "readonly": True}]}])
def test_the_schema_refuses_what_editors_would(wrong):
    assert not Draft201909Validator(SCHEMA).is_valid({"image": IMAGE, **wrong})
