"""Projects besides the framework that open CUDA: what is said of them in images made here."""

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

from envbuild.errors import VerifyError
from envbuild.match.openers import wheel_of
from envbuild.match.rows import Opener
from envbuild.verify.cuda.files import PlannedImage
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.loader_images import PROFILES, SITE, TAG, Made, elf, names, nvidia

RUNTIME = {"cuda_runtime/lib/libcudart.so.12": elf("libcudart.so.12")}
CUBLAS = {"cublas/lib/libcublas.so.12": elf("libcublas.so.12", "libcublasLt.so.12", runpath="$ORIGIN"),
          "cublas/lib/libcublasLt.so.12": elf("libcublasLt.so.12")}  # fmt: skip
CUDA_12 = (
    nvidia("nvidia-cuda-runtime-cu12", "12.6.77", RUNTIME),
    nvidia("nvidia-cublas-cu12", "12.6.4.1", CUBLAS),
)
CUDA_13 = nvidia("nvidia-cuda-runtime", "13.0.88", {"cu13/lib/libcudart.so.13": elf("libcudart.so.13")})
FOLDERS = ":".join(f"{SITE}/nvidia/{it}/lib" for it in ("cuda_runtime", "cublas", "cu13"))
RUN = "/home/me/venv/lib/python3.11/site-packages"
SET = {"LD_LIBRARY_PATH": FOLDERS}


def wheel(name: str, files: Mapping[str, str | bytes], version: str = "1.0") -> FakeWheel:
    return make_wheel(name, version, files, tags=[TAG], purelib=False)


def runtime(cuda: str = "12", version: str = "1.0", name: str = "some-runtime-gpu", folder: str = "some") -> FakeWheel:
    """A project whose object needs CUDA and looks nowhere."""
    return wheel(name, {f"{folder}/provider.so": elf("provider.so", f"libcudart.so.{cuda}")}, version)


def row(**changes: object) -> Opener:
    values = {"distribution": "some-runtime-gpu", "first": "1.0", "last": "1.9", "cuda": "12", "source": "made here"}
    return Opener(**{**values, **changes})  # type: ignore[arg-type]


def image(*wheels: FakeWheel, rows: tuple[Opener, ...] = (), **changes: object) -> Made:
    made = Made(wheels=wheels, framework="none", cuda=None, variant="gpu", profiles=replace(PROFILES, openers=rows))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_an_opener_that_finds_its_libraries_is_named_and_nothing_else_is_said(tmp_path):
    proof = image(runtime(), *CUDA_12, variables=SET).prove(tmp_path)
    assert proof.findings == ()
    assert proof.summary == "openers of CUDA: some-runtime-gpu 1.0"
    proof.require()


def test_a_gpu_wheel_whose_libraries_nothing_brings_gets_the_wheels_that_do(tmp_path):
    proof = image(runtime(), CUDA_13, variables=SET).prove(tmp_path)
    [warning] = proof.warnings
    assert warning.library == "some-runtime-gpu 1.0"
    assert "some/provider.so needs libcudart.so.12; libcudart.so.12 is nowhere in the image" in warning.says
    assert "which has CUDA 13" in warning.says
    assert warning.todo == "install nvidia-cuda-runtime-cu12 beside some-runtime-gpu in the run"
    proof.require()


def test_a_library_in_a_folder_where_nothing_looks_is_put_on_ld_library_path(tmp_path):
    [warning] = image(runtime(), *CUDA_12).prove(tmp_path).warnings
    assert "libcudart.so.12 lies in nvidia/cuda_runtime/lib" in warning.says
    assert f"put {SITE}/nvidia/cuda_runtime/lib on LD_LIBRARY_PATH" in warning.todo


def test_of_another_cuda_than_the_image_has_the_releases_that_fit_are_named(tmp_path):
    """onnxruntime-gpu of CUDA 13 beside PyTorch of CUDA 12."""
    rows = (row(), row(first="2.0", last="2.4", cuda="13.0"))
    [warning] = image(runtime("13", "2.1"), *CUDA_12, rows=rows, variables=SET).prove(tmp_path).warnings
    assert "which has CUDA 12" in warning.says
    assert "take some-runtime-gpu 1.0 to 1.9, which is built for CUDA 12" in warning.todo
    assert "install nvidia-cuda-runtime beside" in warning.todo


