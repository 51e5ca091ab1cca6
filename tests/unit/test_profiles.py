"""The profiles that are shipped, and what a broken one is answered with."""

import shutil
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuild.base.build import decide_archive
from envbuild.errors import MatchError
from envbuild.files import data_folder
from envbuild.match.match import MatchOptions, show_release
from envbuild.match.profiles import Profiles, load_profiles
from envbuild.match.rows import CudnnFloor, FrameworkWheel, Limit
from profiles.refresh.toml import to_toml

FOLDER = data_folder("profiles")
PROFILES = load_profiles(FOLDER)
TENSORFLOW, TORCH, JAX = PROFILES.frameworks
WHEELS = [wheel for release in TENSORFLOW.releases for wheel in release.wheels]
GPU_WHEELS = [wheel for wheel in WHEELS if wheel.cuda]
OTHERS = [wheel for it in (TORCH, JAX) for release in it.releases for wheel in release.wheels]
CPU_ONLY = {"1.15.2", "1.15.3", "1.15.4", "1.15.5", "2.0.0", "2.0.1", "2.0.2", "2.0.3", "2.0.4"}
"""`tensorflow` of these releases has no CUDA; `tensorflow-gpu` has."""


def row(distribution: str, version: str, machine: str = "x86_64") -> FrameworkWheel:
    (found,) = [it for it in WHEELS if (it.distribution, it.version, it.machine) == (distribution, version, machine)]
    return found


def other(name: str, version: str, machine: str = "x86_64", extra: str | None = None) -> FrameworkWheel:
    wanted = (name, version, machine, extra)
    (found,) = [it for it in OTHERS if (it.distribution, it.version, it.machine, it.extra) == wanted]
    return found


def test_tensorflow_begins_with_1_15_and_has_every_patch_release_once():
    versions = [str(release.version) for release in TENSORFLOW.releases]
    assert versions[:6] == ["1.15.0", "1.15.2", "1.15.3", "1.15.4", "1.15.5", "2.0.0"]
    assert {"2.8.4", "2.11.1", "2.15.0", "2.15.0.post1", "2.15.1", "2.16.2", "2.17.1", "2.21.0"} <= set(versions)
    assert len(versions) == len(set(versions)) >= 76


def test_torch_begins_with_1_8_and_jax_with_0_4_20():
    torch, jax = ([str(it.version) for it in profile.releases] for profile in (TORCH, JAX))
    assert (torch[:4], jax[:3]) == (["1.8.0", "1.8.1", "1.9.0", "1.9.1"], ["0.4.20", "0.4.21", "0.4.22"])
    assert ({"2.15.0"} <= set(torch), {"0.4.37", "0.5.2", "0.12.0.1"} <= set(jax)) == (True, True)
    assert (len(torch) >= 30, len(jax) >= 44) == (True, True)
    assert "0.4.32" not in jax, "it was yanked"


@pytest.mark.parametrize("profile", PROFILES.frameworks, ids=lambda it: it.name)
def test_releases_rise_and_none_is_a_prerelease(profile):
    versions = [it.version for it in profile.releases]
    assert versions == sorted(set(versions))
    assert not any(it.is_prerelease or it.local for it in versions)


