"""Which wheels a target can use, and which it prefers (binary distribution format, platform compatibility tags)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import BuildTag, InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.errors import UsageError
from envbuild.lock.model import Target
from envbuild.match.stack import Stack

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of manylinux levels (PEP 600)."""
_LOWEST = {"x86_64": 5, "aarch64": 17}
"""The first glibc 2.N that wheels of a machine were made for."""

_GLIBC = re.compile(r"2\.([0-9]{1,3})")
"""Each N has its own tags, so an N without a bound would fill the memory."""
_OLDEST = "2.17"
"""That of manylinux2014, the oldest that uv locks for."""

Rank = Mapping[Tag, int]
Parsed = tuple[NormalizedName, Version, BuildTag, frozenset[Tag]]
Named = TypeVar("Named")


def stack_target(stack: Stack, base_glibc: str | None, glibc: str | None = None) -> Target:
    """The target when no base is given: the run's Python, and `glibc`, else that of the default base.

    Where neither is known, or the framework needs more, the lowest glibc that the framework's wheel accepts.
    """
    lowest = Target(python=stack.python, machine=stack.machine, glibc=stack.glibc_minimum)
    if glibc is not None:
        asked = replace(lowest, glibc=glibc)
        if glibc_minor(asked) < glibc_minor(lowest):
            what = f"the framework's wheel needs glibc {stack.glibc_minimum}"
            raise UsageError(what, where=f"--glibc {glibc}", todo="ask for that or a later one")
        return asked
    return max(lowest, replace(lowest, glibc=base_glibc or _OLDEST), key=glibc_minor)


def glibc_minor(target: Target) -> int:
    """The N of glibc 2.N; UsageError for anything else."""
    found = _GLIBC.fullmatch(target.glibc)
    if found is None:
        raise UsageError(f"glibc {target.glibc!r} is not a glibc version", todo="give it as 2.N, such as 2.36")
    return int(found[1])


@lru_cache(maxsize=16)
def ranked_tags(target: Target) -> Rank:
    """Every tag that the target accepts, with its place: 0 is the best."""
    version = tuple(int(part) for part in target.python_minor.split("."))
    name = "cp" + "".join(map(str, version))
    abi = f"{name}m" if version < (3, 8) else name
    platforms = list(_platforms(target))
    tags = [*cpython_tags(version, [abi], platforms), *compatible_tags(version, name, platforms)]
    return {tag: place for place, tag in reversed(list(enumerate(tags)))}


def parsed_wheel(filename: str) -> Parsed | None:
    """The name, version, build and tags in a wheel's file name; None for any other file."""
    try:
        return parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return None


def same_version(text: str | None, other: str) -> bool:
    """Whether both are the same version (PEP 440), however written."""
    try:
        return text is not None and Version(text) == Version(other)
    except InvalidVersion:
        return text == other


def best_wheel(candidates: Iterable[tuple[str, Named]], target: Target) -> Named | None:
    """The value whose file name an installer on the target takes: best tag, then highest build, then first name."""
    rank = ranked_tags(target)
    fitting: list[tuple[tuple[int, tuple[int, int, str], str], Named]] = []
    for filename, value in candidates:
        wheel = parsed_wheel(filename)
        places = [rank[tag] for tag in wheel[3] if tag in rank] if wheel else []
        if wheel and places:
            number, suffix = wheel[2] or (-1, "")
            fitting.append(((min(places), (-number, len(suffix), suffix), filename), value))
    return min(fitting, key=lambda item: item[0])[1] if fitting else None


def _platforms(target: Target) -> Iterator[str]:
    """Platform tags in the order of packaging.tags: wheels built on such a machine, then the newest glibc first."""
    lowest = _LOWEST.get(target.machine)
    if lowest is None:
        raise UsageError(f"machine {target.machine!r} is not supported", todo="use x86_64 or aarch64")
    yield f"linux_{target.machine}"
    for minor in range(glibc_minor(target), lowest - 1, -1):
        yield f"manylinux_2_{minor}_{target.machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{target.machine}"
