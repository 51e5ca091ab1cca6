"""The command lines of capture, the library call, and what neither may do to the process it runs in."""

import json
import os
import re
import signal
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.main import get_command

from envbuild.capture import capture, script
from envbuild.capture.record import is_chief, keras_callback, tell_disagreements
from envbuild.cli.capture import other_environment
from envbuild.cli.commands import app
from envbuild.manifest.reader import read_manifest
from tests.fakes.gcs import FakeGcs
from tests.running import run_envbuild
from tests.unit.capturing import Environment, script_path

OURS = {"--python", "--image", "--script"}
"""Options that the one file cannot have."""


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path)


@pytest.fixture
def gcs(monkeypatch):
    with FakeGcs() as gcs:
        gcs.create_bucket("runs")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        yield gcs


def envbuild(*arguments: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return run_envbuild("capture", *arguments, env=dict(os.environ, NO_COLOR="1", **changes))


def listed(help_text: str) -> set[str]:
    return set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", help_text, re.MULTILINE)) - {"--help"}


def test_both_command_lines_have_the_same_options(env):
    ours = {name for option in get_command(app).commands["capture"].params for name in option.opts}  # type: ignore[attr-defined]
    assert listed(env.run("--help").stdout) == ours - OURS


WRONG = [
    ["--command", "'"],
    ["--command", "x", "--", "x"],
    ["--"],
    ["--load", "a b"],
    ["--load", "os;x"],
    ["--out", "gs://bucket"],
    ["--out", "gs://bucket/"],
    ["--out", "gs:///x"],
    ["--out", "s3://bucket/x"],
    ["--out", "http://example.com/x"],
    ["--out", ""],
    ["--model", ""],
    ["--config", ""],
    ["--golden", ""],
    ["--command", ""],
    ["--variable", ""],
    ["--variable", "A=B"],
    ["--variable", "A\udcff"],
    ["--requires", "A=B"],
    ["--data", ""],
    ["--data", "="],
    ["--data", "A="],
    ["--preprocessing", ""],
    ["--config", "/no/such/file.toml"],
    ["--config", "/dev/null"],
    ["--golden", "/no/such/file.npz"],
]


@pytest.mark.parametrize("arguments", WRONG)
def test_arguments_that_cannot_be_meant_are_one_line_and_exit_code_2(env, arguments):
    done = env.run(*arguments, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"capture: .+\n", done.stderr)
    ours = envbuild(*arguments)
    assert (ours.returncode, ours.stdout) == (2, "")
    assert ours.stderr.startswith("error: ")


def test_a_value_that_was_given_as_a_name_is_not_repeated(env):
    for option in ("--variable", "--requires"):
        done = env.run(option, "DB_PASSWORD=hunter2", check=False)
        assert (done.returncode, "give the name alone" in done.stderr, "hunter2" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    "arguments", [["--out", "x"], ["--image", "x"], ["--python", "x"], ["--model", "x"], ["--patch"], ["--", "x"]]
)
def test_what_the_printed_file_would_ignore_is_refused(arguments):
    done = envbuild("--script", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "would be ignored" in done.stderr


@pytest.mark.parametrize("option", ["--python", "--image"])
def test_an_empty_name_of_another_place_is_refused(option):
    done = envbuild(option, "")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option[2:]}: is empty" in done.stderr


def test_a_pipe_is_not_waited_for(env):
    os.mkfifo(env.folder / "pipe")
    for option in ("--config", "--golden", "--out"):
        assert env.run(option, "pipe", check=False).returncode in (1, 2)
        assert envbuild(option, env.folder / "pipe").returncode in (2, 13)
    assert stat.S_ISFIFO((env.folder / "pipe").lstat().st_mode)


def test_a_manifest_that_is_there_keeps_its_mode(env):
    path = env.folder / "m.json"
    env.run("--out", "m.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    env.run("--out", "m.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def closed(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program whose stdout the shell has closed."""
    words = ["sh", "-c", 'exec "$@" >&-', "sh", *map(str, command)]
    return subprocess.run(words, stderr=-1, text=True, check=False, timeout=60, cwd=folder)


def test_a_closed_stdout_is_an_error_where_the_manifest_would_go_there(env):
    (env.folder / "freeze.txt").write_text("idna==3.20\n")
    ours = [sys.executable, "-m", "envbuild"]
    convert = [*ours, "convert", "freeze.txt", "--python", "3.11.7"]
    for command in ([*ours, "capture"], [*ours, "capture", "--script"], [*ours, "schema"], convert):
        done = closed(*command, folder=env.folder)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            13,
            "error: standard output is closed, and the result goes there",
        )
    alone = [env.prefix / "bin/python", script_path()]
    done = closed(*alone, folder=env.folder)
    assert done.returncode == 1
    assert re.fullmatch("capture: .*standard output is closed.*\n", done.stderr)
    for number, command in enumerate(([*ours, "capture"], convert, alone)):
        done = closed(*command, "--out", f"{number}.json", folder=env.folder)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)
        read_manifest((env.folder / f"{number}.json").read_bytes(), "written")


@pytest.mark.parametrize(
    "arguments", [["--bogus"], ["word"], ["--out", "."], ["--variabl", "X"], ["--out"], ["--data"]]
)
def test_unknown_options_and_words_without_an_option_are_usage_errors(env, arguments):
    for done in (env.run(*arguments, check=False), envbuild(*arguments)):
        assert (done.returncode, done.stdout) == (2, "")
        assert re.search("(?i)error: |^capture: ", done.stderr)
        assert "Traceback" not in done.stderr


def test_what_cannot_be_written_is_exit_code_1(env):
    done = env.run("--out", "/dev/null/x", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("capture: ")
    assert "/dev/null" in done.stderr
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, str(script_path())]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--command", "python train.py --x 'a b'"], ["--", "python", "train.py", "--x", "a b"]]
)
def test_the_command_of_the_run_is_recorded(env, words):
    assert env.capture(*words)["entry"]["command"] == ["python", "train.py", "--x", "a b"]
    assert env.capture("--", "a", "--", "--out")["entry"]["command"] == ["a", "--", "--out"]


def test_another_process_does_not_know_how_the_run_was_started(env):
    manifest = env.capture()
    assert manifest["source"]["unknown"] == ["entry", "numerics"]
    assert not {"entry", "numerics"} & manifest.keys()
    assert env.capture("--", "x")["source"]["unknown"] == ["numerics"]
    assert "unknown" not in capture()["source"]


def test_a_module_is_loaded_so_that_its_libraries_are_recorded(env):
    (env.site / "speaks.py").write_text("import os, sqlite3\nprint('from Python')\nos.write(1, b'from C')\n")
    assert loaded(env.capture()) == []
    done = env.run("--load", "speaks")
    assert loaded(json.loads(done.stdout)) != []
    assert sorted(done.stderr.split("from ")) == ["", "C", "Python\n"]


def loaded(manifest: dict) -> list[str]:
    return [library["name"] for library in manifest["native"]["libraries"] if library["name"].startswith("_sqlite3.")]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("raise SystemExit('usage: x')", "SystemExit: usage: x"),
        ("raise ValueError('a\\nb https://me:hunter2@example.com')", "ValueError: a b https://example.com"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_told_and_recorded(env, source, reason):
    (env.site / "broken.py").write_text(source)
    done = env.run("--load", "broken", "--load", "json")
    sentence = f"broken could not be loaded: {reason}"
    assert done.stderr == f"warning: {sentence}\n"
    assert json.loads(done.stdout)["source"]["notes"] == [sentence]


STAYS = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"


def test_threads_that_a_module_leaves_are_not_waited_for(env, tmp_path):
    (env.site / "stays.py").write_text(STAYS)
    assert env.capture("--load", "stays")["schema_version"]
    python = env.prefix / "bin/python"
    for place in (["--python", python], []):
        done = envbuild("--load", "stays", *place, PYTHONPATH=str(env.site))
        assert (done.returncode, json.loads(done.stdout)["schema_version"]) == (0, "1.1")


def test_paths_mean_the_same_whatever_folder_a_module_goes_to(env, tmp_path):
    (env.site / "goes.py").write_text(f"import os\nos.chdir({str(tmp_path)!r})\n")
    (env.folder / "clean.py").write_text("")
    env.run("--load", "goes", "--preprocessing", "clean.py", "--out", "q.json")
    assert (env.folder / "q.json").exists()
    assert not (tmp_path / "q.json").exists()


def test_what_disagrees_is_told_block_by_block_without_driving_the_terminal(capsys):
    values = {"model": "2.14.0\x1b[2J", "environment": "2.15.1"}
    item = {"fact": "tensorflow version", "values": values, "message": "the model was written by another TensorFlow"}
    tell_disagreements({"disagreements": [item, item]})
    block = "warning: the model was written by another TensorFlow\n  model: 2.14.0\\x1b[2J\n  environment: 2.15.1\n"
    assert capsys.readouterr() == ("", block * 2)


def keras_model(path: Path, version: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": version, "date_saved": "2026-11-21@10:00:00"}))
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", b"")
    return path


def test_a_disagreement_is_told_and_the_manifest_is_written_nevertheless(env):
    env.install("keras", "2.15.0")
    model = str(keras_model(env.folder / "model.keras", "3.9.9"))
    python = env.prefix / "bin/python"
    for done in (env.run("--model", model, "--out", "m.json"), envbuild("--model", model, "--python", python)):
        assert done.returncode == 0
        assert re.search(
            r"^warning: .*keras 3\.9\.9.*\n  model: 3\.9\.9\n  environment: 2\.15\.0$", done.stderr, re.MULTILINE
        )
    manifest = json.loads(done.stdout)
    assert json.loads((env.folder / "m.json").read_text())["disagreements"] == manifest["disagreements"] != []


def npz(path: Path) -> Path:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("inputs", "outputs"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00\x76\x00" + header + struct.pack("<2f", 1, 2))
    return path


def test_options_reach_the_parts_in_every_way(env):
    (env.folder / "clean.py").write_text("x = 1\n")
    sample, python = str(npz(env.folder / "golden.npz")), env.prefix / "bin/python"
    options = [
        "--golden",
        sample,
        "--preprocessing",
        str(env.folder / "clean.py"),
        "--data",
        f"TRAIN={sample}",
        "--deep",
    ]
    for manifest in (env.capture(*options), json.loads(envbuild(*options, "--python", python).stdout)):
        assert manifest["golden"]["inputs"][0]["shape"] == [2]
        assert manifest["contract"]["preprocessing"][0]["files"] == 1
        assert [item["variable"] for item in manifest["contract"]["data"]] == ["TRAIN"]
        assert manifest["installation"]["method"] == "sha256"


def test_lists_add_to_those_of_the_file_and_all_else_wins_over_it(env):
    settings = {
        "requires": ["A"],
        "variables": ["MINE"],
        "model": "m",
        "command": ["a"],
        "deep": True,
        "load": ["sqlite3"],
    }
    (env.folder / "capture.json").write_text(json.dumps(settings))
    env.variables["MINE"] = "1"
    manifest = env.capture("--config", "capture.json", "--requires", "B")
    assert [item["name"] for item in manifest["contract"]["variables"]] == ["A", "B"]
    assert (manifest["variables"]["MINE"], manifest["model_uri"], manifest["entry"]["command"]) == ("1", "m", ["a"])
    assert manifest["installation"]["method"] == "sha256"
    assert loaded(manifest)
    manifest = env.capture("--config", "capture.json", "--model", "n", "--", "b")
    assert (manifest["model_uri"], manifest["entry"]["command"]) == ("n", ["b"])


def test_a_required_variable_that_is_not_set_is_told(env, capfd, monkeypatch):
    done = envbuild("--requires", "DB_URL", "--requires", "ABSENT", DB_URL="x")
    assert "warning: required, but not set here: ABSENT; correct the name" in done.stderr
    monkeypatch.setenv("DB_URL", "x")
    capture(requires=["DB_URL"])
    assert "required" not in capfd.readouterr().err
    capture(requires=["DB_URL", "ABSENT"])
    assert "warning: required, but not set here: ABSENT; " in capfd.readouterr().err


def test_a_manifest_goes_to_a_bucket(gcs, tmp_path):
    manifest = capture(out="gs://runs/7/manifest.json")
    assert json.loads(gcs.data("runs", "7/manifest.json")) == manifest
    capture(out="gs://runs/7/manifest.json", variables=["PATH"])
    assert "PATH" in json.loads(gcs.data("runs", "7/manifest.json"))["variables"]
    done = envbuild("--out", "gs://runs/8.json")
    assert (done.returncode, done.stdout) == (0, "gs://runs/8.json\n")
    with pytest.raises(OSError, match=r"^gs://absent/x.json: .*no such bucket"):
        capture(out="gs://absent/x.json")


def test_a_bucket_needs_a_library(env):
    done = env.run("--out", "gs://runs/x.json", check=False)
    assert done.returncode == 1
    assert "gs://runs/x.json: google-cloud-storage is not installed here" in done.stderr


MANY = """
import os, threading
from capture import capture

forks = []
for _ in range(2):
    forks.append(os.fork())
    if not forks[-1]:
        capture(out="manifest.json")
        os._exit(0)
threads = [threading.Thread(target=capture, kwargs={"out": "manifest.json"}) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert [os.waitpid(fork, 0)[1] for fork in forks] == [0, 0]
"""


def run_beside_the_file(env: Environment, code: str) -> None:
    """Run a program of the environment that imports the one file as a module."""
    (env.site / "capture.py").write_text(script())
    command = [str(env.prefix / "bin/python"), "-W", "error", "-c", code]
    subprocess.run(command, cwd=env.folder, env=env.variables | {"PATH": str(env.bin)}, check=True, timeout=60)


def test_captures_of_threads_and_forks_leave_one_whole_file(env):
    run_beside_the_file(env, MANY)
    assert json.loads((env.folder / "manifest.json").read_text())["schema_version"]
    assert [path.name for path in env.folder.iterdir()] == ["manifest.json"]


UNTOUCHED = """
import os, signal, sys, threading, warnings
import tensorflow_estimator  # what a program has imported stays as it is
from capture import capture

def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals() if number not in (9, 19, 32, 33)]
    umask = os.umask(0o022)
    os.umask(umask)
    frameworks = {"tensorflow", "torch", "jax", "keras", "numpy"} & sys.modules.keys()
    settings = list(warnings.filters), list(sys.path), sys.argv[:], sys.stdout, sys.stderr, sys.excepthook
    files = sorted(os.listdir("/proc/self/fd"))
    return handlers, umask, frameworks, settings, os.getcwd(), dict(os.environ), files, threading.active_count()

capture(out="warm.json")
before = state()
capture(out="manifest.json", requires=["X"], deep=True, patch=True)
after = state()
assert before == after, [pair for pair in zip(before, after) if pair[0] != pair[1]]
"""


def test_a_capture_changes_nothing_in_the_process(env):
    for name in ("tensorflow", "torch", "jax", "keras", "numpy", "tensorflow_estimator"):
        env.install(name.replace("_", "-"), "2.0")
        (env.site / f"{name}.py").write_text("" if "_" in name else "raise SystemExit('imported')\n")
    run_beside_the_file(env, UNTOUCHED)


def test_another_interpreter_answers_whatever_it_prints(env, tmp_path):
    (env.site / "sitecustomize.py").write_text("print('{\"garbage\": 1}')\nimport atexit, os\n")
    env.install("x")
    done = envbuild("--python", env.prefix / "bin/python", "--requires", "X", "--", "python", "train.py", X="1")
    manifest = json.loads(done.stdout)
    assert [item["name"] for item in manifest["distributions"]] == ["x"]
    assert manifest["contract"]["variables"] == [{"name": "X", "present": True}]
    assert manifest["entry"]["command"] == ["python", "train.py"]
    assert "garbage" in done.stderr


def test_an_interpreter_that_crashes_at_its_end_has_answered(env):
    (env.site / "sitecustomize.py").write_text("import atexit, os; atexit.register(os.abort)\n")
    done = envbuild("--python", env.prefix / "bin/python")
    assert (done.returncode, json.loads(done.stdout)["python"]["implementation"]) == (0, "cpython")


def test_an_interpreter_that_is_killed_is_told(env):
    (env.site / "sitecustomize.py").write_text("import os; os.kill(os.getpid(), 11)\n")
    done = envbuild("--python", env.prefix / "bin/python")
    assert (done.returncode, done.stdout) == (10, "")
    assert "(ended by SIGSEGV)" in done.stderr
    assert "3.7 or later" not in done.stderr


def test_without_python_no_message_names_that_option(tmp_path):
    (tmp_path / "leaves.py").write_text("import os\nos._exit(5)\n")
    done = envbuild("--load", "leaves", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (10, "")
    assert "could not capture its environment (exit code 5)" in done.stderr
    assert ("--python" in done.stderr, "envbuild capture" in done.stderr) == (False, True)


def test_where_the_manifest_goes_is_checked_before_another_interpreter_is_started(env, tmp_path):
    (env.site / "sitecustomize.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w')\n")
    done = envbuild("--python", env.prefix / "bin/python", "--out", "gs://bucket")
    assert (done.returncode, (tmp_path / "started").exists()) == (2, False)


def test_what_the_parts_refuse_in_another_interpreter_is_a_usage_error_too(env):
    done = envbuild("--python", env.prefix / "bin/python", "--load", "a b")
    assert (done.returncode, done.stdout) == (2, "")


def test_the_other_interpreter_gets_the_environment_of_the_shell(env, monkeypatch, capfd):
    (env.site / "sitecustomize.py").write_text("import os; print('seen:', sorted(os.environ))\n")
    for name in ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("PYTHONPATH", "/also")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    python = str(env.prefix / "bin/python")
    assert other_environment(python, ["--environment-only"])["python"]["environment"] == "venv"
    seen = capfd.readouterr().err
    assert not [name for name in ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__") if f"'{name}'" in seen]
    assert "'PYTHONPATH'" in seen
    monkeypatch.setenv("VIRTUAL_ENV", "/other")
    other_environment(python, ["--environment-only"])
    assert "'VIRTUAL_ENV'" in capfd.readouterr().err


def test_the_virtual_environment_of_envbuild_itself_is_recorded_where_it_is_captured(env):
    done = envbuild("--variable", "VIRTUAL_ENV", VIRTUAL_ENV=sys.prefix)
    assert json.loads(done.stdout)["variables"]["VIRTUAL_ENV"] == sys.prefix


def test_of_a_python_that_is_too_old_only_that_is_said(tmp_path):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\n[ "$1" = -c ] && echo "Python 3.6" || { echo SyntaxError >&2; exit 1; }\n')
    program.chmod(0o755)
    done = envbuild("--python", program)
    assert (done.returncode, "SyntaxError" in done.stderr) == (2, False)


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("exit 0", 2, "it is not Python"),
        (
            '[ "$1" = -c ] && echo "Python 2.7" || kill -SEGV $$',
            2,
            "this is Python 2.7, and capture needs 3.7 or later",
        ),
        ('[ "$1" = -c ] && echo "Python 3.6" || exit 1', 2, "this is Python 3.6, and capture needs 3.7 or later"),
        ('[ "$1" = -c ] && echo "Python 3.9" || exit 1', 10, "exit code 1"),
        ("exit 1", 10, "exit code 1"),
        ('mkdir -p "$(dirname "$3")"; echo garbage > "$3"', 10, "the manifest is not JSON"),
        ('mkdir -p "$(dirname "$3")"; echo "{}" > "$3"', 10, "not a training manifest"),
    ],
)
def test_programs_that_cannot_capture_are_told_apart(tmp_path, source, code, said):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{source}\n")
    program.chmod(0o755)
    done = envbuild("--python", program)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_is_no_interpreter(tmp_path):
    done = envbuild("--python", tmp_path)
    assert done.returncode == 2
    assert "this interpreter cannot be run: Permission denied" in done.stderr


def test_the_model_is_read_where_the_library_is(env, gcs):
    gcs.put("runs", "7/model.keras", b"no model")
    uri = "gs://runs/7/model.keras"
    assert "google-cloud-storage" in env.capture("--model", uri)["model"]["unread"]
    manifest = json.loads(envbuild("--python", env.prefix / "bin/python", "--model", uri).stdout)
    assert "google-cloud-storage" not in json.dumps(manifest)
    assert [file["size"] for file in manifest["model"]["files"]] == [8]
    assert manifest["model_uri"] == uri


def test_an_engine_that_is_not_there_is_a_missing_component():
    done = envbuild("--image", "x:1", DOCKER_HOST="unix:///no/such/socket")
    assert (done.returncode, done.stdout) == (17, "")
    assert "  where: unix:///no/such/socket\n  do: start Docker" in done.stderr


def test_a_callback_needs_a_keras():
    with pytest.raises(RuntimeError, match="needs Keras"):
        keras_callback()


CHOICE = """
import importlib, sys
from capture import keras_callback
for name in sys.argv[1:]:
    importlib.import_module(name)
print(type(keras_callback()).__mro__[1].__module__)
"""


@pytest.mark.parametrize(
    ("imported", "legacy", "chosen"),
    [
        (["keras"], "", "keras.callbacks"),
        (["tf_keras"], "", "tf_keras.callbacks"),
        (["keras", "tf_keras"], "", "keras.callbacks"),
        (["keras", "tf_keras"], "1", "tf_keras.callbacks"),
        (["keras"], "1", "keras.callbacks"),
        (["tensorflow"], "", "tensorflow.keras.callbacks"),
        (["tensorflow", "keras"], "", "keras.callbacks"),
    ],
)
def test_the_callback_is_one_of_the_keras_that_is_imported(env, imported, legacy, chosen):
    for name in ("keras", "tf_keras", "tensorflow/keras"):
        folder = env.site / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("from . import callbacks\n")
        (folder / "callbacks.py").write_text("class Callback: pass\n")
    (env.site / "tensorflow/__init__.py").write_text("from . import keras\n")
    (env.site / "capture.py").write_text(script())
    command = [env.prefix / "bin/python", "-c", CHOICE, *imported]
    variables = env.variables | {"TF_USE_LEGACY_KERAS": legacy}
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    assert done.stdout == f"{chosen}\n"


def task(kind: str, index: object, **cluster: list[str]) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("name", "text", "chief"),
    [
        ("TF_CONFIG", "", True),
        ("TF_CONFIG", "{", True),
        ("TF_CONFIG", "[]", True),
        ("TF_CONFIG", "{}", True),
        ("TF_CONFIG", task("chief", 0, chief=["a"], worker=["b"]), True),
        ("TF_CONFIG", task("worker", 0, chief=["a"], worker=["b"]), False),
        ("TF_CONFIG", task("worker", 0, worker=["a", "b"]), True),
        ("TF_CONFIG", task("worker", 1, worker=["a", "b"]), False),
        ("TF_CONFIG", task("worker", "1", worker=["a", "b"]), False),
        ("TF_CONFIG", task("ps", 0, worker=["a"], ps=["b"]), False),
        ("TF_CONFIG", task("evaluator", 0, worker=["a"], evaluator=["b"]), False),
        ("CLUSTER_SPEC", task("workerpool0", 0, workerpool0=["a"], workerpool1=["b"]), True),
        ("CLUSTER_SPEC", task("workerpool0", 1, workerpool0=["a", "b"]), False),
        ("CLUSTER_SPEC", task("workerpool1", 0, workerpool0=["a"], workerpool1=["b"]), False),
    ],
)
def test_only_the_chief_of_a_cluster_captures(monkeypatch, name, text, chief):
    monkeypatch.setenv(name, text)
    assert is_chief() is chief


def test_ctrl_c_ends_the_other_interpreter_too(env, tmp_path):
    mark = tmp_path / "mark"
    (env.site / "sitecustomize.py").write_text(
        f"import os, time; time.sleep(0.5); open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "envbuild", "capture", "--python", str(env.prefix / "bin/python")]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as process:
        while not (mark.exists() and mark.read_text()):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
