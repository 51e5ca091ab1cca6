"""Signed stamps with a real registry: from training to the deployment, and what a writer of folder and repository tries."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.attest.attach import AttestOptions, sign
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from tests.environ import cleaned
from tests.fakes.trees import image_of_layers, layer_of_tree
from tests.reporting import Recorder
from tests.unit.attesting import ANOTHER_RECORD, NOT_SIGNED, key_pair
from tests.unit.test_cli_bases import OLD
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of
from tests.unit.test_stamp import NOW

pytestmark = pytest.mark.real


class Place:
    """A model that was trained, stamped and made to serve with one key."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder, self.model, self.name = folder, folder / "model", f"{host}/signed"
        self.private, self.public = key_pair(folder)
        self.other, _ = key_pair(folder, "other")
        self.model.mkdir()
        (self.model / "saved_model.pb").write_bytes(b"graph")
        (folder / "app").mkdir()
        (folder / "app/main.py").write_text("print(1)")
        for wheel in (TENSORFLOW, TOOL):
            (folder / wheel.filename).write_bytes(wheel.data)
        (folder / "manifest.json").write_text(json.dumps(manifest_of()))
        self.base = str(push(OLD, Reference.parse(f"{host}/up/base:1")).reference)
        self.train = self.made(
            "manifest.json", "--base", self.base, "--push", f"{self.name}/train:1", "--stamp", "model"
        )
        self.first = self.served("print(1)")
        self.before = (self.model / "envbuild/pointer.json").read_bytes()
        self.serve = self.served("print(2)")

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        # No engine is asked: there is none at this address.
        env = cleaned(os.environ) | {"DOCKER_HOST": "tcp://127.0.0.1:9", "ENVBUILD_CACHE": str(self.folder / "cache")}
        command = [sys.executable, "-m", "envbuild", *map(str, words)]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    def made(self, *words: object) -> str:
        wheels = ("--offline", "--find-links", self.folder, "--out", self.folder / "out")
        done = self.run("from-manifest", *words, *wheels, "--sign", self.private)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def served(self, text: str) -> str:
        (self.folder / "app/main.py").write_text(text)
        serve = ("--role", "serve", "--app", "app", "--cmd", "python /app/main.py", "--gate", "off", "--no-bytecode")
        return self.made("model", *serve, "--push", f"{self.name}/serve:1")

    def evil(self, tag: str, key: Path | None = None) -> str:
        """What an attacker makes of the training image; its reference by digest."""
        image = pull(Reference.parse(self.train), machine="x86_64")
        layers = (*image.layers, layer_of_tree({"app/": 0o755, "app/main.py": tag.encode()}))
        made = image_of_layers(*layers, env=json.loads(image.config)["config"]["Env"])
        reference = push(made, Reference.parse(f"{self.name}/serve:{tag}")).reference
        if key:
            sign(reference, AttestOptions(key=str(key)), Recorder())
        return str(reference)

    def stamped(self, reference: str) -> None:
        """As anybody can who may write to the folder."""
        digest = Reference.parse(reference).digest
        assert digest
        entry = StampEntry(
            role="serve", variant="cpu", platform="linux/amd64", reference=reference, digest=digest,
            environment=Digest("e" * 64),
        )  # fmt: skip
        manifest, lock = (self.folder / it for it in ("manifest.json", "out/context/pylock.toml"))
        stamp(str(self.model), entry, manifest=manifest.read_bytes(), lock=lock.read_bytes(), now=NOW)

    @contextmanager
    def attacked(self) -> Iterator[None]:
        shutil.copytree(self.model, self.folder / "kept")
        try:
            yield
        finally:
            shutil.rmtree(self.model)
            (self.folder / "kept").rename(self.model)


@pytest.fixture(scope="module")
def place(tmp_path_factory, registry) -> Place:
    return Place(tmp_path_factory.mktemp("signed"), registry.host)


def test_what_the_key_vouched_for_is_deployed(place):
    done = place.run("deploy-check", "model", f"{place.name}/serve:1", "--signed", place.public, "--minimum-record", 3)
    assert (done.returncode, done.stdout) == (0, f"{place.serve}\n"), done.stderr
    assert place.run("verify", "model", "--signed", place.public).returncode == 0
    assert "record 3" in place.run("inspect", "model", "--signed", place.public).stdout


def test_what_the_key_did_not_vouch_for_is_not(place):
    evil = place.evil("evil", place.other)

    def refused(image: str, says: str, *more: object) -> None:
        done = place.run("deploy-check", "model", image, "--signed", place.public, *more)
        assert (done.returncode, done.stdout) == (16, ""), done.stderr
        assert says in " ".join(done.stderr.split()), done.stderr

    for image in (evil, place.evil("unsigned"), place.evil("signed", place.private)):
        refused(image, "the signed stamp does not name sha256:")
    refused(place.first, "the signed stamp does not name sha256:")  # another took its place
    with place.attacked():
        place.stamped(evil)
        assert place.run("deploy-check", "model", evil).returncode == 0  # without a key the stamp is believed
        refused(evil, NOT_SIGNED)
        bundle = next((place.model / "envbuild").glob("record-*.sigstore.json")).read_bytes()
        name = max((place.model / "envbuild").glob("record-*.json"), key=lambda it: it.stat().st_mtime_ns).stem
        (place.model / f"envbuild/{name}.sigstore.json").write_bytes(bundle)
        refused(evil, ANOTHER_RECORD)
    with place.attacked():
        (place.model / "envbuild/pointer.json").write_bytes(place.before)
        refused(place.first, "and record 3 is signed too")
        newest = json.loads((place.folder / "kept/envbuild/pointer.json").read_bytes())
        (place.model / newest["objects"]["saved_model.pb"]["metadata"]["envbuild-record"]).unlink()
        refused(place.first, "--minimum-record requires 3 or later", "--minimum-record", 3)
    serve = ("from-manifest", "model", "--role", "serve", "--app", "app", "--cmd", "python /app/main.py", "--dry-run")
    with place.attacked():
        place.stamped(evil)
        for words in (("verify", "model"), ("inspect", "model"), serve):
            done = place.run(*words, "--signed", place.public)
            assert (done.returncode, done.stdout) == (16, ""), (words, done.stderr)
        # The key does not sign what others wrote on the model, be it asked for as a new stamp.
        done = place.run(*serve[:-1], "--gate", "off", "--push", f"{place.name}/serve:2", "--sign", place.private)
        assert (done.returncode, done.stdout) == (16, ""), done.stderr
