"""Locking with pip-tools: the same lock as uv's, where the target is the running interpreter."""

import importlib.util
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import LockError, MissingComponentError, UsageError
from envbuild.lock.client import in_parallel
from envbuild.lock.faults import Fault, UnlockableError
from envbuild.lock.index import IndexFile
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolution import (
    Limits,
    Question,
    UnsolvedError,
    complete,
    failure,
    fill,
    open_question,
    run_resolver,
)
from envbuild.lock.settings import IndexSettings, pip_environment
from envbuild.lock.tags import best_wheel
from envbuild.match.stack import Gaps

_OPTIONS = (
    "--generate-hashes", "--allow-unsafe", "--strip-extras", "--quiet", "--no-config", "--no-header", "--no-annotate",
    "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-emit-options", "--rebuild",
    "--resolver", "backtracking", "--pip-args", "--only-binary=:all: --use-feature=fast-deps",
)  # fmt: skip
_UNDATED = "does not provide upload-time metadata"
"""pip's message for an index without upload dates, when a date was given."""
_UNSOLVED = ("ResolutionImpossible", "No matching distribution found")
"""pip's messages where the index answered and nothing fits."""
_USE_UV = "use --resolver uv"

Pins = Mapping[str, tuple[Version, frozenset[str]]]
"""For each normalised name: its version, and the sha256 of every file that the index has of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipToolsResolver:
    """Resolves with `pip-compile`, which knows only the interpreter that runs it."""

    settings: IndexSettings | None = None
    """Where to look; None for pip's and uv's own settings."""
    cache: Path | None = None
    """Where facts of wheels are kept."""

    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """Lock all requirements for `target`; LockError names everything that cannot be locked, all at once.

        `local` looks only in folders of this machine. pip-compile always resolves dependencies too: without `gaps`
        those that are no requirements are left out of the lock, and pins that contradict each other are refused.
        """
        check_host(target)
        with open_question(requirements, target, self.settings, self.cache, gaps, local=local) as question:
            try:
                # pip cannot override what a distribution requires, so nothing is relaxed.
                filled = fill(question, partial(_compile, question), lambda: Lock(target=target, wheels=()))
            except LockError as error:
                if isinstance(error.__cause__, UnsolvedError) and not isinstance(error, UnlockableError):
                    error.todo = f"{_USE_UV}; or {error.todo}"
                raise
            pins = parse_pins(filled.found)
            if gaps is None:
                names = {canonicalize_name(it.name) for it in question.requirements}
                pins = {name: pin for name, pin in pins.items() if name in names}
            files = in_parallel(lambda name: _file(question, name, pins), sorted(pins))
            chosen = [file for file in files if isinstance(file, IndexFile)]
            faults = [fault for fault in files if isinstance(fault, Fault)]
            # Unlike uv, pip-compile cannot be told to leave a distribution out.
            why = "another requirement asks for it, and the variant excludes it"
            excluded = sorted(pins.keys() & set(gaps.without if gaps else ()))
            faults += [Fault(requirement=f"{it}=={pins[it][0]}", why=why, todo=_USE_UV) for it in excluded]
            if faults:
                raise UnlockableError(faults, target, where=question.settings.places)
            yanked = {str(file.name): file.yanked for file in chosen if file.yanked is not None}
            return replace(complete(question, chosen, [None] * len(chosen), yanked), remarks=filled.remarks)


def check_host(target: Target) -> None:
    """Refuse a target that is not the running interpreter; MissingComponentError when pip-tools is absent."""
    libc, glibc = platform.libc_ver()
    minor = "{}.{}".format(*sys.version_info[:2])
    host = (minor, platform.machine(), glibc if libc == "glibc" else libc)
    asked = (target.python_minor, target.machine, target.glibc)
    if host != asked or sys.implementation.name != "cpython":
        what = "pip-tools locks only for the interpreter that runs it: this is Python {}, {}, glibc {}".format(*host)
        raise UsageError(what, where="the target is Python {}, {}, glibc {}".format(*asked), todo=_USE_UV)
    if importlib.util.find_spec("piptools") is None:
        raise MissingComponentError("pip-tools is not installed", todo="python -m pip install pip-tools")


def parse_pins(text: str) -> Pins:
    """Read `name==version` and its `--hash=sha256:` lines, as pip-tools writes them."""
    pins: dict[str, tuple[Version, frozenset[str]]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pin, *hashes = line.split(" --hash=")
        requirement = Requirement(pin.strip())
        if not requirement.url:  # what was required as a file is not looked up
            digests = frozenset(word.strip().removeprefix("sha256:") for word in hashes)
            pins[canonicalize_name(requirement.name)] = (Version(str(requirement.specifier).lstrip("=")), digests)
    return pins


def _compile(question: Question, limits: Limits) -> str:
    """Run pip-compile in an empty folder, so that it finds no project's settings; return the pins that it wrote."""
    with tempfile.TemporaryDirectory(prefix="envbuild-") as name:
        folder = Path(name)
        asked, answer, bounds = folder / "requirements.in", folder / "requirements.txt", folder / "constraints.txt"
        asked.write_text(question.text)
        bounds.write_text("".join(f"{it}\n" for it in (question.gaps.versions if question.gaps else ())))
        command = [sys.executable, "-P", "-m", "piptools", "compile", *_OPTIONS, "--constraint", str(bounds)]
        command += ["--uploaded-prior-to", limits.before] if limits.before else []
        command += ["--output-file", str(answer), str(asked)]
        done = run_resolver(command, name, pip_environment(question.settings))
        if not done.returncode:
            return answer.read_text() if answer.exists() else ""
    if any(text in done.stderr for text in (_UNDATED, *_UNSOLVED)):
        raise UnsolvedError(done.stderr, undated=_UNDATED in done.stderr)
    raise failure(question, done.stderr)


def _file(question: Question, name: str, pins: Pins) -> IndexFile | Fault:
    """The wheel of a pin for the target, as the index describes it; its hash must be one that pip-tools found."""
    version, hashes = pins[name]
    files = [file for file in question.files(name) if file.is_wheel and file.version == version]
    best = best_wheel(((file.filename, file) for file in files), question.target)
    if best is None:
        raise LockError(f"pip-tools chose {name} {version}, which has no wheel here", todo=_USE_UV)
    if best.sha256 is not None and best.sha256.hex not in hashes:
        why = f"the index says sha256 {best.sha256.hex} for {best.filename}, pip-tools found others"
        return Fault(requirement=f"{name}=={version}", why=why, todo="run again; the index may just be changing")
    return best
