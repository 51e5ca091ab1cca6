"""What all resolvers share: checked requirements, the wheel of each, and the reasons when there is none."""

import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild import report
from envbuild.errors import LockError
from envbuild.lock.facts import FactReader
from envbuild.lock.faults import Fault, UnlockableError, describe, diagnose
from envbuild.lock.index import IndexFile, files_of, index_file, local_path
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.settings import IndexSettings, bare_url, folders_only, read_settings, without_credentials
from envbuild.lock.web import LateClient, Web, in_parallel
from envbuild.match.stack import Gaps
from envbuild.oci.digest import Digest

_SOURCE_ONLY = re.compile(r"Wheels are required for `([^`]+)`")
"""What uv says of a distribution that has only a source distribution."""
_NO_HASH = "the index gives no sha256 for its wheel"
_ONE_PLACE = "find out which is right, and leave the index or folder that has the other out of pip's or uv's settings"
_OTHER_INDEX = "use an index that gives hashes, or give the folder of the wheel to pip or uv as find-links"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a resolver was asked, and where it looks."""

    requirements: tuple[Requirement, ...]
    target: Target
    settings: IndexSettings
    client: Web
    reader: FactReader
    gaps: Gaps | None = None

    def files(self, name: str) -> tuple[IndexFile, ...]:
        """Everything that the indexes and folders have of a project."""
        return files_of(self.client, self.settings, name)

    @property
    def text(self) -> str:
        """The requirements, one a line."""
        return "".join(f"{requirement}\n" for requirement in self.requirements)


@contextmanager
def asking(
    requirements: tuple[str, ...],
    target: Target,
    settings: IndexSettings | None,
    cache: Path | None,
    gaps: Gaps | None = None,
    *,
    local: bool = False,
) -> Iterator[Question]:
    """Open a question to the indexes and folders of the settings, else of pip's and uv's."""
    parsed = parsed_requirements(requirements)
    settings = settings or read_settings()
    settings = folders_only(settings) if local else settings
    with LateClient(settings) as client:
        yield Question(
            requirements=parsed,
            target=target,
            settings=settings,
            client=client,
            reader=FactReader(client, cache),
            gaps=gaps,
        )


def parsed_requirements(texts: Iterable[str]) -> tuple[Requirement, ...]:
    """Check requirements (PEP 508), so that none can be an option of the resolver; LockError names all bad ones."""
    good, bad = [], []
    for text in texts:
        try:
            good.append(Requirement(text))
        except InvalidRequirement:
            bad.append(text)
    if bad:
        todo = "correct the name and version in the manifest"
        raise LockError(f"not a requirement: {', '.join(map(repr, bad))}", where="requirements", todo=todo)
    return tuple(good)


_SETTINGS = "the index settings of pip or uv"
RESOLVER_SECONDS = 900.0
"""Seconds for one run of a resolver, whose own timeouts an index can stretch by sending a byte now and then."""


def run_resolver(
    command: Sequence[str], folder: str, environment: Mapping[str, str], text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a resolver in a folder, with `text` as its input; LockError where it does not end."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=PIPE if text else DEVNULL, stdout=PIPE, stderr=PIPE, text=True
    )
    with process:
        try:
            out, err = _wait(process, Path(command[0]).name, text)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _wait(process: subprocess.Popen[str], name: str, text: str | None) -> tuple[str, str]:
    started = time.monotonic()
    while True:
        try:
            return process.communicate(text, report.SILENCE)
        except subprocess.TimeoutExpired:
            text, waited = None, time.monotonic() - started  # the text is on its way
        if waited > RESOLVER_SECONDS:
            todo = "check the index, the network and the proxy, then run again"
            raise LockError(f"{name} did not end within {waited:.0f} s", where=_SETTINGS, todo=todo)
        report.announce(f"waiting for {name}, which asks the package index ({waited:.0f} s)")


def failure(question: Question, said: str) -> LockError:
    """What a resolver that gave up means: every distribution that has no wheel, else the resolver's own words."""
    asked = [it for it in question.requirements if not _is_file(it)]
    pages = in_parallel(lambda requirement: question.files(requirement.name), asked)
    pairs = zip(asked, pages, strict=True)
    offline = question.settings.offline
    faults = [diagnose(requirement, files, question.target, offline=offline) for requirement, files in pairs]
    found = [fault for fault in faults if fault is not None]
    if found:
        return UnlockableError(found, question.target, where=question.settings.places)
    what = f"the requirements cannot be locked for {describe(question.target)}: {_short(said)}"
    places = "give other folders: --find-links DIR" if offline else _SETTINGS
    named = {canonicalize_name(it) for it in re.findall(r"[\w.-]+", said)}
    drop = " or ".join(f"--drop {it.name}" for it in asked if canonicalize_name(it.name) in named) or "--drop NAME"
    drop += " (not the framework)"
    todo = f"correct the versions, leave one out by {drop}, or {places}"
    source_only = ", ".join(dict.fromkeys(_SOURCE_ONLY.findall(said))) if question.gaps else ""
    if source_only:
        todo = f"name the version of {source_only} in the record and add --build; or give its wheel: --find-links DIR"
        todo += f"; or leave out what requires it: {drop}"
    return LockError(what, where=question.settings.places, todo=todo)


