"""What a repository's cleanup policies will do to one image, and when.

All conditions of a policy have to hold, a prefix holds for any tag, and what a keep policy holds for is not deleted,
whatever else does (Artifact Registry, "Cleanup policy overview"; CleanupPolicyCondition of its API).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.artifact_registry import Place, place_of

TagState = Literal["any", "tagged", "untagged"]
_FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy of a repository."""

    name: str
    deletes: bool
    """Whether it deletes; else it keeps."""
    tag_state: TagState = "any"
    tag_prefixes: tuple[str, ...] = ()
    version_prefixes: tuple[str, ...] = ()
    package_prefixes: tuple[str, ...] = ()
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    most_recent: int | None = None
    """Keeps as many versions of each package, the newest; has no other condition than packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aged:
    """An image as policies see it."""

    package: str
    """The path inside the repository."""
    digest: str
    """`sha256:…`."""
    uploaded: datetime
    tags: tuple[str, ...] = ()
    newer: int = 0
    """How many versions of the package are newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of an image."""

    deleted_by: str = ""
    """The policy that will delete it; empty where none will."""
    when: datetime | None = None
    """From when on."""
    kept_by: tuple[str, ...] = ()
    """Policies that keep it now, where another would delete it."""
    recent: int | None = None
    """How many of the newest are kept, where nothing else keeps it: it goes when as many newer ones are there."""


def fate(policies: Sequence[Policy], image: Aged, now: datetime) -> Fate:
    """Say which policy will delete an image, or what keeps it."""
    deleting = [it for it in policies if it.deletes]
    lasting = [it for it in policies if not it.deletes and it.most_recent is None]
    counting = [it for it in policies if not it.deletes and _counts(it, image)]
    doomed = _first(deleting, lasting, image, now)
    if doomed is None:
        return Fate(kept_by=tuple(it.name for it in lasting if deleting and _holds(it, image, now)))
    when, policy = doomed
    if counting:
        best = max(counting, key=lambda it: it.most_recent or 0)
        return Fate(deleted_by=policy.name, when=when, kept_by=(best.name,), recent=best.most_recent)
    return Fate(deleted_by=policy.name, when=when)


def counted(policies: Iterable[Policy], package: str) -> int:
    """How many of a package's newest versions are kept at most; 0 where none are for being new."""
    return max((it.most_recent or 0 for it in policies if not it.deletes and _is_in(it, package)), default=0)


def _first(
    deleting: Sequence[Policy], keeping: Sequence[Policy], image: Aged, now: datetime
) -> tuple[datetime, Policy] | None:
    """The first moment at which it is deleted and not kept: conditions change at the ends of their durations only."""
    spans = {span for it in (*deleting, *keeping) for span in (it.older_than, it.newer_than) if span is not None}
    moments = sorted({now, *(when for span in spans if (when := _later(image.uploaded, span)) > now)})
    for moment in moments:
        if any(_holds(it, image, moment) for it in keeping):
            continue
        for policy in deleting:
            if _holds(policy, image, moment):
                return moment, policy
    return None


def _later(moment: datetime, span: timedelta) -> datetime:
    try:
        return moment + span
    except OverflowError:
        return _FOREVER


def _holds(policy: Policy, image: Aged, moment: datetime) -> bool:
    return (
        policy.most_recent is None
        and _is_in(policy, image.package)
        and _is_tagged(policy, image.tags)
        and (not policy.version_prefixes or image.digest.startswith(policy.version_prefixes))
        and (policy.older_than is None or moment >= _later(image.uploaded, policy.older_than))
        and (policy.newer_than is None or moment < _later(image.uploaded, policy.newer_than))
    )


def _counts(policy: Policy, image: Aged) -> bool:
    return policy.most_recent is not None and _is_in(policy, image.package) and image.newer < policy.most_recent


def _is_in(policy: Policy, package: str) -> bool:
    return not policy.package_prefixes or package.startswith(policy.package_prefixes)


