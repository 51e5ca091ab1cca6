"""What Dockerfile.base is given, and what `envbuild base build` decides before anything is built."""

import json
import os
import shlex
import tomllib
from pathlib import Path

import pytest

from envbuild.base.build import BaseOrder, decide_python
from envbuild.cli import commands
from envbuild.errors import UsageError
from envbuild.files import base_dockerfile, data_folder
from envbuild.match.profiles import load_profiles
from tests.fakes.engine import serving_engine
from tests.running import run_envbuild
from tests.unit.test_from_manifest import manifest_of

PROFILES = load_profiles(data_folder("profiles"), ())
CUDA = "docker.io/nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"
DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def base(tmp_path, monkeypatch, capsys):
    """`base("build", ...)` -> code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = commands.run(["base", *arguments])
        return code, *capsys.readouterr()

    return run


def test_every_argument_is_one_of_the_dockerfiles():
    order = BaseOrder(
        parent="a", python="3.11", python_image="b", packages=("cc=1", "dd:arm64=2:3-4+e~f"), sources="g",
        snapshot="20240101T000000Z", snapshot_host="https://example.com/archive/", epoch="5",
        archive=PROFILES.archives[0],
    )  # fmt: skip
    declared = {
        line.split()[1].partition("=")[0] for line in base_dockerfile().read_text().splitlines() if line[:4] == "ARG "
    }
    assert set(order.arguments) == declared - {"PYTHON", "KIND"}
    assert order.arguments["PACKAGES"].endswith(" libcudnn7=7.6.5.32-1+cuda10.0 cc=1 dd:arm64=2:3-4+e~f")
    assert order.arguments["SNAPSHOT_HOST"] == "https://example.com/archive"
    assert BaseOrder(parent="a").arguments == {"PARENT": "a"}, "all else is at its default"


def test_the_dockerfile_names_no_mirror():
    text = base_dockerfile().read_text()
    assert [word for word in text.split() if "://" in word and "HOST" not in word] == []


def test_the_wheel_brings_the_dockerfile():
    """As pyproject.toml says it: what an installed envbuild finds lies where the checkout's own does not."""
    root = Path(__file__).resolve().parents[2]
    brought = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert brought["force-include"]["Dockerfile.base"] == "envbuild/data/Dockerfile.base"
    assert base_dockerfile() in (root / "Dockerfile.base", root / "envbuild/data/Dockerfile.base")


LOGIN = "holds no user or password\n  where: "


def test_the_command_is_the_build_by_hand():
    order = BaseOrder(parent=CUDA, sources="deb http://example.com/debian a main\ndeb http://example.com/debian b main")
    words = shlex.split(order.command(Path("/x y/Dockerfile.base"), "base:1", "linux/arm64"))
    assert words[:6] == ["docker", "build", "--platform", "linux/arm64", "--tag", "base:1"]
    assert words[6:10] == ["--build-arg", f"PARENT={CUDA}", "--build-arg", f"SOURCES={order.sources}"]
    assert words[10:] == ["-", "<", "/x y/Dockerfile.base"]


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"python": "3"}, "--python"),
        ({"python": "3.11\n"}, "--python"),
        ({"python": "3.11; reboot"}, "--python"),
        ({"packages": ("libgomp1",)}, "--package"),
        ({"packages": ("a=1 b",)}, "--package"),
        ({"packages": ("a=$(id)",)}, "--package"),
        ({"packages": ("--force-yes=1",)}, "--package"),
        ({"packages": ("libx=1\n",)}, "--package"),
        ({"snapshot": "20240101T000000Z"}, "--snapshot"),
        ({"snapshot_host": "https://example.com"}, "--snapshot"),
        ({"snapshot": "20241301T000000Z", "snapshot_host": "https://example.com"}, "--snapshot"),
        ({"snapshot": "2024", "snapshot_host": "https://example.com"}, "--snapshot"),
        ({"snapshot": "20240101T000000Z", "snapshot_host": "example.com"}, "--snapshot-host"),
        ({"snapshot": "20240101T000000Z", "snapshot_host": "https://u:secret@example.com"}, "--snapshot-host"),
        ({"sources": "deb [trusted=yes] https://u:secret@example.com/debian x main"}, "--sources"),
        ({"epoch": "yesterday"}, "SOURCE_DATE_EPOCH"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, where):
    with pytest.raises(UsageError) as caught:
        BaseOrder(parent="a", **wrong)
    assert caught.value.where == where
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("parent", "python", "image"),
    [
        (CUDA, "3.8", None),  # Ubuntu's own
        (CUDA, "3.8.17", "docker.io/library/python:3.8.17-slim-bullseye"),  # another patch than Ubuntu's
        (CUDA, "3.9", "docker.io/library/python:3.9-slim-bullseye"),
        (f"{CUDA}@{DIGEST}", "3.9.18", "docker.io/library/python:3.9.18-slim-bullseye"),
        (CUDA.removeprefix("docker.io/"), "3.9.18", "docker.io/library/python:3.9.18-slim-bullseye"),
        (CUDA.replace("20.04", "18.04"), "3.7", "docker.io/library/python:3.7-slim-stretch"),  # glibc 2.27
        (CUDA.replace("20.04", "18.04"), "3.9", None),  # only with a newer glibc
        (
            "h.example.com:5000/my/cuda:10.0-cudnn7-runtime-ubuntu18.04",
            "3.7",
            "docker.io/library/python:3.7-slim-stretch",
        ),
        ("h.example.com:5000/my/cuda", "3.7", None),
        (CUDA, "3.12", None),
        (CUDA, "", None),
        ("h.example.com/mine:1", "3.9", None),  # of which nothing is known
    ],
)
def test_python_comes_from_an_image_that_runs_on_the_parents_glibc(parent, python, image):
    found = decide_python(parent, python, PROFILES)
    assert (found.value if found else None) == image
    assert found is None or found.source


