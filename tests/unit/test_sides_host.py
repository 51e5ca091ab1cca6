"""The machine here as a side: what it really has, whether what a program needs is in reach, and no secret."""

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.capture import capture
from envbuild.capture.contract import data_facts
from envbuild.capture.files import manifest_text
from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.manifest.model import Contract, Data, RequiredVariable, Tree
from envbuild.manifest.reader import read_manifest
from envbuild.verify.rules import apply_rules
from envbuild.verify.sources import Side, host, side_of_manifest
from envbuild.verify.sources.host import LARGEST_READ
from envbuild.verify.sources.host import side_of_host as _side_of_host

NOTHING = Contract()


def side_of_host(*arguments, **options) -> Any:
    """The side, whose fields need not be checked for being there before they are looked at."""
    return _side_of_host(*arguments, **options)


def data(*uris: str, **facts) -> Contract:
    return Contract(data=tuple(Data(uri=uri, **facts) for uri in uris))


def test_a_host_alone_says_nothing_of_packages():
    side = side_of_host(None, NOTHING)
    assert (side.name, side.kind) == ("host", "host")
    assert (side.python, side.implementation, side.packages, side.frameworks) == (None, None, None, ())
    assert (side.system, side.machine) == (platform.system(), platform.machine())
    assert (side.libc, side.libc_version) == platform.libc_ver()
    assert side.cpu.usable == len(os.sched_getaffinity(0))
    assert side.accelerator is not None
    assert (side.contract, side.model) == (NOTHING, None)


def test_a_capture_of_this_host_agrees_with_it(tmp_path):
    (tmp_path / "prepare.py").write_text("x = 1\n")
    (tmp_path / "data").mkdir()
    places: dict[str, Any] = {"data": [str(tmp_path / "data")], "preprocessing": [str(tmp_path / "prepare.py")]}
    captured = read_manifest(manifest_text(capture(process="fresh", requires=["PATH"], **places)).encode(), "here")
    run: Any = side_of_manifest(captured, "run")
    host = side_of_host(captured, captured.contract)
    same = ("python", "implementation", "system", "machine", "libc", "libc_version", "packages", "complete")
    more = ("frameworks", "cuda", "cudnn", "accelerator", "cpu", "trees")
    assert {name for name in same + more if getattr(run, name) != getattr(host, name)} == set()
    assert run.variables.items() <= host.variables.items()
    assert {it.name for it in run.contract.variables} <= host.names
    assert host.absent_data == frozenset()
    assert (host.kind, host.contract) == ("host", NOTHING)


