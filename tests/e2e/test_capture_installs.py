"""What real installers leave behind, as capture reads it."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envbuild.manifest.reader import read_manifest
from tests.environ import cleaned
from tests.unit.capturing import script_path

pytestmark = pytest.mark.real

TOOLS = ("pip==26.3", "setuptools", "hatchling", "flit-core", "editables")
BACKENDS = {
    "setuptools": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "hatchling": '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n',
    "flit": '[build-system]\nrequires = ["flit-core"]\nbuild-backend = "flit_core.buildapi"\n',
}
PROJECT = '[project]\nname = "sample-project"\nversion = "1.2+cu121"\ndescription = "x"\n'
ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture
def python(train_env, tmp_path) -> Path:
    """The python of an environment with pip and backends, that a test may change."""
    run("cp", "-a", train_env("3.11", *TOOLS).parents[1], tmp_path / "env")
    return tmp_path / "env" / "bin" / "python"


@pytest.fixture(params=BACKENDS)
def repository(request, tmp_path) -> Path:
    """A git repository with a project in one of its folders, tagged v1."""
    folder = tmp_path / "repository"
    package = folder / "python" / "sample_project"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    (package / "other.py").write_text("")
    (folder / "python" / "pyproject.toml").write_text(BACKENDS[request.param] + PROJECT)
    (folder / ".gitignore").write_text("*.egg-info/\nbuild/\n")
    run("git", "init", "-q", folder)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    git(folder, "tag", "v1")
    git(folder, "remote", "add", "origin", "https://user:hunter2SuperSecret@git.example.com/x.git")
    return folder


def run(*command, **options) -> str:
    environment = cleaned(os.environ) | ALONE | options.pop("env", {})
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def git(folder: Path, *arguments: str) -> str:
    return run("git", "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments, cwd=folder).strip()


def pip(python: Path, *arguments) -> None:
    run(python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", *arguments)


def captured(python: Path, *arguments: str) -> dict:
    text = run(python, script_path(), *arguments, cwd=python.parent)
    read_manifest(text.encode(), "captured")
    manifest: dict = json.loads(text)
    return manifest


def sample(manifest: dict) -> dict:
    (found,) = (item for item in manifest["distributions"] if item["name"].replace("_", "-") == "sample-project")
    return found


def changed(manifest: dict) -> dict:
    return {item["name"]: item["changed_files"] for item in manifest["distributions"] if "changed_files" in item}


def site_of(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python*/site-packages"))


def test_an_editable_install_from_a_checkout_with_changes(python, repository):
    project = repository / "python"
    pip(python, "-e", project)
    (project / "sample_project" / "__init__.py").write_text("answer = 43\n")
    (project / "sample_project" / "new.py").write_text("")
    diff = git(repository, "diff", "HEAD", "--binary", "--full-index") + "\n"
    manifest = captured(python, "--patch")
    assert sample(manifest)["version"] == "1.2+cu121"
    assert sample(manifest)["origin"] == {
        "kind": "editable", "url": project.as_uri(), "subdirectory": "python", "commit": git(repository, "rev-parse", "v1"),
        "remote": "https://git.example.com/x.git", "dirty": True, "untracked": 1, "patch": diff,
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest(),
    }  # fmt: skip
    owned = {item["name"] for item in manifest["installation"]["pth"] if item.get("owner") == sample(manifest)["name"]}
    assert [name for name in owned if "sample" in name]
    assert (changed(manifest), manifest["installation"]["unowned"]) == ({}, [])


def test_an_install_from_a_tag_of_a_repository(python, repository):
    pip(python, f"sample-project @ git+{repository.as_uri()}@v1#subdirectory=python")
    assert sample(captured(python))["origin"] == {
        "kind": "vcs", "url": repository.as_uri(), "subdirectory": "python", "requested_revision": "v1",
        "commit": git(repository, "rev-parse", "v1"),
    }  # fmt: skip


def test_a_folder_that_was_copied_and_edits_of_it(python, repository):
    pip(python, repository / "python")
    package = site_of(python) / "sample_project"
    assert sample(captured(python))["origin"] == {"kind": "editable", "url": (repository / "python").as_uri()}
    assert changed(captured(python, "--deep")) == {}
    (package / "__init__.py").write_text("answer = 43\n")
    (package / "other.py").unlink()
    (site_of(python) / "stranger.py").write_text("")
    manifest = captured(python)
    found = {key: sample(manifest)[key] for key in ("modified", "missing", "changed_files")}
    assert found == {
        "modified": ["sample_project/__init__.py"], "missing": ["sample_project/other.py"], "changed_files": 2,
    }  # fmt: skip
    assert manifest["installation"]["unowned"] == ["stranger.py"]


@pytest.fixture
def wheel(python, repository, tmp_path) -> Path:
    run(
        python,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        tmp_path / "wheels",
        repository / "python",
    )
    return next((tmp_path / "wheels").iterdir())


@pytest.fixture
def served(wheel) -> Iterator[str]:
    """The address of the folder that the wheel lies in."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(wheel.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("repository", ["hatchling"], indirect=True)
