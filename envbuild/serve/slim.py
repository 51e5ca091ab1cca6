"""The training environment without what only training uses: what that is, and the image of what is left."""

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from envbuild.build import Order, Reporter
from envbuild.errors import BuildError, LockError, UsageError
from envbuild.image.assembler import OVERLAPS_LINE, assemble, cache_keys, wheels_to_read
from envbuild.image.child import Parent, interpreter_of
from envbuild.image.config import CHECK_LINE, OURS
from envbuild.image.debian.layer import LINE as PACKAGES_LINE
from envbuild.image.layers.cache import Decode, LayerCache
from envbuild.image.layers.plan import plan_layers
from envbuild.image.layers.writer import LayerResult
from envbuild.image.rebase import BYTECODE_LINE, ENVIRONMENT_LINE, named_base
from envbuild.lock.dependencies import Declared, marker_environment, needed
from envbuild.lock.download import Arrivals
from envbuild.lock.facts import FactReader
from envbuild.lock.model import Lock, LockedWheel
from envbuild.lock.resolution import open_question
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, canonical_json, history_lines
from envbuild.recipe import PREFIX, SLIM_LABEL, SLIM_OF_LABEL, Base, Recipe
from envbuild.serve.model import Gate, Origin, ServeOrder, Server, Slimmed
from envbuild.trust import Claim, Voucher
from envbuild.verify.environment import Pattern, listed, training_only
from envbuild.verify.findings import Finding

_T = TypeVar("_T")

_WITHOUT = "build without --slim"
_NAMED = 3
_MODULE = re.compile(r"[A-Za-z_]\w*")
_TOOLS = frozenset({"pip", "setuptools", "uv", "wheel"})
"""They come with an environment and are not asked for."""
_PROOFS = frozenset({"golden", "serve-golden"})
"""The rules that compare predictions with the recorded sample."""


def find_slimmed(
    order: ServeOrder,
    origin: Origin,
    server: Server,
    above: Lock,
    code: Mapping[str, bytes | Path],
    report: Reporter,
) -> Slimmed:
    """Say what the serving image does without; `above` is locked above all of the training environment.

    `code` is what the server and the application put into the image, by path: what its programs import stays, as does
    what `above` and the extras require. LockError where a wheel's requirements cannot be read, UsageError for a program
    that cannot.
    """
    lock, options = origin.parent.lock, order.order
    report.step("looking for what only training uses")
    kept = [*order.extras, *server.requirements, *(it.name for it in above.wheels)]
    modules = imports_of(code) | commanded((*order.cmd, *server.cmd))
    with open_question((), lock.target, _settings(options), options.cache) as question:
        declared = _declared(question.reader, (*lock.wheels, *above.wheels), report)
        most = slimmed(lock, origin.manifest, kept, declared, training_only())
        used = [it.name for it in lock.wheels if it.name in most.lock.slim and _used(it, modules, question.reader)]
    found = slimmed(lock, origin.manifest, (*kept, *used), declared, training_only())
    for line in found.dropped:
        report.note(f"left out: {line}")
    for name in used:
        report.note(f"kept, as the application imports it: {name}")
    return found


def imports_of(code: Mapping[str, bytes | Path]) -> frozenset[str]:
    """The top-level modules that these programs import; UsageError for one that is none."""
    found = set[str]()
    for path, content in code.items():
        if path.endswith(".py"):
            try:
                found |= imported(content if isinstance(content, bytes) else content.read_bytes())
            except (SyntaxError, ValueError, RecursionError) as error:
                what = f"cannot read the imports of this program: {error}"
                todo = f"correct it, leave it out of the application, or {_WITHOUT}"
                raise UsageError(what, where=path, todo=todo) from error
    return frozenset(found)


