"""The packages of a base: dpkg's records, their licences, and distributions of Python.

Read together with the base's other facts, and kept in the cache by the layers: nobody reads a base twice.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from envbuild.cache import read_entry, write_entry
from envbuild.image.debian.package import fields, stanzas
from envbuild.lock.metadata import Metadata, read_metadata
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.rootfs import Tree, read_tree, resolve
from envbuild.recipe import PREFIX
from envbuild.validation import read_values

_FORMAT = 2
"""Raised whenever something else would be read from the same base."""
_STATUS, _STATUS_FOLDER = "var/lib/dpkg/status", "var/lib/dpkg/status.d/"
_RELEASES = ("/etc/os-release", "/usr/lib/os-release")
_RELEASE_LINE = re.compile(r"""^(ID|VERSION_ID|PRETTY_NAME)=(["']?)([^"'\n]*)\2$""", re.MULTILINE)
_LONGEST = 120
"""Letters of a licence's name."""
_METADATA = re.compile(r"(.+\.(?:dist-info|egg-info))(?:/METADATA|/PKG-INFO)?")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_SOURCE = re.compile(rf"({_NAME.pattern})(?: \((\S+)\))?")
_MACHINE_READABLE = re.compile(r"\s*Format(?:-Specification)?:", re.IGNORECASE)
"""The beginning of a copyright file in Debian's machine-readable format 1.0."""
_LICENSE = re.compile(r"^License:[ \t]*(\S.*)$", re.MULTILINE)
_BETWEEN = re.compile(r",?\s+(?:and|or)\s+|,\s*", re.IGNORECASE)
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9_.-]*[A-Za-z0-9])")
"""The texts that other copyright files refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPackage:
    """A Debian package of a base."""

    name: str
    version: str
    architecture: str
    source: str = ""
    """`NAME` or `NAME@VERSION` of its source package, where it differs."""
    supplier: str = ""
    """Its maintainer."""
    licenses: tuple[str, ...] = ()
    """As its copyright file names them, sorted."""
    requires: tuple[str, ...] = ()
    """Names of the installed packages that it depends on, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseContents:
    """The packages of a base."""

    release: Mapping[str, str] = field(default_factory=dict)
    """Its os-release: `ID`, `VERSION_ID`, `PRETTY_NAME`."""
    packages: tuple[InstalledPackage, ...] = ()
    """Sorted by name and architecture; empty for a base without dpkg's records."""
    distributions: tuple[Metadata, ...] = ()
    """Of Python, outside the environment; sorted by path."""


def read_contents(image: Image, name: str, folder: Path) -> BaseContents:
    """The packages of a base, as `folder` has them, else read from its layers; BaseError as `read_tree`."""
    known = read_entry(folder, _entry(image), partial(read_values, kind=BaseContents))
    return known or note_contents(image, read_tree(image, name), folder)


def note_contents(image: Image, tree: Tree, folder: Path) -> BaseContents:
    """Find the packages of a base whose tree is read, and keep them in `folder`."""
    found = find_contents(tree)
    write_entry(folder, _entry(image), asdict(found))
    return found


def _entry(image: Image) -> str:
    layers = Digest.of(canonical_json([str(it.diff_id) for it in image.layers]))
    return f"{layers.hex}-contents-{_FORMAT}.json"


def find_contents(tree: Tree) -> BaseContents:
    """Find the packages of a base."""
    release = next((text for path in _RELEASES if (text := _text(tree, path))), "")
    return BaseContents(
        release={key: value for key, _, value in _RELEASE_LINE.findall(release)},
        packages=tuple(_packages(tree)),
        distributions=tuple(_distributions(tree)),
    )


def _text(tree: Tree, path: str) -> str:
    place = resolve(tree, path)
    return tree[place[1:]].content.decode(errors="replace") if place and place != "/" else ""


def _packages(tree: Tree) -> Iterator[InstalledPackage]:
    folder = sorted(path for path in tree if path.startswith(_STATUS_FOLDER))  # of distroless bases
    texts = [_text(tree, f"/{path}") for path in (_STATUS, *folder)]
    found = [fields(stanza) for text in texts for stanza in stanzas(text)]
    # distroless bases leave the state out
    installed = [it for it in found if it.get("Status", " installed").endswith(" installed")]
    installed = [it for it in installed if _NAME.fullmatch(it.get("Package", "")) and it.get("Version")]
    providers = defaultdict[str, set[str]](set)
    for it in installed:
        for name in (it["Package"], *_names(it.get("Provides", ""))):
            providers[name].add(it["Package"])
    for it in sorted(installed, key=lambda it: (it["Package"], it.get("Architecture", ""))):
        required = _names(f"{it.get('Depends', '')},{it.get('Pre-Depends', '')}")
        source = _SOURCE.fullmatch(it.get("Source", ""))
        yield InstalledPackage(
            name=it["Package"],
            version=it["Version"],
            architecture=it.get("Architecture", ""),
            source="@".join(filter(None, source.groups())) if source else "",
            supplier=it.get("Maintainer", "").partition(" <")[0],
            licenses=_licenses(_text(tree, f"/usr/share/doc/{it['Package']}/copyright")),
            requires=tuple(sorted({one for name in required for one in providers[name]} - {it["Package"]})),
        )


def _names(relations: str) -> Iterable[str]:
    """The names in a relationship field, alternatives too (Debian Policy, section 7.1)."""
    parts = (re.split(r"[\s(:]", it.strip(), maxsplit=1)[0] for it in re.split(r"[,|]", relations))
    return [it for it in parts if it]


def _licenses(copyright_file: str) -> tuple[str, ...]:
    if _MACHINE_READABLE.match(copyright_file):
        lines = _LICENSE.findall(copyright_file)
        parts = (it for line in lines for it in _BETWEEN.split(" ".join(line.split())))
        return tuple(sorted({it.strip() for it in parts if len(it) <= _LONGEST} - {""}))
    return tuple(sorted(set(_COMMON.findall(copyright_file))))


def _distributions(tree: Tree) -> Iterator[Metadata]:
    for path in sorted(tree):
        place = _METADATA.fullmatch(path)
        if place and tree[path].content and not path.startswith(f"{PREFIX[1:]}/"):
            found = read_metadata(tree[path].content.decode(errors="replace"), place[1])
            if found:
                yield found
