"""Pushes through a proxy in which things go wrong: each ends with the right image, or with an error and no wrong tag."""

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envbuild.errors import RegistryError
from envbuild.oci.blobs import GrowingBlob
from envbuild.oci.image import Image, Layer
from envbuild.oci.reference import Reference
from envbuild.registry.auth import Credentials
from envbuild.registry.push import PushResult, Upload, publish, push
from envbuild.retry import Retry
from tests.fakes.images import image_of
from tests.faults.proxy import FaultyRegistry, Weather
from tests.faults.site import Site, require, tags_of

RETRY = Retry(first=0.01, longest=0.05)
_PIECE = 1 << 15
PREVIOUS = image_of([b"what was there before"])


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended."""

    seed: int
    by: str
    """`library` or `command`."""
    right: bool
    """Whether it succeeded, and the tag names the right image."""
    error: str
    faults: tuple[str, ...]
    late: bool
    """Whether the tag names the right image though the last word was an error: the reply to tagging was lost."""


def run(seed: int, site: Site, host: str) -> Ended:
    """Push once under the faults of a seed; FaultError when the end is neither right nor a clear error."""
    image, repository = site.image(), f"faults/{uuid.uuid4().hex[:12]}"
    before = (
        {"v1": str(push(PREVIOUS, Reference(host, repository, "v1"), retry=RETRY).reference.digest)} if seed % 3 else {}
    )
    by_command = seed % 20 == 7
    with FaultyRegistry(host, Weather.of(seed)) as proxy:
        reference = Reference(proxy.host, repository, "v1")
        error = _command(site, reference) if by_command else _library(image, reference, seed)
        faults = tuple(proxy.faults)
    tags = tags_of(host, repository)
    right = tags.get("v1") == str(image.digest)
    require(right or tags.get("v1") == before.get("v1"), f"seed {seed}: v1 is {tags.get('v1')}; {faults}")
    env = {name: digest for name, digest in tags.items() if name.startswith("env-")}
    require(set(env.values()) <= {str(image.digest)}, f"seed {seed}: {env}; {faults}")
    require(right or bool(error), f"seed {seed}: it told of success, and v1 is {tags.get('v1')}; {faults}")
    require(not error or bool(faults), f"seed {seed}: it failed without a fault: {error}")
    by = "command" if by_command else "library"
    return Ended(seed=seed, by=by, right=right and not error, error=error, faults=faults, late=right and bool(error))


def _library(image: Image, reference: Reference, seed: int) -> str:
    origin = f"{reference.registry}/{MOUNTED}" if seed % 2 else ""
    layers = tuple(replace(layer, origin=origin) for layer in image.layers)
    sent = _followed if seed % 4 > 1 else push
    return push_through(replace(image, layers=layers), reference, tags=("env-1",), sent=sent)


def push_through(
    image: Image, reference: Reference, tags: Sequence[str] = (), sent: Callable[..., PushResult] = push
) -> str:
    """Push; empty, or what the error says, which must be a whole one."""
    login = Credentials(username="user", password="letmein")
    try:
        found = sent(image, reference, tags=tags, credentials=login, retry=RETRY)
    except RegistryError as error:
        require(error.exit_code == 14 and bool(error.what) and bool(error.where), repr(error))
        return error.what
    require(found.reference.digest == image.digest, str(found.reference))
    return ""


def _followed(image: Image, reference: Reference, *, tags: Sequence[str], **options: Any) -> PushResult:
    """Push while the layers are written, as the assembler writes them."""
    with tempfile.TemporaryDirectory() as folder, Upload(reference, **options) as upload:
        for number, layer in enumerate(image.layers):
            _written(layer, Path(folder) / str(number), upload)
            upload.offer(layer)
        result = upload.finish(image)
    publish({result.reference: tuple(filter(None, (reference.tag, *tags)))}, **options)
    return result


def _written(layer: Layer, path: Path, upload: Upload) -> None:
    with layer.open() as source, path.open("wb") as file, GrowingBlob(path, layer.diff_id, layer.created_by, 1) as blob:
        upload.follow(blob)
        while piece := source.read(_PIECE):
            file.write(piece)
            file.flush()
            time.sleep(0.001)
        blob.finish(layer.descriptor, layer.diff_id)


MOUNTED = "faults/elsewhere"
"""A repository that has all layers."""


def _command(site: Site, reference: Reference) -> str:
    done = site.build("--out", f"out-{reference.repository.rpartition('/')[2]}", "--push", str(reference))
    if done.returncode == 0:
        return ""
    require(done.returncode == 14 and "where:" in done.stderr and not done.stdout, f"{done.returncode}: {done.stderr}")
    return done.stderr.strip().splitlines()[-3]
