"""What has to agree between two sources: pure, one module for each subject."""

from collections.abc import Callable, Iterator

from envbuild.verify.findings import SEVERITIES, Finding
from envbuild.verify.rules import artifacts, contract, hardware, model, packages
from envbuild.verify.sources import Side

Check = Callable[[Side, Side], Iterator[Finding]]
"""Compares what the first source requires with the second one, where both know it; in a fixed order."""

ARTIFACT: tuple[Check, ...] = (
    model.framework,
    model.tensorflow_1,
    model.keras,
    artifacts.artifact_library,
    artifacts.artifact_pickle,
    artifacts.artifact_onnx,
    model.artifact_format,
)
"""Those that compare a model with an environment; one run has both."""
RULES: tuple[Check, ...] = (
    hardware.python,
    hardware.implementation,
    hardware.system,
    hardware.machine,
    hardware.glibc,
    packages.framework,
    packages.framework_build,
    packages.packages,
    packages.missing,
    packages.extra,
    packages.package_build,
    hardware.cuda,
    hardware.cudnn,
    hardware.driver,
    hardware.absent,
    hardware.compute_capability,
    hardware.memory,
    hardware.cpu_flags,
    contract.variable_missing,
    contract.variable_value,
    contract.numerics,
    contract.data_absent,
    contract.data_changed,
    contract.preprocessing,
    *ARTIFACT,
    model.model_files,
)
"""In the order of the catalogue, one for each of its rules."""


def apply_rules(wanted: Side, found: Side, rules: tuple[Check, ...] = RULES) -> tuple[Finding, ...]:
    """All findings of the rules; within a rule the gravest first, and what agrees last."""
    gravity = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    groups = (sorted(check(wanted, found), key=lambda it: (it.agrees, gravity[it.severity])) for check in rules)
    return tuple(it.with_targets(wanted.name, found.name) for group in groups for it in group)
