"""`pip freeze`, and requirements files: what was installed, or only what was asked for."""

import re
from dataclasses import replace

from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import Pins, file_name, index_origin, of_address
from envbuild.manifest.formats.record import Faults, Record, clean
from envbuild.manifest.formats.requirement_files import Line, RequirementsFile
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Distribution

ONLY_ASKED = "the record lists what was asked for, not everything that was installed"
HIDDEN = "pip freeze leaves out pip, setuptools and wheel unless --all is given"
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9][A-Za-z0-9._-]*)")
_EDITABLE_COMMENT = re.compile(r"# Editable .*\(([A-Za-z0-9._-]+)==([^()\s]+)\)")
"""What `pip freeze` writes above an editable install that it has no repository of."""


def read_freeze(record: Record, given: Given) -> Found:
    """Read what `pip freeze` or `uv pip freeze` printed; ManifestError."""
    file, pins = _read(record, given)
    everything = "pip" in pins.found and not file.lacking
    return _found(file, pins, complete=everything, notes=() if "pip" in pins.found else (HIDDEN,))


def read_requirements(record: Record, given: Given) -> Found:
    """Read a requirements file; with hashes it is whole, as pip demands them for all or for none; ManifestError."""
    file, pins = _read(record, given)
    hashed = bool(file.lines) and all(line.hashes for line in file.lines) and not file.lacking
    return _found(file, pins, complete=hashed, notes=() if hashed else (ONLY_ASKED,))


def take_lines(file: RequirementsFile, pins: Pins) -> None:
    """Take every line of requirements files as a distribution."""
    pins.limits.update(file.limits)
    for line in file.lines:
        if line.is_address:
            _take_address(line, file, pins)
        else:
            pins.require(line.text, line.place, line.hashes)


def _read(record: Record, given: Given) -> tuple[RequirementsFile, Pins]:
    platform = known_platform(Platform(), given)
    python = exact_python(None, given, record.name)
    faults = Faults(record.name)
    pins = Pins(Surroundings(python=python, system=platform.system, machine=platform.machine), faults)
    file = RequirementsFile(faults)
    file.read(record)
    take_lines(file, pins)
    if not pins.found and not faults.found:
        faults.add("the record names no distribution", "give the record that the tool wrote")
    faults.check()
    return file, pins


def _found(file: RequirementsFile, pins: Pins, *, complete: bool, notes: tuple[str, ...]) -> Found:
    return Found(
        python=pins.surroundings.python,
        distributions=tuple(_with_index(it, file.indexes) for it in pins.distributions),
        complete=complete,
        notes=(*notes, *file.notes),
    )


def _with_index(distribution: Distribution, indexes: list[str]) -> Distribution:
    """Say which index a distribution came from, where the file names just one that replaces the default one."""
    if distribution.origin.kind != "index" or len(indexes) != 1 or not indexes[0]:
        return distribution
    return replace(distribution, origin=index_origin(indexes[0], distribution.origin.hashes))


def _take_address(line: Line, file: RequirementsFile, pins: Pins) -> None:
    """Take what is named by an address: its name is in the fragment, in a comment, or in the file's name."""
    said = _EDITABLE_COMMENT.match(line.comment) if line.editable else None
    egg, filename = _EGG.search(line.text), file_name(line.text)
    if said:
        pins.add(of_address(line.text, name=said[1], version=said[2]), line.place)
    elif egg or filename:
        name = egg[1] if egg else filename[0] if filename else ""
        pins.add(of_address(line.text, name=name, hashes=line.hashes), line.place)
    else:
        place, file.lacking = clean(line.text), True
        file.notes.append(f"{line.place} names no distribution, and is left out: {'-e ' * line.editable}{place}")
