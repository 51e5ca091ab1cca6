"""GPU images of real wheels, run by a real engine without a GPU: the framework imports, and the loader finds its CUDA."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild.files import data_folder
from envbuild.match.profiles import load_profiles

pytestmark = pytest.mark.real

FROZEN = Path(__file__).with_name("frozen")
"""What `pip freeze` says in an environment of each framework, with CUDA's wheels where the framework has an extra."""
PROBE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
const char *find(const char *name) {
  struct link_map *map;
  void *library = dlopen(name, RTLD_LAZY);
  return library && !dlinfo(library, RTLD_DI_LINKMAP, &map) ? map->l_name : "";
}
"""
FIND = """
import ctypes, importlib, json, sys
framework, probe, names = sys.argv[1], sys.argv[2], sys.argv[3:]
module = importlib.import_module(framework)
if framework == "jax":  # what it does itself before it looks for GPUs
    importlib.import_module("jax_plugins.xla_cuda13")._load_nvidia_libraries()
find = ctypes.CDLL(probe).find
find.restype = ctypes.c_char_p
print(json.dumps({"version": module.__version__, "found": {it: find(it.encode()).decode() for it in names}}))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One image, and the library in it that opens CUDA's."""

    framework: str
    version: str
    python: str
    """That of the suite."""
    suite: str
    opener: str
    """Below site-packages."""

    @property
    def record(self) -> Path:
        return FROZEN / f"{self.framework}-{self.version}.txt"

    @property
    def site(self) -> str:
        return f"/opt/env/lib/python{self.python.rpartition('.')[0]}/site-packages"


def tensorflow(version: str, python: str, suite: str) -> Case:
    return Case("tensorflow", version, python, suite, "tensorflow/libtensorflow_framework.so.2")


SMALLEST = Case("jax", "0.12.0.1", "3.13.5", "trixie", "jax_plugins/xla_cuda13/xla_cuda_plugin.so")
OTHERS = (
    tensorflow("2.8.0", "3.9.2", "bullseye"),
    tensorflow("2.15.1", "3.11.2", "bookworm"),
    tensorflow("2.16.1", "3.11.2", "bookworm"),
    tensorflow("2.18.1", "3.11.2", "bookworm"),
    tensorflow("2.21.0", "3.13.5", "trixie"),
    Case("torch", "2.15.0", "3.13.5", "trixie", "torch/lib/libtorch_cuda.so"),
)


@pytest.fixture
def room(tmp_path, registry, engine, cache) -> Iterator[Path]:
    """A folder for an image and its cache; it and what the services hold are removed, as each image has several GB."""
    (tmp_path / "cache").mkdir()
    (cache / "envbuild/bases").mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache/bases").symlink_to(cache / "envbuild/bases")
    yield tmp_path
    for image in engine.client.images.list():
        engine.client.images.remove(image.id, force=True)
    shutil.rmtree(registry.folder / "docker/registry/v2", ignore_errors=True)
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [SMALLEST, *OTHERS],
    ids=lambda case: f"{case.framework}-{case.version}",
)
def test_the_loader_finds_every_cuda_library_that_the_framework_opens(case, room, envbuild, registry, engine):
    result = built(case, "gpu", room, envbuild, registry)
    engine.pull(result["image"])
    dynamic = read_dynamic(on_host(engine, result["image"], f"{case.site}/{case.opener}"))
    names = opened(case, dynamic)
    probe, place = compiled(dynamic, room), f"{case.site}/{Path(case.opener).parent}/envbuild-probe.so"
    said = in_image(engine, result["image"], FIND, case.framework, place, *names, volumes={probe: place})
    assert said["version"].partition("+")[0] == case.version
    assert len(names) > 6
    assert {name: path for name, path in said["found"].items() if not path.startswith("/opt/env/")} == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [SMALLEST, *(case for case in OTHERS if case.framework != "torch")],  # whose CPU builds are on an index of its own
    ids=lambda case: f"{case.framework}-{case.version}",
)
def test_the_cpu_variant_has_no_file_of_nvidia(case, room, envbuild, registry, engine):
    result = built(case, "cpu", room, envbuild, registry)
    engine.pull(result["image"])
    found = engine.run(result["image"], ["find", "/opt/env", "-path", "*/nvidia/*", "-o", "-name", "libcud*.so*"])
    assert found.split() == []
    code = "import importlib, json, sys; print(json.dumps(importlib.import_module(sys.argv[1]).__version__))"
    assert in_image(engine, result["image"], code, case.framework) == case.version


