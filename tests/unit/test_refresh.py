"""TensorFlow's profile made anew: an index on loopback, every form its wheels had, faults, and missing ranges."""

import tomllib
from collections.abc import Iterator
from difflib import unified_diff

import pytest
from packaging.version import Version

from envbuild.errors import LockError
from envbuild.lock.settings import IndexSettings
from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from envbuild.oci.digest import Digest
from profiles.refresh.index import Index
from profiles.refresh.tensorflow import read_tensorflow
from profiles.refresh.toml import to_toml
from tests.fakes.frameworks import CPU, GPU, build_info, cuda_config, cudnn_header, stub
from tests.fakes.frameworks import tensorflow as wheel
from tests.fakes.index import FakeIndex, Fault, closed_port, serving
from tests.fakes.wheels import FakeWheel, make_wheel

BUILD_INFO = "tensorflow/python/platform/build_info.py"
CONFIG = "tensorflow/include/third_party/gpus/cuda/cuda_config.h"
TAGS = ("cp311-cp311-manylinux_2_17_x86_64",)


def flipped(source: FakeWheel, after: str) -> FakeWheel:
    data = bytearray(source.data)
    data[source.data.index(after.encode()) + len(after)] ^= 0xFF
    return FakeWheel(filename=source.filename, data=bytes(data))


def read(served: FakeIndex) -> FrameworkProfile:
    with Index.open(IndexSettings(default=served.url)) as index:
        return read_tensorflow(index, lambda _done, _total: None)


def refresh(served: FakeIndex) -> str:
    return to_toml(read(served))


def row(*wheels: FakeWheel) -> FrameworkWheel:
    """The one row of an index with these wheels."""
    with serving(*wheels) as served:
        ((only,),) = (release.wheels for release in read(served).releases)
        return only


@pytest.fixture
def served() -> Iterator[FakeIndex]:
    with serving(
        wheel("2.15.1", python="cp310"),
        wheel("2.15.1", python="cp311"),
        wheel("2.15.1", name="tensorflow-cpu", build=CPU),
        stub("2.15.1"),
        wheel("2.15.0.post1"),
        wheel("2.8.0", python="cp37", abi="cp37m", platform="manylinux2010_x86_64"),
    ) as index:
        yield index


def test_rows_say_what_the_wheels_say(served):
    written = tomllib.loads(refresh(served))
    assert [it["version"] for it in written["release"]] == ["2.8.0", "2.15.0.post1", "2.15.1"]
    gpu, empty, cpu = written["release"][2]["wheel"]
    older = wheel("2.15.1", python="cp310")
    assert gpu.pop("others") == [f"{older.filename} (sha256:{older.sha256})"]
    source = wheel("2.15.1", python="cp311")
    assert gpu == {
        "distribution": "tensorflow",
        "machine": "x86_64",
        "extra": "and-cuda",
        "pythons": ["3.10", "3.11"],
        "glibc": "2.17",
        "cuda": "12.2",
        "cudnn": "8",
        "compute_capabilities": ["sm_50", "compute_80"],
        "libraries": [
            "libcublas.so.12", "libcublasLt.so.12", "libcudart.so.12", "libcudnn.so.8", "libcufft.so.11",
            "libcusolver.so.11", "libcusparse.so.12",
        ],
        "cuda_requirements": ["nvidia-cublas-cu12==12.2.5.6", "nvidia-cudnn-cu12==8.9.4.25"],
        "limits": ["keras<2.16,>=2.15.0", "numpy<2"],
        "wheel": source.filename,
        "sha256": source.sha256,
    }  # fmt: skip
    assert cpu.keys() == {"distribution", "machine", "pythons", "glibc", "limits", "wheel", "sha256"}
    assert (empty["machine"], empty["stands_for"]) == ("aarch64", "tensorflow-cpu-aws==2.15.1")
    assert written["release"][0]["wheel"][0]["glibc"] == "2.12"


def test_refreshing_again_gives_the_same_text(served):
    assert refresh(served) == refresh(served)


def test_a_changed_wheel_changes_its_row_and_no_other(served):
    before = refresh(served)
    changed = wheel("2.15.0.post1", config=cuda_config({"CUDA": "12.3", "CUDNN": "9"}))
    served.pages["tensorflow"] = [it for it in served.pages["tensorflow"] if "post1" not in it]
    served.add(changed)
    lines = unified_diff(before.splitlines(), refresh(served).splitlines(), n=0, lineterm="")
    added = [it[1:] for it in lines if it.startswith("+") and not it.startswith("+++")]
    assert added == [
        'cuda = "12.3"', 'cudnn = "9"', 'libraries = ["libcudart.so.12.3", "libcudnn.so.9"]', f'sha256 = "{changed.sha256}"',
    ]  # fmt: skip


