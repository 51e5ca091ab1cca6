"""Debian packages, unpacked as one layer on a base: the same bytes everywhere.

dpkg's records of the packages are in the layer, so that dpkg, apt and scanners know them (dpkg(1), deb-conffiles(5)).
Their scripts are not run; alternatives are made here (Debian Policy, chapter 6; update-alternatives(1)).
"""

import hashlib
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BuildError
from envbuild.image.debian.package import Deb, Item, fields, open_deb, stanzas
from envbuild.image.layers.writer import LayerResult, write_compressed
from envbuild.lock.model import SystemPackage
from envbuild.oci import tar
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe

_FORMAT = 5
"""Raised whenever the same packages would give other bytes."""
_UNREAD = ("usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/")
"""Files that no program reads; copyrights stay."""
_DOC = "usr/share/doc/"
LINE = "system packages"
"""The beginning of the layer's line in the history."""
DPKG = "var/lib/dpkg"
_SCRIPTS = frozenset({"preinst", "postinst", "prerm", "postrm", "config"})
_CHOSEN = "etc/alternatives"
_ADMIN = "var/lib/dpkg/alternatives"
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_HARMLESS = re.compile(
    r"set -e|exit 0|ldconfig|:|true|then|fi|esac|;;|case \"?\$1\"? in|[\w|*-]+\)"
    r"|if \[ \"?\$1\"? = \"?configure\"? \](?:; then)?|dpkg-maintscript-helper (?:rm_conffile|mv_conffile) .*"
)
"""Lines of a script that change nothing in a new image: the loader needs no ldconfig cache for its own folders."""
_PATH = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[\w.+~:@-]+)+")
_MOST_LINKS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Mode and owner of a folder of the base, which a layer that fills the folder has to repeat."""

    mode: int
    owner: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSystem:
    """dpkg's records, folders and links of a base; paths are relative to the root."""

    status: str = ""
    """dpkg's database, `var/lib/dpkg/status`; empty if the base is not a Debian or Ubuntu."""
    release: Mapping[str, str] = field(default_factory=dict)
    """Its os-release: `ID`, `VERSION_ID`, `VERSION_CODENAME`."""
    folders: Mapping[str, Folder] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    settings: frozenset[str] = frozenset()
    """Files below `etc/`, which are not replaced by those of a package."""
    libraries: frozenset[str] = frozenset()
    """Names of all shared libraries: `libz.so.1`."""

    @property
    def installed(self) -> dict[str, str]:
        """Versions of the installed packages by name."""
        found = (fields(stanza) for stanza in stanzas(self.status))
        return {it["Package"]: it["Version"] for it in found if it.get("Status", "").endswith(" installed")}


def place_of(path: str, links: Mapping[str, str]) -> str:
    """Follow links of the folders on a path, as dpkg does; never above the root.

    So `lib/x86_64-linux-gnu/libz.so.1` is in `usr/lib` if the base has merged the two.
    """
    parts, done = path.split("/"), ""
    for _ in range(_MOST_LINKS):
        part = parts.pop(0)
        here = posixpath.normpath(f"/{done}/{part}").lstrip("/")
        if not parts:
            return here
        target = links.get(here)
        if target is None:
            done = here
        else:
            done = "" if target.startswith("/") else done
            parts = [*target.strip("/").split("/"), *parts]
    raise BuildError("links of the base or of a package are circular", where=path, todo="use another base")


def records(status: str, debs: Sequence[Deb]) -> Iterator[Item]:
    """Yield dpkg's database with the packages in it, and its files for each of them."""
    ours = {_key(deb.control): deb for deb in debs}
    kept = [it for it in stanzas(status) if _key(it) not in ours]
    text = ("\n\n".join([*kept, *(_installed(ours[key]) for key in sorted(ours))]) + "\n\n").encode()
    yield Item(path=f"{DPKG}/status", kind="file", mode=0o644, size=len(text), source=text)
    for deb in debs:
        package = fields(deb.control)
        name = package["Package"] + (f":{package['Architecture']}" if package.get("Multi-Arch") == "same" else "")
        paths = "".join(f"/{path}\n" for path in (".", *(item.path for item in deb.items)))
        files = {f"{name}.list": paths.encode()} | {f"{name}.{kind}": data for kind, data in deb.scripts.items()}
        for file, data in files.items():
            mode = 0o755 if file.rpartition(".")[2] in _SCRIPTS else 0o644
            yield Item(path=f"{DPKG}/info/{file}", kind="file", mode=mode, size=len(data), source=data)


