"""What the resolvers share: the session with the indexes, its result as a lock or faults, and how gaps are filled."""

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import NamedTuple, TypeVar

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from envbuild import report
from envbuild.errors import LockError
from envbuild.lock.dependencies import find_conflict, marker_environment, readable_requirements
from envbuild.lock.facts import FactReader
from envbuild.lock.faults import Fault, UnlockableError, diagnose
from envbuild.lock.index import Client, IndexFile, LateClient, files_of, in_parallel, index_file
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.settings import IndexSettings, bare_url, folders_only, local_path, read_settings, without_credentials
from envbuild.manifest.packages import exact_version
from envbuild.match.stack import Gaps

T = TypeVar("T")

RESOLVER_SECONDS = 900.0
"""Seconds for one run of a resolver; its own timeouts do not end a transfer that goes on very slowly."""
_INTERVAL = timedelta(days=30)
"""Steps in which the date moves, where the releases as of the record's own date do not fit together."""
_SOURCE_ONLY = re.compile(r"Wheels are required for `([^`]+)`")
"""uv's message for a release that has only a source distribution."""
_SETTINGS = "the index settings of pip or uv"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSession:
    """An open client of the indexes and folders of wheels, and the requirements that a resolver looks up there."""

    requirements: tuple[Requirement, ...]
    target: Target
    settings: IndexSettings
    client: Client
    reader: FactReader
    gaps: Gaps | None = None

    def files(self, name: str) -> tuple[IndexFile, ...]:
        """Everything that the indexes and folders have of a project."""
        return files_of(self.client, self.settings, name)


@contextmanager
def open_session(
    requirements: tuple[str, ...],
    target: Target,
    settings: IndexSettings | None,
    cache: Path | None,
    gaps: Gaps | None = None,
    *,
    local: bool = False,
) -> Iterator[IndexSession]:
    """Open a session with the indexes and folders of the settings, else of pip's and uv's own settings."""
    parsed = parsed_requirements(requirements)
    settings = settings or read_settings()
    settings = folders_only(settings) if local else settings
    with LateClient(settings) as client:
        reader = FactReader(client, cache)
        yield IndexSession(
            requirements=parsed, target=target, settings=settings, client=client, reader=reader, gaps=gaps
        )


def parsed_requirements(texts: Iterable[str]) -> tuple[Requirement, ...]:
    """Parse requirements, so that no option reaches a resolver; LockError names all that are invalid."""
    texts = tuple(texts)
    parsed = tuple(readable_requirements(texts))
    if len(parsed) < len(texts):
        invalid = ", ".join(repr(it) for it in texts if not [*readable_requirements([it])])
        todo = "correct the name and version in the manifest"
        raise LockError(f"not a requirement: {invalid}", where="requirements", todo=todo)
    return parsed


def run_resolver(
    command: Sequence[str], folder: str, environment: Mapping[str, str], text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a resolver in a folder, with `text` as its input; LockError after RESOLVER_SECONDS."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=PIPE if text else DEVNULL, stdout=PIPE, stderr=PIPE, text=True
    )
    name, started, out, err = Path(command[0]).name, time.monotonic(), None, ""
    with process:
        try:
            while out is None:
                try:
                    out, err = process.communicate(text, report.SILENCE)
                except subprocess.TimeoutExpired:
                    text, waited = None, time.monotonic() - started  # the text is already being sent
                    if waited > RESOLVER_SECONDS:
                        todo = "check the index, the network and the proxy, then run again"
                        what = f"{name} did not end within {waited:.0f} s"
                        raise LockError(what, where=_SETTINGS, todo=todo) from None
                    report.announce(f"waiting for {name}, which asks the package index ({waited:.0f} s)")
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def explain_failure(session: IndexSession, output: str) -> LockError:
    """Explain why a resolver failed: every distribution that has no wheel, else the resolver's own message."""
    named = [it for it in session.requirements if not (it.url or "").startswith("file:")]
    pages = in_parallel(lambda requirement: session.files(requirement.name), named)
    offline = session.settings.offline
    faults = [diagnose(it, files, session.target, offline=offline) for it, files in zip(named, pages, strict=True)]
    if found := [fault for fault in faults if fault is not None]:
        return UnlockableError(found, session.target, where=session.settings.places)
    # The message without credentials and without the inside of a traceback.
    before, traceback, after = without_credentials(output).partition("Traceback (most recent call last)")
    last = after.strip().rpartition("\n")[2] if traceback else ""
    message = before.strip() or last or "it gave no reason"
    mentioned = {canonicalize_name(it) for it in re.findall(r"[\w.-]+", output)}
    drop = " or ".join(f"--drop {it.name}" for it in named if canonicalize_name(it.name) in mentioned) or "--drop NAME"
    drop += " (not the framework)"
    places = "give other folders: --find-links DIR" if offline else _SETTINGS
    todo = f"correct the versions, leave one out by {drop}, or {places}"
    if session.gaps and (names := ", ".join(dict.fromkeys(_SOURCE_ONLY.findall(output)))):
        todo = f"name the version of {names} in the record and add --build; or give its wheel: --find-links DIR"
        todo += f"; or leave out what requires it: {drop}"
    what = f"the requirements cannot be locked for {session.target}: {message}"
    return LockError(what, where=session.settings.places, todo=todo)


