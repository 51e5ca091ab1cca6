"""What an image says: its Python, C library and distributions as its layers have them, and its config's variables."""

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from packaging.utils import canonicalize_name

from envbuild.capture.distributions import NAME, VERSION
from envbuild.capture.frameworks import BUILD_INFO, build_info
from envbuild.capture.reading import decoded
from envbuild.diff.pair import Report
from envbuild.errors import BuildError
from envbuild.manifest.model import Framework
from envbuild.oci.image import Image
from envbuild.oci.rootfs import Node, Tree
from envbuild.recipe import SLIM_LABEL
from envbuild.registry.pull import ARCHITECTURES
from envbuild.verify.sides.embedded import model_inside, model_place
from envbuild.verify.sides.frameworks import frameworks_of
from envbuild.verify.sides.inside import files_of
from envbuild.verify.sides.interpreter import Interpreter, Started, interpreter_of
from envbuild.verify.sides.side import Package, Side

_METADATA = re.compile(r"(.*)/([^/]+)\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)")
_GLIBC = re.compile(r"(?:.*/)?libc(?:\.so\.6|-2\.\d+\.so)")
_MUSL = re.compile(r"(?:.*/)?ld-musl-[^/]+")
_INTERPRETER = re.compile(r"(?:.*/)?(?:lib)?python[\d.]*(?:\.so[.\d]*)?")
_SYSTEMS = {"linux": "Linux", "windows": "Windows", "darwin": "Darwin", "freebsd": "FreeBSD"}
"""GOOS, as the image specification has it, in the words of `platform.system()`."""
_VARIANT, _CUDA = "dev.envbuild.variant", "dev.envbuild.cuda"
_MACHINES = {architecture: machine for machine, architecture in ARCHITECTURES.items()}
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    system: str
    architecture: str
    labels: Mapping[str, str]
    started: Started
    folder: str
    """Where programs start."""


def side_of_image(image: Image, name: str, *, machine: str, report: Report) -> Side:
    """Read every layer, in memory that grows with the number of files alone.

    Variables are those of the config; whoever runs the image may add more, and other values. BuildError where config
    or layers cannot be read; RegistryError where they cannot be had.
    """
    config = _config(image, name)
    place = model_place(config.started.variables, config.folder)
    tree = files_of(image.layers, place, name, report)
    python = interpreter_of(tree, config.started)
    packages = _packages(tree, python.sites) if python else None
    built = frameworks_of({it.name: it.version for it in (packages or {}).values()})
    cuda, cudnn = _system_cuda(tree)
    libc, libc_version = _libc(tree)
    system = _SYSTEMS.get(config.system.lower())
    return Side(
        name=name,
        kind="image",
        python=python.version if python else None,
        implementation="cpython" if python else None,
        pythonless=python is None and system == "Linux" and not any(_is_python(*it) for it in tree.items()),
        system=system,
        machine=_MACHINES.get(config.architecture, machine),
        libc=libc,
        libc_version=libc_version,
        packages=packages,
        slim=frozenset(filter(None, config.labels.get(SLIM_LABEL, "").split(","))),
        frameworks=tuple(_as_built(it, tree, python, config.labels) for it in built.frameworks),
        cuda=built.cuda or cuda,
        cudnn=built.cudnn or cudnn,
        variant=_variant(config.labels) or built.variant or ("gpu" if cuda and built.frameworks else None),
        variables=config.started.variables,
        names=frozenset(config.started.variables),
        model=model_inside(tree, place, name),
    )


def _is_python(path: str, node: Node) -> bool:
    """Whether something may be a Python, even one that neither command nor PATH leads to."""
    return node.kind in ("file", "link") and bool(_INTERPRETER.fullmatch(path))


