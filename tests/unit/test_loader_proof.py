"""What is proved of an image: libraries made here, in wheels and bases made here, for releases that there are."""

import io
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.errors import VerifyError, WheelError
from envbuild.lock.model import Lock, Target
from envbuild.recipe import Base, make_recipe
from envbuild.verify.cuda.files import MemberFile, framework_wheel
from envbuild.verify.cuda.loader import prove_loading
from envbuild.verify.cuda.openings import openings
from envbuild.verify.cuda.process import read_elf
from envbuild.wheel.archive import WheelArchive
from tests.fakes.trees import image_of_trees
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.loader_images import BASE_FILES, PROFILES, SITE, TAG, Made, elf, names, nvidia
from tests.unit.loading import MACHINE

FOUND_BY = ("cuda_runtime", "cublas", "cudnn", "cufft", "cusolver", "cusparse")


def tensorflow(*folders: str, version: str = "2.15.1") -> FakeWheel:
    """TensorFlow, whose framework library looks into these folders of NVIDIA's."""
    runpath = ":".join(f"$ORIGIN/../nvidia/{folder}/lib" for folder in folders)
    framework = elf("libtensorflow_framework.so.2", "libc.so.6", runpath=runpath)
    return make_wheel("tensorflow", version, {"tensorflow/libtensorflow_framework.so.2": framework}, tags=[TAG])


def cuda_wheels() -> dict[str, FakeWheel]:
    """NVIDIA's wheels, with the dependencies that the real ones have."""
    beside = "$ORIGIN:$ORIGIN/../../{}/lib"
    cudnn = {
        "cudnn/lib/libcudnn.so.8": elf("libcudnn.so.8", "libc.so.6", runpath="$ORIGIN"),
        "cudnn/lib/libcudnn_ops_infer.so.8": elf("libcudnn_ops_infer.so.8", runpath="$ORIGIN"),
        "cudnn/lib/libcudnn_cnn_infer.so.8": elf(
            "libcudnn_cnn_infer.so.8", "libcudnn_ops_infer.so.8", "libz.so.1", runpath="$ORIGIN"
        ),
    }
    cublas = {
        "cublas/lib/libcublas.so.12": elf("libcublas.so.12", "libcublasLt.so.12", runpath="$ORIGIN"),
        "cublas/lib/libcublasLt.so.12": elf("libcublasLt.so.12"),
    }
    cusparse = elf("libcusparse.so.12", "libnvJitLink.so.12", runpath=beside.format("nvjitlink"))
    nvcc = {"cuda_nvcc/bin/ptxas": b"ptxas", "cuda_nvcc/nvvm/libdevice/libdevice.10.bc": b"BC"}
    found = (
        nvidia("nvidia-cuda-runtime-cu12", "12.2.140", {"cuda_runtime/lib/libcudart.so.12": elf("libcudart.so.12")}),
        nvidia("nvidia-cublas-cu12", "12.2.5.6", cublas),
        nvidia("nvidia-cudnn-cu12", "8.9.4.25", cudnn),
        nvidia("nvidia-cufft-cu12", "11.0.8.103", {"cufft/lib/libcufft.so.11": elf("libcufft.so.11")}),
        nvidia("nvidia-cusolver-cu12", "11.5.2.141", {"cusolver/lib/libcusolver.so.11": elf("libcusolver.so.11")}),
        nvidia("nvidia-cusparse-cu12", "12.1.2.141", {"cusparse/lib/libcusparse.so.12": cusparse}),
        nvidia("nvidia-nvjitlink-cu12", "12.2.140", {"nvjitlink/lib/libnvJitLink.so.12": elf("libnvJitLink.so.12")}),
        nvidia("nvidia-cuda-nvcc-cu12", "12.2.140", nvcc),
    )
    return {wheel.filename.partition("-")[0].removeprefix("nvidia_"): wheel for wheel in found}


def whole() -> Made:
    return Made(wheels=[tensorflow(*FOUND_BY), *cuda_wheels().values()])


