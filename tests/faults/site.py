"""What the runs push: a small image of real wheels and a stand-in for the framework, and what must be true afterwards."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from envbuild.lock.download import fetch
from envbuild.lock.model import Target
from envbuild.lock.resolvers import UvResolver
from envbuild.oci.image import INDEX, MANIFEST, Image
from envbuild.oci.layout import read_layout, write_layout
from tests.environ import cleaned
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import make_wheel

_REAL = {"six": "1.17.0", "idna": "3.10", "pyyaml": "6.0.2", "certifi": "2025.8.3"}
_TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


class FaultError(AssertionError):
    """What must not happen."""


@dataclass(frozen=True)
class Site:
    """A folder with all that a build needs, and nothing that it asks a network for."""

    folder: Path

    def command(self, *arguments: str | Path) -> list[str]:
        """The command line of a build."""
        folder, words = self.folder, ["from-manifest", "manifest.json", "--base", "base", "--json"]
        places = ["--find-links", str(folder / "house"), "--offline"]
        return [sys.executable, "-m", "envbuild", *words, *places, *map(str, arguments)]

    def environment(self, cache: str) -> dict[str, str]:
        """A clean environment, with a cache of this name."""
        own = {
            "ENVBUILD_CACHE": str(self.folder / cache),
            "DOCKER_CONFIG": str(self.folder / "docker"),
            "NO_COLOR": "1",
        }
        root = str(Path(__file__).resolve().parents[2])
        return cleaned(os.environ) | own | {"PYTHONPATH": root, "HOME": str(self.folder)}

    def build(self, *arguments: str | Path, cache: str = "cache") -> subprocess.CompletedProcess[str]:
        """Run a build to its end; FaultError when it ends with a traceback."""
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment(cache), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        require("Traceback" not in done.stderr, done.stderr)
        return done

    def image(self) -> Image:
        """The image that every build has to give."""
        return read_layout(self.folder / "right", machine="x86_64")


def make_site(folder: Path) -> Site:
    """Fetch the real wheels, make the others, and build the image once."""
    house = folder / "house"
    house.mkdir(parents=True)
    (folder / "docker").mkdir()
    lock = UvResolver().resolve(tuple(f"{name}=={version}" for name, version in _REAL.items()), _TARGET)
    for wheel, path in fetch(lock.wheels, folder / "fetched"):
        shutil.copyfile(path, house / wheel.filename)
    library = random.Random(1).randbytes(5 << 20)
    tags = ["cp311-cp311-manylinux_2_17_x86_64"]
    framework = make_wheel("tensorflow-cpu", "2.15.1", {"tensorflow/x.so": library}, tags=tags, purelib=False)
    (house / framework.filename).write_bytes(framework.data)
    (folder / "manifest.json").write_text(json.dumps(_manifest()))
    write_layout(image_of_trees(BASE), folder / "base", name="base")
    site = Site(folder)
    done = site.build("--out", "right")
    require(done.returncode == 0, done.stderr)
    return site


def _manifest() -> dict[str, Any]:
    found = {"tensorflow-cpu": "2.15.1", **_REAL}
    return {
        "schema_version": "1.0",
        "created": "2026-11-21T12:00:00Z",
        "python": {"version": "3.11.7", "implementation": "cpython"},
        "platform": {"system": "Linux", "machine": "x86_64", "libc": "glibc", "libc_version": "2.36"},
        "distributions": [
            {"name": name, "version": version, "origin": {"kind": "index"}} for name, version in found.items()
        ],
        "framework": {"name": "tensorflow", "distribution": "tensorflow-cpu", "version": "2.15.1"},
        "cpu": {},
        "variables": {},
    }


def require(truth: bool, why: str) -> None:
    """FaultError unless it is so."""
    if not truth:
        raise FaultError(why)


def tags_of(host: str, repository: str) -> dict[str, str]:
    """Digest by tag, each image behind a tag whole: all of its bytes are there and are what their digests say."""
    with httpx.Client(base_url=f"http://{host}/v2/{repository}/", trust_env=False, timeout=60) as client:
        answer = client.get("tags/list")
        names = answer.json().get("tags") or [] if answer.status_code == 200 else []
        return {name: _whole(client, name) for name in names}


def _whole(client: httpx.Client, target: str) -> str:
    """Its digest, where it and all that it names is there; of an index that is each of its manifests."""
    answer = client.get(f"manifests/{target}", headers={"Accept": f"{MANIFEST}, {INDEX}"})
    require(answer.status_code == 200, f"{target} names a manifest that is not there")
    value: Mapping[str, Any] = answer.json()
    for entry in value.get("manifests", ()):
        require(_whole(client, entry["digest"]) == entry["digest"], f"{target} has another manifest than {entry}")
    for blob in (value["config"], *value["layers"]) if "config" in value else ():
        data = client.get(f"blobs/{blob['digest']}").content
        found = ("sha256:" + hashlib.sha256(data).hexdigest(), len(data))
        require(found == (blob["digest"], blob["size"]), f"{target} has a blob that is {found}, not {blob}")
    return "sha256:" + hashlib.sha256(answer.content).hexdigest()


def check_cache(folder: Path) -> int:
    """Hash all that lies in a cache under the name of its content; how many files that were."""
    count = 0
    for path in (*folder.glob("blobs/sha256/*"), *folder.glob("wheels/*/*.whl")):
        name = path.name.removesuffix(".whl")
        require(hashlib.sha256(path.read_bytes()).hexdigest() == name, f"{path} is not what its name says")
        count += 1
    for path in folder.glob("layers/*.json"):
        value = json.loads(path.read_bytes())["entry"]["value"]
        blob = folder / "blobs/sha256" / value["digest"].removeprefix("sha256:")
        require(not blob.exists() or blob.stat().st_size == value["size"], f"{path} is of another blob")
        count += 1
    return count