def slim_parent(origin: Origin, slim: Slimmed, order: ServeOrder, report: Reporter) -> Parent:
    """Assemble the environment from what is left, on the training image's own layers where they stay, by digest.

    Bytecode is left out: it belongs to layers that may be others now. BuildError for an image that envbuild did not
    assemble; LockError and WheelError for the wheels of layers that have to be made.
    """
    parts = _Parts.of(origin.parent)
    recipe = parts.recipe(slim, origin.environment)
    cache = LayerCache(order.order.cache, parts.cache(recipe), report.note)
    theirs = {it.descriptor.digest: it for it in parts.parent.image.layers}
    report.step(f"assembling the environment without {len(slim.dropped)} distributions")

    with Arrivals(order.order.cache, reporter=report, settings=_settings(order.order)) as arrivals:
        arrivals.start(wheels_to_read(recipe, cache))
        made = assemble(recipe, parts.base, arrivals, cache, report.progress).image
        for layer in made.layers:
            if layer.found == "cache" and layer.descriptor.digest not in theirs:
                layer.open().close()  # a damaged one is made again while there are wheels
    image = replace(made, layers=tuple(theirs.get(it.descriptor.digest, it) for it in made.layers))
    report.note(_saving(slim, image, theirs))
    return Parent(image=image, lock=slim.lock, python=recipe.python_path)


def _saving(slim: Slimmed, image: Image, theirs: Iterable[Digest]) -> str:
    known = set(theirs)
    shared = [it.descriptor.size for it in image.layers if it.descriptor.digest in known]
    share = sum(shared) / sum(it.descriptor.size for it in image.layers)
    layers = f"{len(shared)} of {len(image.layers)} layers, {share:.0%} of the bytes, are the training image's"
    return f"{slim.saved / 1e6:.1f} MB of wheels are left out; {layers}"


def _settings(order: Order) -> IndexSettings:
    settings = read_settings(order.find_links, offline=order.offline)
    return replace(settings, ca_bundle=str(order.ca_bundle.absolute())) if order.ca_bundle else settings


def _declared(reader: FactReader, wheels: tuple[LockedWheel, ...], report: Reporter) -> Declared:
    facts = reader.all_facts(wheels, report)
    unread = [wheel.filename for wheel, known in zip(wheels, facts, strict=True) if known is None]
    if unread:
        what = f"what {unread[0]} requires cannot be read, as its server sends whole files only"
        raise LockError(what, where="--slim", todo=f"give its wheel in a folder (--find-links DIR), or {_WITHOUT}")
    return {wheel.name: known.requires for wheel, known in zip(wheels, facts, strict=True) if known}


