"""The pieces for CI, as they are written: from a checkout to a stamped serving image, and nothing else is deployed."""

import io
import re
import shutil
import subprocess
import sys
import tarfile
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from tests.e2e.services import command_output
from tests.fakes.cloudbuild import FakeCloudBuild
from tests.fakes.cloudbuild_runs import wait
from tests.tools.acme import MODEL, ROOT, acme
from tests.tools.run_action import FailedError, Runner, annotations, set_up_python

pytestmark = [pytest.mark.real, pytest.mark.slow]

CI = ROOT / "examples/ci"
OURS = "OWNER/envbuild/examples/ci/github"
PLACE = "python:3.12-slim"
"""The image that this machine stands in for."""
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
UV = Path(sys.executable).parent / "uv"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, engine, registry, cache):
    with acme(tmp_path_factory.mktemp("acme") / "home", engine, registry.host, cache) as company:
        company.train()
        del company.index.pages["prometheus-client"]  # two indexes must not have different files of one name
        yield company, deepcopy(company.gcs.buckets["models"])


@pytest.fixture
def company(trained):
    """With the model as training left it: nothing serves it yet."""
    company, models = trained
    company.gcs.buckets["models"] = deepcopy(models)
    return company


@pytest.fixture(scope="session")
def release(tmp_path_factory) -> Path:
    """What would be on an index."""
    folder = tmp_path_factory.mktemp("release")
    command_output(str(UV), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("*.whl")
    return wheel


def environment_of(company, path: str = SYSTEM) -> dict[str, str]:
    """The company's, where envbuild itself is installed from the index that this machine has."""
    dropped = {"UV_DEFAULT_INDEX", "PIP_INDEX_URL", "PIP_FIND_LINKS"}
    kept = {name: value for name, value in company.environment.items() if name not in dropped}
    caches = {"UV_CACHE_DIR": command_output(str(UV), "cache", "dir").strip(), "PIP_NO_COMPILE": "1"}
    caches["PIP_CACHE_DIR"] = command_output(sys.executable, "-m", "pip", "cache", "dir").strip()
    return kept | caches | {"UV_INDEX": company.index.url, "PATH": path}


def stamped(company) -> str:
    """The serving image that the model is stamped with."""
    return company.gcs.metadata("models", "churn/7/saved_model.pb")["envbuild-image-serve-cpu"]


@pytest.fixture
def runner(company, tmp_path):
    """A machine of GitHub's, with the repository of the company's application in its workspace after a checkout."""
    workspace, temp = tmp_path / "workspace", tmp_path / "temp"
    workspace.mkdir()
    temp.mkdir()

    def checkout(runner, given):
        assert given == {"persist-credentials": "false"}
        shutil.copytree(company.folder / "app", runner.workspace / "app")
        return {}

    def auth(runner, given):
        assert given == {"workload_identity_provider": "projects/1/p", "service_account": "ci@p.example.com"}
        return {}

    known = {
        "actions/checkout": checkout,
        "actions/cache": lambda _runner, _given: {},
        "actions/setup-python": set_up_python,
        "google-github-actions/auth": auth,
        OURS: lambda runner, given: runner.action(ROOT / "examples/ci/github", given),
    }
    variables = {
        "WORKLOAD_IDENTITY_PROVIDER": "projects/1/p",
        "SERVICE_ACCOUNT": "ci@p.example.com",
        "SERVE_REPOSITORY": f"{company.host}/acme/ml/churn-serve",
        "REGION": "europe-west1",
    }
    return Runner(workspace, temp, environment_of(company), known, variables)


def test_the_workflow_goes_from_a_checkout_to_a_stamped_serving_image(runner, company):
    runner.workflow(CI / "github/serve.yml", {"model": MODEL})
    image = stamped(company)
    assert image.startswith(f"{company.host}/acme/ml/churn-serve@sha256:")
    assert ({"title": "serving image"}, image) in annotations("".join(runner.log))
    [summary] = runner.summaries
    assert re.search(r"^\| prometheus-client \|  \| [\d.]+ \|$", summary, re.MULTILINE)
    assert image in summary.replace("&#95;", "_")
    assert OURS + "@COMMIT" in runner.used


def test_an_extra_that_moves_a_pin_ends_the_job_with_an_annotation(runner, company):
    shutil.copytree(company.folder / "app", runner.workspace / "app")
    given = {"model": MODEL, "app": "app", "cmd": "python /app/main.py", "push": f"{company.host}/acme/ml/churn-serve"}
    with pytest.raises(FailedError) as caught:
        runner.action(ROOT / "examples/ci/github", given | {"extras": "polars-stats"})
    assert caught.value.status == 12
    [(properties, text)] = annotations(runner.log[-1])
    assert properties["title"] == "envbuild ends with 12"
    assert "numpy" in text
    assert "envbuild-image-serve-cpu" not in company.gcs.metadata("models", "churn/7/saved_model.pb")


def gcloud(folder: Path) -> Path:
    """Writes down what it is asked for; Google's own would ask Vertex AI."""
    folder.mkdir()
    (folder / "gcloud").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{folder}/asked"\n')
    (folder / "gcloud").chmod(0o755)
    return folder


def test_what_did_not_train_the_model_is_not_deployed(runner, company, release, tmp_path):
    tools = gcloud(tmp_path / "tools")
    (tmp_path / "find").mkdir()
    shutil.copy(release, tmp_path / "find")
    runner.environment |= {"PATH": f"{tools}:{runner.environment['PATH']}", "PIP_FIND_LINKS": str(tmp_path / "find")}
    manifest = (company.folder / "manifest.json").read_text()
    (company.folder / "other.json").write_text(manifest.replace('"2.1.3"', '"2.1.2"'))
    words = ("--base", "debian:bookworm", "--push", f"{company.host}/acme/other")
    other = company.envbuild("from-manifest", "other.json", *words).stdout.strip()
    with pytest.raises(FailedError) as caught:
        runner.workflow(CI / "github/deploy.yml", {"model": MODEL, "image": other})
    assert caught.value.status == 16
    assert not (tools / "asked").exists()
    shutil.rmtree(runner.workspace / "app")
    trained = company.gcs.metadata("models", "churn/7/saved_model.pb")["envbuild-image-train-cpu"]
    runner.workflow(CI / "github/deploy.yml", {"model": MODEL, "image": trained})
    assert f"--container-image-uri={trained}" in (tools / "asked").read_text()


@pytest.fixture(scope="session")
def machine(tmp_path_factory) -> Path:
    """What is on PATH in an image of Python: a pip that may install."""
    folder = tmp_path_factory.mktemp("machine")
    command_output(sys.executable, "-m", "venv", str(folder / "python"))
    return folder / "python/bin"


def test_cloud_build_makes_the_image(company, release, machine):
    environment = environment_of(company, f"{machine}:{SYSTEM}")
    body = yaml.safe_load((CI / "cloudbuild.yaml").read_text())
    body["substitutions"] = {
        "_ENVBUILD": str(release), "_MODEL": MODEL, "_PUSH": f"{company.host}/acme/ml/churn-serve",
    }  # fmt: skip
    company.gcs.create_bucket("builds")
    company.gcs.put("builds", "source.tar.gz", packed(company.folder / "app"))
    body |= {"source": {"storageSource": {"bucket": "builds", "object": "source.tar.gz"}}, "logsBucket": "gs://builds"}
    with FakeCloudBuild(company.gcs, environment=environment, here=frozenset({PLACE})) as api:
        with api.lock:
            api.create("projects/proj-1/locations/global", body)
        [run] = api.runs.values()
        wait(run, 300)
        assert run.build.status.name == "SUCCESS", run.written.decode()
    assert stamped(company).startswith(f"{company.host}/acme/ml/churn-serve@sha256:")


def packed(folder: Path) -> bytes:
    """A folder as gcloud sends it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        archive.add(folder, folder.name)
    return data.getvalue()


def test_gitlab_makes_the_image_and_hands_it_to_the_next_job(company, release, machine, tmp_path):
    pipeline = yaml.safe_load((CI / "gitlab-ci.yml").read_text())
    variables = {
        "ENVBUILD": str(release), "MODEL": MODEL, "SERVE_REPOSITORY": f"{company.host}/acme/ml/churn-serve",
        "SERVICE_ACCOUNT": "ci@p.example.com", "WORKLOAD_IDENTITY_PROVIDER": "projects/1/p", "GOOGLE_TOKEN": "a.jwt",
    }  # fmt: skip
    base = environment_of(company, f"{machine}:{SYSTEM}")
    made = job(pipeline, "serving-image", company.folder, base | variables)
    assert made == {"IMAGE": stamped(company)}
    job(pipeline, "deploy-check", company.folder, base | variables | made)


def job(pipeline: dict, name: str, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run a job as GitLab's runner does, in one shell; return what its dotenv report says."""
    whole = pipeline[pipeline[name]["extends"]] | pipeline[name]
    assert whole["image"] == PLACE
    script = "\n".join([*whole["before_script"], *whole["script"]])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = whole.get("artifacts", {}).get("reports", {}).get("dotenv")
    return dict(line.split("=", 1) for line in (folder / report).read_text().splitlines()) if report else {}
