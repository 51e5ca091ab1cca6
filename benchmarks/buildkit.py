"""The newest BuildKit, built from its Go module, which pushes what it built by its own exporter."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.build_inputs import say
from benchmarks.build_parts import Group, remove_mounted, run
from benchmarks.build_peers import WITH_UV, Job, Ready, written
from tests.e2e import services

MODULE = "github.com/moby/buildkit"
BUILT = Path("~/.cache/envbuild-benchmarks/buildkit").expanduser()
WITH_BYTECODE = WITH_UV.replace("pip install", "pip install --compile-bytecode")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyBuildKit:
    client: Sequence[str]
    dockerfile: Path
    compression: Mapping[str, str]

    def job(self, context: Path, reference: str) -> Job:
        output = {"type": "image", "name": reference, "push": "true", "registry.insecure": "true", **self.compression}
        return Job(commands=[self.build(context, output)], env={})

    def build(self, context: Path, output: Mapping[str, str]) -> list[str]:
        """The command that builds; the result goes nowhere without an output."""
        folder = self.dockerfile.parent
        goes = ["--output", ",".join(f"{name}={value}" for name, value in output.items())] if output else []
        return [
            *self.client, "build", "--progress", "quiet", "--frontend", "dockerfile.v0",
            "--opt", f"filename={self.dockerfile.name}", "--opt", "force-network-mode=none",
            "--local", f"context={context}", "--local", f"dockerfile={folder}", *goes,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildKit:
    """`buildctl build` with a push; only the new layers get the compression, and the base keeps its own."""

    name: str
    text: str
    compression: Mapping[str, str]

    def missing(self) -> str | None:
        lacking = [it for it in ("go", "runc") if not shutil.which(it, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
        return f"{' and '.join(lacking)} (Debian: golang, runc)" if lacking else None

    @contextmanager
    def ready(self, group: Group, folder: Path, host: str) -> Iterator[Ready]:
        programs, state = (
            newest(),
            Path(tempfile.mkdtemp(prefix="envbuild-buildkit-")),
        )  # a socket's path has to be short
        address, config = f"unix://{state}/sock", state / "buildkitd.toml"
        config.write_text(
            f'[worker.oci]\ndefaultCgroupParent = "/{group.name}"\n'
            'snapshotter = "overlayfs"\nnetworkMode = "host"\ngc = false\n'
            "[worker.containerd]\nenabled = false\n"
        )
        daemon = [
            f"{programs}/buildkitd",
            "--config",
            str(config),
            "--root",
            str(folder / "buildkit"),
            "--addr",
            address,
        ]
        client = [f"{programs}/buildctl", "--addr", address]
        try:
            with services.running(group.command(daemon), folder / "log", lambda: _answers(client)):
                used = written(
                    folder, "FROM BASE\nRUN --mount=type=bind,from=TOOLS,target=/tools /tools/uv --version\n", host
                )
                (folder / "empty").mkdir()
                run(_ReadyBuildKit(client=client, dockerfile=used, compression={}).build(folder / "empty", {}))
                dockerfile = written(folder, self.text, host)
                yield _ReadyBuildKit(client=client, dockerfile=dockerfile, compression=self.compression)
        finally:
            remove_mounted(state)
            remove_mounted(folder / "buildkit")


def _answers(client: Sequence[str]) -> bool:
    return not subprocess.run([*client, "debug", "workers"], capture_output=True, check=False).returncode


@cache
def newest() -> Path:
    """A folder with buildkitd and buildctl of the newest release; built if it is not there, which takes minutes."""
    BUILT.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="go-", dir=BUILT))
    env = {
        "GOMODCACHE": f"{scratch}/modules",
        "GOCACHE": f"{scratch}/cache",
        "GOFLAGS": "-modcacherw",
        "CGO_ENABLED": "0",
    }
    try:
        module = json.loads(run(["go", "mod", "download", "-json", f"{MODULE}@latest"], env))
        folder = BUILT / str(module["Version"])
        if not folder.exists():
            say(f"building BuildKit {folder.name} with Go")
            made = scratch / "programs"
            run(
                [
                    "go",
                    "-C",
                    module["Dir"],
                    "build",
                    "-trimpath",
                    "-o",
                    f"{made}/",
                    "./cmd/buildkitd",
                    "./cmd/buildctl",
                ],
                env,
            )
            made.rename(folder)
    finally:
        shutil.rmtree(scratch)
    say(f"BuildKit {folder.name}")
    return folder


def _variant(text: str, end: str) -> tuple[BuildKit, ...]:
    levels = ({"compression": "zstd", "compression-level": str(level)} for level in (1, 3))
    names = ("gzip", "zstd 1", "zstd 3")
    pairs = zip(names, ({}, *levels), strict=True)
    return tuple(BuildKit(name=f"newest BuildKit, {name}{end}", text=text, compression=it) for name, it in pairs)


BUILDKITS = (*_variant(WITH_UV, ""), *_variant(WITH_BYTECODE, ", bytecode"))
"""uv installs in each; the first is what all defaults give."""
