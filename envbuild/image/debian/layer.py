"""What a base has that unpacked Debian packages meet: dpkg's records, folders and links."""

import hashlib
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BuildError
from envbuild.image.debian.package import Deb, Item, fields, open_deb, stanzas
from envbuild.image.layers.writer import LayerResult, write_compressed
from envbuild.lock.model import SystemPackage
from envbuild.oci import tar
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe

_STEPS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """How a folder of the base is: a layer that fills it has to say so again, or engines make it their own way."""

    mode: int
    owner: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What was read from a base's files; paths are relative to the root."""

    status: str = ""
    """dpkg's database, `var/lib/dpkg/status`; empty where the base is not of Debian's kind."""
    release: Mapping[str, str] = field(default_factory=dict)
    """Its os-release: `ID`, `VERSION_ID`, `VERSION_CODENAME`."""
    folders: Mapping[str, Folder] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    settings: frozenset[str] = frozenset()
    """Files below `etc/`, which a package's own do not replace."""
    libraries: frozenset[str] = frozenset()
    """Names of shared libraries, wherever they lie: `libz.so.1`."""

    @property
    def installed(self) -> dict[str, str]:
        """The version of each installed package, by its name."""
        found = (fields(stanza) for stanza in stanzas(self.status))
        return {it["Package"]: it["Version"] for it in found if it.get("Status", "").endswith(" installed")}


def placed(path: str, links: Mapping[str, str]) -> str:
    """Where a path leads when the folders on it are followed through links, as dpkg does; never above the root.

    So `lib/x86_64-linux-gnu/libz.so.1` lies in `usr/lib` where the base has merged the two.
    """
    parts, done = path.split("/"), ""
    for _ in range(_STEPS):
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
    raise BuildError("links of the base or of a package go in circles", where=path, todo="use another base")


DPKG = "var/lib/dpkg"
_SCRIPTS = frozenset({"preinst", "postinst", "prerm", "postrm", "config"})


def records(status: str, debs: Sequence[Deb]) -> Iterator[Item]:
    """Yield the database with the packages in it, and what is kept of each beside it."""
    text = _status(status, debs).encode()
    yield Item(path=f"{DPKG}/status", kind="file", mode=0o644, size=len(text), source=text)
    for deb in debs:
        for name, data in _dpkg_files(deb).items():
            mode = 0o755 if name.rpartition(".")[2] in _SCRIPTS else 0o644
            yield Item(path=f"{DPKG}/info/{name}", kind="file", mode=mode, size=len(data), source=data)


def conffiles(deb: Deb) -> tuple[str, ...]:
    """The settings of a package, relative to the root."""
    lines = deb.scripts.get("conffiles", b"").decode().splitlines()
    return tuple(line.strip().lstrip("/") for line in lines if line.startswith("/"))


def _status(status: str, debs: Sequence[Deb]) -> str:
    ours = {_key(deb.control): deb for deb in debs}
    kept = [it for it in stanzas(status) if _key(it) not in ours]
    return "\n\n".join([*kept, *(_installed(ours[key]) for key in sorted(ours))]) + "\n\n"


def _key(stanza: str) -> tuple[str, str]:
    """A name may be installed for several architectures, if it says so of itself."""
    said = fields(stanza)
    return said.get("Package", ""), said.get("Architecture", "") if said.get("Multi-Arch") == "same" else ""


def _installed(deb: Deb) -> str:
    """A package's stanza as dpkg has it: with its state, and the digests that its settings had."""
    first, _, rest = deb.control.partition("\n")
    digests = _digests(deb)
    lines = [f" /{path} {digests[path]}" for path in conffiles(deb) if path in digests]
    return "\n".join([first, "Status: install ok installed", *(["Conffiles:", *lines] if lines else []), rest])


def _digests(deb: Deb) -> Mapping[str, str]:
    wanted = set(conffiles(deb))
    return {it.path: _md5(it) for it in deb.items if it.path in wanted and it.kind == "file"}


def _md5(item: Item) -> str:
    hasher = hashlib.md5(usedforsecurity=False)
    for piece in item.content():
        hasher.update(piece)
    return hasher.hexdigest()


