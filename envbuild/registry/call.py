"""One request to a registry before it is sent, and a manifest as it comes back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import httpx

from envbuild.registry.faults import Aim


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as the registry sent it."""

    data: bytes
    media_type: str
    """The Content-Type, without parameters."""
    said_digest: str
    """The Docker-Content-Digest header, empty when there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, which may have to be sent more than once."""

    method: str
    url: httpx.URL
    aim: Aim
    source: str = ""
    """Another repository to read from in the same request (mount)."""
    headers: dict[str, str] = field(default_factory=dict)
    body: Callable[[], bytes | Iterable[bytes]] | None = None
    """Makes the body anew for each sending."""
    large: bool = False
    answer_within: float | None = None
    """Seconds that the registry may take until it begins to answer; None for the usual ones."""
    also: frozenset[int] = frozenset()
    """Statuses beside success that the caller understands."""

    @property
    def scopes(self) -> tuple[str, ...]:
        actions = "pull,push" if self.aim.action == "push" else "pull"
        own = f"repository:{self.aim.repository}:{actions}"
        return (own, f"repository:{self.source}:pull") if self.source else (own,)
