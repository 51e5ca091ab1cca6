"""From a training image to the image that serves: lock, assemble, prove, run the gate, push and stamp."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from envbuild.build import Order, Reporter, make_plans
from envbuild.build.build import check_destinations
from envbuild.build.extend import compiling_for, extended
from envbuild.build.outputs import signer_for, stamp_content
from envbuild.errors import RegistryError, VerifyError
from envbuild.image.assembler import Compiling
from envbuild.image.bytecode.compiler import compiled_by
from envbuild.image.child import Addition, Parent, checked, find_child_difference
from envbuild.image.content import Content, measured
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.model import Lock
from envbuild.lock.run import Options, lock_above, useless
from envbuild.lock.settings import read_settings
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.recipe import LAYER_FORMAT
from envbuild.registry.pull import find_tagged, pull
from envbuild.registry.push import PushResult, push
from envbuild.registry.shared_cache import SharedCache
from envbuild.serve.check import OWN_RUNTIME, check_serving
from envbuild.serve.compatible import check_compatible
from envbuild.serve.contents import application_of, embedded, server_parts
from envbuild.serve.gate import check_gate, gate
from envbuild.serve.model import APP_FOLDER, Origin, ServeOrder, Server, ServeResult, Slimmed
from envbuild.serve.origin import find_origin
from envbuild.serve.publish import place, publish_served, stamp_served
from envbuild.serve.slim import find_slimmed, proof_of, slim_parent
from envbuild.stamp.stamping import check_stampable
from envbuild.trust import Claim
from envbuild.verify.findings import Finding
from envbuild.verify.sharing import prove_sharing

RECIPE_LABEL = "dev.envbuild.serving"
"""The label with the digest of all inputs that decide a serving image's bytes."""
_NAME = 60
"""Letters of a layer's name beside a bar."""


def recipe_digest(parent: Parent, above: Lock, addition: Addition, compiled: str) -> Digest:
    """Digest the inputs of a serving image's bytes; `compiled` names the compiler, and is empty without bytecode.

    BuildError for a file that cannot be read.
    """
    config = asdict(replace(addition, contents=()))
    wheels = [[it.filename, str(it.sha256)] for it in above.wheels]
    contents = [[it.line, str(measured(it).key)] for it in addition.contents]
    value = [LAYER_FORMAT, parent.name, str(parent.digest), wheels, config, contents, compiled]
    return Digest.of(canonical_json(value))


def labelled(addition: Addition, recipe: Digest) -> Addition:
    """Add the label of the recipe."""
    return replace(addition, labels=(*addition.labels, (RECIPE_LABEL, str(recipe))))


def serving_tag(recipe: Digest) -> str:
    """Return `serve-a1b2c3d4e5f6`; the image that it names is checked."""
    return f"serve-{recipe.short}"


def find_serving(target: Reference, recipe: Digest, machine: str) -> Claim[Image] | None:
    """Find the image of a recipe in a repository; None if it has none. RegistryError as `pull`."""
    return find_tagged(replace(target, tag=serving_tag(recipe), digest=None), machine=machine)


def serve(order: ServeOrder, report: Reporter, now: datetime) -> ServeResult:
    """Build the image that serves a model, or compare the model with a server that brings its own; then stamp it.

    UsageError, StampError, RegistryError, MissingComponentError from early checks; LockError if the added requirements
    and the environment exclude each other; VerifyError if serving would not have training's environment, or the gate
    fails.
    """
    check_serving(order)
    signer = signer_for(order.order, order.training_keys)
    early = check_stampable(order.order.stamp, signer) if order.order.stamp else None
    check_destinations(order.order, report)
    check_gate(order)
    if order.order.attestations.key:
        # A signature covers only layers that were built here.
        order = replace(order, order=replace(order.order, remote_cache=False))
    if early and order.model is None:  # of a manifest, the training image is built next
        stamp_content(order.order, make_plans(order.order)[0].manifest, early)
    origin = find_origin(order, report, now)
    order = replace(order, order=replace(order.order, manifest=origin.manifest_bytes))
    if early and order.model:
        stamp_content(order.order, origin.manifest, early)
    make = _compare_with_server if order.server in OWN_RUNTIME else _build
    served = make(order, origin, report)
    publish_served(order, served, report, now)
    if early:
        served = replace(served, stamped=stamp_served(order, served, now, early, report))
    return served