def test_a_dry_run_needs_no_engine_and_no_registry(base):
    code, out, err = base("build", "--parent", CUDA, "--python", "3.9.17", "--dry-run", "--platform", "linux/amd64")
    assert code == 0, err
    words = shlex.split(out)
    assert f"PARENT={CUDA}" in words
    assert "PYTHON_IMAGE=docker.io/library/python:3.9.17-slim-bullseye" in words
    assert "python image: " in err, "with its reason"
    assert Path(words[-1]) == base_dockerfile()
    assert base_dockerfile().is_file()


def test_a_runs_manifest_decides_parent_and_python(base, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_of()))
    code, out, err = base("build", "--for", "manifest.json", "--dry-run")
    assert code == 0, err
    assert "PARENT=docker.io/library/python:3.11.7-slim-bookworm" in out
    assert "PYTHON_VERSION=3.11.7" in out
    assert "PYTHON_IMAGE" not in out, "it is in the parent"
    assert "base: docker.io/library/python:3.11.7-slim-bookworm - " in err


def test_a_run_with_cuda_from_its_base_gets_both_in_one(base, tmp_path):
    run = manifest_of(("tensorflow", "2.8.4"), python={"version": "3.9.18", "implementation": "cpython"})
    (tmp_path / "manifest.json").write_text(json.dumps(run))
    code, out, err = base(
        "build", "--for", "manifest.json", "--variant", "gpu", "--cuda-source", "base", "--dry-run",
        "--package", "libcudnn8=8.1.1.33-1+cuda11.2",
    )  # fmt: skip
    assert code == 0, err
    words = shlex.split(out)
    assert {f"PARENT={CUDA}", "PYTHON_VERSION=3.9.18", "PACKAGES=libcudnn8=8.1.1.33-1+cuda11.2"} <= set(words)
    assert "PYTHON_IMAGE=docker.io/library/python:3.9.18-slim-bullseye" in words


def test_a_run_whose_image_with_cuda_is_gone_gets_nvidias_packages_on_its_own_python(base, tmp_path):
    run = manifest_of(("tensorflow-gpu", "1.15.5"), python={"version": "3.7.9", "implementation": "cpython"})
    (tmp_path / "manifest.json").write_text(json.dumps(run))
    given = ("build", "--for", "manifest.json", "--variant", "gpu", "--dry-run")
    code, out, err = base(*given)
    assert code == 0, err
    arguments = dict(it.partition("=")[::2] for it in shlex.split(out) if it[:1].isupper())
    assert arguments["PARENT"] == "docker.io/library/python:3.7.9-slim-buster"
    assert {"cuda-libraries-10-0=10.0.130-1", "libcudnn7=7.6.5.32-1+cuda10.0"} <= set(arguments["PACKAGES"].split())
    assert (arguments["CUDA"], "SOURCES" in arguments) == ("10.0", False), "the parent's own sources stay"
    assert all(line.startswith("deb [trusted=yes] https://") for line in arguments["CUDA_SOURCES"].splitlines())
    assert "parent: docker.io/library/python:3.7.9-slim-buster - CUDA 10.0 is put on it" in err
    mirrored = base(*given, "--parent", "h.example.com/cuda:10.0-cudnn7-runtime-ubuntu18.04")[1]
    assert ("PARENT=h.example.com/cuda:10.0-" in mirrored, "PACKAGES" in mirrored) == (True, False)
    code, out, err = base("build", "--cuda", "11.2", "--python", "3.9", "--package", "libgomp1=12.2.0-14", "--dry-run")
    assert code == 0, err
    for part in (
        "PARENT=docker.io/library/python:3.9-slim-bookworm ",
        "libcudnn8=8.1.1.33-1+cuda11.2 libgomp1=12.2.0-14",
    ):
        assert part in out


