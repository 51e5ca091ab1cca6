"""Projects that open CUDA beside a framework: their builds for the CPU, their driver, and their way to CUDA."""

from dataclasses import replace

import pytest
from packaging.version import Version

from envbuild.files import data_folder
from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.manifest.model import Source, TrainingManifest
from envbuild.match.match import match
from envbuild.match.profiles import load_profiles
from envbuild.match.stack import Decision, Stack
from tests.unit.test_match_frameworks import changed, decided, ran

PROFILES = load_profiles(data_folder("profiles"))
T4 = (Gpu(name="Tesla T4"),)
CUDA_12 = (
    ("nvidia-cublas-cu12", "12.4.5.8"), ("nvidia-cuda-runtime-cu12", "12.4.127"), ("nvidia-cudnn-cu12", "9.1.0.70"),
    ("nvidia-cufft-cu12", "11.2.1.3"), ("nvidia-curand-cu12", "10.3.5.147"),
)  # fmt: skip
SITE = "/opt/env/lib/python3.11/site-packages/nvidia"


def no_framework(
    *pins: tuple[str, str], gpus: tuple[Gpu, ...] | None = None, complete: bool = True
) -> TrainingManifest:
    run = replace(ran("none", *pins[0], *pins[1:]), framework=None)
    unknown = ("accelerator",) if gpus is None else ()
    source = Source(format="capture" if complete else "requirements", complete=complete, unknown=unknown)
    return replace(run, accelerator=None if gpus is None else Accelerator(gpus=gpus), source=source)


def warned(stack: Stack, what: str) -> list[Decision]:
    return [it for it in stack.decisions if it.what == what and it.warning]


def test_ranges_rise_and_do_not_overlap_and_each_names_its_wheel():
    assert {it.distribution for it in PROFILES.openers} >= {
        "bitsandbytes", "catboost", "cudf-cu12", "cuml-cu13", "cupy-cuda12x", "faiss-gpu", "faiss-gpu-cu12",
        "onnxruntime-gpu", "pylibraft-cu12", "rmm-cu12", "tensorflow-text", "torchaudio", "torchvision", "vllm", "xgboost",
    }  # fmt: skip
    for row in PROFILES.openers:
        assert ".whl (sha256:" in row.source
        later = [it for it in PROFILES.openers if it.distribution == row.distribution and it is not row]
        assert not [it for it in later if Version(row.first) <= Version(it.first) <= Version(row.last)]


@pytest.mark.parametrize(
    ("pin", "cuda", "library", "needs_path"),
    [
        ("onnxruntime-gpu==1.18.1", "11", "libcudnn.so.8", True),
        ("onnxruntime-gpu==1.19.2", "12", "libcudnn.so.9", True),
        ("onnxruntime-gpu==1.31.0", "13.0", "libcublas.so.13", True),
        ("cupy-cuda12x==13.6.0", "12", "libcusolver.so.11", True),
        ("cupy-cuda13x==14.2.0", "13", "libnvrtc.so.13", False),
        ("faiss-gpu-cu12==1.14.1.post1", "12", "libcublas.so.12", False),
        ("vllm==0.10.0", "12", "libcudart.so.12", False),
    ],
)
def test_rows_say_what_their_wheels_say(pin, cuda, library, needs_path):
    (row,) = [it for it in PROFILES.openers if it.covers(*pin.split("=="))]
    assert (row.cuda, library in row.opens, row.needs_path) == (cuda, True, needs_path)
    assert not row.covers(row.distribution, f"{pin.split('==')[1]}+cu118"), "a build with a label is another one"


def test_the_cpu_variant_has_builds_for_the_cpu_under_their_own_names():
    pins = [("onnxruntime-gpu", "1.20.2"), ("faiss-gpu-cu12", "1.12.0"), ("xgboost", "2.1.4"), *CUDA_12]
    stack = match(ran("torch", "torch", "2.5.1", *pins, gpus=T4), PROFILES, "cpu")
    assert stack.requirements == ("faiss-cpu==1.12.0", "onnxruntime==1.20.1", "torch==2.5.1+cpu", "xgboost==2.1.4")
    reasons = {it.before: it.reason for it in stack.changes}
    assert "from onnxruntime; 1.20.1 is the nearest release" in reasons["onnxruntime-gpu==1.20.2"]
    assert "nearest" not in reasons["faiss-gpu-cu12==1.12.0"]
    assert (stack.driver_minimum, stack.variables) == (None, ())


