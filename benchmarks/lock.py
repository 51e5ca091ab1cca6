"""How long a run's exact versions take to become hashed wheels, beside other resolvers, in one run.

    .venv/bin/python benchmarks/lock.py MANIFEST [--rounds 3] [--way "envbuild lock"]

Cold is with empty caches, warm the same command once more; each is a whole process, so imports count. envbuild also
reads each wheel's RECORD by range requests and compares it with the run's, which nobody else does. Seconds are the best
of the rounds, and how many times as much as the first way; `cpu` is what the warm one took of a processor, which other
programs on the machine change less.

uv asks an index again for every page that it is not told to keep; with UV_OFFLINE=1 the warm calls take what was kept,
as within the ten minutes that the public index allows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BIN = Path(sys.executable).parent
Way = Callable[[Path, Path, str], list[str]]
"""Makes a command of the manifest, the file of its pins, and its Python."""


def envbuild(manifest: Path, _pins: Path, _python: str) -> list[str]:
    return [sys.executable, "-m", "envbuild", "lock", str(manifest), "--out", "lock"]


def uv(_manifest: Path, pins: Path, python: str) -> list[str]:
    options = ["--quiet", "--generate-hashes", "--no-deps", "--only-binary", ":all:", "--python-version", python]
    return [str(BIN / "uv"), "pip", "compile", *options, str(pins), "-o", "uv.txt"]


def pip_compile(_manifest: Path, pins: Path, _python: str) -> list[str]:
    options = [
        "--quiet",
        "--generate-hashes",
        "--no-strip-extras",
        "--cache-dir",
        "pip-tools",
        "--output-file",
        "p.txt",
    ]
    return [sys.executable, "-m", "piptools", "compile", *options, str(pins)]


WAYS: dict[str, Way] = {"envbuild lock": envbuild, "uv pip compile": uv, "pip-compile": pip_compile}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare how long locking takes.")
    parser.add_argument("manifest", type=Path, help="of a run on this machine's minor version of Python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    manifest = json.loads(options.manifest.read_bytes())
    pins = "".join(f"{it['name']}=={it['version']}\n" for it in manifest["distributions"])
    print(f"{'way':18}{'cold s':>9}{'ratio':>7}{'warm s':>9}{'ratio':>7}{'cpu s':>9}{'ratio':>7}")
    first: tuple[float, ...] | None = None
    for name, way in ((it, WAYS[it]) for it in options.way or WAYS):
        found = [
            timed(way, options.manifest.absolute(), pins, manifest["python"]["version"]) for _ in range(options.rounds)
        ]
        best = tuple(map(min, zip(*found, strict=True)))
        first = first or best
        cells = (f"{value:9.2f}{value / one:7.1f}" for value, one in zip(best, first, strict=True))
        print(f"{name:18}" + "".join(cells), flush=True)


def timed(way: Way, manifest: Path, pins: str, python: str) -> tuple[float, float, float]:
    """Seconds with empty caches, then with those that the first call filled, and of a processor then."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pins.in").write_text(pins)
        caches = {
            "ENVBUILD_CACHE": str(folder / "envbuild"),
            "UV_CACHE_DIR": str(folder / "uv"),
            "PIP_CACHE_DIR": str(folder / "pip"),
        }
        command = way(manifest, folder / "pins.in", python)
        cold, _ = once(command, folder, caches, without="UV_OFFLINE")
        return cold, *once(command, folder, caches)


def once(command: list[str], folder: Path, caches: dict[str, str], without: str = "") -> tuple[float, float]:
    before, began = processor_seconds(), time.perf_counter()
    env = {name: value for name, value in (os.environ | caches).items() if name != without}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{command}\n{done.stderr}")
    return seconds, processor_seconds() - before


def processor_seconds() -> float:
    """What all commands that ended have taken so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