def test_a_wheel_from_an_address_and_from_a_file(python, wheel, served):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for place in (served, wheel.parent.as_uri()):
        url = f"{place}/{wheel.name.replace('+', '%2B')}"
        pip(python, "--force-reinstall", f"sample-project @ {url}#sha256={digest}")
        assert sample(captured(python))["origin"] == {"kind": "archive", "url": url, "sha256": digest}
    assert changed(captured(python, "--deep")) == {}


def uv(*arguments) -> None:
    run(Path(sys.executable).parent / "uv", "pip", "install", "-q", *arguments)


@pytest.mark.parametrize("repository", ["setuptools"], indirect=True)
def test_uv_says_the_same(python, repository, wheel):
    uv("--python", python, "--no-deps", "--no-build-isolation", "-e", repository / "python")
    origin = sample(captured(python))["origin"]
    assert (origin["kind"], origin["commit"]) == ("editable", git(repository, "rev-parse", "v1"))
    uv("--python", python, "--no-deps", "--no-build-isolation", f"git+{repository.as_uri()}@v1#subdirectory=python")
    origin = sample(captured(python))["origin"]
    assert (origin["kind"], origin["commit"]) == ("vcs", git(repository, "rev-parse", "v1"))
    uv("--python", python, "--no-deps", wheel)
    manifest = captured(python)
    assert (sample(manifest)["origin"]["kind"], changed(manifest)) == ("archive", {})


@pytest.mark.parametrize(("mode", "way"), [("hardlink", []), ("symlink", []), ("copy", ["--deep"])])
@pytest.mark.parametrize("repository", ["setuptools"], indirect=True)
def test_an_edit_in_uv_s_cache_is_seen_wherever_it_is_linked(python, wheel, tmp_path, mode, way):
    # old enough that an edit now is an edit later
    cache = {"UV_CACHE_DIR": str(tmp_path / "cache")}
    install = [Path(sys.executable).parent / "uv", "pip", "install", "-q", "--no-deps", "--link-mode", mode, "--python"]
    run(*install, python, wheel, env=cache)
    assert changed(captured(python, "--deep")) == {}
    for path in (tmp_path / "cache").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
    edited = next((tmp_path / "cache" / "archive-v0").rglob("sample_project/__init__.py"))
    edited.write_text("answer = 43\n")
    run("rm", "-rf", *site_of(python).glob("sample_project*"))
    run(*install, python, wheel, env=cache)
    assert sample(captured(python, *way))["modified"] == ["sample_project/__init__.py"]


@pytest.mark.parametrize("method", ["cp -a", "cp -r", "mv", "tar"])
def test_an_environment_that_was_moved_is_as_it_was(train_env, tmp_path, method):
    source = train_env("3.11", *TOOLS).parents[1]
    if method == "tar":
        (tmp_path / "env").mkdir()
        run("sh", "-c", f"tar -C {source} -c . | tar -C {tmp_path}/env -x")
    elif method == "mv":
        run("cp", "-a", source, tmp_path / "first")
        run("mv", tmp_path / "first", tmp_path / "env")
    else:
        run(*method.split(), source, tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    for way in ([], ["--deep"]):
        manifest = captured(python, *way)
        assert (changed(manifest), manifest["installation"]["unowned"]) == ({}, [])


@pytest.mark.slow
def test_all_of_tensorflow_is_as_it_was_installed(train_env):
    python = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
    for way in ([], ["--deep"]):
        manifest = captured(python, *way)
        assert changed(manifest) == {}
        assert manifest["installation"]["files"] > 14000
        assert (manifest["installation"]["unchecked"], manifest["installation"]["unowned"]) == (0, [])


def in_image(engine, image: str, prepare: str = "true") -> dict:
    """Capture what the image's own python has, after a command in a shell."""
    command = ["sh", "-c", f"{prepare} && python /capture.py"]
    mounts = {str(script_path()): {"bind": "/capture.py", "mode": "ro"}}
    manifest: dict = json.loads(engine.run(image, command, volumes=mounts, network_mode="none", user="0"))
    return manifest


@pytest.mark.slow
def test_an_image_that_was_assembled_and_layers_upon_it(
    train_env, envbuild, registry, engine, pip_in_container, tmp_path
):
    manifest = tmp_path / "manifest.json"
    envbuild("capture", "--python", train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0"), "--out", manifest)
    pushed = ["--push", f"{registry.host}/capture/installs", "--json"]
    image = json.loads(envbuild("from-manifest", manifest, "--base", "debian:bookworm", *pushed).stdout)["image"]
    engine.pull(image)
    assembled = in_image(engine, image)
    assert (changed(assembled), assembled["installation"]["unchecked"]) == ({}, 0)
    assert assembled["installation"]["files"] > 14000
    edit = "file=$(python -c 'import six; print(six.__file__)') && tac $file >/x && cat /x >$file"
    assert changed(in_image(engine, image, edit)) == {"six": 1}
    layered = pip_in_container(image, "/opt/env/bin/python", ["attrs"])
    found = in_image(engine, layered)
    assert "attrs" in {item["name"] for item in found["distributions"]}
    assert changed(found) == {}
