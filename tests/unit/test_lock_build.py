"""Building what no index has as a wheel: commits, editable installs with their changes, source distributions."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.download import fetch
from envbuild.lock.formats import read_existing_lock, write_lock
from envbuild.lock.run import lock_run
from envbuild.lock.settings import read_settings, uv_program
from envbuild.manifest.packages import Distribution, Origin
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.locking import HERE, forget_settings, options

BACKEND = """
import base64, hashlib, os, time, zipfile

def build_wheel(folder, config=None, metadata=None):
    version, tag = os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MY_THING", VERSION), TAG
    assert version == "1.0"
    info = f"my_thing-{VERSION}.dist-info"
    files = {
        "my_thing.py": open("my_thing.py").read(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: my-thing\\nVersion: {VERSION}\\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: {tag}\\n",
    }
    lines = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
             for name, text in files.items()]
    files[f"{info}/RECORD"] = "\\n".join(lines + [f"{info}/RECORD,,", ""])
    date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(f"{folder}/my_thing-{VERSION}-{tag}.whl", "w") as archive:
        for name, text in files.items():
            member = zipfile.ZipInfo(name, date)
            member.external_attr = os.stat("my_thing.py").st_mode << 16
            archive.writestr(member, text)
    return f"my_thing-{VERSION}-{tag}.whl"
