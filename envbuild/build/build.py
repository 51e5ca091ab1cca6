"""The stages of a build in their order: base, lock, recipe, image, push, attestations, files, stamp."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from envbuild.base.interpreter import check_compiles, compiling_on
from envbuild.base.resolve import check_base, resolve_base
from envbuild.base.system import System, lock_system
from envbuild.build.assembler import Assembler
from envbuild.build.builder import Builder
from envbuild.build.outputs import (
    check_attestations,
    check_loading,
    check_model_files,
    publish_images,
    signer_for,
    stamp_images,
    write_outputs,
)
from envbuild.build.request import BuildRequest, BuildResult, Plan, PlatformImage, each_image, make_plans
from envbuild.cache import prune, size_limit
from envbuild.errors import UsageError, counted
from envbuild.image.bytecode.compiler import compiled_by
from envbuild.image.config import inner_config, variables_of
from envbuild.image.layers.writer import check_library
from envbuild.lock.model import Target
from envbuild.lock.run import LockResult, Options, lock_stack
from envbuild.lock.settings import IndexSettings
from envbuild.oci.blobs import keep_layers
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.image import Content, Image, ImageIndex, joined
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, make_recipe
from envbuild.registry.artifact_registry import ensure_repository
from envbuild.registry.pull import pull
from envbuild.registry.push import PushResult, check_push, check_tag, push_index
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import OnceReporter, Reporter
from envbuild.stamp.stamping import check_stampable
from envbuild.verify.sources import side_of_lock

_NO_BYTECODE = "build with --no-bytecode, or on a machine that can run the base"


def build(request: BuildRequest, plans: Sequence[Plan], report: Reporter, now: datetime) -> BuildResult:
    """Carry out the plans: lock, build, push or write the image, and stamp it last."""
    if request.zstd and not request.push and (request.archive or request.load):
        report.note("engines are given one image: the one of gzip")
        request = replace(request, zstd=None)
    for plan in plans if request.bytecode else ():
        check_compiles(plan.stack.machine, plan.base, _NO_BYTECODE)
    stamp_before = check_stampable(request.stamp, signer_for(request, request.trusted_keys)) if request.stamp else None
    immutable_tags = prepare_destinations(request, report)
    if stamp_before:
        check_model_files(request, plans[0].manifest, stamp_before)
    if request.attestations.key:
        # A signature covers only layers that were built here.
        request = replace(request, remote_cache=False)
    settings = request.index_settings()
    with ExitStack() as resources:
        shared = None
        if request.push and request.remote_cache and request.builder == "assemble":
            shared = resources.enter_context(SharedCache(request.push, report=report))
        images: list[PlatformImage] = []
        for plan in plans:
            once = OnceReporter(report) if request.zstd else report
            builder = _prepare_builder(request, plan, settings, shared, once, resources)
            second = _in_zstd(builder, request.zstd) if request.zstd else None
            if immutable_tags:
                for it in filter(None, (builder, second)):
                    _check_tags(it)
            image = builder.build(settings)
            if second:
                report.step("making the same image with layers of zstd")
                image = replace(image, zstd=second.build(settings))
            images.append(image)
        content = joined([it.image for it in each_image(images)])
        pushed = _push_index(request, images, content, report)
        publish_images(request, images, pushed, report, now)
        result = write_outputs(request, images, content, pushed, report)
    if request.stamp and stamp_before:
        result = replace(result, stamp_record=stamp_images(request.stamp, request, images, now, report, stamp_before))
    limit = size_limit()
    if limit is not None and (removed := prune(request.cache, keep=limit)):
        report.note(f"the cache was over its limit: {sum(it.size for it in removed) / 1e6:.1f} MB removed")
    return result


def _prepare_builder(
    request: BuildRequest,
    plan: Plan,
    settings: IndexSettings,
    shared: SharedCache | None,
    report: Reporter,
    resources: ExitStack,
) -> Builder:
    """Resolve the base, lock the wheels and the system packages, and return the builder of one platform's image."""
    base = _resolve_base(request, plan, report, resources)
    if request.imported_only:
        found = _plan_needed(request, plan, base.target, settings, report)
        before, after = ((it.base, it.stack.glibc_minimum, it.stack.python) for it in (plan, found))
        plan, base = found, base if before == after else _resolve_base(request, found, report, resources)
    locked = _lock_wheels(request, plan, base.target, settings, report)
    variables = variables_of(inner_config(base)) | dict(plan.stack.variables)
    there = side_of_lock(locked.lock, "the locked environment", variables)
    check_loading(request, plan.manifest.model, there, report)
    system = System()
    if request.system_packages:
        system = lock_system(plan.manifest, base, request.cache, report, offline=request.offline)
        for line in system.warnings:
            report.warn(line)
        for line in system.notes:
            report.note(line)
    locked = replace(locked, lock=replace(locked.lock, packages=system.packages))
    compiling, bytecode = None, ""
    if request.bytecode:
        compiling = compiling_on(base, request.cache, _NO_BYTECODE, report)
        bytecode = compiled_by(base.interpreter)
    return _builder_class(request)(
        request=request,
        plan=plan,
        recipe=make_recipe(plan.stack, locked.lock, base, bytecode, request.compression),
        base=base,
        locked=locked,
        shared=shared,
        report=report,
        push_to=replace(request.push, tag=None) if request.push else None,
        resources=resources,
        compiling=compiling,
        system=system,
    )


