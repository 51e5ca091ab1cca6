"""The loader proof on real wheels, against the loader of a real container and that of TensorFlow itself."""

import json
import os
import posixpath
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.files import data_folder
from envbuild.image.assembler import assemble
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import fetch
from envbuild.lock.model import Lock
from envbuild.lock.resolvers import UvResolver
from envbuild.lock.settings import read_settings, uv_environment
from envbuild.match.profiles import load_profiles
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, make_recipe
from envbuild.registry.push import push
from envbuild.report import SILENT
from envbuild.verify.cuda.files import PlannedImage, framework_wheel, plan_image, read_base_files
from envbuild.verify.cuda.files import WheelFiles as InstalledFiles
from envbuild.verify.cuda.loader import LoaderProof, prove_loading
from envbuild.verify.cuda.openings import CUDA
from tests.e2e import parts, services
from tests.layers import WheelFiles

pytestmark = pytest.mark.real

SITE = "/opt/env/lib/python3.11/site-packages"
PROFILES = load_profiles(data_folder("profiles"))
# What auditwheel, NVIDIA and others make of the loader's rules; in all 150 MB.
SMALL = (
    "h5py==3.11.0",
    "numpy==1.26.4",
    "nvidia-cuda-cupti-cu12==12.2.142",
    "nvidia-cuda-nvrtc-cu12==12.2.140",
    "nvidia-cuda-runtime-cu12==12.2.140",
    "nvidia-nvjitlink-cu12==12.2.140",
    "scipy==1.13.1",
)
# Each in a process of its own, as what is loaded already decides where the next one comes from.
LOAD = """
import ctypes, json, os, sys
for path in json.load(sys.stdin):
    ends = os.pipe()
    if os.fork() == 0:
        try:
            ctypes.CDLL(path, mode=os.RTLD_LAZY)
            lost = ""
        except OSError as error:
            lost = str(error)
        files = {line.split(None, 5)[5].rstrip() for line in open("/proc/self/maps") if ".so" in line}
        with os.fdopen(ends[1], "w") as out:
            json.dump([lost, sorted(files)], out)
        os._exit(0)
    os.close(ends[1])
    with os.fdopen(ends[0]) as answer:
        print(json.dumps([path, *json.load(answer)]))
    os.wait()
"""
# TF_LoadLibrary is dlopen in libtensorflow_framework, from where TensorFlow opens CUDA's libraries too.
OPEN = """
import json, sys
from tensorflow.python.client import pywrap_tf_session
found = []
for name in sys.argv[1:]:
    try:
        pywrap_tf_session.TF_LoadLibrary(name)
        found.append(name)
    except Exception as error:
        assert "cannot open shared object file" in str(error), error
print(json.dumps(found))
"""


def no_pull(*_: object):
    raise AssertionError("a bootstrapped base needs no registry")


@pytest.fixture(scope="module")
def base(cache) -> Base:
    return resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=no_pull, report=SILENT)


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # pytest would keep these gigabytes for three sessions


def stack_of(version: str, variables: Mapping[str, str]) -> Stack:
    return Stack(
        framework="tensorflow", distribution="tensorflow", version=version, variant="gpu", python="3.11.2",
        machine="x86_64", cuda=None, cudnn=None, cuda_source="wheels", base="", glibc_minimum="2.17", requirements=(),
        variables=tuple(variables.items()), changes=(), decisions=(),
    )  # fmt: skip


def wheels_of(lock: Lock, cache: Path) -> dict[Digest, Path]:
    return {wheel.sha256: path for wheel, path in fetch(lock.wheels, cache / "envbuild")}


