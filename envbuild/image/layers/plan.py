"""The plan of layers: which wheels share one, and whose file the image has of paths that several wheels install.

The plan is a fixed rule that reads nothing but the lock. Of a path in several wheels the image has the run's file, if
the lock records it; else that of the wheel that pip installs last. The order is that of pip's own code:
`get_installation_order` and `get_topological_weights` in `_internal/resolution/resolvelib/resolver.py`, and up to pip
20.2 `get_installation_order` in `_internal/resolution/legacy/resolver.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import BuildError
from envbuild.lock.dependencies import marker_environment, may_hold, readable_requirements
from envbuild.lock.model import LockedWheel, Target
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe
from envbuild.wheel.install import InstalledFile, content_of

_LARGE = 32 << 20
"""Bytes: wheels from this size have a layer of their own, which is reused whatever else changes.

For smaller ones that is not worth it: engines unpack one layer after the other, in 0.1 to 0.15 s each.
"""
_MEDIUM = 1 << 20
"""Bytes: wheels from this size are separate from the small ones, which change most often and then cost little."""
_MOST_LARGE, _MEDIUM_GROUPS = 22, 2
MOST_WITH_BASE = 100
"""Engines mount one file system a layer and stop near 125; users put layers on top."""
_NEW_RESOLVER, _PRUNING = Version("20.3"), Version("22.0")
_VISITS = 500
"""Limit of visits to a node, as the number of paths through a graph may grow without limit."""
_Node = tuple[str, tuple[str, ...]]
"""A distribution with required extras."""
_Graph = dict[_Node, list[_Node]]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The wheels of one layer, sorted by name."""

    wheels: tuple[LockedWheel, ...]
    key: Digest
    """Digest of everything that decides the bytes."""

    @property
    def fingerprints_key(self) -> Digest:
        """The key of the note with the fingerprints of its wheels."""
        return Digest.of(canonical_json(["paths of", str(self.key)]))

    @property
    def label(self) -> str:
        """The layer's line in the image's history."""
        return ", ".join(f"{wheel.name} {wheel.version}" for wheel in self.wheels)


def plan_layers(recipe: Recipe) -> tuple[LayerPlan, ...]:
    """Give large wheels a layer each, largest first; group the others by size and a hash of their name.

    The group of a wheel depends on nothing but the wheel, so a change to one package changes one group.
    """
    by_size = sorted(recipe.wheels, key=lambda wheel: (-wheel.size, wheel.name))
    large = [wheel for wheel in by_size if wheel.size >= _LARGE][:_MOST_LARGE]
    groups: dict[int, list[LockedWheel]] = {}
    for wheel in by_size[len(large) :]:
        medium = wheel.size >= _MEDIUM
        group = sha256(wheel.name.encode()).digest()[0] % _MEDIUM_GROUPS if medium else _MEDIUM_GROUPS
        groups.setdefault(group, []).append(wheel)
    shared = [sorted(groups[number], key=lambda wheel: wheel.name) for number in sorted(groups)]
    plans = []
    for wheels in [[wheel] for wheel in large] + shared:
        key = {
            "format": recipe.layer_format,
            "prefix": recipe.prefix,
            "python": recipe.target.python_minor,
            "wheels": [wheel.content_key for wheel in wheels],
        }
        plans.append(LayerPlan(tuple(wheels), Digest.of(canonical_json(key))))
    return tuple(plans)


def check_depth(ours: int, base: int) -> None:
    """Refuse an image with more layers than every engine can mount."""
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
    """Names of distributions."""


