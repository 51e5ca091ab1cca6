"""Distributions of the run that somebody leaves out by hand (`--drop NAME`)."""

from collections.abc import Collection
from dataclasses import replace

from packaging.utils import canonicalize_name

from envbuild.errors import UsageError
from envbuild.manifest.known import known_framework
from envbuild.manifest.model import TrainingManifest
from envbuild.match.stack import PinChange, Stack
from envbuild.match.swap import name_of

REASON = "--drop"


def without_dropped(manifest: TrainingManifest, names: Collection[str]) -> TrainingManifest:
    """Return the manifest without them; UsageError for what the run did not have, and for its framework."""
    dropped = {canonicalize_name(it) for it in names}
    if unknown := sorted(dropped - {canonicalize_name(it.name) for it in manifest.distributions}):
        todo = "give the name of a distribution of the run; what another one requires goes only with that one"
        raise UsageError(f"the run does not have {', '.join(unknown)}", where=f"--drop {unknown[0]}", todo=todo)
    used = known_framework(manifest)
    if used and canonicalize_name(used.distribution) in dropped:
        todo = "keep it, or say --framework none if the run used no framework"
        raise UsageError(f"{used.distribution} is the run's framework", where=f"--drop {used.distribution}", todo=todo)
    framework = manifest.framework
    lost = framework is not None and canonicalize_name(framework.distribution) in dropped
    return replace(
        manifest,
        distributions=tuple(it for it in manifest.distributions if canonicalize_name(it.name) not in dropped),
        framework=None if lost else framework,
        frameworks=tuple(it for it in manifest.frameworks if canonicalize_name(it.distribution) not in dropped),
    )


def dropped_from(stack: Stack, manifest: TrainingManifest, names: Collection[str]) -> Stack:
    """Return the stack without them, and with each as a change of the run's pins."""
    dropped = {canonicalize_name(it) for it in names}
    versions = {canonicalize_name(it.name): it.version for it in manifest.distributions}
    changes = [
        PinChange(name=it, before=f"{it}=={version}" if (version := versions[it]) else it, after=None, reason=REASON)
        for it in sorted(dropped)
    ]
    gaps = stack.gaps
    return replace(
        stack,
        requirements=tuple(it for it in stack.requirements if name_of(it) not in dropped),
        gaps=replace(gaps, without=tuple(sorted({*gaps.without, *dropped}))) if gaps else None,
        changes=(*(it for it in stack.changes if it.name not in dropped), *changes),
        dropped=tuple(sorted(dropped)),
    )
