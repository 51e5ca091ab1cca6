"""Locks of real environments: whether the files are the run's, what has to be built, and what indexes withdrew."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.download import fetch
from envbuild.lock.formats import read_existing_lock
from envbuild.lock.model import Target
from envbuild.lock.resolvers import UvResolver
from envbuild.lock.run import Options, lock_run
from envbuild.lock.settings import pip_environment, read_settings

pytestmark = pytest.mark.real

TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


def pip_installed(folder: Path, *steps: tuple[str, ...]) -> Path:
    """The python of an environment in which pip itself installed, step by step."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    for step in steps:
        command = [sys.executable, "-m", "pip", "-q", "--python", str(python), "install", *step]
        subprocess.run(command, check=True, env=pip_environment(read_settings()))
    return python


def with_framework(path: Path) -> Path:
    """The manifest as if the run had had TensorFlow, which is too big to be installed for every test."""
    manifest = json.loads(path.read_bytes())
    manifest["framework"] = {"name": "tensorflow", "distribution": "tensorflow-cpu", "version": "2.15.1"}
    path.write_text(json.dumps(manifest))
    return path


def outcomes(result: dict) -> dict[str, str]:
    return {it["name"]: it["outcome"] for it in result["identity"]["distributions"]}


def test_every_wheel_of_a_tensorflow_environment_is_the_run_s_own(train_env, envbuild, tmp_path):
    python, manifest = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0"), tmp_path / "manifest.json"
    envbuild("capture", "--python", python, "--out", manifest)
    cold = {"ENVBUILD_CACHE": str(tmp_path / "cache")}
    found = json.loads(
        envbuild("lock", manifest, "--out", tmp_path / "a", "--require-identical", "--json", env=cold).stdout
    )
    count = len(json.loads(manifest.read_bytes())["distributions"])
    assert found["identity"]["summary"] == f"{count} of {count} identical"
    assert count >= 42
    assert found["conflicts"] == []
    again = envbuild("lock", manifest, "--out", tmp_path / "b", env=cold)
    assert f"{count} of {count} wheels are the run's own files" in again.stderr
    for name in ("pylock.toml", "requirements.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_pip_built_and_what_somebody_edited_is_told_apart(envbuild, tmp_path):
    steps = (("--no-deps", "numpy==1.26.4", "wrapt==1.14.1", "idna==3.10"), ("--no-binary", "click", "click==8.1.7"))
    python, manifest = pip_installed(tmp_path / "venv", *steps), tmp_path / "manifest.json"
    edited = next((tmp_path / "venv").rglob("site-packages/idna/core.py"))
    edited.write_text(edited.read_text() + "\n# changed by hand\n")
    envbuild("capture", "--python", python, "--out", manifest)
    with_framework(manifest)
    done = envbuild(
        "lock", manifest, "--out", tmp_path / "out", "--json", env={"ENVBUILD_CACHE": str(tmp_path / "cache")}
    )
    result = json.loads(done.stdout)
    assert {name: it for name, it in outcomes(result).items() if name != "tensorflow-cpu"} == {
        "click": "different build", "idna": "locally modified", "numpy": "identical", "wrapt": "identical",
    }  # fmt: skip
    assert result["identity"]["summary"] == (
        "2 of 5 identical, 1 added: tensorflow-cpu; click was built from source; "
        "idna was changed after installation: 1 file (idna/core.py)"
    )  # fmt: skip
    refused = envbuild("lock", manifest, "--out", tmp_path / "none", "--require-identical", check=False)
    assert refused.returncode == 16
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("pin", ["termcolor==1.1.0", "gast==0.2.2"])
def test_an_old_release_without_wheels_is_built_and_is_the_same_elsewhere(tmp_path, pin):
    with pytest.raises(LockError, match="only a source distribution"):
        lock_run((pin,), TARGET, (), Options(cache=tmp_path / "a"))
    runs = [lock_run((pin,), TARGET, (), Options(cache=tmp_path / name, build_from_source=True)) for name in ("a", "b")]
    wheels = [run.lock.wheels[0] for run in runs]
    assert wheels[0].filename.endswith("-py3-none-any.whl")
    assert (wheels[0].sha256, wheels[0].size) == (wheels[1].sha256, wheels[1].size)
    assert pin.split("==")[0] in runs[0].built[0][1]


def test_a_commit_that_pip_installed_is_built_again(envbuild, tmp_path):
    """idna's sources stand for anybody's repository; flit, its backend, comes from the index."""
    repo = tmp_path / "repo"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "download",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        tmp_path,
        "idna==3.10",
    ]
    subprocess.run(pip, check=True, env=pip_environment(read_settings()))
    subprocess.run(["tar", "-xzf", tmp_path / "idna-3.10.tar.gz", "-C", tmp_path], check=True)
    (tmp_path / "idna-3.10").rename(repo)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", repo, *words], check=True)
    python = pip_installed(tmp_path / "venv", ("--no-deps", f"idna @ git+{repo.as_uri()}"))
    manifest = tmp_path / "manifest.json"
    envbuild("capture", "--python", python, "--out", manifest)
    with_framework(manifest)
    env = {"ENVBUILD_CACHE": str(tmp_path / "cache")}
    refused = envbuild("lock", manifest, "--out", tmp_path / "out", env=env, check=False)
    assert refused.returncode == 12
    assert "was installed from version control" in refused.stderr
    found = json.loads(envbuild("lock", manifest, "--out", tmp_path / "out", "--build", "--json", env=env).stdout)
    assert found["built"].keys() == {"idna"}
    held = read_existing_lock(tmp_path / "out")
    assert held is not None
    [wheel] = [it for it in held.wheels if it.name == "idna"]
    [(_, path)] = fetch([wheel], tmp_path / "another machine")
    subprocess.run([sys.executable, "-c", "import idna; idna.encode('a')"], check=True, env={"PYTHONPATH": str(path)})