def _used(wheel: LockedWheel, modules: frozenset[str], reader: FactReader) -> bool:
    """Whether a program imports something of it, or may do so."""
    brought = reader.modules(wheel) if modules else frozenset[str]()
    return brought is None or not modules.isdisjoint(brought)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """An image that envbuild assembled, split by the history of its layers."""

    parent: Parent
    config: Mapping[str, Any]
    count: int
    """How many layers lie below those of the wheels: the base's, and that of system packages."""
    lines: Mapping[str, Layer]
    """The other layers."""

    @classmethod
    def of(cls, parent: Parent) -> "_Parts":
        """Take it apart; BuildError where a line is not one that this release writes, or lacks a layer of the lock."""
        config, layers = json.loads(parent.image.config), parent.image.layers
        lines = history_lines(config, len(layers))
        named = tuple(replace(it, created_by=line) for it, line in zip(layers, lines, strict=True))
        parent = replace(parent, image=replace(parent.image, layers=named))  # those made here are named otherwise
        own = [number for number, line in enumerate(lines) if line.startswith(OURS)]
        wheels = [number for number in own if not lines[number].removeprefix(OURS).startswith(PACKAGES_LINE)]
        count = min(wheels, default=len(lines))
        found = {lines[it].removeprefix(OURS): named[it] for it in wheels}
        parts = cls(parent=parent, config=config, count=count, lines=found)
        foreign = [line for line in lines[count:] if not line.startswith(OURS)] or list(parts.unknown())
        if foreign or not wheels:
            line = foreign[0] if foreign else "none of them is of envbuild"
            what = f"cannot identify a layer of the training image: {line}"
            todo = f"build it again with this release, without an engine, or {_WITHOUT}"
            raise BuildError(what, where=parent.name or str(parent.digest), todo=todo)
        return parts

    def unknown(self) -> Iterator[str]:
        """Lines that are not of the lock's layers, and layers of the lock that no line names."""
        labels = {it.label for it in plan_layers(self._recipe(self.parent.lock, ()))}
        others = {ENVIRONMENT_LINE, CHECK_LINE, OVERLAPS_LINE}
        yield from (it for it in self.lines if it not in labels | others and not it.startswith(BYTECODE_LINE))
        yield from labels - self.lines.keys()

    @property
    def base(self) -> Base:
        """What the wheels lie on, with all that the image's config says but the environment's folder on PATH."""
        image, inner = self.parent.image, dict(self.config.get("config") or {})
        path = re.compile(rf"PATH={re.escape(PREFIX)}/bin:")
        variables = [f"PATH={it[found.end() :]}" if (found := path.match(it)) else it for it in inner.get("Env") or ()]
        history, layers = self.config["history"], image.layers[: self.count]
        whole = [number for number, it in enumerate(history) if not it.get("empty_layer")]
        config = dict(self.config) | {
            "config": inner | {"Env": variables},
            "history": history[: whole[self.count] if self.count < len(whole) else None],
        }
        below = replace(image, config=canonical_json(config), layers=layers)
        target = self.parent.lock.target
        return Base(name=self.parent.name, image=below, target=target, python_path=self._python)

    def recipe(self, slim: Slimmed, environment: Digest) -> Recipe:
        """What is left of an environment, on the training image's ground."""
        labels = dict((self.config.get("config") or {}).get("Labels") or {})
        labels |= {SLIM_LABEL: ",".join(slim.lock.slim), SLIM_OF_LABEL: str(environment)}
        return self._recipe(slim.lock, tuple(sorted(labels.items())), self._python)

    def cache(self, recipe: Recipe) -> "_ParentCache":
        """The layers that are the same, by the keys of the assembler; and no shared path where there was none."""
        whole = self._recipe(self.parent.lock, (), recipe.python_path)
        labels = [*(it.label for it in plan_layers(whole)), ENVIRONMENT_LINE]
        pairs = zip(cache_keys(whole).layers, labels, strict=False)
        alone = () if OVERLAPS_LINE in self.lines else cache_keys(recipe).notes[:1]
        layers = {key: self.lines[label] for key, label in pairs if label in self.lines}
        return _ParentCache(layers, alone, self.parent.name or str(self.parent.digest))

    @property
    def _python(self) -> str:
        return self.parent.python or interpreter_of(self.parent.image)

    def _recipe(self, lock: Lock, labels: tuple[tuple[str, str], ...], python: str = "") -> Recipe:
        name, digest = named_base(self.parent.image)
        return Recipe(
            base_name=name,
            base_digest=Digest.parse(digest) if digest else self.parent.digest,
            base_asked=name,
            python_path=python,
            target=lock.target,
            wheels=lock.wheels,
            owners=lock.owners,
            variables=(),
            labels=labels,
            user=str((self.config.get("config") or {}).get("User") or ""),
        )


@dataclass(frozen=True, slots=True)
class _ParentCache:
    """The training image as a shared cache of layers."""

    layers: Mapping[Digest, Layer]
    alone: tuple[Digest, ...]
    """The key of what is noted of shared paths, where the training image has none: a part of it has none either."""
    source: str
    """The training image."""

    def look_up(self, layers: Iterable[Digest], facts: Iterable[Digest]) -> None:
        """Do nothing: everything is known."""

    def layer(self, key: Digest) -> Claim[LayerResult] | None:
        """The training image's layer."""
        found = self.layers.get(key)
        if found is None:
            return None
        result = LayerResult(found.descriptor.digest, found.descriptor.size, found.diff_id)
        return Claim(result, Voucher.REGISTRY, self.source)

    def get(self, key: Digest, decode: Decode[_T]) -> Claim[_T] | None:
        """That no path is shared."""
        return Claim(decode([]), Voucher.REGISTRY, self.source) if key in self.alone else None

    def ignore(self, key: Digest, why: str) -> None:
        """Nothing: no wheel can contradict a list without a path."""

    def put(self, key: Digest, value: Any) -> None:
        """Nothing is shared with an image."""

    def publish(self, made: Mapping[Digest, LayerResult]) -> None:
        """Nothing is shared with an image."""


