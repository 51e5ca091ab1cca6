"""`environment.yml`, `conda list`, `pixi.lock` and `conda-lock.yml`: packages of conda, and wheels of an index.

conda's packages are recorded as what they are. Those that hold a Python distribution are distributions as well, under
the name of their project, so that the lock has each of them or says that the index lacks it.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from packaging.utils import canonicalize_name

from envbuild.capture.conda import class_of, project_of
from envbuild.errors import ManifestError
from envbuild.manifest.importers.environment import FRAMEWORKS, PLATFORMS, RecordOptions
from envbuild.manifest.importers.pins import PLATFORM, Pins, of_address, sha256_of
from envbuild.manifest.importers.record import (
    MAX_LOCK,
    MAX_YAML,
    Faults,
    Record,
    check_size,
    clean,
    dicts,
    fact,
    json_of,
    lines_of,
    quoted,
    short,
    text_at,
    text_of,
    texts,
)
from envbuild.manifest.importers.requirements import RequirementsFile, take_lines
from envbuild.manifest.model import Platform, TrainingManifest
from envbuild.manifest.packages import Conda, CondaPackage, Distribution, Origin, is_pep440


def yaml_of(record: Record, limit: int = MAX_YAML) -> Any:
    """Read YAML as texts, lists and objects, since 3.10 is a version and no number; no aliases; ManifestError."""
    text = text_of(record)
    check_size(record, len(record.data), limit)
    try:
        return yaml.load(text, Loader=_Texts)  # noqa: S506 - the loader makes texts, lists and dicts only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Without the lines themselves, which yaml's own message quotes.
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        fault = (
            f"line {mark.line + 1}: {getattr(error, 'problem', '')}"
            if mark
            else short(error, "it is nested too deeply")
        )
        what = f"the record is not YAML as it is read here: {fault}"
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


def _begin(
    record: Record, options: RecordOptions, faults: Faults, packages: Iterable[CondaPackage], python: str | None
) -> Pins:
    """Begin with the platform of the packages; `python` may be only its first numbers. ManifestError, UsageError."""
    system, machine = next((SUBDIRS[it.subdir] for it in packages if it.subdir in SUBDIRS), (None, None))
    return Pins.begin(record, options, python, Platform(system=system, machine=machine), faults)


def _manifest(
    pins: Pins,
    listed: Iterable[CondaPackage],
    notes: Iterable[str],
    projects: Mapping[str, str | None] | None = None,
    **facts: Any,
) -> TrainingManifest:
    """Return what an environment of conda had; `projects` are those that the record names by package. ManifestError."""
    packages = {(it.name, it.version, it.build): it for it in sorted(listed, key=lambda it: it.name)}.values()
    pairs = [
        (it, projects[it.name] if projects and it.name in projects else project_of(it.name, it.build))
        for it in packages
    ]
    own = [*_take_packages(pairs, pins), *_not_taken(pairs, pins)]
    pypy = any("pypy" in (it.build or "") for it in packages if it.name == "python")
    return pins.manifest(
        implementation="pypy" if pypy else "cpython",
        complete=False,
        notes=(*own, *notes),
        tool="conda",
        conda=Conda(packages=tuple(packages), **facts),
    )


def channel(text: str | None) -> str | None:
    """Return a channel's name; of an address or `t/TOKEN/name` the last part alone, as the rest may hold a token."""
    if not text or not ("://" in text or text.lstrip("/").startswith("t/")):
        return clean(text) or None if text else None
    return clean(text).rstrip("/").rpartition("/")[2] or None


def _take_packages(pairs: Iterable[tuple[CondaPackage, str | None]], pins: Pins) -> Iterator[str]:
    """Take the distributions that conda's packages hold, except what pip replaced; yield what there is to say."""
    taken: dict[str, Distribution] = {}
    for package, project in pairs:
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


def _not_taken(pairs: Iterable[tuple[CondaPackage, str | None]], pins: Pins) -> Iterator[str]:
    """List by class the packages that hold no distribution, in as many notes as they need."""
    if any(it.build is None and it.name != "python" for it, _ in pairs):
        yield _BY_NAME
    classes: dict[str, list[str]] = {}
    for it, project in pairs:
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


def read_environment(record: Record, options: RecordOptions) -> TrainingManifest:
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
    notes = [f"the environment variables {names} are left out, as their values may be private"] if names else []
    pins, file = _begin(record, options, faults, packages, python_of(entries)), RequirementsFile(faults)
    for line, place in pip_lines(entries):
        file.take(line, place, record)
    take_lines(file, pins)
    channels = tuple(filter(None, map(channel, texts(values.get("channels")))))
    return _manifest(pins, packages, [*notes, *file.notes], name=fact(values, "name"), channels=channels)


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