def _config(image: Image, name: str) -> _Config:
    try:
        config = json.loads(image.config)
        inner: Mapping[str, Any] = config.get("config") or {}
        variables = dict(str(it).partition("=")[::2] for it in inner.get("Env") or ())
        command = [str(it) for it in (*(inner.get("Entrypoint") or ()), *(inner.get("Cmd") or ()))]
        return _Config(
            system=str(config["os"]),
            architecture=str(config["architecture"]),
            labels={str(key): str(value) for key, value in (inner.get("Labels") or {}).items()},
            started=Started(variables=variables, command=command, user=str(inner.get("User") or "")),
            folder=str(inner.get("WorkingDir") or "/"),
        )
    except _WRONG as error:
        raise BuildError("the image's config cannot be read", where=name, todo="make the image again") from error


def _packages(tree: Tree, sites: Sequence[str]) -> dict[str, Package]:
    """Each distribution once: the first on the path wins, and in one folder what was installed last."""
    there: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for path, node in tree.items():
        if node.kind == "file" and (match := _METADATA.fullmatch(path)):
            there[match[1]].append((node.mtime, path))
    found: dict[str, Package] = {}
    for site in sites:
        for _, path in sorted(there[site], key=lambda it: (it[0], it[1].endswith("METADATA"), it[1]), reverse=True):
            if package := _package(tree, path):
                found.setdefault(package.name, package)
    return dict(sorted(found.items()))


def _package(tree: Tree, path: str) -> Package | None:
    """The distribution whose metadata lies at a path; None where it tells no valid name or version."""
    head = decoded(tree[path].text).lstrip("\ufeff").split("\n\n", 1)[0]
    fields: dict[str, str] = {}
    for line in head.split("\n"):
        key, _, value = line.partition(":")
        fields.setdefault(key.lower(), value.strip())
    name, version = fields.get("name", ""), fields.get("version", "")
    if not (NAME.fullmatch(name) and VERSION.fullmatch(version)):
        return None
    folder = posixpath.dirname(path)
    return Package(
        name=canonicalize_name(name),
        version=version,
        content=_text(tree, f"{folder}/RECORD") or None,
        build=_text(tree, f"{folder}/direct_url.json"),
    )


def _text(tree: Tree, path: str) -> str:
    node = tree.get(path)
    return node.text.decode(errors="replace") if node else ""


def _as_built(framework: Framework, tree: Tree, python: Interpreter | None, labels: Mapping[str, str]) -> Framework:
    """With what TensorFlow's own file says of its build; of others what envbuild wrote on the image."""
    if framework.name != "tensorflow":
        own = labels.get("dev.envbuild.framework", "").startswith(f"{framework.distribution}==")
        return replace(framework, cuda=framework.cuda or labels.get(_CUDA)) if own else framework
    texts = (_text(tree, f"{site}/{file}") for site in (python.sites if python else ()) for file in BUILD_INFO)
    found = build_info(next(filter(None, texts), ""))
    capabilities = tuple(found.get("compute_capabilities", ()))
    return replace(framework, cuda=found.get("cuda"), cudnn=found.get("cudnn"), compute_capabilities=capabilities)


def _variant(labels: Mapping[str, str]) -> Literal["gpu", "cpu"] | None:
    said = labels.get(_VARIANT)
    return "gpu" if said == "gpu" else "cpu" if said == "cpu" else None


def _libc(tree: Tree) -> tuple[str | None, str | None]:
    for path in sorted(tree):
        if _GLIBC.fullmatch(path) and tree[path].text:
            return "glibc", _text(tree, path)
    return ("musl", None) if any(map(_MUSL.fullmatch, tree)) else (None, None)


def _system_cuda(tree: Tree) -> tuple[str | None, str | None]:
    """CUDA's runtime and cuDNN as Debian packages; the newest where there are several."""
    lines: Iterator[list[str]] = (line.split() for line in _text(tree, "var/lib/dpkg/status").splitlines())
    newest: dict[bool, str] = {}
    for name, version in sorted(lines, key=lambda it: [int(number) for number in it[1].split(".") if number]):
        newest[name.startswith("cuda-cudart")] = version.rstrip(".")
    cudnn = newest.get(False)
    return newest.get(True), ".".join(cudnn.split(".")[:3]) if cudnn else None
