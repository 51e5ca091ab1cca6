"""Which findings fail a verification: by severity, by rule, and by what somebody has accepted for a while."""

import datetime as dt
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name

from envbuild.errors import UsageError
from envbuild.oci.reference import Reference
from envbuild.verify.findings import SEVERITIES, Finding, Severity

_NO_FILE = re.compile(r"[a-z]+://|-----BEGIN |keyless:")
"""How a key begins that is no file's path."""
Choice = Literal["error", "warning", "note", "ignore"]
_CHOICES = (*SEVERITIES, "ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What somebody has looked at and lets pass."""

    rule: str
    """A rule's name, or a pattern such as `package-*`."""
    about: str = "*"
    """What the finding is about: a package in any spelling (PEP 503), a variable; a pattern."""
    reason: str
    """Why it may pass."""
    until: dt.date | None = None
    """The last day on which it does."""

    def covers(self, finding: Finding, today: dt.date) -> bool:
        """Whether this finding may pass today."""
        holds = self.until is None or today <= self.until
        return holds and fnmatchcase(finding.id, self.rule) and self._names(finding)

    def _names(self, finding: Finding) -> bool:
        """Only names of distributions have spellings: variables and files that differ in case are different ones."""
        name = canonicalize_name(finding.about)
        spelt = name in {canonicalize_name(it.partition(" ")[0]) for it in finding.packages}
        return fnmatchcase(finding.about, self.about) or (spelt and fnmatchcase(name, canonicalize_name(self.about)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What fails a verification."""

    fail_on: Severity = "error"
    """The least severity that fails it."""
    rules: Mapping[str, Choice] = field(default_factory=dict)
    """Severities by rule, instead of the built-in ones."""
    accepted: tuple[Accepted, ...] = ()
    keys: tuple[str, ...] = ()
    """Public keys, one of which has to have signed stamps and images; empty where none is required."""
    registries: tuple[Reference, ...] = ()
    """Where images may lie, as a repository or the path that leads to it; empty where that is not said."""

    def judged(self, findings: Iterable[Finding], today: dt.date) -> tuple[Finding, ...]:
        """Give findings the policy's severities; what is ignored is left out, what is accepted becomes a note."""
        return tuple(it for finding in findings if (it := self._judged(finding, today)))

    def fails(self, finding: Finding) -> bool:
        """Whether a judged finding fails the verification."""
        return not finding.agrees and SEVERITIES.index(finding.severity) <= SEVERITIES.index(self.fail_on)

    def registry_findings(self, reference: Reference) -> Iterator[Finding]:
        """Whether an image lies in one of the registries that are listed; nothing where none is."""
        if not self.registries:
            return
        listed = ", ".join(it.name for it in self.registries)
        agrees = any(_below(it, reference) for it in self.registries)
        yield Finding(
            about="registry",
            rule="image-registry",
            agrees=agrees,
            says=f"{reference.name} {'is' if agrees else 'is not'} below {listed}",
            wanted=listed,
            found=reference.name,
            why="whoever may push there decides what is deployed",
            todo="copy the image to a registry that the policy lists, or add its registry to the policy",
        )

    def _judged(self, finding: Finding, today: dt.date) -> Finding | None:
        if finding.agrees or finding.id == "signed":  # who asks for signatures means it, whoever wrote the policy
            return finding
        choice = self.rules.get(finding.id, finding.severity)
        if choice == "ignore":
            return None
        accepted = next((it for it in self.accepted if it.covers(finding, today)), None)
        if accepted is None:
            return replace(finding, severity=choice)
        return replace(finding, severity="note", says=f"{finding.says} (accepted: {accepted.reason})")


def _below(place: Reference, image: Reference) -> bool:
    """Whether an image lies at a place or below it: the same host, and all of the place's path, part by part."""
    parts = place.repository.split("/")
    same = place.registry.lower() == image.registry.lower()
    return same and image.repository.split("/")[: len(parts)] == parts


def read_policy(path: Path, known: Iterable[str]) -> Policy:
    """Read a policy, a TOML file; UsageError where it cannot be read, or says what cannot be meant.

    `known` are the names of all rules, so that a misspelt one does not silently change nothing.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise _wrong(path, "", f"this is no policy that can be read: {error}") from error
    return _Reading(path, frozenset(known)).policy(values)


_TODO = "see docs/verify.md, which has a policy with everything in it"


def _wrong(path: Path, at: str, what: str) -> UsageError:
    return UsageError(what, where=f"--policy {path}{f', {at}' if at else ''}", todo=_TODO)


@dataclass(frozen=True, slots=True)
class _Reading:
    path: Path
    known: frozenset[str]

    def policy(self, values: Mapping[str, Any]) -> Policy:
        self._only(values, {"fail-on", "rules", "accept", "signed", "registries"}, "")
        rules, accepted = values.get("rules", {}), values.get("accept", [])
        if not isinstance(rules, dict) or not isinstance(accepted, list):
            raise _wrong(self.path, "", "rules is a table [rules], and accept a list of tables [[accept]]")
        return Policy(
            fail_on=self._one_of(values.get("fail-on", "error"), SEVERITIES, "fail-on"),
            rules={
                self._rule(name, "rules"): self._one_of(it, _CHOICES, f"rules.{name}") for name, it in rules.items()
            },
            accepted=tuple(self._accepted(it, f"accept[{number}]") for number, it in enumerate(accepted)),
            keys=self._keys(values["signed"]) if "signed" in values else (),
            registries=self._registries(values) if "registries" in values else (),
        )

    def _keys(self, value: Any) -> tuple[str, ...]:
        """The keys of [signed]; a file's path is relative to the policy."""
        if not isinstance(value, dict):
            raise _wrong(self.path, "signed", "this is no table")
        self._only(value, {"keys"}, "signed")
        keys = self._texts(value, "keys", "signed.")
        if not keys:
            raise _wrong(self.path, "signed.keys", "no key is named")
        return tuple(it if _NO_FILE.match(it) else str(self.path.parent / it) for it in keys)

    def _registries(self, values: Mapping[str, Any]) -> tuple[Reference, ...]:
        found = tuple(map(self._registry, self._texts(values, "registries", "")))
        if not found:
            raise _wrong(self.path, "registries", "no registry is named")
        return found

    def _registry(self, text: str) -> Reference:
        host = text.partition("/")[0]
        try:
            place = Reference.parse(text)
        except ValueError as error:
            raise _wrong(self.path, "registries", f"{text!r} is no registry's path: {error}") from error
        if place.tag or place.digest or place.registry != host:
            what = f"{text!r} is no registry's path: give host and path, such as europe-docker.pkg.dev/acme/ml"
            raise _wrong(self.path, "registries", what)
        return place

    def _texts(self, values: Mapping[str, Any], key: str, at: str) -> list[str]:
        value = values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(it, str) and it.strip() for it in value):
            raise _wrong(self.path, f"{at}{key}", "this is no list of texts")
        return value

    def _accepted(self, value: Any, at: str) -> Accepted:
        if not isinstance(value, dict):
            raise _wrong(self.path, at, "this is no table")
        self._only(value, {"rule", "about", "reason", "until"}, at)
        until = value.get("until")
        if until is not None and type(until) is not dt.date:
            raise _wrong(self.path, f"{at}.until", "this is no date such as 2026-12-31, without quotes")
        return Accepted(
            rule=self._rule(self._text(value, "rule", at), at),
            about=self._text(value, "about", at) if "about" in value else "*",
            reason=self._text(value, "reason", at),
            until=until,
        )

    def _text(self, value: Mapping[str, Any], key: str, at: str) -> str:
        text = value.get(key)
        if not isinstance(text, str) or not text.strip():
            raise _wrong(self.path, f"{at}.{key}", "this is missing, empty or no text")
        return text

    def _rule(self, name: str, at: str) -> str:
        if not any(fnmatchcase(rule, name) for rule in self.known) or (at == "rules" and name not in self.known):
            raise _wrong(self.path, at, f"no rule is called {name}; there are {', '.join(sorted(self.known))}")
        return name

    def _one_of(self, value: Any, choices: tuple[str, ...], at: str) -> Any:
        if value not in choices:
            raise _wrong(self.path, at, f"this is {value!r}, and has to be one of {', '.join(choices)}")
        return value

    def _only(self, value: Mapping[str, Any], keys: set[str], at: str) -> None:
        for key in value.keys() - keys:
            raise _wrong(self.path, at, f"{key} means nothing here; there are {', '.join(sorted(keys))}")
