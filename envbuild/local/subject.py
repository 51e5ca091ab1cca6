"""What is to be reproduced, from a stamped model, a manifest or an image."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import docker
from docker.errors import APIError, NullResource

from envbuild.diff.images import open_image
from envbuild.engine.client import find_image
from envbuild.engine.load import load_into
from envbuild.errors import BuildError, RegistryError, UsageError
from envbuild.files import cache_folder
from envbuild.local.model import Subject, Variant
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import exists
from envbuild.report import Reporter
from envbuild.verify.findings import Finding
from envbuild.verify.sources import Side, frameworks_of
from envbuild.verify.sources.manifest import side_of_lock, side_of_manifest
from envbuild.verify.sources.model import StampedModel, artifact_findings, current_stamp, manifest_copy, side_of_model

_ENGINE, _REGISTRY = "docker-daemon:", "docker://"
_ARCHIVES = ("oci:", "oci-archive:", "docker-archive:")
_FRAMEWORK, _VARIANT, _CUDA = "dev.envbuild.framework", "dev.envbuild.variant", "dev.envbuild.cuda"


def subject_of_model(it: StampedModel, named: str | None = None) -> Subject:
    """A model by its newest stamp; the copy of the manifest is read again for its bytes.

    `named` is what the caller gave: of one file the manifest may say that the folder around it is the model.
    StampError where it has no stamp, or was replaced after it was stamped: the environment would be another model's.
    """
    stamp = current_stamp(it)
    return Subject(
        name=it.uri,
        side=side_of_model(it),
        manifest=it.manifest,
        manifest_bytes=manifest_copy(it, stamp) if it.manifest else None,
        images=stamp.images,
        locks=it.locks,
        model=it.uri,
        named=named if named and not named.startswith("gs://") else None,
        findings=tuple(_disagreeing(it)),
    )


def subject_of_manifest(name: str, data: bytes, manifest: TrainingManifest) -> Subject:
    """A run by its manifest alone; nothing is stamped with it."""
    return Subject(
        name=name,
        side=side_of_manifest(manifest, name),
        manifest=manifest,
        manifest_bytes=data,
    )


def subject_of_image(name: str, side: Side) -> Subject:
    """An image that was named itself, and is run as it is."""
    return Subject(name=name, side=side, image=name)


def _disagreeing(it: StampedModel) -> Iterator[Finding]:
    """Yield what changed in the model's folder; a missing copy is only a warning."""
    for finding in artifact_findings(it):
        if not finding.agrees:
            yield replace(finding, severity="warning") if finding.rule == "artifact-copies" else finding


def chosen_side(subject: Subject, variant: Variant, platform: str) -> Side:
    """What would run here, as rules read it: the stamped lock's packages where there is one, else the run's.

    The run's GPU, CPU and all else stay, as this machine is compared with them.
    """
    side = replace(subject.side, kind="image", variant=variant, machine=machine_of(platform))
    lock = subject.locks.get(("train", variant, platform))
    if lock is None:
        return side
    inside = side_of_lock(lock, subject.name)
    return replace(
        side, packages=inside.packages, cuda=inside.cuda or side.cuda, cudnn=inside.cudnn or side.cudnn, complete=True
    )


def machine_of(platform: str) -> str:
    """`x86_64` for `linux/amd64`, and for the names that Go, Windows and macOS have for a machine: `amd64`, `AMD64`."""
    architecture = platform.rpartition("/")[2].lower()
    return next((machine for machine, name in ARCHITECTURES.items() if name == architecture), architecture)


def side_of_named(text: str, client: docker.DockerClient | None, machine: str, report: Reporter) -> Side:
    """Return the facts of an image: of the engine's, else the registry's, or of a layout or archive here."""
    if client is not None and not lies_here(text):
        try:
            known = client.api.inspect_image(_bare(text))
        except (NullResource, APIError):
            # It does not have it, or could not have one of such a name.
            report.note(f"the engine does not have {text}")
        else:
            return _side(text, str(known.get("Architecture", "")), known.get("Config") or {}, machine)
    _check_name(text)
    with open_image(text, machine=machine, cache=cache_folder(), report=report) as image:
        try:
            config = json.loads(image.config)
            return _side(text, str(config.get("architecture", "")), config.get("config") or {}, machine)
        except (ValueError, AttributeError) as error:
            raise BuildError("the image's config is not valid JSON", where=text, todo="build it again") from error


def load_image(text: str, client: docker.DockerClient, machine: str, report: Reporter) -> tuple[str, str | None]:
    """The engine's name of an image, and its digest in a registry; what lies here is loaded, all else pulled."""
    if not lies_here(text):
        found = find_image(client, _bare(text), report)
        return found.id, found.digest
    with open_image(text, machine=machine, cache=cache_folder(), report=report) as image:
        return load_into(client, image, (), report).id, None


def size_of(text: str, client: docker.DockerClient | None, machine: str, report: Reporter) -> int | None:
    """Bytes of an image's layers, compressed; 0 if the engine has it, None where nobody can be asked."""
    if client is not None and not lies_here(text):
        try:
            client.api.inspect_image(_bare(text))
        except (NullResource, APIError):
            pass
        else:
            return 0
    try:
        with open_image(text, machine=machine, cache=cache_folder(), report=report) as image:
            return sum(layer.descriptor.size for layer in image.layers)
    except RegistryError:  # pulling it will say why
        return None


def lies_here(text: str) -> bool:
    """Whether it is an OCI layout or an archive of this machine."""
    if text.startswith((_ENGINE, _REGISTRY)):
        return False
    return text.startswith(_ARCHIVES) or exists(text.rpartition("@")[0] or text)


def _check_name(text: str) -> None:
    """Refuse a bare word, which is a mistyped model more often than an image of Docker Hub."""
    if not lies_here(text) and not set("/:@") & set(text):
        what = "no file here and no image in the engine has this name"
        todo = f"give a model's folder, a manifest, or an image with its registry or tag: {text}:latest"
        raise UsageError(what, where=f"TARGET {text}", todo=todo)


def _bare(text: str) -> str:
    return text.removeprefix(_ENGINE).removeprefix(_REGISTRY)


def _side(name: str, architecture: str, config: Mapping[str, Any], machine: str) -> Side:
    labels = config.get("Labels") or {}
    variables = dict(str(it).partition("=")[::2] for it in config.get("Env") or ())
    variant = labels.get(_VARIANT)
    framework, _, version = str(labels.get(_FRAMEWORK, "")).partition("==")
    return Side(
        name=name,
        kind="image",
        system="Linux",
        machine=machine_of(architecture or machine),
        frameworks=frameworks_of({framework: version}).frameworks if version else (),
        cuda=labels.get(_CUDA),
        variant=variant if variant in ("gpu", "cpu") else None,
        variables=variables,
        names=frozenset(variables),
    )
