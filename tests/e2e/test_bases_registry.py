"""Bases in Debian's docker-registry: mirrored, mounted, known without being read, and swapped under an environment."""

import json
import socket
import socketserver
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.image.assembler import assemble
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.formats import pylock_text
from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    Image,
    canonical_json,
    manifest_bytes,
)
from envbuild.oci.reference import Reference
from envbuild.recipe import PYTHON_LABEL, Base, Recipe
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from envbuild.report import SILENT
from envbuild.retry import Retry
from tests.e2e import services
from tests.fakes.images import docker_manifest_of
from tests.fakes.trees import layer_of_tree
from tests.fakes.wheels import make_wheel
from tests.layers import WheelFiles
from tests.unit.test_assemble import locked

pytestmark = pytest.mark.real
FAST = Retry(first=0.05)
WHEEL = make_wheel("answer", "1.0", files={"answer.py": "import sys\nVALUE = 42\n"})
SMALL = 64 << 10
"""Bytes: manifests, configs and headers; the smallest layer of a base is much larger."""


class Counting(socketserver.ThreadingTCPServer):
    """A way to the registry that counts the bytes of both directions."""

    def __init__(self, registry: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        host, _, port = registry.partition(":")
        self.there = host, int(port)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.moved = 0
        """Bytes, up and down."""


class _Passing(socketserver.BaseRequestHandler):
    server: Counting

    def handle(self) -> None:
        with socket.create_connection(self.server.there) as there:
            down = threading.Thread(target=self._pass, args=(there, self.request))
            down.start()
            self._pass(self.request, there)
            down.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self.server.lock:
                    self.server.moved += len(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def counting(registry: str) -> Iterator[Counting]:
    """`registry` under another name, `.host`, that counts from now on."""
    with Counting(registry) as way:
        threading.Thread(target=way.serve_forever, args=(0.02,)).start()
        try:
            yield way
        finally:
            way.shutdown()


@pytest.fixture(scope="module")
def bookworm(cache) -> Base:
    return resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=no_pull, report=SILENT)


def no_pull(reference: Reference, machine: str) -> Image:
    raise AssertionError(f"{reference} for {machine} is not to be pulled")


def patched(image: Image, text: bytes = b"yes") -> Image:
    """The base with one more layer, as a fix would come."""
    layers = (*image.layers, layer_of_tree({"etc/patched": text}))
    config = json.loads(image.config)
    config["rootfs"]["diff_ids"].append(str(layers[-1].diff_id))
    config["history"].append({"created_by": "a fix"})
    data = canonical_json(config)
    return Image(manifest_bytes(data, layers, {}), data, layers)


@pytest.fixture(scope="module")
def upstream(registry, bookworm) -> str:
    """A repository with a base, `:1` of bookworm, and `:2`, which is patched."""
    name = f"{registry.host}/up/{uuid.uuid4().hex}"
    push(bookworm.image, Reference.parse(f"{name}:1"), retry=FAST)
    push(patched(bookworm.image), Reference.parse(f"{name}:2"), retry=FAST)
    return name


def manifest_of(reference: str) -> bytes:
    found = Reference.parse(reference)
    with Registry(found.registry, retry=FAST) as client:
        return client.manifest(found.repository, found.target).data


def base_at(name: str, cache: Path, **more) -> Base:
    return resolve_base(
        name,
        machine="x86_64",
        cache=cache,
        pull=lambda reference, machine: pull(reference, machine=machine, retry=FAST),
        report=SILENT,
        **more,
    )


def test_a_mirror_in_the_same_registry_moves_no_layer_and_has_the_same_digest(upstream, registry, envbuild, tmp_path):
    with counting(registry.host) as way:
        repository = upstream.partition("/")[2]
        source, target = f"{way.host}/{repository}:1", f"{way.host}/mirror/{uuid.uuid4().hex}"
        printed = envbuild("base", "mirror", source, target, env={"ENVBUILD_CACHE": str(tmp_path)}).stdout.strip()
        assert way.moved < SMALL
    digest = Digest.of(manifest_of(f"{upstream}:1"))
    assert printed == f"{target}@{digest}"
    for name in (printed.replace(way.host, registry.host), f"{target.replace(way.host, registry.host)}:1"):
        assert Digest.of(manifest_of(name)) == digest


def test_an_index_with_dockers_words_goes_to_another_registry_byte_for_byte(upstream, registry, envbuild, tmp_path):
    images = [pull(Reference.parse(f"{upstream}:{tag}"), machine="x86_64", retry=FAST) for tag in "12"]
    entries: list[dict[str, Any]] = []
    with Registry(registry.host, retry=FAST) as client:
        repository = upstream.partition("/")[2]
        for image, architecture in zip(images, ("amd64", "arm64"), strict=True):
            data = docker_manifest_of(image)
            client.put_manifest(repository, str(Digest.of(data)), data, DOCKER_MANIFEST)
            platform = {"os": "linux", "architecture": architecture}
            entries.append({"mediaType": DOCKER_MANIFEST, "digest": str(Digest.of(data)), "size": len(data), "platform": platform})  # fmt: skip
        index = canonical_json({"schemaVersion": 2, "mediaType": DOCKER_INDEX, "manifests": entries})
        client.put_manifest(repository, "index", index, DOCKER_INDEX)
    with services.running_registry() as other:
        command = ("base", "mirror", f"{upstream}:index", f"{other.host}/mine", "--json")
        first, second = (
            json.loads(envbuild(*command, env={"ENVBUILD_CACHE": str(tmp_path / "cache")}).stdout) for _ in range(2)
        )
        assert (first["sent"] > SMALL, second["sent"], second["existing"]) == (True, 0, first["sent"])
        assert manifest_of(second["image"]) == index
        assert second["digest"] == str(Digest.of(index))
        for entry in entries:
            assert str(Digest.of(manifest_of(f"{other.host}/mine@{entry['digest']}"))) == entry["digest"]
        blobs = [it for it in (other.folder / "docker/registry/v2/blobs").rglob("data") if it.stat().st_size > SMALL]
        assert len(blobs) == len(images[0].layers), "the second image adds small ones only"
        base = base_at(second["image"], tmp_path / "cache")
        assert (base.digest, base.mirror_of) == (Digest.parse(entries[0]["digest"]), f"{upstream}:index")


def test_show_tells_what_a_base_has(upstream, envbuild, bookworm):
    shown = json.loads(envbuild("base", "show", f"{upstream}:1", "--json").stdout)
    assert shown["digest"] == str(bookworm.digest)
    assert (shown["python"], shown["glibc"]) == (bookworm.target.python, "2.36")
    assert shown["size"] == sum(layer.descriptor.size for layer in bookworm.image.layers)


def environment_on(base: Base, folder: Path) -> tuple[Image, Lock]:
    """An environment of one wheel, and its lock."""
    folder.mkdir(exist_ok=True)
    wheel = replace(locked(WHEEL), url=f"https://index.invalid/{WHEEL.filename}")
    lock = Lock(target=base.target, wheels=(wheel,))
    recipe = Recipe(
        base_name=base.name,
        base_digest=base.digest,
        base_asked=base.asked,
        python_path=base.python_path,
        target=base.target,
        wheels=lock.wheels,
        variables=(("ANSWER", "yes"),),
        labels=((PYTHON_LABEL, base.target.python),),
    )
    (folder / WHEEL.filename).write_bytes(WHEEL.data)
    files = WheelFiles({wheel.sha256: folder / WHEEL.filename})
    return assemble(recipe, base, files, LayerCache(folder / "cache")).image, lock


def test_a_rebased_image_is_the_one_that_building_gives_moves_nothing_and_runs(
    upstream, registry, engine, envbuild, tmp_path
):
    with counting(registry.host) as way:
        base = f"{way.host}/{upstream.partition('/')[2]}"
        name = f"{way.host}/rebased/{uuid.uuid4().hex}"
        image, lock = environment_on(base_at(f"{base}:1", tmp_path / "cache"), tmp_path / "made")
        old = push(image, Reference.parse(f"{name}:v1"), retry=FAST)
        (tmp_path / "pylock.toml").write_bytes(pylock_text(lock))
        new = base_at(f"{base}:2", tmp_path / "cache")
        way.moved = 0
        done = envbuild(
            "rebase", old.reference, "--base", f"{base}:2", "--lock", tmp_path / "pylock.toml", "--push", f"{name}:v2",
            "--json", env={"ENVBUILD_CACHE": str(tmp_path / "cache")},
        )  # fmt: skip
        assert way.moved < SMALL
        result = json.loads(done.stdout)
        assert result["digest"] == str(environment_on(new, tmp_path / "anew")[0].digest)
    here = name.replace(way.host, registry.host)
    assert manifest_of(f"{here}:v2") == manifest_of(f"{here}@{result['digest']}")
    assert Digest.of(manifest_of(f"{here}:v1")) == image.digest, "the old one stays where it was"
    engine.pull(f"{here}:v2")
    code = "import answer, os; print(answer.VALUE, os.environ['ANSWER'], open('/etc/patched').read(), os.getuid())"
    assert engine.run(f"{here}:v2", ["python", "-c", code]).split() == ["42", "yes", "yes", "65532"]


def test_a_rebase_into_another_registry_copies_blob_by_blob(upstream, envbuild, engine, tmp_path):
    image, _ = environment_on(base_at(f"{upstream}:1", tmp_path / "cache"), tmp_path / "made")
    old = push(image, Reference.parse(f"{upstream}/env:v1"), retry=FAST)
    with services.running_registry() as other:
        printed = envbuild(
            "rebase", old.reference, "--base", f"{upstream}:2", "--push", f"{other.host}/env:v1",
            env={"ENVBUILD_CACHE": str(tmp_path / "cache")},
        ).stdout.strip()  # fmt: skip
        engine.pull(printed)
        assert engine.run(printed, ["cat", "/etc/patched"]) == "yes"
        assert "dev.envbuild.environment" not in json.loads(manifest_of(printed))["annotations"]


def test_a_base_with_another_python_is_refused(upstream, envbuild, tmp_path):
    image, _ = environment_on(base_at(f"{upstream}:1", tmp_path / "cache"), tmp_path / "made")
    old = push(image, Reference.parse(f"{upstream}/env:v2"), retry=FAST)
    done = envbuild("rebase", old.reference, "--base", "debian:trixie", check=False)
    assert (done.returncode, done.stdout) == (13, "")
    assert "its Python is 3.13, not 3.11" in done.stderr
