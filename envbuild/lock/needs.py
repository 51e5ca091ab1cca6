"""What distributions need of one another, as their metadata declares it (core metadata, Requires-Dist)."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Declared = Mapping[str, Collection[str]]
"""By normalised name, the requirements as METADATA has them."""
_Node = tuple[str, str]
"""A distribution, and one of its extras; empty for the distribution itself."""


def needed(
    roots: Iterable[str], declared: Declared, environment: Mapping[str, str], strict: Collection[str] = ()
) -> frozenset[str]:
    """Everything that the roots, which are requirements, need in turn, with themselves; by normalised name.

    Which extras somebody installed nothing tells, so a requirement of any extra counts, whatever its marker says.
    Those for a name in `strict` count only where their marker holds, with the extras that another requirement names.
    """
    found, waiting = set[_Node](), [node for root in roots for node in _nodes(Requirement(root))]
    parsed = {name: tuple(_parsed(texts)) for name, texts in declared.items()}
    while waiting:
        name, extra = node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        there = dict(environment) | {"extra": extra}
        for it in parsed.get(name, ()):
            waiting += _led(it, there, strict)
    return frozenset(name for name, _ in found)


def _led(requirement: Requirement, there: Mapping[str, str], strict: Collection[str]) -> list[_Node]:
    """What a requirement leads to: its extras only where its marker holds."""
    first, *extras = _nodes(requirement)
    if requirement.marker is None or requirement.marker.evaluate(dict(there)):
        return [first, *extras]
    return [] if first[0] in strict else [first]


def _nodes(requirement: Requirement) -> list[_Node]:
    name = str(canonicalize_name(requirement.name))
    return [(name, extra) for extra in ("", *requirement.extras)]


def _parsed(texts: Iterable[str]) -> Iterator[Requirement]:
    """What can be read; pip would not have installed anything by the rest."""
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:
            continue