def _compare_with_server(order: ServeOrder, origin: Origin, report: Reporter) -> ServeResult:
    """Compare the model with a server that brings its own runtime; nothing is built."""
    report.step(f"comparing the model with {order.server}")
    found = check_compatible(order, origin, report)
    _tell(found.findings, report)
    _refuse(found.findings, "this server may not compute what the model was trained to", str(found.reference))
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
    check_gate(order, origin.platform)
    server = server_parts(order, origin)
    above = _above(order, server, origin.parent.lock, report)
    with ExitStack() as until:
        shared = None
        if order.order.push and order.order.remote_cache:
            shared = until.enter_context(SharedCache(order.order.push, warn=report.warn))
        contents = tuple(_contents(order, origin, server, report, until))
        slim = _slimmed(order, origin, server, above, contents, report)
        parent = slim_parent(origin, slim, order, report) if slim else origin.parent
        addition = _addition(order, server, above, contents)
        plan = _plan(order.order, parent, above, addition, report)
        try:
            image = known = _find_known(order.order, plan, shared, report)
        except VerifyError as error:
            report.warn(
                f"not using the registry's image of these inputs: {error.what}; building it here without the "
                "registry's cache"
            )
            image = known = shared = None
        if image is None:
            image = _assemble(order.order, plan, shared, report, until)
        findings = _check_image(order, origin, image, server, slim, report)
        pushed = _pushed(order.order, image, report)
        layout, loaded = place(order.order, image, report, pushed=pushed is not None)
    return ServeResult(
        origin=origin,
        image=image,
        above=above,
        server=server,
        findings=findings,
        pushed=pushed,
        tags=(serving_tag(plan.recipe), *filter(None, [order.order.push.tag if order.order.push else None])),
        layout=layout,
        slimmed=slim,
        archive=order.order.archive,
        loaded=loaded,
        found=known is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The inputs that decide the image's bytes."""

    parent: Parent
    above: Lock
    addition: Addition
    compiling: Compiling | None
    recipe: Digest


def _above(order: ServeOrder, server: Server, below: Lock, report: Reporter) -> Lock:
    """Lock what the server and the application need; no pin of the environment changes."""
    requirements = (*server.requirements, *order.extras)
    if not requirements:
        return Lock(target=below.target, wheels=())
    report.step(f"adding {', '.join(requirements)} above the environment")
    options = _options(order.order, report)
    above = lock_above(requirements, below, options)
    for line in useless(order.extras, below, above, options):
        report.warn(line)
    for withdrawn, why in above.yanked:
        report.warn(f"{withdrawn} was withdrawn from its index ({why or 'no reason given'})")
    report.note(f"distributions added: {len(above.wheels)}; none of the environment's is moved")
    return above


def _options(order: Order, report: Reporter) -> Options:
    settings = read_settings(order.find_links, offline=order.offline)
    if order.ca_bundle:
        settings = replace(settings, ca_bundle=str(order.ca_bundle.absolute()))
    return Options(
        cache=order.cache,
        resolver=order.resolver,
        settings=settings,
        build=order.build,
        reporter=report,
    )


def _addition(order: ServeOrder, server: Server, above: Lock, contents: tuple[Content, ...]) -> Addition:
    addition = Addition(
        variables=server.variables,
        ports=server.ports,
        folder=APP_FOLDER if order.app or server.files else None,
        contents=contents,
    )
    return checked(addition, above, order.cmd or server.cmd)


def _plan(order: Order, parent: Parent, above: Lock, addition: Addition, report: Reporter) -> _Plan:
    compiling = compiling_for(parent, order.cache, report) if order.bytecode else None
    recipe = recipe_digest(parent, above, addition, compiled_by(compiling.identity) if compiling else "")
    return _Plan(parent=parent, above=above, addition=labelled(addition, recipe), compiling=compiling, recipe=recipe)


def _contents(
    order: ServeOrder, origin: Origin, server: Server, report: Reporter, until: ExitStack
) -> Iterator[Content]:
    """Yield the files; those that change least come first."""
    if order.embed:
        yield until.enter_context(embedded(origin, order.order.cache, report))
    if server.files:
        yield Content(f"server {order.server}", server.files)
    if order.app:
        yield application_of(order)


def _slimmed(
    order: ServeOrder, origin: Origin, server: Server, above: Lock, contents: Sequence[Content], report: Reporter
) -> Slimmed | None:
    """Return what a slim image leaves out; None if it has all of training's environment."""
    if not order.slim:
        return None
    code = {path: file for it in contents for path, file in it.files.items() if path.startswith(f"{APP_FOLDER}/")}
    found = find_slimmed(order, origin, server, above, code, report)
    if not found.dropped:
        report.note("no distribution serves training alone")
        return None
    return found


def _find_known(order: Order, plan: _Plan, shared: SharedCache | None, report: Reporter) -> Image | None:
    """Return the target repository's image of equal inputs; VerifyError if its content differs."""
    if order.push is None or not order.remote_cache:
        return None
    try:
        claim = find_serving(order.push, plan.recipe, plan.parent.lock.target.machine)
    except RegistryError as error:
        report.warn(f"not using the registry's image of these inputs: {error.what}; building it")
        return None
    if claim is None:
        return None
    cache = LayerCache(order.cache, shared)
    image = claim.prove(
        lambda image: find_child_difference(image, plan.parent, plan.above, plan.addition, cache, plan.compiling)
    )
    report.note(f"the registry has the image {plan.recipe.short} already; nothing is built")
    return image


def _assemble(order: Order, plan: _Plan, shared: SharedCache | None, report: Reporter, until: ExitStack) -> Image:
    """Assemble the image; its layers can be opened until the stack closes."""
    report.step("assembling the serving image")
    cache, options = LayerCache(order.cache, shared, report.note), _options(order, report)
    child = until.enter_context(
        extended(plan.parent, plan.above, plan.addition, options, report, compiling=plan.compiling, cache=cache)
    )
    return child.image


def _check_image(
    order: ServeOrder, origin: Origin, image: Image, server: Server, slim: Slimmed | None, report: Reporter
) -> tuple[Finding, ...]:
    """Raise VerifyError for an image without all of training's environment, or that fails the gate."""
    report.step("proving that serving has training's environment")
    train, what = origin.parent.image, "the serving image would not have training's environment"
    proof = prove_sharing(train, image, report.progress)
    _tell(proof, report)
    _refuse(proof, what, str(origin.parent.digest))
    named = str(origin.reference or origin.parent.digest)
    found = (
        *(it.with_targets(named, "the serving image") for it in proof),
        *gate(order, origin, image, server, report),
    )
    if slim is None:
        return found
    proved = proof_of(slim, found, order.gate)
    _tell((proved,), report)
    _refuse((proved,), "the image may be slim in a way that changes predictions", "--slim")
    return *found, proved


def _tell(findings: Sequence[Finding], report: Reporter) -> None:
    for it in findings:
        if it.agrees or it.severity == "note":
            report.note(str(it))
        else:
            report.warn(f"{it.about}: {it.says}")


def _refuse(findings: Sequence[Finding], what: str, where: str) -> None:
    """Raise VerifyError with all findings that are errors."""
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    if wrong:
        says = "\n  - ".join((f"{what}:", *(f"{it.about}: {it.says}" for it in wrong)))
        raise VerifyError(says, where=where, todo=wrong[0].todo)


def _pushed(order: Order, image: Image, report: Reporter) -> PushResult | None:
    """Push the image by its digest; its tags are set after its attachments."""
    if order.push is None:
        return None
    report.step(f"pushing to {order.push}")
    return push(image, replace(order.push, tag=None), report=report)
