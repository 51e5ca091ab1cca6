"""An image straight into a running engine: what it has is not sent, and nothing is written on the way."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import docker
from docker.errors import ImageNotFound

from envbuild.engine.client import connected
from envbuild.engine.events import Event, events, fault_of
from envbuild.engine.image import Report
from envbuild.errors import BuildError, UsageError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Content, Image, images_of, platform_name
from envbuild.oci.layout import Archive
from envbuild.oci.reference import Reference

INSTEAD = "leave out --load, and give --archive FILE or --push REPOSITORY"
"""What people without an engine can do."""
_QUIET = 600
"""Seconds that an engine may say nothing while it unpacks what it got."""
_LOOKED_AT = 100
"""Images of the engine, newest first, that are asked for their layers: some milliseconds each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An image that the engine has now."""

    id: str
    """The engine's own name of it: the digest of its config, or of its manifest where containerd keeps the images."""
    image: Image
    """The one of an index that is for this engine."""
    sent: int
    """Bytes; 0 when the engine had the image."""
    existing: int
    """Bytes of compressed layers that were not sent, as the engine had them."""


class _RefusedError(BuildError):
    """What the engine said against an archive."""


def load(content: Content, names: Sequence[Reference], report: Report) -> Loaded:
    """Load an image into the engine that this machine is set up for, under these names.

    MissingComponentError when no engine answers, BuildError for what it refuses and for layers that are not what their
    descriptors say, UsageError for names by digest and an index without an image for the engine.
    """
    with connected(INSTEAD) as client:
        return load_into(client, content, names, report)


def load_into(client: docker.DockerClient, content: Content, names: Sequence[Reference], report: Report) -> Loaded:
    """Load an image by this client."""
    image = _chosen(client, content)
    whole = Archive(image, tuple(names))
    total = sum(layer.descriptor.size for layer in image.layers)
    if identity := _found(client, image):
        for name in names:
            client.api.tag(identity, name.name, name.tag or "latest", force=True)
        return Loaded(id=identity, image=image, sent=0, existing=total)
    lean = replace(whole, without=_had(client, image))
    try:
        sent, without = _send(client, lean, report), lean.without
    except _RefusedError:
        if not lean.without:
            raise
        # The image that these layers belonged to may have been removed a moment ago.
        sent, without = _send(client, whole, report), whole.without
    identity = _found(client, image)
    if identity is None:
        what = f"the engine took the image, and has neither {image.config_digest} nor {image.digest}"
        raise BuildError(what, where="container engine", todo="see the engine's own log; push to a registry instead")
    existing = sum(layer.descriptor.size for layer in image.layers if layer.descriptor.digest in without)
    return Loaded(id=identity, image=image, sent=sent, existing=existing)


def _chosen(client: docker.DockerClient, content: Content) -> Image:
    images = images_of(content)
    if len(images) == 1:
        return images[0]
    version = client.version()
    wanted = f"{version['Os']}/{version['Arch']}"
    offered = {platform_name(image): image for image in images}
    # The engine names no variant; where there are several, the plain one or the first is as good as it gets.
    fitting = [image for name, image in offered.items() if name == wanted or name.startswith(f"{wanted}/")]
    if not fitting:
        what = f"the engine is {wanted}, and the images are for {', '.join(offered)}"
        raise UsageError(what, where="--platform", todo="add the engine's platform, or use an engine of another")
    return fitting[0]


def _found(client: docker.DockerClient, image: Image) -> str | None:
    """The engine's name of the image, which is content-addressed in one of two ways."""
    for digest in (image.config_digest, image.digest):
        with suppress(ImageNotFound):
            return str(client.images.get(str(digest)).id)
    return None


def _had(client: docker.DockerClient, image: Image) -> frozenset[Digest]:
    """The layers that need not be in the archive, as the engine looks for them before it opens it.

    Docker's own store does so for layers on the same layers below (moby, image/tarexport/load.go); containerd and
    podman want all that the manifest names.
    """
    if not _own_store(client):
        return frozenset()
    ours = [str(layer.diff_id) for layer in image.layers]
    longest = max((_common(ours, theirs) for theirs in _chains(client)), default=0)
    needed = {layer.descriptor.digest for layer in image.layers[longest:]}
    return frozenset(layer.descriptor.digest for layer in image.layers[:longest]) - needed


def _own_store(client: docker.DockerClient) -> bool:
    components = client.version().get("Components") or ()
    status = client.info().get("DriverStatus") or ()
    return any(one.get("Name") == "Engine" for one in components) and not any(
        "containerd" in str(row) for row in status
    )


def _chains(client: docker.DockerClient) -> Iterator[Sequence[str]]:
    """The uncompressed layers of each image, lowest first."""
    newest = sorted(client.api.images(), key=lambda one: int(one.get("Created") or 0), reverse=True)
    for one in newest[:_LOOKED_AT]:
        with suppress(ImageNotFound):
            attributes: Mapping[str, Any] = client.api.inspect_image(one["Id"])
            yield (attributes.get("RootFS") or {}).get("Layers") or ()


def _common(ours: Sequence[str], theirs: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def _send(client: docker.DockerClient, archive: Archive, report: Report) -> int:
    total = archive.size

    def counted() -> Iterator[bytes]:
        done = 0
        for part in archive.parts():
            yield part
            done += len(part)
            report.progress("loading", done, total)

    answered = events(client, "/images/load", data=counted(), timeout=_QUIET)
    faults = [fault for event in answered if (fault := _fault(event))]
    if faults:
        raise _refused(faults[0])
    return total


def _fault(event: Event) -> str:
    """What an event says against the image; containerd's store says it in passing (moby, image_exporter.go)."""
    said = str(event.get("stream") or "")
    return fault_of(event) or (said if said.startswith("Error unpacking") else "")


def _refused(why: str) -> _RefusedError:
    todo = "see the engine's own log, and that its disk is not full; push to a registry instead"
    text = " ".join(str(why).split())[:500]
    return _RefusedError(f"the engine did not load the image: {text}", where="container engine", todo=todo)
