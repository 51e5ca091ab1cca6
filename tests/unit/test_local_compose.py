"""compose.yaml: what Compose accepts, with no secret, and every value as it was."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from envbuild.local.editors import compose
from envbuild.local.model import Launch, Port
from tests.unit.test_local_devcontainer import IMAGE, LAUNCH, SECRET, SETTLED, USER

SCHEMA = json.loads((Path(__file__).parents[1] / "data/compose.schema.json").read_bytes())
LAUNCH_2 = replace(LAUNCH, command=("python", "-c", "print('$HOME')"), interactive=True)


def written(launch: Launch = LAUNCH_2, name: str = "gs://acme/models/Churn 7/") -> dict:
    value = yaml.safe_load(compose(IMAGE, launch, SETTLED, name))
    Draft7Validator(SCHEMA).validate(value)
    return value


def test_it_is_what_compose_accepts():
    value = written()
    service = value["services"]["env"]
    assert service.pop("environment")
    assert value == {"name": "churn-7", "services": {"env": service}}
    assert service == {
        "image": IMAGE,
        "init": True,
        "user": "0:0",
        "working_dir": "/workspace",
        "command": ["python", "-c", "print('$$HOME')"],
        "volumes": [
            {"type": "bind", "source": ".", "target": "/workspace", "bind": {"create_host_path": False}},
            {
                "type": "bind",
                "source": '/data/a, "b" = ü',
                "target": "/gcs/acme/p",
                "bind": {"create_host_path": False},
                "read_only": True,
            },
            {
                "type": "bind",
                "source": "/data/$${localEnv:HOME}",
                "target": "/out",
                "bind": {"create_host_path": False},
            },
        ],
        "tmpfs": ["/tmp/home:mode=1777"],
        "ports": [{"target": 8888, "host_ip": "127.0.0.1", "protocol": "tcp"}],
        "shm_size": 1 << 30,
        "stdin_open": True,
        "tty": True,
        "deploy": {
            "resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}
        },
    }


def test_values_that_may_be_secret_are_taken_from_the_shell():
    text = compose(IMAGE, replace(LAUNCH, command=("tool", "--password", SECRET)), SETTLED, "x").decode()
    assert SECRET not in text
    variables = written()["services"]["env"]["environment"]
    assert variables["API_TOKEN"] == "${API_TOKEN?it is not set}"
    assert variables["MINE"] == "${MINE?it is not set}"
    assert variables["TEMPLATE"] == "$${localEnv:HOME} and $${x} and $$y"
    odd = replace(LAUNCH, variables={"a.token": SECRET})
    assert written(odd)["services"]["env"]["environment"] == {**USER, "a.token": None}


def test_one_gpu_one_port_and_a_home_of_its_own():
    launch = replace(
        LAUNCH, devices=("1",), ports=(Port(host=80, container=8080),), variables={"HOME": "/root"}, user=None
    )
    service = written(launch)["services"]["env"]
    assert service["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "device_ids": ["1"], "capabilities": ["gpu"]}
    ]
    assert service["ports"] == [{"target": 8080, "host_ip": "127.0.0.1", "protocol": "tcp", "published": "80"}]
    assert service["user"] == f"${{UID:-{os.getuid()}}}:${{GID:-{os.getgid()}}}"
    assert "tmpfs" not in service
    assert {"deploy", "stdin_open", "tty", "shm_size", "ports", "volumes"}.isdisjoint(
        written(Launch(image="x", command=("sh",)))["services"]["env"]
    )


@pytest.mark.parametrize(
    "value", ["1e3", "0o17", "true", "~", "", "no", "1", "a: b", "# x", "ü\n\t'\"\\", "2024-01-01"]
)
def test_every_value_stays_text(value):
    text = compose(IMAGE, replace(LAUNCH, variables={"V": value}), SETTLED, "x").decode()
    assert yaml.safe_load(text)["services"]["env"]["environment"]["V"] == value
    [line] = [it.strip() for it in text.splitlines() if it.strip().startswith("V:")]
    assert line[3] in "'\""


@pytest.mark.parametrize(
    ("name", "project"),
    [("model/", "model"), (IMAGE, "churn"), ("ü", "envbuild"), ("_A.b", "a-b"), ("churn:7", "churn-7")],
)
def test_the_project_has_a_name_that_compose_takes(name, project):
    assert written(name=name)["name"] == project
