"""The profiles of PyTorch and JAX made anew: every form of what says which build it is, and JAX put together of parts."""

from collections.abc import Callable

import pytest

from envbuild.errors import LockError
from envbuild.lock.settings import IndexSettings
from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from profiles.refresh.__main__ import READERS
from profiles.refresh.index import Index
from tests.fakes.frameworks import ARM, fat_binary, jax, jax_pjrt, jax_plugin, jaxlib, torch
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import FakeWheel, make_wheel

CUDA_12 = 'nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == "Linux" and platform_machine == "x86_64"'
CUDA_13 = (
    'cuda-toolkit[cudart,cublas]==13.2.2; platform_system == "Linux"',
    'cuda-bindings<14,>=13.0.3; platform_system == "Linux" and python_version < "3.12"',
    'nvidia-nccl-cu13==2.30.7; platform_system == "Linux"',
)


def read(name: str, served: FakeIndex) -> FrameworkProfile:
    with Index.open(IndexSettings(default=served.url)) as index:
        return READERS[name](index, lambda _done, _total: None)


def releases(name: str, *wheels: FakeWheel) -> tuple[Release, ...]:
    with serving(*wheels) as served:
        return read(name, served).releases


def only(name: str, *wheels: FakeWheel) -> FrameworkWheel:
    ((row,),) = (release.wheels for release in releases(name, *wheels))
    return row


@pytest.mark.parametrize(
    ("says", "cuda"),
    [
        ("debug = False\ncuda = '11.7'", "11.7"),
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = None", None),
        ("cuda: Optional[str] = None", None),
    ],
)
def test_every_form_of_torch_s_version_is_read(says, cuda):
    assert only("torch", torch("2.6.0", says)).cuda == cuda


def test_a_row_of_torch_says_what_its_wheel_says():
    source = torch("2.6.0", requires=(CUDA_12, "triton (==3.2.0)", "filelock", 'optree; extra == "optree"'))
    row = only("torch", source, torch("2.6.0", python="cp310"), torch("2.6.0", python="cp313", abi="cp313t"))
    assert (row.pythons, row.glibc, row.cudnn) == (("3.10", "3.11"), "2.17", "9.1.0.70")
    assert (row.cuda_requirements, row.limits) == (("nvidia-cudnn-cu12==9.1.0.70",), ("triton==3.2.0",))
    assert (row.extra, row.libraries, row.parts) == (None, (), ())
    assert row.source == f"{source.filename} (sha256:{source.sha256})"


def test_requirements_for_some_pythons_keep_a_marker_and_the_others_none():
    wheels = [torch("2.15.0", requires=CUDA_13, python=python, platform=ARM) for python in ("cp310", "cp311", "cp312")]
    row = only("torch", *wheels)
    assert row.cuda_requirements == (
        'cuda-bindings<14,>=13.0.3; python_version < "3.12"',
        "cuda-toolkit[cublas,cudart]==13.2.2",
        "nvidia-nccl-cu13==2.30.7",
    )
    assert row.requirement("nccl") == "nvidia-nccl-cu13==2.30.7"
    assert row.requirement("tensorrt") is None


def test_a_cpu_build_of_torch_needs_nothing_of_cuda_whatever_its_metadata_says():
    row = only("torch", torch("2.6.0", "cuda = None", platform=ARM, requires=(CUDA_12, *CUDA_13)))
    assert (row.machine, row.cuda, row.cudnn, row.cuda_requirements) == ("aarch64", None, None, ())


@pytest.mark.parametrize("says", ["cuda = 12", "cuda = os.environ.get('CUDA')", "debug = False", "cuda ="])
def test_a_torch_that_does_not_say_its_build_is_named(says):
    damaged = torch("2.6.0", says)
    with pytest.raises(LockError, match=r"torch/version\.py") as caught:
        releases("torch", damaged)
    assert damaged.filename in str(caught.value)


def test_a_torch_without_its_version_is_named():
    with pytest.raises(LockError, match="does not say which CUDA"):
        releases("torch", make_wheel("torch", "2.6.0", tags=("cp311-cp311-manylinux_2_17_x86_64",)))


@pytest.mark.parametrize(
    ("library", "capabilities"),
    [
        (b"\x7fELF\0sm_50 sm_80 sm_90a compute_90\0", ("sm_50", "sm_80", "compute_90")),
        (b"ipc_hsm_70 sm_120\0", ("sm_70", "sm_120")),
        (bytes((1 << 20) - 8) + b"sm_70 sm_120\0", ("sm_70", "sm_120")),
        (b"sm_70 sm_120, sm_70\0 of sm_50\0", ()),
        (None, ()),
    ],
)
def test_torch_was_compiled_for_what_its_python_library_says(library, capabilities):
    assert only("torch", torch("2.6.0", library=library)).compute_capabilities == capabilities
    assert only("torch", torch("2.6.0", "cuda = None", library=library)).compute_capabilities == ()


