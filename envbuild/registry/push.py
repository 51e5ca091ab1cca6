"""Image or index -> registry: blobs in parallel, the manifest by digest, its confirmation; tags come last."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO, FileIO
from types import TracebackType
from typing import Literal, Self

from envbuild.errors import BuildError, RegistryError, UsageError
from envbuild.oci.blobs import open_file
from envbuild.oci.digest import Digest
from envbuild.oci.growing import AbandonedError, GrowingBlob
from envbuild.oci.image import CONFIG, INDEX, MANIFEST, Descriptor, Image, Layer
from envbuild.oci.index import ImageIndex
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.credentials import Credentials
from envbuild.registry.faults import CHECK_REGISTRY, printable
from envbuild.registry.tags import publish
from envbuild.report import SILENT, Reporter
from envbuild.retry import Retry, as_completed

_LABEL = 60
"""Characters of a layer's name in progress lines."""
PARALLEL = 4
"""Blobs at once; go-containerregistry's number."""

Landed = Callable[[GrowingBlob], None]
"""Told, by a thread of its own, a layer that was sent while it was written, once the registry has it."""
How = Literal["sent", "mounted", "there"]
"""How a blob came into the repository: it was sent, taken over from another repository, or there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What a push did."""

    reference: Reference
    """By digest, which the registry has confirmed."""
    uploaded: int
    """Bytes of blobs that were sent."""
    existing: int
    """Bytes of blobs that were there before."""
    blobs: Mapping[Digest, How] = field(default_factory=dict)
    """How each blob that was asked for came there; where the whole image was there, those that were sent before."""


