"""Models that real releases wrote, and what loads them: the verdict agrees with what happened (tests/tools/pairs.py)."""

import json

import pytest

from envbuild.capture.model import model_facts
from envbuild.manifest.model import Model
from envbuild.validation import read_or_none
from envbuild.verify.rules import ARTIFACT, apply_rules
from envbuild.verify.sources import Package, Side
from tests.tools.pairs import PAIRS, folder_of, read_pairs

TRIED = json.loads((PAIRS / "pairs.json").read_bytes())
TABLE = [pytest.param(pair, TRIED[pair["name"]], id=pair["name"]) for pair in read_pairs()]
FILES = [path for path in sorted(PAIRS.rglob("*")) if path.is_file() and path.parent != PAIRS]


@pytest.mark.parametrize(("pair", "tried"), TABLE)
def test_the_verdict_on_a_pair_is_what_happened(pair, tried):
    model = Side(name="model", kind="model", model=read_or_none({"uri": "model", **tried["model"]}, Model))
    packages = {name: Package(name=name, version=version) for name, version in tried["packages"].items()}
    there = Side(name="there", kind="image", python=pair["loads"].split()[0], packages=packages)
    assert model.model
    expected = [] if pair["verdict"] == "fine" else [tuple(pair["verdict"].split())]
    for wanted, found in ((model, there), (there, model)):
        findings = [it for it in apply_rules(wanted, found, ARTIFACT) if not it.agrees]
        if pair["verdict"] == "fine":
            findings = [it for it in findings if it.severity != "note"]
        assert [(it.rule, it.severity) for it in findings] == expected
        assert all(pair["remedy"] in it.todo for it in findings)


def test_the_table_has_enough_pairs_of_both_kinds_and_each_was_tried():
    fine = [pair["name"] for pair in read_pairs() if pair["verdict"] == "fine"]
    assert len(fine) >= 40
    assert len(TABLE) - len(fine) >= 40
    assert all(TRIED[name]["says"].startswith("same predictions") for name in fine)
    assert list(TRIED) == [pair["name"] for pair in read_pairs()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_kept_model_is_read_as_it_was(path):
    tried = next(TRIED[name] for name in TRIED if folder_of(name) == path.parent.name)
    facts = model_facts(str(path))
    assert {key: facts[key] for key in tried["model"]} == tried["model"]
