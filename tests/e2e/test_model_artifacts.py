"""What is read of models is what the frameworks that really saved them say, without any framework here."""

import fcntl
import hashlib
import json
import shutil
import struct
import subprocess
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.base.apt import find_mirror, source_lines
from envbuild.base.resolve import resolve_base
from envbuild.capture import script
from envbuild.capture.golden import golden_facts
from envbuild.capture.model import model_facts
from envbuild.manifest.model import Array
from envbuild.manifest.reader import read_manifest
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.report import SILENT
from envbuild.verify.golden.check import check
from envbuild.verify.golden.runners import Ran
from tests.e2e.parts import index_access
from tests.e2e.services import command_output
from tests.fakes.gcs import FakeGcs

pytestmark = pytest.mark.real

PROGRAMS = Path(__file__).with_name("artifacts")
TENSORFLOW = ("tensorflow-cpu==2.15.1", "pip==24.0")
NEWEST = ("tensorflow-cpu==2.21.0",)
OLDEST = "tensorflow-cpu==2.8.4"
ROOT = Path(__file__).resolve().parents[2]
SERVED = """
import json, sys
from pathlib import Path
import numpy as np
folder = Path(__file__).parent
sys.path.insert(0, str(folder / "app"))
from serving.loading import load_model
model, x = load_model(folder / "model"), np.array(json.loads((folder / "x.json").read_bytes()), "float32")
[name], [y] = [it.name for it in model.inputs], model.call({model.inputs[0].name: x.reshape(-1, 4)}).values()
Path(sys.argv[2]).write_text(json.dumps([name, [[it.dtype, it.shape] for it in model.inputs], y.ravel().tolist()]))
"""
"""Loads and calls a model as the ready server does."""
SERVER = ROOT / "templates/server/fastapi"
FLOATS = struct.pack("<6f", *range(6))
TURNED = struct.pack("<6f", 0, 3, 1, 4, 2, 5)


def no_registry(*_):
    raise AssertionError("a bootstrapped base needs no registry")


def versions_of(folder: Path) -> dict:
    versions: dict = json.loads((folder / "versions.json").read_bytes())
    return versions


@pytest.fixture(scope="module")
def saved(tmp_path_factory, train_env):
    """`saved(requirements, program)` -> the folder that a program wrote in that environment."""
    made: dict = {}

    def save(requirements: tuple[str, ...], program: str) -> Path:
        if (requirements, program) not in made:
            folder = tmp_path_factory.mktemp("saved") / "models"
            command_output(str(train_env("3.11", *requirements)), str(PROGRAMS / program), str(folder))
            made[requirements, program] = folder
        return made[requirements, program]

    return save


@pytest.fixture(scope="module")
def saved_by_2_8(cache, registry, engine):
    """What TensorFlow 2.8 saved in a Debian with Python 3.9, kept until the program changes."""
    program = PROGRAMS / "save_tensorflow.py"
    key = hashlib.sha256(program.read_bytes() + OLDEST.encode()).hexdigest()[:16]
    folder = cache / "models" / key
    if not folder.exists():
        aside = folder.with_suffix(".new")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        base = resolve_base(
            "debian:bullseye", machine="x86_64", cache=cache / "envbuild", pull=no_registry, report=SILENT
        )
        image = push(base.image, Reference.parse(f"{registry.host}/models/bullseye:latest")).reference
        engine.pull(str(image))
        commands = [
            "python3 -m venv /tmp/venv",
            f"/tmp/venv/bin/pip install -q --no-cache-dir --only-binary :all: {OLDEST} 'numpy<2'",
            "/tmp/venv/bin/python /programs/save_tensorflow.py /out",
        ]
        volumes = {str(aside): {"bind": "/out", "mode": "rw"}, str(PROGRAMS): {"bind": "/programs", "mode": "ro"}}
        engine.run(str(image), ["sh", "-ec", "\n".join(commands)], user="0", volumes=volumes, **index_access())
        aside.rename(folder)
    return folder


@pytest.fixture(scope="module")
def torch_root(cache):
    """A Debian with its own PyTorch: those of the index bring gigabytes of CUDA."""
    folder = cache / "roots" / "trixie-torch"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            aside = folder.with_suffix(".new")
            shutil.rmtree(aside, ignore_errors=True)
            lines = source_lines("trixie", find_mirror(Path("/etc/apt"))).values()
            options = ["--mode=root", "--variant=minbase", "--include=python3-torch", "--quiet"]
            command_output("mmdebstrap", *options, "trixie", str(aside), *lines)
            aside.rename(folder)
    return folder


@pytest.fixture(scope="module")
def saved_by_torch(torch_root):
    work = torch_root / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(PROGRAMS, work)
    (work / "capture.py").write_text(script())
    for command in (["save_torch.py", "/work/models"], ["save_golden.py", "/work/models", "/work"]):
        command_output("chroot", str(torch_root), "python3", f"/work/{command[0]}", *command[1:])
    return work / "models"