def push(
    image: Image,
    reference: Reference,
    *,
    tags: Sequence[str] = (),
    report: Reporter = SILENT,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> PushResult:
    """Push an image and tag it with the reference's tag and `tags`; what is already there is not sent.

    An image that gets something attached is pushed without tags, which `publish` then sets.
    Raises RegistryError, BuildError when a layer's bytes are not what its descriptor says, and UsageError.
    After an error all other uploads have been cut, and no tag points to less than the whole image: a tag whose setting
    was done and not confirmed is the only one that may be new.
    """
    named = valid_tags(reference, tags, image.digest)
    with Upload(reference, report=report, credentials=credentials, retry=retry) as upload:
        result = upload.finish(image)
    if named:
        publish({result.reference: named}, credentials=credentials, retry=retry)
    return result


class Upload:
    """An image on its way to a registry, whose layers may go before the image is whole.

    Leaving the block by an error, or by Ctrl-C, cuts all requests. Without `believing`, a manifest that is there says
    nothing of its blobs, and each is looked for.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        report: Reporter = SILENT,
        landed: Landed = lambda _blob: None,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
        believing: bool = True,
    ) -> None:
        self._reference, self._report, self._lock = reference, report, threading.Lock()
        self._believing = believing
        self._landed = landed
        self._registry = Registry(reference.registry, credentials=credentials, retry=retry)
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="push")
        self._sent: dict[Digest, Future[How]] = {}
        # Threads of their own, as they wait for those who write.
        self._followers = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="follow")
        self._followed: dict[GrowingBlob, Future[bool]] = {}
        self._follows = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._registry.stop()
        self._pool.shutdown(cancel_futures=True)
        if not all(future.done() for future in self._followed.values()):
            self._registry.stop()  # nobody waits for these any more
        self._followers.shutdown(cancel_futures=True)
        self._registry.close()

    def follow(self, blob: GrowingBlob) -> None:
        """Begin to send a layer that is still being written and that the registry is not known to have.

        Where that comes to nothing, for whatever reason, it is sent as others are once it is offered, and so are those
        that come after it.
        """
        if self._follows:
            with suppress(OSError):  # of too many open files: it is sent later
                file = FileIO(blob.path)
                self._followed[blob] = self._followers.submit(self._follow, blob, file)

    def offer(self, layer: Layer) -> None:
        """Begin to send a layer that the image will have; raises what an earlier one failed of."""
        for future in self._sent.values():
            if future.done():
                future.result()
        if layer.descriptor.digest not in self._sent:
            self._sent[layer.descriptor.digest] = self._pool.submit(self._send, layer)

    def finish(self, image: Image) -> PushResult:
        """Send what is missing, the config last, then the manifest by digest; have it confirmed. Errors as `push`."""
        registry, repository = self._registry, self._reference.repository
        media_type = str(json.loads(image.manifest).get("mediaType") or MANIFEST)
        sizes = {blob.descriptor.digest: blob.descriptor.size for blob in (*image.layers, _config(image))}
        if self._believing and _is_there(registry, self._reference, image):
            how = self._sent_before()
        else:
            how = self._send_all(image)
            registry.put_manifest(repository, str(image.digest), image.manifest, media_type)
            confirm(registry, self._reference, image.manifest)
        sent = sum(size for digest, size in sizes.items() if how.get(digest) == "sent")
        existing = sum(sizes.values()) - sent
        return PushResult(reference=self._reference.at(image.digest), uploaded=sent, existing=existing, blobs=how)

    def _sent_before(self) -> dict[Digest, How]:
        """How the layers came there that were begun; nobody needs those any more that were not."""
        begun = {digest: future for digest, future in self._sent.items() if not future.cancel()}
        return {digest: future.result() for digest, future in begun.items() if future.exception() is None}

    def _send_all(self, image: Image) -> dict[Digest, How]:
        """Send the layers, the largest first, so that no big one is left to the end alone; then the config."""
        for layer in sorted(image.layers, key=lambda it: (-it.descriptor.size, it.descriptor.digest)):
            self.offer(layer)
        for future in as_completed(self._sent.values()):
            future.result()
        how = {digest: future.result() for digest, future in self._sent.items()}
        return how | {image.config_digest: self._send(_config(image))}

    def _follow(self, blob: GrowingBlob, file: FileIO) -> bool:
        """Send what grows, and say whether the registry has it."""

        def pieces() -> Iterator[bytes]:
            done = 0
            for piece in blob.pieces(file, self._registry.check):
                yield piece
                done += len(piece)
                self._told(blob.label, done, max(done + 1, blob.expected))

        with file:
            if not self._follows:
                return False
            try:
                self._registry.put_growing(self._reference.repository, pieces, blob.finished)
            except (RegistryError, AbandonedError, OSError):
                self._follows = False
                return False
        size = blob.finished().size
        self._told(blob.label, size, size)
        self._landed(blob)
        return True

    def _was_followed(self, layer: Layer) -> bool:
        """Whether a layer was sent while it was made; waits for the rest of it."""
        found = (future for blob, future in list(self._followed.items()) if blob.descriptor == layer.descriptor)
        return any(future.exception() is None and future.result() for future in found)

    def _send(self, layer: Layer) -> How:
        if self._was_followed(layer):
            return "sent"
        descriptor, registry, repository = layer.descriptor, self._registry, self._reference.repository
        host, _, source = layer.origin.partition("/")
        how: How = "there"
        if not registry.has_blob(repository, descriptor.digest, size=descriptor.size):
            mountable = host == self._reference.registry and source != repository
            how = "mounted" if mountable and registry.mount(repository, descriptor.digest, source=source) else "sent"
        if how == "sent":
            label = layer.created_by or str(descriptor.digest)
            told = partial(self._told, label, size=descriptor.size)
            self._put(layer, told)
        return how

    def _put(self, layer: Layer, told: Callable[[int], None]) -> None:
        """Send a blob, hashed on its way; `layer.open` reads a cached one before, and makes a damaged one again."""
        put = partial(self._registry.put_blob, self._reference.repository, layer.descriptor, progress=told)
        if layer.path:
            with suppress(BuildError, OSError):
                return put(partial(open_file, layer.path))
        return put(layer.open)

    def _told(self, label: str, done: int, size: int) -> None:
        with self._lock:
            self._report.progress(f"pushing {label[:_LABEL]}", done, size)


def _config(image: Image) -> Layer:
    """The config, as a blob like the others."""
    descriptor = Descriptor(CONFIG, image.config_digest, len(image.config))
    return Layer(descriptor, image.config_digest, lambda: BytesIO(image.config), created_by="config")


def check_push(reference: Reference, *, credentials: Credentials | None = None, retry: Retry | None = None) -> None:
    """Find out before hours of work whether the registry would take an image; RegistryError when it would not."""
    with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
        registry.check_push(reference.repository)


def valid_tags(reference: Reference, tags: Sequence[str], digest: Digest) -> list[str]:
    """The tags that an image or index gets; UsageError for what is none, and for a reference to another image."""
    if reference.digest not in (None, digest):
        raise UsageError(f"the image is {digest}, not what the reference says", where=str(reference))
    named = dict.fromkeys(tag for tag in (reference.tag, *tags) if tag is not None)
    for tag in named:
        try:
            replace(reference, tag=tag)
        except ValueError as error:
            raise UsageError(str(error), where=str(reference)) from error
    return list(named)


def _is_there(registry: Registry, reference: Reference, image: Image) -> bool:
    """Whether the registry has the manifest; it is confirmed by the same answer."""
    try:
        confirm(registry, reference, image.manifest)
    except RegistryError as error:
        if error.status != 404:
            raise
        return False
    return True


def confirm(registry: Registry, reference: Reference, data: bytes) -> None:
    """Have the registry show a manifest or index by digest: only what it confirms may be tagged, or stamped."""
    digest = Digest.of(data)
    found = registry.manifest(reference.repository, str(digest))
    if found.data != data or found.header_digest not in ("", str(digest)):
        other = printable(found.header_digest) or "other bytes"
        what = f"{reference.registry} does not confirm {digest}: it gives {other}"
        todo = f"nothing was tagged or stamped; {CHECK_REGISTRY}"
        raise RegistryError(what, where=str(reference.at(digest)), todo=todo)


def push_index(
    index: ImageIndex,
    reference: Reference,
    *,
    tags: Sequence[str] = (),
    image_tags: Mapping[Digest, Sequence[str]] | None = None,
    report: Reporter = SILENT,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> PushResult:
    """Push an index and its images; tag it with the reference's tag and `tags`, and its images with `image_tags`.

    Raises RegistryError, BuildError when a layer's bytes are not what its descriptor says, and UsageError. After an
    error before the index is confirmed no tag points to it or to one of its images.
    """
    place = replace(reference, tag=None, digest=None)
    # The images' tags first: whoever finds the index by its tag finds the rest done.
    wanted = {place.at(it): valid_tags(place, named, it) for it, named in (image_tags or {}).items()}
    wanted[place.at(index.digest)] = valid_tags(reference, tags, index.digest)
    pushed = [push(image, place, report=report, credentials=credentials, retry=retry) for image in index.images]
    with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
        if not registry.has_manifest(place.repository, index.digest):
            registry.put_manifest(place.repository, str(index.digest), index.data, INDEX)
        confirm(registry, place, index.data)
    if any(wanted.values()):
        publish(wanted, credentials=credentials, retry=retry)
    return PushResult(
        reference=place.at(index.digest),
        uploaded=sum(result.uploaded for result in pushed),
        existing=sum(result.existing for result in pushed),
    )