def find_overlaps(
    installed: Mapping[LockedWheel, Sequence[InstalledFile]],
    owners: Mapping[str, str],
    find_order: Callable[[], Sequence[str]],
) -> list[Overlap]:
    """List paths whose content differs between wheels, sorted; BuildError if one has a file and another a folder.

    `owners` are names of distributions by path; `find_order` is called if they do not decide.
    """
    wheels_by_path: dict[str, list[tuple[LockedWheel, InstalledFile]]] = {}
    for wheel in sorted(installed, key=lambda wheel: wheel.name):
        for file in installed[wheel]:
            wheels_by_path.setdefault(file.path, []).append((wheel, file))
    _check_folders(wheels_by_path)
    differing = {
        path: {wheel.name: wheel for wheel, _ in found}
        for path, found in sorted(wheels_by_path.items())
        if len(found) > 1 and len({content_of(file) for _, file in found}) > 1
    }
    chosen = {path: owners[path] for path, wheels in differing.items() if owners.get(path) in wheels}
    place = {name: at for at, name in enumerate(find_order())} if len(chosen) < len(differing) else {}
    overlaps = []
    for path, wheels in differing.items():
        name = chosen.get(path) or max(wheels, key=place.__getitem__)
        overlaps.append(Overlap(path, wheels[name], tuple(it for it in wheels if it != name)))
    return overlaps


def _check_folders(wheels_by_path: Mapping[str, Sequence[tuple[LockedWheel, InstalledFile]]]) -> None:
    folders = {path.rpartition("/")[0]: found for path, found in wheels_by_path.items()}
    while folders:
        for folder, found in folders.items():
            if folder in wheels_by_path:
                names = f"{wheels_by_path[folder][0][0].filename} and {found[0][0].filename}"
                raise BuildError(
                    f"{folder} is a file in one wheel and a folder in another",
                    where=names,
                    todo="the two releases cannot be installed together; change one of them in the run",
                )
        folders = {folder.rpartition("/")[0]: found for folder, found in folders.items() if "/" in folder}


def install_order(requires: Mapping[str, Sequence[str]], target: Target, pip: str | None = None) -> list[str]:
    """Sort distributions, given with their Requires-Dist, as one `pip install` of all of them installs them.

    `pip` is its version; without one the newest rule applies.
    """
    version = Version(pip) if pip else None
    graph = _graph(requires, target)
    if version and version < _NEW_RESOLVER:
        return _sort_by_requirements(graph)
    weights = _weights(graph, prune=version is None or version >= _PRUNING)
    return sorted(requires, key=lambda name: (weights[name, ()], name), reverse=True)


def _graph(requires: Mapping[str, Sequence[str]], target: Target) -> _Graph:
    """Return the requirements of the distributions on each other, on the target."""
    environment, graph = marker_environment(target), _Graph()
    pending: list[_Node] = [(name, ()) for name in sorted(requires)]
    while pending:
        name, extras = node = pending.pop()
        if node in graph:
            continue
        children = []
        for it in readable_requirements(requires[name]):
            selected = any(may_hold(it.marker, {**environment, "extra": extra}) for extra in ("", *extras))
            if selected and (required := str(canonicalize_name(it.name))) in requires:
                children.append((required, tuple(sorted(it.extras))))
        graph[node] = [*([(name, ())] if extras else []), *children]
        pending += graph[node]
    return graph


def _sort_by_requirements(graph: _Graph) -> list[str]:
    """Sort distributions after their requirements, else by name, as `pip freeze` does."""
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
    """Return high weights for what is installed early: no requirements; in cycles, far from the root."""
    weights, remaining = dict[_Node, int](), dict(graph)
    while prune and (
        leaves := [node for node in remaining if not any(child in remaining for child in remaining[node])]
    ):
        weights |= dict.fromkeys(leaves, len(remaining))
        for leaf in leaves:
            del remaining[leaf]
    depths: dict[_Node, list[int]] = {node: [] for node in remaining}
    path: dict[_Node, None] = {}

    def visit(node: _Node) -> None:
        if node in path or node not in remaining or len(depths[node]) >= _VISITS:
            return
        path[node] = None
        for child in remaining[node]:
            visit(child)
        del path[node]
        depths[node].append(len(path) + 1)

    for node in remaining:
        visit(node)
    return weights | {node: max(found) for node, found in depths.items()}