def test_of_two_builds_in_one_run_the_cpu_variant_keeps_the_one_for_the_cpu():
    run = ran("torch", "torch", "2.5.1+cpu", ("onnxruntime-gpu", "1.20.1"), ("onnxruntime", "1.22.0"))
    stack = match(run, PROFILES)
    assert stack.requirements == ("onnxruntime==1.22.0", "torch==2.5.1+cpu")
    assert changed(stack) == [("onnxruntime-gpu==1.20.1", None)]


def test_what_has_no_build_for_the_cpu_stays_with_a_warning():
    run = ran("torch", "torch", "2.5.1", ("cupy-cuda12x", "13.6.0"), ("bitsandbytes", "0.45.5"), gpus=T4)
    stack = match(run, PROFILES, "cpu")
    assert {"cupy-cuda12x==13.6.0", "bitsandbytes==0.45.5"} <= set(stack.requirements)
    (warning,) = warned(stack, "gpu only")
    assert (warning.value, "--drop cupy-cuda12x" in warning.reason) == ("cupy-cuda12x==13.6.0", True)
    assert not warned(match(run, PROFILES, "gpu"), "gpu only")


@pytest.mark.parametrize(
    ("pin", "driver", "by"),
    [
        (("onnxruntime-gpu", "1.30.0"), "580.65.06", "onnxruntime-gpu==1.30.0"),
        (("onnxruntime-gpu", "1.22.0"), "525.60.13", "runs CUDA 12"),
        (("xgboost", "3.4.1"), "525.60.13", "runs CUDA 12"),
    ],
)
def test_the_driver_is_the_highest_that_a_project_for_gpus_needs(pin, driver, by):
    stack = match(ran("torch", "torch", "2.5.1", pin, gpus=T4), PROFILES, "gpu")
    (decision,) = [it for it in stack.decisions if it.what == "driver"]
    assert (stack.driver_minimum, by in decision.reason) == (driver, True)


def test_a_run_without_a_framework_has_the_driver_and_variables_of_its_projects():
    run = no_framework(("onnxruntime-gpu", "1.22.0"), ("numpy", "2.0.2"), *CUDA_12, gpus=T4)
    stack = match(run, PROFILES)
    assert (stack.framework, stack.variant, stack.driver_minimum) == ("none", "gpu", "525.60.13")
    variables = dict(stack.variables)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    folders = [f"{SITE}/{it}/lib" for it in ("cublas", "cuda_runtime", "cudnn", "cufft", "curand")]
    assert variables["LD_LIBRARY_PATH"].split(":") == folders
    assert "onnxruntime-gpu==1.22.0" in next(it for it in stack.decisions if it.what == "LD_LIBRARY_PATH").reason


@pytest.mark.parametrize(
    ("pins", "gpus", "variant"),
    [
        ([("onnxruntime-gpu", "1.22.0")], None, "gpu"),
        ([("onnxruntime-gpu", "1.22.0")], (), "cpu"),
        ([("xgboost", "2.1.4")], None, "cpu"),
        ([("xgboost", "2.1.4")], T4, "gpu"),
    ],
)
def test_without_a_framework_a_build_for_gpus_tells_the_variant_where_the_record_does_not(pins, gpus, variant):
    stack = match(no_framework(*pins, gpus=gpus), PROFILES)
    assert (decided(stack, "variant"), stack.driver_minimum is not None) == (variant, variant == "gpu")


def test_wheels_of_cuda_13_lie_in_one_folder():
    pins = (("nvidia-cublas", "13.0.0.19"), ("nvidia-curand", "10.4.0.35"), ("nvidia-cudnn-cu13", "9.13.0.50"))
    stack = match(no_framework(("onnxruntime-gpu", "1.27.0"), *pins, gpus=T4), PROFILES)
    assert dict(stack.variables)["LD_LIBRARY_PATH"] == f"{SITE}/cu13/lib:{SITE}/cudnn/lib"