def constants(**values: object) -> str:
    """build_info.py until 2.2."""
    return "from __future__ import division\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items())


OLD = constants(is_rocm_build=False, is_cuda_build=True, cuda_version_number="10", cudnn_version_number="7")
SHARED = {"CUDA": "10.1", "CUDA_LIB": "10", "CUDNN": "7"}


@pytest.mark.parametrize(
    ("version", "build", "config", "cuda", "cudnn", "capabilities", "cudart", "cublas"),
    [
        ("1.15.0", OLD, cuda_config(SHARED | {"CUDA": "10.0", "CUDA_LIB": "10.0"}, capabilities=("3.5", "7.0")),
         "10.0", "7", ("3.5", "7.0"), "libcudart.so.10.0", "libcublas.so.10.0"),
        ("2.2.0", OLD, cuda_config(SHARED, capabilities=("3.5",)),
         "10.1", "7", ("3.5",), "libcudart.so.10.1", "libcublas.so.10"),
        ("2.3.0", f"build_info = {GPU | {'cuda_version': '10.1'}!r}\n",
         cuda_config({"CUDA": "10.1", "CUBLAS": "10", "CUDNN": "7"}),
         "10.1", "7", ("sm_50", "compute_80"), "libcudart.so.10.1", "libcublas.so.10"),
        ("2.4.0", build_info(sorted(GPU.items())), cuda_config({"CUDA": "11.0", "CUDART": "11.0", "CUBLAS": "11", "CUDNN": "8"}),
         "11.0", "8", ("sm_50", "compute_80"), "libcudart.so.11.0", "libcublas.so.11"),
        ("2.18.0", build_info(GPU), cuda_config({"CUDA": "12.5.1", "CUDART": "12", "CUBLAS": "12", "CUDNN": "9"}),
         "12.5.1", "9", ("sm_50", "compute_80"), "libcudart.so.12", "libcublas.so.12"),
    ],
)  # fmt: skip
def test_every_form_of_build_information_is_read(version, build, config, cuda, cudnn, capabilities, cudart, cublas):
    package = "tensorflow_core" if version < "2.2" else "tensorflow"
    found = row(wheel(version, build=build, config=config, package=package, requires=()))
    assert (found.cuda, found.cudnn, found.compute_capabilities) == (cuda, cudnn, capabilities)
    assert [it for it in found.libraries if "cudart" in it or "cublas." in it] == [cublas, cudart]
    assert ("libcublasLt.so" in " ".join(found.libraries)) == (Version(version) >= Version("2.4"))
    assert (found.extra, found.cuda_requirements) == (None, ())


def test_curand_is_opened_until_2_13():
    names = {version: row(wheel(version)).libraries for version in ("2.13.1", "2.14.0")}
    assert "libcurand.so.10" in names["2.13.1"]
    assert "libcurand.so.10" not in names["2.14.0"]


def test_a_cpu_build_has_nothing_of_cuda_whatever_its_headers_say():
    build = constants(is_rocm_build=False, is_cuda_build=False)
    empty = cuda_config({"CUDA": "", "CUDA_LIB": "", "CUDNN": ""}, capabilities=("3.5", "5.2"))
    found = row(wheel("2.0.0", build=build, config=empty, package="tensorflow_core"))
    assert (found.cuda, found.cudnn, found.compute_capabilities, found.libraries) == (None, None, (), ())
    assert (found.extra, found.cuda_requirements, found.stands_for) == (None, (), None)


def test_the_exact_cudnn_is_told_where_its_header_is_there():
    folder = "tensorflow/include/external/cuda_cudnn/include"
    header: dict[str, str | bytes] = {
        f"{folder}/cudnn_version.h": cudnn_header(9, 3, 0),
        f"{folder}/cudnn_version_v9.h": cudnn_header(8, 0, 0),
    }
    assert row(wheel("2.18.0", files=header)).cudnn_built == "9.3.0"
    assert row(wheel("2.18.0")).cudnn_built is None
    partly: dict[str, str | bytes] = {f"{folder}/cudnn_version.h": "#define CUDNN_MAJOR 9\n"}
    assert row(wheel("2.18.0", files=partly)).cudnn_built is None


