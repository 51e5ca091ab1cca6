"""Records written by the real tools, converted; and an image built from one of them."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from envbuild.lock.settings import read_settings, uv_environment
from tests.environ import cleaned

pytestmark = pytest.mark.real

UV = str(Path(sys.executable).with_name("uv"))
TENSORFLOW = ("tensorflow-cpu==2.15.1", "pip==24.0")
INSTALLED = """
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions()}))
"""


def said(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    """What a program prints, run with the index settings of this machine."""
    variables = (
        uv_environment(read_settings()) | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONWARNINGS": "ignore"} | env
    )
    variables.pop("PIP_FIND_LINKS", None)  # pip writes the paths of its folders into a lock
    done = subprocess.run(
        [str(it) for it in command], cwd=cwd, env=cleaned(variables), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed(python: Path) -> dict[str, str]:
    """What an environment has, asked of itself."""
    found = json.loads(said(python, "-c", INSTALLED))
    return {canonicalize_name(name): version for name, version in found.items()}


@pytest.fixture
def converted(envbuild, tmp_path):
    """`converted(text or path, option, ...)` -> the manifest that `envbuild convert` makes."""

    def convert(record: str | Path, *options: str) -> dict:
        piped = isinstance(record, str)
        done = envbuild("convert", "-" if piped else record, *options, input=record if piped else None)
        return json.loads(done.stdout)

    return convert


def pins(manifest: dict) -> dict[str, str | None]:
    return {canonicalize_name(it["name"]): it.get("version") for it in manifest["distributions"]}


@pytest.fixture(scope="module")
def trained(train_env) -> Path:
    python: Path = train_env("3.11", *TENSORFLOW)
    return python


def test_what_pip_says_of_an_environment_is_what_it_has(trained, converted):
    everything = installed(trained)
    version = said(trained, "-c", "import platform; print(platform.python_version())").strip()
    inspected = converted(said(trained, "-m", "pip", "inspect"))
    assert (inspected["source"]["format"], inspected["python"]["version"]) == ("pip-inspect", version)
    assert pins(inspected) == everything
    for freeze in (said(trained, "-m", "pip", "freeze", "--all"), said(UV, "pip", "freeze", "--python", trained)):
        frozen = converted(freeze, "--python", version)
        assert (frozen["source"]["format"], pins(frozen)) == ("pip-freeze", everything)
        assert frozen["source"].get("complete", True)
    hidden = converted(said(trained, "-m", "pip", "freeze"), "--python", version)
    assert everything.keys() - pins(hidden).keys() == {"pip", "setuptools", "wheel"} & everything.keys()
    assert hidden["source"]["complete"] is False


def test_a_freeze_gives_the_plan_of_a_capture_and_its_lock_gives_the_freeze_again(
    trained, envbuild, converted, tmp_path
):
    version = said(trained, "-c", "import platform; print(platform.python_version())").strip()
    options = ("--python", version, "--ran-on", "linux/amd64", "--gpu", "none")
    manifest, freeze = tmp_path / "manifest.json", tmp_path / "requirements.txt"
    envbuild("capture", "--python", trained, "--out", manifest)
    freeze.write_text(said(trained, "-m", "pip", "freeze", "--all"))
    plans = [
        json.loads(envbuild("from-manifest", *given, "--dry-run", "--json").stdout)["stack"]
        for given in ((manifest,), (freeze, "--from", "pip-freeze", *options))
    ]
    assert plans[0]["requirements"] == plans[1]["requirements"]
    freeze.write_text(said(trained, "-m", "pip", "freeze"))
    built = envbuild(
        "from-manifest", freeze, *options, "--base", "debian:bookworm", "--out", tmp_path / "out", "--json"
    )
    added = json.loads(built.stdout)["added"]
    assert {it.partition("==")[0] for it in added} == {"setuptools", "wheel"} & installed(trained).keys()
    assert f"warning: the record does not name {len(added)} of " in built.stderr
    context = tmp_path / "out/context"
    requirements = converted(context / "requirements.txt", *options)
    pylock = converted(context / "pylock.toml")
    assert pins(requirements) == pins(pylock)
    assert pins(pylock) == pins(converted(freeze, *options)) | dict(it.split("==") for it in added)
    assert requirements["source"].get("complete", True)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project with a fork by Python, a marker, an extra, a group, a repository and an editable folder."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("repository", "beside"):
        (folder / name).mkdir()
        (folder / name / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "1.2"\n')
        (folder / name / f"{name}.py").touch()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=folder / "repository", check=True)
    main = folder / "main"
    main.mkdir()
    (main / "pyproject.toml").write_text(
        f"""
