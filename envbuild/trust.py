"""Claims: values from outside with their source, and the one way to a proven value.

What this machine computed or read from the user's own files is a plain value. Everything else is a `Claim` until
`prove` has verified it. A claim's `value` may be shown, or used if an error costs only time; it is never written to
the local cache, sent to a third party, or signed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from envbuild.errors import VerifyError

T = TypeVar("T")


class Voucher(StrEnum):
    """The party that vouches for a value."""

    LOCAL = "a file on this machine"
    REGISTRY = "anybody who may push to the registry"
    INDEX = "the package index"
    MODEL = "anybody who may write to the model's folder"


@dataclass(frozen=True, slots=True)
class Claim(Generic[T]):
    """An unverified value from outside."""

    value: T
    voucher: Voucher
    source: str
    """The file, URL or reference that it was read from, for messages."""

    def prove(self, check: Callable[[T], str]) -> T:
        """Return the value if `check` returns no problem; else VerifyError with it."""
        if problem := check(self.value):
            raise VerifyError(problem, where=f"{self.source}, written by {self.voucher}")
        return self.value