def _in_zstd(builder: Builder, compression: Compression) -> Builder:
    """Return the builder of the same image in zstd; what it can import was tried in the first."""
    recipe = builder.recipe
    recipe = make_recipe(builder.plan.stack, builder.locked.lock, builder.base, recipe.bytecode, compression)
    return replace(builder, recipe=recipe, request=replace(builder.request, import_check="never"))


def _builder_class(request: BuildRequest) -> type[Builder]:
    if request.builder == "assemble":
        return Assembler
    if request.builder == "cloudbuild":
        from envbuild.build.cloud import Cloud  # noqa: PLC0415 - Google's library is slow to import

        return Cloud
    from envbuild.build.docker import Buildx, Docker  # noqa: PLC0415 - Docker's library is slow to import

    return Buildx if request.buildx_name else Docker


def _push_index(
    request: BuildRequest, images: Sequence[PlatformImage], content: Content, report: Reporter
) -> PushResult | None:
    """Return the result of the one image's push, or push the index of several, without its tag."""
    if request.push is None or not isinstance(content, ImageIndex):
        return images[0].pushed
    report.step(f"pushing the index of {len(content.images)} images to {request.push}")
    indexed = push_index(content, replace(request.push, tag=None))
    results = [image.pushed for image in each_image(images) if image.pushed]
    sent, not_sent = sum(it.uploaded for it in results), sum(it.not_sent for it in results)
    return replace(indexed, uploaded=sent, not_sent=not_sent)


def prepare_destinations(request: BuildRequest, report: Reporter) -> bool:
    """Check options and destinations before the long work starts; create a missing repository if requested.

    Return whether tags are immutable there, if known.
    """
    immutable_tags = False
    size_limit()  # a limit that is no size is refused now
    check_attestations(request)
    _check_builder(request)
    if request.push:
        repository = ensure_repository(request.push, create=request.create_repository)
        immutable_tags = bool(repository and repository.immutable_tags)
        if repository and repository.created:
            report.note(f"created {repository.name}")
        # Cloud Build pushes as somebody else.
        if request.builder != "cloudbuild":
            check_push(request.push)
    if request.load:
        from envbuild.engine.client import connected  # noqa: PLC0415 - Docker's library is slow to import
        from envbuild.engine.load import INSTEAD, check_reading  # noqa: PLC0415 - Docker's library is slow to import

        with connected(INSTEAD) as client:
            check_reading(client, [request.compression.media_type], f"give --compression gzip, or {INSTEAD}")
    return immutable_tags


