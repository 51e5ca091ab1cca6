"""Layers and images whose every attribute a test chooses."""

import gzip
import io
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import zstandard

from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Descriptor, Image, Layer
from tests.fakes.trees import image_of_layers

FOLDER = tarfile.DIRTYPE
SITE = "opt/env/lib/python3.11/site-packages"


@dataclass(frozen=True, kw_only=True)
class Put:
    """One member of a layer."""

    path: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    target: str = ""
    mtime: float = 0
    extended: tuple[tuple[str, str], ...] = ()


def file(path: str, content: bytes = b"x", **more) -> Put:
    return Put(path=path, content=content, **more)


def folder(path: str, mode: int = 0o755, **more) -> Put:
    return Put(path=path, kind=FOLDER, mode=mode, **more)


def link(path: str, target: str, **more) -> Put:
    return Put(path=path, kind=tarfile.SYMTYPE, target=target, **more)


def hard(path: str, target: str) -> Put:
    return Put(path=path, kind=tarfile.LNKTYPE, target=target)


def gone(path: str) -> Put:
    """The whiteout of a path."""
    head, _, base = path.rpartition("/")
    return Put(path=f"{head}/.wh.{base}".lstrip("/"))


def opaque(path: str) -> Put:
    return Put(path=f"{path}/.wh..wh..opq".lstrip("/"))


def tar_of(members: Iterable[Put]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for it in members:
            info = tarfile.TarInfo(it.path)
            info.type, info.mode, info.mtime, info.linkname = it.kind, it.mode, it.mtime, it.target
            info.uid, info.gid = it.owner
            info.size = len(it.content)
            info.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in it.extended}
            archive.addfile(info, io.BytesIO(it.content))
    return buffer.getvalue()


def layer(*members: Put, media_type: str = LAYER_GZIP) -> Layer:
    content = tar_of(members)
    pack = zstandard.compress if media_type == LAYER_ZSTD else partial(gzip.compress, mtime=0)
    data = content if media_type == LAYER_TAR else pack(content)
    return Layer(Descriptor(media_type, Digest.of(data), len(data)), Digest.of(content), partial(io.BytesIO, data))


def image(*layers: Sequence[Put], **more) -> Image:
    return image_of_layers(*(layer(*members) for members in layers), **more)
