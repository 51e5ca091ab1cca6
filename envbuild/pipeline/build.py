"""The order of the stages, on one screen; what is slow or remote is in the stages, what is printed is the caller's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from envbuild.assemble import Assembled, LayerCache, assemble, wheels_to_read
from envbuild.base import check_base, resolve_base
from envbuild.cache import prune, size_limit
from envbuild.dockerfile import build_context
from envbuild.errors import RegistryError, UsageError
from envbuild.files import data_folder, staged_folder, write_whole
from envbuild.lock import (
    IndexSettings,
    Lock,
    LockedRun,
    LockedWheel,
    Options,
    Target,
    confirm,
    copy_local,
    fetch,
    lock_run,
    pylock_text,
    read_settings,
    requirements_text,
)
from envbuild.match import Stack, name_of
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.pipeline.order import Order, Outcome, Plan, Reporter
from envbuild.recipe import Base, Recipe, make_recipe
from envbuild.registry import check_push, check_repository, environment_tag, find_environment, pull, push
from envbuild.stamp import StampEntry, check_stampable, stamp
from envbuild.verify import prove_loading

PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def build(order: Order, plan: Plan, report: Reporter, now: datetime) -> Outcome:
    """Carry the plan out: lock, fetch, assemble, then push or write; the stamp comes last, or not at all."""
    _check_destinations(order)
    settings = read_settings(order.find_links, offline=order.offline)
    base = _base(order, plan, report)
    run = _lock(order, plan, base.target, settings, report)
    recipe = make_recipe(plan.stack, run.lock, base)
    found = _existing(order, recipe, report)
    assembled = found or _assembled(order, plan, recipe, base, settings, report)
    run = _confirmed(run, order)
    pylock = pylock_text(run.lock, run.proof, dict(run.built))
    context = build_context(recipe, requirements_text(run.lock), pylock, data_folder("templates"))
    image = _push(order, assembled, recipe, report)
    layout = None if image else order.out
    with staged_folder(order.out) as folder:
        for name, data in context.items():
            write_whole(folder / "context" / name, data)
        copy_local(run.lock, folder / "context")
        if layout:
            report.step(f"writing the OCI layout {layout}")
            write_layout(assembled.image, folder, name="latest", machine=base.target.machine)
    outcome = Outcome(
        plan=plan,
        recipe=recipe,
        assembled=assembled,
        image=image,
        layout=layout,
        pylock=pylock,
        proof=run.proof,
        added=_added(plan.stack, run.lock),
    )
    outcome = replace(outcome, stamped=_stamp(order.stamp, order, outcome, now)) if order.stamp else outcome
    _keep_small(order.cache, report)
    return outcome


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


def _confirmed(run: LockedRun, order: Order) -> LockedRun:
    """Hold what the index showed against what it then served; the proof may lose by it."""
    confirmed = confirm(run, order.cache)
    if order.require_identical:
        confirmed.proof.require_identical()
    return confirmed


def _added(stack: Stack, locked: Lock) -> tuple[str, ...]:
    """What is locked besides the requirements."""
    names = {name_of(it) for it in stack.requirements}
    return tuple(f"{it.name}=={it.version}" for it in locked.wheels if it.name not in names)


def _fetch(
    order: Order, wheels: Sequence[LockedWheel], settings: IndexSettings, report: Reporter
) -> dict[Digest, Path]:
    if wheels:
        report.step(f"fetching {len(wheels)} wheels")

    def told(done: int, total: int, _text: str) -> None:
        report.progress("fetching", done, total)

    return {wheel.sha256: path for wheel, path in fetch(wheels, order.cache, report=told, settings=settings)}


def _existing(order: Order, recipe: Recipe, report: Reporter) -> Assembled | None:
    """The image of this very environment in the registry that is pushed to; nothing has to be built then."""
    if order.push is None or not order.remote_cache:
        return None
    try:
        image = find_environment(order.push, recipe.environment, machine=recipe.target.machine)
    except RegistryError as error:
        report.note(f"the registry was not asked for the environment: {error.what}")
        return None
    if image is None:
        return None
    report.note(f"the registry has the environment {recipe.environment.short} already; nothing is built")
    return Assembled(image=image, overlaps=())


def _assembled(
    order: Order, plan: Plan, recipe: Recipe, base: Base, settings: IndexSettings, report: Reporter
) -> Assembled:
    layers = LayerCache(order.cache)
    proof = Digest.of(canonical_json(["loader proof", str(recipe.environment)]))
    unproved = plan.stack.cuda is not None and layers.noted(proof) is None
    needed = recipe.wheels if unproved else wheels_to_read(recipe, layers)
    wheels = _fetch(order, needed, settings, report)
    if unproved:
        _prove(order, plan, recipe, base, wheels, report)
        layers.note(proof, "found")
    report.step("assembling the image")
    assembled = assemble(recipe, base, wheels, layers, report.progress)
    _tell_overlaps(assembled, report)
    return assembled


def _prove(
    order: Order, plan: Plan, recipe: Recipe, base: Base, wheels: Mapping[Digest, Path], report: Reporter
) -> None:
    """Fail before the image is made where the framework would not find its CUDA libraries in it."""
    report.step("looking for CUDA's libraries as the loader does")
    proof = prove_loading(plan.stack, recipe, base, wheels, plan.profiles, order.cache / "loading")
    proof.require()
    report.note(proof.summary)
    for note in proof.notes:
        report.note(str(note))


def _tell_overlaps(assembled: Assembled, report: Reporter) -> None:
    for overlap in assembled.overlaps[:10]:
        losers = ", ".join(overlap.losers)
        report.warn(
            f"{overlap.path} is in {losers} and in {overlap.winner.name}, which comes later in the lock and wins"
        )
    if len(assembled.overlaps) > 10:
        report.warn(f"{len(assembled.overlaps) - 10} more paths are in several packages")


def _push(order: Order, assembled: Assembled, recipe: Recipe, report: Reporter) -> Reference | None:
    if order.push is None:
        return None
    report.step(f"pushing to {order.push}")
    tags = (environment_tag(recipe.environment),)
    result = push(assembled.image, order.push, tags=tags, report=report.progress)
    report.note(f"{result.uploaded / 1e6:.1f} MB sent, {result.existing / 1e6:.1f} MB were there")
    return result.reference


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
