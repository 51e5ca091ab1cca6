"""From a training image to the image that serves: lock, assemble, prove, run the gate, push and stamp."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from packaging.requirements import InvalidRequirement, Requirement

from envbuild.build.build import lock_options, prepare_destinations
from envbuild.build.extend import assemble_extension, compiling_for
from envbuild.build.outputs import check_loading, check_model_files, signer_for
from envbuild.build.request import BuildRequest, check_outputs, make_plans
from envbuild.errors import RegistryError, UsageError, VerifyError, counted
from envbuild.image.assembler import Assembled
from envbuild.image.bytecode.compiler import Compiling, compiled_by
from envbuild.image.child import (
    Addition,
    Parent,
    add_startup_check,
    content_keys,
    find_child_difference,
    keys_of_child,
)
from envbuild.image.config import inner_config, variables_of
from envbuild.image.content import Content, hash_content
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.model import Lock
from envbuild.lock.run import Options, find_unused, lock_above
from envbuild.manifest.reader import read_manifest
from envbuild.oci.blobs import keep_layers
from envbuild.oci.compression import GZIP
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.recipe import LAYER_FORMAT
from envbuild.registry.pull import find_tagged, pull
from envbuild.registry.push import push
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import Reporter
from envbuild.serve.compatible import check_compatible, version_in
from envbuild.serve.contents import application_of, embedded, server_parts
from envbuild.serve.gate import check_gate, gate
from envbuild.serve.model import APP_FOLDER, Origin, ServeOrder, Server, ServeResult, Slimmed
from envbuild.serve.origin import find_origin
from envbuild.serve.publish import place, publish_served, stamp_served
from envbuild.serve.slim import find_slimmed, proof_of, slim_parent
from envbuild.stamp.stamping import check_stampable
from envbuild.verify.findings import Finding
from envbuild.verify.reports import judge
from envbuild.verify.sharing import prove_sharing
from envbuild.verify.sources import side_of_lock

OWN_RUNTIME = frozenset({"tf-serving", "triton"})
"""Servers that bring their own libraries: nothing is built for them, and only compatibility is checked."""
RECIPE_LABEL = "dev.envbuild.serving"
"""The label with the digest of all inputs that decide a serving image's bytes."""
_COMMAND = "envbuild serve"


def serving_tag(recipe: Digest) -> str:
    """Return `serve-a1b2c3d4e5f6`; the image that it names is checked."""
    return f"serve-{recipe.short}"


def serve(order: ServeOrder, report: Reporter, now: datetime) -> ServeResult:
    """Build the image that serves a model, or compare the model with a server that brings its own; then stamp it.

    UsageError, StampError, RegistryError, MissingComponentError from early checks; LockError if the added requirements
    and the environment exclude each other; VerifyError if serving would not have training's environment, or the gate
    fails.
    """
    check_serving(order)
    signer = signer_for(order.build_request, order.training_keys)
    stamp_before = check_stampable(order.build_request.stamp, signer) if order.build_request.stamp else None
    prepare_destinations(order.build_request, report)
    check_gate(order)
    if order.build_request.attestations.key:
        # A signature covers only layers that were built here.
        order = replace(order, build_request=replace(order.build_request, remote_cache=False))
    if stamp_before and order.model is None:  # of a manifest, the training image is built next
        manifest = read_manifest(order.build_request.manifest_bytes, order.build_request.manifest_name)
        make_plans(order.build_request, manifest)
        check_model_files(order.build_request, manifest, stamp_before)
    origin = find_origin(order, report, now)
    own = order.build_request.compression.plain  # the base is below the training image
    request = replace(order.build_request, manifest_bytes=origin.manifest_bytes, compression=own)
    order = replace(order, build_request=request)
    if stamp_before and order.model:
        check_model_files(order.build_request, origin.manifest, stamp_before)
    make = _compare_with_server if order.server in OWN_RUNTIME else _build
    served = make(order, origin, report)
    publish_served(order, served, report, now)
    if stamp_before:
        served = replace(served, stamped=stamp_served(order, served, now, stamp_before, report))
    return served


def _compare_with_server(order: ServeOrder, origin: Origin, report: Reporter) -> ServeResult:
    """Compare the model with a server that brings its own runtime; nothing is built."""
    report.step(f"comparing the model with {order.server}")
    found = check_compatible(order, origin, report)
    what = "this server may not compute what the model was trained to"
    judge(found.findings, what, str(found.reference), report)
    return ServeResult(
        origin=origin,
        image=pull(found.reference, machine=origin.parent.lock.target.machine),
        above=Lock(target=origin.parent.lock.target, wheels=()),
        server=Server(),
        findings=found.findings,
        pushed=None,
        layout=None,
        runtime=found.reference,
    )


