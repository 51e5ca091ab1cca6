"""`envbuild lock`: the exact wheels of a run, and how far they are the files that the run had."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import records
from envbuild.cli.command import advanced_option, grouped, what_option, where_option
from envbuild.cli.console import Progress, check_stdout
from envbuild.cli.options import AsJson, FactOptions, LockOptions, Manifest, RunPlatform
from envbuild.errors import UsageError, counted

if TYPE_CHECKING:
    from envbuild.lock.model import Target
    from envbuild.lock.run import LockedRun, Options
    from envbuild.manifest.model import TrainingManifest
    from envbuild.match.stack import Stack

Out = Annotated[Path, where_option(help="Write requirements.txt and pylock.toml here.", metavar="DIR", file_okay=False)]


@grouped()
def run(
    manifest: Manifest,
    *,
    out: Out = Path("envbuild-lock"),
    platform: RunPlatform = None,
    base: Annotated[
        str | None, what_option(help="Lock for the Python and glibc of this base, as in from-manifest.", metavar="REF")
    ] = None,
    glibc: Annotated[
        str | None, advanced_option(help="Lock for this glibc; by default the base's.", metavar="2.N")
    ] = None,
    locks: LockOptions,
    download: Annotated[
        Path | None,
        where_option(help="Put all wheels into this folder, for --find-links.", metavar="DIR", file_okay=False),
    ] = None,
    upgrade_package: Annotated[
        list[str] | None,
        what_option(help="Take a newer release, and move what has to follow; repeatable.", metavar="NAME[==V]"),
    ] = None,
    extra: Annotated[
        list[str] | None,
        what_option(help="Add this and what it needs, and change no version; repeatable.", metavar="REQUIREMENT"),
    ] = None,
    record: FactOptions,
    as_json: AsJson = False,
) -> None:
    """Lock the exact wheels of a run's environment.

    Reports how far they are the files that the run had. Writes requirements.txt with hashes and pylock.toml. Where
    there is a lock already, files that changed on the index since are refused. Prints the path of pylock.toml.
    """
    from envbuild.files import cache_folder
    from envbuild.lock.run import Options
    from envbuild.lock.settings import read_settings

    started = time.monotonic()
    _check(out, download, {"--extra": extra, "--upgrade-package": upgrade_package})
    with Progress() as progress:
        read = records.read_record(manifest, record.kind, records.given_facts(record), progress)
        had, stack, base_glibc = _decide(read, locks, platform)
        options = Options(
            cache=cache_folder(),
            resolver=locks.resolver,
            settings=read_settings(locks.find_links or (), offline=locks.offline),
            build=locks.build,
            upgrade=tuple(upgrade_package or ()),
            extras=tuple(extra or ()),
            raise_glibc=base is None and glibc is None,
            reporter=progress,
        )
        for decision in (it for it in stack.decisions if it.warning):
            progress.warn(f"{decision.what}: {decision.value} - {decision.reason}")
        records.report_changes(stack, progress)
        target = _target(stack, base, base_glibc, glibc, options.cache, progress)
        locked = _lock(had, stack, target, options, out, download, progress, identical=locks.require_identical)
        if options.raise_glibc:
            _report_glibc(locked.lock.target.glibc, stack.base, base_glibc, progress)
    typer.echo(json.dumps(_result(locked, out, started), indent=2) if as_json else str(out / "pylock.toml"))


def _report_glibc(glibc: str, base: str, has: str | None, progress: Progress) -> None:
    """Report why this glibc was chosen, and where the default base is too old for it."""
    if glibc == has:
        progress.note(f"for glibc {glibc}, as the default base {base} has it")
        return
    progress.note(f"for glibc {glibc}, the lowest that serves all wheels")
    if has:
        progress.warn(f"the default base {base} has glibc {has}: build on one with {glibc} or later (--base)")


def _check(out: Path, download: Path | None, given: Mapping[str, Iterable[str] | None]) -> None:
    """Refuse folders that cannot be written, and wrong requirements, before the work; UsageError."""
    from packaging.requirements import InvalidRequirement, Requirement

    from envbuild.files import check_stageable

    check_stdout()
    for option, text in ((option, text) for option, texts in given.items() for text in texts or ()):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            todo = f"give a name, with a version where it matters: {option} 'fastapi==0.115.0'"
            raise UsageError(f"not a requirement: {error}", where=f"{option} {text}", todo=todo) from error
    check_stageable(out, "--out")
    if download is not None and not download.is_dir():  # one that is whole already need not be writable
        check_stageable(download, "--download")


def _lock(
    had: "TrainingManifest",
    stack: "Stack",
    target: "Target",
    options: "Options",
    out: Path,
    download: Path | None,
    progress: Progress,
    *,
    identical: bool,
) -> "LockedRun":
    """Lock, compare with the lock that exists, fetch for --download, and write the lock."""
    from envbuild.lock.formats import read_held, write_lock
    from envbuild.lock.run import lock_stack, refuse_changed

    held = read_held(out)
    as_of = f", as of {stack.gaps.before}" if stack.gaps and stack.gaps.before else ""
    progress.step(f"locking {counted(len(stack.requirements), 'distribution')} with {options.resolver}{as_of}")
    locked = lock_stack(stack, target, had, options)
    if held is not None:
        refuse_changed(held, locked.lock, str(out))
    if download is not None:
        locked = _download(download, locked, options, progress)
    for warning in locked.warnings:
        progress.warn(warning)
    for note in locked.notes():
        progress.note(note)
    if identical:
        locked.proof.require_identical()
    write_lock(out, locked)
    return locked


def _decide(
    record: tuple[str, bytes], locks: LockOptions, platform: str | None
) -> "tuple[TrainingManifest, Stack, str | None]":
    """Return the manifest, its stack, and the glibc of the stack's base, where that is known."""
    from envbuild.files import data_folder
    from envbuild.manifest import read_manifest
    from envbuild.match.match import match
    from envbuild.match.profiles import FRAMEWORKS, load_profiles
    from envbuild.match.run import frameworks_of
    from envbuild.match.stack import pairs_of

    name, data = record
    manifest = read_manifest(data, name)
    overrides = pairs_of(locks.set_ or ())
    # Any framework may know the pins of a CUDA of --set.
    profiles = load_profiles(data_folder("profiles"), FRAMEWORKS if overrides else frameworks_of(manifest))
    stack = match(
        manifest,
        profiles,
        locks.variant,
        cuda_source=locks.cuda_source,
        overrides=overrides,
        machine=platform,
        exclude_newer=locks.exclude_newer,
        drop=locks.drop or (),
    )
    return manifest, stack, profiles.glibc_of(stack.base)


