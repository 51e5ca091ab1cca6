"""The request of a build by an engine, and the transcript of its output: shown as it comes, quoted after a failure."""

import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.errors import BuildError
from envbuild.lock.settings import without_credentials
from envbuild.report import Reporter

_LINES = 15
"""Lines of a failed step that are quoted."""
_LINE_LENGTH, _TITLE_LENGTH = 500, 150
_EXIT_CODE = re.compile(r"(?:exit code: |non-zero code: |exit status )(\d+)")
"""BuildKit repeats the whole command before it, which is in the Dockerfile."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\u00a0-\U0010ffff]")
"""What drives terminals: colours, and the line ends of progress bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be built."""

    context: Path
    """The folder, of which all files are sent."""
    dockerfile: str
    """Its name in the context."""
    platform: str
    """`linux/amd64`."""
    network: bool
    """Whether steps may reach anything but the files of the context."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Build arguments."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Files that steps may mount, by their ids."""
    hidden: Collection[str] = ()
    """Passwords that no line may show."""


class Transcript:
    """The output of a build, by steps."""

    def __init__(self, request: Request, report: Reporter) -> None:
        self._request, self._report = request, report
        self._titles: dict[str, str] = {}
        self._lines: dict[str, deque[str]] = {}
        self._last = ""

    def begin(self, step: str, title: str) -> None:
        """Begin a step, or set the title of one that has begun."""
        self._last = step
        if step not in self._titles:
            self._titles[step] = " ".join(self.clean(title).split())[:_TITLE_LENGTH]
            self._report.note(self._titles[step])

    def add(self, line: str, step: str) -> None:
        """Add a line that a step printed."""
        if text := self.clean(line):
            self._last = step
            self._lines.setdefault(step, deque(maxlen=_LINES)).append(text)
            self._report.note(text)

    def clean(self, line: str) -> str:
        """The line without credentials and without control sequences."""
        text = without_credentials(_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]))
        for secret in self._request.hidden:
            text = text.replace(secret, "***")
        return text.rstrip()[:_LINE_LENGTH]

    def failure(self, reason: str, step: str | None = None) -> BuildError:
        """Explain a failed step: which one, and its last lines."""
        chosen = self._last if step is None else step
        lines, where = list(self._lines.get(chosen, ())), self._titles.get(chosen) or "container engine"
        exit_code = _EXIT_CODE.search(reason)
        why = f"a step ended with exit code {exit_code[1]}" if exit_code else self.clean(reason)
        quoted = "".join(f"\n  | {line}" for line in lines)
        if any("No space left on device" in line for line in (why, *lines)):
            todo = "free space where the engine keeps its data: docker system prune"
            return BuildError(f"the engine's disk is full{quoted}", where=where, todo=todo)
        todo = "read the step's lines; a build without --builder docker writes the same context to --out"
        return BuildError(f"the build failed: {why}{quoted}", where=where, todo=todo)
