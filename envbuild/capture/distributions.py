"""The installed distributions, each once, and where each came from."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import unquote, urlsplit

from envbuild.capture.checkout import checkout_facts
from envbuild.capture.conda import conda_owners, project_of
from envbuild.capture.files import Facts, decoded, normal_name, read_bytes, read_text
from envbuild.capture.redact import scrub_line

METADATA = {".dist-info": ("METADATA",), ".egg-info": ("PKG-INFO", "")}
"""By the end of the folder's name; distutils wrote one plain file."""
LONGEST_HEAD = 1 << 18
"""Bytes of metadata; the description after them may be a book."""
NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
VERSION = re.compile(
    r"v?([0-9]+!)?[0-9]+(\.[0-9]+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]*)?"
    r"(-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*)?([-_.]?dev[-_.]?[0-9]*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?",
    re.IGNORECASE | re.ASCII,
)
"""PEP 440, appendix B."""
LONGEST_VARIANT = 1 << 20
"""Bytes of a variant.json; a longer one is not read."""
VARIANT_LABEL, VARIANT_PROPERTY = re.compile("[0-9a-z_.]{1,200}"), re.compile("[0-9a-z_]+ :: [0-9a-z_]+ :: [0-9a-z_.]+")
NO_INDEX = ("debian", "rpm")
"""INSTALLER of packages of the operating system."""
SITE_NAMES = ("site-packages", "dist-packages")
MADE_BY_VENV = ("_virtualenv.py",)
"""Files that virtualenv and uv add to each environment."""
MODULE_SUFFIXES = (".py", ".so", ".pyc")
"""Bytecode without a source is imported too."""
_ADDED_BY_INSTALLERS = re.compile(
    r"[^/]+\.dist-info/(INSTALLER|RECORD(\.jws|\.p7s)?|REQUESTED|direct_url\.json|provenance_url\.json|uv_\w+\.json)"
)
_WHEEL_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|[^/]+)/")


def find_distributions(patch: bool) -> dict[str, Facts]:
    """Find each installed distribution once, by metadata folder, sorted by name: the first on sys.path wins.

    A distribution that conda installed without metadata has its first entry as its path.
    """
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in metadata_paths():
        name, version = identity(path) or ("", "")
        if name:
            found.setdefault(normal_name(name), []).append((path, name, version))
    conda, linked = conda_owners(), _linked_projects()
    for path, name, version in _without_metadata(conda):
        found.setdefault(normal_name(name), [(path, name, version)])
    distributions = {}
    for _, same in sorted(found.items()):
        path, _, version = same[0]
        if path.endswith(".egg-info"):
            # The dist-info of an editable install knows more than the egg-info of its source folder.
            better = (item for item in same[1:] if item[0].endswith(".dist-info") and item[2] == version)
            path = next(better, same[0])[0]
        name, version = next((item[1], item[2]) for item in same if item[0] == path)
        others = [item for item in same if item[0] != path]
        distributions[path] = dict(
            _distribution_facts(path, conda.get(os.path.realpath(path)), linked, patch),
            name=name,
            version=version,
            # The egg-info of the same version is that of an editable install's sources.
            shadowed=[it[2] for it in others if it[2] != version or not it[0].endswith(".egg-info")] or None,
        )
    return distributions


def _without_metadata(conda: dict[str, Facts]) -> Iterator[tuple[str, str, str]]:
    """Yield path, project and version of packages that conda installed without metadata and the run could import."""
    folders = set(map(os.path.realpath, site_folders()))
    for path, item in conda.items():
        facts = item["facts"]
        name = project_of(facts["name"], facts["build"])
        bare = not path.endswith((".dist-info", ".egg-info")) and os.path.dirname(path) in folders
        valid = bare and name and VERSION.fullmatch(facts["version"])
        if valid and any(is_module(*os.path.split(entry)) for entry in item["entries"]):
            yield path, str(name), facts["version"]


def _distribution_facts(path: str, conda: Facts | None, linked: dict[str, str], patch: bool) -> Facts:
    record = read_bytes(os.path.join(path, "RECORD"))
    installer = scrub_line((read_text(os.path.join(path, "INSTALLER")) or "").strip()) or None
    return {
        "origin": origin_of(path, installer, conda, linked, patch),
        "installer": installer,
        "requested": os.path.exists(os.path.join(path, "REQUESTED")),
        "record_sha256": hashlib.sha256(record).hexdigest() if record is not None else None,
        "content_sha256": record_content(decoded(record)) if record is not None else None,
        "wheel_variant": wheel_variant(read_bytes(os.path.join(path, "variant.json"), LONGEST_VARIANT)),
    }