def without(name: str) -> Made:
    found = cuda_wheels()
    del found[name]
    return Made(wheels=[tensorflow(*FOUND_BY), *found.values()])


def test_all_libraries_are_found_each_with_its_path_version_and_reason(tmp_path):
    proof = whole().prove(tmp_path)
    assert proof.faults == ()
    found = {it.library: it for it in proof.findings if it.kind == "found"}
    assert sorted(found) == [
        "libcublas.so.12", "libcublasLt.so.12", "libcudart.so.12", "libcudnn.so.8", "libcudnn_cnn_infer.so.8",
        "libcudnn_ops_infer.so.8", "libcufft.so.11", "libcusolver.so.11", "libcusparse.so.12", "libnvJitLink.so.12",
    ]  # fmt: skip
    cudnn, lt = found["libcudnn.so.8"], found["libcublasLt.so.12"]
    assert (cudnn.path, cudnn.version) == (f"{SITE}/nvidia/cudnn/lib/libcudnn.so.8", "8.9.4.25")
    assert cudnn.via == "RUNPATH of tensorflow/libtensorflow_framework.so.2"
    assert lt.via == "RUNPATH of nvidia/cublas/lib/libcublas.so.12"
    assert proof.summary == "all 10 CUDA libraries that tensorflow 2.15.1 opens or needs are found"
    proof.require()


def test_a_folder_that_the_framework_does_not_name_is_a_fault_and_ld_library_path_the_remedy(tmp_path):
    made = Made(wheels=[tensorflow(*(it for it in FOUND_BY if it != "cusolver")), *cuda_wheels().values()])
    proof = made.prove(tmp_path)
    assert names(proof, "missing") == ["libcusolver.so.11"]
    assert proof.summary == "tensorflow 2.15.1 would not run on a GPU: libcusolver.so.11"
    with pytest.raises(VerifyError, match=r"libcusolver\.so\.11: .*it lies in nvidia/cusolver/lib") as caught:
        proof.require()
    assert f"put {SITE}/nvidia/cusolver/lib on LD_LIBRARY_PATH" in caught.value.todo
    remedied = replace(made, variables={"LD_LIBRARY_PATH": f"{SITE}/nvidia/cusolver/lib"}).prove(tmp_path)
    assert remedied.faults == ()
    assert {it.library: it.via for it in remedied.findings}["libcusolver.so.11"] == "LD_LIBRARY_PATH"


def test_ld_library_path_of_the_base_counts_too(tmp_path):
    made = Made(wheels=[tensorflow("cuda_runtime"), *cuda_wheels().values()])
    folders = ":".join(f"{SITE}/nvidia/{it}/lib" for it in FOUND_BY)
    assert len(made.prove(tmp_path).faults) == 6
    assert replace(made, env=["PATH=/usr/bin", f"LD_LIBRARY_PATH={folders}"]).prove(tmp_path).faults == ()


@pytest.mark.parametrize(
    ("wheel", "lost", "todo"),
    [
        ("cufft_cu12", ["libcufft.so.11"], "install nvidia-cufft-cu12==11.0.8.103"),
        ("cuda_runtime_cu12", ["libcudart.so.12"], "install nvidia-cuda-runtime-cu12==12.2.140"),
        ("cublas_cu12", ["libcublas.so.12", "libcublasLt.so.12"], "install nvidia-cublas-cu12==12.2.5.6"),
        ("nvjitlink_cu12", ["libnvJitLink.so.12"], "install nvidia-nvjitlink-cu12==12.2.140"),
    ],
)
def test_a_wheel_that_is_not_there_is_named(wheel, lost, todo, tmp_path):
    proof = without(wheel).prove(tmp_path)
    assert names(proof, "missing") == lost
    with pytest.raises(VerifyError, match="nowhere in the image") as caught:
        proof.require()
    assert todo in caught.value.todo