def _build(order: ServeOrder, origin: Origin, report: Reporter) -> ServeResult:
    """Add what serving needs, prove that no layer below changed, run the gate, and push or write the image."""
    check_gate(order, origin)
    request, server, push_to = order.build_request, server_parts(order, origin), order.build_request.push
    options = lock_options(request, request.index_settings(), report)
    above = _above(order, server, origin.parent.lock, options)
    _check_model(order, origin, above, report)
    with ExitStack() as until:
        shared = None
        if push_to and request.remote_cache:
            shared = until.enter_context(SharedCache(push_to, report=report))
        contents = tuple(_contents(order, origin, server, report, until))
        slim = _slimmed(order, origin, server, above, contents, report) if order.slim else None
        parent = slim_parent(origin, slim, order, report, shared) if slim else origin.parent
        plan = _plan(order, server, parent, above, contents, report, until)
        try:
            known = _find_known(request, plan, shared, report)
        except VerifyError as error:
            without = "building it here without the registry's cache"
            report.warn(f"not using the registry's image of these inputs: {error.what}; {without}")
            known = shared = None
            if slim:
                parent = slim_parent(origin, slim, order, report)
                plan = _plan(order, server, parent, above, contents, report, until)
        cache = LayerCache(request.cache, shared, report.note, request.compression)
        made, keys = None, plan.local_keys(cache)
        if not known or not (slim or _is_made_here(known, plan, cache.blobs(keys))):
            made = _assemble(plan, options, cache, until)
            keys = frozenset(made.results)
        image = made.image if made else known
        assert image is not None, "it is assembled where none was found"
        _compare_known(known, image, plan, report)
        # Distributions and bytecode that were made here replace no file below, as assembling refuses that.
        proven = cache.blobs(keys - plan.files)
        findings = _check_image(order, origin, image, server, plan, proven, slim, report)
        pushed = None
        if push_to:
            report.step(f"pushing to {push_to}")
            # Tags are set after the attachments.
            pushed = push(image, replace(push_to, tag=None), report=report, cache=request.cache)
            if made:
                cache.share({key: it for key, it in made.results.items() if key not in plan.own})
        layout, loaded = place(request, image, report, pushed=pushed is not None)
    return ServeResult(
        origin=origin,
        image=image,
        above=above,
        server=server,
        findings=findings,
        pushed=pushed,
        tags=(serving_tag(plan.recipe), *filter(None, [push_to.tag if push_to else None])),
        layout=layout,
        slimmed=slim,
        archive=request.archive,
        loaded=loaded,
        found=known is not None and known.digest == image.digest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The inputs that decide the image's bytes."""

    parent: Parent
    above: Lock
    addition: Addition
    compiling: Compiling | None
    recipe: Digest
    files: frozenset[Digest]
    """Keys of layers with the model, the server or the application."""
    own: frozenset[Digest]
    """These, and others that no other image needs."""

    def local_keys(self, cache: LayerCache) -> frozenset[Digest]:
        """The keys of the layers on top, as far as this machine's notes say which these are."""
        return keys_of_child(self.parent, self.above, self.addition, cache.local, self.compiling)


def _slimmed(
    order: ServeOrder, origin: Origin, server: Server, above: Lock, contents: tuple[Content, ...], report: Reporter
) -> Slimmed | None:
    """Say what the image does without; None where nothing serves training alone."""
    code = {path: file for it in contents for path, file in it.files.items() if path.startswith(f"{APP_FOLDER}/")}
    slim = find_slimmed(order, origin, server, above, code, report)
    if slim.dropped or slim.files:
        return slim
    report.note("no distribution and no file serves training alone")
    return None


def _above(order: ServeOrder, server: Server, below: Lock, options: Options) -> Lock:
    """Lock what the server and the application need; no pin of the environment changes."""
    requirements, report = (*server.requirements, *order.extras), options.reporter
    if not requirements:
        return Lock(target=below.target, wheels=())
    report.step(f"adding {', '.join(requirements)} above the environment")
    above = lock_above(requirements, below, options)
    for line in find_unused(order.extras, below, above, options):
        report.warn(line)
    for withdrawn, why in above.yanked:
        report.warn(f"{withdrawn} was withdrawn from its index ({why or 'no reason given'})")
    report.note(f"{counted(len(above.wheels), 'distribution')} added; no version of the environment changes")
    return above


def _check_model(order: ServeOrder, origin: Origin, above: Lock, report: Reporter) -> None:
    """Check that the environment loads the model, with what is added to it; VerifyError."""
    below = origin.parent.lock
    lock, inner = replace(below, wheels=(*below.wheels, *above.wheels)), inner_config(origin.parent.base)
    there = side_of_lock(lock, "the serving image", variables_of(inner))
    model = (origin.stamped and origin.stamped.model) or origin.manifest.model
    check_loading(order.build_request, model, there, report)


def _plan(
    order: ServeOrder,
    server: Server,
    parent: Parent,
    above: Lock,
    contents: tuple[Content, ...],
    report: Reporter,
    until: ExitStack,
) -> _Plan:
    """Digest the inputs of a serving image's bytes; BuildError for a file that cannot be read."""
    folder = APP_FOLDER if order.app or server.files else None
    addition = Addition(variables=server.variables, ports=server.ports, folder=folder, contents=contents)
    addition = add_startup_check(addition, above, order.cmd or server.cmd)
    compiling, cache = None, order.build_request.cache
    if order.build_request.bytecode:
        compiling = compiling_for(parent, cache, report, until)
    config = asdict(replace(addition, contents=()))
    wheels = [[it.filename, str(it.sha256)] for it in above.wheels]
    hashed = [hash_content(it) for it in addition.contents]
    files = [[it.line, str(it.key)] for it in hashed]
    compiler = compiled_by(compiling.identity) if compiling else ""
    compression = order.build_request.compression
    value = [LAYER_FORMAT, parent.name, str(parent.digest), wheels, config, files, compiler]
    value += [str(compression)] if compression != GZIP else []
    recipe = Digest.of(canonical_json(value))
    addition = replace(addition, labels=(*addition.labels, (RECIPE_LABEL, str(recipe))))
    return _Plan(
        parent=parent,
        above=above,
        addition=addition,
        compiling=compiling,
        recipe=recipe,
        files=content_keys(hashed[len(hashed) - len(contents) :], compiling),
        own=content_keys(hashed, compiling),
    )


def _contents(
    order: ServeOrder, origin: Origin, server: Server, report: Reporter, until: ExitStack
) -> Iterator[Content]:
    """Yield the files; those that change least come first."""
    if order.embed:
        yield until.enter_context(embedded(origin, order.build_request.cache, report))
    if server.files:
        yield Content(f"server {order.server}", server.files)
    if order.app:
        yield application_of(order)


def _find_known(order: BuildRequest, plan: _Plan, shared: SharedCache | None, report: Reporter) -> Image | None:
    """Return the target repository's image of equal inputs; VerifyError if its content differs."""
    if order.push is None or not order.remote_cache:
        return None
    try:
        target = replace(order.push, tag=serving_tag(plan.recipe), digest=None)
        claim = find_tagged(target, machine=plan.parent.lock.target.machine)
    except RegistryError as error:
        report.warn(f"not using the registry's image of these inputs: {error.what}; building it")
        return None
    if claim is None:
        return None
    cache = LayerCache(order.cache, shared, compression=order.compression)
    image = claim.prove(
        lambda image: find_child_difference(image, plan.parent, plan.above, plan.addition, cache, plan.compiling)
    )
    report.note(f"the registry has the image {plan.recipe.short} already")
    return image


def _is_made_here(image: Image, plan: _Plan, blobs: frozenset[Digest]) -> bool:
    """Whether all layers on top of a found image are among those that this machine made."""
    return all(it.descriptor.digest in blobs for it in image.layers[len(plan.parent.image.layers) :])


def _assemble(plan: _Plan, options: Options, cache: LayerCache, until: ExitStack) -> Assembled:
    """Assemble the image; its layers can be opened until the stack closes.

    Layers that the registry has are made from their wheels as well, and compared; BuildError for another one.
    """
    report = options.reporter
    report.step("assembling the serving image")
    extension = assemble_extension(
        plan.parent, plan.above, plan.addition, options, report, compiling=plan.compiling, cache=cache
    )
    made = until.enter_context(extension)
    for it in made.image.layers[len(plan.parent.image.layers) :]:
        if it.found == "registry":
            it.open().close()
    return made


def _compare_known(known: Image | None, image: Image, plan: _Plan, report: Reporter) -> None:
    """Say so where the registry's image has other layers than these inputs give."""
    if known and known.digest != image.digest:
        what = f"not using the registry's image {plan.recipe.short}: {known.digest} has other layers than these inputs"
        report.warn(f"{what} give; find out who pushed it")


def _check_image(
    order: ServeOrder, origin: Origin, image: Image, server: Server, plan: _Plan, proven: Collection[Digest],
    slim: Slimmed | None, report: Reporter,
) -> tuple[Finding, ...]:  # fmt: skip
    """Raise VerifyError for an image without all of training's environment, or that fails the gate."""
    report.step("proving that serving has training's environment")
    what = "the serving image would not have training's environment"
    names = [f"{it.name} {it.version}" for it in plan.above.wheels]
    with ExitStack() as until:
        train, serve = keep_layers([origin.parent.image, image], order.build_request.cache, until)
        proof = prove_sharing(train, serve, report.progress, proven, names)
    judge(proof, what, str(origin.parent.digest), report)
    named = str(origin.reference or origin.parent.digest)
    found = (
        *(it.with_targets(named, "the serving image") for it in proof),
        *gate(order, origin, image, server, report),
    )
    if slim is None:
        return found
    proved = proof_of(slim, found, order.gate)
    judge((proved,), "the image may be slim in a way that changes predictions", "--slim", report)
    return *found, proved


def check_serving(order: ServeOrder) -> None:
    """Refuse options that do not go together, naming both sides; UsageError.

    Nothing but the files of --app is read.
    """
    builder, platforms = order.build_request.builder, order.build_request.platforms
    if builder != "assemble":
        what = "layers on top of an image are put together by envbuild itself"
        raise UsageError(what, where=f"--builder {builder}, {_COMMAND}", todo="leave out --builder")
    if len(platforms) > 1:
        what, todo = "a serving image is tried and stamped for one platform at a time", "run it once for each platform"
        raise UsageError(what, where=f"--platform {','.join(platforms)}, {_COMMAND}", todo=todo)
    if order.build_request.zstd:
        what, todo = "a serving image has one compression", "give gzip or zstd, or set it in [serve] of envbuild.toml"
        raise UsageError(what, where=f"--compression gzip,{order.build_request.zstd}, {_COMMAND}", todo=todo)
    if order.server in OWN_RUNTIME:
        _check_own_runtime(order)
    else:
        _check_built(order)
    for text in order.extras:
        check_requirement(text)
    if order.app:
        if order.app.resolve().is_relative_to(order.build_request.out.resolve()):  # nothing would be left of it
            todo = "give --out another folder; it may lie in the application's"
            where = f"--app {order.app}, --out {order.build_request.out}"
            raise UsageError("the application's folder is what is written to", where=where, todo=todo)
        application_of(order)
    if order.server not in OWN_RUNTIME:  # for which nothing is written
        check_outputs(order.build_request, context=False, model=order.model)


def _check_own_runtime(order: ServeOrder) -> None:
    given = {
        "--extra": order.extras,
        "--app": order.app,
        "--cmd": order.cmd,
        "--embed-model": order.embed,
        "--slim": order.slim,
        "--gate require": order.gate == "require",
        "--archive": order.build_request.archive,
        "--load": order.build_request.load,
    }
    if order.server_version and order.server and version_in(order.server, order.server_version) is None:
        todo = f"give one such as {'24.02' if order.server == 'triton' else '2.15.1'}"
        where = f"--server-version {order.server_version}"
        raise UsageError(f"invalid version of {order.server}", where=where, todo=todo)
    if useless := [name for name, value in given.items() if value]:
        what = f"{order.server} brings its own runtime: nothing is built, and the model is compared with its release"
        where, todo = f"--server {order.server}, {', '.join(useless)}", "leave out all but --server and its release"
        raise UsageError(what, where=where, todo=todo)


def _check_built(order: ServeOrder) -> None:
    of_others = {"--server-version": order.server_version, "--server-image": order.server_image}
    if useless := [name for name, value in of_others.items() if value]:
        where = f"{', '.join(useless)}, {f'--server {order.server}' if order.server else 'no --server'}"
        todo = "give --server tf-serving or --server triton, or leave them out"
        raise UsageError("these name a release of a server that brings its own runtime", where=where, todo=todo)
    if order.server is None and not order.cmd:
        todo = 'give --server fastapi, or --app DIR --cmd "python /app/serve.py"'
        raise UsageError("nothing says what the image starts", where=_COMMAND, todo=todo)
    if order.app and not order.app.is_dir():
        todo = "give the folder whose files go to /app"
        raise UsageError("there is no such folder", where=f"--app {order.app}", todo=todo)
    if order.embed and order.model is None:
        todo = "give the stamped model instead of the manifest"
        what = "a manifest has no model to put into the image"
        raise UsageError(what, where="--embed-model, a manifest", todo=todo)


def check_requirement(text: str) -> None:
    """Raise UsageError for an invalid requirement (PEP 508)."""
    try:
        Requirement(text)
    except InvalidRequirement as error:
        todo = "give a name, with a version where it matters: --extra 'fastapi>=0.115'"
        raise UsageError(f"invalid requirement: {error}", where=f"--extra {text}", todo=todo) from error
