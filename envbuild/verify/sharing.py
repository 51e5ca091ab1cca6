"""Whether a serving image has the environment of its training image: by its layers, else by what both have.

Also what serving's variables and files put before the modules that training imports and the libraries that it loads
(CPython's "Command line and environment" and its `site` module, PEP 405, PEP 552, and ld.so(8)).
"""

import json
import posixpath
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from envbuild.capture.files import decoded
from envbuild.diff.layers import LayerReader, Report, is_of, is_unchecked
from envbuild.image.config import OURS
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, history_lines
from envbuild.oci.rootfs import Overlay, Tree, resolve
from envbuild.recipe import SLIM_LABEL
from envbuild.verify.environment import (
    INSTALLERS,
    LIBRARY,
    Environment,
    PackageChange,
    changed_interpreter,
    changed_libc,
    changed_packages,
    changed_site_files,
    gpu_changes,
    is_outside,
    list_paths,
    node_at,
    public,
    same_content,
    slim_changes,
    slim_files,
    slim_finding,
    trimmed_packages,
)
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.sources.image import DEFAULT_PATH, model_place

_WHOLE: Mapping[str, Severity] = {
    "PYTHONHOME": "error",
    "PYTHONPLATLIBDIR": "error",
    "PYTHONUSERBASE": "warning",
    "PYTHONSTARTUP": "warning",
    "PYTHONPYCACHEPREFIX": "warning",
    "LD_PRELOAD": "error",
    "LD_AUDIT": "error",
}
"""Variables of which any other value matters; a start-up file is read by interactive sessions alone."""
_SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
_WHY_FOUND_FIRST = "serving can import or load another file than training did, and predictions can differ"
_ALLOCATOR = re.compile(r"lib(?:tcmalloc|jemalloc|mimalloc)[^/]*\.so[.\d]*")
_ROOT = re.compile(r"((?:.*/)?)(lib(?:64)?/python3(?:\.\d+)?)(?:/(?:(?:site|dist)-packages|lib-dynload))?/(?=[^/])")
"""A folder that a Python searches; the longest one that a path begins with."""
_HOOK = re.compile(r"[^/]+\.pth|(?:site|user)customize(?:\.[^/]+|/__init__\.[^/]+)")
_LANDMARK = re.compile(r"(?:.*/)?(?:lib(?:64)?/python3\d+\.zip|bin/(?:python[\d.]*\._pth|pybuilddir\.txt))")
"""What CPython's `getpath` looks for beside the standard library and the program."""
_VIRTUALENV = "_virtualenv.pth"
"""virtualenv and uv put it into each environment."""
_MODULE = re.compile(r"(?:(?:.*/)?([^/.]+)/__init__|(?:.*/)?([^/.]+))(?:\.[\w-]+)?\.(?:py|pyc|so)")
_SOURCE = re.compile(r"(?<!__pycache__)/[^/]+\.(?:py|pyc|so)$")
_COMMON = frozenset({"test", "tests", "doc", "docs", "examples", "scripts", "benchmarks"})
"""Names that many projects have, and by which none imports another's code."""
_PROGRAM = re.compile(r"(?:.*/)?bin/python3?[\d.]*")
_PYC = re.compile(r"((?:.*/)?)__pycache__(?:/([^./]+)\.(?:[^/]+\.)?pyc)?")
_LOADER = re.compile(
    r"(?P<preload>etc/ld\.so\.preload)|(?P<configuration>etc/ld\.so\.conf(?:\.d/[^/]+\.conf)?)"
    r"|(?P<hwcaps>(?:usr/)?lib(?:32|64)?/(?:[\w-]+/)?(?:glibc-hwcaps|tls|haswell|x86_64)(?:/.+)?)"
)
_EFFECTS = {
    "startup": "Python reads whenever it starts",
    "modules": "Python can import instead of training's modules",
    "loader preload": "is loaded before all libraries",
    "loader hwcaps": "newer processors load instead of training's libraries",
    "loader configuration": "changes where libraries are found",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The variables of an image's config, and the folder where programs start."""

    variables: Mapping[str, str]
    folder: str

    @classmethod
    def of(cls, image: Image) -> "Settings":
        """Read them from a config."""
        config = json.loads(image.config).get("config") or {}
        variables = dict(str(it).partition("=")[::2] for it in config.get("Env") or ())
        return cls(variables=variables, folder=str(config.get("WorkingDir") or "/"))

    def entries(self, name: str) -> tuple[str, ...]:
        """The folders of a search path, absolute and in their order."""
        value = self.variables.get(name, "")
        parts = re.split("[:;]", value) if value else ()
        return tuple(dict.fromkeys(posixpath.normpath(posixpath.join("/", self.folder, it)) for it in parts))

    @property
    def deciding(self) -> tuple[tuple[str, ...], ...]:
        """The values that decide which Python starts, and which modules and libraries it finds."""
        return tuple((self.variables.get(name, ""), *self.entries(name)) for name in (*_WHOLE, *_SEARCHED))

    @property
    def places(self) -> tuple[str, ...]:
        """The files and folders that these variables name, without the leading slash."""
        files = " ".join(self.variables.get(name, "") for name in _WHOLE).replace(":", " ").split()
        return tuple(it.strip("/") for it in (*files, *(it for name in _SEARCHED for it in self.entries(name))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePair:
    """Training and serving image, read."""

    before: Environment
    after: Environment
    train: Settings
    serve: Settings

    def is_new(self, path: str) -> bool:
        """Whether serving has a file at a path that training does not have there, and that no package lists."""
        old, new = self.before.tree.get(path), self.after.tree[path]
        if new.kind == "directory" or (old and same_content(old, new)):
            return False
        return not self.after.owns(path)


def precedence_findings(pair: ImagePair) -> Iterator[Finding]:
    """Everything of serving that comes before, or changes, what training's Python imports and loads."""
    # modules that lie in a folder where a Python looks, and libraries
    modules = {_name_in(path, root) for path in pair.before.tree if (root := _ROOT.match(path))}
    trained = {_module(path) for it in pair.train.entries("PYTHONPATH") for path in _inside(pair.before.tree, it)}
    libraries = {posixpath.basename(path) for path in pair.before.tree if LIBRARY.fullmatch(path)}
    known = (modules | trained | {"sitecustomize", "usercustomize"}) - {*_COMMON, ""}
    yield from _values(pair)
    yield from _program(pair)
    yield from _path(pair, "PYTHONPATH", lambda it: _module(it) in known or it.endswith(".zip"))
    yield from _path(pair, "LD_LIBRARY_PATH", lambda it: posixpath.basename(it) in libraries)
    yield from _home(pair)
    yield from _files(pair, modules)
    yield from _bytecode(pair)


def _finding(
    about: str, says: str, todo: str, severity: Severity = "error", values: tuple[str, str] = ("", "")
) -> Finding:
    rule = "shared-system" if about.startswith(("LD_", "loader")) else "shared-files"
    return Finding(
        about=about, rule=rule, agrees=False, severity=severity, says=says, why=_WHY_FOUND_FIRST, todo=todo,
        wanted=values[0], found=values[1],
    )  # fmt: skip


def _values(pair: ImagePair) -> Iterator[Finding]:
    for name, severity in _WHOLE.items():
        one, other = (it.variables.get(name, "") for it in (pair.train, pair.serve))
        if one != other:
            files = [it for it in re.split(r"[\s:]+", other or one) if it]
            allocator = name == "LD_PRELOAD" and all(_ALLOCATOR.fullmatch(posixpath.basename(it)) for it in files)
            values = (one or "not set", other or "not set")
            says = f"{name} is {values[1]} in serving and {values[0]} in training"
            todo = f"set {name} in serving as in training" if one else f"unset {name} in serving"
            yield _finding(name, says, todo, "warning" if allocator else severity, values)


def _program(pair: ImagePair) -> Iterator[Finding]:
    """Whether PATH leads to training's Python, in the same kind of environment."""
    for name in ("python", "python3"):
        one, other = _first(name, pair.before, pair.train), _first(name, pair.after, pair.serve)
        if one and one != other:
            trees = ((pair.before.tree, one), (pair.after.tree, other))
            program, there = (node_at(tree, path[1:]) if path else None for tree, path in trees)
            home, other_home = (_installation(tree, posixpath.dirname(path)[1:]) for tree, path in trees)
            if home != other_home or not same_content(program, there):
                says = f"{name} is {other or 'not on PATH'} in serving, and {one} in training"
                yield _finding("PATH", says, "begin PATH in serving as in training", values=(one, other or "nothing"))
                return


def _first(name: str, image: Environment, settings: Settings) -> str:
    """The first file of a name on PATH; empty where there is none."""
    paths = (posixpath.join(it, name) for it in settings.entries("PATH") or DEFAULT_PATH.split(":"))
    return next((it for it in paths if (node := node_at(image.tree, it[1:])) and node.kind == "file"), "")


def _path(pair: ImagePair, name: str, hides: Callable[[str], bool]) -> Iterator[Finding]:
    """What a search path leads to instead of training's files, or which folders of training it lacks."""
    one, other = pair.train.entries(name), pair.serve.entries(name)
    values = (":".join(one) or "not set", ":".join(other) or "not set")
    found = [path for it in other for path in _inside(pair.after.tree, it) if hides(path) and pair.is_new(path)]
    lost = [it for it in one if it not in other and any(_inside(pair.after.tree, it))]
    if found:
        says = f"by {name} serving finds {list_paths(sorted(found))} instead of training's files of the same names"
        yield _finding(name, says, f"rename these files, or remove their folders from {name}", values=values)
    elif lost:
        says = f"{name} in serving lacks {', '.join(lost)}"
        yield _finding(name, says, f"set {name} in serving as in training", "warning", values)


def _inside(tree: Tree, folder: str) -> Iterator[str]:
    """Files and links in a folder, `__init__` files and libraries below it; of an archive the archive itself."""
    real = resolve(tree, folder)
    if real and tree[real[1:]].kind == "file":
        yield real[1:]
    start = "" if real in (None, "/") else f"{(real or '')[1:]}/"
    for path, node in tree.items() if real else ():
        if path.startswith(start) and node.kind in ("file", "link"):
            below = path[len(start) :].count("/")
            if not below or (below == 1 and "/__init__." in path) or "/glibc-hwcaps/" in path:
                yield path


def _module(path: str) -> str:
    """The module that a file is, or whose `__init__` it is; empty for other files."""
    match = _MODULE.fullmatch(path)
    return (match[1] or match[2]) if match else ""


def _home(pair: ImagePair) -> Iterator[Finding]:
    """Whether training's environments still belong to the installations of Python that they belonged to."""
    before, after = pair.before.tree, pair.after.tree
    for folder in sorted({posixpath.dirname(it) for it in before if _PROGRAM.fullmatch(it) and it in after}):
        one, other = (_installation(tree, folder) for tree in (before, after))
        if one != other:
            values = (one or "none", other or "none")
            says = f"pyvenv.cfg of /{folder} names {values[1]} in serving and {values[0]} in training"
            yield _finding("pyvenv.cfg", says, "leave training's pyvenv.cfg unchanged, and add none", values=values)
            return


def _installation(tree: Tree, folder: str) -> str:
    """The `home` of a pyvenv.cfg beside the program or one folder above, and whether its packages count."""
    for place in (folder, posixpath.dirname(folder)):
        node = node_at(tree, posixpath.join(place, "pyvenv.cfg"))
        if node and node.kind == "file":
            pairs = [it.partition("=")[::2] for it in decoded(node.text).splitlines()]
            values = {key.strip().lower(): value.strip() for key, value in reversed(pairs)}
            home = resolve(tree, values.get("home", "")) or values.get("home", "") or "no home"
            system = values.get("include-system-site-packages", "true").lower() == "true"
            return f"{home}{' with its packages' if system else ''}"
    return ""


def _name_in(path: str, root: re.Match[str]) -> str:
    """The top-level name of a file below a folder that a Python searches."""
    return path[root.end() :].partition("/")[0].partition(".")[0]


def _files(pair: ImagePair, modules: set[str]) -> Iterator[Finding]:
    """Files that Python reads at its start, modules of training's names, and the loader's configuration."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    before, after = pair.before.tree, pair.after.tree
    for path in after:
        loader, root = _LOADER.fullmatch(path), _ROOT.match(path)
        if not (loader or root or _LANDMARK.fullmatch(path)) or not pair.is_new(path):
            continue
        marker = f"{root[1]}pyvenv.cfg" if root else ""
        if loader:
            found[f"loader {loader.lastgroup}"].append(path)
        elif path in before or (marker in after and marker not in before):
            continue  # a changed file is another finding; the last is an environment that only serving has
        elif not root or _HOOK.fullmatch(path[root.end() :]):
            found["startup"].append(path)
        elif f"{root[1]}{root[2]}" in before and _name_in(path, root) in modules and _SOURCE.search(path):
            found["modules"].append(path)
    preload = "etc/ld.so.preload"
    if preload in before and preload not in after:
        found["loader preload"].append(preload)
    for about, paths in found.items():
        common = about == "startup" and all(posixpath.basename(it) == _VIRTUALENV for it in paths)
        severity: Severity = "warning" if common or about == "loader configuration" else "error"
        says = f"serving adds or changes {list_paths(sorted(paths))}, which {_EFFECTS[about]}"
        yield _finding(about, says, "remove it from serving, or add it to the training image", severity)


def _bytecode(pair: ImagePair) -> Iterator[Finding]:
    """Bytecode that Python takes unchecked for training's modules, and that is not of their sources (PEP 552)."""
    found = []
    for path, node in pair.after.tree.items():
        match = _PYC.fullmatch(path)
        source = f"{match[1]}{match[2]}.py" if match and match[2] else match[1].rstrip("/") if match else ""
        if not source or source not in pair.before.tree or node.kind == "directory":
            continue
        old, there = pair.before.tree.get(path), node_at(pair.after.tree, source)
        if old and same_content(old, node):
            continue
        if node.kind == "link" or (there and is_unchecked(node.stamp) and is_of(node.stamp, there.stamp) is False):
            found.append(path)
    if found:
        says = f"Python runs {list_paths(sorted(found))}, which is not the bytecode of training's modules"
        yield _finding("bytecode", says, "remove it from serving, or compile the sources again")


_SHOWN = 5
_VARIANT = "dev.envbuild.variant"
_DISTRIBUTION = re.compile(r"([a-z\d-]+) (\d\S*)")
"""One of a layer's history line, which names all of its distributions."""
_WHY = "serving computes with other code than the model was trained with, and predictions can differ"
_TODO = "build serving on the training image (FROM it by digest), or both from one lock"
_CPU_WHY = "kernels for the CPU round otherwise than those for the GPU, so the last digits differ"
_CPU_TODO = "run the model's golden sample in the CPU image, or serve with the GPU image"
_SYSTEM_WHY = "another C library can change numbers, and programs may not start with an older one"
_SYSTEM_TODO = "build both images on one base by digest"


def prove_sharing(
    train: Image, serve: Image, report: Report, proven: Container[Digest] = (), on_top: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """Whether serving has all of training's environment, and what it adds.

    Where serving begins with training's layers, only the layers on top are read; all layers are read only if one of
    these, or a variable, can change what training's Python finds. `proven` are the blobs of layers that are known to
    replace no file below, which are not read then, and `on_top` the distributions in them. BuildError for a layer that
    cannot be read or has another diff id than the config says, RegistryError for one that cannot be fetched.
    """
    images = _Images(train, serve)
    unread, added = (
        [it for it in its if it.descriptor.digest not in proven] for its in (images.unproven, images.added)
    )
    reader = LayerReader((*train.layers, *serve.layers, *unread, *added), report)

    def read(layers: Sequence[Layer], name: str) -> list[tuple[str, Overlay]]:
        reader.announce(f"reading {name}'s layers", layers)
        return [(str(it.descriptor.digest), reader.read(it, f"the {name} image")) for it in layers]

    if images.same:
        read(unread, "serving")
        if not images.added:
            return (_sharing(images, f"serving has training's {images.shared} layers, and no other"),)
        if all(is_outside(it, Settings.of(serve).places) for _, it in read(added, "serving")):
            return _sharing(images, f"serving begins with training's {images.shared} layers"), _addition(images, on_top)
    before = Environment(read(train.layers, "training"))
    after = Environment(read(serve.layers, "serving"))
    pair = ImagePair(before=before, after=after, train=Settings.of(train), serve=Settings.of(serve))
    return *_differences(images, before, after), *precedence_findings(pair)


def stands_on(train: Image, serve: Image, name: str, report: Report) -> bool:
    """Whether serving is training's layers, and others that leave Python, the system and the model alone.

    Only those others are read, and training's that are other blobs here; errors as `prove_sharing`.
    """
    images, settings = _Images(train, serve), Settings.of(serve)
    model = model_place(settings.variables, settings.folder).path
    places, reader = (*settings.places, *([model] if model else [])), LayerReader(images.added, report)
    if not images.same:
        return False
    reader.announce("reading layers", (*images.unproven, *images.added))
    reader.joined(images.unproven, name)
    return all(is_outside(reader.read(it, name), places) for it in images.added)


def other_distributions(train: Image, serve: Image) -> tuple[str, ...]:
    """Return what serving's history has in another version than training's, or lacks: `numpy 1.26.4 -> 2.1.0`.

    Only the lines of layers that envbuild made name distributions. A slim image, and one for another variant, lack some
    on purpose; where serving begins with training's layers, it has all.
    """
    one, other = _named_distributions(train), _named_distributions(serve)
    labels, there = ((json.loads(it.config).get("config") or {}).get("Labels") or {} for it in (train, serve))
    whole = SLIM_LABEL not in there and labels.get(_VARIANT) == there.get(_VARIANT)
    changes = (PackageChange(name=name, before=it, after=other.get(name, ""), layer="") for name, it in one.items())
    return tuple(
        str(it)
        for it in changes
        if other and it.name not in INSTALLERS and (public(it.after) != public(it.before) if it.after else whole)
    )


def _named_distributions(image: Image) -> dict[str, str]:
    lines = history_lines(json.loads(image.config), len(image.layers))
    texts = (line.removeprefix(OURS).split(", ") for line in lines if line.startswith(OURS))
    # Debian packages and bytecode have lines that begin otherwise
    found = ([_DISTRIBUTION.fullmatch(text) for text in its] for its in texts)
    return {it[1]: it[2] for its in found if all(its) for it in its if it}


@dataclass(frozen=True, slots=True)
class _Images:
    train: Image
    serve: Image

    @property
    def shared(self) -> int:
        """How many of the lowest layers have the same content by their diff ids."""
        pairs = zip(self.train.layers, self.serve.layers, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0].diff_id == pair[1].diff_id, pairs))

    @property
    def unproven(self) -> tuple[Layer, ...]:
        """The shared layers that are other blobs than training's, as recompressed ones are: reading checks them."""
        pairs = zip(self.train.layers[: self.shared], self.serve.layers, strict=False)
        return tuple(other for one, other in pairs if one.descriptor.digest != other.descriptor.digest)

    @property
    def begins(self) -> bool:
        """Whether serving has all of training's layers below its own."""
        return self.shared == len(self.train.layers)

    @property
    def same(self) -> bool:
        """Whether the same Python starts and finds the same files, unless a layer on top changes them."""
        return self.begins and Settings.of(self.train).deciding == Settings.of(self.serve).deciding

    @property
    def added(self) -> tuple[Layer, ...]:
        return self.serve.layers[self.shared :]

    def __str__(self) -> str:
        if self.begins:
            return f"serving begins with training's {self.shared} layers"
        return f"{self.shared} of training's {len(self.train.layers)} layers are serving's"


def _differences(images: _Images, before: Environment, after: Environment) -> Iterator[Finding]:
    changes = list(changed_packages(before, after))
    gpu, slim = gpu_changes(changes, before, after), slim_changes(changes, before, after, images.serve)
    trimmed = trimmed_packages([it for it in changes if it not in gpu], before, after, images.serve)
    packages = [it for it in changes if it not in (*gpu, *slim, *trimmed) and it.name not in INSTALLERS]
    files = {"python": changed_interpreter(before, after), "site-packages": changed_site_files(before, after)}
    wrong = [*map(str, packages), *(f"{about} ({list_paths(paths)})" for about, paths in files.items() if paths)]
    if wrong:
        first = images.added[0].descriptor.digest if images.added else "none"
        change = "a layer on top changes them" if images.begins else f"the first other one is {first}"
        names = tuple(f"{it.name} {it.before}" for it in packages)
        digests = str(images.train.digest), str(images.serve.digest)
        yield _wrong("layers", "shared-layers", f"{images}, {change}: {list_first(wrong)}", names, digests)
    else:
        same = f"Python and {len(before.distributions) - len(changes)} packages are the same"
        yield _sharing(images, f"{images}, and {'all but what a GPU needs is the same' if gpu else same}")
    for it in packages:
        there = f"{it.after} with other files" if it.before == it.after else it.after or "not there"
        names = tuple(f"{it.name} {version}" for version in dict.fromkeys((it.before, it.after)) if version)
        todo = f"pin {it.name}=={it.before} in serving, or {_TODO}"
        yield _wrong(it.name, "shared-package", str(it), names, (it.before, there), todo)
    for about, paths in files.items():
        if paths:
            says = f"{len(paths)} files of training differ in serving: {list_paths(paths)}"
            yield _wrong(about, "shared-files", says)
    if gpu:
        says = f"training's image is for a GPU and serving's for the CPU: {list_first(list(map(str, gpu)))}"
        yield Finding(
            about="variant", rule="shared-variant", agrees=False, severity="warning", says=says, wanted="gpu",
            found="cpu", why=_CPU_WHY, todo=_CPU_TODO, packages=tuple(f"{it.name} {it.before}" for it in gpu),
        )  # fmt: skip
    system = [
        *(str(it) for it in changes if it.name in INSTALLERS and it not in trimmed),
        *filter(None, (changed_libc(before, after),)),
    ]
    if system:
        yield Finding(
            about="system", rule="shared-system", agrees=False, severity="warning",
            says=f"differs in serving: {list_first(system)}", why=_SYSTEM_WHY, todo=_SYSTEM_TODO,
        )  # fmt: skip
    added = [f"{it} {one.version}" for it, one in after.distributions.items() if it not in before.distributions]
    if images.begins or added:
        yield _addition(images, added)
    if slim or trimmed:
        yield slim_finding(slim, trimmed, slim_files(images.serve))


def _sharing(images: _Images, says: str) -> Finding:
    wanted, found = str(images.train.digest), str(images.serve.digest)
    return Finding(about="layers", rule="shared-layers", agrees=True, says=says, wanted=wanted, found=found)


def _wrong(
    about: str, rule: str, says: str, packages: tuple[str, ...] = (), values: tuple[str, str] = ("", ""), todo: str = ""
) -> Finding:
    return Finding(
        about=about, rule=rule, agrees=False, says=says, wanted=values[0], found=values[1], why=_WHY,
        todo=todo or _TODO, packages=packages,
    )  # fmt: skip


def _addition(images: _Images, packages: Sequence[str]) -> Finding:
    serve = images.serve
    lines = history_lines(json.loads(serve.config), len(serve.layers)) if images.begins else []
    texts = [textwrap.shorten(line.removeprefix("envbuild: "), 80, placeholder=" ...") for line in lines]
    names = [text or str(it.descriptor.digest) for text, it in zip(texts, serve.layers, strict=False)]
    names = names[images.shared :]
    layers = f"{len(names)} layer{'s' if len(names) > 1 else ''} ({list_first(names)})" if names else ""
    what = " and ".join(filter(None, (layers, list_first(packages)))) or "no layer"
    says = f"serving adds {what}"
    return Finding(about="added", rule="shared-added", agrees=True, says=says, packages=tuple(packages))


def list_first(texts: Sequence[str]) -> str:
    """Return the first texts, and how many more there are."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
