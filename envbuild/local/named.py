"""An image that was named itself: what its config says, without a layer of it, and how it comes into the engine."""

import json
from collections.abc import Mapping
from typing import Any

import docker
from docker.errors import APIError, NullResource

from envbuild.diff.images import open_image
from envbuild.engine.image import find_image
from envbuild.engine.load import load_into
from envbuild.errors import BuildError, RegistryError, UsageError
from envbuild.files import cache_folder
from envbuild.local.subject import machine_of
from envbuild.oci.reference import exists
from envbuild.report import Reporter
from envbuild.verify.sources import Side, frameworks_of

_ENGINE, _REGISTRY = "docker-daemon:", "docker://"
_ARCHIVES = ("oci:", "oci-archive:", "docker-archive:")
_FRAMEWORK, _VARIANT, _CUDA = "dev.envbuild.framework", "dev.envbuild.variant", "dev.envbuild.cuda"


def side_of_named(text: str, client: docker.DockerClient | None, machine: str, report: Reporter) -> Side:
    """What an image says of itself: the engine's own, else the registry's or that of a layout or archive here."""
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


def brought(text: str, client: docker.DockerClient, machine: str, report: Reporter) -> tuple[str, str | None]:
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
        what = "nothing of this name lies here, and the engine has no image that is called so"
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
