"""`environment.yml`, and what `conda env export` prints, as YAML or JSON."""

import re
from collections.abc import Iterator
from typing import Any

from envbuild.manifest.formats.conda import EXPORT, Installed, channel, found_in
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given
from envbuild.manifest.formats.record import Faults, Record, clean, quoted, text_at, texts
from envbuild.manifest.formats.yaml_text import yaml_of
from envbuild.manifest.packages import CondaPackage

_SPEC = re.compile(r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<rest>.*)", re.ASCII)
_EXACT = re.compile(r"(?P<equal>==?)\s*(?P<version>[A-Za-z0-9_.!+]+)(?:=(?P<build>[A-Za-z0-9_.+]+))?", re.ASCII)
_PYTHON = re.compile(r"={0,2}\s*([0-9]+(?:\.[0-9]+)*)(?:\.\*)?(?:=.*)?")


def read_environment(record: Record, given: Given) -> Found:
    """Read the packages that were exported, and those below `pip:`; ManifestError."""
    values, faults = yaml_of(record), Faults(record.name)
    entries = values.get("dependencies") if isinstance(values, dict) else None
    if not isinstance(entries, list):
        faults.add("dependencies: there is no list", EXPORT)
        entries = []
    specs = [(it, f"dependencies[{index}]") for index, it in enumerate(entries) if isinstance(it, str)]
    exported = text_at(values, "prefix") is not None
    packages = [made for text, place in specs if (made := _package(text, place, faults, exported=exported))]
    faults.check()
    installed = Installed(
        packages=tuple(packages),
        python=python_of(entries),
        pip=tuple(pip_lines(entries)),
        name=clean(text_at(values, "name") or "") or None,
        channels=tuple(filter(None, map(channel, texts(values.get("channels"))))),
        notes=tuple(_variables(values.get("variables"))),
    )
    return found_in(installed, record, given, faults)


def pip_lines(entries: Any) -> Iterator[tuple[str, str]]:
    """Yield the lines below `- pip:`, each with its place."""
    for at, entry in enumerate(entries if isinstance(entries, list) else ()):
        for index, line in enumerate(texts(entry.get("pip")) if isinstance(entry, dict) else ()):
            yield line, f"dependencies[{at}].pip[{index}]"


def python_of(entries: Any) -> str | None:
    """Return the version of Python as far as it is said: `3.10.12`, or `3.10`."""
    for text in texts(entries):
        spec = _SPEC.fullmatch(text.strip())
        if spec and spec["name"] == "python":
            match = _PYTHON.fullmatch(spec["rest"])
            return match[1] if match else None
    return None


def _package(text: str, place: str, faults: Faults, *, exported: bool) -> CondaPackage | None:
    """Read `channel::name=version=build`; a single = is a prefix (1.24 means 1.24.*) except in what was exported."""
    spec = _SPEC.fullmatch(text.strip())
    if spec is None:
        faults.add(f"{place}: this is no package of conda: {quoted(text)}", "correct or remove it")
        return None
    name, rest = spec["name"].lower(), spec["rest"].strip()
    exact = _EXACT.fullmatch(rest if rest[:1] in set("=<>!~[") else "==" + "=".join(rest.split()))
    sure = exact and (exported or exact["equal"] == "==" or exact["build"] or name == "python")
    if exact and sure:
        made = CondaPackage(name=name, version=exact["version"], build=exact["build"], channel=channel(spec["channel"]))
        return made if name != "python" or made.version.count(".") == 2 else None
    if name not in {"pip", "python"}:  # every environment.yml asks for pip; which Python is an option's business
        faults.add(f"{place}: {quoted(text)} is no exact version", EXPORT)
    return None


def _variables(values: Any) -> Iterator[str]:
    if isinstance(values, dict) and values:
        names = ", ".join(sorted(clean(str(name)) for name in values))
        yield f"the environment variables {names} are left out, as their values may be private"
