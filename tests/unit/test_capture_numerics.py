"""What changes numbers, asked of frameworks that are half there, stand-ins, or not yet started.

What the real ones answer is in tests/e2e/test_capture_native.py.
"""

import importlib.util
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from envbuild.capture.frameworks import numerics_facts

NAMES = ("tensorflow", "torch", "jax", "keras", "tf_keras")


@pytest.fixture
def modules(monkeypatch):
    """`modules(name, attribute=...)` -> a module of that name that this process has imported."""

    def imported(name, **attributes):
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return imported


def test_nothing_is_imported_to_be_asked():
    code = "import sys; from envbuild.capture.frameworks import numerics_facts; print(numerics_facts(), "
    code += f"set(sys.modules) & {set(NAMES)})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["[]", "set()"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "attributes", [{}, {"__version__": None}, {"__version__": "2.0"}, {"__version__": "3.0", "config": None}]
)
def test_what_is_half_there_says_nothing(modules, name, attributes):
    modules(name, **attributes)
    assert numerics_facts() == []


SHAPELESS = SimpleNamespace(
    __version__="2.0", _context=SimpleNamespace(_physical_devices=7), _backends=7, local_devices=int
)


@pytest.mark.parametrize("stand_in", [MagicMock(), MagicMock(__version__="2.0"), SHAPELESS, None, object()])
def test_a_stand_in_says_nothing(monkeypatch, stand_in):
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, stand_in)
    for name in ("tensorflow.python.eager.context", "tensorflow.python.framework.config", "jax._src.xla_bridge"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    assert numerics_facts() == []


def test_a_lazy_module_stays_asleep(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')")
    spec = importlib.util.spec_from_file_location("torch", tmp_path / "torch.py")
    assert spec
    assert spec.loader
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "torch", module)
    spec.loader.exec_module(module)
    assert numerics_facts() == []


class Cuda:
    """torch.cuda, which must not be asked before the program has used it."""

    def __init__(self, *, started):
        self.started = started
        self.woken = False

    def is_initialized(self):
        return self.started

    def device_count(self):
        self.woken = not self.started
        return 2

    def get_device_name(self, at):
        return ["NVIDIA H200", "NVIDIA T4"][at]


@pytest.mark.parametrize(("started", "devices"), [(True, ["cuda:0 NVIDIA H200", "cuda:1 NVIDIA T4"]), (False, [])])
def test_pytorch_s_gpus_are_those_that_it_has_used(modules, started, devices):
    cuda = Cuda(started=started)
    modules("torch", __version__="2.3.1", cuda=cuda, initial_seed=lambda: 7)
    assert numerics_facts() == [
        {"framework": "torch", "seed": 7, "deterministic": None, "devices": devices, "settings": {}}
    ]
    assert not cuda.woken


def failing():
    raise RuntimeError("of the old and the new switches only one may be used")


@pytest.mark.parametrize("seed", [failing, lambda: True, None], ids=["failing", "bool", "absent"])
def test_a_question_that_fails_costs_no_other_answer(modules, seed):
    modules("torch", __version__="2.9.0", initial_seed=seed, get_float32_matmul_precision=lambda: "highest")
    (facts,) = numerics_facts()
    assert (facts["seed"], facts["settings"]) == (None, {"float32_matmul_precision": "highest"})


def device(name):
    return SimpleNamespace(name=name, device_type=name.split(":")[-2])


class Context:
    """TensorFlow's eager context with one GPU, cut into as many logical ones as wished."""

    def __init__(self, *, started, logical):
        self._initialized = started
        self._physical_devices = [device("/physical_device:CPU:0"), device("/physical_device:GPU:0")]
        self._visible_device_list = self._physical_devices
        self._logical_devices = [device("/device:CPU:0"), *(device(f"/device:GPU:{at}") for at in range(logical))]
        self._seed = 3

    def get_device_details(self, gpu):
        assert gpu.name == "/physical_device:GPU:0"
        return {"device_name": "NVIDIA A100-SXM4-40GB"}


@pytest.mark.parametrize(
    ("context", "devices"),
    [
        (Context(started=True, logical=1), ["CPU:0", "GPU:0 NVIDIA A100-SXM4-40GB"]),
        (Context(started=True, logical=2), ["CPU:0", "GPU:0", "GPU:1"]),
        (Context(started=False, logical=2), ["CPU:0", "GPU:0 NVIDIA A100-SXM4-40GB"]),
    ],
)
def test_tensorflow_s_gpus_have_their_models_where_that_is_certain(modules, context, devices):
    modules("tensorflow", __version__="2.15.1")
    modules("tensorflow.python.eager.context", _context=context)
    (facts,) = numerics_facts()
    assert (facts["framework"], facts["devices"], facts["seed"]) == ("tensorflow", devices, 3)


def test_a_device_of_a_cluster_keeps_its_task(modules):
    context = Context(started=True, logical=0)
    context._logical_devices = [device("/job:worker/replica:0/task:1/device:TPU:0")]
    context._visible_device_list = []
    modules("tensorflow", __version__="2.15.1")
    modules("tensorflow.python.eager.context", _context=context)
    assert numerics_facts()[0]["devices"] == ["job:worker/replica:0/task:1/TPU:0"]


def test_jax_names_its_devices_once_it_has_a_backend(modules):
    devices = [
        SimpleNamespace(platform="gpu", id=0, device_kind="NVIDIA H200"),
        SimpleNamespace(platform="cpu", id=1, device_kind="cpu"),
    ]
    config = SimpleNamespace(jax_enable_x64=True, jax_default_matmul_precision=None)
    modules("jax", __version__="0.4.30", local_devices=lambda: devices, config=config)
    bridge = modules("jax._src.xla_bridge", _backends={})
    assert numerics_facts() == [{"framework": "jax", "devices": [], "settings": {"enable_x64": "true"}}]
    bridge._backends["gpu"] = object()
    assert numerics_facts()[0]["devices"] == ["gpu:0 NVIDIA H200", "cpu:1"]
