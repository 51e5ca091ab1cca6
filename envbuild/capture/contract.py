"""The contract: the variables, data and code that the program needs wherever it runs next."""

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

from envbuild.capture.checkout import tree_facts
from envbuild.capture.files import Facts, file_sha256
from envbuild.capture.gcs import CloudStorage, Unread, split_uri
from envbuild.capture.redact import scrub_line
from envbuild.capture.variables import VARIABLE

LONGEST_READING = 10.0
"""Seconds for all places together."""
TOO_LONG = "reading all data takes too long"
MOST_OBJECTS = 100_000
DATA_VARIABLE = re.compile(r"AIP_\w*DATA_URI")
NAMED_PLACE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.+)", re.DOTALL)


class Budget(NamedTuple):
    """How long reading may go on, by the monotonic clock, and how many files or objects a folder may hold."""

    end: float
    most: int

    def check_time(self) -> None:
        if time.monotonic() > self.end:
            raise Unread(TOO_LONG)


def contract_facts(requires: Iterable[str], data: Iterable[str], preprocessing: Iterable[str]) -> Facts | None:
    """Describe the variables, data and code that the program depends on; ValueError for invalid names, missing code."""
    names = required_names(requires)
    facts: Facts = {
        "variables": [{"name": scrub_line(name), "present": name in os.environ} for name in names],
        "data": data_facts(data, names),
        "preprocessing": [tree_facts(path) for path in dict.fromkeys(preprocessing)],
    }
    return {key: value for key, value in facts.items() if value} or None


def required_names(requires: Iterable[str]) -> list[str]:
    """Return the names of variables, sorted; of `NAME=value` the name alone."""
    names = [text.partition("=")[0] for text in requires]
    for number, name in enumerate(names, 1):
        if not VARIABLE.fullmatch(name):
            # Without the text, which may be a secret value.
            raise ValueError("requires: number %d is not the name of a variable" % number)
    return sorted(set(names))


def data_facts(
    data: Iterable[str], requires: Iterable[str], seconds: float = LONGEST_READING, most: int = MOST_OBJECTS
) -> list[Facts]:
    """Describe the given places, `URI` or `NAME=URI`, and those that Vertex AI's and required variables name."""
    places: dict[str, str | None] = {}
    for text in data:
        named = NAMED_PLACE.fullmatch(text)
        # Partitioned data has folders such as year=2024.
        name, place = named.groups() if named and not os.path.exists(text) else (None, text)
        places[place] = places.get(place) or name
    for name in sorted({name for name in os.environ if DATA_VARIABLE.fullmatch(name)}.union(requires)):
        value = os.environ.get(name, "")
        if value and (DATA_VARIABLE.fullmatch(name) or value.startswith("gs://") or _is_data(value)):
            places[value] = places.get(value) or name
    budget = Budget(time.monotonic() + seconds, most)
    return [_place_facts(place, variable, budget) for place, variable in places.items()]


def _is_data(path: str) -> bool:
    """Tell whether a path is one of data, and not a folder around the program, the interpreter or the user."""
    # Without a slash it may be any word that equals a folder's name.
    if os.sep not in path or not os.path.exists(path):
        return False
    try:
        others = [os.path.realpath(other) for other in (os.curdir, sys.prefix, os.path.expanduser("~"))]
    except OSError:
        # The working folder was deleted.
        return False
    real = os.path.realpath(path)
    return all(os.path.commonpath([real, other]) != real for other in others)


def _place_facts(place: str, variable: str | None, budget: Budget) -> Facts:
    facts: Facts = {"uri": scrub_line(place), "variable": variable}
    try:
        budget.check_time()
        scheme = re.match(r"([A-Za-z][\w+.-]*)://", place)
        if scheme is None:
            return dict(facts, **local_facts(place, budget))
        if scheme.group(1) == "gs":
            return dict(facts, **_bucket_facts(place, budget))
        if scheme.group(1) == "file":
            return dict(facts, **local_facts(unquote(urlsplit(place).path), budget))
        return dict(facts, unread="only gs:// and local places are read")
    except Unread as error:
        return dict(facts, unread=scrub_line(str(error)))
    except (OSError, ValueError) as error:
        return dict(facts, unread="it cannot be read: %s" % (getattr(error, "strerror", None) or "invalid path"))


def _bucket_facts(uri: str, budget: Budget) -> Facts:
    _, name = split_uri(uri)
    # Vertex AI names the files of managed datasets by a pattern: gs://bucket/data/training-*.
    pattern = name if "*" in name else "*"
    found = CloudStorage().objects(uri[: uri.index("*")].rpartition("/")[0] + "/" if "*" in name else uri)
    objects = bounded((item for item in found if fnmatchcase(item["name"], pattern)), budget)
    if not objects:
        raise Unread("there is no such object or folder")
    if [item["name"] for item in objects] == [name]:
        return {
            "generation": objects[0]["generation"],
            "checksum": "crc32c:%s" % objects[0]["crc32c"] if objects[0]["crc32c"] else None,
            "size": objects[0]["size"],
        }
    return _listing_facts(objects, ("name", "generation", "crc32c"))


def local_facts(path: str, budget: Budget) -> Facts:
    """Describe a local file or folder by size and checksum; Unread where the budget does not allow it."""
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
    with open(path, "rb") as file:
        digest = file_sha256(file, budget.end)
    if digest is None:
        raise Unread(TOO_LONG)
    return digest


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
    """Describe a folder; its checksum covers one line of JSON for each file, sorted by name."""
    digest = hashlib.sha256()
    for item in sorted(items, key=lambda item: str(item["name"])):
        digest.update(json.dumps([item[key] for key in keys]).encode("ascii") + b"\n")
    return {
        "checksum": "sha256:" + digest.hexdigest(),
        "size": sum(item["size"] for item in items),
        "objects": len(items),
    }
