"""Reporters that remember what they got, or hand it on."""

from collections.abc import Callable

from envbuild.report import SilentReporter


class Recorder(SilentReporter):
    """Remembers notes, warnings and the progress of bytes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.bytes: list[tuple[str, int, int | None]] = []

    def note(self, text: str, /) -> None:
        self.notes.append(text)

    def warn(self, text: str, /) -> None:
        self.warnings.append(text)

    def progress(self, label: str, done: int, total: int | None, /) -> None:
        self.bytes.append((label, done, total))


class Calling(SilentReporter):
    """Calls a function for each method that is given one."""

    def __init__(self, **calls: Callable[..., object]) -> None:
        self.__dict__.update(calls)
