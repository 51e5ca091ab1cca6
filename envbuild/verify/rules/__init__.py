"""What has to agree between two sources: pure, one module for each subject."""

from collections.abc import Callable, Iterator

from envbuild.manifest.model import Model
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
    model.artifact_format,
)
"""Those that compare a model with an environment; one run has both. Where it cannot be loaded nothing else matters."""
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
    """All findings of the rules, first those on a model's files; within a rule the gravest first, what agrees last."""
    ordered = sorted(rules, key=lambda check: check not in ARTIFACT)
    groups = (sorted(check(wanted, found), key=_gravity) for check in ordered)
    return tuple(it.with_targets(wanted.name, found.name) for group in groups for it in group)


def loading_faults(model: Model, environment: Side) -> tuple[Finding, ...]:
    """What may keep a model from being loaded in an environment, or change its predictions; the gravest first."""
    side = Side(name=model.uri, kind="model", model=model)
    return tuple(sorted((it for check in ARTIFACT for it in check(side, environment) if not it.agrees), key=_gravity))


def _gravity(finding: Finding) -> tuple[bool, int]:
    return finding.agrees, SEVERITIES.index(finding.severity)
