"""A build context as a side, and whether its files agree with each other: any engine builds it from these alone."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from envbuild.errors import BuildError, ManifestError, UsageError
from envbuild.image.context import DEBS, context_check
from envbuild.lock import Lock, read_pylock
from envbuild.lock.formats import WHEELS, is_local
from envbuild.manifest.importers.pins import Pins, Surroundings
from envbuild.manifest.importers.record import Faults, Record
from envbuild.manifest.importers.requirements import RequirementsFile, take_lines
from envbuild.match.stack import Variant
from envbuild.oci.digest import Digest
from envbuild.recipe import PYTHON_LABEL, Recipe
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.sides.dockerfile import form_findings, instructions
from envbuild.verify.sides.lock import side_of_lock
from envbuild.verify.sides.side import Side

_LOCK, _REQUIREMENTS, _DOCKERFILE = "pylock.toml", "requirements.txt", "Dockerfile"
_CLASSIC = "Dockerfile.classic"
_LARGEST = 64 * 2**20
"""Bytes of one file."""
_LABEL = "dev.envbuild.{}"
_AGAIN = "write the context anew: envbuild from-manifest MANIFEST --out FOLDER"
_ASSIGNED = re.compile(r"""([^\s="']+)=((?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])*)""", re.DOTALL)
_PIECE = re.compile(r""""((?:\\.|[^"\\])*)"|'([^']*)'|(\\.|[^"'\\])""", re.DOTALL)
_REPLACED = re.compile(r"(?<!\\)(?:\\\\)*\$[A-Za-z_{]")
_ESCAPED = re.compile(r'\\([\\"$])')
_STAGE = re.compile(r"(?:--\S+\s+)*(\S+)(?:\s+as\s+(\S+))?", re.IGNORECASE)
_LOCAL_BASE = re.compile(r"^# with the manifest (sha256:[0-9a-f]{64})\.$", re.MULTILINE)
"""What the template says of a base that lies in no registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a Dockerfile says of the image it ends with, as far as it says it without the base."""

    base: str
    """The image that it stands on, as FROM names it."""
    variables: tuple[tuple[str, str], ...] = ()
    """Those whose values take nothing from another variable."""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    folder: Path
    lock: Lock
    requirements: bytes
    dockerfile: str
    said_base: str
    """The digest of the base that the lock was made for; empty where it does not say."""

    @property
    def stage(self) -> Stage:
        return last_stage(self.dockerfile)


def side_of_context(folder: Path, name: str = "") -> Side:
    """What an image built of a context is, as far as the context alone says it.

    UsageError for what is no context, BuildError where a file cannot be read, LockError for its lock.
    """
    context = _read(folder)
    labels = dict(context.stage.labels)
    side = side_of_lock(context.lock, name or str(folder), context.stage.variables)
    said = labels.get(_LABEL.format("variant"))
    own = labels.get(_LABEL.format("framework"), "").partition("==")[0]
    return replace(
        side,
        kind="context",
        variant=cast("Variant", said) if said in get_args(Variant) else side.variant,
        cuda=side.cuda or labels.get(_LABEL.format("cuda")),
        frameworks=tuple(sorted(side.frameworks, key=lambda it: it.distribution != own)),
    )


def context_findings(folder: Path) -> Iterator[Finding]:
    """Whether a context's files agree; errors as `side_of_context` has them."""
    context = _read(folder)
    yield _base_finding(context)
    yield from _python_findings(context)
    yield from _other_form(context)
    yield from _form_findings(context)
    yield from _requirement_findings(context)
    yield from _file_findings(context)
    yield from _check_findings(context)


def last_stage(dockerfile: str) -> Stage:
    """Read the last stage of a Dockerfile with all that it stands on (Dockerfile reference, FROM, ENV and LABEL)."""
    stages: dict[str, Stage] = {}
    stage = Stage(base="")
    name = ""
    for word, rest in _instructions(dockerfile):
        if word == "FROM" and (found := _STAGE.match(rest)):
            name = (found[2] or "").lower()
            stage = stages.get(found[1].lower(), Stage(base=found[1]))
        elif word == "ENV":
            stage = replace(stage, variables=_assigned(stage.variables, rest))
        elif word == "LABEL":
            stage = replace(stage, labels=_assigned(stage.labels, rest))
        stages[name] = stage
    return stage


def _read(folder: Path) -> _Context:
    if not (folder / _LOCK).is_file() or not (folder / _DOCKERFILE).is_file():
        what = f"this is no build context: it has no {_LOCK if (folder / _DOCKERFILE).is_file() else _DOCKERFILE}"
        raise UsageError(
            what, where=str(folder), todo="give the folder context/ below what envbuild from-manifest --out wrote"
        )
    pylock = _bytes(folder / _LOCK)
    return _Context(
        folder=folder,
        lock=read_pylock(pylock, str(folder / _LOCK), folder),
        requirements=_bytes(folder / _REQUIREMENTS),
        dockerfile=_bytes(folder / _DOCKERFILE).decode("utf-8", "replace"),
        said_base=_said_base(pylock),
    )


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise BuildError(f"the context cannot be read: {error.strerror}", where=str(path), todo=_AGAIN) from error
    if len(data) > _LARGEST:
        raise BuildError(f"this has more than {_LARGEST} bytes", where=str(path), todo=_AGAIN)
    return data


def _said_base(pylock: bytes) -> str:
    found = tomllib.loads(pylock.decode())["tool"]["envbuild"].get("base")
    return str(found.get("digest", "")) if isinstance(found, dict) else ""


def _instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    return ((it.word, it.rest) for it in instructions(dockerfile))


def _assigned(before: tuple[tuple[str, str], ...], rest: str) -> tuple[tuple[str, str], ...]:
    """Set what one instruction sets; what it takes from another variable is not known any more."""
    names = dict(before)
    first, *more = rest.split(None, 1) or ["="]
    old = "=" not in first  # `ENV NAME the rest of the line`
    for name, text in [(first, "".join(more))] if old else _ASSIGNED.findall(rest):
        value = _value(text)
        names.pop(name, None)
        names |= {} if value is None else {name: value}
    return tuple(names.items())


def _value(text: str) -> str | None:
    """Take quotes and backslashes away; None where a variable stands in it."""
    parts = []
    for double, single, plain in _PIECE.findall(text):
        if _REPLACED.search(double):
            return None
        parts.append(single or _ESCAPED.sub(r"\1", double) or plain[-1:])
    bare = _PIECE.sub(lambda piece: piece[3] or " ", text)
    return None if _REPLACED.search(bare) else "".join(parts)


def _base_finding(context: _Context) -> Finding:
    """Whether the base is pinned, and is the one that the lock was made for."""
    base, local = context.stage.base, _LOCAL_BASE.search(context.dockerfile)
    pinned = base.partition("@")[2] or (local[1] if local and base.startswith("$") else "")
    if pinned and context.said_base in ("", pinned):
        return Finding(about="base", rule="context-base", agrees=True, says=f"the image stands on {pinned}")
    why = "The wheels were locked for the Python and the C library of one base; another may have others."
    if not pinned:
        says = f"the Dockerfile names its base without a digest: {base or 'it has no FROM'}"
        todo = "name the base by its digest, as in python:3.11-slim@sha256:..."
        return _fault("base", says, wanted="a digest", found=base, why=why, todo=todo, severity="warning")
    says = "the Dockerfile has another base than the lock was made for"
    return _fault("base", says, wanted=context.said_base, found=pinned, why=why)


def _python_findings(context: _Context) -> Iterator[Finding]:
    """Whether the label says the lock's Python."""
    wanted, found = context.lock.target.python, dict(context.stage.labels).get(PYTHON_LABEL)
    if found not in (None, wanted):
        says = f"the Dockerfile says Python {found}, and the wheels were locked for {wanted}"
        why = "The label is what others read instead of starting the image."
        yield _fault("python", says, wanted=wanted, found=found or "", why=why)


def _other_form(context: _Context) -> Iterator[Finding]:
    """Whether the Dockerfile for builders without mounts, where there is one, ends with the same image."""
    path = context.folder / _CLASSIC
    if not path.is_file():
        return
    one, other = context.stage, last_stage(_bytes(path).decode("utf-8", "replace"))
    for what in ("base", "variables", "labels"):
        if (wanted := getattr(one, what)) != (found := getattr(other, what)):
            says = f"{_CLASSIC} has other {what} than {_DOCKERFILE}"
            why = "Which image comes out would depend on the builder."
            yield _fault("dockerfile", says, wanted=_spelled(wanted), found=_spelled(found), why=why)


def _form_findings(context: _Context) -> Iterator[Finding]:
    """Whether both Dockerfiles do what envbuild's do for this lock, and nothing besides."""
    path = context.folder / _CLASSIC
    forms = {_DOCKERFILE: context.dockerfile}
    forms |= {_CLASSIC: _bytes(path).decode("utf-8", "replace")} if path.is_file() else {}
    stages = {name: last_stage(text) for name, text in forms.items()}
    settings = {name: (it.base, it.variables, it.labels) for name, it in stages.items()}
    yield from form_findings(forms, settings, context.lock)


def _spelled(value: str | tuple[tuple[str, str], ...]) -> str:
    return value if isinstance(value, str) else " ".join(f"{name}={text}" for name, text in value)


def _requirement_findings(context: _Context) -> Iterator[Finding]:
    """Whether requirements.txt, which installs, has exactly the lock's versions and digests."""
    wanted = {it.name: _pin(it.version, [it.sha256.hex]) for it in context.lock.wheels}
    locked = {it.name: f"{it.name} {it.version}" for it in context.lock.wheels}
    why = f"The image gets what {_REQUIREMENTS} names, while everybody else goes by the lock."
    try:
        found = _pinned(context)
    except ManifestError as error:
        says = f"{_REQUIREMENTS} cannot be what installs the lock: {error.what}"
        yield _fault("requirements", says, why=why)
        return
    names = sorted(it for it in wanted.keys() | found.keys() if wanted.get(it) != found.get(it))
    for name in names:
        had, has = wanted.get(name, "nothing"), found.get(name, "nothing")
        says = f"{_REQUIREMENTS} has {has} of {name}, and {_LOCK} has {had}"
        fault = _fault("requirements", says, wanted=had, found=has, why=why)
        yield replace(fault, about=name, packages=(locked.get(name, name),))
    if not names:
        says = f"{_REQUIREMENTS} pins the lock's {len(wanted)} wheels, each by its sha256"
        yield Finding(about="requirements", rule="context-requirements", agrees=True, says=says)


def _fault(about: str, says: str, *, todo: str = _AGAIN, severity: Severity = "error", **values: str) -> Finding:
    rule = f"context-{about}"
    return Finding(about=about, rule=rule, agrees=False, says=says, todo=todo, severity=severity, **values)  # type: ignore[arg-type]


def _pinned(context: _Context) -> dict[str, str]:
    """The pins of requirements.txt; ManifestError."""
    target, faults = context.lock.target, Faults(_REQUIREMENTS)
    pins = Pins(Surroundings(python=target.python, system="Linux", machine=target.machine), faults)
    file = RequirementsFile(faults)
    file.read(Record(name=_REQUIREMENTS, data=context.requirements))
    take_lines(file, pins)
    faults.check()
    return {
        name: _pin(it.version, it.origin.hashes or filter(None, [it.origin.sha256]))
        for name, (it, _) in pins.found.items()
    }


def _pin(version: str | None, hashes: Iterable[str]) -> str:
    return f"{version or 'no version'} {' or '.join(f'sha256:{it}' for it in sorted(hashes)) or 'without a hash'}"


def _file_findings(context: _Context) -> Iterator[Finding]:
    """Whether the files beside the lock are the locked ones, and those there that nothing would fetch."""
    steps = " ".join(rest for word, rest in _instructions(context.dockerfile) if word == "RUN")
    wheels = ((f"{WHEELS}/{it.filename}", it.sha256, is_local(it)) for it in context.lock.wheels)
    debs = ((f"{DEBS}/{it.basename}", it.sha256, f"source={DEBS}," in steps) for it in context.lock.packages)
    files = [*((path, digest, here or "--no-index" in steps) for path, digest, here in wheels), *debs]
    found = {path: _digest(context.folder / path) for path, _, _ in files}
    faults = [(path, it) for path, it, needed in files if found[path] != it and (needed or found[path])]
    for path, digest in faults:
        says = f"{path} is {found[path] or 'not there'}, and the lock has {digest}"
        why = "The build would stop, as it takes no other file."
        fault = _fault("files", says, wanted=str(digest), found=str(found[path] or "nothing"), why=why)
        yield replace(fault, about=path)
    there = sum(it is not None for it in found.values())
    if there and not faults:
        says = f"all {there} files beside the lock are the locked ones"
        yield Finding(about="files", rule="context-files", agrees=True, says=says)


def _check_findings(context: _Context) -> Iterator[Finding]:
    """Whether the start-up check is envbuild's own, and its list the lock's, where the image gets them."""
    for path, wanted in context_check(_recipe(context)).items():
        found, digest = _digest(context.folder / path), Digest.of(wanted)
        if found == digest or f"/{path} " not in context.dockerfile:
            continue
        says = f"{path} is {found or 'not there'}, and envbuild writes {digest} for this lock"
        why = "Containers would be held against something else than what the lock says."
        fault = _fault("files", says, wanted=str(digest), found=str(found or "nothing"), why=why, severity="warning")
        yield replace(fault, about=path)


def _recipe(context: _Context) -> Recipe:
    """What decides the list that the check reads."""
    return Recipe(
        base_name="",
        base_digest=Digest.of(b""),
        python_path="",
        target=context.lock.target,
        wheels=context.lock.wheels,
        variables=(),
        labels=context.stage.labels,
    )


def _digest(path: Path) -> Digest | None:
    """Of a file; None where there is none."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return Digest.of_file(file)[0]
    except OSError as error:
        raise BuildError(f"the context cannot be read: {error.strerror}", where=str(path), todo=_AGAIN) from error