def tensorflow(versions: dict) -> dict:
    return {"name": "tensorflow", "version": versions["tensorflow"], "git_version": versions["git_version"]}


def keras(versions: dict) -> dict:
    return {"name": "keras", "version": versions["keras"]}


def check_tensorflow(folder: Path, release: str) -> None:
    """Hold all that is read of the models in a folder against what TensorFlow said of itself."""
    versions = versions_of(folder)
    assert versions["tensorflow"] == release
    ours, theirs = tensorflow(versions), keras(versions)
    written = {
        "saved_model": ("saved_model", [ours]),
        "simple_save": ("saved_model", [ours]),
        "text": ("saved_model", [ours]),
        "exported": ("saved_model", [ours]),
        "keras_saved_model": ("saved_model", [ours, theirs]),
        "checkpoint1": ("tf_checkpoint", [ours]),
        "checkpoint2": ("tf_checkpoint", []),
        "frozen": ("tf_graph", []),
        "model.h5": ("hdf5", [theirs]),
        "model.keras": ("keras", [theirs]),
    }
    names = {path.name for path in folder.iterdir()}
    found = {name: model_facts(str(folder / name)) for name in sorted(names & set(written))}
    assert {name: (facts.get("format"), facts["written_by"]) for name, facts in found.items()} == {
        name: written[name] for name in found
    }
    assert not any("unread" in facts for facts in found.values())
    assert found["saved_model"]["details"].get("singleprint") == versions["singleprint"]
    hdf5 = {"keras_version": theirs["version"], "backend": found["model.h5"]["details"]["backend"]}
    assert hdf5 == versions["hdf5"]
    assert model_facts(str(folder / "model.weights.h5"))["format"] == "hdf5"
    assert {"saved_model", "simple_save", "text", "checkpoint1", "checkpoint2", "frozen", "model.h5"} <= set(found)


def test_models_of_tensorflow_2_15(saved):
    folder = saved(TENSORFLOW, "save_tensorflow.py")
    check_tensorflow(folder, "2.15.1")
    assert {"keras_saved_model", "exported", "model.keras"} <= {path.name for path in folder.iterdir()}


def test_models_of_the_newest_tensorflow_and_keras_3(saved):
    folder = saved(NEWEST, "save_tensorflow.py")
    check_tensorflow(folder, "2.21.0")
    assert versions_of(folder)["keras"].startswith("3.")


def test_models_of_tensorflow_2_8(saved_by_2_8):
    check_tensorflow(saved_by_2_8, "2.8.4")
    assert (saved_by_2_8 / "keras_saved_model").is_dir()


@pytest.mark.slow  # a Debian root with PyTorch: 1.2 GB
def test_models_of_torch(saved_by_torch):
    versions = versions_of(saved_by_torch)
    found = {path.name: model_facts(str(path)) for path in saved_by_torch.iterdir() if path.suffix.startswith(".p")}
    assert found["model.pt2"]["written_by"] == [{"name": "torch", "version": versions["torch"]}]
    assert {name: facts["format"] for name, facts in found.items()} == {
        "model.pt2": "torch_export",
        "script.pt": "torchscript",
        "weights.pt": "torch",
        "legacy.pth": "torch",
    }


def test_models_of_onnx_and_safetensors(saved):
    folder = saved(("onnx", "safetensors", "numpy"), "save_others.py")
    versions = versions_of(folder)
    for name in ("onnx/whole.onnx", "onnx/external"):
        facts = model_facts(str(folder / name))
        assert facts["written_by"] == [{"name": "tests", "version": versions["onnx"]}]
        assert facts["details"]["ir_version"] == str(versions["ir_version"])
        assert (facts["details"]["opset"], facts["details"]["opset:ai.onnx.ml"]) == ("17", "3")
    facts = model_facts(str(folder / "model.safetensors"))
    assert (facts["format"], facts["details"]) == ("safetensors", {})


def test_a_model_in_a_bucket_that_another_framework_wrote_is_told_loudly(tmp_path, saved, train_env, envbuild):
    folder = saved(NEWEST, "save_tensorflow.py")
    with FakeGcs() as gcs:
        for path in (folder / "saved_model").rglob("*"):
            if path.is_file():
                gcs.put("models", f"runs/1/{path.relative_to(folder / 'saved_model')}", path.read_bytes())
        done = envbuild(
            "capture", "--python", train_env("3.11", *TENSORFLOW), "--model", "gs://models/runs/1/",
            "--out", tmp_path / "manifest.json", env={"STORAGE_EMULATOR_HOST": gcs.url},
        )  # fmt: skip
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    assert manifest["model"]["written_by"] == [tensorflow(versions_of(folder))]
    (found,) = [item for item in manifest["disagreements"] if item["fact"] == "tensorflow version"]
    assert found["values"] == {"model": "2.21.0", "environment": "2.15.1"}
    assert found["message"] in done.stderr


