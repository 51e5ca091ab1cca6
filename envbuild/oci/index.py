"""Several images as one, a platform each (OCI image-spec, image-index.md)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.errors import BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import INDEX, MANIFEST, Descriptor, Image, canonical_json

_PLATFORM = ("architecture", "os", "os.version", "os.features", "variant")
"""What a config says of its platform (config.md, "Properties"), in the words of image-index.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIndex:
    """An index: its exact bytes, and its images in the order in which it names them."""

    data: bytes
    images: tuple[Image, ...]

    @property
    def digest(self) -> Digest:
        """The digest of the index."""
        return Digest.of(self.data)


Content = Image | ImageIndex
"""What can be written somewhere."""


def image_index(images: Sequence[Image], annotations: Mapping[str, str] | None = None) -> ImageIndex:
    """Join images of different platforms; the order in which they are given decides nothing.

    BuildError when there are none, or two of them are for the same platform.
    """
    ordered = tuple(sorted(images, key=lambda image: _order(platform_of(image))))
    names = [platform_name(image) for image in ordered]
    if not names or len(set(names)) < len(names):
        what = f"an index needs images, each for another platform; these are for {', '.join(names) or 'none'}"
        raise BuildError(what, where="--platform", todo="name each platform once")
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [_manifest(image) | {"platform": platform_of(image)} for image in ordered],
    }
    return ImageIndex(data=canonical_json(value | _annotated(annotations or {})), images=ordered)


def images_of(content: Content) -> tuple[Image, ...]:
    """The images of an index, or the one that is given."""
    return content.images if isinstance(content, ImageIndex) else (content,)


def platform_of(image: Image) -> dict[str, Any]:
    """What the image's config says of the platform that it is for, as an index says it."""
    config = json.loads(image.config)
    return {name: config[name] for name in _PLATFORM if config.get(name)}


def platform_name(image: Image) -> str:
    """The platform as `--platform` has it: `linux/amd64`, `linux/arm/v7`."""
    return "/".join(part for part in _order(platform_of(image)) if part)


def top_index(content: Content, named: Sequence[Mapping[str, str]] = ()) -> bytes:
    """Return the bytes of a layout's index.json, which has the image once for each set of annotations."""
    entries = [_entry(content) | _annotated(annotations) for annotations in named or ({},)]
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def _entry(content: Content) -> dict[str, Any]:
    if isinstance(content, ImageIndex):
        return Descriptor(INDEX, content.digest, len(content.data)).to_dict()
    return _manifest(content) | {"platform": platform_of(content)}


def _manifest(image: Image) -> dict[str, Any]:
    return Descriptor(MANIFEST, image.digest, len(image.manifest)).to_dict()


def _annotated(annotations: Mapping[str, str]) -> dict[str, Any]:
    return {"annotations": dict(annotations)} if annotations else {}


def _order(platform: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(platform.get("os", "")), str(platform.get("architecture", "")), str(platform.get("variant", ""))
