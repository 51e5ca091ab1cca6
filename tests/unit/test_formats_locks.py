"""`pylock.toml` and `uv.lock`: what they install in the run's environment, forks and markers decided or asked about."""

from typing import Any

import pytest

from envbuild.errors import UsageError
from envbuild.lock.formats import pylock_text, requirements_text
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.oci.digest import Digest
from tests.unit.converting import origins, pins, read, refusal

LINUX: dict[str, Any] = {"python": "3.11.7", "platform": "linux/amd64"}
A, B = "aa" * 32, "bb" * 32
COMMIT = "28f3d93bc43e824ed5f3e1a417716b0a9ef05cde"

PYLOCK = f"""
lock-version = "1.0"
created-by = "pip"
requires-python = ">=3.9"
environments = ["sys_platform == 'linux'", "sys_platform == 'win32'"]
extras = ["gpu"]
dependency-groups = ["dev", "docs"]
default-groups = ["dev"]

[[packages]]
name = "idna"
version = "3.20"
wheels = [{{ url = "https://example.com/idna-3.20-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]
sdist = {{ url = "https://example.com/idna-3.20.tar.gz", hashes = {{ sha256 = "{B}" }} }}

[[packages]]
name = "colorama"
version = "0.4.6"
marker = "sys_platform == 'win32'"
wheels = [{{ url = "https://example.com/colorama-0.4.6-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "tester"
version = "1.0"
marker = "'dev' in dependency_groups"
wheels = [{{ url = "https://example.com/tester-1.0-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "cuda"
version = "1.0"
marker = "'gpu' in extras"
wheels = [{{ url = "https://example.com/cuda-1.0-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "numpy"
version = "2.0.2"
marker = "python_full_version < '3.11'"
wheels = [{{ url = "https://example.com/numpy-2.0.2-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "numpy"
version = "2.4.6"
marker = "python_full_version >= '3.11'"
wheels = [{{ url = "https://example.com/numpy-2.4.6-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "repository"
vcs = {{ type = "git", url = "https://u:p@example.com/r.git", requested-revision = "main", commit-id = "{COMMIT}" }}

[[packages]]
name = "folder"
directory = {{ path = "../folder", editable = true }}

[[packages]]
name = "archive"
archive = {{ url = "https://example.com/archive-1.5-py3-none-any.whl", hashes = {{ sha256 = "{B}" }} }}
"""


def test_a_pylock_gives_what_it_installs():
    manifest = read("pylock.toml", PYLOCK, **LINUX)
    assert (manifest.source.format, manifest.source.tool, manifest.source.complete) == ("pylock", "pip", True)
    assert pins(manifest) == {
        "archive": "1.5", "folder": None, "idna": "3.20", "numpy": "2.4.6", "repository": None, "tester": "1.0",
    }  # fmt: skip
    found = origins(manifest)
    assert found["idna"] == {"kind": "index", "hashes": [A, B]}
    assert found["archive"] == {
        "kind": "archive",
        "url": "https://example.com/archive-1.5-py3-none-any.whl",
        "sha256": B,
    }
    assert found["folder"] == {"kind": "editable", "url": "../folder"}
    assert found["repository"] == {
        "kind": "vcs", "url": "https://example.com/r.git", "commit": COMMIT, "requested_revision": "main",
    }  # fmt: skip
    assert "docs, gpu" in manifest.source.notes[0]


def test_the_environment_decides_between_the_packages_of_a_pylock():
    windows = read("pylock.toml", PYLOCK, python="3.10.2", platform="windows/amd64")
    assert pins(windows)["colorama"] == "0.4.6"
    assert pins(windows)["numpy"] == "2.0.2"


