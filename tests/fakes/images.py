"""Small images, right in every digest."""

import gzip
import io
import json
from collections.abc import Sequence

from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    CONFIG,
    DOCKER_CONFIG,
    DOCKER_LAYER,
    DOCKER_MANIFEST,
    LAYER_GZIP,
    Descriptor,
    Image,
    Layer,
    canonical_json,
    manifest_bytes,
)


def layer_of(text: bytes) -> Layer:
    """A layer whose `tar` is just these bytes: registries do not look inside."""
    packed = gzip.compress(text, mtime=0)
    descriptor = Descriptor(LAYER_GZIP, Digest.of(packed), len(packed))
    return Layer(descriptor, Digest.of(text), lambda: io.BytesIO(packed), created_by=f"layer of {len(text)} bytes")


def image_of(texts: Sequence[bytes] = (b"one", b"two" * 1000), *, architecture: str = "amd64") -> Image:
    """An image with one layer for each text."""
    layers = tuple(layer_of(text) for text in texts)
    config = config_of(layers, architecture)
    return Image(manifest=manifest_bytes(config, layers, {"made": "here"}), config=config, layers=layers)


def config_of(layers: Sequence[Layer], architecture: str = "amd64") -> bytes:
    """The config that fits the layers."""
    return canonical_json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [str(layer.diff_id) for layer in layers]},
            "history": [
                {"created_by": "ENV", "empty_layer": True},
                *({"created_by": one.created_by} for one in layers),
            ],
        }
    )


def docker_manifest_of(image: Image) -> bytes:
    """The same image as Docker's registry describes it."""
    value = json.loads(image.manifest) | {"mediaType": DOCKER_MANIFEST}
    names = {CONFIG: DOCKER_CONFIG, LAYER_GZIP: DOCKER_LAYER}
    for one in (value["config"], *value["layers"]):
        one["mediaType"] = names[one["mediaType"]]
    return canonical_json(value)
