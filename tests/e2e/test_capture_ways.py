"""The ways into capture, for real: alone on several Pythons, in TensorFlow, by another interpreter, in a container."""

import base64
import hashlib
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.capture import script
from envbuild.manifest.reader import read_manifest
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.report import SILENT
from tests.e2e.services import podman_places, running
from tests.environ import cleaned

pytestmark = pytest.mark.real

TENSORFLOW = ("tensorflow-cpu==2.15.1", "pip==24.0")
NEWEST = ("tensorflow-cpu==2.21.0",)
OF_THE_MACHINE = {"accelerator", "cpu", "host.machine_type", "host.zone", "native.thread_pools", "platform.kernel"}


def no_registry(*_):
    raise AssertionError("a bootstrapped base needs no registry")


def checked(text: str) -> dict:
    """A manifest that the reader takes."""
    read_manifest(text.encode(), "captured")
    manifest: dict = json.loads(text)
    return manifest


@pytest.fixture(scope="module")
def base(cache, registry, engine):
    """`base("bookworm")` -> reference by digest of the bootstrapped Debian, in the registry and the engine."""

    def pushed(suite: str) -> str:
        base = resolve_base(
            f"debian:{suite}", machine="x86_64", cache=cache / "envbuild", pull=no_registry, report=SILENT
        )
        reference = push(base.image, Reference.parse(f"{registry.host}/ways/{suite}:latest")).reference
        engine.pull(str(reference))
        return str(reference)

    return pushed


@pytest.fixture(scope="module")
def built(engine, base):
    """`built("USER 1", ...)` -> id of an image of these lines of a Dockerfile on bookworm, which no registry knows."""

    def build(*lines: str) -> str:
        text = "\n".join([f"FROM {base('bookworm')}", *lines])
        return str(engine.client.images.build(fileobj=io.BytesIO(text.encode()), rm=True)[0].id)

    return build


