"""Which wheel goes into which layer: a fixed rule that reads nothing but the lock."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import BuildError
from envbuild.lock.dependencies import marker_environment
from envbuild.lock.model import LockedWheel, Target
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe
from envbuild.wheel.install import InstalledFile, content_of

_LARGE = 32 << 20
"""A wheel of this many bytes has a layer to itself, so that it is reused whatever changes beside it.

Smaller ones are not worth it: engines unpack one layer after the other, and each costs them 0.1 to 0.15 s.
"""
_MEDIUM = 1 << 20
"""Wheels of this many bytes are kept apart from the small ones, which change most often and then cost little."""
_MOST_LARGE, _MEDIUM_GROUPS = 22, 2
MOST_WITH_BASE = 100
"""Engines mount one file system a layer and stop near 125; users put layers on top."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The wheels of one layer, sorted by name."""

    wheels: tuple[LockedWheel, ...]
    key: Digest
    """Everything that decides the layer's bytes."""

    @property
    def paths(self) -> Digest:
        """The key of what is noted of the paths in its wheels."""
        return Digest.of(canonical_json(["paths of", str(self.key)]))

    @property
    def label(self) -> str:
        """What the image's history says."""
        return ", ".join(f"{wheel.name} {wheel.version}" for wheel in self.wheels)


def plan_layers(recipe: Recipe) -> tuple[LayerPlan, ...]:
    """Give large wheels a layer each, largest first; share out the others by size and a hash of their name.

    Such a wheel's group depends on nothing but itself, so a change to one package changes one group.
    """
    by_size = sorted(recipe.wheels, key=lambda wheel: (-wheel.size, wheel.name))
    large = [wheel for wheel in by_size if wheel.size >= _LARGE][:_MOST_LARGE]
    groups: dict[int, list[LockedWheel]] = {}
    for wheel in by_size[len(large) :]:
        groups.setdefault(_group(wheel), []).append(wheel)
    shared = [sorted(groups[number], key=lambda wheel: wheel.name) for number in sorted(groups)]
    return tuple(_plan(recipe, wheels) for wheels in [[wheel] for wheel in large] + shared)


def _group(wheel: LockedWheel) -> int:
    """Small ones come last, in a group of their own."""
    return sha256(wheel.name.encode()).digest()[0] % _MEDIUM_GROUPS if wheel.size >= _MEDIUM else _MEDIUM_GROUPS


def _plan(recipe: Recipe, wheels: Sequence[LockedWheel]) -> LayerPlan:
    key = {
        "format": recipe.layer_format,
        "prefix": recipe.prefix,
        "python": recipe.target.python_minor,
        "wheels": [[wheel.filename, str(wheel.sha256)] for wheel in wheels],
    }
    return LayerPlan(tuple(wheels), Digest.of(canonical_json(key)))


def check_depth(ours: int, base: int) -> None:
    """Refuse an image that engines could not mount."""
    if ours + base > MOST_WITH_BASE:
        raise BuildError(
            f"the image would have {ours + base} layers, more than the {MOST_WITH_BASE} that every engine can mount",
            where=f"{base} layers of the base, {ours} of the environment",
            todo="use a base with fewer layers (squash it, or build one from Dockerfile.base)",
        )


@dataclass(frozen=True, slots=True)
class Overlap:
    """One path with different content in several wheels."""

    path: str
    winner: LockedWheel
    losers: tuple[str, ...]
    """Their names."""


Installed = Mapping[LockedWheel, Sequence[InstalledFile]]


def find_overlaps(
    installed: Installed, owners: Mapping[str, str], install_order: Callable[[], Sequence[str]]
) -> list[Overlap]:
    """List paths whose content differs between wheels, sorted; BuildError where one has a file and another a folder.

    `owners` are names of distributions by path; `install_order` is called where they do not decide.
    """
    claims: dict[str, list[tuple[LockedWheel, InstalledFile]]] = {}
    for wheel in sorted(installed, key=lambda wheel: wheel.name):
        for file in installed[wheel]:
            claims.setdefault(file.path, []).append((wheel, file))
    _check_folders(claims)
    differing = {
        path: {wheel.name: wheel for wheel, _ in found}
        for path, found in sorted(claims.items())
        if len(found) > 1 and len({content_of(file) for _, file in found}) > 1
    }
    chosen = {path: owners[path] for path, wheels in differing.items() if owners.get(path) in wheels}
    place = {name: at for at, name in enumerate(install_order())} if len(chosen) < len(differing) else {}
    overlaps = []
    for path, wheels in differing.items():
        name = chosen.get(path) or max(wheels, key=place.__getitem__)
        overlaps.append(Overlap(path, wheels[name], tuple(it for it in wheels if it != name)))
    return overlaps