def slimmed(
    lock: Lock, manifest: TrainingManifest, kept: Sequence[str], declared: Declared, patterns: Collection[Pattern]
) -> Slimmed:
    """Leave out what the list calls training-only, and what only such distributions require.

    What stays is what everything else requires in turn: the run's frameworks, `kept` (requirements of the server and
    the application), and each distribution that is not on the list, unless one on it requires it and nobody asked for
    it. Where a record does not say all that was asked for, everything that is not on the list stays.
    `declared` has the requirements of each wheel, of those above the lock too.
    """
    markers = marker_environment(lock.target)
    versions = {it.name: it.version for it in lock.wheels}
    training = listed(versions, patterns)
    stay = needed((*_roots(manifest, versions, training, declared, markers), *kept), declared, markers, training)
    gone = [it for it in lock.wheels if it.name not in stay]
    names = {it.name for it in gone}
    left = replace(
        lock,
        wheels=tuple(it for it in lock.wheels if it.name not in names),
        yanked=tuple(it for it in lock.yanked if it[0] not in names),
        slim=tuple(sorted(names)),
    )
    reasons = {name: training.get(name) or _orphaned(name, names, declared, markers) for name in names}
    return Slimmed(
        lock=left,
        dropped=tuple(f"{it.name} {it.version}: {reasons[it.name]}" for it in gone),
        saved=sum(it.size for it in gone),
    )


def _roots(
    manifest: TrainingManifest,
    names: Collection[str],
    training: Collection[str],
    declared: Declared,
    markers: Mapping[str, str],
) -> list[str]:
    """What stays whatever requires it."""
    asked = _requested(manifest, names, declared, markers)
    brought = needed(training, declared, markers, training) if asked else frozenset[str]()
    asked |= {str(canonicalize_name(it.distribution)) for it in (manifest.framework, *manifest.frameworks) if it}
    return [name for name in names if name not in training and (name in asked or name not in brought)]


def _requested(
    manifest: TrainingManifest, names: Iterable[str], declared: Declared, markers: Mapping[str, str]
) -> frozenset[str]:
    """What was asked for by name; nothing where the record's marks cannot be all of them.

    What no other requires was asked for. Installers such as `uv sync` mark nothing, and then only some marks are there.
    """
    marked = frozenset(str(canonicalize_name(it.name)) for it in manifest.distributions if it.requested)
    required = {it for name in names for it in _direct(name, declared, markers) - {name}}
    return marked if marked >= set(names) - required - _TOOLS else frozenset()


def _orphaned(name: str, gone: Iterable[str], declared: Declared, markers: Mapping[str, str]) -> str:
    """Who required it, of what is left out."""
    who = sorted(it for it in gone if it != name and name in _direct(it, declared, markers))
    more = f" and {len(who) - _NAMED} more" if len(who) > _NAMED else ""
    return f"only {', '.join(who[:_NAMED])}{more} required it"


def _direct(name: str, declared: Declared, markers: Mapping[str, str]) -> frozenset[str]:
    return needed([name], {name: declared.get(name, ())}, markers)


def imported(source: bytes) -> frozenset[str]:
    """The top-level modules that a Python program imports, by statements and by `import_module` with a plain name.

    SyntaxError or ValueError where it is none.
    """
    return frozenset(name.partition(".")[0] for name in _imports(ast.parse(source)))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (it.name for it in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module
            case _:
                pass


def commanded(words: Iterable[str]) -> frozenset[str]:
    """What could be a module in the words of a command: `gunicorn`, and `app` of `app:main`."""
    return frozenset(found[0] for word in words if (found := _MODULE.match(word)))


def proof_of(slim: Slimmed, findings: Iterable[Finding], gate: Gate) -> Finding:
    """Whether the gate held the golden sample against the slim image; where it is required, an error if not."""
    without = f"{len(slim.dropped)} distributions, {slim.saved / 1e6:.1f} MB of wheels, are left out"
    if any(it.agrees and it.id in _PROOFS for it in findings):
        says = f"{without}, and predictions are those that were recorded"
        return Finding(about="slim", rule="slim-proof", agrees=True, says=says)
    return Finding(
        about="slim",
        rule="slim-proof",
        agrees=False,
        severity="error" if gate == "require" else "warning",
        says=f"{without}, and nothing shows that predictions are the same without them",
        why="a program that imports one of them fails or computes something else, and nothing tested it",
        todo="record golden inputs with the run and build where an engine is (docs/golden.md), or build without --slim",
    )
