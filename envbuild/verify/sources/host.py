"""The machine here as a source: what it has now, and whether what a program needs can be reached from here."""

import ast
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from envbuild.capture.checkout import tree_facts
from envbuild.capture.contract import MOST_OBJECTS, Budget, bounded, local_facts, local_files
from envbuild.capture.files import present
from envbuild.capture.gcs import Unread
from envbuild.capture.host import accelerator_facts, cpu_facts, platform_facts
from envbuild.capture.redact import REDACTED, hides_secret, scrub
from envbuild.errors import EnvbuildError
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.manifest.model import Contract, Data, Platform, TrainingManifest
from envbuild.stamp.store import parse_model_uri
from envbuild.validation import read_or_none
from envbuild.verify.sources import Side, module_name, side_of_manifest

T = TypeVar("T")
LARGEST_READ = 1 << 30
"""Bytes; of larger data only the size is looked at."""
Visible = Callable[[str], bool | None]
"""Whether an object or folder in Cloud Storage can be seen from here; None where that is not known."""
_MOST_SOURCES, _LONGEST = 2000, 1 << 20
"""Sources that are looked at, and bytes of each: the code of a server is much smaller."""
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages"})


def side_of_host(
    environment: TrainingManifest | None,
    wanted: Contract,
    name: str = "host",
    *,
    folder: Path = Path(),
    visible: Visible = lambda _uri: None,
) -> Side:
    """What this machine has now, with an environment of it that was captured; without, no package is known.

    Data and code of `wanted` are looked for from `folder`, and data in Cloud Storage by `visible`; local files and
    folders of at most a GiB are hashed where their size is the run's. Values that a capture would cut secrets out of
    are left out, and their names are not.
    """
    if environment:
        side = side_of_manifest(environment, name)
    else:
        it = _read(Platform, platform_facts()) or Platform()
        system, machine, libc, version = it.system, it.machine, it.libc, it.libc_version
        side = Side(name=name, kind="host", system=system, machine=machine, libc=libc, libc_version=version)
    variables: dict[str, str] = present(dict(os.environ))  # spelled as a capture spells them
    # without a secret, so that any message may show it
    plain = {key: it for key, it in variables.items() if not hides_secret(key, it, sure=True) and scrub(it) == it}
    there = (it for it in wanted.data if it.checksum or it.size is not None)
    seen = {it.uri: _is_visible(os.environ.get(it.variable or "") or it.uri, folder, visible) for it in wanted.data}
    looked = not seen or any(it is not None for it in seen.values())
    return replace(
        side,
        kind="host",
        accelerator=_read(Accelerator, accelerator_facts()),
        cpu=_read(Cpu, cpu_facts()),
        variables=plain,
        names=frozenset(variables),
        contract=Contract(),
        model=None,
        numerics=None,
        absent_data=frozenset(uri for uri, it in seen.items() if it is False) if looked else None,
        data={it.uri: now for it in there if (now := _data_now(it, folder))},
        trees=_trees(wanted, folder),
    )


def _read(kind: type[T], facts: dict[str, Any]) -> T | None:
    """Facts as a manifest would have them; None where it would refuse them."""
    return read_or_none(present(facts), kind)


def _is_visible(place: str, folder: Path, visible: Visible) -> bool | None:
    """Whether there is something at a place; where a variable names it, that is wherever the variable points here."""
    if REDACTED in place:
        return None
    if place.startswith("gs://"):
        return visible(place)
    path = _local(place, folder)
    try:
        return path.exists() if path else None
    except (OSError, ValueError):  # a folder without permission, or an invalid path
        return False


def _local(place: str, folder: Path) -> Path | None:
    """The path of a place on this machine; None where it is elsewhere."""
    if "://" not in place:
        return folder / place
    return folder / unquote(urlsplit(place).path) if place.startswith("file://") else None


def _data_now(data: Data, folder: Path) -> Data | None:
    """Size and, where the size is the run's and not above a limit, checksum; None where there is nothing to compare."""
    place = os.environ.get(data.variable or "") or data.uri
    path = None if REDACTED in place else _local(place, folder)
    budget = Budget(end=math.inf, most=MOST_OBJECTS)
    try:
        if path is None or not (path.is_file() or (path.is_dir() and data.objects is not None)):
            return None
        files = None if path.is_file() else bounded(local_files(str(path)), budget)
        size = path.stat().st_size if files is None else sum(it["size"] for it in files)
        alike = data.size in (None, size) and (data.checksum or "").startswith("sha256:")
        checksum = local_facts(str(path), budget)["checksum"] if alike and size <= LARGEST_READ else None
        return Data(uri=data.uri, size=size, objects=None if files is None else len(files), checksum=checksum)
    except (OSError, ValueError, Unread):  # without permission, an invalid path, or more files than a capture reads
        return None


def _trees(wanted: Contract, folder: Path) -> dict[str, str]:
    """Git's digests of the code that exists here; where it does not, of what is imported here by the same name."""
    digests = {it.path: _tree(folder / it.path) for it in wanted.preprocessing}
    for path in [it for it, digest in digests.items() if digest is None]:
        for place in find_imported(folder, module_name(path)):
            digests.setdefault(place, _tree(folder / place))
    return {path: digest for path, digest in digests.items() if digest}


def _tree(path: Path) -> str | None:
    try:
        digest: str | None = tree_facts(str(path)).get("git_tree")
    except ValueError:  # there is nothing
        return None
    return digest


def find_imported(folder: Path, name: str) -> list[str]:
    """Return the files and folders of a module's name that other sources below a folder import, from that folder."""
    sources = list(islice(_sources(folder), _MOST_SOURCES))
    places = [it.relative_to(folder) for it in sources]
    called = {it for place in places for it in (place, *place.parents) if it.name in (name, f"{name}.py")}
    if not called:
        return []
    importing = [place for place, source in zip(places, sources, strict=True) if name in _imported(source, name)]
    return sorted(str(it) for it in called if any(it not in (place, *place.parents) for place in importing))


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, without those of environments and of hidden folders."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            it
            for it in folders
            if it not in _FOREIGN and not it.startswith(".") and not Path(parent, it, "pyvenv.cfg").exists()
        )
        yield from (Path(parent, it) for it in sorted(files) if it.endswith(".py"))


def _imported(source: Path, name: str) -> set[str]:
    """Return the parts of all names that a source imports; none of one that does not have the text `name`."""
    try:
        with source.open("rb") as file:
            data = file.read(_LONGEST)
        nodes = list(ast.walk(ast.parse(data))) if name.encode() in data else []
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [it.name for it in node.names]
        if isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return {part for it in found for part in it.split(".")}


def visible(uri: str) -> bool | None:
    """Whether the object, or anything in the folder, at a gs:// URI can be seen; None where that is not known.

    That is without credentials, or where Cloud Storage cannot be reached.
    """
    from envbuild.stamp.gcs import GcsStore, connected  # noqa: PLC0415 - Google's client takes a second to load

    try:
        place = parse_model_uri(uri)
        if place.bucket is None:
            return None
        with connected() as client:
            here, above = (GcsStore(client, place.bucket, folder) for folder in (place.path, place.parent))
            return above.state(place.name) is not None or bool(here.names(deep=True))
    except EnvbuildError as error:
        return False if getattr(error.__cause__, "code", None) in (403, 404) else None
