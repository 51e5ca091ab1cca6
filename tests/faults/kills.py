"""Builds that are killed at a random moment: the next one succeeds, with a cache in which everything is true."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass

from envbuild.oci.layout import read_layout
from tests.faults.site import Site, check_cache, require, tags_of


@dataclass(frozen=True, kw_only=True)
class Killed:
    """How one went."""

    after: float
    """Seconds from its start."""
    finished: bool
    """Whether it had ended by itself."""
    checked: int
    """Files of the cache that were held against their names."""
    next_took: float
    """Seconds that the build after it took."""


def typical(site: Site) -> float:
    """Seconds that a build takes from nothing."""
    began = time.monotonic()
    done = site.build("--out", "timed", cache="timed-cache")
    require(done.returncode == 0, done.stderr)
    return time.monotonic() - began


def run(seed: int, site: Site, host: str, within: float) -> Killed:
    """Kill a build, look at what it left, and build again; the next seed may go on with the same cache."""
    chosen, right = random.Random(seed), str(site.image().digest)
    if chosen.random() < 0.6:
        shutil.rmtree(site.folder / "killed-cache", ignore_errors=True)
    repository, out, after = f"kills/{uuid.uuid4().hex[:12]}", f"killed-{seed}", chosen.uniform(0.1, within)
    where = ["--out", out, *(["--push", f"{host}/{repository}:v1"] if seed % 2 else [])]
    finished = _kill(site, where, after)
    _check_left(site, host, repository, out, right)
    count = check_cache(site.folder / "killed-cache")
    began = time.monotonic()
    done = site.build(*where, cache="killed-cache")
    took = time.monotonic() - began
    require(done.returncode == 0, f"seed {seed}: {done.stderr}")
    require(json.loads(done.stdout)["digest"] == right, f"seed {seed}: {done.stdout}")
    count += check_cache(site.folder / "killed-cache")
    _check_left(site, host, repository, out, right)
    if seed % 2:
        require(tags_of(host, repository)["v1"] == right, f"seed {seed}")
    else:
        require(str(read_layout(site.folder / out, machine="x86_64").digest) == right, f"seed {seed}")
    shutil.rmtree(site.folder / out, ignore_errors=True)
    return Killed(after=after, finished=finished, checked=count, next_took=took)


def _kill(site: Site, where: list[str], after: float) -> bool:
    """Start a build and kill it with all of its children; whether it had ended before."""
    process = subprocess.Popen(
        site.command(*where), cwd=site.folder, env=site.environment("killed-cache"), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True


def _check_left(site: Site, host: str, repository: str, out: str, right: str) -> None:
    """No tag but of the whole right image, no layout but a whole one."""
    named = {name: digest for name, digest in tags_of(host, repository).items() if name == "v1" or "env-" in name}
    require(set(named.values()) <= {right}, f"{named}")
    if (site.folder / out / "index.json").exists():
        image = read_layout(site.folder / out, machine="x86_64")
        require(str(image.digest) == right, f"{out} has {image.digest}")
        for layer in image.layers:
            with layer.open() as file:
                require(layer.descriptor.digest.of_file(file)[0] == layer.descriptor.digest, f"{out}: {layer}")
