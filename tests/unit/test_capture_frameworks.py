"""The frameworks: how they were built, and which one the run used."""

import base64
import hashlib

import pytest

from envbuild.capture.frameworks import build_info
from tests.unit.capturing import Environment

GPU_BUILD = """
import collections
build_info = collections.OrderedDict([('cpu_compiler', '/usr/lib/llvm-17/bin/clang'),
  ('cuda_compute_capabilities', ['sm_50', 'compute_80']), ('cuda_version', '12.2'), ('cudnn_version', '8'),
  ('is_cuda_build', True), ('is_rocm_build', False), ('is_tensorrt_build', True)])
"""
CPU_BUILD = "import collections\nbuild_info = collections.OrderedDict([('is_cuda_build', False)])\n"
BUILD_INFO = "tensorflow/python/platform/build_info.py"


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path)


def record_line(name: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(text)}\n"


def tensorflow(env, name: str, build: str, *, write: bool = True) -> None:
    env.install(name, "2.15.1", RECORD=record_line(BUILD_INFO, build))
    if write:
        (env.site / BUILD_INFO).parent.mkdir(parents=True, exist_ok=True)
        (env.site / BUILD_INFO).write_text(build)


def test_tensorflow_is_described_without_importing_it(env):
    tensorflow(env, "tensorflow", GPU_BUILD)
    (env.site / "tensorflow" / "__init__.py").write_text("raise SystemExit('imported')")
    assert env.capture()["framework"] == {
        "name": "tensorflow",
        "distribution": "tensorflow",
        "version": "2.15.1",
        "cuda": "12.2",
        "cudnn": "8",
        "compute_capabilities": ["sm_50", "compute_80"],
    }


@pytest.mark.parametrize("last", ["tensorflow", "tensorflow-cpu"])
def test_of_two_tensorflows_the_one_whose_files_lie_there_counts(env, last):
    builds = {"tensorflow": GPU_BUILD, "tensorflow-cpu": CPU_BUILD}
    for name, build in builds.items():
        tensorflow(env, name, build, write=name == last)
    framework = env.capture()["framework"]
    assert (framework["distribution"], "cuda" in framework) == (last, last == "tensorflow")


def test_without_tensorflow_there_is_no_framework(env):
    env.install("tensorflow-hub")
    assert "framework" not in env.capture()


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        (
            "is_cuda_build = True\ncuda_version_number = '10.0'\ncudnn_version_number = '7'\n",
            {"cuda": "10.0", "cudnn": "7"},
        ),
        (
            "build_info = {'is_cuda_build': True, 'cuda_version': '10.1', 'cudnn_version': '7'}",
            {"cuda": "10.1", "cudnn": "7"},
        ),
        (GPU_BUILD, {"cuda": "12.2", "cudnn": "8", "compute_capabilities": ["sm_50", "compute_80"]}),
        ("build_info = OrderedDict({'cuda_version': '12.5.1'})", {"cuda": "12.5.1"}),
        ("build_info = dict(cuda_version='11.2')", {"cuda": "11.2"}),
        ("is_cuda_build = False\ncuda_version_number = ''\n", {}),
        ("build_info = OrderedDict([('cuda_version', '64_112'), ('cudnn_version', '64_8')])", {}),
        (CPU_BUILD, {}),
        ("build_info = make()", {}),
        ("build_info = OrderedDict(make())", {}),
        ("build_info = {'cuda_version': run()}", {}),
        ("build_info = {", {}),
        ("\0", {}),
        ("", {}),
    ],
)
def test_every_form_of_build_info_is_read(source, facts):
    assert build_info(source) == facts


# PyTorch, JAX, Keras

