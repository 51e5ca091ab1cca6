"""The training environment without what only training uses: what that is, and the image of what is left.

Distributions are left out, and files of the others that no program opens when it serves.
"""

import ast
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.errors import BuildError, UsageError
from envbuild.image.assembler import OVERLAPS_LINE, assemble, wheels_to_read
from envbuild.image.child import Parent, interpreter_of
from envbuild.image.config import CHECK_LINE, OURS
from envbuild.image.debian.layer import LINE as PACKAGES_LINE
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import AssemblyOptions
from envbuild.image.layers.plan import plan_layers
from envbuild.image.rebase import BYTECODE_LINE, ENVIRONMENT_LINE, named_base, named_compression
from envbuild.lock.dependencies import Declared, find_needed, marker_environment, read_declared
from envbuild.lock.download import Downloads
from envbuild.lock.index import in_parallel
from envbuild.lock.model import Lock, LockedWheel
from envbuild.lock.resolution import open_session
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Layer, canonical_json, history_lines
from envbuild.recipe import PREFIX, SLIM_FILES_LABEL, SLIM_LABEL, SLIM_OF_LABEL, Base, Recipe
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import Reporter
from envbuild.serve.model import Gate, LeftOut, Origin, ServeOrder, Server, Slimmed
from envbuild.verify.environment import FileRule, Pattern, file_rules, listed, training_only
from envbuild.verify.findings import Finding
from envbuild.wheel.install import FilePattern

_WITHOUT = "build without --slim"
_NAMED = 3
_MODULE = re.compile(r"[A-Za-z_]\w*")
_TOOLS = frozenset({"pip", "setuptools", "uv", "wheel"})
"""They come with an environment and are not asked for."""
_PROOFS = frozenset({"golden", "serve-golden"})
"""The rules that compare predictions with the recorded sample."""


def find_slimmed(
    order: ServeOrder, origin: Origin, server: Server, above: Lock, code: Mapping[str, bytes | Path], report: Reporter
) -> Slimmed:
    """Say what the serving image does without; `above` is locked above all of the training environment.

    `code` is what the server and the application put into the image, by path: what its programs import stays, as does
    what `above` and the extras require. LockError where a wheel's requirements cannot be read, UsageError for a program
    that cannot.
    """
    lock, options = origin.parent.lock, order.build_request
    report.step("looking for what only training uses")
    kept = [*order.extras, *server.requirements, *(it.name for it in above.wheels)]
    modules = imports_of(code) | commanded((*order.cmd, *server.cmd))
    with open_session((), lock.target, options.index_settings(), options.cache) as session:
        declared = read_declared(session.reader, (*lock.wheels, *above.wheels), "--slim", _WITHOUT, report)
        most = slimmed(lock, origin.manifest, kept, declared, training_only())
        candidates = [it for it in lock.wheels if it.name in most.lock.slim] if modules else []
        brought = {it.name: session.reader.modules(it) for it in candidates}
        # A wheel whose modules are not known may be imported.
        used = [name for name, its in brought.items() if its is None or not modules.isdisjoint(its)]
        found = slimmed(lock, origin.manifest, (*kept, *used), declared, training_only())
        names = {it.name for it in (*found.lock.wheels, *above.wheels)}
        rules = [it for it in file_rules() if not any(fnmatchcase(name, one) for name in names for one in it.unless)]
        contents = in_parallel(session.reader.files, found.lock.wheels)
    found = trim(found, rules, contents)
    for line in (*found.dropped, *map(str, found.files)):
        report.note(f"left out: {line}")
    for name in used:
        report.note(f"kept, as the application imports it: {name}")
    return found


def trim(slim: Slimmed, rules: Sequence[FileRule], contents: Iterable[Mapping[str, int] | None]) -> Slimmed:
    """Leave out the files that the rules name; `contents` are the sizes by path of each wheel, None where not known.

    A wheel that has no such file stays as it is, so that its layer does.
    """
    wheels, found = list[LockedWheel](), {it.name: LeftOut(rule=it.name, why=it.why, count=0, size=0) for it in rules}
    for wheel, files in zip(slim.lock.wheels, contents, strict=True):
        patterns = list[FilePattern]()
        for rule in rules:
            sizes = [size for path, size in (files or {}).items() if rule.pattern.matches(path)]
            one = found[rule.name]
            found[rule.name] = replace(one, count=one.count + len(sizes), size=one.size + sum(sizes))
            patterns += [rule.pattern] if sizes else []
        wheels.append(replace(wheel, left_out=tuple(patterns)))
    files_left_out = tuple(it for it in found.values() if it.count)
    names = tuple(sorted(it.rule for it in files_left_out))
    return replace(slim, lock=replace(slim.lock, wheels=tuple(wheels), slim_files=names), files=files_left_out)


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