def complete_lock(
    session: IndexSession, chosen: Sequence[IndexFile], sizes: Sequence[int | None], yanked: Mapping[str, str]
) -> Lock:
    """Make the lock of the chosen files: ask for missing sizes, and raise UnlockableError when anything is missing."""
    names = {file.name for file in chosen}
    faults = [
        Fault(str(it), "the resolver left it out", "name it by version, as in name==1.0")
        for it in session.requirements
        # A resolver may leave out what a marker excludes; a file was chosen before.
        if it.marker is None and not (it.url or "").startswith("file:") and canonicalize_name(it.name) not in names
    ]
    hashed = [_with_hash(session, file) for file in chosen]
    todo = "use an index that gives hashes, or give the folder of the wheel to pip or uv as find-links"
    why = "the index gives no sha256 for its wheel"
    faults += [Fault(f"{file.name}=={file.version}", why, todo) for file in hashed if not file.sha256]
    faults += [fault for fault in in_parallel(lambda file: _find_confusion(session, file), hashed) if fault]
    if faults:
        raise UnlockableError(faults, session.target, where=session.settings.places)
    pairs = zip(hashed, sizes, strict=True)
    known = in_parallel(lambda pair: session.reader.size(pair[0]) if pair[1] is None else pair[1], pairs)
    wheels = [locked_wheel(file, size) for file, size in zip(hashed, known, strict=True)]
    wheels.sort(key=lambda wheel: wheel.name)
    return Lock(target=session.target, wheels=tuple(wheels), yanked=tuple(sorted(yanked.items())))


def locked_wheel(file: IndexFile, size: int) -> LockedWheel:
    """A file of an index as part of a lock."""
    assert file.sha256 is not None, "complete_lock refuses files without a hash"
    name, version = file.name, str(file.version)
    return LockedWheel(name=name, version=version, filename=file.filename, sha256=file.sha256, size=size, url=file.url)


def _find_confusion(session: IndexSession, file: IndexFile) -> Fault | None:
    """The fault of a file that another place has under the same name with other bytes ("dependency confusion")."""
    settings = session.settings
    folders = [Path(place) for place in settings.find_links if "://" not in place]
    paths = [folder / file.filename for folder in folders if (folder / file.filename).is_file()]
    files = [index_file(path.as_uri()) for path in paths]
    pages = len(settings.indexes) + len(settings.find_links) - len(folders) + (local_path(file.url) is not None)
    files += session.files(file.name) if pages > 1 else ()
    same_name = (it for it in files if it is not None and it.filename == file.filename and it.url != file.url)
    others = [it for it in (_with_hash(session, it) for it in same_name) if it.sha256 not in {None, file.sha256}]
    if file.sha256 is None or not others:
        return None
    here, there = (f"{bare_url(it.url)} with {it.sha256}" for it in (file, others[0]))
    todo = "find out which is right, and leave the index or folder that has the other out of pip's or uv's settings"
    return Fault(f"{file.name}=={file.version}", f"{file.filename} is at {here}, and at {there}", todo)


def _with_hash(session: IndexSession, file: IndexFile) -> IndexFile:
    """The file with its sha256, which is computed where the file is in a folder of this machine."""
    path = local_path(file.url) if file.sha256 is None else None
    if path is None:
        return file
    try:
        return replace(file, sha256=session.reader.digest(path))
    except OSError as error:
        raise LockError("the wheel cannot be read", where=str(path), todo="check the find-links folder") from error


class Relaxed(NamedTuple):
    """A pinned distribution whose requirements accept any version of what another pin contradicts."""

    name: str
    version: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    """The extras that are required of it."""