def test_builds_of_one_project_under_other_names_are_releases_that_fit_too(tmp_path):
    rows = (row(distribution="some-cuda12x"), row(distribution="some-cuda13x", cuda="13"))
    [warning] = image(runtime("13", name="some-cuda13x"), *CUDA_12, rows=rows, variables=SET).prove(tmp_path).warnings
    assert "take some-cuda12x 1.0 to 1.9" in warning.todo


def test_two_majors_of_cuda_side_by_side_are_fine_where_both_are_found(tmp_path):
    both = image(runtime(), runtime("13", name="other-gpu", folder="other"), *CUDA_12, CUDA_13, variables=SET)
    proof = both.prove(tmp_path)
    assert proof.findings == ()
    assert proof.openers == ("other-gpu 1.0", "some-runtime-gpu 1.0")


def test_what_the_run_had_loaded_fails_the_build(tmp_path):
    made = image(runtime(), CUDA_13, loaded=["/lib/libc.so.6", f"{RUN}/some/provider.so (deleted)"])
    proof = made.prove(tmp_path)
    assert (names(proof, "broken"), proof.warnings) == (["some-runtime-gpu 1.0"], ())
    with pytest.raises(VerifyError, match="the run used what does not load in the image: some-runtime-gpu") as caught:
        proof.require()
    assert "nvidia-cuda-runtime-cu12" in caught.value.todo


def test_a_library_of_the_same_name_in_another_project_is_not_what_the_run_had_loaded(tmp_path):
    """As torchvision, xformers and detectron2 have `_C.so`."""
    other = wheel("other-gpu", {"other/provider.so": elf("provider.so", "libcudart.so.12")})
    proof = image(runtime("11.0"), other, *CUDA_12, variables=SET, loaded=[f"{RUN}/other/provider.so"]).prove(tmp_path)
    assert (names(proof, "broken"), names(proof, "warning")) == ([], ["some-runtime-gpu 1.0"])


def test_two_wheels_with_one_library_path_are_a_warning_that_says_whose_the_image_has(tmp_path):
    cudnn = {"cudnn/lib/libcudnn.so.9": elf("libcudnn.so.9")}
    other = {"cudnn/lib/libcudnn.so.9": elf("libcudnn.so.9", "libcublasLt.so.13"), "cudnn/include/cudnn.h": b"13"}
    wheels = (nvidia("nvidia-cudnn-cu12", "9.5.1.17", cudnn), nvidia("nvidia-cudnn-cu13", "9.28.1.4", other))
    [warning] = image(*wheels).prove(tmp_path).warnings
    assert warning.library == "nvidia-cudnn-cu12"
    assert "nvidia-cudnn-cu13 installs nvidia/cudnn/lib/libcudnn.so.9 too" in warning.says
    assert "--drop nvidia-cudnn-cu13" in warning.todo
    same = (wheels[0], nvidia("nvidia-cudnn-cu13", "9.5.1.17", cudnn))
    assert image(*same).prove(tmp_path).findings == ()


def test_a_build_for_the_cpu_over_that_for_the_gpu_is_a_warning(tmp_path):
    cpu = wheel("some-runtime", {"some/provider.so": elf("provider.so")})
    [warning] = image(runtime(), cpu, *CUDA_12, rows=(row(cpu="some-runtime"),), variables=SET).prove(tmp_path).warnings
    assert "some-runtime 1.0, the build for the CPU" in warning.says
    assert "--drop some-runtime" in warning.todo
    assert image(cpu, *CUDA_12, rows=(row(cpu="some-runtime"),)).prove(tmp_path).findings == ()


TORCH = {
    "torch/lib/libtorch_global_deps.so": elf("libtorch_global_deps.so", "libcudart.so.12", runpath="$ORIGIN/../../nvidia/cuda_runtime/lib"),
    "torch/lib/libtorch_cuda.so": elf("libtorch_cuda.so", "libcudart.so.12", rpath="$ORIGIN"),
    "torch/_C.cpython-311-x86_64-linux-gnu.so": elf("_C", "libtorch_cuda.so", rpath="$ORIGIN/lib"),
}  # fmt: skip


