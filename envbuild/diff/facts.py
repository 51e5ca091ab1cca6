"""The facts of manifests, models, machines and locks, and how two of them differ: first what can change predictions."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from packaging.utils import canonicalize_name, canonicalize_version

from envbuild.capture.redact import REDACTED, hides_secret, scrub, scrub_command
from envbuild.lock.model import Lock
from envbuild.manifest.model import Model, TrainingManifest
from envbuild.manifest.reader import manifest_dict, shape
from envbuild.stamp.record import Stamp

PREDICTIONS, START, RUN = "what can change predictions", "what can keep it from starting", "the run itself"
_PREDICTIONS = frozenset({
    "python", "framework", "frameworks", "distributions", "accelerator", "cpu", "numerics", "model", "golden", "stamp",
})  # fmt: skip
_START = frozenset({"platform", "native", "variables", "contract", "conda", "installation"})
_OF_THE_RUN = re.compile(
    r"distributions\.[^.]+\.(installer|record_sha256|requested)|model\.(uri|unread)|model\.files\..*\.(generation|crc32c)"
    r"|stamp\.(record|created|envbuild)|stamp\..*\.(image|identity)"
)
"""Facts of the sections above that state by whom, when and where, and not what."""
_NOT_OF_A_HOST = (
    "model", "model_uri", "golden", "code", "entry", "numerics", "source", "created", "disagreements", "imported",
    "contract.data", "contract.preprocessing",
)  # fmt: skip
"""Facts of a run that a machine before the run does not have."""
_OF_A_PROCESS = re.compile(r"imported\..*|native\.(process|(libraries|thread_pools)\..*|components\..*\.(loaded|path))")
"""Facts that depend on what the process has loaded."""
_OF_VARIABLES = re.compile(r"variables\.|stamp\..*\.overrides\.")
"""Facts whose names are those of environment variables."""
_PLACE = re.compile(r"model_uri|model\.uri|model\.files\..*\.generation")
"""The place of a model, which differs for each copy."""
_FILE_DIGEST = re.compile(r"model\.files\.(.*)\.(?:sha256|crc32c)")
_KEYS = ("name", "path", "uri", "framework")
"""The keys that name an item of a list."""
_FEW = 3
"""More words that were added to a list or removed from it share a line."""
_PRESENT = "there"
_WIDEST, _LONGEST = 56, 120
"""Characters of a name, and of a value."""
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
SECRET, ANOTHER = "(secret)", "(another secret)"

Facts = Mapping[tuple[str, str], str]
"""Values by group and name."""


class Hidden(str):
    """A text that is a secret whatever it looks like, such as the word after `--password` in a command."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact that differs."""

    group: str
    name: str
    before: str | None
    """None where it is absent."""
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """The facts in which two manifests, models, machines or locks differ."""

    facts: tuple[Fact, ...]
    compared: int
    """How many facts at least one of them has."""
    alone: frozenset[str] = frozenset()
    """Sections that only one of them has."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.facts

    @property
    def summary(self) -> str:
        """One line."""
        if self.equal:
            return f"equal: all {self.compared} facts agree"
        return f"different: {len(self.facts)} of {self.compared} facts"

    def lines(self, *, files: bool = False) -> Iterator[str]:  # noqa: ARG002 - there are none
        """Yield the summary, and for each group a table of what differs."""
        yield self.summary
        moved = {_distribution(it.name) for it in self.facts if it.name.endswith(".version")} - {""}
        for group in (PREDICTIONS, START, RUN):
            rows = list(_rows([fact for fact in self.facts if fact.group == group], self.alone, moved))
            if rows:
                yield group
                width = min(_WIDEST, max(len(name) for name, _ in rows))
                yield from (f"  {name:<{width}}  {text}" for name, text in rows)

    def to_dict(self) -> dict[str, Any]:
        """The difference for --json."""
        return {"equal": self.equal, "facts": [asdict(fact) for fact in self.facts]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The facts that a manifest, model, machine or lock gives of a run, and which it cannot give."""

    facts: Facts
    sections: frozenset[str]
    """The first words of the facts that it could have."""
    silent: tuple[str, ...] = ()
    """Dotted names of facts that it cannot have."""
    packages: Mapping[str, str | None]
    """Versions of its distributions by normalised name; None where unknown."""
    complete: bool = True
    """Whether it lists all distributions."""
    is_model: bool = False
    """Whether it is a model, which may have copies."""


