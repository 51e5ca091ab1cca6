"""Who vouches for a value that somebody else wrote, and the one way from a claim to a proven value.

What this machine computed or read from the caller's own files is a plain value. Everything else is a `Claim` until
`prove` has held it against something that is known here. A claim's `value` may be shown, or used where being wrong
costs time only; it is never written into the local cache, sent to a third party, or signed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from envbuild.errors import VerifyError

T = TypeVar("T")


class Voucher(StrEnum):
    """Who says that a value is right."""

    LOCAL = "a file on this machine"
    REGISTRY = "whoever may push to the registry"
    INDEX = "the package index"
    MODEL = "whoever may write to the model's folder"


@dataclass(frozen=True, slots=True)
class Claim(Generic[T]):
    """A value from outside that nothing here has confirmed."""

    value: T
    voucher: Voucher
    source: str
    """The file, URL or reference that it was read from, for messages."""

    def prove(self, check: Callable[[T], str]) -> T:
        """Return the value if `check` finds no problem with it; VerifyError with the problem that it returns."""
        if problem := check(self.value):
            raise VerifyError(problem, where=f"{self.source}, written by {self.voucher}")
        return self.value