def test_what_an_index_withdrew_is_locked_as_the_run_had_it_and_told(tmp_path):
    run = lock_run(("attrs==21.1.0", "idna==3.10"), TARGET, (), Options(cache=tmp_path))
    assert [name for name, _ in run.lock.yanked] == ["attrs"]
    assert any(note.startswith("attrs was withdrawn from its index (Installable but") for note in run.notes())


@pytest.mark.parametrize(
    ("system", "pins"),
    [
        ("Darwin", ("pyobjc-core==11.1", "pyobjc-framework-cocoa==11.1", "tensorflow-metal==1.1.0")),
        ("Windows", ("pywin32==310", "pywinpty==2.0.15")),
    ],
)
def test_what_a_laptop_had_of_its_own_system_is_left_out_and_the_rest_is_locked(tmp_path, system, pins):
    rest = ("appnope==0.1.4", "colorama==0.4.6", "idna==3.10")
    run = lock_run((*pins, *rest), TARGET, (), Options(cache=tmp_path, system=system))
    assert [f"{it.name}=={it.version}" for it in run.lock.wheels] == list(rest)
    assert sorted(name for name, _ in run.left_out) == [it.partition("==")[0] for it in pins]
    with pytest.raises(LockError, match=f"{len(pins)} distributions cannot be locked"):
        lock_run((*pins, *rest), TARGET, (), Options(cache=tmp_path, system="Linux"))


@pytest.mark.parametrize("label", ["cu121", "cpu"])
def test_a_label_of_pytorch_needs_its_own_index(label):
    with pytest.raises(LockError, match=f"only without the local label \\+{label}") as caught:
        UvResolver().resolve((f"torch==2.3.1+{label}",), TARGET)
    assert f"/whl/{label}" in str(caught.value)


def test_an_upgrade_for_a_vulnerability_takes_what_must_follow(tmp_path):
    pins = ("requests==2.19.0", "urllib3==1.23", "idna==2.7", "chardet==3.0.4", "certifi==2018.4.16", "six==1.16.0")
    run = lock_run(pins, TARGET, (), Options(cache=tmp_path, upgrade=("urllib3==1.26.18",)))
    changed = {it.name: (it.before, it.reason) for it in run.changes}
    assert changed["urllib3"] == ("1.23", "it was asked for")
    assert "requests" in changed
    assert "six" not in changed
    assert run.conflicts == ()


def test_a_server_is_added_under_the_lock(tmp_path):
    pins = ("typing-extensions==4.9.0", "idna==3.6", "anyio==4.2.0", "sniffio==1.3.0")
    run = lock_run(pins, TARGET, (), Options(cache=tmp_path, extras=("fastapi", "uvicorn")))
    names = {it.name: it.version for it in run.lock.wheels}
    assert {"fastapi", "uvicorn", "starlette", "pydantic"} <= names.keys()
    assert [f"{name}=={names[name]}" for name in ("typing-extensions", "idna", "anyio", "sniffio")] == list(pins)
    with pytest.raises(LockError, match=r"(?s)typing-extensions 3\.7\.4.*(fastapi|pydantic)"):
        lock_run(("typing-extensions==3.7.4",), TARGET, (), Options(cache=tmp_path, extras=("fastapi==0.110.0",)))
