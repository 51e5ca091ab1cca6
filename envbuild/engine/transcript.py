"""What a builder of an engine is given, and what it said while it worked."""

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

_KEPT = 200
"""Lines of each step; pip's words on hashes that do not match are the longest that matter."""
_SHOWN = 15
_LONGEST = 500
"""Letters of a line."""
_TITLE = 150
"""Letters of a step, whose commands stand in the Dockerfile."""
_ENDED = re.compile(r"(?:exit code: |non-zero code: |exit status )(\d+)")
"""Builders repeat the whole command before it, which is in the Dockerfile."""
_FULL = "No space left on device"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\u00a0-\U0010ffff]")
"""What drives terminals: colours, and the line ends of progress bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A build that is wanted."""

    context: Path
    """The folder, of which all files are sent."""
    dockerfile: str
    """Its name in the context."""
    platform: str
    """`linux/amd64`."""
    wheels: tuple[LockedWheel, ...]
    """What is installed, for messages."""
    network: bool
    """Whether steps may reach anything but the files of the context."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Build arguments; a classic builder writes them into the image's history."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Files that steps may mount, by their ids; only BuildKit has them."""
    hidden: Collection[str] = ()
    """Passwords that no line may show."""


class Transcript:
    """What is heard of a build: told on as it comes, and kept for what is said of a failure."""

    def __init__(self, request: Request, report: Reporter) -> None:
        self._request, self._report = request, report
        self._titles: dict[str, str] = {}
        self._lines: dict[str, deque[str]] = {}
        self._last = ""

    def begin(self, step: str, title: str) -> None:
        """Begin a step, or name one that has begun."""
        self._last = step
        if step not in self._titles:
            self._titles[step] = " ".join(self.clean(title).split())[:_TITLE]
            self._lines.setdefault(step, deque(maxlen=_KEPT))
            self._report.note(self._titles[step])

    def add(self, line: str, step: str | None = None) -> None:
        """Take a line that a step printed, by default the last that began."""
        if shown := self.clean(line):
            self._last = self._last if step is None else step
            self._lines.setdefault(self._last, deque(maxlen=_KEPT)).append(shown)
            self._report.note(shown)

    def clean(self, line: str) -> str:
        """The line without credentials and without what drives terminals."""
        text = without_credentials(_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]))
        for secret in self._request.hidden:
            text = text.replace(secret, "***")
        return text.rstrip()[:_LONGEST]

    def failure(self, reason: str, step: str | None = None) -> BuildError:
        """Say which step failed of what, what it printed last, and which lock entry it was about."""
        chosen = self._last if step is None else step
        lines, title = list(self._lines.get(chosen, ())), self._titles.get(chosen, "")
        ended = _ENDED.search(reason)
        why = f"a step ended with exit code {ended[1]}" if ended else self.clean(reason)
        if any(_FULL in line for line in (why, *lines)):
            what, todo = "the engine's disk is full", "free space where the engine keeps its data: docker system prune"
            return BuildError(f"{what}{_quoted(lines)}", where=title or "container engine", todo=todo)
        wheel = culprit(lines, self._request.wheels)
        about = f", at {wheel.name}=={wheel.version} of the lock ({wheel.filename}, {wheel.sha256})" if wheel else ""
        todo = "see what the step printed; the context is what a build without --builder docker writes to --out"
        return BuildError(
            f"the build failed{about}: {why}{_quoted(lines)}", where=title or "container engine", todo=todo
        )


def _quoted(lines: list[str]) -> str:
    return "".join(f"\n  | {line}" for line in lines[-_SHOWN:])


_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([A-Za-z0-9.+!_-]+)")
_WHEEL = re.compile(r"[A-Za-z0-9_.+!%-]+\.whl")


def culprit(lines: Sequence[str], wheels: Iterable[LockedWheel]) -> LockedWheel | None:
    """Find the lock entry that pip's error names, else the one that pip was last busy with; None when neither is there.

    `lines` are what the failed step printed.
    """
    known = tuple(wheels)
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith("ERROR")), len(lines))
    ordered = (*lines[first:], *reversed(lines[:first]))
    return next((wheel for line in ordered if (wheel := _named(line, known))), None)


def _named(line: str, wheels: Iterable[LockedWheel]) -> LockedWheel | None:
    files = set(_WHEEL.findall(line.replace("%2B", "+").replace("%2b", "+")))
    pins = {(canonicalize_name(name), _version(version)) for name, version in _PIN.findall(line)}
    return next((it for it in wheels if it.filename in files or (it.name, _version(it.version)) in pins), None)


def _version(text: str) -> Version | str:
    """The version as pip compares it; the text itself where it is none."""
    try:
        return Version(text.rstrip("."))
    except InvalidVersion:
        return text
