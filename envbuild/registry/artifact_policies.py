"""Cleanup policies as the API gives them; what is not understood of one leaves the others as they are."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from envbuild.registry.artifact_cleanup import Policy, TagState

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
