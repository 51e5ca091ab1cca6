"""`from-manifest MODEL --role serve`, as CI uses it: a real registry and engine, a real base, small wheels."""

import json
import time

import pytest

from envbuild.capture.files import present
from envbuild.capture.model import model_facts
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull
from envbuild.stamp.history import read_stamp
from tests.e2e.docker_builds import WHEELS, explained, wheel_folder
from tests.e2e.test_local import Local
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import manifest_of

pytestmark = pytest.mark.real
NUMPY, NEWER = make_wheel("numpy", "1.26.4"), make_wheel("numpy", "2.1.0", {"numpy/__init__.py": "two = 2"})
WEB = make_wheel("web", "1.0", {"web.py": "def answer(): return b'{\"predictions\": [42]}'"})
GREEDY = make_wheel("greedy", "3.0", requires=["numpy>=2"])
RUN = (("tensorflow-cpu", "2.15.1"), ("tool", "1.0"), ("numpy", "1.26.4"))
APP = """
import os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
import numpy, tool, web

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(web.answer())

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
HTTPServer(("0.0.0.0", int(os.environ.get("AIP_HTTP_PORT", "8080"))), Handler).serve_forever()
"""
ASK = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/', timeout=5).read().decode())"


class Serving(Local):
    """A folder with a model that was trained on small wheels, and an application."""

    __slots__ = ()

    def trained(self) -> str:
        """Build, push and stamp; the reference by digest."""
        wheel_folder(self.folder.parent / "wheels", *WHEELS, NUMPY, NEWER, WEB, GREEDY)
        (self.folder / "model/variables").mkdir()
        (self.folder / "model/variables/variables.index").write_bytes(b"weights")
        self.write(manifest_of(*RUN, model=present(model_facts(str(self.folder / "model")))))
        (self.folder / "app").mkdir()
        (self.folder / "app/serve.py").write_text(APP)
        done = self.command(
            *("from-manifest", "manifest.json", "--base", "debian:bookworm", *self.links),
            *("--push", f"{self.repository}:trained", "--stamp", "model", "--out", self.folder.parent / "out"),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def links(self) -> tuple[str, ...]:
        return ("--find-links", str(self.folder.parent / "wheels"), "--offline")

    def serve(self, *words: str):
        app = ("--app", "app", "--cmd", "python /app/serve.py", *self.links)
        done = self.command("from-manifest", "model", "--role", "serve", *app, *words)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def has(self, tag: str) -> bool:
        reference = Reference.parse(f"{self.repository}:{tag}")
        with Registry(reference.registry) as registry:
            return registry.manifest_digest(reference.repository, tag) is not None

    def answer(self, reference: str) -> str:
        """What the image's server says, in a container that the engine pulled by digest."""
        self.engine.pull(reference)
        container = self.engine.client.containers.run(reference, detach=True)
        try:
            for _ in range(100):
                code, said = container.exec_run(["/opt/env/bin/python", "-c", ASK])
                if code == 0:
                    return said.decode().strip()
                time.sleep(0.1)
            raise AssertionError(container.logs().decode())
        finally:
            container.remove(force=True)


@pytest.fixture
def site(tmp_path, engine, registry, cache):
    return Serving(folder=tmp_path / "mein Ordner ü", engine=engine, host=registry.host, cache=cache)


def test_a_model_is_served_by_its_training_image_with_layers_on_top(site):
    trained = site.trained()
    push = ("--extra", "web", "--gate", "require", "--push", f"{site.repository}:served")
    done = site.serve(*push, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["parent"], result["added"], result["found"]) == (trained, ["web==1.0"], False)
    assert all(it["agrees"] for it in result["findings"] if it["severity"] == "error"), result["findings"]
    train, serve = (pull(Reference.parse(it), machine="x86_64") for it in (trained, result["image"]))
    assert [it.descriptor.digest for it in serve.layers[: len(train.layers)]] == [
        it.descriptor.digest for it in train.layers
    ]
    assert site.answer(result["image"]) == '{"predictions": [42]}'
    stamp = read_stamp(str(site.folder / "model"))
    assert stamp is not None
    assert [(it.role, it.reference) for it in stamp.images] == [("serve", result["image"]), ("train", trained)]
    verified = site.command("verify", "model")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    again = site.serve(*push, "--json")
    found = json.loads(again.stdout)
    assert (found["found"], found["digest"], found["stamped"]) == (True, result["digest"], result["stamped"])
    assert "0 bytes sent to the registry" in again.stderr
    assert site.containers() == []


def test_what_would_move_a_pin_or_is_another_model_is_refused_and_nothing_is_left(site):
    site.trained()
    before = read_stamp(str(site.folder / "model"))
    moved = explained(site.serve("--extra", "greedy", "--push", f"{site.repository}:served"), 12, "numpy>=2")
    assert "1.26.4" in moved
    assert "greedy" in moved
    (site.folder / "model/variables/variables.index").write_bytes(b"another model")
    explained(site.serve("--push", f"{site.repository}:served"), 16, "variables/variables.index")
    assert read_stamp(str(site.folder / "model")) == before
    assert not site.has("served")


@pytest.mark.slow
def test_a_server_that_does_not_start_is_neither_pushed_nor_stamped(site):
    site.trained()
    before = read_stamp(str(site.folder / "model"))
    (site.folder / "app/serve.py").write_text("raise SystemExit('no model here')\n")
    said = explained(site.serve("--gate", "require", "--push", f"{site.repository}:served"), 16, "gate")
    assert "no model here" in said
    assert read_stamp(str(site.folder / "model")) == before
    assert not site.has("served")
