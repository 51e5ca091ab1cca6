"""The policy: which findings fail a verification, by severity and rule, and which are accepted for a while."""

import datetime as dt
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert
from packaging.utils import canonicalize_name

from envbuild.errors import UsageError
from envbuild.oci.reference import Reference
from envbuild.verify.findings import SEVERITIES, Finding, Severity

Choice = Literal["error", "warning", "note", "ignore"]
Text = Annotated[str, Meta(pattern=r"\S")]
_KEY = re.compile(r"[a-z]+://|-----BEGIN |keyless:")
"""How a key begins that is not the path of a file."""
_TODO = "see docs/verify.md, which has a complete policy"


class Accepted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding that is known and passes."""

    rule: Text
    """A rule's name, or a pattern such as `package-*`."""
    about: Text = "*"
    """What the finding is about: a package in any spelling (PEP 503), a variable; a pattern."""
    reason: Text
    until: dt.date | None = None
    """The last day on which it passes."""

    def covers(self, finding: Finding, today: dt.date) -> bool:
        """Whether this finding may pass today; only names of distributions have several spellings."""
        name = canonicalize_name(finding.about)
        spelt = name in {canonicalize_name(it.partition(" ")[0]) for it in finding.packages}
        about = fnmatchcase(finding.about, self.about) or (spelt and fnmatchcase(name, canonicalize_name(self.about)))
        return about and fnmatchcase(finding.id, self.rule) and (self.until is None or today <= self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What fails a verification."""

    fail_on: Severity = "error"
    """The least severity that fails it."""
    rules: Mapping[str, Choice] = field(default_factory=dict)
    """Severities by rule, instead of the built-in ones."""
    accepted: tuple[Accepted, ...] = ()
    keys: tuple[str, ...] = ()
    """Public keys, one of which must have signed stamps and images; empty where none is required."""
    registries: tuple[Reference, ...] = ()
    """Repositories, or paths above them, where images may lie; empty for anywhere."""

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
        paths = [(it.registry.lower(), f"{it.repository}/") for it in self.registries]
        agrees = any(
            reference.registry.lower() == host and f"{reference.repository}/".startswith(path) for host, path in paths
        )
        yield Finding(
            about="registry",
            rule="image-registry",
            agrees=agrees,
            says=f"{reference.name} {'is' if agrees else 'is not'} below {listed}",
            wanted=listed,
            found=reference.name,
            why="everybody who may push there decides what is deployed",
            todo="copy the image to a registry that the policy lists, or add its registry to the policy",
        )

    def _judged(self, finding: Finding, today: dt.date) -> Finding | None:
        if finding.agrees or finding.id == "signed":  # a policy cannot weaken a signature that was asked for
            return finding
        choice = self.rules.get(finding.id, finding.severity)
        if choice == "ignore":
            return None
        accepted = next((it for it in self.accepted if it.covers(finding, today)), None)
        if accepted is None:
            return replace(finding, severity=choice)
        return replace(finding, severity="note", says=f"{finding.says} (accepted: {accepted.reason})")


class _Signed(Struct, forbid_unknown_fields=True):
    keys: Annotated[list[Text], Meta(min_length=1)]


class _PolicyFile(Struct, rename="kebab", forbid_unknown_fields=True):
    fail_on: Severity = "error"
    rules: dict[str, Choice] = {}
    accept: list[Accepted] = []
    signed: _Signed | None = None
    registries: Annotated[list[Text], Meta(min_length=1)] | None = None


def read_policy(path: Path, known: Iterable[str]) -> Policy:
    """Read a policy, a TOML file; UsageError where it cannot be read or is not valid.

    `known` are the names of all rules, so that a misspelt one does not silently change nothing.
    """
    where, names = f"--policy {path}", sorted(known)
    try:
        values: Any = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        file = convert(values, _PolicyFile, builtin_types=(dt.date, dt.datetime))
    except ValidationError as error:
        raise UsageError(f"the policy is not valid: {error}", where=where, todo=_TODO) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"the policy cannot be read: {error}", where=where, todo=_TODO) from error
    for pattern in (*file.rules, *(it.rule for it in file.accept)):
        if pattern not in names and (pattern in file.rules or not any(fnmatchcase(it, pattern) for it in names)):
            raise UsageError(f"unknown rule {pattern}; known are {', '.join(names)}", where=where, todo=_TODO)
    keys = file.signed.keys if file.signed else ()
    return Policy(
        fail_on=file.fail_on,
        rules=file.rules,
        accepted=tuple(file.accept),
        keys=tuple(it if _KEY.match(it) else str(path.parent / it) for it in keys),
        registries=tuple(_registry(it, where) for it in file.registries or ()),
    )


def _registry(text: str, where: str) -> Reference:
    try:
        place = Reference.parse(text)
    except ValueError as error:
        raise UsageError(f"registries: {text!r} is not valid: {error}", where=where, todo=_TODO) from error
    if place.tag or place.digest or place.registry != text.partition("/")[0]:
        todo = f"give host and path, such as europe-docker.pkg.dev/acme/ml; {_TODO}"
        raise UsageError(f"registries: {text!r} is not the path of a registry", where=where, todo=todo)
    return place
