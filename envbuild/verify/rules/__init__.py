"""What has to agree between two sides: pure, one file for each subject."""

from collections.abc import Callable, Iterator

from envbuild.verify.findings import SEVERITIES, Finding
from envbuild.verify.rules import (
    artifact,
    cuda,
    data,
    driver,
    frameworks,
    gpu,
    interpreter,
    modelfiles,
    numerics,
    packages,
    platforms,
    preprocessing,
    processor,
    variables,
)
from envbuild.verify.rules.catalogue import CATALOGUE, RULE_IDS, Rule, rule_of
from envbuild.verify.sides.side import Side

__all__ = ["ARTIFACT", "CATALOGUE", "RULES", "RULE_IDS", "Check", "Rule", "hold", "rule_of"]

Check = Callable[[Side, Side], Iterator[Finding]]
"""What the first side wants, held against the second one; findings on what both know, in a certain order."""

ARTIFACT: tuple[Check, ...] = (artifact.framework, artifact.tensorflow_1, artifact.keras, artifact.artifact_format)
"""Those that hold a model against an environment, which one run can say both of."""
RULES: tuple[Check, ...] = (
    interpreter.python,
    interpreter.implementation,
    platforms.system,
    platforms.machine,
    platforms.glibc,
    frameworks.framework,
    frameworks.framework_build,
    packages.packages,
    packages.missing,
    packages.extra,
    packages.package_build,
    cuda.cuda,
    cuda.cudnn,
    driver.driver,
    gpu.absent,
    gpu.compute_capability,
    gpu.memory,
    processor.cpu_flags,
    variables.variable_missing,
    variables.variable_value,
    numerics.numerics,
    data.data_absent,
    data.data_changed,
    preprocessing.preprocessing,
    *ARTIFACT,
    modelfiles.model_files,
)
"""In the order of the catalogue, one for each of its rules."""


def hold(wanted: Side, found: Side, rules: tuple[Check, ...] = RULES) -> tuple[Finding, ...]:
    """All findings of the rules; within a rule the gravest first, and what agrees last."""
    findings = (sorted(check(wanted, found), key=_gravity) for check in rules)
    return tuple(it.held(wanted.name, found.name) for group in findings for it in group)


def _gravity(finding: Finding) -> int:
    return len(SEVERITIES) if finding.agrees else SEVERITIES.index(finding.severity)
