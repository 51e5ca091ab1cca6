"""Images by what they are called: in a registry, an OCI layout, an archive, or a container engine."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import docker
from docker.errors import NotFound

from envbuild.base.resolve import layout_image
from envbuild.cache import workplace
from envbuild.diff.archive import read_archive
from envbuild.engine.client import connected
from envbuild.errors import BaseError, BuildError, UsageError
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference, exists, refuse_login
from envbuild.registry import pull

_ENGINE = "docker-daemon:"
_ARCHIVES = ("docker-archive:", "oci-archive:")
_QUIET = 600
"""Seconds that an engine may say nothing while it packs an image."""
_FORMS = "a reference, an OCI layout (DIR, oci:DIR:NAME), an archive of one image (FILE), or docker-daemon:NAME"


class Teller(Protocol):
    """Where it is told what goes on."""

    def note(self, text: str, /) -> None:
        """Say a detail."""

    def progress(self, label: str, done: int, total: int | None, /) -> None:
        """Show how many bytes are done."""


def check_name(text: str) -> None:
    """Refuse what names no image wherever it lies, before it is shown; UsageError."""
    refuse_login(text, "IMAGE")
    if text.startswith(_ENGINE) and not text.removeprefix(_ENGINE).strip():
        todo = "name one that `docker images` lists, such as docker-daemon:NAME:TAG"
        raise UsageError("nothing says which of the engine's images is meant", where=f"IMAGE {text}", todo=todo)


@contextmanager
def opened(text: str, *, machine: str, cache: Path, teller: Teller) -> Iterator[Image]:
    """Yield the image that `text` names, whose layers can be read in the block.

    `REFERENCE` and `docker://REFERENCE` are a registry's; `DIR` and `oci:DIR[:NAME]` OCI layouts; `FILE`,
    `docker-archive:FILE` and `oci-archive:FILE` archives; `docker-daemon:NAME` is a container engine's, and lies on
    the cache's disk meanwhile. `DIR@sha256:...` and `FILE@sha256:...` are held to that digest. Of several platforms
    `machine` chooses.

    UsageError for what names no image; BaseError for another folder; RegistryError, BuildError and
    MissingComponentError as from there.
    """
    check_name(text)
    with ExitStack() as stack:

        def scratch() -> Path:
            return stack.enter_context(workplace(cache))

        if text.startswith(_ENGINE):
            file = _saved(text.removeprefix(_ENGINE), scratch() / "image.tar", teller)
            yield read_archive(file, machine=machine, scratch=scratch)
        else:
            yield _local(text, machine, scratch) or _pulled(text, machine)


def _local(text: str, machine: str, scratch: Callable[[], Path]) -> Image | None:
    """The image of a layout or an archive; None where no such thing lies here."""
    plain, at, digest = text.rpartition("@") if "@sha256:" in text else (text, "", "")
    archive = next((plain.removeprefix(it) for it in _ARCHIVES if plain.startswith(it)), None)
    if archive is not None or _is_file(Path(plain)):
        image, index = read_archive(Path(archive or plain), machine=machine, scratch=scratch), None
    elif plain.startswith("oci:") or _is_file(Path(plain, "oci-layout")):
        image, index = layout_image(plain, machine), Path(plain.removeprefix("oci:"), "index.json")
    elif exists(plain):
        todo = f"give {_FORMS}; a registry's of this name is docker://{text}"
        raise BaseError(f"this {_kind(Path(plain))} lies here, and is no image", where=plain, todo=todo)
    else:
        return None
    if at and digest not in (str(image.digest), *_named(index)):
        todo = "leave out what follows @, or give what lies there"
        raise UsageError(f"this has another digest, {image.digest}", where=text, todo=todo)
    return image


def _named(index: Path | None) -> Iterator[str]:
    """The digests that a layout has on top, which may be those of indexes."""
    if index and index.is_file():
        yield from (str(entry["digest"]) for entry in json.loads(index.read_bytes())["manifests"])


def _kind(path: Path) -> str:
    return "folder, without the file oci-layout," if path.is_dir() else "special file"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a file's name, or a NUL in it
        return False


def _pulled(text: str, machine: str) -> Image:
    try:
        reference = Reference.parse(text.removeprefix("docker://"))
    except ValueError as error:
        raise UsageError(f"this is no image: {error}", where=f"IMAGE {text}", todo=f"give {_FORMS}") from error
    return pull(reference, machine=machine)


def _saved(name: str, path: Path, teller: Teller) -> Path:
    teller.note(f"saving {name} from the container engine")
    done = 0
    with connected("push the image, and give its reference") as client, path.open("wb") as file:
        _see(client, name)
        client.api.timeout = _QUIET
        for chunk in client.api.get_image(name):
            file.write(chunk)
            done += len(chunk)
            teller.progress("saving", done, None)
    return path


def _see(client: docker.DockerClient, name: str) -> None:
    """Ask for the image first, as engines refuse to save what they lack in various words."""
    try:
        client.api.inspect_image(name)
    except NotFound as error:
        todo = "name one that `docker images` lists; a registry's is named without docker-daemon:"
        raise BuildError("the engine has no such image", where=f"{_ENGINE}{name}", todo=todo) from error
