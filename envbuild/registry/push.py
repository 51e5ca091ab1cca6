"""Image -> registry: blobs in parallel, then the manifest, then its confirmation, and only then tags."""

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO

from envbuild.errors import RegistryError, UsageError
from envbuild.oci.image import CONFIG, MANIFEST, Descriptor, Image, Opener
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.credentials import Credentials
from envbuild.registry.faults import printable
from envbuild.registry.retry import Retry

PARALLEL = 4
"""Blobs at once; go-containerregistry's number."""

Report = Callable[[str, int, int], None]
"""Told a blob's digest, the bytes of it that are there, and all of its bytes; never by two threads at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What a push did."""

    reference: Reference
    """By digest, which the registry has confirmed."""
    uploaded: int
    """Bytes of blobs that were sent."""
    existing: int
    """Bytes of blobs that were there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blob:
    descriptor: Descriptor
    open: Opener


def push(
    image: Image,
    reference: Reference,
    *,
    tags: Sequence[str] = (),
    report: Report = lambda _name, _done, _size: None,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> PushResult:
    """Push an image and tag it with the reference's tag and `tags`; what is already there is not sent.

    Raises RegistryError, BuildError when a layer's bytes are not what its descriptor says, and UsageError.
    After any error no tag points to the image, and all other uploads have been cut.
    """
    named = _tags(reference, tags, image)
    blobs = _blobs(image)
    with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
        sent = 0
        media_type = str(json.loads(image.manifest).get("mediaType") or MANIFEST)
        if not registry.has_manifest(reference.repository, image.digest):
            sent = _send(registry, reference.repository, blobs, report)
            registry.put_manifest(reference.repository, str(image.digest), image.manifest, media_type)
        _confirm(registry, reference, image)
        for tag in named:
            # A tag that is right already is left alone: repositories with immutable tags refuse even the same again.
            if registry.manifest_digest(reference.repository, tag) != str(image.digest):
                registry.put_manifest(reference.repository, tag, image.manifest, media_type)
    total = sum(blob.descriptor.size for blob in blobs)
    return PushResult(reference=reference.at(image.digest), uploaded=sent, existing=total - sent)


def check_push(reference: Reference, *, credentials: Credentials | None = None, retry: Retry | None = None) -> None:
    """Find out before hours of work whether the registry would take an image; RegistryError when it would not."""
    with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
        registry.check_push(reference.repository)


def _tags(reference: Reference, tags: Sequence[str], image: Image) -> list[str]:
    if reference.digest not in (None, image.digest):
        raise UsageError(f"the image is {image.digest}, not what the reference says", where=str(reference))
    named = dict.fromkeys(tag for tag in (reference.tag, *tags) if tag is not None)
    for tag in named:
        try:
            replace(reference, tag=tag)
        except ValueError as error:
            raise UsageError(str(error), where=str(reference)) from error
    return list(named)


def _blobs(image: Image) -> list[_Blob]:
    """Each blob once: the largest layers first, so that no big one is left to the end alone; the config last."""
    layers = {layer.descriptor.digest: _Blob(descriptor=layer.descriptor, open=layer.open) for layer in image.layers}
    ordered = sorted(layers.values(), key=lambda blob: (-blob.descriptor.size, blob.descriptor.digest))
    config = Descriptor(CONFIG, image.config_digest, len(image.config))
    return [*ordered, _Blob(descriptor=config, open=lambda: BytesIO(image.config))]


def _send(registry: Registry, repository: str, blobs: Sequence[_Blob], report: Report) -> int:
    """Send the blobs that are not there; return their bytes."""
    lock = threading.Lock()

    def told(name: str, done: int, size: int) -> None:
        with lock:
            report(name, done, size)

    *layers, config = (partial(_send_one, registry, repository, blob, told) for blob in blobs)
    return _all(registry, layers) + config()


def _send_one(registry: Registry, repository: str, blob: _Blob, report: Report) -> int:
    name, size = str(blob.descriptor.digest), blob.descriptor.size
    if registry.has_blob(repository, blob.descriptor.digest):
        report(name, size, size)
        return 0
    registry.put_blob(repository, blob.descriptor, blob.open, progress=lambda done: report(name, done, size))
    return size


def _all(registry: Registry, jobs: Iterable[Callable[[], int]]) -> int:
    """Run the jobs at the same time; the first failure, or Ctrl-C, cuts the others off."""
    pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="push")
    try:
        return sum(done.result() for done in as_completed([pool.submit(job) for job in jobs]))
    except BaseException:
        registry.stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _confirm(registry: Registry, reference: Reference, image: Image) -> None:
    """Have the registry show the manifest by digest: only that digest and these bytes may be stamped on a model."""
    found = registry.manifest(reference.repository, str(image.digest))
    if found.data != image.manifest or found.said_digest not in ("", str(image.digest)):
        other = printable(found.said_digest) or "other bytes"
        what = f"{reference.registry} does not confirm {image.digest}: it gives {other}"
        todo = "nothing was tagged or stamped; check the registry, and any proxy before it"
        raise RegistryError(what, where=str(reference.at(image.digest)), todo=todo)
