"""Registry -> registry: manifests byte for byte, blobs mounted if possible, else streamed."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.pull import ARCHITECTURES, choose_manifest, parse_fault, read_manifest
from envbuild.registry.push import PARALLEL, confirm_manifest, publish
from envbuild.report import SILENT, Reporter
from envbuild.retry import Retry

_DEPTH = 3
"""Indexes in indexes."""
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The result of a copy."""

    reference: Reference
    """By digest, which is the source's, and which the registry has confirmed."""
    manifests: tuple[Digest, ...]
    """The images that were copied, and the index above them last."""
    sent: int
    """Bytes of blobs that went through this machine."""
    mounted: int
    """Bytes of blobs that the registry had in the source's repository."""
    existing: int
    """Bytes of blobs that were there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceManifest:
    """A manifest or index as it is in the source."""

    data: bytes
    media_type: str
    blobs: tuple[Descriptor, ...]

    @property
    def digest(self) -> Digest:
        return Digest.of(self.data)


def copy_image(
    source: Reference,
    target: Reference,
    *,
    machine: str | None = None,
    report: Reporter = SILENT,
    retry: Retry | None = None,
) -> CopyResult:
    """Copy an image, or an index with all its images, and give it the target's tag, else the source's.

    `machine` (`x86_64`) takes only its image out of an index. The tag comes last, so after an error no tag points to
    half a copy. RegistryError when either registry refuses, or the source is not what its digests say.
    """
    with ExitStack() as stack:
        there = stack.enter_context(Registry(target.registry, retry=retry))
        same = source.registry == target.registry
        here = there if same else stack.enter_context(Registry(source.registry, retry=retry))
        parts = _read_manifests(here, source, ARCHITECTURES.get(machine, machine) if machine else None)
        lacking = [part for part in parts if not there.has_manifest(target.repository, part.digest)]
        blobs = {blob.digest: blob for part in lacking for blob in part.blobs}
        largest_first = sorted(blobs.values(), key=lambda blob: (-blob.size, blob.digest))
        sent, mounted = _copy_blobs(here, source.repository, there, target.repository, largest_first, report)
        for part in lacking:
            there.put_manifest(target.repository, str(part.digest), part.data, part.media_type)
        confirm_manifest(there, target, parts[-1].data)
    reference = target.at(parts[-1].digest)
    if tag := target.tag or source.tag or (None if source.digest else source.target):
        publish({reference: (tag,)}, retry=retry)
    total = sum({blob.digest: blob.size for part in parts for blob in part.blobs}.values())
    digests = tuple(part.digest for part in parts)
    return CopyResult(
        reference=reference, manifests=digests, sent=sent, mounted=mounted, existing=total - sent - mounted
    )


def _read_manifests(registry: Registry, source: Reference, architecture: str | None) -> list[_SourceManifest]:
    """All manifests to copy, each after those that it names."""
    try:
        value, data = read_manifest(registry, source, source.target)
        if architecture and "manifests" in value:
            value, data = read_manifest(registry, source, choose_manifest(value, architecture, source))
        return list({part.digest: part for part in _read_tree(registry, source, value, data, _DEPTH)}.values())
    except _WRONG as error:
        what = f"{source} has a manifest that cannot be read ({parse_fault(error)})"
        raise RegistryError(what, where=str(source), todo="name an image with an OCI or Docker manifest") from error


def _read_tree(
    registry: Registry, source: Reference, value: Mapping[str, Any], data: bytes, depth: int
) -> Iterator[_SourceManifest]:
    if not depth:
        raise RegistryError(f"{source} has more than {_DEPTH} nested indexes", where=str(source))
    for entry in value.get("manifests", ()):
        child = read_manifest(registry, source, str(Descriptor.from_dict(entry).digest))
        yield from _read_tree(registry, source, *child, depth - 1)
    blobs = () if "manifests" in value else (value["config"], *value["layers"])
    yield _SourceManifest(data=data, media_type=str(value["mediaType"]), blobs=tuple(map(Descriptor.from_dict, blobs)))


def _copy_blobs(
    here: Registry, source: str, there: Registry, target: str, blobs: Sequence[Descriptor], report: Reporter
) -> tuple[int, int]:
    """Copy blobs between repositories; return the bytes that were sent, and those that were mounted."""

    def copy(blob: Descriptor) -> tuple[int, int]:
        name, size = f"copying {blob.digest}", blob.size
        if there.has_blob(target, blob.digest):
            report.progress(name, size, size)
            return 0, 0
        if here is there and there.mount(target, blob.digest, source=source):
            report.progress(name, size, size)
            return 0, size
        opened = partial(here.open_blob, source, blob)
        there.put_blob(target, blob, opened, progress=lambda done: report.progress(name, done, size))
        return size, 0

    pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="copy")
    try:
        done = [each.result() for each in as_completed([pool.submit(copy, blob) for blob in blobs])]
    except BaseException:
        here.stop()
        there.stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return sum(sent for sent, _ in done), sum(mounted for _, mounted in done)
