"""What manifests, models, locks and this machine say of a run, each read from where it lies, for `envbuild diff`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.cli.console import Progress

if TYPE_CHECKING:
    from envbuild.diff import Told
    from envbuild.manifest.model import TrainingManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What something says."""

    told: "Told"
    digest: str | None = None
    """Of its bytes, of a model's of its record; None where it has none."""
    manifest: "TrainingManifest | None" = None


Others = Sequence["TrainingManifest"]
"""What it is compared with."""


def _manifest(name: str, _python: str | None, _others: Others, progress: Progress) -> Said:
    from envbuild.cli.records import read_run
    from envbuild.diff import told_by_manifest
    from envbuild.manifest.importers.environment import RecordOptions
    from envbuild.oci.digest import Digest

    _, data, manifest = read_run(name, None, RecordOptions(), progress)
    return Said(told=told_by_manifest(manifest), digest=str(Digest.of(data)), manifest=manifest)


def _lock(name: str, _python: str | None, _others: Others, _progress: Progress) -> Said:
    from envbuild.cli.rebase import read_lock
    from envbuild.diff import told_by_lock
    from envbuild.oci.digest import Digest

    return Said(told=told_by_lock(read_lock(Path(name), "")), digest=str(Digest.of(Path(name).read_bytes())))


def _model(name: str, _python: str | None, _others: Others, progress: Progress) -> Said:
    from envbuild.diff import told_by_model
    from envbuild.stamp import record_digest
    from envbuild.verify.sides.model import read_model

    found = read_model(name)
    if found.stamp is None:
        progress.warn(f"{name}: {found.history.unstamped}; only its files can be compared")
    for copy, fault in found.faults.items():
        progress.warn(f"{copy}: {fault}")
    locks = {" ".join(slot): lock for slot, lock in found.locks.items()}
    digest = str(record_digest(found.history.records[0].name)) if found.stamp else None
    told = told_by_model(found.model, found.manifest, found.stamp, locks)
    return Said(told=told, digest=digest, manifest=found.manifest)


def _host(name: str, python: str | None, others: Others, progress: Progress) -> Said:
    """Capture this machine, with the variables that the other side names."""
    from envbuild.capture.reading import manifest_text
    from envbuild.diff import told_by_host
    from envbuild.manifest import read_manifest

    recorded = [variable for manifest in others for variable, _ in manifest.variables]
    required = [it.name for manifest in others if manifest.contract for it in manifest.contract.variables]
    progress.step(f"capturing this machine by {python or 'the Python that envbuild runs on'}")
    manifest = read_manifest(manifest_text(_captured(python, recorded, required)).encode(), name)
    return Said(told=told_by_host(manifest), manifest=manifest)


def _captured(python: str | None, variables: list[str], requires: list[str]) -> dict[str, Any]:
    from envbuild.capture.options import settled
    from envbuild.capture.record import capture
    from envbuild.cli.elsewhere import captured_elsewhere

    options = settled(
        {
            "variable": variables, "requires": requires, "data": [], "load": [], "preprocessing": [], "model": None,
            "golden": None, "command": None, "config": None, "patch": False, "deep": False,
        },
        None,
    )  # fmt: skip
    if python is None:
        return capture(out=None, process="fresh", **options)
    return captured_elsewhere(options, None, python, None)


READERS: dict[str, Callable[[str, str | None, Others, Progress], Said]] = {
    "manifest": _manifest,
    "lock": _lock,
    "model": _model,
    "host": _host,
}
"""How each kind is read, by its name: with the interpreter of hosts, and what it is compared with."""
