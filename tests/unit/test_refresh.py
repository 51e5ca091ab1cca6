"""Profiles made anew: an index on loopback, small wheels, and what a changed wheel, a fault or a missing range does."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from difflib import unified_diff

import pytest
from packaging.version import Version

from envbuild.errors import LockError
from envbuild.lock.settings import IndexSettings
from envbuild.match.profiles import FrameworkProfile, FrameworkWheel, Release
from envbuild.oci.digest import Digest
from envbuild.refresh.index import Index
from envbuild.refresh.tensorflow import refresh_tensorflow
from envbuild.refresh.toml import to_toml
from tests.fakes.index import FakeIndex, Fault, closed_port, serving
from tests.fakes.wheels import FakeWheel, make_wheel

BUILD_INFO = "tensorflow/python/platform/build_info.py"
GPU = {
    "is_cuda_build": True,
    "cuda_version": "12.2",
    "cudnn_version": "8",
    "cuda_compute_capabilities": ["sm_50", "compute_80"],
}
CPU = {"is_cuda_build": False}
TAGS = ("cp311-cp311-manylinux_2_17_x86_64",)
REQUIRES = (
    "numpy<2",
    'nvidia-cudnn-cu12==8.9.4.25; extra == "and-cuda"',
    "nvidia-cublas-cu12 (==12.2.5.6) ; extra == 'and-cuda'",
    'tensorflow-intel==2.15.1; platform_system == "Windows"',
)


def wheel(
    version: str,
    *,
    name: str = "tensorflow",
    python: str = "cp311",
    platform: str = "manylinux_2_17_x86_64",
    build: object = GPU,
    padding: int = 0,
) -> FakeWheel:
    files: dict[str, str | bytes] = {
        BUILD_INFO: f"import collections\n\nbuild_info = collections.OrderedDict({build!r})\n"
    }
    if padding:
        files |= {f"tensorflow/{place}.py": f"{place}" for place in range(padding)}
    return make_wheel(name, version, files, tags=(f"{python}-{python}-{platform}",), requires=REQUIRES)


def stub(version: str) -> FakeWheel:
    needs = f'tensorflow-cpu-aws=={version}; platform_system == "Linux" and platform_machine == "aarch64"'
    return make_wheel(
        "tensorflow", version, {}, tags=("cp311-cp311-manylinux_2_17_aarch64",), requires=(needs, *REQUIRES[1:])
    )


def flipped(source: FakeWheel, after: str) -> FakeWheel:
    data = bytearray(source.data)
    data[source.data.index(after.encode()) + len(after)] ^= 0xFF
    return FakeWheel(filename=source.filename, data=bytes(data))


def refresh(served: FakeIndex) -> str:
    with Index.open(IndexSettings(default=served.url)) as index:
        return refresh_tensorflow(index)


@pytest.fixture
def served() -> Iterator[FakeIndex]:
    with serving(
        wheel("2.15.1", python="cp310"),
        wheel("2.15.1", python="cp311"),
        wheel("2.15.1", name="tensorflow-cpu", build=CPU),
        stub("2.15.1"),
        wheel("2.15.0.post1"),
        wheel("2.8.0", python="cp37", platform="manylinux2010_x86_64"),
    ) as index:
        yield index


def test_rows_say_what_the_wheels_say(served):
    written = tomllib.loads(refresh(served))
    assert [it["version"] for it in written["release"]] == ["2.8.0", "2.15.0.post1", "2.15.1"]
    gpu, empty, cpu = written["release"][2]["wheel"]
    source = wheel("2.15.1", python="cp311")
    assert gpu == {
        "distribution": "tensorflow",
        "machine": "x86_64",
        "pythons": ["3.10", "3.11"],
        "glibc": "2.17",
        "cuda": "12.2",
        "cudnn": "8",
        "compute_capabilities": ["sm_50", "compute_80"],
        "cuda_requirements": ["nvidia-cublas-cu12==12.2.5.6", "nvidia-cudnn-cu12==8.9.4.25"],
        "wheel": source.filename,
        "sha256": source.sha256,
    }
    assert (cpu["distribution"], "cuda" in cpu, "cuda_requirements" in cpu) == ("tensorflow-cpu", False, False)
    assert (empty["machine"], empty["stands_for"]) == ("aarch64", "tensorflow-cpu-aws==2.15.1")
    assert written["release"][0]["wheel"][0]["glibc"] == "2.12"


def test_refreshing_again_gives_the_same_text(served):
    assert refresh(served) == refresh(served)


def test_a_changed_wheel_changes_its_row_and_no_other(served):
    before = refresh(served)
    changed = wheel("2.15.0.post1", build=GPU | {"cuda_version": "12.3"})
    served.pages["tensorflow"] = [it for it in served.pages["tensorflow"] if "post1" not in it]
    served.add(changed)
    lines = unified_diff(before.splitlines(), refresh(served).splitlines(), n=0, lineterm="")
    added = [it[1:] for it in lines if it.startswith("+") and not it.startswith("+++")]
    assert added == ['cuda = "12.3"', f'sha256 = "{changed.sha256}"']


def test_prereleases_yanked_files_and_other_systems_have_no_row(served):
    before = refresh(served)
    served.add(
        wheel("2.16.0rc0"),
        wheel("2.4.4"),
        wheel("2.15.1", platform="win_amd64"),
        wheel("2.15.1", python="cp39", platform="musllinux_1_2_x86_64"),
    )
    served.pages["tensorflow"] += [
        f'<a href="../../files/{it.filename}#sha256={it.sha256}" data-yanked="">x</a>' for it in (wheel("2.17.0"),)
    ]
    served.pages["tensorflow"] += [
        '<a href="tensorflow-2.18.0.tar.gz#sha256=00">x</a>',
        '<a href="../">up</a>',
        "<a>none</a>",
    ][1:]
    assert refresh(served) == before


def test_a_large_wheel_is_read_in_parts():
    big = make_wheel(
        "tensorflow",
        "2.9.0",
        {
            BUILD_INFO: f"build_info = {GPU!r}\n",
            **{
                f"tensorflow/{place}.bin": bytes((place * 7 + byte) % 251 for byte in range(997)) * 1100
                for place in range(4)
            },
        },
        tags=TAGS,
        method=0,
    )
    with serving(big) as index:
        assert "2.9.0" in refresh(index)
        asked = [it.range for it in index.requests if it.path.endswith(".whl")]
    lengths = [
        int(last) - int(first) + 1 for first, last in ((it or "").removeprefix("bytes=").split("-") for it in asked)
    ]
    assert len(big.data) > 4_000_000
    assert sum(lengths) < 200_000


def test_short_faults_of_the_server_are_retried(served):
    before = refresh(served)
    served.fail("/simple/tensorflow/", Fault(status=500), Fault(status=503))
    served.fail(f"/files/{stub('2.15.1').filename}", Fault(status=502), Fault(cut=0))
    assert refresh(served) == before


@pytest.mark.parametrize(("fault", "part"), [(Fault(status=403), "403"), (Fault(status=401), "401")])
def test_a_refusal_names_status_and_address(served, fault, part):
    served.fail("/simple/tensorflow/", fault)
    with pytest.raises(LockError, match=part) as caught:
        refresh(served)
    assert caught.value.where == f"{served.root}/simple/tensorflow/"


def test_a_server_without_ranges_is_refused_before_a_wheel_is_loaded(served):
    served.ranges = False
    with pytest.raises(LockError, match="range"):
        refresh(served)


def test_credentials_of_the_index_are_used_and_not_shown(served):
    before = refresh(served)
    served.credentials = ("user", "secret")
    assert refresh(served) == before
    served.fail("/simple/tensorflow/", Fault(status=403))
    with pytest.raises(LockError) as caught:
        refresh(served)
    assert "secret" not in str(caught.value)


def test_an_index_that_is_down_is_named():
    url = f"http://127.0.0.1:{closed_port()}/simple"
    with Index.open(IndexSettings(default=url)) as index, pytest.raises(LockError) as caught:
        refresh_tensorflow(index)
    assert caught.value.where.startswith(url)


def test_an_index_without_the_framework_and_settings_without_an_index_are_named():
    with serving() as empty, pytest.raises(LockError, match="no release of tensorflow"):
        refresh(empty)
    with pytest.raises(LockError, match="no package index is set"), Index.open(IndexSettings(default=None)):
        pass


def test_the_module_writes_the_profile_to_stdout_and_errors_to_stderr(served):
    def run(url: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"UV_DEFAULT_INDEX": url, "UV_NO_CONFIG": "1"}
        command = [sys.executable, "-m", "envbuild.refresh"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    done = run(served.url)
    assert (done.returncode, done.stdout) == (0, refresh(served))
    assert done.stderr == "reading 5 wheels\n"
    failed = run(f"http://127.0.0.1:{closed_port()}/simple")
    assert (failed.returncode, failed.stdout) == (12, "")
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("damaged", "part"),
    [
        (FakeWheel(filename=wheel("2.9.0").filename, data=b"no zip" * 20), "zip"),
        (flipped(wheel("2.9.0"), BUILD_INFO), "cannot be read"),
        (
            flipped(
                make_wheel("tensorflow", "2.9.0", tags=TAGS, requires=("numpy<2",), method=0), "Requires-Dist: num"
            ),
            "CRC",
        ),
        (wheel("2.9.0", build="'); import os; ('"), "build_info"),
        (make_wheel("tensorflow", "2.9.0", tags=TAGS), "requires 0 others"),
        (
            make_wheel("tensorflow", "2.9.0", tags=TAGS, requires=("a b c",)),
            "requirement",
        ),
        (
            make_wheel("tensorflow", "2.9.0", {BUILD_INFO: "x = 1"}, tags=TAGS),
            "does not set",
        ),
    ],
)
def test_a_damaged_wheel_is_named(damaged, part):
    with serving(damaged) as index, pytest.raises(LockError, match=part) as caught:
        refresh(index)
    assert damaged.filename in str(caught.value)


def test_the_writer_keeps_every_value_whatever_its_letters():
    row = FrameworkWheel(
        distribution="tensorflow",
        version="2.15.1",
        machine="x86_64",
        pythons=("3.11",),
        glibc="2.17",
        wheel='a "quoted" \\ name\x7f\n…',
        sha256=Digest.of(b""),
        cuda="12.2",
        cuda_requirements=tuple(f"nvidia-library-number-{number}-cu12==1.0" for number in range(9)),
    )
    text = to_toml(FrameworkProfile(name="tensorflow", releases=(Release(version=Version("2.15.1"), wheels=(row,)),)))
    (release,) = tomllib.loads(text)["release"]
    (read,) = release["wheel"]
    assert read["wheel"] == row.wheel
    assert tuple(read["cuda_requirements"]) == row.cuda_requirements
    assert max(map(len, text.splitlines())) <= 120
