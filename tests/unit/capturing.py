"""What the tests of capture share: the standalone file, and environments made for it."""

import json
import os
import py_compile
import shutil
import subprocess
import tempfile
import venv
from functools import cache
from pathlib import Path

from envbuild.capture import script
from envbuild.manifest.reader import read_manifest

_FOLDER = tempfile.TemporaryDirectory(prefix="capture-")  # removed when the interpreter ends


@cache
def script_path() -> Path:
    """The standalone file, written where it shadows nothing."""
    path = Path(_FOLDER.name) / "capture.py"
    path.write_text(script())
    return path


@cache
def compiled_path() -> Path:
    """The same, compiled by the interpreter that runs the tests, which is that of each `Environment`."""
    path = script_path().with_suffix(".pyc")
    py_compile.compile(str(script_path()), str(path), doraise=True)
    return path


class Environment:
    """A virtual environment without pip, and everything around it that capture asks."""

    def __init__(self, root: Path) -> None:
        self.prefix, self.bin, self.folder = root / "venv", root / "bin", root / "work"
        venv.create(self.prefix, with_pip=False, symlinks=True)
        self.site = next(self.prefix.glob("lib/python*/site-packages"))
        self.bin.mkdir()
        self.folder.mkdir()
        (self.bin / "git").symlink_to(shutil.which("git") or "git")
        self.variables = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(root),
        }

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(self.prefix / "bin" / "python"), "-W", "error", str(compiled_path()), *arguments]
        environment = {"PATH": str(self.bin), **self.variables}
        return subprocess.run(
            command, cwd=self.folder, env=environment, check=check, capture_output=True, text=True, timeout=60
        )

    def capture(self, *arguments: str) -> dict:
        text = self.run(*arguments).stdout
        read_manifest(text.encode(), "captured")
        manifest: dict = json.loads(text)
        return manifest

    def origins(self) -> dict:
        return {item["name"]: item["origin"] for item in self.capture()["distributions"]}

    def install(self, name: str, version: str = "1.0", **files: str) -> Path:
        """Lay down a dist-info; `files` are its files by name, `direct_url` for direct_url.json."""
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: 9\n")
        for key, text in {"INSTALLER": "pip\n", **files}.items():
            (folder / ("direct_url.json" if key == "direct_url" else key)).write_text(text)
        return folder

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *arguments]
        environment = {"PATH": os.environ["PATH"], **self.variables}
        return subprocess.run(
            command, cwd=self.folder, env=environment, check=True, capture_output=True, text=True
        ).stdout
