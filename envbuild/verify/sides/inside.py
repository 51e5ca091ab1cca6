"""What an image's layers say of its Python and of a model in it: names, links, and some files; nothing is unpacked."""

import json
import re
import tarfile
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import IO

from envbuild.capture.distributions import LONGEST_HEAD
from envbuild.capture.reading import decoded
from envbuild.capture.record_digest import record_content
from envbuild.diff.layers import read_layer
from envbuild.diff.pair import Report
from envbuild.oci.image import Layer
from envbuild.oci.rootfs import IMPLIED, Node, Overlay, Tree, over, place_of
from envbuild.verify.sides.embedded import Place
from envbuild.verify.sums import sums_of

_CHUNK = 1 << 20
_OVERLAP = 256
_LONGEST = 32 << 20
_PYTHON = re.compile(r"(?:.*/)?(?:lib)?python3\.\d+(?:\.so[.\d]*)?")
_PYTHON_SAYS = re.compile(rb"(?<![\w.])(3\.\d+\.\d+(?:(?:a|b|rc)\d+)?)\+?\0")
_GLIBC = re.compile(r"(?:usr/)?lib(?:32|64)?/(?:[\w-]+/)?(?:libc\.so\.6|libc-2\.\d+\.so)")
_GLIBC_SAYS = re.compile(rb"GNU C Library[^\n]{0,99} version (\d+\.\d+)")
_STATUS = re.compile(r"var/lib/dpkg/status")
_CUDA_DEB = re.compile(
    r"^Package: (cuda-cudart-\d[\d-]*|libcudnn\d+(?:-cuda-\d+)?)\n(?:.+\n)*?Version: (\d[\d.]*)", re.MULTILINE
)
_HEAD = re.compile(
    r"(?:.*/)?[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)|(?:.*/)?pyvenv\.cfg"
    r"|(?:.*/)?tensorflow(?:_core)?/python/platform/build_info\.py"
)
_RECORD = re.compile(r"(?:.*/)?[^/]+\.dist-info/RECORD")
_DIRECT = re.compile(r"(?:.*/)?[^/]+\.dist-info/direct_url\.json")
_NAMED = re.compile(r"(?:.*/)?(?:python[\d.]*|ld-musl-[^/]+)")
"""Files of which the name alone says something."""


def files_of(layers: Sequence[Layer], model: Place, name: str, report: Report) -> Tree:
    """All folders and links of an image, and of its files those that say what Python, distributions and model it has.

    A node's text is what was read of it: the version that an interpreter or C library says of itself, the digest of
    what a RECORD lists, the head of METADATA, size and digests of a model's file. BuildError where a layer cannot be
    read.
    """
    total, done, found = sum(it.descriptor.size for it in layers), 0, list[Overlay]()
    put = partial(_put, model)
    for layer in layers:
        found.append(read_layer(layer, name, put))
        done += layer.descriptor.size
        report("reading layers", done, total)
    return {"": IMPLIED} | reduce(over, found, Overlay()).nodes


def _put(model: Place, found: Overlay, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    found.nodes.pop(path, None)
    found.borrowed.pop(path, None)
    if member.isdir():
        found.nodes[path] = Node("directory")
        return
    # what is no folder hides what lay there, whether it is kept or not
    found.hidden.add(path)
    if member.issym():
        found.nodes[path] = Node("link", target=member.linkname)
    elif member.islnk():
        target = place_of(member.linkname)
        if target in found.nodes:
            found.nodes[path] = found.nodes[target]
        elif _reader(path, model) or _NAMED.fullmatch(path):
            found.borrowed[path] = target
    elif member.isreg() and (node := _file(path, model, member, archive)):
        found.nodes[path] = node


def _file(path: str, model: Place, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Node | None:
    """The file's node with what it says; None where it says nothing."""
    reader = _reader(path, model)
    content = archive.extractfile(member) if reader else None
    if reader and content:
        return Node("file", text=reader(content), mtime=int(member.mtime))
    return Node("file", mtime=int(member.mtime)) if _NAMED.fullmatch(path) else None


def _reader(path: str, model: Place) -> Callable[[IO[bytes]], bytes] | None:
    """How to read what lies at a path; None where it need not be read."""
    if model.has(path):
        return _sums
    return next((reader for pattern, reader in _READERS if pattern.fullmatch(path)), None)


def _record(content: IO[bytes]) -> bytes:
    return (record_content(decoded(content.read(_LONGEST))) or "").encode()


def _sums(content: IO[bytes]) -> bytes:
    found = sums_of(content)
    return json.dumps({"size": found.size, "sha256": found.sha256.hex, "crc32c": found.crc32c}).encode()


def _commit(content: IO[bytes]) -> bytes:
    """The commit of a checkout (PEP 610); empty for what came from anywhere else."""
    try:
        found = json.loads(content.read(LONGEST_HEAD))["vcs_info"]["commit_id"]
        return found.encode() if re.fullmatch(r"[0-9a-f]{7,64}", found) else b""
    except (ValueError, KeyError, TypeError, RecursionError):
        return b""


def _cuda_debs(content: IO[bytes]) -> bytes:
    """Names and upstream versions of CUDA's runtime and cuDNN among Debian's packages, one a line."""
    text = decoded(content.read(_LONGEST))
    return "".join(f"{name} {version}\n" for name, version in _CUDA_DEB.findall(text)).encode()


def _search(content: IO[bytes], says: re.Pattern[bytes]) -> bytes:
    """What the first match says; empty where there is none."""
    rest = b""
    while chunk := content.read(_CHUNK):
        if match := says.search(rest := rest[-_OVERLAP:] + chunk):
            return match[1]
    return b""


_READERS: tuple[tuple[re.Pattern[str], Callable[[IO[bytes]], bytes]], ...] = (
    (_RECORD, _record),
    (_HEAD, lambda content: content.read(LONGEST_HEAD)),
    (_DIRECT, _commit),
    (_PYTHON, lambda content: _search(content, _PYTHON_SAYS)),
    (_GLIBC, lambda content: _search(content, _GLIBC_SAYS)),
    (_STATUS, _cuda_debs),
)