def describe_manifest(manifest: TrainingManifest) -> Description:
    """The description of a run by its manifest."""
    return Description(
        facts=facts_of_manifest(manifest),
        sections=frozenset(TrainingManifest.__dataclass_fields__),
        silent=manifest.source.unknown,
        packages={canonicalize_name(it.name): it.version for it in manifest.distributions},
        complete=manifest.source.complete,
    )


def describe_host(manifest: TrainingManifest) -> Description:
    """The description of a machine without a run, by its capture."""
    description = describe_manifest(manifest)
    return replace(description, silent=(*description.silent, *_NOT_OF_A_HOST))


def describe_model(
    model: Model | None, manifest: TrainingManifest | None, stamp: Stamp | None, locks: Mapping[str, Lock]
) -> Description:
    """The description of a model: its files now, and of a stamped one the manifest, the images and locks by slot."""
    run = replace(manifest, model=model) if manifest else None
    facts = dict(facts_of_manifest(run) if run else facts_of_section("model", shape(model)) if model else {})
    if stamp:
        images = {
            " ".join(it.slot): {
                "image": it.image,
                "environment": it.environment.hex,
                "overrides": dict(it.overrides),
                "identity": it.identity or "unknown",
            }
            for it in stamp.images
        }
        facts |= facts_of_section("stamp", {**images, "created": stamp.created, "envbuild": stamp.envbuild})
    for slot, lock in locks.items():
        facts |= {(group, f"lock.{slot}.{name}"): text for (group, name), text in facts_of_lock(lock).items()}
    alone = Description(facts={}, sections=frozenset({"model"}), packages={}, complete=False)
    description = describe_manifest(run) if run else alone
    more = frozenset({"stamp", "lock"}) if stamp else frozenset()
    return replace(description, facts=facts, sections=description.sections | more, is_model=True)


def describe_lock(lock: Lock) -> Description:
    """The description of an environment by its lock."""
    packages: dict[str, str | None] = {str(canonicalize_name(it.name)): it.version for it in lock.wheels}
    return Description(facts=facts_of_lock(lock), sections=frozenset(), packages=packages)


def compare_descriptions(before: Description, after: Description) -> FactDifference:
    """Compare the facts that both could have; for packages those that both know."""
    sections, silent = before.sections & after.sections, (*before.silent, *after.silent)

    def both_could(name: str) -> bool:
        return name.partition(".")[0] in sections and not any(f"{name}.".startswith(f"{it}.") for it in silent)

    facts = [_select(side.facts, both_could) for side in (before, after)]
    if before.is_model or after.is_model:
        facts = _without_places(*facts)
    if len({side.get((START, "native.process")) for side in facts}) > 1:
        facts = [_select(side, lambda name: not _OF_A_PROCESS.fullmatch(name)) for side in facts]
    # An image that only one of them has is a fact of the stamp already; its lock's facts are left out.
    slots = [{_second(name) for _, name in side if name.startswith("lock.")} for side in facts]
    both = slots[0] & slots[1]
    one, other = (_select(it, lambda name: not name.startswith("lock.") or _second(name) in both) for it in facts)
    return compare_facts(_without_gaps(one, other, after), _without_gaps(other, one, before))


def compare_locks(before: Description, after: Description) -> FactDifference:
    """Compare two locks, wheel by wheel."""
    return compare_facts(before.facts, after.facts)


def compare_packages(before: Description, after: Description) -> FactDifference:
    """Compare only the versions of the distributions, where both are known."""
    sides = []
    for one, other in ((before, after), (after, before)):
        unknown = {name for name, version in other.packages.items() if version is None}
        facts = {}
        for name, version in one.packages.items():
            if version is not None and name not in unknown and (other.complete or name in other.packages):
                facts[PREDICTIONS, name] = canonicalize_version(version, strip_trailing_zero=False)
        sides.append(facts)
    return compare_facts(*sides)


def compare_facts(before: Facts, after: Facts) -> FactDifference:
    """Compare two sets of facts; the result has no secrets."""
    keys = before.keys() | after.keys()
    facts = (_fact(key, before.get(key), after.get(key)) for key in sorted(keys) if before.get(key) != after.get(key))
    sections = [{_section(name) for _, name in side} for side in (before, after)]
    return FactDifference(
        facts=tuple(it for it in facts if it), compared=len(keys), alone=frozenset(sections[0] ^ sections[1])
    )


