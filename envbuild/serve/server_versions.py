"""Which server an image has, and which frameworks that server brings."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from envbuild.serve.model import ServerName

TRITON_TENSORFLOW = {
    "23.01": "2.11.0",
    "23.04": "2.12.0",
    "23.08": "2.13.0",
    "23.12": "2.14.0",
    "24.02": "2.15.0",
    "24.07": "2.16.1",
    "25.02": "2.17.0",
}
"""The TensorFlow of Triton's backend from this release on; of a release between two it is the earlier one's or newer.

From the containers of the same month that NVIDIA tested with (github.com/triton-inference-server/model_navigator,
docs/support_matrix.md and CHANGELOG.md, "external components used during testing").
"""
TRITON_WITHOUT_TENSORFLOW = "25.03"
"""The first release that has no TensorFlow backend (github.com/triton-inference-server/server/pull/8068)."""
TRITON_ONNX = {
    "24.04": "1.17.3",
    "24.05": "1.18.0",
    "24.07": "1.18.1",
    "24.09": "1.19.2",
    "24.12": "1.20.1",
    "25.03": "1.21.0",
    "25.05": "1.22.0",
    "25.08": "1.23.0",
    "25.10": "1.23.1",
    "25.11": "1.23.2",
    "26.02": "1.24.1",
    "26.03": "1.24.2",
    "26.04": "1.24.4",
    "26.07": "1.27.0",
    "26.08": "1.28.0",
}
"""ONNX Runtime from this release on (github.com/triton-inference-server/server, docs/introduction/compatibility.md)."""
TRITON_BACKENDS = {
    "py3": frozenset({"saved_model", "onnx", "torchscript"}),
    "tf2-python-py3": frozenset({"saved_model"}),
    "pyt-python-py3": frozenset({"torchscript"}),
}
"""What images of Triton can serve, by the end of their tags; others have none of these backends."""
DEFAULT_IMAGES = {
    "tf-serving": "docker.io/tensorflow/serving:{version}",
    "triton": "nvcr.io/nvidia/tritonserver:{version}-py3",
}
_TRITON = re.compile(r"(2[0-9]\.[01][0-9])(?:\.[0-9]+)?(?:-|\Z)")
_TENSORFLOW = re.compile(r"r?v?([0-9]+\.[0-9]+(?:\.[0-9]+)?(?:-?rc[0-9]+)?)(?:-|\Z)")
_SAID = {
    "tf-serving": ("tensorflow_serving_github_branchtag", "org.opencontainers.image.version"),
    "triton": ("NVIDIA_TRITON_SERVER_VERSION",),
}
"""Labels and variables of the vendors' own images."""
_NAMES = {
    "tf-serving": re.compile(r"tensorflow[\W_]?serving|tf[\W_]serving|tensorflow_model_server", re.IGNORECASE),
    "triton": re.compile(r"triton", re.IGNORECASE),
}
"""The servers' own names, and those of their programs, as labels, variables and commands have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSays:
    """What an image's config says of the server in it."""

    version: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    names_server: bool = True
    """Whether anything in it names the server: a label, a variable, or what is started."""


def image_says(server: ServerName, inner: Mapping[str, object]) -> ImageSays:
    """Read an image's labels and variables (OCI image-spec, config.md); NVIDIA's base images say CUDA and cuDNN."""
    labels, variables = inner.get("Labels"), inner.get("Env")
    said = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    said |= dict(str(entry).partition("=")[::2] for entry in (variables if isinstance(variables, list) else ()))
    found = (version_in(server, said[name]) for name in _SAID.get(server, ()) if name in said)
    started = [inner.get("Entrypoint"), inner.get("Cmd")]
    return ImageSays(
        version=next((it for it in found if it), None),
        cuda=said.get("CUDA_VERSION") or None,
        cudnn=said.get("NV_CUDNN_VERSION") or said.get("CUDNN_VERSION") or None,
        names_server=bool(_NAMES[server].search(json.dumps([said, started]))),
    )


def version_in(server: ServerName, text: str) -> str | None:
    """Return the version that a tag or label begins with: `2.15.1-gpu`, `24.02-py3`; None for `latest`."""
    found = (_TRITON if server == "triton" else _TENSORFLOW).match(text)
    return found[1] if found else None


def since(table: Mapping[str, str], release: str) -> str | None:
    """Return what a table has for a release or the last before it; None before its first."""
    wanted = Version(release)
    known = [found for first, found in table.items() if Version(first) <= wanted]
    return known[-1] if known else None
