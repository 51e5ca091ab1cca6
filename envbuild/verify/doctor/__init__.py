"""Checks that run at once, none waiting for another and each with a limit of time; those of models and images."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

from envbuild.errors import EnvbuildError, RegistryError, StampError, UsageError
from envbuild.oci.reference import Reference, exists, refuse_login
from envbuild.registry.artifact_registry import Cleanup, package_of, read_cleanup
from envbuild.registry.auth import find_credentials
from envbuild.registry.client import Registry
from envbuild.retry import Retry
from envbuild.stamp.history import read_history
from envbuild.stamp.store import parse_model_uri
from envbuild.verify.findings import Finding, Severity

_STEP = 0.5
"""Seconds: a wait that is longer would keep Ctrl-C waiting too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to check."""

    about: str
    find: Callable[[], Iterable[Finding]]
    seconds: float = 10.0
    """After which it is not waited for any longer."""
    severity: Severity = "error"
    """How much it matters that it could not be checked."""
    needs: tuple[str, ...] = ()
    """Modules that it imports itself, as they are slow to load."""


@dataclass(slots=True)
class _Run:
    check: Check
    over: threading.Event = field(default_factory=threading.Event)
    found: tuple[Finding, ...] = ()


def checked(checks: Sequence[Check]) -> tuple[Finding, ...]:
    """Run all checks at once; the findings are in their order."""
    # One import after the other: two threads that import parts of one package may each get half of it, as Python breaks
    # the deadlock of a package that waits for its part, and a part that waits for its package (importlib._bootstrap).
    for name in dict.fromkeys(name for check in checks for name in check.needs):
        with suppress(Exception):  # the check itself meets the error again, and reports it
            import_module(name)
    runs, began = [_Run(check) for check in checks], time.monotonic()
    for run in runs:
        # What hangs must not keep the process from ending.
        threading.Thread(target=_run, args=(run,), name=f"check {run.check.about}", daemon=True).start()
    return tuple(finding for run in runs for finding in _awaited(run, began + run.check.seconds))


def ok(about: str, says: str, found: str = "") -> Finding:
    """Say that nothing has to be done."""
    return Finding(about=about, agrees=True, says=says, found=found)


def wrong(about: str, says: str, todo: str, *, severity: Severity = "error", why: str = "") -> Finding:
    """Say what is wrong, what comes of it, and what to do."""
    return Finding(about=about, agrees=False, says=says, severity=severity, why=why, todo=todo)


def refused(about: str, error: EnvbuildError, severity: Severity) -> Finding:
    """Say what an error says."""
    where = f" ({error.where})" if error.where else ""
    return wrong(about, f"{error.what}{where}", error.todo, severity=severity)


def _run(run: _Run) -> None:
    try:
        run.found = tuple(run.check.find())
    except EnvbuildError as error:
        run.found = (refused(run.check.about, error, run.check.severity),)
    except Exception as error:  # noqa: BLE001 - an error of one check must not end the others
        says = f"it cannot be checked: {type(error).__name__}: {error}"
        run.found = (wrong(run.check.about, says, "check what is unusual on this machine", severity="warning"),)
    finally:
        run.over.set()


def _awaited(run: _Run, until: float) -> tuple[Finding, ...]:
    while not run.over.wait(min(_STEP, max(until - time.monotonic(), 0.0))):
        if time.monotonic() >= until:
            says = f"no answer within {run.check.seconds:.0f} s"
            return (
                wrong(run.check.about, says, "check the network, and whether it hangs", severity=run.check.severity),
            )
    return run.found


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
    # what may hold a login: of a model's URI the host or bucket alone, as its path may have an @ like any other
    scheme, there, rest = text.partition("://")
    refuse_login(rest.partition("/")[0] if there and scheme.lower() in ("gs", "file") else text, "TARGET")
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
    if history.current:
        found = ok(uri, f"it is stamped, {stamp.created}; images: {len(stamp.images)}")
    else:
        name = stamp.anchor.name
        says = f"the model was replaced after it was stamped, {stamp.created}: {name} has another generation"
        why = "what it names are the images of the model that was there before"
        found = wrong(uri, says, "stamp it again, with what the model that is there now was trained in", why=why)
    yield replace(found, rule="artifact-stamp")
    for image in stamp.images:
        if image.reference is None:
            says = f"{image.digest} was not pushed, so no registry is known to have it"
            todo = "push it, and stamp the model again, where others are to find it"
            yield wrong(" ".join(image.slot), says, todo, severity="note")
    pushed = {" ".join(it.slot): Reference.parse(it.image) for it in stamp.images if it.reference}
    yield from checked([check for slot, reference in pushed.items() for check in _image_checks(slot, reference)])


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


def login_for(reference: Reference) -> Iterator[Finding]:
    """Whether there are credentials for a registry; without any it may still let everybody read."""
    about = f"login {reference.registry}"
    found = find_credentials(reference.registry, reference.repository, environ=os.environ)
    if found.credentials:
        yield ok(about, "there are credentials")
    for hint in found.hints:
        yield wrong(about, hint, f"docker login {reference.registry}", severity="warning")
    if not found.credentials and not found.hints:
        yield ok(about, "there are no credentials; what everybody may read can be read")


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