def wheel_variant(data: bytes | None) -> Facts | None:
    """Read the label and properties in a variant.json (PEP 825, a draft); None if it is absent or not valid."""
    try:
        (label, namespaces), *others = json.loads(decoded(data or b""))["variants"].items()
        properties = {
            "%s :: %s :: %s" % (namespace, feature, value)
            for namespace, features in namespaces.items()
            for feature, values in features.items()
            for value in list.copy(values)
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    valid = not others and VARIANT_LABEL.fullmatch(label) and all(map(VARIANT_PROPERTY.fullmatch, properties))
    return {"label": label, "properties": sorted(properties)} if valid else None


def record_content(text: str) -> str | None:
    """Digest the paths and hashes of the wheel's files in a RECORD; None when it names none of them.

    The RECORD in a wheel and the one that pip or uv installs give the same digest. It leaves out the installers'
    files, bytecode, and files outside of site-packages, where scripts get the environment's own interpreter line.
    """
    try:
        rows = [row for row in csv.reader(text.splitlines()) if len(row) > 1 and row[1]]
    except csv.Error:
        return None
    lines = {"%s,%s" % (path, row[1].rstrip("=")) for row in rows for path in [_installed_path(row[0])] if path}
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogatepass")).hexdigest() if lines else None


def _installed_path(path: str) -> str | None:
    """Return a wheel's file as it lies in site-packages; None for what does not count."""
    folder = _WHEEL_DATA.match(path)
    if folder:
        path = path[folder.end() :] if folder.group(1) in ("purelib", "platlib") else ""
    outside = path.startswith(("/", "../")) or re.match("[A-Za-z]:", path)
    if not path or outside or path.endswith(".pyc") or _ADDED_BY_INSTALLERS.fullmatch(path):
        return None
    return path


def metadata_paths() -> list[str]:
    """List the metadata of all distributions in the order of imports, without those that a package vendors."""
    folders: dict[str, str] = {}
    for entry in sys.path:
        try:
            folder = os.path.abspath(entry or os.curdir)
            folders.setdefault(os.path.realpath(folder), folder)
        except (OSError, TypeError, ValueError):
            continue  # the working directory was deleted, or sys.path holds something else than a path
    return [path for folder in _without_vendored(folders) for path in _metadata_in(folder)]


def _metadata_in(folder: str) -> list[str]:
    """List the metadata in one folder: wheels before eggs, the leftovers of an upgrade last."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # pip renames what it is about to remove to ~ame.
                if entry.name.endswith((".dist-info", ".egg-info")) and entry.name[0] not in "~.":
                    try:
                        changed = entry.stat().st_mtime
                    except OSError:
                        changed = 0.0
                    found.append((os.path.splitext(entry.name)[1], -changed, entry.path))
    except (OSError, ValueError):
        return []
    own = [os.path.join(folder, "EGG-INFO")] if folder.endswith(".egg") else []
    return own + [path for _, _, path in sorted(found)]


def identity(path: str) -> tuple[str, str] | None:
    """Read name and version of the distribution whose metadata is `path`; None if they are missing or invalid."""
    names = METADATA.get(os.path.splitext(path)[1], ("PKG-INFO",))
    heads = (read_bytes(os.path.join(path, name) if name else path, LONGEST_HEAD) for name in names)
    head = next((decoded(head).split("\n\n", 1)[0] for head in heads if head is not None), "")
    fields: dict[str, str] = {}
    for line in head.lstrip("\ufeff").split("\n"):
        key, _, value = line.partition(":")
        fields.setdefault(key.lower(), value.strip())
    guess = os.path.basename(path).rpartition(".")[0].split("-")
    name = fields.get("name") or guess[0]
    version = fields.get("version") or "".join(guess[1:2])
    valid = head and NAME.fullmatch(name) and VERSION.fullmatch(version) and len(version) <= 200
    return (name, version) if valid else None


def site_folders() -> list[str]:
    """List the folders of sys.path that packages are installed into."""
    own = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    folders = dict.fromkeys(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry)
    return [path for path in folders if (os.path.basename(path) in SITE_NAMES or path in own) and os.path.isdir(path)]


def is_module(folder: str, name: str) -> bool:
    """Tell whether an entry of a site folder can be imported, or holds something that can."""
    if name in MADE_BY_VENV or not name.partition(".")[0].isidentifier() or name == "__pycache__":
        return False
    if name.endswith(MODULE_SUFFIXES):
        return True
    # A namespace package has its modules further down; a folder of data can be large.
    inside = itertools.islice(os.walk(os.path.join(folder, name)), 20) if "." not in name else ()
    return any(file.endswith((".py", ".so")) for _, _, files in inside for file in files)


def _without_vendored(folders: dict[str, str]) -> list[str]:
    """Leave out folders (by real path) of packages on sys.path, unless PYTHONPATH or a .pth file names them."""
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for site in site_folders():
        for name in _names(site, ".pth"):
            lines = decoded(read_bytes(os.path.join(site, name)) or b"").lstrip("\ufeff").split("\n")
            paths = (line.strip() for line in lines if not line.strip().startswith(("#", "import ", "import\t")))
            named += [os.path.join(site, path) for path in paths if path and "\0" not in path]
    try:
        kept = set(map(os.path.realpath, named))
    except OSError:
        # The working directory was deleted, which relative names need.
        kept = set(map(os.path.realpath, filter(os.path.isabs, named)))
    # `pip install --target` installs into any folder.
    installed = {real for real, folder in folders.items() if _names(folder, ".dist-info")}
    installed.update(map(os.path.realpath, site_folders()))
    return [folder for real, folder in folders.items() if real in kept or not _in_package(real, installed)]


def _in_package(folder: str, installed: set[str]) -> bool:
    """Tell whether a folder lies in a package, at any depth, that lies in one of `installed`."""
    package, parent = False, os.path.dirname(folder)
    while parent != os.path.dirname(parent):
        if parent in installed:
            return package
        package = package or os.path.isfile(os.path.join(parent, "__init__.py"))
        parent = os.path.dirname(parent)
    return False


def _names(folder: str, suffix: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(suffix)]
    except (OSError, ValueError):
        return []


def origin_of(path: str, installer: str | None, conda: Facts | None, linked: dict[str, str], patch: bool) -> Facts:
    """Return the origin of the distribution whose metadata lies in `path`; `linked` maps folders to projects."""
    if conda or installer == "conda":
        # conda writes a direct_url.json that names a folder of its build machine.
        package = conda["facts"] if conda else {}
        return dict({key: package.get(key) for key in ("channel", "build", "url", "sha256")}, kind="conda")
    direct = read_text(os.path.join(path, "direct_url.json"))
    if direct is not None:
        try:
            return _direct_origin(json.loads(direct), patch)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {"kind": "unknown"}
    project = linked.get(os.path.realpath(os.path.dirname(path))) if path.endswith(".egg-info") else None
    if project is not None:
        return _editable_origin(project, Path(project).as_uri(), patch)
    known = path.endswith(".dist-info") and installer is not None and installer.lower() not in NO_INDEX
    return {"kind": "index" if known else "unknown"}


def _direct_origin(direct: Any, patch: bool) -> Facts:
    """Read a direct_url.json (PEP 610)."""
    vcs, archive, folder = (direct.get(kind + "_info") for kind in ("vcs", "archive", "dir"))
    origin: Facts = {"url": scrub_line(direct["url"]), "subdirectory": _optional_line(direct.get("subdirectory"))}
    if vcs is not None:
        revision = _optional_line(vcs.get("requested_revision"))
        return dict(origin, kind="vcs", commit=scrub_line(vcs["commit_id"]), requested_revision=revision)
    if archive is not None:
        single = str(archive.get("hash") or "").partition("sha256=")[2]
        digest = str((archive.get("hashes") or {}).get("sha256", single)).lower()
        return dict(origin, kind="archive", sha256=digest if re.fullmatch("[0-9a-f]{64}", digest) else None)
    if folder is None:
        return dict(origin, kind="unknown")
    parts = urlsplit(direct["url"])
    local = folder.get("editable") is True and parts.scheme == "file" and parts.netloc in ("", "localhost")
    return _editable_origin(unquote(parts.path) if local else None, origin["url"], patch)


def _optional_line(value: Any) -> str | None:
    return scrub_line(value) if isinstance(value, str) and value else None


def _editable_origin(folder: str | None, url: str, patch: bool) -> Facts:
    """Describe a folder of sources; the commit of a copy is unknown."""
    facts = checkout_facts(folder, patch, whole=False) if folder is not None else None
    return dict(facts or {}, kind="editable", url=url)


def _linked_projects() -> dict[str, str]:
    """Map each folder that `setup.py develop` put on the path to its project, where its setup.py lies."""
    projects = {}
    folders = (entry for entry in sys.path if isinstance(entry, str) and os.path.isdir(entry))
    for link in (path for folder in folders for path in Path(folder).glob("*.egg-link")):
        lines = (read_text(link) or "").replace("\0", "").split("\n")
        folder = os.path.realpath(lines[0].strip())
        projects[folder] = os.path.normpath(os.path.join(folder, "".join(lines[1:2]).strip()))
    return projects
