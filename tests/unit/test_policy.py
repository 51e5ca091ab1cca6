import datetime as dt
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import UsageError
from envbuild.verify.findings import SEVERITIES, Finding
from envbuild.verify.reports import Policy, read_policy
from envbuild.verify.rules.catalogue import TITLES

DOCS = Path(__file__).parents[2] / "docs" / "verify.md"
KNOWN = ("package", "package-extra", "python")
TODAY = dt.date(2026, 11, 21)
WHOLE = """
fail-on = "warning"

[rules]
package-extra = "ignore"
python = "note"

[[accept]]
rule = "package*"
about = "requests"
reason = "only used by the notebook"
until = 2026-11-21
"""


def policy(tmp_path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return read_policy(path, KNOWN)


def finding(rule="package", about="requests", severity="error", agrees=False) -> Finding:
    return Finding(rule=rule, about=about, severity=severity, agrees=agrees, says="2.31.0 is not 2.32.0")


def test_without_a_policy_errors_fail_and_nothing_else():
    findings = [finding(severity=it) for it in SEVERITIES] + [finding(agrees=True)]
    judged = Policy().judged(findings, TODAY)
    assert (judged, [Policy().fails(it) for it in judged]) == (tuple(findings), [True, False, False, False])


@pytest.mark.parametrize(("least", "severity"), [*product(SEVERITIES, SEVERITIES)])
def test_what_is_as_grave_as_asked_fails(least, severity):
    order = ["note", "warning", "error"]
    assert Policy(fail_on=least).fails(finding(severity=severity)) == (order.index(severity) >= order.index(least))


def test_a_policy_changes_leaves_out_and_accepts(tmp_path):
    read = policy(tmp_path, f"\ufeff{WHOLE}")  # as editors on Windows write it
    judged = read.judged(
        [
            finding(),
            finding(about="numpy"),
            finding("package-extra"),
            finding("python", "python"),
            finding("package-extra", agrees=True),
        ],
        TODAY,
    )
    assert [(it.id, it.about, it.severity, it.agrees) for it in judged] == [
        ("package", "requests", "note", False),
        ("package", "numpy", "error", False),
        ("python", "python", "note", False),
        ("package-extra", "requests", "error", True),
    ]
    assert judged[0].says.endswith("(accepted: only used by the notebook)")
    assert [read.fails(it) for it in judged] == [False, True, False, False]


def test_a_package_is_accepted_in_any_spelling_and_nothing_else_is(tmp_path):
    accepted = '[[accept]]\nrule = "package*"\nreason = "x"\nabout = '
    for name, about in (("google-cloud-storage", "Google.Cloud_*"), ("Flask", "flask"), ("numpy", "NumPy")):
        found = Finding(about=name, rule="package", agrees=False, says="", packages=(f"{name} 1.0",))
        [judged] = policy(tmp_path, f'{accepted}"{about}"').judged([found], TODAY)
        assert judged.severity == "note"
    variable = policy(tmp_path, f'{accepted}"http_proxy"').judged([finding(about="HTTP_PROXY")], TODAY)
    assert variable[0].severity == "error"


def test_what_was_accepted_fails_again_after_its_last_day(tmp_path):
    read = policy(tmp_path, WHOLE)
    [judged] = read.judged([finding()], TODAY + dt.timedelta(days=1))
    assert (judged.severity, read.fails(judged)) == ("error", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fail_on = 'error'", "fail_on"),
        ("fail-on = 'never'", "fail-on"),
        ("fail-on = ['error']", "fail-on"),
        ("rules = 'error'", r"at `\$\.rules`"),
        ("[rules]\npackages = 'note'", "unknown rule packages; known are package, package-extra, python"),
        ("[rules]\n'package*' = 'note'", r"package\*"),
        ("[rules]\npackage = 'fatal'", r"\$\.rules"),
        ("accept = {rule = 'package'}", r"\$\.accept"),
        ("accept = ['package']", r"accept\[0\]"),
        ("[[accept]]\nrule = 'package'", r"reason|accept\[0\]"),
        ("[[accept]]\nrule = 'package'\nreason = ' '", r"reason|accept\[0\]"),
        ("[[accept]]\nreason = 'x'", r"rule"),
        ("[[accept]]\nrule = 'pacage*'\nreason = 'x'", r"pacage\*"),
        ("[[accept]]\nrule = 'package'\nreason = 'x'\nuntil = '2026-12-31'", r"accept\[0\]\.until"),
        ("[[accept]]\nrule = 'package'\nreason = 'x'\nuntil = 2026-12-31T00:00:00Z", r"accept\[0\]\.until"),
        ("[[accept]]\nrule = 'package'\nreason = 'x'\nwho = 'me'", "who"),
        ("rules", "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, text, said):
    with pytest.raises(UsageError, match=said) as caught:
        policy(tmp_path, text)
    assert "policy.toml" in caught.value.where


def test_a_policy_that_is_not_there_or_no_text_is_refused(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name in ("absent.toml", "bytes.toml"):
        with pytest.raises(UsageError) as caught:
            read_policy(tmp_path / name, KNOWN)
        assert str(tmp_path / name) in caught.value.where


@given(text=st.text(max_size=80))
def test_no_text_ends_in_anything_but_a_policy_or_a_refusal(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("policy") / "policy.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with suppress(UsageError):
        assert isinstance(read_policy(path, KNOWN), Policy)


def test_the_policy_of_the_documentation_is_one(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(DOCS.read_text().partition("```toml\n")[2].partition("```")[0])
    assert read_policy(path, TITLES).fail_on == "warning"