def facts_of_manifest(manifest: TrainingManifest) -> Facts:
    """The facts of a run: each value by its dotted path, and distributions by their names."""
    found: dict[tuple[str, str], str] = {}
    for section, value in manifest_dict(manifest).items():
        found |= facts_of_section(section, value)
    return found


def facts_of_section(section: str, value: Any) -> dict[tuple[str, str], str]:
    """The facts of one section of a manifest, from its JSON; `stamp` is one too."""
    group = PREDICTIONS if section in _PREDICTIONS else START if section in _START else RUN
    found: dict[str, str] = {}
    _add(found, value, section)
    return {(RUN if _OF_THE_RUN.fullmatch(name) else group, name): text for name, text in found.items()}


def facts_of_lock(lock: Lock) -> Facts:
    """The facts of a lock: its target, each wheel's version and bytes, and each system package."""
    target, found = lock.target, {}
    for name in ("python", "machine", "glibc"):
        found[START if name == "glibc" else PREDICTIONS, name] = str(getattr(target, name))
    for wheel in lock.wheels:
        found[PREDICTIONS, wheel.name] = f"{wheel.version}, {wheel.filename}, {wheel.sha256.short}"
    for package in lock.packages:
        found[START, f"{package.name} (Debian)"] = f"{package.version}, {package.sha256.short}"
    return found


def without_secrets(name: str, before: Any, after: Any, *, sure: bool) -> tuple[Any, Any]:
    """Return both values of a name as they may be shown; where they differ, the shown values differ too.

    `sure` is whether names such as `key` stand for secrets, as those of variables do.
    """
    one, other = (redacted(name, it, sure=sure) for it in (before, after))
    if before == after or one != other:
        return tuple(SECRET if it == REDACTED else it for it in (one, other))  # type: ignore[return-value]
    # Without their secrets they are the same.
    first = SECRET if one != before or isinstance(before, Hidden) else one
    second = other if other == after and not isinstance(after, Hidden) else ANOTHER if first == SECRET else SECRET
    return first, second


def redacted(name: str, value: Any, *, sure: bool) -> Any:
    """Return a JSON value without its secrets; its name tells whether the whole value is one."""
    if isinstance(value, str):
        return REDACTED if isinstance(value, Hidden) or hides_secret(name, value, sure=sure) else scrub(value)
    if isinstance(value, Mapping):
        return {scrub(str(key)): redacted(str(key), inner, sure=sure) for key, inner in value.items()}
    if isinstance(value, list):
        words = all(isinstance(it, str) for it in value)
        return scrub_command(value) if words else [redacted(name, it, sure=sure) for it in value]
    return value


def _fact(key: tuple[str, str], before: str | None, after: str | None) -> Fact | None:
    """A fact that differs, without secrets; None where only a secret was removed from one side when it was recorded."""
    group, name = key
    last, sure = name.rpartition(".")[2], bool(_OF_VARIABLES.match(name))
    removed = any(isinstance(it, str) and REDACTED in it for it in (before, after))
    if removed and redacted(last, before, sure=sure) == redacted(last, after, sure=sure):
        return None
    one, other = without_secrets(last, before, after, sure=sure)
    return Fact(group=group, name=name, before=one, after=other)


def _without_places(before: Facts, after: Facts) -> list[Facts]:
    """Leave out the place of a model, and digests of a kind that the other side does not have for the file.

    A local folder gives sha256, and Cloud Storage crc32c.
    """
    files = [{match[1] for _, name in side if (match := _FILE_DIGEST.fullmatch(name))} for side in (before, after)]
    both = files[0] & files[1]
    known = [{name for _, name in side if _FILE_DIGEST.fullmatch(name)} for side in (before, after)]

    def counts(name: str) -> bool:
        digest = _FILE_DIGEST.fullmatch(name)
        unknown = digest and digest[1] in both and not all(name in side for side in known)
        return not (_PLACE.fullmatch(name) or unknown)

    return [_select(side, counts) for side in (before, after)]


def _select(facts: Facts, condition: Callable[[str], object]) -> Facts:
    return {key: text for key, text in facts.items() if condition(key[1])}


