"""The other builders: how each gets ready, and its commands from a context to an image in the registry."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.build_parts import Group, remove_mounted, run, running_engine

_VENV = "python3 -m venv --without-pip /opt/env"
_LOCKED = "--no-index --find-links /work/wheels --no-deps --require-hashes -r /work/requirements.txt"
# Without bytecode, as uv and envbuild install by default: so that all images hold the same.
_PIP = (
    "PYTHONPATH=/tools python3 -m pip --python /opt/env/bin/python --disable-pip-version-check --no-cache-dir"
    f" install --quiet --root-user-action ignore --no-compile {_LOCKED}"
)
_UV = f"UV_LINK_MODE=copy /tools/uv pip install --quiet --python /opt/env/bin/python {_LOCKED}"
_MOUNTS = "--mount=type=bind,target=/work --mount=type=bind,from=TOOLS,target=/tools"
_CACHE = "--mount=type=cache,target=/root/.cache/uv"

WITH_PIP = f"FROM BASE\nRUN {_MOUNTS} {_VENV} && {_PIP}\n"
WITH_UV = f"FROM BASE\nRUN {_MOUNTS} {_CACHE} {_VENV} && {_UV}\n"
# buildah's cache does not look into what is mounted, and would give the old image for a new lock.
FOR_BUILDAH = WITH_PIP.replace("\nRUN", "\nCOPY requirements.txt /opt/requirements.txt\nRUN")
CLASSIC = f"""FROM BASE AS builder
COPY --from=TOOLS / /tools
COPY . /work
RUN {_VENV} && {_PIP}
FROM BASE
COPY --from=builder /opt/env /opt/env
"""
"""The classic builder mounts nothing: what the image need not have stays behind in a stage of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Commands, and what they need in the environment."""

    commands: Sequence[Sequence[str]]
    env: Mapping[str, str]


class Ready(Protocol):
    """A builder that runs."""

    def job(self, context: Path, reference: str) -> Job:
        """From a folder with a lock's wheels to an image in the registry."""
        ...


class Peer(Protocol):
    """A builder."""

    @property
    def name(self) -> str:
        """As it is in the table."""
        ...

    def missing(self) -> str | None:
        """What is not on this machine, if anything."""
        ...

    def ready(self, group: Group, folder: Path, host: str) -> AbstractContextManager[Ready]:
        """Start what it needs inside the group, with empty caches; base and tools are pulled from the host."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyDocker:
    client: str
    env: Mapping[str, str]
    dockerfile: Path

    def job(self, context: Path, reference: str) -> Job:
        build = [self.client, "build", "--quiet", "--network", "none", "-f", str(self.dockerfile), "-t", reference]
        return Job(commands=[[*build, str(context)], [self.client, "push", "--quiet", reference]], env=self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """`docker build` and `docker push`, by BuildKit or the classic builder."""

    name: str
    text: str
    buildkit: bool

    def missing(self) -> str | None:
        if not shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            return "dockerd (Debian: docker.io)"
        return None if docker_client() else "a docker client that can build without the buildx plugin"

    @contextmanager
    def ready(self, group: Group, folder: Path, host: str) -> Iterator[Ready]:
        client = docker_client()
        assert client
        with running_engine(group, folder / "engine") as engine:
            env = {
                "DOCKER_HOST": engine,
                "DOCKER_BUILDKIT": str(int(self.buildkit)),
                "DOCKER_CONFIG": str(folder / "config"),
            }
            for image in ("base", "tools"):
                run([client, "pull", "--quiet", f"{host}/{image}:latest"], env)
            dockerfile = written(folder, self.text, host)
            yield _ReadyDocker(client=client, env=env, dockerfile=dockerfile)


def docker_client() -> str | None:
    """One that needs no plugin for BuildKit (those before 23), else one that has it."""
    found = (Path(folder) / "docker" for folder in os.environ["PATH"].split(":"))
    clients = [str(path) for path in found if path.exists()]
    old = [client for client in clients if int(run([client, "--version"]).split()[2].split(".")[0]) < 23]
    return next(iter(old), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyBuildah:
    command: Sequence[str]
    dockerfile: Path

    def job(self, context: Path, reference: str) -> Job:
        build = [*self.command, "bud", "--quiet", "--layers", "--network", "none", "--tls-verify=false"]
        push = [*self.command, "push", "--quiet", "--tls-verify=false", reference, f"docker://{reference}"]
        return Job(commands=[[*build, "-f", str(self.dockerfile), "-t", reference, str(context)], push], env={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildah:
    """`buildah bud` and `buildah push`."""

    name: str
    text: str

    def missing(self) -> str | None:
        return None if shutil.which("buildah") else "buildah (Debian: buildah)"

    @contextmanager
    def ready(self, group: Group, folder: Path, host: str) -> Iterator[Ready]:
        del group  # it has no daemon
        state = Path(tempfile.mkdtemp(prefix="envbuild-buildah-"))
        command = ["buildah", "--root", str(folder / "root"), "--runroot", str(state), "--storage-driver", "overlay"]
        try:
            for image in ("base", "tools"):
                run([*command, "pull", "--quiet", "--tls-verify=false", f"{host}/{image}:latest"])
            yield _ReadyBuildah(command=command, dockerfile=written(folder, self.text, host))
        finally:
            remove_mounted(state)
            remove_mounted(folder / "root")


def written(folder: Path, text: str, host: str) -> Path:
    """The Dockerfile, outside of the context."""
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text(text.replace("BASE", f"{host}/base:latest").replace("TOOLS", f"{host}/tools:latest"))
    return dockerfile


PEERS: tuple[Peer, ...] = (
    Docker(name="Docker's BuildKit, uv", text=WITH_UV, buildkit=True),
    Docker(name="Docker's BuildKit, pip", text=WITH_PIP, buildkit=True),
    Docker(name="classic docker build", text=CLASSIC, buildkit=False),
    Buildah(name="buildah, pip", text=FOR_BUILDAH),
)
