"""Statements about an image: in-toto Statement v1, SLSA provenance v1, and the names that they use.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md; https://slsa.dev/spec/v1.1/provenance;
https://github.com/package-url/purl-spec; docs/attestations.md says what BUILD means and what its parameters are.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from packageurl import PackageURL

from envbuild.attest.parts import Parts
from envbuild.capture.redact import scrub_line
from envbuild.lock.model import Lock, LockedWheel, SystemPackage
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import PATH_STARTS, Reference

IN_TOTO = "application/vnd.in-toto+json"
"""The media type of a statement, and the payload type of its envelope."""
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""The media type of a sigstore bundle, which holds a signature."""
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"
BILL_TYPE = "application/vnd.cyclonedx+json"
"""The media type of a bill by itself (IANA, "Vendor Tree")."""
SIGNED = "https://sigstore.dev/cosign/sign/v1"
"""The predicate type of cosign's signature of an image; it states only the digest (cosign, pkg/types/predicate.go)."""


def statement(subject: Digest, kind: str, predicate: Mapping[str, Any], name: str = "_") -> bytes:
    """Serialise an in-toto statement about an image; consumers use the digest, the name is for people.

    `_` is in-toto's name for a subject without a name, which sigstore refuses.
    """
    subjects = [{"digest": {"sha256": subject.hex}, "name": name}]
    value = {"_type": STATEMENT, "subject": subjects, "predicateType": kind, "predicate": dict(predicate)}
    return canonical_json(value)


DEBIAN = "debian:"
"""The prefix of the suite in the name of a base that envbuild bootstrapped from Debian packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One image, and everything that went into it."""

    reference: Reference
    """By digest, as the registry confirmed it."""
    image: Image
    locks: tuple[Lock, ...]
    """The locks whose wheels are in it: the environment's, and those of layers above it."""
    lock_digests: tuple[Digest, ...] = ()
    """Of the lock files, as they are stamped."""
    role: str
    variant: str
    platform: str
    environment: Digest
    base_name: str
    """As given by the user; a path of this machine is never published."""
    base_digest: Digest
    manifest: Digest
    """Of the training manifest."""
    model: str | None = None
    """The URI of the served model; of a path of this machine only the last part is published."""
    model_files: tuple[tuple[str, Digest], ...] = ()
    """The model's files with known digests, by their paths in its folder."""
    run: TrainingManifest | None = None
    """The run that made the served model."""
    read_parts: Callable[[], Parts] = Parts
    """Reads what the bill says of wheels and base, where a bill is made."""
    parent: Reference | None = None
    """The training image that it starts with."""
    parameters: tuple[tuple[str, str], ...] = field(default_factory=tuple)
    """The options of the build, defaults included."""
    started: datetime
    finished: datetime


_FILE = re.compile(r"\bfile:\S+")
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes of Azure: before the `@` is a container. With other schemes it can be a token."""


def wheel_purl(wheel: LockedWheel) -> PackageURL:
    """`pkg:pypi/numpy@1.26.4`."""
    return PackageURL("pypi", None, wheel.name, wheel.version)


def package_purl(package: SystemPackage) -> PackageURL:
    """`pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1?arch=amd64`."""
    return PackageURL("deb", "debian", package.name, package.version, {"arch": package.architecture})


def image_purl(reference: Reference, digest: Digest) -> PackageURL:
    """`pkg:oci/churn@sha256%3A...?repository_url=registry/team/churn`."""
    name = reference.repository.rpartition("/")[2]
    return PackageURL("oci", None, name, str(digest), {"repository_url": reference.name})


def base_reference(name: str) -> Reference | None:
    """Parse a base's name as a registry reference; None if it may be a folder, or is invalid."""
    if name.startswith((*PATH_STARTS, DEBIAN)):
        return None
    try:
        return Reference.parse(name)
    except ValueError:
        return None


def public_name(text: str) -> str:
    """A URI without login and query; only the last part of a path of this machine, and of other text."""
    text = re.split("[?;]", text, maxsplit=1)[0]
    with suppress(ValueError):
        parts = urlsplit(text)
        user, _, host = parts.netloc.rpartition("@")
        if parts.scheme in _CONTAINERS and ":" not in user:
            host = parts.netloc
        if host:
            return urlunsplit((parts.scheme, host, parts.path, "", ""))
    return text.rstrip("/").rpartition("/")[2]