def test_what_cudnn_needs_of_the_base_is_looked_for_there(tmp_path):
    """`Could not load library libcudnn_cnn_infer.so.8. Error: libz.so.1` at the first convolution."""
    files = {path: what for path, what in BASE_FILES.items() if "libz" not in path}
    proof = replace(whole(), files=files).prove(tmp_path)
    assert names(proof, "missing") == ["libz.so.1"]
    assert "nvidia/cudnn/lib/libcudnn_cnn_infer.so.8 needs it" in str(proof.faults[0])
    assert proof.faults[0].todo == "give a base that has libz.so.1 by --base"


@pytest.mark.parametrize(
    ("version", "kinds"),
    [("8.9.0.1", []), ("8.10.0.5", []), ("8.8.1.3", ["unfit"]), ("7.9.9", ["unfit"])],
)
def test_cudnn_is_of_the_same_major_version_and_no_older_minor_one(version, kinds, tmp_path):
    found = cuda_wheels()
    cudnn = {"cudnn/lib/libcudnn.so.8": elf("libcudnn.so.8")}
    made = Made(
        wheels=[tensorflow(*FOUND_BY), *(found | {"cudnn_cu12": nvidia("nvidia-cudnn-cu12", version, cudnn)}).values()]
    )
    proof = made.prove(tmp_path)
    assert [it.kind for it in proof.faults] == kinds
    assert all("takes cuDNN 8.9 or a later" in it.says and it.says.endswith(version) for it in proof.faults)


def in_base(cudnn: str = "libcudnn.so.8.9.7") -> dict[str, object]:
    """A base with CUDA, as NVIDIA's: its folder is known by a link and by the variables."""
    folder = "usr/local/cuda-12.2/targets/lib"
    plain = (
        "libcudart.so.12",
        "libcufft.so.11",
        "libcusolver.so.11",
        "libcusparse.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
    )
    files: dict[str, object] = {f"{folder}/{it}.2.140": elf(it) for it in plain}
    files |= {f"{folder}/{it}": f"-> {it}.2.140" for it in plain}
    cudnn_folder = f"usr/lib/{MACHINE}-linux-gnu"
    files |= {f"{cudnn_folder}/{cudnn}": elf("libcudnn.so.8")}
    files |= {f"{cudnn_folder}/libcudnn.so.8": f"-> {cudnn}"} if cudnn != "libcudnn.so.8" else {}
    return {**BASE_FILES, **files, "usr/local/cuda": "-> cuda-12.2"}


BASE_ENV = ("PATH=/usr/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/cuda/targets/lib")


def test_cuda_of_the_base_is_found_with_the_versions_of_its_file_names(tmp_path):
    proof = Made(wheels=[tensorflow()], files=in_base(), env=BASE_ENV).prove(tmp_path)
    assert proof.faults == ()
    found = {it.library: it for it in proof.findings if it.kind == "found"}
    assert (found["libcudnn.so.8"].version, found["libcudnn.so.8"].via) == ("8.9.7", "the loader's default folders")
    assert found["libcudart.so.12"].path == "/usr/local/cuda-12.2/targets/lib/libcudart.so.12.2.140"
    assert found["libcudart.so.12"].version == "12.2.140"