def built(case: Case, variant: str, room: Path, envbuild, registry) -> Any:
    said = envbuild(
        "from-manifest", case.record, "--from", "pip-freeze", "--python", case.python, "--gpu", "NVIDIA L4",
        "--ran-on", "linux/amd64", "--variant", variant, "--base", f"debian:{case.suite}", "--json",
        "--out", room / "out", "--push", f"{registry.host}/gpu/{case.framework}",
        env={"ENVBUILD_CACHE": str(room / "cache")},
    )  # fmt: skip
    result = json.loads(said.stdout)
    size = sum(layer["size"] for layer in result["layers"])
    print(f"{case.framework} {case.version} {variant}: {size / 1e9:.2f} GB, {result['seconds']:.0f} s")
    return result


def opened(case: Case, dynamic: dict[str, Any]) -> list[str]:
    """What the profile's row says, as read from the wheel; what the library itself names where it is linked."""
    profile = next(it for it in load_profiles(data_folder("profiles")).frameworks if it.name == case.framework)
    release = next(it for it in profile.releases if str(it.version) == case.version)
    rows = [it for it in release.wheels if it.machine == "x86_64" and it.cuda and it.extra != "cuda12"]
    linked = [it for it in dynamic["needed"] if it.startswith(("libcu", "libnv", "libnccl"))]
    return list(rows[0].libraries) or linked


def on_host(engine, image: str, path: str) -> Path:
    """Where a file of an image lies in the engine's own folders."""
    layers = engine.client.images.get(image).attrs["GraphDriver"]["Data"]
    folders = [layers["UpperDir"], *layers.get("LowerDir", "").split(":")]
    return next(place for it in folders if (place := Path(it) / path.lstrip("/")).exists())


def read_dynamic(library: Path) -> dict[str, Any]:
    said = subprocess.run(["readelf", "-d", "-W", library], capture_output=True, text=True, check=True).stdout
    values = {key: re.findall(rf"\({key}\).*\[(.*)\]", said) for key in ("RUNPATH", "RPATH", "NEEDED")}
    return {"runpath": ":".join(values["RUNPATH"]), "rpath": ":".join(values["RPATH"]), "needed": values["NEEDED"]}


def compiled(dynamic: dict[str, Any], room: Path) -> str:
    """A library that looks where the opener looks: the loader goes by the caller's own RUNPATH or RPATH."""
    source, probe = room / "probe.c", room / "probe.so"
    source.write_text(PROBE)
    tags = "--enable-new-dtags" if dynamic["runpath"] else "--disable-new-dtags"
    paths = dynamic["runpath"] or dynamic["rpath"]
    rpath = ["-Xlinker", "-rpath", "-Xlinker", paths] if paths else []
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,{tags}", *rpath, "-o", probe, source], check=True)
    return str(probe)


def in_image(engine, image: str, code: str, *arguments: str, volumes: dict[str, str] | None = None) -> Any:
    """The JSON that a program prints in a container of the image."""
    mounted = {source: {"bind": place, "mode": "ro"} for source, place in (volumes or {}).items()}
    said = engine.run(image, ["python", "-c", code, *arguments], volumes=mounted, network_mode="none")
    return json.loads(said.strip().splitlines()[-1])
