"""What the running frameworks were told that changes numbers.

Only what this process has imported is asked, and only what it has started: a question must not make a GPU's context,
look for devices, or fix a default that the program could still change.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from envbuild.capture.asking import answer, flag_or_none, imported, text_or_none, whole_or_none
from envbuild.capture.reading import Facts

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
    for name in (
        "default_matmul_precision",
        "default_prng_impl",
        "enable_x64",
        "threefry_partitionable",
    )
}


def numerics_facts() -> list[Facts]:
    """Ask the frameworks that the process has imported."""
    found = []
    with warnings.catch_warnings():
        # Some switches are deprecated, and still the ones that count.
        warnings.simplefilter("ignore")
        for name, ask in _NUMERICS.items():
            module = imported(name)
            try:
                facts = ask(module) if module is not None else {}
            except Exception:
                # A stand-in can have any shape.
                facts = {}
            if any(value not in (None, [], {}) for value in facts.values()):
                found.append(dict(facts, framework=name))
    return found


def _answered_switches(answers: Facts) -> dict[str, str]:
    """Keep the switches that answered with a bool, a number or a word."""
    words = {name: str(value) for name, value in answers.items() if type(value) in (bool, int, str)}
    kept = {name: word for name, word in words.items() if re.fullmatch(r"[\w.-]+", word)}
    return {name: word.lower() if isinstance(answers[name], bool) else word for name, word in kept.items()}


def _tensorflow_numerics(_module: Any) -> Facts:
    # What tensorflow.config asks, less what it does first: it makes the context and looks for devices.
    context = answer(sys.modules.get("tensorflow.python.eager.context"), "_context")
    config = sys.modules.get("tensorflow.python.framework.config")
    graphs = sys.modules.get("tensorflow.python.framework.ops")
    port = sys.modules.get("tensorflow.python.util._pywrap_util_port")
    seed = whole_or_none(answer(context, "_seed"))
    graph_seed = whole_or_none(answer(graphs, "_default_graph_stack._global_default_graph.seed"))
    switches = {
        "auto_mixed_precision": answer(context, "_optimizer_experimental_options.get()", "auto_mixed_precision"),
        "inter_op_threads": answer(context, "_inter_op_parallelism_threads"),
        "intra_op_threads": answer(context, "_intra_op_parallelism_threads"),
        "jit": answer(context, "_optimizer_jit"),
        "onednn": answer(port, "IsMklEnabled()"),
        "tensor_float_32": answer(config, "tensor_float_32_execution_enabled()"),
    }
    return {
        "seed": seed if seed is not None else graph_seed,
        "deterministic": flag_or_none(answer(config, "is_op_determinism_enabled()")),
        "precision": _tensorflow_policy(),
        "devices": _tensorflow_devices(context),
        "settings": _answered_switches(switches),
    }


def _tensorflow_devices(context: Any) -> list[str]:
    """List the devices once the program has used them; those that were only looked for, if it went no further."""
    started = flag_or_none(answer(context, "_initialized"))
    devices = answer(context, "_logical_devices" if started else "_physical_devices") or []
    names = [re.sub("^/|(physical_)?device:", "", device.name) for device in devices]
    gpus = [device for device in answer(context, "_visible_device_list") or () if device.device_type == "GPU"]
    # One physical GPU can be several logical ones, in an order that nothing tells.
    if len(gpus) == sum(device.device_type == "GPU" for device in devices):
        models = iter([(answer(context, "get_device_details()", gpu) or {}).get("device_name") for gpu in gpus])
        names = [" ".join(filter(None, (name, next(models) if "GPU:" in name else None))) for name in names]
    return names


def _tensorflow_policy() -> str | None:
    keras = imported("keras") or imported("tf_keras")
    if keras is not None:
        return _keras_policy(keras) if answer(keras, "backend.backend()") == "tensorflow" else None
    # Up to TensorFlow 2.5 Keras was a part of it.
    return text_or_none(
        answer(sys.modules.get("tensorflow.python.keras.mixed_precision.policy"), "global_policy().name")
    )


def _torch_numerics(torch: Any) -> Facts:
    started = flag_or_none(answer(torch, "cuda.is_initialized()"))
    count = whole_or_none(answer(torch, "cuda.device_count()")) or 0 if started else 0
    models = [answer(torch, "cuda.get_device_name()", at) for at in range(count)]
    return {
        "seed": whole_or_none(answer(torch, "initial_seed()")),
        "deterministic": flag_or_none(answer(torch, "are_deterministic_algorithms_enabled()")),
        "devices": [" ".join(filter(None, ("cuda:%d" % at, model))) for at, model in enumerate(models)],
        "settings": _answered_switches({name: answer(torch, path) for name, path in _TORCH_SWITCHES.items()}),
    }


def _jax_numerics(jax: Any) -> Facts:
    started = answer(sys.modules.get("jax._src.xla_bridge") or sys.modules.get("jax.lib.xla_bridge"), "_backends")
    devices = (answer(jax, "local_devices()") if started else None) or []
    names = [("%s:%d" % (device.platform, device.id), device.device_kind, device.platform) for device in devices]
    return {
        "devices": [name if kind == platform else "%s %s" % (name, kind) for name, kind, platform in names],
        "settings": _answered_switches({name: answer(jax, path) for name, path in _JAX_SWITCHES.items()}),
    }


def _keras_numerics(keras: Any) -> Facts:
    switches = {"backend": answer(keras, "backend.backend()"), "floatx": answer(keras, "backend.floatx()")}
    return {
        "seed": whole_or_none(_keras_state(keras, "global_random_seed")),
        "precision": _keras_policy(keras),
        "settings": _answered_switches(switches),
    }


def _keras_policy(keras: Any) -> str | None:
    if not _is_keras_3(keras):
        return text_or_none(answer(keras, "mixed_precision.global_policy().name"))
    # The function of Keras 3 makes a policy where none is, which would outlive a later change of floatx.
    policy = _keras_state(keras, "dtype_policy")
    return text_or_none(answer(keras, "backend.floatx()") if policy is None else answer(policy, "name"))


def _is_keras_3(keras: Any) -> bool:
    return not keras.__version__.startswith(("0.", "1.", "2."))


def _keras_state(keras: Any, name: str) -> Any:
    state = sys.modules.get("keras.src.backend.common.global_state") if _is_keras_3(keras) else None
    return answer(state, "get_global_attribute()", name)


_NUMERICS = {
    "tensorflow": _tensorflow_numerics,
    "torch": _torch_numerics,
    "jax": _jax_numerics,
    "keras": _keras_numerics,
    "tf_keras": _keras_numerics,
}
