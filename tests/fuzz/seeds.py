"""Small valid inputs for each target, from which fuzzing starts."""

import json
from importlib import resources

from tests.fuzz.deflate import stream_seeds
from tests.fuzz.wheels import wheel_seeds
from tests.unit.modelling import MODELS

_EXAMPLES = json.loads(resources.files("envbuild.manifest").joinpath("examples.json").read_text("utf-8"))
_BUILD_INFO = (
    "import collections\nbuild_info = collections.OrderedDict([('cuda_version', '12.2'), ('is_cuda_build', True)])\n"
)
_SECRETS = "https://user:pw@host/x --api-key=abc 'Authorization: Bearer x.y' ghp_0123456789abcdef0123 password: x"
_PYLOCK = """lock-version = "1.0"
created-by = "x"
[[packages]]
name = "numpy"
version = "1.26.4"
wheels = [{name = "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl", url = "https://files.invalid/numpy.whl",
  hashes = {sha256 = "%s"}}]
"""
_UV_LOCK = """version = 1
requires-python = ">=3.11"
[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://index.invalid/simple" }
[[package]]
name = "app"
version = "0.1.0"
source = { virtual = "." }
dependencies = [{ name = "numpy", marker = "sys_platform == 'linux'" }]
"""
_CONDA = """name: run
channels: [conda-forge]
dependencies:
  - python=3.11.7
  - conda-forge::numpy==1.26.4=py311h64a7726_0
  - pip:
      - tensorflow-cpu==2.15.1
"""
_CONDA_PACKAGE = {"name": "python", "version": "3.11.7", "build_string": "hab00c5b_0_cpython", "channel": "conda-forge"}
_CONDA_PIP = {"name": "numpy", "version": "1.26.4", "build_string": "pypi_0", "channel": "pypi"}
_INSPECT = {
    "version": "1",
    "pip_version": "26.3",
    "installed": [{"metadata": {"name": "numpy", "version": "1.26.4"}, "installer": "pip", "requested": True}],
    "environment": {"python_full_version": "3.11.7", "platform_machine": "x86_64", "platform_system": "Linux"},
}
_MLMODEL = (
    "flavors:\n  python_function:\n    env: {conda: conda.yaml, virtualenv: python_env.yaml}\nmlflow_version: 3.17.0\n"
)
_FREEZE = (
    "numpy==1.26.4\n-e git+https://git.example.com/x.git@abc#egg=x\nlocal @ file:///w/local-1.0-py3-none-any.whl\n"
)
_REQUIREMENTS = "numpy==1.26.4 ; python_version >= '3.9' \\\n    --hash=sha256:%s\n-r other.txt\n" % ("a" * 64)
_STATUS = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9+deb12u7\n\n"
_DIRECT = {"url": "https://git.example.com/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "y"}
_RECORD = 'x/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"x/a,b.py",,\nx-1.dist-info/RECORD,,\n'
_FILES = [{"_path": "lib/python3.11/site-packages/x/y.py", "sha256": "0" * 64, "size_in_bytes": 7}]
_META = _CONDA_PACKAGE | {"build": "h_0", "paths_data": {"paths": _FILES}, "files": [_FILES[0]["_path"]]}
_MAPS = "7f00-7f10 r-xp 00000000 08:01 42    /usr/lib/x86_64-linux-gnu/libc.so.6\n"

SEEDS: dict[str, list[bytes]] = {
    "manifest": [json.dumps(example).encode() for example in _EXAMPLES],
    "redact": [_SECRETS.encode()],
    "build_info": [_BUILD_INFO.encode()],
    "detect": [_FREEZE.encode(), _CONDA.encode(), _UV_LOCK.encode(), json.dumps(_INSPECT).encode()],
    "settings": [b'{"requires": ["A"], "data": ["gs://b/o"], "model": "m", "deep": true}'],
    "settings.toml": [b'[capture]\nrequires = ["A"]\npatch = true\n'],
    "direct_url": [json.dumps(_DIRECT).encode()],
    "metadata": [b"Metadata-Version: 2.1\nName: x\nVersion: 1.0\nRequires-Dist: y (>=1)\n\nText\n"],
    "record": [_RECORD.encode()],
    "conda-meta": [json.dumps(_META).encode()],
    "maps": [_MAPS.encode()],
    "dpkg": [_STATUS.encode()],
    "pip-freeze": [_FREEZE.encode()],
    "requirements": [_REQUIREMENTS.encode()],
    "pip-inspect": [json.dumps(_INSPECT).encode()],
    "pylock": [(_PYLOCK % ("a" * 64)).encode()],
    "uv-lock": [_UV_LOCK.encode()],
    "conda-environment": [_CONDA.encode()],
    "conda-list": [json.dumps([_CONDA_PACKAGE, _CONDA_PIP]).encode()],
    "mlflow": [_MLMODEL.encode()],
    "wandb": [_FREEZE.encode(), b'{"python": "CPython 3.11.7", "gpu": "Tesla T4", "gpu_count": 1}'],
    "saved_model.pb": [(MODELS / "saved_model" / "saved_model.pb").read_bytes()],
    "model.pt": [(MODELS / name).read_bytes() for name in ("weights.pt", "script.pt", "legacy.pth")],
    "wheel-parts": [
        b"",
        *(bytes([part + 16 * how, 1, 3, *b"a/b", 7]) for part in range(0, 12, 3) for how in range(16)),
    ],
    "_CHECKPOINT_METADATA": [b'{"item_handlers": {"a": "b"}, "init_timestamp_nsecs": 1}'],
}

MADE = {"wheel": wheel_seeds, "deflate": stream_seeds}


def seeds(name: str) -> list[bytes]:
    """Return the seeds of a target; those of the other models are files."""
    if name in MADE:
        return MADE[name]()
    return SEEDS[name] if name in SEEDS else [(MODELS / name).read_bytes()]