def conffiles(deb: Deb) -> tuple[str, ...]:
    """Return the configuration files of a package, relative to the root."""
    lines = deb.scripts.get("conffiles", b"").decode().splitlines()
    return tuple(line.strip().lstrip("/") for line in lines if line.startswith("/"))


def _key(stanza: str) -> tuple[str, str]:
    """Return name and architecture; the latter only if several architectures can be installed at once."""
    package = fields(stanza)
    return package.get("Package", ""), package.get("Architecture", "") if package.get("Multi-Arch") == "same" else ""


def _installed(deb: Deb) -> str:
    """Return a package's stanza as dpkg writes it: with its state, and the digests of its configuration files."""
    first, _, others = deb.control.partition("\n")
    paths = conffiles(deb)
    digests = {it.path: _md5(it) for it in deb.items if it.path in paths and it.kind == "file"}
    lines = [f" /{path} {digests[path]}" for path in paths if path in digests]
    return "\n".join([first, "Status: install ok installed", *(["Conffiles:", *lines] if lines else []), others])


def _md5(item: Item) -> str:
    hasher = hashlib.md5(usedforsecurity=False)
    for piece in item.content():
        hasher.update(piece)
    return hasher.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A name for one of several files: the arguments of `update-alternatives --install`."""

    link: str
    name: str
    path: str
    priority: int


def read_alternatives(deb: Deb) -> tuple[Alternative, ...]:
    """Return the alternatives that a package's script installs without variables."""
    return tuple(it for line in _lines(deb) if (it := _alternative(line)))


def left_undone(deb: Deb) -> bool:
    """Whether a package's `postinst` does more than envbuild does, or needs to do, itself."""
    return any(not _HARMLESS.fullmatch(line) and _alternative(line) is None for line in _lines(deb))


def make_alternatives(debs: Sequence[Deb], links: Mapping[str, str]) -> Iterator[Item]:
    """Yield links and records of alternatives; the base's choice for a name stays."""
    named: dict[str, list[Alternative]] = {}
    for deb in debs:
        for it in read_alternatives(deb):
            named.setdefault(it.name, []).append(it)
    for name in sorted(named.keys() - {path.rpartition("/")[2] for path in links if path.startswith(f"{_CHOSEN}/")}):
        choices = sorted(named[name], key=lambda it: (-it.priority, it.path))
        targets = {choices[0].link[1:]: f"/{_CHOSEN}/{name}", f"{_CHOSEN}/{name}": choices[0].path}
        for path, target in targets.items():
            yield Item(path=path, kind="symlink", mode=0o777, target=target)
        rows = "".join(f"{it.path}\n{it.priority}\n" for it in sorted(choices, key=lambda it: it.path))
        text = f"auto\n{choices[0].link}\n\n{rows}\n".encode()
        yield Item(path=f"{_ADMIN}/{name}", kind="file", mode=0o644, size=len(text), source=text)


def remarks(deb: Deb) -> Iterator[str]:
    """Yield warnings about a package that was only unpacked."""
    name = fields(deb.control)["Package"]
    if left_undone(deb):
        yield f"{name} was only unpacked: its postinst does more than run ldconfig, and was not run"
    if any(it.path.startswith("etc/ld.so.conf.d/") for it in deb.items):
        yield f"{name} adds folders of libraries in /etc/ld.so.conf.d; run ldconfig in the image to use them"


def _lines(deb: Deb) -> list[str]:
    text = deb.scripts.get("postinst", b"").decode(errors="replace").replace("\\\n", " ")
    return [" ".join(line.split()) for line in _COMMENT.sub("", text).splitlines() if line.strip()]


def _alternative(line: str) -> Alternative | None:
    if not line.startswith("update-alternatives --install ") or set("$`;&|<>*") & set(line):
        return None
    try:
        link, name, path, priority = shlex.split(line)[2:]
        alternative = Alternative(link=link, name=name, path=path, priority=int(priority))
    except ValueError:
        return None
    valid = all(map(_PATH.fullmatch, (link, path, f"/{name}"))) and "/" not in name
    return alternative if valid else None