def _check_folders(claims: Mapping[str, Sequence[tuple[LockedWheel, InstalledFile]]]) -> None:
    folders = {path.rpartition("/")[0]: found for path, found in claims.items()}
    while folders:
        for folder, found in folders.items():
            if folder in claims:
                names = f"{claims[folder][0][0].filename} and {found[0][0].filename}"
                raise BuildError(
                    f"{folder} is a file in one wheel and a folder in another",
                    where=names,
                    todo="the two releases cannot be installed together; change one of them in the run",
                )
        folders = {folder.rpartition("/")[0]: found for folder, found in folders.items() if "/" in folder}


_NEW_RESOLVER, _PRUNING = Version("20.3"), Version("22.0")
_VISITS = 500
"""How often a node is visited at most, as the number of paths through a graph may grow without limit."""
_Node = tuple[str, tuple[str, ...]]
"""A distribution and the extras that another one requires of it."""
_Graph = dict[_Node, list[_Node]]


def install_order(requires: Mapping[str, Sequence[str]], target: Target, pip: str | None = None) -> list[str]:
    """Sort distributions as `pip install` of all of them installs them; by each its Requires-Dist.

    `pip` is its version; the newest rule holds where it is not known.
    """
    version = Version(pip) if pip else None
    graph = _graph(requires, target)
    if version and version < _NEW_RESOLVER:
        return _dependencies_first(graph)
    weights = _weights(graph, prune=version is None or version >= _PRUNING)
    return sorted(requires, key=lambda name: (weights[name, ()], name), reverse=True)


def _graph(requires: Mapping[str, Sequence[str]], target: Target) -> _Graph:
    """What each distribution requires of the others on the target."""
    environment, graph = marker_environment(target), _Graph()
    pending: list[_Node] = [(name, ()) for name in sorted(requires)]
    while pending:
        name, extras = node = pending.pop()
        if node in graph:
            continue
        found = (it for it in _parsed(requires[name]) if _holds(it, environment, extras))
        children = [(str(canonicalize_name(it.name)), tuple(sorted(it.extras))) for it in found]
        graph[node] = [*([(name, ())] if extras else []), *(it for it in children if it[0] in requires)]
        pending += graph[node]
    return graph


def _parsed(texts: Sequence[str]) -> Iterator[Requirement]:
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:
            continue


def _holds(requirement: Requirement, environment: Mapping[str, str], extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))


def _dependencies_first(graph: _Graph) -> list[str]:
    """Each distribution after what it requires, else by name, as in a requirements file of `pip freeze`."""
    order: dict[_Node, None] = {}
    seen = set[_Node]()

    def schedule(node: _Node) -> None:
        if node not in seen:
            seen.add(node)
            for child in graph[node]:
                schedule(child)
            order[node] = None

    for node in sorted(graph):
        schedule(node)
    return [name for name, extras in order if not extras]


def _weights(graph: _Graph, *, prune: bool) -> dict[_Node, int]:
    """High for what is installed early: what requires nothing; in cycles, what is far from the root."""
    weights, rest = dict[_Node, int](), dict(graph)
    while prune and (leaves := [node for node in rest if not any(child in rest for child in rest[node])]):
        weights |= dict.fromkeys(leaves, len(rest))
        for leaf in leaves:
            del rest[leaf]
    depths: dict[_Node, list[int]] = {node: [] for node in rest}
    path: dict[_Node, None] = {}

    def visit(node: _Node) -> None:
        if node in path or node not in rest or len(depths[node]) >= _VISITS:
            return
        path[node] = None
        for child in rest[node]:
            visit(child)
        del path[node]
        depths[node].append(len(path) + 1)

    for node in rest:
        visit(node)
    return weights | {node: max(found) for node, found in depths.items()}
