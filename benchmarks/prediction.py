"""From the lock to the first right prediction on an engine that has nothing: envbuild beside the newest BuildKit.

    .venv/bin/python -m benchmarks.prediction [--model tensorflow-cpu] [--rounds 3] [--only NAME]... [--speed N]...
        [--out FILE.jsonl]

Runs as `benchmarks.build` does, and needs podman, Go and runc. Each run has a registry of its own with the base, a
builder whose caches have the base and the wheels alone, and an empty podman; first without a limit, then through a
proxy that passes on 50 MB/s each way. Four stages: `build`, from the lock to the registry (`envbuild serve`, which
makes training's image too and locks again; `buildctl build`); `pull`; `container`, until podman says that it runs;
`prediction`, until the server in it answers rightly. The model is mounted. Every run is a line of JSON, on stdout or at
the end of a file; `python -m benchmarks.prediction_chart` draws them. CPU seconds are those of builder, podman and
container; sent and received are bytes to and from the registry.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx

from benchmarks.build import image_size
from benchmarks.build_inputs import registry_base, say, tools_image
from benchmarks.build_parts import Cost, Group, Meter, counted, remove_mounted, run
from benchmarks.build_peers import WITH_UV
from benchmarks.buildkit import WITH_BYTECODE, BuildKit, newest
from benchmarks.prediction_chart import Run, show
from benchmarks.prediction_models import MODELS, ROOT, Trained, trained
from benchmarks.pull import Client, podman
from benchmarks.slow_link import slow_link
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from tests.e2e import services

SPEED = 50
"""MB a second."""
SECONDS = 300
"""The most that a server may take to answer."""
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""In a container, podman's own cannot be had."""
SERVER = """COPY app /app
WORKDIR /app
USER 65532:65532
CMD ["/opt/env/bin/python", "/app/serve.py"]
"""