@pytest.mark.parametrize(
    ("requires", "inside", "required", "major"),
    [
        ((), "__version__ = '2.4.0'\n", None, "2"),
        ((), "from tensorflow.python import tf2\nif tf2.enabled():\n  __version__ = '2.3.0-tf'\nelse:\n  __version__ = '2.2.4-tf'\n", None, "2"),
        (("keras-nightly~=2.5.0.dev", "keras-preprocessing~=1.1.2"), "__version__ = '2.5.0'\n", "keras-nightly~=2.5.0.dev", "2"),
        (("keras>=3.0.0",), "", "keras>=3.0.0", "3"),
        (("keras<2.16,>=2.15.0",), "", "keras<2.16,>=2.15.0", "2"),
        (("keras-preprocessing~=1.1.2",), "", None, None),
        ((), "if new:\n  __version__ = '3.0.0'\nelse:\n  __version__ = '2.15.0'\n", None, None),
    ],
)  # fmt: skip
def test_keras_is_the_one_that_is_required_or_the_one_inside(requires, inside, required, major):
    found = row(wheel("2.5.0", files={"tensorflow/python/keras/__init__.py": inside}, requires=requires))
    assert next(iter(found.limits), None) == required
    assert found.keras == major
    assert found.keras_inside == (None if required else major)


def test_limits_that_depend_on_python_keep_their_marker():
    requires = (
        'numpy<2.0.0,>=1.23.5; python_version <= "3.11"',
        'numpy<2.0.0,>=1.26.0; python_version >= "3.12"',
        'protobuf!=4.21.0,<5.0.0dev,>=3.20.3; platform_system == "Linux"',
        'ml-dtypes; python_version < "3"',
    )
    wheels = [wheel("2.16.1", python=python, requires=requires) for python in ("cp39", "cp311", "cp312")]
    assert row(*wheels).limits == (
        'numpy<2.0.0,>=1.23.5; python_version < "3.12"',
        'numpy<2.0.0,>=1.26.0; python_version >= "3.12"',
        "protobuf!=4.21.0,<5.0.0dev,>=3.20.3",
    )


def test_prereleases_yanked_files_and_other_builds_have_no_row(served):
    before = refresh(served)
    served.add(
        wheel("2.16.0rc0"),
        wheel("1.14.0"),
        wheel("2.15.1", platform="win_amd64"),
        wheel("2.15.1", python="cp39", platform="musllinux_1_2_x86_64"),
        wheel("2.15.1", python="cp313", abi="cp313t"),
        wheel("2.15.1", python="cp27", abi="cp27mu"),
    )
    served.pages["tensorflow"] += [
        f'<a href="../../files/{it.filename}#sha256={it.sha256}" data-yanked="">x</a>' for it in (wheel("2.17.0"),)
    ]
    served.pages["tensorflow"] += ['<a href="tensorflow-2.18.0.tar.gz#sha256=00">x</a>', "<a>none</a>"][1:]
    assert refresh(served) == before


def test_glibc_is_what_every_python_s_wheel_accepts_by_its_lowest_tag():
    old = wheel("2.9.0", python="cp310", platform="manylinux_2_12_x86_64.manylinux2010_x86_64")
    both = wheel("2.9.0", platform="manylinux_2_28_x86_64.manylinux2014_x86_64")
    assert row(both).glibc == "2.17"
    assert row(old, both).glibc == "2.17"
    assert row(old).glibc == "2.12"


def test_the_last_build_of_a_wheel_is_read():
    first = wheel("2.9.0", build=CPU)
    again = wheel("2.9.0")
    rebuilt = FakeWheel(filename=again.filename.replace("-cp311-cp311", "-1-cp311-cp311"), data=again.data)
    assert row(rebuilt, first).wheel == rebuilt.filename


def test_a_large_wheel_is_read_in_parts():
    told: dict[str, str | bytes] = {
        BUILD_INFO: build_info(GPU),
        CONFIG: cuda_config({"CUDA": "11.2", "CUDNN": "8"}),
        **{
            f"tensorflow/{place}.bin": bytes((place * 7 + byte) % 251 for byte in range(997)) * 1100
            for place in range(4)
        },
    }
    big = make_wheel("tensorflow", "2.9.0", told, tags=TAGS, method=0)
    with serving(big) as index:
        assert "2.9.0" in refresh(index)
        asked = [it.range for it in index.requests if it.path.endswith(".whl")]
    lengths = [
        int(last) - int(first or 1) + 1
        for first, last in ((it or "").removeprefix("bytes=").split("-") for it in asked)
    ]
    assert len(big.data) > 4_000_000
    assert sum(lengths) < 200_000


