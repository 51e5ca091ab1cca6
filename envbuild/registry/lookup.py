"""What a registry has already: the image of an environment, by the tag that every push gives it."""

import json
from dataclasses import replace

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT, Image
from envbuild.oci.reference import Reference
from envbuild.registry.credentials import Credentials
from envbuild.registry.pull import pull
from envbuild.registry.retry import Retry


def environment_tag(environment: Digest) -> str:
    """`env-a1b2c3d4e5f6`: the tag of an environment's image; a guess only, so what it names is looked at."""
    return f"env-{environment.short}"


def find_environment(
    reference: Reference,
    environment: Digest,
    *,
    machine: str,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> Image | None:
    """Find the image of an environment in a repository; None when it has none, or only one that says it is another's.

    That the image is what it says rests on who may push to the repository. RegistryError as `pull`.
    """
    tagged = replace(reference, tag=environment_tag(environment), digest=None)
    try:
        image = pull(tagged, machine=machine, credentials=credentials, retry=retry)
    except RegistryError as error:
        if error.status == 404:
            return None
        raise
    annotations = json.loads(image.manifest).get("annotations") or {}
    return image if annotations.get(ENVIRONMENT) == str(environment) else None
