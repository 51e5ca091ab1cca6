"""Same facts, same bytes: the digest does not depend on the machine, the user, the clock or the zlib."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from tests.e2e.parts import index_access
from tests.e2e.test_end_to_end import ROOT, bases

pytestmark = pytest.mark.real

ASSEMBLING = Path(__file__).with_name("assembling.py")

ZLIB_NG = """
import sys
from zlib_ng import zlib_ng
sys.modules["zlib"] = zlib_ng
sys.modules["isal"] = None
sys.argv[0] = "envbuild"
from envbuild.oci import deflate
assert deflate._library is zlib_ng
from envbuild.cli import main
main()
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory, train_env) -> Path:
    path = tmp_path_factory.mktemp("manifest") / "manifest.json"
    python = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
    subprocess.run([sys.executable, "-m", "envbuild", "capture", "--python", python, "--out", path], check=True)
    return path


@pytest.fixture
def empty_layers(tmp_path, cache) -> Path:
    """A cache without layers; wheels and bases are shared, as their bytes are checked when they are read."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for name in ("wheels", "bases"):
        (cache / "envbuild" / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache / "envbuild" / name)
    return folder


def digest(envbuild, manifest: Path, out: Path, layers: Path, **options) -> str:
    env = {"ENVBUILD_CACHE": str(layers), **options.pop("env", {})}
    result = json.loads(
        envbuild(
            "from-manifest", manifest, "--base", "debian:bookworm", "--out", out, "--json", env=env, **options
        ).stdout
    )
    ours = result["layers"][1:]
    assert not any(layer["reused"] for layer in ours), "the layer cache was not empty"
    return result["digest"]


@pytest.fixture(scope="module")
def usual(manifest, envbuild, tmp_path_factory, cache) -> str:
    folder = tmp_path_factory.mktemp("usual")
    for name in ("wheels", "bases"):
        (cache / "envbuild" / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache / "envbuild" / name)
    return digest(envbuild, manifest, folder / "out", folder)


def test_another_folder_umask_locale_time_zone_hash_seed_and_clock(usual, manifest, envbuild, tmp_path, empty_layers):
    odd = tmp_path / "a folder with späces"
    odd.mkdir()
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    env = {
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "LANG": "C",
        "PYTHONHASHSEED": "4242",
        "PYTHONUTF8": "0",
        "LD_PRELOAD": str(library),
        "FAKETIME": "+2d",
    }
    before = os.umask(0o077)
    try:
        assert digest(envbuild, manifest, odd / "out", empty_layers, cwd=odd, env=env) == usual
    finally:
        os.umask(before)


def test_zlib_ng_in_the_place_of_zlib(usual, manifest, tmp_path, empty_layers):
    arguments = ["from-manifest", manifest, "--base", "debian:bookworm", "--out", tmp_path / "out", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", ZLIB_NG, *arguments],
        env=os.environ | {"ENVBUILD_CACHE": str(empty_layers)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert not any(layer["reused"] for layer in result["layers"][1:])
    assert result["digest"] == usual


def test_a_wheelhouse_and_a_base_on_a_machine_without_a_network_and_with_empty_caches(
    usual, manifest, envbuild, cache, tmp_path
):
    house, [base] = tmp_path / "house", bases(cache, "bookworm")
    envbuild("lock", manifest, "--base", base, "--out", tmp_path / "lock", "--download", house)
    arguments = ["from-manifest", manifest, "--base", base, "--out", tmp_path / "out", "--find-links", house]
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "envbuild", *arguments, "--offline", "--json"],
        env=os.environ | {"ENVBUILD_CACHE": str(tmp_path / "cache")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == usual
    assert {it.name for it in (tmp_path / "out/context/wheels").iterdir()} == {it.name for it in house.iterdir()}


@pytest.fixture(scope="module")
def small_wheels(tmp_path_factory) -> Path:
    """A few real wheels of every kind: large and small, with libraries, scripts and entry points."""
    folder = tmp_path_factory.mktemp("wheels")
    names = [
        "numpy==1.26.4",
        "h5py==3.11.0",
        "protobuf==4.25.3",
        "tensorboard==2.15.2",
        "six==1.17.0",
        "absl-py==2.1.0",
    ]
    command = ["pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11"]
    platform = ["--platform", "manylinux2014_x86_64", "--dest", folder]
    subprocess.run([sys.executable, "-m", *command, *platform, *names], check=True)
    return folder


def test_every_library_number_of_cores_and_python_gives_the_same_bytes(small_wheels, registry, engine, cache, tmp_path):
    here = subprocess.run([sys.executable, ASSEMBLING, small_wheels], check=True, capture_output=True, text=True)
    [layout] = bases(cache, "trixie")
    pushed = push(read_layout(layout, machine="x86_64"), Reference.parse(f"{registry.host}/same/trixie:latest"))
    engine.pull(str(pushed.reference))
    (tmp_path / "assembling.py").write_bytes(ASSEMBLING.read_bytes())
    subprocess.run([sys.executable, "-m", "uv", "build", "-q", "--wheel", "--out-dir", tmp_path, ROOT], check=True)
    [wheel] = tmp_path.glob("envbuild-*.whl")
    commands = [
        "python3 -m venv /tmp/venv",
        f"/tmp/venv/bin/pip install -q --no-cache-dir --only-binary :all: /work/{wheel.name} isal zlib-ng",
        "/tmp/venv/bin/python /work/assembling.py /wheels",
    ]
    mounts = {str(tmp_path): {"bind": "/work", "mode": "ro"}, str(small_wheels): {"bind": "/wheels", "mode": "ro"}}
    there = engine.run(str(pushed.reference), ["sh", "-ec", "\n".join(commands)], volumes=mounts, **index_access())
    ours, theirs = (json.loads(text.strip().splitlines()[-1]) for text in (here.stdout, there))
    assert (ours["runs"], theirs["runs"]) == (10, 10)
    assert ours["digests"] == theirs["digests"]
    assert len(ours["digests"]) == 1
    assert (ours["python"][:5], theirs["python"][:5]) == ("3.11.", "3.13.")
