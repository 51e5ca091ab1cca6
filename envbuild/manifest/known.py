"""What a manifest knows, where an absent fact can mean two things."""

from dataclasses import replace

from envbuild.capture.frameworks import used_framework
from envbuild.manifest.hardware import Accelerator
from envbuild.manifest.model import Framework, TrainingManifest
from envbuild.manifest.reader import manifest_dict


def known_accelerator(manifest: TrainingManifest) -> Accelerator | None:
    """Return the accelerator; None where it is not known. In a capture of schema 1.0 an absent one means none."""
    source = manifest.source
    if manifest.accelerator is None and source.format == "capture" and "accelerator" not in source.unknown:
        return Accelerator(kind="none")
    return manifest.accelerator


def known_framework(manifest: TrainingManifest) -> Framework | None:
    """Return the framework that the run used; None where it is not known.

    Where several are installed, `framework` alone proves nothing: earlier captures put the likeliest one there.
    """
    if manifest.framework_source:
        return manifest.framework
    if len(manifest.frameworks) < 2:
        return manifest.framework or next(iter(manifest.frameworks), None)
    found = used_framework(manifest_dict(replace(manifest, distributions=())))
    return next((it for it in manifest.frameworks if found and it.name == found["name"]), None)
