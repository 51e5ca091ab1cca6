"""All errors: what failed, where, and what to do next."""

from typing import ClassVar


class EnvbuildError(Exception):
    """The root of all errors that a user, a network, a service or a missing program can cause."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        """One sentence: what failed."""
        self.where = where
        """The file, URL, key or option."""
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
    """An invalid option or argument."""

    exit_code = 2


class ManifestError(EnvbuildError):
    """An invalid or unreadable manifest; `where` is a dotted path such as `distributions[3].version`."""

    exit_code = 10


class MatchError(EnvbuildError):
    """No stack fits the run; `what` lists each candidate and why it lost."""

    exit_code = 11


class LockError(EnvbuildError):
    """A distribution that cannot be locked or fetched."""

    exit_code = 12


class BuildError(EnvbuildError):
    """Assembling or building the image failed."""

    exit_code = 13


class WheelError(BuildError):
    """A wheel with other bytes than locked, or against the wheel specification."""


class BaseError(BuildError):
    """A base image that is missing, or does not fit the lock."""


class RegistryError(EnvbuildError):
    """A registry refused or could not be reached."""

    exit_code = 14

    def __init__(self, what: str, *, where: str = "", todo: str = "", status: int | None = None) -> None:
        super().__init__(what, where=where, todo=todo)
        self.status = status
        """The HTTP status of the answer, if there was one."""


class StampError(EnvbuildError):
    """The model's metadata could not be read or written."""

    exit_code = 15


class StampConflict(StampError):  # noqa: N818 - the domain's word
    """Another stamp of the same slot was written, or the model was replaced."""


class VerifyError(EnvbuildError):
    """Two things that must agree do not."""

    exit_code = 16


class MissingComponentError(EnvbuildError):
    """A required local program or service is missing."""

    exit_code = 17


def counted(number: int, noun: str) -> str:
    """`1 wheel`, `2 wheels`."""
    return f"{number} {noun}{'s'[: number != 1]}"
