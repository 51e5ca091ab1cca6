"""The order in which pip installs the wheels of a lock: of files with one path, that of the last wheel stays.

pip's own code: `get_installation_order` and `get_topological_weights` in `_internal/resolution/resolvelib/resolver.py`,
and up to pip 20.2 `get_installation_order` in `_internal/resolution/legacy/resolver.py`.
"""

from collections.abc import Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.lock.dependencies import marker_environment
from envbuild.lock.model import Target

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
