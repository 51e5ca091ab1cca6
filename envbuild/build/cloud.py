"""Images that Google Cloud Build makes of the build context, and pushes."""

import gzip
import hashlib
import itertools
import os
import secrets
import stat
import tarfile
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from google.api_core.exceptions import Forbidden, PreconditionFailed
from google.cloud.devtools.cloudbuild_v1 import Build
from google.cloud.storage import Client

from envbuild.base.resolve import registry_reference
from envbuild.build import cloud_service
from envbuild.build.cloud_plan import CloudBuild, build_yaml, describe_build
from envbuild.build.cloud_service import ENDED, TIMEOUT, Log, Service, call_options, explain_failure
from envbuild.build.context import staged_context
from envbuild.build.docker import ContextBuilder
from envbuild.build.request import PLATFORMS, BuildRequest, Plan, PlatformImage
from envbuild.errors import BaseError, BuildError, EnvbuildError, RegistryError, UsageError
from envbuild.google_api import timeout_of
from envbuild.lock.settings import IndexSettings
from envbuild.network import is_loopback
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.oci.tar import MTIME
from envbuild.registry.client import Registry
from envbuild.registry.push import PushResult
from envbuild.report import Reporter
from envbuild.retry import Retry
from envbuild.stamp import gcs
from envbuild.stamp.gcs import storage_errors

_PLATFORM = "linux/amd64"
"""Cloud Build's machines (build/docs/api/reference/rest/v1/projects.builds, MachineType)."""


def check_options(request: BuildRequest) -> None:
    """Refuse what Cloud Build cannot do; UsageError."""
    if request.push is None:
        todo = "give --push REPOSITORY; --load and --archive then take the image from there"
        raise UsageError("Cloud Build gives its image to a registry", where="--push", todo=todo)
    if request.bytecode:
        todo = "leave out --bytecode, or --builder cloudbuild"
        raise UsageError("only the assembler compiles modules", where="--bytecode", todo=todo)


def check_plan(plan: Plan) -> None:
    """Refuse a base that Cloud Build cannot pull, and machines that it does not have; BaseError, UsageError."""
    platform = PLATFORMS[plan.stack.machine]
    if platform != _PLATFORM:
        todo = f"give --platform {_PLATFORM}, or leave out --builder cloudbuild"
        raise UsageError(f"Cloud Build's machines are {_PLATFORM}", where=f"--platform {platform}", todo=todo)
    check_base(plan.base)


def check_base(base: str) -> None:
    """Refuse a `--base` that Cloud Build cannot pull; BaseError, UsageError for an invalid one.

    That is a folder, a bootstrapped `debian:SUITE`, and a registry of this machine.
    """
    reference = registry_reference(base)
    host = (urlsplit(f"//{reference.registry}").hostname or "") if reference else ""
    if reference is None or (is_loopback(host) and not cloud_service.is_local()):
        todo = "push it to a registry that Cloud Build reaches, and give --base HOST/REPOSITORY@sha256:..."
        raise BaseError("Cloud Build can only use a base that lies in a registry", where=base, todo=todo)


def printed_yaml(request: BuildRequest) -> bytes:
    """The cloudbuild.yaml of a request, before anything is locked: without a tag in --push, for `latest`.

    Without secrets the context has the wheels, so the network is off.
    """
    assert request.push is not None, "the request was checked"
    options = replace(options_of(request), network=bool(options_of(request).secrets))
    return build_yaml(options, replace(request.push, tag=request.push.tag or "latest"))


def options_of(request: BuildRequest) -> CloudBuild:
    """Return the request's options with the build arguments of every context."""
    assert request.cloud is not None
    return replace(request.cloud, build_args=(*request.cloud.build_args, ("SOURCE_DATE_EPOCH", str(MTIME))))


