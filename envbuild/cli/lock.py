"""`envbuild lock`: the exact wheels of a run, and how far they are the files that the run had."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from envbuild.cli.arguments import base_of, import_record, report_changes
from envbuild.cli.command import ADVANCED, WHAT, WHERE, grouped, option
from envbuild.cli.console import Progress
from envbuild.cli.options import AsJson, FactOptions, LockOptions, Manifest
from envbuild.errors import UsageError, counted

if TYPE_CHECKING:
    from envbuild.lock.model import Target
    from envbuild.lock.run import LockResult, Options
    from envbuild.manifest.model import TrainingManifest
    from envbuild.match.stack import Stack


@grouped()
def run(
    manifest: Manifest,
    *,
    out: Path = option(
        WHERE, "Write requirements.txt and pylock.toml here.", "DIR", default=Path("envbuild-lock"), file_okay=False
    ),
    platform: str | None = option(WHAT, "linux/amd64 or linux/arm64; by default the run's.", "PLATFORM"),
    base: str | None = option(WHAT, "Lock for the Python and glibc of this base, as in from-manifest.", "REF"),
    glibc: str | None = option(ADVANCED, "Lock for this glibc; by default the base's.", "2.N"),
    locks: LockOptions,
    download: Path | None = option(WHERE, "Put all wheels into this folder, for --find-links.", "DIR", file_okay=False),
    upgrade_package: list[str] | None = option(
        WHAT, "Take a newer release, and move what has to follow; repeatable.", "NAME[==V]"
    ),
    extra: list[str] | None = option(
        WHAT, "Add this and what it needs, and change no version; repeatable.", "REQUIREMENT"
    ),
    record: FactOptions,
    as_json: AsJson = False,
) -> None:
    """Lock the exact wheels of a run's environment.

    Reports how far they are the files that the run had. Writes requirements.txt with hashes and pylock.toml. Where
    there is a lock already, files that changed on the index since are refused. Prints the path of pylock.toml.
    """
    from envbuild.files import cache_folder
    from envbuild.lock.run import Options, lock_stack
    from envbuild.lock.settings import read_settings

    started = time.monotonic()
    _check(out, download, {"--extra": extra, "--upgrade-package": upgrade_package})
    with Progress() as progress:
        had = import_record(manifest, progress, record, locks=locks)[2]
        stack, base_glibc = _decide(had, locks, platform)
        options = Options(
            cache=cache_folder(),
            resolver=locks.resolver,
            settings=read_settings(locks.find_links or (), offline=locks.offline),
            build_from_source=locks.build,
            upgrade=tuple(upgrade_package or ()),
            extras=tuple(extra or ()),
            raise_glibc=base is None and glibc is None,
            reporter=progress,
        )
        target = _target(stack, base, base_glibc, glibc, options.cache, progress)
        if locks.only_imported:
            progress.step("finding what the imported distributions require")
            drops = list(lock_stack(stack, target, had, options).lock.drops)
            found, base_glibc = _decide(had, replace(locks, drop=drops, only_imported=False), platform)
            if (found.base, found.glibc_minimum) != (stack.base, stack.glibc_minimum):
                target = _target(found, base, base_glibc, glibc, options.cache, progress)
            stack = found
        for decision in (it for it in stack.decisions if it.warning):
            progress.warn(f"{decision.what}: {decision.value} - {decision.reason}")
        report_changes(stack, progress)
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

    for name, text in ((name, text) for name, texts in given.items() for text in texts or ()):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            todo = f"give a name, with a version where it matters: {name} 'fastapi==0.115.0'"
            raise UsageError(f"not a requirement: {error}", where=f"{name} {text}", todo=todo) from error
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
) -> "LockResult":
    """Lock, compare with the lock that exists, fetch for --download, and write the lock."""
    from envbuild.lock.formats import read_existing_lock, write_lock
    from envbuild.lock.run import lock_stack, refuse_changed

    held = read_existing_lock(out)
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


def _decide(manifest: "TrainingManifest", locks: LockOptions, platform: str | None) -> "tuple[Stack, str | None]":
    """Return the stack of a run, and the glibc of the stack's base, where that is known."""
    from envbuild.files import data_folder
    from envbuild.match.match import match
    from envbuild.match.profiles import FRAMEWORKS, load_profiles
    from envbuild.match.run import frameworks_of
    from envbuild.match.stack import pairs_of

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
        as_of=locks.exclude_newer,
        drop=locks.drop or (),
        imported_only=locks.only_imported,
    )
    return stack, profiles.glibc_of(stack.base)


def _target(
    stack: "Stack", base: str | None, base_glibc: str | None, glibc: str | None, cache: Path, progress: Progress
) -> "Target":
    """Return the base's Python and glibc where one is named; else the run's Python, and the default base's glibc."""
    from envbuild.lock.model import stack_target

    if base is None:
        return stack_target(stack, base_glibc, glibc)
    from envbuild.base.resolve import check_base, refuse_base

    refuse_base(base, stack.machine, cache, stack.python, stack.glibc_minimum)
    found = base_of(base, stack.machine, progress, stack.python)
    for remark in check_base(found, stack.python, stack.glibc_minimum, where=base):
        progress.warn(remark)
    return found.target


def _download(folder: Path, locked: "LockResult", options: "Options", progress: Progress) -> "LockResult":
    from envbuild.lock.download import fetch
    from envbuild.lock.formats import write_wheelhouse
    from envbuild.lock.run import verify_files

    wheels = locked.lock.wheels
    progress.step(f"putting {counted(len(wheels), 'wheel')} into {folder}")
    files = fetch(wheels, options.cache, reporter=progress, settings=options.settings)
    fetched = {wheel.sha256: path for wheel, path in files}
    confirmed = verify_files(locked, options.cache)
    write_wheelhouse(folder, fetched, wheels)
    return confirmed


def _result(locked: "LockResult", out: Path, started: float) -> dict[str, Any]:
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
