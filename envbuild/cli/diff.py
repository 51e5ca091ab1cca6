"""`envbuild diff`: the differences between two images, or between two manifests, models, locks or hosts."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from envbuild.cli.arguments import import_record, parse_platform, read_lock
from envbuild.cli.capture import capture_elsewhere
from envbuild.cli.command import HOW, WHAT, WHERE, flag, grouped, option
from envbuild.cli.console import Progress, one_line
from envbuild.cli.options import AsJson, Platform
from envbuild.cli.targets import kind_of
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from envbuild.diff.comparison import Rules
    from envbuild.diff.facts import Description
    from envbuild.manifest.model import TrainingManifest

    Facts = tuple[Description, str | None, TrainingManifest | None]
    """Of a manifest, a model, a lock or a host; the digest of its bytes, of a model's record; its manifest."""

Digests = tuple[str | None, str | None]
_FORMS = "An image (a reference, an OCI layout, an archive, docker-daemon:NAME), a manifest, a model, a lock, or host"
_KINDS = {"image": "images", "manifest": "manifests", "lock": "locks", "model": "models", "host": "hosts"}


class Difference(Protocol):
    """What a comparison of any kind returns."""

    @property
    def equal(self) -> bool: ...
    def lines(self, *, files: bool) -> Iterator[str]: ...
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A or B."""

    text: str
    kind: str
    """`manifest`; a build context is its lock."""
    name: str
    """Without a prefix for the kind."""


@grouped()
def run(
    a: Annotated[str, typer.Argument(help=f"{_FORMS}.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Its later state; likewise.", metavar="B")],
    *,
    files: bool = flag(WHERE, "List every file that differs, and how."),
    ignore: list[str] | None = option(
        HOW, "Leave out matching paths and what is in them; * matches slashes too. Repeatable.", "GLOB"
    ),
    as_installed: bool = flag(HOW, "Ignore what installers may differ in: bytecode, INSTALLER, and their RECORD."),
    mtimes: bool = flag(HOW, "Compare the times of files too."),
    platform: Platform = None,
    python: str | None = option(WHAT, "For host: this interpreter, not envbuild's own.", "PATH"),
    as_json: AsJson = False,
) -> None:
    """Show the differences between two images, or two runs.

    Of images by package: files by content, kind, mode, owner and link, and the config. Of manifests, stamped models
    and this machine (host): fact by fact, first what can change predictions. Locks are compared with each other,
    and with those by their packages. The first line is a summary. Exit code 0 where they are equal, 16 where they
    differ. Layers that decide nothing are not read, and none is unpacked.
    """
    rules = _rules(ignore or [], as_installed=as_installed, mtimes=mtimes)
    before, after = _argument(a), _argument(b)
    _check(before, after, python)
    with Progress() as progress:
        if before.kind == "image":
            difference, digests = _compare_images(before.name, after.name, rules, parse_platform(platform), progress)
        else:
            difference, digests = _compare_facts(before, after, python, progress)
    if as_json:
        sides = {side: {"name": it, "digest": digest} for side, it, digest in zip("ab", (a, b), digests, strict=True)}
        typer.echo(json.dumps({**sides, **difference.to_dict()}, indent=2))
    else:
        for line in difference.lines(files=files):
            typer.echo(one_line(line))
    if not difference.equal:
        kind = _KINDS[before.kind] if before.kind == after.kind else "two"
        todo = "see which files with --files" if before.kind == "image" and not (files or as_json) else ""
        raise VerifyError(f"the {kind} differ", where=f"{a} and {b}", todo=todo)


def _argument(text: str) -> Argument:
    kind, name = kind_of(text)
    if kind == "model" and not _is_model(name):  # any folder; what reads images refuses it
        return Argument(text=text, kind="image", name=name)
    if kind == "context":
        return Argument(text=text, kind="lock", name=str(Path(name) / "pylock.toml"))
    return Argument(text=text, kind=kind, name=name)


def _is_model(name: str) -> bool:
    """Whether a folder has a model's file, at most one folder deep, or a stamp."""
    from envbuild.capture.model import READABLE
    from envbuild.stamp.directory import POINTER

    folder = Path(name)
    if "://" in name or not folder.is_dir() or (folder / POINTER).exists():
        return True
    return any(READABLE.fullmatch(path.name) for glob in ("*", "*/*") for path in folder.glob(glob))


def _check(a: Argument, b: Argument, python: str | None) -> None:
    """Refuse kinds that cannot be compared, and an interpreter without a host; UsageError."""
    if (a.kind == "image") != (b.kind == "image"):
        what = f"these are of two kinds: {_KINDS[a.kind]} and {_KINDS[b.kind]}"
        todo = f"compare them with envbuild verify {a.text} {b.text}"
        raise UsageError(what, where=f"{a.text} and {b.text}", todo=todo)
    if python is not None and "host" not in (a.kind, b.kind):
        todo = "give host as A or B, or leave the option out"
        raise UsageError("this names an interpreter of host, and host is not compared", where="--python", todo=todo)


