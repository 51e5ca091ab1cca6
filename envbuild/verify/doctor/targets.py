"""Models and images: whether what is stamped is still there, and whether it will stay."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from envbuild.errors import EnvbuildError, RegistryError, StampError, UsageError
from envbuild.oci.login import exists, refuse_login
from envbuild.oci.reference import Reference
from envbuild.registry import Registry, Retry
from envbuild.registry.artifact_images import Outlook, outlook
from envbuild.registry.artifact_names import place_of
from envbuild.stamp import History, Stamp, StampedImage, parse_model_uri, read_history
from envbuild.verify.doctor import Check, checked, ok, refused, wrong
from envbuild.verify.doctor.machine import login_for
from envbuild.verify.findings import Finding

_PREFIX = "stamped-"
_WHY = "then the model cannot be run from its stamp, and the environment that it was trained in is lost"
_HOST = re.compile(r"(?:[^/]*[.:][^/]*|localhost)/")
_SECONDS = 20.0
_STAMP_SECONDS = 60.0
"""For the stamp and all its images, each of which has its own limit."""
_GOOGLE, _HOSTS = "envbuild.registry.artifact_client", (".pkg.dev", "gcr.io")
_UNKNOWN = "an image that a cleanup policy removes cannot be restored"


def lost(about: str, reference: Reference) -> Finding:
    """An image that its registry does not have."""
    todo = "push it again from where it still is, or build it again from manifest and lock, and stamp the model again"
    found = wrong(about, f"{reference} is not there", todo, why="the model cannot be run from its stamp")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is asked about: a model by its URI, or an image."""

    name: str
    image: Reference | None
    """None for a model."""


def target_of(text: str) -> Target:
    """Tell a model from an image; UsageError where it can be neither, or has a login, which is not shown."""
    refuse_login(_naming_host(text), "TARGET")
    if not text or "://" in text or exists(text):
        parse_model_uri(text)
        return Target(name=text, image=None)
    if text.startswith(("/", "./", "../")):
        raise UsageError("there is no such file", where=text, todo="give the path of a model's folder or file")
    todo = "give a model (gs://..., a folder, a file), or an image with its registry, as in example.com/team/app:7"
    if not _HOST.match(text):
        raise UsageError("this is neither a model nor an image", where=text, todo=todo)
    try:
        return Target(name=text, image=Reference.parse(text))
    except ValueError as error:
        raise UsageError(str(error), where=text, todo=todo) from error


def _naming_host(text: str) -> str:
    """What may hold a login: of a model's URI the host or bucket alone, as its path may have an @ like any other."""
    scheme, there, rest = text.partition("://")
    return rest.partition("/")[0] if there and scheme.lower() in ("gs", "file") else text


def target_checks(target: Target, now: datetime) -> tuple[Check, ...]:
    """What is to be looked at for a target."""
    if target.image is None:
        needs = ("envbuild.stamp.gcs", _GOOGLE) if parse_model_uri(target.name).bucket else ()
        return (Check(about=target.name, find=partial(_model, target.name, now), seconds=_STAMP_SECONDS, needs=needs),)
    return _image_checks(target.name, target.image, now)


def _image_checks(about: str, reference: Reference, now: datetime) -> tuple[Check, ...]:
    needs = (_GOOGLE,) if reference.registry.endswith(_HOSTS) else ()
    return (Check(about=about, find=partial(_image, about, reference, now), seconds=_SECONDS, needs=needs),)


def _model(uri: str, now: datetime) -> Iterator[Finding]:
    history = read_history(uri, whole=False)
    stamp = history.records[0].stamp if history.records else None
    if stamp is None:
        todo = "stamp it with what it was trained in: envbuild from-manifest MANIFEST --push REPO --stamp MODEL"
        raise StampError(history.unstamped, where=uri, todo=todo)
    yield replace(_stamp_finding(uri, history, stamp), rule="artifact-stamp")
    checks = [check for image in stamp.images if image.reference for check in _stamped(image, now)]
    yield from (_unpushed(image) for image in stamp.images if image.reference is None)
    yield from checked(checks)


def _stamp_finding(uri: str, history: History, stamp: Stamp) -> Finding:
    if history.current:
        return ok(uri, f"it is stamped, {stamp.created}; images: {len(stamp.images)}")
    says = f"the model was replaced after it was stamped, {stamp.created}: {stamp.anchor.name} has another generation"
    why = "what it names are the images of the model that was there before"
    return wrong(uri, says, "stamp it again, with what the model that is there now was trained in", why=why)


def _stamped(image: StampedImage, now: datetime) -> tuple[Check, ...]:
    return _image_checks(" ".join(image.slot), Reference.parse(image.image), now)


def _unpushed(image: StampedImage) -> Finding:
    says = f"{image.digest} was not pushed, so no registry is known to have it"
    todo = "push it, and stamp the model again, where others are to find it"
    return wrong(" ".join(image.slot), says, todo, severity="note")


def _image(about: str, reference: Reference, now: datetime) -> Iterator[Finding]:
    try:
        found = outlook(reference, now, seconds=_SECONDS / 2)
    except RegistryError as error:
        yield from _in_registry(about, reference)
        yield refused(f"{about} cleanup", error, "warning")
        return
    if found is not None:
        yield from outlook_findings(about, reference, found)
        return
    yield from _in_registry(about, reference)
    if place_of(reference) is not None:
        todo = "gcloud auth application-default login, then run this again"
        says = "without Google credentials nobody can say whether a cleanup policy will delete it"
        yield wrong(f"{about} cleanup", says, todo, severity="warning", why=_UNKNOWN)


def _in_registry(about: str, reference: Reference) -> Iterator[Finding]:
    """Whether the registry has it; where it does not say, what logins there are may say why."""
    try:
        with Registry(reference.registry, retry=Retry(tries=2, longest=1.0)) as registry:
            digest = registry.manifest_digest(reference.repository, reference.target)
    except EnvbuildError as error:
        yield refused(about, error, "error")
        yield from login_for(reference)
        return
    yield lost(about, reference) if digest is None else ok(about, f"{reference} is there", digest)
