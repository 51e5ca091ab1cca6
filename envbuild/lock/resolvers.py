"""The resolvers behind one interface: `uv pip compile` for any target, `pip-compile` for the running interpreter."""

import importlib.util
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import LockError, MissingComponentError, UsageError
from envbuild.lock import resolution
from envbuild.lock.faults import Fault, UnlockableError
from envbuild.lock.formats import toml_string
from envbuild.lock.index import IndexFile, in_parallel, index_file
from envbuild.lock.model import Lock, Target, best_wheel, glibc_minor, ranked_tags
from envbuild.lock.resolution import (
    IndexSession,
    Limits,
    UnsolvedError,
    complete_lock,
    explain_failure,
    fill_gaps,
    open_session,
)
from envbuild.lock.settings import IndexSettings, pip_environment, uv_environment, uv_program
from envbuild.manifest.packages import exact_version
from envbuild.match.stack import Gaps

_LEVELS = (17, 28, *range(31, 41))
"""The N of the manylinux_2_N that uv has for both machines, from 0.10 to 0.13.8."""
_UV_UNSOLVED = 1
"""The exit code of uv where the index answered and nothing fits; another one means that something else failed."""
_UV_UNDATED = "is missing an upload date"
"""uv's message for a file without upload date, when a date was given."""
_UV_VARIANT = "resolved to a wheel variant"
_YANKED = re.compile(r'^warning: `([A-Za-z0-9._-]+)==\S+` is yanked(?: \(reason: "(.*)"\))?', re.MULTILINE)
"""uv's warning of a withdrawn release, with its reason."""

_PIP_OPTIONS = (
    "--generate-hashes", "--allow-unsafe", "--strip-extras", "--quiet", "--no-config", "--no-header", "--no-annotate",
    "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-emit-options", "--rebuild",
    "--resolver", "backtracking", "--pip-args", "--only-binary=:all: --use-feature=fast-deps",
)  # fmt: skip
_PIP_UNDATED = "does not provide upload-time metadata"
"""pip's message for an index without upload dates, when a date was given."""
_PIP_UNSOLVED = ("ResolutionImpossible", "No matching distribution found")
"""pip's messages where the index answered and nothing fits."""
_USE_UV = "use --resolver uv"