def public_text(text: str) -> str:
    """One line of a user's text, without secrets and without file: URLs."""
    return _FILE.sub("file:...", scrub_line(text))


LOCAL = "https://envbuild.dev/builder/local"
"""The builder id of a machine outside CI."""
_CLOUD_BUILD = "https://cloudbuild.googleapis.com"


def builder_of(variables: Mapping[str, str]) -> tuple[str, str]:
    """Return the builder's id and the URI of this run, empty if it has none (SLSA provenance v1, `builder.id`).

    GitHub Actions, GitLab CI and Cloud Build are known by their variables; any other machine is `LOCAL`. Nobody proves
    the variables; a signature vouches for them.

    https://docs.github.com/actions/reference/workflows-and-actions/variables;
    https://docs.gitlab.com/ci/variables/predefined_variables; in a step of Cloud Build BUILD_ID and PROJECT_ID are
    set if its template passes them on.
    """
    get = {name: text.strip() for name, text in variables.items()}.get
    server, workflow, run = (get(f"GITHUB_{it}", "") for it in ("SERVER_URL", "WORKFLOW_REF", "RUN_ID"))
    if get("GITHUB_ACTIONS") == "true" and server and workflow and run:
        attempt = get("GITHUB_RUN_ATTEMPT") or "1"
        where = f"{server}/{get('GITHUB_REPOSITORY', '')}/actions/runs/{run}/attempts/{attempt}"
        return f"{server}/{workflow}", where
    project, runner = get("CI_PROJECT_URL", ""), get("CI_RUNNER_ID", "")
    if get("GITLAB_CI") == "true" and project and runner:
        return f"{project}/-/runners/{runner}", get("CI_JOB_URL", "")
    if (build := get("BUILD_ID", "")) and (owner := get("PROJECT_ID", "")):
        where = f"{_CLOUD_BUILD}/v1/projects/{owner}/locations/{get('LOCATION') or 'global'}/builds/{build}"
        return f"{_CLOUD_BUILD}/GoogleHostedWorker", where
    return LOCAL, ""


BUILD = "https://envbuild.dev/build/v1"
"""The build type: a name, not an address."""


def provenance(facts: Facts, builder: str, invocation: str = "") -> dict[str, Any]:
    """The SLSA predicate: how the image was built, from what, and by whom (`builder_of`)."""
    parameters: dict[str, Any] = {"role": facts.role, "variant": facts.variant, "platform": facts.platform}
    if facts.base_name.startswith(DEBIAN) or base_reference(facts.base_name):
        parameters["base"] = facts.base_name
    if facts.model:
        parameters["model"] = public_name(facts.model)
    if options := {name: public_text(text) for name, text in facts.parameters}:
        parameters["options"] = options
    moments = {"startedOn": facts.started, "finishedOn": facts.finished}
    times = {name: it.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for name, it in moments.items()}
    return {
        "buildDefinition": {
            "buildType": BUILD,
            "externalParameters": parameters,
            "internalParameters": {"environment": str(facts.environment)},
            "resolvedDependencies": list(_dependencies(facts)),
        },
        "runDetails": {
            "builder": {"id": builder, "version": {"envbuild": version("envbuild")}},
            "metadata": times | ({"invocationId": invocation} if invocation else {}),
        },
    }


def _dependencies(facts: Facts) -> Iterator[dict[str, Any]]:
    """All inputs by digest, the base first."""
    reference = base_reference(facts.base_name)
    uri = {"uri": str(image_purl(reference, facts.base_digest))} if reference else {}
    yield _resource("base", facts.base_digest) | uri
    if facts.parent and facts.parent.digest:
        uri = {"uri": str(image_purl(facts.parent, facts.parent.digest))}
        yield _resource("training image", facts.parent.digest) | uri
    yield _resource("training manifest", facts.manifest)
    for digest in facts.lock_digests:
        yield _resource("pylock.toml", digest)
    for wheel in dict.fromkeys(it for lock in facts.locks for it in lock.wheels):
        yield _resource(wheel.filename, wheel.sha256) | {"uri": str(wheel_purl(wheel))}
    for package in dict.fromkeys(it for lock in facts.locks for it in lock.packages):
        yield _resource(package.basename, package.sha256) | {"uri": str(package_purl(package))}
    for path, digest in facts.model_files:
        yield _resource(f"model/{path}", digest)


def _resource(name: str, digest: Digest) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest.hex}}