@pytest.mark.parametrize(
    ("version", "cuda", "cudnn", "suffixes"),
    [
        ("1.15.0", "10.0", "7.6.5", {"cusolver": "10.0"}),
        ("2.3.4", "10.1", "7.6.5", {"cudart": "10.1", "cusolver": "10"}),
        ("2.4.4", "11.0", "8.0.5", {"cudart": "11.0", "cublasLt": "11", "cusolver": "10"}),
    ],
)
def test_releases_before_2_5_open_the_names_of_their_own_cuda(version, cuda, cudnn, suffixes, tmp_path):
    row = next(it for it in PROFILES.frameworks[0].wheels if (it.distribution, it.version) == ("tensorflow", version))
    folder, major = f"usr/local/cuda-{cuda}/targets/{MACHINE}-linux/lib", cudnn[0]
    plain = sorted(set(row.libraries) - {f"libcudnn.so.{major}"})
    assert {f"lib{name}.so.{suffix}" for name, suffix in suffixes.items()} <= set(plain)
    files = {**BASE_FILES, **{f"{folder}/{it}": elf(it) for it in plain}}
    files[f"{folder}/libcudnn.so.{major}"] = f"-> libcudnn.so.{cudnn}"
    files[f"{folder}/libcudnn.so.{cudnn}"] = elf(f"libcudnn.so.{major}")
    code = f"tensorflow{'_core' if version < '2' else ''}/libtensorflow_framework.so.{version[0]}"
    wheel = make_wheel("tensorflow", version, {code: elf("libtensorflow_framework.so")}, tags=[TAG])
    made = Made(wheels=[wheel], files=files, env=(f"LD_LIBRARY_PATH=/{folder}",), version=version, cuda=cuda)
    proof = made.prove(tmp_path)
    assert proof.faults == ()
    assert {it.library for it in proof.findings if it.kind == "found"} == set(row.libraries)
    lost = {name: what for name, what in files.items() if "libcusolver" not in name}
    assert names(replace(made, files=lost).prove(tmp_path), "missing") == [f"libcusolver.so.{suffixes['cusolver']}"]


def test_cuda_of_the_base_is_found_by_its_ld_so_cache(tmp_path):
    """NVIDIA's images name their folder in /etc/ld.so.conf.d."""
    root, files = tmp_path / "root", in_base()
    for path, what in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, bytes):
            (root / path).write_bytes(what)
        else:
            (root / path).symlink_to(str(what).removeprefix("-> "))
    (root / "etc").mkdir()
    (root / "etc/ld.so.conf").write_text("/usr/local/cuda/targets/lib\n")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True, capture_output=True)
    made = Made(wheels=[tensorflow()], files=files)
    assert "libcudart.so.12" in names(made.prove(tmp_path), "missing")
    files["etc/ld.so.cache"] = (root / "etc/ld.so.cache").read_bytes()
    proof = replace(made, files=files).prove(tmp_path)
    assert proof.faults == ()
    assert {it.library: it.via for it in proof.findings}["libcudart.so.12"] == "/etc/ld.so.cache"


@pytest.mark.parametrize(("name", "kind"), [("libcudnn.so.8.8.1", "unfit"), ("libcudnn.so.8", "note")])
def test_a_cudnn_of_the_base_that_is_too_old_or_does_not_say(name, kind, tmp_path):
    proof = Made(wheels=[tensorflow()], files=in_base(name), env=BASE_ENV).prove(tmp_path)
    assert kind in {it.kind for it in proof.findings if it.library == "libcudnn.so.8"}
    assert bool(proof.faults) == (kind == "unfit")


def test_cuda_from_wheels_and_from_the_base_at_once_is_a_fault(tmp_path):
    proof = replace(whole(), files=in_base(), env=BASE_ENV).prove(tmp_path)
    assert set(names(proof, "twice")) >= {"libcudart.so.12", "libcudnn.so.8", "libcublas.so.12"}
    with pytest.raises(VerifyError, match=r"from a wheel .* and from the base"):
        proof.require()


def test_what_the_driver_brings_is_not_expected_in_an_image(tmp_path):
    found = cuda_wheels()
    cufft = elf("libcufft.so.11", "libcuda.so.1", "libnvidia-ml.so.1")
    found["cufft_cu12"] = nvidia("nvidia-cufft-cu12", "11.0.8.103", {"cufft/lib/libcufft.so.11": cufft})
    proof = Made(wheels=[tensorflow(*FOUND_BY), *found.values()]).prove(tmp_path)
    assert proof.faults == ()
    assert "libcuda.so.1" not in names(proof, "found")


