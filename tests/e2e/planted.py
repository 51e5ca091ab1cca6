"""Mismatches that are planted in real environments, and docs/mismatches.md, which has the commands that find them."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.base.resolve import resolve_base
from envbuild.report import SILENT
from tests.e2e.services import report_of
from tests.environ import cleaned

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/mismatches.md"
REGISTRY = "registry.example.com"
"""What stands for the tests' own registry in the documentation."""

Done = subprocess.CompletedProcess[str]


def documented(title: str) -> tuple[list[str], list[str]]:
    """The words of the command under a title, and the lines that it prints; `...` stands for others."""
    part = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    command, *lines = part.split("```console\n$ ")[1].split("```")[0].splitlines()
    return shlex.split(command), lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A folder in which the documented commands are run."""

    folder: Path
    cache: Path
    registry: str = ""
    """The real one: `127.0.0.1:PORT`."""
    under: tuple[str, ...] = field(default=())
    """A command that the command line is run by."""

    def capture(self, name: str, python: str | Path, *options: str | Path, **variables: str) -> Path:
        """Capture an environment; return the manifest."""
        self.run("capture", "--python", python, "--out", self.folder / name, *options, variables=variables)
        return self.folder / name

    def run(self, *arguments: str | Path, status: int = 0, variables: Mapping[str, str] | None = None) -> Done:
        """Run the command line, which ends with this status."""
        done = subprocess.run(
            [*self.under, sys.executable, "-m", "envbuild", *map(str, arguments)],
            env=self._environment(variables or {}), cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, report_of(done)
        return done

    def passes(self, *targets: str | Path, **variables: str) -> None:
        """What was not planted is not found: no error, and no warning."""
        lines = self.run("verify", *targets, variables=variables).stdout.splitlines()
        assert [line for line in lines if line.startswith(("error", "warning"))] == []

    def fails_as_documented(self, title: str) -> None:
        """Run the command under a title: it ends with 16, and prints what is there, in that order."""
        (_, *words), lines = documented(title)
        done = self.run(*(it.replace(REGISTRY, self.registry) for it in words), status=16)
        printed = done.stdout.replace(self.registry, REGISTRY) if self.registry else done.stdout
        assert _has(printed, lines), f"{title}: documented is\n{lines}\nand printed was\n{printed}"

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        ours = {"ENVBUILD_CACHE": str(self.cache / "envbuild"), "NO_COLOR": "1"}
        return cleaned(os.environ) | ours | dict(variables)


def _has(printed: str, lines: list[str]) -> bool:
    """Whether this was printed; a line of `...` stands for any number of lines, and within one for any text."""
    assert lines.count("...") < len(lines)
    patterns = (r"(?:.*\n)*" if line == "..." else re.escape(f"{line}\n").replace(r"\.\.\.", ".*") for line in lines)
    return re.fullmatch("".join(patterns), printed) is not None


def git(folder: Path, *arguments: str) -> None:
    """Git without the developer's settings."""
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments]
    subprocess.run(command, cwd=folder, env=os.environ | alone, check=True, capture_output=True)


def base_layout(cache: Path, suite: str) -> Path:
    """A Debian with its own Python, as an OCI layout."""

    def no_registry(*_):
        raise AssertionError("a bootstrapped base needs no registry")

    resolve_base(f"debian:{suite}", machine="x86_64", cache=cache / "envbuild", pull=no_registry, report=SILENT)
    return max((cache / "envbuild/bases").glob(f"debian-{suite}-x86_64-*/index.json")).parent