def slim_parent(
    origin: Origin, slim: Slimmed, order: ServeOrder, report: Reporter, shared: SharedCache | None = None
) -> Parent:
    """Assemble the environment from what is left, on the training image's own layers where they stay, by digest.

    Bytecode is left out: it belongs to layers that may be others now. BuildError for an image that envbuild did not
    assemble; LockError and WheelError for the wheels of layers that neither a cache nor `shared` has.
    """
    parent, config = origin.parent, json.loads(origin.parent.image.config)
    lines = history_lines(config, len(parent.image.layers))
    recipe = _recipe(origin, slim.lock, config)
    count = _count_base_layers(parent, lines, recipe)
    # Layers that are made here are named otherwise.
    layers = [replace(it, created_by=line) for it, line in zip(parent.image.layers, lines, strict=True)]
    base = _base(parent, config, tuple(layers[:count]), recipe.python_path)
    report.step(f"assembling the environment without {slim.losses.removesuffix(',')}")
    cache = LayerCache(order.build_request.cache, shared, report.note, recipe.compression)
    theirs = {it.descriptor.digest: it for it in layers}

    request = order.build_request
    with Downloads(request.cache, reporter=report, settings=request.index_settings()) as downloads:
        downloads.start(wheels_to_read(recipe, cache))
        made = assemble(recipe, base, downloads, cache, AssemblyOptions(reporter=report)).image
        for layer in made.layers:
            if layer.found == "cache" and layer.descriptor.digest not in theirs:
                layer.open().close()  # a damaged one is made again while there are wheels
    image = replace(made, layers=tuple(theirs.get(it.descriptor.digest, it) for it in made.layers))
    same = [it.descriptor.size for it in image.layers if it.descriptor.digest in theirs]
    share = sum(same) / sum(it.descriptor.size for it in image.layers)
    report.note(f"{len(same)} of {len(image.layers)} layers, {share:.0%} of the bytes, are the training image's")
    return Parent(image=image, lock=slim.lock, python=recipe.python_path)


def _recipe(origin: Origin, lock: Lock, config: Mapping[str, Any]) -> Recipe:
    """The recipe of what is left of an environment, on the training image's base."""
    parent, inner = origin.parent, config.get("config") or {}
    name, digest = named_base(parent.image)
    own = {SLIM_LABEL: ",".join(lock.slim), SLIM_FILES_LABEL: ",".join(lock.slim_files)}
    labels = dict(inner.get("Labels") or {}) | {name: names for name, names in own.items() if names}
    labels[SLIM_OF_LABEL] = str(origin.environment)
    return Recipe(
        base_name=name,
        base_digest=Digest.parse(digest) if digest else parent.digest,
        base_asked=name,
        python_path=parent.python or interpreter_of(parent.image),
        target=lock.target,
        wheels=lock.wheels,
        owners=lock.owners,
        variables=(),
        labels=tuple(sorted(labels.items())),
        user=str(inner.get("User") or ""),
        compression=named_compression(parent.image),
    )


def _count_base_layers(parent: Parent, lines: Sequence[str], recipe: Recipe) -> int:
    """How many layers lie below those of the wheels: the base's, and that of system packages.

    BuildError where a layer's line is not one that this release writes, or a layer of the lock is missing.
    """
    own = {number: line.removeprefix(OURS) for number, line in enumerate(lines) if line.startswith(OURS)}
    wheels = {number: line for number, line in own.items() if not line.startswith(PACKAGES_LINE)}
    count = min(wheels, default=len(lines))
    whole = replace(recipe, wheels=parent.lock.wheels, owners=parent.lock.owners, labels=())
    labels, others = {it.label for it in plan_layers(whole)}, {ENVIRONMENT_LINE, CHECK_LINE, OVERLAPS_LINE}
    unknown = [
        *(line for line in lines[count:] if not line.startswith(OURS)),
        *(it for it in wheels.values() if it not in labels | others and not it.startswith(BYTECODE_LINE)),
        *(labels - set(wheels.values())),
        *([] if wheels else ["none of them is of envbuild"]),
    ]
    if unknown:
        what = f"cannot identify a layer of the training image: {unknown[0]}"
        todo = f"build it again with this release, without an engine, or {_WITHOUT}"
        raise BuildError(what, where=parent.name or str(parent.digest), todo=todo)
    return count


