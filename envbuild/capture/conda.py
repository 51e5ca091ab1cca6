"""What conda installed, as conda-meta says."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Iterator

from envbuild.capture.reading import Facts, decoded, read_bytes, read_text
from envbuild.capture.redact import scrub_line

LONG_LISTS = re.compile(rb'"(files|paths)": *\[[^\]]*\]')
SITE_ENTRY = re.compile(rb'"(lib/python[^/"]*/site-packages/[^/"]+)')
PATH_ENTRY = re.compile(rb"\{[^{}]*\}")
DIGEST = re.compile("[0-9a-f]{64}")


def conda_prefix() -> str | None:
    """Return the conda environment that the interpreter runs in, or that its virtual environment was made from."""
    prefixes = (prefix for prefix in (sys.prefix, sys.base_prefix) if os.path.isdir(os.path.join(prefix, "conda-meta")))
    return next(prefixes, None)


def conda_facts() -> Facts | None:
    """Describe the conda environment; None where there is none."""
    prefix = conda_prefix()
    if prefix is None:
        return None
    return {
        "packages": [item["facts"] for item in conda_packages()],
        "name": _environment_name(prefix),
        "channels": _asked_channels(prefix),
    }


def conda_packages() -> list[Facts]:
    """List the packages of the conda environment, sorted by name.

    Of each the `facts`, the `record` that says so, and its `entries` in the site folder, both as absolute paths.
    """
    prefix = conda_prefix()
    folder = os.path.join(prefix or "", "conda-meta")
    # What was installed since the last capture of this process changes the folder.
    return _conda_packages(folder, os.stat(folder).st_mtime_ns) if prefix is not None else []


@lru_cache(maxsize=1)
def _conda_packages(folder: str, _changed: int) -> list[Facts]:
    found = [_conda_package(str(record)) for record in Path(folder).glob("*.json")]
    return sorted((item for item in found if item), key=lambda item: str(item["facts"]["name"]))


def _conda_package(record: str) -> Facts | None:
    data = read_bytes(record) or b""
    package = _without_lists(data)
    if not all(isinstance(package.get(key), str) for key in ("name", "version")):
        return None
    texts = {key: scrub_line(value) for key, value in package.items() if isinstance(value, str) and value}
    facts = {key: texts.get(key) for key in ("name", "version", "build", "subdir")}
    digest = texts.get("sha256", "")
    facts["channel"] = _channel(_without_token(str(package.get("channel") or "")), texts.get("subdir", ""))
    facts["url"] = _without_token(str(package.get("url") or "")) or None
    facts["sha256"] = digest if DIGEST.fullmatch(digest) else None
    names = sorted(set(SITE_ENTRY.findall(data)))
    entries = [os.path.join(os.path.dirname(os.path.dirname(record)), decoded(name)) for name in names]
    return {"facts": facts, "record": record, "entries": entries}


def _without_lists(data: bytes) -> Facts:
    """Parse a file of conda-meta without its lists of files, which are most of it."""
    for text in (LONG_LISTS.sub(rb'"\1": []', data), data):
        try:
            package = json.loads(decoded(text))
            return package if isinstance(package, dict) else {}
        except (ValueError, RecursionError):
            continue
    return {}


def _without_token(url: str) -> str:
    """Cut the token of a private channel: https://host/t/TOKEN/channel, or without the host, t/TOKEN/channel."""
    return re.sub(r"(?<=[^/])/t/[^/]+(?=/)|^/?t/[^/]+(?:/|$)", "", scrub_line(url))


def _channel(url: str, subdir: str) -> str | None:
    """Name a channel as people do: without host and platform; conda writes either form."""
    path = url.partition("://")[2].partition("/")[2] if "://" in url else url
    parts = path.strip("/").split("/")
    return "/".join(parts[:-1] if parts[-1] == subdir and parts[1:] else parts) or None


def _environment_name(prefix: str) -> str | None:
    """Name an environment as conda does: by its folder in `envs`, the installation itself `base`."""
    if os.path.basename(os.path.dirname(prefix)) == "envs":
        return scrub_line(os.path.basename(prefix))
    return "base" if os.path.isdir(os.path.join(prefix, "condabin")) else None


def _asked_channels(prefix: str) -> list[str]:
    """List the channels that commands named, as far as conda's history tells."""
    history = read_text(os.path.join(prefix, "conda-meta", "history")) or ""
    commands = re.findall("^# cmd: (.*)$", history, re.MULTILINE)
    words = (re.findall(r"(?<=\s)(?:-c|--channel)[ =](\S+)", command) for command in commands)
    return list(dict.fromkeys(filter(None, (_without_token(word) for channels in words for word in channels))))


def conda_owners() -> dict[str, Facts]:
    """Map each metadata folder that conda brought to its package; of one without metadata, its first entry."""
    owners: dict[str, Facts] = {}
    for item in conda_packages():
        folders = [path for path in item["entries"] if path.endswith((".dist-info", ".egg-info"))]
        owners.update((os.path.realpath(path), item) for path in folders or item["entries"][:1])
    return owners


def conda_files(record: str) -> Iterator[Facts]:
    """Yield the files of a package: `path` from its environment on, `sha256` and `size` as installed, where it says.

    Scripts and bytecode that conda makes itself have no digest.
    """
    for match in PATH_ENTRY.finditer(read_bytes(record) or b""):
        try:
            entry = json.loads(decoded(match.group()))
        except ValueError:
            continue
        if entry.get("path_type", "hardlink") == "hardlink" and isinstance(entry.get("_path"), str):
            # The prefix takes the place of a placeholder.
            moved = bool(entry.get("prefix_placeholder"))
            yield {
                "path": entry["_path"],
                "sha256": entry.get("sha256_in_prefix") or (None if moved else entry.get("sha256")),
                "size": None if moved else entry.get("size_in_bytes"),
            }
