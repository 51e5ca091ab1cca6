"""The frameworks that are installed and how they were built: read as text, or asked where the process has them."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import re
import sys
from typing import Any, Callable

from envbuild.capture.asking import answer, imported, text_or_none
from envbuild.capture.reading import Facts, normal_name, read_bytes, read_text

TENSORFLOW = re.compile(r"(intel-)?tensorflow(-cpu|-gpu|-cpu-aws|-intel|-macos|-rocm)?|tf-nightly(-cpu|-gpu)?")
BUILD_INFO = ("tensorflow/python/platform/build_info.py", "tensorflow_core/python/platform/build_info.py")
"""The second is that of 1.15 to 2.1."""
_STARTED = {"tensorflow": ("tensorflow.python.eager.context", "_context"), "jax": ("jax._src.xla_bridge", "_backends")}
"""What a framework makes when it is first used; PyTorch has nothing of the kind."""
NUMBERS = re.compile(r"\d+(\.\d+)*")


def find_frameworks(distributions: dict[str, Facts]) -> list[Facts]:
    """List the frameworks that are installed, the one that the run most likely used first."""
    folders = {normal_name(facts["name"]): path for path, facts in distributions.items()}
    versions = {normal_name(facts["name"]): facts["version"] for facts in distributions.values()}
    builds: dict[str, tuple[str | None, Callable[[str], Facts]]] = {
        "tensorflow": (_tensorflow_name(folders), _tensorflow_build),
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
    """0 for one that the process has started, 1 for one that it has imported, 2 for what only lies there, and Keras.

    PyTorch's TensorBoard writer imports TensorFlow where it is installed; Keras runs on another one of them.
    """
    if framework == "keras" or imported(framework) is None:
        return 2
    module, name = _STARTED.get(framework, (framework, "__version__"))
    return 0 if answer(sys.modules.get(module), name) else 1


def _tensorflow_name(folders: dict[str, str]) -> str | None:
    names = [name for name in folders if TENSORFLOW.fullmatch(name)]
    # Several can be installed over each other: the one whose build_info.py lies there is the one that ran.
    return max(names, key=lambda name: max(_owns(folders[name], file) for file in BUILD_INFO), default=None)


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
    facts = build_info(next((found for found in texts if found is not None), ""))
    # No file of the wheel says it.
    return dict(facts, git_version=_commit(answer(imported("tensorflow"), "version.GIT_VERSION")))


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
    """Read torch/version.py; the rest only the library itself knows, which answers without a GPU."""
    values = _constants(read_text(os.path.join(site, "torch", "version.py")) or "")
    torch = imported("torch")
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
    """Return what a build says of its commit, unless it says that it does not know."""
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