@pytest.mark.parametrize(
    ("version", "pythons", "glibc", "cuda", "cudnn"),
    [
        ("1.15.0", "3.5 3.6 3.7", "2.12", "10.0", "7"),
        ("2.1.3", "3.6 3.7", "2.12", "10.1", "7"),
        ("2.2.0", "3.5 3.6 3.7 3.8", "2.12", "10.1", "7"),
        ("2.4.4", "3.6 3.7 3.8", "2.12", "11.0", "8"),
        ("2.5.0", "3.6 3.7 3.8 3.9", "2.12", "11.2", "8"),
        ("2.5.3", "3.7 3.8 3.9", "2.12", "11.2", "8"),
        ("2.8.0", "3.7 3.8 3.9 3.10", "2.12", "11.2", "8"),
        ("2.9.0", "3.7 3.8 3.9 3.10", "2.17", "11.2", "8"),
        ("2.11.1", "3.8 3.9 3.10", "2.17", "11.2", "8"),
        ("2.12.0", "3.8 3.9 3.10 3.11", "2.17", "11.8", "8"),
        ("2.15.1", "3.9 3.10 3.11", "2.17", "12.2", "8"),
        ("2.16.1", "3.9 3.10 3.11 3.12", "2.17", "12.3", "8"),
        ("2.18.0", "3.9 3.10 3.11 3.12", "2.17", "12.5.1", "9"),
        ("2.21.0", "3.10 3.11 3.12 3.13", "2.27", "12.5.1", "9"),
    ],
)
def test_rows_agree_with_what_is_known_of_the_builds(version, pythons, glibc, cuda, cudnn):
    found = row("tensorflow", version)
    assert (found.pythons, found.glibc, found.cuda, found.cudnn) == (tuple(pythons.split()), glibc, cuda, cudnn)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("1.15.0", "cublas.10.0 cudart.10.0 cudnn.7 cufft.10.0 curand.10.0 cusolver.10.0 cusparse.10.0"),
        ("2.1.0", "cublas.10 cudart.10.1 cudnn.7 cufft.10 curand.10 cusolver.10 cusparse.10"),
        ("2.4.0", "cublas.11 cublasLt.11 cudart.11.0 cudnn.8 cufft.10 curand.10 cusolver.10 cusparse.11"),
        ("2.5.0", "cublas.11 cublasLt.11 cudart.11.0 cudnn.8 cufft.10 curand.10 cusolver.11 cusparse.11"),
        ("2.14.0", "cublas.11 cublasLt.11 cudart.11.0 cudnn.8 cufft.10 cusolver.11 cusparse.11"),
        ("2.15.1", "cublas.12 cublasLt.12 cudart.12 cudnn.8 cufft.11 cusolver.11 cusparse.12"),
        ("2.21.0", "cublas.12 cublasLt.12 cudart.12 cudnn.9 cufft.11 cusolver.11 cusparse.12"),
    ],
)
def test_libraries_are_those_that_the_loader_was_seen_to_open(version, names):
    expected = tuple("lib{}.so.{}".format(*it.split(".", 1)) for it in names.split())
    assert row("tensorflow", version).libraries == expected


@pytest.mark.parametrize(
    ("version", "keras", "required"),
    [
        ("1.15.0", "2", ()),
        ("2.4.4", "2", ()),
        ("2.5.0", "2", ("keras-nightly~=2.5.0.dev",)),
        ("2.6.0", "2", ("keras~=2.6",)),
        ("2.15.1", "2", ("keras<2.16,>=2.15.0",)),
        ("2.16.1", "3", ("keras>=3.0.0",)),
        ("2.21.0", "3", ("keras>=3.12.0",)),
    ],
)
def test_keras_is_2_until_2_15_and_3_from_2_16_on(version, keras, required):
    found = row("tensorflow", version)
    assert (found.keras, tuple(it for it in found.limits if it.startswith("keras"))) == (keras, required)


def test_limits_of_numpy_and_protobuf_are_those_of_metadata():
    numpy = {it: [limit for limit in row("tensorflow", it).limits if "numpy" in limit] for it in ("2.16.1", "2.18.0")}
    assert numpy == {
        "2.16.1": [
            'numpy<2.0.0,>=1.23.5; python_version < "3.12"', 'numpy<2.0.0,>=1.26.0; python_version >= "3.12"',
        ],
        "2.18.0": ["numpy<2.1.0,>=1.26.0"],
    }  # fmt: skip
    assert "protobuf<8.0.0,>=6.31.1" in row("tensorflow", "2.21.0").limits


@pytest.mark.parametrize(
    ("first", "last", "cuda"),
    [
        ("1.13.0", "2.0.1", "11.7"),
        ("2.1.0", "2.4.1", "12.1"),
        ("2.5.0", "2.6.0", "12.4"),
        ("2.7.0", "2.7.1", "12.6"),
        ("2.8.0", "2.10.0", "12.8"),
        ("2.11.0", "2.14.1", "13.0"),
        ("2.15.0", "2.15.0", "13.2"),
    ],
)
def test_torch_has_the_cuda_that_is_known_and_requires_it(first, last, cuda):
    within = [it for it in TORCH.releases if Version(first) <= it.version <= Version(last)]
    wheels = [it for release in within for it in release.wheels if it.machine == "x86_64"]
    assert {it.cuda for it in wheels} == {cuda}
    assert all(it.cudnn and f"=={it.cudnn}" in (it.requirement("cudnn") or "") for it in wheels)
    assert all(it.requirement("nccl") for it in wheels if Version(it.version) >= Version("2.0"))


