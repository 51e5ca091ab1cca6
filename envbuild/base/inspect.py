"""What lies in a base: interpreter, C library, machine; read from its layers without unpacking them."""

import gzip
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.errors import BaseError
from envbuild.files import write_whole
from envbuild.lock.model import Target
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Image, canonical_json
from envbuild.oci.layout import ARCHITECTURES

_READ = re.compile(r"var/lib/dpkg/(status|status\.d/[^/]+)|(usr/)?lib\d*/([a-z0-9_-]+/)?libc\.so\.6|.*/libc-2\.\d+\.so")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SMALL = 16 << 20
_LINKS = 40
_FORMAT = 1


@dataclass(slots=True)
class Files:
    """The base's file system: what each path is, and the content of the few files that say versions."""

    kinds: dict[str, str] = field(default_factory=dict)
    """`file`, `directory`, `link` for each path, relative to the root."""
    links: dict[str, str] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    opt_mode: int | None = None
    """Mode of /opt, if it is there."""

    def resolve(self, path: str) -> str | None:
        """Follow all links from an absolute path; None where it leads nowhere."""
        todo, done = [part for part in path.split("/") if part], ""
        for _ in range(_LINKS * 8):
            if not todo:
                return f"/{done}"
            part = todo.pop(0)
            here = posixpath.normpath(f"{done}/{part}").lstrip("/")
            if here in self.links:
                target = self.links[here]
                done = "" if target.startswith("/") else done
                todo = [piece for piece in target.split("/") if piece] + todo
            elif here in self.kinds or here in ("", "."):
                done = here.strip(".") if here == "." else here
            else:
                return None
        return None


def inspect(image: Image, name: str, machine: str, facts: Path) -> tuple[Target, str]:
    """Return what the base offers and the path of its interpreter; `facts` is a folder that remembers them.

    BaseError when there is no Python, no glibc, another machine, or an /opt that the environment would change.
    """
    known = facts / f"{image.digest.hex}-{_FORMAT}.json"
    try:
        value = json.loads(known.read_bytes())
        found = Target(python=value["python"], machine=value["machine"], glibc=value["glibc"]), str(value["path"])
    except (OSError, ValueError, KeyError, TypeError):
        found = _inspect(image, name)
        target, path = found
        value = {"python": target.python, "machine": target.machine, "glibc": target.glibc, "path": path}
        write_whole(known, canonical_json(value))
    if found[0].machine != machine:
        raise _unfit(name, f"it is for {found[0].machine}, the run was on {machine}")
    return found


def _unfit(name: str, why: str) -> BaseError:
    todo = "use --base debian:SUITE, an official python image, or a base built from Dockerfile.base"
    return BaseError(f"the base cannot carry the environment: {why}", where=name, todo=todo)


def _inspect(image: Image, name: str) -> tuple[Target, str]:
    config = json.loads(image.config)
    machines = {architecture: machine for machine, architecture in ARCHITECTURES.items()}
    machine = machines.get(str(config.get("architecture")))
    if machine is None or config.get("os") != "linux":
        raise _unfit(name, f"it is for {config.get('os')}/{config.get('architecture')}")
    try:
        files = read_files(image)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise BaseError(
            f"a layer of the base cannot be read: {error}", where=name, todo="fetch the base again"
        ) from error
    if files.opt_mode not in (None, 0o755):
        raise _unfit(name, f"its /opt has mode {files.opt_mode:04o}, which a layer with /opt/env would change to 0755")
    variables = dict(entry.partition("=")[::2] for entry in (config.get("config") or {}).get("Env") or [])
    packages = _packages(files)
    path = _interpreter(files, variables, name)
    python = _python_version(path, variables, packages)
    if python is None:
        raise _unfit(name, f"the exact version of {path} cannot be read from it")
    return Target(python=python, machine=machine, glibc=_glibc(files, packages, name)), path