def packages_key(recipe: Recipe) -> Digest:
    """Return the digest of everything that decides the bytes; the base's records and folders count."""
    value = [LINE, _FORMAT, str(recipe.base_digest), [str(it.sha256) for it in recipe.packages]]
    return Digest.of(canonical_json(value))


def packages_line(packages: Iterable[SystemPackage]) -> str:
    """Return the layer's line in the history."""
    return f"{LINE}: {', '.join(f'{it.name} {it.version}' for it in packages)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLayer:
    """The files of a recipe's packages, and the base that they are unpacked on."""

    base: BaseSystem
    find: Callable[[SystemPackage], Path]
    """Gets a package's file, whose digest is checked; LockError if it is unavailable."""

    def write(
        self,
        packages: Sequence[SystemPackage],
        sink: BinaryIO,
        pool: Executor,
        note: Callable[[list[str]], object],
        compression: Compression = GZIP,
    ) -> LayerResult:
        """Write the layer; `note` receives warnings about packages that were only unpacked."""
        with ExitStack() as stack:
            debs = [open_deb(self.find(it), it.sha256, stack) for it in sorted(packages, key=lambda it: it.name)]
            note([line for deb in debs for line in remarks(deb)])
            entries = (
                (
                    tar.Entry(it.path, it.kind, it.mode, it.size, target=it.target, owner=it.owner),
                    it.content() if it.size else (),
                )
                for it in layer_items(debs, self.base)
            )
            return write_compressed((data for _, data in tar.pieces(entries)), sink, pool, compression)


def layer_items(debs: Sequence[Deb], base: BaseSystem) -> list[Item]:
    """Return all items of the layer, parents first, sorted by path; BuildError if packages and base do not fit."""
    links = dict(base.links)
    for deb in debs:
        links |= {it.path: it.target for it in deb.items if it.kind == "symlink" and it.path not in base.folders}
    layer: dict[str, Item] = {}
    for deb in debs:
        for item in _shipped(deb, base):
            # A folder that is a link in the base is the link's target, so that the link stays.
            path = f"{item.path}/." if item.kind == "directory" and item.path in links else item.path
            _add(layer, item, place_of(path, links), base)
    for item in (*make_alternatives(debs, base.links), *records(base.status, debs)):
        layer[place_of(item.path, links)] = item
    for path in list(layer):
        parent = path.rpartition("/")[0]
        while parent and parent not in layer:
            folder = base.folders.get(parent, Folder(mode=0o755, owner=(0, 0)))
            layer[parent] = Item(path=parent, kind="directory", mode=folder.mode, owner=folder.owner)
            parent = parent.rpartition("/")[0]
        if parent and layer[parent].kind != "directory":
            raise _clash(parent, "a folder of a package is a file or link of another")
    return [replace(layer[path], path=path) for path in sorted(layer, key=lambda path: path.split("/"))]


def _shipped(deb: Deb, base: BaseSystem) -> Iterator[Item]:
    """Yield the items of a package that go into the image."""
    kept = base.settings & set(conffiles(deb))
    for item in deb.items:
        unread = item.path.startswith(_UNREAD) or (
            item.path.startswith(_DOC) and item.kind == "file" and not item.path.endswith("/copyright")
        )
        if not unread and item.path not in kept:
            yield item


def _add(layer: dict[str, Item], item: Item, path: str, base: BaseSystem) -> None:
    if item.kind == "directory":
        if path not in base.folders:
            layer.setdefault(path, item)
        return
    if path in base.folders:
        if item.kind == "symlink":  # dpkg leaves a folder where a package has a link
            return
        raise _clash(path, "a folder of the base is a file of a package")
    other = layer.get(path)
    if other and other.kind == "directory":
        raise _clash(path, "a folder of a package is a file or link of another")
    layer[path] = item


def _clash(path: str, what: str) -> BuildError:
    todo = "use a base of the run's distribution, or build with --no-system-packages"
    return BuildError(f"system packages do not fit: {what}", where=f"/{path}", todo=todo)
