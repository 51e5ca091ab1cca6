"""Places that a program reads data from, and what lay there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple
from urllib.parse import unquote, urlsplit

from envbuild.capture.gcs import Unread, list_objects, split_uri
from envbuild.capture.reading import Facts
from envbuild.capture.redact import scrub_line

LONGEST_READING = 10.0
"""Seconds for all places together."""
MOST_OBJECTS = 100_000
DATA_VARIABLE = re.compile(r"AIP_\w*DATA_URI")
NAMED_PLACE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.+)", re.DOTALL)


class Budget(NamedTuple):
    """How long reading may go on, by the monotonic clock, and how many files or objects a folder may hold."""

    end: float
    most: int

    def check_time(self) -> None:
        if time.monotonic() > self.end:
            raise Unread("reading all data takes too long")


def data_facts(
    data: Iterable[str], requires: Iterable[str], seconds: float = LONGEST_READING, most: int = MOST_OBJECTS
) -> list[Facts]:
    """Describe the places given, as `URI` or `NAME=URI`, and those that Vertex AI's and required variables name."""
    places: dict[str, str | None] = {}
    for place, variable in [*map(_named_place, data), *_places_of_variables(requires)]:
        places[place] = places.get(place) or variable
    budget = Budget(time.monotonic() + seconds, most)
    return [_place_facts(place, variable, budget) for place, variable in places.items()]


def _named_place(text: str) -> tuple[str, str | None]:
    named = NAMED_PLACE.fullmatch(text)
    # Partitioned data has folders such as year=2024.
    if named is None or os.path.exists(text):
        return text, None
    return named.group(2), named.group(1)


def _places_of_variables(requires: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in sorted({name for name in os.environ if DATA_VARIABLE.fullmatch(name)}.union(requires)):
        value = os.environ.get(name, "")
        if value and (DATA_VARIABLE.fullmatch(name) or value.startswith("gs://") or _is_data(value)):
            yield value, name


def _is_data(path: str) -> bool:
    """Tell whether a path is one of data; a folder around the program, the interpreter or the user is none."""
    # Without a slash it may be any word that a folder happens to be called.
    if os.sep not in path or not os.path.exists(path):
        return False
    try:
        others = [os.path.realpath(other) for other in (os.curdir, sys.prefix, os.path.expanduser("~"))]
    except OSError:
        # The working folder is gone.
        return False
    real = os.path.realpath(path)
    return all(os.path.commonpath([real, other]) != real for other in others)


def _place_facts(place: str, variable: str | None, budget: Budget) -> Facts:
    facts: Facts = {"uri": scrub_line(place), "variable": variable}
    try:
        return dict(facts, **_content_facts(place, budget))
    except Unread as error:
        return dict(facts, unread=scrub_line(str(error)))
    except (OSError, ValueError) as error:
        return dict(facts, unread="it cannot be read: %s" % (getattr(error, "strerror", None) or "it is no path"))


def _content_facts(place: str, budget: Budget) -> Facts:
    budget.check_time()
    scheme = re.match(r"([A-Za-z][\w+.-]*)://", place)
    if scheme is None:
        return local_facts(place, budget)
    if scheme.group(1) == "gs":
        return _bucket_facts(place, budget)
    if scheme.group(1) != "file":
        raise Unread("only gs:// and local places are read")
    return local_facts(unquote(urlsplit(place).path), budget)


def _bucket_facts(uri: str, budget: Budget) -> Facts:
    _, name = split_uri(uri)
    objects = bounded(_matching(uri, name), budget)
    if not objects:
        raise Unread("there is no such object or folder")
    if [item["name"] for item in objects] == [name]:
        return {
            "generation": objects[0]["generation"],
            "checksum": "crc32c:%s" % objects[0]["crc32c"] if objects[0]["crc32c"] else None,
            "size": objects[0]["size"],
        }
    return _listing_facts(objects, ("name", "generation", "crc32c"))


def _matching(uri: str, name: str) -> Iterable[Facts]:
    """List objects; Vertex AI names the files of managed datasets by a pattern: gs://bucket/data/training-*."""
    if "*" not in name:
        return list_objects(uri)
    found = list_objects(uri[: uri.index("*")].rpartition("/")[0] + "/")
    return (item for item in found if fnmatchcase(item["name"], name))


def local_facts(path: str, budget: Budget) -> Facts:
    """Describe a file or folder here by size and checksum; Unread where the budget does not allow it."""
    if os.path.isfile(path):
        return {"checksum": "sha256:" + _file_digest(path, budget), "size": os.path.getsize(path)}
    if not os.path.isdir(path):
        raise Unread("there is no such file or folder")
    files = bounded(local_files(path), budget)
    for item in files:
        item["sha256"] = _file_digest(os.path.join(path, item["name"]), budget)
    return _listing_facts(files, ("name", "size", "sha256"))


def local_files(folder: str) -> Iterator[Facts]:
    """List the files below a folder, with their sizes."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for path in (Path(parent, name) for name in files):
            if path.is_file():
                yield {"name": str(path.relative_to(folder)), "size": path.stat().st_size}


def _file_digest(path: str, budget: Budget) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            budget.check_time()
    return digest.hexdigest()


def bounded(items: Iterable[Facts], budget: Budget) -> list[Facts]:
    """List items as long as the budget allows; else Unread."""
    found: list[Facts] = []
    for item in items:
        budget.check_time()
        if len(found) == budget.most:
            raise Unread("it holds more than %d objects" % budget.most)
        found.append(item)
    return found


def _listing_facts(items: list[Facts], keys: tuple[str, ...]) -> Facts:
    """Describe a folder; its checksum is over one JSON array a file, sorted by name, each with a line end."""
    digest = hashlib.sha256()
    for item in sorted(items, key=lambda item: str(item["name"])):
        digest.update(json.dumps([item[key] for key in keys]).encode("ascii") + b"\n")
    return {
        "checksum": "sha256:" + digest.hexdigest(),
        "size": sum(item["size"] for item in items),
        "objects": len(items),
    }
