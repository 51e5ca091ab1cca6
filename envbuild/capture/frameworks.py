"""The frameworks: how they were built, which of them the run used, and their settings that change numbers.

It asks only what this process has imported and started: a question must not make a GPU's context, look for devices, or
fix a default that the program could still change.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import numbers
import os
import re
import sys
import warnings
from typing import Any, Callable

from envbuild.capture.files import Facts, normal_name, read_bytes, read_text

TENSORFLOW = re.compile(r"(intel-)?tensorflow(-cpu|-gpu|-cpu-aws|-intel|-macos|-rocm)?|tf-nightly(-cpu|-gpu)?")
BUILD_INFO = ("tensorflow/python/platform/build_info.py", "tensorflow_core/python/platform/build_info.py")
"""The second is that of 1.15 to 2.1."""
NUMBERS = re.compile(r"\d+(\.\d+)*")
_BEFORE_KERAS_3 = ("0.", "1.", "2.")
_STARTED = {"tensorflow": ("tensorflow.python.eager.context", "_context"), "jax": ("jax._src.xla_bridge", "_backends")}
"""Objects that a framework makes at its first use; PyTorch has none."""
_LIBRARY_OWNERS = {"torch": "torch", "jaxlib": "jax"}
"""The framework whose shared libraries a distribution holds; TensorFlow's distributions have many names."""
_MODEL_WRITERS = {
    "saved_model": "tensorflow",
    "tf_checkpoint": "tensorflow",
    "tf_graph": "tensorflow",
    "torch": "torch",
    "torchscript": "torch",
    "torch_export": "torch",
    "orbax": "jax",
}
"""The framework that writes a format; Keras' formats name their backend."""
_TORCH_SWITCHES = {
    "cudnn_allow_tf32": "backends.cudnn.allow_tf32",
    "cudnn_benchmark": "backends.cudnn.benchmark",
    "cudnn_deterministic": "backends.cudnn.deterministic",
    "cudnn_enabled": "backends.cudnn.enabled",
    "default_dtype": "get_default_dtype().__str__()",
    "deterministic_warn_only": "is_deterministic_algorithms_warn_only_enabled()",
    "float32_matmul_precision": "get_float32_matmul_precision()",
    "fp32_precision": "backends.fp32_precision",
    "matmul_allow_bf16_reduction": "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "matmul_allow_fp16_reduction": "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "matmul_allow_tf32": "backends.cuda.matmul.allow_tf32",
    "matmul_fp32_precision": "backends.cuda.matmul.fp32_precision",
    "onednn": "backends.mkldnn.enabled",
}
_JAX_SWITCHES = {
    name: "config.jax_" + name
    for name in ("default_matmul_precision", "default_prng_impl", "enable_x64", "threefry_partitionable")
}


def answer(thing: Any, path: str, *arguments: Any) -> Any:
    """Follow a path such as `cuda.device_count()`, calling with the arguments; None if any step fails."""
    try:
        for step in path.split("."):
            thing = getattr(thing, step.replace("()", ""))
            thing = thing(*arguments) if step.endswith("()") else thing
    except Exception:
        return None
    return thing


def flag_or_none(value: Any) -> bool | None:
    """Return a bool, and None for anything else: a stand-in can return any object."""
    return value if isinstance(value, bool) else None


def text_or_none(value: Any) -> str | None:
    """Return a str, and None for anything else."""
    return value if isinstance(value, str) else None


