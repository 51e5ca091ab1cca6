"""From a build context on this machine to an image in a registry, made by Cloud Build."""

import itertools
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from google.cloud.devtools.cloudbuild_v1 import Build
from google.cloud.storage import Client

from envbuild.base.resolve import registry_reference
from envbuild.build.cloudbuild import service
from envbuild.build.cloudbuild.plan import (
    TIMEOUT,
    CloudBuild,
    UploadedContext,
    check_owned,
    packed,
    plan,
    submitted,
    upload,
)
from envbuild.build.cloudbuild.service import ENDED, Log, Service, failure
from envbuild.errors import BaseError, BuildError, EnvbuildError, RegistryError
from envbuild.google_api import timeout_of
from envbuild.network import is_loopback
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.report import Reporter
from envbuild.retry import Retry
from envbuild.stamp import gcs


def check_base(base: str) -> None:
    """Refuse a `--base` that Cloud Build cannot pull; BaseError, UsageError for an invalid one.

    That is a folder, a bootstrapped `debian:SUITE`, and a registry of this machine.
    """
    reference = registry_reference(base)
    if reference is None or (is_loopback(_host(reference)) and not service.is_local()):
        todo = "push it to a registry that Cloud Build reaches, and give --base HOST/REPOSITORY@sha256:..."
        raise BaseError("Cloud Build can only use a base that lies in a registry", where=base, todo=todo)


def _host(reference: Reference) -> str:
    return urlsplit(f"//{reference.registry}").hostname or ""


def check(options: CloudBuild) -> None:
    """Ask for the project's builds and bucket, before the long work; BuildError when it could not build."""
    with gcs.connected(BuildError) as storage, service.connected(options.parent) as api:
        api.check()
        _check_bucket(storage, options)


def build(context: Path, options: CloudBuild, target: Reference, report: Reporter) -> Reference:
    """Build a context and push it to `target`, which has a tag; return the image by its digest in the registry.

    When it is interrupted, the build is cancelled. BuildError with the failing step and the last lines of the log,
    RegistryError when the registry does not have what was built.
    """
    described = plan(options, target)
    with gcs.connected(BuildError) as storage, service.connected(options.parent) as api:
        source = _uploaded(context, storage, options, report)
        mark, known = f"envbuild-{secrets.token_hex(8)}", ""
        try:
            started = api.create(submitted(described, source.to_dict(), mark), mark)
            known = started.id
            report.step(f"build {known} in {options.parent}")
            ended = _watched(api, Log(storage, options.log_folder, known), started, options, report)
        except KeyboardInterrupt:
            _cancelled(api, known, mark, report)
            raise
    return _confirmed(target, _digest(ended, target))


def _check_bucket(storage: Client, options: CloudBuild) -> None:
    """A bucket that was named is believed."""
    if not options.bucket:
        check_owned(storage, options.project, options.contexts[0])


def _uploaded(context: Path, storage: Client, options: CloudBuild, report: Reporter) -> UploadedContext:
    _check_bucket(storage, options)
    bucket, prefix = options.contexts
    with packed(context) as archive:
        report.step(f"sending the context, {archive.size / 1e6:.1f} MB, to gs://{bucket}")
        source = upload(storage, archive, bucket, "/".join(filter(None, (prefix, "source"))))
    report.note(f"{source.name}, generation {source.generation}")
    return source


def _watched(api: Service, log: Log, started: Build, options: CloudBuild, report: Reporter) -> Build:
    """Tell the log until the build ends; return it when it succeeded."""
    if started.log_url:
        report.note(started.log_url)
    current = started
    unit = min(1.0, timeout_of(TIMEOUT) / 60)
    retry = Retry(first=unit, factor=1.3, longest=5 * unit)  # looks at a long build more seldom
    for number in itertools.count(1):
        # The state first: what was written before the build ended is in the log that is read after.
        current = api.get(started.id)
        ended = current.status in ENDED
        _tell(log.lines(final=ended), report)
        if ended:
            break
        time.sleep(retry.pause(number))
    if log.forbidden:
        report.warn(f"{log.where} may not be read here (storage.objects.get); the build's page shows it")
    if current.status != Build.Status.SUCCESS:
        raise failure(current, options, log.last, log.where)
    return current


def _tell(lines: Iterable[str], report: Reporter) -> None:
    for line in lines:
        report.note(line)


def _cancelled(api: Service, known: str, mark: str, report: Reporter) -> None:
    """End the build; where that fails, say how to do it by hand."""
    report.step("cancelling the build")
    try:
        found = api.cancel(known, mark)
    except EnvbuildError as error:
        report.warn(f"{error.what}; the build may go on: gcloud builds list --filter=tags={mark}; gcloud builds cancel")
        return
    report.note(f"build {found[0]} is cancelled" if found else "there was no build yet")


def _digest(build: Build, target: Reference) -> Digest:
    """Return the digest of Cloud Build's push; BuildError without one."""
    found = {image.digest for image in build.results.images if _repository(image.name) == target.name}
    with suppress(ValueError):
        [only] = found
        return Digest.parse(only)
    todo = "see the build's results; run the command again"
    raise BuildError("the build reported no digest of its image", where=f"build {build.id}", todo=todo)


def _repository(name: str) -> str:
    with suppress(ValueError):
        return Reference.parse(name).name
    return ""


def _confirmed(target: Reference, digest: Digest) -> Reference:
    with Registry(target.registry) as registry:
        said = registry.manifest_digest(target.repository, str(digest))
    if said is None or (said and said != str(digest)):
        todo = "see who else writes to this repository"
        where = str(target.at(digest))
        raise RegistryError("the registry does not have the image that Cloud Build pushed", where=where, todo=todo)
    return target.at(digest)
