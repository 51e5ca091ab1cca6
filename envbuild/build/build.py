"""The stages of a build in their order: base, lock, recipe, image, push, attestations, files, stamp."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from envbuild.base.interpreter import check_compiles, compiling_on
from envbuild.base.resolve import check_base, resolve_base
from envbuild.base.system import System, lock_system
from envbuild.build.assembler import Assembler
from envbuild.build.builder import COMPILING, Builder
from envbuild.build.order import Order, Outcome, Part, Plan
from envbuild.build.outputs import (
    check_attestations,
    check_model_files,
    publish_parts,
    signer_for,
    stamp_parts,
    write_outputs,
)
from envbuild.cache import prune, size_limit
from envbuild.errors import UsageError, counted
from envbuild.image.bytecode.compiler import compiled_by
from envbuild.lock.model import Target
from envbuild.lock.run import LockResult, Options, lock_stack
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.oci.image import Content, ImageIndex, image_index
from envbuild.recipe import Base, make_recipe
from envbuild.registry.artifact_registry import check_repository
from envbuild.registry.pull import pull
from envbuild.registry.push import PushResult, check_push, check_tag, push_index
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import Reporter
from envbuild.stamp.stamping import check_stampable

_NO_BYTECODE = "build with --no-bytecode, or on a machine that can run the base"


def build(order: Order, plans: Sequence[Plan], report: Reporter, now: datetime) -> Outcome:
    """Carry out the plans: lock, build, push or write the image, and stamp it last."""
    for plan in plans if order.bytecode else ():
        check_compiles(plan.stack.machine, plan.base, _NO_BYTECODE)
    stamp_before = check_stampable(order.stamp, signer_for(order, order.continued)) if order.stamp else None
    immutable_tags = check_destinations(order, report)
    if stamp_before:
        check_model_files(order, plans[0].manifest, stamp_before)
    if order.attestations.key:
        # A signature covers only layers that were built here.
        order = replace(order, remote_cache=False)
    settings = read_settings(order.find_links, offline=order.offline)
    if order.ca_bundle:
        settings = replace(settings, ca_bundle=str(order.ca_bundle.absolute()))
    with ExitStack() as until:
        shared = None
        if order.push and order.remote_cache and order.builder == "assemble":
            shared = until.enter_context(SharedCache(order.push, report=report))
        parts = tuple(
            _part(order, plan, settings, shared, report, until, immutable_tags=immutable_tags) for plan in plans
        )
        images = [part.assembled.image for part in parts]
        content: Content = images[0] if len(parts) == 1 else image_index(images)
        pushed = _push_index(order, parts, content, report)
        publish_parts(order, parts, pushed, report, now)
        outcome = write_outputs(order, parts, content, pushed, report)
    if order.stamp and stamp_before:
        outcome = replace(outcome, stamped=stamp_parts(order.stamp, order, parts, now, report, stamp_before))
    limit = size_limit()
    if limit is not None and (removed := prune(order.cache, keep=limit)):
        report.note(f"the cache was over its limit: {sum(it.size for it in removed) / 1e6:.1f} MB removed")
    return outcome


def _part(
    order: Order,
    plan: Plan,
    settings: IndexSettings,
    shared: SharedCache | None,
    report: Reporter,
    until: ExitStack,
    *,
    immutable_tags: bool,
) -> Part:
    """Build and push the image of one platform; `immutable_tags` if a tag that is set may not move."""
    base = _base(order, plan, report)
    run = _lock(order, plan, base.target, settings, report)
    system = _system(order, plan, base, report)
    run = replace(run, lock=replace(run.lock, packages=system.packages))
    compiling = None
    if order.bytecode:
        compiling = compiling_on(base, order.cache, _NO_BYTECODE, lambda count: report.note(COMPILING.format(count)))
    builder = _builder(order)(
        order=order,
        plan=plan,
        recipe=make_recipe(plan.stack, run.lock, base, compiled_by(base.interpreter) if compiling else ""),
        base=base,
        run=run,
        shared=shared,
        report=report,
        target=replace(order.push, tag=None) if order.push else None,
        until=until,
        compiling=compiling,
        system=system,
    )
    if immutable_tags:
        _check_tags(builder)
    return builder.build(settings)


def _system(order: Order, plan: Plan, base: Base, report: Reporter) -> System:
    """Lock the system packages that the run had loaded and the base lacks."""
    if not order.system_packages:
        return System()
    found = lock_system(plan.manifest, base, order.cache, report.step, offline=order.offline)
    for line in found.warnings:
        report.warn(line)
    for line in found.notes:
        report.note(line)
    return found


def _builder(order: Order) -> type[Builder]:
    """Return the class of the builder."""
    if order.builder == "assemble":
        return Assembler
    if order.builder == "cloudbuild":
        from envbuild.build.cloud import Cloud  # noqa: PLC0415 - Google's library is slow to import

        return Cloud
    from envbuild.build.docker import Buildx, Docker  # noqa: PLC0415 - Docker's library is slow to import

    return Buildx if order.builder_name else Docker


def _push_index(order: Order, parts: Sequence[Part], content: Content, report: Reporter) -> PushResult | None:
    """Return the pushed image, or push the index of several; without its tag."""
    if order.push is None or not isinstance(content, ImageIndex):
        return parts[0].pushed
    report.step(f"pushing the index of {len(parts)} images to {order.push}")
    indexed = push_index(content, replace(order.push, tag=None))
    results = [part.pushed for part in parts if part.pushed]
    sent, existing = sum(it.uploaded for it in results), sum(it.existing for it in results)
    return replace(indexed, uploaded=sent, existing=existing)


def check_destinations(order: Order, report: Reporter) -> bool:
    """Check options and destinations before the long work starts.

    Return whether tags are immutable there, if known.
    """
    immutable_tags = False
    size_limit()
    check_attestations(order)
    _check_builder(order)
    if order.push:
        repository = check_repository(order.push, create=order.create_repository)
        immutable_tags = bool(repository and repository.immutable_tags)
        if repository and repository.created:
            report.note(f"created {repository.name}")
        # Cloud Build pushes as somebody else.
        if order.builder != "cloudbuild":
            check_push(order.push)
    if order.load:
        from envbuild.engine.client import connected  # noqa: PLC0415 - Docker's library is slow to import
        from envbuild.engine.load import INSTEAD  # noqa: PLC0415 - Docker's library is slow to import

        with connected(INSTEAD):
            pass
    return immutable_tags


def _check_builder(order: Order) -> None:
    """Refuse what the builder cannot do, and see that what it needs is there; UsageError, MissingComponentError."""
    if order.builder_name and order.builder != "docker":
        what, where = "only --builder docker has builders", f"--builder-name {order.builder_name}"
        raise UsageError(what, where=where, todo="add --builder docker")
    if order.builder == "docker":
        from envbuild.build.docker import check_docker  # noqa: PLC0415 - Docker's library is slow to import

        check_docker(order)
    if order.builder == "cloudbuild":
        from envbuild.build.cloud import check, options_of  # noqa: PLC0415 - Google's library is slow to import

        check(options_of(order))


def _check_tags(builder: Builder) -> None:
    """Refuse tags that name another image: the assembler makes one image of an environment."""
    if builder.target is None:
        return
    # Engines make different bytes each time.
    environment = builder.recipe.environment if isinstance(builder, Assembler) else None
    for tag in builder.tags:
        check_tag(replace(builder.target, tag=tag), environment)


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
    for remark in check_base(base, plan.stack.python, plan.stack.glibc_minimum, where=plan.base):
        report.warn(remark)
    report.note(f"Python {base.target.python}, glibc {base.target.glibc}, {base.digest}")
    return base


def _lock(order: Order, plan: Plan, target: Target, settings: IndexSettings, report: Reporter) -> LockResult:
    stack = plan.stack
    report.step(f"locking {counted(len(stack.requirements), 'distribution')} with {order.resolver}")
    options = Options(
        cache=order.cache,
        resolver=order.resolver,
        settings=settings,
        build=order.build,
        reporter=report,
    )
    run = lock_stack(stack, target, plan.manifest, options)
    for warning in run.warnings:
        report.warn(warning)
    size = sum(wheel.size for wheel in run.lock.wheels)
    report.note(f"{counted(len(run.lock.wheels), 'wheel')}, {size / 1e6:.1f} MB")
    for note in run.notes():
        report.note(note)
    for wheel in run.lock.wheels:
        if wheel.name.startswith("nvidia-cudnn-"):
            report.note(f"cuDNN {wheel.version}, by {wheel.name}")
    if order.require_identical:
        run.proof.require_identical()
    return run
