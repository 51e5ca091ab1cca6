"""What differs between two runs, models, machines or locks: fact by fact, first those that can change predictions."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.capture.redact import REDACTED, scrub, scrub_command
from envbuild.diff.secrets import Hidden, is_cut, without_secrets
from envbuild.lock.model import Lock
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.reader import manifest_dict

PREDICTIONS, START, RUN = "what can change predictions", "what can keep it from starting", "the run itself"
_PREDICTIONS = (
    "python",
    "framework",
    "frameworks",
    "distributions",
    "accelerator",
    "cpu",
    "numerics",
    "model",
    "golden",
    "stamp",
)
_START = ("platform", "native", "variables", "contract", "conda", "installation")

_OF_THE_RUN = re.compile(
    r"distributions\.[^.]+\.(installer|record_sha256|requested)|model\.(uri|unread)|model\.files\..*\.(generation|crc32c)"
    r"|stamp\.(record|created|envbuild)|stamp\..*\.(image|identity)"
)
"""Facts of the sections above that say by whom, when and where, and not what."""
_OF_VARIABLES = re.compile(r"variables\.|stamp\..*\.overrides\.")
"""Facts whose names are those of environment variables."""
_KEYS = ("name", "path", "uri", "framework")
"""By which of its values a thing in a list goes."""
_FEW = 3
"""As many words that were added to a list or taken from it have a line each."""
_THERE = "there"
_WIDEST, _LONGEST = 56, 120
"""Letters of a name, and of a value."""
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")

Facts = Mapping[tuple[str, str], str]
"""Values by group and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact that differs."""

    group: str
    name: str
    before: str | None
    """None where it is not there."""
    after: str | None

    def to_dict(self) -> dict[str, str | None]:
        """As --json has it."""
        return {"group": self.group, "name": self.name, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """In what two of a kind differ."""

    facts: tuple[Fact, ...]
    compared: int
    """How many facts at least one of them has."""
    alone: frozenset[str] = frozenset()
    """Sections of which only one of them has anything."""

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
        """Yield the summary, and below each group a table of what differs."""
        yield self.summary
        moved = {_distribution(it.name) for it in self.facts if it.name.endswith(".version")} - {""}
        for group in (PREDICTIONS, START, RUN):
            rows = list(_rows([fact for fact in self.facts if fact.group == group], self.alone, moved))
            if rows:
                yield group
                yield from _table(rows)

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {"equal": self.equal, "facts": [fact.to_dict() for fact in self.facts]}


def differing(before: Facts, after: Facts) -> Differing:
    """Hold the facts of two of a kind against each other; what they show of these has no secrets."""
    keys = before.keys() | after.keys()
    facts = (_fact(key, before.get(key), after.get(key)) for key in sorted(keys) if before.get(key) != after.get(key))
    sections = [{_section(name) for _, name in side} for side in (before, after)]
    return Differing(
        facts=tuple(it for it in facts if it), compared=len(keys), alone=frozenset(sections[0] ^ sections[1])
    )


def _fact(key: tuple[str, str], before: str | None, after: str | None) -> Fact | None:
    """A fact that differs, as it may be shown; None where all that differs is that a secret was cut out of one."""
    group, name = key
    last, sure = name.rpartition(".")[2], bool(_OF_VARIABLES.match(name))
    if is_cut(last, before, after, sure=sure):
        return None
    one, other = without_secrets(last, before, after, sure=sure)
    return Fact(group=group, name=name, before=one, after=other)


def facts_of_manifest(manifest: TrainingManifest) -> Facts:
    """The facts of a run: each value by its dotted path, and distributions by their names."""
    found: dict[tuple[str, str], str] = {}
    for section, value in manifest_dict(manifest).items():
        found |= facts_of_section(section, value)
    return found


def facts_of_section(section: str, value: Any) -> dict[tuple[str, str], str]:
    """The facts of one section of a manifest, from its JSON shape; `stamp` is one too."""
    group = PREDICTIONS if section in _PREDICTIONS else START if section in _START else RUN
    found: dict[str, str] = {}
    _lay(found, value, section)
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


def _lay(found: dict[str, str], value: Any, path: str) -> None:
    """Add the facts of a value, with no generator within another: there may be half a million."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _lay(found, inner, f"{path}.{_key(key)}")
    elif isinstance(value, (list, tuple)):
        _lay_items(found, value, path)
    else:
        found[path] = _text(value)


