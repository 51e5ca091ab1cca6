"""`envbuild local` against manifests that want the caller's files and variables: nothing comes that was not named."""

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from envbuild.errors import UsageError
from envbuild.local.container import Caller, container_config
from envbuild.local.data import read_maps
from envbuild.local.editors import check_labels, compose, devcontainer
from envbuild.local.model import Engine, Launch, Mount, Settled, Subject
from envbuild.local.notebook import notebook_launch
from envbuild.local.process import translated
from envbuild.local.subject import subject_of_manifest, subject_of_model
from envbuild.manifest.model import Data
from envbuild.verify.sources.model import read_model
from tests.environ import cleaned
from tests.running import run_envbuild
from tests.unit.test_from_manifest import manifest_of
from tests.unit.test_local_contract import settled, subject
from tests.unit.test_local_subject import put_stamp

DOCKER = Engine(kind="docker", version="28.0", machine="x86_64")
KEYS = (
    ".ssh/id_ed25519", ".config/gcloud/application_default_credentials.json", ".aws/credentials",
    ".docker/config.json", ".kube/config", ".netrc", "data/train.csv",
)  # fmt: skip


@dataclass(frozen=True)
class Laptop:
    """A home with keys, sockets beside them, and the project's folder, in which envbuild is started."""

    home: Path

    @property
    def work(self) -> Path:
        return self.home / "project"

    def at(self, text: str) -> str:
        return text.format(home=self.home, work=self.work)


@pytest.fixture
def laptop(tmp_path, monkeypatch) -> Laptop:
    it = Laptop(tmp_path / "home/ada")
    it.work.mkdir(parents=True)
    for name in KEYS:
        (it.home / name).parent.mkdir(parents=True, exist_ok=True)
        (it.home / name).write_text("secret")
    for folder in ("sockets", "deep/a/b/c"):
        (it.home / folder).mkdir(parents=True)
        monkeypatch.chdir(it.home / folder)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("docker.sock")
    (it.work / "link").symlink_to("../.ssh")
    (it.work / "key").symlink_to("../.ssh/id_ed25519")
    (it.work / "up").symlink_to("..")
    monkeypatch.chdir(it.work)
    monkeypatch.setenv("HOME", str(it.home))
    return it


_RESERVED = """
    {home} {home}/ {home}/.. {home}/project/.. / /home /root /boot /dev /etc /proc /run /sys /var /var/log /etc/ssl
    {home}/.ssh {home}/.config/gcloud {home}/.config/gcloud/application_default_credentials.json {home}/.aws
    {home}/.aws/credentials {home}/.docker/config.json {home}/.kube {home}/.netrc /etc/passwd /proc/self/environ
    /proc/self/root/etc {home}/sockets {home}/sockets/docker.sock {home}/deep {work}/link {work}/key {work}/up
    {work}/up/.ssh {work}/../.ssh
"""
RESERVED = _RESERVED.split()
PLACES = (
    *RESERVED,
    "{home}/.ssh/id_ed25519", "{home}/data", "{work}/link/id_ed25519", "{work}/up/data/train.csv", "//{home}/.ssh",
    "/var/run/docker.sock", "file://{home}/.ssh", "file://{home}/%2Essh", "file://localhost{home}/.aws",
    "../..{home}/.ssh", "../..{home}/data", "../root", "link/../../..{home}/.aws", "../etc", "link", "up/.ssh",
)  # fmt: skip
IMAGE = f"registry.example/x@sha256:{'ab' * 32}"


def launch_of(it: Settled, work: Path) -> Launch:
    return Launch(
        image="x", command=("sh",), variables=it.variables,
        mounts=(Mount(source=work, target="/workspace"), *it.mounts), user="1:1",
    )  # fmt: skip