TORCH_VERSION = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.3.1+cu121'
debug = False
cuda: Optional[str] = '12.1'
git_version = '63d5e9221bedd1546b7d364b5ce4171547db12a9'
hip: Optional[str] = None
"""
JAX_VERSION = "_version = '0.4.30'\n_release_version: str | None = '0.4.30'\n_git_hash: str = 'abc123'\n"


def lay(env: Environment, name: str, release: str, /, **files: str) -> None:
    """Install a package of this name; `files` are its modules."""
    env.install(name, release)
    (env.site / name).mkdir()
    for module, text in {"__init__": "raise SystemExit('imported')", **files}.items():
        (env.site / name / f"{module}.py").write_text(text)


def test_pytorch_is_described_without_importing_it(env):
    lay(env, "torch", "2.3.1+cu121", version=TORCH_VERSION)
    assert env.capture()["frameworks"] == [
        {
            "name": "torch",
            "distribution": "torch",
            "version": "2.3.1+cu121",
            "cuda": "12.1",
            "git_version": "63d5e9221bedd1546b7d364b5ce4171547db12a9",
        }
    ]


@pytest.mark.parametrize("text", ["cuda = None\ngit_version = 'Unknown'\n", "cuda = 'x\\ny'\n", "cuda = (", "", "\0"])
def test_what_pytorch_does_not_say_is_left_out(env, text):
    lay(env, "torch", "2.3.1", version=text)
    (facts,) = env.capture()["frameworks"]
    assert {"cuda", "cudnn", "git_version"}.isdisjoint(facts)


@pytest.mark.parametrize(
    ("jaxlib", "plugin", "cuda", "cudnn"),
    [
        ("0.4.30", None, None, None),
        ("0.4.30", "jax-cuda12-plugin", "12", None),
        ("0.7.2", "jax-cuda13-pjrt", "13", None),
        ("0.4.7+cuda11.cudnn86", None, "11", "8.6"),
        ("0.4.7+cuda12.cudnn88", None, "12", "8.8"),
        ("0.1.69+cuda111", None, "11.1", None),
        ("0.3.25+cuda11.cudnn805", None, "11", "8.0.5"),
    ],
)
def test_jax_has_its_cuda_from_plugin_or_jaxlib(env, jaxlib, plugin, cuda, cudnn):
    lay(env, "jax", "0.4.30", version=JAX_VERSION)
    env.install("jaxlib", jaxlib)
    if plugin:
        env.install(plugin, "0.4.30")
    (facts,) = env.capture()["frameworks"]
    assert (facts["name"], facts["version"], facts["git_version"]) == ("jax", "0.4.30", "abc123")
    assert (facts.get("cuda"), facts.get("cudnn")) == (cuda, cudnn)


def order(env: Environment) -> list[str]:
    return [facts["name"] for facts in env.capture()["frameworks"]]


def test_of_frameworks_that_only_lie_there_none_is_taken_for_the_used_one(env):
    lay(env, "keras", "3.0")
    lay(env, "torch", "1.0")
    assert env.capture()["framework"]["name"] == "torch"
    lay(env, "jax", "1.0")
    found = env.capture()
    assert "framework" not in found
    assert "framework" in found["source"]["unknown"]
    tensorflow(env, "tensorflow-cpu", CPU_BUILD)
    assert order(env) == ["tensorflow", "torch", "jax", "keras"]


def test_what_the_process_has_imported_comes_first(env):
    tensorflow(env, "tensorflow", GPU_BUILD)
    for name in ("keras", "torch"):
        lay(env, name, "1.0", __init__="__version__ = '1.0'")
    lay(env, "jax", "1.0", __init__="__version__ = '1.0'")
    (env.site / "run.pth").write_text("import keras, torch, jax\n")
    assert order(env) == ["torch", "jax", "tensorflow", "keras"]


def test_what_the_process_has_used_comes_before_what_another_library_imported(env):
    tensorflow(env, "tensorflow", GPU_BUILD)
    eager = env.site / "tensorflow" / "python" / "eager"
    eager.mkdir()
    (env.site / "tensorflow" / "__init__.py").write_text(
        "__version__ = '2.15.1'\nimport tensorflow.python.eager.context"
    )
    (eager / "context.py").write_text("_context = None")
    lay(env, "torch", "1.0", __init__="__version__ = '1.0'")
    (env.site / "run.pth").write_text("import tensorflow, torch\n")
    assert order(env) == ["torch", "tensorflow"]
    (env.folder / "model.pt").write_bytes(b"\x80\2")
    assert env.capture("--model", str(env.folder / "model.pt"))["framework"]["name"] == "torch"
    (eager / "context.py").write_text("_context = object()")
    assert order(env) == ["tensorflow", "torch"]
