"""Resolving --base: the image that the option names, the facts in its files, and whether it fits the run."""

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any

from packaging.version import Version

from envbuild.base.contents import note_contents
from envbuild.base.debian import debian_base
from envbuild.base.system import read_base_system
from envbuild.cache import read_entry, write_entry
from envbuild.errors import BaseError, RegistryError, UsageError
from envbuild.lock.model import Target
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES, blob_path, read_layout
from envbuild.oci.reference import DOCKER_HUB, Reference, exists, refuse_login, split_digest
from envbuild.oci.rootfs import Tree, read_tree, resolve
from envbuild.recipe import PREFIX, Base
from envbuild.report import Reporter

_FORMAT = 4
"""Raised whenever other facts would be read from the same base."""
_SHAPES = {
    "python": re.compile(r"3\.\d+\.\d+(?:(?:a|b|rc)\d+)?\Z"),
    "glibc": re.compile(r"\d+\.\d+\Z"),
    "python_path": re.compile(r"(?:/[^/\x00-\x20\x7f]+)*/python3\.\d+\Z"),
    "interpreter": re.compile(r"[0-9a-f]{64}\Z"),
    "distribution": re.compile(r"[^\x00-\x1f\x7f]{0,99}\Z"),
}
"""Patterns of valid facts, as these get into an environment's files and on terminals."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts from a base's files."""

    python: str
    """The full version."""
    glibc: str
    python_path: str
    distribution: str
    interpreter: str
    """A digest of the interpreter's own files."""

    def target(self, machine: str) -> Target:
        """Return the target that wheels have to fit."""
        return Target(python=self.python, machine=machine, glibc=self.glibc)


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """Facts of bases that this machine has read before, in a folder."""

    folder: Path

    def facts(self, image: Digest) -> Facts | None:
        """Return the known facts of a base."""
        return read_entry(self.folder, f"{image.hex}-{_FORMAT}.json", _facts)

    def remember(self, image: Digest, facts: Facts) -> None:
        """Keep facts."""
        write_entry(self.folder, f"{image.hex}-{_FORMAT}.json", asdict(facts))

    def mirror_of(self, digest: Digest) -> str:
        """Return the name that a mirrored manifest was copied from; empty if unknown."""
        return read_entry(self.folder, f"{digest.hex}-mirror.json", _name) or ""

    def remember_mirror(self, digest: Digest, name: str) -> None:
        """Keep the name that a mirrored manifest was copied from."""
        write_entry(self.folder, f"{digest.hex}-mirror.json", name)


def _facts(value: Any) -> Facts:
    if value.keys() != _SHAPES.keys() or not all(shape.match(value[key]) for key, shape in _SHAPES.items()):
        raise ValueError("facts of a base are malformed")
    return Facts(**value)


def _name(value: Any) -> str:
    if not re.fullmatch(r"[\w./:-]{1,512}", value):
        raise ValueError("the name of an image is malformed")
    return str(value)


def inspect(image: Image, name: str, machine: str, known: KnownFacts) -> Facts:
    """Return the facts of a base; its layers are read only if the facts are not in the cache.

    BaseError if it has no Python, no glibc, another machine, or an /opt that the environment would change.
    """
    try:
        config = json.loads(image.config)
        config = {"architecture": config["architecture"], "os": config["os"], **(config.get("config") or {})}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BaseError("the base's config is malformed", where=name, todo="give another --base") from error
    platform, expected = f"{config['os']}/{config['architecture']}", f"linux/{ARCHITECTURES.get(machine, machine)}"
    if platform != expected:
        raise _unfit(name, f"it is for {platform}, the environment for {expected}")
    if found := known.facts(image.digest):
        return found
    facts = _inspect(image, config, name)
    known.remember(image.digest, facts)
    note_contents(image, read_tree(image, name), known.folder)
    read_base_system(image, name, known.folder)  # while its tree is in memory
    return facts


def _unfit(name: str, why: str) -> BaseError:
    todo = "use --base debian:SUITE, an official python image, or a base built from Dockerfile.base"
    return BaseError(f"the base does not fit the environment: {why}", where=name, todo=todo)


