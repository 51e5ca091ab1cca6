"""Image or index -> registry: blobs in parallel, then the manifest by digest, its confirmation, and last the tags.

If a tag may not move, the error names what it points to.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, Literal, Self

from envbuild.cache import read_entry, write_entry
from envbuild.errors import BuildError, RegistryError, UsageError
from envbuild.oci.blobs import AbandonedError, GrowingBlob, open_file
from envbuild.oci.digest import Digest
from envbuild.oci.image import CONFIG, ENVIRONMENT, INDEX, MANIFEST, Descriptor, Image, ImageIndex, Layer
from envbuild.oci.reference import Reference
from envbuild.registry.auth import Credentials
from envbuild.registry.client import Registry
from envbuild.registry.faults import CHECK_REGISTRY, printable
from envbuild.registry.pull import fetch_manifest
from envbuild.report import SILENT, Reporter
from envbuild.retry import Retry, as_completed

_LABEL = 60
"""Characters of a layer's name in progress lines."""
_REFUSALS = frozenset({400, 403, 405, 409, 412})
"""Answers of registries when a tag may not move: they differ."""
PARALLEL = 4
"""Blobs at once; go-containerregistry's number."""

_MOST_PLACES = 10_000
"""Layers of one registry whose repositories are remembered."""

OnSent = Callable[[GrowingBlob], None]
"""Gets, in another thread, a layer that was sent while it was written, once the registry has it."""
BlobArrival = Literal["sent", "mounted", "there"]
"""How a blob came into the repository: sent, mounted from another repository, or there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """The result of a push."""

    reference: Reference
    """By digest, which the registry has confirmed."""
    uploaded: int
    """Bytes of blobs that were sent."""
    not_sent: int
    """Bytes of blobs that were not sent: they were there before, or were mounted from another repository."""
    blobs: Mapping[Digest, BlobArrival] = field(default_factory=dict)
    """How each blob came there; if the image existed already, only blobs whose upload had begun."""

    @property
    def digest(self) -> Digest:
        """The digest of the image or index."""
        assert self.reference.digest is not None, "a push ends with a reference by digest"
        return self.reference.digest


def push(
    image: Image,
    reference: Reference,
    *,
    tags: Sequence[str] = (),
    report: Reporter = SILENT,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
    cache: Path | None = None,
) -> PushResult:
    """Push an image and tag it with the reference's tag and `tags`; what is already there is not sent.

    An image that gets attachments is pushed without tags, which `publish` then sets.
    Raises RegistryError, BuildError when a layer's bytes are not what its descriptor says, and UsageError.
    After an error all other uploads have been cut, and every tag points to a whole image; tags that were set
    before the error may have moved already.
    """
    named = _valid_tags(reference, tags, image.digest)
    with Upload(reference, report=report, credentials=credentials, retry=retry, cache=cache) as upload:
        result = upload.finish(image)
    if named:
        publish({result.reference: named}, credentials=credentials, retry=retry)
    return result


class Upload:
    """An upload of an image, whose layers may be sent before the image is complete.

    Leaving the block by an error, or by Ctrl-C, cuts all requests. Without `trust_registry`, an existing manifest
    does not prove its blobs, and each is checked. `cache` remembers in which repositories layers are, so that others of
    the registry mount them.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        report: Reporter = SILENT,
        on_sent: OnSent = lambda _blob: None,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
        trust_registry: bool = True,
        cache: Path | None = None,
    ) -> None:
        self._reference, self._report, self._on_sent, self._trust_registry = reference, report, on_sent, trust_registry
        self._places = _Places(cache, reference.registry)
        self._registry = Registry(reference.registry, credentials=credentials, retry=retry)
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="push")
        self._uploads: dict[Digest, Future[BlobArrival]] = {}
        # Their own threads, as they wait for the layers' writers.
        self._stream_threads = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="follow")
        self._streams: dict[GrowingBlob, Future[bool]] = {}
        self._can_stream = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._registry.stop()
        self._pool.shutdown(cancel_futures=True)
        if not all(future.done() for future in self._streams.values()):
            self._registry.stop()  # their results are not needed any more
        self._stream_threads.shutdown(cancel_futures=True)
        self._registry.close()

    def follow(self, blob: GrowingBlob) -> None:
        """Begin to send a layer while it is still being written, if the registry is not known to have it.

        If that fails for any reason, it and the later ones are sent when they are offered.
        """
        if self._can_stream:
            with suppress(OSError):  # of too many open files: it is sent later
                file = FileIO(blob.path)
                self._streams[blob] = self._stream_threads.submit(self._follow, blob, file)

    def offer(self, layer: Layer) -> None:
        """Begin to send a layer of the image; raises the error of an earlier one."""
        for future in self._uploads.values():
            if future.done():
                future.result()
        if layer.descriptor.digest not in self._uploads:
            self._uploads[layer.descriptor.digest] = self._pool.submit(self._send, layer)

    def finish(self, image: Image) -> PushResult:
        """Send what is missing, the config last, then the manifest by digest, and confirm it. Errors as `push`."""
        registry, repository = self._registry, self._reference.repository
        media_type = str(json.loads(image.manifest).get("mediaType") or MANIFEST)
        sizes = {blob.descriptor.digest: blob.descriptor.size for blob in (*image.layers, _config(image))}
        if self._trust_registry and self._is_there(image):
            # Uploads that have not begun are not needed any more.
            begun = {digest: future for digest, future in self._uploads.items() if not future.cancel()}
            how = {digest: future.result() for digest, future in begun.items() if future.exception() is None}
        else:
            how = self._send_all(image)
            registry.put_manifest(repository, str(image.digest), image.manifest, media_type)
            confirm_manifest(registry, self._reference, image.manifest)
        self._places.remember(repository, image)
        sent = sum(size for digest, size in sizes.items() if how.get(digest) == "sent")
        not_sent = sum(sizes.values()) - sent
        return PushResult(reference=self._reference.at(image.digest), uploaded=sent, not_sent=not_sent, blobs=how)

    def _is_there(self, image: Image) -> bool:
        """Whether the registry has and confirms the manifest."""
        try:
            confirm_manifest(self._registry, self._reference, image.manifest)
        except RegistryError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _send_all(self, image: Image) -> dict[Digest, BlobArrival]:
        """Send the layers, the largest first, so that none of them runs alone at the end; then the config."""
        for layer in sorted(image.layers, key=lambda it: (-it.descriptor.size, it.descriptor.digest)):
            self.offer(layer)
        for future in as_completed(self._uploads.values()):
            future.result()
        how = {digest: future.result() for digest, future in self._uploads.items()}
        return how | {image.config_digest: self._send(_config(image))}

    def _follow(self, blob: GrowingBlob, file: FileIO) -> bool:
        """Send a growing layer; return whether the registry has it."""

        def pieces() -> Iterator[bytes]:
            done = 0
            for piece in blob.pieces(file, self._registry.check):
                yield piece
                done += len(piece)
                self._report_bytes(blob.label, done, max(done + 1, blob.expected))

        with file:
            if not self._can_stream:
                return False
            try:
                self._registry.put_growing(self._reference.repository, pieces, blob.finished)
            except (RegistryError, AbandonedError, OSError):
                self._can_stream = False
                return False
        size = blob.finished().size
        self._report_bytes(blob.label, size, size)
        self._on_sent(blob)
        return True

    def _send(self, layer: Layer) -> BlobArrival:
        followed = [it for blob, it in list(self._streams.items()) if blob.descriptor == layer.descriptor]
        if any(future.exception() is None and future.result() for future in followed):
            return "sent"
        descriptor, registry, repository = layer.descriptor, self._registry, self._reference.repository
        how: BlobArrival = "there"
        if not registry.has_blob(repository, descriptor.digest, size=descriptor.size):
            sources = self._places.sources(layer) - {repository}
            mounted = any(registry.mount(repository, descriptor.digest, source=it) for it in sorted(sources))
            how = "mounted" if mounted else "sent"
        if how == "sent":
            label = layer.created_by or str(descriptor.digest)
            progress = partial(self._report_bytes, label, size=descriptor.size)
            put = partial(registry.put_blob, repository, descriptor, progress=progress)
            # The file is hashed while it is sent; if it is damaged, `layer.open` builds it again.
            if layer.path:
                with suppress(BuildError, OSError):
                    put(partial(open_file, layer.path))
                    return how
            put(layer.open)
        return how

    def _report_bytes(self, label: str, done: int, size: int) -> None:
        self._report.progress(f"pushing {label[:_LABEL]}", done, size)


