"""What conda's records have in common.

conda's packages are recorded as what they are. Those that hold a Python distribution are distributions as well, under
the name of their project, so that the lock has each of them or says that the index lacks it.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from packaging.utils import canonicalize_name

from envbuild.capture.conda import class_of, project_of
from envbuild.errors import ManifestError
from envbuild.manifest.importers.environment import FRAMEWORKS, Environment, RecordOptions
from envbuild.manifest.importers.pins import Pins
from envbuild.manifest.importers.record import (
    MAX_YAML,
    Faults,
    Record,
    check_size,
    clean,
    fact,
    quoted,
    short,
    text_at,
    text_of,
    texts,
)
from envbuild.manifest.importers.requirements import RequirementsFile, take_lines
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Conda, CondaPackage, Distribution, Origin, is_pep440


def yaml_of(record: Record, limit: int = MAX_YAML) -> Any:
    """Read YAML as texts, lists and objects, since 3.10 is a version and no number; no aliases; ManifestError."""
    text = text_of(record)
    check_size(record, len(record.data), limit)
    try:
        return yaml.load(text, Loader=_Texts)  # noqa: S506 - the loader makes texts, lists and dicts only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f"the record is not YAML as it is read here: {_yaml_fault(error)}"
        raise ManifestError(what, where=record.name, todo="correct it, or have the tool write it again") from error


class _Texts(yaml.BaseLoader):
    """Leaves every scalar a text, and refuses aliases: of a few lines they make gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"line {mark.line + 1} has an alias (*), which no record needs")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        made = super().construct_mapping(node, deep=deep)
        if len(made) < len(node.value):
            raise yaml.YAMLError(f"the object at line {node.start_mark.line + 1} has a key twice")
        return made


def _yaml_fault(error: Exception) -> str:
    """Say what is wrong and where, without the lines themselves, which yaml's own message quotes."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return short(error, "it is nested too deeply")


EXPORT = (
    "write down what was installed: `conda env export`, or `conda list --json`, in the run's environment; or an exact "
    "version: numpy==1.26.4"
)
SUBDIRS = {
    "linux-64": ("Linux", "x86_64"),
    "linux-aarch64": ("Linux", "aarch64"),
    "osx-64": ("Darwin", "x86_64"),
    "osx-arm64": ("Darwin", "arm64"),
    "win-64": ("Windows", "AMD64"),
}
"""conda's names of platforms, with their system and machine."""
_BY_NAME = "the record does not have conda's builds: their names show which packages hold Python distributions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment as conda describes it."""

    packages: tuple[CondaPackage, ...]
    python: str | None
    """Perhaps only its first numbers."""
    pip: tuple[tuple[str, str], ...]
    """What pip installed: a line of a requirements file, and its place in the record."""
    wheels: tuple[tuple[Distribution, str], ...] = ()
    """What a lock has of an index or of addresses, or a list of pip, each with its place."""
    name: str | None = None
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    projects: Mapping[str, str | None] = field(default_factory=dict)
    """Projects that the record itself names, by the package; None where the package holds none."""


def environment_of(installed: Installed, record: Record, options: RecordOptions, faults: Faults) -> Environment:
    """Return what an environment of conda had; ManifestError."""
    known = (SUBDIRS[it.subdir] for it in installed.packages if it.subdir in SUBDIRS)
    system, machine = next(known, (None, None))
    pins = Pins.begin(record, options, installed.python, Platform(system=system, machine=machine), faults)
    file = RequirementsFile(faults)
    for text, place in installed.pip:
        file.take(text, place, record)
    take_lines(file, pins)
    for distribution, place in installed.wheels:
        pins.add(distribution, place)
    packages = {(it.name, it.version, it.build): it for it in sorted(installed.packages, key=lambda it: it.name)}
    notes = [*_take_packages(packages.values(), installed.projects, pins)]
    notes += _not_taken(packages.values(), installed.projects, pins)
    pypy = any("pypy" in (it.build or "") for it in installed.packages if it.name == "python")
    return pins.environment(
        implementation="pypy" if pypy else "cpython",
        complete=False,
        notes=(*notes, *installed.notes, *file.notes),
        tool="conda",
        conda=Conda(packages=tuple(packages.values()), name=installed.name, channels=installed.channels),
    )


def channel(text: str | None) -> str | None:
    """Return a channel's name; of an address or `t/TOKEN/name` the last part alone, as the rest may hold a token."""
    if not text or not ("://" in text or text.lstrip("/").startswith("t/")):
        return clean(text) or None if text else None
    return clean(text).rstrip("/").rpartition("/")[2] or None


