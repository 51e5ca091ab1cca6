"""What the tests of `--builder docker` have in common: a small run, its wheels, and what must not be left."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.services import Engine, engine_answers
from tests.environ import cleaned
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

WHEELS = (TENSORFLOW, TOOL)
LARGE = make_wheel("tool", "1.0", {"tool.py": "def main(): pass", "tool.bin": bytes(160 << 20)})
"""A wheel that is small as a file, and 160 MiB on a disk."""


def wheel_folder(folder: Path, *wheels: FakeWheel) -> Path:
    """The wheels as files, as --find-links takes them."""
    folder.mkdir()
    for wheel in wheels or WHEELS:
        (folder / wheel.filename).write_bytes(wheel.data)
    return folder


def extra_step(folder: Path, step: str) -> Path:
    """Templates that add a step to the image."""
    folder.mkdir()
    for name in ("Dockerfile.j2", "Dockerfile.classic.j2"):
        lines = f'{{% extends "envbuild/{name}" %}}\n{{% block extra %}}\n{step}\n{{% endblock %}}\n'
        (folder / name).write_text(lines)
    return folder


@dataclass(slots=True)
class Builds:
    """`envbuild from-manifest --builder docker` of a small run, in a folder of its own."""

    folder: Path
    engine: Engine
    cache: Path
    builder: str
    before: frozenset[str] = field(default=frozenset())

    def __post_init__(self) -> None:
        for name in ("tmp", "model"):
            (self.folder / name).mkdir()
        (self.folder / "model/saved_model.pb").write_bytes(b"graph")
        (self.folder / "manifest.json").write_text(json.dumps(manifest_of()))
        self.engine.client.api.prune_builds(all=True)  # of other tests, which build the same
        self.before = self.images()

    @property
    def environment(self) -> dict[str, str]:
        """With folders for what is temporary and for the cache that only these builds use; bases are the cache's."""
        (self.folder / "cache").mkdir(exist_ok=True)
        if not (self.folder / "cache/bases").exists():
            (self.folder / "cache/bases").symlink_to(self.cache / "envbuild/bases")
        ours = {"TMPDIR": str(self.folder / "tmp"), "ENVBUILD_CACHE": str(self.folder / "cache"), "NO_COLOR": "1"}
        return cleaned(os.environ) | ours | {"DOCKER_HOST": self.engine.url}

    def command(self, *arguments: str | Path) -> list[str]:
        options = ("--builder", "docker", "--base", "debian:bookworm", "--out", str(self.folder / "out"))
        return [sys.executable, "-m", "envbuild", "from-manifest", "manifest.json", *options, *map(str, arguments)]

    def run(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment | env,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip

    @contextmanager
    def started(self, marker: str, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """A build that has come to the line with the marker."""
        log = self.folder / "stderr"
        with log.open("wb") as said:
            process = subprocess.Popen(
                self.command(*arguments), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
            )  # fmt: skip
            try:
                self._await(process, log, marker)
                yield process
            finally:
                process.kill()
                process.wait()

    def _await(self, process: subprocess.Popen[bytes], log: Path, marker: str) -> None:
        end = time.monotonic() + 120
        while marker not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    def said(self) -> str:
        return (self.folder / "stderr").read_text()

    def images(self) -> frozenset[str]:
        """Ids and names of all images of the engine, those without a name too."""
        found = self.engine.client.api.images(all=True)
        return frozenset({it["Id"] for it in found} | {name for it in found for name in it["RepoTags"] or ()})

    def left(self) -> set[str]:
        """What a build left that it should have removed: in the engine, in temporary folders, and in the cache."""
        files = {str(it.relative_to(self.folder)) for it in (self.folder / "tmp").rglob("*")}
        files |= {it.name for it in (self.folder / "cache").glob(".new-*")}
        files |= {"out"} if (self.folder / "out").exists() else set()
        if not engine_answers(self.engine.socket):
            return files
        containers = {it.id for it in self.engine.client.containers.list(all=True)}
        return files | containers | (self.images() - self.before)

    def forget(self, *names: str) -> None:
        """Remove images by name, and the folder that was written."""
        for name in names:
            self.engine.client.images.remove(name, force=True)
        shutil.rmtree(self.folder / "out", ignore_errors=True)


def explained(done: subprocess.CompletedProcess[str], code: int, text: str) -> str:
    """The error of a run that ended as expected, without what went before."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(text, done.stderr), done.stderr
    return done.stderr


def gateway(engine: Engine) -> str:
    """The address of this machine on the engine's bridge, which steps of builds reach."""
    return str(engine.client.networks.get("bridge").attrs["IPAM"]["Config"][0]["Gateway"])


def variables(index: str, **more: str) -> Mapping[str, str]:
    """Settings of an index that uv and pip are given."""
    return {"UV_DEFAULT_INDEX": index, "PIP_FIND_LINKS": "", **more}