@pytest.mark.parametrize(
    ("content", "given", "says"),
    [
        (PYLOCK, {"python": "3.11.7"}, "packages[1]: whether colorama was installed depends on where"),
        (PYLOCK, {"python": "3.8.1", "platform": "linux/amd64"}, "the lock is for Python >=3.9, the run's is 3.8.1"),
        (PYLOCK, {"python": "3.11.7", "platform": "darwin/arm64"}, "the lock is for none like the run's"),
        (
            PYLOCK.replace("python_full_version < '3.11'", "python_full_version < '4'"),
            LINUX,
            "numpy is 2.4.6, and 2.0.2",
        ),
        *(
            (PYLOCK.replace(f'{key} = "{old}"', f'{key} = "{new}"'), LINUX, "not a valid pylock.toml")
            for key, old, new in (("lock-version", "1.0", "9.0"), ("name", "idna", "Idna"))
        ),
        (PYLOCK[:-40], LINUX, "not TOML"),
        ("lock-version = '1.0'\nx=" + "[" * 100_000, LINUX, "nested too deeply"),
        ("lock-version = '1.0'\n" + "a." * 150 + "a = 1\n", LINUX, "a key without end"),
        (PYLOCK, {}, "--python"),
    ],
    ids=["no platform", "python", "platform", "two", "version", "name", "cut", "nested", "key", "no python"],
)
def test_pylocks_that_cannot_be_the_run_s_are_refused(content, given, says):
    assert says in refusal("pylock.toml", content, **given)


LOCK = Lock(
    target=Target(python="3.11.2", machine="x86_64", glibc="2.36"),
    wheels=tuple(
        LockedWheel(
            name=name, version=version, filename=f"{name}-{version}-py3-none-any.whl", sha256=Digest(A), size=5,
            url=f"https://example.com/{name}-{version}-py3-none-any.whl",
        )
        for name, version in (("idna", "3.20"), ("torch", "2.3.1+cu121"))
    ),
)  # fmt: skip


def test_what_envbuild_writes_is_read_as_it_was():
    pylock = read("pylock.toml", pylock_text(LOCK))
    requirements = read("requirements.txt", requirements_text(LOCK), python="3.11.2")
    for manifest in (pylock, requirements):
        assert pins(manifest) == {"idna": "3.20", "torch": "2.3.1+cu121"}
        assert manifest.source.complete
        assert origins(manifest)["idna"] == {"kind": "index", "hashes": [A]}
    assert (pylock.python.version, pylock.platform.system, pylock.platform.machine) == ("3.11.2", "Linux", "x86_64")
    assert (pylock.platform.libc, pylock.platform.libc_version) == ("glibc", "2.36")
    with pytest.raises(UsageError, match="the record says Linux x86_64"):
        read("pylock.toml", pylock_text(LOCK), platform="linux/arm64")


UV_LOCK = f"""
version = 1
revision = 3
requires-python = ">=3.9"
resolution-markers = ["python_full_version >= '3.11'", "python_full_version < '3.11'"]

[[package]]
name = "proj"
version = "0.1"
source = {{ editable = "." }}
dependencies = [
    {{ name = "colorama", marker = "sys_platform == 'win32'" }},
    {{ name = "local-e" }},
    {{ name = "numpy", version = "2.0.2", source = {{ registry = "https://index.invalid/simple" }}, marker = "python_full_version < '3.11'" }},
    {{ name = "numpy", version = "2.4.6", source = {{ registry = "https://index.invalid/simple" }}, marker = "python_full_version >= '3.11'" }},
    {{ name = "tool", extra = ["fast"] }},
    {{ name = "vpkg" }},
    {{ name = "remote" }},
    {{ name = "member" }},
]

[package.optional-dependencies]
gpu = [{{ name = "cuda" }}]

[package.dev-dependencies]
dev = [{{ name = "forked" }}]
docs = [{{ name = "cuda" }}]

[[package]]
name = "member"
version = "0.2"
source = {{ virtual = "member" }}
dependencies = [{{ name = "idna" }}]

[[package]]
name = "colorama"
version = "0.4.6"
source = {{ registry = "https://index.invalid/simple" }}

[[package]]
name = "cuda"
version = "1.0"
source = {{ registry = "https://index.invalid/simple" }}

[[package]]
name = "forked"
version = "1.0"
source = {{ registry = "https://index.invalid/simple" }}
resolution-markers = ["python_full_version < '3.11'"]

[[package]]
name = "forked"
version = "2.0"
source = {{ registry = "https://index.invalid/simple" }}
resolution-markers = ["python_full_version >= '3.11'"]

[[package]]
name = "idna"
version = "3.20"
source = {{ registry = "https://index.invalid/simple" }}
sdist = {{ url = "https://example.com/idna.tar.gz", hash = "sha256:{B}" }}
wheels = [{{ url = "https://example.com/idna.whl", hash = "sha256:{A}" }}]

[[package]]
name = "local-e"
source = {{ editable = "../loce" }}
dependencies = [{{ name = "idna" }}]

[[package]]
name = "numpy"
version = "2.0.2"
source = {{ registry = "https://index.invalid/simple" }}

[[package]]
name = "numpy"
version = "2.4.6"
source = {{ registry = "https://index.invalid/simple" }}

[[package]]
name = "remote"
version = "1.5"
source = {{ url = "https://u:canary@example.com/remote-1.5-py3-none-any.whl" }}
wheels = [{{ url = "https://example.com/remote-1.5-py3-none-any.whl", hash = "sha256:{A}" }}]

[[package]]
name = "speed"
version = "4.0"
source = {{ registry = "https://index.invalid/simple" }}
dependencies = [{{ name = "tool" }}]

[[package]]
name = "tool"
version = "1.0"
source = {{ registry = "https://index.invalid/simple" }}

[package.optional-dependencies]
fast = [{{ name = "speed" }}]

[[package]]
name = "vpkg"
version = "1.2"
source = {{ git = "https://u:canary@example.com/vcs?subdirectory=python&rev=main#{COMMIT}" }}
"""


