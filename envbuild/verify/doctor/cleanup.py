"""Findings about an image in Artifact Registry and the cleanup policies of its repository."""

from collections.abc import Iterator
from dataclasses import replace

from envbuild.oci.reference import Reference
from envbuild.registry.artifact_cleanup import Cleanup
from envbuild.verify.doctor.checking import ok, wrong
from envbuild.verify.findings import Finding, Severity

_PREFIX = "stamped-"
_WHY = "whoever runs the model from its stamp then gets nothing, and what it was trained in is lost"


def lost(about: str, reference: Reference) -> Finding:
    """Say that an image is not where it is said to be."""
    todo = "push it again from where it still is, or build it again from manifest and lock, and stamp the model anew"
    found = wrong(about, f"{reference} is not there", todo, why="whoever runs the model from its stamp gets nothing")
    return replace(found, rule="digest-gone", wanted=str(reference.digest or reference.target), found="nothing")


def cleanup_findings(about: str, reference: Reference, image: Cleanup) -> Iterator[Finding]:
    """Whether an image is there, and whether a cleanup policy could delete it."""
    if not image.exists:
        yield lost(about, reference)
        return
    yield replace(ok(about, f"{reference} is there", str(image.digest)), rule="digest-gone")
    yield replace(_cleanup_finding(f"{about} cleanup", image), rule="cleanup")


def _cleanup_finding(about: str, image: Cleanup) -> Finding:
    severity: Severity = "note" if image.dry_run else "warning"
    if image.unreadable:
        todo = "look at the policies in the Google Cloud console, and check that they keep the image"
        what = f"the repository's cleanup policies cannot be read: {image.unreadable}"
        return wrong(about, what, todo, severity=severity, why=_WHY)
    if not image.deleted_by:
        kept = f"it is kept by {', '.join(image.kept_by)}" if image.kept_by else "no cleanup policy deletes it"
        return ok(about, kept)
    names = ", ".join(image.deleted_by)
    what = f"the cleanup polic{'ies' if len(image.deleted_by) > 1 else 'y'} {names} could delete it"
    if image.dry_run:
        what = f"cleanup is a dry run; otherwise {what}"
    _, project, _, location, _, repository = image.repository.split("/")
    command = f"gcloud artifacts repositories set-cleanup-policies {repository} --project={project}"
    todo = f"{command} --location={location} --policy=FILE, with a policy that keeps tags of the prefix {_PREFIX}"
    if not any(tag.startswith(_PREFIX) for tag in image.tags):
        todo = f"stamp the model again, so that the image has such a tag, and {todo}"
    return wrong(about, what, f"{todo} (docs/artifact-registry.md has the file)", severity=severity, why=_WHY)
