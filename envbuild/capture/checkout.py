"""Git: the checkout of the run and of editable installs, and the digests that git gives code.

Git runs so that nothing in a checkout can start a program.
"""

from __future__ import annotations

import hashlib
import os
import re
import selectors
import stat
import subprocess
import tempfile
import time
from typing import Dict, Iterable, Iterator, NamedTuple, Tuple

from envbuild.capture.files import NO_PROGRAM, TIMEOUT, Facts, decoded, output_of
from envbuild.capture.redact import scrub_line, scrub_patch

LARGEST_PATCH = 1 << 20
"""Bytes."""
HARMLESS_SETTINGS = (
    "core.fsmonitor=",
    "core.hooksPath=/dev/null",
    "diff.autoRefreshIndex=false",
    "diff.relative=false",
)
STATUS = ("status", "--porcelain")
UNTRACKED_SECONDS = 1.0
"""Data beside the code can be millions of files."""
DIFF = (
    *("diff", "HEAD", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/"),
    *("--dst-prefix=b/", "--unified=3", "--inter-hunk-context=0", "--diff-algorithm=myers", "--indent-heuristic"),
    *("--find-renames", "-O/dev/null"),
)
"""`git diff HEAD --binary --full-index` as it is without any configuration: equal changes have equal digests."""
OTHER_CHECKOUT = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|NAMESPACE|PREFIX"
    r"|DIFF_OPTS|(NOGLOB|GLOB|ICASE|LITERAL)_PATHSPECS)"
)
"""Variables that make git look at another checkout than that of its folder, as in a hook, or differ otherwise."""
LONGEST_HASHING = 5.0
"""Seconds for one path: code is small, and a folder of data that is named by mistake must not delay the run."""
FILE, EXECUTABLE, LINK, SUBMODULE, TREE = "100644", "100755", "120000", "160000", "40000"
Entries = Dict[bytes, Tuple[str, str]]
"""Mode and digest of each file by its path."""


class Checkout(NamedTuple):
    """A folder of a checkout, and the environment, settings and limits of git's commands in it."""

    folder: str
    environment: dict[str, str]
    settings: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        settings = [word for setting in HARMLESS_SETTINGS + self.settings for word in ("-c", setting)]
        return ["git", "-C", self.folder, "--no-pager", *settings, *arguments]

    def answer(self, *arguments: str, seconds: float = TIMEOUT) -> str | None:
        return output_of(*self.command(*arguments), environment=self.environment, seconds=seconds)


def _checkout(folder: str, **variables: str) -> Checkout:
    environment = {name: value for name, value in os.environ.items() if not OTHER_CHECKOUT.fullmatch(name)}
    return Checkout(folder, dict(environment, **variables))


def code_facts(patch: bool) -> Facts | None:
    """Describe the checkout of the working directory; where git does not tell its changes, it counts as changed."""
    facts = checkout_facts(os.curdir, patch, whole=True)
    return dict(facts, dirty=facts.get("dirty") is not False) if facts else None


def checkout_facts(folder: str, patch: bool, whole: bool) -> Facts | None:
    """Describe the checkout that a folder lies in and its changes, if git tells them, in `whole` or in the folder."""
    # Without git, as most runs have no checkout.
    if not _lies_in_checkout(folder):
        return None
    # git would fetch what a partial clone lacks.
    checkout = _checkout(folder, GIT_ALLOW_PROTOCOL="none")
    facts = _commit_facts(checkout)
    if facts is not None:
        return dict(facts, **_change_facts(checkout, patch, whole))
    try:
        with tempfile.TemporaryDirectory() as home:
            return _foreign_facts(checkout, home, patch, whole)
    except OSError:
        return None


def _lies_in_checkout(folder: str) -> bool:
    try:
        folder = os.path.abspath(folder)
    except OSError:
        return False
    while not os.path.exists(os.path.join(folder, ".git")):
        if folder == os.path.dirname(folder):
            return False
        folder = os.path.dirname(folder)
    return True


def _commit_facts(checkout: Checkout) -> Facts | None:
    lines = (checkout.answer("rev-parse", "--is-inside-work-tree", "--show-prefix", "HEAD^{commit}") or "").split("\n")
    if lines[0] != "true" or len(lines) < 3:
        return None
    urls = (checkout.answer("config", "--get-regexp", r"^remote\..*\.url$") or "").split("\n")
    remotes = [url.partition(" ")[2] for url in sorted(urls, key=lambda line: "remote.origin.url " not in line)]
    prefix = scrub_line("\n".join(lines[1:-1]).rstrip("/"))
    return {"commit": lines[-1], "remote": scrub_line(remotes[0]) or None, "subdirectory": prefix or None}


def _foreign_facts(checkout: Checkout, home: str, patch: bool, whole: bool) -> Facts | None:
    """Describe another user's checkout, which git refuses (safe.directory), without running that user's filters."""
    configuration = os.path.join(home, ".gitconfig")
    with open(configuration, "w", encoding="ascii") as file:
        file.write("[safe]\n\tdirectory = *\n")
    environment = dict(checkout.environment, HOME=home, XDG_CONFIG_HOME=home, GIT_CONFIG_GLOBAL=configuration)
    checkout = checkout._replace(environment=environment)
    facts = _commit_facts(checkout)
    names = (checkout.answer("config", "--name-only", "--get-regexp", r"^filter\.") or "").split("\n")
    filters = sorted({name.rpartition(".")[0] for name in names if name})
    if facts is None or any("=" in name for name in filters):
        return facts
    off = tuple("%s.%s" % (name, value) for name in filters for value in ("clean=", "process=", "required=false"))
    checkout = checkout._replace(settings=off, limits=("--ignore-submodules=dirty",))
    return dict(facts, **_change_facts(checkout, patch, whole))


