"""Whether the model predicts here what it predicted where it was trained, and how far off it is."""

from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import UsageError
from envbuild.local.contract import recorded_model
from envbuild.local.model import Subject
from envbuild.report import Reporter
from envbuild.stamp.store import ModelUri
from envbuild.verify.findings import Finding
from envbuild.verify.golden.check import check
from envbuild.verify.golden.runners import Runner


def parity(subject: Subject, runner: Runner, *, cache: Path, report: Reporter) -> Iterator[Finding]:
    """Run the recorded sample in an environment; yield what differs, else one finding with the largest difference.

    UsageError at once where nobody says which sample or model is meant, StampError where the model cannot be had,
    VerifyError where a manifest names files outside of the working folder as its model.
    """
    manifest, model = subject.manifest, subject.model
    if manifest is None or (model is None and manifest.model_uri is None):
        lacks = "sample" if manifest is None else "model"
        todo = "give a stamped model, or the manifest of a run that says where its model lies"
        raise UsageError(f"nothing says which {lacks} is meant", where=f"--golden, {subject.name}", todo=todo)
    if recorded := recorded_model(subject):
        model = str(recorded.prove(_elsewhere))
    return check(manifest, model or manifest.model_uri or "", [runner], cache=cache, report=report)


def _elsewhere(uri: ModelUri) -> str:
    if uri.bucket is not None or Path(uri.path).resolve().is_relative_to(Path.cwd().resolve()):
        return ""
    return f"the manifest says that its model is {uri.path}, outside of this folder; give the model itself as TARGET"