[project]
name = "main"
version = "0.1"
requires-python = ">=3.11"
dependencies = [
    "six==1.16.0", "colorama==0.4.6; sys_platform == 'win32'", "repository", "beside",
    "idna==3.6; python_version < '3.12'", "idna==3.7; python_version >= '3.12'",
]
[project.optional-dependencies]
more = ["certifi"]
[dependency-groups]
dev = ["iniconfig==2.0.0"]
docs = ["certifi"]
[tool.uv.sources]
repository = {{ git = "{(folder / "repository").as_uri()}" }}
beside = {{ path = "../beside", editable = true }}
"""
    )
    said(UV, "lock", "-q", cwd=main)
    return main


WHERE = ("--python", "3.11.7", "--ran-on", "linux/amd64")


def test_a_project_of_uv_is_the_same_in_each_of_uv_s_formats(project, converted):
    lock = converted(project / "uv.lock", *WHERE)
    assert pins(lock) == {"six": "1.16.0", "idna": "3.6", "iniconfig": "2.0.0", "repository": "1.2", "beside": "1.2"}
    assert "docs, more" in "".join(lock["source"]["notes"])
    assert pins(converted(project / "uv.lock", "--python", "3.12.1", "--ran-on", "windows/amd64")) == {
        "six": "1.16.0", "idna": "3.7", "iniconfig": "2.0.0", "repository": "1.2", "beside": "1.2", "colorama": "0.4.6",
    }  # fmt: skip
    pylock = converted(said(UV, "export", "-q", "--format", "pylock.toml", cwd=project), *WHERE)
    assert pylock["source"]["format"] == "pylock"
    assert pins(pylock) == pins(lock) | {"beside": None}
    origins = {it["name"]: it["origin"] for it in lock["distributions"]}
    assert origins == {it["name"]: it["origin"] for it in pylock["distributions"]}
    assert len(origins["repository"]["commit"]) == 40
    requirements = converted(said(UV, "export", "-q", "--format", "requirements.txt", cwd=project), *WHERE)
    assert requirements["source"]["format"] == "requirements"
    assert pins(requirements) == {name: it for name, it in pins(pylock).items() if name != "beside"} | {
        "repository": None
    }
    assert "-e ../beside" in "".join(requirements["source"]["notes"])


def test_locks_of_pip_and_of_uv_pip_compile_are_read(train_env, converted, tmp_path):
    python = train_env("3.11", "pip==26.3")
    said(python, "-m", "pip", "lock", "-q", "-o", tmp_path / "pylock.toml", "six==1.16.0", "idna==3.6")
    assert pins(converted(tmp_path / "pylock.toml", "--python", "3.11.7")) == {"six": "1.16.0", "idna": "3.6"}
    (tmp_path / "in.txt").write_text("six==1.16.0\nidna==3.6\ncolorama==0.4.6; sys_platform == 'win32'\n")
    for form in ("pylock.toml", "requirements.txt"):
        options = ["--universal", "--generate-hashes"] if form == "requirements.txt" else ["--universal"]
        text = said(UV, "pip", "compile", "-q", *options, "--format", form, "in.txt", cwd=tmp_path)
        found = converted(text, *WHERE)
        assert pins(found) == {"six": "1.16.0", "idna": "3.6"}
        assert found["source"].get("complete", True)


SAVE = """
import mlflow.pyfunc
class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input
mlflow.pyfunc.save_model("model", python_model=Model(), extra_pip_requirements=["tensorflow-cpu==2.15.1"])
"""


def test_a_model_of_mlflow_is_read_by_its_folder_and_by_its_files(train_env, converted, tmp_path):
    python = train_env("3.11", "mlflow-skinny==3.17.2", "pandas==2.3.3", "pip==26.3")
    said(python, "-c", SAVE, cwd=tmp_path)
    manifest = converted(tmp_path / "model")
    everything = installed(python)
    assert (manifest["source"]["format"], manifest["source"]["tool"]) == ("mlflow", "mlflow 3.17.2")
    assert (
        manifest["python"]["version"] == said(python, "-c", "import platform; print(platform.python_version())").strip()
    )
    found = pins(manifest)
    assert (found["tensorflow-cpu"], found["pip"], found["cloudpickle"]) == (
        "2.15.1",
        "26.3",
        everything["cloudpickle"],
    )
    assert manifest["framework"]["distribution"] == "tensorflow-cpu"
    assert manifest["source"]["complete"] is False
    assert "created" not in manifest["source"]["unknown"]
    again = converted(tmp_path / "model/requirements.txt")
    assert (again["source"]["format"], pins(again)) == ("mlflow", found)
    conda = tmp_path / "conda.yaml"
    conda.write_bytes((tmp_path / "model/conda.yaml").read_bytes())
    alone = converted(conda)
    assert alone["source"]["format"] == "conda-environment"
    assert pins(alone) == {name: version for name, version in found.items() if name != "pip"}


class _Server(BaseHTTPRequestHandler):
    """As much of W&B's API as a run needs to begin."""

    def do_POST(self) -> None:
        query = self.rfile.read(int(self.headers.get("content-length") or 0)).decode(errors="replace")
        project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}
        bucket = {"id": "x", "name": "r", "displayName": "r", "config": None, "historyLineCount": 0, "project": project}
        viewer = {"id": "v", "entity": "e", "username": "canary", "email": "canary@example.com", "flags": "{}"}
        data = {"upsertBucket": {"bucket": bucket, "inserted": True}} if "UpsertBucket" in query else {"viewer": viewer}
        body = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving_wandb() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


