"""Locking with uv: for any Python and platform, independent of this machine."""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import LockError, UsageError
from envbuild.lock.formats import toml_string
from envbuild.lock.index import IndexFile, index_file
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolution import (
    Limits,
    Question,
    Relaxed,
    UnsolvedError,
    complete,
    failure,
    fill,
    open_question,
    run_resolver,
)
from envbuild.lock.settings import IndexSettings, uv_environment, uv_program
from envbuild.lock.tags import best_wheel, glibc_minor, ranked_tags
from envbuild.manifest.packages import exact_version
from envbuild.match.stack import Gaps

_LEVELS = (17, 28, *range(31, 41))
"""The N of the manylinux_2_N that uv has for both machines, from 0.10 to 0.13.8."""
_UNSOLVED = 1
"""The exit code of uv where the index answered and nothing fits; another one means that something else failed."""
_UNDATED = "is missing an upload date"
"""uv's message for a file without upload date, when a date was given."""
_YANKED = re.compile(r'^warning: `([A-Za-z0-9._-]+)==\S+` is yanked(?: \(reason: "(.*)"\))?', re.MULTILINE)
"""uv's warning of a withdrawn release, with its reason."""
_Offer = tuple[IndexFile, int | None]
"""A wheel and its size in bytes, where the index gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UvResolver:
    """Resolves with `uv pip compile`."""

    settings: IndexSettings | None = None
    """Where to look; None for pip's and uv's own settings."""
    cache: Path | None = None
    """Where facts of wheels are kept."""

    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """Lock all requirements for `target`; LockError names everything that cannot be locked, all at once.

        `local` looks only in folders of this machine.
        """
        platforms = uv_platforms(target)
        with open_question(requirements, target, self.settings, self.cache, gaps, local=local) as question:
            filled = fill(
                question,
                lambda limits: _compile(question, platforms, limits),
                lambda: self.resolve(requirements, target, local=local),
            )
            done = filled.found
            try:
                packages = Pylock.from_dict(tomllib.loads(done.stdout)).packages
            except (tomllib.TOMLDecodeError, PylockValidationError) as error:
                todo = "install the uv that envbuild requires: python -m pip install --upgrade uv"
                raise LockError(f"uv wrote a lock that is not valid: {error}", todo=todo) from error
            # A requirement that is a file is an archive there.
            offers = [_chosen(it, target) for it in packages if it.archive is None]
            files, sizes = [file for file, _ in offers], [size for _, size in offers]
            yanked: dict[str, str] = {canonicalize_name(it[1]): it[2] or "" for it in _YANKED.finditer(done.stderr)}
            return replace(complete(question, files, sizes, yanked), remarks=filled.remarks)


def uv_platforms(target: Target) -> tuple[str, ...]:
    """The names that uv has for the target: the newest level that its glibc reaches, and the next if it is between.

    UsageError when it reaches none.
    """
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


def resolve_tree(question: Question, tree: Tree) -> dict[str, str]:
    """The version of each distribution that the requirements need, by normalised name; LockError with uv's message."""
    pins = "".join(f"{it}\n" for it in tree.preferred)
    files = {"constraints.txt": tree.constraints, "overrides.txt": tree.overrides}
    options = ["--constraint", "constraints.txt", "--override", "overrides.txt", "--no-annotate", "-o", "pins.txt"]
    options += [option for name in tree.upgraded for option in ("--upgrade-package", name)]
    texts = {name: "".join(f"{it}\n" for it in lines) for name, lines in files.items()} | {"pins.txt": pins}
    done = _run(question, uv_platforms(question.target)[-1], options, texts)
    if done.returncode:
        raise failure(question, done.stderr)
    found = (line.partition("==") for line in done.stdout.splitlines() if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version.split()[0] for name, _, version in found}


def _compile(question: Question, platforms: Sequence[str], limits: Limits) -> subprocess.CompletedProcess[str]:
    """Choose a wheel for each requirement, and with gaps for what they require in turn; UnsolvedError, LockError."""
    options, files = _filling(question, limits)
    options = ["--format", "pylock.toml", *options]
    done = first = _run(question, platforms[0], options, files)
    if done.returncode == _UNSOLVED and platforms[1:]:
        # The wheels that uv chose for a later glibc are checked against the target's afterwards.
        done = _run(question, platforms[1], options, files)
    if not done.returncode:
        return done
    if first.returncode == _UNSOLVED:
        raise UnsolvedError(first.stderr, undated=_UNDATED in first.stderr)
    raise failure(question, first.stderr)


def _run(
    question: Question, platform: str, options: Sequence[str], files: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run uv in a folder with these files alone, so that it finds no project's settings."""
    target = ["--python", sys.executable, "--python-version", question.target.python, "--python-platform", platform]
    common = ["--no-header", "--only-binary", ":all:", *target, *([] if question.settings.default else ["--no-index"])]
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        command = [uv_program(), "pip", "compile", "-", *common, *options]
        return run_resolver(command, folder, uv_environment(question.settings), question.text)


def _filling(question: Question, limits: Limits) -> tuple[list[str], dict[str, str]]:
    """The options that add what is missing, within the limits, and their files."""
    gaps = question.gaps
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
        # A project that only requires its stand-in: what requires the replaced distribution has to fit its version.
        lines = ["[project]", f"name = {toml_string(it.name)}", f"version = {toml_string(f'{exact_version(it)}')}"]
        files[f"{it.name}/pyproject.toml"] = "\n".join([*lines, f"dependencies = [{toml_string(after)}]", ""])
        files[f"{it.name}.txt"] = f"./{it.name}\n"
        options += [f"{it.name}.txt", "--no-emit-package", it.name]
    if limits.before:
        pinned = [it.name for it in question.requirements if exact_version(it)]  # they are what they are
        options += ["--exclude-newer", limits.before]
        options += [option for name in pinned for option in ("--exclude-newer-package", f"{name}=false")]
    if limits.relaxed:
        files["uv.toml"] = "".join(map(_metadata_table, limits.relaxed))
        # With UV_NO_CONFIG, as for --offline, uv reads only a file that is named.
        options += ["--config-file", "uv.toml"] if "UV_NO_CONFIG" in uv_environment(question.settings) else []
    return options, files


def _metadata_table(it: Relaxed) -> str:
    """Metadata of a distribution that uv uses instead of its wheel's."""
    lines = [
        "[[dependency-metadata]]",
        f"name = {toml_string(it.name)}",
        f"version = {toml_string(it.version)}",
        f"requires-dist = [{', '.join(map(toml_string, it.requires))}]",
        f"provides-extra = [{', '.join(map(toml_string, it.extras))}]",
    ]
    return "\n".join([*lines, ""])


def _chosen(package: Package, target: Target) -> _Offer:
    """The one wheel of a package for the target, and its size where the index gives it."""
    offers: list[_Offer] = []
    for wheel in package.wheels or ():
        sha256 = wheel.hashes.get("sha256")
        file = index_file(f"{wheel.url}#sha256={sha256}" if sha256 else wheel.url) if wheel.url else None
        offers += [(file, wheel.size)] if file is not None else []
    best = best_wheel(((file.filename, (file, size)) for file, size in offers), target)
    if best is None:
        raise LockError(f"uv chose no wheel for {package.name} {package.version}", todo="name it by version")
    return best