class Variant(Protocol):
    """A way to build the image that serves."""

    @property
    def name(self) -> str:
        """As it is in the results."""
        ...

    def build(self, model: Trained, meter: Meter, host: str, scratch: Path) -> tuple[Cost, str]:
        """Build and push; return what it took, and the reference."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Envbuild:
    """`envbuild serve` of the run's manifest; without the gate and the import check, as others test nothing."""

    name: str
    options: Sequence[str] = ()

    def build(self, model: Trained, meter: Meter, host: str, scratch: Path) -> tuple[Cost, str]:
        cache = scratch / "cache"
        shutil.copytree(model.cache, cache)
        registry_base(f"{host}/base:latest", cache)
        command = [
            sys.executable, "-m", "envbuild", "serve", str(model.folder / "manifest.json"), "--server", "fastapi",
            "--base", f"{host}/base:latest", "--push", f"{host}/serve", "--out", str(scratch / "out"),
            "--gate", "off", "--import-check", "never", *self.options,
        ]  # fmt: skip
        cost = meter.run(command, env={"ENVBUILD_CACHE": str(cache)})
        return cost, cost.output.split()[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByBuildKit:
    """A Dockerfile with uv and the server."""

    name: str
    text: str = WITH_UV
    compression: Mapping[str, str]

    def build(self, model: Trained, meter: Meter, host: str, scratch: Path) -> tuple[Cost, str]:
        reference = f"{host}/serve:latest"
        builder = BuildKit(name=self.name, text=self.text + SERVER, compression=self.compression)
        with builder.ready(meter.group, scratch, host) as ready:
            job = ready.job(model.context, reference)
            return meter.run(*job.commands, env=job.env), reference


_ZSTD = {"compression": "zstd", "compression-level": "3"}
VARIANTS: Sequence[Variant] = (
    Envbuild(name="envbuild, gzip"),
    Envbuild(name="envbuild, zstd", options=("--compression", "zstd")),
    Envbuild(name="envbuild, slim", options=("--slim",)),
    ByBuildKit(name="BuildKit, gzip", compression={}),
    ByBuildKit(name="BuildKit, zstd", compression=_ZSTD),
    ByBuildKit(name="BuildKit, gzip, bytecode", text=WITH_BYTECODE, compression={}),
    ByBuildKit(name="BuildKit, zstd, bytecode", text=WITH_BYTECODE, compression=_ZSTD),
)
"""What serves has bytecode by default in envbuild, and only if that is asked for in uv."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare how long it takes from a lock to the first prediction.")
    parser.add_argument("--model", choices=MODELS, default="scikit-learn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", action="append", help="variants whose name has this in it; may be repeated")
    parser.add_argument("--speed", type=int, action="append", help="MB a second, 0 without a limit; may be repeated")
    parser.add_argument("--kept", type=Path, default=Path("~/.cache/envbuild-benchmarks").expanduser())
    parser.add_argument("--out", type=Path, help="add the lines to this file")
    options = parser.parse_args()
    options.kept.mkdir(parents=True, exist_ok=True)
    chosen = [it for it in VARIANTS if any(word in it.name for word in options.only or [""])]
    model, builder = trained(options.model, options.kept), newest().name
    about = {"model": options.model, **machine(), "BuildKit": builder}
    runs: list[Run] = []
    for number in range(options.rounds):
        for speed in options.speed or (0, SPEED):
            for variant in chosen[:: -1 if number % 2 else 1]:
                found: Run = {
                    **about,
                    "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
                    "load": os.getloadavg()[0],
                    "variant": variant.name,
                    "MB/s": speed or None,
                }
                found |= measure(model, variant, speed, options.kept)
                runs.append(found)
                write(found, options.out)
    show(runs, sys.stderr)


def write(found: Run, out: Path | None) -> None:
    line = json.dumps(found)
    if out is None:
        print(line, flush=True)
        return
    with out.open("a") as file:
        file.write(f"{line}\n")
    say(line)


def machine() -> dict[str, Any]:
    """Where it runs, and the revision of this repository."""
    [name, *_] = [it for it in Path("/proc/cpuinfo").read_text().splitlines() if it.startswith("model name")]
    return {
        "cpu": f"{os.cpu_count()} x {name.partition(': ')[2]}",
        "envbuild": run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]).strip(),
        "podman": run(["podman", "--version"]).split()[-1],
    }


def measure(model: Trained, variant: Variant, speed: int, kept: Path) -> Run:
    """Everything from the lock on, with a registry, a builder and an engine of its own."""
    say(f"{variant.name}{f', {speed} MB/s' if speed else ''}")
    with ExitStack() as stack:
        registry = stack.enter_context(services.running_registry())
        push(model.base.image, Reference.parse(f"{registry.host}/base:latest"))
        push(tools_image(kept), Reference.parse(f"{registry.host}/tools:latest"))
        host = stack.enter_context(slow_link(registry.host, speed * 1e6)) if speed else registry.host
        scratch = Path(tempfile.mkdtemp(prefix="envbuild-prediction-", dir=kept))
        stack.callback(remove_mounted, scratch)
        group = stack.enter_context(Group("run"))
        meter = Meter(group, stack.enter_context(counted(int(host.partition(":")[2]))))
        stages = {}
        stages["build"], reference = variant.build(model, meter, host, scratch)
        client = stack.enter_context(podman(group, scratch))
        stages["pull"] = meter.run(client.pull(reference))
        with container(client, meter, model, reference) as (stages["container"], address):
            cpu, began = group.cpu, time.perf_counter()
            predict(model, address)
            seconds, cpu = time.perf_counter() - began, group.cpu - cpu
        size = image_size(reference.replace(host, registry.host))
    found = {
        name: {"seconds": it.seconds, "cpu": it.cpu, "sent": it.sent, "received": it.received}
        for name, it in stages.items()
    }
    found["prediction"] = {"seconds": seconds, "cpu": cpu}
    stages_rounded = {name: {key: round(value, 3) for key, value in it.items()} for name, it in found.items()}
    return {"seconds": round(sum(it["seconds"] for it in found.values()), 3), "image": size, "stages": stages_rounded}


@contextmanager
def container(client: Client, meter: Meter, model: Trained, reference: str) -> Iterator[tuple[Cost, str]]:
    """Start it; yield what that took, and where the server will answer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    engine = [*client.command, "--cgroup-manager", "cgroupfs"]
    options = ["--cgroup-parent", f"/{meter.group.name}", "--network", "host", "--pull", "never", "--name", "served"]
    served = [*LIMITS, "--env", f"AIP_HTTP_PORT={port}", "--volume", f"{model.folder / 'model'}:/model:ro", reference]
    try:
        yield meter.run([*engine, "run", "--detach", *options, *served]), f"http://127.0.0.1:{port}/predict"
    finally:
        run([*engine, "rm", "--force", "--time", "1", "served"])
        meter.group.wait()


def predict(model: Trained, address: str) -> None:
    """Return at the first answer, which has to be right."""
    end, body = time.monotonic() + SECONDS, model.request
    with httpx.Client(trust_env=False, timeout=SECONDS, headers={"Content-Type": "application/json"}) as client:
        while time.monotonic() < end:
            try:
                answer = client.post(address, content=body)
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            if answer.status_code == 200:
                if not model.is_right(answer.json()):
                    sys.exit(f"a wrong prediction: {answer.text}")
                return
            time.sleep(0.02)
    sys.exit(f"no prediction within {SECONDS} s: {address}")


if __name__ == "__main__":
    main()
