"""Code by its content: the digest that git gives a file or folder, also where there is no git."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import time
from typing import Any, Dict, Iterable, Iterator, Tuple

from envbuild.capture.checkout import ELSEWHERE, Checkout
from envbuild.capture.reading import NO_PROGRAM, TIMEOUT, Facts
from envbuild.capture.redact import scrub_line

LONGEST_HASHING = 5.0
"""Seconds for one path: code is small, and who names a folder of data by mistake shall not wait."""
FILE, EXECUTABLE, LINK, SUBMODULE, TREE = "100644", "100755", "120000", "160000", "40000"
Entries = Dict[bytes, Tuple[str, str]]
"""Mode and digest of each file by its path."""


class TooMuch(Exception):  # noqa: N818 - it is a result as much as a fault
    """A path holds more than there is time for."""


def tree_facts(path: str, seconds: float = LONGEST_HASHING) -> Facts:
    """Describe a file or folder by git's digest, that of `git rev-parse HEAD:PATH` in a clean checkout.

    Ignored files do not count. `unread` says why there is no digest; ValueError if there is nothing at the path.
    """
    named, real = scrub_line(path), os.path.realpath(path)
    if not path or not (os.path.isdir(real) or os.path.isfile(real)):
        raise ValueError("preprocessing: there is no file or folder %s" % named)
    try:
        entries = _entries(real, time.monotonic() + seconds)
        digest = _digest(entries, real)
    except TooMuch:
        return {"path": named, "unread": "it takes too long to read; name code only"}
    except (OSError, KeyError, RecursionError) as error:
        return {"path": named, "unread": "it cannot be read: %s" % (getattr(error, "strerror", None) or error)}
    return {"path": named, "git_tree": digest, "files": len(entries)}


def _digest(entries: Entries, real: str) -> str:
    if os.path.isdir(real):
        return _tree_digest(_nested(entries))
    return entries[os.fsencode(os.path.basename(real))][1]


def _entries(real: str, end: float) -> Entries:
    folder, name = (real, os.curdir) if os.path.isdir(real) else os.path.split(real)
    entries = _git_entries(folder, name, end)
    if entries:
        return entries
    # Outside of a checkout, or all of it is ignored: then the code is what lies there.
    return _hashed(folder, _files_below(folder) if name == os.curdir else [os.fsencode(name)], end)


def _git_entries(folder: str, name: str, end: float) -> Entries:
    """Take git's digests of unchanged files, as only it knows of filters and line ends, and hash what else is there."""
    changed = _git_files(folder, name, "-m")
    to_hash = _git_files(folder, name, "-o", "--exclude-standard")
    entries: Entries = {}
    for line in _git_files(folder, name, "-s"):
        head, _, path = line.partition(b"\t")
        mode, digest, _ = head.decode("ascii").split(" ")
        # A checkout with SHA-256 has other digests than the manifest.
        if path in changed or len(digest) != 40:
            to_hash.add(path)
        else:
            entries[path] = mode, digest
    entries.update(_hashed(folder, to_hash, end))
    return entries


def _git_files(folder: str, name: str, *options: str) -> set[bytes]:
    """List files by git; none if there is no git or no checkout."""
    checkout = _checkout(folder)
    command = checkout.command("ls-files", "-z", *options, "--", name)
    null = subprocess.DEVNULL
    try:
        # Names are bytes.
        done = subprocess.check_output(command, stdin=null, stderr=null, timeout=TIMEOUT, env=checkout.environment)
    except NO_PROGRAM:
        return set()
    return set(done.split(b"\0")) - {b""}


def _checkout(folder: str) -> Checkout:
    environment = {name: value for name, value in os.environ.items() if not ELSEWHERE.fullmatch(name)}
    environment.update(GIT_OPTIONAL_LOCKS="0", GIT_LITERAL_PATHSPECS="1")
    return Checkout(folder, environment)


def _files_below(folder: str) -> Iterator[bytes]:
    """List files without git: all but git's own and what Python makes by itself."""
    top = os.fsencode(folder)
    for parent, folders, files in os.walk(top):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        folders[:] = [name for name in folders if name not in (b".git", b"__pycache__", *links)]
        for name in files + links:
            if name != b".git" and not name.endswith(b".pyc"):
                yield os.path.relpath(os.path.join(parent, name), top)


def _hashed(folder: str, paths: Iterable[bytes], end: float) -> Entries:
    entries = {}
    # git ends the name of a checkout within the checkout with a slash.
    for path in (path.rstrip(b"/") for path in paths):
        entry = _entry(os.path.join(os.fsencode(folder), path), end)
        if entry:
            entries[path] = entry
    return entries


def _entry(path: bytes, end: float) -> tuple[str, str] | None:
    """Describe a file as git does; None for what it does not track, such as pipes and what was deleted."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return LINK, _object_digest("blob", os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        commit = _checkout(os.fsdecode(path)).answer("rev-parse", "--verify", "HEAD")
        return (SUBMODULE, commit) if commit else None
    if not stat.S_ISREG(status.st_mode):
        return None
    return EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE, _blob_digest(path, status.st_size, end)


def _blob_digest(path: bytes, size: int, end: float) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size)  # noqa: S324 - git's
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            if time.monotonic() > end:
                raise TooMuch
    return digest.hexdigest()


def _object_digest(kind: str, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode("ascii"), len(data)) + data).hexdigest()  # noqa: S324 - git's


def _nested(entries: Entries) -> Dict[bytes, Any]:
    """Turn paths into folders within folders."""
    top: Dict[bytes, Any] = {}
    for path, entry in entries.items():
        *parents, name = path.split(b"/")
        folder = top
        for parent in parents:
            folder = folder.setdefault(parent, {})
        folder[name] = entry
    return top


def _tree_digest(folder: Dict[bytes, Any]) -> str:
    """Digest a folder as git does, which sorts folders as if their names ended with a slash."""
    lines = []
    for name, item in folder.items():
        is_tree = isinstance(item, dict)
        mode, digest = (TREE, _tree_digest(item)) if is_tree else item
        lines.append((name + b"/" * is_tree, b"%s %s\0" % (mode.encode("ascii"), name) + bytes.fromhex(digest)))
    return _object_digest("tree", b"".join(line for _, line in sorted(lines)))
