"""What is to be reproduced, from a stamped model, a manifest or an image."""

from collections.abc import Iterator
from dataclasses import replace

from envbuild.local.model import Subject, Variant
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.layout import ARCHITECTURES
from envbuild.verify.findings import Finding
from envbuild.verify.sides import Side
from envbuild.verify.sides.current import current_stamp, manifest_copy
from envbuild.verify.sides.lock import side_of_lock
from envbuild.verify.sides.manifest import side_of_manifest
from envbuild.verify.sides.model import StampedModel, artifact_findings, side_of_model


def subject_of_model(it: StampedModel, named: str | None = None) -> Subject:
    """A model by its newest stamp; the copy of the manifest is read again for its bytes.

    `named` is what the caller gave: of one file the manifest may say that the folder around it is the model.
    StampError where it has no stamp, or was replaced after it was stamped: the environment would be another model's.
    """
    stamp = current_stamp(it)
    return Subject(
        name=it.uri,
        side=side_of_model(it),
        manifest=it.manifest,
        manifest_bytes=manifest_copy(it, stamp) if it.manifest else None,
        images=stamp.images,
        locks=it.locks,
        model=it.uri,
        named=named if named and not named.startswith("gs://") else None,
        findings=tuple(_disagreeing(it)),
    )


def subject_of_manifest(name: str, data: bytes, manifest: TrainingManifest) -> Subject:
    """A run by its manifest alone; nothing is stamped with it."""
    return Subject(
        name=name,
        side=side_of_manifest(manifest, name),
        manifest=manifest,
        manifest_bytes=data,
    )


def subject_of_image(name: str, side: Side) -> Subject:
    """An image that was named itself, and is run as it is."""
    return Subject(name=name, side=side, image=name)


def _disagreeing(it: StampedModel) -> Iterator[Finding]:
    """What of the model's folder is not as it was; what a missing copy would have said can be had in other ways."""
    for finding in artifact_findings(it):
        if not finding.agrees:
            yield replace(finding, severity="warning") if finding.rule == "artifact-copies" else finding


def chosen_side(subject: Subject, variant: Variant, platform: str) -> Side:
    """What would run here, as rules read it: the stamped lock's packages where there is one, else the run's.

    GPU, CPU and all else that the run had stay, as that is what this machine is held against.
    """
    side = replace(subject.side, kind="image", variant=variant, machine=machine_of(platform))
    lock = subject.locks.get(("train", variant, platform))
    if lock is None:
        return side
    inside = side_of_lock(lock, subject.name)
    return replace(
        side, packages=inside.packages, cuda=inside.cuda or side.cuda, cudnn=inside.cudnn or side.cudnn, complete=True
    )


def machine_of(platform: str) -> str:
    """`x86_64` for `linux/amd64`, and for the names that Go, Windows and macOS have for a machine: `amd64`, `AMD64`."""
    architecture = platform.rpartition("/")[2].lower()
    return next((machine for machine, name in ARCHITECTURES.items() if name == architecture), architecture)
