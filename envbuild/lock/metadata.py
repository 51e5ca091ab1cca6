"""What a distribution says about itself in METADATA, for a bill of materials: licences, people, requirements.

https://packaging.python.org/specifications/core-metadata
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.metadata import RawMetadata, parse_email

_LONGEST = 120
"""Letters of a licence's name or a person's; longer ones are texts."""
_CLASSIFIED = {
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Classifiers that name one SPDX licence; `BSD License` and `Apache Software License` can be several (PEP 639)."""


_HEADERS = re.compile(r"\r?\n\r?\n")
"""The end of the fields; the description follows."""
_NAME = re.compile(r"[A-Z0-9](?:[A-Z0-9._-]*[A-Z0-9])?", re.IGNORECASE | re.ASCII)
_ADDRESSES = re.compile(r'(?:"[^"]*"|[^,"]+|")+')
"""Parts between commas that are not in quotes."""
_ADDRESS = re.compile(r"[^\s@]+@[^\s@]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person or group, as far as they are named."""

    name: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What one distribution says about itself."""

    name: str
    version: str
    path: str
    """The folder, or the file, that says so: `setuptools/_vendor/zipp-3.19.2.dist-info`."""
    licenses: tuple[str, ...] = ()
    """One expression (PEP 639), or names of licences."""
    authors: tuple[Person, ...] = ()
    supplier: str = ""
    """Who maintains it, else who wrote it."""
    requires: tuple[str, ...] = ()
    """Requires-Dist, as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A bill of materials in a wheel (PEP 770)."""

    path: str
    """In the wheel: `numpy-2.4.0.dist-info/sboms/openblas.cdx.json`."""
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a wheel says about itself, and about what else is in it."""

    metadata: Metadata
    vendored: tuple[Metadata, ...] = ()
    """Distributions that it has copies of, sorted by path."""
    documents: tuple[Document, ...] = ()
    """Sorted by path."""


def read_metadata(text: str, path: str) -> Metadata | None:
    """Read METADATA or PKG-INFO; None where it names no distribution, or is malformed."""
    try:
        raw, _ = parse_email(_HEADERS.split(text, maxsplit=1)[0] + "\n")
    except (ValueError, RecursionError):
        return None
    name, version = raw.get("name", ""), raw.get("version", "")
    if not _is_short(name) or not _NAME.fullmatch(name) or not _is_short(version):
        return None
    authors = _people(raw.get("author", ""), raw.get("author_email", ""))
    maintainers = _people(raw.get("maintainer", ""), raw.get("maintainer_email", ""))
    return Metadata(
        name=name,
        version=version,
        path=path,
        licenses=tuple(filter(None, map(str.strip, _licenses(raw)))),
        authors=authors,
        supplier=next((it.name or it.email for it in (*maintainers, *authors)), ""),
        requires=tuple(" ".join(it.split()) for it in raw.get("requires_dist", ())),
    )


def _licenses(raw: RawMetadata) -> tuple[str, ...]:
    """License-Expression, else License, else the classifiers, else the first line of a licence's text."""
    lines = [line.strip() for line in raw.get("license", "").splitlines() if line.strip()]
    parts = [it.split(" :: ") for it in raw.get("classifiers", ()) if it.startswith("License :: ")]
    classified = tuple(_CLASSIFIED.get(it[-1], it[-1]) for it in parts if it[-1] != "OSI Approved")
    if expression := raw.get("license_expression"):
        return (expression,)
    if len(lines) == 1 and _is_short(lines[0]):
        return (lines[0],)
    return classified or tuple(line[:_LONGEST] for line in lines[:1] if _is_named(line))


def _people(names: str, addresses: str) -> tuple[Person, ...]:
    """The people of Author and Author-email, or of Maintainer and Maintainer-email."""
    people = list(_addressed(addresses))
    if _is_short(names):
        alone: Sequence[Person] = people if len(people) == 1 and not people[0].name else ()
        people = [Person(name=names, email=it.email) for it in alone] or [Person(name=names), *people]
    return tuple(dict.fromkeys(it for it in people if len(it.name) <= _LONGEST))


def _addressed(addresses: str) -> Iterator[Person]:
    """Yield `Ann <ann@example.com>`, `ann@example.com` and `ann@example.com (Ann)`; Python's releases differ."""
    for part in _ADDRESSES.findall(addresses):
        name, bracket, email = part.rpartition("<")
        email, _, comment = email.partition(">" if bracket else "(")
        name = " ".join((name if bracket else comment.rstrip(") ")).split()).strip('"')
        if _ADDRESS.fullmatch(email := email.strip()):
            yield Person(name=name, email=email)


def _is_short(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and _is_named(text) and "\n" not in text


def _is_named(text: str) -> bool:
    """Whether a field has a value: old tools write UNKNOWN where there is none."""
    return text.strip().upper() not in ("", "UNKNOWN", "NONE")
