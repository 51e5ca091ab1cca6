"""Models and images: whether what is stamped is still there, and whether it will stay."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from envbuild.errors import EnvbuildError, RegistryError, StampError, UsageError
from envbuild.oci.reference import Reference, exists, refuse_login
from envbuild.registry.artifact_registry import Cleanup, package_of, read_cleanup
from envbuild.registry.client import Registry
from envbuild.retry import Retry
from envbuild.stamp.history import History, read_history
from envbuild.stamp.record import Stamp, StampedImage
from envbuild.stamp.store import parse_model_uri
from envbuild.verify.doctor import Check, checked, ok, refused, wrong
from envbuild.verify.doctor.machine import login_for
from envbuild.verify.findings import Finding, Severity

_PREFIX = "stamped-"
_WHY = "then the model cannot be run from its stamp, and the environment that it was trained in is lost"
_HOST = re.compile(r"(?:[^/]*[.:][^/]*|localhost)/")
_SECONDS = 20.0
_STAMP_SECONDS = 60.0
"""For the stamp and all its images, each of which has its own limit."""
_GOOGLE, _HOSTS = "envbuild.google_api", (".pkg.dev", "gcr.io")
_UNKNOWN = "an image that a cleanup policy removes cannot be restored"


def lost(about: str, reference: Reference) -> Finding:
    """An image that its registry does not have."""
    todo = "push it again from where it still is, or build it again from manifest and lock, and stamp the model again"
    found = wrong(about, f"{reference} is not there", todo, why="the model cannot be run from its stamp")
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


def target_checks(target: Target) -> tuple[Check, ...]:
    """What is to be looked at for a target."""
    if target.image is None:
        needs = ("envbuild.stamp.gcs", _GOOGLE) if parse_model_uri(target.name).bucket else ()
        return (Check(about=target.name, find=partial(_model, target.name), seconds=_STAMP_SECONDS, needs=needs),)
    return _image_checks(target.name, target.image)


def _image_checks(about: str, reference: Reference) -> tuple[Check, ...]:
    needs = (_GOOGLE,) if reference.registry.endswith(_HOSTS) else ()
    return (Check(about=about, find=partial(_image, about, reference), seconds=_SECONDS, needs=needs),)


def _model(uri: str) -> Iterator[Finding]:
    history = read_history(uri, whole=False)
    stamp = history.records[0].stamp if history.records else None
    if stamp is None:
        todo = "stamp it with what it was trained in: envbuild from-manifest MANIFEST --push REPO --stamp MODEL"
        raise StampError(history.unstamped, where=uri, todo=todo)
    yield replace(_stamp_finding(uri, history, stamp), rule="artifact-stamp")
    checks = [check for image in stamp.images if image.reference for check in _stamped(image)]
    yield from (_unpushed(image) for image in stamp.images if image.reference is None)
    yield from checked(checks)


def _stamp_finding(uri: str, history: History, stamp: Stamp) -> Finding:
    if history.current:
        return ok(uri, f"it is stamped, {stamp.created}; images: {len(stamp.images)}")
    says = f"the model was replaced after it was stamped, {stamp.created}: {stamp.anchor.name} has another generation"
    why = "what it names are the images of the model that was there before"
    return wrong(uri, says, "stamp it again, with what the model that is there now was trained in", why=why)


def _stamped(image: StampedImage) -> tuple[Check, ...]:
    return _image_checks(" ".join(image.slot), Reference.parse(image.image))


def _unpushed(image: StampedImage) -> Finding:
    says = f"{image.digest} was not pushed, so no registry is known to have it"
    todo = "push it, and stamp the model again, where others are to find it"
    return wrong(" ".join(image.slot), says, todo, severity="note")


def _image(about: str, reference: Reference) -> Iterator[Finding]:
    try:
        found = read_cleanup(reference, seconds=_SECONDS / 2)
    except RegistryError as error:
        yield from _in_registry(about, reference)
        yield refused(f"{about} cleanup", error, "warning")
        return
    if found is not None:
        yield from cleanup_findings(about, reference, found)
        return
    yield from _in_registry(about, reference)
    if package_of(reference) is not None:
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