def _target(
    stack: "Stack", base: str | None, base_glibc: str | None, glibc: str | None, cache: Path, progress: Progress
) -> "Target":
    """Return the base's Python and glibc where one is named; else the run's Python, and the default base's glibc."""
    from envbuild.lock.model import stack_target

    if base is None:
        return stack_target(stack, base_glibc, glibc)
    from envbuild.base.resolve import check_base, refuse_base, resolve_base
    from envbuild.registry.pull import pull

    refuse_base(base, stack.machine, cache, stack.python, stack.glibc_minimum)
    found = resolve_base(
        base,
        machine=stack.machine,
        cache=cache,
        pull=lambda reference, machine: pull(reference, machine=machine),
        report=progress.note,
        wanted_python=stack.python,
    )
    for remark in check_base(found, stack.python, stack.glibc_minimum, where=base):
        progress.warn(remark)
    return found.target


def _download(folder: Path, locked: "LockedRun", options: "Options", progress: Progress) -> "LockedRun":
    from envbuild.lock.download import fetch
    from envbuild.lock.formats import write_wheelhouse
    from envbuild.lock.run import confirm

    wheels = locked.lock.wheels
    progress.step(f"putting {counted(len(wheels), 'wheel')} into {folder}")
    files = fetch(wheels, options.cache, reporter=progress, settings=options.settings)
    fetched = {wheel.sha256: path for wheel, path in files}
    confirmed = confirm(locked, options.cache)
    write_wheelhouse(folder, fetched, wheels)
    return confirmed


def _result(locked: "LockedRun", out: Path, started: float) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "pylock": str(out / "pylock.toml"),
        "requirements": str(out / "requirements.txt"),
        "target": asdict(locked.lock.target),
        "wheels": len(locked.lock.wheels),
        "size": sum(wheel.size for wheel in locked.lock.wheels),
        "identity": locked.proof.to_dict(),
        "changes": [asdict(it) for it in locked.changes],
        "added": locked.added,
        "built": dict(locked.built),
        "left_out": dict(locked.left_out),
        "yanked": dict(locked.lock.yanked),
        "conflicts": [str(it) for it in locked.conflicts],
        "notes": locked.notes(),
        "warnings": locked.warnings,
        "seconds": round(time.monotonic() - started, 3),
    }
