"""The Python environment of an image: distributions by their RECORDs, the interpreter's files and the C library."""

import json
import posixpath
import re
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from csv import Error
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, reduce
from typing import TypeVar

from packaging.utils import canonicalize_name

from envbuild.capture.distributions import record_content
from envbuild.capture.files import decoded
from envbuild.diff.layers import BYTECODE, Package, Packages, rows
from envbuild.errors import counted
from envbuild.files import data_folder
from envbuild.lock.dependencies import find_needed, marker_environment
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import Target
from envbuild.match.profiles import read_profile, read_toml
from envbuild.match.run import CUDA_WHEEL, JAX_PLUGIN
from envbuild.oci.image import Image
from envbuild.oci.rootfs import IMPLIED, Node, Overlay, Tree, over, resolve
from envbuild.recipe import SLIM_FILES_LABEL, SLIM_LABEL
from envbuild.verify.findings import Finding
from envbuild.verify.sources import frameworks_of
from envbuild.wheel.install import FilePattern, read_record, write_record

T = TypeVar("T")
LIBRARY = re.compile(r"(?:.*/)?[^/]+\.so[.\d]*")
_INFO = re.compile(r"((?:(.*)/)?((?:site|dist)-packages)/([^/-]+)-([^/]+)\.dist-info)/(METADATA|RECORD)")
"""dist-info directly in site-packages; below it are copies that a distribution has of others for itself."""
_SITE = re.compile(r"(?:.*/)?(?:site|dist)-packages/(?!.*\.dist-info/).*")
_INTERPRETER = re.compile(
    r"(?:.*/)?(?:bin/python3?[\d.]*|lib(?:64)?/(?:[\w-]+/)?libpython3[^/]*|lib(?:64)?/python3(?:\.\d+)?/(?!(?:site|dist)-packages/).+)"
)
_LIBC = re.compile(r"(?:usr/)?lib(?:64)?/(?:[\w-]+/)?(?:lib(?:c|m)(?:-2\.\d+)?\.so[.\d]*|ld-(?:linux|musl)[^/]*)")
INSTALLERS = frozenset({"pip", "setuptools", "uv", "wheel"})
"""Distributions that only install others."""
_SYSTEM_FOLDERS = frozenset({"usr", "lib", "lib32", "lib64", "bin", "sbin", "opt", "etc"})
_CUDA_ONLY = re.compile(r"nvidia-.+|triton|pytorch-triton|cuda-.+")
_SHOWN = 5
_WHY = "what imports one of them all the same fails there, or silently does without"
_TODO = "nothing if the golden sample agrees in the slim image; else build serving without --slim"


