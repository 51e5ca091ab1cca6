"""What all resolvers share: checked requirements, the wheel of each, and the reasons when there is none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import httpx
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import LockError
from envbuild.lock.faults import Fault, UnlockableError, describe, diagnose
from envbuild.lock.index import IndexFile, files_of, local_path, size_of
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.settings import IndexSettings, without_credentials
from envbuild.lock.web import in_parallel
from envbuild.oci.digest import Digest

_NO_HASH = "the index gives no sha256 for its wheel"
_OTHER_INDEX = "use an index that gives hashes, or give the folder of the wheel to pip or uv as find-links"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a resolver was asked, and where it looks."""

    requirements: tuple[Requirement, ...]
    target: Target
    settings: IndexSettings
    client: httpx.Client

    def files(self, name: str) -> tuple[IndexFile, ...]:
        """Everything that the indexes and folders have of a project."""
        return files_of(self.client, self.settings, name)

    @property
    def text(self) -> str:
        """The requirements, one a line."""
        return "".join(f"{requirement}\n" for requirement in self.requirements)


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


def failure(question: Question, said: str) -> LockError:
    """What a resolver that gave up means: every distribution that has no wheel, else the resolver's own words."""
    pages = in_parallel(lambda requirement: question.files(requirement.name), question.requirements)
    pairs = zip(question.requirements, pages, strict=True)
    faults = [diagnose(requirement, files, question.target) for requirement, files in pairs]
    found = [fault for fault in faults if fault is not None]
    if found:
        return UnlockableError(found, question.target, where=question.settings.places)
    what = f"the requirements cannot be locked for {describe(question.target)}: {_short(said)}"
    todo = "correct the versions, or the index settings of pip or uv"
    return LockError(what, where=question.settings.places, todo=todo)


def complete(question: Question, chosen: Sequence[IndexFile], sizes: Sequence[int | None]) -> Lock:
    """Make the lock of the chosen files; asks for the sizes that are not known, refuses when anything is missing."""
    absent = [_absent(requirement, chosen) for requirement in question.requirements if _applies(requirement)]
    hashed = [_hashed(file) for file in chosen]
    unhashed = [
        Fault(requirement=f"{file.name}=={file.version}", why=_NO_HASH, todo=_OTHER_INDEX)
        for file in hashed
        if file.sha256 is None
    ]
    faults = [fault for fault in absent if fault is not None] + unhashed
    if faults:
        raise UnlockableError(faults, question.target, where=question.settings.places)
    known = in_parallel(
        lambda pair: size_of(question.client, pair[0].url) if pair[1] is None else pair[1],
        zip(hashed, sizes, strict=True),
    )
    wheels = [_locked(file, size) for file, size in zip(hashed, known, strict=True)]
    return Lock(target=question.target, wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)))


def _short(said: str) -> str:
    """What a resolver said, without credentials and without the inside of its traceback."""
    before, traceback, after = without_credentials(said).partition("Traceback (most recent call last)")
    last = after.strip().rpartition("\n")[2] if traceback else ""
    return before.strip() or last or "it gave no reason"


def _applies(requirement: Requirement) -> bool:
    """A resolver may leave out what a marker excludes."""
    return requirement.marker is None


def _absent(requirement: Requirement, chosen: Sequence[IndexFile]) -> Fault | None:
    if canonicalize_name(requirement.name) in {file.name for file in chosen}:
        return None
    why = "the resolver left it out"
    return Fault(requirement=str(requirement), why=why, todo="name it by version, as in name==1.0")


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


def _locked(file: IndexFile, size: int) -> LockedWheel:
    assert file.sha256 is not None, "complete() refuses files without a hash"
    return LockedWheel(
        name=file.name,
        version=str(file.version),
        filename=file.filename,
        sha256=file.sha256,
        size=size,
        url=file.url,
    )