def integer_or_none(value: Any) -> int | None:
    """Return an int, also for NumPy's integers, and None for anything else."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def imported_package(name: str) -> Any:
    """Return a package that this process has imported; None for a missing, half imported or stand-in one."""
    module = sys.modules.get(name)
    # To look into a lazy module would import it.
    lazy = type(module).__name__ == "_LazyModule"
    return None if lazy or text_or_none(answer(module, "__version__")) is None else module


def find_frameworks(distributions: dict[str, Facts]) -> list[Facts]:
    """List the installed frameworks, the one that the run most likely used first."""
    folders = {normal_name(facts["name"]): path for path, facts in distributions.items()}
    versions = {normal_name(facts["name"]): facts["version"] for facts in distributions.values()}
    # Several builds can be installed over each other: the one whose build_info.py is there ran.
    tensorflows = [name for name in folders if TENSORFLOW.fullmatch(name)]
    tensorflow = max(tensorflows, key=lambda name: max(_owns(folders[name], file) for file in BUILD_INFO), default=None)
    builds: dict[str, tuple[str | None, Callable[[str], Facts]]] = {
        "tensorflow": (tensorflow, _tensorflow_build),
        "torch": ("torch", _torch_build),
        "jax": ("jax", lambda site: _jax_build(site, versions)),
        "keras": ("keras", lambda _site: {}),
    }
    found = [
        dict(build(os.path.dirname(folders[name])), name=framework, distribution=name, version=versions[name])
        for framework, (name, build) in builds.items()
        if name in folders
    ]
    # Equals keep their order.
    return sorted(found, key=lambda facts: _framework_rank(facts["name"]))


def _framework_rank(framework: str) -> int:
    """0 for one that the process has started, 1 for one that it has only imported, 2 for the others, and Keras."""
    if framework == "keras" or imported_package(framework) is None:
        return 2
    module, name = _STARTED.get(framework, (framework, "__version__"))
    return 0 if answer(sys.modules.get(module), name) else 1


def _owns(path: str, name: str) -> int:
    """2 if the RECORD in `path` holds the digest of the file as it is, 1 if it lists the file, 0 otherwise."""
    record = read_text(os.path.join(path, "RECORD")) or ""
    line = re.search("^%s,(?:sha256=([^,]*))?" % re.escape(name), record, re.MULTILINE)
    data = read_bytes(os.path.join(os.path.dirname(path), name))
    if line is None or data is None:
        return 0
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")
    return 2 if line.group(1) == digest else 1


def _tensorflow_build(site: str) -> Facts:
    texts = (read_text(os.path.join(site, name)) for name in BUILD_INFO)
    facts = build_info(next((text for text in texts if text is not None), ""))
    # No file of the wheel holds the commit.
    return dict(facts, git_version=_commit(answer(imported_package("tensorflow"), "version.GIT_VERSION")))


def build_info(source: str) -> Facts:
    """Read TensorFlow's build_info.py without running it: `cuda`, `cudnn`, `compute_capabilities` where it has them.

    Module constants (1.15 to 2.2), a dict (2.3), an OrderedDict (2.4 and later). `64_112` is Windows only.
    """
    values: Facts = {}
    for name, value in _constants(source).items():
        values.update(value if isinstance(value, dict) else {name: value})
    if values.get("is_cuda_build") is False:
        return {}
    found = {key: values.get(key + "_version", values.get(key + "_version_number")) for key in ("cuda", "cudnn")}
    facts: Facts = {key: number for key, number in found.items() if NUMBERS.fullmatch(str(number or ""))}
    capabilities = values.get("cuda_compute_capabilities")
    if isinstance(capabilities, (list, tuple)):
        facts["compute_capabilities"] = [str(item) for item in capabilities]
    return facts


def _torch_build(site: str) -> Facts:
    """Read torch/version.py; the library itself knows the other facts, without a GPU."""
    values = _constants(read_text(os.path.join(site, "torch", "version.py")) or "")
    torch = imported_package("torch")
    architectures = text_or_none(answer(torch, "_C._cuda_getArchFlags()"))
    # Not torch.backends.cudnn.version(), which makes cuDNN load another 65 MB.
    cudnn = answer(torch, "_C._cudnn.getCompileVersion()")
    return {
        "cuda": values.get("cuda") if NUMBERS.fullmatch(str(values.get("cuda"))) else None,
        "cudnn": "%d.%d.%d" % cudnn if isinstance(cudnn, tuple) else None,
        "compute_capabilities": architectures.split() if architectures else None,
        "git_version": _commit(values.get("git_version")),
    }


def _jax_build(site: str, versions: dict[str, str]) -> Facts:
    """Read jax/version.py; CUDA is in the names of the plugins, and before them was in the version of jaxlib."""
    commit = _constants(read_text(os.path.join(site, "jax", "version.py")) or "").get("_git_hash")
    plugins = (re.fullmatch(r"jax-cuda(\d+)-(?:plugin|pjrt)", name) for name in sorted(versions))
    cuda = next((plugin.group(1) for plugin in plugins if plugin), None)
    # 0.1.69+cuda111, 0.4.7+cuda11.cudnn86
    label = re.search(r"\+cuda(\d\d)(\d*)(?:\.cudnn(\d+))?", versions.get("jaxlib", ""))
    if label:
        cuda = ".".join(filter(None, label.groups()[:2]))
    cudnn = ".".join(label.group(3)) if label and label.group(3) else None
    return {"cuda": cuda, "cudnn": cudnn, "git_version": _commit(commit)}


def _commit(value: Any) -> str | None:
    """Return the commit of a build, unless it is `unknown`."""
    found = re.fullmatch(r"(?!unknown$)[\w.+-]+", text_or_none(value) or "", re.IGNORECASE)
    return found.group() if found else None


def _constants(source: str) -> Facts:
    """Evaluate the literals that a module's names are bound to, without running it."""
    values: Facts = {}
    try:
        for node in ast.parse(source).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and node.value:
                values[target.id] = _literal(node.value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return {}
    return values


def _literal(node: ast.expr) -> Any:
    """Evaluate a literal, or a dict or OrderedDict made from one; None for anything else."""
    try:
        if not isinstance(node, ast.Call):
            return ast.literal_eval(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        words = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
        return dict(*map(ast.literal_eval, node.args), **words) if name in ("dict", "OrderedDict") else None
    except (ValueError, TypeError):
        return None


def used_framework(manifest: Facts) -> Facts | None:
    """Return the framework that the loaded libraries and the model's writer point to; None where they differ."""
    frameworks = manifest.get("frameworks") or []
    # Keras runs on one of the others.
    several = [item for item in frameworks if item["name"] != "keras"]
    if len(several) < 2:
        return frameworks[0] if frameworks else None
    used = {_loaded_framework(manifest, [item["name"] for item in several]), _model_writer(manifest)}
    found = [item for item in several if item["name"] in used]
    return found[0] if len(found) == 1 else None


def _loaded_framework(manifest: Facts, names: list[str]) -> str | None:
    """Return the framework that the process used, of `names` in the order in which the capture ranked them.

    A capture ranks a framework that has computed before one that another library has imported, and equals as in
    `equals`. So of several loaded ones the first was used if it would otherwise stand last.
    """
    native = manifest.get("native") or {}
    loaded = {item["framework"] for item in manifest.get("numerics") or []}
    for library in native.get("libraries") or []:
        owner = normal_name(library["owner"].get("name") or "")
        loaded.add("tensorflow" if re.fullmatch(TENSORFLOW, owner) else _LIBRARY_OWNERS.get(owner, ""))
    first, *others = [name for name in names if name in loaded] or [""]
    equals = ("tensorflow", "torch", "jax")
    return first if all(equals.index(name) < equals.index(first) for name in others) else None


def _model_writer(manifest: Facts) -> str | None:
    model = manifest.get("model") or {}
    details = model.get("details") or {}
    if model.get("format") in ("keras", "hdf5"):
        return details.get("backend")
    if any(writer["name"] == "pytorch" for writer in model.get("written_by") or []):
        return "torch"
    return _MODEL_WRITERS.get(model.get("format") or "")


def numerics_facts() -> list[Facts]:
    """Read the settings of the frameworks that the process has imported."""
    found = []
    with warnings.catch_warnings():
        # Some switches are deprecated, and still the ones that count.
        warnings.simplefilter("ignore")
        for name, read in _NUMERICS.items():
            module = imported_package(name)
            try:
                facts = read(module) if module is not None else {}
            except Exception:
                # A stand-in can have any shape.
                facts = {}
            if any(value not in (None, [], {}) for value in facts.values()):
                found.append(dict(facts, framework=name))
    return found


def _switch_texts(answers: Facts) -> dict[str, str]:
    """Keep the switches that answered with a bool, a number or a word."""
    words = {name: str(value) for name, value in answers.items() if type(value) in (bool, int, str)}
    kept = {name: word for name, word in words.items() if re.fullmatch(r"[\w.-]+", word)}
    return {name: word.lower() if isinstance(answers[name], bool) else word for name, word in kept.items()}


def _tensorflow_numerics(_module: Any) -> Facts:
    # As tensorflow.config does, but without making the context and looking for devices.
    context = answer(sys.modules.get("tensorflow.python.eager.context"), "_context")
    config = sys.modules.get("tensorflow.python.framework.config")
    graphs = sys.modules.get("tensorflow.python.framework.ops")
    port = sys.modules.get("tensorflow.python.util._pywrap_util_port")
    seed = integer_or_none(answer(context, "_seed"))
    graph_seed = integer_or_none(answer(graphs, "_default_graph_stack._global_default_graph.seed"))
    switches = {
        "auto_mixed_precision": answer(context, "_optimizer_experimental_options.get()", "auto_mixed_precision"),
        "inter_op_threads": answer(context, "_inter_op_parallelism_threads"),
        "intra_op_threads": answer(context, "_intra_op_parallelism_threads"),
        "jit": answer(context, "_optimizer_jit"),
        "onednn": answer(port, "IsMklEnabled()"),
        "tensor_float_32": answer(config, "tensor_float_32_execution_enabled()"),
    }
    keras = imported_package("keras") or imported_package("tf_keras")
    if keras is not None:
        policy = _keras_policy(keras) if answer(keras, "backend.backend()") == "tensorflow" else None
    else:
        # Up to TensorFlow 2.5 Keras was a part of it.
        old_policy = sys.modules.get("tensorflow.python.keras.mixed_precision.policy")
        policy = text_or_none(answer(old_policy, "global_policy().name"))
    return {
        "seed": seed if seed is not None else graph_seed,
        "deterministic": flag_or_none(answer(config, "is_op_determinism_enabled()")),
        "precision": policy,
        "devices": _tensorflow_devices(context),
        "settings": _switch_texts(switches),
    }


def _tensorflow_devices(context: Any) -> list[str]:
    """List the devices that the program uses; before the first use, those that it has looked for."""
    started = flag_or_none(answer(context, "_initialized"))
    devices = answer(context, "_logical_devices" if started else "_physical_devices") or []
    names = [re.sub("^/|(physical_)?device:", "", device.name) for device in devices]
    gpus = [device for device in answer(context, "_visible_device_list") or () if device.device_type == "GPU"]
    # One physical GPU can be several logical ones, in an unknown order.
    if len(gpus) == sum(device.device_type == "GPU" for device in devices):
        models = iter([(answer(context, "get_device_details()", gpu) or {}).get("device_name") for gpu in gpus])
        names = [" ".join(filter(None, (name, next(models) if "GPU:" in name else None))) for name in names]
    return names


def _torch_numerics(torch: Any) -> Facts:
    started = flag_or_none(answer(torch, "cuda.is_initialized()"))
    count = integer_or_none(answer(torch, "cuda.device_count()")) or 0 if started else 0
    models = [answer(torch, "cuda.get_device_name()", at) for at in range(count)]
    return {
        "seed": integer_or_none(answer(torch, "initial_seed()")),
        "deterministic": flag_or_none(answer(torch, "are_deterministic_algorithms_enabled()")),
        "devices": [" ".join(filter(None, ("cuda:%d" % at, model))) for at, model in enumerate(models)],
        "settings": _switch_texts({name: answer(torch, path) for name, path in _TORCH_SWITCHES.items()}),
    }


def _jax_numerics(jax: Any) -> Facts:
    started = answer(sys.modules.get("jax._src.xla_bridge") or sys.modules.get("jax.lib.xla_bridge"), "_backends")
    devices = (answer(jax, "local_devices()") if started else None) or []
    names = [("%s:%d" % (device.platform, device.id), device.device_kind, device.platform) for device in devices]
    return {
        "devices": [name if kind == platform else "%s %s" % (name, kind) for name, kind, platform in names],
        "settings": _switch_texts({name: answer(jax, path) for name, path in _JAX_SWITCHES.items()}),
    }


def _keras_numerics(keras: Any) -> Facts:
    switches = {"backend": answer(keras, "backend.backend()"), "floatx": answer(keras, "backend.floatx()")}
    return {
        "seed": integer_or_none(_keras_state(keras, "global_random_seed")),
        "precision": _keras_policy(keras),
        "settings": _switch_texts(switches),
    }


def _keras_policy(keras: Any) -> str | None:
    if keras.__version__.startswith(_BEFORE_KERAS_3):
        return text_or_none(answer(keras, "mixed_precision.global_policy().name"))
    # The function of Keras 3 makes a policy where none is, which would outlive a later change of floatx.
    policy = _keras_state(keras, "dtype_policy")
    return text_or_none(answer(keras, "backend.floatx()") if policy is None else answer(policy, "name"))


def _keras_state(keras: Any, name: str) -> Any:
    state = sys.modules.get("keras.src.backend.common.global_state")
    return None if keras.__version__.startswith(_BEFORE_KERAS_3) else answer(state, "get_global_attribute()", name)


_NUMERICS = {
    "tensorflow": _tensorflow_numerics,
    "torch": _torch_numerics,
    "jax": _jax_numerics,
    "keras": _keras_numerics,
    "tf_keras": _keras_numerics,
}
