"""The shared libraries of the process: which package brought them, and what they say of themselves."""

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.capture.distributions import find_distributions
from envbuild.capture.host import cpu_facts
from envbuild.capture.native import component_of, decoded_version, leading_numbers, native_facts
from tests.fakes.libraries import shared_library
from tests.unit.capturing import Environment

SECRET = "hunter2SuperSecretValue99"


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path)


def native(tmp_path: Path, *paths: str, distributions: dict | None = None) -> dict:
    """The facts of a process that has mapped these files, on a machine whose package managers have `tmp_path`."""
    line = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 1234567                  {}\n"
    (tmp_path / "maps").write_text("".join(map(line.format, paths)))
    return native_facts(distributions or {}, "run", maps=str(tmp_path / "maps"), root=str(tmp_path))


def owners(facts: dict) -> dict:
    return {item["path"]: item["owner"] for item in facts["libraries"]}


def preload(env: Environment, *libraries: Path) -> dict:
    """What a capture says in whose process these are loaded."""
    env.variables["LD_PRELOAD"] = ":".join(map(str, libraries))
    facts: dict = env.capture()["native"]
    return facts


def wheel(name: str, version: str = "1.0", origin: str = "index") -> dict:
    return {"name": name, "version": version, "origin": {"kind": origin}}


# Owners


def test_what_dpkg_says_of_the_libraries_of_this_process():
    facts = native_facts({}, "run")
    paths = [item["path"] for item in facts["libraries"]]
    assert paths == sorted(paths)
    names = paths + [path.removeprefix("/usr") for path in paths]
    said = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True, check=False).stdout
    listed = {path: package for package, path in (line.split(": ", 1) for line in said.splitlines())}
    for path, owner in owners(facts).items():
        package = listed.get(path) or listed.get(path.removeprefix("/usr"))
        assert owner.get("name") == (package.partition(":")[0] if package else None)
        assert owner["kind"] == ("debian" if package else "none")


def test_the_c_library_is_a_package_of_debian_s_with_its_version(env):
    facts = env.capture()["native"]
    version = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "libc6"], capture_output=True, text=True, check=True
    ).stdout
    (owner,) = [item["owner"] for item in facts["libraries"] if item["name"] == "libc.so.6"]
    assert owner == {"kind": "debian", "name": "libc6", "version": version}
    assert facts["process"] == "fresh"


def test_a_wheel_owns_what_its_record_lists():
    module = importlib.import_module("_cffi_backend")
    facts = native_facts(find_distributions(False), "run")
    owner = owners(facts)[os.path.realpath(str(module.__file__))]
    assert owner == {"kind": "wheel", "name": "cffi", "version": importlib.metadata.version("cffi")}
    assert facts["process"] == "run"


def test_a_record_names_files_anywhere(tmp_path):
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "Some.Thing-1.0.dist-info").mkdir(parents=True)
    lines = ["../../libmkl.so.2,,", '"a/odd,name.so",sha256=x,12', "/opt/x/libabs.so,sha256=y,3", "a/plain.so.txt,,1"]
    (site / "Some.Thing-1.0.dist-info" / "RECORD").write_text("\r\n".join(lines))
    (tmp_path / "link").symlink_to(site)
    paths = [f"{tmp_path}/lib/libmkl.so.2", f"{site}/a/odd,name.so", f"{site}/a/other.so"]
    folder = str(tmp_path / "link" / "Some.Thing-1.0.dist-info")
    found = owners(native(tmp_path, *paths, distributions={folder: wheel("Some.Thing", "1.0+cu121")}))
    mine = {"kind": "wheel", "name": "some-thing", "version": "1.0+cu121"}
    assert [found[path] for path in paths] == [mine, mine, {"kind": "none"}]


def test_only_shared_objects_count(tmp_path):
    paths = ["/x/a.so", "/x/b.so.1.2", "/x/with space.so", "/usr/bin/python3.11", "[heap]", "/x/c.so.txt-", "/x/so"]
    names = [item["name"] for item in native(tmp_path, *paths, *paths)["libraries"]]
    assert names == ["a.so", "b.so.1.2", "with space.so"]


