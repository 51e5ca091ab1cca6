"""`envbuild lock`: the exact wheels of a run, held against what the run had installed."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import locking, records
from envbuild.cli.console import Progress
from envbuild.cli.printed import check_stdout
from envbuild.errors import UsageError, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envbuild.lock import LockedRun, Options, Target
    from envbuild.manifest.model import TrainingManifest
    from envbuild.match.stack import Stack


Download = Annotated[
    Path | None,
    typer.Option(help="Put all wheels into this folder, for --find-links.", metavar="DIR", file_okay=False),
]
UpgradePackage = Annotated[
    list[str] | None, typer.Option(help="Take a newer release, and what must follow it.", metavar="NAME[==V]")
]
Extra = Annotated[
    list[str] | None, typer.Option(help="Add this and what it needs, moving nothing.", metavar="REQUIREMENT")
]
Glibc = Annotated[str | None, typer.Option(help="Lock for this glibc; by default the base's.", metavar="2.N")]


Out = Annotated[Path, typer.Option(help="Where requirements.txt and pylock.toml go.", metavar="DIR", file_okay=False)]
Base = Annotated[
    str | None, typer.Option(help="Lock for the Python and glibc of this base, as in from-manifest.", metavar="REF")
]


def run(
    manifest: records.Manifest,
    *,
    out: Out = Path("envbuild-lock"),
    variant: locking.Variant = locking.VariantName.AUTO,
    cuda_source: locking.CudaSource = locking.CudaSourceName.AUTO,
    set_: locking.Set = None,
    platform: locking.Platform = None,
    drop: locking.Drop = None,
    base: Base = None,
    glibc: Glibc = None,
    resolver: locking.Resolver = locking.ResolverName.UV,
    exclude_newer: locking.ExcludeNewer = None,
    require_identical: locking.RequireIdentical = False,
    build: locking.Build = False,
    find_links: locking.FindLinks = None,
    offline: locking.Offline = False,
    download: Download = None,
    upgrade_package: UpgradePackage = None,
    extra: Extra = None,
    kind: records.From = None,
    python: records.Python = None,
    gpu: records.Gpu = None,
    ran_on: records.RanOn = None,
    framework: records.Framework = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Lock a run's environment, and say how far the wheels are the very files that the run had.

    Writes requirements.txt with hashes and pylock.toml. Where a lock is there already, files that changed on
    the index since are refused. Prints the path of pylock.toml.
    """
    from envbuild.files import cache_folder
    from envbuild.lock import Options, read_settings
    from envbuild.manifest.importers.environment import RecordOptions

    started = time.monotonic()
    _check(out, download, {"--extra": extra, "--upgrade-package": upgrade_package})
    given = RecordOptions(python=python, gpu=gpu, platform=ran_on, framework=framework.value if framework else None)
    with Progress() as progress:
        record = records.read_record(manifest, kind, given, progress)
        had, stack, base_glibc = _decide(record, variant, cuda_source, set_, platform, exclude_newer, drop)
        options = Options(
            cache=cache_folder(),
            resolver=resolver.value,
            settings=read_settings(find_links or (), offline=offline),
            build=build,
            upgrade=tuple(upgrade_package or ()),
            extras=tuple(extra or ()),
            raise_glibc=base is None and glibc is None,
            say=progress.note,
            counted=locking.counter(progress),
        )
        _tell(stack, progress)
        target = _target(stack, base, base_glibc, glibc, options.cache, progress)
        locked = _lock(had, stack, target, options, out, download, progress, identical=require_identical)
        if options.raise_glibc:
            _tell_glibc(locked.lock.target.glibc, stack.base, base_glibc, progress)
    typer.echo(json.dumps(_result(locked, out, started), indent=2) if as_json else str(out / "pylock.toml"))


def _tell(stack: "Stack", progress: Progress) -> None:
    """Say what is to be looked at, and what was changed."""
    for decision in (it for it in stack.decisions if it.warning):
        progress.warn(f"{decision.what}: {decision.value} - {decision.reason}")
    locking.tell_changes(stack, progress)


def _tell_glibc(glibc: str, base: str, has: str | None, progress: Progress) -> None:
    """Say why this glibc was chosen, and where the default base is too old for it."""
    if glibc == has:
        progress.note(f"for glibc {glibc}, as the default base {base} has it")
        return
    progress.note(f"for glibc {glibc}, the lowest that serves all wheels")
    if has:
        progress.warn(f"the default base {base} has glibc {has}: build on one with {glibc} or later (--base)")


def _check(out: Path, download: Path | None, given: "Mapping[str, Iterable[str] | None]") -> None:
    """Refuse what cannot be written or is no requirement, before the work is done; UsageError."""
    from packaging.requirements import InvalidRequirement, Requirement

    from envbuild.files import check_stageable

    check_stdout()
    for option, text in ((option, text) for option, texts in given.items() for text in texts or ()):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            todo = f"give a name, with a version where it matters: {option} 'fastapi==0.115.0'"
            raise UsageError(f"this is no requirement: {error}", where=f"{option} {text}", todo=todo) from error
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
    """Lock, hold the result to the lock that is there, fetch where that is wanted, tell all of it, and write it."""
    from envbuild.lock import lock_stack, read_held, refuse_changed, write_lock

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
    record: tuple[str, bytes],
    variant: locking.VariantName,
    cuda_source: locking.CudaSourceName,
    overrides: list[str] | None,
    platform: str | None,
    exclude_newer: str | None,
    drop: list[str] | None,
) -> "tuple[TrainingManifest, Stack, str | None]":
    """The record, what it needs, and the glibc of the base that it would be built on, where that is known."""
    from envbuild.files import data_folder
    from envbuild.manifest import read_manifest
    from envbuild.match.match import match
    from envbuild.match.profiles import FRAMEWORKS, load_profiles
    from envbuild.match.run import frameworks_of
    from envbuild.match.stack import pairs_of

    name, data = record
    manifest = read_manifest(data, name)
    set_by_hand = pairs_of(overrides or ())
    # Any framework may know the pins of a CUDA that is asked for by hand.
    profiles = load_profiles(data_folder("profiles"), FRAMEWORKS if set_by_hand else frameworks_of(manifest))
    stack = match(
        manifest,
        profiles,
        variant.value,
        cuda_source=cuda_source.value,
        overrides=set_by_hand,
        machine=platform,
        exclude_newer=exclude_newer,
        drop=drop or (),
    )
    return manifest, stack, profiles.glibc_of(stack.base)


def _target(
    stack: "Stack", base: str | None, base_glibc: str | None, glibc: str | None, cache: Path, progress: Progress
) -> "Target":
    """The base's Python and glibc where one is named; else the run's Python, and the glibc of the default base."""
    from envbuild.lock import stack_target

    if base is None:
        return stack_target(stack, base_glibc, glibc)
    from envbuild.base import check_base, refuse_base, resolve_base
    from envbuild.registry import pull

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
    from envbuild.lock import confirm, fetch, write_wheelhouse

    wheels = locked.lock.wheels
    progress.step(f"putting {counted(len(wheels), 'wheel')} into {folder}")

    def told(done: int, total: int, _text: str) -> None:
        progress.progress("fetching", done, total)

    found = fetch(wheels, options.cache, report=told, settings=options.settings)
    fetched = {wheel.sha256: path for wheel, path in found}
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