def test_a_uv_lock_gives_what_uv_sync_installs():
    manifest = read("uv.lock", UV_LOCK, **LINUX)
    assert (manifest.source.format, manifest.source.complete) == ("uv-lock", True)
    assert pins(manifest) == {
        "forked": "2.0", "idna": "3.20", "local-e": None, "numpy": "2.4.6", "remote": "1.5", "speed": "4.0", "tool": "1.0",
        "vpkg": "1.2",
    }  # fmt: skip
    found = origins(manifest)
    assert found["idna"] == {"kind": "index", "hashes": [A, B], "url": "https://index.invalid/simple"}
    assert found["local-e"] == {"kind": "editable", "url": "../loce"}
    assert found["remote"] == {"kind": "archive", "url": "https://example.com/remote-1.5-py3-none-any.whl", "sha256": A}
    assert found["vpkg"] == {
        "kind": "vcs", "url": "https://example.com/vcs", "commit": COMMIT, "requested_revision": "main",
        "subdirectory": "python",
    }  # fmt: skip
    assert "canary" not in repr(manifest)


def test_what_of_a_project_is_not_taken_is_told():
    first, second = read("uv.lock", UV_LOCK, **LINUX).source.notes
    assert "proj itself is left out" in first
    assert "docs, gpu" in second


def test_the_environment_decides_between_the_forks_of_a_uv_lock():
    manifest = read("uv.lock", UV_LOCK, python="3.10.2", platform="windows/amd64")
    assert pins(manifest)["numpy"] == "2.0.2"
    assert pins(manifest)["forked"] == "1.0"
    assert pins(manifest)["colorama"] == "0.4.6"


def test_a_workspace_without_a_project_at_its_root_is_read_by_all_its_members():
    members = UV_LOCK.replace('{ editable = "." }', '{ editable = "packages/proj" }')
    manifest = read("uv.lock", members, **LINUX)
    assert pins(manifest)["numpy"] == "2.4.6"
    assert "proj" in manifest.source.notes[0]


@pytest.mark.parametrize(
    ("content", "given", "says"),
    [
        (UV_LOCK, {"python": "3.11.7"}, "whether it was installed depends on where"),
        (UV_LOCK, {"python": "3.8.1", "platform": "linux/amd64"}, "the lock is for Python >=3.9"),
        (UV_LOCK.replace("version = 1\n", "version = 2\n", 1), LINUX, "not a uv.lock of version 1"),
        (UV_LOCK.replace('name = "vpkg"\nversion', 'name = "other"\nversion'), LINUX, "vpkg is there 0 times"),
        (
            UV_LOCK.replace("""resolution-markers = ["python_full_version < '3.11'"]\n\n""", "\n"),
            LINUX,
            "forked is there 2 times",
        ),
        (UV_LOCK.replace("sys_platform == 'win32'", "sys_platform = 'win32'"), LINUX, "this is not a marker"),
        ("version = 1\n[[package]]\nname = 'x'\nsource = { registry = 'y' }\n", LINUX, "the lock has no project"),
        (UV_LOCK.replace("'python_full", '"python_full')[:200], LINUX, "uv.lock"),
    ],
    ids=["no platform", "python", "version", "missing", "ambiguous", "marker", "no project", "cut"],
)
def test_uv_locks_that_cannot_be_followed_are_refused(content, given, says):
    assert says in refusal("uv.lock", content, **given)
