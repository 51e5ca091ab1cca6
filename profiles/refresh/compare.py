"""A profile that is kept against one that was just read: what is not as the wheels say, field by field."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TypeVar

from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Opener, Release

T = TypeVar("T", FrameworkWheel, Opener)
_Key = tuple[str, str, str | None]
_NAMED = frozenset({"distribution", "version", "machine"})
"""What tells rows apart, and so cannot differ."""


def differences(kept: FrameworkProfile, read: FrameworkProfile) -> tuple[str, ...]:
    """One line for every release or row that is missing or surplus, and for every field that differs."""
    before = {it.version: it for it in kept.releases}
    after = {it.version: it for it in read.releases}
    found: list[str] = []
    for version in sorted(before.keys() | after.keys()):
        name = f"{kept.name} {version}"
        if version not in before:
            found.append(f"{name}: released, and has no row ({_rows(after[version])})")
        elif version not in after:
            found.append(f"{name}: has rows, and the index has no such release")
        else:
            found += _of_release(name, before[version], after[version])
    return tuple(found)


def opener_differences(kept: Iterable[Opener], read: Iterable[Opener]) -> tuple[str, ...]:
    """One line for every range of releases that is missing or surplus, and for every field that differs."""
    before, after = ({(it.distribution, it.first): it for it in rows} for rows in (kept, read))
    found: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        what = f"{key[0]} from {key[1]}"
        if key not in before:
            found.append(f"{what}: the wheels differ from those before ({after[key].source}), and it has no row")
        elif key not in after:
            found.append(f"{what}: has a row, and no wheels that differ from those before")
        else:
            found += _of_row(what, before[key], after[key])
    return tuple(found)


def _of_release(name: str, kept: Release, read: Release) -> Iterator[str]:
    several = _several(kept) | _several(read)
    before, after = _by_key(kept, several), _by_key(read, several)
    for key in dict.fromkeys((*before, *after)):
        what = f"{name}, {_called(key)}"
        if key not in before:
            yield f"{what}: released as {after[key].wheel}, and has no row"
        elif key not in after:
            yield f"{what}: has a row, and the index has no such wheel"
        else:
            yield from _of_row(what, before[key], after[key])
    for field in ("extras", "notes"):
        if getattr(kept, field) != getattr(read, field):
            yield f"{name}: {field}: {_change(getattr(kept, field), getattr(read, field), 'the index')}"


def _of_row(what: str, kept: T, read: T) -> Iterator[str]:
    where = read.wheel if isinstance(read, FrameworkWheel) else read.source.partition(" ")[0]
    for field in fields(read):
        before, after = getattr(kept, field.name), getattr(read, field.name)
        if field.name not in _NAMED and before != after:
            yield f"{what}: {field.name}: {_change(before, after, where)}"


def _change(kept: object, read: object, where: str) -> str:
    if not (isinstance(kept, tuple) and isinstance(read, tuple)):
        return f"the profile says {_said(kept)}, {where} says {_said(read)}"
    alone = (
        ("the profile", [it for it in kept if it not in read]),
        (where, [it for it in read if it not in kept]),
    )
    said = [f"{name} alone has {', '.join(items)}" for name, items in alone if items]
    return "; ".join(said) or f"{where} has them in another order"


def _said(value: object) -> str:
    return "nothing" if value is None else str(value)


def _several(release: Release) -> frozenset[tuple[str, str]]:
    """The distributions and machines that have a row for each extra."""
    counted = Counter((it.distribution, it.machine) for it in release.wheels)
    return frozenset(key for key, number in counted.items() if number > 1)


def _by_key(release: Release, several: frozenset[tuple[str, str]]) -> Mapping[_Key, FrameworkWheel]:
    return {
        (it.distribution, it.machine, it.extra if (it.distribution, it.machine) in several else None): it
        for it in release.wheels
    }


def _rows(release: Release) -> str:
    return ", ".join(map(_called, _by_key(release, _several(release)))) or "; ".join(release.notes)


def _called(key: _Key) -> str:
    """`tensorflow-cpu for x86_64`, `jax[cuda12] for aarch64`."""
    distribution, machine, extra = key
    return f"{distribution}{f'[{extra}]' if extra else ''} for {machine}"
