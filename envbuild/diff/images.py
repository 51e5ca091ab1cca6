"""Images by name: in a registry, an OCI layout, an archive, or a container engine.

An archive is one tar file, as `docker save`, `podman save` and `envbuild from-manifest --archive` write it. All have
`manifest.json` (moby, image/spec/v1.2.md, "Combined Image JSON + Filesystem Changeset Format"). Archives without it,
as BuildKit (`--output type=oci`) and skopeo write them, are packed OCI layouts.
"""

import io
import json
import os
import posixpath
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from docker.errors import NotFound

from envbuild.base.resolve import layout_image
from envbuild.cache import workplace
from envbuild.engine.client import connected
from envbuild.errors import BaseError, BuildError, UsageError
from envbuild.oci.compression import media_type_of
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    INDEX,
    Descriptor,
    Image,
    Layer,
    manifest_bytes,
    parse_manifest,
)
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference, exists, refuse_login, split_digest
from envbuild.oci.tar import open_tar
from envbuild.registry.pull import pull
from envbuild.report import Reporter

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_ENGINE = "docker-daemon:"
_ARCHIVES = ("docker-archive:", "oci-archive:")
_QUIET = 600
"""Seconds that an engine may say nothing while it packs an image."""
_FORMS = "a reference, an OCI layout (DIR, oci:DIR:NAME), an archive of one image (FILE), or docker-daemon:NAME"