def _take_packages(packages: Iterable[CondaPackage], projects: Mapping[str, str | None], pins: Pins) -> Iterator[str]:
    """Take the distributions that conda's packages hold, except what pip replaced; yield what there is to say."""
    taken: dict[str, Distribution] = {}
    for package in packages:
        project = projects[package.name] if package.name in projects else project_of(package.name, package.build)
        if project is None:
            continue
        origin = Origin(
            kind="conda", url=package.url, sha256=package.sha256, channel=package.channel, build=package.build
        )
        made = distribution_of(project, package.version, origin)
        if made.version is None:
            yield odd_version(package)
        other = taken.setdefault(canonicalize_name(project), made)
        if other.version != made.version:
            yield f"{package.name} {package.version} is left out: {other.name} {other.version} is the same project"
    for name, distribution in taken.items():
        if name not in pins.found:
            pins.add(distribution, f"package {distribution.name}")
            if canonicalize_name(distribution.name) in {*FRAMEWORKS, "jaxlib"}:
                build = f", {distribution.origin.build}," if distribution.origin.build else ""
                pin = f"{distribution.name} {distribution.version}"
                yield f"{pin} is conda's build{build} and an index has it built otherwise"


def _not_taken(packages: Iterable[CondaPackage], projects: Mapping[str, str | None], pins: Pins) -> Iterator[str]:
    """List by class the packages that hold no distribution, in as many notes as they need.

    A metapackage such as typing-extensions only requires the package that has its distribution.
    """
    if any(it.build is None and it.name != "python" for it in packages):
        yield _BY_NAME
    classes: dict[str, list[str]] = {}
    for it in packages:
        project = projects[it.name] if it.name in projects else project_of(it.name, it.build)
        if project is None and it.name != "python" and canonicalize_name(it.name) not in pins.found:
            classes.setdefault(class_of(it.name), []).append(it.name)
    for kind, names in classes.items():
        head = f"no wheel for {kind}: "
        wrap = textwrap.TextWrapper(300, initial_indent=head, subsequent_indent=head, break_on_hyphens=False)
        yield from wrap.wrap(", ".join(names))


def distribution_of(name: str, version: str, origin: Origin) -> Distribution:
    """Make a distribution; without a version where it is none that an index could have."""
    valid = version if is_pep440(version) else None
    return Distribution(name=name, version=valid, origin=origin, installer="conda" if origin.kind == "conda" else None)


def odd_version(package: CondaPackage) -> str:
    """Say why a distribution of the record has no version in the manifest."""
    return f"{clean(package.name)} is of version {clean(package.version)}, which no index could have"


_SPEC = re.compile(r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<rest>.*)", re.ASCII)
_EXACT = re.compile(r"(?P<equal>==?)\s*(?P<version>[A-Za-z0-9_.!+]+)(?:=(?P<build>[A-Za-z0-9_.+]+))?", re.ASCII)
_PYTHON = re.compile(r"={0,2}\s*([0-9]+(?:\.[0-9]+)*)(?:\.\*)?(?:=.*)?")


def read_environment(record: Record, options: RecordOptions) -> Environment:
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
    variables = values.get("variables")
    names = ", ".join(sorted(clean(str(it)) for it in variables)) if isinstance(variables, dict) else ""
    installed = Installed(
        packages=tuple(packages),
        python=python_of(entries),
        pip=tuple(pip_lines(entries)),
        name=fact(values, "name"),
        channels=tuple(filter(None, map(channel, texts(values.get("channels"))))),
        notes=(f"the environment variables {names} are left out, as their values may be private",) if names else (),
    )
    return environment_of(installed, record, options, faults)


def pip_lines(entries: Any) -> Iterator[tuple[str, str]]:
    """Yield the lines below `- pip:`, each with its place."""
    for at, entry in enumerate(entries if isinstance(entries, list) else ()):
        for index, line in enumerate(texts(entry.get("pip")) if isinstance(entry, dict) else ()):
            yield line, f"dependencies[{at}].pip[{index}]"


def python_of(entries: Any) -> str | None:
    """Return the version of Python as far as the record has it: `3.10.12`, or `3.10`."""
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
        faults.add(f"{place}: this is not a package of conda: {quoted(text)}", "correct or remove it")
        return None
    name, rest = spec["name"].lower(), spec["rest"].strip()
    exact = _EXACT.fullmatch(rest if rest[:1] in set("=<>!~[") else "==" + "=".join(rest.split()))
    sure = exact and (exported or exact["equal"] == "==" or exact["build"] or name == "python")
    if exact and sure:
        made = CondaPackage(name=name, version=exact["version"], build=exact["build"], channel=channel(spec["channel"]))
        return made if name != "python" or made.version.count(".") == 2 else None
    if name not in {"pip", "python"}:  # every environment.yml asks for pip; which Python is an option's business
        faults.add(f"{place}: {quoted(text)} is not an exact version", EXPORT)
    return None