class Cloud(ContextBuilder):
    """Builds in Cloud Build, which does not know this machine's indexes."""

    __slots__ = ()

    @property
    def default_tag(self) -> str:
        return f"cloudbuild-{self.recipe.environment.short}"

    def build(self, settings: IndexSettings) -> PlatformImage:
        """Build there; the wheels lie in the context, unless secrets of Secret Manager say how to get them."""
        options = options_of(self.request)
        wheelhouse = self.fetch_wheels(settings, secrets=bool(options.secrets))
        with staged_context(self.context(wheelhouse=wheelhouse), self.request) as folder:
            options = replace(options, network=not wheelhouse)
            reference = run_build(folder, options, self.temporary_tag(), self.report)
        assert reference.digest is not None
        image, locked = self.pull_pushed(reference.digest), self.confirm_lock({})
        pushed = PushResult(reference=reference, uploaded=0, not_sent=0)
        imports = self.try_imports(locked, image, settings)
        return self.make_platform_image(locked, image, pushed, imports=imports, wheelhouse=wheelhouse)


def check_project(options: CloudBuild) -> None:
    """Ask for the project's builds and bucket, before the long work; BuildError when it could not build."""
    with gcs.connected(BuildError) as storage, cloud_service.connected(options.parent) as api:
        api.check()
        _check_bucket(storage, options)


def run_build(context: Path, options: CloudBuild, push_to: Reference, report: Reporter) -> Reference:
    """Build a context and push it to `push_to`, which has a tag; return the image by its digest in the registry.

    When it is interrupted, the build is cancelled. BuildError with the failing step and the last lines of the log,
    RegistryError when the registry does not have what was built.
    """
    described = describe_build(options, push_to)
    with gcs.connected(BuildError) as storage, cloud_service.connected(options.parent) as api:
        described["source"] = {"storageSource": _upload_context(context, storage, options, report)}
        mark, known = f"envbuild-{secrets.token_hex(8)}", ""
        described["tags"].append(mark)
        try:
            started = api.create(described, mark)
            known = started.id
            report.step(f"build {known} in {options.parent}")
            ended = _watch(api, Log(storage, options.log_folder, known), started, options, report)
        except KeyboardInterrupt:
            _cancel(api, known, mark, report)
            raise
    digest = _pushed_digest(ended, push_to)
    with Registry(push_to.registry) as registry:
        found = registry.manifest_digest(push_to.repository, str(digest))
    if found not in ("", str(digest)):
        todo, where = "see who else writes to this repository", str(push_to.at(digest))
        raise RegistryError("the registry does not have the image that Cloud Build pushed", where=where, todo=todo)
    return push_to.at(digest)


def _watch(api: Service, log: Log, started: Build, options: CloudBuild, report: Reporter) -> Build:
    """Show the log until the build ends; return the build when it succeeded."""
    if started.log_url:
        report.note(started.log_url)
    current = started
    unit = min(1.0, timeout_of(TIMEOUT) / 60)
    retry = Retry(first=unit, factor=1.3, longest=5 * unit)  # looks at a long build more seldom
    for number in itertools.count(1):
        # The state first: what was written before the build ended is in the log that is read after.
        current = api.get(started.id)
        for line in log.lines(final=current.status in ENDED):
            report.note(line)
        if current.status in ENDED:
            break
        time.sleep(retry.pause(number))
    if log.forbidden:
        report.warn(f"{log.where} may not be read here (storage.objects.get); the build's page shows it")
    if current.status != Build.Status.SUCCESS:
        raise explain_failure(current, options, log.last, log.where)
    return current


def _cancel(api: Service, known: str, mark: str, report: Reporter) -> None:
    """End the build; where that fails, say how to do it by hand."""
    report.step("cancelling the build")
    try:
        found = api.cancel(known, mark)
    except EnvbuildError as error:
        report.warn(f"{error.what}; the build may go on: gcloud builds list --filter=tags={mark}; gcloud builds cancel")
        return
    report.note(f"build {found[0]} is cancelled" if found else "there was no build yet")


def _pushed_digest(build: Build, push_to: Reference) -> Digest:
    """Return the digest of Cloud Build's push; BuildError without one."""
    with suppress(ValueError):
        [only] = {image.digest for image in build.results.images if Reference.parse(image.name).name == push_to.name}
        return Digest.parse(only)
    todo = "see the build's results; run the command again"
    raise BuildError("the build reported no digest of its image", where=f"build {build.id}", todo=todo)


