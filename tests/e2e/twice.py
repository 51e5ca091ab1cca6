"""One environment installed twice by different installers, and what a verification says of the two."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.lock.settings import read_settings, uv_environment
from tests.e2e import parts
from tests.e2e.services import command_output

UV = str(Path(sys.executable).parent / "uv")
INSTALLERS = (("uv", "uv-bytecode"), ("uv", "pip"), ("uv-bytecode", "pip"))
"""Each environment is installed by one of these pairs; pip compiles, too."""


def interpreter(version: str) -> str:
    """A Python of that version: what is found here; else uv downloads it."""
    try:
        return str(parts.find_python(version))
    except AssertionError:
        return version


@dataclass(frozen=True, slots=True, kw_only=True)
class Twice:
    """A folder with what was installed twice."""

    folder: Path
    cache: Path
    pip: Path
    """A python that has pip."""

    def install(self, python: str, requirements: Sequence[str], installers: tuple[str, str]) -> None:
        """Install what is asked for by the first installer, and exactly the same by the second."""
        first, second = self.folder / "a", self.folder / "b"
        install(first, python, requirements, installers[0], self.pip)
        frozen = command_output(UV, "pip", "freeze", "-q", "--python", str(first), env=_environment()).split()
        install(second, python, ["--no-deps", *frozen], installers[1], self.pip)

    def capture(self) -> None:
        """Write a manifest of each, and a lock of the first one if it has the framework without which there is none."""
        for name in ("a", "b"):
            self.envbuild("capture", "--python", self.python(name), "--out", self.folder / f"{name}.json")
        if json.loads((self.folder / "a.json").read_bytes()).get("framework"):
            self.envbuild("lock", self.folder / "a.json", "--out", self.folder / "lock")

    def python(self, name: str) -> Path:
        """The interpreter of one of the two."""
        return self.folder / name / "bin" / "python"

    def disagreements(self) -> list[str]:
        """Errors and warnings that come of holding all that is one environment against one another."""
        lock = ("lock/pylock.toml",) if (self.folder / "lock/pylock.toml").exists() else ()
        return [
            *self.verify("a.json", "b.json", *lock, "host", environment="a"),
            *self.verify("b.json", "a.json", *lock, "host", environment="a"),
            *(self.verify(*lock, "b.json", "host", environment="b") if lock else ()),
        ]

    def verify(self, *targets: str, environment: str) -> list[str]:
        """Errors and warnings among these targets, of which host is one of the two environments."""
        host = ("--python", self.python(environment)) if "host" in targets else ()
        done = self.envbuild("verify", *targets, *host, "--json", check=False)
        assert done.returncode in (0, 16), done.stderr
        findings = json.loads(done.stdout)["findings"]
        same = {tuple(it["between"]) for it in findings if it["agrees"] and it["rule"] in ("package", "framework")}
        assert same >= {(targets[0], other) for other in targets[1:]}
        return [_line(it) for it in findings if it["severity"] in ("error", "warning")]

    def envbuild(self, *arguments: str | Path, check: bool = True) -> Any:
        """Run the command line where manifests and lock lie."""
        return parts.envbuild(self.cache, *arguments, cwd=self.folder, check=check)

    def remove(self) -> None:
        """Pytest would keep it for three sessions."""
        shutil.rmtree(self.folder)


def install(
    folder: Path, python: str, requirements: Sequence[str], installer: str = "uv", pip: Path | None = None
) -> None:
    """Make a virtual environment and install wheels into it; `pip` is a python that has it."""
    command_output(UV, "venv", "-q", "--python", python, str(folder), env=_environment())
    wheels = ("--only-binary", ":all:", *requirements)
    if installer == "pip":
        options = ("--isolated", "--disable-pip-version-check", "--root-user-action", "ignore", "--quiet")
        command = (str(pip), "-m", "pip", "--python", str(folder / "bin/python"), "install", *options)
        command_output(*command, "--index-url", read_settings().default or "", *wheels)
    else:
        compiled = ("--compile-bytecode",) if installer == "uv-bytecode" else ()
        command = (UV, "pip", "install", "-q", *compiled, "--python", str(folder))
        command_output(*command, *wheels, env=_environment())


def _environment() -> dict[str, str]:
    """What the index needs; a Python that is nowhere here may be downloaded."""
    return uv_environment(read_settings()) | {"UV_PYTHON_DOWNLOADS": "automatic"}


def _line(finding: dict[str, Any]) -> str:
    """One finding as a failure shows it."""
    held = " <- ".join(finding["between"] or ())
    return f"{finding['severity']} {finding['rule']} {finding['about']}: {finding['says']} ({held})"
