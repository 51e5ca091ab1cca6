"""The training environment without an engine: from an index, through kills and rivals, and with real TensorFlow."""

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envbuild.cli.console import Progress
from envbuild.local.preflight import parity
from envbuild.local.process import run_command
from envbuild.local.subject import subject_of_model
from envbuild.local.venv import MARKER
from envbuild.lock.formats import pylock_text
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.oci.digest import Digest
from envbuild.verify.golden.runners import InInterpreter
from envbuild.verify.sources.model import read_model
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import serving
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.making import make_venv
from tests.unit.test_from_manifest import manifest_of

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = ("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
NOWHERE = "unix:///nonexistent/docker.sock"
MANY = make_wheel("many", "1.0", {f"many/part{number}.py": f"PART = {number}\n" * 50 for number in range(4000)})
TOOL, NEWER = (
    make_wheel(
        "tool",
        f"{it}.0",
        {"tool.py": f"def main(): print('tool {it}')\n"},
        entry_points={"console_scripts": {"tool": "tool:main"}},
    )
    for it in (1, 2)
)
MAKE = """
import subprocess, sys
from pathlib import Path
from envbuild.cli.console import Progress
from envbuild.local.venv import held_venv
from envbuild.lock.formats import read_pylock
folder, lock, cache = map(Path, sys.argv[1:])
locked = read_pylock(lock.read_bytes(), str(lock), lock.parent)
with Progress() as told, held_venv(folder, locked, locked.target.python, told, cache=cache) as python:
    print(python, flush=True)
    subprocess.run([folder / "bin/tool"])
"""
SAMPLE = """
import json, sys, numpy as np
facts = json.load(open(sys.argv[1]))
np.savez(sys.argv[2], inputs=np.float32(facts["inputs"]), outputs=np.float32(facts["predictions"]))
"""


@pytest.fixture(autouse=True)
def _without_engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)


@pytest.fixture
def start(tmp_path):
    """Start making an environment of wheels from an index and its program, in a process of its own."""
    with serving(MANY, TOOL, NEWER) as index:
        target = Target(python=platform.python_version(), machine=platform.machine(), glibc="2.17")
        for name, files in (("pylock.toml", (MANY, TOOL)), ("tool.toml", (TOOL,)), ("newer.toml", (NEWER,))):
            wheels = tuple(locked_wheel(it, index.file_url(it.filename)) for it in files)
            (tmp_path / name).write_bytes(pylock_text(Lock(target=target, wheels=wheels)))

        def run(name: str = "pylock.toml") -> subprocess.Popen[str]:
            command = [sys.executable, "-c", MAKE, tmp_path / "ü env", tmp_path / name, tmp_path / "cache"]
            pipe = subprocess.PIPE
            return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

        yield run


def locked_wheel(wheel: FakeWheel, url: str) -> LockedWheel:
    name, version = wheel.filename.split("-")[:2]
    sha256 = Digest(wheel.sha256)
    return LockedWheel(
        name=name, version=version, filename=wheel.filename, sha256=sha256, size=len(wheel.data), url=url
    )


def whole(folder: Path) -> bool:
    """Whether all of both wheels is there, and nothing that is on its way."""
    [site] = folder.glob("lib/*/site-packages")
    tool = subprocess.run([folder / "bin/tool"], capture_output=True, text=True, check=True).stdout
    there = {it.name for it in folder.iterdir()}
    parts = len(list((site / "many").iterdir()))
    return (tool, parts, ".envbuild-new" in there, MARKER in there) == ("tool 1\n", 4000, False, True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_in_the_middle_leaves_nothing_that_looks_whole(start, tmp_path, number):
    folder = tmp_path / "ü env"
    process = start()
    wait_for(folder / "pyvenv.cfg", process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.kill()  # and not the uv that it started
    process.communicate()
    assert process.returncode != 0
    assert '"lock"' not in ((folder / MARKER).read_text() if (folder / MARKER).exists() else "")
    again = start()
    assert again.communicate()[0].splitlines() == [str(folder / "bin/python"), "tool 1"]
    assert whole(folder)


def test_of_two_runs_at_once_one_makes_it_and_the_other_has_it(start, tmp_path):
    both = [start(), start()]
    said = [it.communicate() for it in both]
    assert [it.returncode for it in both] == [0, 0], said
    assert sum("making a virtual environment" in err for _, err in said) == 1, said
    assert whole(tmp_path / "ü env")


def test_runs_with_two_locks_on_one_folder_have_the_packages_of_their_own(start, tmp_path):
    wanted = {"tool.toml": "tool 1", "newer.toml": "tool 2"}
    runs = [(said, start(name)) for _ in range(4) for name, said in wanted.items()]
    python = str(tmp_path / "ü env" / "bin/python")
    for said, process in runs:
        out, err = process.communicate()
        assert out.splitlines() == [python, said], err


def test_a_dry_run_says_what_a_virtual_environment_is_made_of_and_makes_nothing(envbuild, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(manifest_of()))
    done = envbuild("local", "run.json", "--venv", "env", "--dry-run", "--json", cwd=tmp_path)
    plan = json.loads(done.stdout)
    said = (plan["venv"], plan["variant"], plan["lock"], plan["python"])
    assert said == (str(tmp_path / "env"), "cpu", "made now", "3.11.7")
    assert not plan.keys() & {"image", "build", "mounts"}
    assert [it.name for it in tmp_path.iterdir()] == ["run.json"]


@pytest.fixture(scope="module")
def stamped(tmp_path_factory, train_env, envbuild) -> Path:
    """A trained model with a golden sample in its manifest, stamped with an image that was never pushed."""
    folder = tmp_path_factory.mktemp("stamped")
    python, model = train_env(*TENSORFLOW), folder / "model"
    subprocess.run([python, ROOT / "examples/train.py", model], check=True)
    subprocess.run([python, "-c", SAMPLE, folder / "model-expected.json", folder / "sample.npz"], check=True)
    given = ("--model", model, "--golden", folder / "sample.npz", "--out", folder / "manifest.json")
    envbuild("capture", "--python", python, *given)
    base = ("--base", "debian:bookworm", "--out", folder / "out")
    envbuild("from-manifest", folder / "manifest.json", *base, "--stamp", model)
    return model


@pytest.mark.slow
def test_a_stamped_model_predicts_without_any_engine(stamped, tmp_path, cache, capfd, monkeypatch):
    subject = subject_of_model(read_model(str(stamped)))
    [lock] = subject.locks.values()
    with Progress() as told:
        python = make_venv(tmp_path / "env", lock, lock.target.python, told, cache=cache / "envbuild")
        [finding] = parity(subject, InInterpreter(name=str(python)), cache=cache / "envbuild", report=told)
    assert finding.agrees, finding
    assert "8 numbers" in finding.says
    program = "import sys, tensorflow as tf; print(tf.__version__, sys.prefix)"
    capfd.readouterr()
    assert run_command(["python", "-c", program], {"TF_CPP_MIN_LOG_LEVEL": "3"}, tmp_path / "env") == 0
    assert capfd.readouterr().out.split() == ["2.15.1", str(tmp_path / "env")]

    with FakeGcs() as gcs, Progress() as told:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        gcs.create_bucket("models")
        for path in (it for it in stamped.rglob("*") if it.is_file()):
            gcs.put("models", f"runs/1/{path.relative_to(stamped)}", path.read_bytes())
        moved = dataclasses.replace(subject, model="gs://models/runs/1")
        [finding] = parity(moved, InInterpreter(name=str(python)), cache=cache / "envbuild", report=told)
    assert finding.agrees, finding