class _Places:
    """The repositories of one registry that this machine has pushed layers to."""

    def __init__(self, cache: Path | None, host: str) -> None:
        self._folder, self._host, self._name = cache and cache / "pushed", host, f"{Digest.of(host.encode()).hex}.json"
        self._known = (self._folder and read_entry(self._folder, self._name, _repositories)) or {}

    def sources(self, layer: Layer) -> set[str]:
        """Return where a layer may be: where it was pulled from, and where it was pushed to last."""
        host, _, source = layer.origin.partition("/")
        known = self._known.get(str(layer.descriptor.digest))
        return ({source} if host == self._host else set()) | ({known} if known else set())

    def remember(self, repository: str, image: Image) -> None:
        """Keep where an image's layers are now."""
        its = {str(it.descriptor.digest): repository for it in image.layers}
        if self._folder and self._known | its != self._known:
            with suppress(OSError):  # the cache may only be read
                older = read_entry(self._folder, self._name, _repositories) or {}
                others = [it for it in older.items() if it[0] not in its]
                write_entry(self._folder, self._name, [*others, *its.items()][-_MOST_PLACES:])


def _repositories(rows: Any) -> dict[str, str]:
    return {str(digest): str(repository) for digest, repository in rows}


def _config(image: Image) -> Layer:
    descriptor = Descriptor(CONFIG, image.config_digest, len(image.config))
    return Layer(descriptor, image.config_digest, lambda: BytesIO(image.config), created_by="config")


