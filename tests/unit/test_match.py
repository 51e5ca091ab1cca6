"""Matching: every release, variant and Python; what changes between variants; and what is said when nothing fits."""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import MatchError, UsageError
from envbuild.files import data_folder
from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.manifest.model import Framework, Platform, Python, Source, TrainingManifest
from envbuild.manifest.packages import Conda, CondaPackage, Distribution, Origin
from envbuild.match.cuda import SITE_PACKAGES
from envbuild.match.match import match
from envbuild.match.profiles import FRAMEWORKS, load_profiles
from envbuild.match.rows import Release
from envbuild.match.run import frameworks_of
from envbuild.match.stack import Stack
from envbuild.recipe import PREFIX

PROFILES = load_profiles(data_folder("profiles"))
NO_CUDA = "no CUDA build"
# Older ones have neither CUDA wheels nor a known base, and some no `tensorflow-cpu`.
RELEASES = tuple(it for it in PROFILES.frameworks[0].releases if it.version >= Version("2.5"))
VARIANTS: tuple[Literal["gpu", "cpu"], ...] = ("gpu", "cpu")
OTHERS = (
    ("numpy", "1.26.4"),
    ("Keras", "2.15.0"),
    ("zope.interface", "6.1"),
    ("torch", "2.1.0+cu118"),
    ("pip", "24.0"),
)


def manifest(
    *pins: tuple[str, str],
    framework: tuple[str, str] | None,
    python: str = "3.11.7",
    machine: str = "x86_64",
    system: str = "Linux",
    gpus: tuple[str, ...] = (),
) -> TrainingManifest:
    """A run; its framework stands before `pins`."""
    pins = (framework, *pins) if framework else pins
    return TrainingManifest(
        schema_version="1.0",
        created="2026-01-01T00:00:00Z",
        python=Python(version=python, implementation="cpython"),
        platform=Platform(system=system, machine=machine),
        distributions=tuple(
            Distribution(name=name, version=version, origin=Origin(kind="index")) for name, version in pins
        ),
        framework=Framework(name="tensorflow", distribution=framework[0], version=framework[1]) if framework else None,
        accelerator=Accelerator(gpus=tuple(Gpu(name=name) for name in gpus)) if gpus else None,
    )


def names(stack: Stack) -> list[str]:
    return [canonicalize_name(Requirement(it).name) for it in stack.requirements]


def is_nvidia(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in PROFILES.nvidia_wheels)


def decided(stack: Stack, what: str) -> str:
    (found,) = [it.value for it in stack.decisions if it.what == what]
    return found


def changes(stack: Stack) -> list[tuple[str | None, str | None]]:
    return [(it.before, it.after) for it in stack.changes]


@pytest.mark.parametrize("release", RELEASES, ids=lambda it: str(it.version))
def test_every_build_of_every_release_gives_a_stack_of_its_own_version(release: Release):
    for wheel in release.wheels:
        for python in wheel.pythons:
            run = manifest(
                *OTHERS, framework=(wheel.distribution, wheel.version), python=f"{python}.9", machine=wheel.machine
            )
            if wheel.stands_for and python not in release.wheels[-1].pythons:
                continue
            for variant in VARIANTS if wheel.machine == "x86_64" else ("cpu",):
                check(match(run, PROFILES, variant), run, variant)


def check(stack: Stack, run: TrainingManifest, variant: str) -> None:
    assert run.framework is not None
    assert (stack.variant, stack.version, stack.machine) == (variant, run.framework.version, run.platform.machine)
    assert stack.python == run.python.version
    assert names(stack) == sorted(set(names(stack)))
    torch = "torch==2.1.0+cu118" if variant == "gpu" else f"torch==2.1.0{'+cpu' if stack.machine == 'x86_64' else ''}"
    assert {"keras==2.15.0", "numpy==1.26.4", "pip==24.0", torch, "zope-interface==6.1"} <= set(stack.requirements)
    assert all(it.reason and it.source and it.value for it in stack.decisions)
    assert decided(stack, "base") == stack.base
    explained = {it for _, it in changes(stack)} | {None}
    before = {f"{canonicalize_name(it.name)}=={it.version}" for it in run.distributions}
    assert set(stack.requirements) - before <= explained
    assert before - set(stack.requirements) == {it for it, _ in changes(stack)} - {None}
    if variant == "cpu":
        check_cpu(stack)
    else:
        check_gpu(stack)