def test_what_is_optional_is_a_note(tmp_path):
    assert names(whole().prove(tmp_path), "note")[:2] == ["libcupti.so.12", "libnvrtc.so.12"]
    notes = {it.library: str(it) for it in whole().prove(tmp_path).notes}
    assert "the profiler sees no GPU" in notes["libcupti.so.12"]
    assert notes["libdevice.10.bc"].endswith("(/usr/local/cuda); what XLA compiles (jit_compile) fails")


NVCC = f"{SITE}/nvidia/cuda_nvcc"


@pytest.mark.parametrize(
    ("flag", "nvcc", "there", "lost"),
    [
        (NVCC, True, "", False),
        (NVCC, False, "", True),
        ("/opt/cuda", False, "opt/cuda", False),
        ("", False, "opt/cuda", True),
        ("", False, "usr/local/cuda", False),
        ("", True, "", True),  # 2.15.1 finds its own folder now and then only
    ],
)
def test_xla_finds_its_compiler_where_a_flag_sends_it_or_in_the_base(flag, nvcc, there, lost, tmp_path):
    parts = ("bin/ptxas", "nvvm/libdevice/libdevice.10.bc")
    files = {**BASE_FILES, **({f"{there}/{it}": b"" for it in parts} if there else {})}
    variables = {"XLA_FLAGS": f"--xla_dump_to=/tmp --xla_gpu_cuda_data_dir={flag}"} if flag else {}
    made = whole() if nvcc else without("cuda_nvcc_cu12")
    proof = replace(made, files=files, variables=variables).prove(tmp_path)
    assert {"ptxas", "libdevice.10.bc"} & set(names(proof, "note")) == ({"ptxas", "libdevice.10.bc"} if lost else set())


def test_newer_releases_find_the_compilers_wheel_by_themselves(tmp_path):
    wheels = [tensorflow(*FOUND_BY, version="2.17.1"), *cuda_wheels().values()]
    proof = Made(wheels=wheels, version="2.17.1", cuda="12.3").prove(tmp_path)
    assert "ptxas" not in names(proof, "note")


def test_a_framework_without_its_library_is_a_fault(tmp_path):
    wheel = make_wheel("tensorflow", "2.15.1", tags=[TAG])
    assert names(Made(wheels=[wheel]).prove(tmp_path), "missing")[0].startswith("tensorflow")


def test_a_base_without_its_own_c_library_is_a_fault(tmp_path):
    files = {path: what for path, what in BASE_FILES.items() if "libc." not in path}
    assert "libc.so.6" in names(replace(whole(), files=files).prove(tmp_path), "missing")


def test_a_cpu_build_opens_nothing(tmp_path):
    proof = Made(wheels=[], framework="tensorflow-cpu", cuda=None)
    stack = replace(proof.stack(), framework="tensorflow")
    target = Target(python="3.11.2", machine=MACHINE, glibc="2.36")
    base = Base(name="made here", image=image_of_trees(BASE_FILES), target=target, python_path="/usr/bin/python3.11")
    recipe = make_recipe(stack, Lock(target=target, wheels=()), base)
    found = prove_loading(stack, recipe, base, {}, PROFILES, tmp_path)
    assert (found.findings, found.summary) == ((), "tensorflow-cpu 2.15.1 is a CPU build and opens no CUDA library")
    found.require()


def row_of(**changes: str | None) -> tuple[str, str | None, str | None]:
    stack = replace(Made(wheels=[]).stack(), **changes)  # type: ignore[arg-type]
    row = framework_wheel(stack, PROFILES)
    return row.version, row.cuda, row.cudnn


def test_the_row_of_a_stack_is_that_of_its_version_and_cuda():
    assert row_of() == ("2.15.1", "12.2", "8")
    assert row_of(variant="cpu", cuda=None) == ("2.15.1", None, "8")
    jax = {"framework": "jax", "distribution": "jax", "version": "0.12.0.1"}
    assert row_of(**jax, cuda="13.0")[1:] == ("13", "9.12.0.46")
    assert row_of(**jax, cuda="12")[1:] == ("12", "9.10.2.21")
    torch = {"framework": "torch", "distribution": "torch"}
    assert row_of(**torch, version="2.1.0+cu118", cuda="11.8", cudnn="8.7.0") == ("2.1.0+cu118", "11.8", "8.7.0")
    with pytest.raises(VerifyError, match=r"tensorflow 2\.99"):
        row_of(version="2.99")