def complete(
    question: Question, chosen: Sequence[IndexFile], sizes: Sequence[int | None], yanked: Mapping[str, str]
) -> Lock:
    """Make the lock of the chosen files; asks for the sizes that are not known, refuses when anything is missing."""
    absent = [_absent(requirement, chosen) for requirement in question.requirements if _applies(requirement)]
    hashed = [_hashed(file) for file in chosen]
    unhashed = [_pin_fault(file, _NO_HASH, _OTHER_INDEX) for file in hashed if file.sha256 is None]
    confused = in_parallel(lambda file: _confused(question, file), hashed)
    faults = [fault for fault in (*absent, *unhashed, *confused) if fault is not None]
    if faults:
        raise UnlockableError(faults, question.target, where=question.settings.places)
    known = in_parallel(
        lambda pair: question.reader.size(pair[0]) if pair[1] is None else pair[1],
        zip(hashed, sizes, strict=True),
    )
    wheels = [locked_wheel(file, size) for file, size in zip(hashed, known, strict=True)]
    return Lock(
        target=question.target,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        yanked=tuple(sorted(yanked.items())),
    )


def _short(said: str) -> str:
    """What a resolver said, without credentials and without the inside of its traceback."""
    before, traceback, after = without_credentials(said).partition("Traceback (most recent call last)")
    last = after.strip().rpartition("\n")[2] if traceback else ""
    return before.strip() or last or "it gave no reason"


def _applies(requirement: Requirement) -> bool:
    """A resolver may leave out what a marker excludes; a file was chosen before."""
    return requirement.marker is None and not _is_file(requirement)


def _is_file(requirement: Requirement) -> bool:
    return (requirement.url or "").startswith("file:")


def _absent(requirement: Requirement, chosen: Sequence[IndexFile]) -> Fault | None:
    if canonicalize_name(requirement.name) in {file.name for file in chosen}:
        return None
    why = "the resolver left it out"
    return Fault(requirement=str(requirement), why=why, todo="name it by version, as in name==1.0")


def _pin_fault(file: IndexFile, why: str, todo: str) -> Fault:
    return Fault(requirement=f"{file.name}=={file.version}", why=why, todo=todo)


def _confused(question: Question, file: IndexFile) -> Fault | None:
    """What stands against a file that another index or folder has under the same name with other bytes.

    Somebody may have published a stranger's file under the name of a private one ("dependency confusion").
    """
    others = [it for it in _namesakes(question, file) if it.sha256 not in {None, file.sha256}]
    if file.sha256 is None or not others:
        return None
    here, there = (f"{bare_url(it.url)} with {it.sha256}" for it in (file, others[0]))
    return _pin_fault(file, f"{file.filename} is at {here}, and at {there}", _ONE_PLACE)


def _namesakes(question: Question, file: IndexFile) -> list[IndexFile]:
    """The files of the same name in all places; pages are asked for only where more than one could have it."""
    settings = question.settings
    folders = [Path(place) for place in settings.find_links if "://" not in place]
    paths = [folder / file.filename for folder in folders if (folder / file.filename).is_file()]
    beside = [index_file(path.as_uri()) for path in paths]
    pages = len(settings.indexes) + len(settings.find_links) - len(folders) + (local_path(file.url) is not None)
    found = question.files(file.name) if pages > 1 else ()
    return [_hashed(it) for it in (*beside, *found) if it is not None and it.filename == file.filename]


def _hashed(file: IndexFile) -> IndexFile:
    """The file with its sha256, which is computed where the file lies in a folder of this machine."""
    path = local_path(file.url) if file.sha256 is None else None
    if path is None:
        return file
    try:
        with path.open("rb") as opened:
            return replace(file, sha256=Digest.of_file(opened)[0])
    except OSError as error:
        raise LockError("the wheel cannot be read", where=str(path), todo="check the find-links folder") from error


def locked_wheel(file: IndexFile, size: int) -> LockedWheel:
    """A file of an index as part of a lock."""
    assert file.sha256 is not None, "complete() refuses files without a hash"
    return LockedWheel(
        name=file.name,
        version=str(file.version),
        filename=file.filename,
        sha256=file.sha256,
        size=size,
        url=file.url,
    )