def check_cpu(stack: Stack) -> None:
    assert (stack.cuda, stack.cudnn, stack.cuda_source, stack.variables) == (None, None, "none", ())
    assert not any(is_nvidia(it) for it in names(stack))
    assert len([it for it in stack.changes if it.name != "torch"]) <= 1
    assert stack.distribution == "tensorflow-cpu" or stack.machine == "aarch64"
    assert "/library/python:" in stack.base


def check_gpu(stack: Stack) -> None:
    """CUDA comes from one place: the wheels or the base, never both."""
    from_wheels, from_base = any(is_nvidia(it) for it in names(stack)), "nvidia/cuda" in stack.base
    assert stack.cuda_source == {(True, False): "wheels", (False, True): "base"}[from_wheels, from_base]
    assert stack.cuda_source == "wheels"
    assert {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"} <= dict(stack.variables).keys()
    assert decided(stack, "cuda") == stack.cuda
    assert decided(stack, "cudnn") == stack.cudnn
    assert decided(stack, "driver") in {">=450.80.02", ">=525.60.13"}


def test_the_cpu_variant_changes_the_framework_and_drops_nvidia_and_nothing_else():
    run = manifest(
        ("nvidia-cudnn-cu12", "8.9.4.25"), ("tensorrt-libs", "8.6.1"), ("triton", "2.1.0"), ("cuda-toolkit", "12.2"), *OTHERS,
        framework=("tensorflow", "2.15.1"),
    )  # fmt: skip
    stack = match(run, PROFILES, "cpu")
    assert changes(stack) == [
        ("cuda-toolkit==12.2", None),
        ("nvidia-cudnn-cu12==8.9.4.25", None),
        ("tensorflow==2.15.1", "tensorflow-cpu==2.15.1"),
        ("tensorrt-libs==8.6.1", None),
        ("torch==2.1.0+cu118", "torch==2.1.0+cpu"),
        ("triton==2.1.0", None),
    ]


def test_the_gpu_variant_of_a_cpu_run_takes_the_plain_distribution_and_its_cuda():
    stack = match(manifest(framework=("tensorflow-cpu", "2.15.1")), PROFILES, "gpu")
    assert changes(stack)[0] == ("tensorflow-cpu==2.15.1", "tensorflow==2.15.1")
    assert len(stack.changes) == 13
    assert "nvidia-cudnn-cu12==8.9.4.25" in stack.requirements


def test_cuda_pins_of_the_run_stay_and_only_missing_ones_are_added():
    first = match(manifest(framework=("tensorflow", "2.18.0")), PROFILES, "gpu")
    pins = [(Requirement(it).name, "99.1") for it in first.requirements if it.startswith("nvidia-")]
    whole = match(manifest(*pins, framework=("tensorflow", "2.18.0")), PROFILES)
    assert (whole.variant, whole.changes) == ("gpu", ())
    assert {f"{name}==99.1" for name, _ in pins} < set(whole.requirements)
    part = match(manifest(*pins[1:], framework=("tensorflow", "2.18.0")), PROFILES)
    assert changes(part) == [(None, "nvidia-cublas-cu12==12.5.3.2")]


@pytest.mark.parametrize(
    ("version", "python", "tensorrt"),
    [
        ("2.14.0", "3.10.1", ["tensorrt"]),
        ("2.14.1", "3.11.4", []),
        ("2.15.0", "3.9.2", []),
        ("2.15.0.post1", "3.9.2", []),
    ],
)
def test_requirements_that_cannot_be_installed_are_left_out_and_said(version, python, tensorrt):
    stack = match(manifest(framework=("tensorflow", version), python=python), PROFILES, "gpu")
    assert [it for it in names(stack) if it.startswith("tensorrt")] == tensorrt
    said = [it.value for it in stack.decisions if it.what == "cuda requirements"]
    assert len(said) == (0 if tensorrt or "post" in version else 1)
    assert stack.version == version


@pytest.mark.parametrize("version", ["2.15.1", "2.16.1", "2.16.2", "2.20.0", "2.21.0"])
def test_only_releases_that_miss_their_libraries_get_a_library_path(version):
    stack = match(manifest(framework=("tensorflow", version)), PROFILES, "gpu")
    path = dict(stack.variables).get("LD_LIBRARY_PATH", "")
    assert bool(path) == (version in {"2.16.1", "2.21.0"})
    assert all(it.startswith(f"{PREFIX}/lib/python3.11/site-packages/nvidia/") for it in path.split(":") if it)
    assert "LD_LIBRARY_PATH" not in dict(match(manifest(framework=("tensorflow", version)), PROFILES, "cpu").variables)


def test_site_packages_lie_where_the_recipe_puts_them():
    assert SITE_PACKAGES.startswith(f"{PREFIX}/lib/python")


@pytest.mark.parametrize(
    ("run", "variant", "reason"),
    [
        (manifest(framework=("tensorflow", "2.15.1"), gpus=("A100", "A100")), "gpu", "saw 2 GPU(s): A100"),
        (manifest(("nvidia-cudnn-cu12", "8"), framework=("tensorflow", "2.15.1")), "gpu", "nvidia-cudnn-cu12"),
        (manifest(framework=("tensorflow-gpu", "2.10.1"), python="3.10.2"), "gpu", "tensorflow-gpu"),
        (manifest(framework=("tensorflow", "2.15.1")), "cpu", "no GPU"),
        (manifest(("nvidia-nccl-cu12", "2.19"), framework=("tensorflow", "2.15.1")), "cpu", "no GPU"),
        (manifest(framework=("tensorflow-cpu", "2.15.1"), gpus=("A100",)), "cpu", NO_CUDA),
        (manifest(framework=("tensorflow", "2.16.1"), gpus=("GH200",), machine="aarch64"), "cpu", NO_CUDA),
    ],
)
def test_auto_takes_what_the_run_could_use(run, variant, reason):
    stack = match(run, PROFILES)
    assert stack.variant == variant
    (why,) = [it.reason for it in stack.decisions if it.what == "variant"]
    assert reason in why


def test_tensorflow_gpu_after_its_end_is_tensorflow():
    run = manifest(framework=("tensorflow-gpu", "2.12.0"))
    stack = match(run, PROFILES)
    assert (stack.variant, stack.distribution) == ("gpu", "tensorflow")
    assert changes(stack)[0] == ("tensorflow-gpu==2.12.0", "tensorflow==2.12.0")
    arm = match(run, PROFILES, machine="aarch64")
    assert (arm.variant, arm.distribution) == ("cpu", "tensorflow")


def test_tensorflow_gpu_stays_in_the_gpu_variant():
    stack = match(manifest(framework=("tensorflow-gpu", "2.8.0"), python="3.8.10"), PROFILES, "gpu")
    assert stack.distribution == "tensorflow-gpu"
    assert all(is_nvidia(it.name) for it in stack.changes)
    assert stack.base == "docker.io/library/python:3.8.10-slim-buster"


@pytest.mark.parametrize(
    ("version", "python", "base", "advice"),
    [
        ("2.5.0", "3.6.9", "11.2.2-cudnn8-runtime-ubuntu18.04", "envbuild base build --parent"),
        ("2.11.1", "3.9.2", "11.2.2-cudnn8-runtime-ubuntu20.04", "its distribution has only 3.8: make one"),
        ("2.12.0", "3.8.17", "11.8.0-cudnn8-runtime-ubuntu20.04", "envbuild base build --parent"),
        ("2.13.1", "3.10.4", "11.8.0-cudnn8-runtime-ubuntu22.04", "envbuild base build --parent"),
    ],
)
def test_before_2_14_cuda_can_come_from_a_base_which_needs_the_runs_python(version, python, base, advice):
    stack = match(manifest(framework=("tensorflow", version), python=python), PROFILES, "gpu", cuda_source="base")
    assert (stack.cuda_source, stack.changes) == ("base", ())
    assert stack.base == f"docker.io/nvidia/cuda:{base}"
    assert advice in next(it.reason for it in stack.decisions if it.what == "base")


@pytest.mark.parametrize(
    ("python", "base"),
    [
        ("3.11.7", "3.11.7-slim-bookworm"),
        ("3.11.3", "3.11.3-slim-bullseye"),
        ("3.11.2+", "3.11.2-slim-bullseye"),
        ("3.10.12", "3.10.12-slim-bookworm"),
        ("3.9.2", "3.9.2-slim-buster"),
        ("3.9.25", "3.9.25-slim-bookworm"),
    ],
)
def test_the_default_base_has_exactly_the_runs_python(python, base):
    stack = match(manifest(framework=("tensorflow", "2.15.1"), python=python), PROFILES, "cpu")
    assert stack.base == f"docker.io/library/python:{base}"


def test_a_python_without_an_image_is_said():
    stack = match(manifest(framework=("tensorflow", "2.5.0"), python="3.6.1"), PROFILES, "cpu")
    assert "name a base by --set base=IMAGE" in next(it.reason for it in stack.decisions if it.what == "base")


def test_an_empty_wheel_brings_the_one_that_holds_the_code():
    run = manifest(
        ("tensorflow-macos", "2.15.1"), ("tensorflow-metal", "1.1.0"),
        framework=("tensorflow", "2.15.1"), machine="arm64", system="Darwin",
    )  # fmt: skip
    stack = match(run, PROFILES)
    assert stack.machine == "aarch64"
    assert stack.requirements == ("tensorflow==2.15.1", "tensorflow-cpu-aws==2.15.1")
    assert changes(stack) == [
        ("tensorflow-macos==2.15.1", None),
        ("tensorflow-metal==1.1.0", None),
        (None, "tensorflow-cpu-aws==2.15.1"),
    ]
    assert decided(stack, "platform") == "Linux aarch64"


def test_two_builds_side_by_side_become_one():
    run = manifest(("tensorflow", "2.8.0"), framework=("tensorflow-gpu", "2.8.0"), python="3.8.10")
    stack = match(run, PROFILES, "cpu")
    assert changes(stack) == [("tensorflow==2.8.0", "tensorflow-cpu==2.8.0"), ("tensorflow-gpu==2.8.0", None)]
    assert all(is_nvidia(it.name) and it.before is None for it in match(run, PROFILES, "gpu").changes)


def test_variables_of_one_run_are_no_part_of_the_environment():
    run = replace(manifest(framework=("tensorflow", "2.15.1")), variables=(("TF_DETERMINISTIC_OPS", "1"),))
    assert match(run, PROFILES, "cpu").variables == ()


@pytest.mark.parametrize(
    ("run", "variant", "parts"),
    [
        (
            manifest(framework=("tensorflow", "2.15.1"), python="3.12.1"),
            "gpu",
            [
                "no stack serves tensorflow 2.15.1 on Python 3.12 and x86_64, variant gpu",
                "tensorflow==2.15.1 for x86_64: has wheels for Python 3.9, 3.10, 3.11, not for 3.12",
                "tensorflow-cpu==2.15.1 for x86_64: is a CPU build; has wheels for Python 3.9, 3.10, 3.11, not for 3.12",
                "tensorflow 2.16.1: another version (it has wheels for Python 3.9, 3.10, 3.11, 3.12)",
            ],
        ),
        (
            manifest(framework=("tensorflow", "2.15.7")),
            "cpu",
            ["2.15.7: no release of this version", "tensorflow 2.15.0.post1: another", "tensorflow 2.15.1: another", "tensorflow 2.16.1: another"],
        ),
        (manifest(framework=("tensorflow", "1.14.0")), "cpu", ["1.14.0: the profiles begin with 1.15.0", "tensorflow 1.15.0: another", "tensorflow 1.15.2: another"]),
        (manifest(framework=("tensorflow", "3.0")), "cpu", ["3.0: no release", "tensorflow 2.21.0: another"]),
        (manifest(framework=("tensorflow", "2.15.0+nv23.12")), "cpu", ["local label", "tensorflow 2.15.0: another"]),
        (manifest(framework=("tensorflow", "what?")), "cpu", ["'what?' is not a version"]),
        (
            manifest(framework=("tensorflow", "2.16.1"), machine="aarch64"),
            "gpu",
            ["tensorflow==2.16.1 for aarch64: is a CPU build", "tensorflow==2.16.1 for x86_64: the machine is aarch64"],
        ),
        (
            manifest(framework=("tensorflow", "2.11.1"), machine="aarch64", python="3.9.2"),
            "cpu",
            ["tensorflow==2.11.1 for aarch64: tensorflow-cpu-aws==2.11.1 has wheels for Python 3.7, not for 3.9"],
        ),
        (manifest(framework=("tensorflow", "2.15.1"), machine="ppc64le"), "cpu", ["x86_64 and aarch64", "ppc64le"]),
        (manifest(framework=("tf-nightly", "2.16.0")), "cpu", ["tf-nightly 2.16.0", "tensorflow-cpu"]),
        (manifest(framework=None), "cpu", ["no distributions at all"]),
        (
            replace(manifest(framework=("tensorflow", "2.15.1")), python=Python(version="3.10.1", implementation="pypy")),
            "cpu",
            ["CPython only", "pypy 3.10.1"],
        ),
    ],
)  # fmt: skip
def test_no_match_lists_each_candidate_and_why_it_lost(run, variant, parts):
    with pytest.raises(MatchError) as caught:
        match(run, PROFILES, variant)
    assert [part for part in parts if part not in caught.value.what] == []
    assert caught.value.where
    assert caught.value.todo
    assert caught.value.exit_code == 11


def record(run: TrainingManifest, *, complete: bool = False, **changes) -> TrainingManifest:
    """The run as another tool's record has it: without GPU, and without platform unless it is given."""
    run = replace(run, source=Source(format="pip-freeze", complete=complete), accelerator=None, platform=Platform())
    return replace(run, **changes)


def test_a_platform_that_the_record_does_not_say_is_linux_amd64_and_told():
    stack = match(record(manifest(framework=("tensorflow-cpu", "2.15.1"))), PROFILES)
    assert stack.machine == "x86_64"
    [platform] = [it for it in stack.decisions if it.what == "platform"]
    assert platform.value == "Linux x86_64"
    assert "--ran-on" in platform.reason
    said = record(
        manifest(framework=("tensorflow-cpu", "2.15.1")), platform=Platform(system="Linux", machine="aarch64")
    )
    assert match(said, PROFILES).machine == "aarch64"
    assert "platform" not in {it.what for it in match(said, PROFILES).decisions}


def test_whether_there_was_a_gpu_is_asked_where_nothing_tells():
    run = record(manifest(framework=("tensorflow", "2.15.1")))
    with pytest.raises(MatchError) as caught:
        match(run, PROFILES)
    assert caught.value.where == "accelerator"
    assert "--gpu none" in caught.value.todo
    assert "--variant" in caught.value.todo
    assert match(run, PROFILES, "cpu").variant == "cpu"
    assert match(run, PROFILES, "gpu").variant == "gpu"
    assert match(replace(run, accelerator=Accelerator(kind="none")), PROFILES).variant == "cpu"
    assert match(replace(run, accelerator=Accelerator(gpus=(Gpu(name="Tesla T4"),))), PROFILES).variant == "gpu"


@pytest.mark.parametrize(
    ("run", "variant", "says"),
    [
        (manifest(("nvidia-cudnn-cu12", "8.9.4.25"), framework=("tensorflow", "2.15.1")), "gpu", "CUDA from wheels"),
        (manifest(framework=("tensorflow-gpu", "2.10.1"), python="3.10.2"), "gpu", "tensorflow-gpu"),
        (manifest(framework=("tensorflow-cpu", "2.15.1")), "cpu", NO_CUDA),
    ],
)
def test_the_distributions_of_a_record_tell_the_variant_where_they_can(run, variant, says):
    [decision] = [it for it in match(record(run), PROFILES).decisions if it.what == "variant"]
    assert decision.value == variant
    assert says in decision.reason


@pytest.mark.parametrize(("build", "variant"), [("cuda120py310h9360858_3", "gpu"), ("cpu_py310hd1aba9c_0", "cpu")])
def test_the_build_of_conda_s_framework_tells_the_variant(build, variant):
    origin = Origin(kind="conda", build=build)
    conda = Distribution(name="tensorflow", version="2.15.0", origin=origin)
    run = record(manifest(framework=("tensorflow", "2.15.0")), distributions=(conda,))
    assert match(run, PROFILES).variant == variant


def test_a_record_that_is_not_whole_has_gaps_that_the_lock_fills():
    conda = Conda(
        packages=(
            CondaPackage(name="numpy", version="1.24.3", build="py310h5f9d8c6_1"),
            CondaPackage(name="h5py", version="3.9.0", build="nompi_py310hb7f3a3a_100"),
            CondaPackage(name="absl-py", version="1.4.0", build="pyhd8ed1ab_0"),
            CondaPackage(name="keras", version="2.12.0", build="pyhd8ed1ab_0"),
            CondaPackage(name="libclang", version="15.0.7", build="default_h7634d5b_4"),
            CondaPackage(name="odd", version="2023c", build="py_0"),
        )
    )
    run = manifest(("keras", "2.15.0"), ("nvidia-cudnn-cu12", "8.9.4.25"), framework=("tensorflow", "2.15.1"))
    stack = match(record(run, conda=conda), PROFILES, "cpu")
    assert stack.gaps is not None
    assert stack.gaps.without == ("nvidia-cudnn-cu12", "tensorflow")
    assert stack.gaps.versions == (
            *("absl-py==1.4.0", "h5py==3.9.0", "numpy==1.24.3", "odd==2023c"), "setuptools<82",
        )  # fmt: skip
    assert "source.complete" in next(it.reason for it in stack.decisions if it.what == "distributions")
    whole = match(record(run, complete=True, conda=conda), PROFILES, "cpu")
    assert whole.gaps is None
    assert "distributions" not in {it.what for it in whole.decisions}


def test_a_version_that_the_record_does_not_say_is_no_matter_of_the_stack():
    lost = (
        Distribution(name="clip", origin=Origin(kind="vcs", url="https://example.com/clip.git", commit="9fceb02d")),
        Distribution(name="numpy", origin=Origin(kind="conda")),
        Distribution(name="tensorflow-cpu", version="2.15.1", origin=Origin(kind="index")),
    )
    stack = match(record(manifest(framework=("tensorflow-cpu", "2.15.1")), distributions=lost), PROFILES)
    assert stack.requirements == ("tensorflow-cpu==2.15.1",)


pins = st.lists(
    st.tuples(
        st.sampled_from(["numpy", "Keras", "h5py", "zope.interface", "nvidia-cudnn-cu12", "A_b"]),
        st.sampled_from(["1", "2.0+x"]),
    ),
    unique_by=lambda it: it[0],
)


@settings(max_examples=40, deadline=None)
@given(pins=pins, seed=st.randoms(use_true_random=False), variant=st.sampled_from(["auto", "gpu", "cpu"]))
def test_the_order_of_distributions_decides_nothing(pins, seed, variant):
    run = manifest(*pins, framework=("tensorflow", "2.15.1"))
    shuffled = list(run.distributions)
    seed.shuffle(shuffled)
    stack = match(run, PROFILES, variant)
    assert stack == match(replace(run, distributions=tuple(shuffled)), PROFILES, variant)
    assert names(stack) == sorted(names(stack))


@settings(max_examples=40, deadline=None)
@given(pins=pins, release=st.sampled_from(RELEASES), variant=st.sampled_from(VARIANTS))
def test_matching_a_stack_again_changes_nothing(pins, release, variant):
    python = f"{release.wheels[0].pythons[-1]}.0"
    first = match(manifest(*pins, framework=("tensorflow", str(release.version)), python=python), PROFILES, variant)
    exact = [(Requirement(it).name, it.partition("==")[2] or "1") for it in first.requirements]
    own = (first.distribution, first.version)
    again = match(manifest(*(it for it in exact if it != own), framework=own, python=python), PROFILES, variant)
    assert again.changes == ()
    assert names(again) == names(first)
    assert (again.base, again.variables, again.cuda_source) == (first.base, first.variables, first.cuda_source)


def test_a_tpu_is_told_as_no_image_is_made_for_it():
    run = replace(
        manifest(framework=("tensorflow", "2.15.1")), accelerator=Accelerator(kind="tpu", source="/dev/accel*")
    )
    (told,) = [it for it in match(run, PROFILES).decisions if it.what == "accelerator"]
    assert (told.value, told.warning) == ("TPU", True)
    assert not [
        it for it in match(manifest(framework=("tensorflow", "2.15.1")), PROFILES, "cpu").decisions if it.warning
    ]


@pytest.mark.parametrize(
    ("pins", "needed"),
    [
        ((), ("tensorflow",)),
        ((("torchvision", "0.16.0"), ("numpy", "1.26.4")), ("tensorflow", "torch")),
        ((("JAXlib", "0.4.20"),), ("tensorflow", "jax")),
    ],
)
def test_profiles_of_the_frameworks_that_a_run_had_are_enough(pins, needed):
    run = manifest(*pins, framework=("tensorflow", "2.15.1"), gpus=("Tesla T4",))
    assert frameworks_of(run) == needed
    few = load_profiles(data_folder("profiles"), needed)
    for variant in VARIANTS:
        assert match(run, few, variant) == match(run, PROFILES, variant)


def test_all_profiles_count_where_the_run_s_framework_is_none_of_them():
    run = manifest(("torch", "2.1.0"), framework=None)
    other = Framework(name="mxnet", distribution="mxnet", version="1.9.1")
    assert frameworks_of(run) == frameworks_of(replace(run, framework=other)) == FRAMEWORKS


def test_a_date_counts_to_its_end_and_what_is_none_is_refused_at_the_call():
    run = replace(
        manifest(framework=("tensorflow-cpu", "2.15.1")), source=Source(format="requirements", complete=False)
    )
    for given_as, moment in (
        ("2023-01-01", "2023-01-01T23:59:59Z"),
        ("2023-01-01T12:00:00+02:00", "2023-01-01T10:00:00Z"),
        ("none", None),
        (None, "2026-01-01T00:00:00Z"),
    ):
        gaps = match(run, PROFILES, as_of=given_as).gaps
        assert gaps is not None
        assert gaps.before == moment
    with pytest.raises(UsageError, match="--exclude-newer yesterday"):
        match(run, PROFILES, as_of="yesterday")
