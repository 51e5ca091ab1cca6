"""docs/rules.md has the catalogue, and for each rule a mismatch as it is really printed."""

from pathlib import Path

from envbuild.verify.reports import lines
from envbuild.verify.rules import apply_rules
from envbuild.verify.rules.catalogue import CATALOGUE
from tests.unit.test_rules import PLANTED

DOCS = Path(__file__).parents[2] / "docs" / "rules.md"
START = "## Every rule\n\n"


def table() -> str:
    """The catalogue, a row for each rule."""
    rows = [f"| `{it.id}` | {it.severity} | {it.title} | {it.why} |" for it in CATALOGUE]
    return "\n".join(("| rule | by default | asks for | as otherwise |", "|---|---|---|---|", *rows))


def example(rule: str) -> str:
    """What is printed of the first mismatch that is planted for a rule."""
    case = next(it for it in PLANTED if it.rule == rule)
    found = [it for it in apply_rules(case.wanted, case.found) if (it.rule, it.about) == (rule, case.about)]
    return "\n".join((f"### {rule}", "", "```text", *lines(found), "```"))


def generated() -> str:
    return "\n\n".join((table(), "## What they say", *(example(it.id) for it in CATALOGUE))) + "\n"


def test_the_documented_rules_are_the_catalogue_and_say_what_is_printed() -> None:
    _, _, said = DOCS.read_text().partition(START)
    assert said == generated()


def test_what_the_documentation_says_of_kinds_is_of_real_rules() -> None:
    introduction, _, _ = DOCS.read_text().partition(START)
    named = {cell for line in introduction.splitlines() if line.startswith("| `") for cell in line.split("`")[1::2]}
    known = {it.id for it in CATALOGUE}
    assert {it for it in named if "-" in it and not it.startswith("-")} <= known