def test_torch_for_aarch64_has_cuda_from_2_11_on():
    arm = [it for it in OTHERS if (it.distribution, it.machine) == ("torch", "aarch64")]
    assert {str(it.version) for it in TORCH.releases} - {it.version for it in arm} == {"1.9.1"}
    assert all((it.cuda is not None) == (Version(it.version) >= Version("2.11")) for it in arm)
    assert (other("torch", "2.6.0").glibc, other("torch", "2.7.0").glibc) == ("2.5", "2.28")


def test_jax_has_the_extras_that_can_be_installed_and_notes_on_the_others():
    notes = {str(it.version): it.notes for it in JAX.releases}
    extras = {str(it.version): {wheel.extra for wheel in it.wheels} for it in JAX.releases}
    assert (extras["0.4.22"], extras["0.4.23"], extras["0.7.1"], extras["0.7.2"]) == (
        {None}, {None, "cuda12"}, {None, "cuda12"}, {None, "cuda12", "cuda13"},
    )  # fmt: skip
    assert "cuda12: the index has no jax-cuda12-pjrt==0.4.22 for x86_64" in notes["0.4.22"]
    assert not [it for it in notes["0.7.2"] if "-local: it brings no library of CUDA" not in it]
    assert (
        "cuda13: the index has no jax-cuda13-plugin[with-cuda]<=0.7.1,>=0.7.1 for x86_64 and aarch64" in notes["0.7.1"]
    )
    assert (other("jax", "0.4.37").jaxlib, other("jax", "0.5.2").jaxlib) == ("0.4.36", "0.5.1")
    assert other("jax", "0.7.0").glibc == "2.17"
    assert other("jax", "0.7.1").glibc == other("jax", "0.12.0.1").glibc == "2.27"


@pytest.mark.parametrize("profile", [TORCH, JAX], ids=lambda it: it.name)
def test_every_row_of_torch_and_jax_agrees_with_itself(profile):
    for release in profile.releases:
        for wheel in release.wheels:
            check_other(wheel)


def check_other(wheel: FrameworkWheel) -> None:
    name, version, _, _ = parse_wheel_filename(wheel.wheel)
    assert (name, version) == (wheel.distribution, Version(wheel.version))
    inside = wheel.distribution == "torch" and version < Version("1.13")
    assert (wheel.cuda is not None and not inside) == bool(wheel.cudnn) == bool(wheel.cuda_requirements)
    assert list(wheel.pythons) == sorted(set(wheel.pythons), key=Version)
    assert bool(wheel.jaxlib) == (wheel.distribution == "jax") == bool(wheel.parts)
    assert (wheel.extra is not None) == (wheel.distribution == "jax" and wheel.cuda is not None)
    own = [it for it in wheel.cuda_requirements if it.startswith("jax-cuda")]
    names = [canonicalize_name(Requirement(it).name) for it in wheel.cuda_requirements if it not in own]
    assert all(any(fnmatchcase(name, pattern) for pattern in PROFILES.nvidia_wheels) for name in names)
    assert len(wheel.parts) == (1 + len(own) if wheel.jaxlib else 0)


@pytest.mark.parametrize("release", TENSORFLOW.releases, ids=lambda it: str(it.version))
def test_every_release_has_a_gpu_and_a_cpu_distribution_with_the_same_pythons(release):
    wheels = {(it.distribution, it.machine): it for it in release.wheels}
    alone = str(release.version) in CPU_ONLY
    gpu, cpu = ("tensorflow-gpu", "tensorflow") if alone else ("tensorflow", "tensorflow-cpu")
    assert (wheels[gpu, "x86_64"].cuda is None, wheels[cpu, "x86_64"].cuda) == (False, None)
    assert (wheels[gpu, "x86_64"].pythons, wheels[gpu, "x86_64"].glibc) == (
        wheels[cpu, "x86_64"].pythons, wheels[cpu, "x86_64"].glibc,
    )  # fmt: skip
    assert (("tensorflow-cpu", "x86_64") in wheels) != alone
    assert not any(it.cuda for it in release.wheels if it.machine == "aarch64")


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda it: f"{it.pin}-{it.machine}")
def test_every_row_names_a_wheel_of_its_own_release_and_python(wheel):
    name, version, _, tags = parse_wheel_filename(wheel.wheel)
    assert (name, version) == (wheel.distribution, Version(wheel.version))
    assert {it.interpreter for it in tags} == {f"cp{wheel.pythons[-1].replace('.', '')}"}
    assert all(it.platform.endswith(wheel.machine) for it in tags)
    assert bool(wheel.compute_capabilities) == bool(wheel.cuda) == bool(wheel.cudnn) == bool(wheel.libraries)
    assert bool(wheel.cuda_requirements) == bool(wheel.extra)
    assert bool(wheel.keras) == (wheel.stands_for is None)


