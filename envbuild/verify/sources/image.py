"""What an image says: Python, C library, distributions and model from its layers, and variables from its config.

Names, links and some files are read; nothing is unpacked.
"""

import json
import posixpath
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from envbuild.capture.distributions import LONGEST_HEAD, NAME, VERSION, record_content
from envbuild.capture.files import decoded
from envbuild.capture.frameworks import BUILD_INFO, build_info
from envbuild.capture.redact import scrub_file_name, scrub_line
from envbuild.diff.layers import Report, read_layer
from envbuild.errors import BuildError
from envbuild.manifest.model import Framework, Model, ModelFile
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer
from envbuild.oci.rootfs import IMPLIED, Node, Overlay, Tree, over, place_of, resolve
from envbuild.recipe import SLIM_FILES_LABEL, SLIM_LABEL
from envbuild.registry.pull import ARCHITECTURES
from envbuild.verify.sources import Package, Side, frameworks_of
from envbuild.verify.sources.model import sums_of

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_URI, _FOLDER, _DEFAULT = "AIP_STORAGE_URI", "ENVBUILD_MODEL_FOLDER", "/model"
"""What tells a server where the model lies, the first before the second, and where it lies otherwise."""
_STAMP = "envbuild/"
"""Files of a stamp beside a model are not part of it."""
_VARIANT, _CUDA = "dev.envbuild.variant", "dev.envbuild.cuda"
_SYSTEMS = {"linux": "Linux", "windows": "Windows", "darwin": "Darwin", "freebsd": "FreeBSD"}
"""GOOS, as the image specification has it, in the words of `platform.system()`."""
_MACHINES = {architecture: machine for machine, architecture in ARCHITECTURES.items()}

_MINOR = re.compile(r"python(3\.\d+)")
_PYVENV_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+\.\d+)", re.MULTILINE)
_SYSTEM_TOO = re.compile(r"^include-system-site-packages\s*=\s*true", re.MULTILINE | re.IGNORECASE)
_PROGRAM = re.compile(r"python[\d.]*")
_INTERPRETER = re.compile(r"(?:.*/)?(?:lib)?python[\d.]*(?:\.so[.\d]*)?")
_METADATA = re.compile(r"(.*)/([^/]+)\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)")
_MUSL = re.compile(r"(?:.*/)?ld-musl-[^/]+")
_GLIBC = re.compile(r"(?:usr/)?lib(?:32|64)?/(?:[\w-]+/)?(?:libc\.so\.6|libc-2\.\d+\.so)")
_PYTHON_VERSION = re.compile(rb"(?<![\w.])(3\.\d+\.\d+(?:(?:a|b|rc)\d+)?)\+?\0")
_GLIBC_VERSION = re.compile(rb"GNU C Library[^\n]{0,99} version (\d+\.\d+)")
_CUDA_DEB = re.compile(
    r"^Package: (cuda-cudart-\d[\d-]*|libcudnn\d+(?:-cuda-\d+)?)\n(?:.+\n)*?Version: (\d[\d.]*)", re.MULTILINE
)
_BY_NAME = re.compile(r"(?:.*/)?(?:python[\d.]*|ld-musl-[^/]+)")
"""Files of which the name alone says something."""
_CHUNK, _OVERLAP, _LONGEST = 1 << 20, 256, 32 << 20


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where a server looks for its model unless another place is given at its start."""

    path: str = ""
    """In the image, without the leading slash; empty for a place outside."""
    uri: str = ""
    """Of a place outside."""
    named: bool = False
    """Whether a variable of the image names it."""

    def has(self, path: str) -> bool:
        """Whether a file of the image is, or lies in, this place."""
        return bool(self.path) and (path == self.path or path.startswith(f"{self.path}/"))


Known = dict[tuple[Digest, Digest, ModelPlace], Overlay]
"""What was read of layers, by their blobs and diff ids, and the place of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One Python of an image."""

    version: str
    """`3.11.7`, or `3.11` where no file says more."""
    sites: tuple[str, ...]
    """Folders of distributions as they are searched, without links and without the leading slash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    """What an image's config says: its platform and labels, and the program that it starts."""

    system: str
    architecture: str
    labels: Mapping[str, str]
    variables: Mapping[str, str]
    command: Sequence[str]
    """Entry point, then its arguments."""
    user: str
    folder: str
    """Where programs start."""


