"""What a manifest knows, where an absent fact can mean two things."""

from envbuild.manifest.hardware import Accelerator
from envbuild.manifest.model import TrainingManifest


def known_accelerator(manifest: TrainingManifest) -> Accelerator | None:
    """Return the accelerator; None where it is not known. In a capture of schema 1.0 an absent one means none."""
    source = manifest.source
    if manifest.accelerator is None and source.format == "capture" and "accelerator" not in source.unknown:
        return Accelerator(kind="none")
    return manifest.accelerator