@dataclass(slots=True, kw_only=True)
class Distribution:
    """One distribution, as all its dist-info folders in an image describe it."""

    versions: set[str] = field(default_factory=set)
    contents: set[str | None] = field(default_factory=set)
    """Digests of what each RECORD lists; None for a folder without a readable one."""
    changed: set[tuple[str, bytes]] = field(default_factory=set)
    """Path in site-packages and digest of each file that is not as RECORD has it; no digest for a missing one."""
    records: list[str] = field(default_factory=list)
    """Their RECORDs, as text."""
    sites: set[str] = field(default_factory=set)
    metadata: str = ""
    layer: str = ""
    """The blob of the highest layer that has its metadata."""

    @property
    def version(self) -> str:
        """Its version; several where it is there more than once."""
        return ", ".join(sorted(self.versions))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A distribution of training that serving has in another version, with other files, or not at all."""

    name: str
    before: str
    after: str
    """Empty where serving does not have it."""
    layer: str

    def __str__(self) -> str:
        if not self.after:
            return f"{self.name} {self.before} is missing"
        place = f" in layer {self.layer}" if self.layer else ""
        if self.before == self.after:
            return f"{self.name} {self.before} has other files{place}"
        return f"{self.name} {self.before} -> {self.after}{place}"


class Environment:
    """The files of an image, and the distributions among them."""

    def __init__(self, layers: Sequence[tuple[str, Overlay]]) -> None:
        self.tree: Tree = {"": IMPLIED} | reduce(over, (it for _, it in layers), Overlay()).nodes
        self.distributions: dict[str, Distribution] = {}
        self.packages = Packages(self.tree)
        for path, node in self.tree.items():
            if node.kind == "file" and (match := _INFO.fullmatch(path)):
                found = self.distributions.setdefault(canonicalize_name(match[4]), Distribution())
                found.versions.add(match[5])
                found.sites.add(posixpath.dirname(match[1]))
                found.layer = next((blob for blob, it in reversed(layers) if path in it.nodes), found.layer)
                if match[6] == "METADATA":
                    found.metadata = decoded(node.text)
                else:
                    found.records.append(decoded(node.text))
                    found.contents.add(record_content(decoded(node.text)))
                    self._read_record(path, node, found)

    def _read_record(self, record: str, node: Node, found: Distribution) -> None:
        site = posixpath.dirname(posixpath.dirname(record)) + "/"
        with suppress(Error):
            for path, digest, _ in rows(record, node.text):
                if digest.startswith("sha256=") and path.startswith(site) and not BYTECODE.fullmatch(path):
                    there = node_at(self.tree, path)
                    content = there.sha256 if there else b""
                    if urlsafe_b64encode(content).rstrip(b"=").decode() != digest[7:].rstrip("="):
                        found.changed.add((path.removeprefix(site), content))

    @property
    def versions(self) -> dict[str, str | None]:
        """Versions by the names of distributions."""
        return {name: it.version for name, it in self.distributions.items()}

    def owns(self, path: str) -> bool:
        """Whether a distribution or a Debian package lists a file."""
        return self.packages.owner(path) is not None


def node_at(tree: Tree, path: str) -> Node | None:
    """What a path without the leading slash leads to, links followed; None where it leads nowhere."""
    node = tree.get(path)
    if node is not None and node.kind == "file":
        return node
    real = resolve(tree, f"/{path}")
    return tree.get(real[1:]) if real else None


def same_content(one: Node | None, other: Node | None) -> bool:
    """Whether both are missing, or have the same content, or are the same link."""
    return one is other or bool(
        one and other and (one.kind, one.sha256, one.target) == (other.kind, other.sha256, other.target)
    )


def is_outside(overlay: Overlay, places: Sequence[str]) -> bool:
    """Whether a layer leaves Python's environments and the system alone, as a program in /app does.

    `places` are files and folders that variables name, without the leading slash. A layer that removes files is not
    outside.
    """
    if overlay.emptied or overlay.hidden - overlay.nodes.keys() - overlay.borrowed.keys():
        return False
    patterns = (_INFO, _SITE, _INTERPRETER, LIBRARY)
    for path in (*(path for path, node in overlay.nodes.items() if node.kind != "directory"), *overlay.borrowed):
        if path.partition("/")[0] in _SYSTEM_FOLDERS or ".dist-info/" in path:
            return False
        if any(pattern.fullmatch(path) for pattern in patterns):
            return False
        if any(not it or path == it or path.startswith(f"{it}/") or it.startswith(f"{path}/") for it in places):
            return False
    return True


def changed_packages(before: Environment, after: Environment) -> Iterator[PackageChange]:
    """Training's distributions whose version, RECORD or files differ in serving; bytecode and scripts do not count."""
    for name, old in before.distributions.items():
        new = after.distributions.get(name, Distribution())
        if (old.versions, old.contents, old.changed) != (new.versions, new.contents, new.changed):
            layer = new.layer or old.layer
            yield PackageChange(name=name, before=old.version, after=new.version, layer=layer)


