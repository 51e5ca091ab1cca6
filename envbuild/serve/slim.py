"""Which distributions a serving image does without: the rule, pure, and the modules that an application imports."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from envbuild.lock.dependencies import Declared, marker_environment, needed
from envbuild.lock.model import Lock
from envbuild.manifest.model import TrainingManifest
from envbuild.serve.model import Gate, Slimmed
from envbuild.verify.environment import Pattern, listed
from envbuild.verify.findings import Finding

_NAMED = 3
_MODULE = re.compile(r"[A-Za-z_]\w*")
_TOOLS = frozenset({"pip", "setuptools", "uv", "wheel"})
"""They come with an environment and are not asked for."""
_PROOFS = frozenset({"golden", "serve-golden"})
"""The rules that hold predictions against the recorded sample."""


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
    asked = _asked(manifest, names, declared, markers)
    brought = needed(training, declared, markers, training) if asked else frozenset[str]()
    asked |= {str(canonicalize_name(it.distribution)) for it in (manifest.framework, *manifest.frameworks) if it}
    return [name for name in names if name not in training and (name in asked or name not in brought)]


def _asked(
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
        why="what imports one of them all the same fails or computes otherwise, and nobody has looked",
        todo="record golden inputs with the run and build where an engine is (docs/golden.md), or build without --slim",
    )
