"""The frameworks that are installed and how they were built, read as text."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import re
from typing import Any

from envbuild.capture.reading import Facts, normal_name, read_bytes, read_text

TENSORFLOW = re.compile(r"(intel-)?tensorflow(-cpu|-gpu|-cpu-aws|-intel|-macos|-rocm)?|tf-nightly(-cpu|-gpu)?")
BUILD_INFO = ("tensorflow/python/platform/build_info.py", "tensorflow_core/python/platform/build_info.py")
"""The second is that of 1.15 to 2.1."""
NUMBERS = re.compile(r"\d+(\.\d+)*")


def find_frameworks(distributions: dict[str, Facts]) -> list[Facts]:
    """List the frameworks that are installed, the one that the run most likely used first."""
    paths = [path for path, facts in distributions.items() if TENSORFLOW.fullmatch(normal_name(facts["name"]))]
    if not paths:
        return []
    # Several can be installed over each other: the one whose build_info.py lies there is the one that ran.
    owner = max(paths, key=lambda path: max(_owns(path, name) for name in BUILD_INFO))
    texts = (read_text(os.path.join(os.path.dirname(owner), name)) for name in BUILD_INFO)
    info = build_info(next((text for text in texts if text is not None), ""))
    name, version = distributions[owner]["name"], distributions[owner]["version"]
    return [dict(info, name="tensorflow", distribution=normal_name(name), version=version)]


def _owns(path: str, name: str) -> int:
    """2 if the RECORD in `path` holds the digest of the file as it is, 1 if it lists the file, 0 otherwise."""
    record = read_text(os.path.join(path, "RECORD")) or ""
    line = re.search("^%s,(?:sha256=([^,]*))?" % re.escape(name), record, re.MULTILINE)
    data = read_bytes(os.path.join(os.path.dirname(path), name))
    if line is None or data is None:
        return 0
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")
    return 2 if line.group(1) == digest else 1


def build_info(source: str) -> Facts:
    """Read TensorFlow's build_info.py without running it: `cuda`, `cudnn`, `compute_capabilities` where it has them.

    Module constants (1.15 to 2.2), a dict (2.3), an OrderedDict (2.4 and later). `64_112` is Windows only.
    """
    values: Facts = {}
    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = _literal(node.value)
                values.update(value if isinstance(value, dict) else {node.targets[0].id: value})
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return {}
    if values.get("is_cuda_build") is False:
        return {}
    found = {key: values.get(key + "_version", values.get(key + "_version_number")) for key in ("cuda", "cudnn")}
    facts: Facts = {key: text for key, text in found.items() if NUMBERS.fullmatch(str(text or ""))}
    capabilities = values.get("cuda_compute_capabilities")
    if isinstance(capabilities, (list, tuple)):
        facts["compute_capabilities"] = [str(item) for item in capabilities]
    return facts


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
