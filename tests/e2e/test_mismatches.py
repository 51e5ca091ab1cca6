"""Each mismatch that `envbuild verify` is for, planted in a real environment, image or machine.

Every command of docs/mismatches.md is run; it ends with 16 and prints what is written there. Beside each stands what is
nearly the same, and agrees.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.e2e.planted import PAGE, Bench, base_layout, git
from tests.e2e.twice import install, interpreter
from tests.fakes.libraries import nvidia_smi
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

pytestmark = pytest.mark.real

ARTIFACTS = Path(__file__).with_name("artifacts")
SAVED = ARTIFACTS / "tensorflow_2_15"
KERAS_2 = ("tensorflow-cpu==2.15.1", "pip==24.0")
KERAS_3 = ("tensorflow-cpu==2.21.0",)
BESIDE = ("certifi==2024.8.30", "idna==3.10", "urllib3==2.2.3", "charset-normalizer==3.4.0")
MOVED = make_wheel("tool", "2.0", {"tool.py": "import sys"})
OLD_CPU = "fpu sse sse2 ssse3 sse4_1 sse4_2 aes"
CPU = f"{OLD_CPU} avx avx2 fma f16c"


@pytest.fixture
def bench(tmp_path, cache):
    return Bench(folder=tmp_path, cache=cache)


@pytest.fixture
def small(train_env):
    """The interpreter of a small environment."""
    return train_env("3.11", "requests==2.31.0", *BESIDE)


@pytest.fixture(scope="module")
def tensorflow(train_env):
    return train_env("3.11", *KERAS_2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cache, tensorflow):
    """A folder with manifests of TensorFlow 2.15: with either model that it saved, and without one."""
    bench = Bench(folder=tmp_path_factory.mktemp("runs"), cache=cache)
    bench.capture("none.json", tensorflow)
    for model in ("saved_model", "model.h5"):
        bench.capture(f"{model}.json", tensorflow, "--model", SAVED / model)
    return bench.folder


def test_requests_differing(bench, small, train_env):
    bench.capture("run.json", small)
    bench.capture("serve.json", train_env("3.11", "requests==2.32.3", *BESIDE))
    bench.fails_as_documented("Another version of requests")
    bench.capture("more.json", train_env("3.11", "requests==2.31.0", *BESIDE, "click==8.1.7"))
    bench.passes("run.json", "more.json")


@pytest.mark.slow  # Pythons and releases of their time
def test_numpy_differing(tmp_path, cache):
    bench = Bench(folder=tmp_path, cache=cache)
    for name, version in (("run", "1.23.5"), ("serve", "1.22.0"), ("again", "1.23.5")):
        bench.capture(f"{name}.json", installed(tmp_path / name, f"numpy=={version}"))
    bench.fails_as_documented("NumPy 1.23.5, and 1.22.0")
    bench.passes("run.json", "again.json")


@pytest.mark.slow  # two TensorFlows: 2 GB
def test_trained_on_2_8_and_served_on_2_10(tmp_path, cache):
    bench = Bench(folder=tmp_path, cache=cache)
    try:
        for name, version, protobuf in (("run", "2.8.4", "3.19.6"), ("serve", "2.10.1", "3.19.6")):
            wanted = (f"tensorflow-cpu=={version}", f"protobuf=={protobuf}", "numpy==1.23.5", "pip==24.0")
            python = installed(tmp_path / name, *wanted)
            subprocess.run([python, ARTIFACTS / "save_keras_2.py", tmp_path / f"{name}-model"], check=True)
            bench.capture(f"{name}.json", python, "--model", f"{name}-model/saved_model")
        bench.fails_as_documented("Trained on TensorFlow 2.8, served on 2.10")
        bench.passes("run.json", "host", "--python", tmp_path / "run/bin/python")
    finally:
        shutil.rmtree(tmp_path)  # pytest would keep it for three sessions


def installed(folder: Path, *requirements: str, python: str = "3.9") -> Path:
    """An environment in this folder."""
    install(folder, interpreter(python), requirements)
    return folder / "bin/python"


def test_a_variable_missing(bench, small):
    bench.capture("run.json", small, "--requires", "TRAINING_DATA_PATH", TRAINING_DATA_PATH="/data")
    bench.fails_as_documented("TRAINING_DATA_PATH is not set")
    bench.passes("run.json", "host", TRAINING_DATA_PATH="/elsewhere")


@pytest.mark.slow  # a TensorFlow for GPUs: 1.5 GB
def test_a_run_with_a_gpu_on_a_host_without_one(tmp_path, cache):
    bench = Bench(folder=tmp_path, cache=cache)
    try:
        python = installed(tmp_path / "env", "--no-deps", "tensorflow==2.15.1", python="3.11")
        bench.capture("cpu.json", python)
        bench.passes("cpu.json", "host")
        bench.capture("run.json", python, PATH=f"{nvidia_smi(tmp_path / 'driver')}:{os.environ['PATH']}")
        bench.fails_as_documented("A run with a GPU, and a machine without one")
    finally:
        shutil.rmtree(tmp_path)  # pytest would keep it for three sessions


def test_a_saved_model_of_tensorflow_1_under_tensorflow_2(bench, tensorflow, runs):
    shutil.copy(ARTIFACTS / "tensorflow_1_15/manifest.json", bench.folder / "run.json")
    shutil.copy(runs / "none.json", bench.folder / "serve.json")
    bench.fails_as_documented("A SavedModel of TensorFlow 1.15 under TensorFlow 2")
    late = bench.capture("late.json", tensorflow, "--model", ARTIFACTS / "tensorflow_1_15/model")
    told = json.loads(bench.run("verify", late, "--json").stdout)["findings"]
    assert ("artifact-tf1", "warning") in [(it["rule"], it["severity"]) for it in told]
    bench.passes(runs / "saved_model.json", "serve.json")


def test_a_model_of_keras_2_under_keras_3(bench, tensorflow, runs, train_env):
    shutil.copy(runs / "model.h5.json", bench.folder / "run.json")
    bench.capture("serve.json", train_env("3.11", *KERAS_3))
    bench.fails_as_documented("A model of Keras 2 under Keras 3")
    bench.passes("run.json", "host", "--python", tensorflow)


def test_preprocessing_code_that_was_changed(bench, small):
    code = bench.folder / "features/scale.py"
    code.parent.mkdir()
    code.write_text("MEAN = 0.5\n")
    git(bench.folder, "init", "-q")
    git(bench.folder, "add", "features")
    git(bench.folder, "commit", "-qm", "x")
    bench.capture("run.json", small, "--preprocessing", "features")
    (bench.folder / "serve.py").write_text("import features.scale\n")
    bench.passes("run.json", "host")
    code.write_text("MEAN = 0.4\n")
    bench.fails_as_documented("Preprocessing code that was changed")


def test_data_that_is_gone(bench, small):
    data = bench.folder / "data"
    data.mkdir()
    bench.capture("run.json", small, "--data", "DATA_DIR=data")
    bench.passes("run.json", "host")
    shutil.rmtree(data)
    bench.fails_as_documented("Data that is gone")


def test_a_model_in_another_format(bench, runs):
    shutil.copy(runs / "saved_model.json", bench.folder / "run.json")
    shutil.copy(runs / "model.h5.json", bench.folder / "now.json")
    bench.fails_as_documented("A model in another format")
    bench.passes("run.json", runs / "none.json")


def with_cpu(bench: Bench, flags: str) -> Bench:
    """The same folder on a machine with another CPU, as its kernel tells of it."""
    told = bench.folder / f"cpuinfo-{len(flags)}"
    told.write_text(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n\n")
    bound = ("unshare", "-m", "sh", "-c", f'mount --bind {told} /proc/cpuinfo && exec "$@"', "sh")
    return Bench(folder=bench.folder, cache=bench.cache, under=bound)


def test_a_cpu_that_lacks_what_tensorflow_is_compiled_for(bench, tensorflow):
    with_cpu(bench, CPU).capture("run.json", tensorflow)
    with_cpu(bench, OLD_CPU).fails_as_documented("A CPU without AVX")
    with_cpu(bench, f"{CPU} avx512f").passes("run.json", "host")


@pytest.fixture
def built(tmp_path, cache, registry):
    """A model with the stamp of an image that is in the registry; and `pylock.toml`, which the image was built from."""
    bench = Bench(folder=tmp_path, cache=cache, registry=registry.host)
    (tmp_path / "wheels").mkdir()
    for wheel in (TENSORFLOW, TOOL, MOVED):
        (tmp_path / "wheels" / wheel.filename).write_bytes(wheel.data)
    (tmp_path / "model").mkdir()
    shutil.copytree(SAVED / "saved_model", tmp_path / "model", dirs_exist_ok=True)
    image(bench, "churn:7", "--stamp", "model")
    shutil.copy(tmp_path / "out/context/pylock.toml", tmp_path)
    return bench


def image(bench: Bench, name: str, *options: str, tool: str = "1.0") -> None:
    """Build and push the image of a run that had this version of a tool."""
    python = {"version": "3.11.2", "implementation": "cpython"}
    manifest = manifest_of(("tensorflow-cpu", "2.15.1"), ("tool", tool), python=python)
    (bench.folder / "run.json").write_text(json.dumps(manifest))
    where = ("--base", "debian:bookworm", "--offline", "--find-links", "wheels", "--out", "out")
    bench.run("from-manifest", "run.json", *where, "--push", f"{bench.registry}/mismatches/{name}", *options)


def stamped(bench: Bench) -> str:
    """The digest that the model is stamped with."""
    pointer = json.loads((bench.folder / "model/envbuild/pointer.json").read_bytes())["objects"]
    return next(iter(pointer.values()))["metadata"]["envbuild-image-train-cpu"].partition("@")[2]


def test_a_c_library_that_is_older(built):
    (built.folder / "bullseye").symlink_to(base_layout(built.cache, "bullseye"))
    built.fails_as_documented("A C library that is older")
    built.passes("pylock.toml", f"{built.registry}/mismatches/churn:7")


def test_a_stamped_image_that_the_registry_no_longer_has(built):
    built.passes("model")
    url = f"http://{built.registry}/v2/mismatches/churn/manifests/{stamped(built)}"
    assert httpx.delete(url, trust_env=False).status_code == 202
    built.fails_as_documented("A stamped image that is gone")


def test_a_tag_that_was_moved(built):
    built.passes("model", f"{built.registry}/mismatches/churn:7")
    image(built, "churn:7", tool="2.0")
    built.fails_as_documented("A tag that was moved")


def test_every_mismatch_that_is_documented_is_planted():
    titles = [line.removeprefix("## ") for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    program = Path(__file__).read_text()
    assert [title for title in titles if f'fails_as_documented("{title}")' not in program] == []
    assert len(titles) == program.count(".fails_as_documented(") - 1
