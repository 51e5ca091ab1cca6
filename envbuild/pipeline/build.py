"""The order of the stages, on one screen; what is slow or remote is in the stages, what is printed is the caller's."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from envbuild.assemble import Compiling
from envbuild.assemble.bytecode import compiled_by
from envbuild.base import check_base, resolve_base
from envbuild.base.compiling import compiling_on
from envbuild.cache import prune, size_limit
from envbuild.lock import (
    IndexSettings,
    Lock,
    LockedRun,
    Options,
    Target,
    lock_run,
    pylock_text,
    read_settings,
)
from envbuild.match import Stack, name_of
from envbuild.oci.index import Content, ImageIndex, image_index
from envbuild.pipeline.making import Making
from envbuild.pipeline.order import Order, Outcome, Part, Plan, Reporter
from envbuild.pipeline.outputs import check_engine, check_outputs, write_outputs
from envbuild.recipe import Base, make_recipe
from envbuild.registry import PushResult, SharedCache, check_push, check_repository, pull, push_index
from envbuild.stamp import StampEntry, check_stampable, stamp

PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def build(order: Order, plans: Sequence[Plan], report: Reporter, now: datetime) -> Outcome:
    """Carry the plans out: lock, make and push (or write) the image; the stamp comes last, or not at all."""
    _check_destinations(order)
    settings = read_settings(order.find_links, offline=order.offline)
    with ExitStack() as stack:
        shared = _shared(order, stack)
        parts = tuple(_part(order, plan, settings, shared, report, several=len(plans) > 1) for plan in plans)
    images = [part.assembled.image for part in parts]
    content: Content = images[0] if len(parts) == 1 else image_index(images)
    pushed = _pushed(order, parts, content, report)
    outcome = write_outputs(order, parts, content, pushed, report)
    if order.stamp:
        outcome = replace(outcome, stamped=_stamp(order.stamp, order, parts, now))
    _keep_small(order.cache, report)
    return outcome


def _part(
    order: Order, plan: Plan, settings: IndexSettings, shared: SharedCache | None, report: Reporter, *, several: bool
) -> Part:
    """Make the image of one platform, and push it."""
    base = _base(order, plan, shared, report)
    run = _lock(order, plan, base.target, settings, report)
    compiling = _compiling(order, base, report) if order.bytecode else None
    recipe = make_recipe(plan.stack, run.lock, base, compiled_by(base.interpreter) if compiling else "")
    target = replace(order.push, tag=None) if order.push and several else order.push
    making = Making(
        order=order,
        plan=plan,
        recipe=recipe,
        base=base,
        run=run,
        shared=shared,
        report=report,
        target=target,
        compiling=compiling,
    )
    made = making.existing() or making.made(settings)
    return Part(
        plan=plan,
        recipe=recipe,
        assembled=made.assembled,
        pushed=made.pushed,
        lock=run.lock,
        pylock=pylock_text(made.run.lock, made.run.proof, dict(made.run.built), base.to_dict()),
        proof=made.run.proof,
        added=_added(plan.stack, run.lock),
    )


def _compiling(order: Order, base: Base, report: Reporter) -> Compiling:
    todo = "build with --no-bytecode, or on a machine that can run the base"

    def told(count: int) -> None:
        report.note(f"compiling {count} modules with the base's own Python")

    return compiling_on(base, order.cache, todo, told)


def _pushed(order: Order, parts: Sequence[Part], content: Content, report: Reporter) -> PushResult | None:
    """What was pushed: the image, or now the index of the images that were."""
    if order.push is None or not isinstance(content, ImageIndex):
        return parts[0].pushed
    report.step(f"pushing the index of {len(parts)} images to {order.push}")
    indexed = push_index(content, order.push)
    results = [part.pushed for part in parts if part.pushed]
    sent, existing = sum(it.uploaded for it in results), sum(it.existing for it in results)
    return replace(indexed, uploaded=sent, existing=existing)


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
    check_outputs(order)
    check_engine(order)


def _base(order: Order, plan: Plan, notes: SharedCache | None, report: Reporter) -> Base:
    report.step(f"base {plan.base}")
    base = resolve_base(
        plan.base,
        machine=plan.stack.machine,
        cache=order.cache,
        pull=lambda reference, machine: pull(reference, machine=machine),
        report=report.note,
        wanted_python=plan.stack.python,
        notes=notes,
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
        system=plan.manifest.platform.system,
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


def _stamp(model: str, order: Order, parts: Sequence[Part], now: datetime) -> str:
    """Write each platform's image on the model; the last record names them all."""
    return [_stamp_part(model, order, part, now) for part in parts][-1]


def _stamp_part(model: str, order: Order, part: Part, now: datetime) -> str:
    entry = StampEntry(
        role="train",
        variant=part.plan.stack.variant,
        platform=PLATFORMS[part.recipe.target.machine],
        reference=str(part.pushed.reference) if part.pushed else None,
        digest=part.assembled.image.digest,
        environment=part.recipe.environment,
        overrides=part.plan.stack.overrides,
        identity=part.proof.summary,
    )
    return stamp(model, entry, manifest=order.manifest, lock=part.pylock, now=now).record


def _keep_small(cache: Path, report: Reporter) -> None:
    """Hold the cache to the size that the user set, if any."""
    limit = size_limit()
    gone = prune(cache, keep=limit) if limit is not None else ()
    if gone:
        report.note(f"the cache is over its limit: {sum(it.size for it in gone) / 1e6:.1f} MB removed")
