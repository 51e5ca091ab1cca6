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
from envbuild.capture.gaps import told_gaps
from envbuild.capture.golden import golden_facts
from envbuild.capture.host import host_facts
from envbuild.capture.integrity import installation_facts
from envbuild.capture.loading import load_modules
from envbuild.capture.machine import cpu_facts, platform_facts, python_facts
from envbuild.capture.model.facts import model_facts
from envbuild.capture.native import native_facts
from envbuild.capture.numerics import numerics_facts
from envbuild.capture.output import check_out, tell_disagreements, write_out
from envbuild.capture.reading import Facts, manifest_text, present
from envbuild.capture.redact import scrub_line
from envbuild.capture.settings import check_lists
from envbuild.capture.used import used_framework
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
    load: Iterable[str] = (),
    process: str = "run",
) -> Facts:
    """Record the running interpreter's environment, and write it to `out` whole or not at all.

    `variables` names environment variables to record besides the built-in ones, `requires` those that the program
    depends on. `data` are places it reads from, as `URI` or `NAME=URI`, `preprocessing` paths of code that serving has
    to share. `golden` is a sample as `golden_sample` makes it. `command` is the run's own, where this process is
    another. `patch` records uncommitted changes, `deep` hashes every installed file, `load` names modules to import
    first, so that the libraries they load are recorded. `out` may be a path or `gs://bucket/object`. What disagrees is
    told on stderr as well. ValueError for arguments that cannot be meant, OSError if `out` cannot be written.
    """
    lists = {"variables": variables, "requires": requires, "data": data, "preprocessing": preprocessing}
    check_lists(dict(lists, load=load, command=command))
    check_out(out)
    environment = environment_facts(variables, command=command, patch=patch, deep=deep, load=load, process=process)
    contract = contract_facts(requires, data, preprocessing)
    manifest = complete(environment, contract, model_uri or os.environ.get("AIP_MODEL_DIR"), golden)
    if out is not None:
        write_out(out, manifest_text(manifest))
    tell_disagreements(manifest)
    return manifest


def environment_facts(
    variables: Iterable[str] = (),
    *,
    command: Sequence[str] | None = None,
    patch: bool = False,
    deep: bool = False,
    load: Iterable[str] = (),
    process: str = "run",
) -> Facts:
    """Describe the interpreter and what is around its process; `process` is `run` or `fresh`."""
    notes = load_modules(load)
    distributions = find_distributions(patch)
    installation = installation_facts(distributions, deep)
    frameworks, code = find_frameworks(distributions), code_facts(patch)
    notes += told_gaps(installation, code, distributions.values(), patch)
    source: Facts = {"format": "capture", "tool": TOOL, "unknown": _unknown(process, command), "notes": notes}
    return {
        "schema_version": SCHEMA_VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": {key: value for key, value in source.items() if value},
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
        "numerics": numerics_facts() if process == "run" else None,
        "variables": recorded_variables(variables),
        "code": code,
        "entry": entry_facts(command, process),
        "host": host_facts(),
    }


def _unknown(process: str, command: Sequence[str] | None) -> list[str]:
    """Name what only the training process itself could tell."""
    if process == "run":
        return []
    return ["numerics"] if command else ["entry", "numerics"]


def complete(environment: Facts, contract: Facts | None, model_uri: str | None, golden: Any) -> Facts:
    """Add to an environment what lies outside of its process, and say what disagrees."""
    uri = scrub_line(model_uri or "") or None
    model = model_facts(model_uri) if model_uri else None
    outside = {"contract": contract, "model_uri": uri, "model": model}
    manifest: Facts = present(dict(environment, **outside, golden=golden_facts(golden)))
    if manifest.get("frameworks"):
        manifest["framework"] = used_framework(manifest)
    if manifest.get("frameworks") and manifest["framework"] is None:
        del manifest["framework"]
        manifest["source"].setdefault("unknown", []).append("framework")
    return dict(manifest, disagreements=present(find_disagreements(manifest)))
