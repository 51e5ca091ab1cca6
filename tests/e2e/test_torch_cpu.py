"""PyTorch's builds for the CPU: imported from an image for arm64, whose wheels on the index are such builds, and what
has to be given for x86-64, where they are on an index of PyTorch's own.

Another machine's programs run through qemu, which the kernel is told of for as long as these tests take.
"""

import json
import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envbuild.lock.download import fetch
from envbuild.lock.facts import FactReader
from envbuild.lock.formats import read_existing_lock
from envbuild.lock.index import make_client
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import read_settings
from tests.environ import cleaned
from tests.fakes.index import serving
from tests.fakes.wheels import FakeWheel, make_wheel, record_line, zip_bytes
from tests.unit.locking import pin

pytestmark = pytest.mark.real

FROZEN = Path(__file__).with_name("frozen")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("artifacts") / "train_model.py"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
RULE = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
"""Debian's qemu-user-static brings it."""
ARM = ("--from", "pip-freeze", "--gpu", "none", "--ran-on", "linux/arm64", "--variant", "cpu")
PROBE = """
import json, platform, torch
shape = list(torch.nn.Linear(3, 2)(torch.ones(1, 3)).shape)
print(json.dumps([platform.machine(), torch.__version__, torch.version.cuda, torch.cuda.is_available(), shape]))
"""


@pytest.fixture
def emulated() -> Iterator[None]:
    """Run arm64's programs through qemu until the test ends, unless the machine does so anyway."""
    with ExitStack() as stack:
        if not (BINFMT / "register").exists():
            subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], check=True)
            stack.callback(subprocess.run, ["umount", str(BINFMT)], check=True)
        rule = BINFMT / "qemu-aarch64"
        if not rule.exists():
            (BINFMT / "register").write_bytes(RULE.read_bytes().strip())
            stack.callback(rule.write_text, "-1")
        yield


@pytest.mark.slow
def test_pytorch_for_the_cpu_imports_and_has_no_file_of_nvidia(emulated, tmp_path, envbuild, registry, engine):
    said = envbuild(
        "from-manifest", FROZEN / "torch-2.10.0.txt", *ARM, "--python", "3.13.5", "--base", "debian:trixie", "--json",
        "--out", tmp_path / "out", "--push", f"{registry.host}/cpu/torch",
    )  # fmt: skip
    result = json.loads(said.stdout)
    engine.pull(result["image"])
    found = engine.run(result["image"], ["find", "/opt/env", "-path", "*/nvidia*", "-o", "-name", "libcud*.so*"])
    assert found.split() == []
    printed = engine.run(result["image"], ["python", "-c", PROBE], network_mode="none", timeout=1800)
    assert json.loads(printed.strip().splitlines()[-1]) == ["aarch64", "2.10.0+cpu", None, False, [1, 2]]
    size = sum(layer["size"] for layer in result["layers"])
    assert size < 400 << 20
    print(f"torch 2.10.0 cpu, arm64: {size / 1e6:.0f} MB, {result['seconds']:.0f} s")


@pytest.mark.slow
def test_a_transformers_pipeline_predicts_what_it_did_in_training(emulated, tmp_path, envbuild, registry, engine):
    (tmp_path / "requirements.txt").write_text("torch==2.10.0\ntransformers==4.57.3\n")
    goes = ("--base", "debian:trixie", "--variant", "cpu", "--out", "out", "--json", "--push")
    ran = ("--from", "requirements", *ARM[2:6], "--python", "3.13.5")
    first = envbuild("from-manifest", "requirements.txt", *ran, *goes, f"{registry.host}/cpu/one", cwd=tmp_path)
    engine.pull(json.loads(first.stdout)["image"])
    volumes = {str(it): {"bind": str(it), "mode": mode} for it, mode in ((tmp_path, "rw"), (ROOT, "ro"))}
    given = {"volumes": volumes, "user": "0", "network_mode": "none", "environment": {"PYTHONPATH": str(ROOT)}}
    train = ["python", "-B", str(PROGRAM), "transformers"]
    engine.run(json.loads(first.stdout)["image"], [*train, "folder", str(tmp_path / "model")], timeout=3000, **given)
    stamped = (*goes, f"{registry.host}/cpu/two", "--stamp", "model")
    second = json.loads(envbuild("from-manifest", "model.json", *stamped, cwd=tmp_path).stdout)
    engine.pull(second["image"])
    said = engine.run(second["image"], [*train, "predict", str(tmp_path / "model")], timeout=3000, **given)
    assert said.strip().splitlines()[-1] == (tmp_path / "model.txt").read_text()


