"""Image index -> registry: its images by digest, then the index by digest and confirmed, and only then tags."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from envbuild.oci.digest import Digest
from envbuild.oci.image import INDEX, ImageIndex
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.credentials import Credentials
from envbuild.registry.push import PushResult, Report, confirm, push, valid_tags
from envbuild.registry.retry import Retry
from envbuild.registry.tags import publish


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