def test_short_faults_of_the_server_are_retried(served):
    before = refresh(served)
    served.fail("/simple/tensorflow/", Fault(status=500), Fault(status=503))
    served.fail(f"/files/{stub('2.15.1').filename}", Fault(status=502), Fault(cut=0))
    assert refresh(served) == before


def test_a_busy_index_is_asked_again(served):
    before = refresh(served)
    served.fail("/simple/tensorflow/", Fault(status=429, headers=(("Retry-After", "0"),)))
    assert refresh(served) == before


@pytest.mark.parametrize(("fault", "part"), [(Fault(status=403), "403"), (Fault(status=401), "401")])
def test_a_refusal_names_status_and_address(served, fault, part):
    served.fail("/simple/tensorflow/", fault)
    with pytest.raises(LockError, match=part) as caught:
        refresh(served)
    assert caught.value.where == f"{served.root}/simple/tensorflow/"


def test_a_server_without_ranges_is_refused_before_a_wheel_is_loaded(served):
    served.add(make_wheel("tensorflow", "2.9.0", {"tensorflow/large": bytes(1 << 20)}, tags=TAGS, method=0))
    served.ranges = False
    with pytest.raises(LockError, match="does not serve parts of files"):
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
        read_tensorflow(index, lambda _done, _total: None)
    assert caught.value.where.startswith(url)


def test_an_index_without_the_framework_and_settings_without_an_index_are_named():
    with serving() as empty, pytest.raises(LockError, match="no release of tensorflow"):
        refresh(empty)
    with pytest.raises(LockError, match="no package index is set"), Index.open(IndexSettings(default=None)):
        pass


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
        (wheel("2.9.0", build="build_info = '"), "build_info"),
        (wheel("2.9.0", build="import os; build_info = os.environ"), "does not say whether it is a CUDA build"),
        (wheel("2.9.0", build="build_info = {'is_cuda_build': 'yes'}"), "does not say whether it is a CUDA build"),
        (make_wheel("tensorflow", "2.9.0", {BUILD_INFO: build_info(GPU)}, tags=TAGS), "no cuda_config.h"),
        (wheel("2.9.0", config=cuda_config({"CUDA": "12.2", "CUDNN": ""})), "which CUDA and cuDNN"),
        (make_wheel("tensorflow", "2.9.0", tags=TAGS), "requires 0 others"),
        (make_wheel("tensorflow", "2.9.0", tags=TAGS, requires=("numpy", "six")), "requires 2 others"),
        (make_wheel("tensorflow", "2.9.0", tags=TAGS, requires=("a b c",)), "requirement"),
        (make_wheel("tensorflow", "2.9.0", tags=TAGS, requires_python="later"), "requirement"),
    ],
)
def test_a_damaged_wheel_is_named(damaged, part):
    with serving(damaged) as index, pytest.raises(LockError, match=part) as caught:
        refresh(index)
    assert damaged.filename in str(caught.value)


def test_what_was_read_is_told(served):
    told = []
    with Index.open(IndexSettings(default=served.url)) as index:
        read_tensorflow(index, lambda done, total: told.append((done, total)))
        assert index.received > sum(len(page.encode()) for pages in served.pages.values() for page in pages)
    assert told == [(done, 5) for done in range(6)]


def test_the_writer_keeps_every_value_whatever_its_letters():
    row = FrameworkWheel(
        distribution="tensorflow",
        version="2.15.1",
        machine="x86_64",
        pythons=("3.11",),
        glibc="2.17",
        wheel='a "quoted" \\ name\x7f\n…',
        sha256=Digest.of(b"").hex,
        cuda="12.2",
        cuda_requirements=tuple(f"nvidia-library-number-{number}-cu12==1.0" for number in range(9)),
        limits=('numpy>=1.26; python_version >= "3.12"', 'it\'s "both"', ""),
    )
    release = Release(version=Version("2.15.1"), wheels=(row,), notes=("a note",))
    text = to_toml(FrameworkProfile(name="tensorflow", releases=(release,)))
    (read_back,) = tomllib.loads(text)["release"]
    (wheel,) = read_back["wheel"]
    assert read_back["notes"] == ["a note"]
    assert wheel["wheel"] == row.wheel
    assert tuple(wheel["cuda_requirements"]) == row.cuda_requirements
    assert tuple(wheel["limits"]) == row.limits
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) < 30
