"""How long an image takes to pull, and its framework to import in it: envbuild's layers beside one layer made by pip.

    .venv/bin/python -m benchmarks.pull [--workload tensorflow-cpu] [--rounds 3]

Runs as `benchmarks.build` does. The same base and the same wheels are in each image; each pull begins with an empty
store, and so takes the base too. Imports are those of a fresh container as a user that may write nowhere, told by the
process itself. The images take turns, and the best of the rounds is shown, with the ratio to the image of pip.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.build import Bench, caches, measured, prepare
from benchmarks.build_inputs import WORKLOADS, say
from benchmarks.build_parts import Cost, Group, Meter, remove_mounted, run, running_engine
from benchmarks.build_peers import WITH_PIP, Docker, docker_client

IMPORT = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
PIP, COMPILED, OURS = "pip, one layer", "pip, one layer, bytecode", "envbuild"
WORSE = 1.05
"""More than this is worse; less is what two pulls of one image differ by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Something that pulls images."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    options: Sequence[str] = ()

    def pull(self, reference: str) -> list[str]:
        """The command that pulls."""
        return [*self.command, "pull", "--quiet", *self.options, reference]

    def empty(self) -> None:
        """Remove all that was pulled."""
        run([*self.command, "system", "prune", "--all", "--force"], self.env)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare how long images take to pull, and to import in.")
    parser.add_argument("--workload", choices=WORKLOADS, default="small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=Path, default=Path("~/.cache/envbuild-benchmarks").expanduser())
    parser.add_argument("--scratch", type=Path, help="on the file system of what is kept, where it is by default")
    options = parser.parse_args()
    options.kept.mkdir(parents=True, exist_ok=True)
    bench = prepare(
        WORKLOADS[options.workload], options.kept / options.workload, options.kept, options.scratch or options.kept
    )
    try:
        with measured(bench) as (meter, group, host):
            images = made(bench, group, host)
            for clients in (docker, podman):
                with clients(group, bench.scratch) as client:
                    compare(f"pull with {client.name}", pulls(client, meter, images, options.rounds))
            module = bench.workload.module
            with docker(group, bench.scratch) as client:
                compare(f"import {module}", imports(client, module, meter, images, options.rounds))
    finally:
        shutil.rmtree(bench.scratch)


def made(bench: Bench, group: Group, host: str) -> dict[str, str]:
    """The images in the registry, by name."""
    images = {PIP: f"{host}/pip:plain", COMPILED: f"{host}/pip:compiled"}
    for name, text in ((PIP, WITH_PIP), (COMPILED, WITH_PIP.replace("--no-compile ", ""))):
        say(f"making the image: {name}")
        folder = bench.scratch / "peer"
        folder.mkdir()
        with Docker(name=name, text=text, buildkit=True).ready(group, folder, host) as ready:
            job = ready.job(bench.before.context, images[name])
            for command in job.commands:
                run(command, job.env)
        remove_mounted(folder)
    say(f"making the image: {OURS}")
    with caches(bench, host) as cache:
        arguments = [str(bench.before.context), f"{host}/base:latest", f"{host}/ours:latest", str(cache / "warm")]
        run([sys.executable, "-m", "benchmarks.build_envbuild", *arguments])
    return images | {OURS: f"{host}/ours:latest"}


@contextmanager
def docker(group: Group, scratch: Path) -> Iterator[Client]:
    command = docker_client()
    assert command, "docker is missing"
    with running_engine(group, scratch / "engine") as engine:
        yield Client(name="Docker", command=[command], env={"DOCKER_HOST": engine})


@contextmanager
def podman(_group: Group, scratch: Path) -> Iterator[Client]:
    state = Path(tempfile.mkdtemp(prefix="envbuild-podman-"))
    places = ["--root", str(scratch / "podman"), "--runroot", str(state), "--storage-driver", "overlay"]
    try:
        yield Client(name="podman", command=["podman", *places], env={}, options=["--tls-verify=false"])
    finally:
        remove_mounted(state)
        remove_mounted(scratch / "podman")


def pulls(client: Client, meter: Meter, images: Mapping[str, str], rounds: int) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {name: [] for name in images}
    for _ in range(rounds):
        for name, reference in images.items():
            client.empty()
            found[name].append(meter.run(client.pull(reference), env=client.env))
            say(f"{client.name} pulls {name}: {found[name][-1].seconds:.2f} s")
    return found


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
    """Print the best of the rounds, and whether envbuild's is worse."""
    best = {name: (min(it.seconds for it in costs), min(it.cpu for it in costs)) for name, costs in found.items()}
    print(f"\n{title:32}{'seconds':>9}{'ratio':>7}{'CPU s':>8}{'ratio':>7}")
    for name, row in best.items():
        cells = (value / first for value, first in zip(row, best[PIP], strict=True))
        print(f"  {name:30}{row[0]:9.2f}{next(cells):7.2f}{row[1]:8.2f}{next(cells):7.2f}")
    verdict = "no" if best[OURS][0] > WORSE * best[PIP][0] else "yes"
    print(f"  not worse than the image of pip: {verdict}", flush=True)


if __name__ == "__main__":
    main()