def test_all_names_are_known_and_values_without_secrets(monkeypatch):
    secrets = {
        "SERVICE_PASSWORD": "swordfish",
        "INDEX": "https://user:swordfish@example.com/simple",
        "ANYTHING": "ghp_" + "a1B2" * 9,
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINING_DATA_PATH", "gs://bucket/data")
    monkeypatch.setenv("EMPTY", "")
    side = side_of_host(None, NOTHING)
    assert side.names == set(os.environ)
    assert not secrets.keys() & side.variables.keys()
    assert "swordfish" not in repr(side)
    assert (side.variables["TRAINING_DATA_PATH"], side.variables["EMPTY"]) == ("gs://bucket/data", "")


def test_bytes_that_are_no_text_are_spelled_as_in_a_manifest(monkeypatch):
    monkeypatch.setenv("OMP_PLACES", os.fsdecode(b"a\xff"))
    captured = read_manifest(manifest_text(capture(process="fresh")).encode(), "here")
    assert side_of_host(None, NOTHING).variables["OMP_PLACES"] == dict(captured.variables)["OMP_PLACES"]


def test_a_gpu_is_seen_by_the_drivers_own_program(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase \"$1\" in --query*) echo '535.1, Tesla T4, 15360, 7.5, [N/A]';; *) echo 'CUDA Version: 12.2';; esac\n"
    )
    program.chmod(0o755)
    code = "from envbuild.verify.sources.host import side_of_host as s; from envbuild.manifest.model import Contract as C; print(s(None, C()).accelerator)"
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    gpu = Gpu(name="Tesla T4", memory=15360 * 2**20, compute_capability="7.5")
    wanted = Accelerator(kind="nvidia", source="nvidia-smi", driver="535.1", cuda_maximum="12.2", gpus=(gpu,))
    assert done.stdout.strip() == str(wanted)


def test_local_data_is_looked_for_from_the_folder(tmp_path):
    (tmp_path / "here").touch()
    wanted = data(
        "here", "lost", str(tmp_path / "here"), "/nowhere/at/all", (tmp_path / "here").as_uri(), "file:///nowhere/at"
    )
    found = side_of_host(None, wanted, folder=tmp_path).absent_data
    assert found == {"lost", "/nowhere/at/all", "file:///nowhere/at"}


def test_data_in_a_bucket_is_what_the_caller_sees():
    wanted = data("gs://b/there", "gs://b/lost", "gs://b/who-knows")
    answers = {"gs://b/there": True, "gs://b/lost": False}
    assert side_of_host(None, wanted, visible=answers.get).absent_data == {"gs://b/lost"}


def test_where_nobody_can_look_nothing_is_said():
    assert side_of_host(None, data("gs://b/a", "s3://b/a", "https://[redacted]@example.com/a")).absent_data is None
    assert side_of_host(None, data("gs://b/a", "/nowhere/at/all")).absent_data == {"/nowhere/at/all"}
    assert side_of_host(None, NOTHING).absent_data == frozenset()


def test_a_variable_may_name_another_place_here(tmp_path, monkeypatch):
    wanted = data("/the/runs/own/place", variable="TRAINING_DATA_PATH")
    assert side_of_host(None, wanted).absent_data == {"/the/runs/own/place"}
    monkeypatch.setenv("TRAINING_DATA_PATH", str(tmp_path))
    assert side_of_host(None, wanted).absent_data == frozenset()
    monkeypatch.setenv("TRAINING_DATA_PATH", "gs://b/moved")
    asked: list[str] = []
    side_of_host(None, wanted, visible=asked.append)
    assert asked == ["gs://b/moved"]


def test_code_is_digested_where_it_is(tmp_path):
    (tmp_path / "prepare").mkdir()
    (tmp_path / "prepare/a.py").write_text("x = 1\n")
    wanted = Contract(preprocessing=(Tree(path="prepare"), Tree(path="prepare/a.py"), Tree(path="lost")))
    trees = side_of_host(None, wanted, folder=tmp_path).trees
    # printf 'x = 1\n' | git hash-object --stdin
    assert trees["prepare/a.py"] == "7d4290a117a4ddcc11daae7ea675841033830c8f"
    assert trees.keys() == {"prepare", "prepare/a.py"}
    (tmp_path / "prepare/a.py").write_text("x = 2\n")
    changed = side_of_host(None, wanted, folder=tmp_path).trees
    assert {name for name in trees if trees[name] != changed[name]} == {"prepare", "prepare/a.py"}


def test_a_folder_that_may_not_be_looked_into_has_no_data(tmp_path):
    long = "x" * 5000
    assert side_of_host(None, data(long, "a\0b"), folder=tmp_path).absent_data == {long, "a\0b"}


def test_names_that_the_contract_needs_are_told_apart(monkeypatch):
    monkeypatch.setenv("THERE", "1")
    monkeypatch.delenv("LOST", raising=False)
    wanted = Contract(
        variables=(RequiredVariable(name="THERE", present=True), RequiredVariable(name="LOST", present=True))
    )
    names = side_of_host(None, wanted).names
    assert {it.name for it in wanted.variables} - names == {"LOST"}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), max_size=4))
def test_no_place_is_too_odd(uris):
    found = side_of_host(None, data(*uris), folder=Path("/nowhere/at/all")).absent_data
    assert found is None or found <= set(uris)


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def changed(wanted: Contract, **options) -> list[str]:
    run = Side(name="run", kind="manifest", contract=wanted)
    return [it.says for it in apply_rules(run, side_of_host(None, wanted, **options)) if it.rule == "data-changed"]


def test_a_local_file_is_held_against_what_the_run_read(tmp_path, monkeypatch):
    path = tmp_path / "train.csv"
    path.write_bytes(b"a,b\n")
    wanted = data(str(path), checksum=sha256(b"a,b\n"), size=4)
    assert changed(wanted) == ["1 place with the same content"]
    path.write_bytes(b"a,c\n")
    assert changed(wanted) == [f"wanted {sha256(b'a,b' + bytes([10]))}, found {sha256(b'a,c' + bytes([10]))}"]
    path.write_bytes(b"a,b,c\n")
    assert changed(wanted) == ["wanted 4 bytes, found 6 bytes"]
    assert changed(data(str(path), size=6)) == ["1 place with the same content; of 1 only the size was compared"]
    monkeypatch.setenv("MOVED", str(path))
    assert changed(data("/the/runs/own/place", variable="MOVED", size=4)) == ["wanted 4 bytes, found 6 bytes"]


