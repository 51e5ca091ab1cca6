"""What an engine is asked for, by what it is and who asks."""

import io
import tarfile
from pathlib import Path

import pytest

from envbuild.errors import MissingComponentError, UsageError
from envbuild.local.container import LABEL, Caller, container_config, home, home_archive, port_refusal
from envbuild.local.model import Engine, Launch, Mount, Port

CALLER = Caller(uid=1000, gid=100, groups=(100, 27), name="ada")
DOCKER = Engine(kind="docker", version="28.0.1", machine="x86_64")
PODMAN = Engine(kind="podman", version="5.4.0", machine="x86_64")
ROOTLESS_DOCKER = Engine(kind="docker", version="28.0.1", machine="x86_64", rootless=True)
ROOTLESS_PODMAN = Engine(kind="podman", version="5.4.0", machine="x86_64", rootless=True)


def config_of(engine: Engine = DOCKER, *, stdin: bool = True, tty: bool = False, **launch) -> dict:
    given = {"image": "sha256:1", "command": ("python", "-c", "1"), **launch}
    return container_config(Launch(**given), engine, CALLER, stdin=stdin, tty=tty)


def host(engine: Engine = DOCKER, **launch) -> dict:
    return config_of(engine, **launch)["HostConfig"]


def at(source: str, target: str = "/workspace", *, read_only: bool = False) -> Mount:
    return Mount(source=Path(source), target=target, read_only=read_only)


def test_a_whole_launch():
    config = config_of(
        variables={"A": "1=2"},
        mounts=(at("/home/ada/a b:ü,"), at("/d", "/gcs/b", read_only=True)),
        ports=(Port(host=0, container=8888), Port(host=80, container=8888, address="0.0.0.0")),
        shm_size=1 << 30,
    )
    assert config == {
        "Image": "sha256:1",
        "Entrypoint": ["python"],
        "Cmd": ["-c", "1"],
        "Env": ["HOME=/tmp/home", "USER=ada", "LOGNAME=ada", "A=1=2"],
        "User": "1000:100",
        "WorkingDir": "/workspace",
        "Labels": {LABEL: "ada"},
        "StopSignal": "SIGTERM",
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "ExposedPorts": {"8888/tcp": {}},
        "HostConfig": {
            "Init": True,
            "Mounts": [
                {"Type": "bind", "Source": "/home/ada/a b:ü,", "Target": "/workspace", "ReadOnly": False},
                {"Type": "bind", "Source": "/d", "Target": "/gcs/b", "ReadOnly": True},
            ],
            "GroupAdd": ["27"],
            "PortBindings": {
                "8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}, {"HostIp": "0.0.0.0", "HostPort": "80"}]
            },
            "ShmSize": 1 << 30,
            "SecurityOpt": ["label=disable"],
            "LogConfig": {"Type": "none", "Config": {}},
        },
    }


@pytest.mark.parametrize(
    ("ports", "where"),
    [
        ([(8096, 80), (8096, 81)], "--port 127.0.0.1:8096:80 --port 127.0.0.1:8096:81"),
        ([(8096, 80), (8096, 80, "0.0.0.0")], "--port 127.0.0.1:8096:80 --port 0.0.0.0:8096:80"),
        ([(80, 80, "localhost")], "--port localhost:80:80"),
    ],
)
def test_ports_that_cannot_be_meant_are_found_before_an_engine_is_asked(ports, where):
    with pytest.raises(UsageError) as caught:
        config_of(ports=[at_port(*it) for it in ports])
    assert caught.value.where == where


def at_port(host: int, container: int, address: str = "127.0.0.1") -> Port:
    return Port(host=host, container=container, address=address)


def test_ports_that_do_not_meet_are_left_alone():
    ports = [at_port(0, 80), at_port(0, 81), at_port(8, 80), at_port(8, 80), at_port(8, 81, "127.0.0.2")]
    bindings = host(ports=ports)["PortBindings"]
    assert [len(bindings[it]) for it in ("80/tcp", "81/tcp")] == [2, 2]


