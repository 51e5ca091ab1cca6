"""Which targets of a verification are compared: each with the first, and some with themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.diff.layers import Report
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.stamp.record import StampedImage
from envbuild.verify.findings import Finding
from envbuild.verify.registries import registry_findings, tag_findings
from envbuild.verify.rules import ARTIFACT, apply_rules
from envbuild.verify.rules.packages import minor
from envbuild.verify.sharing import prove_sharing
from envbuild.verify.sources import Side, side_of_lock
from envbuild.verify.sources.context import context_findings
from envbuild.verify.sources.model import StampedModel, artifact_findings

_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target, read."""

    side: Side
    manifest: TrainingManifest | None = None
    """Of a manifest."""
    model: StampedModel | None = None
    """Of a model."""
    image: Image | None = None
    """Of an image."""
    reference: Reference | None = None
    """Of an image in a registry."""
    folder: Path | None = None
    """Of a build context."""

    @property
    def name(self) -> str:
        """As it was given."""
        return self.side.name


def verify_targets(targets: Sequence[Target], report: Report) -> Iterator[Finding]:
    """Compare each target with the first, and those that say more than one thing with themselves.

    RegistryError where a registry does not answer, BuildError for a layer that cannot be read.
    """
    first, *others = targets
    locks = first.model.locks.values() if first.model else ()
    dropped = frozenset[str]().union(*(it.dropped for it in locks), *(it.side.dropped for it in targets))
    hosts = [it.side for it in others] if all(it.side.kind == "host" for it in others) else []
    for target in targets:
        for it in _alone(target, report, hosts):
            yield it if any(it.between) else it.with_targets(target.name, target.name)
    for other in others:
        stamp = first.model.stamp if first.model else None
        tags = tag_findings(stamp, other.reference) if stamp and other.reference else ()
        shared = prove_sharing(first.image, other.image, report) if first.image and other.image else ()
        yield from (it.with_targets(first.name, other.name) for it in (*tags, *shared))
        # What an image does without, here or elsewhere, is in its lock, which a stamped model has.
        runs = other.side.kind in ("image", "host")
        yield from apply_rules(first.side, replace(other.side, dropped=dropped) if runs else other.side)


def _alone(target: Target, report: Report, hosts: Sequence[Side]) -> Iterator[Finding]:
    if target.folder:
        yield from context_findings(target.folder)
    if target.manifest:
        yield from _disagreements(target.manifest)
        yield from _modified(target.manifest)
    if target.model or target.manifest:
        # a model names what wrote it, and its run what was installed
        yield from apply_rules(target.side, target.side, ARTIFACT)
    if target.model:
        yield from _stamped(target.model, target.side, report, hosts)


def _disagreements(manifest: TrainingManifest) -> Iterator[Finding]:
    if not manifest.disagreements:
        yield Finding(rule="disagreement", about="record", agrees=True, says="it does not contradict itself")
    for one in manifest.disagreements:
        says = f"{one.message} ({', '.join(f'{side}: {value}' for side, value in one.values)})"
        yield Finding(
            rule="disagreement", about=one.fact, agrees=False, severity="warning", says=says,
            why="The record of the run contradicts itself, so that one of the two is not what trained the model.",
            todo="capture again in the environment that trains, right after the model is saved",
        )  # fmt: skip


def _modified(manifest: TrainingManifest) -> Iterator[Finding]:
    """Packages that were changed after they were installed: no lock can give them again."""
    for one in manifest.distributions:
        if one.changed_files:
            files = ", ".join((*one.modified, *one.missing)[:_NAMED])
            yield Finding(
                rule="package-modified", about=one.name, agrees=False, severity="warning",
                says=f"{one.changed_files} of its files were changed or removed after it was installed: {files}",
                why="The run computed with files that no index has, so no image built from its lock has them.",
                todo="publish what was changed as a version of its own, and train with that",
                packages=(f"{one.name} {one.version}",),
            )  # fmt: skip


def _stamped(model: StampedModel, side: Side, report: Report, hosts: Sequence[Side]) -> Iterator[Finding]:
    """A model's files, images and locks against its record and its run."""
    yield from artifact_findings(model)
    if model.stamp is None:
        return
    yield from registry_findings(model.stamp)
    yield from _locked(model, side, hosts)
    yield from _shared(model.stamp.images, report)


def _locked(model: StampedModel, side: Side, hosts: Sequence[Side]) -> Iterator[Finding]:
    """The stamped locks against the run: for hosts those for their machine and Python, if there are any.

    What is found of several locks is one finding.
    """
    sides = {slot: side_of_lock(it, "the lock") for slot, it in model.locks.items()}
    fit = {
        slot: it
        for slot, it in sides.items()
        for host in hosts
        if it.machine == host.machine and (not host.python or minor(it.python) == minor(host.python))
    }
    found: dict[Finding, list[str]] = {}
    for slot, it in (fit or sides).items():
        for finding in apply_rules(side, it):
            found.setdefault(finding, []).append(" ".join(slot))
    for slots in dict.fromkeys(map(tuple, found.values())):
        name = f"lock{'s' * (len(slots) > 1)} of {', '.join(slots)}"
        yield from (it.with_targets(side.name, name) for it, those in found.items() if tuple(those) == slots)


def _shared(images: Sequence[StampedImage], report: Report) -> Iterator[Finding]:
    """The proof for each serving image that has a training image of its variant and platform, or of its platform."""
    for serve in (it for it in images if it.role == "serve"):
        if serve.relation:  # such a server has no training environment; its versions were compared when it was stamped
            says = f"serving brings a runtime of its own, and was stamped as {serve.relation}"
            yield Finding(about="layers", rule="shared-layers", agrees=True, says=says, found=serve.image)
            continue
        those = [it for it in images if it.role == "train" and it.platform == serve.platform]
        train = next((it for it in those if it.variant == serve.variant), next(iter(those), None))
        if train and train.reference and serve.reference:
            architecture = serve.platform.partition("/")[2]
            machine = next((name for name, it in ARCHITECTURES.items() if it == architecture), architecture)
            one, other = (pull(Reference.parse(it), machine=machine) for it in (train.reference, serve.reference))
            yield from (it.with_targets(train.image, serve.image) for it in prove_sharing(one, other, report))