def test_of_a_very_large_file_only_the_size_is_looked_at(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(LARGEST_READ + 1)
    wanted = data("large", checksum=sha256(b"other"), size=LARGEST_READ + 1)
    said = ["1 place with the same content; of 1 only the size was compared"]
    assert changed(wanted, folder=tmp_path) == said
    assert changed(data("large", size=7), folder=tmp_path) == [f"wanted 7 bytes, found {LARGEST_READ + 1} bytes"]


def a_folder(folder: Path, **files: bytes) -> Contract:
    """What a capture records of a folder, and how it is then found."""
    (folder / "in").mkdir(parents=True)
    for name, content in files.items():
        (folder / "in" / name).write_bytes(content)
    (facts,) = data_facts([str(folder)], ())
    return data(facts["uri"], **{name: facts[name] for name in ("checksum", "size", "objects")})


def test_a_local_folder_is_held_against_what_the_run_read(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    wanted = a_folder(folder, one=b"a,b\n", two=b"")
    same = ["1 place with the same content"]
    assert changed(wanted) == same
    (folder / "in/one").write_bytes(b"a,c\n")
    [said] = changed(wanted)
    assert said.startswith(f"wanted {wanted.data[0].checksum}, found sha256:")
    (folder / "in/one").rename(folder / "in/other")
    assert changed(wanted)[0].startswith("wanted sha256:")
    (folder / "in/other").write_bytes(b"a,b,c\n")
    assert changed(wanted) == ["wanted 4 bytes, found 6 bytes"]
    monkeypatch.setattr(host, "LARGEST_READ", 3)
    (folder / "in/other").write_bytes(b"a,c\n")
    assert changed(wanted) == ["1 place with the same content; of 1 only the size was compared"]
    (folder / "in/two").unlink()
    assert changed(wanted) == ["wanted 2 files, found 1 file"]
    monkeypatch.setattr(host, "MOST_OBJECTS", 0)
    assert changed(wanted) == []


PREPARE = {
    "app/features.py": "x = 2\n",
    "app/main.py": "from app.features import x\n",
}


def prepared(folder: Path, files: dict[str, str], path: str = "src/features.py") -> list[tuple[str, str]]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    # printf 'x = 1\n' | git hash-object --stdin
    wanted = Contract(preprocessing=(Tree(path=path, git_tree="7d4290a117a4ddcc11daae7ea675841033830c8f"),))
    run = Side(name="run", kind="manifest", contract=wanted)
    found = apply_rules(run, side_of_host(None, wanted, folder=folder))
    return [(it.severity if not it.agrees else "ok", it.says) for it in found if it.rule == "preprocessing"]


@pytest.mark.parametrize("line", ["from app.features import x", "from app import features", "import app.features as f"])
def test_code_that_is_imported_from_another_path_is_compared(tmp_path, line):
    [(severity, says)] = prepared(tmp_path, {**PREPARE, "app/main.py": f"if 1:\n    {line}\n"})
    assert (severity, says[:57]) == ("error", "app/features.py is imported in its place: wanted tree 7d4")
    assert prepared(tmp_path, {"app/features.py": "x = 1\n"}) == [("ok", "1 path with the same content")]


@pytest.mark.parametrize(
    "files",
    [
        {"app/features.py": "x = 2\n", "app/main.py": "features = 1\n"},
        {"app/features.py": "import features\n", "app/main.py": "import os\n"},
        {"app/features.py": "x = 2\n", "app/main.py": "import features ("},
        {".venv/features.py": "x = 2\n", "main.py": "import features\n"},
        {"env/pyvenv.cfg": "", "env/features.py": "x = 2\n", "main.py": "import features\n"},
    ],
)
def test_code_that_nothing_imports_is_not_taken_for_it(tmp_path, files):
    assert prepared(tmp_path, files) == [("warning", "it is not there")]


def test_a_folder_of_code_may_be_imported_from_another_path(tmp_path):
    files = {
        "app/features/a.py": "from app.features import b",
        "app/features/b.py": "",
        "app/main.py": "import features",
    }
    [(severity, says)] = prepared(tmp_path, files, "src/features")
    assert (severity, says.partition(":")[0]) == ("error", "app/features is imported in its place")


def test_what_is_no_file_has_no_content_to_compare(tmp_path):
    for uri in ("gs://b/a", "lost", ".", "a\0b", "s3://b/a"):
        assert changed(data(uri, checksum=sha256(b""), size=0), folder=tmp_path) == []