@pytest.fixture
def capture(envbuild, engine):
    """`capture(..., check=)` -> the command where DOCKER_HOST names the tests' engine; no container may be left."""

    def run(*arguments: object, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        return envbuild("capture", *map(str, arguments), env={"DOCKER_HOST": engine.url, **env}, check=check)

    yield run
    assert engine.client.containers.list(all=True) == []


@pytest.mark.parametrize(("suite", "python"), [("bullseye", "3.9"), ("bookworm", "3.11"), ("trixie", "3.13")])
def test_the_one_file_runs_on_the_python_of_each_debian(suite, python, base, engine, tmp_path):
    (tmp_path / "capture.py").write_text(script())
    volumes = {str(tmp_path): {"bind": "/work", "mode": "ro"}}
    for options in ([], ["-I", "-S"]):
        command = [
            "python3",
            "-W",
            "error",
            *options,
            "/work/capture.py",
            "--requires",
            "BUCKET",
            "--",
            "python",
            "t.py",
        ]
        manifest = checked(engine.run(base(suite), command, volumes=volumes, network_mode="none"))
        assert manifest["python"]["version"].startswith(f"{python}.")
        assert manifest["platform"]["os_id"] == "debian"
        assert manifest["entry"]["command"] == ["python", "t.py"]
        assert manifest["contract"]["variables"] == [{"name": "BUCKET", "present": False}]


def test_an_image_of_a_registry_is_captured_by_its_digest(capture, base, registry, engine):
    reference = base("bookworm")
    engine.client.images.remove(reference, force=True)
    engine.client.images.prune(filters={"dangling": False})
    done = capture("--image", f"{registry.host}/ways/bookworm:latest", "--load", "sqlite3", "--load", "tensorflow")
    assert "Pulling" in done.stderr
    manifest = checked(done.stdout)
    assert manifest["host"] == {"container": {"image": reference, "source": "docker inspect"}}
    assert manifest["python"]["version"] == "3.11.2"
    assert {"numerics", "entry"} | OF_THE_MACHINE == set(manifest["source"]["unknown"])
    assert not {"accelerator", "numerics", "entry"} & manifest.keys()
    assert "cpu" not in json.loads(done.stdout)
    [library] = [it for it in manifest["native"]["libraries"] if it["name"].startswith("libsqlite3.so")]
    assert library["owner"]["name"] == "libsqlite3-0"
    assert "tensorflow could not be loaded: ModuleNotFoundError" in done.stderr


AT_START = "/usr/lib/python3.11/sitecustomize.py"
"""In Debian a link to /etc, which comes before that of dist-packages."""
SPEAKING = """import os, sys; print("garbage", os.getuid(), os.listdir("/sys/class/net"))"""


def test_the_image_decides_on_user_and_variables_and_its_entry_point_and_prints_do_not_matter(capture, built):
    image = built(
        f"RUN rm -f {AT_START} && echo '{SPEAKING}' >{AT_START}",
        "ENV OMP_NUM_THREADS=3",
        "USER 12345:12345",
        "WORKDIR /tmp",
        'ENTRYPOINT ["/bin/false"]',
    )
    done = capture("--image", image, "--requires", "OMP_NUM_THREADS", "--requires", "BUCKET", BUCKET="mine")
    manifest = checked(done.stdout)
    assert manifest["variables"]["OMP_NUM_THREADS"] == "3"
    variables = [{"name": "BUCKET", "present": False}, {"name": "OMP_NUM_THREADS", "present": True}]
    assert manifest["contract"] == {"variables": variables}
    assert manifest["host"]["container"]["image"] == image
    assert any(f"no registry has given the image a digest: {image}" in note for note in manifest["source"]["notes"])
    assert "garbage 12345 ['lo']" in done.stderr


def test_what_is_not_in_the_image_is_read_from_here(capture, built, tmp_path):
    (tmp_path / "clean.py").write_text("x = 1\n")
    options = ("--model", tmp_path / "clean.py", "--preprocessing", tmp_path / "clean.py", "--data", tmp_path)
    manifest = checked(capture("--image", built(), "--requires", "X", *options).stdout)
    assert [file["size"] for file in manifest["model"]["files"]] == [6]
    assert [(item["uri"], item["objects"]) for item in manifest["contract"]["data"]] == [(str(tmp_path), 1)]
    assert [tree["files"] for tree in manifest["contract"]["preprocessing"]] == [1]
    assert [item["name"] for item in manifest["contract"]["variables"]] == ["X"]


def test_python_is_found_without_a_shell(capture, built):
    shell_less = built(
        "RUN ln -s /usr/bin/python3 /opt/python && rm /bin/sh /bin/dash /bin/bash", "ENV PATH=/nothing:/opt"
    )
    assert checked(capture("--image", shell_less).stdout)["python"]["version"] == "3.11.2"


def test_images_that_cannot_be_captured_are_told_apart(capture, built, registry):
    none = built("RUN rm /usr/bin/python3*")
    done = capture("--image", none, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the image has no Python on its PATH" in done.stderr
    old = built(
        "RUN mkdir /old && printf '#!/bin/sh\\necho SyntaxError: future feature annotations is not defined >&2\\nexit 1\\n'"
        " >/old/python && chmod +x /old/python"
    )
    done = capture("--image", old, "--python", "/old/python", check=False)
    assert (done.returncode, done.stdout) == (10, "")
    assert "the image's Python is older than 3.7" in done.stderr
    done = capture("--image", old, "--python", "/no/python", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the image cannot run /no/python" in done.stderr
    done = capture("--image", old, "--python", "/bin/false", check=False)
    assert (done.returncode, done.stdout) == (10, "")
    assert "(exit code 1)" in done.stderr
    done = capture("--image", f"{registry.host}/ways/absent:1", check=False)
    assert (done.returncode, done.stdout) == (14, "")
    assert "the image is not here and cannot be pulled" in done.stderr
    done = capture("--image", "No::Reference", check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_removes_the_container(number, built, engine):
    image = built(f"RUN rm -f {AT_START} && echo 'import time; print(1, flush=True); time.sleep(600)' >{AT_START}")
    command = [sys.executable, "-m", "envbuild", "capture", "--image", image]
    environment = cleaned(os.environ) | {"DOCKER_HOST": engine.url}
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)][1] == "  1\n"
        process.send_signal(number)
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert said.endswith("interrupted\n")
    assert engine.client.containers.list(all=True) == []


def test_the_context_of_docker_names_the_engine(envbuild, built, engine, tmp_path):
    meta = tmp_path / "contexts/meta" / hashlib.sha256(b"tests").hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    endpoint = {"Host": engine.url, "SkipTLSVerify": False}
    meta.write_text(json.dumps({"Name": "tests", "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "tests"}))
    done = envbuild("capture", "--image", built(), env={"DOCKER_CONFIG": str(tmp_path)})
    assert checked(done.stdout)["python"]["version"] == "3.11.2"


@contextmanager
def podman(folder: Path):
    """Podman's socket, with storage of its own; `podman(...)` runs a command on the same storage."""
    own = [*podman_places(folder), "--cgroup-manager", "cgroupfs"]
    # Where the tests run in a container themselves, limits cannot be raised to podman's defaults.
    (folder / "containers.conf").write_text('[containers]\ndefault_ulimits=["nofile=1024:1024","nproc=1024:1024"]\n')
    settings = pytest.MonkeyPatch()
    settings.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    socket = folder / "podman/podman.sock"
    socket.parent.mkdir()
    try:
        command = [*own, "system", "service", "--time=0", f"unix://{socket}"]
        with running(command, folder / "log", lambda: socket.exists() or None):
            yield own
    finally:
        subprocess.run([*own, "system", "reset", "--force"], check=False, capture_output=True)
        settings.undo()


def test_podman_speaks_the_same_language(envbuild, base):
    folder = Path(tempfile.mkdtemp(prefix="pm-", dir="/tmp"))  # podman's paths must be short
    try:
        with podman(folder) as own:
            subprocess.run([*own, "pull", "-q", "--tls-verify=false", base("bookworm")], check=True)
            done = envbuild(
                "capture", "--image", base("bookworm"), env={"DOCKER_HOST": f"unix://{folder}/podman/podman.sock"}
            )
            left = subprocess.run([*own, "ps", "--all", "-q"], check=True, capture_output=True).stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert checked(done.stdout)["host"]["container"]["image"] == base("bookworm")
    assert left == b""


def test_a_plain_environment_is_captured_by_its_own_interpreter(train_env, capture):
    manifest = checked(capture("--python", train_env("3.11", "six==1.17.0"), "--load", "six").stdout)
    [six] = manifest["distributions"]
    assert (six["name"], six["version"], six["origin"]) == ("six", "1.17.0", {"kind": "index"})
    assert manifest["python"]["environment"] == "venv"
    assert manifest["native"]["process"] == "fresh"


TRAIN = """
import os, sys
import numpy as np, tensorflow as tf
sys.path.insert(0, sys.argv[1])
from capture import capture, keras_callback

tf.keras.utils.set_random_seed(20)
features = tf.keras.Input((4,), name="features")
model = tf.keras.Model(features, tf.keras.layers.Dense(2, name="prediction")(features))
model.compile("adam", "mse")
inputs, targets = np.arange(32, dtype="float32").reshape(8, 4), np.ones((8, 2), "float32")

def fit(**options):
    model.fit(inputs, targets, verbose=0, callbacks=[keras_callback(**options)])

fit(golden_inputs=inputs[:3], out="callback.json", requires=["BUCKET"])
np.save("predicted.npy", model.predict_on_batch(inputs[:3]))
fit(out="/dev/null/manifest.json")
os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
fit(out="worker.json")
del os.environ["TF_CONFIG"]
model.save("model.keras")
capture("model.keras", out="library.json")
print("trained")
"""


@pytest.fixture(scope="module", params=[TENSORFLOW, NEWEST], ids=["keras2", "keras3"])
def trained(request, train_env, tmp_path_factory):
    """A training that captures by callback and by library call: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "capture.py").write_text(script())
    (folder / "train.py").write_text(TRAIN)
    environment = cleaned(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3", "BUCKET": "b", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [train_env("3.11", *request.param), "train.py", "."]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_callback_captures_the_training_and_what_the_model_predicts(trained):
    folder, _ = trained
    manifest = checked((folder / "callback.json").read_text())
    assert manifest["contract"]["variables"] == [{"name": "BUCKET", "present": True}]
    assert manifest["entry"]["command"][-2:] == ["train.py", "."]
    [given], [answered] = manifest["golden"]["inputs"], manifest["golden"]["outputs"]
    assert (given["dtype"], given["shape"]) == ("float32", [3, 4])
    assert struct.unpack("<12f", base64.b64decode(given["data"])) == tuple(range(12))
    assert (answered["dtype"], answered["shape"]) == ("float32", [3, 2])
    assert (folder / "predicted.npy").read_bytes().endswith(base64.b64decode(answered["data"]))


def test_a_library_call_sees_the_process_as_it_is(trained):
    folder, _ = trained
    manifest = checked((folder / "library.json").read_text())
    assert manifest["native"]["process"] == "run"
    owners = {library["owner"].get("name") for library in manifest["native"]["libraries"]}
    assert {"tensorflow-cpu", "numpy"} <= owners
    assert {"tensorflow", "numpy"} <= {numerics["framework"] for numerics in manifest["numerics"]} | {"numpy"}
    assert manifest["model"]["format"] == "keras"
    assert manifest["model"]["written_by"][0]["name"] == "keras"
    assert manifest.get("disagreements", []) == []


def test_neither_a_failure_nor_a_worker_disturbs_the_training(trained):
    folder, done = trained
    assert done.stdout == "trained\n"
    assert done.stderr.count("warning: the environment was not captured: ") == 1
    assert not (folder / "worker.json").exists()


def test_a_model_of_another_version_is_told_loudly_and_recorded(trained, train_env, capture):
    folder, _ = trained
    manifest = json.loads((folder / "library.json").read_text())
    other = NEWEST if manifest["framework"]["version"] == "2.15.1" else TENSORFLOW
    done = capture("--python", train_env("3.11", *other), "--model", folder / "model.keras")
    found = checked(done.stdout)["disagreements"]
    assert found
    assert [line for line in done.stderr.splitlines() if line.startswith("warning: ")] == [
        f"warning: {item['message']}" for item in found
    ]
