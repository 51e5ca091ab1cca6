"""What a registry has already: the image of an environment, by the tag that every push gives it."""

from dataclasses import replace

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.registry.credentials import Credentials
from envbuild.registry.pull import pull
from envbuild.registry.retry import Retry
from envbuild.trust import Claim, Voucher


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
) -> Claim[Image] | None:
    """Find what a repository has as the image of an environment; None when it has none. RegistryError as `pull`."""
    tagged = replace(reference, tag=environment_tag(environment), digest=None)
    return find_tagged(tagged, machine=machine, credentials=credentials, retry=retry)


def find_tagged(
    tagged: Reference, *, machine: str, credentials: Credentials | None = None, retry: Retry | None = None
) -> Claim[Image] | None:
    """Find the image under a tag that anybody who may push can have set; None when there is none."""
    try:
        image = pull(tagged, machine=machine, credentials=credentials, retry=retry)
    except RegistryError as error:
        if error.status == 404:
            return None
        raise
    found = tuple(replace(layer, found="registry") for layer in image.layers)
    return Claim(replace(image, layers=found), Voucher.REGISTRY, str(tagged))