def test_every_row_of_the_profiles_is_found_again_and_says_what_it_opens():
    for profile in PROFILES.frameworks:
        for row in (wheel for release in profile.releases for wheel in release.wheels if wheel.cuda):
            stack = replace(
                Made(wheels=[]).stack(), framework=profile.name, distribution=row.distribution, version=row.version,
                machine=row.machine, cuda=row.cuda,
            )  # fmt: skip
            assert framework_wheel(stack, PROFILES) == row
            opened = openings(profile.name, row, SITE, {})
            assert set(row.libraries) <= {it.name for it in opened}, row.pin


TORCH = {
    "torch/_C.cpython-311-x86_64-linux-gnu.so": elf("_C", "libtorch_python.so", rpath="$ORIGIN/lib"),
    "torch/lib/libtorch_python.so": elf("libtorch_python.so", "libtorch_cuda.so", rpath="$ORIGIN"),
    "torch/lib/libtorch_cuda.so": elf("libtorch_cuda.so", "libcudart.so.12", "libcudnn.so.9", rpath="$ORIGIN"),
    "torch/lib/libtorch_global_deps.so": elf("libtorch_global_deps.so", "libcudart.so.12"),
    "torch/lib/libcaffe2_nvrtc.so": elf("libcaffe2_nvrtc.so", "libnvrtc.so.12", "libcuda.so.1"),
}
TORCH_CUDA = {
    "cuda_runtime/lib/libcudart.so.12": elf("libcudart.so.12"),
    "cuda_nvrtc/lib/libnvrtc.so.12": elf("libnvrtc.so.12"),
    "cudnn/lib/libcudnn.so.9": elf("libcudnn.so.9", runpath="$ORIGIN"),
}


@pytest.mark.parametrize("gone", [None, *TORCH_CUDA])
def test_torch_opens_nvidias_wheels_by_path_where_its_own_paths_do_not_lead_there(gone, tmp_path):
    cuda = {path: data for path, data in TORCH_CUDA.items() if path != gone}
    wheels = [make_wheel("torch", "2.6.0", TORCH, tags=[TAG]), nvidia("nvidia-all-cu12", "9.1.0.70", cuda)]
    proof = Made(wheels=wheels, framework="torch", version="2.6.0", cuda="12.4").prove(tmp_path)
    assert names(proof, "missing") == ([gone.rpartition("/")[2]] if gone else [])


PLUGIN = """
def _load_nvidia_libraries():
  _load("cuda_runtime", ["libcudart.so.12"])
  _load("cublas", ["libcublas.so.12", "libcublasLt.so.12"])
  _load("cudnn", ["libcudnn.so.9"])
  _load("cufft", ["libcufft.so.11"])
  _load("cusolver", ["libcusolver.so.11"])
  _load("cu13", ["libcusolver.so.12"])
"""