def gpu_changes(changes: Sequence[PackageChange], before: Environment, after: Environment) -> tuple[PackageChange, ...]:
    """What differs because training was for a GPU and serving is not: CUDA's wheels and the framework's own build."""
    one, other = frameworks_of(before.versions), frameworks_of(after.versions)
    if one.variant != "gpu" or other.variant == "gpu":
        return ()
    there = {it.name: public(it.version) for it in other.frameworks}
    builds = {it.distribution for it in one.frameworks if there.get(it.name) == public(it.version)}
    gone = (_CUDA_ONLY.fullmatch, CUDA_WHEEL.match, JAX_PLUGIN.match)
    return tuple(
        it
        for it in changes
        if it.name in builds
        or (it.before != it.after and public(it.before) == public(it.after))  # another local label
        or (not it.after and any(match(it.name) for match in gone))
    )


def public(version: str) -> str:
    """Return a version without its local label (PEP 440)."""
    return version.partition("+")[0]


def changed_interpreter(before: Environment, after: Environment) -> list[str]:
    """Files of Python and its standard library that differ in serving, also where a link of both leads."""
    return [path for path in before.tree if _INTERPRETER.fullmatch(path) and _differs(path, before.tree, after.tree)]


def changed_site_files(before: Environment, after: Environment) -> list[str]:
    """Files in site-packages that no distribution lists, such as `.pth` files, and that differ in serving."""
    loose = (path for path in before.tree if _SITE.fullmatch(path) and not before.owns(path))
    return [path for path in loose if _differs(path, before.tree, after.tree)]


def _differs(path: str, before: Tree, after: Tree) -> bool:
    node = before[path]
    if node.kind == "directory" or "__pycache__" in path:
        return False
    return path not in after or not same_content(node_at(before, path), node_at(after, path))


def changed_libc(before: Environment, after: Environment) -> str:
    """How the C library differs: `libc6 2.36-9 -> 2.36-10`; empty where it does not."""
    paths = [path for path in before.tree if _LIBC.fullmatch(path) and _differs(path, before.tree, after.tree)]
    one, other = (it.packages.version(Package("debian", "libc6")) for it in (before, after))
    if one != other:
        return f"libc6 {one or 'unknown'} -> {other or 'unknown'}"
    return f"the C library ({list_paths(paths)})" if paths else ""