RUN = """
import wandb
run = wandb.init(project="p", dir=".")
run.log({"x": 1})
run.finish()
"""


def test_a_run_of_wandb_is_read_by_its_folder(train_env, converted, tmp_path):
    python = train_env("3.11", "wandb==0.31.0", "pip==26.3")
    (tmp_path / "train.py").write_text(RUN)
    with serving_wandb() as url:
        folders = {f"WANDB_{it}_DIR": str(tmp_path / it) for it in ("CONFIG", "CACHE", "DATA")}
        retries = {f"WANDB_X_{it}_RETRY_MAX": "0" for it in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")}
        variables = {"WANDB_BASE_URL": url, "WANDB_API_KEY": "a" * 40, "HOME": str(tmp_path), **folders, **retries}
        command = [str(python), "train.py", "--lr", "0.1", "--api-key", "canary"]
        # Whether the run ends well is the server's business; its files are there once it has begun.
        subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=False, timeout=60)
    [files] = tmp_path.glob("wandb/run-*/files")
    metadata = json.loads((files / "wandb-metadata.json").read_bytes())
    manifest = converted(files.parent)
    assert manifest["source"]["format"] == "wandb"
    assert pins(manifest) == installed(python)
    assert f"CPython {manifest['python']['version']}" == metadata["python"]
    assert manifest["platform"]["kernel"] in metadata["os"]
    assert manifest["platform"]["machine"] in metadata["os"]
    assert manifest["entry"]["command"] == ["train.py", "--lr", "0.1", "--api-key", "[redacted]"]
    assert not any(private in json.dumps(manifest) for private in ("canary", metadata["host"] + '"', str(tmp_path)))
    assert converted(files / "requirements.txt") == manifest | {
        "source": converted(files / "requirements.txt")["source"]
    }
