"""`envbuild diff`: what differs between two images, or between two of manifests, models, locks and this machine."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from envbuild.cli.console import Progress, printable
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, machine_of
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from envbuild.diff import Rules

_FORMS = "An image (a reference, an OCI layout, an archive, docker-daemon:NAME), a manifest, a model, a lock, or host"
_LONGEST_PATH = 4096
"""linux/limits.h."""
_KINDS = {"image": "images", "manifest": "manifests", "lock": "locks", "model": "models", "host": "hosts"}
Before = Annotated[str, typer.Argument(help=f"{_FORMS}.", metavar="A")]
After = Annotated[str, typer.Argument(help="What became of it; likewise.", metavar="B")]
Files = Annotated[bool, typer.Option("--files", help="List every file that differs, and in what.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        help="Leave out paths that fit, and what lies in them; * takes slashes too. Repeatable.", metavar="GLOB"
    ),
]
AsInstalled = Annotated[
    bool,
    typer.Option(
        "--as-installed", help="Leave out in what installers may differ: bytecode, INSTALLER, and the like in RECORD."
    ),
]
Python = Annotated[
    str | None, typer.Option(help="Where host is compared: by this interpreter, not envbuild's own.", metavar="PATH")
]
Times = Annotated[bool, typer.Option("--mtimes", help="Let the times of files count.")]


class Outcome(Protocol):
    """What a comparison of any kind gives."""

    @property
    def equal(self) -> bool: ...
    @property
    def summary(self) -> str: ...
    def lines(self, *, files: bool) -> Iterator[str]: ...
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An outcome, and the digests of what was compared."""

    kind: str
    """`images`."""
    outcome: Outcome
    digests: tuple[str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was named on the command line."""

    text: str
    kind: str
    """`manifest`, with a context being its lock."""
    name: str
    """Without what says the kind."""


def run(
    a: Before,
    b: After,
    *,
    files: Files = False,
    ignore: Ignore = None,
    as_installed: AsInstalled = False,
    mtimes: Times = False,
    platform: Platform = None,
    python: Python = None,
    as_json: AsJson = False,
) -> None:
    """Say what differs between two images, by package: files by content, kind, mode, owner and link, and the config.

    Of manifests, stamped models and this machine (host): fact by fact, first what can change predictions. Locks are
    compared with each other, and with those by their packages. The first line is a summary. Exit code 0 where they are
    equal, 16 where they differ. Layers that decide nothing are not read, and none is unpacked.
    """
    check_stdout()
    rules = _rules(ignore or [], as_installed=as_installed, mtimes=mtimes)
    one, other = _given(a), _given(b)
    _check(one, other, python)
    with Progress() as progress:
        if one.kind == "image":
            result = _images(one.name, other.name, rules, machine_of(platform), progress)
        else:
            result = _facts(one, other, python, progress)
    _print(a, b, result, files=files, as_json=as_json)


def _given(text: str) -> Given:
    from envbuild.cli.targets import kind_of

    if len(text) > _LONGEST_PATH:  # which no file has, so that it is for what reads references to refuse
        return Given(text=text, kind="image", name=text)
    kind, name = kind_of(text)
    if kind == "model" and _is_no_model(name):  # a folder of anything; what reads images says so
        return Given(text=text, kind="image", name=name)
    if kind == "context":  # which is what its lock gives
        return Given(text=text, kind="lock", name=str(Path(name) / "pylock.toml"))
    return Given(text=text, kind=kind, name=name)


def _is_no_model(name: str) -> bool:
    """Whether a folder holds neither a model's file, at most one folder deep, nor a stamp."""
    from envbuild.capture.model import READABLE
    from envbuild.stamp.directory import POINTER

    folder = Path(name)
    if "://" in name or not folder.is_dir() or (folder / POINTER).exists():
        return False
    return not any(READABLE.fullmatch(path.name) for glob in ("*", "*/*") for path in folder.glob(glob))


def _check(a: Given, b: Given, python: str | None) -> None:
    """Refuse what has nothing in common but packages, and an interpreter that nothing asks; UsageError."""
    where = f"{a.text} and {b.text}"
    if (a.kind == "image") != (b.kind == "image"):
        what = f"these are of two kinds: {_KINDS[a.kind]} and {_KINDS[b.kind]}"
        todo = f"hold one against the other with envbuild verify {a.text} {b.text}"
        raise UsageError(what, where=where, todo=todo)
    if python is not None and "host" not in (a.kind, b.kind):
        raise UsageError("this names an interpreter of host, and host is not compared", where="--python", todo=_HOST)


_HOST = "give host as A or B, or leave the option out"


def _rules(ignore: list[str], *, as_installed: bool, mtimes: bool) -> "Rules":
    from envbuild.diff import Rules

    if as_installed and mtimes:
        todo = "leave one of them out"
        raise UsageError("builders' times always differ", where="--as-installed, --mtimes", todo=todo)
    if not all(pattern.strip("/") for pattern in ignore):
        raise UsageError("this leaves out everything", where="--ignore", todo="give a pattern such as var/cache/*")
    return Rules(ignore=tuple(ignore), as_installed=as_installed, mtimes=mtimes)


def _facts(a: Given, b: Given, python: str | None, progress: Progress) -> Result:
    """Hold two against each other by their facts; a host is captured last, as it is asked for what the other names."""
    from envbuild.cli.facts import READERS, Said
    from envbuild.diff import differing_locks, differing_packages, differing_told

    said: dict[Given, Said] = {}
    for it in sorted({a, b}, key=lambda it: it.kind == "host"):
        others = [other.manifest for other in said.values() if other.manifest]
        said[it] = READERS[it.kind](it.name, python, others, progress)
    locks = (a.kind, b.kind).count("lock")
    compare = (differing_told, differing_packages, differing_locks)[locks]
    kind = _KINDS[a.kind] if a.kind == b.kind else "two"
    outcome = compare(said[a].told, said[b].told)
    return Result(kind=kind, outcome=outcome, digests=(said[a].digest, said[b].digest))


def _images(a: str, b: str, rules: "Rules", machine: str, progress: Progress) -> Result:
    from envbuild.diff import check_name, compare, opened
    from envbuild.files import cache_folder

    for text in (a, b):
        check_name(text)
    progress.step(f"comparing {a} and {b}")
    with ExitStack() as stack:
        before, after = (
            stack.enter_context(opened(text, machine=machine, cache=cache_folder(), teller=progress)) for text in (a, b)
        )
        difference = compare(before, after, rules, names=(a, b), report=progress.progress)
    digests = (str(before.found_as or before.digest), str(after.found_as or after.digest))
    return Result(kind="images", outcome=difference, digests=digests)


def _print(a: str, b: str, result: Result, *, files: bool, as_json: bool) -> None:
    """Print what differs; VerifyError where anything does."""
    outcome = result.outcome
    if as_json:
        sides = {
            side: {"name": name, "digest": it} for side, name, it in zip("ab", (a, b), result.digests, strict=True)
        }
        typer.echo(json.dumps({**sides, **outcome.to_dict()}, indent=2))
    else:
        for line in outcome.lines(files=files):
            typer.echo(printable(line).replace("\n", " "))
    if not outcome.equal:
        more = result.kind == "images" and not (files or as_json)
        todo = "see which files with --files" if more else ""
        raise VerifyError(f"the {result.kind} differ", where=f"{a} and {b}", todo=todo)
