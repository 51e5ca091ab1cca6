"""A git checkout, asked so that nothing in it can run a program."""

from __future__ import annotations

import hashlib
import os
import re
import selectors
import subprocess
import tempfile
import time
from typing import Iterator, NamedTuple

from envbuild.capture.reading import NO_PROGRAM, TIMEOUT, Facts, decoded, output_of
from envbuild.capture.redact import scrub_line
from envbuild.capture.redact_code import scrub_patch

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
ELSEWHERE = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|NAMESPACE|PREFIX"
    r"|DIFF_OPTS|(NOGLOB|GLOB|ICASE|LITERAL)_PATHSPECS)"
)
"""What makes git look at another checkout than that of its folder, as it does in a hook, or differ otherwise."""


class Checkout(NamedTuple):
    """A folder of a checkout, and how git is to be asked about it."""

    folder: str
    environment: dict[str, str]
    settings: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        settings = [word for setting in HARMLESS_SETTINGS + self.settings for word in ("-c", setting)]
        return ["git", "-C", self.folder, "--no-pager", *settings, *arguments]

    def answer(self, *arguments: str, seconds: float = TIMEOUT) -> str | None:
        return output_of(*self.command(*arguments), environment=self.environment, seconds=seconds)


def checkout_facts(folder: str, patch: bool, whole: bool) -> Facts | None:
    """Describe the checkout that a folder lies in, its changes in all of it or in the folder alone; None without one.

    `dirty`, `untracked` and `diff_sha256` are absent where git gives no answer.
    """
    if not _lies_in_checkout(folder):
        return None
    # git would fetch what a partial clone lacks.
    environment = {name: value for name, value in os.environ.items() if not ELSEWHERE.fullmatch(name)}
    environment["GIT_ALLOW_PROTOCOL"] = "none"
    checkout = Checkout(folder, environment)
    facts = _commit_facts(checkout)
    if facts is not None:
        return dict(facts, **_change_facts(checkout, patch, whole))
    try:
        with tempfile.TemporaryDirectory() as home:
            return _foreign_facts(_trusting(checkout, home), patch, whole)
    except OSError:
        return None


def _lies_in_checkout(folder: str) -> bool:
    """Tell without starting a program, as most runs have no checkout."""
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


def _trusting(checkout: Checkout, home: str) -> Checkout:
    """Ask although the checkout is another user's (safe.directory), which git refuses in many containers.

    All versions believe a user's own configuration; the command line only those since 2.38.
    """
    configuration = os.path.join(home, ".gitconfig")
    with open(configuration, "w", encoding="ascii") as file:
        file.write("[safe]\n\tdirectory = *\n")
    environment = dict(checkout.environment, HOME=home, XDG_CONFIG_HOME=home, GIT_CONFIG_GLOBAL=configuration)
    return checkout._replace(environment=environment)


def _foreign_facts(checkout: Checkout, patch: bool, whole: bool) -> Facts | None:
    """Describe another user's checkout, whose filters and submodules could run that user's programs."""
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
    return dict(facts, **_diff_facts(checkout, patch, where)) if tracked else facts


def _diff_facts(checkout: Checkout, patch: bool, where: tuple[str, ...]) -> Facts:
    digest, size, head = hashlib.sha256(), 0, b""
    try:
        for data in _output(checkout.command(*DIFF, *checkout.limits, *where), checkout.environment):
            digest.update(data)
            size += len(data)
            head = head + data if patch and size <= LARGEST_PATCH else b""
    except NO_PROGRAM:
        return {}
    facts: Facts = {"diff_sha256": digest.hexdigest() if size else None}
    return dict(facts, patch=scrub_patch(decoded(head)) or None) if patch else facts


def _output(command: list[str], environment: dict[str, str]) -> Iterator[bytes]:
    """Yield what a program prints as it comes; SubprocessError if it fails or takes longer than TIMEOUT."""
    null, deadline = subprocess.DEVNULL, time.monotonic() + TIMEOUT
    variables = dict(environment, LC_ALL="C", GIT_OPTIONAL_LOCKS="0")
    with subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null, env=variables) as process:
        try:
            yield from _chunks(process, deadline)
            if process.wait(max(0.1, deadline - time.monotonic())):
                raise subprocess.CalledProcessError(process.returncode, command)
        finally:
            process.kill()


def _chunks(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    with selectors.DefaultSelector() as selector:
        pipe = selector.register(process.stdout or -1, selectors.EVENT_READ).fd
        while selector.select(max(0.0, deadline - time.monotonic())):
            data = os.read(pipe, 1 << 16)
            if not data:
                return
            yield data
    raise subprocess.TimeoutExpired(process.args, TIMEOUT)
