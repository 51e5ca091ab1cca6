"""Whether the model predicts here what it predicted where it was trained, and how far off it is."""

from collections.abc import Iterator
from pathlib import Path

from envbuild.engine.image import Report
from envbuild.errors import UsageError
from envbuild.local.model import Subject
from envbuild.verify.findings import Finding
from envbuild.verify.golden import Runner, check


def parity(subject: Subject, runner: Runner, *, cache: Path, report: Report) -> Iterator[Finding]:
    """Run the recorded sample in an environment; yield what differs, else one finding with the largest difference.

    UsageError at once where nobody says which sample or model is meant, StampError where the model cannot be had.
    """
    manifest, model = subject.manifest, subject.model
    if manifest is None or (model is None and manifest.model_uri is None):
        lacks = "sample" if manifest is None else "model"
        todo = "give a stamped model, or the manifest of a run that says where its model lies"
        raise UsageError(f"nothing says which {lacks} is meant", where=f"--golden, {subject.name}", todo=todo)
    return check(manifest, model or manifest.model_uri or "", [runner], cache=cache, report=report)
