"""Fuzz every reader by coverage (atheris): `.venv/bin/python -m tests.fuzz [--seconds 600] [TARGET ...]`.

The seconds are shared by the targets. What crashes one is kept in tests/fuzz/found/, where the unit tests run it again.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import FOUND, TARGETS

_DONE = re.compile(rb"Done (\d+) runs in (\d+) second")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers.")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    failed = [name for name in names if not _fuzz(name, max(1, options.seconds // len(names)))]
    print(f"{len(names) - len(failed)} of {len(names)} targets without a defect" + (f"; {failed}" if failed else ""))
    return 1 if failed else 0


def _fuzz(name: str, seconds: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        for index, seed in enumerate(seeds(name)):
            (Path(folder) / f"seed-{index}").write_bytes(seed)
        found = FOUND / name
        found.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.fuzz.child", name, f"-max_total_time={seconds}", "-timeout=10"]
        limits = ["-rss_limit_mb=2048", "-max_len=16384", f"-artifact_prefix={found}/", folder]
        done = subprocess.run([*command, *limits], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if not any(found.iterdir()):
            found.rmdir()
    runs = _DONE.search(done.stdout)
    print(f"{name:14} {int(runs[1]) if runs else 0:9} runs {seconds:4} s  exit {done.returncode}", flush=True)
    if done.returncode:
        print(done.stdout[-4000:].decode(errors="replace"))
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