def _change_facts(checkout: Checkout, patch: bool, whole: bool) -> Facts:
    where = () if whole else ("--", ".")
    status = (*STATUS, *checkout.limits)
    tracked = checkout.answer(*status, "--untracked-files=no", *where)
    both = checkout.answer(*status, "--untracked-files=normal", *where, seconds=UNTRACKED_SECONDS)
    facts: Facts = {"dirty": None if tracked is None else bool(tracked)}
    facts["untracked"] = None if both is None else sum(line.startswith("??") for line in both.split("\n"))
    if not tracked:
        return facts
    digest, size, head = hashlib.sha256(), 0, b""
    try:
        for data in _output(checkout.command(*DIFF, *checkout.limits, *where), checkout.environment):
            digest.update(data)
            size += len(data)
            head = head + data if patch and size <= LARGEST_PATCH else b""
    except NO_PROGRAM:
        return facts
    facts["diff_sha256"] = digest.hexdigest() if size else None
    return dict(facts, patch=scrub_patch(decoded(head)) or None) if patch else facts


def _output(command: list[str], environment: dict[str, str]) -> Iterator[bytes]:
    """Yield a program's output as it comes; SubprocessError if it fails or takes longer than TIMEOUT."""
    null, deadline = subprocess.DEVNULL, time.monotonic() + TIMEOUT
    variables = dict(environment, LC_ALL="C", GIT_OPTIONAL_LOCKS="0")
    with subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null, env=variables) as process:
        try:
            with selectors.DefaultSelector() as selector:
                pipe = selector.register(process.stdout or -1, selectors.EVENT_READ).fd
                data = b"\0"
                while data:
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        raise subprocess.TimeoutExpired(command, TIMEOUT)
                    data = os.read(pipe, 1 << 16)
                    yield data
            if process.wait(max(0.1, deadline - time.monotonic())):
                raise subprocess.CalledProcessError(process.returncode, command)
        finally:
            process.kill()


def tree_facts(path: str, seconds: float = LONGEST_HASHING) -> Facts:
    """Describe code by the digest that git gives it in a clean checkout, or `unread`; ValueError if there is none."""
    named, real = scrub_line(path), os.path.realpath(path)
    if not path or not (os.path.isdir(real) or os.path.isfile(real)):
        raise ValueError("preprocessing: there is no file or folder %s" % named)
    folder, name = (real, os.curdir) if os.path.isdir(real) else os.path.split(real)
    end = time.monotonic() + seconds
    try:
        entries = _git_entries(folder, name, end)
        if not entries:
            # Outside of a checkout, or all of it is ignored: then every file counts as code.
            entries = _hashed(folder, _files_below(folder) if name == os.curdir else [os.fsencode(name)], end)
        digest = _tree_digest(entries) if name == os.curdir else entries[os.fsencode(name)][1]
    except TimeoutError:
        return {"path": named, "unread": "it takes too long to read; name code only"}
    except (OSError, KeyError, RecursionError) as error:
        return {"path": named, "unread": "it cannot be read: %s" % (getattr(error, "strerror", None) or error)}
    return {"path": named, "git_tree": digest, "files": len(entries)}


def _git_entries(folder: str, name: str, end: float) -> Entries:
    """Take git's digests of unchanged files, as only it knows of filters and line ends, and hash the others."""
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
    checkout = _checkout(folder, GIT_OPTIONAL_LOCKS="0", GIT_LITERAL_PATHSPECS="1")
    command, null = checkout.command("ls-files", "-z", *options, "--", name), subprocess.DEVNULL
    try:
        # Names are bytes.
        output = subprocess.check_output(command, stdin=null, stderr=null, timeout=TIMEOUT, env=checkout.environment)
    except NO_PROGRAM:
        return set()
    return set(output.split(b"\0")) - {b""}


def _files_below(folder: str) -> Iterator[bytes]:
    """List files without git: all but git's own and bytecode."""
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
    """Describe a file as git does; None for what it does not track, such as pipes and deleted files."""
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
    digest = hashlib.sha1(b"blob %d\0" % status.st_size)  # noqa: S324 - git's
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            if time.monotonic() > end:
                raise TimeoutError
    return EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE, digest.hexdigest()


def _object_digest(kind: str, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode("ascii"), len(data)) + data).hexdigest()  # noqa: S324 - git's


def _tree_digest(entries: Entries) -> str:
    """Digest a folder as git does, which sorts folders as if their names ended with a slash."""
    items: Entries = {}
    folders: Dict[bytes, Entries] = {}
    for path, entry in entries.items():
        name, slash, below = path.partition(b"/")
        if slash:
            folders.setdefault(name + slash, {})[below] = entry
        else:
            items[name] = entry
    items.update((name, (TREE, _tree_digest(folder))) for name, folder in folders.items())
    lines = (
        b"%s %s\0" % (mode.encode("ascii"), name.rstrip(b"/")) + bytes.fromhex(digest)
        for name, (mode, digest) in sorted(items.items())
    )
    return _object_digest("tree", b"".join(lines))
