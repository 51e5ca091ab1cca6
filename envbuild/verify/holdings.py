"""What of one image's environment another has: distributions, interpreter and libraries, by every file of them."""

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from csv import Error
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from envbuild.capture.reading import decoded
from envbuild.capture.record_digest import record_content
from envbuild.diff import Rules
from envbuild.diff.packages import Package, Packages
from envbuild.diff.record import RECORD, rows
from envbuild.match.variant import CUDA_WHEEL, JAX_PLUGIN
from envbuild.oci.rootfs import IMPLIED, Node, Overlay, Tree, resolve
from envbuild.verify.sides.frameworks import frameworks_of

_INFO = re.compile(r"((?:.*/)?(?:site|dist)-packages/([^/-]+)-([^/]+)\.dist-info)/.*")
"""What lies deeper is what a distribution has of others for itself."""
_SITE = re.compile(r"(?:.*/)?(?:site|dist)-packages/.*")
_INTERPRETER = re.compile(
    r"(?:.*/)?(?:bin/python3?[\d.]*|lib(?:64)?/(?:[\w-]+/)?libpython3[^/]*|lib(?:64)?/python3(?:\.\d+)?/(?!(?:site|dist)-packages/).+)"
)
_SCRIPT = re.compile(r"(?:.*/)?bin/[^/]+")
_TOOLS = frozenset({"pip", "setuptools", "uv", "wheel"})
"""What installs, and computes nothing."""
LIBRARY = re.compile(r"(?:.*/)?[^/]+\.so[.\d]*")
_FOLDERS_OF_ENVIRONMENTS = frozenset({"usr", "lib", "lib32", "lib64", "bin", "sbin", "opt", "etc"})
_CONTENT = frozenset({"kind", "sha256", "target"})
_CUDA_ONLY = re.compile(r"nvidia-.+|triton|pytorch-triton|cuda-.+")
_AS_INSTALLED = Rules(as_installed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A distribution of training that serving has otherwise, or not at all."""

    name: str
    before: str
    """Its version in training."""
    after: str
    """Its version in serving; empty where it is not there."""
    files: int = 0
    """How many of its files differ, where the versions are the same."""
    blob: str = ""
    """The layer that has it in serving, else in training."""

    def __str__(self) -> str:
        if not self.after:
            return f"{self.name} {self.before} is not there"
        place = f" in layer {self.blob}" if self.blob else ""
        if self.before == self.after:
            return f"{self.name} {self.before} with {self.files} other files{place}"
        return f"{self.name} {self.before} -> {self.after}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What serving has of training's environment."""

    packages: tuple[Moved, ...]
    """Those that are others, but for what a GPU alone needs."""
    excused: tuple[Moved, ...]
    """What is another because serving is for the CPU."""
    interpreter: tuple[str, ...]
    """Files of Python itself that differ."""
    loose: tuple[str, ...]
    """Files beside the distributions, which none of them lists, that differ."""
    system: tuple[str, ...]
    """Debian's packages, and libraries of none, that differ."""
    same: int
    """How many distributions are the same, file by file."""
    added: tuple[str, ...]
    """`flask 3.0.0`: distributions that only serving has."""


class Holdings:
    """What an image holds, and which layer has it."""

    def __init__(self, tree: Tree, layers: Sequence[tuple[str, Overlay]]) -> None:
        self.tree = {"": IMPLIED} | dict(tree)
        self.versions: dict[str, str] = {}
        """By name; the last where there are several."""
        self.system = Packages(self.tree)
        self._layers, self._owners = layers, dict[str, str]()
        self._infos: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        for path, node in self.tree.items():
            if node.kind == "file" and (match := _INFO.fullmatch(path)):
                self._see(path, node, match)
        for name, infos in self._infos.items():
            self.versions[name] = ", ".join(sorted({version for version, _ in infos}))

    def _see(self, path: str, node: Node, match: re.Match[str]) -> None:
        name = canonicalize_name(match[2])
        self._infos[name].add((match[3], match[1]))
        self._owners[path] = name
        if path == f"{match[1]}/RECORD":
            with suppress(Error):
                self._owners |= dict.fromkeys((file for file, _, _ in rows(path, node.text)), name)

    def owner(self, path: str) -> str | None:
        """The distribution whose a path is."""
        return self._owners.get(path)

    def found_in(self, sites: Sequence[str]) -> frozenset[str]:
        """The distributions that lie in one of these folders."""
        folders = set(sites)
        found = (
            name for name, infos in self._infos.items() if any(posixpath.dirname(it) in folders for _, it in infos)
        )
        return frozenset(found)

    def contents(self, name: str) -> dict[str, str | None]:
        """What each RECORD of a distribution lists, by its folder."""
        found = {}
        for _, folder in self._infos[name]:
            node = self.tree.get(f"{folder}/RECORD")
            found[folder] = record_content(decoded(node.text)) if node else None
        return found

    def metadata(self) -> dict[str, str]:
        """METADATA of each distribution; of the last where there are several."""
        folders = ((name, folder) for name, infos in self._infos.items() for _, folder in sorted(infos))
        found = ((name, self.tree.get(f"{folder}/METADATA")) for name, folder in folders)
        return {name: decoded(node.text) for name, node in found if node}

    def brought_by(self, numbers: Sequence[int]) -> frozenset[str]:
        """What is in the image as one of these layers has it."""
        nodes = (self._layers[it][1].nodes.items() for it in numbers)
        return frozenset(path for each in nodes for path, node in each if self.tree.get(path) is node)

    def blob(self, name: str) -> str:
        """The digest of the highest layer that brings a distribution; empty where none does."""
        paths = [f"{folder}/{file}" for _, folder in self._infos[name] for file in ("METADATA", "RECORD")]
        return next((blob for blob, it in reversed(self._layers) if any(path in it.nodes for path in paths)), "")


def harmless(overlay: Overlay, led: Sequence[str]) -> bool:
    """Whether a layer lies beside any environment, as a program of one's own in /app does: it removes nothing.

    `led` is what variables lead to, without the leading slash: nothing that Python or the loader looks at lies beside.
    """
    removed = overlay.emptied or overlay.hidden - overlay.nodes.keys() - overlay.borrowed.keys()
    files = (path for path, node in overlay.nodes.items() if node.kind != "directory")
    return not removed and not any(_may_matter(path) or _met(path, led) for path in (*files, *overlay.borrowed))


def _met(path: str, led: Sequence[str]) -> bool:
    """Whether it lies at or in one of these places, or a link there could lead there."""
    return any(not it or path == it or path.startswith(f"{it}/") or it.startswith(f"{path}/") for it in led)


def _may_matter(path: str) -> bool:
    if path.partition("/")[0] in _FOLDERS_OF_ENVIRONMENTS or ".dist-info/" in path:
        return True
    return any(pattern.fullmatch(path) for pattern in (_SITE, _INTERPRETER, LIBRARY))


def held(before: Holdings, after: Holdings) -> Held:
    """Hold what serving has against what training has, file by file; times, owners and bytecode do not count."""
    lost = [path for path in _lost(before.tree, after.tree) if not _is_script(path, before)]
    lost += _led_elsewhere(before.tree, after.tree)
    owned = Counter(owner for path in lost if (owner := before.owner(path)))
    interpreter = [path for path in lost if _INTERPRETER.fullmatch(path)]
    own = set(interpreter)
    rest = [path for path in lost if path not in own and not before.owner(path)]
    loose = tuple(path for path in rest if _SITE.fullmatch(path) and not before.system.owner(path))
    moved = list(_moved(before, after, owned))
    excused = _excused(moved, before.versions, after.versions)
    tools = [str(it) for it in moved if it.name in _TOOLS]
    return Held(
        packages=tuple(it for it in moved if it not in excused and it.name not in _TOOLS),
        excused=excused,
        interpreter=tuple(interpreter),
        loose=loose,
        system=tuple(dict.fromkeys((*tools, *_system(rest, before, after)))),
        same=len(before.versions) - len(moved),
        added=tuple(f"{name} {version}" for name, version in after.versions.items() if name not in before.versions),
    )


def _is_script(path: str, before: Holdings) -> bool:
    """Whether an installer wrote it anew, each in its own words."""
    return before.owner(path) is not None and _SCRIPT.fullmatch(path) is not None


def _lost(before: Tree, after: Tree) -> Iterator[str]:
    """Paths of what is no folder, that the other has not, or has with other content."""
    for path, old in before.items():
        new = after.get(path)
        if new is old or old.kind == "directory" or _AS_INSTALLED.ignored(path, old, new):
            continue
        if new is None or _differs(path, old, new):
            yield path


def _led_elsewhere(before: Tree, after: Tree) -> Iterator[str]:
    """Links of Python's that are the same and lead out of it to what is not, as Debian's `sitecustomize` to /etc."""
    for path, node in before.items():
        new = after.get(path)
        if node.kind == "link" and new and new.target == node.target and _of_python(path):
            one, other = _end(before, path), _end(after, path)
            if not _of_python(one) and _content(before, one) != _content(after, other):
                yield path


def _end(tree: Tree, path: str) -> str:
    """Where a path leads to, without the leading slash; empty where it leads nowhere."""
    return (resolve(tree, f"/{path}") or "/")[1:]


def _content(tree: Tree, path: str) -> tuple[str, bytes] | None:
    return (tree[path].kind, tree[path].sha256) if path in tree else None


def _of_python(path: str) -> bool:
    return _INTERPRETER.fullmatch(path) is not None or _SITE.fullmatch(path) is not None


def _differs(path: str, old: Node, new: Node) -> bool:
    if RECORD.fullmatch(path) and old.kind == new.kind == "file":
        return record_content(decoded(old.text)) != record_content(decoded(new.text))
    return not _CONTENT.isdisjoint(_AS_INSTALLED.differing(path, old, new))


def _moved(before: Holdings, after: Holdings, owned: Mapping[str, int]) -> Iterator[Moved]:
    for name, version in before.versions.items():
        other = after.versions.get(name, "")
        if version == other and (not owned.get(name) or _elsewhere(name, before, after)):
            continue
        blob = after.blob(name) or before.blob(name)
        yield Moved(name=name, before=version, after=other, files=owned.get(name, 0), blob=blob)


def _elsewhere(name: str, before: Holdings, after: Holdings) -> bool:
    """Whether the very same distribution lies in another folder."""
    one, other = before.contents(name), after.contents(name)
    same = set(one.values()) == set(other.values()) and None not in one.values()
    return same and not (one.keys() & other.keys())


def _excused(moved: Sequence[Moved], before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Moved, ...]:
    """What differs because training was for a GPU and serving is not: CUDA's wheels and the framework's own build."""
    one, other = frameworks_of(before), frameworks_of(after)
    if one.variant != "gpu" or other.variant == "gpu":
        return ()
    there = {it.name: _public(it.version) for it in other.frameworks}
    builds = {it.distribution for it in one.frameworks if there.get(it.name) == _public(it.version)}
    return tuple(it for it in moved if _only_gpu(it) or it.name in builds)


def _only_gpu(moved: Moved) -> bool:
    name = moved.name
    if not moved.after:
        return bool(_CUDA_ONLY.fullmatch(name) or CUDA_WHEEL.match(name) or JAX_PLUGIN.match(name))
    return moved.before != moved.after and _public(moved.before) == _public(moved.after)


def _public(version: str) -> str:
    return version.partition("+")[0]


def _system(paths: Sequence[str], before: Holdings, after: Holdings) -> Iterator[str]:
    """Debian's packages that are others or whose libraries are, and libraries that no package has."""
    for path in paths:
        owner, library = before.system.owner(path), LIBRARY.fullmatch(path) is not None
        if owner and owner.kind == "debian":
            yield from _change(owner, before.system, after.system, library=library or _SITE.fullmatch(path) is not None)
        elif owner is None and library:
            yield f"/{path}"


def _change(package: Package, before: Packages, after: Packages, *, library: bool) -> Iterator[str]:
    """What became of a package; one that lost its documentation alone, as in slim images, is the same."""
    one, other = before.version(package), after.version(package)
    if one != other:
        yield f"{package.name} {one} -> {other}" if other else f"{package.name} {one} is not there"
    elif library:
        yield f"{package.name} {one} with other files"


def names_of(paths: Sequence[str], shown: int = 3) -> str:
    """The first of some paths, and how many more there are."""
    more = f" and {len(paths) - shown} more" if len(paths) > shown else ""
    return ", ".join(f"/{posixpath.normpath(path)}" for path in paths[:shown]) + more
