"""A reporter that remembers what it got."""

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