def _is_tagged(policy: Policy, tags: Sequence[str]) -> bool:
    if policy.tag_state != "any" and bool(tags) is not (policy.tag_state == "tagged"):
        return False
    return not policy.tag_prefixes or any(tag.startswith(policy.tag_prefixes) for tag in tags)


_DELETE, _KEEP = 1, 2
_STATES: dict[int, TagState] = {0: "any", 1: "tagged", 2: "untagged", 3: "any"}
"""Numbers of CleanupPolicy.Action and CleanupPolicyCondition.TagState: proto-plus has names for those only."""
_FAULT = re.compile(r"(?:Failed to parse \w+ field: )*(?P<what>.*?)[. ]* at \S*cleanupPolicies\[(?P<name>[^\]]*)\]")
"""What protobuf's reader of JSON says: the fault, and in which policy it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A policy that nobody here can evaluate."""

    name: str
    """Empty where it is about all of them."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What a repository has of them."""

    known: tuple[Policy, ...] = ()
    unread: tuple[Unread, ...] = ()

    def but(self, odd: Callable[[Policy], bool], why: str) -> "Policies":
        """Those that are left where these cannot be evaluated."""
        unread = tuple(Unread(name=it.name, why=why) for it in self.known if odd(it))
        return Policies(known=tuple(it for it in self.known if not odd(it)), unread=(*self.unread, *unread))


def policies_of(repository: Any) -> Policies:
    """Read a repository's policies, in the order of their names."""
    known, unread = list[Policy](), list[Unread]()
    for name, found in sorted(repository.cleanup_policies.items()):
        try:
            known.append(policy_of(name, found))
        except ValueError as error:
            unread.append(Unread(name=name, why=str(error)))
    return Policies(known=tuple(known), unread=tuple(unread))


def unreadable(error: Exception) -> Policies:
    """What is known where Google's client cannot read the API's answer, in which it leaves nothing out."""
    fault = _FAULT.match(str(error))
    why = f"that named {fault['name']} cannot be read: {fault['what']}" if fault else f"they cannot be read: {error}"
    return Policies(unread=(Unread(name="", why=why),))


def policy_of(name: str, found: Any) -> Policy:
    """Read one policy; ValueError where it says what is not known here."""
    deletes = _action(found) == _DELETE
    if "most_recent_versions" in found:
        return _counting(name, found.most_recent_versions, deletes=deletes)
    if "condition" not in found:
        raise ValueError("its condition is none that is known here")
    condition = found.condition
    return Policy(
        name=name,
        deletes=deletes,
        tag_state=_tag_state(condition),
        tag_prefixes=tuple(condition.tag_prefixes),
        version_prefixes=tuple(condition.version_name_prefixes),
        package_prefixes=tuple(condition.package_name_prefixes),
        older_than=_span(condition, "older_than"),
        newer_than=_span(condition, "newer_than"),
    )


def _action(found: Any) -> int:
    number = int(type(found).pb(found).action)
    if number not in (_DELETE, _KEEP):
        raise ValueError(f"its action is neither to delete nor to keep, but {number}")
    return number


def _counting(name: str, recent: Any, *, deletes: bool) -> Policy:
    if deletes:
        raise ValueError("it deletes the newest versions, and only a policy that keeps may count them")
    if recent.keep_count < 0:
        raise ValueError(f"it keeps {recent.keep_count} versions")
    return Policy(
        name=name,
        deletes=False,
        package_prefixes=tuple(recent.package_name_prefixes),
        most_recent=recent.keep_count,
    )


def _tag_state(condition: Any) -> TagState:
    number = int(type(condition).pb(condition).tag_state)
    if number not in _STATES:
        raise ValueError(f"it is about tags in a state that is not known here, {number}")
    return _STATES[number]


def _span(condition: Any, name: str) -> timedelta | None:
    value: timedelta | None = getattr(condition, name) if name in condition else None
    return value


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
