"""MLflow model folders, W&B runs and `pip inspect`: records that say more than versions."""

import json

import pytest

from envbuild.errors import UsageError
from envbuild.manifest.model import Code, Entry
from tests.unit.converting import origins, pins, read, refusal

MLMODEL = """\
flavors:
  python_function:
    env:
      conda: conda.yaml
      virtualenv: python_env.yaml
    loader_module: mlflow.tensorflow
    python_version: 3.10.12
  tensorflow:
    keras_version: 2.15.0
mlflow_version: 3.17.2
model_uuid: 735bc8a50b124f05be0a824f56fd13d9
utc_time_created: '2026-11-20 10:10:40.782933'
"""
PYTHON_ENV = """\
python: 3.10.12
build_dependencies:
- pip==23.0.1
- setuptools==65.5.1
- wheel
dependencies:
- -r requirements.txt
"""
CONDA = """\
channels:
- conda-forge
dependencies:
- python=3.10.12
- pip<=23.0.1
- pip:
  - mlflow==3.17.2
  - tensorflow==2.15.1
name: mlflow-env
"""
FOLDER = {
    "MLmodel": MLMODEL,
    "python_env.yaml": PYTHON_ENV,
    "conda.yaml": CONDA,
    "requirements.txt": "mlflow==3.17.2\ntensorflow==2.15.1\ncloudpickle==3.1.2",
}


@pytest.mark.parametrize("name", FOLDER)
def test_an_mlflow_model_is_read_by_any_of_its_files(name):
    manifest = read(name, FOLDER[name], FOLDER)
    assert (manifest.source.format, manifest.source.tool) == ("mlflow", "mlflow 3.17.2")
    assert (manifest.python.version, manifest.created) == ("3.10.12", "2026-11-20T10:10:40Z")
    assert pins(manifest) == {
        "cloudpickle": "3.1.2", "mlflow": "3.17.2", "pip": "23.0.1", "setuptools": "65.5.1", "tensorflow": "2.15.1",
    }  # fmt: skip
    assert not manifest.source.complete
    assert "created" not in manifest.source.unknown
    assert manifest.framework
    assert manifest.framework.distribution == "tensorflow"
    assert "cuts local labels" in manifest.source.notes[0]


def test_conda_yaml_serves_where_requirements_txt_is_absent():
    files = {name: text for name, text in FOLDER.items() if name not in {"requirements.txt", "python_env.yaml"}}
    assert pins(read("MLmodel", MLMODEL, files)) == {"mlflow": "3.17.2", "tensorflow": "2.15.1"}


def test_files_that_differ_in_python_are_told_and_what_mlflow_restores_counts():
    manifest = read("MLmodel", MLMODEL.replace("3.10.12", "3.9.1"), FOLDER)
    assert manifest.python.version == "3.10.12"
    assert "python_env.yaml says 3.10.12, conda.yaml says 3.10.12, MLmodel says 3.9.1" in manifest.source.notes[1]


def test_a_version_that_looks_like_a_number_stays_a_text():
    said = refusal("MLmodel", MLMODEL.replace("3.10.12", "3.10"), {"requirements.txt": "idna==3.20"})
    assert "only Python '3.10'" in said


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "neither requirements.txt nor conda.yaml"),
        ({"requirements.txt": "tensorflow<3\nidna==3.20"}, "line 1: tensorflow<3 is not an exact version"),
        ({"requirements.txt": "idna==3.20", "python_env.yaml": "python: [\n"}, "not YAML"),
    ],
)
def test_mlflow_models_that_say_too_little_are_refused(files, says):
    assert says in refusal("MLmodel", MLMODEL, files)


METADATA = {
    "os": "Linux-5.15.0-1042-gcp-x86_64-with-glibc2.31",
    "python": "CPython 3.10.12",
    "startedAt": "2026-11-20T10:24:24.113000Z",
    "args": ["--lr", "0.1", "--api-key", "canarycanarycanary", "--out", "/home/ada.canary/out"],
    "program": "/home/ada.canary/code/train.py",
    "codePath": "train.py",
    "git": {"remote": "https://u:canary@git.example.com/a.git", "commit": "9fceb02d0ae598e95dc970b74767f19372d61af8"},
    "email": "ada.canary@example.com",
    "root": "/home/ada.canary",
    "host": "canaryhost",
    "username": "ada.canary",
    "executable": "/home/ada.canary/venv/bin/python",
    "docker": "registry.example.com/train:1",
    "cpu_count": 8,
    "cpu_count_logical": 16,
    "gpu": "NVIDIA A100-SXM4-40GB",
    "gpu_count": 2,
    "disk": {"/": {"total": "1", "used": "1"}},
    "cpu": {"model": "AMD EPYC 7B12"},
    "gpu_nvidia": [
        {"name": "NVIDIA A100-SXM4-40GB", "memoryTotal": "42949672960", "cudaCores": 6912, "uuid": "GPU-canary"},
        {"name": "NVIDIA A100-SXM4-40GB", "memoryTotal": "42949672960", "cudaCores": 6912, "uuid": "GPU-canary"},
    ],
    "cudaVersion": "12.4",
}
LISTED = "pip==23.0.1\ntensorflow==2.15.1\nnumpy==1.26.4\n"


