"""The whole record: what each part says, put together in the order of the schema."""

from __future__ import annotations

import os
import time
from typing import Any, Iterable, Sequence

from envbuild.capture.accelerator import accelerator_facts
from envbuild.capture.code import code_facts
from envbuild.capture.conda import conda_facts
from envbuild.capture.contract import contract_facts
from envbuild.capture.disagreements import find_disagreements
from envbuild.capture.distributions import find_distributions
from envbuild.capture.entry import entry_facts
from envbuild.capture.frameworks import find_frameworks
from envbuild.capture.golden import golden_facts
from envbuild.capture.host import host_facts
from envbuild.capture.integrity import installation_facts
from envbuild.capture.machine import cpu_facts, platform_facts, python_facts
from envbuild.capture.model.facts import model_facts
from envbuild.capture.native import native_facts
from envbuild.capture.numerics import numerics_facts
from envbuild.capture.reading import Facts, manifest_text, present, write_whole
from envbuild.capture.redact import scrub
from envbuild.capture.variables import recorded_variables

SCHEMA_VERSION = "1.1"
TOOL = "envbuild 0.1.0"
"""Spelled out, as the standalone file has no package to ask."""


def capture(  # noqa: PLR0913 - each is one kind of fact
    model_uri: str | None = None,
    out: str | os.PathLike[str] | None = None,
    variables: Iterable[str] = (),
    *,
    requires: Iterable[str] = (),
    data: Iterable[str] = (),
    preprocessing: Iterable[str] = (),
    golden: Any = None,
    command: Sequence[str] | None = None,
    patch: bool = False,
    deep: bool = False,
    process: str = "run",
) -> Facts:
    """Record the running interpreter's environment, and write it to `out` whole or not at all.

    `variables` names environment variables to record besides the built-in ones, `requires` those that the program
    depends on. `data` are places it reads from, `preprocessing` paths of code that serving has to share. `golden` is
    a sample as `golden_sample` makes it. `patch` records uncommitted changes, `deep` hashes every installed file.
    OSError if `out` cannot be written.
    """
    distributions = find_distributions(patch)
    installation = installation_facts(distributions, deep)
    frameworks = find_frameworks(distributions)
    uri = scrub(model_uri or os.environ.get("AIP_MODEL_DIR") or "") or None
    manifest: Facts = {
        "schema_version": SCHEMA_VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": {"format": "capture", "tool": TOOL},
        "python": python_facts(),
        "platform": platform_facts(),
        "distributions": list(distributions.values()),
        "installation": installation,
        "conda": conda_facts(),
        "framework": frameworks[0] if frameworks else None,
        "frameworks": frameworks,
        "accelerator": accelerator_facts(),
        "cpu": cpu_facts(),
        "native": native_facts(distributions, process),
        "numerics": numerics_facts(),
        "variables": recorded_variables(variables),
        "code": code_facts(patch),
        "entry": entry_facts(command, process),
        "contract": contract_facts(requires, data, preprocessing),
        "host": host_facts(),
        "model_uri": uri,
        "model": model_facts(uri) if uri else None,
        "golden": golden_facts(golden),
    }
    manifest = present(dict(manifest, disagreements=find_disagreements(manifest)))
    if out is not None:
        write_whole(os.path.realpath(out), manifest_text(manifest))
    return manifest