def _inspect(image: Image, config: Mapping[str, Any], name: str) -> Facts:
    tree = read_tree(image, name)
    _check_room(tree, name)
    entries = config.get("Env")
    variables = dict(str(entry).partition("=")[::2] for entry in entries) if isinstance(entries, list) else {}
    path = _interpreter(tree, variables, name)
    python = _python_version(tree, path, variables)
    if python is None:
        raise _unfit(name, f"the exact version of {path} cannot be read from it")
    contents = [tree[place].sha256.hex() for place in (path[1:], *_libraries(tree, path))]
    release = resolve(tree, "/etc/os-release") or resolve(tree, "/usr/lib/os-release")
    distribution = tree[release[1:]].version if release else ""
    return Facts(
        python=python,
        glibc=_glibc(tree, name),
        python_path=path,
        distribution="".join(letter for letter in distribution if letter.isprintable()),
        interpreter=sha256("\n".join(contents).encode()).hexdigest(),
    )


def _check_room(tree: Tree, name: str) -> None:
    """Refuse a base whose /opt the environment's layers would change, as they have it as a plain directory."""
    top = posixpath.dirname(PREFIX)
    node = tree.get(top[1:])
    if node and (node.kind, node.mode, node.owner) != ("directory", 0o755, (0, 0)):
        why = f"its {top} is a {node.kind} of mode {node.mode:04o} and owner {node.owner[0]}:{node.owner[1]}"
        raise _unfit(name, f"{why}, and the environment's layers would make it a directory of mode 0755 and owner 0:0")
    if PREFIX[1:] in tree:
        raise _unfit(name, f"it has an {PREFIX} already, whose files would become part of the environment")


def _interpreter(tree: Tree, variables: Mapping[str, str], name: str) -> str:
    found, folders = [], [*variables.get("PATH", _DEFAULT_PATH).split(":"), "/usr/local/bin", "/usr/bin"]
    for folder in (it.rstrip("/") for it in folders if it.startswith("/")):
        path = resolve(tree, f"{folder}/python3")
        if path is None or tree[path[1:]].kind != "file":
            continue
        if re.fullmatch(r"python3\.\d+", posixpath.basename(path)):
            return path
        found.append(path)
    raise _unfit(name, f"its {found[0]} is not named python3.X" if found else "it has no python3 on its PATH")


def _python_version(tree: Tree, path: str, variables: Mapping[str, str]) -> str | None:
    """Return the version in the interpreter, its shared library, or the variable of an official image."""
    for place in (path[1:], *_libraries(tree, path)):
        if tree[place].version:
            return tree[place].version
    minor = posixpath.basename(path).removeprefix("python")
    official = variables.get("PYTHON_VERSION", "") if path.startswith("/usr/local/bin/") else ""
    return official if re.fullmatch(rf"{re.escape(minor)}\.\d+", official) else None


def _libraries(tree: Tree, path: str) -> list[str]:
    """List the interpreter's shared library in the same installation."""
    minor = posixpath.basename(path).removeprefix("python")
    root = posixpath.dirname(posixpath.dirname(path))
    library = re.compile(rf"{re.escape(root[1:])}/lib(?:64)?/(?:[\w-]+/)?libpython{re.escape(minor)}\.so[.\d]*")
    return sorted(place for place in tree if library.fullmatch(place))


def _glibc(tree: Tree, name: str) -> str:
    for path, node in sorted(tree.items()):
        if node.version and posixpath.basename(path).startswith("libc"):
            return node.version
    if any(posixpath.basename(path).startswith("ld-musl-") for path in tree):
        raise _unfit(name, "it has musl, and the wheels need glibc")
    raise _unfit(name, "it has no glibc that can be recognised")


SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
"""The Debian release that carries each Python (its package python3-defaults)."""
PYTHONS = {suite: python for python, suite in SUITES.items()}
_ALL_SUITES = (
    "stretch", "buster", *PYTHONS, "forky", "duke", "sid", "unstable", "testing",
    "stable", "oldstable", "oldoldstable",
)  # fmt: skip
"""What Debian's archive has or will have, by code name or state."""
_PYTHON_IMAGE = re.compile(r"/library/python:(\d+\.\d+(?:\.\d+)?)")
"""Docker's official image of Python, or a mirror with the same path: the tag begins with the version."""
_CUDA = re.compile(r"nvidia/cuda:(\d+\.\d+(?:\.\d+)?)")

Pull = Callable[[Reference, str], Image]


def suite_for(python: str) -> str | None:
    """Return the Debian suite with this minor version of Python."""
    return SUITES.get(".".join(python.split(".")[:2]))


