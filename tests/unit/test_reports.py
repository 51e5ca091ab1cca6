import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.verify.findings import SEVERITIES, Finding
from envbuild.verify.reports import Policy, Verdict, junit, lines, sarif, sound

MOVED = Finding(
    rule="package",
    about="numpy",
    agrees=False,
    says="1.26.4 is not 1.22.0",
    wanted="1.22.0",
    found="1.26.4",
    why="Numbers change.",
    todo="Install numpy==1.22.0.",
    between=("run.json", "churn:7"),
)
EXTRA = Finding(rule="package-extra", about="uvicorn", agrees=False, severity="note", says="new", between=MOVED.between)
SAME = Finding(about="python", agrees=True, says="both have 3.11.7", between=MOVED.between)
OTHER = Finding(about="glibc", agrees=False, severity="warning", says="older", between=("run.json", "host"))


def verdict(*findings: Finding) -> Verdict:
    return Verdict(targets=("run.json", "churn:7", "host"), findings=findings, policy=Policy())


def test_sarif_has_what_does_not_agree_and_its_rules():
    log = sarif(verdict(MOVED, EXTRA, SAME, OTHER), {"package": "Another version"})
    [run] = log["runs"]
    assert log["version"] == "2.1.0"
    rules = run["tool"]["driver"]["rules"]
    assert [(it["id"], it["shortDescription"]["text"]) for it in rules] == [
        ("glibc", "glibc"),
        ("package", "Another version"),
        ("package-extra", "package-extra"),
    ]
    results = run["results"]
    assert [(it["ruleId"], it["level"]) for it in results] == [
        ("package", "error"),
        ("package-extra", "note"),
        ("glibc", "warning"),
    ]
    assert all(rules[it["ruleIndex"]]["id"] == it["ruleId"] for it in results)
    assert results[0]["message"]["text"] == "numpy: 1.26.4 is not 1.22.0. Numbers change. Install numpy==1.22.0."
    places = [it["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for it in results]
    assert places == ["churn%3A7", "churn%3A7", "host"]
    prints = [it["partialFingerprints"]["finding/v1"] for it in results]
    assert len(set(prints)) == 3
    assert prints == [
        it["partialFingerprints"]["finding/v1"] for it in sarif(verdict(MOVED, EXTRA, OTHER), {})["runs"][0]["results"]
    ]


def test_junit_has_a_suite_for_each_pair_and_a_failure_for_what_fails():
    root = ET.fromstring(junit(verdict(MOVED, EXTRA, SAME, OTHER)))
    suites = [(it.get("name"), it.get("tests"), it.get("failures")) for it in root]
    assert suites == [("run.json and churn:7", "3", "1"), ("run.json and host", "1", "0")]
    [failure] = root.iter("failure")
    assert failure.get("message") == "1.26.4 is not 1.22.0"
    assert "wanted 1.22.0, found 1.26.4" in (failure.text or "")
    assert [it.get("classname") for it in root.iter("testcase")] == ["package", "package-extra", "python", "glibc"]


def test_people_read_both_sides_why_and_what_to_do():
    assert lines([SAME, MOVED, OTHER]) == [
        "churn:7 compared with run.json:",
        "ok       python: both have 3.11.7",
        "error    numpy: 1.26.4 is not 1.22.0 [package]",
        "         Numbers change.",
        "         Install numpy==1.22.0.",
        "host compared with run.json:",
        "warning  glibc: older",
    ]


def test_what_a_program_said_keeps_its_lines():
    quoting = Finding(
        about="golden", agrees=False, says="it ended with 1\n  | Traceback\n  | ImportError", todo="Look."
    )
    assert lines([quoting]) == [
        "error    golden: it ended with 1",
        "         | Traceback",
        "         | ImportError",
        "         Look.",
    ]


def test_the_rule_stands_where_it_is_not_what_it_is_about_and_before_what_is_quoted():
    stamp = Finding(about="stamp", rule="artifact-stamp", agrees=False, says="none\n  | quoted")
    assert lines([stamp, replace(stamp, agrees=True, says="it is there")]) == [
        "error    stamp: none [artifact-stamp]",
        "         | quoted",
        "ok       stamp: it is there",
    ]


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        ("out/my model", "out/my%20model"),
        ("/srv/a b/m#1.keras", "file:///srv/a%20b/m%231.keras"),
        ("file:///srv/a%20b", "file:///srv/a%20b"),
        ("gs://acme/a b%41", "gs://acme/a%20b%2541"),
        ("127.0.0.1:5000/env:v1", "127.0.0.1%3A5000/env%3Av1"),
        ("docker://churn:latest", "docker://churn%3Alatest"),
        ("m\n\udce9", "m%0A%E9"),
        ("\ud800", "%ED%A0%80"),
        ("lock of train cpu linux/amd64", "lock%20of%20train%20cpu%20linux/amd64"),
    ],
)
def test_sarif_names_what_was_held_by_a_uri_reference(target, uri):
    [run] = sarif(verdict(MOVED.with_targets("run.json", target)), {})["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_half_a_character_is_spelled_out_for_readers_that_refuse_it():
    assert sound({"\ud800": ["é\udce9", 1, None, ("x",)]}) == {"\\ud800": ["é\\udce9", 1, None, ["x"]]}


def test_what_ended_it_early_is_in_every_format():
    made = replace(verdict(SAME), failed="no engine answers")
    assert (made.to_dict()["agrees"], made.to_dict()["failed"]) == (False, "no engine answers")
    [error] = ET.fromstring(junit(made)).iter("error")
    assert error.get("message") == "no engine answers"
    [invocation] = sarif(made, {})["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "no engine answers"


TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
URI = re.compile(r"(?:(?:file|gs|docker)://)?(?:[\w.~/-]|%[0-9A-F]{2})*", re.ASCII)
FINDINGS = st.builds(
    Finding,
    about=TEXT,
    agrees=st.booleans(),
    says=TEXT,
    rule=TEXT,
    severity=st.sampled_from(SEVERITIES),
    wanted=TEXT,
    found=TEXT,
    why=TEXT,
    todo=TEXT,
    between=st.tuples(TEXT, TEXT),
)


@given(findings=st.lists(FINDINGS, max_size=6))
def test_whatever_is_found_can_be_written_and_nothing_is_lost(findings):
    made = verdict(*findings)
    root = ET.fromstring(junit(made))
    assert len(list(root.iter("testcase"))) == len(findings)
    assert len(list(root.iter("failure"))) == len(made.wrong)
    text = json.dumps(sound(sarif(made, {})), ensure_ascii=False)
    log = json.loads(text.encode())
    places = [it["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for it in log["runs"][0]["results"]]
    assert all(map(URI.fullmatch, places))
    assert len(log["runs"][0]["results"]) == sum(not it.agrees for it in findings)
    assert json.loads(json.dumps(made.to_dict()))["agrees"] == (not made.wrong)
