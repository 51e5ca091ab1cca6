"""A build context as a source, and whether its files agree: any engine builds the image from these alone."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import cast, get_args

from envbuild.errors import BuildError, ManifestError, UsageError
from envbuild.image.context import DEBS, build_context, context_check
from envbuild.lock.formats import WHEELS, needs_file, read_pylock
from envbuild.lock.model import Lock
from envbuild.manifest.importers.pins import Pins, Surroundings
from envbuild.manifest.importers.record import Faults, Record
from envbuild.manifest.importers.requirements import RequirementsFile, take_lines
from envbuild.match.stack import Variant
from envbuild.oci.digest import Digest
from envbuild.recipe import PREFIX, PYTHON_LABEL, Recipe
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.sources import Side, side_of_lock

_LOCK, _REQUIREMENTS, _DOCKERFILE = "pylock.toml", "requirements.txt", "Dockerfile"
_CLASSIC = "Dockerfile.classic"
_LARGEST = 64 * 2**20
"""Bytes of one file."""
_LABEL = "dev.envbuild.{}"
_AGAIN = "write the context again: envbuild from-manifest MANIFEST --out FOLDER"
_ASSIGNED = re.compile(r"""([^\s="']+)=((?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])*)""", re.DOTALL)
_PIECE = re.compile(r""""((?:\\.|[^"\\])*)"|'([^']*)'|(\\.|[^"'\\])""", re.DOTALL)
_REPLACED = re.compile(r"(?<!\\)(?:\\\\)*\$[A-Za-z_{]")
_ESCAPED = re.compile(r'\\([\\"$])')
_STAGE = re.compile(r"(?:--\S+\s+)*(\S+)(?:\s+as\s+(\S+))?", re.IGNORECASE)
_LOCAL_BASE = re.compile(r"^# with the manifest (sha256:[0-9a-f]{64})\.$", re.MULTILINE)
"""The template's comment about a base that lies in no registry."""
_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=(.*)", re.IGNORECASE)
"""Comments that builders obey, before all else (Dockerfile reference, "Parser directives")."""
_PYTHON = re.compile(r'\["(/[^"]+)", "-m", "venv", ')
_OFFLINE = re.compile(r"\s--no-index\s")
_OWN = frozenset({"PATH", "VIRTUAL_ENV"})
"""Variables that the templates set by themselves."""
_LEADS = re.compile(r"PYTHON(?:PATH|HOME|STARTUP|PLATLIBDIR|USERBASE)|LD_PRELOAD|LD_AUDIT")
"""Variables that lead Python or the loader elsewhere, which no lock's image has."""
_SETS = re.compile(rf"(?:^|\s)(?:PATH|LD_LIBRARY_PATH|{_LEADS.pattern})[\s=]")
_HARMLESS = frozenset(
    {"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME", "WORKDIR"}
)
_PLACES = frozenset({"usr", "lib", "lib32", "lib64", "bin", "sbin", "opt", "etc", "root", "var"})
"""Where environments and the system lie."""
_NO_DIGEST = "0" * 64
_SHOWN = 80
_WHY = (
    "What the Dockerfile does besides is in the image and in no lock, so that it cannot be seen or repeated elsewhere."
)
_TODO = "put packages into the manifest; what a template of yours adds, give to both forms, or accept it in the policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The image that a Dockerfile ends with, as far as the Dockerfile alone describes it."""

    base: str
    """As FROM names it."""
    variables: tuple[tuple[str, str], ...] = ()
    """Those whose values take nothing from another variable."""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction of a Dockerfile."""

    line: int
    """Where it begins, from 1."""
    word: str
    """In upper case; `#SYNTAX` and the like for comments that builders obey."""
    arguments: str

    @property
    def text(self) -> str:
        """The instruction with single spaces."""
        return f"{self.word} {' '.join(self.arguments.split())}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    folder: Path
    lock: Lock
    locked_base: str
    """The digest of the base that the lock was made for; empty where the lock has none."""
    requirements: bytes
    dockerfiles: dict[str, str]
    """By name; the usual one first."""

    @property
    def stage(self) -> Stage:
        return last_stage(self.dockerfiles[_DOCKERFILE])


def side_of_context(folder: Path, name: str = "") -> Side:
    """What an image built of a context is, as far as the context alone says it.

    UsageError for a folder that is not a context, BuildError where a file cannot be read, LockError for its lock.
    """
    context = _read(folder)
    labels = dict(context.stage.labels)
    side = side_of_lock(context.lock, name or str(folder), dict(context.stage.variables) or None)
    variant = labels.get(_LABEL.format("variant"))
    own = labels.get(_LABEL.format("framework"), "").partition("==")[0]
    return replace(
        side,
        kind="context",
        variant=cast("Variant", variant) if variant in get_args(Variant) else side.variant,
        cuda=side.cuda or labels.get(_LABEL.format("cuda")),
        frameworks=tuple(sorted(side.frameworks, key=lambda it: it.distribution != own)),
    )


def context_findings(folder: Path) -> Iterator[Finding]:
    """Whether a context's files agree; errors as `side_of_context` has them."""
    context = _read(folder)
    yield _base_finding(context)
    python, label = context.lock.target.python, dict(context.stage.labels).get(PYTHON_LABEL)
    if label not in (None, python):
        says = f"the Dockerfile says Python {label}, and the wheels were locked for {python}"
        yield _fault("python", says, wanted=python, found=label or "", why="Others read the label, not the image.")
    yield from _dockerfile_findings(context)
    yield from _requirement_findings(context)
    yield from _file_findings(context)


def _read(folder: Path) -> _Context:
    if not (folder / _LOCK).is_file() or not (folder / _DOCKERFILE).is_file():
        lacking = _LOCK if (folder / _DOCKERFILE).is_file() else _DOCKERFILE
        todo = "give the folder context/ below what envbuild from-manifest --out wrote"
        raise UsageError(f"this is not a build context: {lacking} is missing", where=str(folder), todo=todo)
    pylock = _bytes(folder / _LOCK)
    lock = read_pylock(pylock, str(folder / _LOCK), folder)
    base = tomllib.loads(pylock.decode())["tool"]["envbuild"].get("base")
    names = [_DOCKERFILE, *([_CLASSIC] if (folder / _CLASSIC).is_file() else [])]
    return _Context(
        folder=folder,
        lock=lock,
        locked_base=str(base.get("digest", "")) if isinstance(base, dict) else "",
        requirements=_bytes(folder / _REQUIREMENTS),
        dockerfiles={name: _bytes(folder / name).decode("utf-8", "replace") for name in names},
    )


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > _LARGEST:
        raise BuildError(f"this has more than {_LARGEST} bytes", where=str(path), todo=_AGAIN)
    return data


def _unreadable(path: Path, error: OSError) -> BuildError:
    return BuildError(f"the context cannot be read: {error.strerror}", where=str(path), todo=_AGAIN)


def instructions(dockerfile: str) -> Iterator[Instruction]:
    """Join lines that go on in the next; comments between them do not end them."""
    begun, first, leading = "", 0, True
    for number, line in enumerate((it.strip() for it in dockerfile.split("\n")), 1):
        directive = _DIRECTIVE.fullmatch(line) if leading else None
        leading = directive is not None
        if directive:
            yield Instruction(line=number, word=f"#{directive[1].upper()}", arguments=directive[2].strip())
        if line.startswith("#") or not line:
            continue
        first = first if begun else number
        begun += line.removesuffix("\\")
        if not line.endswith("\\"):
            word, *arguments = begun.split(None, 1) or [""]
            yield Instruction(line=first, word=word.upper(), arguments="".join(arguments))
            begun = ""


def last_stage(dockerfile: str) -> Stage:
    """Read the last stage of a Dockerfile with the stages below it (Dockerfile reference, FROM, ENV and LABEL)."""
    stages: dict[str, Stage] = {}
    stage, name = Stage(base=""), ""
    for it in instructions(dockerfile):
        if it.word == "FROM" and (match := _STAGE.match(it.arguments)):
            name = (match[2] or "").lower()
            stage = stages.get(match[1].lower(), Stage(base=match[1]))
        elif it.word == "ENV":
            stage = replace(stage, variables=_assigned(stage.variables, it.arguments))
        elif it.word == "LABEL":
            stage = replace(stage, labels=_assigned(stage.labels, it.arguments))
        stages[name] = stage
    return stage


def _assigned(before: tuple[tuple[str, str], ...], arguments: str) -> tuple[tuple[str, str], ...]:
    """Set what one instruction sets; a value that takes anything from another variable is unknown."""
    names = dict(before)
    first, *more = arguments.split(None, 1) or ["="]
    old = "=" not in first  # `ENV NAME the rest of the line`
    for name, text in [(first, "".join(more))] if old else _ASSIGNED.findall(arguments):
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


def _fault(about: str, says: str, *, todo: str = _AGAIN, severity: Severity = "error", **values: str) -> Finding:
    rule = f"context-{about}"
    return Finding(about=about, rule=rule, agrees=False, says=says, todo=todo, severity=severity, **values)  # type: ignore[arg-type]


def _base_finding(context: _Context) -> Finding:
    """Whether the base is pinned, and is the one that the lock was made for."""
    base, local = context.stage.base, _LOCAL_BASE.search(context.dockerfiles[_DOCKERFILE])
    pinned = base.partition("@")[2] or (local[1] if local and base.startswith("$") else "")
    why = "The wheels were locked for the Python and the C library of one base; another may have others."
    if not pinned:
        says = f"the Dockerfile names its base without a digest: {base or 'it has no FROM'}"
        todo = "name the base by its digest, as in python:3.11-slim@sha256:..."
        return _fault("base", says, wanted="a digest", found=base, why=why, todo=todo, severity="warning")
    if context.locked_base not in ("", pinned):
        says = "the Dockerfile has another base than the lock was made for"
        return _fault("base", says, wanted=context.locked_base, found=pinned, why=why)
    return Finding(about="base", rule="context-base", agrees=True, says=f"the base is {pinned}")


def _dockerfile_findings(context: _Context) -> Iterator[Finding]:
    """Whether both Dockerfiles end with the same image, and do what envbuild's do for this lock, and nothing besides.

    An instruction that installs something else is a warning. A note is one that sets or copies something outside of the
    environment, and one that each Dockerfile has: templates of one's own do that.
    """
    stages = {name: last_stage(text) for name, text in context.dockerfiles.items()}
    for what in ("base", "variables", "labels") if _CLASSIC in stages else ():
        wanted, found = (getattr(stages[name], what) for name in (_DOCKERFILE, _CLASSIC))
        if wanted != found:
            says, why = f"{_CLASSIC} has other {what} than {_DOCKERFILE}", "The image would depend on the builder."
            yield _fault("dockerfile", says, wanted=_spelled(wanted), found=_spelled(found), why=why)
    changes = {
        name: _changes(name, list(instructions(text)), stages[name], context.lock)
        for name, text in context.dockerfiles.items()
    }
    for name, (more, less) in changes.items():
        others = [it for other, it in changes.items() if other != name]
        for one in more:
            both = any(one.text == it.text for added, _ in others for it in added)
            severity: Severity = "note" if both or _is_harmless(one) else "warning"
            yield _instruction_finding(f"{name}:{one.line} is not of envbuild", one, severity)
        for one in less:
            both = any(one.word == it.word for _, removed in others for it in removed)
            says = f"{name} lacks what envbuild writes for this lock"
            yield _instruction_finding(says, one, "note" if both else "warning")


def _spelled(value: str | tuple[tuple[str, str], ...]) -> str:
    return value if isinstance(value, str) else " ".join(f"{name}={text}" for name, text in value)


def _instruction_finding(says: str, one: Instruction, severity: Severity) -> Finding:
    text = one.text if len(one.text) <= _SHOWN else f"{one.text[:_SHOWN]}..."
    return _fault("dockerfile", f"{says}: {text}", todo=_TODO, severity=severity, found=one.text, why=_WHY)


def _is_harmless(one: Instruction) -> bool:
    """Whether an instruction changes nothing that the lock is about."""
    if one.word == "ENV":
        return not _SETS.search(one.arguments)
    if one.word == "COPY":
        place = "".join(one.arguments.split()[-1:])
        parts = place.strip("/").split("/")
        plain = re.fullmatch(r"[\w./-]+", place) is not None and ".." not in parts
        return plain and "--from" not in one.arguments and parts[0] not in {*_PLACES, ""}
    return one.word in _HARMLESS


def _changes(
    name: str, found: list[Instruction], stage: Stage, lock: Lock
) -> tuple[list[Instruction], list[Instruction]]:
    """What a Dockerfile has more, and less, than envbuild writes; nothing more of one without an environment."""
    wanted = _written(name, found, stage, lock)
    if wanted is None:
        return [], [Instruction(line=0, word="RUN", arguments="... -m venv ...")]
    one, other = ([it.text for it in those] for those in (wanted, found))
    more, less = list[Instruction](), list[Instruction]()
    for kind, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind != "equal":
            less += wanted[i:j]
            more += found[k:m]
    # a variable or label elsewhere than envbuild puts it is one that follows what it was rendered of
    moved = {it.text for it in more} & {it.text for it in less}
    return more, [it for it in less if it.text not in moved and it.word not in ("ENV", "LABEL")]


def _written(name: str, found: list[Instruction], stage: Stage, lock: Lock) -> list[Instruction] | None:
    """What envbuild writes for the same lock, base, Python, variables and labels."""
    runs = [it.arguments for it in found if it.word == "RUN"]
    python = next((match[1] for it in runs if (match := _PYTHON.search(it))), None)
    if python is None:
        return None
    pinned = stage.base if "@" in stage.base or stage.base.startswith("$") else f"{stage.base}@{Digest(_NO_DIGEST)}"
    kept = tuple((key, it) for key, it in stage.variables if key not in _OWN and not _LEADS.fullmatch(key))
    recipe = Recipe(
        base_name=pinned,
        base_digest=Digest(_NO_DIGEST),
        python_path=json.loads(f'"{python}"'),
        target=lock.target,
        wheels=lock.wheels,
        packages=lock.packages,
        variables=kept,
        labels=stage.labels,
        prefix=PREFIX,
    )
    try:
        text = build_context(recipe, b"", b"", None, wheelhouse=any(map(_OFFLINE.search, runs)))[name].decode()
        return list(instructions(text.replace(pinned, stage.base)))
    except (BuildError, ValueError):
        return None


def _requirement_findings(context: _Context) -> Iterator[Finding]:
    """Whether requirements.txt, which installs, has exactly the lock's versions and digests."""
    wanted = {it.name: _pin(it.version, [it.sha256.hex]) for it in context.lock.wheels}
    locked = {it.name: f"{it.name} {it.version}" for it in context.lock.wheels}
    why = f"The image gets what {_REQUIREMENTS} names, while the lock says something else."
    target, faults = context.lock.target, Faults(_REQUIREMENTS)
    pins = Pins(Surroundings(python=target.python, system="Linux", machine=target.machine), faults)
    file = RequirementsFile(faults)
    try:
        file.read(Record(name=_REQUIREMENTS, data=context.requirements))
        take_lines(file, pins)
        faults.check()
    except ManifestError as error:
        yield _fault("requirements", f"{_REQUIREMENTS} cannot install the lock: {error.what}", why=why)
        return
    found = {
        name: _pin(it.version, [*(it.origin.hashes or filter(None, [it.origin.sha256]))])
        for name, (it, _) in pins.found.items()
    }
    names = sorted(it for it in wanted.keys() | found.keys() if wanted.get(it) != found.get(it))
    for name in names:
        had, has = wanted.get(name, "nothing"), found.get(name, "nothing")
        says = f"{_REQUIREMENTS} has {has} of {name}, and {_LOCK} has {had}"
        fault = _fault("requirements", says, wanted=had, found=has, why=why)
        yield replace(fault, about=name, packages=(locked.get(name, name),))
    if not names:
        says = f"{_REQUIREMENTS} pins the lock's {len(wanted)} wheels, each by its sha256"
        yield Finding(about="requirements", rule="context-requirements", agrees=True, says=says)


def _pin(version: str | None, hashes: list[str]) -> str:
    return f"{version or 'no version'} {' or '.join(f'sha256:{it}' for it in sorted(hashes)) or 'without a hash'}"


def _file_findings(context: _Context) -> Iterator[Finding]:
    """Whether the files beside the lock are the locked ones, also those that nothing would fetch, and the check's."""
    dockerfile = context.dockerfiles[_DOCKERFILE]
    steps = " ".join(it.arguments for it in instructions(dockerfile) if it.word == "RUN")
    wheels = ((f"{WHEELS}/{it.plain_name}", it.sha256, needs_file(it)) for it in context.lock.wheels)
    debs = ((f"{DEBS}/{it.basename}", it.sha256, f"source={DEBS}," in steps) for it in context.lock.packages)
    files = [*((path, digest, here or "--no-index" in steps) for path, digest, here in wheels), *debs]
    found = {path: _digest(context.folder / path) for path, _, _ in files}
    faults = [(path, it) for path, it, needed in files if found[path] != it and (needed or found[path])]
    for path, digest in faults:
        says, why = f"{path} is {found[path] or 'not there'}, and the lock has {digest}", "The build would stop."
        fault = _fault("files", says, wanted=str(digest), found=str(found[path] or "nothing"), why=why)
        yield replace(fault, about=path)
    there = sum(it is not None for it in found.values())
    if there and not faults:
        says = f"all {there} files beside the lock are the locked ones"
        yield Finding(about="files", rule="context-files", agrees=True, says=says)
    lock, none = context.lock, Digest.of(b"")
    recipe = Recipe(
        base_name="", base_digest=none, python_path="", target=lock.target, wheels=lock.wheels, variables=(),
        labels=context.stage.labels,
    )  # fmt: skip
    for path, wanted in context_check(recipe).items():
        now, digest = _digest(context.folder / path), Digest.of(wanted)
        if now != digest and f"/{path} " in dockerfile:
            says = f"{path} is {now or 'not there'}, and envbuild writes {digest} for this lock"
            why = "Containers would be compared with something else than the lock."
            fault = _fault("files", says, wanted=str(digest), found=str(now or "nothing"), why=why, severity="warning")
            yield replace(fault, about=path)


def _digest(path: Path) -> Digest | None:
    """Of a file; None where there is none."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return Digest.of_file(file)[0]
    except OSError as error:
        raise _unreadable(path, error) from error
