"""What capture says of real frameworks and real libraries in the process that runs them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from envbuild.capture import script
from envbuild.manifest.reader import read_manifest
from tests.environ import cleaned

pytestmark = pytest.mark.real

TENSORFLOW = ("tensorflow-cpu==2.15.1", "pip==24.0")
NEWEST = ("tensorflow-cpu==2.21.0",)
JAX = ("jax==0.7.2", "keras==3.12.0", "numpy==2.3.5")
BLAS = ("numpy==2.3.5", "scipy==1.16.3", "threadpoolctl==3.6.0")
CUDA = ("nvidia-cuda-runtime-cu12==12.4.127", "nvidia-cuda-nvrtc-cu12==12.4.127", "nvidia-cuda-runtime-cu11==11.8.89")


def run(python: Path, folder: Path, program: str, **variables: str) -> tuple[dict, str]:
    """What `program` captures in its own process with `capture()`, and what it prints."""
    (folder / "standalone.py").write_text(script())
    setup = "import standalone\ndef capture():\n    standalone.capture(out='manifest.json')\n"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(folder)}
    environment = cleaned(os.environ) | quiet | variables
    done = subprocess.run(
        [python, "-c", setup + program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    text = (folder / "manifest.json").read_text()
    read_manifest(text.encode(), "captured")
    return json.loads(text), done.stdout.strip()


def numerics(manifest: dict) -> dict:
    return {facts["framework"]: facts for facts in manifest["numerics"]}


TRAIN = """
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(2)
tf.config.optimizer.set_jit(True)
tf.keras.utils.set_random_seed(20)
tf.config.experimental.enable_op_determinism()
tf.config.experimental.enable_tensor_float_32_execution(False)
tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.zeros((8, 4)), np.zeros((8, 2)), verbose=0)
capture()
print(tf.version.GIT_VERSION)
"""


@pytest.fixture(scope="module", params=[TENSORFLOW, NEWEST], ids=["keras2", "keras3"])
def tensorflow(request, train_env):
    return train_env("3.11", *request.param)


def test_a_training_says_what_decides_its_numbers(tensorflow, tmp_path):
    # Where nobody says, TensorFlow takes oneDNN on processors with VNNI, AMX or bfloat16 alone.
    manifest, commit = run(tensorflow, tmp_path, TRAIN, OPENBLAS_NUM_THREADS="1", TF_ENABLE_ONEDNN_OPTS="1")
    facts = numerics(manifest)
    told = facts["tensorflow"]
    assert (told["seed"], told["deterministic"], told["precision"]) == (20, True, "mixed_bfloat16")
    assert told["devices"] == ["CPU:0"]
    assert told["settings"] == {"intra_op_threads": "2", "jit": "true", "onednn": "true", "tensor_float_32": "false"}
    assert facts["keras"]["precision"] == "mixed_bfloat16"
    assert facts["keras"]["settings"] == {"backend": "tensorflow", "floatx": "float32"}
    assert manifest["framework"]["git_version"] == commit
    assert [item["name"] for item in manifest["frameworks"]] == ["tensorflow", "keras"]
    owners = {item["name"]: item["owner"].get("name") for item in manifest["native"]["libraries"]}
    assert owners["libtensorflow_framework.so.2"] == "tensorflow-cpu"
    [blas] = [pool for pool in manifest["native"]["thread_pools"] if pool["kind"] == "openblas"]
    assert (blas["threads"], owners[blas["library"]]) == (1, "numpy")


IMPORTED = """
import sys
import tensorflow as tf
capture()
from tensorflow.python.eager import context
assert context._context is None
# Once the context is there, this is an error.
tf.config.threading.set_inter_op_parallelism_threads(1)
import keras
keras.backend.set_floatx("float64")
print(tf.keras.mixed_precision.global_policy().name)
"""


def test_a_question_starts_nothing_in_tensorflow(tensorflow, tmp_path):
    manifest, policy = run(tensorflow, tmp_path, IMPORTED)
    told = numerics(manifest)["tensorflow"]
    assert (told["deterministic"], told["precision"], told["settings"]["tensor_float_32"]) == (False, "float32", "true")
    assert {"seed", "devices"}.isdisjoint({key for key, value in told.items() if value})
    assert policy == "float64"


USED = """
import jax, jax.numpy as jnp, keras
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")
keras.utils.set_random_seed(3)
keras.config.set_dtype_policy("mixed_float16")
jnp.zeros(3) + 1
capture()
"""
UNUSED = """
import jax
capture()
from jax._src import xla_bridge
print(len(xla_bridge._backends))
"""


def test_jax_and_keras_on_jax_say_what_decides_their_numbers(train_env, tmp_path):
    manifest, _ = run(train_env("3.11", *JAX), tmp_path, USED, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    facts = numerics(manifest)
    assert facts["jax"]["devices"] == ["cpu:0"]
    expected = {"enable_x64": "true", "default_matmul_precision": "highest", "default_prng_impl": "threefry2x32"}
    assert facts["jax"]["settings"].items() >= expected.items()
    assert (facts["keras"]["seed"], facts["keras"]["precision"]) == (3, "mixed_float16")
    assert facts["keras"]["settings"]["backend"] == "jax"
    assert [(item["name"], item["version"]) for item in manifest["frameworks"]] == [
        ("jax", "0.7.2"),
        ("keras", "3.12.0"),
    ]


def test_a_question_starts_nothing_in_jax(train_env, tmp_path):
    manifest, backends = run(train_env("3.11", *JAX), tmp_path, UNUSED)
    assert not numerics(manifest)["jax"].get("devices")
    assert backends == "0"


POOLS = """
import json, numpy, scipy.linalg
capture()
from threadpoolctl import threadpool_info
print(json.dumps(threadpool_info()))
"""


def test_thread_pools_are_those_that_threadpoolctl_finds(train_env, tmp_path):
    manifest, answer = run(train_env("3.11", *BLAS), tmp_path, POOLS, OPENBLAS_NUM_THREADS="2")
    expected = [
        (Path(pool["filepath"]).name, pool["internal_api"], pool["version"], pool["num_threads"], pool["architecture"])
        for pool in json.loads(answer)
    ]
    found = [
        (pool["library"], pool["kind"], pool["version"], pool["threads"], pool["architecture"])
        for pool in manifest["native"]["thread_pools"]
    ]
    assert len(found) == 2
    assert sorted(found) == sorted(expected)


LOADED = """
import ctypes, glob, sysconfig
folder = sysconfig.get_path("purelib") + "/nvidia/"
for name in ("cuda_runtime/lib/libcudart.so.12", "cuda_nvrtc/lib/libnvrtc.so.12"):
    ctypes.CDLL(folder + name)
capture()
"""


def test_nvidia_s_own_libraries_say_their_versions_without_a_gpu(train_env, tmp_path):
    manifest, _ = run(train_env("3.11", *CUDA), tmp_path, LOADED)
    components = manifest["native"]["components"]
    assert [(part["name"], part["version"], part["source"]) for part in components if part["loaded"]] == [
        ("cuda", "12.4", "cudaRuntimeGetVersion()"),
        ("nvrtc", "12.4", "nvrtcVersion()"),
    ]
    waiting = [part for part in components if not part["loaded"] and part["source"].startswith("distribution ")]
    assert [(part["name"], part["version"], part["source"]) for part in waiting] == [
        ("cuda", "11.8.89", "distribution nvidia-cuda-runtime-cu11")
    ]