def read_files(image: Image) -> Files:
    """Read all layers, lowest first, in bounded memory; whiteouts are applied (OCI image-spec, layer.md)."""
    files = Files()
    for layer in image.layers:
        if layer.descriptor.media_type == LAYER_ZSTD:
            raise tarfile.ReadError("it is compressed with zstd; only gzip and plain layers can be inspected")
        if layer.descriptor.media_type not in (LAYER_GZIP, LAYER_TAR):
            raise tarfile.ReadError(f"it has the unknown media type {layer.descriptor.media_type}")
        with layer.open() as blob, ExitStack() as stack:
            # tarfile's own gzip reading stops after the first member; eStargz and our own layers have many
            packed = layer.descriptor.media_type == LAYER_GZIP
            content = stack.enter_context(gzip.GzipFile(fileobj=blob)) if packed else blob
            archive = stack.enter_context(tarfile.open(fileobj=content, mode="r|"))
            for member in archive:
                _add(files, member, archive)
    return files


def _add(files: Files, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    path = posixpath.normpath(member.name).lstrip("/")
    folder, _, name = path.rpartition("/")
    if name == ".wh..wh..opq":
        _remove(files, folder, itself=False)
    elif name.startswith(".wh."):
        _remove(files, posixpath.join(folder, name.removeprefix(".wh.")), itself=True)
    else:
        files.links.pop(path, None)
        files.kinds[path] = "directory" if member.isdir() else "link" if member.issym() else "file"
        if member.issym():
            files.links[path] = member.linkname
        if path == "opt" and member.isdir():
            files.opt_mode = member.mode & 0o7777
        if member.isreg() and member.size <= _SMALL and _READ.fullmatch(path):
            content = archive.extractfile(member)
            files.contents[path] = content.read() if content else b""


def _remove(files: Files, path: str, *, itself: bool) -> None:
    gone = [name for name in files.kinds if name.startswith(f"{path}/") or (itself and name == path)]
    for name in gone:
        files.kinds.pop(name, None)
        files.links.pop(name, None)
        files.contents.pop(name, None)


def _packages(files: Files) -> dict[str, str]:
    """Read Debian's package versions, upstream part only: `3.11.2-6+deb12u6` is 3.11.2."""
    versions: dict[str, str] = {}
    for path, content in files.contents.items():
        if "dpkg" in path:
            for stanza in content.decode(errors="replace").split("\n\n"):
                fields = dict(re.findall(r"(?m)^(Package|Version): (\S+)", stanza))
                if len(fields) == 2:
                    versions[fields["Package"]] = re.sub(r"^\d+:|-[^-]*$", "", fields["Version"])
    return versions


def _interpreter(files: Files, variables: Mapping[str, str], name: str) -> str:
    for folder in _search_path(variables):
        path = files.resolve(f"{folder}/python3")
        if path and re.fullmatch(r"python3\.\d+", posixpath.basename(path)) and files.kinds.get(path[1:]) == "file":
            return path
    raise _unfit(name, "it has no python3 on its PATH")


def _search_path(variables: Mapping[str, str]) -> Iterator[str]:
    for folder in [*variables.get("PATH", _DEFAULT_PATH).split(":"), "/usr/local/bin", "/usr/bin"]:
        if folder.startswith("/"):
            yield folder.rstrip("/")


def _python_version(path: str, variables: Mapping[str, str], packages: Mapping[str, str]) -> str | None:
    minor = posixpath.basename(path).removeprefix("python")
    official = variables.get("PYTHON_VERSION", "") if path.startswith("/usr/local/") else ""
    candidates = (official, packages.get(f"libpython{minor}-minimal", ""), packages.get(f"python{minor}-minimal", ""))
    for text in candidates:
        match = re.match(rf"{re.escape(minor)}\.\d+", text)
        if match:
            return match.group()
    return None


def _glibc(files: Files, packages: Mapping[str, str], name: str) -> str:
    if match := re.match(r"\d+\.\d+", packages.get("libc6", "")):
        return match.group()
    for path, content in files.contents.items():
        if "libc" in path and (found := re.search(rb"GNU C Library[^\n]*version (\d+\.\d+)", content)):
            return found.group(1).decode()
    if any(posixpath.basename(path).startswith("ld-musl-") for path in files.kinds):
        raise _unfit(name, "it has musl, and TensorFlow's wheels need glibc")
    raise _unfit(name, "it has no glibc that can be recognised")