def sources(it: Settled, work: Path) -> set[str]:
    """What of this machine is mounted, by whichever way the environment is started."""
    launch = launch_of(it, work)
    written = yaml.safe_load(compose(IMAGE, launch, it, "x"))
    editor = json.loads(devcontainer(IMAGE, launch, it, "x", optional_gpu=False).partition(b"\n")[2])
    host = container_config(notebook_launch(launch, "x", "token", 8888), DOCKER, Caller(uid=1, gid=1))
    return {
        *(mount["Source"] for mount in host["HostConfig"]["Mounts"]),
        *host["HostConfig"].get("Binds", ()),
        *(str(work) if mount["source"] == "." else mount["source"] for mount in written["services"]["env"]["volumes"]),
        *editor.get("mounts", ()),
        *editor.get("runArgs", ()),
    }


def hostile(place: str, way: str) -> Subject:
    match way:
        case "variable":
            return subject("DATA", recorded={"DATA": place}, data=(Data(uri="/nowhere", variable="DATA"),))
        case "model":
            manifest = subject(model_uri=place).manifest
            assert manifest is not None
            return subject_of_manifest("manifest.json", b"", manifest)
        case _:
            return subject(data=(Data(uri=place),))


@pytest.mark.parametrize("way", ["data", "variable", "model"])
@pytest.mark.parametrize("place", PLACES)
def test_no_place_of_a_manifest_is_mounted(laptop, place, way):
    run = hostile(laptop.at(place), way)
    for yes_data in (False, True):
        found = settled(run, HOME=str(laptop.home), yes_data=yes_data)
        assert sources(found, laptop.work) == {str(laptop.work)}
        assert translated(found, laptop.work / "venv").get("ENVBUILD_MODEL") is None


def test_a_stamp_does_not_make_a_folder_of_the_file_that_was_named(laptop):
    """A manifest says which files a model has, and with that which folder it is."""
    file = laptop.home / "saved_model.pb"
    file.write_bytes(b"graph")
    files = [{"path": it, "size": 1} for it in ("other", "saved_model.pb")]
    put_stamp(file, json.dumps(manifest_of(model={"uri": str(file), "files": files})).encode())
    model = read_model(str(file))
    assert model.uri == str(laptop.home)
    found = settled(subject_of_model(model, str(file)), HOME=str(laptop.home))
    assert sources(found, laptop.work) == {
        str(laptop.work),
        str(file),
        f"type=bind,source={file},target={file},readonly",
    }
    assert found.variables == {"ENVBUILD_MODEL": str(file)}


@pytest.mark.parametrize("place", RESERVED)
def test_what_holds_more_than_data_has_to_be_called_unsafe(laptop, place):
    path = laptop.at(place)
    with pytest.raises(UsageError) as error:
        read_maps([f"/data/x={path}"], str(laptop.home))
    assert f"/data/x={path},unsafe" in (error.value.todo or "")
    [mapped] = read_maps([f"/data/x={path}:rw,unsafe"], str(laptop.home))
    assert mapped.mount == Mount(source=Path(path).resolve(), target="/data/x")


@pytest.mark.parametrize(
    "place", ["{home}/data", "{home}/data/train.csv", "{work}", "{home}/project", "/usr/share/doc"]
)
def test_plain_data_needs_no_more_than_its_name(laptop, place):
    assert read_maps([f"/data/x={laptop.at(place)}"], str(laptop.home))


SECRETS = ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "HF_TOKEN", "DB_PASSWORD", "a:token", "WANDB_API_KEY")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("value", ["placeholder-0123456789", "gs://acme/churn", "${{{name}}}", "${{localEnv:{name}}}"])
def test_a_manifest_gets_no_variable_of_the_shell(laptop, name, value):
    value = value.format(name=name)
    run = subject(name, "INNOCENT", recorded={name: value, "INNOCENT": value})
    found = settled(run, maps=[f"gs://acme/churn={laptop.home}/data"], HOME=str(laptop.home), **{name: "host-secret"})
    launch = launch_of(found, laptop.work)
    assert "host-secret" not in found.variables.values()
    texts = (compose(IMAGE, launch, found, "x"), devcontainer(IMAGE, launch, found, "x", optional_gpu=False))
    for it in (name, "INNOCENT"):
        # Compose reads $$ as a $; an editor has no default for a variable that is called ENVBUILD_NOTHING.
        assert f"${{{it}" not in texts[0].decode().replace("$$", "")
        assert f"${{localEnv:{it}" not in texts[1].decode()
    assert "runArgs" not in json.loads(texts[1].partition(b"\n")[2])
    assert yaml.safe_load(texts[0])["services"]["env"]["environment"].get(name, "") is not None