EXPLICIT = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)
TABLE = re.compile(r"^#?[ \t]*Name[ \t]+Version[ \t]+Build\b", re.MULTILINE)
PIP = "pypi"
"""The channel that conda gives what pip installed."""
HEAD = re.compile(r"[#@─]|Name\s+Version\s+Build|List of packages in environment:")
DEVELOP = "dev_0"
"""The build that conda gives what pip installed from a folder."""
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+)\.(?:conda|tar\.bz2)")
_SUBDIR = re.compile(r"^# platform: (\S+)", re.MULTILINE)


def read_list(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read every package, and apart from them what pip installed; ManifestError."""
    text, faults = text_of(record), Faults(record.name)
    explicit = bool(EXPLICIT.search(text))
    if text.lstrip().startswith("["):
        packages = list(_of_json(json_of(record, text), faults))
    else:
        read_line = address_of if explicit else _of_row if TABLE.search(text) else _of_export
        packages = []
        for number, line in enumerate(map(str.strip, lines_of(record, text)), 1):
            if not line or HEAD.match(line):
                continue
            if package := read_line(line):
                packages.append(package)
            else:
                faults.add(f"line {number}: this is not a package of conda: {quoted(line)}", "correct or remove it")
        # An address has the platform too; an exported list has it in this comment alone, and Python is for one.
        comment = _SUBDIR.search(text)
        subdir = clean(comment[1]) if comment else None
        packages = [replace(it, subdir=it.subdir or subdir) if it.name == "python" else it for it in packages]
    faults.check()
    conda = [it for it in packages if it.channel != PIP and it.build != DEVELOP]
    pins = _begin(record, options, faults, conda, _python(conda))
    notes: list[str] = []
    for it in packages:
        if it.channel == PIP or it.build == DEVELOP:
            origin = Origin(kind="index" if it.channel == PIP else "editable")
            made = distribution_of(it.name, it.version, origin)
            notes += [] if made.version else [odd_version(it)]
            pins.add(made, f"package {it.name}")
    notes += ["an explicit list does not have what pip installed"] if explicit else []
    return _manifest(pins, conda, notes)


def _python(packages: Iterable[CondaPackage]) -> str | None:
    return next((it.version for it in packages if it.name == "python"), None)


def _of_json(items: Any, faults: Faults) -> Iterator[CondaPackage]:
    for index, item in enumerate(items if isinstance(items, list) else ()):
        name, version = text_at(item, "name"), text_at(item, "version")
        if not name or not version:
            faults.add(f"[{index}]: there is no name and version", EXPORT)
            continue
        yield CondaPackage(
            name=clean(name),
            version=clean(version),
            build=fact(item, "build_string"),
            channel=channel(text_at(item, "channel")),
            subdir=fact(item, "platform"),
            sha256=sha256_of(text_at(item, "sha256")),
            url=fact(item, "url", longest=4000),
        )


def _of_row(line: str) -> CondaPackage | None:
    """Read `name version build channel`; the main channel has no name."""
    cells = [clean(it) for it in line.split()]
    if not 3 <= len(cells) <= 4 or not re.match(r"\w", line):
        return None
    return CondaPackage(
        name=cells[0].lower(), version=cells[1], build=cells[2], channel=channel(cells[3]) if cells[3:] else None
    )


def _of_export(line: str) -> CondaPackage | None:
    """Read `name=version=build`; the build of what pip installed is `pypi_0`."""
    cells = [clean(it) for it in line.split("=")]
    if len(cells) != 3 or not all(cells[1:]):
        return None
    name, version, build = cells
    return CondaPackage(name=name.lower(), version=version, build=build, channel=PIP if build == "pypi_0" else None)


def address_of(line: str) -> CondaPackage | None:
    """Read the address of a package, with a digest behind # or none."""
    bare, _, digest = line.partition("#")
    place = clean(bare, 4000)
    try:
        folders = ["", "", *unquote(urlsplit(place).path).split("/")]
    except ValueError:  # a bracket that is no IPv6 address
        return None
    file = _FILE.fullmatch(clean(folders[-1]))
    return file and CondaPackage(
        name=file["name"].lower(),
        version=file["version"],
        build=file["build"],
        channel=clean(folders[-3]) or None,
        subdir=clean(folders[-2]) or None,
        sha256=sha256_of(digest),
        url=place,
    )


_OLD_PIXI = "write it again: pixi lock, or give what `pixi run pip list --format=json` prints"
_INSTALLED = {"main", "dev"}
"""The categories that `conda-lock install` installs by default."""


def read_pixi_lock(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read the environment `default`, or the first; ManifestError."""
    values, faults = yaml_of(record, MAX_LOCK), Faults(record.name)
    environments = values.get("environments") if isinstance(values, dict) else None
    if not isinstance(environments, dict) or not environments:
        what = f"this pixi.lock of version {clean(text_at(values, 'version') or '')} has no environments"
        raise ManifestError(what, where=record.name, todo=_OLD_PIXI)
    name = "default" if "default" in environments else next(iter(environments))
    others = ", ".join(sorted(clean(it) for it in environments if it != name))
    note = f"the environment {name} is read; left out: {others}" if others else ""
    chosen = environments[name].get("packages") if isinstance(environments[name], dict) else None
    by_platform = chosen if isinstance(chosen, dict) else {}
    subdir = _subdir(by_platform, options, record.name)
    # Before version 6 an entry had its address as `url`.
    entries = {
        text_at(it, "conda") or text_at(it, "pypi") or text_at(it, "url"): it for it in dicts(values.get("packages"))
    }
    pairs = [(text_at(it, "conda") or "", text_at(it, "pypi") or "") for it in dicts(by_platform[subdir])]
    listed = [(conda, wheel, entries.get(conda or wheel, {})) for conda, wheel in pairs]
    return _environment(listed, record, options, faults, note)


def read_conda_lock(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read the categories main and dev of one platform; ManifestError."""
    values, faults = yaml_of(record, MAX_LOCK), Faults(record.name)
    items = dicts(values.get("package") if isinstance(values, dict) else None)
    subdir = _subdir([text_at(it, "platform") or "" for it in items], options, record.name)
    items = [it for it in items if it.get("platform") == subdir]
    wanted = [it for it in items if _INSTALLED & {*texts(it.get("categories")), it.get("category", "main")}]
    chosen = [
        (address, "", it) if text_at(it, "manager") == "conda" else ("", address, it)
        for it in wanted
        if (address := text_at(it, "url") or "?")
    ]
    left = ", ".join(sorted({clean(text_at(it, "name") or "") for it in items if it not in wanted}))
    note = f"the lock's optional packages are left out: {left}" if left else ""
    return _environment(chosen, record, options, faults, note)


def _environment(
    chosen: list[tuple[str, str, dict[str, Any]]], record: Record, options: RecordOptions, faults: Faults, note: str
) -> TrainingManifest:
    """Make the environment of entries: the address of a package of conda or of a wheel, and the lock's facts."""
    packages: list[CondaPackage] = []
    wheels: list[tuple[Distribution, str]] = []
    projects: dict[str, str | None] = {}
    for conda, wheel, entry in chosen:
        package = address_of(conda) if conda else None
        if package:
            packages.append(replace(package, sha256=_digest(entry)))
            # Package URLs: none of them is of PyPI where the package holds no distribution.
            if isinstance(entry.get("purls"), list):
                names = [unquote(re.split("[@?]", it.removeprefix("pkg:pypi/"))[0]) for it in texts(entry["purls"])]
                projects[package.name] = next((it for it in names if it and ":" not in it), None)
        elif wheel:
            wheels.append((_distribution(wheel, entry), f"package {clean(text_at(entry, 'name') or wheel)}"))
        else:
            faults.add(f"this is not a package of conda: {quoted(conda)}", "have the tool write the lock again")
    pins = _begin(record, options, faults, packages, _python(packages))
    for distribution, place in wheels:
        pins.add(distribution, place)
    return _manifest(pins, packages, [note], projects)


def _distribution(address: str, entry: dict[str, Any]) -> Distribution:
    """Return what pip installed: by name, version and digest, or from an address outside an index."""
    name, version = text_at(entry, "name") or "", text_at(entry, "version")
    if address.startswith("git+"):
        bare, _, commit = address.partition("#")
        return of_address(f"{bare.partition('?')[0]}@{commit}", name=name, version=version)
    if "://" not in address and address != "?":
        return of_address(address, name=name, version=version)
    digest = _digest(entry)
    return Distribution(name=name, version=version, origin=Origin(kind="index", hashes=(digest,) if digest else ()))


def _digest(entry: dict[str, Any]) -> str | None:
    return sha256_of(text_at(entry, "sha256") or text_at(entry, "hash", "sha256"))


def _subdir(locked: Iterable[str], options: RecordOptions, where: str) -> str:
    """Choose the platform that was given, or the only one of the lock; ManifestError."""
    names = sorted({it for it in locked if it in SUBDIRS})
    if options.platform:
        names = [it for it in names if SUBDIRS[it] == PLATFORMS[options.platform]]
    if len(names) == 1:
        return names[0]
    known = ", ".join(sorted({clean(it) for it in locked}))
    other = f", not for {options.platform}" if options.platform else ""
    what = f"the lock is for {known or 'no platform'}{other}"
    raise ManifestError(what, where=where, todo=PLATFORM)