def _check_bucket(client: Client, options: CloudBuild) -> None:
    """See that a bucket whose name anybody can guess is the project's own; BuildError otherwise.

    Bucket names are global: who makes the bucket of a project that has none would get its contexts. A bucket that the
    user named is believed.
    """
    if options.bucket:
        return
    bucket, project = options.contexts[0], options.project
    where, other = f"gs://{bucket}", "name a bucket of yours: --cloudbuild bucket=gs://BUCKET"
    with storage_errors(where, bucket, "storage.buckets.list", BuildError):
        try:
            found = [one.name for one in client.list_buckets(project=project, prefix=bucket, **call_options())]
        except Forbidden as error:
            what = f"the owner of the bucket is unknown: buckets of {project} may not be listed (storage.buckets.list)"
            raise BuildError(what, where=where, todo=other) from error
    if bucket not in found:
        todo = f"gcloud storage buckets create {where} --project={project}; or {other}"
        raise BuildError(f"project {project} has no such bucket", where=where, todo=todo)


def _upload_context(context: Path, client: Client, options: CloudBuild, report: Reporter) -> dict[str, str]:
    """Send a context, unless it is there; return it as Cloud Build's StorageSource, whose 64-bit numbers are text.

    BuildError when it cannot be sent, or another object has its name.
    """
    _check_bucket(client, options)
    bucket, prefix = options.contexts
    with pack_context(context) as archive:
        report.step(f"sending the context, {archive.size / 1e6:.1f} MB, to gs://{bucket}")
        name = "/".join(filter(None, (prefix, "source", f"{archive.sha256}.tar.gz")))
        blob, where = client.bucket(bucket).blob(name), f"gs://{bucket}/{name}"
        with storage_errors(where, bucket, "storage.objects.create", BuildError):
            try:
                kind, how = "application/gzip", call_options()
                blob.upload_from_filename(str(archive.path), kind, if_generation_match=0, checksum="md5", **how)
            except PreconditionFailed:
                with storage_errors(where, bucket, "storage.objects.get", BuildError):
                    blob.reload(**call_options())
        if (blob.md5_hash, blob.size) != (archive.md5, archive.size):
            todo = "remove the object, and find out who wrote it; contexts are named by their content"
            raise BuildError("another context lies under this one's name", where=where, todo=todo)
    report.note(f"{name}, generation {blob.generation}")
    return {"bucket": bucket, "object": name, "generation": str(blob.generation)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextArchive:
    """A context as one file."""

    path: Path
    size: int
    sha256: str
    md5: str
    """As Cloud Storage tells it, in base64."""


@contextmanager
def pack_context(context: Path) -> Iterator[ContextArchive]:
    """Yield a context as a tar.gz, which vanishes with the block: the same bytes for the same files and zlib.

    Stored, not compressed: requirements and locks are small, and wheels do not get smaller. Of a file's mode only its
    right to be executed is kept. BuildError for a link or a device in the context.
    """
    paths = sorted((path for path in context.rglob("*") if path.is_symlink() or not path.is_dir()), key=os.fsencode)
    with tempfile.NamedTemporaryFile(prefix="envbuild-context-", suffix=".tar.gz") as file:
        with (
            gzip.GzipFile("", "wb", 0, file, 0) as stored,
            tarfile.open(fileobj=stored, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in paths:
                _add(archive, context, path)
        file.seek(0)
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        while piece := file.read(1 << 20):
            sha256.update(piece)
            md5.update(piece)
        md5_text = b64encode(md5.digest()).decode()
        yield ContextArchive(path=Path(file.name), size=file.tell(), sha256=sha256.hexdigest(), md5=md5_text)


def _add(archive: tarfile.TarFile, context: Path, path: Path) -> None:
    """Add a file; its owner and times are those of no machine."""
    if path.is_symlink() or not path.is_file():
        what, todo = "what is neither file nor folder cannot be sent to Cloud Build", "give it files and folders only"
        raise BuildError(what, where=str(path), todo=todo)
    entry = tarfile.TarInfo(path.relative_to(context).as_posix())
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        entry.size, entry.mode = state.st_size, 0o755 if state.st_mode & stat.S_IXUSR else 0o644
        archive.addfile(entry, file)
