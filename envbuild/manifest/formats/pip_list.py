"""`pip list` and `uv pip list`, as a table or as JSON: name and version of everything that was installed."""

import re
from collections.abc import Iterator

from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import Pins, origin_of
from envbuild.manifest.formats.record import Faults, Record, clean, json_of, lines_of, quoted, text_at, text_of
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Distribution, Origin

TABLE = re.compile(r"\s*Package +Version( +Editable project location)?.*\r?\n-.*\r?\n")
_AGAIN = "write it again: pip list --format=json"
_NO_ORIGIN = "pip list does not say where distributions came from; `pip inspect` does"
Row = tuple[str, str, str | None]
"""Name, version, and the folder of an editable install."""


def read_pip_list(record: Record, given: Given) -> Found:
    """Read every distribution; ManifestError."""
    text, faults = text_of(record), Faults(record.name)
    python, platform = exact_python(None, given, record.name), known_platform(Platform(), given)
    pins = Pins(Surroundings(python=python, system=platform.system, machine=platform.machine), faults)
    rows = _of_json(record, text, faults) if text.lstrip().startswith("[") else _of_table(record, text, faults)
    for (name, version, folder), place in rows:
        origin = Origin(kind="editable", url=origin_of(folder).url) if folder else Origin(kind="index")
        pins.add(Distribution(name=name, version=version, origin=origin), place)
    if not pins.found:
        faults.add("the record names no distribution", _AGAIN)
    faults.check()
    return Found(python=python, platform=platform, distributions=pins.distributions, complete=True, notes=(_NO_ORIGIN,))


def _of_json(record: Record, text: str, faults: Faults) -> Iterator[tuple[Row, str]]:
    items = json_of(record, text)
    for index, item in enumerate(items if isinstance(items, list) else ()):
        name, version = text_at(item, "name"), text_at(item, "version")
        if name and version:
            yield (name, version, text_at(item, "editable_project_location")), f"[{index}]"
        else:
            faults.add(f"[{index}]: there is no name and version", _AGAIN)


def _of_table(record: Record, text: str, faults: Faults) -> Iterator[tuple[Row, str]]:
    """Read a table whose third column, if it has that title, is the folder of an editable install."""
    head = TABLE.match(text)
    editable = bool(head and head[1])
    start = text.count("\n", 0, head.end()) if head else 0
    for number, line in enumerate(lines_of(record, text)[start:], start + 1):
        cells = line.split(maxsplit=2 if editable else -1)
        if len(cells) > 1:
            folder = clean(cells[2]) if editable and cells[2:] else None
            yield (cells[0], cells[1], folder), f"line {number}"
        elif cells:
            faults.add(f"line {number}: this is no row of the table: {quoted(line)}", _AGAIN)
