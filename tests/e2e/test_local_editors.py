"""devcontainer.json, started by the docker command as editors start it: mounts, variables, user and memory."""

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from envbuild.local.contract import settle
from envbuild.local.editors import devcontainer
from envbuild.local.model import Launch, Mount
from tests.environ import cleaned
from tests.unit.test_local_contract import subject

pytestmark = pytest.mark.real

IMAGE = "localhost/local-editors:1"
TOOLS = ("cat", "env", "id", "sh", "touch")
USER = 4321
SECRET = "hunter2-0123456789"
VALUE = "a, \"b\" 'c' = ü ${localEnv:HOME} $HOME\\n"
SCRIPT = """
id -u; cat /gcs/acme/churn/t.csv; touch /gcs/acme/churn/new 2>&1; touch 'made by it'; touch /out/new
echo; cat /proc/mounts; echo; exec env -0
"""


@pytest.fixture(scope="module")
def image(engine) -> str:
    """A few of this machine's own tools."""
    paths = [shutil.which(it, path="/usr/bin:/bin") or it for it in TOOLS]
    loaded = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for path in sorted({*paths, *re.findall(r"(/\S+) \(0x", loaded)}):
            tar.add(path)
    repository, _, tag = IMAGE.rpartition(":")
    engine.client.api.import_image_from_data(buffer.getvalue(), repository=repository, tag=tag)
    return IMAGE


def substituted(text: str, folder: Path, environment: dict[str, str]) -> str:
    """Dev Container metadata reference, Variables in devcontainer.json."""

    def known(match: re.Match[str]) -> str:
        kind, _, rest = match[1].partition(":")
        name, _, default = rest.partition(":")
        if kind == "localEnv":
            return environment.get(name, default)
        return str(folder) if kind == "localWorkspaceFolder" else match[0]

    return re.sub(r"\$\{(.*?)\}", known, text)


def arguments(written: bytes, folder: Path, environment: dict[str, str]) -> list[str]:
    """What an editor gives to `docker run`, each value with what stands for its variables."""

    value = json.loads(written.partition(b"\n")[2])
    return [
        *(f"--mount={substituted(it, folder, environment)}" for it in (value["workspaceMount"], *value["mounts"])),
        *(f"--env={name}={substituted(it, folder, environment)}" for name, it in value["containerEnv"].items()),
        *value["runArgs"],
        f"--user={substituted(value['containerUser'], folder, environment)}",
        f"--workdir={value['workspaceFolder']}",
        value["image"],
    ]


def test_a_container_as_editors_start_it_has_what_was_settled(engine, image, tmp_path):
    folder, data, out = (tmp_path / it for it in ("project ü", 'data, "a" = ü', "${localEnv:HOME}"))
    for path in (folder, data, out):
        path.mkdir()
        path.chmod(0o777)
    (data / "t.csv").write_text("1,2\n")
    tmp_path.chmod(0o755)
    environment = cleaned(os.environ) | {"DOCKER_HOST": engine.url, "API_TOKEN": SECRET}
    settled = settle(
        subject("DATA", recorded={"DATA": "gs://acme/churn/t.csv", "TF_DETERMINISTIC_OPS": "1"}),
        options=[f"ODD={VALUE}", "API_TOKEN"],
        env_files=[],
        maps=[f"gs://acme/churn={data}"],
        with_adc=False,
        environment=environment,
    )
    launch = Launch(
        image=image,
        command=("sh",),
        variables=settled.variables,
        mounts=(*settled.mounts, Mount(source=folder, target="/workspace"), Mount(source=out, target="/out")),
        shm_size=48 << 20,
        user=f"{USER}:{USER}",
    )
    written = devcontainer(image, launch, settled, "Churn", optional_gpu=True)
    assert SECRET.encode() not in written
    command = ["docker", "run", "--rm", *arguments(written, folder, environment), "sh", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    said, mounts, variables = done.stdout.split("\n\n", 2)
    user, content, refused = said.split("\n", 2)
    assert (user, content) == (str(USER), "1,2")
    assert "Read-only file system" in refused
    assert any("/dev/shm" in it and f"size={48 << 10}k" in it for it in mounts.splitlines())
    found = dict(it.split("=", 1) for it in variables.split("\0") if it)
    assert found["DATA"] == "/gcs/acme/churn/t.csv"
    assert (found["TF_DETERMINISTIC_OPS"], found["ODD"], found["API_TOKEN"]) == ("1", VALUE, SECRET)
    assert ((folder / "made by it").stat().st_uid, (out / "new").stat().st_uid) == (USER, USER)