def test_a_file_that_was_replaced_is_nobody_s(tmp_path):
    debian(tmp_path, {"libfoo": ["/usr/lib/libfoo.so.1"]})
    (library,) = native(tmp_path, "/usr/lib/libfoo.so.1 (deleted)")["libraries"]
    deleted = "/usr/lib/libfoo.so.1 (deleted)"
    assert library == {"name": "libfoo.so.1", "path": deleted, "owner": {"kind": "none"}}


def test_without_proc_there_are_no_libraries(tmp_path):
    facts = native_facts({}, "run", maps=str(tmp_path / "absent"), root=str(tmp_path))
    assert facts == {"process": "run", "libraries": [], "components": [], "thread_pools": []}


def test_a_path_holds_neither_secrets_nor_control_characters(tmp_path):
    first, second = native(tmp_path, "/x/a\tb.so", f"/x/password={SECRET}/c.so")["libraries"]
    assert (first["name"], first["path"]) == ("a\ufffdb.so", "/x/a\ufffdb.so")
    assert SECRET not in str(second)
    assert second["name"] == "c.so"


def debian(root: Path, files: dict[str, list[str]], stanzas: str = "") -> None:
    """Lay down dpkg's database: `files` are the paths of each package, which is installed in version 1.0-1."""
    info = root / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    for package, paths in files.items():
        (info / f"{package}.list").write_text("\n".join(["/.", "/usr", *paths, ""]))
        name, _, architecture = package.partition(":")
        stanzas += f"Package: {name}\nStatus: install ok installed\nMulti-Arch: same\n"
        stanzas += f"Architecture: {architecture or 'amd64'}\nVersion: 1.0-1\n\n"
    (root / "var/lib/dpkg/status").write_text(stanzas)


def test_dpkg_s_lists_are_read_whatever_they_call_a_place(tmp_path):
    files = {
        "libold:amd64": ["/lib/x86_64-linux-gnu/libold.so.1"],
        "libnew": ["/usr/lib/libnew.so.1"],
        "libmoved": ["/usr/lib/libmoved.so.1"],
    }
    debian(tmp_path, files)
    paths = ["/usr/lib/x86_64-linux-gnu/libold.so.1", "/usr/lib/libnew.so.1", "/lib/libmoved.so.1", "/usr/lib/x.so"]
    found = owners(native(tmp_path, *paths))
    assert [found[path].get("name") for path in paths] == ["libold", "libnew", "libmoved", None]
    assert found[paths[0]] == {"kind": "debian", "name": "libold", "version": "1.0-1"}


def test_each_architecture_has_its_version_and_what_was_removed_has_none(tmp_path):
    stanza = "Package: {}\nStatus: {}\nArchitecture: {}\nVersion: {}\n\n"
    stanzas = stanza.format("libfoo", "install ok installed", "i386", "0.9-1")
    stanzas += stanza.format("libgone", "deinstall ok config-files", "amd64", "2.0-1")
    debian(tmp_path, {"libfoo:amd64": ["/usr/lib/x86/libfoo.so"]}, stanzas)
    (tmp_path / "var/lib/dpkg/info/libfoo:i386.list").write_text("/usr/lib/i386/libfoo.so\n")
    (tmp_path / "var/lib/dpkg/info/libgone.list").write_text("/usr/lib/libgone.so\n")
    found = owners(native(tmp_path, "/usr/lib/x86/libfoo.so", "/usr/lib/i386/libfoo.so", "/usr/lib/libgone.so"))
    assert [found[path].get("version") for path in sorted(found)] == ["0.9-1", None, "1.0-1"]


RPM = """#!/bin/sh
test "$1 $2 $4" = "-qf --qf --" || exit 9
format=$3; shift 4
for path; do case $path in
  */libc.so.6) printf "$(printf %s "$format" | sed 's/%{NAME}/glibc/; s/%{VERSION}/2.34/; s/%{RELEASE}/60.el9/')" ;;
  */absent.so) echo "error: file $path: No such file or directory" >&2; status=1 ;;
  */shared.so) echo "=one 1-1"; echo "=two 1-1" ;;
  *) echo "file $path is not owned by any package"; status=1 ;;
esac; done
exit $status
"""


