"""The whole command with a wheel so large that its layer is sent while it is made: what goes over the wire, and when."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry, Request
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site, manifest_of

OTHER_TOOL = make_wheel("tool", "1.1", {"tool.py": "b = 2\n"})


@pytest.fixture(scope="module")
def index():
    data = {"heavy/data.bin": random.Random(1).randbytes(64 << 20)}
    heavy = make_wheel("heavy", "1.0", data, method=zipfile.ZIP_STORED)
    with serving(TENSORFLOW, TOOL, OTHER_TOOL, heavy) as index:
        yield index


class HeavySite(Site):
    """A run with the heavy wheel; `push` takes a version of the small one, and other options."""

    def push(self, registry: FakeRegistry, tool: str = "1.0", *options: str) -> dict[str, Any]:
        run = manifest_of(("tensorflow-cpu", "2.15.1"), ("heavy", "1.0"), ("tool", tool))
        self.manifest.write_text(json.dumps(run))
        done = self.build("--push", f"{registry.host}/team/model", "--json", *options)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def forget(self) -> None:
        """Let this machine be one that made no layer."""
        for name in ("blobs", "layers", "notes"):
            shutil.rmtree(self.folder / "cache" / name)


@pytest.fixture
def site(tmp_path: Path, index) -> HeavySite:
    return HeavySite(tmp_path, index.url)


def large(registry: FakeRegistry) -> list[Request]:
    """The uploads of heavy layers by one request of known length."""
    return [it for it in registry.seen("PUT", "uploads/") if int(it.headers["content-length"]) > 64 << 20]


def test_a_heavy_layer_goes_while_it_is_made_and_once(site):
    with FakeRegistry() as registry:
        first = site.push(registry)
        assert len(registry.seen("PATCH")) == 1
        site.forget()
        assert site.push(registry, "1.1")["digest"] != first["digest"]
        assert len(registry.seen("PATCH")) == 1
    with FakeRegistry() as other:
        site.forget()
        other.fail("PATCH", status=405)
        assert site.push(other)["digest"] == first["digest"]


def test_the_layer_is_published_before_the_rest_can_fail(site):
    with FakeRegistry() as registry:
        registry.fail("PUT", "/manifests/sha256:", status=403)
        with pytest.raises(AssertionError):
            site.push(registry)
        assert len(registry.seen("PATCH")) == 1
        assert not [tag for tag in registry.tags if not tag.startswith(("team/model:layer-", "team/model:fact-"))]
        site.forget()
        site.push(registry)
        assert len(registry.seen("PATCH")) == 1, "it was known to be there"


def test_a_registry_that_names_no_layers_is_asked_for_each_by_digest(site):
    with FakeRegistry() as registry:
        registry.fail("PUT", "/manifests/(layer|fact)-", status=400, times=999)
        site.push(registry)
        site.forget()
        site.push(registry, "1.1")
        assert len(registry.seen("PATCH")) == 1, "the repository was empty then"
        assert not large(registry)


def test_after_a_build_without_the_remote_cache_nothing_is_sent_twice(site):
    with FakeRegistry() as registry:
        site.push(registry, "1.0", "--no-remote-cache")
        site.forget()
        site.push(registry, "1.1")
        assert not registry.seen("PATCH")
        assert len(large(registry)) == 1


def test_a_registry_that_does_not_list_its_tags_is_asked_for_each_by_digest(site):
    with FakeRegistry() as registry:
        registry.fail("GET", "/tags/list", status=403)
        site.push(registry)
        assert not registry.seen("PATCH")


def test_ctrl_c_does_not_wait_for_a_registry_that_keeps_its_answer_about_a_key(site):
    with FakeRegistry() as registry:
        registry.fail("HEAD", "/manifests/layer-", kind="stall", times=99)
        command = [
            sys.executable,
            "-m",
            "envbuild",
            "from-manifest",
            str(site.manifest),
            "--base",
            str(site.folder / "base"),
        ]
        run = manifest_of(("tensorflow-cpu", "2.15.1"), ("heavy", "1.0"), ("tool", "1.0"))
        site.manifest.write_text(json.dumps(run))
        env = os.environ | {"UV_DEFAULT_INDEX": site.index, "ENVBUILD_CACHE": str(site.folder / "cache")}
        with subprocess.Popen([*command, "--push", f"{registry.host}/team/model"], cwd=site.folder, env=env) as process:
            while not registry.seen("HEAD", "/manifests/layer-"):
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert process.wait(60) == 130
            assert time.monotonic() - began < 20
    assert not [tag for tag in registry.tags if ":env-" in tag]


def test_a_registry_that_could_not_be_asked_is_asked_for_each_by_digest(site):
    with FakeRegistry() as registry:
        registry.fail("GET", "/manifests/layer-", status=403, times=1)
        site.push(registry)
        assert not registry.seen("PATCH")
