"""Where an image comes from: SLSA provenance v1, with everything that went in by digest.

https://slsa.dev/spec/v1.1/provenance; docs/attestations.md says what BUILD means and what its parameters are.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from envbuild.attest.builder import Builder
from envbuild.attest.model import DEBIAN, Facts
from envbuild.attest.names import base_reference, image_purl, package_purl, public_name, public_text, wheel_purl
from envbuild.oci.digest import Digest

BUILD = "https://envbuild.dev/build/v1"
"""What kind of build it is: a name, at which nothing has to lie."""


def provenance(facts: Facts, builder: Builder) -> dict[str, Any]:
    """The predicate: how the image was built, from what, and by whom."""
    times = {"startedOn": _moment(facts.started), "finishedOn": _moment(facts.finished)}
    return {
        "buildDefinition": {
            "buildType": BUILD,
            "externalParameters": _parameters(facts),
            "internalParameters": {"environment": str(facts.environment)},
            "resolvedDependencies": list(_dependencies(facts)),
        },
        "runDetails": {
            "builder": {"id": builder.id, "version": {"envbuild": version("envbuild")}},
            "metadata": times | ({"invocationId": builder.invocation} if builder.invocation else {}),
        },
    }


def _parameters(facts: Facts) -> dict[str, Any]:
    """What somebody outside chose."""
    value: dict[str, Any] = {"role": facts.role, "variant": facts.variant, "platform": facts.platform}
    if facts.base_name.startswith(DEBIAN) or base_reference(facts.base_name):
        value["base"] = facts.base_name
    if facts.model:
        value["model"] = public_name(facts.model)
    options = {name: public_text(text) for name, text in facts.parameters}
    return value | ({"options": options} if options else {})


def _dependencies(facts: Facts) -> Iterator[dict[str, Any]]:
    """Everything that went in, the ground first."""
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


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
