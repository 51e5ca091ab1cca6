"""The size of each package stays within its budget, which pyproject.toml sets."""

import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES, MOST_MODULES = 60_574, 267
"""Of the whole program."""


def test_no_package_exceeds_its_budget():
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["budgets"]
    lines, modules = Counter[str](), Counter[str]()
    for file in (ROOT / "envbuild").rglob("*.py"):
        package, *inner = file.relative_to(ROOT / "envbuild").parts
        name = package if inner else "root"
        lines[name] += file.read_text().count("\n")
        modules[name] += 1
    assert set(lines) == set(budgets)
    over = {
        name: (lines[name], modules[name])
        for name, it in budgets.items()
        if lines[name] > it["lines"] or modules[name] > it["modules"]
    }
    assert over == {}, "make the package smaller, or discuss its budget first"
    assert (lines.total() <= MOST_LINES, modules.total() <= MOST_MODULES) == (True, True)