def test_rpm_is_asked_once_for_all(tmp_path, monkeypatch):
    (tmp_path / "rpm").write_text(RPM)
    (tmp_path / "rpm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    libc, mine, absent, shared = (str(tmp_path / name) for name in ("libc.so.6", "mine.so", "absent.so", "shared.so"))
    for path in (libc, mine, shared):
        Path(path).write_text("")
    assert {owner["kind"] for owner in owners(native(tmp_path, libc, mine)).values()} == {"none"}
    (tmp_path / "usr/lib/sysimage/rpm").mkdir(parents=True)
    found = owners(native(tmp_path, mine, libc, absent))
    glibc = {"kind": "rpm", "name": "glibc", "version": "2.34-60.el9"}
    assert found == {libc: glibc, mine: {"kind": "none"}, absent: {"kind": "none"}}
    # Two lines for one file: nothing tells which line is whose.
    assert {owner["kind"] for owner in owners(native(tmp_path, libc, shared)).values()} == {"none"}


def test_conda_s_records_name_its_files(env):
    library = shared_library(env.prefix / "lib" / "libcudnn.so.8.9.7", "int x;")
    module = shared_library(env.site / "x" / "module.so", "int y;")
    env.install("x", INSTALLER="conda\n", RECORD="x/module.so,,\n")
    meta = env.prefix / "conda-meta"
    meta.mkdir()
    (meta / "history").write_text("")
    paths = {"cudnn-8.9.7.29-hbc23b4c_3": library, "x-conda-1.0-py311_0": module}
    for name, path in paths.items():
        files = {"files": ["include/a.h", str(path.relative_to(env.prefix))]}
        (meta / f"{name}.json").write_text(json.dumps(files, indent=2))
    facts = preload(env, library, module)
    assert owners(facts)[str(library)] == {"kind": "conda", "name": "cudnn", "version": "8.9.7.29"}
    assert owners(facts)[str(module)] == {"kind": "conda", "name": "x-conda", "version": "1.0"}


# Components of CUDA

CONSTANT = "int {}(int *v) {{ *v = {}; return {}; }}"
PROPERTY = "int {}(int kind, int *v) {{ static const int n[] = {{ {} }}; *v = n[kind]; return 0; }}"
TWO = "int {}(int *major, int *minor) {{ *major = {}; *minor = {}; return 0; }}"
DEADLY = "void abort(void); int cudaRuntimeGetVersion(void) { abort(); } long cudnnGetVersion(void) { abort(); }"
DEADLY += "int cuptiGetVersion(int *v) { abort(); }"


def test_a_loaded_library_is_asked_itself(env, tmp_path):
    sources = {
        "libcublas.so.12": PROPERTY.format("cublasGetProperty", "12, 4, 5"),
        "libcudart.so.12": CONSTANT.format("cudaRuntimeGetVersion", 12040, 0),
        "libcudnn_graph.so.9": "long cudnnGetVersion(void) { return 90300; }",
        "libcusparseLt.so.0": PROPERTY.format("cusparseLtGetProperty", "0, 8, 1"),
        "libnccl-abc012.so.2": CONSTANT.format("ncclGetVersion", 21805, 0),
        "libnvJitLink.so.12": TWO.format("nvJitLinkVersion", 12, 4),
        "libnvinfer.so.8": "int getInferLibVersion(void) { return 8601; }",
        "libnvrtc.so.12": TWO.format("nvrtcVersion", 12, 4),
    }
    components = preload(env, *(shared_library(tmp_path / "cuda" / name, text) for name, text in sources.items()))
    found = {part["name"]: part for part in components["components"]}
    assert {name: (part["version"], part["source"]) for name, part in found.items()} == {
        "cublas": ("12.4.5", "cublasGetProperty()"),
        "cuda": ("12.4", "cudaRuntimeGetVersion()"),
        "cudnn": ("9.3.0", "cudnnGetVersion()"),
        "cusparselt": ("0.8.1", "cusparseLtGetProperty()"),
        "nccl": ("2.18.5", "ncclGetVersion()"),
        "nvjitlink": ("12.4", "nvJitLinkVersion()"),
        "tensorrt": ("8.6.1", "getInferLibVersion()"),
        "nvrtc": ("12.4", "nvrtcVersion()"),
    }
    assert found["cuda"]["path"] == str(tmp_path / "cuda" / "libcudart.so.12")
    assert {part["loaded"] for part in found.values()} == {True}


def test_what_would_load_more_or_start_the_driver_is_not_asked(env):
    names = ("libcudart.so.11.0", "libcudnn.so.9", "libcupti.so.12", "libcudart-d0da41ae.so.10")
    libraries = [shared_library(env.site / "nvidia" / name, DEADLY) for name in names]
    record = "".join(f"nvidia/{name},,\n" for name in names[:2])
    env.install("nvidia-cudnn-cu11", "9.3.0.75", RECORD=record)
    assert [(part["name"], part["version"], part["source"]) for part in preload(env, *libraries)["components"]] == [
        ("cudnn", "9.3.0.75", "distribution nvidia-cudnn-cu11")
    ]


def test_the_name_of_the_file_comes_after_the_library_s_word(env, tmp_path):
    sources = {
        "libcufft.so.11.2.1.3": "",
        "libcudart.so.11.8.89": DEADLY,
        "libnccl.so.2.18.5": CONSTANT.format("ncclGetVersion", 0, 3),
        "libcurand.so.10": "int curandGetProperty(int kind, int *v) { *v = 10; return kind == 2; }",
    }
    facts = preload(env, *(shared_library(tmp_path / "cuda" / name, text) for name, text in sources.items()))
    assert [(part["name"], part["version"], part["source"]) for part in facts["components"]] == [
        ("cuda", "11.8.89", "file name"),
        ("cufft", "11.2.1.3", "file name"),
        ("nccl", "2.18.5", "file name"),
    ]


def test_two_versions_of_a_part_are_both_told_and_the_parts_of_one_once(env, tmp_path):
    answer = "long cudnnGetVersion(void) {{ return {}; }}"
    libraries = [
        shared_library(tmp_path / "a" / "libcudnn.so.8.9.7", DEADLY),
        shared_library(tmp_path / "a" / "libcudnn_ops_infer.so.8.9.7", answer.format(8907)),
        shared_library(tmp_path / "a" / "libcudnn_graph.so.9", answer.format(91000)),
        shared_library(tmp_path / "b" / "libcudnn_graph.so.9", answer.format(90300)),
    ]
    facts = preload(env, *libraries)
    assert [(part["version"], part["path"]) for part in facts["components"]] == [
        ("9.10.0", str(libraries[2])),
        ("8.9.7", str(libraries[1])),
        ("9.3.0", str(libraries[3])),
    ]


def test_what_is_installed_is_told_although_it_is_not_loaded(tmp_path):
    packages = ("libcudnn9-cuda-12", "cuda-cudart-12-4", "libcudnn9-dev-cuda-12", "zlib1g")
    debian(tmp_path, {package: [] for package in packages})
    (tmp_path / "usr/local/cuda").mkdir(parents=True)
    version = {"cuda": {"name": "CUDA SDK", "version": "12.4.1"}, "libcublas": {"version": "12.4.5.8"}}
    (tmp_path / "usr/local/cuda/version.json").write_text(json.dumps(version))
    installed = (wheel("nvidia-cublas", "13.4.1.3"), wheel("nvidia_cuda_nvcc_cu12", "12.5.82"), wheel("cudnn", "1.0"))
    distributions = {str(tmp_path / item["name"]): item for item in installed}
    components = native(tmp_path, distributions=distributions)["components"]
    assert [(part["name"], part["version"], part["source"]) for part in components] == [
        ("cublas", "13.4.1.3", "distribution nvidia-cublas"),
        ("cuda", "12.4.1", str(tmp_path / "usr/local/cuda/version.json")),
        ("cuda", "1.0", "Debian package cuda-cudart-12-4"),
        ("cudnn", "1.0", "Debian package libcudnn9-cuda-12"),
        ("nvcc", "12.5.82", "distribution nvidia-cuda-nvcc-cu12"),
    ]
    assert {part["loaded"] for part in components} == {False}


def test_conda_s_packages_count_as_installed_and_a_broken_file_for_nothing(env):
    (env.prefix / "conda-meta").mkdir()
    for name in ("cudatoolkit-11.8.0-h4ba93d1_13", "cudnn-8.9.7.29-0", "broken", "numpy-1.26.4-py311_0"):
        (env.prefix / "conda-meta" / f"{name}.json").write_text("{")
    assert [(part["name"], part["version"], part["source"]) for part in env.capture()["native"]["components"]] == [
        ("cuda", "11.8.0", "conda package cudatoolkit"),
        ("cudnn", "8.9.7.29", "conda package cudnn"),
    ]


def test_a_package_whose_library_is_loaded_is_not_told_twice(env):
    library = shared_library(env.site / "nvidia/libnccl.so.2", CONSTANT.format("ncclGetVersion", 21805, 0))
    env.install("nvidia-nccl-cu12", "2.18.5", RECORD="nvidia/libnccl.so.2,,\n")
    env.install("nvidia-nccl-cu13", "2.30.7")
    components = preload(env, library)["components"]
    assert [(part["version"], part["loaded"]) for part in components] == [("2.18.5", True), ("2.30.7", False)]


@pytest.mark.parametrize(
    ("code", "cuda", "version"),
    [
        (12040, True, [12, 4]),
        (13000, True, [13, 0]),
        (9020, True, [9, 2]),
        (8907, False, [8, 9, 7]),
        (90300, False, [9, 3, 0]),
        (92600, False, [9, 26, 0]),
        (2708, False, [2, 7, 8]),
        (21805, False, [2, 18, 5]),
        (23007, False, [2, 30, 7]),
    ],
)
def test_versions_in_one_number_are_taken_apart(code, cuda, version):
    assert decoded_version(code, cuda) == version


@pytest.mark.parametrize(
    ("package", "part"),
    [
        ("nvidia-cuda-runtime-cu12", "cuda"),
        ("nvidia-cuda-runtime", "cuda"),
        ("cuda-cudart-12-4", "cuda"),
        ("libcudart11.0", "cuda"),
        ("cudatoolkit", "cuda"),
        ("libcudnn8", "cudnn"),
        ("libcudnn9-cuda-12", "cudnn"),
        ("nvidia-cudnn-cu13", "cudnn"),
        ("nvidia-cudnn-frontend", None),
        ("libcudnn8-dev", None),
        ("nvidia-cusparselt-cu12", "cusparselt"),
        ("libcusparse-12-4", "cusparse"),
        ("nvidia-cuda-nvrtc-cu11", "nvrtc"),
        ("libnvinfer10", "tensorrt"),
        ("tensorrt-cu12", "tensorrt"),
        ("libnccl2", "nccl"),
        ("runtime", None),
        ("nccl-tests", None),
    ],
)
def test_a_package_s_name_tells_its_part(package, part):
    assert component_of(package) == part


def test_a_package_s_version_is_cut_to_its_numbers():
    versions = ("8.9.7.29-1+cuda12.2", "1:11.8.89~11.8.0-5", "9.3.0.75", "12.4.1rc2")
    assert [leading_numbers(version) for version in versions] == ["8.9.7.29", "11.8.89", "9.3.0.75", "12.4.1"]
    assert leading_numbers("unknown") is None


# Thread pools

OPENBLAS = """
int {0}openblas_get_num_threads{1}(void) {{ return 6; }}
const char *{0}openblas_get_config{1}(void) {{ return "OpenBLAS 0.3.21 DYNAMIC_ARCH NO_AFFINITY MAX_THREADS=64"; }}
const char *{0}openblas_get_corename{1}(void) {{ return "SkylakeX"; }}
"""
MKL = """
#include <stdio.h>
int MKL_Get_Max_Threads(void) {{ {0} return 4; }}
void MKL_Get_Version_String(char *text, int size) {{ {0} snprintf(text, size, "Intel(R) oneAPI Math Kernel Library "
    "Version 2024.2-Product Build 20240605 for Intel(R) 64 architecture applications"); }}
"""
FULL = {"version": "0.3.21", "threads": 6, "architecture": "SkylakeX", "kind": "openblas"}


@pytest.mark.parametrize("affixes", [("", ""), ("", "64_"), ("scipy_", ""), ("scipy_", "64_")])
def test_openblas_is_asked_under_all_its_names(env, tmp_path, affixes):
    name = "lib{}openblas{}-r0-0cf96a72.so".format(*affixes)
    library = shared_library(tmp_path / "blas" / name, OPENBLAS.format(*affixes))
    assert preload(env, library)["thread_pools"] == [{**FULL, "library": name}]


def test_openmp_is_asked(env, tmp_path):
    gomp = subprocess.run(["gcc", "-print-file-name=libgomp.so.1"], capture_output=True, text=True, check=True).stdout
    env.variables["OMP_NUM_THREADS"] = "3"
    other = shared_library(tmp_path / "libomptarget.so", "int omp_get_max_threads(void) { return 9; }")
    facts = preload(env, Path(gomp.strip()), other)
    assert facts["thread_pools"] == [
        {"kind": "openmp", "library": Path(gomp.strip()).resolve().name, "threads": 3},
    ]


def test_mkl_is_not_woken_by_a_question(env, tmp_path):
    core = shared_library(tmp_path / "awake" / "libmkl_core.so.2", "int x;")
    awake = shared_library(tmp_path / "awake" / "libmkl_rt.so.2", MKL.format(""))
    full = {"kind": "mkl", "library": "libmkl_rt.so.2", "version": "2024.2", "threads": 4}
    assert preload(env, core, awake)["thread_pools"] == [full]
    asleep = shared_library(tmp_path / "asleep" / "libmkl_rt.so.2", "#include <stdlib.h>" + MKL.format("abort();"))
    assert preload(env, asleep)["thread_pools"] == [{"kind": "mkl", "library": "libmkl_rt.so.2"}]


def test_pytorch_s_own_mkl_is_found_and_a_name_alone_is_not(env, tmp_path):
    torch = shared_library(tmp_path / "torch" / "libtorch_cpu.so", MKL.format(""))
    empty = [shared_library(tmp_path / name, "") for name in ("libtorch_cpu.so", "libopenblas.so.0")]
    pools = preload(env, torch, *empty)["thread_pools"]
    assert pools == [{"kind": "mkl", "library": "libtorch_cpu.so", "version": "2024.2", "threads": 4}]


def test_a_capture_loads_nothing(env, tmp_path):
    library = shared_library(tmp_path / "cuda" / "libcudart.so.12", CONSTANT.format("cudaRuntimeGetVersion", 12040, 0))
    facts = native(tmp_path, str(library))
    # It lies there, but this process has not loaded it.
    assert facts["components"] == []
    assert str(library) not in Path("/proc/self/maps").read_text()


# The CPU

BLOCKS = (
    "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx2 amx_tile\n\nprocessor\t: 1\nmodel name\t: Other\n"
)
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n"


def test_the_first_cpu_stands_for_all(tmp_path):
    (tmp_path / "cpuinfo").write_text(BLOCKS)
    facts = cpu_facts(str(tmp_path / "cpuinfo"))
    assert (facts["model"], facts["flags"]) == ("Some CPU", ["amx_tile", "avx2", "fpu"])


def test_a_cpu_of_arm_s_has_numbers_for_a_name(tmp_path):
    (tmp_path / "cpuinfo").write_text(ARM)
    facts = cpu_facts(str(tmp_path / "cpuinfo"))
    assert (facts["model"], facts["flags"]) == ("CPU implementer 0x41 part 0xd40", ["asimd", "fp", "sve"])
    assert cpu_facts(str(tmp_path / "absent"))["model"] is None


def test_the_cpus_that_the_process_may_use_are_counted():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from envbuild.capture.host import cpu_facts; facts = cpu_facts(); print(facts['usable'], facts['count'])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", str(os.cpu_count())]


def test_this_machine_s_cpu_is_described():
    text = Path("/proc/cpuinfo").read_text()
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    assert flags
    assert cpu_facts()["flags"] == sorted(set(flags[1].split()))
