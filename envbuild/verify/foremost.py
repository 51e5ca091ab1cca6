"""What serving's variables and files put before what training's Python imports and its loader loads.

Told from names and contents alone: CPython's "Command line and environment", its `site` module, and ld.so(8).
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from envbuild.oci.rootfs import Tree, resolve
from envbuild.verify.choices import WHOLE, Configured, Pair, fault, same
from envbuild.verify.compiled import foreign_bytecode
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.holdings import Holdings, names_of
from envbuild.verify.homes import home_findings
from envbuild.verify.libraries import library_findings
from envbuild.verify.sides.interpreter import Started, interpreter_of

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ALLOCATOR = re.compile(r"lib(?:tcmalloc|jemalloc|mimalloc)[^/]*\.so[.\d]*")
_HOME = r"((?:.*/)?)lib(?:64)?/python3(?:\.\d+)?"
_ROOT = re.compile(rf"{_HOME}(?:/(?:(?:site|dist)-packages|lib-dynload))?/(?=[^/])")
"""Folders that a Python searches; the longest that a path begins with is taken."""
_HOOK = re.compile(r"[^/]+\.pth|(?:site|user)customize(?:\.[^/]+|/__init__\.[^/]+)")
_MODULE = re.compile(r"((?:[^/.]+/)*[^/.]+?)(?:\.[\w-]+)?\.(?:py|pyc|so)")
_LANDMARK = re.compile(r"(?:.*/)?(?:lib(?:64)?/python3\d+\.zip|bin/(?:python[\d.]*\._pth|pybuilddir\.txt))")
"""What CPython's `getpath` looks for beside the standard library and the program."""
_BYTECODE = re.compile(r"(?:.*/)?__pycache__/[^/]*")
_VIRTUALENV = "_virtualenv.pth"
"""What virtualenv and uv put into each environment, for the settings of distutils."""
_COMMON = frozenset({"test", "tests", "doc", "docs", "examples", "scripts", "benchmarks"})
"""Names that many projects have, and by which nobody imports another's code."""


def foremost_findings(pair: Pair) -> Iterator[Finding]:
    """Whatever of serving comes before, or into, what training's Python imports and loads."""
    yield from _whole_values(pair)
    yield from _program(pair)
    yield from home_findings(pair)
    yield from _hooks(pair)
    yield from _modules(pair)
    yield from _bytecode(pair)
    yield from _python_path(pair)
    yield from _script(pair)
    yield from library_findings(pair)


def _whole_values(pair: Pair) -> Iterator[Finding]:
    for name, severity in WHOLE.items():
        one, other = (it.variables.get(name, "") for it in (pair.train, pair.serve))
        if one != other:
            files = [it for it in re.split(r"[\s:]+", other or one) if it]
            quiet = name == "LD_PRELOAD" and all(_ALLOCATOR.fullmatch(posixpath.basename(it)) for it in files)
            says = f"{name} is {other or 'not set'} in serving, and {one or 'not set'} in training"
            todo = f"give serving the {name} of training" if one else f"leave {name} unset in serving"
            level: Severity = "warning" if quiet else severity
            yield fault(name, says, todo, level, (one or "not set", other or "not set"))


def _program(pair: Pair) -> Iterator[Finding]:
    """Whether PATH finds training's Python, with training's packages."""
    for name in ("python", "python3"):
        one, other = _first(name, pair.before, pair.train), _first(name, pair.after, pair.serve)
        if one is None or one == other:
            continue
        old, new = (
            pair.before.tree[_real(pair.before, one)],
            pair.after.tree[_real(pair.after, other)] if other else None,
        )
        lost = _unseen(pair) if new and same(old, new) else []
        if new and same(old, new) and not lost:
            continue
        what = f", which does not find {', '.join(lost[:5])}" if lost else ""
        says = f"{name} is {other or 'not on PATH'} in serving{what}, and {one} in training"
        yield fault("PATH", says, "begin serving's PATH as training's begins", values=(one, other or "nothing"))
        return