def test_jax_finds_what_its_own_python_has_opened_before(tmp_path):
    plugin = elf(
        "xla_cuda_plugin.so", "libc.so.6", rpath="$ORIGIN/../../nvidia/cusparse/lib:$ORIGIN/../../nvidia/nvjitlink/lib"
    )
    files: dict[str, str | bytes] = {
        "jax_plugins/xla_cuda12/__init__.py": PLUGIN,
        "jax_plugins/xla_cuda12/xla_cuda_plugin.so": plugin,
    }
    cudnn = {"cudnn/lib/libcudnn.so.9": elf("libcudnn.so.9", runpath="$ORIGIN")}
    found = cuda_wheels() | {"cudnn_cu12": nvidia("nvidia-cudnn-cu12", "9.10.2.21", cudnn)}
    made = Made(
        wheels=[make_wheel("jax-cuda12-pjrt", "0.12.0.1", files, tags=[TAG]), *found.values()],
        framework="jax", version="0.12.0.1", cuda="12",
    )  # fmt: skip
    proof = made.prove(tmp_path)
    assert proof.faults == ()
    assert {it.library: it.via for it in proof.findings}["libcusolver.so.11"] == "its path"
    assert {"libnccl.so.2", "libnvshmem_host.so.3"} <= set(names(proof, "note"))
    silent = make_wheel("jax-cuda12-pjrt", "0.12.0.1", files | {"jax_plugins/xla_cuda12/__init__.py": ""}, tags=[TAG])
    lost = names(replace(made, wheels=[silent, *found.values()]).prove(tmp_path), "missing")
    assert "libcudnn.so.9" in lost
    assert "libcusparse.so.12" not in lost


def test_what_was_read_is_remembered_by_content_and_damaged_memory_is_no_matter(tmp_path):
    first = whole().prove(tmp_path)
    kept = sorted((tmp_path / "facts").iterdir())
    assert len(kept) > 6
    assert whole().prove(tmp_path) == first
    for path, text in zip(kept, ("", "[]", '{"x": 1}', "{", '{"libraries": 3}') * len(kept), strict=False):
        path.write_text(text)
    assert whole().prove(tmp_path) == first


@pytest.mark.parametrize(("owner", "version"), [("", "8.9.4.25"), ("nvidia-cudnn-zz", "8.99.1")])
def test_of_two_wheels_with_the_same_library_that_of_the_image_counts(owner, version, tmp_path):
    """That which the run had, else that which pip installs last."""
    path = "nvidia/cudnn/lib/libcudnn.so.8"
    newer = nvidia("nvidia-cudnn-zz", "8.99.1", {"cudnn/lib/libcudnn.so.8": elf("libcudnn.so.8")})
    owners = ((path, owner),) if owner else ()
    made = whole()
    proof = replace(made, wheels=[*made.wheels, newer], owners=owners).prove(tmp_path)
    assert {it.library: it.version for it in proof.findings}["libcudnn.so.8"] == version
    [warning] = proof.warnings
    assert f"installs {path} too" in warning.says


@settings(max_examples=20, deadline=None)
@given(reads=st.lists(st.tuples(st.integers(0, 3_100_000), st.integers(0, 70_000)), max_size=8), deflated=st.booleans())
def test_a_member_of_a_wheel_can_be_read_anywhere(reads, deflated, big_member):
    with WheelArchive(big_member[deflated], "x-1-py3-none-any.whl") as archive:
        [member] = [it for it in archive.members if it.name == "big.bin"]
        reader = MemberFile(archive, member)
        for offset, size in reads:
            reader.seek(offset)
            assert reader.read(size) == BIG[offset : offset + size]


BIG = bytes(range(256)) * 6000 + b"middle" * 250_000


@pytest.fixture(scope="module")
def big_member(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("big")
    for name, method in (("stored", 0), ("deflated", 8)):
        (folder / name).write_bytes(make_wheel("x", "1", {"big.bin": BIG}, method=method).data)
    return folder / "stored", folder / "deflated"


def test_a_damaged_member_is_refused(tmp_path):
    data = bytearray(make_wheel("x", "1", {"lib.so": elf("lib.so") + BIG}).data)
    middle = data.index(b"lib.so") + 3000
    data[middle : middle + 400] = b"\xff" * 400
    (tmp_path / "x.whl").write_bytes(data)
    with WheelArchive(tmp_path / "x.whl", "x-1-py3-none-any.whl") as archive:
        [member] = [it for it in archive.members if it.name == "lib.so"]
        reader = MemberFile(archive, member)
        reader.seek(-10, io.SEEK_END)
        with pytest.raises(WheelError, match=r"lib\.so"):
            reader.read(10)
        assert read_elf(io.BytesIO(b"")) is None