def list_paths(paths: Sequence[str], shown: int = 3) -> str:
    """The first of some paths, and how many more there are."""
    more = f" and {len(paths) - shown} more" if len(paths) > shown else ""
    return ", ".join(f"/{posixpath.normpath(path)}" for path in paths[:shown]) + more


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names of distributions that only training uses."""

    name: str
    """A shell pattern of normalised names."""
    why: str


@dataclass(frozen=True, slots=True)
class _Group:
    why: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileRule:
    """One kind of files that no program opens when a model is served."""

    name: str
    why: str
    files: tuple[str, ...]
    """Shell patterns of their names."""
    folders: tuple[str, ...] = ()
    """Names of folders, one of which they lie in; empty for any folder."""
    unless: tuple[str, ...] = ()
    """Shell patterns of distributions; in an environment with one of these the rule does not apply."""

    @property
    def pattern(self) -> FilePattern:
        """Which files these are."""
        return FilePattern(self.files, self.folders)


@cache
def training_only() -> tuple[Pattern, ...]:
    """The distributions that `profiles/slim.toml` lists; MatchError where it cannot be read."""
    groups = _read_slim_profile("training_only", tuple[_Group, ...])
    return tuple(Pattern(name, it.why) for it in groups for name in it.names)


@cache
def file_rules() -> tuple[FileRule, ...]:
    """The rules for files that `profiles/slim.toml` lists; MatchError where it cannot be read."""
    return _read_slim_profile("file_rule", tuple[FileRule, ...])


def _read_slim_profile(key: str, kind: type[T]) -> T:
    path = data_folder("profiles") / "slim.toml"
    found: T = read_profile(path, read_toml(path), key, kind)
    return found


def listed(names: Iterable[str], patterns: Collection[Pattern]) -> dict[str, str]:
    """Those of the names that the list has, each with its reason."""
    found = ((name, next((it.why for it in patterns if fnmatchcase(name, it.name)), "")) for name in names)
    return {name: why for name, why in found if why}


def slim_changes(
    changes: Iterable[PackageChange], before: Environment, after: Environment, serve: Image
) -> tuple[PackageChange, ...]:
    """What an image whose label says that it is slim may lack.

    That is what nothing in it requires, and what is on the list or required only by what is on it and left out too.
    """
    config = json.loads(serve.config)
    if not _labels(serve).get(SLIM_LABEL):
        return ()
    missing = {it.name: it for it in changes if not it.after}
    machine = "aarch64" if config.get("architecture") == "arm64" else "x86_64"
    sites = (site for it in before.distributions.values() for site in it.sites)
    pythons = Counter(filter(None, (site.partition("/lib/python")[2].partition("/")[0] for site in sites)))
    python = pythons.most_common(1)[0][0] if pythons else "3"
    markers = marker_environment(Target(python=python, machine=machine, glibc=""))
    both = {**before.distributions, **after.distributions}
    declared = {name: requirements_of(it.metadata) for name, it in both.items() if it.metadata}
    strict = listed(missing, training_only())
    gone = missing.keys() - find_needed(after.distributions, declared, markers, strict)
    names = gone & find_needed([name for name in strict if name in gone], declared, markers, strict)
    return tuple(it for name, it in missing.items() if name in names)


def trimmed_packages(
    changes: Iterable[PackageChange], before: Environment, after: Environment, serve: Image
) -> tuple[PackageChange, ...]:
    """What differs only in files that the image leaves out by the rules that its label names."""
    patterns = [it.pattern for it in file_rules() if it.name in slim_files(serve)]

    def is_trimmed(change: PackageChange) -> bool:
        old, new = (it.distributions.get(change.name, Distribution()) for it in (before, after))
        there = {row.path for text in new.records for row in read_record(text)}

        def stays(path: str) -> bool:
            # An earlier release of envbuild may have had fewer patterns.
            return path in there or not any(it.matches(path) for it in patterns)

        left = (write_record(row for row in read_record(text) if stays(row.path)) for text in old.records)
        contents = {record_content(it.decode()) for it in left}
        changed = {it for it in old.changed if stays(it[0])}
        return (old.versions, contents, changed) == (new.versions, new.contents, new.changed)

    return tuple(it for it in changes if patterns and is_trimmed(it))


def slim_files(image: Image) -> tuple[str, ...]:
    """The names of the rules by which an image leaves out files, as its label has them."""
    return tuple(filter(None, _labels(image).get(SLIM_FILES_LABEL, "").split(",")))


def _labels(image: Image) -> dict[str, str]:
    return (json.loads(image.config).get("config") or {}).get("Labels") or {}


def slim_finding(
    packages: Sequence[PackageChange], trimmed: Sequence[PackageChange] = (), rules: Sequence[str] = ()
) -> Finding:
    """The warning about what a slim image lacks: distributions, and files of the `trimmed` ones by these rules."""
    those = tuple(f"{it.name} {it.before}" for it in packages)
    more = f" and {len(those) - _SHOWN} more" if len(those) > _SHOWN else ""
    names = f"{counted(len(those), 'distribution')} that only training uses: {', '.join(those[:_SHOWN])}{more}"
    files = f"{', '.join(rules)} of {counted(len(trimmed), 'distribution')}"
    without = "; and without ".join([*([names] if those else []), *([files] if trimmed else [])])
    return Finding(
        about="slim", rule="shared-slim", agrees=False, severity="warning", says=f"serving is slim, without {without}",
        why=_WHY, todo=_TODO, packages=those,
    )  # fmt: skip