def wandb(**changes) -> str:
    return json.dumps({key: value for key, value in (METADATA | changes).items() if value is not None}, indent=2)


@pytest.mark.parametrize("by", ["wandb-metadata.json", "requirements.txt"])
def test_a_wandb_run_is_read_by_either_of_its_files(by):
    files = {"wandb-metadata.json": wandb(), "requirements.txt": LISTED}
    manifest = read(by, files[by], files)
    assert (manifest.source.format, manifest.source.complete) == ("wandb", True)
    assert (manifest.python.version, manifest.python.implementation) == ("3.10.12", "cpython")
    assert manifest.created == "2026-11-20T10:24:24Z"
    assert pins(manifest) == {"numpy": "1.26.4", "pip": "23.0.1", "tensorflow": "2.15.1"}
    platform = manifest.platform
    assert (platform.system, platform.machine, platform.libc, platform.libc_version, platform.kernel) == (
        "Linux", "x86_64", "glibc", "2.31", "5.15.0-1042-gcp",
    )  # fmt: skip
    assert manifest.accelerator
    assert [(it.name, it.memory) for it in manifest.accelerator.gpus] == [("NVIDIA A100-SXM4-40GB", 42949672960)] * 2
    assert manifest.accelerator.cuda_maximum == "12.4"
    assert (manifest.cpu.count, manifest.cpu.model) == (16, "AMD EPYC 7B12")
    assert manifest.host
    assert manifest.host.container
    assert manifest.host.container.image == "registry.example.com/train:1"


def test_who_ran_it_and_where_is_never_kept():
    manifest = read("wandb-metadata.json", wandb(), {"requirements.txt": LISTED})
    assert "canary" not in repr(manifest)
    assert manifest.code == Code(
        commit="9fceb02d0ae598e95dc970b74767f19372d61af8", remote="https://git.example.com/a.git"
    )
    assert manifest.entry == Entry(
        command=("train.py", "--lr", "0.1", "--api-key", "[redacted]", "--out", "/home/[redacted]/out")
    )
    absolute = read("wandb-metadata.json", wandb(codePath=None), {"requirements.txt": LISTED})
    assert absolute.entry
    assert absolute.entry.command[0] == "train.py"


@pytest.mark.parametrize(
    ("changes", "gpus", "kind"),
    [
        ({"gpu_nvidia": None}, 2, "nvidia"),
        ({"gpu_nvidia": None, "gpu_devices": [{"name": "Tesla T4", "memory_total": 16}]}, 1, "nvidia"),
        ({"gpu_nvidia": None, "gpu": None, "gpu_count": 0}, 0, "none"),
        ({"gpu_nvidia": None, "gpu": None, "gpu_count": None}, 0, None),
    ],
    ids=["no list", "older", "zero", "not said"],
)
def test_gpus_are_what_wandb_says_and_silence_is_not_none(changes, gpus, kind):
    found = read("wandb-metadata.json", wandb(**changes), {"requirements.txt": LISTED}).accelerator
    assert (len(found.gpus) if found else 0) == gpus
    assert (found and found.kind) == kind


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("macOS-13.4-arm64-arm-64bit", ("Darwin", "arm64")),
        ("Windows-10-10.0.19045-SP0", ("Windows", None)),
        ("Plan9", (None, None)),
    ],
)
def test_other_systems_are_taken_as_far_as_they_are_said(system, said):
    platform = read("wandb-metadata.json", wandb(os=system), {"requirements.txt": LISTED}).platform
    assert (platform.system, platform.machine) == said


def test_a_wandb_file_without_the_other_is_refused():
    assert "there is no requirements.txt beside it" in refusal("wandb-metadata.json", wandb())
    assert "--python" in refusal("wandb-metadata.json", wandb(python=None), {"requirements.txt": LISTED})


def installed(name: str, version: str, **facts) -> dict:
    return {"metadata": {"name": name, "version": version, "description": "x" * 50}, "installer": "pip", **facts}