def test_what_the_run_had_of_debian_is_told(base, tmp_path):
    owner = {"kind": "debian", "name": "libgomp1", "version": "12.2.0-14"}
    library = {"name": "libgomp.so.1", "path": "/usr/lib/x86_64-linux-gnu/libgomp.so.1", "owner": owner}
    native = {"process": "run", "libraries": [library]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_of(native=native)))
    code, out, err = base("build", "--for", "manifest.json", "--dry-run")
    assert code == 0, err
    assert "the run had libraries of libgomp1=12.2.0-14: " in err
    assert "libgomp1" not in out, "another suite has another version"


def test_what_is_named_goes_before_what_the_run_had(base, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_of()))
    given = ("--parent", "debian:bookworm", "--python", "3.11", "--python-image", "h.example.com/p:1")
    out = base("build", "--for", "manifest.json", *given, "--dry-run")[1]
    for part in ("PARENT=debian:bookworm ", "PYTHON_VERSION=3.11 ", "PYTHON_IMAGE=h.example.com/p:1 "):
        assert part in out


def test_the_time_is_that_of_the_environment(base, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert "SOURCE_DATE_EPOCH=1700000000" in base("build", "--parent", "a", "--dry-run")[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "where: --parent"),
        (("--parent", "a", "--tag", "A:1"), "--tag A:1"),
        (("--cuda", "9.0", "--python", "3.7"), "give one of 10.0, 10.1, 11.0, 11.2, 11.8"),
        (("--cuda", "10.1"), "where: --cuda 10.1"),
        (("--cuda", "11.8", "--python", "3.10", "--platform", "linux/arm64"), "not for linux/arm64"),
        (("--cuda", "10.1", "--python", "3.7.2"), "give --python 3.7, or --parent"),
        (("--parent", "a", "--tag", f"a@{DIGEST}"), "where: --tag a@"),
        (("--parent", "a", "--push", "mine"), "where: --push mine"),
        (("--parent", "a", "--sources", "none.list"), "where: --sources none.list"),
        (("--parent", "NO base"), "where: --base NO base"),
        (("--parent", "a", "--platform", "windows/amd64"), "where: --platform windows/amd64"),
        (("--parent", "u:s3cret@h.example.com/x"), f"{LOGIN}--parent"),
        (("--parent", "https://u:s3/cret@h.example.com/x", "--dry-run"), f"{LOGIN}--parent"),
        (("--parent", f"u:s3cret@h.example.com/x@{DIGEST}"), f"{LOGIN}--parent"),
        (("--parent", "a", "--python-image", "u:s3cret@h.example.com/x"), f"{LOGIN}--python-image"),
        (("--parent", "a", "--tag", "u:s3cret@h.example.com/x"), f"{LOGIN}--tag"),
    ],
)
def test_an_option_that_cannot_be_meant_is_a_usage_error(base, arguments, why):
    code, out, err = base("build", *arguments)
    assert (code, out) == (2, "")
    assert why in err
    assert "  do: " in err
    assert "s3" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "--parent", f"h.example.com/a@{DIGEST}"),
        ("build", "--parent", "debian:bookworm"),
        ("push", "mine:1", "h.example.com/b:1"),
    ],
)
def test_without_an_engine_the_way_out_is_told(tmp_path, arguments):
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "ENVBUILD_CACHE": str(tmp_path / "cache")}
    done = run_envbuild("base", *arguments, env=env)
    assert (done.returncode, done.stdout) == (17, "")
    assert f"where: unix://{tmp_path}/none.sock" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["mine:1", "sha256:" + "a" * 64])
def test_an_image_of_another_platform_than_the_one_asked_for_is_not_pushed(base, monkeypatch, name):
    with serving_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        identity = "sha256:" + "a" * 64
        engine.images, engine.names = {identity}, {"mine:1": identity}
        code, out, err = base("push", name, "127.0.0.1:1/b:1", "--platform", "linux/arm64")
        assert (code, out) == (2, "")
        assert "the engine's image is for linux/amd64, not linux/arm64" in err
        assert engine.requests == [], "no container, no push"
        assert engine.names == {"mine:1": identity}


def test_what_is_pushed_is_named_without_a_password(base):
    code, out, err = base("push", "u:s3cret@h.example.com/x", "127.0.0.1:1/b:1")
    assert (code, out) == (2, "")
    assert f"{LOGIN}NAME" in err
    assert "s3cret" not in err