@pytest.mark.parametrize(("version", "python"), [("1.13.1", "3.10.9"), ("2.3.1", "3.11.2"), ("2.10.0", "3.13.5")])
def test_the_wheels_of_the_index_for_arm64_are_builds_for_the_cpu(version, python, tmp_path, envbuild):
    record = tmp_path / "freeze.txt"
    record.write_text(f"torch=={version}\n")
    envbuild("lock", record, *ARM, "--python", python, "--out", tmp_path / "out")
    wheels = wheels_in(tmp_path / "out")
    assert f"torch-{version}-" in wheels["torch"].filename
    assert wheels["torch"].filename.endswith("aarch64.whl")
    assert [name for name in wheels if name.startswith(("nvidia", "cuda", "triton"))] == []
    with make_client(read_settings()) as client:
        facts = FactReader(client, None).facts(wheels["torch"])
    assert facts is not None
    needs = [Requirement(it) for it in facts.requires]
    here = {"platform_machine": "aarch64", "platform_system": "Linux", "extra": ""}
    assert needs
    assert [it.name for it in needs if "nvidia" in it.name and (it.marker is None or it.marker.evaluate(here))] == []


def test_for_x86_64_the_index_to_give_is_named_and_serves_once_it_is_given(tmp_path, envbuild):
    labelled = renamed(real_wheel(tmp_path), "torch", "2.15.0+cpu")
    old = make_wheel("markupsafe", "2.1.5")  # PyTorch's index has old releases of others, which are not to be taken
    command = (
        "lock", FROZEN / "torch-2.15.0.txt", "--from", "pip-freeze", "--python", "3.13.5", "--gpu", "NVIDIA L4",
        "--ran-on", "linux/amd64", "--variant", "cpu", "--out", tmp_path / "out",
    )  # fmt: skip
    refused = envbuild(*command, check=False)
    assert refused.returncode == 12
    assert "1 distribution cannot be locked" in refused.stderr
    assert "torch==2.15.0+cpu: the index has this version only without the local label +cpu" in refused.stderr
    assert "PyTorch's ends in /whl/cpu" in refused.stderr
    with serving(labelled, old) as index:
        envbuild(*command, env={"PIP_EXTRA_INDEX_URL": index.url})
        wheels = wheels_in(tmp_path / "out")
        assert wheels["torch"].filename == labelled.filename
        assert pin(old) != f"markupsafe=={wheels['markupsafe'].version}"
        assert [name for name in wheels if name.startswith(("nvidia", "cuda", "triton"))] == []
        [(_, path)] = fetch([wheels["torch"]], tmp_path / "cache", settings=read_settings())
        assert path.read_bytes() == labelled.data


def wheels_in(folder: Path) -> dict[str, LockedWheel]:
    held = read_existing_lock(folder)
    assert held is not None
    return {it.name: it for it in held.wheels}


def real_wheel(folder: Path) -> Path:
    """A small wheel of the index, as pip gets it."""
    command = ["python3", "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "idna==3.10"]
    subprocess.run([*command, "-d", folder], check=True, env=cleaned(os.environ))
    return folder / "idna-3.10-py3-none-any.whl"


def renamed(wheel: Path, name: str, version: str) -> FakeWheel:
    """The wheel under another name and version: its files stay, METADATA and RECORD say the new ones."""
    old, info = "idna-3.10.dist-info", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        files = {it.replace(old, info): archive.read(it) for it in archive.namelist() if not it.endswith("/RECORD")}
    metadata = files[f"{info}/METADATA"].decode()
    metadata = metadata.replace("Name: idna\n", f"Name: {name}\n").replace("Version: 3.10\n", f"Version: {version}\n")
    files[f"{info}/METADATA"] = metadata.encode()
    lines = [record_line(path, data) for path, data in files.items()] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(lines) + "\n").encode()
    members = [(path, data, 0o644) for path, data in files.items()]
    return FakeWheel(filename=f"{name}-{version}-py3-none-any.whl", data=zip_bytes(members))
