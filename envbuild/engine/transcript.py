"""The request of a build by an engine, and the transcript of its output: shown as it comes, quoted after a failure."""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import BuildError
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import without_credentials
from envbuild.report import Reporter

_KEPT_LINES = 200
"""Lines of each step that are kept; pip's message about hashes that differ is the longest that matters."""
_SHOWN_LINES, _LINE_LENGTH, _TITLE_LENGTH = 15, 500, 150
_EXIT_CODE = re.compile(r"(?:exit code: |non-zero code: |exit status )(\d+)")
"""BuildKit repeats the whole command before it, which is in the Dockerfile."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\u00a0-\U0010ffff]")
"""What drives terminals: colours, and the line ends of progress bars."""
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([A-Za-z0-9.+!_-]+)")
_WHEEL = re.compile(r"[A-Za-z0-9_.+!%-]+\.whl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be built."""

    context: Path
    """The folder, of which all files are sent."""
    dockerfile: str
    """Its name in the context."""
    platform: str
    """`linux/amd64`."""
    wheels: tuple[LockedWheel, ...]
    """The installed wheels, for messages."""
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
            self._lines.setdefault(step, deque(maxlen=_KEPT_LINES)).append(text)
            self._report.note(text)

    def clean(self, line: str) -> str:
        """The line without credentials and without control sequences."""
        text = without_credentials(_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]))
        for secret in self._request.hidden:
            text = text.replace(secret, "***")
        return text.rstrip()[:_LINE_LENGTH]

    def failure(self, reason: str, step: str | None = None) -> BuildError:
        """Explain a failed step: which one, its last lines, and which lock entry it was about."""
        chosen = self._last if step is None else step
        lines, where = list(self._lines.get(chosen, ())), self._titles.get(chosen) or "container engine"
        exit_code = _EXIT_CODE.search(reason)
        why = f"a step ended with exit code {exit_code[1]}" if exit_code else self.clean(reason)
        quoted = "".join(f"\n  | {line}" for line in lines[-_SHOWN_LINES:])
        if any("No space left on device" in line for line in (why, *lines)):
            todo = "free space where the engine keeps its data: docker system prune"
            return BuildError(f"the engine's disk is full{quoted}", where=where, todo=todo)
        wheel = find_wheel(lines, self._request.wheels)
        about = f", at {wheel.name}=={wheel.version} of the lock ({wheel.filename}, {wheel.sha256})" if wheel else ""
        todo = "read the step's lines; a build without --builder docker writes the same context to --out"
        return BuildError(f"the build failed{about}: {why}{quoted}", where=where, todo=todo)


def find_wheel(lines: Sequence[str], wheels: Iterable[LockedWheel]) -> LockedWheel | None:
    """Find the lock entry that pip's error names, else the last one in pip's output; None when there is neither."""
    known = tuple(wheels)
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith("ERROR")), len(lines))
    ordered = (*lines[first:], *reversed(lines[:first]))
    return next((wheel for line in ordered if (wheel := _wheel_in_line(line, known))), None)


def _wheel_in_line(line: str, wheels: Iterable[LockedWheel]) -> LockedWheel | None:
    files = set(_WHEEL.findall(line.replace("%2B", "+").replace("%2b", "+")))
    pins = {(canonicalize_name(name), _version(version)) for name, version in _PIN.findall(line)}
    return next((it for it in wheels if it.filename in files or (it.name, _version(it.version)) in pins), None)


def _version(text: str) -> Version | str:
    """The version as pip compares it; the text itself if it is invalid."""
    try:
        return Version(text.rstrip("."))
    except InvalidVersion:
        return text