def check_golden(folder: Path) -> None:
    """Hold a golden sample against the bytes that its arrays have."""
    sample = json.loads((folder / "golden.json").read_bytes())
    arrays = {item["name"]: item for side in ("inputs", "outputs") for item in sample[side]}
    data = {name: b64decode(item["data"]) for name, item in arrays.items()}
    for name in ("plain", "big_endian", "fortran", "strided", "tensor"):
        assert (arrays[name]["dtype"], arrays[name]["shape"], data[name]) == ("float32", [2, 3], FLOATS)
    assert (arrays["turned"]["shape"], data["turned"]) == ([3, 2], TURNED)
    # A bfloat16 is the upper half of a float32.
    assert arrays["brain"]["dtype"] == arrays["brain_turned"]["dtype"] == "bfloat16"
    assert data["brain"] == b"".join(FLOATS[at + 2 : at + 4] for at in range(0, 24, 4))
    assert data["brain_turned"] == b"".join(TURNED[at + 2 : at + 4] for at in range(0, 24, 4))
    assert (arrays["scalar"]["shape"], data["scalar"]) == ([], struct.pack("<f", 7))
    assert (arrays["flags"]["dtype"], data["flags"]) == ("bool", bytes([0, 0, 0, 1, 1, 1]))
    assert (arrays["complex"]["dtype"], len(data["complex"])) == ("complex64", 48)
    assert (sample["rtol"], sample["atol"]) == (0.5, 1e-6)
    read = golden_facts(folder / "golden.npz")
    assert read is not None
    # Some releases of NumPy give ascontiguousarray of a scalar a dimension.
    assert [dict(item, shape=item["shape"] or [1]) for item in sample["inputs"]] == [
        dict(item, shape=item["shape"] or [1]) for item in read["inputs"]
    ]
    data, other, large = json.loads((folder / "refused.json").read_bytes())
    assert "not UTF-8" in data
    assert "holds object" in other
    assert "take fewer rows" in large


def test_a_golden_sample_of_tensorflow(tmp_path, train_env):
    (tmp_path / "capture.py").write_text(script())
    python = train_env("3.11", *TENSORFLOW)
    subprocess.run([python, PROGRAMS / "save_golden.py", tmp_path / "out", tmp_path], check=True)
    check_golden(tmp_path / "out")


@pytest.mark.slow  # a Debian root with PyTorch: 1.2 GB
def test_a_golden_sample_of_torch(saved_by_torch):
    check_golden(saved_by_torch)


def floats(it: Array) -> list[float]:
    data = b64decode(it.data)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


@dataclass(frozen=True, slots=True, kw_only=True)
class InRoot:
    """Processes in a Debian root, as in a container."""

    name: str
    root: Path

    def run(self, program: str, beside: Mapping[str, bytes | Path], *, seconds: float) -> Ran:
        """Run a file with copies of the others beside it."""
        folder = self.root / "ran"
        shutil.rmtree(folder, ignore_errors=True)
        for path, content in {"program.py": program.encode(), **beside}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        command = ["chroot", str(self.root), "python3", "-B", "/ran/program.py", "--out", "/ran/answer"]
        code = subprocess.run(command, check=False, timeout=seconds).returncode
        return Ran(answer=(folder / "answer").read_bytes(), code=code)


@pytest.mark.slow  # a Debian root with PyTorch: 1.2 GB
@pytest.mark.parametrize(("kind", "taken"), [("jit", [None, None]), ("export", ["float32", [None, 4]])])
def test_torch_predicts_what_it_did_in_the_golden_check_and_in_the_server(kind, taken, torch_root, tmp_path):
    work = torch_root / "served"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(ROOT / "envbuild", work / "envbuild", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROGRAMS / "train_model.py", work)
    train = ("env", "PYTHONPATH=/served", "python3", "-B", "/served/train_model.py", "torch", kind, "/served/model")
    command_output("chroot", str(torch_root), *train)
    manifest = read_manifest((work / "model.json").read_bytes(), "manifest")
    runner = InRoot(name="trixie", root=torch_root)
    [finding] = check(manifest, str(work / "model"), [runner], cache=tmp_path, report=SILENT)
    assert finding.agrees, finding
    assert manifest.golden is not None
    x, y = (floats(array) for [array] in (manifest.golden.inputs, manifest.golden.outputs))
    files = {f"app/{it.relative_to(SERVER)}": it for it in SERVER.rglob("*.py")}
    files |= {f"model/{it.name}": it for it in (work / "model").iterdir()}
    ran = runner.run(SERVED, {"x.json": json.dumps(x).encode(), **files}, seconds=300)
    assert ran.answer
    name, inputs, found = json.loads(ran.answer)
    assert (name, inputs) == ("input", [taken])
    assert found == pytest.approx(y, rel=1e-5, abs=1e-6)
