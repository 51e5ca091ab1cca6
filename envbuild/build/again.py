"""What a build that is like an earlier one goes by: the base that the earlier one's lock names."""

from collections.abc import Mapping
from dataclasses import replace

from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference

_CUDA, _BOOTSTRAPPED = "cuda", "debian:"


def recorded_base(lock: Lock, *, variant: str, same_platform: bool) -> str | None:
    """The base that a lock was made for, by digest on the lock's own platform; None where the profile has to say.

    A base with CUDA is for the GPU alone, and a folder of another machine is for nobody. The tag that it was asked for
    by stays, as images name their base by it.
    """
    said: Mapping[str, str] = dict(lock.base)
    name = said.get("name", "")
    if not name or (_CUDA in name and variant == "cpu"):
        return None
    if name.startswith(_BOOTSTRAPPED):
        return name
    if is_nameless(lock):
        return None
    try:
        reference = Reference.parse(name)
    except ValueError:
        return None
    if same_platform and "digest" in said:
        return str(replace(reference, digest=Digest.parse(said["digest"])))
    return name


def is_nameless(lock: Lock) -> bool:
    """Whether a lock was made for a base that lies in a folder, so that its name does not say where."""
    name = dict(lock.base).get("name", "")
    # All that lie in a registry are named with it.
    return bool(name) and not name.startswith(_BOOTSTRAPPED) and "/" not in name