def test_one_path_serves_the_framework_and_the_projects_beside_it():
    alone, beside = (
        match(ran("tensorflow", "tensorflow", "2.16.1", *pins, gpus=T4), PROFILES, "gpu")
        for pins in ((), (("onnxruntime-gpu", "1.19.2"),))
    )
    (path,) = [value for name, value in beside.variables if name == "LD_LIBRARY_PATH"]
    assert set(dict(alone.variables)["LD_LIBRARY_PATH"].split(":")) <= set(path.split(":"))
    assert len(path.split(":")) == len(set(path.split(":")))


@pytest.mark.parametrize(
    "run",
    [
        no_framework(("onnxruntime-gpu", "1.22.0"), ("nvidia-cublas-cu11", "11.11.3.6"), gpus=T4),
        no_framework(("faiss-gpu-cu12", "1.12.0"), *CUDA_12, gpus=T4),
        no_framework(("onnxruntime-gpu", "1.22.0"), *CUDA_12, gpus=()),
    ],
    ids=["wheels of another CUDA", "it looks for them itself", "no GPU"],
)
def test_no_path_is_set_where_it_would_lead_to_nothing_or_is_not_needed(run):
    assert "LD_LIBRARY_PATH" not in dict(match(run, PROFILES).variables)


def test_no_path_is_set_where_cuda_comes_from_the_base():
    pins = (("onnxruntime-gpu", "1.22.0"), ("nvidia-curand-cu12", "10.3.5.147"))
    run = ran("tensorflow", "tensorflow", "2.11.0", *pins, python="3.10.9", gpus=T4)
    wheels, base = match(run, PROFILES, "gpu"), match(run, PROFILES, "gpu", cuda_source="base")
    assert (wheels.cuda_source, "/nvidia/curand/lib" in dict(wheels.variables)["LD_LIBRARY_PATH"]) == ("wheels", True)
    assert (base.cuda_source, "LD_LIBRARY_PATH" in dict(base.variables)) == ("base", False)


@pytest.mark.parametrize(
    ("torch", "pin", "says"),
    [
        ("2.10.0", ("torchaudio", "2.11.0"), "torchaudio==2.11.0 needs torch>=2.11"),
        ("2.9.0", ("bitsandbytes", "0.45.5"), "12.6, 12.8, and torch==2.9.0+cu130 has 13.0"),
        ("2.7.1", ("bitsandbytes", "0.45.5"), ""),
        ("2.10.0", ("bitsandbytes", "0.50.0"), ""),
    ],
)
def test_a_pair_that_does_not_go_together_is_reproduced_with_a_warning(torch, pin, says):
    label = "+cu130" if "13.0" in says else ""
    stack = match(ran("torch", "torch", f"{torch}{label}", pin, gpus=T4), PROFILES, "gpu")
    assert f"{pin[0]}=={pin[1]}" in stack.requirements
    found = warned(stack, "pair")
    assert [says in it.reason for it in found] == ([True] if says else [])


def test_a_record_with_gaps_gets_no_nccl_in_an_image_for_the_cpu():
    cpu = match(no_framework(("xgboost", "2.1.4"), complete=False), PROFILES)
    gpu = match(no_framework(("xgboost", "2.1.4"), complete=False, gpus=T4), PROFILES)
    had = match(no_framework(("xgboost", "2.1.4"), ("nvidia-nccl-cu12", "2.20.5"), complete=False), PROFILES)
    assert [it.gaps.without if it.gaps else None for it in (cpu, gpu, had)] == [("nvidia-nccl-cu12",), (), ()]


@pytest.mark.parametrize("pin", [("torch", "2.5.1"), ("tensorflow", "2.16.1")])
@pytest.mark.parametrize("gpus", [(), T4])
def test_an_environment_without_such_projects_changes_by_none_of_the_rows(pin, gpus):
    run = ran(pin[0], *pin, ("numpy", "1.26.4"), ("nvidia-nccl-cu12", "2.21.5"), gpus=gpus)
    assert match(run, PROFILES) == match(run, replace(PROFILES, openers=()))
