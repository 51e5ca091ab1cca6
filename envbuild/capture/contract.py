"""What the program needs from wherever it runs next."""

from __future__ import annotations

import os
from typing import Iterable

from envbuild.capture.data import data_facts
from envbuild.capture.reading import Facts
from envbuild.capture.redact import scrub_line
from envbuild.capture.tree import tree_facts
from envbuild.capture.variables import VARIABLE


def contract_facts(requires: Iterable[str], data: Iterable[str], preprocessing: Iterable[str]) -> Facts | None:
    """Describe the variables, data and code that the program depends on.

    ValueError for what cannot name a variable and for code that is not there.
    """
    names = required_names(requires)
    facts: Facts = {
        "variables": [{"name": scrub_line(name), "present": name in os.environ} for name in names],
        "data": data_facts(data, names),
        "preprocessing": [tree_facts(path) for path in dict.fromkeys(preprocessing)],
    }
    return {key: value for key, value in facts.items() if value} or None


def required_names(requires: Iterable[str]) -> list[str]:
    """Return the names of variables, sorted; of `NAME=value` the name alone."""
    names = [text.partition("=")[0] for text in requires]
    for number, name in enumerate(names, 1):
        if not VARIABLE.fullmatch(name):
            # Not what it is, since that may be a value that was meant to stay secret.
            raise ValueError("requires: number %d cannot name a variable" % number)
    return sorted(set(names))