@pytest.mark.parametrize("wheel", GPU_WHEELS, ids=lambda it: it.pin)
def test_a_gpu_build_has_its_cuda_from_wheels_or_from_a_known_base(wheel):
    bases = [it for it in PROFILES.bases if it.cuda == wheel.cuda]
    assert bool(wheel.cuda_requirements) == (Version(wheel.version) >= Version("2.14"))
    assert wheel.cuda_requirements or bases
    assert all(Version(it.glibc) >= Version(wheel.glibc) for it in bases)
    if not wheel.cuda_requirements:
        archive, *others = [it for it in PROFILES.archives if it.cuda == wheel.cuda]
        assert others == []
        assert all(it.startswith("deb [trusted=yes] https://") for it in archive.lines), "only https vouches for them"
        [cudnn] = [it for it in archive.packages if it.startswith("libcudnn")]
        assert {it.cudnn for it in bases} <= {None, cudnn.partition("=")[2].partition("-")[0]}, "as the images have it"


def test_every_gpu_release_of_tensorflow_has_a_source_of_cuda_for_each_python():
    for wheel in GPU_WHEELS:
        extra, options = f"[{wheel.extra}]" if wheel.extra else "", MatchOptions(variant="gpu")
        for python in wheel.pythons:
            release = f"{wheel.distribution}{extra}=={wheel.version}"
            stack = show_release(release, PROFILES, options, python=python, machine=wheel.machine).stack
            assert stack.cuda_source in {"wheels", "base"}, release
            [base] = [it for it in stack.decisions if it.what == "base"]
            assert (bool(base.value), bool(base.source)) == (True, True), f"{release} on Python {python}"
            assert ("nvidia/cuda:" in base.value) == (stack.cuda_source == "base")
            if base.warning:  # of what cannot be pulled, both ways out
                assert f"envbuild base build --cuda {stack.cuda} --python {python}" in base.reason
                assert "--parent MIRROR" in base.reason
                parent = decide_archive(f"{stack.cuda}", python, "", PROFILES, wheel.machine)[1].value
                assert f"/python:{python}-slim-" in parent
    names = [canonicalize_name(Requirement(it).name) for it in wheel.cuda_requirements]
    assert all(any(fnmatchcase(name, pattern) for pattern in PROFILES.nvidia_wheels) for name in names)


def test_repairs_and_library_paths_name_releases_and_requirements_that_exist():
    for repair in PROFILES.repairs:
        for version in repair.versions:
            found = row("tensorflow", version)
            assert set(repair.pythons) <= set(found.pythons)
            assert set(repair.drop) <= {Requirement(it).name for it in found.cuda_requirements}
    for path in PROFILES.library_paths:
        for version in path.versions:
            names = {Requirement(it).name for it in row("tensorflow", version).cuda_requirements}
            # The compiler's wheel has programs only; every other one has a folder of libraries named after it.
            folders = {it.removeprefix("nvidia-").removesuffix("-cu12").replace("-", "_") for it in names}
            assert set(path.folders) == {f"nvidia/{folder}/lib" for folder in folders - {"cuda_nvcc"}}


def test_sets_of_wheels_bring_every_library_that_the_builds_open():
    for it in PROFILES.wheel_sets:
        served = [wheel for wheel in GPU_WHEELS if wheel.cuda in it.serves and not wheel.cuda_requirements]
        assert {wheel.cuda for wheel in served} == set(it.serves)
        opened = {library.removeprefix("lib").split(".")[0] for wheel in served for library in wheel.libraries}
        folders = {folder.split("/")[1] for folder in it.folders}
        assert {name.replace("cudart", "cuda_runtime").replace("cublasLt", "cublas") for name in opened} <= folders
        names = [Requirement(text).name for text in (*it.requirements, it.cudnn[0])]
        assert folders == {name[7:-5].replace("-", "_") for name in names} - {"cuda_nvcc"}
        assert all(str(Requirement(text).specifier).startswith("==") for text in (*it.requirements, *it.cudnn))
        versions = [Version(text.partition("==")[2]) for text in it.cudnn]
        assert versions == sorted(versions)
        floors = {
            floor.minimum for floor in PROFILES.cudnn_floors if Version("2.5") <= Version(floor.first) < Version("2.14")
        }
        assert all(Version(floor) <= versions[0] for floor in floors)
        own = row("tensorflow", "2.14.0").cuda_requirements
        assert set(it.requirements) <= set(own), "TensorFlow itself pins them for the same CUDA"


