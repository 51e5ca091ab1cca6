"""Image index -> registry: its images by digest, then the index by digest and confirmed, and only then tags."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from envbuild.errors import UsageError
from envbuild.oci.digest import Digest
from envbuild.oci.image import INDEX, MANIFEST
from envbuild.oci.index import ImageIndex
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.credentials import Credentials
from envbuild.registry.push import PushResult, Report, confirm, push
from envbuild.registry.retry import Retry
from envbuild.registry.tags import set_tag

_Tagged = tuple[str, bytes, str]
"""Tag, and the bytes and media type of what gets it."""


def push_index(
    index: ImageIndex,
    reference: Reference,
    *,
    tags: Sequence[str] = (),
    image_tags: Mapping[Digest, Sequence[str]] | None = None,
    report: Report = lambda _name, _done, _size: None,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> PushResult:
    """Push an index and its images; tag it with the reference's tag and `tags`, and its images with `image_tags`.

    Raises RegistryError, BuildError when a layer's bytes are not what its descriptor says, and UsageError. After an
    error before the index is confirmed no tag points to it or to one of its images.
    """
    if reference.digest not in (None, index.digest):
        raise UsageError(f"the index is {index.digest}, not what the reference says", where=str(reference))
    wanted = dict.fromkeys(_wanted(index, reference, tags, image_tags or {}))
    place = replace(reference, tag=None, digest=None)
    pushed = [push(image, place, report=report, credentials=credentials, retry=retry) for image in index.images]
    with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
        if not registry.has_manifest(place.repository, index.digest):
            registry.put_manifest(place.repository, str(index.digest), index.data, INDEX)
        confirm(registry, place, index.data)
        for tag, data, media_type in wanted:
            set_tag(registry, place.repository, tag, data, media_type)
    return PushResult(
        reference=place.at(index.digest),
        uploaded=sum(result.uploaded for result in pushed),
        existing=sum(result.existing for result in pushed),
    )


def _wanted(
    index: ImageIndex, reference: Reference, tags: Sequence[str], image_tags: Mapping[Digest, Sequence[str]]
) -> Iterator[_Tagged]:
    """The tags of the images first: whoever finds the index by its tag finds the rest done."""
    for image in index.images:
        for tag in image_tags.get(image.digest, ()):
            yield _valid(reference, tag), image.manifest, MANIFEST
    for tag in (*([reference.tag] if reference.tag else []), *tags):
        yield _valid(reference, tag), index.data, INDEX


def _valid(reference: Reference, tag: str) -> str:
    try:
        replace(reference, tag=tag)
    except ValueError as error:
        raise UsageError(str(error), where=str(reference)) from error
    return tag