"""
SETUP = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def project(
    version: str = "1.0", tag: str = "py3-none-any", code: str = "X = 1\n", backend: str = BACKEND
) -> dict[str, str]:
    """The files of a project that builds without any package of an index."""
    lines = f"VERSION = {version!r}\nTAG = {tag!r}\n"
    return {"pyproject.toml": SETUP, "backend.py": lines + backend, "my_thing.py": code}


def git(folder: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", folder, *arguments], env=os.environ | names, check=True, capture_output=True, text=True
    )
    return done.stdout


def repository(folder: Path, files: dict[str, str], within: str = "") -> str:
    """Make a repository of these files; its commit."""
    for name, text in files.items():
        path = folder / within / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return git(folder, "rev-parse", "HEAD").strip()


def sdist(files: dict[str, str]) -> FakeWheel:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in (files | {"PKG-INFO": "Metadata-Version: 2.1\nName: my-thing\nVersion: 1.0\n"}).items():
            member = tarfile.TarInfo(f"my_thing-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return FakeWheel(filename="my_thing-1.0.tar.gz", data=buffer.getvalue())


@pytest.fixture(autouse=True)
def index(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)
    with serving(make_wheel("pure", "1.0")) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def thing(**origin) -> Distribution:
    return Distribution(name="My.Thing", version="1.0", origin=Origin(**origin))


def locked(tmp_path: Path, *run: Distribution, build: bool = True, target=HERE, cache: str = "a"):
    return lock_run(("my-thing==1.0", "pure==1.0"), target, run, options(tmp_path / cache, build_from_source=build))


def refused(tmp_path: Path, *run: Distribution, **more) -> str:
    with pytest.raises(LockError) as caught:
        locked(tmp_path, *run, **more)
    return str(caught.value)


def wheel_of(run):
    return next(it for it in run.lock.wheels if it.name == "my-thing")


def test_a_commit_is_built_although_the_index_has_a_stranger_of_its_name(tmp_path, index: FakeIndex):
    index.add(make_wheel("my-thing", "1.0", {"my_thing.py": "import evil\n"}))
    commit = repository(tmp_path / "repo", project())
    (tmp_path / "repo/my_thing.py").write_text("X = 2\n")
    git(tmp_path / "repo", "commit", "-q", "-a", "-m", "later")
    vcs = thing(kind="vcs", url=(tmp_path / "repo").as_uri(), commit=commit)
    run = locked(tmp_path, vcs)
    wheel = wheel_of(run)
    assert wheel.filename == "my_thing-1.0-py3-none-any.whl"
    assert wheel.url.startswith((tmp_path / "a/cache/built").as_uri())
    assert run.built == (("my-thing", f"{(tmp_path / 'repo').as_uri()} at {commit}"),)
    assert f"my-thing was built here from {run.built[0][1]}" in run.notes()
    assert next(it.name for it in run.lock.wheels if it is not wheel) == "pure"
    said = refused(tmp_path, vcs, build=False)
    assert "was installed from version control" in said
    assert "let it be built from that commit: --build" in said


def test_the_same_commit_gives_the_same_bytes_elsewhere_and_is_built_once(tmp_path):
    commit = repository(tmp_path / "repo", project())
    vcs = thing(kind="vcs", url=(tmp_path / "repo").as_uri(), commit=commit)
    first = wheel_of(locked(tmp_path, vcs))
    before = os.umask(0o077)
    try:
        second = wheel_of(locked(tmp_path, vcs, cache="b"))
    finally:
        os.umask(before)
    assert (first.sha256, first.size) == (second.sha256, second.size)
    assert first.url != second.url
    (tmp_path / "repo").rename(tmp_path / "gone")
    assert wheel_of(locked(tmp_path, vcs)) == first


def test_an_editable_install_is_built_with_its_changes_as_they_were_recorded(tmp_path):
    repo = tmp_path / "repo"
    commit = repository(repo, project(), within="python/thing")
    (repo / "python/thing/my_thing.py").write_text("X = 'changed'\n")
    patch = git(repo, "diff", "HEAD", "--binary")
    git(repo, "checkout", "-q", ".")
    known = {
        "kind": "editable", "url": "file:///home/me/thing", "remote": repo.as_uri(), "commit": commit,
        "subdirectory": "python/thing", "dirty": True, "diff_sha256": hashlib.sha256(patch.encode()).hexdigest(),
    }  # fmt: skip
    run = locked(tmp_path, thing(**known, patch=patch))
    path = Path(wheel_of(run).url.removeprefix("file://"))
    assert b"X = 'changed'" in path.read_bytes()
    assert "with changes sha256:" in run.built[0][1]
    for lost in ({}, {"patch": patch.replace("changed", "[redacted]")}):
        said = refused(tmp_path, thing(**known, **lost))
        assert "is an editable install of file:///home/me/thing" in said
        assert "--build" not in said


@pytest.mark.parametrize(
    ("changes", "origin", "why"),
    [
        ({}, {"commit": "0" * 40}, "git fetch"),
        ({}, {"commit": "main"}, "'main' is not a commit"),
        ({}, {"commit": "--upload-pack=touch x"}, "is not a commit"),
        ({}, {"url": "file:///nowhere/repo"}, "git clone"),
        ({}, {"subdirectory": "../.."}, "the commit has no folder ../.."),
        ({}, {"subdirectory": "absent"}, "the commit has no folder absent"),
        ({"version": "1.1"}, {}, "it gives my_thing-1.1-py3-none-any.whl, which is not my-thing 1.0"),
        ({"tag": "cp27-cp27m-linux_x86_64"}, {}, "it gives my_thing-1.0-cp27-cp27m-linux_x86_64.whl; build where Python"),
        ({"backend": "raise RuntimeError('no compiler here')"}, {}, "no compiler here"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_says_why_and_leaves_nothing(tmp_path, changes, origin, why):
    commit = repository(tmp_path / "repo", project(**changes))
    known = {"kind": "vcs", "url": (tmp_path / "repo").as_uri(), "commit": commit}
    said = refused(tmp_path, thing(**(known | origin)))
    assert "my-thing==1.0: no wheel could be built from" in said
    assert why in said, said
    assert "--find-links DIR" in said
    built = tmp_path / "a/cache/built"
    assert not built.exists() or list(built.iterdir()) == []


def test_a_native_wheel_for_an_older_glibc_than_this_machine_s_is_refused(tmp_path):
    tag = f"cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-linux_{HERE.machine}"
    commit = repository(tmp_path / "repo", project(tag=tag))
    vcs = thing(kind="vcs", url=(tmp_path / "repo").as_uri(), commit=commit)
    assert wheel_of(locked(tmp_path, vcs)).filename.endswith(f"{tag}.whl")
    said = refused(tmp_path, vcs, target=replace(HERE, glibc="2.17"))
    assert f"built here it needs glibc {HERE.glibc}, the target has 2.17" in said


def test_a_source_distribution_is_built_where_the_index_has_nothing_else(tmp_path, index: FakeIndex):
    source = sdist(project())
    index.add(source)
    run = locked(tmp_path)
    assert run.built == (("my-thing", f"my_thing-1.0.tar.gz sha256:{source.sha256}"),)
    assert "let it be built from its source distribution: --build" in refused(tmp_path, build=False)


def test_a_source_distribution_with_other_bytes_than_the_index_says_is_refused(tmp_path, index: FakeIndex):
    index.add(sdist(project()))
    index.files["my_thing-1.0.tar.gz"] = index.files["my_thing-1.0.tar.gz"][::-1]
    assert "the hash of my_thing-1.0.tar.gz does not match" in refused(tmp_path)


def test_offline_only_repositories_of_this_machine_are_built(tmp_path):
    commit = repository(tmp_path / "repo", project())
    house = tmp_path / "house"
    house.mkdir()
    wheel = make_wheel("pure", "1.0")
    (house / wheel.filename).write_bytes(wheel.data)
    for address, works in (((tmp_path / "repo").as_uri(), True), ("https://git.invalid/thing", False)):
        vcs = thing(kind="vcs", url=address, commit=commit)
        more = options(tmp_path, build_from_source=True, settings=read_settings([house], offline=True))
        if works:
            assert lock_run(("my-thing==1.0", "pure==1.0"), HERE, [vcs], more).built
        else:
            with pytest.raises(LockError, match="--offline forbids that"):
                lock_run(("my-thing==1.0", "pure==1.0"), HERE, [vcs], more)


def test_nothing_is_built_where_something_else_cannot_be_had(tmp_path, index: FakeIndex):
    index.add(sdist(project()))
    with pytest.raises(LockError, match="2 distributions cannot be locked"):
        lock_run(("my-thing==1.0", "absent==1"), HERE, (), options(tmp_path, build_from_source=True))
    assert not (tmp_path / "cache/built").exists()


def test_built_wheels_are_kept_with_the_lock_which_then_serves_elsewhere(tmp_path, index: FakeIndex):
    index.add(sdist(project()))
    run, out = locked(tmp_path), tmp_path / "out"
    write_lock(out, run)
    wheel = wheel_of(run)
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "pylock.toml", "requirements.txt", f"wheels/{wheel.filename}",
    ]  # fmt: skip
    pylock = tomllib.loads((out / "pylock.toml").read_text())
    assert pylock["packages"][0]["wheels"][0]["path"] == f"wheels/{wheel.filename}"
    assert "url" not in pylock["packages"][0]["wheels"][0]
    assert pylock["tool"]["envbuild"]["built"] == dict(run.built)
    assert str(tmp_path) not in (out / "pylock.toml").read_text() + (out / "requirements.txt").read_text()
    moved = out.rename(tmp_path / "another machine")
    held = read_existing_lock(moved)
    assert held is not None
    assert held.wheels[0].sha256 == wheel.sha256
    found = {it.name: path.read_bytes() for it, path in fetch(held.wheels, tmp_path / "other cache")}
    assert hashlib.sha256(found["my-thing"]).hexdigest() == wheel.sha256.hex


def test_installers_find_the_wheels_that_lie_beside_the_requirements(tmp_path, index: FakeIndex):
    index.add(sdist(project()))
    write_lock(tmp_path / "out", locked(tmp_path))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    commands = (
        [uv_program(), "pip", "install", "-q", "--dry-run", "--python", python, "--require-hashes"],
        [sys.executable, "-m", "pip", "-q", "--python", python, "install", "--dry-run", "--require-hashes", "--no-deps",
         "--index-url", index.url],
    )  # fmt: skip
    for command in commands:
        subprocess.run([*command, "-r", "requirements.txt"], check=True, cwd=tmp_path / "out")
