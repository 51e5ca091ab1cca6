"""Layouts, archives, engines and indexes, as the tools that people have read them."""

import io
import json
import re
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import docker
import pytest
from docker.errors import ImageNotFound

from envbuild.build.outputs import load_into_engine
from envbuild.engine.load import load_into
from envbuild.errors import BuildError, RegistryError, UsageError
from envbuild.oci.blobs import is_blob
from envbuild.oci.image import Image, image_index
from envbuild.oci.layout import Archive, write_archive, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.registry.push import push_index
from envbuild.report import SilentReporter
from tests.e2e.services import command_output, podman_places, running
from tests.fakes.images import image_of

pytestmark = pytest.mark.real


def tar_of(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 1 << 16
            archive.addfile(entry, io.BytesIO(uuid.uuid5(uuid.NAMESPACE_OID, name).bytes * (1 << 12)))
    return buffer.getvalue()


def image(*layers: str, architecture: str = "amd64") -> Image:
    """An image whose layers have a file each; the same name twice gives the same layer twice."""
    return image_of([tar_of(name) for name in layers], architecture=architecture)


def never_opened():
    raise AssertionError("opened")


class Told(SilentReporter):
    """A Report that remembers."""

    def __init__(self) -> None:
        self.progresses: list[tuple[int, int | None]] = []

    def step(self, text: str) -> None:
        pass

    note = step

    def progress(self, label: str, done: int, total: int | None) -> None:
        self.progresses.append((done, total))


@pytest.fixture
def name() -> Reference:
    return Reference("example.com", f"outputs/{uuid.uuid4().hex}", "v1")


@pytest.fixture
def fresh() -> str:
    """A word that no image of another test has in its layers."""
    return uuid.uuid4().hex


@pytest.fixture(scope="session")
def podman_command():
    """How podman is called for a store of our own; its folder has a short name, as podman wants it."""
    with tempfile.TemporaryDirectory(prefix="podman-") as folder:
        yield podman_places(Path(folder), "vfs")


@pytest.fixture(scope="session")
def podman(podman_command, tmp_path_factory):
    """A client of podman's socket, for the same store."""
    folder = tmp_path_factory.mktemp("podman")
    socket = folder / "podman.sock"
    command = [*podman_command, "system", "service", "--time", "0", f"unix://{socket}"]
    with running(command, folder / "log", lambda: socket.is_socket() or None):
        client = docker.DockerClient(base_url=f"unix://{socket}", timeout=120)
        yield client
        client.close()


def test_an_engine_gets_the_image_under_its_names(engine, name, fresh):
    ours, told = image(fresh, "b", fresh), Told()
    other = replace(name, tag="other")
    done = load_into(engine.client, ours, [name, other], told)
    assert (done.id, done.existing) == (str(ours.config_digest), 0)
    assert told.progresses[-1] == (done.sent, done.sent)
    for one in (name, other):
        found = engine.client.images.get(str(one))
        assert found.id == done.id
        assert found.attrs["RootFS"]["Layers"] == [str(layer.diff_id) for layer in ours.layers]


def test_an_engine_that_has_the_image_only_gets_its_name(engine, name, fresh):
    ours, told = image(fresh), Told()
    load_into(engine.client, ours, [name], told)
    told.progresses.clear()
    again = load_into(engine.client, ours, [replace(name, tag=None)], told)
    assert (again.sent, again.existing, told.progresses) == (0, ours.layers[0].descriptor.size, [])
    assert engine.client.images.get(f"{name.name}:latest").id == again.id


def test_an_engine_gets_only_the_layers_that_it_lacks(engine, name, fresh):
    first = image(fresh, "below", "old")
    load_into(engine.client, first, [name], Told())
    second = image(fresh, "below", "new")
    shared, unread = second.layers[:2], replace(second.layers[0], open=never_opened)
    done = load_into(engine.client, replace(second, layers=(unread, *second.layers[1:])), [name], Told())
    assert done.existing == sum(layer.descriptor.size for layer in shared)
    assert done.sent < Archive(second, (name,)).size
    listed = engine.client.api.inspect_image(done.id)["RootFS"]["Layers"]
    assert listed == [str(layer.diff_id) for layer in second.layers]


def test_an_engine_that_loses_layers_meanwhile_gets_them_all(engine, name, fresh):
    """While it gets the rest, somebody removes the image that had them."""
    had = load_into(engine.client, image(fresh), [], Told())
    ours = image(fresh, "rest")

    def opened() -> BinaryIO:
        with suppress(ImageNotFound):
            engine.client.images.remove(had.id)
        return ours.layers[1].open()

    told = Told()
    done = load_into(
        engine.client, replace(ours, layers=(ours.layers[0], replace(ours.layers[1], open=opened))), [name], told
    )
    whole = Archive(ours, (name,)).size
    assert (done.id, done.existing, done.sent) == (str(ours.config_digest), 0, whole)
    assert {total for _, total in told.progresses} == {
        whole,
        Archive(ours, (name,), frozenset({ours.layers[0].descriptor.digest})).size,
    }


def test_of_an_index_an_engine_gets_its_own_platform(engine, name, fresh):
    own = str(engine.client.version()["Arch"])
    images = [image(fresh, architecture=one) for one in ("amd64", "arm64", "s390x")]
    done = load_into(engine.client, image_index(images), [name], Told())
    assert engine.client.api.inspect_image(done.id)["Architecture"] == own
    others = [one for one in images if one.config_digest != done.image.config_digest]
    with pytest.raises(UsageError, match=rf"linux/{own}"):
        load_into(engine.client, image_index(others), [name], Told())


def test_what_an_engine_refuses_is_told_and_gets_no_name(engine, podman, name, fresh):
    for client in (engine.client, podman):
        with pytest.raises(BuildError, match="invalid tar header"):
            load_into(client, image_of([fresh.encode() * 99]), [name], Told())
        with pytest.raises(ImageNotFound):
            client.images.get(str(name))


def test_a_wrong_layer_and_ctrl_c_leave_an_engine_without_the_image(engine, podman, name, fresh):
    def interrupted():
        raise KeyboardInterrupt

    ours = image(fresh)
    wrong, stopped = (
        replace(ours, layers=(replace(ours.layers[0], open=one),)) for one in (lambda: io.BytesIO(b"x"), interrupted)
    )
    for client in (engine.client, podman):
        with pytest.raises(BuildError, match="has the digest"):
            load_into(client, wrong, [name], Told())
        with pytest.raises(KeyboardInterrupt):
            load_into(client, stopped, [name], Told())
        for absent in (str(name), str(ours.config_digest)):
            with pytest.raises(ImageNotFound):
                client.images.get(absent)


def test_podmans_socket_takes_images_and_names(podman, name, fresh):
    ours = image(fresh, "b", fresh)
    done = load_into(podman, ours, [name], Told())
    assert done.id == str(ours.config_digest)
    again = load_into(podman, ours, [replace(name, tag="two")], Told())
    assert (again.id, again.sent) == (done.id, 0)
    assert {str(name), f"{name.name}:two"} <= set(podman.images.get(done.id).tags)
    # podman wants every layer, also those that it has.
    assert load_into(podman, image(fresh, "c"), [replace(name, tag="three")], Told()).existing == 0


def test_the_engine_of_this_machine_is_the_one_that_gets_it(engine, name, fresh, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    ours = image(fresh)
    assert load_into_engine(name, ours, Told()).id == engine.client.images.get(str(name)).id


def test_docker_loads_the_archive(engine, name, fresh, tmp_path):
    ours = image(fresh, "b", fresh)
    write_archive(ours, tmp_path / "a.tar", [name])
    command_output("docker", "--host", engine.url, "load", "--input", str(tmp_path / "a.tar"))
    found = engine.client.images.get(str(name))
    assert (found.id, found.tags) == (str(ours.config_digest), [str(name)])


def test_podman_skopeo_and_umoci_read_the_archive_and_the_layout(podman_command, name, tmp_path):
    ours, path, layout = image("a", "b", "a"), tmp_path / "a.tar", tmp_path / "layout"
    write_archive(ours, path, [name])
    write_layout(ours, layout, name="latest")
    for source in (f"oci-archive:{path}", f"oci-archive:{path}:{name}", f"oci:{layout}:latest"):
        assert json.loads(command_output("skopeo", "inspect", source))["Digest"] == str(ours.digest)
    command_output("skopeo", "copy", "--quiet", f"docker-archive:{path}:{name}", f"dir:{tmp_path / 'dir'}")
    copied = json.loads((tmp_path / "dir/manifest.json").read_bytes())
    assert copied["config"]["digest"] == str(ours.config_digest)
    command_output(*podman_command, "load", "--quiet", "--input", str(path))
    found = json.loads(command_output(*podman_command, "image", "inspect", str(name)))
    assert found[0]["Id"] == ours.config_digest.hex
    command_output("umoci", "unpack", "--rootless", "--image", f"{layout}:latest", str(tmp_path / "unpacked"))
    assert {one.name for one in (tmp_path / "unpacked/rootfs").iterdir()} == {"a", "b"}


def test_containerd_imports_the_archive_of_an_index(name, tmp_path):
    """Docker's image store is containerd's, and reads the archive with its code."""
    index = image_index([image("a"), image("a", architecture="arm64")])
    write_archive(index, tmp_path / "a.tar", [name])
    with running_containerd(tmp_path) as ctr:
        command_output(*ctr, "images", "import", "--no-unpack", str(tmp_path / "a.tar"))
        listed = command_output(*ctr, "images", "ls")
    assert re.search(rf"^{re.escape(str(name))} +\S+ +{index.digest} .* linux/amd64,linux/arm64 ", listed, re.MULTILINE)


@contextmanager
def running_containerd(folder: Path) -> Iterator[list[str]]:
    """A containerd of our own; yield how to call `ctr` for it."""
    socket, config = folder / "containerd.sock", folder / "containerd.toml"
    lines = [
        "version = 2",
        f'root = "{folder / "containerd-root"}"',
        f'state = "{folder / "containerd-state"}"',
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]',
        f'[grpc]\naddress = "{socket}"',
    ]
    config.write_text("\n".join(lines))
    command = ["containerd", "--config", str(config)]
    with running(command, folder / "containerd.log", lambda: socket.is_socket() or None):
        yield ["ctr", "--address", str(socket)]


def test_others_change_a_layout_without_changing_the_cache(tmp_path, name):
    """Tools that write into a layout replace names; they do not write into blobs."""
    cached = tmp_path / "cached"
    ours = image("a")
    with ours.layers[0].open() as file:
        cached.write_bytes(file.read())
    layer = replace(ours.layers[0], path=cached, open=lambda: cached.open("rb"))
    layout = tmp_path / "layout"
    write_layout(replace(ours, layers=(layer,)), layout, name="latest")
    state = cached.stat()
    write_archive(image("other"), tmp_path / "other.tar", [name])
    command_output("skopeo", "copy", "--quiet", f"oci-archive:{tmp_path / 'other.tar'}", f"oci:{layout}:more")
    command_output("umoci", "config", "--image", f"{layout}:latest", "--config.env", "A=b")
    command_output("umoci", "gc", "--layout", str(layout))
    shutil.rmtree(layout)
    assert (cached.stat().st_mtime_ns, cached.stat().st_size) == (state.st_mtime_ns, state.st_size)
    assert is_blob(cached, layer.descriptor)


def test_an_index_goes_to_a_registry_and_each_machine_gets_its_image(registry, engine, tmp_path):
    place = Reference(registry.host, f"outputs/{uuid.uuid4().hex}", "v1")
    amd, arm = image("a", "b"), image("a", "c", architecture="arm64")
    index = image_index([arm, amd], {"dev.envbuild.test": "1"})
    done = push_index(index, place)
    assert str(done.reference) == f"{place.name}@{index.digest}"
    assert done.not_sent > 0  # the layer that both have
    for machine, one in (("x86_64", amd), ("aarch64", arm)):
        for target in (place, done.reference):
            assert pull(target, machine=machine).digest == one.digest
    inspect = ("skopeo", "inspect", "--tls-verify=false", "--raw", f"docker://{place}")
    assert command_output(*inspect).encode().rstrip(b"\n") == index.data
    own = amd if engine.client.version()["Arch"] == "amd64" else arm
    assert engine.pull(str(place)).id == str(own.config_digest)
    again = push_index(index, place)
    assert (again.uploaded, again.not_sent) == (0, done.uploaded + done.not_sent)


def test_a_failed_push_of_an_index_leaves_no_tag(registry):
    place = Reference(registry.host, f"outputs/{uuid.uuid4().hex}", "v1")
    amd, arm = image("a"), image("b", architecture="arm64")
    broken = replace(arm, layers=(replace(arm.layers[0], open=lambda: io.BytesIO(b"x")),))
    with pytest.raises(BuildError):
        push_index(image_index([amd, broken]), place)
    with pytest.raises(UsageError, match="not what the reference says"):
        push_index(image_index([amd, arm]), place.at(amd.digest))
    with pytest.raises(RegistryError) as caught:
        pull(place, machine="x86_64")
    assert caught.value.status == 404
