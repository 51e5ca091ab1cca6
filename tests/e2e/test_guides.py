"""The guides are true: every command is run as it stands there, in order, and prints what is shown below it."""

import pytest

from tests.tools.acme import ROOT, acme
from tests.tools.shown import agree, masked, shown, transcript

pytestmark = pytest.mark.real


@pytest.fixture
def company(tmp_path, engine, registry, cache):
    with acme(tmp_path / "home", engine, registry.host, cache) as company:
        yield company


def held(company, name: str) -> None:
    """Run a guide's commands in one shell, and hold each one's output against the page."""
    steps = list(shown((ROOT / f"docs/guide-{name}.md").read_text()))
    assert steps, "a guide without a command"
    found = transcript([company.real(it.command) for it in steps], company.folder, company.environment)
    for step, lines in zip(steps, found, strict=True):
        real = company.told("\n".join(lines)).splitlines()
        wanted, printed = "\n".join(map(masked, step.lines)), "\n".join(map(masked, real))
        assert agree(step.lines, real), f"$ {step.command}\n--- the guide\n{wanted}\n--- printed\n{printed}"


def test_after_training(company):
    held(company, "after-training")


@pytest.mark.slow
def test_on_a_laptop(company):
    company.train()
    held(company, "laptop")


@pytest.mark.slow
def test_in_ci(company):
    company.train()
    held(company, "ci")