def test_gpus_are_known_by_one_capability_and_compilers_by_one_row():
    words = [word for it in PROFILES.capabilities for word in it.words]
    assert len(words) == len(set(words))
    versions = {str(it.version) for it in TENSORFLOW.releases}
    for it in PROFILES.compilers:
        assert {it.first, it.last} <= versions
    ranges = [(Version(it.first), Version(it.last)) for it in PROFILES.compilers]
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


def test_suites_are_tried_from_the_newest_and_serve_every_python_of_the_releases():
    assert [it.name for it in PROFILES.suites] == ["bookworm", "bullseye", "buster", "stretch"]
    minors = {first.rpartition(".")[0] for suite in PROFILES.suites for first in suite.since}
    assert {python for wheel in WHEELS for python in wheel.pythons} <= minors


@pytest.mark.parametrize("cuda", sorted({it.cuda for it in (*WHEELS, *OTHERS) if it.cuda}))
def test_every_cuda_has_a_lowest_driver_and_the_driver_of_its_toolkit(cuda):
    major, _, minor = cuda.partition(".")
    floors = [it.minimum for it in PROFILES.drivers if it.cuda == (cuda if major == "10" else major)]
    toolkits = [it.driver for it in PROFILES.toolkits if it.cuda == cuda]
    assert len(floors) == 1
    assert len(toolkits) == (1 if minor else 0)
    # 11.0 itself runs on its own driver, which is older than what the minor versions of 11 have in common.
    assert all(Version(toolkit) >= Version(floors[0]) for toolkit in toolkits) == (cuda != "11.0")


def test_the_driver_of_a_toolkit_is_the_one_of_its_release_notes():
    drivers = {it.cuda: it.driver for it in PROFILES.toolkits}
    known = {"10.0": "410.48", "11.2": "460.27.03", "11.8": "520.61.05", "12.2": "535.54.03", "12.3": "545.23.06"}
    known |= {"12.5.1": "555.42.06", "13.0": "580.65.06"}
    assert {cuda: drivers[cuda] for cuda in known} == known
    assert len(drivers) == len(PROFILES.toolkits)


def test_the_framework_profiles_are_what_the_writer_writes():
    for profile in PROFILES.frameworks:
        assert to_toml(profile) == (FOLDER / f"{profile.name}.toml").read_text()


@pytest.mark.parametrize("wheel", GPU_WHEELS, ids=lambda it: it.pin)
def test_the_cudnn_that_every_gpu_build_accepts_is_known_from_one_place(wheel):
    version = Version(wheel.version)
    floors = [it for it in PROFILES.cudnn_floors if Version(it.first) <= version <= Version(it.last)]
    assert len(floors) == (0 if wheel.cudnn_built else 1)
    known = wheel.cudnn_built or floors[0].minimum
    assert known.split(".")[0] == wheel.cudnn
    assert (wheel.cudnn_built is not None) == (version >= Version("2.16"))


def test_ranges_of_hand_made_rows_begin_and_end_with_a_release_and_change_something():
    versions = {str(it.version) for it in TENSORFLOW.releases}
    ours = [it for it in PROFILES.limits if "tensorflow" in it.distributions]
    rows: list[CudnnFloor | Limit] = [*PROFILES.cudnn_floors, *ours]
    assert {it.framework for it in PROFILES.cudnn_floors} == {"tensorflow"}
    assert all({row.first, row.last} <= versions for row in rows)
    assert all(Version(row.first) <= Version(row.last) for row in [*rows, *PROFILES.limits])
    for limit in (it for it in ours if it.breaks is None and "setuptools" not in it.requirement):
        name, allowed = Requirement(limit.requirement).name, Requirement(limit.requirement).specifier
        within = [it for it in GPU_WHEELS if Version(limit.first) <= Version(it.version) <= Version(limit.last)]
        texts = {text for it in within for text in it.limits if Requirement(text).name == name}
        # Each forbids a version that some release of the range allows.
        beyond = {"numpy": "2.0.2", "protobuf": "4.25.0" if "<" in limit.requirement else "5.28.0", "keras": "2.15.0"}
        assert not allowed.contains(beyond[name])
        assert any(Requirement(text).specifier.contains(beyond[name]) for text in texts)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "profiles"))