def known_facts(cache: Path) -> KnownFacts:
    """Return the facts of bases in the cache."""
    return KnownFacts(cache / "bases" / "facts")


def _refuse_suite(text: str) -> None:
    """Refuse `debian:` without the name of a suite, and what is nearly `debian:SUITE`; UsageError."""
    name, colon, suite = text.partition(":")
    known, near = suite in _ALL_SUITES, get_close_matches(suite, _ALL_SUITES, 1) or ["bookworm"]
    if name == "debian" and colon and not known:
        what = f"{suite[:40]!r} is not the name of a Debian suite"
    elif name != "debian" and known and get_close_matches(name, ["debian"], cutoff=0.8):
        what = f"there is no base {name}"
    else:
        return
    todo = f"did you mean debian:{near[0]}? An image of that name in a registry is docker://{text[:60]}"
    raise UsageError(what, where=f"--base {text[:60]}", todo=todo)


def registry_reference(text: str) -> Reference | None:
    """Return the reference of a base in a registry; None for `debian:SUITE` and OCI layouts; UsageError otherwise."""
    if _is_layout(split_digest(text)[0]):
        return None
    _refuse_suite(text)
    if text.startswith(("debian:", "oci:")):
        return None
    refuse_login(text, "--base")
    if exists(text):
        why = "the folder has no file oci-layout" if Path(text).is_dir() else "it is a file, not an OCI layout"
        todo = f"give the folder of an OCI layout, or debian:SUITE; a registry's image of this name is docker://{text}"
        raise UsageError(f"not a base: {why}", where=f"--base {text}", todo=todo)
    try:
        return Reference.parse(text.removeprefix("docker://"))
    except ValueError as error:
        todo = "give an image reference, an OCI layout folder, or debian:SUITE"
        raise UsageError(f"not a base: {error}", where=f"--base {text}", todo=todo) from error


def resolve_base(
    text: str,
    *,
    machine: str,
    cache: Path,
    pull: Pull,
    report: Reporter,
    wanted_python: str | None = None,
) -> Base:
    """Get the base that `text` names, and read its facts, unless an earlier run has noted them in the cache.

    `debian:SUITE` is bootstrapped here; an OCI layout is an existing folder, `oci:FOLDER` or `oci:FOLDER:NAME`; other
    texts are references in a registry, with or without `docker://`. Docker Hub's image of Debian is
    `docker://debian:SUITE` or `docker.io/library/debian:SUITE`.

    UsageError for other texts; BaseError if it is unavailable or does not fit an environment; RegistryError;
    MissingComponentError if mmdebstrap is absent.
    """
    reference, known = registry_reference(text), known_facts(cache)
    name, image, asked = text, None, ""
    if reference:
        name, image, asked = _pull(reference, machine, pull, wanted_python)
    elif text.startswith("debian:"):
        image = debian_base(text.removeprefix("debian:"), machine, cache, report)
    else:  # the folder's own name does not identify the base
        name, image = "oci-layout", layout_image(text, machine)
    facts = inspect(image, name if reference else text, machine, known)
    base = Base(
        name=name,
        image=image,
        asked=asked,
        target=facts.target(machine),
        python_path=facts.python_path,
        distribution=facts.distribution,
        interpreter=facts.interpreter,
    )
    upstream = known.mirror_of(base.digest) if reference else ""
    return base if upstream in ("", base.asked) else replace(base, mirror_of=upstream)


def _pull(reference: Reference, machine: str, pull: Pull, wanted_python: str | None) -> tuple[str, Image, str]:
    """Return the base's name by digest, the image, and its name without digest."""
    try:
        image = pull(reference, machine)
    except RegistryError as error:
        suite = suite_for(wanted_python or "")
        way_out = f"use --base debian:{suite or 'SUITE'}, which needs no registry" if suite or not wanted_python else ""
        if reference.registry == DOCKER_HUB and error.status is None:
            copy = f"{reference}".removeprefix(DOCKER_HUB)
            way_out = "; or ".join(filter(None, (f"give a copy in another registry: --base MIRROR{copy}", way_out)))
        cuda = ".".join(cuda_of(f"{reference}").split(".")[:2])
        if cuda.startswith(("10.", "11.")):  # NVIDIA deletes old tags; Debian's bases have no CUDA
            command = f"envbuild base build --cuda {cuda} --python {wanted_python or 'VERSION'}"
            way_out = f"make a base of NVIDIA's packages, {command}, or on a mirror of the image, by --parent MIRROR"
        todo = "; or ".join(part for part in (error.todo, way_out) if part)
        what = f"cannot get the base: {error.what}"
        raise RegistryError(what, where=error.where, todo=todo, status=error.status) from error
    asked = replace(reference, tag=reference.tag if reference.digest else reference.target, digest=None)
    # for an index that is the digest of this platform's image
    return str(reference.at(image.found_as or image.digest)), image, str(asked)