def _first(name: str, image: Holdings, config: Configured) -> str | None:
    folders = config.entries("PATH") or tuple(_DEFAULT_PATH.split(":"))
    return next((path for it in folders if _real(image, path := posixpath.join(it, name))), None)


def _real(image: Holdings, path: str) -> str:
    """Where a file lies without links and leading slash; empty where there is none."""
    found = resolve(image.tree, path)
    return found[1:] if found and image.tree[found[1:]].kind == "file" else ""


def _unseen(pair: Pair) -> list[str]:
    """Distributions that training's Python finds, and which serving has, but not for the Python that it finds."""
    one, other = (
        interpreter_of(image.tree, Started(variables=config.variables))
        for image, config in ((pair.before, pair.train), (pair.after, pair.serve))
    )
    if one is None or other is None:
        return []
    return sorted((pair.before.found_in(one.sites) - pair.after.found_in(other.sites)) & pair.after.versions.keys())


def _hooks(pair: Pair) -> Iterator[Finding]:
    """What Python runs whenever it starts, beside its packages and its standard library."""
    found = [path for path in pair.after.tree if _starts(path) and _searched(pair, path) and pair.is_new(path)]
    # what training has there too is told as a file that differs
    found = sorted(path for path in found if path not in pair.before.tree)
    if found:
        known = all(posixpath.basename(it) == _VIRTUALENV for it in found)
        says = f"serving's Python runs or reads {names_of(found)} whenever it starts, and training's did not"
        yield fault("startup", says, "remove it from serving", severity="warning" if known else "error")


def _starts(path: str) -> bool:
    if _LANDMARK.fullmatch(path):
        return True
    root = _ROOT.match(path)
    return bool(root and _HOOK.fullmatch(path[root.end() :]))


def _searched(pair: Pair, path: str) -> bool:
    """Whether it lies in no environment that serving has for itself."""
    root = _ROOT.match(path)
    marker = f"{root[1]}pyvenv.cfg" if root else ""
    return not (marker in pair.after.tree and marker not in pair.before.tree)


def _modules(pair: Pair) -> Iterator[Finding]:
    """Modules of no package that serving has where training's Python looks, under names that training has."""
    known = _known(pair.before.tree)
    found = []
    for path, node in pair.after.tree.items():
        if node.kind != "directory" and path not in pair.before.tree and (place := _placed(path)):
            shadows = known.get(place, frozenset()) - {path}
            if shadows and _searched(pair, path) and pair.is_new(path) and _same_home(pair, path, shadows):
                found.append(path)
    if found:
        says = f"{names_of(sorted(found))} can be imported in place of training's modules of the same names"
        yield fault("modules", says, "remove them from serving")


def _bytecode(pair: Pair) -> Iterator[Finding]:
    """What Python takes for the code of training's modules without a look at their sources."""
    known = _known(pair.before.tree)
    found = sorted(
        path for path, source in foreign_bytecode(pair) if source in pair.before.tree or _placed(source) in known
    )
    if found:
        says = f"serving's Python runs {names_of(found)}, which is not the bytecode of training's modules there"
        yield fault("bytecode", says, "remove it from serving, or compile the sources that are there")


def _same_home(pair: Pair, path: str, others: frozenset[str]) -> bool:
    """Whether one Python has both: bases can have more than one, and environments have the base's standard library."""
    home = re.match(_HOME, path)
    if home and "-packages/" not in path:
        return home[0] in pair.before.tree
    return any(home and (other := re.match(_HOME, it)) and other[0] == home[0] for it in others)


