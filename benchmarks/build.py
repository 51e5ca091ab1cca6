"""From locked wheels to "in the registry": envbuild beside other builders, in one run on the same wheels and registry.

    .venv/bin/python -m benchmarks.build [--workload tensorflow-cpu] [--rounds 3] [--only NAME]... [--cold]

As root, in the repository's folder, with the parts of `tests/setup.sh test`. Every builder gets a registry of its own
which holds the base, and has used that base before; the wheels are on this machine. Cold is with caches that are empty
otherwise; then comes the same lock again, then one with another version of one small package. An empty machine has
neither cache nor wheels; its registry has the image, or the layers of it for another environment. CPU seconds and MB
(anonymous memory, the most at one time) are those of a builder with its daemon and containers, without the registry.
Up and down are MB to and from the registry, and wheels that were downloaded count as down. Ratios are to envbuild with
gzip, with bytecode where the builder makes that; of several rounds the one with the median time is shown. The aims are
about envbuild from the lock on (`--only lock`); the whole command locks first, and asks the package index for that.
The newest BuildKit is built with Go, in ~/.cache/envbuild-benchmarks, if Go and runc are there.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.build_inputs import (
    MACHINE,
    WORKLOADS,
    Inputs,
    Workload,
    debian_base,
    locked,
    registry_base,
    say,
    tools_image,
)
from benchmarks.build_parts import Cost, Group, Meter, counted, remove_mounted, run
from benchmarks.build_peers import PEERS, Peer
from benchmarks.build_table import (
    CHANGED,
    COLD,
    COMMAND,
    EMPTY,
    LAYERS,
    LIBRARIES,
    SAME,
    Floor,
    Results,
    Row,
    show,
)
from benchmarks.buildkit import BUILDKITS
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.recipe import Base
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from tests.e2e import services


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all builders have in common."""

    workload: Workload
    base: Base
    tools: Image
    before: Inputs
    after: Inputs
    scratch: Path
    kept: Path
    scenarios: Sequence[str] = (COLD, SAME, CHANGED, EMPTY, LAYERS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare how long it takes from locked wheels into the registry.")
    parser.add_argument("--workload", choices=WORKLOADS, default="small")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--only", action="append", help="builders whose name has this in it, and the floor; may be repeated"
    )
    parser.add_argument("--cold", action="store_true", help="only with empty caches")
    parser.add_argument("--kept", type=Path, default=Path("~/.cache/envbuild-benchmarks").expanduser())
    parser.add_argument("--scratch", type=Path, help="on the file system of what is kept, where it is by default")
    options = parser.parse_args()
    options.kept.mkdir(parents=True, exist_ok=True)
    bench = prepare(
        WORKLOADS[options.workload], options.kept / options.workload, options.kept, options.scratch or options.kept
    )
    bench = replace(bench, scenarios=(COLD,)) if options.cold else bench
    say(f"{options.workload}: {len(bench.before.lock.wheels)} wheels, {bench.before.size / 1e6:.0f} MB")
    results: Results = {}
    try:
        floors = [floor(bench.before) for _ in range(max(3, options.rounds))]
        for _ in range(options.rounds):
            one_round(bench, options.only or [""], results)
    finally:
        shutil.rmtree(bench.scratch)
    show(results, Floor(*map(min, zip(*floors, strict=True))))


def prepare(workload: Workload, folder: Path, kept: Path, scratch: Path) -> Bench:
    base = debian_base(kept)
    before, after = locked(workload, base.target, kept, folder)
    return Bench(
        workload=workload,
        base=base,
        tools=tools_image(kept),
        before=before,
        after=after,
        scratch=Path(tempfile.mkdtemp(prefix="envbuild-build-", dir=scratch)),
        kept=kept,
    )


def floor(inputs: Inputs) -> tuple[float, float]:
    """Seconds to read, inflate and hash the wheels, and CPU seconds; see build_floor."""
    seconds, cpu = run([sys.executable, "-m", "benchmarks.build_floor", *map(str, inputs.wheels)]).split()
    return float(seconds), float(cpu)


def one_round(bench: Bench, only: Sequence[str], results: Results) -> None:
    measured_by = {name: partial(library, options=options) for name, options in LIBRARIES.items()} | {COMMAND: command}
    for name, measure in measured_by.items():
        if any(it in name for it in only):
            for scenario, row in measure(bench):
                keep(results, scenario, name, row)
    peers: tuple[Peer, ...] = (*PEERS, *BUILDKITS)
    for peer in peers:
        if not any(it in peer.name for it in only):
            continue
        if why := peer.missing():
            print(f"left out: {peer.name}, as this machine lacks {why}")
        else:
            for scenario, row in peer_runs(bench, peer):
                keep(results, scenario, peer.name, row)