def cuda_of(name: str) -> str:
    """Return the CUDA version in the name of one of NVIDIA's images; empty for others."""
    found = _CUDA.search(name)
    return found[1] if found else ""


def _is_layout(text: str) -> bool:
    return bool(text) and exists(f"{text}/oci-layout")


def layout_image(text: str, machine: str) -> Image:
    """Read the image of an OCI layout: `FOLDER`, `oci:FOLDER` or `oci:FOLDER:NAME`, each with `@DIGEST` or without it.

    BaseError; UsageError for a digest that it does not have, or that is another image's than NAME's.
    """
    plain, digest = split_digest(text.removeprefix("oci:"))
    folder, colon, name = plain.rpartition(":")
    if colon and _is_layout(folder) and not _is_layout(plain):
        plain = folder
    reference = name if plain == folder else None
    if digest is None:
        return read_layout(Path(plain), machine=machine, reference=reference)
    if _is_layout(plain) and not blob_path(Path(plain), digest).is_file():
        todo = f"leave out @{digest}, or give the folder that has this image"
        here = read_layout(Path(plain), machine=machine).digest
        raise UsageError(f"the image in this folder has another digest, {here}", where=text, todo=todo)
    image = read_layout(Path(plain), machine=machine, digest=digest)
    if reference and (here := read_layout(Path(plain), machine=machine, reference=reference).digest) != image.digest:
        what, todo = f"the image {reference} in this folder has another digest, {here}", "leave out one of the two"
        raise UsageError(what, where=text, todo=todo)
    return image


def refuse_base(text: str, machine: str, cache: Path, wanted_python: str, glibc_minimum: str) -> None:
    """Refuse a base that does not fit the run, as far as that is known before a download: BaseError.

    For Debian's suites and official Python images the name shows it; an OCI layout is read.
    """
    reference = registry_reference(text)
    if reference or text.startswith("debian:"):
        named = _PYTHON_IMAGE.search(f"{reference}") if reference else None
        python = named[1] if named else PYTHONS.get(text.removeprefix("debian:"))
        if python:
            _check_python(python, wanted_python, text)
        return
    facts = inspect(layout_image(text, machine), text, machine, known_facts(cache))
    _check_python(facts.python, wanted_python, text)
    _check_glibc(facts.glibc, glibc_minimum, text)


def check_base(base: Base, wanted_python: str, glibc_minimum: str, *, where: str = "") -> list[str]:
    """Compare the base with the run; BaseError if it does not fit, remarks on other differences.

    `where` is the value of --base, as layouts have no name of their own.
    """
    _check_python(base.target.python, wanted_python, where or base.name)
    _check_glibc(base.target.glibc, glibc_minimum, where or base.name)
    if base.target.python != wanted_python:
        versions = f"the base has Python {base.target.python}, the run used {wanted_python}"
        has = f"python:{wanted_python}-slim, on Docker Hub or a mirror of it, has the run's"
        return [f"{versions}: same minor, another patch release; {has} (--base)"]
    return []


def _check_python(python: str, wanted: str, where: str) -> None:
    """Raise BaseError if the run used another minor version of Python."""
    if python.split(".")[:2] == wanted.split(".")[:2]:
        return
    minor, suite = ".".join(wanted.split(".")[:2]), suite_for(wanted)
    fitting = f"--base debian:{suite}" if suite else f"an image such as python:{minor}-slim"
    what = f"the base has Python {python}, the run used {wanted}"
    raise BaseError(what, where=where, todo=f"use a base with Python {minor}: {fitting}")


def _check_glibc(glibc: str, minimum: str, where: str) -> None:
    if Version(glibc) < Version(minimum):
        todo = "use a newer base: debian:bullseye has 2.31, debian:bookworm 2.36, debian:trixie 2.41"
        raise BaseError(f"the base has glibc {glibc}, the framework's wheel needs {minimum}", where=where, todo=todo)