def side_of_config(image: Image, name: str, *, machine: str) -> Side:
    """Return what an image's config says; no layer is read. BuildError where it cannot be read.

    A container may have more variables, and other values.
    """
    config = _config(image, name)
    variant = config.labels.get(_VARIANT)
    return Side(
        name=name,
        kind="image",
        system=_SYSTEMS.get(config.system.lower()),
        machine=_MACHINES.get(config.architecture, machine),
        slim=frozenset(filter(None, config.labels.get(SLIM_LABEL, "").split(","))),
        variant="gpu" if variant == "gpu" else "cpu" if variant == "cpu" else None,
        variables=config.variables,
        names=frozenset(config.variables),
    )


def side_of_image(image: Image, name: str, *, machine: str, report: Report, known: Known | None = None) -> Side:
    """Read every layer that is not `known` yet, in memory that grows with the number of files alone.

    BuildError where config or layers cannot be read; RegistryError where they cannot be fetched.
    """
    side, config = side_of_config(image, name, machine=machine), _config(image, name)
    place = model_place(config.variables, config.folder)
    tree = files_of(image.layers, place, name, report, known)
    python = _interpreter(tree, config)
    packages = _packages(tree, python.sites) if python else None
    if packages and config.labels.get(SLIM_FILES_LABEL):  # not comparable: the RECORDs list only what is there
        packages = {name: replace(it, content=None) for name, it in packages.items()}
    built = frameworks_of({it.name: it.version for it in (packages or {}).values()})
    cuda, cudnn = _system_cuda(tree)
    libc_version = next((_text(tree, it) for it in sorted(tree) if _GLIBC.fullmatch(it) and tree[it].text), None)
    libc = "glibc" if libc_version else "musl" if any(map(_MUSL.fullmatch, tree)) else None
    # something may be a Python that neither command nor PATH leads to
    pythons = any(node.kind in ("file", "link") and _INTERPRETER.fullmatch(path) for path, node in tree.items())
    return replace(
        side,
        python=python.version if python else None,
        implementation="cpython" if python else None,
        pythonless=python is None and side.system == "Linux" and not pythons,
        libc=libc,
        libc_version=libc_version,
        packages=packages,
        frameworks=tuple(_as_built(it, tree, python, config.labels) for it in built.frameworks),
        cuda=built.cuda or cuda,
        cudnn=built.cudnn or cudnn,
        variant=side.variant or built.variant or ("gpu" if cuda and built.frameworks else None),
        model=model_inside(tree, place, name),
    )


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
            variables=variables,
            command=command,
            user=str(inner.get("User") or ""),
            folder=str(inner.get("WorkingDir") or "/"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BuildError("the image's config cannot be read", where=name, todo="build the image again") from error


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
    """The distribution whose metadata lies at a path; None where name or version are not valid."""
    head = decoded(tree[path].text).lstrip("\ufeff").split("\n\n", 1)[0]
    fields: dict[str, str] = {}
    for line in head.split("\n"):
        key, _, value = line.partition(":")
        fields.setdefault(key.lower(), value.strip())
    name, version, folder = fields.get("name", ""), fields.get("version", ""), posixpath.dirname(path)
    if not (NAME.fullmatch(name) and VERSION.fullmatch(version)):
        return None
    content, build = _text(tree, f"{folder}/RECORD") or None, _text(tree, f"{folder}/direct_url.json")
    return Package(name=canonicalize_name(name), version=version, content=content, build=build)


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


def _system_cuda(tree: Tree) -> tuple[str | None, str | None]:
    """CUDA's runtime and cuDNN as Debian packages; the newest where there are several."""
    lines: Iterator[list[str]] = (line.split() for line in _text(tree, "var/lib/dpkg/status").splitlines())
    newest: dict[bool, str] = {}
    for name, version in sorted(lines, key=lambda it: [int(number) for number in it[1].split(".") if number]):
        newest[name.startswith("cuda-cudart")] = version.rstrip(".")
    cudnn = newest.get(False)
    return newest.get(True), ".".join(cudnn.split(".")[:3]) if cudnn else None


def _interpreter(tree: Tree, config: _Config) -> Interpreter | None:
    """Find the Python that the command names, or lies beside, else the first on PATH; None where there is none."""
    for path in _candidates(config):
        real = resolve(tree, path)
        if real is None or tree[real[1:]].kind != "file":
            continue
        folder = resolve(tree, posixpath.dirname(path))
        prefix = posixpath.dirname(folder or "/")
        marker = f"{prefix[1:]}/pyvenv.cfg"  # of a virtual environment (PEP 405)
        inside = bool(folder) and marker in tree
        settings = _text(tree, marker) if inside else ""
        if version := _version(tree, real, settings, config.variables):
            minor = ".".join(version.split(".")[:2])
            paths = [it for it in config.variables.get("PYTHONPATH", "").split(":") if it.startswith("/")]
            own = [f"{prefix}/lib/python{minor}/site-packages"] if inside else []
            system = not inside or _SYSTEM_TOO.search(settings)
            rest = _system_sites(posixpath.dirname(posixpath.dirname(real)), minor, config) if system else []
            found = dict.fromkeys(it for folder in (*paths, *own, *rest) if (it := resolve(tree, folder)))
            return Interpreter(version=version, sites=tuple(folder[1:] for folder in found))
    return None


def _candidates(config: _Config) -> Iterator[str]:
    """Absolute paths that may be the interpreter."""
    program = config.command[0] if config.command else ""
    if program.startswith("/"):
        folder, name = posixpath.split(program)
        # /usr/bin/tini says nothing of Python, /opt/venv/bin/gunicorn does
        beside = [] if folder in DEFAULT_PATH.split(":") else [f"{folder}/python", f"{folder}/python3"]
        yield from [program] if _PROGRAM.fullmatch(name) else beside
    for folder in (config.variables.get("PATH") or DEFAULT_PATH).split(":"):
        if folder.startswith("/"):
            yield from (f"{folder.rstrip('/')}/{name}" for name in ("python", "python3"))


def _version(tree: Tree, real: str, settings: str, variables: Mapping[str, str]) -> str:
    """What the interpreter says, or the shared library of its installation, else what stands beside it."""
    minor = _MINOR.fullmatch(posixpath.basename(real))
    home = posixpath.dirname(posixpath.dirname(real))
    names = re.escape(minor[0]) if minor else r"python3\.\d+"
    library = re.compile(rf"{re.escape(home[1:])}/lib(?:64)?/(?:[\w-]+/)?lib{names}\.so[.\d]*")
    texts = [tree[real[1:]].text, *(tree[it].text for it in sorted(tree) if library.fullmatch(it))]
    exact = [text.decode(errors="replace") for text in texts if text]
    exact += _PYVENV_VERSION.findall(settings)
    exact += [variables.get("PYTHON_VERSION", "")] if home == "/usr/local" else []
    fitting = (it for it in exact if re.match(r"3\.\d+\.\d", it) and (not minor or it.startswith(f"{minor[1]}.")))
    return next(fitting, minor[1] if minor else "")


def _system_sites(home: str, minor: str, config: _Config) -> list[str]:
    """Where an installation looks itself: the user's folder, then its own, then Debian's."""
    home, user = home.rstrip("/"), config.user.partition(":")[0]
    folder = config.variables.get("HOME") or ("/root" if user in ("", "0", "root") else f"/home/{user}")
    return [
        f"{folder}/.local/lib/python{minor}/site-packages",
        f"{home}/local/lib/python{minor}/dist-packages",
        *(f"{home}/{lib}/python{minor}/site-packages" for lib in ("lib", "lib64")),
        *(f"{home}/lib/python{it}/dist-packages" for it in ("3", minor)),
    ]


def model_place(variables: Mapping[str, str], folder: str) -> ModelPlace:
    """Read an image's variables as the ready server does; `folder` is where programs start."""
    value = variables.get(_URI) or variables.get(_FOLDER)
    parts = urlsplit(value or _DEFAULT)
    if parts.scheme not in ("", "file"):
        return ModelPlace(uri=value or "", named=True)
    path = unquote(parts.path) if parts.scheme else value or _DEFAULT
    return ModelPlace(path=place_of(posixpath.join(folder or "/", path)), named=bool(value))


def model_inside(tree: Tree, place: ModelPlace, name: str) -> Model | None:
    """The model that lies there by size and digests; None where nothing does, and no variable names the place.

    Without files it says where else the model is taken from, or in `unread` why it is not known. Two images may have
    two models in one place, so the image's name is a part of the URI.
    """
    if not place.path:
        return Model(uri=scrub_line(place.uri) or f"{name}:/", unread=None if place.uri else "it is all of the image")
    uri, parts = f"{name}:/{place.path}", place.path.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    links = (it for it in (*above, *filter(place.has, tree)) if it in tree and tree[it].kind == "link")
    if (link := next(links, None)) is not None:
        return Model(
            uri=uri, unread=scrub_line(f"/{link} is a link to {tree[link].target}, and links are not followed")
        )
    files = []
    for path in sorted(filter(place.has, tree)):
        inner = path[len(place.path) + 1 :] or posixpath.basename(path)
        if tree[path].text and not inner.startswith(_STAMP):
            files.append(ModelFile(path=scrub_file_name(inner), **json.loads(tree[path].text)))
    if not files:
        return Model(uri=uri) if place.named else None
    # The only file is the model by itself, whatever its name.
    alone = len(files) == 1 and not uri.endswith(f"/{files[0].path}")
    return Model(uri=f"{uri}/{files[0].path}" if alone else uri, files=tuple(files), file_count=len(files))


def files_of(
    layers: Sequence[Layer],
    model: ModelPlace,
    name: str,
    report: Report,
    known: Known | None = None,
) -> Tree:
    """All folders and links of an image, and of its files those that say what Python, distributions and model it has.

    A node's text is what was read of it: the version that an interpreter or C library says of itself, the digest of
    what a RECORD lists, the head of METADATA, size and digests of a model's file. BuildError where a layer cannot be
    read. What is read is kept in `known`.
    """
    known = {} if known is None else known
    keys = [(it.descriptor.digest, it.diff_id, model) for it in layers]
    unread = {key: it for key, it in zip(keys, layers, strict=True) if key not in known}
    total, done = sum(it.descriptor.size for it in unread.values()), 0
    for key, layer in unread.items():
        known[key] = read_layer(layer, name, partial(_add, model))
        done += layer.descriptor.size
        report("reading layers", done, total)
    return {"": IMPLIED} | reduce(over, (known[it] for it in keys), Overlay()).nodes


def _add(model: ModelPlace, found: Overlay, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    found.nodes.pop(path, None)
    found.borrowed.pop(path, None)
    if member.isdir():
        found.nodes[path] = Node("directory")
        return
    # what is not a folder hides what lay there, whether it is kept or not
    found.hidden.add(path)
    reader = _sums if model.has(path) else next((it for pattern, it in _READERS if pattern.fullmatch(path)), None)
    by_name, mtime = _BY_NAME.fullmatch(path), int(member.mtime)
    if member.issym():
        found.nodes[path] = Node("link", target=member.linkname)
    elif member.islnk():
        target = place_of(member.linkname)
        if target in found.nodes:
            found.nodes[path] = found.nodes[target]
        elif reader or by_name:
            found.borrowed[path] = target
    elif member.isreg():
        content = archive.extractfile(member) if reader else None
        if reader and content:
            found.nodes[path] = Node("file", text=reader(content), mtime=mtime)
        elif by_name:
            found.nodes[path] = Node("file", mtime=mtime)


def _sums(content: IO[bytes]) -> bytes:
    sums = sums_of(content)
    return json.dumps({"size": sums.size, "sha256": sums.sha256.hex, "crc32c": sums.crc32c}).encode()


def _commit(content: IO[bytes]) -> bytes:
    """The commit of a checkout (PEP 610); empty for what came from anywhere else."""
    try:
        found = json.loads(content.read(LONGEST_HEAD))["vcs_info"]["commit_id"]
        return found.encode() if re.fullmatch(r"[0-9a-f]{7,64}", found) else b""
    except (ValueError, KeyError, TypeError, RecursionError):
        return b""


def _search(pattern: re.Pattern[bytes], content: IO[bytes]) -> bytes:
    """What the first match says; empty where there is none."""
    text = b""
    while chunk := content.read(_CHUNK):
        if match := pattern.search(text := text[-_OVERLAP:] + chunk):
            return match[1]
    return b""


_READERS: tuple[tuple[re.Pattern[str], Callable[[IO[bytes]], bytes]], ...] = (
    (
        re.compile(r"(?:.*/)?[^/]+\.dist-info/RECORD"),
        lambda content: (record_content(decoded(content.read(_LONGEST))) or "").encode(),
    ),
    (
        re.compile(
            r"(?:.*/)?[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)|(?:.*/)?pyvenv\.cfg"
            r"|(?:.*/)?tensorflow(?:_core)?/python/platform/build_info\.py"
        ),
        lambda content: content.read(LONGEST_HEAD),
    ),
    (re.compile(r"(?:.*/)?[^/]+\.dist-info/direct_url\.json"), _commit),
    (re.compile(r"(?:.*/)?(?:lib)?python3\.\d+(?:\.so[.\d]*)?"), partial(_search, _PYTHON_VERSION)),
    (_GLIBC, partial(_search, _GLIBC_VERSION)),
    (
        re.compile(r"var/lib/dpkg/status"),  # names and upstream versions of CUDA's runtime and cuDNN, one a line
        lambda content: "\n".join(map(" ".join, _CUDA_DEB.findall(decoded(content.read(_LONGEST))))).encode(),
    ),
)
"""How to read the files that say something."""