def _known(tree: Tree) -> Mapping[str, frozenset[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, node in tree.items():
        if node.kind != "directory" and (module := _placed(path)):
            found[module].add(path)
    return {module: frozenset(paths) for module, paths in found.items()}


def _placed(path: str) -> str | None:
    """The module, with slashes, that a file in a searched folder is; None for anything else."""
    root = _ROOT.match(path)
    match = _MODULE.fullmatch(path[root.end() :]) if root and not _BYTECODE.fullmatch(path) else None
    return match[1].removesuffix("/__init__") if match else None


def _python_path(pair: Pair) -> Iterator[Finding]:
    """What PYTHONPATH leads to, which comes before the standard library."""
    one, other = pair.train.entries("PYTHONPATH"), pair.serve.entries("PYTHONPATH")
    shadows = list(_shadows(pair, one, other))
    lost = [it for it in one if it not in other and any(_modules_in(pair.after.tree, it))]
    archives = [it for it in other if it not in one and not it.endswith("/") and _real(pair.after, it)]
    values = (":".join(one) or "not set", ":".join(other) or "not set")
    if shadows:
        says = f"by PYTHONPATH serving imports {names_of(shadows)} in place of what training imports"
        yield fault(
            "PYTHONPATH", says, "give what serving adds names of its own, or leave it off PYTHONPATH", values=values
        )
    elif lost or archives:
        says = f"serving's PYTHONPATH lacks {', '.join(lost)}" if lost else f"{archives[0]} on PYTHONPATH is no folder"
        yield fault("PYTHONPATH", says, "give serving the PYTHONPATH of training", severity="warning", values=values)
    elif one != other and other:
        says = f"PYTHONPATH leads to {', '.join(other)}, where nothing has the name of a module of training"
        yield Finding(
            about="PYTHONPATH", rule="shared-files", agrees=True, says=says, wanted=values[0], found=values[1]
        )


def _script(pair: Pair) -> Iterator[Finding]:
    """What lies beside the program that is started, which comes before everything else.

    A run's own program had such a folder too, which no image has, so that modules there may even be the run's.
    """
    folder = pair.serve.script
    if folder is None or folder in (*pair.serve.entries("PYTHONPATH"), pair.train.script):
        return
    shadows = list(_shadows(pair, pair.train.entries("PYTHONPATH"), (folder,)))
    if shadows:
        says = f"the program, started in {folder}, imports {names_of(shadows)} in place of what training imports"
        yield fault("program", says, "give what lies beside it names of its own", severity="warning")


def _shadows(pair: Pair, one: tuple[str, ...], other: tuple[str, ...]) -> Iterator[str]:
    known = {it.partition("/")[0] for it in _known(pair.before.tree)} - _COMMON
    known |= {"sitecustomize", "usercustomize"} | {name for it in one for name, _ in _modules_in(pair.before.tree, it)}
    trained = {name: path for it in reversed(one) for name, path in _modules_in(pair.before.tree, it)}
    serving = {name: path for it in reversed(other) for name, path in _modules_in(pair.after.tree, it)}
    for name, path in sorted(serving.items()):
        old = pair.before.tree.get(trained.get(name, ""))
        if name in known and not (old and same(old, pair.after.tree[path])) and not _copied(pair, name, path):
            yield path


def _copied(pair: Pair, name: str, path: str) -> bool:
    """Whether it is the very file that training has elsewhere, as where packages moved to a folder of PYTHONPATH."""
    paths = (it for it in pair.before.tree if it.endswith(f"/{posixpath.basename(path)}") and _placed(it) == name)
    return any(same(pair.before.tree[it], pair.after.tree[path]) for it in paths)


def _modules_in(tree: Tree, folder: str) -> Iterator[tuple[str, str]]:
    """Top-level modules of a folder, and their first files."""
    real = resolve(tree, folder)
    start = "" if real in (None, "/") else f"{(real or '')[1:]}/"
    for path, node in tree.items() if real else ():
        if path.startswith(start) and node.kind in ("file", "link") and path.count("/") <= start.count("/") + 1:
            match = _MODULE.fullmatch(path[len(start) :])
            if match and "/" not in (name := match[1].removesuffix("/__init__")):
                yield name, path
