"""The profiles that are shipped, and what a broken one is answered with."""

import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuild.errors import MatchError
from envbuild.files import data_folder
from envbuild.match.profiles import FrameworkWheel, Profiles, load_profiles
from envbuild.refresh.toml import to_toml

FOLDER = data_folder("profiles")
PROFILES = load_profiles(FOLDER)
TENSORFLOW = PROFILES.frameworks[0]
WHEELS = [wheel for release in TENSORFLOW.releases for wheel in release.wheels]
GPU_WHEELS = [wheel for wheel in WHEELS if wheel.cuda]


def row(distribution: str, version: str, machine: str = "x86_64") -> FrameworkWheel:
    (found,) = [it for it in WHEELS if (it.distribution, it.version, it.machine) == (distribution, version, machine)]
    return found


def test_tensorflow_begins_with_2_5_and_has_every_patch_release_once():
    versions = [str(release.version) for release in TENSORFLOW.releases]
    assert versions[:4] == ["2.5.0", "2.5.1", "2.5.2", "2.5.3"]
    assert {"2.8.4", "2.11.1", "2.15.0", "2.15.0.post1", "2.15.1", "2.16.2", "2.17.1", "2.21.0"} <= set(versions)
    assert len(versions) == len(set(versions)) >= 47
    assert not any(release.version.is_prerelease for release in TENSORFLOW.releases)


@pytest.mark.parametrize(
    ("version", "pythons", "glibc", "cuda", "cudnn"),
    [
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


@pytest.mark.parametrize("release", TENSORFLOW.releases, ids=lambda it: str(it.version))
def test_every_release_has_a_cpu_distribution_with_the_pythons_of_its_gpu_build(release):
    wheels = {(it.distribution, it.machine): it for it in release.wheels}
    gpu, cpu = wheels["tensorflow", "x86_64"], wheels["tensorflow-cpu", "x86_64"]
    assert (gpu.cuda is None, cpu.cuda) == (False, None)
    assert (gpu.pythons, gpu.glibc) == (cpu.pythons, cpu.glibc)
    assert not any(it.cuda for it in release.wheels if it.machine == "aarch64")


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda it: f"{it.pin}-{it.machine}")
def test_every_row_names_a_wheel_of_its_own_release_and_python(wheel):
    name, version, _, tags = parse_wheel_filename(wheel.wheel)
    assert (name, version) == (wheel.distribution, Version(wheel.version))
    assert {it.interpreter for it in tags} == {f"cp{wheel.pythons[-1].replace('.', '')}"}
    assert all(it.platform.endswith(wheel.machine) for it in tags)
    assert bool(wheel.compute_capabilities) == bool(wheel.cuda) == bool(wheel.cudnn)


@pytest.mark.parametrize("wheel", GPU_WHEELS, ids=lambda it: it.pin)
def test_a_gpu_build_has_its_cuda_from_wheels_or_from_a_known_base(wheel):
    bases = [it for it in PROFILES.bases if it.cuda == wheel.cuda]
    assert bool(wheel.cuda_requirements) == (Version(wheel.version) >= Version("2.14"))
    assert wheel.cuda_requirements or bases
    assert all(Version(it.glibc) >= Version(wheel.glibc) for it in bases)
    names = [canonicalize_name(Requirement(it).name) for it in wheel.cuda_requirements]
    assert all(any(fnmatchcase(name, pattern) for pattern in PROFILES.nvidia_wheels) for name in names)
    assert [it.cuda for it in PROFILES.drivers].count(str(wheel.cuda).split(".")[0]) == 1


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


def test_suites_are_tried_from_the_newest_and_serve_every_python_of_the_releases():
    assert [it.name for it in PROFILES.suites] == ["bookworm", "bullseye", "buster", "stretch"]
    minors = {first.rpartition(".")[0] for suite in PROFILES.suites for first in suite.since}
    assert {python for wheel in WHEELS for python in wheel.pythons} <= minors


def test_the_framework_profile_is_what_the_writer_writes():
    assert to_toml(TENSORFLOW) == (FOLDER / "tensorflow.toml").read_text()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "profiles"))


@pytest.mark.parametrize(
    ("file", "before", "after", "where"),
    [
        ("tensorflow.toml", "schema = 1", "schema = 2", "tensorflow.toml: schema"),
        ("tensorflow.toml", "schema = 1", "schema = 1 1", "tensorflow.toml"),
        ("tensorflow.toml", 'version = "2.5.1"', 'version = "2.5.one"', "tensorflow.toml: release[1].version"),
        ("tensorflow.toml", 'version = "2.5.1"', "version = 2.5", "tensorflow.toml: release[1].version"),
        ("tensorflow.toml", 'sha256 = "', 'sha256 = "g', "tensorflow.toml: release[0].wheel[0].sha256"),
        ("tensorflow.toml", 'pythons = ["3.6", ', "pythons = [3.6, ", "tensorflow.toml: release[0].wheel[0].pythons"),
        ("tensorflow.toml", 'machine = "x86_64"\n', "", "tensorflow.toml: release[0].wheel[0].machine"),
        ("cuda.toml", "[[driver]]", "[driver]", "cuda.toml"),
        ("cuda.toml", "[[suite]]", "[[suites]]", "cuda.toml: suite"),
        ("cuda.toml", 'glibc = "2.36"', 'glibc = ""', "cuda.toml: suite[0].glibc"),
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
    assert "line" in caught.value.what or "expected" in caught.value.what


def test_a_missing_or_binary_profile_is_named(copied):
    (copied / "cuda.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(MatchError, match="not TOML"):
        load_profiles(copied)
    (copied / "cuda.toml").unlink()
    with pytest.raises(MatchError, match="cannot be read") as caught:
        load_profiles(copied)
    assert caught.value.where == str(copied / "cuda.toml")


def test_profiles_are_values_that_cannot_be_changed():
    assert hash(PROFILES) == hash(load_profiles(FOLDER))
    assert isinstance(PROFILES, Profiles)
    with pytest.raises(AttributeError):
        PROFILES.frameworks = ()  # type: ignore[misc]
