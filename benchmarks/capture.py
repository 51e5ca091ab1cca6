"""What a capture costs a training process that has TensorFlow loaded, beside what others do there, in one run.

    .venv/bin/python benchmarks/capture.py --python TRAINING_PYTHON [--rounds 3]

Each way runs in a TensorFlow process of its own, right after a training step. Seconds are those that the process waits,
then those that CPUs compute for it and its programs, which say more on a busy machine; MB are what its peak memory
grows by, and the most that its programs hold. The best of the rounds is shown, and how many times as much as the first
way. A way whose library TRAINING_PYTHON does not have is left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from envbuild.capture import script

PROCESS = """
import json, os, sys, threading, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.zeros((8, 4), "float32"), np.zeros((8, 1), "float32"), verbose=0)

def memory(pid, key):
    [line] = [line for line in open("/proc/%s/status" % pid) if line.startswith(key)]
    return int(line.split()[1]) * 1024

def programs():
    # A child that has not become another program yet shares the memory of this process.
    own, total = open("/proc/self/cmdline").read(), 0
    for pid in open("/proc/self/task/%d/children" % os.getpid()).read().split():
        try:
            total += memory(pid, "VmRSS") if open("/proc/%s/cmdline" % pid).read() not in ("", own) else 0
        except (OSError, ValueError):  # it has ended meanwhile
            pass
    return total

def computed():
    return sum(os.times()[:4])

def watch():
    while not over.wait(0.01):
        held.append(programs())

setup, call = sys.argv[1:]
names, held, over = {"model": model}, [0], threading.Event()
exec(setup, names)
watching = threading.Thread(target=watch)
watching.start()
# What the process held at most since that was last cleared, which writing 5 does (proc(5)).
open("/proc/self/clear_refs", "w").write("5")
before, began, cpu = memory("self", "VmHWM"), time.perf_counter(), computed()
exec(call, names)
seconds, cpu = time.perf_counter() - began, computed() - cpu
over.set()
watching.join()
print(json.dumps({"seconds": seconds, "cpu": cpu, "own": memory("self", "VmHWM") - before, "programs": max(held)}))
"""
"""Runs under the training Python; its arguments are what is prepared, and what is measured."""

PIP = "subprocess.run([sys.executable, '-m', 'pip', '--disable-pip-version-check', %r], stdout=-3, check=True)"
WAYS = {
    "envbuild capture()": ("", "from capture import capture; capture(out='manifest.json')"),
    "envbuild capture(deep=True)": ("", "from capture import capture; capture(out='manifest.json', deep=True)"),
    "pip inspect": ("import subprocess, sys", PIP % "inspect"),
    "pip freeze": ("import subprocess, sys", PIP % "freeze"),
    "importlib.metadata": (
        "import importlib.metadata as m",
        "[(d.metadata['Name'], d.version, d.read_text('direct_url.json'), d.files) for d in m.distributions()]",
    ),
    "mlflow infer_pip_requirements": (
        "import mlflow.tensorflow; mlflow.tensorflow.save_model(model, 'm', pip_requirements=[])",
        "mlflow.models.infer_pip_requirements('m', 'tensorflow')",
    ),
    "watermark": (
        "from watermark import watermark",
        "watermark(packages='tensorflow,numpy', gpu=True, machine=True, githash=True, python=True)",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare what a capture costs a TensorFlow process.")
    parser.add_argument("--python", required=True, help="an interpreter that has TensorFlow")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = {name: best(options.python, way, options.rounds) for name, way in WAYS.items()}
    measured = {name: result for name, result in results.items() if result}
    show(measured)
    for name in results.keys() - measured.keys():
        print(f"left out: {name}", file=sys.stderr)


def best(python: str, way: tuple[str, str], rounds: int) -> dict[str, float] | None:
    """Measure a way in fresh processes; None if its library is not there."""
    found = [one(python, way) for _ in range(rounds)]
    if None in found:
        return None
    return {key: min(result[key] for result in found if result) for key in ("seconds", "cpu", "own", "programs")}


def one(python: str, way: tuple[str, str]) -> dict[str, float] | None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "capture.py").write_text(script())
        Path(folder, "process.py").write_text(PROCESS)
        done = subprocess.run([python, "process.py", *way], cwd=folder, capture_output=True, text=True, check=False)
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def show(results: dict[str, dict[str, float]]) -> None:
    rows = {name: (it["seconds"], it["cpu"], (it["own"] + it["programs"]) / 1e6) for name, it in results.items()}
    first = next(iter(rows.values()))
    print(f"{'way':30}" + "".join(f"{title:>9}{'ratio':>7}" for title in ("seconds", "CPU s", "MB")))
    for name, row in rows.items():
        cells = (f"{value:9.2f}{value / one:7.1f}" for value, one in zip(row, first, strict=True))
        print(f"{name:30}" + "".join(cells))


if __name__ == "__main__":
    main()
