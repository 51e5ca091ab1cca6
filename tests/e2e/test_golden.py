"""The golden check with real TensorFlow: in a container of an assembled image, and by interpreters of this machine."""

import base64
import dataclasses
import io
import json
import os
import subprocess
import sys
import venv
from array import array
from pathlib import Path

import pytest

from envbuild.capture.golden import golden_facts
from envbuild.cli.console import Progress
from envbuild.engine.load import load_into
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.reader import read_manifest
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.verify.golden.check import check
from envbuild.verify.golden.runners import InBubblewrap, InInterpreter, in_image, isolated
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import manifest_of as run_manifest
from tests.unit.test_golden_check import DOUBLE, DOUBLED, NUMPY, PICKLE

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = ("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
SAMPLE = """
import json, sys, numpy as np
facts = json.load(open(sys.argv[1]))
np.savez(sys.argv[2], inputs=np.float32(facts["inputs"]), outputs=np.float32(facts["predictions"]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, train_env, envbuild) -> Path:
    """A folder with a trained `model`, and a `manifest.json` with a sample of it."""
    folder = tmp_path_factory.mktemp("trained")
    python = train_env(*TENSORFLOW)
    subprocess.run([python, ROOT / "examples/train.py", folder / "model"], check=True)
    subprocess.run([python, "-c", SAMPLE, folder / "model-expected.json", folder / "sample.npz"], check=True)
    given = ("--model", folder / "model", "--golden", folder / "sample.npz", "--out", folder / "manifest.json")
    envbuild("capture", "--python", python, *given)
    return folder


@pytest.fixture(scope="module")
def layout(trained, envbuild) -> Path:
    """The image of the run, as an OCI layout."""
    out = trained / "out"
    done = envbuild("from-manifest", trained / "manifest.json", "--base", "debian:bookworm", "--out", out, "--json")
    return Path(json.loads(done.stdout)["layout"])


@pytest.fixture(scope="module")
def loaded(engine, layout):
    """The image under a name that the engine has, so that it need not be loaded for each test."""
    name = Reference.parse("golden:tf215")
    with Progress() as told:
        load_into(engine.client, read_layout(layout, machine="x86_64"), [name], told)
    yield f"docker-daemon:{name}"
    engine.client.images.remove(str(name), force=True)


@pytest.fixture
def ask(trained, cache, engine, monkeypatch):
    """Run the check in an image; return its findings."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)

    def run(image: str, manifest: TrainingManifest | None = None, model: str | None = None, seconds=300.0) -> list:
        with Progress() as told, in_image(image, machine="x86_64", cache=cache / "envbuild", report=told) as runner:
            given = manifest or manifest_of(trained)
            uri = model or str(trained / "model")
            return list(check(given, uri, [runner], cache=cache / "envbuild", report=told, seconds=seconds))

    return run


def manifest_of(folder: Path) -> TrainingManifest:
    return read_manifest((folder / "manifest.json").read_bytes(), "manifest.json")


def with_output(manifest: TrainingManifest, index: int, change: float) -> TrainingManifest:
    """The same, but for one recorded number."""
    assert manifest.golden is not None
    [output] = manifest.golden.outputs
    numbers = array("f", base64.b64decode(output.data))
    numbers[index] += change
    data = base64.b64encode(numbers.tobytes()).decode()
    changed = dataclasses.replace(output, data=data, sha256=None)
    return dataclasses.replace(manifest, golden=dataclasses.replace(manifest.golden, outputs=(changed,)))


@pytest.mark.parametrize("place", ["loaded", pytest.param("layout", marks=pytest.mark.slow)])
def test_an_assembled_image_gives_what_was_recorded_and_leaves_nothing(trained, place, ask, engine, request):
    image = str(request.getfixturevalue(place))
    before = sorted(path for path in (trained / "model").rglob("*"))
    [finding] = ask(image)
    assert (finding.agrees, finding.between[1]) == (True, image), finding
    assert "8 numbers" in finding.says
    assert engine.client.containers.list(all=True) == []
    assert [it.tags for it in engine.client.images.list() if any("envbuild-base" in tag for tag in it.tags)] == []
    assert sorted(path for path in (trained / "model").rglob("*")) == before


def test_a_recorded_number_that_is_another_is_found_and_shown(trained, loaded, ask):
    [finding] = ask(loaded, with_output(manifest_of(trained), 5, 0.25))
    assert (finding.agrees, finding.severity) == (False, "error")
    assert finding.says.startswith("1 of 8 numbers of output"), finding.says
    assert "deviation is 0.25 at [5, 0]" in finding.says


def test_a_container_that_does_not_answer_is_ended_and_gone(loaded, ask, engine):
    [finding] = ask(loaded, seconds=0.3)
    assert (finding.id, finding.agrees) == ("golden-run", False)
    assert "no answer within 0.3 s" in finding.says
    assert engine.client.containers.list(all=True) == []


@pytest.mark.slow
def test_a_model_whose_weights_changed_is_found_and_its_files_are_named(trained, layout, registry, ask, tmp_path):
    pushed = push(read_layout(layout, machine="x86_64"), Reference.parse(f"{registry.host}/golden/tf215:1"))
    weights = tmp_path / "model/variables/variables.data-00000-of-00001"
    subprocess.run(["cp", "-r", trained / "model", tmp_path], check=True)
    data = array("f", weights.read_bytes()[:64])
    weights.write_bytes(array("f", [value + 0.5 for value in data]).tobytes() + weights.read_bytes()[64:])
    reference = str(pushed.reference)
    assert "@sha256:" in reference
    [finding] = ask(reference, model=str(tmp_path / "model"))
    assert not finding.agrees
    assert "of 8 numbers" in finding.says or "checksum" in finding.says.lower(), finding
    assert "variables/variables.data-00000-of-00001" in finding.why


@pytest.mark.slow
def test_a_model_in_a_bucket_is_run_too(trained, loaded, ask, monkeypatch, cache):
    with FakeGcs() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        gcs.create_bucket("models")
        for path in (trained / "model").rglob("*"):
            if path.is_file():
                gcs.put("models", f"runs/1/{path.relative_to(trained / 'model')}", path.read_bytes())
        gcs.put("models", "runs/1/envbuild/record.json", b"{}")
        [finding] = ask(loaded, model="gs://models/runs/1")
    assert finding.agrees, finding
    assert list((cache / "envbuild/bases").glob(".new-verify-*/model")) == []


def test_an_image_without_python_is_a_finding(engine, ask):
    engine.client.images.build(
        fileobj=io.BytesIO(b"FROM scratch\nENV A=1\n"), tag="example.com/golden/empty:1", rm=True, forcerm=True
    )
    [finding] = ask("docker-daemon:example.com/golden/empty:1")
    assert (finding.agrees, finding.id) == (False, "golden-run")
    assert "no Python" in finding.says


def test_without_an_engine_bubblewrap_runs_a_pickle_in_an_image_that_was_never_pushed(envbuild, tmp_path):
    """The model itself finds the layout by its digest."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.pkl").write_bytes(PICKLE)
    facts = [
        {"name": "", "dtype": it.dtype, "shape": it.shape, "data": it.data}
        for it in (*DOUBLED.inputs, *DOUBLED.outputs)
    ]
    golden = {"inputs": facts[:1], "outputs": facts[1:], "rtol": 1e-5, "atol": 1e-6}
    manifest = run_manifest(("demo", "1.0"), ("numpy", "1.0"), golden=golden, model_uri="model")
    del manifest["framework"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    numpy = make_wheel("numpy", "1.0", {"numpy.py": NUMPY})
    with serving(numpy, make_wheel("demo", "1.0", {"demo.py": DOUBLE})) as index:
        variables = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "UV_DEFAULT_INDEX": index.url}
        base = ("--base", "debian:bookworm", "--import-check", "never")
        envbuild(
            "from-manifest", "manifest.json", *base, "--out", "out", "--stamp", "model", env=variables, cwd=tmp_path
        )
    says = "ok       golden: the model gives what was recorded: 1 output, 2 numbers, exactly"
    done = envbuild("verify", "model", "--golden", "--run", env=variables, cwd=tmp_path)
    assert says in done.stdout
    (tmp_path / "app").mkdir()
    (tmp_path / "app/serve.py").write_text("")
    serve = ("serve", "model", "--app", "app", "--cmd", "python /app/serve.py", "--out", "served")
    image = envbuild(*serve, env=variables, cwd=tmp_path).stdout.strip()
    assert "[serve-untried]" in envbuild("deploy-check", "model", image, env=variables, cwd=tmp_path).stderr
    done = envbuild("deploy-check", "model", image, "--golden", env=variables, cwd=tmp_path)
    assert (done.stdout, says in done.stderr, "[serve-untried]" in done.stderr) == (f"{image}\n", True, False)


WATCHED = (
    DOUBLE
    + """
import os, socket
seen = [name for name in ("/etc/passwd", SECRET) if os.path.exists(name)]
seen += [name for name in ("TOKEN",) if name in os.environ] + [name for _, name in socket.if_nameindex() if name != "lo"]
seen += [name for name in ("/", "/usr", SITE) if os.access(name, os.W_OK)]
assert not seen and os.environ["OWN"] == "1", seen
"""
)


def test_a_pickle_is_run_by_an_interpreter_that_sees_nothing_else_of_this_machine(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("x")
    monkeypatch.setenv("TOKEN", "x")
    venv.create(tmp_path / "venv", symlinks=True)
    [site] = tmp_path.glob("venv/lib/python*/site-packages")
    (site / "numpy.py").write_text(NUMPY)
    places = f"SECRET, SITE = {str(tmp_path / 'secret')!r}, {str(site)!r}\n"
    (site / "demo.py").write_text(places + WATCHED)
    (tmp_path / "model.pkl").write_bytes(PICKLE)
    python = str(tmp_path / "venv/bin/python")
    manifest = dataclasses.replace(read_manifest(json.dumps(run_manifest()).encode(), "m"), golden=DOUBLED)
    runner = InInterpreter(name=python, sandbox=isolated(python, {"OWN": "1"}, tmp_path))
    with Progress() as told:
        [finding] = check(manifest, str(tmp_path / "model.pkl"), [runner], cache=tmp_path, report=told)
    assert finding.says == "the model gives what was recorded: 1 output, 2 numbers, exactly", finding


LIMITS = """
import json, os, resource
size = os.statvfs("/tmp")
kinds = resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_AS
print(json.dumps([size.f_blocks * size.f_frsize, *(resource.getrlimit(kind)[0] for kind in kinds)]))
"""


def test_under_bubblewrap_memory_and_processes_have_limits_and_addresses_none(tmp_path):
    """The image is this machine."""
    python = str(Path(sys.executable).resolve())
    runner = InBubblewrap(name="here", root=Path("/"), variables={}, python=python, cache=tmp_path)
    ran = runner.run(LIMITS, {}, seconds=60)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert ran.code == 0, ran
    folder, data, processes, addresses = json.loads(ran.answer or b"")
    assert 0 < folder < memory / 4
    assert 0 < data < memory
    assert 4096 <= processes < 100_000
    assert addresses == -1
    hungry = runner.run(f"bytearray({memory * 9 // 10})", {}, seconds=60)
    assert "MemoryError" in hungry.lines[-1]


ONNX = """
import sys, numpy as np, onnx
from onnx import TensorProto as T, helper as h
value = lambda name: h.make_tensor_value_info(name, T.FLOAT, [None, 2])
graph = h.make_graph([h.make_node("Add", ["x", "x"], ["y"])], "double", [value("x")], [value("y")])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), sys.argv[1] + "/model.onnx")
np.savez(sys.argv[1] + "/sample.npz", inputs=[[1.0, 2.0]], outputs=np.float32([[2, float(sys.argv[2])]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "says"), [("4", "the model gives what was recorded"), ("5", "1 of 2 numbers of output y")]
)
def test_a_model_in_onnx_is_run_by_its_own_runtime(trained, train_env, tmp_path, last, says):
    python = train_env("3.11", "onnx", "onnxruntime", "numpy")
    subprocess.run([python, "-c", ONNX, tmp_path, last], check=True)
    example = json.loads((trained / "manifest.json").read_bytes()) | {
        "golden": golden_facts(str(tmp_path / "sample.npz"))
    }
    manifest = read_manifest(json.dumps(example).encode(), "m")
    with Progress() as told:
        place, runner = str(tmp_path / "model.onnx"), InInterpreter(name=str(python))
        [finding] = check(manifest, place, [runner], cache=tmp_path, report=told)
    assert finding.says.startswith(says), finding


@pytest.mark.slow
def test_another_tensorflow_and_keras_run_the_same_model(trained, train_env, tmp_path):
    newer = train_env("3.11", "tensorflow-cpu==2.21.0")
    with Progress() as told:
        [finding] = check(
            manifest_of(trained), str(trained / "model"), [InInterpreter(name=str(newer))], cache=tmp_path, report=told
        )
    assert finding.agrees, finding
