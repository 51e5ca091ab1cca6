"""What lies in a base: interpreter, C library, machine."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from envbuild.base.facts import Facts, KnownFacts
from envbuild.base.tree import Tree, read_tree, resolve
from envbuild.errors import BaseError
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES
from envbuild.recipe import PREFIX

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def inspect(image: Image, name: str, machine: str, known: KnownFacts) -> Facts:
    """Return what lies in the base; its layers are read only where nobody did so before.

    BaseError when there is no Python, no glibc, another machine, or an /opt that the environment would change.
    """
    _check_machine(image, name, machine)
    if found := known.facts(image.digest):
        return found
    facts = _inspect(image, name)
    known.remember(image.digest, facts)
    return facts


def _unfit(name: str, why: str) -> BaseError:
    todo = "use --base debian:SUITE, an official python image, or a base built from Dockerfile.base"
    return BaseError(f"the base cannot carry the environment: {why}", where=name, todo=todo)


def _config(image: Image, name: str) -> dict[str, Any]:
    try:
        config = json.loads(image.config)
        return {"architecture": config["architecture"], "os": config["os"], **(config.get("config") or {})}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BaseError("the base's config is not one of an image", where=name, todo="give another --base") from error


def _check_machine(image: Image, name: str, machine: str) -> None:
    config = _config(image, name)
    found, wanted = f"{config['os']}/{config['architecture']}", f"linux/{ARCHITECTURES.get(machine, machine)}"
    if found != wanted:
        raise _unfit(name, f"it is for {found}, the environment for {wanted}")


def _inspect(image: Image, name: str) -> Facts:
    tree = read_tree(image, name)
    _check_room(tree, name)
    variables = _variables(_config(image, name).get("Env"))
    path = _interpreter(tree, variables, name)
    python = _python_version(tree, path, variables)
    if python is None:
        raise _unfit(name, f"the exact version of {path} cannot be read from it")
    return Facts(
        python=python,
        glibc=_glibc(tree, name),
        python_path=path,
        distribution=_distribution(tree),
        interpreter=_identity(tree, path),
    )


def _check_room(tree: Tree, name: str) -> None:
    """The environment's layers bring /opt as a plain directory: they must not change the base's."""
    top = posixpath.dirname(PREFIX)
    node = tree.get(top[1:])
    if node and (node.kind, node.mode, node.owner) != ("directory", 0o755, (0, 0)):
        why = f"its {top} is a {node.kind} of mode {node.mode:04o} and owner {node.owner[0]}:{node.owner[1]}"
        raise _unfit(name, f"{why}, and the environment's layers would make it a directory of mode 0755 and owner 0:0")
    if PREFIX[1:] in tree:
        raise _unfit(name, f"it has an {PREFIX} already, whose files would become part of the environment")


def _variables(entries: object) -> dict[str, str]:
    return dict(str(entry).partition("=")[::2] for entry in entries) if isinstance(entries, list) else {}


def _interpreter(tree: Tree, variables: Mapping[str, str], name: str) -> str:
    found = []
    for folder in _search_path(variables):
        path = resolve(tree, f"{folder}/python3")
        if path is None or tree[path[1:]].kind != "file":
            continue
        if re.fullmatch(r"python3\.\d+", posixpath.basename(path)):
            return path
        found.append(path)
    raise _unfit(name, f"its {found[0]} is not named python3.X" if found else "it has no python3 on its PATH")


def _search_path(variables: Mapping[str, str]) -> Iterator[str]:
    for folder in [*variables.get("PATH", _DEFAULT_PATH).split(":"), "/usr/local/bin", "/usr/bin"]:
        if folder.startswith("/"):
            yield folder.rstrip("/")


def _python_version(tree: Tree, path: str, variables: Mapping[str, str]) -> str | None:
    """What the interpreter, or the shared library of the same installation, says; else what an official image says."""
    if tree[path[1:]].version:
        return tree[path[1:]].version
    minor = posixpath.basename(path).removeprefix("python")
    said = [tree[place].version for place in _libraries(tree, path) if tree[place].version]
    official = variables.get("PYTHON_VERSION", "") if path.startswith("/usr/local/bin/") else ""
    said += [official] if re.fullmatch(rf"{re.escape(minor)}\.\d+", official) else []
    return said[0] if said else None


def _libraries(tree: Tree, path: str) -> list[str]:
    """The interpreter's own shared library, in the same installation."""
    minor = posixpath.basename(path).removeprefix("python")
    root = posixpath.dirname(posixpath.dirname(path))
    library = re.compile(rf"{re.escape(root[1:])}/lib(?:64)?/(?:[\w-]+/)?libpython{re.escape(minor)}\.so[.\d]*")
    return sorted(place for place in tree if library.fullmatch(place))


def _identity(tree: Tree, path: str) -> str:
    """Builds differ in their bytes, as an interpreter has the day of its build in it."""
    contents = [tree[place].sha256 for place in (path[1:], *_libraries(tree, path))]
    return sha256("\n".join(contents).encode()).hexdigest()


def _distribution(tree: Tree) -> str:
    path = resolve(tree, "/etc/os-release") or resolve(tree, "/usr/lib/os-release")
    said = tree[path[1:]].version if path else ""
    return "".join(letter for letter in said if letter.isprintable())


def _glibc(tree: Tree, name: str) -> str:
    for path, node in sorted(tree.items()):
        if node.version and posixpath.basename(path).startswith("libc"):
            return node.version
    if any(posixpath.basename(path).startswith("ld-musl-") for path in tree):
        raise _unfit(name, "it has musl, and the wheels need glibc")
    raise _unfit(name, "it has no glibc that can be recognised")
