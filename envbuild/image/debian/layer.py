"""Unpacked Debian packages as one layer on a base, the same bytes everywhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BuildError
from envbuild.image.debian.deb import Deb, Item, open_deb
from envbuild.image.debian.ground import Folder, Ground, placed
from envbuild.image.debian.records import conffiles, records
from envbuild.image.debian.scripts import make_alternatives, remarks
from envbuild.lock.model import SystemPackage
from envbuild.oci import tar
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe
from envbuild.wheel.compressed import write_compressed
from envbuild.wheel.layer import LayerResult

_FORMAT = 4
"""Raised whenever the same packages would give other bytes."""
_UNREAD = ("usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/")
"""What no program reads; copyrights stay."""
_DOC = "usr/share/doc/"
LINE = "system packages"
"""How the history's line of the layer begins."""


def packages_key(recipe: Recipe) -> Digest:
    """Everything that decides the layer's bytes: the base's own records and folders are in it."""
    value = [LINE, _FORMAT, str(recipe.base_digest), [str(it.sha256) for it in recipe.packages]]
    return Digest.of(canonical_json(value))


def packages_line(packages: Iterable[SystemPackage]) -> str:
    """The history's line of the layer."""
    return f"{LINE}: {', '.join(f'{it.name} {it.version}' for it in packages)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLayer:
    """The packages of a recipe, where they are, and what they are unpacked on."""

    ground: Ground
    find: Callable[[SystemPackage], Path]
    """Gets a package's file, which is held against the lock; LockError where it cannot be had."""

    def write(
        self, packages: Sequence[SystemPackage], sink: BinaryIO, pool: Executor, told: Callable[[list[str]], object]
    ) -> LayerResult:
        """Write the layer; `told` gets what a person has to know of packages that were only unpacked."""
        with ExitStack() as stack:
            debs = [open_deb(self.find(it), it.sha256, stack) for it in sorted(packages, key=lambda it: it.name)]
            told([line for deb in debs for line in remarks(deb)])
            return write_compressed(tarred(layer_items(debs, self.ground)), sink, pool)


def layer_items(debs: Sequence[Deb], ground: Ground) -> list[Item]:
    """Everything that the layer has, parents before what lies in them, sorted by path.

    BuildError where packages and base do not fit into each other.
    """
    links = dict(ground.links)
    for deb in debs:
        links |= {it.path: it.target for it in deb.items if it.kind == "symlink" and it.path not in ground.folders}
    found: dict[str, Item] = {}
    for deb in debs:
        for item in _kept(deb, ground):
            _put(found, item, placed(_followed(item, links), links), ground)
    for item in (*make_alternatives(debs, ground.links), *records(ground.status, debs)):
        found[placed(item.path, links)] = item
    _add_parents(found, ground)
    return [_moved(found[path], path) for path in sorted(found, key=lambda path: path.split("/"))]


def _kept(deb: Deb, ground: Ground) -> Iterator[Item]:
    """What of a package goes into the image."""
    held = ground.settings & set(conffiles(deb))
    for item in deb.items:
        unread = item.path.startswith(_UNREAD) or (
            item.path.startswith(_DOC) and item.kind == "file" and not item.path.endswith("/copyright")
        )
        if not unread and item.path not in held:
            yield item


def _followed(item: Item, links: Mapping[str, str]) -> str:
    """A folder that is a link in the base is what the link leads to, so that the link stays."""
    return f"{item.path}/." if item.kind == "directory" and item.path in links else item.path


def _put(found: dict[str, Item], item: Item, path: str, ground: Ground) -> None:
    if item.kind == "directory":
        if path not in ground.folders:
            found.setdefault(path, item)
        return
    if path in ground.folders:
        if item.kind == "symlink":  # dpkg leaves a folder where a package has a link
            return
        raise _clash(path, "a folder of the base is a file of a package")
    other = found.get(path)
    if other and other.kind == "directory":
        raise _clash(path, "a folder of a package is a file or link of another")
    found[path] = item


def _clash(path: str, what: str) -> BuildError:
    todo = "use a base of the run's distribution, or build with --no-system-packages"
    return BuildError(f"system packages do not fit: {what}", where=f"/{path}", todo=todo)


def _add_parents(found: dict[str, Item], ground: Ground) -> None:
    for path in list(found):
        parent = path.rpartition("/")[0]
        while parent and parent not in found:
            folder = ground.folders.get(parent, Folder(mode=0o755, owner=(0, 0)))
            found[parent] = Item(path=parent, kind="directory", mode=folder.mode, owner=folder.owner)
            parent = parent.rpartition("/")[0]
        if parent and found[parent].kind != "directory":
            raise _clash(parent, "a folder of a package is a file or link of another")


def _moved(item: Item, path: str) -> Item:
    return Item(
        path=path,
        kind=item.kind,
        mode=item.mode,
        owner=item.owner,
        size=item.size,
        target=item.target,
        source=item.source,
    )


def tarred(items: Iterable[Item]) -> Iterator[bytes]:
    """The tar of a layer."""
    for item in items:
        yield tar.header(tar.Entry(item.path, item.kind, item.mode, item.size, target=item.target, owner=item.owner))
        if item.size:
            yield from item.content()
            yield bytes(tar.padding(item.size))
    yield tar.END
