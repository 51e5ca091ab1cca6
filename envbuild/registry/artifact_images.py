"""An image in Artifact Registry as its repository's cleanup policies see it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.artifact_cleanup import Aged, Fate, Policy, counted, fate
from envbuild.registry.artifact_names import Place, place_of
from envbuild.registry.artifact_policies import Policies, Unread, policies_of, unreadable

if TYPE_CHECKING:
    from google.cloud.artifactregistry_v1 import ArtifactRegistryClient

_READER = (
    "artifactregistry.repositories.get, .dockerimages.get, .tags.get and .versions.list",
    "artifactregistry.reader",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the API knows of an image, and what will become of it."""

    digest: Digest | None
    """None where the tag that was asked for is not there."""
    image: Aged | None
    """None where the repository does not have it."""
    fate: Fate
    dry_run: bool
    """Whether cleanup is switched to only saying what it would do."""
    repository: str
    """`projects/P/locations/L/repositories/R`."""
    unread: tuple[Unread, ...] = ()
    """Policies that nobody here can evaluate for this image, which the fate leaves out."""


def outlook(
    reference: Reference, now: datetime, *, endpoint: str | None = None, seconds: float = 10.0
) -> Outlook | None:
    """Ask what will become of an image; None for other registries, and without Google credentials.

    RegistryError where the API refuses.
    """
    place = place_of(reference)
    if place is None:
        return None
    from envbuild.registry.artifact_client import connected, told  # noqa: PLC0415 - slow, and only for Google's hosts

    with connected(endpoint) as client:
        if client is None:
            return None
        with told(f"show {reference}", str(reference), *_READER):
            return _Asking(client, place, seconds).outlook(reference, now)


@dataclass(frozen=True, slots=True)
class _Asking:
    client: "ArtifactRegistryClient"
    place: Place
    seconds: float

    def outlook(self, reference: Reference, now: datetime) -> Outlook:
        policies, dry_run = self._policies()
        digest = reference.digest or self._tagged(reference.tag or "latest")
        image, dated = self._image(digest, now) if digest else (None, False)
        if image and not dated:
            policies = policies.but(_goes_by_age, "it goes by age, and nobody says when the image was uploaded")
        elif image:
            image = replace(image, newer=self._newer(image, counted(policies.known, image.package)))
        return Outlook(
            digest=digest,
            image=image,
            fate=fate(policies.known, image, now) if image else Fate(),
            dry_run=dry_run,
            repository=self.place.name,
            unread=policies.unread,
        )

    def _policies(self) -> tuple[Policies, bool]:
        """The policies, and whether cleanup is a dry run."""
        from google.protobuf.json_format import ParseError  # noqa: PLC0415

        try:
            repository = self.client.get_repository(name=self.place.name, **self._patience)
        except ParseError as error:
            return unreadable(error), False
        return policies_of(repository), bool(repository.cleanup_policy_dry_run)

    @property
    def _patience(self) -> dict[str, Any]:
        from envbuild.registry.artifact_client import patiently  # noqa: PLC0415

        return patiently(self.seconds)

    def _tagged(self, tag: str) -> Digest | None:
        from google.api_core.exceptions import NotFound  # noqa: PLC0415

        try:
            found = self.client.get_tag(name=f"{self.place.package}/tags/{tag}", **self._patience)
            return Digest.parse(found.version.rpartition("/")[2])
        except NotFound:
            return None
        except ValueError as error:
            raise RegistryError(f"the tag {tag} names no digest", where=self.place.package) from error

    def _image(self, digest: Digest, now: datetime) -> tuple[Aged | None, bool]:
        """The image, and whether it is known when it was uploaded; if not, it is as if it were now."""
        from google.api_core.exceptions import NotFound  # noqa: PLC0415

        try:
            found = self.client.get_docker_image(name=f"{self.place.images}@{digest}", **self._patience)
        except NotFound:
            return None, False
        when = found.upload_time
        image = Aged(package=self.place.image, digest=str(digest), uploaded=when or now, tags=tuple(found.tags))
        return image, when is not None

    def _newer(self, image: Aged, limit: int) -> int:
        """How many versions are newer, up to a limit: where no policy counts them, nobody is asked."""
        return sum(1 for _ in islice(self._newer_versions(image), limit)) if limit else 0

    def _newer_versions(self, image: Aged) -> Iterator[Any]:
        request = {"parent": self.place.package, "page_size": 1000}
        for version in self.client.list_versions(request=request, **self._patience):
            newer = version.create_time is None or version.create_time > image.uploaded
            if newer and not version.name.endswith(image.digest):
                yield version


def _goes_by_age(policy: Policy) -> bool:
    return any(it is not None for it in (policy.older_than, policy.newer_than, policy.most_recent))
