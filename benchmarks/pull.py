"""How long an image takes to pull, and its framework to import in it: envbuild's layers beside one layer made by pip.

    .venv/bin/python -m benchmarks.pull [--workload tensorflow-cpu] [--rounds 3] [--stores /dev/shm] [--compression]

Runs as `benchmarks.build` does. The same base and the same wheels are in each image; each pull begins with an empty
store, and so takes the base too. `--stores` on a file system in memory tells what an engine does with layers from what
the disk is busy with. Imports are those of a fresh container as a user that may write nowhere, told by the process
itself. The images take turns, and the median of the rounds is shown, with the ratio to pip's image of the same files:
single pulls of one image differ by a fifth and more, in either direction. `--compression` compares envbuild's gzip and
zstd with pip's layer instead, as podman and containerd pull them, and imports nothing: Docker before 23 reads no zstd.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.build import Bench, caches, measured, prepare
from benchmarks.build_inputs import WORKLOADS, say
from benchmarks.build_parts import Cost, Group, Meter, remove_mounted, run, running_engine
from benchmarks.build_peers import WITH_PIP, Docker, docker_client
from tests.e2e import services

IMPORT = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
PIP, COMPILED, OURS, OURS_COMPILED = "pip, one layer", "pip, one layer, bytecode", "envbuild", "envbuild, bytecode"
OURS_ZSTD = "envbuild, zstd"
PEER = {OURS: (PIP, 1.1), OURS_COMPILED: (COMPILED, 1.1), OURS_ZSTD: (OURS, 0.85)}
"""Which image holds the same files, and how many times its seconds are allowed."""
BYTECODE, COMPRESSION = (PIP, COMPILED, OURS, OURS_COMPILED), (PIP, OURS, OURS_ZSTD)
"""The images that are compared with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """An engine that pulls images."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    options: Sequence[str] = ()

    def pull(self, reference: str) -> list[str]:
        """The command that pulls."""
        return [*self.command, "pull", "--quiet", *self.options, reference]

    def empty(self) -> None:
        """Remove all that was pulled, and wait for the disk, which would else do that while the next one is pulled."""
        run([*self.command, "system", "prune", "--all", "--force"], self.env)
        os.sync()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare how long images take to pull, and to import in.")
    parser.add_argument("--workload", choices=WORKLOADS, default="small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=Path, default=Path("~/.cache/envbuild-benchmarks").expanduser())
    parser.add_argument("--scratch", type=Path, help="on the file system of what is kept, where it is by default")
    parser.add_argument("--stores", type=Path, help="where the engines unpack, below the scratch folder by default")
    parser.add_argument("--compression", action="store_true", help="compare gzip and zstd, with podman and containerd")
    options = parser.parse_args()
    options.kept.mkdir(parents=True, exist_ok=True)
    bench = prepare(
        WORKLOADS[options.workload], options.kept / options.workload, options.kept, options.scratch or options.kept
    )
    try:
        with measured(bench) as (meter, group, host):
            images = made(bench, group, host, COMPRESSION if options.compression else BYTECODE)
            for clients in (podman, containerd) if options.compression else (docker, podman):
                with stores(options.stores or bench.scratch) as folder, clients(group, folder) as client:
                    compare(f"pull with {client.name}", pulls(client, meter, images, options.rounds))
            if options.compression:
                return
            module = bench.workload.module
            with stores(options.stores or bench.scratch) as folder, docker(group, folder) as client:
                compare(f"import {module}", imports(client, module, meter, images, options.rounds))
    finally:
        shutil.rmtree(bench.scratch)


def made(bench: Bench, group: Group, host: str, names: Sequence[str]) -> dict[str, str]:
    """The images in the registry, by name."""
    images = {
        name: f"{host}/{'pip' if name in (PIP, COMPILED) else 'ours'}:{number}" for number, name in enumerate(names)
    }
    for name, text in ((PIP, WITH_PIP), (COMPILED, WITH_PIP.replace("--no-compile ", ""))):
        if name not in names:
            continue
        say(f"making the image: {name}")
        folder = bench.scratch / "peer"
        folder.mkdir()
        with Docker(name=name, text=text, buildkit=True).ready(group, folder, host) as ready:
            job = ready.job(bench.before.context, images[name])
            for command in job.commands:
                run(command, job.env)
        remove_mounted(folder)
    with caches(bench, host) as cache:
        for name, options in ((OURS, []), (OURS_COMPILED, ["--bytecode"]), (OURS_ZSTD, ["--compression=zstd"])):
            if name not in names:
                continue
            say(f"making the image: {name}")
            arguments = [str(bench.before.context), f"{host}/base:latest", images[name], str(cache / "warm")]
            run([sys.executable, "-m", "benchmarks.build_envbuild", *options, *arguments])
    return images


@contextmanager
def stores(place: Path) -> Iterator[Path]:
    """A folder for what one engine unpacks."""
    folder = Path(tempfile.mkdtemp(prefix="envbuild-pull-", dir=place))
    try:
        yield folder
    finally:
        remove_mounted(folder)


@contextmanager
def docker(group: Group, folder: Path) -> Iterator[Client]:
    command = docker_client()
    assert command, "docker is missing"
    with running_engine(group, folder / "engine") as engine:
        yield Client(name="Docker", command=[command], env={"DOCKER_HOST": engine})


@contextmanager
def podman(_group: Group, folder: Path) -> Iterator[Client]:
    state = Path(tempfile.mkdtemp(prefix="envbuild-podman-"))
    places = ["--root", str(folder / "podman"), "--runroot", str(state), "--storage-driver", "overlay"]
    try:
        yield Client(name="podman", command=["podman", *places], env={}, options=["--tls-verify=false"])
    finally:
        remove_mounted(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ctr(Client):
    """containerd's own client, which fetches itself and lets the daemon unpack."""

    def pull(self, reference: str) -> list[str]:
        return [*self.command, "images", "pull", "--plain-http", "--snapshotter", "overlayfs", reference]

    def empty(self) -> None:
        """Remove the images; with --sync, what no image needs any more is gone too."""
        for reference in run([*self.command, "images", "list", "--quiet"]).split():
            run([*self.command, "images", "remove", "--sync", reference])
        os.sync()