class Limits(NamedTuple):
    """What a resolver has to observe when it adds distributions."""

    as_of: str | None = None
    """It adds only what was uploaded before this moment; None for any."""
    relaxed: tuple[Relaxed, ...] = ()


class UnsolvedError(Exception):
    """No set of releases fits; `undated` where that is so because the index does not say when files were uploaded."""

    def __init__(self, message: str, *, undated: bool = False) -> None:
        super().__init__(message)
        self.undated = undated


def fill_gaps(
    session: IndexSession, resolve: Callable[[Limits], T], pinned: Callable[[], Lock]
) -> tuple[T, tuple[str, ...]]:
    """Resolve as of the date in the session's gaps; if nothing fits, as of a later date, or without one.

    It also returns warnings about the date. `resolve` raises UnsolvedError if nothing fits. `pinned` locks the
    requirements alone; only if they contradict each other, the contradicted requirements are relaxed. LockError if that
    fails too.
    """
    recorded = session.gaps.before if session.gaps else None
    try:
        return resolve(Limits(as_of=recorded)), ()
    except UnsolvedError as error:
        first = error
    try:
        newest, relaxed = _resolve_newest(session, resolve, pinned, first)
    except UnsolvedError as error:
        raise explain_failure(session, str(error)) from error
    if recorded is None:
        return newest, ()
    now = "what the record lacks is taken from all releases that the index has now"
    if first.undated:
        return newest, (f"the package index does not say when files were uploaded; {now}",)
    if relaxed:
        with suppress(UnsolvedError):
            return resolve(Limits(as_of=recorded, relaxed=relaxed)), ()
    as_of, found = _resolve_earliest(recorded, lambda as_of: resolve(Limits(as_of=as_of, relaxed=relaxed)), newest)
    taken = f"what the record lacks is taken from those before {as_of}" if as_of else now
    return found, (f"no wheels uploaded before {recorded} fit together; {taken}",)


def _resolve_newest(
    session: IndexSession, resolve: Callable[[Limits], T], pinned: Callable[[], Lock], error: UnsolvedError
) -> tuple[T, tuple[Relaxed, ...]]:
    """Resolve without a date, and with relaxed requirements if that is needed."""
    if session.gaps and session.gaps.before:
        try:
            return resolve(Limits()), ()
        except UnsolvedError as undated:
            error = undated
    relaxed = tuple(_find_contradicted(session, pinned())) if session.gaps else ()
    if not relaxed:
        raise error
    return resolve(Limits(relaxed=relaxed)), relaxed


def _resolve_earliest(recorded: str, resolve: Callable[[str], T], newest: T) -> tuple[str | None, T]:
    """Find the earliest date after the recorded one, in steps of an interval, that has a solution; None: only today."""
    start = datetime.fromisoformat(recorded)

    low, high, as_of, found = 0, max((datetime.now(UTC) - start) // _INTERVAL, 0) + 1, None, newest
    while high - low > 1:
        middle = (low + high) // 2
        tried = (start + middle * _INTERVAL).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            as_of, found, high = tried, resolve(tried), middle
        except UnsolvedError:
            low = middle
    return as_of, found


def _find_contradicted(session: IndexSession, pins: Lock) -> Iterator[Relaxed]:
    """Find the pinned distributions that require what other pins do not satisfy."""
    versions = {wheel.name: wheel.version for wheel in pins.wheels}
    bounds = [Requirement(text) for text in (session.gaps.versions if session.gaps else ())]
    versions |= {str(canonicalize_name(it.name)): version for it in bounds if (version := exact_version(it))}
    extras_of = {str(canonicalize_name(it.name)): tuple(sorted(it.extras)) for it in session.requirements}
    environment = marker_environment(session.target)
    for wheel, facts in zip(pins.wheels, session.reader.all_facts(pins.wheels), strict=True):
        extras = extras_of.get(wheel.name, ())
        environments = [environment | {"extra": extra} for extra in ("", *extras)]
        relaxed, requires = False, []
        for requirement in readable_requirements(facts.requires if facts else ()):
            conflict = find_conflict(f"{wheel.name} {wheel.version}", requirement, versions)
            marker = requirement.marker
            if conflict and conflict.version and (marker is None or any(map(marker.evaluate, environments))):
                requirement.specifier = SpecifierSet()
                relaxed = True
            requires.append(str(requirement))
        if relaxed:
            yield Relaxed(wheel.name, wheel.version, tuple(requires), extras)