Pins = Mapping[str, tuple[Version, frozenset[str]]]
"""For each normalised name: its version, and the sha256 of every file that the index has of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver(ABC):
    """Turns requirements into exact wheels; adds their dependencies only when there are gaps to fill."""

    settings: IndexSettings | None = None
    """Where to look; None for pip's and uv's own settings."""
    cache: Path | None = None
    """Where facts of wheels are kept."""

    @abstractmethod
    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """Lock all requirements, `local` from folders only; LockError names all that cannot be locked at once."""


class UvResolver(Resolver):
    """Resolves with `uv pip compile`."""

    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """As `Resolver.resolve`."""
        platforms = uv_platforms(target)
        with open_session(requirements, target, self.settings, self.cache, gaps, local=local) as session:
            places = (*session.settings.indexes, *session.settings.find_links)
            # Into pylock.toml uv writes the hash of each wheel in a folder, which it computes anew every time.
            form = "pylock.toml" if any("://" in it for it in places) else "requirements.txt"
            without_gaps = partial(self.resolve, requirements, target, local=local)
            done, date_warnings = fill_gaps(session, partial(_uv_compile, session, platforms, form), without_gaps)
            if form == "pylock.toml":
                chosen = _read_uv_lock(done.stdout, target)
            else:
                pins = parse_pins(done.stdout)
                chosen = [(_find_wheel(session, name, pins[name][0], "uv"), None) for name in sorted(pins)]
            files, sizes = [file for file, _ in chosen], [size for _, size in chosen]
            yanked: dict[str, str] = {canonicalize_name(it[1]): it[2] or "" for it in _YANKED.finditer(done.stderr)}
            return replace(complete_lock(session, files, sizes, yanked), date_warnings=date_warnings)


def _read_uv_lock(text: str, target: Target) -> list[tuple[IndexFile, int | None]]:
    """The wheels that uv chose, with sizes where the index gives them; LockError."""
    try:
        packages = Pylock.from_dict(tomllib.loads(text)).packages
    except (tomllib.TOMLDecodeError, PylockValidationError) as error:
        todo = "install the uv that envbuild requires: python -m pip install --upgrade uv"
        raise LockError(f"uv wrote a lock that is not valid: {error}", todo=todo) from error
    # uv's pylock has a requirement that is a file as `archive`.
    return [_choose_wheel(it, target) for it in packages if it.archive is None]


def uv_platforms(target: Target) -> tuple[str, ...]:
    """Name the target for uv: the newest level that its glibc reaches, and the next if it is between; UsageError."""
    ranked_tags(target)
    minor = glibc_minor(target)
    reached = [level for level in _LEVELS if level <= minor]
    if not reached:
        raise UsageError(f"glibc {target.glibc} is older than any wheel's", todo="take a base with glibc 2.17 or later")
    above = [level for level in _LEVELS if level > minor and reached[-1] != minor]
    return tuple(f"{target.machine}-manylinux_2_{level}" for level in (reached[-1], *above[:1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """How to find the dependencies of requirements."""

    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    """Requirements that replace those that distributions declare."""
    preferred: tuple[str, ...] = ()
    """`name==version`: pins that stay unless something else needs them to move."""
    upgraded: tuple[str, ...] = ()
    """Names whose preferred version does not count."""


def resolve_tree(session: IndexSession, tree: Tree) -> dict[str, str]:
    """The version of each distribution that the requirements need, by normalised name; LockError with uv's message."""
    files = {"constraints.txt": tree.constraints, "overrides.txt": tree.overrides, "pins.txt": tree.preferred}
    options = ["--constraint", "constraints.txt", "--override", "overrides.txt", "--no-annotate", "-o", "pins.txt"]
    options += [option for name in tree.upgraded for option in ("--upgrade-package", name)]
    texts = {name: "".join(f"{it}\n" for it in lines) for name, lines in files.items()}
    done = _run_uv(session, uv_platforms(session.target)[-1], options, texts)
    if done.returncode:
        raise explain_failure(session, done.stderr)
    found = (line.partition("==") for line in done.stdout.splitlines() if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version.split()[0] for name, _, version in found}


def _uv_compile(
    session: IndexSession, platforms: Sequence[str], form: str, limits: Limits
) -> subprocess.CompletedProcess[str]:
    """Choose a release for each requirement, and with gaps for what they require in turn; UnsolvedError, LockError."""
    options, files = _gap_options(session, limits)
    options = ["--format", form, "--no-annotate", *options]
    done = first = _run_uv(session, platforms[0], options, files)
    if _UV_VARIANT in first.stderr:  # its preview chose one, which it cannot write
        options.append("--no-preview")
        done = first = _run_uv(session, platforms[0], options, files)
    if done.returncode == _UV_UNSOLVED and platforms[1:]:
        # The wheels that uv chose for a later glibc are checked against the target's afterwards.
        done = _run_uv(session, platforms[1], options, files)
    if not done.returncode:
        return done
    if first.returncode == _UV_UNSOLVED:
        raise UnsolvedError(first.stderr, undated=_UV_UNDATED in first.stderr)
    raise explain_failure(session, first.stderr)


