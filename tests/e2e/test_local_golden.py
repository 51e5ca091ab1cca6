"""A model that was trained with a GPU, with the real TensorFlow on a machine that has none: it predicts what it predicted."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from envbuild.oci.digest import Digest
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from tests.e2e.test_golden import trained  # noqa: F401 - a fixture
from tests.environ import cleaned

pytestmark = [pytest.mark.real, pytest.mark.slow]
GPU = {
    "kind": "nvidia",
    "driver": "535.129.03",
    "gpus": [{"name": "NVIDIA A100-SXM4-40GB", "memory": 42949672960, "compute_capability": "8.0"}],
}


def gpu_run(folder: Path) -> Path:
    """The manifest of the same run as it would have been on a GPU."""
    run = json.loads((folder / "manifest.json").read_bytes())
    for it in run["distributions"]:
        if it["name"] == "tensorflow-cpu":
            it.clear()
            it |= {"name": "tensorflow", "version": "2.15.1", "origin": {"kind": "index"}}
    run["framework"] |= {"distribution": "tensorflow", "cuda": "12.2", "cudnn": "8"}
    run.pop("frameworks", None)
    run["accelerator"] = GPU
    path = folder / "gpu.json"
    path.write_text(json.dumps(run))
    return path


@pytest.fixture(scope="module")
def model(trained, envbuild) -> Path:  # noqa: F811
    """The model with the stamp of a GPU image, whose lock is the real one of such a run."""
    manifest = gpu_run(trained)
    envbuild("lock", manifest, "--variant", "gpu", "--base", "debian:bookworm", "--out", trained / "lock")
    digest = Digest.of(b"an image with CUDA")
    entry = StampEntry(
        role="train", variant="gpu", platform="linux/amd64", reference=f"127.0.0.1:1/team/model@{digest}",
        digest=digest, environment=digest,
    )  # fmt: skip
    lock = (trained / "lock/pylock.toml").read_bytes()
    stamp(str(trained / "model"), entry, manifest=manifest.read_bytes(), lock=lock, now=datetime.now(UTC))
    return Path(trained / "model")


@pytest.mark.parametrize("way", [(), ("--venv", "environment")])
def test_it_comes_up_as_its_cpu_variant_and_predicts_within_tolerance(model, engine, cache, tmp_path, way):
    venv = bool(way)
    host = f"unix://{tmp_path}/none.sock" if venv else engine.url
    ours = {"ENVBUILD_CACHE": str(cache / "envbuild"), "NO_COLOR": "1", "DOCKER_HOST": host}
    base = () if venv else ("--base", "debian:bookworm")
    done = subprocess.run(
        [sys.executable, "-m", "envbuild", "local", str(model), "--golden", *base, *way],
        cwd=tmp_path, env=cleaned(os.environ) | ours, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "largest difference" in done.stdout or "exactly" in done.stdout
    if not venv:
        assert "tensorflow 2.15.1 -> tensorflow-cpu 2.15.1" in done.stderr
        assert "nvidia-cublas-cu12" in done.stderr
