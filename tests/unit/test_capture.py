"""What capture records of an environment, and what it must never record."""

import ast
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import envbuild
from envbuild.capture import capture, script
from tests.unit.capturing import Environment, script_path

SECRET = "hunter2SuperSecretValue99"


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def direct_url(**content) -> str:
    return json.dumps(content)


def test_it_is_valid_on_python_37():
    ast.parse(script(), feature_version=(3, 7))


def test_no_two_modules_give_a_name_another_meaning():
    nodes = ast.parse(script()).body
    named = [node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    named += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    assert sorted(named) == sorted(set(named))


def test_it_says_which_release_recorded():
    assert capture()["source"] == {"format": "capture", "tool": f"envbuild {envbuild.__version__}"}


def test_it_needs_only_the_standard_library():
    nodes = list(ast.walk(ast.parse(script())))
    names = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


def test_importing_envbuild_loads_nothing_heavy():
    code = "import envbuild, sys; print(*(set(sys.modules) & {'google', 'httpx', 'rich', 'packaging', 'importlib.metadata'}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_the_package_says_its_version_and_its_public_names():
    assert envbuild.__version__.count(".") == 2
    assert envbuild.capture is capture
    with pytest.raises(AttributeError):
        _ = envbuild.nothing


def test_this_environment_is_captured():
    assert {"pytest", "hypothesis", "packaging"} <= {item["name"] for item in capture()["distributions"]}


def test_what_is_printed_is_indented_json_with_sorted_keys(env):
    text = env.run().stdout
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_what_pip_installed_by_name_comes_from_an_index(env):
    folder = env.install("Some.Thing", "1.2+cu118", RECORD="x,,\n", REQUESTED="")
    (item,) = env.capture()["distributions"]
    assert item == {
        "name": "Some.Thing",
        "version": "1.2+cu118",
        "installer": "pip",
        "origin": {"kind": "index"},
        "requested": True,
        "record_sha256": hashlib.sha256((folder / "RECORD").read_bytes()).hexdigest(),
    }


def test_a_commit_is_recorded_without_the_password(env):
    vcs = {"vcs": "git", "commit_id": "abc123", "requested_revision": "main"}
    url = f"https://user:{SECRET}@git.example.com/x.git"
    env.install("x", direct_url=direct_url(url=url, vcs_info=vcs, subdirectory="python"))
    origin = {"kind": "vcs", "url": "https://git.example.com/x.git", "commit": "abc123", "subdirectory": "python"}
    assert env.origins()["x"] == dict(origin, requested_revision="main")


@pytest.mark.parametrize("archive", [{"hashes": {"sha256": "a" * 64}}, {"hash": "sha256=" + "a" * 64}])
def test_an_archive_keeps_its_digest(env, archive):
    env.install("x", direct_url=direct_url(url="https://example.com/x.whl", archive_info=archive))
    assert env.origins()["x"] == {"kind": "archive", "url": "https://example.com/x.whl", "sha256": "a" * 64}


def test_a_folder_of_sources_is_editable(env):
    env.install("x", direct_url=direct_url(url="file:///src/x", dir_info={"editable": True}))
    env.install("y", direct_url=direct_url(url="file:///src/y", dir_info={}))
    assert {origin["kind"] for origin in env.origins().values()} == {"editable"}


def test_what_conda_installed_is_named_by_its_package(env):
    folder = env.install("x", INSTALLER="conda\n", direct_url=direct_url(url="file:///croot/x", dir_info={}))
    env.install("y", INSTALLER="conda\n")
    meta = env.prefix / "conda-meta" / "x.json"
    meta.parent.mkdir()
    files = [str((folder / "METADATA").relative_to(env.prefix))]
    url = f"https://conda.example.com/t/{SECRET}/main/x.conda"
    meta.write_text(json.dumps({"name": "x", "version": "1.0", "url": url, "sha256": "b" * 64, "files": files}))
    origin = {"kind": "conda", "url": "https://conda.example.com/main/x.conda", "sha256": "b" * 64}
    assert env.origins() == {"x": origin, "y": {"kind": "conda"}}


def test_what_says_nothing_is_unknown(env):
    (env.install("silent") / "INSTALLER").unlink()
    env.install("system", INSTALLER="debian\n")
    env.install("broken", direct_url="{")
    (env.site / "old-1.0-py3.7.egg-info").write_text("Name: old\nVersion: 1.0\n")
    assert {name: origin["kind"] for name, origin in env.origins().items()} == dict.fromkeys(
        ("silent", "system", "broken", "old"), "unknown"
    )


def test_a_develop_link_names_its_source_folder(env):
    source = env.folder / "source"
    (source / "dev.egg-info").mkdir(parents=True)
    (source / "dev.egg-info" / "PKG-INFO").write_text("Name: dev\nVersion: 3.0\n")
    (env.site / "dev.egg-link").write_text(f"{source}\n.")
    (env.site / "easy-install.pth").write_text(f"{source}\n")
    assert env.origins() == {"dev": {"kind": "editable", "url": source.as_uri()}}


def test_the_first_folder_of_the_path_wins_and_leftovers_lose(env):
    early = env.folder / "early"
    (early / "x-2.0.dist-info").mkdir(parents=True)
    (early / "x-2.0.dist-info" / "METADATA").write_text("Name: X\nVersion: 2.0\n")
    env.install("x", "1.0")
    env.install("~y", "1.0")
    (env.site / "empty-1.0.dist-info").mkdir()
    env.variables["PYTHONPATH"] = str(early)
    assert [(item["name"], item["version"]) for item in env.capture()["distributions"]] == [("X", "2.0")]


def test_the_editable_install_outweighs_the_egg_info_of_its_sources(env):
    source = env.folder / "source"
    (source / "x.egg-info").mkdir(parents=True)
    (source / "x.egg-info" / "PKG-INFO").write_text("Name: x\nVersion: 1.0\n")
    env.install("x", direct_url=direct_url(url=source.as_uri(), dir_info={"editable": True}))
    env.variables["PYTHONPATH"] = str(source)
    assert env.origins() == {"x": {"kind": "editable", "url": source.as_uri()}}


def test_distributions_are_sorted_by_normalised_name(env):
    for name in ("b_b", "B.a", "a-z", "C"):
        env.install(name)
    assert [item["name"] for item in env.capture()["distributions"]] == ["a-z", "B.a", "b_b", "C"]


def test_interpreter_platform_and_cpu_are_the_running_ones(env):
    manifest = env.capture()
    version = sys.version_info
    assert manifest["python"]["version"].startswith(f"{version.major}.{version.minor}.{version.micro}")
    assert manifest["python"]["implementation"] == sys.implementation.name
    assert manifest["platform"]["machine"] == os.uname().machine
    assert manifest["platform"]["libc"] == "glibc"
    assert manifest["cpu"]["count"] == os.cpu_count()
    assert manifest["cpu"]["flags"] == sorted(manifest["cpu"]["flags"])


def test_variables_are_recorded_by_name(env):
    env.variables |= {"PYTHONHASHSEED": "0", "CLOUD_ML_JOB_ID": "7", "HOME": "/root", "MINE": "1"}
    assert env.capture()["variables"] == {"PYTHONHASHSEED": "0", "CLOUD_ML_JOB_ID": "7"}
    assert env.capture("--variable", "MINE", "--variable", "ABSENT")["variables"]["MINE"] == "1"


def test_a_value_that_is_no_utf8_is_spelt_out(env):
    path = b"/x/\xff".decode("utf-8", "surrogateescape")
    env.variables["LD_LIBRARY_PATH"] = path
    assert env.capture()["variables"]["LD_LIBRARY_PATH"] == "/x/\\udcff"


def test_the_model_is_the_one_given_or_vertex_s(env):
    assert "model_uri" not in env.capture()
    env.variables["AIP_MODEL_DIR"] = "gs://bucket/t/model/"
    assert env.capture()["model_uri"] == "gs://bucket/t/model/"
    assert env.capture("--model", f"https://u:{SECRET}@example.com/m")["model_uri"] == "https://example.com/m"


def test_the_checkout_is_described(env):
    assert "code" not in env.capture()
    env.git("init", "-q")
    assert "code" not in env.capture()
    (env.folder / "train.py").write_text("1")
    env.git("add", ".")
    env.git("commit", "-qm", "x")
    commit = env.git("rev-parse", "HEAD").strip()
    assert env.capture()["code"] == {"commit": commit, "dirty": False, "untracked": 0}
    env.git("remote", "add", "fork", "https://example.com/fork.git")
    env.git("remote", "add", "origin", f"https://oauth2:{SECRET}@example.com/train.git")
    (env.folder / "train.py").write_text("2")
    code = env.capture()["code"]
    assert (code["commit"], code["dirty"], code["remote"]) == (commit, True, "https://example.com/train.git")


def test_a_program_that_is_absent_leaves_its_fact_out(env):
    (env.bin / "git").unlink()
    assert "code" not in env.capture()


def test_the_file_holds_what_is_returned_and_nothing_lies_beside_it(tmp_path):
    out = tmp_path / "new" / "manifest.json"
    manifest = capture(out=out)
    assert json.loads(out.read_text()) == manifest
    capture(out=str(out))
    assert names(out.parent) == ["manifest.json"]
    assert out.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    out = tmp_path / "manifest.json"
    out.write_text("old")
    limits = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); sys.argv = sys.argv[1:]; "
    )
    command = [
        sys.executable,
        "-c",
        limits + "runpy.run_path(sys.argv[0], run_name='__main__')",
        str(script_path()),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("capture: the manifest cannot be written: ")
    assert "Traceback" not in done.stderr
    assert (names(tmp_path), out.read_text()) == (["manifest.json"], "old")


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        capture(out=tmp_path / "pipe")
    assert names(tmp_path) == ["pipe"]


def test_alone_it_prints_the_manifest_or_nothing(env):
    assert json.loads(env.run().stdout)["schema_version"] == "1.1"
    done = env.run("--out", "manifest.json")
    assert (done.stdout, done.stderr) == ("", "")
    assert (env.folder / "manifest.json").exists()
