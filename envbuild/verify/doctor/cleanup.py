"""What is said of an image in Artifact Registry and of the policies that clean up there."""

from collections.abc import Iterator
from dataclasses import replace

from envbuild.oci.reference import Reference
from envbuild.registry.artifact_cleanup import Outlook
from envbuild.verify.doctor.checking import ok, wrong
from envbuild.verify.findings import Finding

_PREFIX = "stamped-"
_WHY = "whoever runs the model from its stamp then gets nothing, and what it was trained in is lost"


def lost(about: str, reference: Reference) -> Finding:
    """Say that an image is not where it is said to be."""
    todo = "push it again from where it still is, or build it again from manifest and lock, and stamp the model anew"
    found = wrong(about, f"{reference} is not there", todo, why="whoever runs the model from its stamp gets nothing")
    return replace(found, rule="digest-gone", wanted=str(reference.digest or reference.target), found="nothing")


def outlook_findings(about: str, reference: Reference, found: Outlook) -> Iterator[Finding]:
    """Say whether an image is there, and what will become of it."""
    if found.image is None:
        yield lost(about, reference)
        return
    yield replace(ok(about, f"{reference} is there", found.image.digest), rule="digest-gone")
    yield from (replace(it, rule="cleanup") for it in _cleanup(f"{about} cleanup", found))


def _cleanup(about: str, found: Outlook) -> Iterator[Finding]:
    if not any(it.name == "" for it in found.unread):
        yield _fate(about, found)
    for policy in found.unread:
        which = f"the cleanup policy {policy.name}" if policy.name else "the repository's cleanup policies"
        todo = "see in the Google Cloud console what it says, and whether the image is to stay"
        says = f"whether {which} will delete it cannot be said: {policy.why}"
        yield wrong(about, says, todo, severity="note" if found.dry_run else "warning", why=_WHY)


def _fate(about: str, found: Outlook) -> Finding:
    fate = found.fate
    if not fate.deleted_by:
        other = "other " if found.unread else ""
        kept = f"it is kept by {', '.join(fate.kept_by)}" if fate.kept_by else f"no {other}cleanup policy deletes it"
        return ok(about, kept)
    if fate.recent is not None:
        recent = f"it is kept only while it is one of the {fate.recent} newest ({fate.kept_by[0]})"
        says = f"{recent}, and then deleted by {fate.deleted_by}"
    else:
        assert fate.when is not None, "what is deleted is deleted at some time"
        says = f"the cleanup policy {fate.deleted_by} deletes it from {fate.when:%Y-%m-%d} on"
    if found.dry_run:
        says = f"cleanup is a dry run; were it not, {says}"
    return wrong(about, says, _todo(found), severity="note" if found.dry_run else "warning", why=_WHY)


def _todo(found: Outlook) -> str:
    _, project, _, location, _, repository = found.repository.split("/")
    command = f"gcloud artifacts repositories set-cleanup-policies {repository} --project={project}"
    keep = f"{command} --location={location} --policy=FILE, with a policy that keeps tags of the prefix {_PREFIX}"
    tags = found.image.tags if found.image else ()
    if any(tag.startswith(_PREFIX) for tag in tags):
        return f"{keep} (docs/artifact-registry.md has the file)"
    return (
        f"stamp the model again, so that the image has such a tag, and {keep} (docs/artifact-registry.md has the file)"
    )