def _dpkg_files(deb: Deb) -> dict[str, bytes]:
    said = fields(deb.control)
    name = said["Package"] + (f":{said['Architecture']}" if said.get("Multi-Arch") == "same" else "")
    listed = "".join(f"/{path}\n" for path in (".", *(item.path for item in deb.items)))
    return {f"{name}.list": listed.encode()} | {f"{name}.{kind}": data for kind, data in deb.scripts.items()}


_CHOSEN = "etc/alternatives"
_ADMIN = "var/lib/dpkg/alternatives"
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_HARMLESS = re.compile(
    r"set -e|exit 0|ldconfig|:|true|then|fi|esac|;;|case \"?\$1\"? in|[\w|*-]+\)"
    r"|if \[ \"?\$1\"? = \"?configure\"? \](?:; then)?|dpkg-maintscript-helper (?:rm_conffile|mv_conffile) .*"
)
"""What comes to nothing in a new image: the loader finds libraries in its own folders without ldconfig's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A name for one of several files, as `update-alternatives --install` is told it."""

    link: str
    name: str
    path: str
    priority: int


def read_alternatives(deb: Deb) -> tuple[Alternative, ...]:
    """The names that a package would give its files, where its script says it without variables."""
    found = (_alternative(line) for line in _lines(deb))
    return tuple(it for it in found if it)


def left_undone(deb: Deb) -> bool:
    """Whether a package's `postinst` does more than what needs no doing, or is done here."""
    return any(not _HARMLESS.fullmatch(line) and _alternative(line) is None for line in _lines(deb))


def make_alternatives(debs: Sequence[Deb], links: Mapping[str, str]) -> Iterator[Item]:
    """Yield the links and the records of names; what the base has chosen for a name stays chosen."""
    named: dict[str, list[Alternative]] = {}
    for deb in debs:
        for it in read_alternatives(deb):
            named.setdefault(it.name, []).append(it)
    for name in sorted(named.keys() - {path.rpartition("/")[2] for path in links if path.startswith(f"{_CHOSEN}/")}):
        choices = sorted(named[name], key=lambda it: (-it.priority, it.path))
        yield _link(choices[0].link[1:], f"/{_CHOSEN}/{name}")
        yield _link(f"{_CHOSEN}/{name}", choices[0].path)
        rows = "".join(f"{it.path}\n{it.priority}\n" for it in sorted(choices, key=lambda it: it.path))
        text = f"auto\n{choices[0].link}\n\n{rows}\n".encode()
        yield Item(path=f"{_ADMIN}/{name}", kind="file", mode=0o644, size=len(text), source=text)


def remarks(deb: Deb) -> Iterator[str]:
    """Say what a person has to know of a package that was only unpacked."""
    name = fields(deb.control)["Package"]
    if left_undone(deb):
        yield f"{name} was unpacked only: its postinst does more than tell the loader, and was not run"
    if any(it.path.startswith("etc/ld.so.conf.d/") for it in deb.items):
        yield f"{name} adds folders of libraries by /etc/ld.so.conf.d, which count when ldconfig has run in the image"


def _lines(deb: Deb) -> list[str]:
    text = deb.scripts.get("postinst", b"").decode(errors="replace").replace("\\\n", " ")
    return [" ".join(line.split()) for line in _COMMENT.sub("", text).splitlines() if line.strip()]


def _alternative(line: str) -> Alternative | None:
    if not line.startswith("update-alternatives --install ") or set("$`;&|<>*") & set(line):
        return None
    try:
        words = shlex.split(line)[2:]
        link, name, path, priority = words
        found = Alternative(link=link, name=name, path=path, priority=int(priority))
    except ValueError:
        return None
    safe = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[\w.+~:@-]+)+")
    right = safe.fullmatch(link) and safe.fullmatch(path) and safe.fullmatch(f"/{name}") and "/" not in name
    return found if right else None


def _link(path: str, target: str) -> Item:
    return Item(path=path, kind="symlink", mode=0o777, target=target)


_FORMAT = 4
"""Raised whenever the same packages would give other bytes."""
_UNREAD = ("usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/")
"""What no program reads; copyrights stay."""
_DOC = "usr/share/doc/"
LINE = "system packages"
"""How the history's line of the layer begins."""


def packages_key(recipe: Recipe) -> Digest:
    """Everything that decides the layer's bytes: the base's own records and folders are in it."""
    value = [LINE, _FORMAT, str(recipe.base_digest), [str(it.sha256) for it in recipe.packages]]
    return Digest.of(canonical_json(value))


