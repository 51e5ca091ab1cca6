"""From a finished training run to predictions in a container that was pulled by the stamped digest."""

import json
import subprocess
from pathlib import Path

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.capture import script
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.report import SILENT
from tests.e2e.parts import index_access
from tests.fakes.gcs import FakeGcs

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
TRAIN, PREDICT = ROOT / "examples/train.py", ROOT / "examples/predict.py"


def upload(gcs: FakeGcs, folder: Path) -> None:
    """Put a saved model into a bucket, as a training job does."""
    gcs.create_bucket("models")
    for path in folder.rglob("*"):
        if path.is_file():
            gcs.put("models", f"runs/1/{path.relative_to(folder)}", path.read_bytes())


def predictions(engine, reference: str, model: Path, expected: Path) -> dict:
    """Load the model in a container of the pulled image and predict what the training process predicted."""
    output = engine.run(
        reference,
        ["python", "/examples/predict.py", "/data/model"],
        volumes={
            str(model): {"bind": "/data/model", "mode": "ro"},
            str(expected): {"bind": "/data/model-expected.json", "mode": "ro"},
            str(PREDICT): {"bind": "/examples/predict.py", "mode": "ro"},
        },
        network_mode="none",
    )
    return json.loads(output.strip().splitlines()[-1])


def frozen(distributions: list[dict]) -> list[str]:
    """What `pip freeze` has to say for a manifest; pip leaves out itself and its companions."""
    hidden = ("pip==", "setuptools==", "wheel==", "pkg-resources==")  # the last is Debian's mark, which no image has
    pins = (f"{item['name']}=={item['version']}".lower().replace("_", "-") for item in distributions)
    return sorted(pin for pin in pins if not pin.startswith(hidden))


def test_tensorflow_2_15_on_python_3_11_from_training_to_serving(tmp_path, train_env, envbuild, registry, engine):
    python = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
    model, manifest = tmp_path / "model", tmp_path / "manifest.json"
    subprocess.run([python, TRAIN, model], check=True)
    envbuild("capture", "--python", python, "--model", "gs://models/runs/1", "--out", manifest)
    with FakeGcs() as gcs:
        upload(gcs, model)
        reported = envbuild(
            "from-manifest", manifest, "--base", "debian:bookworm", "--out", tmp_path / "out", "--json",
            "--push", f"{registry.host}/e2e/tf215", "--stamp", "gs://models/runs/1",
            env={"STORAGE_EMULATOR_HOST": gcs.url},
        ).stdout  # fmt: skip
        result = json.loads(reported)
        stamped = gcs.metadata("models", "runs/1/saved_model.pb")["envbuild-image-train-cpu"]
        record = json.loads(gcs.data("models", f"runs/1/{result['stamped']}"))
    assert result["image"] == stamped == f"{registry.host}/e2e/tf215@{result['digest']}"
    assert record["images"][0]["reference"] == stamped
    assert result["layout"] is None
    engine.pull(stamped)
    found = predictions(engine, stamped, model, tmp_path / "model-expected.json")
    assert found["tensorflow"] == "2.15.1"
    assert found["largest_difference"] <= 1e-6
    facts = "import os, sys; print(sys.prefix, sys.version.split()[0], os.getuid(), os.getgid())"
    assert engine.run(stamped, ["python", "-c", facts]).split() == ["/opt/env", "3.11.2", "65532", "65532"]
    assert "No broken requirements" in engine.run(stamped, ["python", "-m", "pip", "check"])
    distributions = json.loads(manifest.read_bytes())["distributions"]
    freeze = engine.run(stamped, ["python", "-m", "pip", "freeze", "--disable-pip-version-check"])
    assert sorted(line.lower().replace("_", "-") for line in freeze.split()) == frozen(distributions)


@pytest.mark.slow  # two TensorFlows: 75 s
def test_tensorflow_2_8_on_python_3_9_whose_manifest_is_made_in_its_base(tmp_path, envbuild, registry, engine, cache):
    [layout] = bases(cache, "bullseye")
    pushed = push(read_layout(layout, machine="x86_64"), Reference.parse(f"{registry.host}/e2e/bullseye:latest"))
    engine.pull(str(pushed.reference))
    commands = [
        "python3 -m venv /work/venv",
        "/work/venv/bin/pip install -q --no-cache-dir --only-binary :all: tensorflow-cpu==2.8.4 'numpy<2'",
        "/work/venv/bin/python /repository/examples/train.py /work/model",
        "/work/venv/bin/python /work/capture.py --model /work/model --out /work/manifest.json",
    ]
    (tmp_path / "capture.py").write_text(script())
    engine.run(
        str(pushed.reference),
        ["sh", "-ec", "\n".join(commands)],
        volumes={str(tmp_path): {"bind": "/work", "mode": "rw"}, str(ROOT): {"bind": "/repository", "mode": "ro"}},
        **index_access(),
    )
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    assert manifest["python"]["version"].startswith("3.9.")
    reported = envbuild(
        "from-manifest", tmp_path / "manifest.json", "--base", "debian:bullseye", "--out", tmp_path / "out", "--json",
        "--push", f"{registry.host}/e2e/tf28", "--stamp", tmp_path / "model",
    ).stdout  # fmt: skip
    result = json.loads(reported)
    pointer = json.loads((tmp_path / "model/envbuild/pointer.json").read_bytes())["objects"]["saved_model.pb"][
        "metadata"
    ]
    assert pointer["envbuild-image-train-cpu"] == result["image"]
    engine.pull(result["image"])
    found = predictions(engine, result["image"], tmp_path / "model", tmp_path / "model-expected.json")
    assert found["tensorflow"] == "2.8.4"
    assert found["largest_difference"] <= 1e-6
    assert "No broken requirements" in engine.run(result["image"], ["python", "-m", "pip", "check"])
    freeze = engine.run(result["image"], ["python", "-m", "pip", "freeze"])
    assert sorted(line.lower().replace("_", "-") for line in freeze.split()) == frozen(manifest["distributions"])


def no_registry(*_):
    raise AssertionError("a bootstrapped base needs no registry")


def bases(cache: Path, suite: str) -> list[Path]:
    """The bootstrapped base, as an OCI layout."""
    resolve_base(f"debian:{suite}", machine="x86_64", cache=cache / "envbuild", pull=no_registry, report=SILENT)
    found = (cache / "envbuild/bases").glob(f"debian-{suite}-x86_64-*/index.json")
    return [path.parent for path in found]


def test_the_requirements_are_accepted_by_pip_as_written(tmp_path, train_env, envbuild):
    python = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
    manifest = tmp_path / "manifest.json"
    envbuild("capture", "--python", python, "--out", manifest)
    envbuild("from-manifest", manifest, "--base", "debian:bookworm", "--out", tmp_path / "out")
    subprocess.run(
        [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--dry-run",
            "--ignore-installed",
            "--require-hashes",
            "-r",
            tmp_path / "out/context/requirements.txt",
        ],
        check=True,
    )