_LIMIT = 4 << 20
_WRONG = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, tarfile.TarError, EOFError)
_PART = re.compile(r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")
_SAVE = "save one image with `docker save --output FILE IMAGE`, and do not compress the file"


def check_name(text: str) -> None:
    """Refuse a text that cannot name an image, before it is shown; UsageError."""
    refuse_login(text, "IMAGE")
    if text.startswith(_ENGINE) and not text.removeprefix(_ENGINE).strip():
        todo = "name one that `docker images` lists, such as docker-daemon:NAME:TAG"
        raise UsageError("docker-daemon: needs the name of an image", where=f"IMAGE {text}", todo=todo)


@contextmanager
def open_image(text: str, *, machine: str, cache: Path, report: Reporter) -> Iterator[Image]:
    """Yield the image that `text` names; its layers can be read in the block.

    `REFERENCE` and `docker://REFERENCE` name an image in a registry; `DIR` and `oci:DIR[:NAME]` OCI layouts; `FILE`,
    `docker-archive:FILE` and `oci-archive:FILE` archives; `docker-daemon:NAME` an image of a container engine, which
    is saved beside the cache. `DIR@sha256:...` and `FILE@sha256:...` must have that digest. `machine` chooses among
    several platforms.

    UsageError for an invalid name; BaseError for another folder; RegistryError, BuildError and MissingComponentError
    from the source.
    """
    check_name(text)
    with ExitStack() as stack:

        def scratch() -> Path:
            return stack.enter_context(workplace(cache))

        if text.startswith(_ENGINE):
            file = _save(text.removeprefix(_ENGINE), scratch() / "image.tar", report)
            yield read_archive(file, machine=machine, scratch=scratch)
        elif image := _local(text, machine, scratch):
            yield image
        else:
            try:
                reference = Reference.parse(text.removeprefix("docker://"))
            except ValueError as error:
                raise UsageError(f"not an image: {error}", where=f"IMAGE {text}", todo=f"give {_FORMS}") from error
            yield pull(reference, machine=machine)


def _local(text: str, machine: str, scratch: Callable[[], Path]) -> Image | None:
    """The image of a layout or an archive; None where there is no such file or folder."""
    plain, digest = split_digest(text)
    if plain.startswith("oci:") or _is_file(Path(plain, "oci-layout")):
        return layout_image(text, machine)
    archive = next((plain.removeprefix(it) for it in _ARCHIVES if plain.startswith(it)), None)
    if archive is not None or _is_file(Path(plain)):
        image = read_archive(Path(archive or plain), machine=machine, scratch=scratch)
    elif exists(plain):
        todo = f"give {_FORMS}; a registry's of this name is docker://{text}"
        kind = "folder, without the file oci-layout," if Path(plain).is_dir() else "special file"
        raise BaseError(f"this {kind} is not an image", where=plain, todo=todo)
    else:
        return None
    if digest not in (None, image.digest):
        todo = f"leave out @{digest}, or give the image with that digest"
        raise UsageError(f"this has another digest, {image.digest}", where=text, todo=todo)
    return image


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a file name, or with a NUL
        return False


def _save(name: str, path: Path, report: Reporter) -> Path:
    report.note(f"saving {name} from the container engine")
    done = 0
    with connected("push the image, and give its reference") as client, path.open("wb") as file:
        try:  # engines refuse to save an absent image in various words
            client.api.inspect_image(name)
        except NotFound as error:
            todo = "name one that `docker images` lists; a registry's is named without docker-daemon:"
            raise BuildError("the engine has no such image", where=f"{_ENGINE}{name}", todo=todo) from error
        client.api.timeout = _QUIET
        for chunk in client.api.get_image(name):
            file.write(chunk)
            done += len(chunk)
            report.progress("saving", done, None)
    return path


def read_archive(path: Path, *, machine: str, scratch: Callable[[], Path]) -> Image:
    """Read the image of an archive; BuildError when it has none or several.

    The layers are read from it, except those of a packed layout: that is unpacked into the folder that `scratch`
    makes, and `machine` chooses among several platforms.
    """
    try:
        with path.open("rb") as file, open_tar(file) as archive:
            found = {posixpath.normpath(member.name): member for member in archive}
            if "manifest.json" in found or "oci-layout" not in found:
                return _Archive(path, found).image()
            return read_layout(_unpacked(archive, found, scratch()), machine=machine)
    except _WRONG as error:
        what = f"not an archive of an image ({type(error).__name__}: {error})"
        raise BuildError(what, where=str(path), todo=_SAVE) from error


def _unpacked(archive: tarfile.TarFile, found: Mapping[str, tarfile.TarInfo], folder: Path) -> Path:
    for name, member in found.items():
        content = archive.extractfile(member) if member.isreg() and _PART.fullmatch(name) else None
        if content:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
    return folder


class _Archive:
    def __init__(self, path: Path, found: Mapping[str, tarfile.TarInfo]) -> None:
        self._path, self._found = path, found

    def image(self) -> Image:
        images = json.loads(self._read("manifest.json"))
        if len(images) != 1:
            raise ValueError(f"it has {len(images)} images")
        config = self._read(images[0]["Config"])
        diff_ids = [Digest.parse(text) for text in json.loads(config)["rootfs"]["diff_ids"]]
        pairs = zip(images[0]["Layers"], diff_ids, strict=True)
        layers = tuple(self._layer(name, diff_id) for name, diff_id in pairs)
        return Image(self._manifest(Digest.of(config)) or manifest_bytes(config, layers, {}), config, layers)

    def _manifest(self, config: Digest) -> bytes:
        """The image manifest in the archive; empty in those of older engines."""
        entries = parse_manifest(self._read("index.json"), INDEX)["manifests"] if "index.json" in self._found else ()
        for entry in entries:
            name = f"blobs/sha256/{Digest.parse(entry['digest']).hex}"
            data = self._read(name) if name in self._found else b"{}"
            if (parse_manifest(data).get("config") or {}).get("digest") == str(config):
                return data
        return b""

    def _layer(self, name: str, diff_id: Digest) -> Layer:
        member = self._member(name)
        opener = partial(_open, self._path, member.offset_data, member.size)
        with opener() as file:
            media_type = media_type_of(file.read(4))
        # The digest of the packed layer is not needed, and only newer archives have it as the file's name.
        return Layer(Descriptor(media_type, diff_id, member.size), diff_id, opener)

    def _read(self, name: str) -> bytes:
        member = self._member(name)
        if member.size > _LIMIT:
            raise ValueError(f"{name} is too large")
        with _open(self._path, member.offset_data, member.size) as file:
            return file.read()

    def _member(self, name: str) -> tarfile.TarInfo:
        """Find a file; older engines write all but one of several equal layers as links."""
        member = self._found.get(posixpath.normpath(name))
        if member and member.issym():
            member = self._found.get(posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname)))
        if member is None or not member.isreg():
            raise ValueError(f"it has no {name}")
        return member


def _open(path: Path, start: int, size: int) -> BinaryIO:
    # BufferedReader is a BinaryIO in all but name.
    return cast("BinaryIO", io.BufferedReader(_Part(path.open("rb", buffering=0), start, size), 1 << 20))


class _Part(io.RawIOBase):
    """A part of a file."""

    def __init__(self, file: io.FileIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._left = file, size
        file.seek(start, os.SEEK_SET)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        count = self._file.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= count
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
