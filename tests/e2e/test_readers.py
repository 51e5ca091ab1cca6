"""What is pushed is what others read: skopeo, umoci and podman, with everything recomputed. (Docker: test_end_to_end.)"""

import gzip
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_ZSTD
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.oci.rootfs import contents, read_tree
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from tests.e2e.services import podman_places

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def layout(tmp_path_factory, train_env, envbuild) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    python = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
    envbuild("capture", "--python", python, "--out", folder / "manifest.json")
    envbuild("from-manifest", folder / "manifest.json", "--base", "debian:bookworm", "--out", folder / "image")
    return folder / "image"


@pytest.fixture(scope="module")
def pushed(layout, registry) -> Reference:
    image = read_layout(layout, machine="x86_64")
    return push(image, Reference.parse(f"{registry.host}/readers/tf:latest")).reference


def run(*command) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_digest_size_and_diff_id_is_right(layout):
    index = json.loads((layout / "index.json").read_bytes())
    blobs = layout / "blobs/sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"].removeprefix("sha256:")).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
    for path in blobs.iterdir():
        with path.open("rb") as file:
            assert Digest.of_file(file)[0].hex == path.name
    assert len(manifest["layers"]) == len(config["rootfs"]["diff_ids"]) == len(config["history"])
    assert len({layer["digest"] for layer in manifest["layers"]}) == len(manifest["layers"])
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        path = blobs / layer["digest"].removeprefix("sha256:")
        assert path.stat().st_size == layer["size"]
        with gzip.open(path) as content:
            assert hashlib.file_digest(content, "sha256").hexdigest() == diff_id.removeprefix("sha256:")


def test_skopeo_inspects_it_in_the_layout_and_in_the_registry(layout, pushed):
    in_layout = json.loads(run("skopeo", "inspect", f"oci:{layout}"))
    in_registry = json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{pushed}"))
    assert in_layout["Digest"] == in_registry["Digest"] == str(pushed.digest)
    assert in_layout["Layers"] == in_registry["Layers"]


@pytest.fixture(scope="module")
def unpacked(layout, tmp_path_factory):
    bundle = tmp_path_factory.mktemp("umoci") / "bundle"
    run("umoci", "unpack", "--image", f"{layout}:latest", bundle)
    yield bundle / "rootfs"
    shutil.rmtree(bundle)


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.slow  # TensorFlow: 25 s
def test_umoci_unpacks_it(unpacked):
    assert (unpacked / "opt/env/lib/python3.11/site-packages/tensorflow/__init__.py").is_file()
    assert (unpacked / "opt/env/bin/python").readlink() == Path("python3.11")


def test_engines_take_from_an_index_of_gzip_and_zstd_what_they_can_read(registry, envbuild, engine, tmp_path):
    (tmp_path / "freeze.txt").write_text("six==1.16.0\npython-dateutil==2.9.0.post0\n")
    record = [tmp_path / "freeze.txt", "--from", "pip-freeze", "--python", "3.11.2", "--gpu", "none", "--base"]
    push = ["--push", f"{registry.host}/readers/small:1", "--out", tmp_path / "out"]
    both = ["--compression", "gzip,zstd:1", "--recompress-base", "--json"]
    done = envbuild("from-manifest", *record, "debian:bookworm", "--ran-on", "linux/amd64", *push, *both)
    said = json.loads(done.stdout)["compressions"]
    names = [f"{registry.host}/readers/small@{it['digest']}" for it in said.values()]
    plain, packed = (pull(Reference.parse(it), machine="x86_64") for it in names)
    assert list(said) == ["gzip", "zstd:1+base"]
    assert plain.config == packed.config
    assert {it.descriptor.media_type for it in packed.layers} == {LAYER_ZSTD}
    tree = read_tree(plain, "gzip")
    ours = [path for path, node in tree.items() if node.kind == "file" and path.startswith("opt/env/")]
    wanted = {
        path.removeprefix("opt/env/"): hashlib.sha256(content.read()).hexdigest()
        for path, _, content in contents(plain, tree, ours, "gzip")
    }
    tag = f"{registry.host}/readers/small:1"
    for reference in (tag, names[1]):
        with podman_mount(reference) as mounted:
            assert files(mounted / "opt/env") == wanted
            program = ["/opt/env/bin/python", "-c", "import six, dateutil; print(six.__version__)"]
            assert run("chroot", mounted, *program).strip() == "1.16.0"
    found = engine.pull(tag)  # Docker 20.10, which cannot read zstd
    assert engine.run(found.id, ["python", "-c", "import six; print(six.__version__)"]).strip() == "1.16.0"


@contextmanager
def podman_mount(reference: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pm-", dir="/tmp"))  # podman's paths must be short
    podman = podman_places(folder)
    try:
        run(*podman, "pull", "-q", "--tls-verify=false", reference)
        yield Path(run(*podman, "image", "mount", reference).strip())
    finally:
        subprocess.run([*podman, "image", "unmount", "--all"], check=False, capture_output=True)
        subprocess.run([*podman, "system", "reset", "--force"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow  # TensorFlow: 40 s
def test_podman_pulls_the_same_files(pushed, unpacked):
    with podman_mount(str(pushed)) as mounted:
        assert files(mounted / "opt") == files(unpacked / "opt")
