"""What somebody sets by hand against the profiles: taken where it can be had, refused with the reason, never quiet."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from envbuild.errors import MatchError, UsageError
from envbuild.match.stack import Decision
from envbuild.oci.reference import Reference

OWN = "the run's own"
"""Why a decision is as it is, where it was the run's."""

KEYS = ("base", "cuda", "cudnn", "driver_minimum", "python")
_DECIDED = {"driver_minimum": "driver"}
"""What the decision is called, where that is not the key."""
_NUMBERS = re.compile(r"\d+(\.\d+)*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values by key; an empty one is not set."""

    base: str = ""
    cuda: str = ""
    cudnn: str = ""
    driver_minimum: str = ""
    python: str = ""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """What is set, sorted by key."""
        return tuple((key, value) for key in KEYS if (value := str(getattr(self, key))))

    def refused(self, key: str, why: str, todo: str = "leave it out, or set another value") -> MatchError:
        """The error for a value that cannot be had."""
        return MatchError(f"{key} {getattr(self, key)} cannot be had: {why}", where=f"--set {key}", todo=todo)


def read_overrides(given: Mapping[str, str] | None) -> Overrides:
    """Take them by key; UsageError for a key that nothing is decided by, or a value that it cannot have."""
    for key, value in (given or {}).items():
        if key not in KEYS:
            raise UsageError(f"nothing is decided by {key!r}", where="--set", todo=f"set one of {', '.join(KEYS)}")
        if not value or (key != "base" and not _NUMBERS.match(value)):
            expected = "an image" if key == "base" else "numbers with dots, such as 12.2"
            raise UsageError(f"{key} must be {expected}", where=f"--set {key}={value}", todo="correct the value")
        if key == "base" and not value.startswith(("oci:", "/", ".")):
            _read_image(value)
    return Overrides(**(given or {}))


def _read_image(text: str) -> None:
    try:
        Reference.parse(text.removeprefix("docker://"))
    except ValueError as error:
        what, todo = f"base names no image: {error}", "give it as IMAGE:TAG, or IMAGE@sha256:..."
        raise UsageError(what, where=f"--set base={text}", todo=todo) from None


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """Read `KEY=VALUE` as the command line has it; UsageError where there is no value, or a key comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not value or key in found:
            what = f"{key} is set twice" if value else f"{text!r} sets nothing"
            raise UsageError(what, where="--set", todo=f"give KEY=VALUE, each key of {', '.join(KEYS)} once at most")
        found[key] = value
    return found


def loud(decisions: Iterable[Decision], overrides: Overrides) -> tuple[Decision, ...]:
    """Mark the decisions that somebody made by hand."""
    keys = {_DECIDED.get(key, key): (key, value) for key, value in overrides.pairs}
    return tuple(_mark(it, *keys[it.what]) if it.what in keys else it for it in decisions)


def _mark(decision: Decision, key: str, value: str) -> Decision:
    reasons = (it for it in decision.reason.split("; ") if it != OWN)
    reason = "; ".join((f"overridden: {key} was set by hand", *reasons))
    return replace(decision, reason=reason, source=f"--set {key}={value}; {decision.source}", warning=True)