def _rules(ignore: list[str], *, as_installed: bool, mtimes: bool) -> "Rules":
    from envbuild.diff.comparison import Rules

    if as_installed and mtimes:
        todo = "leave one of them out"
        raise UsageError("builders' times always differ", where="--as-installed, --mtimes", todo=todo)
    if not all(pattern.strip("/") for pattern in ignore):
        raise UsageError("this leaves out everything", where="--ignore", todo="give a pattern such as var/cache/*")
    return Rules(ignore=tuple(ignore), as_installed=as_installed, mtimes=mtimes)


def _compare_facts(a: Argument, b: Argument, python: str | None, progress: Progress) -> tuple[Difference, Digests]:
    """Compare facts; a host is captured last, with the variables that the other side names."""
    from envbuild.diff.facts import compare_descriptions, compare_locks, compare_packages

    facts: dict[Argument, Facts] = {}
    for it in sorted({a, b}, key=lambda it: it.kind == "host"):
        match it.kind:
            case "manifest":
                facts[it] = _manifest_facts(it.name, progress)
            case "lock":
                facts[it] = _lock_facts(it.name)
            case "model":
                facts[it] = _model_facts(it.name, progress)
            case _:
                others = [manifest for _, _, manifest in facts.values() if manifest]
                facts[it] = _host_facts(it.name, python, others, progress)
    compare = (compare_descriptions, compare_packages, compare_locks)[(a.kind, b.kind).count("lock")]
    return compare(facts[a][0], facts[b][0]), (facts[a][1], facts[b][1])


def _manifest_facts(name: str, progress: Progress) -> "Facts":
    from envbuild.diff.facts import describe_manifest
    from envbuild.oci.digest import Digest

    _, data, manifest = import_record(name, progress)
    return describe_manifest(manifest), str(Digest.of(data)), manifest


def _lock_facts(name: str) -> "Facts":
    from envbuild.diff.facts import describe_lock
    from envbuild.oci.digest import Digest

    return describe_lock(read_lock(Path(name), "")), str(Digest.of(Path(name).read_bytes())), None


def _model_facts(name: str, progress: Progress) -> "Facts":
    from envbuild.diff.facts import describe_model
    from envbuild.stamp.record import record_digest
    from envbuild.verify.sources.model import read_model

    found = read_model(name)
    if found.stamp is None:
        progress.warn(f"{name}: {found.history.unstamped}; only its files can be compared")
    for copy, fault in found.faults.items():
        progress.warn(f"{copy}: {fault}")
    locks = {" ".join(slot): lock for slot, lock in found.locks.items()}
    digest = str(record_digest(found.history.records[0].name)) if found.stamp else None
    return describe_model(found.model, found.manifest, found.stamp, locks), digest, found.manifest


def _host_facts(name: str, python: str | None, others: "Sequence[TrainingManifest]", progress: Progress) -> "Facts":
    """Capture this machine."""
    from envbuild.capture.files import manifest_text
    from envbuild.capture.program import merge_options
    from envbuild.capture.record import capture
    from envbuild.diff.facts import describe_host
    from envbuild.manifest.reader import read_manifest

    progress.step(f"capturing this machine by {python or 'the Python that envbuild runs on'}")
    given: dict[str, Any] = dict.fromkeys(("model", "golden", "command", "config"))
    given |= {"data": [], "load": [], "preprocessing": [], "patch": False, "deep": False}
    given["variable"] = [variable for manifest in others for variable, _ in manifest.variables]
    given["requires"] = [it.name for manifest in others if manifest.contract for it in manifest.contract.variables]
    options = merge_options(given, None)
    if python is None:
        facts = capture(out=None, process="fresh", **options)
    else:
        facts = capture_elsewhere(options, None, python, None)
    manifest = read_manifest(manifest_text(facts).encode(), name)
    return describe_host(manifest), None, manifest


def _compare_images(a: str, b: str, rules: "Rules", machine: str, progress: Progress) -> tuple[Difference, Digests]:
    from envbuild.diff.comparison import compare
    from envbuild.diff.images import check_name, open_image
    from envbuild.files import cache_folder

    for text in (a, b):
        check_name(text)
    progress.step(f"comparing {a} and {b}")
    with ExitStack() as stack:
        cache = cache_folder()
        before, after = (
            stack.enter_context(open_image(it, machine=machine, cache=cache, report=progress)) for it in (a, b)
        )
        difference = compare(before, after, rules, names=(a, b), report=progress.progress)
    return difference, (str(before.found_as or before.digest), str(after.found_as or after.digest))