@lru_cache(4096)
def _key(key: str) -> str:
    """A key without secrets; most keys are those of the schema."""
    return scrub(key)


def _lay_items(found: dict[str, str], values: Sequence[Any], path: str) -> None:
    """What has a name goes by that, else by its place; words go by themselves, as their order says nothing."""
    seen: Counter[str] = Counter()
    words = all(isinstance(it, str) for it in values)
    for number, (value, shown) in enumerate(zip(values, scrub_command(values) if words else values, strict=True)):
        if isinstance(value, dict):
            key, rest = _named(value, number, path)
            seen[key] += 1
            again = f" ({seen[key]})" if seen[key] > 1 else ""
            _lay(found, rest, f"{path}.{key}{again}")
        elif words and (shown != value or REDACTED in value):
            seen[shown] += 1
            found[f"{path}.{shown}" + (f" ({seen[shown]})" if seen[shown] > 1 else "")] = Hidden(value)
        elif isinstance(value, str):
            found[f"{path}.{value}"] = _THERE
        else:
            _lay(found, value, f"{path}.{number}")


def _named(value: dict[str, Any], number: int, path: str) -> tuple[str, dict[str, Any]]:
    """A thing's name, and what else is known of it: of a name that holds a secret also that."""
    key = next((it for it in _KEYS if isinstance(value.get(it), str) and value[it]), None)
    if key is None:
        return str(number), value
    if path == "distributions":
        return canonicalize_name(value[key]), {it: inner for it, inner in value.items() if it != key}
    name = scrub(value[key])
    rest = {it: inner for it, inner in value.items() if it != key or name != value[key]}
    return name, rest or {key: name}


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = min(_WIDEST, max(len(name) for name, _ in rows))
    for name, text in rows:
        yield f"  {name:<{width}}  {text}"


def _rows(facts: Sequence[Fact], alone: Collection[str], moved: Collection[str]) -> Iterator[tuple[str, str]]:
    """One row a fact, and one for many that say the same: --json has each.

    Of a distribution with another version, that is enough; of a section that one side has not, that it is not there.
    Words that were added to a list or taken from it share a row where they are many.
    """
    wanted = [it for it in facts if _distribution(it.name) not in moved or it.name.endswith(".version")]
    for section, inner in groupby(wanted, key=lambda it: _section(it.name)):
        those = list(inner)
        if section in alone and len(those) > _FEW:
            yield section, f"{_THERE} -> not there" if those[0].after is None else f"not there -> {_THERE}"
        else:
            yield from _rows_of(those)


def _rows_of(facts: Sequence[Fact]) -> Iterator[tuple[str, str]]:
    for parent, inner in groupby(facts, key=_list_of):
        those = list(inner)
        if parent and len(those) > _FEW:
            words = [f"{'+' if it.after else '-'}{it.name.removeprefix(parent + '.')}" for it in those]
            yield parent, " ".join(sorted(words, key=lambda it: (it[0] == "+", it)))
        else:
            yield from ((it.name, f"{_shown(it.before)} -> {_shown(it.after)}") for it in those)


def _section(name: str) -> str:
    return name.partition(".")[0]


def _distribution(name: str) -> str:
    """The distribution that a fact is about; empty for all others."""
    parts = name.split(".")
    return parts[1] if parts[0] == "distributions" else ""


def _list_of(fact: Fact) -> str:
    """The list of words that a fact is one of; empty for all others."""
    return fact.name.rpartition(".")[0] if {fact.before, fact.after} == {_THERE, None} else ""


def _shown(text: str | None) -> str:
    """For people: digests and long texts are cut, --json has them whole."""
    if text is None:
        return "not there"
    short = _DIGEST.sub(r"\1", text) or '""'
    return short if len(short) <= _LONGEST else f"{short[:_LONGEST]}..."