def _run_uv(
    session: IndexSession, platform: str, options: Sequence[str], files: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run uv in a folder with these files alone, so that it finds no project's settings."""
    target = ["--python", sys.executable, "--python-version", session.target.python, "--python-platform", platform]
    common = ["--no-header", "--only-binary", ":all:", *target, *([] if session.settings.default else ["--no-index"])]
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        command = [uv_program(), "pip", "compile", "-", *common, *options]
        text = "".join(f"{it}\n" for it in session.requirements)
        return resolution.run_resolver(command, folder, uv_environment(session.settings), text)


def _gap_options(session: IndexSession, limits: Limits) -> tuple[list[str], dict[str, str]]:
    """The options that add what is missing, within the limits, and their files."""
    gaps = session.gaps
    if gaps is None:
        return ["--no-deps"], {}
    replaced = [(Requirement(before), after) for before, after in gaps.replaced]
    excluded = [it for it in gaps.without if it not in {canonicalize_name(it.name) for it, _ in replaced}]
    never = "".join(f"{name} ; python_version < '0'\n" for name in excluded)
    bounds = "".join(f"{it}\n" for it in gaps.versions)
    lists = {"override": never, "constraint": bounds}
    files = {f"{option}.txt": text for option, text in lists.items() if text}
    options = [word for option, text in lists.items() if text for word in (f"--{option}", f"{option}.txt")]
    for it, after in replaced:
        # A dummy project for the replaced distribution, which requires its stand-in: the version still has to fit.
        lines = ["[project]", f"name = {toml_string(it.name)}", f"version = {toml_string(f'{exact_version(it)}')}"]
        files[f"{it.name}/pyproject.toml"] = "\n".join([*lines, f"dependencies = [{toml_string(after)}]", ""])
        files[f"{it.name}.txt"] = f"./{it.name}\n"
        options += [f"{it.name}.txt", "--no-emit-package", it.name]
    if limits.as_of:
        pinned = [it.name for it in session.requirements if exact_version(it)]  # they are what they are
        options += ["--exclude-newer", limits.as_of]
        options += [option for name in pinned for option in ("--exclude-newer-package", f"{name}=false")]
    if limits.relaxed:  # metadata that uv uses instead of the wheels'
        tables = (
            ["[[dependency-metadata]]", f"name = {toml_string(it.name)}", f"version = {toml_string(it.version)}",
             f"requires-dist = [{', '.join(map(toml_string, it.requires))}]",
             f"provides-extra = [{', '.join(map(toml_string, it.extras))}]", ""]
            for it in limits.relaxed
        )  # fmt: skip
        files["uv.toml"] = "\n".join(line for table in tables for line in table)
        # With UV_NO_CONFIG, as for --offline, uv reads only a file that is named.
        options += ["--config-file", "uv.toml"] if "UV_NO_CONFIG" in uv_environment(session.settings) else []
    return options, files


def _choose_wheel(package: Package, target: Target) -> tuple[IndexFile, int | None]:
    """The one wheel of a package for the target, and its size where the index gives it."""
    offers: list[tuple[IndexFile, int | None]] = []
    for wheel in package.wheels or ():
        sha256 = wheel.hashes.get("sha256")
        file = index_file(f"{wheel.url}#sha256={sha256}" if sha256 else wheel.url) if wheel.url else None
        offers += [(file, wheel.size)] if file is not None else []
    best = best_wheel(((file.filename, (file, size)) for file, size in offers), target)
    if best is None:
        raise LockError(f"uv chose no wheel for {package.name} {package.version}", todo="name it by version")
    return best


class PipToolsResolver(Resolver):
    """Resolves with `pip-compile`, which knows only the interpreter that runs it."""

    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """As `Resolver.resolve`; without `gaps` pins that contradict each other are refused, unlike by uv."""
        check_host(target)
        if local and gaps is None:  # pip-compile would look for their dependencies in the folders as well
            return UvResolver(settings=self.settings, cache=self.cache).resolve(requirements, target, local=True)
        with open_session(requirements, target, self.settings, self.cache, gaps, local=local) as session:
            try:
                # pip cannot override what a distribution requires, so nothing is relaxed.
                alone = partial(Lock, target=target, wheels=())
                pins_text, date_warnings = fill_gaps(session, partial(_pip_compile, session), alone)
            except LockError as error:
                if isinstance(error.__cause__, UnsolvedError) and not isinstance(error, UnlockableError):
                    error.todo = f"{_USE_UV}; or {error.todo}"
                raise
            pins = parse_pins(pins_text)
            if gaps is None:
                names = {canonicalize_name(it.name) for it in session.requirements}
                pins = {name: pin for name, pin in pins.items() if name in names}
            files = in_parallel(lambda name: _pip_wheel(session, name, pins), sorted(pins))
            chosen = [file for file in files if isinstance(file, IndexFile)]
            faults = [fault for fault in files if isinstance(fault, Fault)]
            # Unlike uv, pip-compile cannot be told to leave a distribution out.
            why = "another requirement asks for it, and the variant excludes it"
            excluded = sorted(pins.keys() & set(gaps.without if gaps else ()))
            faults += [Fault(f"{it}=={pins[it][0]}", why, _USE_UV) for it in excluded]
            if faults:
                raise UnlockableError(faults, target, where=session.settings.places)
            yanked = {str(file.name): file.yanked for file in chosen if file.yanked is not None}
            return replace(complete_lock(session, chosen, [None] * len(chosen), yanked), date_warnings=date_warnings)


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
        if not line.strip() or line.startswith(("#", "-")):  # comments and options
            continue
        pin, *hashes = line.split(" --hash=")
        requirement = Requirement(pin.strip())
        if not requirement.url:  # what was required as a file is not looked up
            digests = frozenset(word.strip().removeprefix("sha256:") for word in hashes)
            pins[canonicalize_name(requirement.name)] = (Version(str(requirement.specifier).lstrip("=")), digests)
    return pins


def _pip_compile(session: IndexSession, limits: Limits) -> str:
    """Run pip-compile in an empty folder, so that it finds no project's settings; return the pins that it wrote."""
    with tempfile.TemporaryDirectory(prefix="envbuild-") as name:
        folder = Path(name)
        asked, answer, bounds = folder / "requirements.in", folder / "requirements.txt", folder / "constraints.txt"
        asked.write_text("".join(f"{it}\n" for it in session.requirements))
        bounds.write_text("".join(f"{it}\n" for it in (session.gaps.versions if session.gaps else ())))
        command = [sys.executable, "-P", "-m", "piptools", "compile", *_PIP_OPTIONS, "--constraint", str(bounds)]
        command += ["--uploaded-prior-to", limits.as_of] if limits.as_of else []
        command += ["--output-file", str(answer), str(asked)]
        done = resolution.run_resolver(command, name, pip_environment(session.settings))
        if not done.returncode:
            return answer.read_text() if answer.exists() else ""
    if any(text in done.stderr for text in (_PIP_UNDATED, *_PIP_UNSOLVED)):
        raise UnsolvedError(done.stderr, undated=_PIP_UNDATED in done.stderr)
    raise explain_failure(session, done.stderr)


def _pip_wheel(session: IndexSession, name: str, pins: Pins) -> IndexFile | Fault:
    """The wheel of a pin for the target, as the index describes it; its hash must be one that pip-tools found."""
    version, hashes = pins[name]
    best = _find_wheel(session, name, version, "pip-tools")
    if best.sha256 is not None and best.sha256.hex not in hashes:
        why = f"the index says sha256 {best.sha256.hex} for {best.filename}, pip-tools found others"
        return Fault(f"{name}=={version}", why, "run again; the index may just be changing")
    return best


def _find_wheel(session: IndexSession, name: str, version: Version, resolver: str) -> IndexFile:
    """The wheel of a release for the target, as the index or folder has it; LockError where there is none."""
    files = [file for file in session.files(name) if file.is_wheel and file.version == version]
    best = best_wheel(((file.filename, file) for file in files), session.target)
    if best is None:
        todo = "name another version" if resolver == "uv" else f"{_USE_UV}; or name another version"
        raise LockError(f"{resolver} chose {name} {version}, which has no wheel here", todo=todo)
    return best