def test_what_needs_torch_is_loaded_after_it(tmp_path):
    files = {"vision/_C.so": elf("_C.so", "libtorch_cuda.so", "libcudart.so.12")}
    proof = image(wheel("torch", TORCH), wheel("vision", files), *CUDA_12).prove(tmp_path)
    assert proof.openers == ("torch 1.0", "vision 1.0")
    assert proof.findings == ()


def test_a_profile_says_what_is_imported_or_opened_before(tmp_path):
    before = row(preloads=("nvidia/cuda_runtime/lib/*.so.*",))
    assert image(runtime(), *CUDA_12, rows=(before,)).prove(tmp_path).findings == ()
    after = row(after="torch")
    assert image(runtime(), wheel("torch", TORCH), *CUDA_12, rows=(after,)).prove(tmp_path).findings == ()


def test_what_rapids_python_opens_by_path_is_loaded_before(tmp_path):
    """`load.py` of a package opens what lies in its lib64, after its dependencies."""
    inner: dict[str, str | bytes] = {
        "inner/load.py": "",
        "inner/lib64/libinner.so": elf("libinner.so", "libcudart.so.12"),
    }
    outer: dict[str, str | bytes] = {
        "outer/load.py": "",
        "outer/lib64/libouter.so": elf("libouter.so", "libinner.so", "libcudart.so.12"),
    }
    user: dict[str, str | bytes] = {"user/_C.so": elf("_C.so", "libouter.so", "libcudart.so.12")}
    wheels = [wheel(name, files) for name, files in (("inner", inner), ("outer", outer), ("user", user))]
    assert image(*wheels, *CUDA_12, variables=SET).prove(tmp_path).findings == ()
    wheels[1] = wheel("outer", {name: data for name, data in outer.items() if "load.py" not in name})
    assert "libouter.so lies in outer/lib64" in image(*wheels, *CUDA_12, variables=SET).prove(tmp_path).notes[0].says


def test_a_long_chain_that_rapids_python_opens_by_path_is_followed_to_its_end(tmp_path):
    link, chain = elf("libchain0001.so", "libchain0000.so"), dict[str, str | bytes]({"chain/load.py": ""})
    for it in range(1, 400):
        names_here = {b"chain0001": b"chain%04d" % it, b"chain0000": b"chain%04d" % (it - 1)}
        data = link.replace(b"chain0000", b"chain----").replace(b"chain0001", names_here[b"chain0001"])
        chain[f"chain/lib64/libchain{it:04}.so"] = data.replace(b"chain----", names_here[b"chain0000"])
    chain["chain/lib64/libchain0000.so"] = elf("libchain0000.so", "libcudart.so.12")
    user = wheel("user", {"user/_C.so": elf("_C.so", "libchain0399.so", "libcudart.so.12")})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(350)
    try:
        proof = image(wheel("chain", chain), user, *CUDA_12, variables=SET).prove(tmp_path)
    finally:
        sys.setrecursionlimit(limit)
    assert proof.findings == ()


def test_what_is_opened_by_name_alone_is_judged_by_its_profile(tmp_path):
    """As XGBoost opens libnccl.so.2."""
    boost = wheel(
        "some-runtime-gpu", {"some/lib/libboost.so": elf("libboost.so", runpath="$ORIGIN/../../nvidia/cublas/lib")}
    )
    rows = (row(opens=("libcublas.so.12",)),)
    assert image(boost, *CUDA_12, rows=rows).prove(tmp_path).findings == ()
    some = image(boost, rows=(row(opens=("libcublas.so.12",), optional=("libnccl.so.2",)),)).prove(tmp_path)
    [warning] = some.warnings
    assert "libnccl" not in warning.says
    lacking = image(boost, *CUDA_12, rows=(row(optional=("libnccl.so.2",)),)).prove(tmp_path)
    assert "libnccl.so.2 is nowhere in the image; a part of the project" in lacking.notes[0].says
    [warning] = image(boost, rows=rows).prove(tmp_path).warnings
    assert "some/lib/libboost.so needs libcublas.so.12" in warning.says
    assert image(boost).prove(tmp_path).summary == "no framework is a CPU build and opens no CUDA library"


