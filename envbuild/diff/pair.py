"""The files of two images, with as few layers read as tell them apart."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import takewhile

from envbuild.diff.layers import read_layer
from envbuild.errors import BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer
from envbuild.oci.rootfs import IMPLIED, Overlay, Tree, over

Report = Callable[[str, int, int | None], None]
"""Told, under a label, how many bytes of how many are done."""


def read_pair(a: Image, b: Image, names: tuple[str, str], report: Report) -> tuple[Tree, Tree]:
    """Read the files of two images; those that only their common lowest layers have are left out where they decide
    nothing. BuildError where a layer cannot be read.

    Layers are common when their diff ids are equal, as the configs state them.
    """
    shared = sum(
        1 for _ in takewhile(lambda pair: pair[0].diff_id == pair[1].diff_id, zip(a.layers, b.layers, strict=False))
    )
    reading = _Reading((*a.layers, *b.layers), report)
    reading.announce("reading layers", (*a.layers[shared:], *b.layers[shared:]))
    left, right = reading.joined(a.layers[shared:], names[0]), reading.joined(b.layers[shared:], names[1])
    if shared and not (_independent(left, right) and _independent(right, left)):
        reading.announce("reading layers that both have", a.layers[:shared])
        below = reading.joined(a.layers[:shared], names[0])
        left, right = over(below, left), over(below, right)
    return _finished(left, names[0]), _finished(right, names[1])


def _independent(one: Overlay, other: Overlay) -> bool:
    """Whether nothing that `one` does has to be held against what lies below `other`."""
    return (
        not one.borrowed
        and all(other.settles(path) or _both_implied(one, other, path) for path in one.nodes)
        and all(other.hides(path) for path in one.hidden)
        and all(path in other.emptied or other.hides(path) for path in one.emptied)
    )


def _both_implied(one: Overlay, other: Overlay, path: str) -> bool:
    return one.nodes[path] is IMPLIED and other.nodes.get(path) is IMPLIED


def _finished(overlay: Overlay, name: str) -> Tree:
    if overlay.borrowed:
        path, target = next(iter(overlay.borrowed.items()))
        todo = "make the image again"
        raise BuildError(f"a layer has {path} as a hard link to {target}, which is not there", where=name, todo=todo)
    return {"": IMPLIED} | overlay.nodes


class _Reading:
    """Reads each layer once, and keeps what it says only where it is asked for again."""

    def __init__(self, layers: Sequence[Layer], report: Report) -> None:
        self._times = Counter(layer.diff_id for layer in layers)
        self._known: dict[Digest, Overlay] = {}
        self._report = report
        self._label, self._done, self._total = "", 0, 0

    def announce(self, label: str, layers: Sequence[Layer]) -> None:
        """Say what is going to be read."""
        sizes = {layer.diff_id: layer.descriptor.size for layer in layers}
        self._label, self._done, self._total = label, 0, sum(sizes.values())

    def joined(self, layers: Sequence[Layer], name: str) -> Overlay:
        """Read layers, lowest first, as one."""
        return reduce(over, (self._read(layer, name) for layer in layers), Overlay())

    def _read(self, layer: Layer, name: str) -> Overlay:
        if found := self._known.get(layer.diff_id):
            return found
        found = read_layer(layer, name)
        self._done += layer.descriptor.size
        self._report(self._label, self._done, self._total)
        if self._times[layer.diff_id] > 1:
            self._known[layer.diff_id] = found
        return found
