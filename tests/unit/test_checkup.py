"""The start-up check: what it finds, what it does then, and what it does not fall over."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from envbuild.check import LIST, PROGRAM, check_files, check_program
from envbuild.check.contract import Contract, tokens
from envbuild.check.program import gpu_findings
from envbuild.lock.model import Lock
from envbuild.recipe import LAYER_FORMAT, Base, make_recipe
from envbuild.verify.image import match_run
from tests.fakes.libraries import NVML, shared_library
from tests.fakes.trees import image_of_trees
from tests.unit.test_dockerfile import a_recipe
from tests.unit.test_verify_parts import RUN

VERSIONS = Path.home() / ".pyenv/versions"
PYTHONS = sorted(
    {sys.executable, "/usr/bin/python3"}
    | {str(it) for minor in range(7, 15) for it in VERSIONS.glob(f"3.{minor}.*/bin/python3")}
)
MINOR = "print('%d.%d' % __import__('sys').version_info[:2])"


@dataclass(slots=True)
class Environment:
    """A prefix as it lies in an image, with the packages of its list, and what a container is given."""

    prefix: Path
    python: str = sys.executable
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = subprocess.run([self.python, "-IS", "-c", MINOR], capture_output=True, text=True, check=True)
        minor = run.stdout.strip()
        for path in ("bin", "share/envbuild", f"lib/python{minor}/site-packages"):
            (self.prefix / path).mkdir(parents=True)
        (self.prefix / "bin/python").symlink_to(self.python)
        (self.prefix / PROGRAM).write_bytes(check_program(str(self.prefix)))
        (self.prefix / PROGRAM).chmod(0o755)
        self.lists(variant="cpu", python=minor, packages={"numpy": "1.26.4", "typing-extensions": "4.9.0"})
        self.install("numpy-1.26.4", "typing_extensions-4.9.0", "~umpy-1.22.0")

    @property
    def site(self) -> Path:
        [found] = self.prefix.glob("lib/*/site-packages")
        return found

    def install(self, *names: str) -> None:
        for name in names:
            (self.site / f"{name}.dist-info").mkdir()

    def lists(self, **said: Any) -> None:
        path = self.prefix / LIST
        old = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(old | said))

    def asks(self, contract: Any) -> None:
        self.variables["ENVBUILD_CONTRACT"] = json.dumps(contract)

    def run(
        self, *arguments: str, mode: str = "strict", before: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        command, env = [*before, str(self.prefix / PROGRAM), *arguments], {"ENVBUILD_CHECK": mode, **self.variables}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, cwd=self.prefix, timeout=60
        )

    def findings(self) -> list[dict[str, str]]:
        return list(json.loads(self.run("--json").stdout)["findings"])

    def said(self) -> list[str]:
        return [it["says"] for it in self.findings()]


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path / "env")


# What it finds


@pytest.mark.parametrize("python", PYTHONS)
def test_any_python_says_nothing_where_all_is_well_and_starts_the_command(tmp_path, python):
    env = Environment(tmp_path / "env", python)
    (tmp_path / "data").write_text("12 bytes now")
    data = [{"path": str(tmp_path / "data"), "size": 12}, {"path": str(tmp_path), "objects": 2, "size": 99}]
    env.asks({"variables": ["BUCKET"], "data": data, "packages": {"NumPy": "1.26.4"}})
    env.variables |= {"BUCKET": "", "PYTHONHOME": "/nonsense", "PYTHONPATH": "/nonsense"}
    done = env.run("--", "/bin/sh", "-c", 'echo "$0|$BUCKET|$PYTHONHOME"; exit 3', "a b")
    assert (done.returncode, done.stdout, done.stderr) == (3, "a b||/nonsense\n", "")


@pytest.mark.parametrize("python", PYTHONS)
def test_any_python_tells_each_fault_in_a_line(tmp_path, python):
    env = Environment(tmp_path / "env", python)
    env.asks({"variables": ["BUCKET", "B\nA\x1b"], "data": [{"path": "/nowhere", "uri": "gs://b/p"}], "gpu": {}})
    done = env.run("--", "/bin/sh", "-c", "echo started")
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (16, "")
    assert lines[0] == "envbuild-check: BUCKET is not set, and the program reads it; give it: -e BUCKET=VALUE"
    assert lines[1].startswith("envbuild-check: B\\nA\\x1b is not set")
    assert lines[2].startswith("envbuild-check: the data at /nowhere (gs://b/p) is not there; mount ")
    assert lines[3].startswith("envbuild-check: no GPU is visible, and the program needs 1; start ")
    assert lines[4].startswith("envbuild-check: this is ENVBUILD_CHECK=strict, so nothing is started")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("mode", "code", "told"),
    [("strict", 16, 2), ("warn", 0, 1), ("", 0, 1), ("off", 0, 0), ("WARN ", 0, 1), ("secret\x1b[0m", 16, 3)],
)
def test_the_mode_says_what_a_fault_does(env, mode, code, told):
    env.asks({"variables": ["BUCKET"]})
    done = env.run("--", "true", mode=mode)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, told)
    assert "secret" not in done.stderr
    assert env.run(mode=mode).returncode == code


def test_data_is_opened_and_listed_by_whoever_runs_the_check(env, tmp_path):
    for name in ("file", "folder", "closed", "empty"):
        (tmp_path / name).mkdir() if name != "file" else (tmp_path / name).write_text("1234")
    (tmp_path / "folder/in").write_text("")
    os.mkfifo(tmp_path / "pipe")
    places: dict[str, dict[str, Any]] = {
        "file": {"size": 5},
        "folder": {"objects": 1, "size": 10},
        "empty": {"objects": 1},
        "pipe": {},
        "none": {"uri": "https://user:secret@example.com/x"},
        "file/below": {},
        "nul\0": {},
        "half\ud800": {},
    }
    env.asks({"data": [{"path": str(tmp_path / name), **said} for name, said in places.items()]})
    found = [says.partition(str(tmp_path))[2] for says in env.said()]
    assert found == [
        "/file has 4 bytes, and had 5 for the run",
        "/empty is empty",
        "/pipe is neither a file nor a folder",
        "/none is not there",
        "/file/below is not there",
        "/nul\\x00 cannot be read: ValueError",
        "/half\\ud800 cannot be read: UnicodeEncodeError",
    ]


def test_data_that_the_user_may_not_read_is_told(env, tmp_path):
    modes = {"file": 0o000, "folder": 0o000, "shut": 0o444}
    (tmp_path / "file").write_text("1234")
    (tmp_path / "folder").mkdir()
    (tmp_path / "shut").mkdir()
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    env.asks({"data": [{"path": str(tmp_path / name)} for name in modes]})
    done = env.run("--json", before=() if os.getuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search"))
    assert [it["says"].partition(str(tmp_path))[2] for it in json.loads(done.stdout)["findings"]] == [
        "/file cannot be read: Permission denied",
        "/folder cannot be read: Permission denied",
        "/shut cannot be read: its files cannot be opened",
    ]


def test_packages_are_those_of_the_list_and_of_the_contract(env):
    env.lists(packages={"numpy": "1.26.4", "six": "1.17.0", "torch": "2.1.0+cu121", "typing-extensions": "4.9.0"})
    env.asks({"packages": {"numpy": "1.22.0", "typing_extensions": "4.9"}})
    env.install("torch-2.1.0_cu121", "typing.extensions-4.8.0")
    assert env.said() == [
        "six is not installed, and has to be in version 1.17.0",
        "typing-extensions is installed 2 times: 4.8.0, 4.9.0",
        "numpy is 1.26.4 here, and has to be 1.22.0",
        "typing_extensions is installed 2 times: 4.8.0, 4.9.0",
    ]


def test_another_python_and_no_site_packages_are_told(env):
    env.lists(python="2.7")
    env.site.rename(env.prefix / "elsewhere")
    one, other = env.said()
    assert re.fullmatch(r"Python 3\.\d+ runs here, and the environment is made for 2\.7", one)
    assert other.endswith("site-packages cannot be listed: No such file or directory")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.0+cu121", "1.0_cu121"),
        ("2022.07.01", "2022.7.1"),
        ("1.0", "1.0.0"),
        ("1.0RC1", "1.0rc1"),
        ("0", "0.0"),
        ("v1.0", "1.0"),
        ("1.0-alpha.1", "1.0a1"),
        ("1.0.rev2", "1.0.post2"),
    ],
)
def test_one_version_has_several_spellings(one, other):
    assert tokens(one) == tokens(other)
    assert tokens(one) != tokens(other + ".1")


# GPUs


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    """`drivers(memory, driver, mig)` -> a folder with a libnvidia-ml.so.1 of two GPUs that says so."""
    made: dict[tuple[int, str, bool], Path] = {}

    def folder(memory: int = 40, driver: str = "570.86.10", *, mig: bool = False) -> Path:
        key = (memory, driver, mig)
        if key not in made:
            text = NVML.read_text().replace("570.86.10", driver).replace("42949672960", f"{memory}ull << 30")
            text = text if mig else text.replace("*current = *pending = 1", "*current = *pending = 0")
            made[key] = tmp_path_factory.mktemp("driver")
            shared_library(made[key] / "libnvidia-ml.so.1", text)
        return made[key]

    return folder


T4 = {"count": 1, "memory": 15 << 30, "driver": "525.60.13", "capabilities": ["7.5", "8.0"]}


@pytest.mark.parametrize(
    ("asks", "driver", "said"),
    [
        (T4, {}, []),
        ({"count": 2, "memory": 40 << 30}, {}, []),
        ({"count": 3}, {}, ["2 GPUs are visible, and the program needs 3"]),
        (T4, {"memory": 8}, ["the GPU has 8.0 GiB of memory, and the program needs 15.0 GiB"]),
        ({"memory": 41 << 30}, {}, []),
        (T4, {"driver": "450.80.02"}, ["the driver is 450.80.02, and the environment needs 525.60.13"]),
        (
            {"capabilities": ["9.0", "10.0"]},
            {},
            ["the GPU has compute capability 8.0, and the program needs 9.0"],
        ),
        (T4, {"mig": True}, ["the GPU's memory is unknown, and the program needs 15.0 GiB"]),
        ({"count": 0, "memory": 99 << 30, "driver": "999"}, {}, []),
        (
            {"count": "x", "memory": True, "capabilities": ["8.0", 1], "later": 5},
            {},
            [
                "ENVBUILD_CONTRACT: its `gpu` has entries that are not valid: count, memory, capabilities",
            ],
        ),
        (
            T4,
            {"driver": "garbage"},
            ["the driver's version is unknown (garbage), and the environment needs 525.60.13"],
        ),
    ],
)
def test_gpus_are_held_against_the_contract(env, drivers, asks, driver, said):
    env.variables["LD_LIBRARY_PATH"] = str(drivers(**driver))
    env.asks({"gpu": asks})
    assert env.said() == said


def test_an_image_for_gpus_wants_their_driver_and_only_says_so_where_there_is_none(env, drivers):
    env.lists(variant="gpu", cuda="12.2", driver="575.10")
    [found] = env.findings()
    assert (found["severity"], found["about"]) == ("warning", "gpu")
    done = env.run("--", "true")
    assert done.returncode == 0
    assert done.stderr.startswith("envbuild-check: warning: no GPU is visible, and the environment is made for one")
    env.variables["LD_LIBRARY_PATH"] = str(drivers())
    assert env.said() == ["the driver is 570.86.10, and the environment with CUDA 12.2 needs 575.10"]


def test_nobody_is_asked_for_gpus_that_nobody_needs(env, drivers, tmp_path):
    env.variables |= {"LD_LIBRARY_PATH": str(drivers()), "FAKE_NVML_LOG": str(tmp_path / "log")}
    assert (env.said(), (tmp_path / "log").exists()) == ([], False)
    env.asks({"gpu": {"count": 0}})
    assert (env.said(), (tmp_path / "log").exists()) == ([], False)
    env.asks({"gpu": {}})
    assert (env.said(), (tmp_path / "log").read_text()) == ([], "init\nshutdown\n")


@pytest.mark.parametrize(("code", "told"), [("9", 1), ("18", 2)])
def test_a_driver_that_does_not_answer_is_told(env, drivers, code, told):
    env.variables |= {"LD_LIBRARY_PATH": str(drivers()), "FAKE_NVML_ERROR": code}
    env.asks({"gpu": {}})
    said = env.said()
    assert len(said) == told
    assert told == 1 or said[0] == "NVIDIA's driver does not answer: error 18 of NVML"


def test_without_its_library_the_kernel_tells_the_driver_and_the_devices(tmp_path):
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.129.03  Release Build\nGCC: 12.3\n"
    )
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    contract = Contract(
        str(tmp_path), {"ENVBUILD_CONTRACT": json.dumps({"gpu": {"count": 2, "driver": "550", "memory": 9}})}
    )
    found = list(gpu_findings(contract, str(tmp_path)))
    assert [(it["about"], it["severity"]) for it in found] == [("driver", "error"), ("gpu memory", "warning")]
    assert "the driver is 535.129.03, and the environment needs 550" in found[0]["says"]


# What it does not fall over

HOSTILE: dict[str, Any] = {
    "nothing": b"",
    "no object": b"[1]",
    "more than one": b"{} {}",
    "cut off": b'{"variables": ["A"',
    "deep": b'{"variables":' + b"[" * 300_000,
    "long number": b'{"gpu": {"memory": ' + b"9" * 500_000 + b"}}",
    "no text": b"\xff\xfe{}",
    "large": b'{"a": "' + b"a" * (2 << 20) + b'"}',
    "no version": b'{"packages": {"tool": 1}}',
    "no driver": b'{"gpu": {"driver": "abc", "memory": -5}}',
    "no size": b'{"data": [{"path": "/etc/passwd", "size": "x"}]}',
    "no finite size": b'{"data": [{"path": "/etc/passwd", "size": 1e999}]}',
    "no number of objects": b'{"data": [{"path": "/", "objects": true}]}',
    "constants": b'{"gpu": {"count": NaN, "memory": -Infinity}, "data": [{"path": "/", "size": NaN}]}',
    "wrong kinds": b'{"variables": "A", "data": {}, "packages": [], "gpu": [], "variant": 1, "driver": {}}',
    "wrong entries": b'{"variables": [1, null, ""], "data": [1, {"path": 1}], "packages": {"a": 1}}',
    "escapes": b'{"variables": ["\\u001b[31m", "\\ud800"], "packages": {"\\u0000": "\\n"}}',
    "surrogates in paths": b'{"data": [{"path": "\\udcff"}, {"path": "' + b"a" * 9000 + b'"}]}',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_a_contract_holds_is_told_in_lines(env, tmp_path, kind):
    (tmp_path / "contract").write_bytes(HOSTILE[kind])
    env.variables["ENVBUILD_CONTRACT"] = str(tmp_path / "contract")
    done = env.run("--", "true")
    assert done.returncode == 16, done
    assert all(line.startswith("envbuild-check: ") and line.isprintable() for line in done.stderr.splitlines())
    assert "Traceback" not in done.stderr
    assert "could not be tested" not in done.stderr
    assert len(done.stderr) < 5000
    assert env.run("--", "true", mode="warn").returncode == 0


@pytest.mark.parametrize("path", ["/nowhere", "/", "/dev/zero", "/dev/stdin", "\x1b[31m"])
def test_a_contract_that_is_no_file_is_told(env, path):
    env.variables["ENVBUILD_CONTRACT"] = path
    [says] = env.said()
    assert "and its needs are not checked" in says
    assert "\x1b" not in says


def test_an_image_without_its_list_and_a_list_that_serving_adds(env):
    (env.prefix / "share/envbuild/serving.json").write_text('{"variables": ["AIP_HTTP_PORT"]}')
    assert [it["about"] for it in env.findings()] == ["AIP_HTTP_PORT"]
    (env.prefix / LIST).unlink()
    assert [it["about"] for it in env.findings()] == ["contract", "AIP_HTTP_PORT"]


def test_of_many_findings_some_are_printed_and_all_are_listed(env):
    env.asks({"variables": [f"V{number}" for number in range(200)]})
    assert len(env.run(mode="warn").stderr.splitlines()) == 51
    assert len(env.findings()) == 200


# The command, and the program itself


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        *(((it,), 127, "is not there") for it in ("nothing-of-this-name", "/etc/passwd/x")),
        *(((it,), 126, "Permission denied") for it in ("/", "/etc/passwd")),
        (("",), 127, "the command is an empty word"),
    ],
)
def test_a_command_that_cannot_be_started_ends_as_with_a_shell(env, command, code, says):
    done = env.run("--", *command)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_command_starts_as_if_nothing_had_been_before_it(env):
    code = "grep -E '^Sig(Ign|Blk)' /proc/self/status; env; ls /proc/self/fd | wc -l"
    plain = subprocess.run(["/bin/sh", "-c", code], env={"A": "1"}, capture_output=True, text=True, check=True)
    checked = env.run("--", "/bin/sh", "-c", code)
    drop = re.compile(r"^(ENVBUILD_CHECK|A)=.*\n", re.MULTILINE)
    assert drop.sub("", checked.stdout).replace(str(env.prefix), str(Path.cwd())) == drop.sub("", plain.stdout)


@pytest.mark.parametrize("arguments", [("--jsn",), ("true",), ("--json", "x", "--", "true")])
def test_what_is_not_known_is_refused(env, arguments):
    done = env.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: envbuild-check [--json] [-- COMMAND...]" in done.stderr


def test_help_says_what_it_is_for(env):
    assert "ENVBUILD_CONTRACT" in env.run("--help").stdout


def test_it_runs_where_streams_are_closed_and_through_a_link(env, tmp_path):
    env.asks({"variables": ["BUCKET"]})
    (tmp_path / "link").symlink_to(env.prefix / PROGRAM)
    for closing in ("2>&- >&-", "2>/dev/full"):
        done = subprocess.run(
            ["/bin/sh", "-c", f"{tmp_path}/link --json {closing}; {tmp_path}/link {closing}"],
            env={"ENVBUILD_CHECK": "strict", **env.variables},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 16


@pytest.mark.parametrize(("stdout", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_findings_that_cannot_be_written_are_no_success(env, stdout, why):
    env.variables["ENVBUILD_CHECK"] = "warn"
    command = ["/bin/sh", "-c", f'"$0" --json {stdout}', str(env.prefix / PROGRAM)]
    done = subprocess.run(command, env=env.variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"envbuild-check: nothing can be written to stdout: {why}\n")


def test_it_imports_little_and_leaves_nothing_behind(env):
    env.asks({"variables": ["BUCKET"], "data": [{"path": "/"}]})
    command = [env.python, "-BIS", "-X", "importtime", str(env.prefix / PROGRAM), "--", "true"]
    done = subprocess.run(command, env=env.variables, capture_output=True, text=True, check=False)
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert imported & {"typing", "ctypes", "site", "pathlib", "subprocess", "dataclasses"} == set()
    assert not list(env.prefix.rglob("__pycache__"))


def test_it_is_syntax_and_library_of_python_37():
    text = check_program("/opt/env").decode()
    tree = ast.parse(text, feature_version=(3, 7))
    attributes = {it.attr for it in ast.walk(tree) if isinstance(it, ast.Attribute)}
    assert attributes & {"removeprefix", "removesuffix", "is_relative_to"} == set()
    assert "envbuild.check" not in text
    assert "TYPE_CHECKING" not in text
    assert text.startswith("#!/opt/env/bin/python -BIS\n")


def test_another_program_is_another_format_of_layers():
    """The environment's id does not have the program in it: raise LAYER_FORMAT, then change the digest here."""
    found = LAYER_FORMAT, hashlib.sha256(check_program("/opt/env")).hexdigest()[:12]
    assert found == (13, "0afafbcb3d11")


def test_the_list_of_an_image_follows_from_its_recipe():
    labels = {"variant": "gpu", "cuda": "12.2", "driver": "525.60.13", "framework": "tensorflow==2.15.1"}
    recipe = a_recipe(labels=tuple((f"dev.envbuild.{name}", text) for name, text in labels.items()))
    assert json.loads(check_files(recipe)[LIST]) == {
        "variant": "gpu",
        "python": "3.11",
        "cuda": "12.2",
        "driver": "525.60.13",
        "packages": {"six": "1.0"},
    }
    stack = match_run(RUN, recipe)[0]
    base = Base(name="a", image=image_of_trees(), target=recipe.target, python_path="/usr/bin/python3.11")
    made = make_recipe(stack, Lock(target=recipe.target, wheels=()), base)
    assert json.loads(check_files(made)[LIST]) == {
        "variant": "gpu",
        "python": "3.11",
        "cuda": stack.cuda,
        "driver": "525.60.13",
        "packages": {},
    }
    assert json.loads(check_files(a_recipe(labels=(), wheels=()))[LIST]) == {"python": "3.11", "packages": {}}
