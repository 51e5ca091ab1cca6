"""What Cloud Build refuses about a build, in its own words where they are known (build/docs/build-config-file-schema)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.cloud.devtools.cloudbuild_v1 import Build
from google.protobuf.json_format import ParseDict, ParseError

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_BUILT_IN = ("PROJECT_ID", "PROJECT_NUMBER", "BUILD_ID", "LOCATION")
_KEY = re.compile(r"_[A-Z0-9_]+")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"[A-Za-z0-9.-]+(?::\d+)?(?:/{_COMPONENT})+(?::[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?")
_TAG = re.compile(r"\w[\w.-]{0,127}")
_VERSION = re.compile(r"projects/[^/]+/secrets/[A-Za-z0-9_-]+/versions/[A-Za-z0-9_-]+")
_Logging = Build().options.LoggingMode


class InvalidError(ValueError):
    """INVALID_ARGUMENT, with what the service says."""


def accepted(body: Mapping[str, Any], parent: str, identity: str) -> Build:
    """Read a Build as it is sent, replace its variables, and check it; InvalidError for what the service refuses."""
    build = Build()
    try:
        ParseDict(dict(body), Build.pb(build))
    except ParseError as error:
        raise InvalidError(f"Invalid JSON payload received. {error}") from error
    _check_steps(build)
    _check_source(build)
    _, project, _, location = parent.split("/")
    _substitute(build, {"PROJECT_ID": project, "PROJECT_NUMBER": "1", "BUILD_ID": identity, "LOCATION": location})
    _check_names(build)
    _check_secrets(build)
    _check_machine(build, location)
    return build


def _check_steps(build: Build) -> None:
    if not build.steps:
        raise InvalidError("invalid build: no build steps are specified")
    for step in build.steps:
        if not step.name:
            raise InvalidError("invalid build: invalid build step name")
        for one in step.env:
            if "=" not in one:
                raise InvalidError(f"invalid build: build step env {one!r} not valid: must be KEY=VALUE")
    seconds = build.timeout.total_seconds()
    if "timeout" in build and not 0 < seconds <= 24 * 3600:
        raise InvalidError("invalid build: invalid timeout: must be between 0 and 24h")


def _check_source(build: Build) -> None:
    source = build.source.storage_source
    if not source.bucket or not source.object_:
        raise InvalidError("invalid build: source bucket and object are required")
    if not source.object_.endswith((".tar.gz", ".tgz", ".zip")):
        raise InvalidError("invalid build: source object must be a .zip or .tar.gz")


def _substitute(build: Build, built_in: Mapping[str, str]) -> None:
    for key, value in build.substitutions.items():
        if not _KEY.fullmatch(key) or len(key) > 100 or len(value) > 4000:
            wrong = f'invalid .substitutions field: substitution key "{key}" does not respect format "^_[A-Z0-9_]+$"'
            raise InvalidError(f"invalid build: {wrong} and is not an overridable built-in substitutions")
    values, used = {**built_in, **build.substitutions}, set()

    def replaced(text: str) -> str:
        for match in _VARIABLE.finditer(text):
            if name := match[1] or match[2]:
                _check_variable(name, values)
                used.add(name)
        return _VARIABLE.sub(lambda match: values[match[1] or match[2]] if match[1] or match[2] else "$", text)

    for step in build.steps:
        step.name, step.args, step.env = (
            replaced(step.name),
            [replaced(one) for one in step.args],
            [replaced(one) for one in step.env],
        )
    build.images, build.tags = [replaced(one) for one in build.images], [replaced(one) for one in build.tags]
    for key in build.substitutions.keys() - used:
        raise InvalidError(f'key "{key}" in the substitution data is not matched in the template')


def _check_variable(name: str, values: Mapping[str, str]) -> None:
    if name in values:
        return
    if name.startswith("_"):
        raise InvalidError(f'key in the template "{name}" is not matched in the substitution data')
    raise InvalidError(f'key in the template "{name}" is not a valid built-in substitution')


def _check_names(build: Build) -> None:
    for image in build.images:
        if not _IMAGE.fullmatch(image):
            raise InvalidError(f'invalid build: invalid image name "{image}": could not parse reference')
    for tag in build.tags:
        if not _TAG.fullmatch(tag):
            raise InvalidError(f'invalid build: invalid tag "{tag}"')


def _check_secrets(build: Build) -> None:
    declared = {secret.env: secret.version_name for secret in build.available_secrets.secret_manager}
    for version in declared.values():
        if not _VERSION.fullmatch(version):
            raise InvalidError(f"invalid build: invalid secret version name {version!r}")
    wanted = {name for step in build.steps for name in step.secret_env}
    for name in wanted ^ declared.keys():
        raise InvalidError(f"invalid build: secret environment variable {name!r} is not both declared and used")


def _check_machine(build: Build, location: str) -> None:
    pool, options = build.options.pool.name, build.options
    if pool and pool.split("/")[3] != location:
        raise InvalidError("invalid build: the worker pool is in another region")
    if pool and options.machine_type != 0:
        raise InvalidError("invalid build: machine_type must not be set together with pool")
    if build.service_account and not build.logs_bucket and options.logging not in _elsewhere():
        what = "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket'"
        raise InvalidError(f"{what}, or use either CLOUD_LOGGING_ONLY / NONE logging options")


def _elsewhere() -> Iterator[Any]:
    yield from (_Logging.CLOUD_LOGGING_ONLY, _Logging.NONE)
