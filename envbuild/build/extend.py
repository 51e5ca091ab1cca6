"""What a build that is like an earlier one goes by: the base that the earlier one's lock names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from envbuild.base.interpreter import compiling_on, runs_here
from envbuild.base.resolve import inspect, known_facts
from envbuild.build.builder import report_content
from envbuild.errors import UsageError
from envbuild.image.assembler import Assembled
from envbuild.image.bytecode.compiler import Compiling
from envbuild.image.child import Addition, Parent, assemble_child, base_of, wheels_of_child
from envbuild.image.content import hash_content
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import AssemblyOptions
from envbuild.lock.download import Downloads
from envbuild.lock.model import Lock
from envbuild.lock.run import Options, lock_above
from envbuild.oci.blobs import keep_layers
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, canonical_json
from envbuild.oci.reference import DOCKER_HUB, Reference
from envbuild.recipe import LAYER_FORMAT
from envbuild.registry.pull import pull
from envbuild.report import Reporter

_BOOTSTRAPPED = "debian:"
_KEY = 12
"""Digits of the key that an image in an engine is tagged by."""


def recorded_base(lock: Lock, *, variant: str, same_platform: bool) -> str | None:
    """The base that a lock was made for, by digest on the lock's own platform; None where the profile has to say.

    A base with CUDA is for the GPU alone, and a folder of another machine is for nobody. The tag that it was asked for
    by stays, as images name their base by it.
    """
    said: Mapping[str, str] = dict(lock.base)
    name = said.get("name", "")
    if not name or ("cuda" in name and variant == "cpu"):
        return None
    if name.startswith(_BOOTSTRAPPED):
        return name
    if is_nameless(lock):
        return None
    try:
        reference = Reference.parse(name)
    except ValueError:
        return None
    if same_platform and "digest" in said:
        return str(replace(reference, digest=Digest.parse(said["digest"])))
    return name


def is_nameless(lock: Lock) -> bool:
    """Whether a lock was made for a base that lies in a folder, so that its name does not say where."""
    name = dict(lock.base).get("name", "")
    # All that lie in a registry are named with it.
    return bool(name) and not name.startswith(_BOOTSTRAPPED) and "/" not in name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChild:
    """A child image in the engine."""

    id: str
    """The engine's own name of it."""
    name: Reference
    made: Assembled | None = None
    """None where the engine had it from an earlier run."""
    sent: int = 0
    """Bytes that the engine was sent."""


def find_parent(reference: Reference, lock: Lock) -> Parent:
    """Read the parent's manifest and config in its registry; no layer is downloaded. RegistryError as `pull`."""
    image = pull(reference, machine=lock.target.machine)
    return Parent(image=image, lock=lock, name=str(replace(reference, digest=None)))


def extend(
    client: Any,
    parent: Reference | Image,
    requirements: Sequence[str],
    below: Lock,
    addition: Addition,
    options: Options,
    report: Reporter,
    label: str = "more",
) -> EngineChild:
    """Make an image's child in an engine (docker-py's client): it adds what requirements need beyond the lock `below`.

    The parent is a reference by digest, or an image that was made here. What the engine has is not sent; a child
    that an earlier run made for the same requirements is taken as it is, so that nothing moves between two runs, and no
    network is needed. UsageError for a reference without a digest; LockError, BuildError, RegistryError as the stages.
    """
    from envbuild.engine.load import load_into  # noqa: PLC0415 - Docker's library is slow to import

    digest = parent.digest if isinstance(parent, Reference) else parent.found_as or parent.digest
    if digest is None:
        raise UsageError("the image below has to be named by digest", where=str(parent), todo="give NAME@sha256:...")
    name = child_name(digest, requirements, below, addition, label)
    known = client.images.list(name=f"{name.repository.removeprefix('library/')}:{name.tag}")
    if known:
        return EngineChild(id=str(known[0].id), name=name)
    whole = find_parent(parent, below) if isinstance(parent, Reference) else Parent(image=parent, lock=below)
    report.step(f"adding {', '.join(requirements)} above the environment")
    above = lock_above(requirements, below, options)
    for withdrawn, why in above.yanked:
        report.warn(f"{withdrawn} was withdrawn from its index ({why or 'no reason given'})")
    with assemble_extension(whole, above, addition, options, report) as made:
        loaded = load_into(client, made.image, [name], report)
    report.note(f"distributions added: {len(above.wheels)}; none of the environment's is moved")
    return EngineChild(id=loaded.id, name=name, made=made, sent=loaded.sent)


@contextmanager
def assemble_extension(
    parent: Parent,
    above: Lock,
    addition: Addition,
    options: Options,
    report: Reporter,
    made: Callable[[Layer], None] = lambda _layer: None,
    compiling: Compiling | None = None,
    cache: LayerCache | None = None,
) -> Iterator[Assembled]:
    """Make the child of an image with the wheels of a lock above its own; its layers can be opened in the block.

    `compiling` is what `compiling_for` gives. `cache` may have behind it what others share; it is ours alone without.
    """
    cache = cache or LayerCache(options.cache, on_damage=report.note)

    with Downloads(options.cache, reporter=report, settings=options.settings) as downloads:
        downloads.start(wheels_of_child(parent, above, addition, cache, compiling))
        layer_options = AssemblyOptions(reporter=report, on_layer=made)
        child = assemble_child(parent, above, addition, downloads, cache, layer_options, compiling)
        report_content(child, report, {})
        yield child


def compiling_for(parent: Parent, cache: Path, report: Reporter, until: ExitStack | None = None) -> Compiling | None:
    """Return the compiler of a child's bytecode: the interpreter of its parent's base; None for another machine.

    Then a warning says so, and the child has no bytecode. Of the parent only the base's layers are read, and only
    where no earlier run here did so; they are kept until the end of `until`, so that each is fetched once.
    BaseError, RegistryError where they cannot be; BuildError from the result where the interpreter turns out not to
    run here.
    """
    base = base_of(parent)
    if reason := runs_here(base.target.machine):
        report.warn(f"the image has no bytecode and starts slower: {reason.why}")
        return None
    if until:
        [image] = keep_layers([base.image], cache, until)
        base = replace(base, image=image)
    known = known_facts(cache)
    facts = known.facts(base.digest) or inspect(base.image, base.name, base.target.machine, known)
    found = replace(base, python_path=facts.python_path, interpreter=facts.interpreter)
    todo = "build without bytecode, or on a machine that can run the base"
    return compiling_on(found, cache, todo, report)


def child_name(parent: Digest, requirements: Sequence[str], below: Lock, addition: Addition, label: str) -> Reference:
    """The child's name in an engine: one for each parent and what is added to it."""
    wheels = [str(it.sha256) for it in below.wheels]
    said = asdict(replace(addition, contents=()))
    del said["contents"]
    more = [str(hash_content(it).key) for it in addition.contents]
    value = [LAYER_FORMAT, str(parent), wheels, list(requirements), said, *more]
    return Reference(DOCKER_HUB, "library/envbuild-local", f"{label}-{Digest.of(canonical_json(value)).hex[:_KEY]}")
