"""Whether serving's loader takes what training's takes: variables, configuration and cache (ld.so(8))."""

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterator

from envbuild.oci.rootfs import Tree, resolve
from envbuild.verify.choices import Pair, equal, fault, node_at
from envbuild.verify.findings import Finding
from envbuild.verify.holdings import LIBRARY, names_of

_SYSTEM = re.compile(r"(?:usr/(?:local/)?)?lib(?:32|64)?/.*")
_CONF = re.compile(r"etc/ld\.so\.conf(?:\.d/[^/]+\.conf)?")
_PRELOADED = "etc/ld.so.preload"
_BETTER = re.compile(r"/(?:glibc-hwcaps/[^/]+|(?:(?:tls|haswell|xeon_phi|avx512_1|x86_64)(?:/|$))+)$")
"""Where, in each folder that it searches, the loader first looks for what is made for better processors: now, and
before glibc 2.37."""
_LED = re.compile(r"(?:.*/)?glibc-hwcaps(?:/[^/]+)?")
"""Such folders themselves, which may be links."""


def library_findings(pair: Pair) -> Iterator[Finding]:
    """Whatever of serving comes before what training's loader takes."""
    yield from _library_path(pair)
    yield from _loader(pair)
    yield from _better(pair)


def _library_path(pair: Pair) -> Iterator[Finding]:
    """What LD_LIBRARY_PATH leads to, which comes before the system's libraries."""
    one, other = pair.train.entries("LD_LIBRARY_PATH"), pair.serve.entries("LD_LIBRARY_PATH")
    trained, serving = (
        {name: path for it in reversed(folders) for name, path in _libraries(image.tree, it)}
        for folders, image in ((one, pair.before), (other, pair.after))
    )
    known = _by_name(pair.before.tree, serving.keys())
    found = [path for name, path in serving.items() if not _is_trainings(pair, trained.get(name), known[name], path)]
    lost = sorted(it for it in one if it not in other and any(_libraries(pair.after.tree, it)))
    values = (":".join(one) or "not set", ":".join(other) or "not set")
    if found:
        system = any(_SYSTEM.fullmatch(it) for path in found for it in known[posixpath.basename(path)])
        says = f"by LD_LIBRARY_PATH serving loads {names_of(sorted(found))} in place of training's"
        todo = "leave these folders off LD_LIBRARY_PATH"
        yield fault("LD_LIBRARY_PATH", says, todo, severity="error" if system else "warning", values=values)
    elif lost:
        says = f"serving's LD_LIBRARY_PATH lacks {', '.join(lost)}"
        todo = "give serving the LD_LIBRARY_PATH of training"
        yield fault("LD_LIBRARY_PATH", says, todo, severity="warning", values=values)


def _is_trainings(pair: Pair, trained: str | None, known: list[str], path: str) -> bool:
    """Whether a library of serving is the one that training loads under that name, or one that it has not."""
    new = node_at(pair.after.tree, path)
    those = [trained] if trained else known
    return not those or any(equal(node_at(pair.before.tree, it), new) for it in those)


def _libraries(tree: Tree, folder: str) -> Iterator[tuple[str, str]]:
    real = resolve(tree, folder)
    found = [it for it, node in tree.items() if node.kind in ("file", "link") and LIBRARY.fullmatch(it)] if real else []
    there = [it for it in found if real in (f"/{posixpath.dirname(it)}", f"/{_folder(it)}")]
    # the last one of a name is kept
    for path in sorted(there, key=_is_better):
        yield posixpath.basename(path), path


def _folder(path: str) -> str:
    """The folder by which the loader finds a library."""
    return _BETTER.sub("", posixpath.dirname(path))


def _is_better(path: str) -> bool:
    return _folder(path) != posixpath.dirname(path)


def _by_name(tree: Tree, names: Collection[str]) -> defaultdict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, node in tree.items():
        if node.kind != "directory" and LIBRARY.fullmatch(path) and (name := posixpath.basename(path)) in names:
            found[name].append(path)
    return found


def _better(pair: Pair) -> Iterator[Finding]:
    """Libraries for better processors that serving has beside training's of the same names."""
    new = [it for it in pair.after.tree if LIBRARY.fullmatch(it) and _is_better(it) and pair.is_new(it)]
    known = _by_name(pair.before.tree, {posixpath.basename(it) for it in new})
    found = sorted(path for path in new if any(_beside(path, it) for it in known[posixpath.basename(path)]))
    tree = pair.after.tree.items()
    found += (it for it, node in tree if node.kind == "link" and _LED.fullmatch(it) and pair.is_new(it))
    if found:
        says = f"on processors that can, serving loads {names_of(found)} in place of training's"
        yield fault("loader hwcaps", says, "remove it from serving, or have it in training too")


def _beside(path: str, other: str) -> bool:
    """Whether the loader finds both by one folder; those of the system count as one."""
    return _folder(path) == _folder(other) or bool(_SYSTEM.fullmatch(path) and _SYSTEM.fullmatch(other))


def _loader(pair: Pair) -> Iterator[Finding]:
    """What the loader is configured by, beside variables."""
    old, new = (image.tree.get(_PRELOADED) for image in (pair.before, pair.after))
    if not equal(old, new):
        says = f"/{_PRELOADED} is {'another' if old and new else 'there' if new else 'not there'} in serving"
        yield fault("loader preload", says, "remove it from serving, or have it in training too")
    changed = sorted(path for path in pair.after.tree if _CONF.fullmatch(path) and pair.is_new(path))
    if changed:
        says = f"serving configures the loader by {names_of(changed)}, as training does not"
        todo = "install libraries in the training image, or load them by their paths"
        yield fault("loader configuration", says, todo, severity="warning")
    moved = sorted(_moved(pair))
    if moved:
        system = all(_SYSTEM.fullmatch(it[1:]) for _, it in moved)
        says = f"by /etc/ld.so.cache serving loads {', '.join(f'{path} as {name}' for name, path in moved[:5])}"
        todo = "leave that folder out of /etc/ld.so.conf, and run ldconfig"
        yield fault("loader cache", says, todo, severity="warning" if system else "error")


def _moved(pair: Pair) -> Iterator[tuple[str, str]]:
    """What the loader's cache gives for names that training's has too, where it is another file in another place."""
    before, after = pair.caches
    for name in before.keys() & after.keys():
        places = resolve(pair.before.tree, before[name]), resolve(pair.after.tree, after[name])
        one, other = node_at(pair.before.tree, before[name][1:]), node_at(pair.after.tree, after[name][1:])
        if None not in places and places[0] != places[1] and not equal(one, other):
            yield name, after[name]
