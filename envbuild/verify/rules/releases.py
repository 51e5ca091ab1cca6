"""Versions as people compare them: by release, by minor version, by build."""

import re

from packaging.version import InvalidVersion, Version

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")


def numbers(text: str | None) -> tuple[int, ...]:
    """`(2, 15, 1)` of `2.15.1rc1+cu118`; empty where no number leads."""
    found = _NUMBERS.match(text or "")
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def minor(text: str | None) -> str:
    """`2.15` of `2.15.1`; empty where less is known."""
    found = numbers(text)[:2]
    return ".".join(map(str, found)) if len(found) == 2 else ""


def same_numbers(one: str, other: str, count: int) -> bool:
    """Whether the first numbers are equal, as many of them as both have."""
    shorter = min(count, len(numbers(one)), len(numbers(other)))
    return numbers(one)[:shorter] == numbers(other)[:shorter]


def label(version: str) -> str:
    """`cu118` of `2.1.0+cu118`."""
    return version.partition("+")[2].lower()


def same_release(one: str, other: str) -> bool:
    """Whether two versions are equal by PEP 440, whatever their local labels; letter by letter where it has no say."""
    first, second = one.partition("+")[0], other.partition("+")[0]
    if first == second:
        return True  # nearly always, and thousands of times
    try:
        return Version(first) == Version(second)
    except InvalidVersion:
        return first == second


def as_version(text: str | None) -> Version | None:
    """A version to order by; None where it is none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None