def check_push(reference: Reference, *, retry: Retry | None = None) -> None:
    """Check before hours of work that the registry accepts a push; RegistryError when it does not."""
    with Registry(reference.registry, retry=retry) as registry:
        registry.check_push(reference.repository)


def _valid_tags(reference: Reference, tags: Sequence[str], digest: Digest) -> list[str]:
    """The tags that an image or index gets; UsageError for an invalid tag, or a reference to another image."""
    if reference.digest not in (None, digest):
        raise UsageError(f"the image is {digest}, not what the reference says", where=str(reference))
    named = dict.fromkeys(tag for tag in (reference.tag, *tags) if tag is not None)
    for tag in named:
        try:
            replace(reference, tag=tag)
        except ValueError as error:
            raise UsageError(str(error), where=str(reference)) from error
    return list(named)


def confirm_manifest(registry: Registry, reference: Reference, data: bytes) -> None:
    """Read a manifest or index back by digest: only a confirmed one may be tagged or stamped."""
    digest = Digest.of(data)
    found = registry.manifest(reference.repository, str(digest))
    if found.data != data or found.header_digest not in ("", str(digest)):
        other = printable(found.header_digest) or "other bytes"
        what = f"{reference.registry} does not confirm {digest}: it gives {other}"
        todo = f"nothing was tagged or stamped; {CHECK_REGISTRY}"
        raise RegistryError(what, where=str(reference.at(digest)), todo=todo)