def test_of_objects_for_several_versions_of_cuda_one_has_to_load(tmp_path):
    """As bitsandbytes and others bring them."""
    files = {
        f"bits/libbits_cuda{it}0.so": elf(f"libbits_cuda{it}0.so", f"libcudart.so.{it}") for it in ("11", "12", "13")
    }
    assert image(wheel("bits", files), *CUDA_12, variables=SET).prove(tmp_path).findings == ()
    assert len(image(wheel("bits", files), nvidia("nvidia-x", "1", {"x": b""})).prove(tmp_path).warnings) == 1


def test_an_object_that_another_one_leads_the_loader_for_need_not_load_alone(tmp_path):
    inner = elf("libinner.so", "libcudart.so.12")
    runpath = "$ORIGIN:$ORIGIN/../nvidia/cuda_runtime/lib"
    outer = elf("outer.so", "libinner.so", "libcudart.so.12", rpath=runpath)
    files = {"some/libinner.so": inner, "some/outer.so": outer}
    assert image(wheel("some", files), *CUDA_12).prove(tmp_path).findings == ()


def test_objects_that_need_each_other_are_each_tried_once(tmp_path, monkeypatch):
    processes, process = list[PlannedImage](), PlannedImage.process

    def counted(image: PlannedImage) -> object:
        processes.append(image)
        return process(image)

    monkeypatch.setattr(PlannedImage, "process", counted)
    files = {f"some/{it:02}.so": elf("each.so", "each.so", "libcudart.so.12") for it in range(30)}
    assert len(image(wheel("some", files), CUDA_13).prove(tmp_path).warnings) == 1
    assert len(processes) < 100


def test_an_object_for_another_machine_is_not_tried(tmp_path):
    data = elf("provider.so", "libcudart.so.12")
    foreign = data[:18] + (8).to_bytes(2, "little") + data[20:]  # EM_MIPS
    proof = image(wheel("some", {"some/own.so": data, "some/foreign.so": foreign}), *CUDA_12, variables=SET)
    assert proof.prove(tmp_path).findings == ()


def test_what_costs_a_feature_only_is_a_note(tmp_path):
    """CuPy without cuTENSOR, and a project that no profile knows of which another object loads."""
    files = {"some/tensor.so": elf("tensor.so", "libcutensor.so.2"), "some/blas.so": elf("blas.so", "libcublas.so.12")}
    known = (row(opens=("libcublas.so.12",), optional=("libcutensor.so.2",)),)
    for rows in ((), known):
        proof = image(wheel("some-runtime-gpu", files), *CUDA_12, rows=rows, variables=SET).prove(tmp_path)
        assert (proof.warnings, len(proof.notes)) == ((), 1)
    lost = image(wheel("some-runtime-gpu", files), CUDA_13, rows=known, variables=SET).prove(tmp_path)
    assert "libcublas.so.12" in lost.warnings[0].says


def test_the_driver_is_no_opener_and_the_cpu_variant_is_not_read(tmp_path):
    driver = wheel("drive", {"drive/_C.so": elf("_C.so", "libcuda.so.1", "libnvidia-ml.so.1")})
    assert image(driver, *CUDA_12).prove(tmp_path).openers == ()
    made = image(runtime(), variant="cpu")
    assert made.prove(tmp_path / "cpu").findings == ()
    assert not (tmp_path / "cpu/facts").exists()


@pytest.mark.parametrize(
    ("library", "major", "distribution"),
    [
        ("libcudart.so.12", "12", "nvidia-cuda-runtime-cu12"),
        ("libcublasLt.so.13", "13", "nvidia-cublas"),
        ("libcudnn_graph.so.9", "13", "nvidia-cudnn-cu13"),
        ("libnvJitLink.so.12", "12", "nvidia-nvjitlink-cu12"),
        ("libcutensor.so.2", "12", "cutensor-cu12"),
        ("libnvinfer.so.10", "13", "tensorrt-cu13"),
        ("libnccl.so.2", "11", "nvidia-nccl-cu11"),
    ],
)  # fmt: skip
def test_the_wheel_that_brings_a_library(library, major, distribution):
    assert wheel_of(library, major) == distribution
