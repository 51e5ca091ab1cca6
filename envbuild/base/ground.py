"""What unpacked Debian packages meet in a base, read from its layers once and kept."""

import posixpath
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envbuild.base.tree import Tree, contents, read_tree, resolve
from envbuild.cache import read_entry, write_entry
from envbuild.image.debian import Folder, Ground
from envbuild.oci.image import Image

_FORMAT = 1
"""Raised whenever something else would be read from the same bytes."""
_STATUS = "/var/lib/dpkg/status"
_RELEASES = ("/etc/os-release", "/usr/lib/os-release")
_MOST = 64 << 20
"""Bytes of a file that is read whole; a database of ten thousand packages has 20 MB."""
_LINE = re.compile(r"""^([A-Z_]+)=(["']?)([^"'\n]*)\2$""", re.MULTILINE)
_KEYS = ("ID", "VERSION_ID", "VERSION_CODENAME")


def read_ground(image: Image, name: str, cache: Path) -> Ground:
    """What lies in a base, from the cache where it was read before; BaseError when a layer cannot be read."""
    folder, kept = cache / "bases" / "facts", f"{image.digest.hex}-ground-{_FORMAT}.json"
    if (found := read_entry(folder, kept, _decode)) is not None:
        return found
    ground = _read(image, name)
    value = asdict(ground) | {"settings": sorted(ground.settings), "libraries": sorted(ground.libraries)}
    write_entry(folder, kept, value)
    return ground


def _decode(value: Any) -> Ground:
    folders = {key: Folder(mode=it["mode"], owner=tuple(it["owner"])) for key, it in value.pop("folders").items()}
    settings, libraries = (frozenset(value.pop(key)) for key in ("settings", "libraries"))
    return Ground(folders=folders, settings=settings, libraries=libraries, **value)


def _read(image: Image, name: str) -> Ground:
    tree = read_tree(image, name)
    texts = _texts(image, tree, name)
    return Ground(
        status=texts.get(_STATUS, ""),
        release=_release(next((texts[it] for it in _RELEASES if it in texts), "")),
        folders={
            path: Folder(mode=node.mode, owner=node.owner) for path, node in tree.items() if node.kind == "directory"
        },
        links={path: node.target for path, node in tree.items() if node.kind == "link"},
        settings=frozenset(path for path in tree if path.startswith("etc/") and tree[path].kind == "file"),
        libraries=frozenset(posixpath.basename(path) for path in tree if ".so" in path),
    )


def _texts(image: Image, tree: Tree, name: str) -> dict[str, str]:
    """The files that are read whole, by the path that they are asked for under."""
    places = {place[1:]: path for path in (_STATUS, *_RELEASES) if (place := resolve(tree, path))}
    found = contents(image, tree, places, name)
    return {places[place]: content.read(_MOST).decode(errors="replace") for place, _, content in found}


def _release(text: str) -> dict[str, Any]:
    """What os-release(5) says of the distribution; older ones name the release only in words: `9 (stretch)`."""
    said = {key: value for key, _, value in _LINE.findall(text)}
    if "VERSION_CODENAME" not in said and (words := re.search(r"\(([a-z]+)\)", said.get("VERSION", ""))):
        said["VERSION_CODENAME"] = words[1]
    return {key: said[key] for key in _KEYS if key in said}
