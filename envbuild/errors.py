"""The whole tree of errors: what went wrong, where, and what to do next.

EnvbuildError
├── UsageError               2    an option or argument that cannot be meant
├── ManifestError           10    a manifest that cannot be read or is not valid
├── MatchError              11    no stack serves the run
├── LockError               12    a distribution that cannot be locked or fetched
├── BuildError              13    assembling or building failed
│   ├── WheelError                a wheel that is refused
│   └── BaseError                 a base image that cannot be had or does not fit
├── RegistryError           14    a registry refused or could not be reached
├── StampError              15    the model's metadata could not be written
│   └── StampConflict             somebody else wrote it, or the model was replaced
├── VerifyError             16    something disagrees
└── MissingComponentError   17    a local program that is needed is absent
"""

from typing import ClassVar


class EnvbuildError(Exception):
    """The root of all errors that a user, a network, a registry, a bucket or an absent program can cause."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        """One sentence: what went wrong."""
        self.where = where
        """The file, URL, key or option that it happened at."""
        self.todo = todo
        """What the reader can do about it."""

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.todo:
            lines.append(f"  do: {self.todo}")
        return "\n".join(lines)


class UsageError(EnvbuildError):
    """An option or argument that cannot be meant."""

    exit_code = 2


class ManifestError(EnvbuildError):
    """A manifest that cannot be read or is not valid; `where` is a dotted path such as `distributions[3].version`."""

    exit_code = 10


class MatchError(EnvbuildError):
    """No stack serves the run; `what` lists each candidate and why it lost."""

    exit_code = 11


class LockError(EnvbuildError):
    """A distribution that cannot be locked or fetched."""

    exit_code = 12


class BuildError(EnvbuildError):
    """Assembling or building the image failed."""

    exit_code = 13


class WheelError(BuildError):
    """A wheel that is refused: not the locked bytes, or not what the wheel specification allows."""


class BaseError(BuildError):
    """A base image that cannot be had, or that does not fit the lock."""


class RegistryError(EnvbuildError):
    """A registry refused or could not be reached."""

    exit_code = 14

    def __init__(self, what: str, *, where: str = "", todo: str = "", status: int | None = None) -> None:
        super().__init__(what, where=where, todo=todo)
        self.status = status
        """The HTTP status of the answer, if there was an answer."""


class StampError(EnvbuildError):
    """The model's metadata could not be read or written."""

    exit_code = 15


class StampConflict(StampError):  # noqa: N818 - the domain's word
    """Somebody else stamped the same role with another digest, or the model itself was replaced."""


class VerifyError(EnvbuildError):
    """Two things that must agree do not."""

    exit_code = 16


class MissingComponentError(EnvbuildError):
    """A local program or service that is needed is absent."""

    exit_code = 17


def counted(number: int, noun: str) -> str:
    """`1 wheel`, `2 wheels`."""
    return f"{number} {noun}{'s'[: number != 1]}"