def push_index(index: ImageIndex, reference: Reference, *, retry: Retry | None = None) -> PushResult:
    """Push an index and its images, and tag it with the reference's tag.

    Raises RegistryError, BuildError when a layer's bytes are not what its descriptor says, and UsageError. After an
    error before the index is confirmed no tag points to it.
    """
    place, named = replace(reference, tag=None, digest=None), _valid_tags(reference, (), index.digest)
    pushed = [push(image, place, retry=retry) for image in index.images]
    with Registry(reference.registry, retry=retry) as registry:
        if not registry.has_manifest(place.repository, index.digest):
            registry.put_manifest(place.repository, str(index.digest), index.data, INDEX)
        confirm_manifest(registry, place, index.data)
    if named:
        publish({place.at(index.digest): named}, retry=retry)
    sent, not_sent = sum(result.uploaded for result in pushed), sum(result.not_sent for result in pushed)
    return PushResult(reference=place.at(index.digest), uploaded=sent, not_sent=not_sent)


def publish(
    images: Mapping[Reference, Iterable[str]],
    attach: Callable[[], object] = lambda: None,
    *,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> None:
    """Attach what belongs to images that a registry has by digest, and only then set their tags.

    Every push ends here, so no tag (but an engine's temporary one) names an image that is not signed yet. The keys are
    images and indexes by digest, the values their tags. RegistryError; if `attach` raises it, no tag has moved.
    """
    try:
        attach()
    except RegistryError as error:
        *_, last = images
        what = f"{error.what}; no tag was moved, and {last} has what was pushed"
        raise RegistryError(what, where=error.where, todo=error.todo, status=error.status) from error
    for reference, tags in images.items():
        with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
            found = fetch_manifest(registry, reference, reference.target)
            for tag in tags:
                set_tag(registry, reference.repository, tag, found.data, found.media_type)


def remove_tag(reference: Reference, report: Reporter) -> None:
    """Remove a tag that only a push needed; warn if the registry refuses, as the tag keeps the image."""
    assert reference.tag is not None, "tags are removed by name"
    try:
        with Registry(reference.registry) as registry:
            registry.delete_tag(reference.repository, reference.tag)
    except RegistryError as error:
        if error.status != 404:
            report.warn(
                f"cannot remove {reference}, which this push needed: {error.what}; let a cleanup policy remove it"
            )


def stamped_tag(digest: Digest) -> str:
    """`stamped-a1b2c3d4e5f6`: the tag of a stamped image, by which a cleanup policy can keep it."""
    return f"stamped-{digest.short}"


def set_tag(registry: Registry, repository: str, tag: str, data: bytes, media_type: str) -> None:
    """Set a tag to an existing manifest or index; RegistryError with its present digest if it may not move.

    A tag that is right already is left alone, as repositories with immutable tags refuse even the same digest. A
    refusal because another client has just set the same digest is no error.
    """
    digest = str(Digest.of(data))
    if registry.manifest_digest(repository, tag) == digest:
        return
    try:
        registry.put_manifest(repository, tag, data, media_type)
    except RegistryError as error:
        if error.status not in _REFUSALS:
            raise
        found = None
        with suppress(RegistryError):
            found = registry.manifest_digest(repository, tag)
        if found == digest:
            return
        if found:
            raise _immutable(f"{registry.host}/{repository}:{tag}", found, digest, error.what) from error
        raise


def check_tag(reference: Reference, environment: Digest | None, *, retry: Retry | None = None) -> None:
    """Check before the work that an immutable tag does not name another image than will be built; RegistryError.

    Images of one environment are equal; `environment` is None for builds whose bytes differ each time.
    """
    with Registry(reference.registry, retry=retry) as registry:
        found = registry.manifest_digest(reference.repository, reference.target)
        if found is None:
            return
        data = registry.manifest(reference.repository, reference.target).data if environment else b"{}"
    try:
        there = str((json.loads(data).get("annotations") or {}).get(ENVIRONMENT))
    except (ValueError, AttributeError, RecursionError):
        there = ""
    if environment is None or there != str(environment):
        raise _immutable(str(reference), found)


def _immutable(where: str, present: str, new: str = "", reason: str = "") -> RegistryError:
    what = f"the tag names {present or 'another image'} already, and may not move" + (f" to {new}" if new else "")
    todo = "push with another tag or to another image name, as tags of this repository are immutable"
    return RegistryError(f"{what}: {reason}" if reason else what, where=where, todo=todo)
