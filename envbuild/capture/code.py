"""The git checkout that the run was started in."""

from __future__ import annotations

import os

from envbuild.capture.checkout import checkout_facts
from envbuild.capture.reading import Facts


def code_facts(patch: bool) -> Facts | None:
    """Describe the git checkout of the working directory; without an answer about changes it counts as changed."""
    facts = checkout_facts(os.curdir, patch, whole=True)
    return dict(facts, dirty=facts.get("dirty") is not False) if facts else None
