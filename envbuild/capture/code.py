"""The git checkout that the run was started in."""

from __future__ import annotations

from envbuild.capture.reading import Facts, output_of
from envbuild.capture.redact import scrub


def code_facts(patch: bool) -> Facts | None:
    """Describe the git checkout of the working directory; without an answer about changes it counts as changed."""
    commit = git("rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    lines = (git("config", "--get-regexp", r"^remote\..*\.url$") or "").split("\n")
    remotes = [line.partition(" ")[2] for line in sorted(lines, key=lambda line: "remote.origin.url " not in line)]
    dirty = git("status", "--porcelain", "--untracked-files=no") != ""
    return {"commit": commit, "remote": scrub(remotes[0]) or None, "dirty": dirty}


def git(*arguments: str) -> str | None:
    """Return what git prints, without the monitors that a configuration may start."""
    return output_of("git", "-c", "core.fsmonitor=false", *arguments)