def test_jax_was_compiled_for_what_the_fat_binaries_of_its_plugin_have():
    wheels = [it for it in modern() if "plugin-0.7.2" not in it.filename.replace("_", "-")]
    kernels = b"\x7fELF" + fat_binary((2, 80), (1, 90), (2, 90)) + b"\x50\xed\x55\xba" + fat_binary((2, 75))
    plugins = [
        jax_plugin("0.7.2", number, kernels=kernels if number == 12 else b"\x50\xed\x55\xba") for number in (12, 13)
    ]
    (release,) = releases("jax", *wheels, *plugins)
    assert {it.extra: it.compute_capabilities for it in release.wheels} == {
        None: (),
        "cuda12": ("sm_75", "sm_80", "compute_90"),
        "cuda13": (),
    }


def test_the_wheels_of_other_pythons_are_kept_to_be_cited():
    wheels = [torch("2.6.0", python=python) for python in ("cp39", "cp310", "cp311")]
    row = only("torch", *wheels)
    assert row.others == tuple(f"{it.filename} (sha256:{it.sha256})" for it in wheels[:2])
    assert [row.cited_for(it).wheel for it in ("3.9", "3.10", "3.11", "3.12")] == [
        wheels[0].filename, wheels[1].filename, wheels[2].filename, wheels[2].filename,
    ]  # fmt: skip
    assert row.cited_for("3.9").sha256 == wheels[0].sha256


def test_torch_begins_with_1_8_and_jax_with_0_4_20():
    found = releases("torch", torch("1.7.1"), torch("1.8.0"), torch("2.16.0rc1"))
    assert [str(it.version) for it in found] == ["1.8.0"]
    wheels = (jax("0.4.19", ("jaxlib==0.4.20",)), jax("0.4.20", ("jaxlib==0.4.20",)), jaxlib("0.4.20"))
    assert [str(it.version) for it in releases("jax", *wheels)] == ["0.4.20"]


# JAX with the extras of 0.4.30 and later: the plug-in brings NVIDIA's wheels.
MODERN = (
    "jaxlib <=0.8.0,>=0.7.0",
    "numpy>=2.0",
    "scipy>=1.13",
    'jaxlib <=0.8.0,>=0.7.1; extra == "cuda12"',
    'jax-cuda12-plugin[with_cuda] <=0.8.0,>=0.7.1; extra == "cuda12"',
    'jax-cuda12-plugin <=0.8.0,>=0.7.1; extra == "cuda12_local"',
    'jax-cuda13-plugin[with_cuda] <=0.8.0,>=0.7.1; extra == "cuda13"',
)


def modern() -> tuple[FakeWheel, ...]:
    return (
        jax("0.8.0", MODERN),
        *(jaxlib(version) for version in ("0.6.0", "0.7.0", "0.7.1", "0.9.0")),
        jaxlib("0.7.1", python="cp310"),
        jaxlib("0.7.1", python="cp39"),
        jaxlib("0.7.0", platform=ARM),
        *(jax_plugin(version, 12) for version in ("0.7.1", "0.7.2", "0.8.0rc1")),
        jax_plugin("0.7.2", 12, platform=ARM),
        jax_pjrt("0.7.2", 12, platform=ARM),
        jax_pjrt("0.7.1", 12),
        jax_pjrt("0.7.2", 12),
        jax_plugin("0.7.2", 13),
        jax_pjrt("0.7.2", 13),
    )


def test_jax_has_a_row_without_cuda_and_one_for_each_cuda_of_the_newest_parts_allowed():
    (release,) = releases("jax", *modern())
    cpu, twelve, thirteen, arm = release.wheels
    assert (cpu.extra, cpu.cuda, cpu.stands_for, cpu.pythons) == (None, None, "jaxlib==0.7.1", ("3.10", "3.11"))
    assert cpu.limits == ("jaxlib<=0.8.0,>=0.7.0", "numpy>=2.0", "scipy>=1.13")
    assert (cpu.cudnn, cpu.libraries, cpu.cuda_requirements) == (None, (), ())
    assert (twelve.extra, twelve.cuda, twelve.cudnn, twelve.pythons) == ("cuda12", "12", "9.8", ("3.11",))
    assert twelve.cuda_requirements == (
        "jax-cuda12-pjrt==0.7.2",
        "jax-cuda12-plugin==0.7.2",
        "nvidia-cublas-cu12>=12.1",
        "nvidia-cudnn-cu12<10.0,>=9.8",
        "nvidia-nccl-cu12>=2.18.1",
    )
    assert (thirteen.extra, thirteen.cuda, thirteen.cudnn) == ("cuda13", "13", "9.8")
    assert (arm.machine, arm.extra, arm.stands_for, arm.jaxlib) == ("aarch64", None, "jaxlib==0.7.0", "0.7.0")
    assert [it.partition("-cp311")[0].partition("-py3")[0] for it in twelve.parts] == [
        "jax_cuda12_plugin-0.7.2", "jax_cuda12_pjrt-0.7.2", "jaxlib-0.7.1",
    ]  # fmt: skip
    assert all(f"(sha256:{jaxlib('0.7.1').sha256})" in it.parts[-1] for it in (cpu, twelve, thirteen))


