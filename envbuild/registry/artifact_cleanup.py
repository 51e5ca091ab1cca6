"""What a repository's cleanup policies will do to one image, and when.

All conditions of a policy have to hold, a prefix holds for any tag, and what a keep policy holds for is not deleted,
whatever else does (Artifact Registry, "Cleanup policy overview"; CleanupPolicyCondition of its API).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

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