def _without_gaps(facts: Facts, others: Facts, other: Description) -> Facts:
    """Leave out distributions that an incomplete description need not list."""
    if other.complete:
        return facts
    listed = {_second(name) for _, name in others if name.startswith("distributions.")}
    return _select(facts, lambda name: not name.startswith("distributions.") or _second(name) in listed)


def _second(name: str) -> str:
    return name.split(".")[1]


def _section(name: str) -> str:
    return name.partition(".")[0]


def _distribution(name: str) -> str:
    """The distribution of a fact; empty for all other facts."""
    return _second(name) if name.startswith("distributions.") else ""


def _add(found: dict[str, str], value: Any, path: str) -> None:
    """Add the facts of a value, without nested generators: there may be half a million."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _add(found, inner, f"{path}.{_scrub(key)}")
    elif isinstance(value, (list, tuple)):
        _add_items(found, value, path)
    elif isinstance(value, bool):
        found[path] = "yes" if value else "no"
    else:
        found[path] = "unknown" if value is None else str(value)


_scrub = lru_cache(4096)(scrub)
"""`scrub`, cached: most keys are those of the schema."""


def _add_items(found: dict[str, str], values: Sequence[Any], path: str) -> None:
    """Add items with a name by that, others by their place; words by themselves, as their order does not matter."""
    seen: Counter[str] = Counter()
    words = all(isinstance(it, str) for it in values)
    for number, (value, shown) in enumerate(zip(values, scrub_command(values) if words else values, strict=True)):
        if isinstance(value, dict):
            key, inner = _named_item(value, number, path)
            seen[key] += 1
            again = f" ({seen[key]})" if seen[key] > 1 else ""
            _add(found, inner, f"{path}.{key}{again}")
        elif words and (shown != value or REDACTED in value):
            seen[shown] += 1
            found[f"{path}.{shown}" + (f" ({seen[shown]})" if seen[shown] > 1 else "")] = Hidden(value)
        elif isinstance(value, str):
            found[f"{path}.{value}"] = _PRESENT
        else:
            _add(found, value, f"{path}.{number}")


def _named_item(value: dict[str, Any], number: int, path: str) -> tuple[str, dict[str, Any]]:
    """An item's name, and its other values; a name that holds a secret stays among them."""
    key = next((it for it in _KEYS if isinstance(value.get(it), str) and value[it]), None)
    if key is None:
        return str(number), value
    if path == "distributions":
        return canonicalize_name(value[key]), {it: inner for it, inner in value.items() if it != key}
    name = scrub(value[key])
    others = {it: inner for it, inner in value.items() if it != key or name != value[key]}
    return name, others or {key: name}


def _rows(facts: Sequence[Fact], alone: Collection[str], moved: Collection[str]) -> Iterator[tuple[str, str]]:
    """One row for each fact, and one for many of the same kind: --json has each.

    For a distribution with another version, only that; for a section that one side lacks, only that it is absent. Many
    words that were added to a list or removed from it share a row.
    """
    counted = [it for it in facts if _distribution(it.name) not in moved or it.name.endswith(".version")]
    for section, inner in groupby(counted, key=lambda it: _section(it.name)):
        those = list(inner)
        if section in alone and len(those) > _FEW:
            yield section, f"{_PRESENT} -> not there" if those[0].after is None else f"not there -> {_PRESENT}"
        else:
            yield from _rows_of(those)


def _rows_of(facts: Sequence[Fact]) -> Iterator[tuple[str, str]]:
    def word_list(fact: Fact) -> str:
        return fact.name.rpartition(".")[0] if {fact.before, fact.after} == {_PRESENT, None} else ""

    for parent, inner in groupby(facts, key=word_list):
        those = list(inner)
        if parent and len(those) > _FEW:
            words = [f"{'+' if it.after else '-'}{it.name.removeprefix(parent + '.')}" for it in those]
            yield parent, " ".join(sorted(words, key=lambda it: (it[0] == "+", it)))
        else:
            yield from ((it.name, f"{_shorten(it.before)} -> {_shorten(it.after)}") for it in those)


def _shorten(text: str | None) -> str:
    """A value for people: digests and long texts are cut."""
    if text is None:
        return "not there"
    short = _DIGEST.sub(r"\1", text) or '""'
    return short if len(short) <= _LONGEST else f"{short[:_LONGEST]}..."
