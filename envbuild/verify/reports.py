"""The policy: which findings fail a verification, or are accepted for a while; and reports for people and programs.

SARIF 2.1.0 (OASIS) is for code scanning, JUnit's XML for CI.
"""

import datetime as dt
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from msgspec import Meta, Struct, ValidationError, convert
from packaging.utils import canonicalize_name

from envbuild.errors import UsageError, VerifyError, counted
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.report import Reporter
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
        says = f"{reference.name} {'is' if agrees else 'is not'} below {listed}"
        yield Finding(
            about="registry", rule="image-registry", agrees=agrees, says=says, wanted=listed, found=reference.name,
            why="everybody who may push there decides what is deployed",
            todo="copy the image to a registry that the policy lists, or add its registry to the policy",
        )  # fmt: skip

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


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All findings about some targets, as a policy judged them."""

    targets: tuple[str, ...]
    findings: tuple[Finding, ...]
    policy: Policy
    failed: str = ""
    """What ended the verification before all was compared."""

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that fail it."""
        return tuple(it for it in self.findings if self.policy.fails(it))

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            "targets": list(self.targets),
            "agrees": not self.wrong and not self.failed,
            "fail_on": self.policy.fail_on,
            "findings": [it.to_dict() for it in self.findings],
            **({"failed": self.failed} if self.failed else {}),
        }


def sarif(verdict: Verdict, titles: Mapping[str, str]) -> dict[str, Any]:
    """Make a SARIF log of what does not agree; `titles` are what each rule is about.

    `level` is what the policy made of the severity. The location is what was compared with the first target.
    """
    rules = sorted({it.id for it in verdict.findings if not it.agrees})
    driver = {
        "name": "envbuild",
        "semanticVersion": version("envbuild"),
        "rules": [{"id": rule, "shortDescription": {"text": titles.get(rule, rule)}} for rule in rules],
    }
    results = [_result(it, rules.index(it.id), verdict) for it in verdict.findings if not it.agrees]
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    if verdict.failed:
        notes = [{"level": "error", "message": {"text": verdict.failed}}]
        run["invocations"] = [{"executionSuccessful": False, "toolExecutionNotifications": notes}]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Finding, number: int, verdict: Verdict) -> dict[str, Any]:
    place = finding.between[1] or verdict.targets[0]
    identity = f"{finding.id}\0{place}\0{finding.about}"
    return {
        "ruleId": finding.id,
        "ruleIndex": number,
        "level": finding.severity,
        "message": {"text": " ".join(filter(None, (f"{finding.about}: {finding.says}.", finding.why, finding.todo)))},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _uri(place)}, "region": {"startLine": 1}},
                "logicalLocations": [{"name": finding.about, "fullyQualifiedName": f"{place}/{finding.about}"}],
            }
        ],
        "partialFingerprints": {"finding/v1": Digest.of(identity.encode(errors="surrogatepass")).hex},
        "properties": {"wanted": finding.wanted, "found": finding.found, "between": list(finding.between)},
    }


def _uri(place: str) -> str:
    """A target as a URI reference (RFC 3986): images and what lies here would else seem to have a scheme, `churn:`."""
    scheme, mark, rest = place.partition("://")
    match scheme if mark else "":
        case "file":
            return f"file://{_quoted(unquote(rest))}"
        case "gs" | "docker":
            return f"{scheme}://{_quoted(rest)}"
        case _:
            return f"file://{_quoted(place)}" if place.startswith("/") else _quoted(place)


def _quoted(text: str) -> str:
    try:
        return quote(os.fsencode(text))
    except UnicodeEncodeError:  # it came from a file, not from a name of this machine
        return quote(text, errors="surrogatepass")


def junit(verdict: Verdict) -> str:
    """Make a JUnit report: a suite for each pair of targets, a case for each finding, a failure for what fails it."""
    root = Element("testsuites", name="envbuild verify")
    for between, those in groupby(verdict.findings, key=lambda it: it.between):
        findings = list(those)
        failed = sum(verdict.policy.fails(it) for it in findings)
        name = " and ".join(filter(None, between)) or " ".join(verdict.targets)
        suite = SubElement(root, "testsuite", name=_clean(name), tests=str(len(findings)), failures=str(failed))
        for finding in findings:
            _case(suite, finding, fails=verdict.policy.fails(finding))
    if verdict.failed:
        suite = SubElement(root, "testsuite", name="verification", tests="1", failures="0", errors="1")
        case = SubElement(suite, "testcase", classname="verification", name="whole")
        SubElement(case, "error", message=_clean(verdict.failed))
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True)


def _case(suite: Element, finding: Finding, *, fails: bool) -> None:
    case = SubElement(suite, "testcase", classname=_clean(finding.id), name=_clean(finding.about))
    values = f"wanted {finding.wanted}, found {finding.found}" if finding.wanted or finding.found else ""
    text = _clean("\n".join(filter(None, (finding.says, values, finding.why, finding.todo))))
    if fails:
        SubElement(case, "failure", message=_clean(finding.says), type=finding.severity).text = text
    else:
        SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    """XML has no way to say most control characters (XML 1.0, section 2.2)."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def sound(value: Any) -> Any:
    """Spell out halves of characters (surrogates), which Python writes into JSON and other readers refuse."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {sound(name): sound(it) for name, it in value.items()}
        case list() | tuple():
            return [sound(it) for it in value]
        case _:
            return value


def report_finding(finding: Finding, report: Reporter) -> None:
    """Report a finding with its reason and remedy; as a note where it agrees or is good to know."""
    text = "\n".join(lines([finding]))
    if finding.agrees or finding.severity == "note":
        report.note(text)
    else:
        report.warn(text.removeprefix(finding.severity).lstrip())


def judge(findings: Sequence[Finding], what: str, where: str, report: Reporter, todo: str = "") -> None:
    """Report findings; VerifyError with all that are errors, by default with the remedy of the first."""
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    for it in findings:
        if it not in wrong:
            report_finding(it, report)
    if wrong:
        count = f"{len(wrong)} of {counted(len(findings), 'check')} failed"
        raise VerifyError("\n".join((f"{what}: {count}", *lines(wrong))), where=where, todo=todo or wrong[0].todo)


def lines(findings: Sequence[Finding]) -> list[str]:
    """The findings for people: the two targets above the findings between them; reason and remedy below each."""
    text: list[str] = []
    for between, those in groupby(findings, key=lambda it: it.between):
        if any(between):
            alone = between[0] == between[1]
            text.append(f"{between[0]}:" if alone else f"{between[1]} compared with {between[0]}:")
        text += [line for finding in those for line in _lines(finding)]
    return text


def _lines(finding: Finding) -> list[str]:
    """What a program printed, which a finding may quote, keeps its lines; [] has the name for policies."""
    text, *quoted = str(finding).split("\n  | ")
    below = [f"| {line}" for line in quoted]
    if not finding.agrees:
        text += f" [{finding.id}]" if finding.id != finding.about else ""
        below += [it for it in (finding.why, finding.todo) if it]
    return [text, *(f"{'':<9}{it}" for it in below)]
