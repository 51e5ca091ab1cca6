"""Findings for other programs: SARIF 2.1.0 (OASIS) for code scanning, JUnit's XML for CI."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from typing import Any
from urllib.parse import quote, unquote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from envbuild.oci.digest import Digest
from envbuild.verify.findings import Finding
from envbuild.verify.policy import Policy

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


def lines(findings: Sequence[Finding]) -> list[str]:
    """The findings for people: the two targets above the findings between them; reason and remedy below each."""
    text: list[str] = []
    for between, those in groupby(findings, key=lambda it: it.between):
        if any(between):
            alone = between[0] == between[1]
            text.append(f"{between[0]}:" if alone else f"{between[1]}, as {between[0]} wants it:")
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