@pytest.mark.parametrize(
    ("file", "before", "after", "where"),
    [
        ("tensorflow.toml", "schema = 1", "schema = 2", "tensorflow.toml: schema"),
        ("tensorflow.toml", "schema = 1", "schema = 1 1", "tensorflow.toml"),
        ("tensorflow.toml", 'version = "1.15.2"', 'version = "1.15.two"', "tensorflow.toml: release[1].version"),
        ("tensorflow.toml", 'version = "1.15.2"', "version = 1.15", "tensorflow.toml: release[1].version"),
        ("jax.toml", "notes = [", "notes = [1, ", "jax.toml: release[0].notes[0]"),
        ("torch.toml", 'cuda = "', 'cuda = 1 # "', "torch.toml: release[0].wheel[0].cuda"),
        ("torch.toml", "schema = 1", "schema = 2", "torch.toml: schema"),
        ("tensorflow.toml", 'sha256 = "', 'sha256 = "g', "tensorflow.toml: release[0].wheel[0].sha256"),
        (
            "tensorflow.toml",
            'pythons = ["3.5", ',
            "pythons = [3.5, ",
            "tensorflow.toml: release[0].wheel[0].pythons[0]",
        ),
        ("tensorflow.toml", 'machine = "x86_64"\n', "", "tensorflow.toml: release[0].wheel[0].machine"),
        ("cuda.toml", "[[driver]]", "[driver]", "cuda.toml"),
        ("cuda.toml", "[[suite]]", "[[suites]]", "cuda.toml: suite"),
        ("cuda.toml", "[toolkits.drivers]", "[toolkits.driver]", "cuda.toml: toolkits[0].drivers"),
        ("cuda.toml", '"10.1" = "418.39"', '"10.1" = 418.39', "cuda.toml: toolkits[0].drivers.10.1"),
        ("cuda.toml", 'requirement = "numpy<2"', "requirement = []", "cuda.toml: limit[0].requirement"),
        ("cuda.toml", 'minimum = "7.6"', 'maximum = "7.6"', "cuda.toml: cudnn[0].minimum"),
        ("cuda.toml", 'glibc = "2.36"', 'glibc = ""', "cuda.toml: suite[0].glibc"),
        ("cuda.toml", 'serves = ["11.2", "11.8"]', "serves = 11.2", "cuda.toml: wheel_set[0].serves"),
        ("cuda.toml", 'folder = "nvidia/cuda_nvcc"', "folder = 1", "cuda.toml: compiler[0].folder"),
        ("cuda.toml", '"7.0" = ["V100"]', '"7.0" = "V100"', "cuda.toml: capabilities[0].gpus.7.0"),
        ("cuda.toml", 'lowest = "3.0"', "lowest = 3.0", "cuda.toml: generation[0].lowest"),
        ("cuda.toml", 'labelled = ["torch"', 'labeled = ["torch"', "cuda.toml: labelled"),
    ],
)
def test_a_broken_profile_is_named_with_its_key_or_line(copied, file, before, after, where):
    path = copied / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1 if "suite" not in before else -1))
    with pytest.raises(MatchError) as caught:
        load_profiles(copied)
    assert caught.value.where == str(copied / where)


def test_a_missing_or_binary_profile_is_named(copied):
    (copied / "cuda.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(MatchError, match="not TOML"):
        load_profiles(copied)
    (copied / "cuda.toml").unlink()
    with pytest.raises(MatchError) as caught:
        load_profiles(copied)
    assert caught.value.where == str(copied / "cuda.toml")


def test_profiles_are_values_that_cannot_be_changed():
    assert hash(PROFILES) == hash(load_profiles(FOLDER))
    assert isinstance(PROFILES, Profiles)
    with pytest.raises(AttributeError):
        PROFILES.frameworks = ()  # type: ignore[misc]
