"""Locking with pip-tools: the same lock as uv's, where the target is the running interpreter."""

import importlib.util
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import LockError, MissingComponentError, UsageError
from envbuild.lock.faults import Fault, UnlockableError
from envbuild.lock.filling import Limits, UnsolvedError, fill
from envbuild.lock.index import IndexFile
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolving import Question, asking, complete, failure, run_resolver
from envbuild.lock.settings import IndexSettings, pip_environment
from envbuild.lock.tags import best_wheel
from envbuild.lock.web import in_parallel
from envbuild.match.stack import Gaps

_OPTIONS = (
    "--generate-hashes", "--allow-unsafe", "--strip-extras", "--quiet", "--no-config", "--no-header", "--no-annotate",
    "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-emit-options", "--rebuild",
    "--resolver", "backtracking", "--pip-args", "--only-binary=:all: --use-feature=fast-deps",
)  # fmt: skip

_UNDATED = "does not provide upload-time metadata"
"""What pip says of an index when it was asked for a date and the index does not say when files were uploaded."""
_UNSOLVED = ("ResolutionImpossible", "No matching distribution found")
"""What pip says where the index answered and nothing fits."""
_PROGRAM = Path(__file__).with_name("pip_compile.py")

Pins = Mapping[str, tuple[Version, frozenset[str]]]
"""For each normalised name: its version, and the sha256 of every file that the index has of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipToolsResolver:
    """Resolves with pip-tools, which knows only the interpreter that runs it."""

    settings: IndexSettings | None = None
    """Where to look; None for what pip and uv are set to."""
    cache: Path | None = None
    """Where facts of wheels are kept."""

    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """Lock all requirements for `target`; LockError names everything that cannot be locked, all at once.

        `local` looks only in folders of this machine, and in no index.
        """
        check_host(target)
        with asking(requirements, target, self.settings, self.cache, gaps, local=local) as question:
            filled = fill(
                question,
                lambda limits: _compile(question, limits),
                lambda: self.resolve(requirements, target, local=local),
            )
            pins = parse_pins(filled.found)
            files = in_parallel(lambda name: _file(question, name, pins), sorted(pins))
            chosen = [file for file in files if isinstance(file, IndexFile)]
            faults = [fault for fault in files if isinstance(fault, Fault)] + _excluded(question, pins)
            if faults:
                raise UnlockableError(faults, target, where=question.settings.places)
            yanked = {str(file.name): file.yanked for file in chosen if file.yanked is not None}
            return replace(complete(question, chosen, [None] * len(chosen), yanked), remarks=filled.remarks)


def check_host(target: Target) -> None:
    """Refuse a target that is not the running interpreter; MissingComponentError when pip-tools is absent."""
    libc, glibc = platform.libc_ver()
    minor = "{}.{}".format(*sys.version_info[:2])
    host = (minor, platform.machine(), glibc if libc == "glibc" else libc)
    wanted = (target.python_minor, target.machine, target.glibc)
    if host != wanted or sys.implementation.name != "cpython":
        what = "pip-tools locks only for the interpreter that runs it: this is Python {}, {}, glibc {}".format(*host)
        where = "the target is Python {}, {}, glibc {}".format(*wanted)
        raise UsageError(what, where=where, todo="use --resolver uv")
    if importlib.util.find_spec("piptools") is None:
        raise MissingComponentError("pip-tools is not installed", todo="python -m pip install pip-tools")


def parse_pins(text: str) -> Pins:
    """Read `name==version` and its `--hash=sha256:` lines, as pip-tools writes them."""
    pins: dict[str, tuple[Version, frozenset[str]]] = {}
    for words in _logical_lines(text):
        requirement = Requirement(words[0])
        if requirement.url:  # a file, which was asked for as such
            continue
        hashes = frozenset(word.removeprefix("--hash=sha256:") for word in words[1:])
        pins[canonicalize_name(requirement.name)] = (Version(str(requirement.specifier).lstrip("=")), hashes)
    return pins


def _logical_lines(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement, *hashes = line.split(" --hash=")
            yield [requirement.strip(), *(f"--hash={word.strip()}" for word in hashes)]


def _compile(question: Question, limits: Limits) -> str:
    """Run pip-tools in an empty folder, so that no project's settings are found; the requirements that it wrote."""
    _refuse_relaxed(limits)
    with tempfile.TemporaryDirectory(prefix="envbuild-") as name:
        folder = Path(name)
        asked, answer = folder / "requirements.in", folder / "requirements.txt"
        asked.write_text(question.text)
        command = [sys.executable, "-P", *_program(question, folder), *_OPTIONS, "--output-file", str(answer)]
        command += ["--uploaded-prior-to", limits.before] if limits.before else []
        done = run_resolver([*command, str(asked)], name, pip_environment(question.settings))
        if not done.returncode:
            return answer.read_text() if answer.exists() else ""
    if any(said in done.stderr for said in (_UNDATED, *_UNSOLVED)):
        raise UnsolvedError(done.stderr, undated=_UNDATED in done.stderr)
    raise failure(question, done.stderr)


def _refuse_relaxed(limits: Limits) -> None:
    """Refuse pins that contradict each other: pip has no way to override what a distribution requires."""
    conflicts = [f"  {conflict}" for it in limits.relaxed for conflict in it.conflicts]
    if conflicts:
        what = "the record's pins contradict each other, and pip-tools cannot add what it lacks:"
        raise LockError("\n".join([what, *conflicts]), todo="use --resolver uv, or correct the record")


def _program(question: Question, folder: Path) -> list[str]:
    """pip-compile that adds nothing; where gaps are to be filled, pip-compile itself."""
    if question.gaps is None:
        return [str(_PROGRAM)]
    limits = folder / "constraints.txt"
    limits.write_text("".join(f"{it}\n" for it in question.gaps.versions))
    return ["-m", "piptools", "compile", "--constraint", str(limits)]


def _excluded(question: Question, pins: Pins) -> list[Fault]:
    """What was added although the variant excludes it: unlike uv, pip-tools cannot be told to leave it out."""
    names = sorted(pins.keys() & set(question.gaps.without if question.gaps else ()))
    why = "another requirement asks for it, and the variant excludes it"
    return [Fault(requirement=f"{it}=={pins[it][0]}", why=why, todo="use --resolver uv") for it in names]


def _file(question: Question, name: str, pins: Pins) -> IndexFile | Fault:
    """The wheel of a pin for the target, as the index describes it; it must be among the hashes."""
    version, hashes = pins[name]
    files = [file for file in question.files(name) if file.is_wheel and file.version == version]
    best = best_wheel(((file.filename, file) for file in files), question.target)
    if best is None:
        raise LockError(f"pip-tools chose {name} {version}, which has no wheel here", todo="use --resolver uv")
    if best.sha256 is not None and best.sha256.hex not in hashes:
        why = f"the index says sha256 {best.sha256.hex} for {best.filename}, pip-tools found others"
        return Fault(requirement=f"{name}=={version}", why=why, todo="run again; the index may just be changing")
    return best