@pytest.mark.parametrize(
    "value",
    [
        'x"\n    privileged: true',
        "x\n    volumes:\n      - /:/host",
        '", "mounts": ["source=/,target=/host"]',
        "\u2028- /:/h",
    ],
)
def test_a_value_of_a_manifest_stays_a_value(laptop, value):
    found = settled(subject("INNOCENT", recorded={"INNOCENT": value}))
    launch = launch_of(found, laptop.work)
    service = yaml.safe_load(compose(IMAGE, launch, found, "x"))["services"]["env"]
    editor = json.loads(devcontainer(IMAGE, launch, found, "x", optional_gpu=False).partition(b"\n")[2])
    assert service["environment"]["INNOCENT"] == editor["containerEnv"]["INNOCENT"] == value
    assert set(service) == {
        "image", "init", "user", "working_dir", "command", "environment", "volumes", "tmpfs",
    }  # fmt: skip
    assert {"mounts", "runArgs", "privileged", "forwardPorts", "postStartCommand"}.isdisjoint(editor)


def test_an_image_that_configures_editors_itself_is_refused():
    check_labels({"maintainer": "me"}, "model")
    with pytest.raises(UsageError, match=r"devcontainer\.metadata") as error:
        check_labels({"devcontainer.metadata": '[{"mounts": ["source=/,target=/host,type=bind"]}]'}, "model")
    assert "--compose" in (error.value.todo or "")


def local(laptop: Laptop, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {
        **cleaned(os.environ), "HOME": str(laptop.home), "DOCKER_HOST": f"unix://{laptop.home}/no.sock", "NO_COLOR": "1",
        "ENVBUILD_CACHE": str(laptop.home / "cache"), "COLUMNS": "400",
    }  # fmt: skip
    return run_envbuild("local", laptop.work / "manifest.json", *words, cwd=folder or laptop.work, env=environment)


def test_the_plan_mounts_nothing_and_lists_what_the_run_read(laptop):
    data = [{"uri": laptop.at(it)} for it in PLACES]
    (laptop.work / "manifest.json").write_text(json.dumps(manifest_of(contract={"data": data})))
    (laptop.work / ".env").write_text("SOME_TOKEN=hush\n")
    done = local(laptop, "--dry-run", "--json", "--yes-data")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["mounts"], plan["variables"]) == (17, [], []), done.stderr
    assert "give --env-file .env" in done.stderr
    assert f"do: give --data {laptop.home}/data={laptop.home}/data" in done.stderr
    assert f"--data {laptop.home}/.ssh={laptop.home}" not in done.stderr
    named = local(laptop, "--dry-run", "--json", "--env-file", ".env", "--data", f"/data={laptop.home}/data")
    plan = json.loads(named.stdout)
    assert plan["variables"] == ["SOME_TOKEN"]
    assert plan["mounts"] == [{"source": f"{laptop.home}/data", "target": "/data"}]


@pytest.mark.parametrize("folder", ["{home}", "{home}/.ssh", "/", "/etc", "/var/log"])
def test_a_folder_that_holds_more_than_a_project_is_not_worked_in(laptop, folder):
    (laptop.work / "manifest.json").write_text(json.dumps(manifest_of()))
    done = local(laptop, "--dry-run", folder=Path(laptop.at(folder)))
    assert done.returncode == 2, done.stderr
    assert "start in a folder that holds the project alone" in done.stderr


def test_a_projects_own_file_cannot_call_a_folder_unsafe_for_the_caller(laptop):
    (laptop.work / "manifest.json").write_text(json.dumps(manifest_of()))
    (laptop.work / "envbuild.toml").write_text(f'[local]\ndata = ["/data/x={laptop.home}/.ssh,unsafe"]\n')
    done = local(laptop, "--dry-run")
    assert done.returncode == 2, done.stderr
    assert "give it on the command line" in done.stderr
