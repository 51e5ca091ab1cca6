"""The order of the stages, on one screen; what is slow or remote is in the stages, what is printed is the caller's."""

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from envbuild.base import check_base, resolve_base
from envbuild.cache import prune, size_limit
from envbuild.dockerfile import build_context
from envbuild.errors import UsageError
from envbuild.files import data_folder, staged_folder, write_whole
from envbuild.lock import (
    IndexSettings,
    Lock,
    LockedRun,
    Options,
    Target,
    copy_local,
    lock_run,
    pylock_text,
    read_settings,
    requirements_text,
)
from envbuild.match import Stack, name_of
from envbuild.oci.layout import write_layout
from envbuild.pipeline.making import Making
from envbuild.pipeline.order import Order, Outcome, Plan, Reporter
from envbuild.recipe import Base, make_recipe
from envbuild.registry import SharedCache, check_push, check_repository, pull
from envbuild.stamp import StampEntry, check_stampable, stamp

PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def build(order: Order, plan: Plan, report: Reporter, now: datetime) -> Outcome:
    """Carry the plan out: lock, make and push (or write) the image; the stamp comes last, or not at all."""
    _check_destinations(order)
    settings = read_settings(order.find_links, offline=order.offline)
    with ExitStack() as stack:
        shared = _shared(order, stack)
        base = _base(order, plan, report)
        run = _lock(order, plan, base.target, settings, report)
        recipe = make_recipe(plan.stack, run.lock, base)
        making = Making(order=order, plan=plan, recipe=recipe, base=base, run=run, shared=shared, report=report)
        made = making.existing() or making.made(settings)
    pylock = pylock_text(made.run.lock, made.run.proof, dict(made.run.built))
    context = build_context(recipe, requirements_text(run.lock), pylock, data_folder("templates"))
    layout = None if made.pushed else order.out
    with staged_folder(order.out) as folder:
        for name, data in context.items():
            write_whole(folder / "context" / name, data)
        copy_local(run.lock, folder / "context")
        if layout:
            report.step(f"writing the OCI layout {layout}")
            write_layout(made.assembled.image, folder, name="latest", machine=base.target.machine)
    outcome = Outcome(
        plan=plan,
        recipe=recipe,
        assembled=made.assembled,
        pushed=made.pushed,
        layout=layout,
        pylock=pylock,
        proof=made.run.proof,
        added=_added(plan.stack, run.lock),
    )
    outcome = replace(outcome, stamped=_stamp(order.stamp, order, outcome, now)) if order.stamp else outcome
    _keep_small(order.cache, report)
    return outcome


def _shared(order: Order, stack: ExitStack) -> SharedCache | None:
    """What the repository that is pushed to has of layers."""
    if order.push is None or not order.remote_cache:
        return None
    return stack.enter_context(SharedCache(order.push))


def _check_destinations(order: Order) -> None:
    """Fail before the long work when its result would have nowhere to go, or an option cannot be meant."""
    size_limit()
    if order.stamp:
        check_stampable(order.stamp)
    if order.push:
        check_repository(order.push)
        check_push(order.push)
    _check_layout_folder(order.out)


def _base(order: Order, plan: Plan, report: Reporter) -> Base:
    report.step(f"base {plan.base}")
    base = resolve_base(
        plan.base,
        machine=plan.stack.machine,
        cache=order.cache,
        pull=lambda reference, machine: pull(reference, machine=machine),
        report=report.note,
        wanted_python=plan.stack.python,
    )
    for remark in check_base(base, plan.stack.python, plan.stack.glibc_minimum):
        report.warn(remark)
    report.note(f"Python {base.target.python}, glibc {base.target.glibc}, {base.digest}")
    return base


def _lock(order: Order, plan: Plan, target: Target, settings: IndexSettings, report: Reporter) -> LockedRun:
    stack = plan.stack
    report.step(f"locking {len(stack.requirements)} distributions with {order.resolver}")
    options = Options(
        cache=order.cache,
        resolver=order.resolver,
        settings=settings,
        build=order.build,
        fixed=(stack.distribution,),
        say=report.note,
        counted=report.compared,
    )
    run = lock_run(stack.requirements, target, plan.manifest.distributions, options, stack.gaps)
    size = sum(wheel.size for wheel in run.lock.wheels)
    report.note(f"{len(run.lock.wheels)} wheels, {size / 1e6:.1f} MB")
    for note in run.notes():
        report.note(note)
    if added := _added(stack, run.lock):
        those = f"{len(added)} of {len(run.lock.wheels)} wheels are"
        report.warn(f"{those} not in the run's record, and need not be what the run had: {', '.join(added)}")
    if order.require_identical:
        run.proof.require_identical()
    return run


def _added(stack: Stack, locked: Lock) -> tuple[str, ...]:
    """What is locked besides the requirements."""
    names = {name_of(it) for it in stack.requirements}
    return tuple(f"{it.name}=={it.version}" for it in locked.wheels if it.name not in names)


def _stamp(model: str, order: Order, outcome: Outcome, now: datetime) -> str:
    entry = StampEntry(
        role="train",
        variant=outcome.plan.stack.variant,
        platform=PLATFORMS[outcome.recipe.target.machine],
        reference=str(outcome.image) if outcome.image else None,
        digest=outcome.digest,
        environment=outcome.recipe.environment,
        overrides=outcome.plan.stack.overrides,
        identity=outcome.proof.summary,
    )
    return stamp(model, entry, manifest=order.manifest, lock=outcome.pylock, now=now).record


def _keep_small(cache: Path, report: Reporter) -> None:
    """Hold the cache to the size that the user set, if any."""
    limit = size_limit()
    gone = prune(cache, keep=limit) if limit is not None else ()
    if gone:
        report.note(f"the cache is over its limit: {sum(it.size for it in gone) / 1e6:.1f} MB removed")


def _check_layout_folder(folder: Path) -> None:
    """Refuse a folder of somebody else's files, which the image would lie between."""
    ours = {"oci-layout", "index.json", "blobs", "context"}
    if folder.exists() and not folder.is_dir():
        raise UsageError("the output is a file, not a folder", where=str(folder), todo="give --out another folder")
    if folder.is_dir() and (others := sorted({path.name for path in folder.iterdir()} - ours)):
        todo = "give --out a folder of its own; it is made when it is missing"
        raise UsageError(f"the folder holds other files, such as {others[0]}", where=str(folder), todo=todo)