@pytest.mark.parametrize(
    ("reason", "where"),
    [
        ("Bind for 127.0.0.1:5917 failed: port is already allocated", "--port 127.0.0.1:5917:80"),
        ("listen tcp4 127.0.0.1:5917: bind: address already in use", "--port 127.0.0.1:5917:80"),
        ("listen tcp4 192.0.2.1:80: bind: cannot assign requested address", "--port 192.0.2.1:80:81"),
    ],
)
def test_a_refused_port_is_named(reason, where):
    refusal = port_refusal([at_port(5917, 80), at_port(80, 81, "192.0.2.1")], reason)
    assert refusal is not None
    assert refusal.where == where
    assert port_refusal([at_port(5917, 80)], "no space left on device") is None


@pytest.mark.parametrize(
    ("engine", "user", "groups", "namespace"),
    [
        (DOCKER, "1000:100", ["27"], None),
        (PODMAN, "1000:100", ["27"], None),
        (ROOTLESS_DOCKER, "0:0", None, None),
        (ROOTLESS_PODMAN, "1000:100", None, "keep-id"),
    ],
)
def test_files_are_the_callers_whatever_the_engine_makes_of_users(engine, user, groups, namespace):
    config = config_of(engine)
    assert config["User"] == user
    assert config["HostConfig"].get("GroupAdd") == groups
    assert config["HostConfig"].get("UsernsMode") == namespace


def test_another_user_has_not_the_callers_groups():
    assert config_of(user="5:6")["User"] == "5:6"
    assert "GroupAdd" not in host(user="5:6")


@pytest.mark.parametrize(
    ("engine", "way", "devices", "request_"),
    [
        (DOCKER, "runtime", (), {"Count": -1, "Capabilities": [["gpu"]]}),
        (DOCKER, "runtime", ("0", "GPU-7"), {"DeviceIDs": ["0", "GPU-7"], "Capabilities": [["gpu"]]}),
        (DOCKER, "cdi", (), {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}),
        (PODMAN, "cdi", ("1",), {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1"]}),
        (PODMAN, "runtime", (), {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}),
    ],
)
def test_gpus_are_asked_for_in_the_engines_way(engine, way, devices, request_):
    assert host(engine, gpus=way, devices=devices)["DeviceRequests"] == [request_]
    assert "DeviceRequests" not in host(engine)


def test_a_podman_that_would_pass_over_gpus_is_not_config_of():
    old = Engine(kind="podman", version="5.3.2", machine="x86_64")
    with pytest.raises(MissingComponentError, match=r"podman 5\.3\.2") as caught:
        host(old, gpus="cdi")
    assert "--variant cpu" in caught.value.todo
    assert host(old)["Init"]


def test_podman_gets_what_its_mounts_cannot_say_as_a_bind():
    config = host(PODMAN, mounts=(at("/a,b", read_only=True), at("/a:b", "/x")))
    assert config["Binds"] == ["/a,b:/workspace:ro"]
    assert [it["Source"] for it in config["Mounts"]] == ["/a:b"]
    with pytest.raises(UsageError, match="podman") as caught:
        host(PODMAN, mounts=(at("/a,b:c"),))
    assert caught.value.where == "/a,b:c"


@pytest.mark.parametrize(
    ("targets", "folder"),
    [
        (("/workspace",), "/tmp/home"),
        (("/tmp/homes", "/tmp/x"), "/tmp/home"),
        (("/tmp",), "/home/envbuild"),
        (("/tmp/home/data",), "/home/envbuild"),
        (("/",), None),
    ],
)
def test_a_home_is_made_where_nothing_of_the_caller_lies(targets, folder):
    launch = Launch(image="i", command=("sh",), mounts=tuple(at("/a", it) for it in targets))
    assert home(launch) == folder
    assert f"HOME={folder or '/workspace'}" in container_config(launch, DOCKER, CALLER)["Env"]


def test_a_home_that_was_given_is_not_made():
    assert home(Launch(image="i", command=("sh",), variables={"HOME": "/x"})) is None
    assert "HOME=/x" in config_of(variables={"HOME": "/x"})["Env"]


def test_terminal_and_stdin_are_those_of_the_caller():
    assert config_of(tty=True)["Tty"]
    assert not config_of(stdin=False)["OpenStdin"]


def test_the_tar_of_the_home_folder_ends_at_its_end():
    data = home_archive("/tmp/home")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert [(member.name, member.mode, member.isdir()) for member in archive] == [
            ("tmp", 0o1777, True),
            ("tmp/home", 0o1777, True),
        ]
    assert len(data) == 4 * tarfile.BLOCKSIZE, "podman breaks its own pipe on what stands behind the end"