def test_every_library_of_real_wheels_loads_what_we_say_in_a_real_container(base, cache, folder, registry, engine):
    lock = UvResolver().resolve(SMALL, base.target)
    wheels, stack = wheels_of(lock, cache), stack_of("2.15.1", {})
    recipe = make_recipe(stack, lock, base)
    image = assemble(recipe, base, WheelFiles(wheels), LayerCache(folder)).image
    pushed = push(image, Reference.parse(f"{registry.host}/e2e/loading:latest")).reference
    engine.pull(str(pushed))
    with ExitStack() as opened:
        shelf = InstalledFiles(recipe, wheels, folder / "facts", opened)
        ground = read_base_files(base, folder / "facts")
        case = plan_image(recipe, base, PROFILES, ground, shelf)
        paths = sorted(f"/{it}" for it in shelf.files if ".so" in posixpath.basename(it) and not it.endswith(".py"))
        ours = {path: told(case, path, base.python_path) for path in paths}
    (folder / "load.py").write_text(LOAD)
    (folder / "paths.json").write_text(json.dumps(paths))
    folder.chmod(0o755)
    output = engine.run(
        str(pushed),
        ["sh", "-c", "python /work/load.py < /work/paths.json"],
        volumes={str(folder): {"bind": "/work", "mode": "ro"}},
        network_mode="none",
    )
    theirs = {path: (lost, files) for path, lost, files in map(json.loads, output.splitlines())}
    assert theirs.keys() == ours.keys()
    assert len(ours) > 150
    for path, (lost, files) in theirs.items():
        missing, loaded = ours[path]
        assert (lost == "") == (missing == ()), (path, lost, missing)
        assert not lost or any(lost.startswith(f"{name}: cannot open") for name in missing), (lost, missing)
        assert loaded <= set(files), (path, loaded - set(files))
        assert {it for it in files if it.startswith("/opt/env/")} == {it for it in loaded if it.startswith("/opt/env/")}
    assert any(missing for missing, _ in ours.values()), "nothing is missing, so nothing was told apart"


def told(case: PlannedImage, path: str, program: str) -> tuple[tuple[str, ...], set[str]]:
    """What is missing for a library, and all that is loaded in the end."""
    process, missing = case.process()
    assert missing == ()
    lost = process.open(path, process.program)[1]
    return tuple(it.name for it in lost), {it.real for it in process.loaded if it.real} - {program}


def installed(lock: Lock, wheels: Mapping[Digest, Path], folder: Path) -> Path:
    """The python of an environment with these wheels, and with what they require."""
    links, uv = folder / "links", str(Path(sys.executable).parent / "uv")
    links.mkdir()
    for wheel in lock.wheels:
        (links / wheel.filename).symlink_to(wheels[wheel.sha256])
    python = folder / "venv/bin/python"
    # with a cache of its own, as uv's would keep these gigabytes
    environment = uv_environment(read_settings()) | {"UV_CACHE_DIR": str(folder / "uv")}
    services.command_output(uv, "venv", "-q", "--python", str(parts.find_python("3.11")), str(folder / "venv"))
    pins = (f"{wheel.name}=={wheel.version}" for wheel in lock.wheels)
    command = [uv, "pip", "install", "-q", "--python", str(python), "--find-links", str(links), *pins]
    services.command_output(*command, env=environment)
    return python


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "lost"),
    [
        ("2.15.1", ""),
        (
            "2.16.1",
            "libcublas.so.12 libcublasLt.so.12 libcudnn.so.8 libcufft.so.11 libcusolver.so.11 libcusparse.so.12",
        ),
        ("2.21.0", "libcusolver.so.11"),
    ],
)
def test_tensorflows_own_loader_finds_what_we_say_with_and_without_the_remedy(version, lost, base, cache, folder):
    row = framework_wheel(stack_of(version, {}), PROFILES)
    lock = UvResolver().resolve((row.pin, *row.cuda_requirements), base.target)
    wheels = wheels_of(lock, cache)
    python = installed(lock, wheels, folder)

    def proof(variables: Mapping[str, str]) -> LoaderProof:
        stack = stack_of(version, variables)
        return prove_loading(stack, make_recipe(stack, lock, base), base, wheels, PROFILES, folder / "facts")

    plain = proof({})
    assert sorted(it.library for it in plain.faults) == lost.split()
    check_against_tensorflow(plain, python, "")
    folders = [it for known in PROFILES.library_paths if version in known.versions for it in known.folders]
    remedied = proof({"LD_LIBRARY_PATH": ":".join(f"{SITE}/{it}" for it in folders)})
    remedied.require()
    own = python.parents[1] / "lib/python3.11/site-packages"
    check_against_tensorflow(remedied, python, ":".join(f"{own}/{it}" for it in folders))


def check_against_tensorflow(proof: LoaderProof, python: Path, library_path: str) -> None:
    """Ask TensorFlow for everything that the proof speaks of and that it opens by itself."""
    opened = framework_wheel(stack_of(proof.framework.split()[1], {}), PROFILES).libraries
    names = sorted({*opened, "libcupti.so.12"})
    assert all(CUDA.fullmatch(name) for name in names)
    done = subprocess.run(
        [python, "-c", OPEN, *names],
        env=os.environ | {"LD_LIBRARY_PATH": library_path}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {it.library for it in proof.findings if it.kind == "found"}
    assert set(json.loads(done.stdout.splitlines()[-1])) == found & set(names)