def _base(parent: Parent, config: dict[str, Any], layers: tuple[Layer, ...], python: str) -> Base:
    """What the wheels lie on, with all that the image's config says but the environment's folder on PATH."""
    inner = dict(config.get("config") or {})
    path = re.compile(rf"PATH={re.escape(PREFIX)}/bin:")
    variables = [f"PATH={it[found.end() :]}" if (found := path.match(it)) else it for it in inner.get("Env") or ()]
    history = config["history"]
    whole = [number for number, it in enumerate(history) if not it.get("empty_layer")]
    cut = config | {
        "config": inner | {"Env": variables},
        "history": history[: whole[len(layers)] if len(layers) < len(whole) else None],
    }
    below = replace(parent.image, config=canonical_json(cut), layers=layers)
    return Base(name=parent.name, image=below, target=parent.lock.target, python_path=python)


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
    stay = find_needed((*_roots(manifest, versions, training, declared, markers), *kept), declared, markers, training)
    gone = [it for it in lock.wheels if it.name not in stay]
    names = {it.name for it in gone}
    left = replace(
        lock,
        wheels=tuple(it for it in lock.wheels if it.name not in names),
        yanked=tuple(it for it in lock.yanked if it[0] not in names),
        slim=tuple(sorted(names)),
    )

    def reason(name: str) -> str:
        if name in training:
            return training[name]
        by = sorted(it for it in names if it != name and name in _direct(it, declared, markers))
        return f"only {', '.join(by[:_NAMED])}{f' and {len(by) - _NAMED} more' if len(by) > _NAMED else ''} required it"

    return Slimmed(
        lock=left,
        dropped=tuple(f"{it.name} {it.version}: {reason(it.name)}" for it in gone),
        saved=sum(it.size for it in gone),
    )


def _roots(
    manifest: TrainingManifest,
    names: Collection[str],
    training: Collection[str],
    declared: Declared,
    markers: Mapping[str, str],
) -> list[str]:
    """What stays whatever requires it: the frameworks, and what was asked for by name.

    What no other requires was asked for. Installers such as `uv sync` mark nothing or not all of it; then the marks do
    not count, and everything stays that is not on the list.
    """
    marked = frozenset(str(canonicalize_name(it.name)) for it in manifest.distributions if it.requested)
    required = {it for name in names for it in _direct(name, declared, markers) - {name}}
    asked = marked if marked >= set(names) - required - _TOOLS else frozenset()
    brought = find_needed(training, declared, markers, training) if asked else frozenset[str]()
    asked |= {str(canonicalize_name(it.distribution)) for it in (manifest.framework, *manifest.frameworks) if it}
    return [name for name in names if name not in training and (name in asked or name not in brought)]


def _direct(name: str, declared: Declared, markers: Mapping[str, str]) -> frozenset[str]:
    return find_needed([name], {name: declared.get(name, ())}, markers)


def imported(source: bytes) -> frozenset[str]:
    """The top-level modules that a Python program imports, by statements and by `import_module` with a plain name.

    SyntaxError or ValueError where it is none.
    """
    found = list[str]()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += (it.name for it in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.append(module)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                found.append(module)
            case _:
                pass
    return frozenset(name.partition(".")[0] for name in found)


def commanded(words: Iterable[str]) -> frozenset[str]:
    """What could be a module in the words of a command: `gunicorn`, and `app` of `app:main`."""
    return frozenset(found[0] for word in words if (found := _MODULE.match(word)))


def proof_of(slim: Slimmed, findings: Iterable[Finding], gate: Gate) -> Finding:
    """Whether the gate compared the golden sample with the slim image; where it is required, an error if not."""
    without = f"{slim.losses} are left out"
    finding = partial(Finding, about="slim", rule="slim-proof")
    if any(it.agrees and it.id in _PROOFS for it in findings):
        return finding(agrees=True, says=f"{without}, and predictions are those that were recorded")
    return finding(
        agrees=False,
        severity="error" if gate == "require" else "warning",
        says=f"{without}, and nothing shows that predictions are the same without them",
        why="a program that imports or opens one of them fails or computes something else, and nothing tested it",
        todo="run `envbuild deploy-check MODEL IMAGE --golden`, with a golden sample of the run (docs/golden.md); or "
        "build without --slim",
    )