def test_what_a_release_offers_and_the_index_does_not_have_is_noted():
    (release,) = releases("jax", *modern())
    assert release.extras == ("cpu", "cuda12", "cuda12-local", "cuda13")
    assert release.notes == (
        "cuda12-local: it brings no library of CUDA; the base has to have them, for x86_64 and aarch64",
        "cuda12: the index has no jaxlib<=0.8.0,>=0.7.1 for aarch64",
        "cuda13: the index has no jax-cuda13-plugin[with_cuda]<=0.8.0,>=0.7.1 for aarch64",
    )


def test_the_libraries_of_a_plugin_are_those_of_its_own_cuda():
    (release,) = releases("jax", *modern())
    _, twelve, thirteen, _ = release.wheels
    assert twelve.libraries == (
        "libcublas.so.12", "libcublasLt.so.12", "libcudart.so.12", "libcusparse.so.12", "libnccl.so.2",
    )  # fmt: skip
    assert thirteen.libraries == (
        "libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13", "libcusparse.so.12", "libnccl.so.2",
    )  # fmt: skip


def test_an_old_plugin_tells_no_libraries():
    old = [it for it in modern() if "pjrt-0.7.2" not in it.filename]
    (release,) = releases("jax", *old, jax_pjrt("0.7.2", 12, code="import jax\n"), jax_pjrt("0.7.2", 13))
    assert release.wheels[1].libraries == ()


# JAX up to 0.4.29: the extra itself brings NVIDIA's wheels, and older ones need builds that no index has.
OLD = (
    "numpy>=1.22",
    'numpy>=1.26.0; python_version >= "3.12"',
    'jaxlib ==0.4.23; extra == "cpu"',
    'jaxlib ==0.4.23+cuda11.cudnn86; extra == "cuda11_pip"',
    'nvidia-cudnn-cu11>=8.8; extra == "cuda11_pip"',
    'jaxlib ==0.4.23; extra == "cuda12"',
    'jax-cuda12-plugin ==0.4.23; extra == "cuda12"',
    'nvidia-cudnn-cu12>=8.9; extra == "cuda12"',
    'jaxlib ==0.4.23+cuda12.cudnn89; extra == "cuda12_pip"',
)


def test_extras_that_need_builds_with_a_local_label_are_noted_and_others_are_rows():
    plugin = make_wheel(
        "jax-cuda12-plugin",
        "0.4.23",
        tags=("cp311-cp311-manylinux2014_x86_64",),
        requires=("jax-cuda12-pjrt==0.4.23",),
    )
    parts = (jaxlib("0.4.23"), jaxlib("0.4.23", python="cp312"), plugin, jax_pjrt("0.4.23", 12, code=""))
    (release,) = releases("jax", jax("0.4.23", OLD, requires_python=">=3.9"), *parts)
    cpu, twelve = release.wheels
    assert (cpu.stands_for, cpu.pythons) == ("jaxlib==0.4.23", ("3.11", "3.12"))
    assert cpu.limits == ("jaxlib==0.4.23", "numpy>=1.22", 'numpy>=1.26.0; python_version >= "3.12"')
    assert twelve.limits == ("jaxlib==0.4.23", "numpy>=1.22")
    assert twelve.cuda_requirements == (
        "jax-cuda12-pjrt==0.4.23",
        "jax-cuda12-plugin==0.4.23",
        "nvidia-cudnn-cu12>=8.9",
    )
    assert release.notes == (
        "cuda11-pip: the index has no jaxlib==0.4.23+cuda11.cudnn86 for x86_64",
        "cuda12-pip: the index has no jaxlib==0.4.23+cuda12.cudnn89 for x86_64",
        "cpu: the index has no jaxlib for any Python that it allows for aarch64",
        "cuda11-pip: the index has no jaxlib for any Python that it allows for aarch64",
        "cuda12: the index has no jaxlib for any Python that it allows for aarch64",
        "cuda12-pip: the index has no jaxlib for any Python that it allows for aarch64",
    )


def test_jax_allows_only_the_pythons_that_it_says():
    wheels = (jaxlib("0.7.0", python="cp310"), jaxlib("0.7.0"))
    (release,) = releases("jax", jax("0.8.0", ("jaxlib",), requires_python=">=3.11"), *wheels)
    assert release.wheels[0].pythons == ("3.11",)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_an_index_without_the_framework_is_named(name):
    with pytest.raises(LockError, match=f"no release of {name}"):
        releases(name)


def test_progress_counts_what_is_read():
    told: list[tuple[int, int]] = []
    report: Callable[[int, int], object] = lambda done, total: told.append((done, total))  # noqa: E731
    with serving(*modern()) as served, Index.open(IndexSettings(default=served.url)) as index:
        READERS["jax"](index, report)
    assert told == [(0, 1), (1, 1)]