@contextmanager
def containerd(group: Group, folder: Path) -> Iterator[Client]:
    state = Path(tempfile.mkdtemp(prefix="envbuild-containerd-"))
    command = ["ctr", "--address", str(state / "sock"), "--namespace", group.name]
    config = state / "config.toml"
    config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    places = ["--root", str(folder / "containerd"), "--state", str(state / "run"), "--address", str(state / "sock")]
    daemon = group.command(["containerd", "--config", str(config), *places])
    try:
        with services.running(daemon, folder / "log", lambda: _answers(command)):
            yield Ctr(name="containerd", command=command, env={})
    finally:
        remove_mounted(state)


def _answers(command: Sequence[str]) -> bool:
    return not subprocess.run([*command, "version"], capture_output=True, check=False).returncode


def pulls(client: Client, meter: Meter, images: Mapping[str, str], rounds: int) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {name: [] for name in images}
    for number in range(rounds):
        # What was removed before has its part in what the next pull takes, so no image follows the same one each time.
        for name, reference in shuffled(images, number):
            client.empty()
            found[name].append(meter.run(client.pull(reference), env=client.env))
            say(f"{client.name} pulls {name}: {found[name][-1].seconds:.2f} s")
    return found


def shuffled(images: Mapping[str, str], number: int) -> Sequence[tuple[str, str]]:
    """The images in another order each round, the same in every run: rotated, every second one backwards."""
    rows = [*images.items()]
    turned = rows[number // 2 :] + rows[: number // 2]
    return turned[::-1] if number % 2 else turned


def imports(client: Client, module: str, meter: Meter, images: Mapping[str, str], rounds: int) -> dict[str, list[Cost]]:
    """Seconds are the process's own, CPU that of the container's start as well."""
    found: dict[str, list[Cost]] = {name: [] for name in images}
    for reference in images.values():
        run(client.pull(reference), client.env)
    start = ["run", "--rm", "--network", "none", "--user", "65532:65532", "--entrypoint", "/opt/env/bin/python"]
    for _ in range(rounds + 1):  # the first one reads the files from the disk
        for name, reference in images.items():
            cost = meter.run([*client.command, *start, reference, "-c", IMPORT.format(module)], env=client.env)
            found[name].append(replace(cost, seconds=float(cost.output)))
    return found


def compare(title: str, found: Mapping[str, Sequence[Cost]]) -> None:
    """Print the median of the rounds, and whether envbuild's is within the bound to the one with the same files."""
    usual = {
        name: (median(it.seconds for it in costs), median(it.cpu for it in costs)) for name, costs in found.items()
    }
    print(f"\n{title:32}{'seconds':>9}{'ratio':>7}{'CPU s':>8}{'ratio':>7}")
    for name, row in usual.items():
        peer, most = PEER.get(name, (name, None))
        cells = [value / first for value, first in zip(row, usual[peer], strict=True)]
        verdict = f"  {'yes' if cells[0] <= most else 'no'}: at most {most} times {peer}" if most else ""
        print(f"  {name:30}{row[0]:9.2f}{cells[0]:7.2f}{row[1]:8.2f}{cells[1]:7.2f}{verdict}", flush=True)


if __name__ == "__main__":
    main()