def _check_builder(request: BuildRequest) -> None:
    """Refuse what the builder cannot do, and see that what it needs is there; UsageError, MissingComponentError."""
    if request.buildx_name and request.builder != "docker":
        what, where = "--builder-name names a builder of docker buildx", f"--builder-name {request.buildx_name}"
        raise UsageError(what, where=where, todo="add --builder docker")
    compressions = [it for it in (request.compression, request.zstd) if it]
    if compressions != [GZIP]:
        if request.builder != "assemble":
            what = "only envbuild's own builder writes zstd and recompresses a base"
            where = f"--builder {request.builder}, --compression, --recompress-base"
            raise UsageError(what, where=where, todo="leave out the builder, or the others")
        for it in compressions:
            if it != GZIP:
                check_library(it.plain)
    if request.builder == "docker":
        from envbuild.build.docker import check_docker  # noqa: PLC0415 - Docker's library is slow to import

        check_docker(request)
    if request.builder == "cloudbuild":
        from envbuild.build.cloud import check_project, options_of  # noqa: PLC0415 - Google's library is slow to import

        check_project(options_of(request))


def _check_tags(builder: Builder) -> None:
    """Refuse tags that name another image; the same environment is the same image, if the assembler builds it."""
    if builder.push_to is None:
        return
    # An engine's builds are not reproducible, so each is another image.
    environment = builder.recipe.environment if isinstance(builder, Assembler) else None
    for tag in builder.tags:
        check_tag(replace(builder.push_to, tag=tag), environment)


def _resolve_base(request: BuildRequest, plan: Plan, report: Reporter, resources: ExitStack) -> Base:
    def pull_once(reference: Reference, machine: str) -> Image:
        # Facts, bytecode, the import check and a push to another registry read its layers, each for itself.
        [image] = keep_layers([pull(reference, machine=machine)], request.cache, resources)
        return image

    report.step(f"base {plan.base}")
    base = resolve_base(
        plan.base,
        machine=plan.stack.machine,
        cache=request.cache,
        pull=pull_once,
        report=report,
        wanted_python=plan.stack.python,
    )
    for warning in check_base(base, plan.stack.python, plan.stack.glibc_minimum, where=plan.base):
        report.warn(warning)
    report.note(f"Python {base.target.python}, glibc {base.target.glibc}, {base.digest}")
    types = {it.descriptor.media_type for it in base.image.layers}
    for it in filter(None, (request.compression, request.zstd)):
        if it.base and not any(map(it.replaces, types)):
            name = "zstd" if it.level else "gzip"
            report.note(f"--recompress-base has nothing to do: all layers of the base are {name} already")
    return base


def _plan_needed(request: BuildRequest, plan: Plan, target: Target, settings: IndexSettings, report: Reporter) -> Plan:
    """Decide again with what the imported distributions require, as verifying, serving and running locally decide."""
    report.step("finding what the imported distributions require")
    drops = lock_stack(plan.stack, target, plan.manifest, lock_options(request, settings, report)).lock.drops
    order = replace(request, drop=drops, imported_only=False, platforms=(plan.stack.machine,))
    [found] = make_plans(order, plan.manifest)
    known = {*plan.stack.decisions, *plan.stack.changes}
    for it in found.stack.decisions:
        if it.warning and it not in known:
            report.warn(f"{it.what}: {it.value} - {it.reason}")
    for change in found.stack.changes:
        if change.name not in found.stack.dropped and change not in known:
            report.note(f"{change.before or 'nothing'} -> {change.after or 'dropped'}: {change.reason}")
    return found


def lock_options(request: BuildRequest, settings: IndexSettings, report: Reporter) -> Options:
    """How wheels are locked."""
    return Options(
        cache=request.cache,
        resolver=request.resolver,
        settings=settings,
        build_from_source=request.build_from_source,
        reporter=report,
    )


def _lock_wheels(
    request: BuildRequest, plan: Plan, target: Target, settings: IndexSettings, report: Reporter
) -> LockResult:
    stack = plan.stack
    report.step(f"locking {counted(len(stack.requirements), 'distribution')} with {request.resolver}")
    locked = lock_stack(stack, target, plan.manifest, lock_options(request, settings, report))
    for warning in locked.warnings:
        report.warn(warning)
    size = sum(wheel.size for wheel in locked.lock.wheels)
    report.note(f"{counted(len(locked.lock.wheels), 'wheel')}, {size / 1e6:.1f} MB")
    for note in locked.notes():
        report.note(note)
    for wheel in locked.lock.wheels:
        if wheel.name.startswith("nvidia-cudnn-"):
            report.note(f"cuDNN {wheel.version}, by {wheel.name}")
    if request.require_identical:
        locked.proof.require_identical()
    return locked
