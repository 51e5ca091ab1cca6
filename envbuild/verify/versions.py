"""Versions of CUDA's libraries: which one lies in the image, and which one the framework accepts."""

import re

from packaging.version import InvalidVersion, Version

from envbuild.match.profiles import FrameworkWheel, Profiles, within

_IN_NAME = re.compile(r"\.so\.(\d+(?:\.\d+)+)\Z")


def version_in_name(path: str) -> str:
    """`8.9.7` of `/usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.7`; empty where the name has the major version only."""
    found = _IN_NAME.search(path)
    return found[1] if found else ""


def cudnn_floor(framework: str, wheel: FrameworkWheel, profiles: Profiles) -> tuple[str, str]:
    """The lowest cuDNN that a release accepts and the source of that; the major version alone where no more is known.

    cuDNN of the same major version works when its minor version is that of the build or a later one.
    """
    if wheel.cudnn_built:
        return wheel.cudnn_built, wheel.source
    row = next((it for it in profiles.cudnn_floors if within(it, framework, wheel.version)), None)
    return (row.minimum, row.source) if row else (wheel.cudnn or "", wheel.source)


def cudnn_fits(found: str, floor: str) -> bool | None:
    """Whether a cuDNN serves a build; None where one of the two versions is not known well enough."""
    try:
        own, least = Version(found).release, Version(floor).release
    except InvalidVersion:
        return None
    if own[0] != least[0]:
        return False
    return own[1] >= least[1] if len(own) > 1 and len(least) > 1 else None