def keep(results: Results, scenario: str, name: str, row: Row) -> None:
    say(f"{name}, {scenario}: {row.cost.seconds:.2f} s")
    results.setdefault(scenario, {}).setdefault(name, []).append(row)


@contextmanager
def measured(bench: Bench) -> Iterator[tuple[Meter, Group, str]]:
    """A registry that holds the base alone, a group, and what counts both; yield the registry's host too."""
    with ExitStack() as stack:
        registry = stack.enter_context(services.running_registry())
        push(bench.base.image, Reference.parse(f"{registry.host}/base:latest"))
        push(bench.tools, Reference.parse(f"{registry.host}/tools:latest"))
        group = stack.enter_context(Group("run"))
        counters = stack.enter_context(counted(int(registry.host.split(":")[1])))
        yield Meter(group, counters), group, registry.host


def peer_runs(bench: Bench, peer: Peer) -> Iterator[tuple[str, Row]]:
    folder = bench.scratch / "peer"
    folder.mkdir()
    try:
        with measured(bench) as (meter, group, host), peer.ready(group, folder, host) as ready:
            for scenario, inputs in ((COLD, bench.before), (SAME, bench.before), (CHANGED, bench.after)):
                if scenario not in bench.scenarios:
                    continue
                reference = f"{host}/app:{scenario.replace(' ', '-')}"
                job = ready.job(inputs.context, reference)
                yield scenario, Row(cost=meter.run(*job.commands, env=job.env), image=image_size(reference))
    finally:
        remove_mounted(folder)


def library(bench: Bench, options: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """From the lock on, in a fresh process."""
    module = [sys.executable, "-m", "benchmarks.build_envbuild", *options]
    with measured(bench) as (meter, _, host), caches(bench, host) as folder:
        for scenario, inputs, name, more in (
            (COLD, bench.before, "warm", ()),
            (SAME, bench.before, "warm", ()),
            (CHANGED, bench.after, "warm", ()),
            (EMPTY, bench.before, "empty", ()),
            (LAYERS, bench.before, "other", ("OTHER",)),
        ):
            if scenario not in bench.scenarios:
                continue
            cache = folder / name
            arguments = [str(inputs.context), f"{host}/base:latest", f"{host}/app", str(cache), *more]
            cost = with_wheels(meter, [*module, *arguments], cache)
            told = json.loads(cost.output)
            steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in told["steps"].items())
            say(f"  of this {told['seconds']:.2f} s after imports: {steps}")
            yield scenario, Row(cost=cost, image=image_size(told["reference"]), resident=told["peak"])


def command(bench: Bench) -> Iterator[tuple[str, Row]]:
    """The whole command, as a user runs it: it locks first, which asks the package index."""
    gpu = bench.workload.gpu
    if gpu is None:
        return
    with measured(bench) as (meter, _, host), caches(bench, host) as folder:
        for scenario, inputs, name in (
            (COLD, bench.before, "warm"),
            (SAME, bench.before, "warm"),
            (CHANGED, bench.after, "warm"),
            (EMPTY, bench.before, "empty"),
        ):
            if scenario not in bench.scenarios:
                continue
            cache, pins = folder / name, folder / "pins.txt"
            pins.write_text("".join(f"{it.name}=={it.version}\n" for it in inputs.lock.wheels))
            arguments = [
                "--from", "pip-freeze", "--python", inputs.lock.target.python, "--gpu", gpu, "--ran-on", "linux/amd64",
                "--base", f"{host}/base:latest", "--push", f"{host}/app", "--out", str(folder / "out"),
            ]  # fmt: skip
            whole = [sys.executable, "-m", "envbuild", "from-manifest", str(pins), *arguments]
            cost = with_wheels(meter, whole, cache)
            yield scenario, Row(cost=cost, image=image_size(cost.output.split()[-1]))


@contextmanager
def caches(bench: Bench, host: str) -> Iterator[Path]:
    """A folder whose `warm` knows the wheels and the base, but no layer."""
    folder = bench.scratch / "caches"
    try:
        shutil.copytree(bench.kept / "wheels", folder / "warm" / "wheels", copy_function=os.link)
        registry_base(f"{host}/base:latest", folder / "warm")
        yield folder
    finally:
        shutil.rmtree(folder)


def with_wheels(meter: Meter, command: Sequence[str], cache: Path) -> Cost:
    """Wheels that were downloaded meanwhile count as received."""
    before = bytes_below(cache / "wheels")
    cost = meter.run(command, env={"ENVBUILD_CACHE": str(cache)})
    return replace(cost, received=cost.received + bytes_below(cache / "wheels") - before)


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.whl"))


def image_size(reference: str) -> int:
    image = pull(Reference.parse(reference), machine=MACHINE)
    return sum(layer.descriptor.size for layer in image.layers)


if __name__ == "__main__":
    main()
