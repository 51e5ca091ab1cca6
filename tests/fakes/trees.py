"""Layers and images of a few files, as a base has them."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import zstandard

from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    LAYER_GZIP,
    LAYER_TAR,
    LAYER_ZSTD,
    Descriptor,
    Image,
    Layer,
    canonical_json,
    manifest_bytes,
)

PYTHON = b"\x7fELF\0 3.9.1 is older\0" + b"." * 70_000 + b"Python %s\0" + b"3.11.2\0" + b"." * 70_000
GLIBC = b"\x7fELF\0GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.\nCopyright\0"
BASE = {
    "bin": "-> usr/bin",
    "lib": "-> usr/lib",
    "opt/": 0o755,
    "usr/bin/": 0o755,
    "usr/bin/python3": "-> python3.11",
    "usr/bin/python3.11": PYTHON,
    "usr/lib/x86_64-linux-gnu/libc.so.6": GLIBC,
}
"""A base with Python 3.11.2 and glibc 2.36, to be varied with `|`."""


def tar_of(entries: Mapping[str, Any]) -> bytes:
    """A tar of paths: bytes are a file, `-> x` a link, `=> x` a hard link, a number the mode of a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, what in entries.items():
            info = tarfile.TarInfo(path)
            if isinstance(what, int):
                info.type, info.mode = tarfile.DIRTYPE, what
            elif isinstance(what, str):
                info.type = tarfile.SYMTYPE if what.startswith("->") else tarfile.LNKTYPE
                info.linkname = what[3:]
            else:
                info.size = len(what)
            archive.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    return buffer.getvalue()


def layer_of_tree(entries: Mapping[str, Any], media_type: str = LAYER_GZIP) -> Layer:
    """A layer; a compressed one has two gzip members or zstd frames, as those of eStargz and zstd:chunked have many."""
    content = tar_of(entries)
    pack = zstandard.compress if media_type == LAYER_ZSTD else partial(gzip.compress, mtime=0)
    data = content if media_type == LAYER_TAR else pack(content[:512]) + pack(content[512:])
    return Layer(Descriptor(media_type, Digest.of(data), len(data)), Digest.of(content), partial(io.BytesIO, data))


def image_of_trees(*trees: Mapping[str, Any], env: Sequence[str] = ("PATH=/usr/local/bin:/usr/bin",), **more) -> Image:
    """An image with one layer for each tree; `more` goes into its config."""
    return image_of_layers(*(layer_of_tree(tree) for tree in trees), env=env, **more)


def image_of_layers(*layers: Layer, env: Sequence[str] = ("PATH=/usr/local/bin:/usr/bin",), **more) -> Image:
    """An image of these layers."""
    config = canonical_json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": list(env)},
            "rootfs": {"type": "layers", "diff_ids": [str(layer.diff_id) for layer in layers]},
        }
        | more
    )
    return Image(manifest_bytes(config, layers, {}), config, layers)