ELSEWHERE = {"url": "https://example.com/a-1.tar.gz", "archive_info": {}}
INSPECT = {
    "version": "1",
    "pip_version": "26.3",
    "installed": [
        installed("idna", "3.20", requested=True),
        installed("Debian.Thing", "1.0", installer="debian"),
        installed("numpy", "1.26", installer="conda", direct_url={"url": "file:///croot/numpy/work", "dir_info": {}}),
        installed("scipy", "1.11", installer="conda"),
        installed("epkg", "0.3", direct_url={"url": "file:///home/me/epkg", "dir_info": {"editable": True}}),
        installed(
            "vpkg", "1.2",
            direct_url={
                "url": "https://u:canary@example.com/v.git", "subdirectory": "python",
                "vcs_info": {"vcs": "git", "commit_id": "9fceb02d", "requested_revision": "main"},
            },
        ),
        installed(
            "six", "1.16.0", direct_url={"url": "https://example.com/six.whl", "archive_info": {"hash": "sha256=" + "ab" * 32}},
        ),
    ],
    "environment": {
        "implementation_name": "cpython", "platform_machine": "aarch64", "platform_system": "Linux",
        "platform_release": "6.1.0", "python_full_version": "3.11.7",
    },
}  # fmt: skip


def test_pip_inspect_says_almost_everything():
    manifest = read("inspect.json", json.dumps(INSPECT))
    assert (manifest.source.format, manifest.source.tool, manifest.source.complete) == ("pip-inspect", "pip 26.3", True)
    assert (manifest.python.version, manifest.platform.machine, manifest.platform.kernel) == (
        "3.11.7",
        "aarch64",
        "6.1.0",
    )
    assert origins(manifest) == {
        "Debian.Thing": {"kind": "unknown"},
        "epkg": {"kind": "editable", "url": "file:///home/me/epkg"},
        "idna": {"kind": "index"},
        "numpy": {"kind": "conda"},
        "scipy": {"kind": "conda"},
        "six": {"kind": "archive", "url": "https://example.com/six.whl", "sha256": "ab" * 32},
        "vpkg": {
            "kind": "vcs", "url": "https://example.com/v.git", "commit": "9fceb02d", "requested_revision": "main",
            "subdirectory": "python",
        },
    }  # fmt: skip
    assert [it.name for it in manifest.distributions if it.requested] == ["idna"]
    assert "canary" not in repr(manifest)


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (INSPECT | {"installed": {}}, "there is no list"),
        (INSPECT | {"installed": [{"metadata": {"name": "x"}}]}, "installed[0]: metadata has no name and version"),
        (INSPECT | {"installed": [5]}, "installed[0]"),
        (INSPECT | {"installed": [installed("a", "1"), installed("A", "2")]}, "a is 2, and 1 at installed[0]"),
        (
            INSPECT | {"installed": [installed("a", "1"), installed("a", "1", direct_url=ELSEWHERE)]},
            "a is 1 from https://example.com/a-1.tar.gz, and 1 at installed[0]",
        ),
        (INSPECT | {"version": "9"}, "version '9' of what pip inspect prints"),
        (INSPECT | {"version": "2.1"}, "version '2.1' of what pip inspect prints"),
        (INSPECT | {"installed": [installed("a", "not a version")]}, "is not a valid version"),
        (INSPECT | {"environment": []}, "--python"),
    ],
)
def test_reports_of_pip_that_are_broken_are_refused(report, says):
    assert says in refusal("inspect.json", json.dumps(report), kind="pip-inspect")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"python": "3.10.1"}, "the record says Python 3.11.7"),
        ({"platform": "linux/amd64"}, "the record says Linux aarch64"),
        ({"platform": "darwin/arm64"}, "the record says Linux aarch64"),
        ({"python": "3.10"}, "not an exact Python version"),
        ({"platform": "amiga"}, "linux/amd64"),
        ({"gpu": " "}, "names no GPU"),
        ({"model": ""}, "names no model"),
    ],
)
def test_options_that_contradict_the_record_are_refused(given, says):
    with pytest.raises(UsageError) as caught:
        read("inspect.json", json.dumps(INSPECT), **given)
    assert says in str(caught.value)


def test_options_that_agree_with_the_record_are_taken():
    manifest = read("inspect.json", json.dumps(INSPECT), python="3.11.7", platform="linux/arm64", gpu="none")
    assert manifest.accelerator
    assert manifest.accelerator.kind == "none"
    assert "accelerator" not in manifest.source.unknown
