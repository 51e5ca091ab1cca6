"""The build as Cloud Build wants it, and as `gcloud builds submit --config` reads it.

One value is sent and printed, so that what people read is what runs
(cloud.google.com/build/docs/build-config-file-schema).
"""

from collections.abc import Mapping
from typing import Any

import yaml

from envbuild.build.cloudbuild.options import CloudBuild
from envbuild.errors import UsageError
from envbuild.oci.reference import Reference

STEP = "image"
"""The step's name, which logs and failures tell."""
_IMAGE = "_IMAGE"
_TEXT = """\
# What envbuild tells Cloud Build; the same by hand, in the folder of the build context:
#   gcloud builds submit --project={project} --region={region} --config=FILE .
# For another image: --substitutions={image}=HOST/REPOSITORY:TAG
"""


def plan(options: CloudBuild, target: Reference) -> dict[str, Any]:
    """Describe the build of a context, without its source: the Build of the REST API as JSON.

    UsageError when the target has no tag to push: Cloud Build names images by tags, and tells their digests later.
    """
    if target.tag is None or target.digest is not None:
        todo = "name the image HOST/REPOSITORY:TAG"
        raise UsageError("Cloud Build pushes an image by a tag", where=str(target), todo=todo)
    bucket, prefix = options.log_folder
    described: dict[str, Any] = {
        "steps": [_step(options)],
        "images": [f"${_IMAGE}"],
        "substitutions": {_IMAGE: str(target)},
        "timeout": f"{options.timeout}s",
        "tags": ["envbuild", *options.tags],
        "logsBucket": "/".join(filter(None, (f"gs://{bucket}", prefix))),
        "options": _options(options),
    }
    if options.account_name:
        described["serviceAccount"] = options.account_name
    if options.secrets:
        described["availableSecrets"] = {"secretManager": _available(options)}
    return described


def _step(options: CloudBuild) -> dict[str, Any]:
    step: dict[str, Any] = {
        "id": STEP,
        "name": options.docker,
        # Secrets and caches of a Dockerfile are BuildKit's; older clients use it only when told.
        "env": ["DOCKER_BUILDKIT=1"],
        "args": ["build", "--progress=plain", f"--tag=${_IMAGE}", *_arguments(options), "."],
    }
    return step | ({"secretEnv": [name for name, _ in _named(options)]} if options.secrets else {})


def _arguments(options: CloudBuild) -> list[str]:
    """Docker's options; a secret comes through a variable of the step, so that no file and no argument has it."""
    values = [] if options.network else ["--network=none"]
    values += [f"--build-arg={name}={_literal(value)}" for name, value in options.build_args]
    return values + [f"--secret=id={secret.id},env={name}" for name, secret in _named(options)]


def _named(options: CloudBuild) -> list[tuple[str, Any]]:
    return [(f"ENVBUILD_SECRET_{number}", secret) for number, secret in enumerate(options.secrets)]


def _available(options: CloudBuild) -> list[dict[str, str]]:
    return [{"versionName": secret.version, "env": name} for name, secret in _named(options)]


def _literal(value: str) -> str:
    """Escape what Cloud Build would replace (build/docs/configuring-builds/substitute-variable-values)."""
    return value.replace("$", "$$")


def _options(options: CloudBuild) -> dict[str, Any]:
    # Only a bucket's log can be read while it grows; with a service account of the user's there has to be one anyway.
    chosen: dict[str, Any] = {"logging": "GCS_ONLY", "logStreamingOption": "STREAM_ON"}
    if options.machine_type:
        chosen["machineType"] = options.machine_type
    if options.disk_gb:
        chosen["diskSizeGb"] = str(options.disk_gb)  # 64-bit numbers are text in protobuf's JSON
    if options.worker_pool:
        chosen["pool"] = {"name": options.worker_pool}
    return chosen


def plan_yaml(options: CloudBuild, target: Reference) -> bytes:
    """Write the build as cloudbuild.yaml: the same bytes for the same options; no source, which gcloud adds."""
    head = _TEXT.format(project=options.project, region=options.region, image=_IMAGE)
    return (head + yaml.safe_dump(plan(options, target), sort_keys=False, allow_unicode=True, width=120)).encode()


def submitted(plan: Mapping[str, Any], source: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Add what belongs to one run only: its source, and the tag that it is found by again."""
    return {**plan, "source": {"storageSource": dict(source)}, "tags": [*plan["tags"], mark]}