def packages_line(packages: Iterable[SystemPackage]) -> str:
    """The history's line of the layer."""
    return f"{LINE}: {', '.join(f'{it.name} {it.version}' for it in packages)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLayer:
    """The packages of a recipe, where they are, and what they are unpacked on."""

    ground: Ground
    find: Callable[[SystemPackage], Path]
    """Gets a package's file, which is held against the lock; LockError where it cannot be had."""

    def write(
        self, packages: Sequence[SystemPackage], sink: BinaryIO, pool: Executor, told: Callable[[list[str]], object]
    ) -> LayerResult:
        """Write the layer; `told` gets what a person has to know of packages that were only unpacked."""
        with ExitStack() as stack:
            debs = [open_deb(self.find(it), it.sha256, stack) for it in sorted(packages, key=lambda it: it.name)]
            told([line for deb in debs for line in remarks(deb)])
            return write_compressed(tarred(layer_items(debs, self.ground)), sink, pool)


def layer_items(debs: Sequence[Deb], ground: Ground) -> list[Item]:
    """Everything that the layer has, parents before what lies in them, sorted by path.

    BuildError where packages and base do not fit into each other.
    """
    links = dict(ground.links)
    for deb in debs:
        links |= {it.path: it.target for it in deb.items if it.kind == "symlink" and it.path not in ground.folders}
    found: dict[str, Item] = {}
    for deb in debs:
        for item in _shipped(deb, ground):
            _put(found, item, placed(_followed(item, links), links), ground)
    for item in (*make_alternatives(debs, ground.links), *records(ground.status, debs)):
        found[placed(item.path, links)] = item
    _add_parents(found, ground)
    return [_moved(found[path], path) for path in sorted(found, key=lambda path: path.split("/"))]


def _shipped(deb: Deb, ground: Ground) -> Iterator[Item]:
    """What of a package goes into the image."""
    held = ground.settings & set(conffiles(deb))
    for item in deb.items:
        unread = item.path.startswith(_UNREAD) or (
            item.path.startswith(_DOC) and item.kind == "file" and not item.path.endswith("/copyright")
        )
        if not unread and item.path not in held:
            yield item


def _followed(item: Item, links: Mapping[str, str]) -> str:
    """A folder that is a link in the base is what the link leads to, so that the link stays."""
    return f"{item.path}/." if item.kind == "directory" and item.path in links else item.path


def _put(found: dict[str, Item], item: Item, path: str, ground: Ground) -> None:
    if item.kind == "directory":
        if path not in ground.folders:
            found.setdefault(path, item)
        return
    if path in ground.folders:
        if item.kind == "symlink":  # dpkg leaves a folder where a package has a link
            return
        raise _clash(path, "a folder of the base is a file of a package")
    other = found.get(path)
    if other and other.kind == "directory":
        raise _clash(path, "a folder of a package is a file or link of another")
    found[path] = item


def _clash(path: str, what: str) -> BuildError:
    todo = "use a base of the run's distribution, or build with --no-system-packages"
    return BuildError(f"system packages do not fit: {what}", where=f"/{path}", todo=todo)


def _add_parents(found: dict[str, Item], ground: Ground) -> None:
    for path in list(found):
        parent = path.rpartition("/")[0]
        while parent and parent not in found:
            folder = ground.folders.get(parent, Folder(mode=0o755, owner=(0, 0)))
            found[parent] = Item(path=parent, kind="directory", mode=folder.mode, owner=folder.owner)
            parent = parent.rpartition("/")[0]
        if parent and found[parent].kind != "directory":
            raise _clash(parent, "a folder of a package is a file or link of another")


def _moved(item: Item, path: str) -> Item:
    return Item(
        path=path,
        kind=item.kind,
        mode=item.mode,
        owner=item.owner,
        size=item.size,
        target=item.target,
        source=item.source,
    )


def tarred(items: Iterable[Item]) -> Iterator[bytes]:
    """The tar of a layer."""
    for item in items:
        yield tar.header(tar.Entry(item.path, item.kind, item.mode, item.size, target=item.target, owner=item.owner))
        if item.size:
            yield from item.content()
            yield bytes(tar.padding(item.size))
    yield tar.END
