"""Where CUDA comes from and which: the source, the versions, the driver, what is found, and what somebody overrides."""

import shlex
from dataclasses import replace

import pytest
from packaging.version import Version

from envbuild.errors import MatchError, UsageError
from envbuild.files import data_folder
from envbuild.manifest.hardware import Accelerator, Component, Gpu, Native
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import Conda, CondaPackage
from envbuild.match.match import match
from envbuild.match.pins import broken_profile_limits
from envbuild.match.profiles import load_profiles
from envbuild.match.rows import Release
from envbuild.match.stack import KEYS, Decision, Stack, pairs_of
from tests.unit.test_match_frameworks import changed, decided, names, ran

PROFILES = load_profiles(data_folder("profiles"))
FROM_CU11 = [it for it in PROFILES.frameworks[0].releases if Version("2.5") <= it.version < Version("2.14")]
CU11 = {
    "nvidia-cublas-cu11", "nvidia-cuda-cupti-cu11", "nvidia-cuda-nvcc-cu11", "nvidia-cuda-runtime-cu11",
    "nvidia-cudnn-cu11", "nvidia-cufft-cu11", "nvidia-curand-cu11", "nvidia-cusolver-cu11", "nvidia-cusparse-cu11",
}  # fmt: skip
H100, B200, T4 = Gpu(name="NVIDIA H100 80GB HBM3"), Gpu(name="NVIDIA B200"), Gpu(name="Tesla T4")


def tensorflow(version: str, *pins: tuple[str, str], python: str = "3.11.7", gpus=(), **had: str) -> TrainingManifest:
    """A run that had loaded these versions of `cuda` and `cudnn`."""
    run = ran("tensorflow", "tensorflow", version, *pins, python=python, gpus=gpus)
    parts = [Component(name=name, version=it, source="file name", loaded=True) for name, it in had.items()]
    return replace(run, native=Native(process="run", components=tuple(parts))) if parts else run


def said(stack: Stack, what: str) -> Decision:
    (found,) = [it for it in stack.decisions if it.what == what]
    return found


def warned(stack: Stack) -> list[tuple[str, str]]:
    return [(it.what, it.value) for it in stack.decisions if it.warning]


@pytest.mark.parametrize("release", FROM_CU11, ids=lambda it: str(it.version))
def test_tensorflow_from_2_5_to_2_13_has_every_library_from_wheels_of_cuda_11_8(release: Release):
    python = f"{release.wheels[0].pythons[-1]}.4"
    stack = match(tensorflow(str(release.version), python=python), PROFILES, "gpu")
    assert (stack.cuda, stack.cuda_source, stack.cudnn) == ("11.8", "wheels", "8.6.0.163")
    assert set(names(stack)) == CU11 | {"tensorflow"}
    assert "/library/python:" in stack.base
    site = f"/opt/env/lib/python{python[:-2]}/site-packages/nvidia"
    paths = dict(stack.variables)["LD_LIBRARY_PATH"].split(":")
    folders = {it.removeprefix("nvidia-").removesuffix("-cu11").replace("-", "_") for it in CU11} - {"cuda_nvcc"}
    assert sorted(paths) == sorted(f"{site}/{it}/lib" for it in folders)
    assert dict(stack.variables)["XLA_FLAGS"] == f"--xla_gpu_cuda_data_dir={site}/cuda_nvcc"
    assert shlex.split(dict(stack.variables)["XLA_FLAGS"]) == [dict(stack.variables)["XLA_FLAGS"]]
    built = release.wheels[0].cuda
    assert ("built with 11.2" in said(stack, "cuda").reason) == (built == "11.2")
    assert f"a base with CUDA {built} serves too" in said(stack, "cuda source").reason


@pytest.mark.parametrize(
    ("had", "cudnn", "words"),
    [
        ({}, "8.6.0.163", ()),
        ({"cuda": "11.8.89", "cudnn": "8.6.0"}, "8.6.0.163", ("had the same, 11.8.89", "had the same, 8.6.0")),
        ({"cuda": "11.8", "cudnn": "8.7.0.84"}, "8.7.0.84", ("the same", "the same")),
        ({"cuda": "11.8", "cudnn": "8.9.7"}, "8.9.2.26", ("the same", "the same")),
        ({"cuda": "11.7", "cudnn": "8.1.0"}, "8.6.0.163", ("another one, 11.7 (file name)", "another one, 8.1.0")),
    ],
)
def test_cudnn_is_the_nearest_to_the_runs_own_and_what_differs_is_said(had, cudnn, words):
    stack = match(tensorflow("2.11.0", python="3.8.10", **had), PROFILES, "gpu")
    assert (stack.cuda_source, stack.cudnn) == ("wheels", cudnn)
    assert f"nvidia-cudnn-cu11=={cudnn}" in stack.requirements
    for what, part in zip(("cuda", "cudnn"), words, strict=False):
        assert part in said(stack, what).reason


def test_cudnn_that_the_run_had_as_a_wheel_stays():
    stack = match(tensorflow("2.12.1", ("nvidia-cudnn-cu11", "8.6.0.163"), ("numpy", "1.23.5")), PROFILES)
    assert (stack.variant, stack.cudnn) == ("gpu", "8.6.0.163")
    assert {it.name for it in stack.changes} == CU11 - {"nvidia-cudnn-cu11"}
    newer = match(tensorflow("2.12.1", ("nvidia-cudnn-cu11", "8.9.6.50")), PROFILES)
    assert (newer.cudnn, warned(newer)) == ("8.9.6.50", [])


def test_a_base_that_is_nearer_to_the_run_and_can_have_its_python_is_the_default():
    near = match(tensorflow("2.8.0", python="3.8.10", cuda="11.2.152", cudnn="8.1.0"), PROFILES, "gpu")
    assert (near.cuda_source, near.cuda, near.cudnn) == ("base", "11.2", "8.1.1.33")
    assert near.base == "docker.io/nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"
    assert "--cuda-source wheels" in said(near, "cuda source").reason
    assert not {"LD_LIBRARY_PATH", "XLA_FLAGS"} & dict(near.variables).keys()
    for python, cuda in (("3.9.5", "11.2.152"), ("3.8.10", "11.8.89"), ("3.8.10", "11.6")):
        assert match(tensorflow("2.8.0", python=python, cuda=cuda), PROFILES, "gpu").cuda_source == "wheels"
    wheel = tensorflow("2.8.0", ("nvidia-cublas-cu11", "11.10.3.66"), python="3.8.10", cuda="11.2")
    assert match(wheel, PROFILES, "gpu").cuda_source == "wheels"


def test_the_source_can_be_asked_for_and_there_is_only_ever_one():
    pins = (("nvidia-cublas-cu11", "11.10.3.66"), ("nvidia-ml-py", "12.535.133"))
    run = tensorflow("2.8.0", *pins, python="3.8.10", cuda="11.2")
    wheels, base = (match(run, PROFILES, "gpu", cuda_source=it) for it in ("wheels", "base"))
    assert (wheels.cuda_source, base.cuda_source) == ("wheels", "base")
    assert changed(base) == [("nvidia-cublas-cu11==11.10.3.66", None)]
    assert "one source" in base.changes[0].reason
    assert "envbuild base build --parent" in said(base, "base").reason
    with pytest.raises(MatchError, match="the index has no wheels of it"):
        match(tensorflow("2.4.0", python="3.8.10"), PROFILES, "gpu", cuda_source="wheels")
    with pytest.raises(MatchError, match="no image with it is known"):
        match(tensorflow("2.15.1"), PROFILES, "gpu", cuda_source="base")
    with pytest.raises(MatchError, match="cpu variant"):
        match(tensorflow("2.15.1"), PROFILES, "cpu", cuda_source="base")


@pytest.mark.parametrize(
    ("version", "python", "cuda", "image", "driver"),
    [
        ("1.15.0", "3.5.2", "10.0", "10.0-cudnn7-runtime-ubuntu16.04", "410.48"),
        ("1.15.0", "3.7.9", "10.0", "10.0-cudnn7-runtime-ubuntu18.04", "410.48"),
        ("2.3.4", "3.8.10", "10.1", "10.1-cudnn7-runtime-ubuntu18.04", "418.39"),
        ("2.4.4", "3.6.9", "11.0", "11.0.3-cudnn8-runtime-ubuntu18.04", "450.80.02"),
        ("2.4.4", "3.8.10", "11.0", "11.0.3-cudnn8-runtime-ubuntu20.04", "450.80.02"),
    ],
)
def test_before_2_5_cuda_is_the_bases_and_a_base_that_is_gone_has_two_ways_out(version, python, cuda, image, driver):
    stack = match(tensorflow(version, python=python), PROFILES, "gpu")
    assert (stack.cuda_source, stack.cuda, stack.base) == ("base", cuda, f"docker.io/nvidia/cuda:{image}")
    assert (stack.driver_minimum, "LD_LIBRARY_PATH" in dict(stack.variables)) == (driver, False)
    gone = [("base", stack.base)] if cuda.startswith("10.") else []
    assert warned(stack) == gone
    for way in (f"base build --cuda {cuda} --python {python},", "--parent MIRROR --python 3.", "deleted this tag"):
        assert (way in said(stack, "base").reason) == bool(gone)
    named = match(tensorflow(version, python=python), PROFILES, "gpu", overrides={"base": "example.com/cuda:1"})
    assert (named.cuda_source, named.base, named.changes) == ("base", "example.com/cuda:1", ())


@pytest.mark.parametrize("component", [True, False])
def test_what_the_run_had_is_read_from_conda_where_nothing_was_loaded(component):
    conda = Conda(
        packages=(CondaPackage(name="cudatoolkit", version="11.2.2"), CondaPackage(name="cudnn", version="8.8.0"))
    )
    run = replace(tensorflow("2.8.0", python="3.9.5", **({"cuda": "11.4"} if component else {})), conda=conda)
    stack = match(run, PROFILES, "gpu")
    assert stack.cudnn == "8.8.1.3"
    assert ("11.4 (file name)" if component else "11.2.2 (conda package cudatoolkit)") in said(stack, "cuda").reason


@pytest.mark.parametrize(
    ("version", "python", "tensorrt", "paths", "xla"),
    [
        ("2.14.0", "3.10.1", True, False, True),
        ("2.14.1", "3.11.7", False, False, True),
        ("2.15.0", "3.11.7", False, False, True),
        ("2.15.1", "3.11.7", False, False, True),
        ("2.16.1", "3.12.1", False, True, True),
        ("2.16.2", "3.12.1", False, False, True),
        ("2.17.1", "3.12.1", False, False, False),
        ("2.21.0", "3.13.1", False, True, False),
    ],
)
def test_releases_that_are_broken_as_published_are_repaired(version, python, tensorrt, paths, xla):
    stack = match(tensorflow(version, python=python), PROFILES, "gpu")
    assert any(it.startswith("tensorrt") for it in names(stack)) == tensorrt
    assert ("LD_LIBRARY_PATH" in dict(stack.variables), "XLA_FLAGS" in dict(stack.variables)) == (paths, xla)
    if paths:
        assert "nvidia/cusolver/lib" in dict(stack.variables)["LD_LIBRARY_PATH"]


@pytest.mark.parametrize(
    ("version", "python", "gpu", "driver"),
    [
        ("2.15.1", "3.11.7", T4, "525.60.13"),
        ("2.15.1", "3.11.7", H100, "535.54.03"),
        ("2.15.1", "3.11.7", Gpu(name="a card", compute_capability="9.0"), "535.54.03"),
        ("2.15.1", "3.11.7", Gpu(name="a card"), "525.60.13"),
        ("2.15.1", "3.11.7", Gpu(name="NVIDIA A10", compute_capability="8.6"), "525.60.13"),
        ("2.16.2", "3.11.7", H100, "525.60.13"),
        ("2.8.0", "3.8.10", T4, "450.80.02"),
        ("2.8.0", "3.8.10", H100, "520.61.05"),
        ("2.12.0", "3.8.10", H100, "520.61.05"),
    ],
)
def test_a_gpu_without_machine_code_needs_the_driver_of_the_toolkit(version, python, gpu, driver):
    stack = match(tensorflow(version, python=python, gpus=(gpu,)), PROFILES)
    assert (stack.driver_minimum, decided(stack, "driver")) == (driver, f">={driver}")
    jit = driver not in {"450.80.02", "525.60.13"}
    assert ("no machine code" in said(stack, "driver").reason) == jit
    assert warned(stack) == []


def test_a_gpu_older_than_the_build_is_told():
    stack = match(tensorflow("2.17.0", gpus=(Gpu(name="Tesla M60"), T4)), PROFILES)
    assert warned(stack) == [("gpu", "Tesla M60")]
    assert "cannot use a GPU of 5.2" in said(stack, "gpu").reason


@pytest.mark.parametrize(
    ("framework", "version", "gpu", "driver", "reason"),
    [
        ("tensorflow", "2.17.1", B200, "570.26", "the first CUDA for GPUs of 10.0 is 12.8: the libraries of CUDA 12.3"),
        ("tensorflow", "2.18.0", Gpu(name="NVIDIA GeForce RTX 5090"), "570.26", "GPUs of 12.0 is 12.8"),
        ("torch", "2.5.1", B200, "570.26", "sm_90, so it cannot use a GPU of 10.0"),
        ("torch", "2.8.0", B200, "570.26", None),
        ("jax", "0.8.0", B200, "570.26", None),
        ("jax", "0.4.35", B200, "570.26", None),
        ("jax", "0.4.35", Gpu(name="Tesla K80"), "525.60.13", "sm_80, compute_90, so it cannot use a GPU of 3.7"),
        ("torch", "2.11.0", B200, "580.65.06", None),
        ("torch", "2.11.0", Gpu(name="Tesla V100-SXM2-16GB"), "580.65.06", "sm_120, so it cannot use a GPU of 7.0"),
        ("torch", "2.11.0", Gpu(name="Tesla K80"), "580.65.06", "sm_120, so it cannot use a GPU of 3.7"),
        ("torch", "2.11.0", T4, "580.65.06", None),
        ("torch", "2.5.1", Gpu(name="Tesla V100-SXM2-16GB"), "525.60.13", None),
    ],
)
def test_a_gpu_that_the_cuda_was_not_made_for_is_told_and_a_new_one_needs_its_first_driver(
    framework, version, gpu, driver, reason
):
    stack = match(ran(framework, framework, version, gpus=(gpu,)), PROFILES, "gpu")
    assert stack.driver_minimum == driver
    assert warned(stack) == ([("gpu", gpu.name)] if reason else [])
    assert reason is None or reason in said(stack, "gpu").reason


@pytest.mark.parametrize(
    ("driver", "told"), [("520.61.05", True), ("525.60.13", False), ("550.54", False), ("unknown", False)]
)
def test_a_driver_of_the_run_that_is_older_than_the_image_needs_is_told(driver, told):
    run = replace(tensorflow("2.15.1"), accelerator=Accelerator(driver=driver, gpus=(T4,)))
    stack = match(run, PROFILES)
    assert warned(stack) == ([("driver of the run", driver)] if told else [])
    assert not told or "needs 525.60.13 or later" in said(stack, "driver of the run").reason
    assert warned(match(run, PROFILES, "cpu")) == []


def test_gpus_of_a_record_that_says_there_were_none_are_passed_over_and_told():
    run = replace(tensorflow("2.15.1"), accelerator=Accelerator(kind="none", gpus=(T4,)))
    stack = match(run, PROFILES)
    assert (stack.variant, warned(stack)) == ("cpu", [("accelerator", "none")])
    assert warned(match(replace(run, accelerator=Accelerator(kind="none")), PROFILES)) == []


def test_pins_that_break_a_rule_are_reproduced_and_told():
    run = tensorflow(
        "2.15.1", ("numpy", "2.0.2"), ("protobuf", "5.29.0"), ("keras", "2.15.0"), ("nvidia-cudnn-cu12", "9.1.0.70")
    )
    stack = match(run, PROFILES)
    assert set(warned(stack)) == {
        ("limit", "numpy==2.0.2"), ("limit", "protobuf==5.29.0"), ("limit", "nvidia-cudnn-cu12==9.1.0.70"),
    }  # fmt: skip
    assert {"numpy==2.0.2", "protobuf==5.29.0", "nvidia-cudnn-cu12==9.1.0.70"} <= set(stack.requirements)
    assert all(it.before is None for it in stack.changes)
    fitting = tensorflow("2.15.1", ("numpy", "1.26.4"), ("protobuf", "4.25.3"), ("nvidia-cudnn-cu12", "8.9.7.29"))
    assert warned(match(fitting, PROFILES)) == []
    by_hand = match(tensorflow("2.10.0", ("numpy", "2.0.2"), python="3.10.4"), PROFILES, "cpu")
    assert warned(by_hand) == [("limit", "numpy==2.0.2")], "its wheel allows it by mistake"


@pytest.mark.parametrize(
    ("run", "pin", "needs"),
    [
        (tensorflow("2.12.0", ("numpy", "2.1.0")), "numpy==2.1.0", "tensorflow-cpu==2.12.0 needs numpy<2"),
        (tensorflow("2.11.1", ("protobuf", "4.25.0"), python="3.10.4"), "protobuf==4.25.0", "needs protobuf<4"),
        (tensorflow("2.14.1", ("keras", "3.0.5")), "keras==3.0.5", "needs keras<3"),
        (
            tensorflow("2.15.1", ("tensorflow-hub", "0.16.1"), ("setuptools", "82.0.0")),
            "setuptools==82.0.0",
            "tensorflow-hub==0.16.1 needs setuptools<82",
        ),
        (ran("torch", "torch", "2.2.2", ("numpy", "2.0.2")), "numpy==2.0.2", "needs numpy<2"),
        (ran("jax", "jax", "0.4.25", ("jaxlib", "0.4.25"), ("numpy", "2.0.2")), "numpy==2.0.2", "jaxlib==0.4.25 needs"),
    ],
)
def test_pairs_that_fail_are_reproduced_of_a_whole_record_and_refused_of_another(run, pin, needs):
    whole = [it.reason for it in match(run, PROFILES, "cpu").decisions if (it.what, it.value) == ("limit", pin)]
    assert any(needs in it for it in whole)
    assert all(it.endswith("the run had this version all the same, and the image keeps it") for it in whole)
    stack = match(replace(run, source=replace(run.source, format="requirements", complete=False)), PROFILES, "cpu")
    [refused] = [it.reason for it in stack.decisions if it.value == pin and "locking refuses" in it.reason]
    assert needs in refused
    assert stack.gaps is not None
    pins = {name: version for name, _, version in (it.partition("==") for it in stack.requirements)}
    assert pin in {it.other for it in broken_profile_limits(pins, stack.gaps.limits) if it.limit.breaks}


def test_what_is_known_to_go_together_is_not_told():
    assert warned(match(tensorflow("2.15.1", ("keras", "3.0.5"), ("numpy", "1.26.4")), PROFILES, "cpu")) == [
        ("limit", "keras==3.0.5")
    ], "its wheel requires Keras 2, and tf.keras works all the same"
    usual = tensorflow("2.20.0", ("setuptools", "84.2.1"), python="3.12.4")
    assert warned(match(usual, PROFILES, "cpu")) == [], "training works, and TensorBoard alone does not start"
    assert warned(match(ran("torch", "torch", "2.3.0", ("numpy", "2.0.2")), PROFILES, "cpu")) == []


def test_wheels_of_two_cuda_in_one_environment_are_told():
    run = tensorflow(
        "2.18.0", ("nvidia-cudnn-cu12", "9.3.0.75"), ("nvidia-cudnn-cu13", "9.19.0.56"), ("torch", "2.11.0")
    )
    names = "nvidia-cudnn-cu12, nvidia-cudnn-cu13"
    assert {("cuda twice", names), ("cudnn twice", names)} <= set(warned(match(run, PROFILES)))


def test_nccl_of_two_cuda_is_told_at_plan():
    pins = [("nvidia-nccl-cu11", "2.14.3"), ("nvidia-nccl-cu12", "2.20.5"), ("xgboost", "2.1.1")]
    stack = match(ran("torch", "torch", "2.0.0", *pins), PROFILES, "gpu")
    assert ("nccl twice", "nvidia-nccl-cu11, nvidia-nccl-cu12") in warned(stack)
    assert "nvidia/nccl/lib/libnccl.so.2" in said(stack, "nccl twice").reason
    one = match(ran("torch", "torch", "2.0.0", *pins[:1]), PROFILES, "gpu")
    assert not [it for it in warned(one) if it[0] == "nccl twice"]


def test_plug_ins_of_two_cuda_in_one_run_are_told_with_the_higher_driver():
    pins = [(f"jax-cuda{major}-{part}", "0.8.0") for major in (12, 13) for part in ("pjrt", "plugin")]
    stack = match(ran("jax", "jax", "0.8.0", ("jaxlib", "0.8.0"), *pins), PROFILES)
    assert [it[0] for it in warned(stack)] == ["cuda twice"]
    assert "jax-cuda13-plugin" in said(stack, "cuda twice").value
    assert "the higher one takes driver 580.65.06 or later" in said(stack, "cuda twice").reason
    assert warned(match(ran("jax", "jax", "0.8.0", ("jaxlib", "0.8.0"), *pins[:2]), PROFILES)) == []


def test_another_framework_whose_own_cuda_is_not_in_the_image_is_told():
    stack = match(tensorflow("2.18.0", ("torch", "2.5.1"), gpus=(T4,)), PROFILES)
    assert warned(stack) == [("cuda of another", "torch==2.5.1")]
    reason = said(stack, "cuda of another").reason
    assert "nvidia-cudnn-cu12==9.1.0.70" in reason
    assert "nvidia-nccl-cu12" not in reason, "both ask for the same one"
    assert "the CUDA of tensorflow==2.18.0" in reason
    assert warned(match(tensorflow("2.18.0", ("torch", "2.5.1")), PROFILES, "cpu")) == []
    assert warned(match(ran("torch", "torch", "2.5.1", ("tensorflow", "2.18.0")), PROFILES, "gpu")) == []


def test_what_another_framework_lacks_is_told_where_nothing_is_added():
    run = tensorflow("2.18.0", ("torch", "2.11.0"), gpus=(T4,))
    assert "cuda-toolkit" in said(match(run, PROFILES), "cuda of another").reason
    gaps = replace(run, source=replace(run.source, format="requirements", complete=False))
    assert warned(match(gaps, PROFILES)) == [("cuda twice", "torch==2.11.0")]
    jax = match(ran("jax", "jax", "0.8.0", ("jaxlib", "0.8.0"), ("torch", "2.5.1")), PROFILES, "gpu")
    assert "nvidia-cudnn-cu12==9.1.0.70" in said(jax, "cuda of another").reason, "a range is locked to the newest"


@pytest.mark.parametrize(("built", "told"), [("11.8", True), ("12.2", False), ("12", False), ("12.2.0", False)])
def test_a_build_for_another_cuda_whose_label_was_lost_is_told(built, told):
    run = tensorflow("2.15.1", gpus=(T4,))
    assert run.framework is not None
    stack = match(replace(run, framework=replace(run.framework, cuda=built)), PROFILES)
    assert warned(stack) == ([("build", "tensorflow==2.15.1")] if told else [])


def test_what_is_added_to_a_record_with_gaps_keeps_the_limits_of_the_release():
    run = tensorflow("2.8.0", ("keras", "2.8.0"), python="3.9.5")
    stack = match(replace(run, source=replace(run.source, format="requirements", complete=False)), PROFILES, "cpu")
    assert stack.gaps is not None
    assert stack.gaps.versions == ("numpy<2", "protobuf<3.20", "protobuf<4", "setuptools<82")


@pytest.mark.parametrize(
    ("version", "added"), [("1.13.1", {"packaging", "six"}), ("2.1.2", {"packaging"}), ("2.2.0", set())]
)
def test_an_incomplete_record_gets_what_torch_imports_without_requiring_it(version, added):
    run = ran("torch", "torch", version, ("numpy", "1.26.4"), python="3.10.6")
    gaps = replace(run, source=replace(run.source, format="requirements", complete=False))
    assert {it.after for it in match(gaps, PROFILES, "gpu").changes if not it.before} >= added
    assert {"packaging", "six"} & set(match(gaps, PROFILES, "gpu").requirements) == added
    assert not {"packaging", "six"} & set(match(run, PROFILES, "gpu").requirements)


def test_an_override_is_loud_and_stays_with_the_stack():
    given = {"cuda": "12.2", "driver_minimum": "550.54.14", "base": "example.com/base:1", "python": "3.11.9"}
    stack = match(tensorflow("2.16.1"), PROFILES, "gpu", overrides=given)
    assert stack.overrides == tuple(sorted(given.items()))
    assert (stack.cuda, stack.driver_minimum, stack.base, stack.python) == tuple(given.values())
    assert {"nvidia-cublas-cu12==12.2.5.6", "nvidia-cuda-nvcc-cu12==12.2.140"} <= set(stack.requirements)
    assert "nvidia-cudnn-cu12==8.9.7.29" in stack.requirements, "cuDNN is no part of CUDA"
    loud = {it.what: it for it in stack.decisions if it.warning}
    assert set(loud) == {"cuda", "driver", "base", "python"}
    assert all(it.reason.startswith("overridden: ") and "--set" in it.source for it in loud.values())
    assert match(tensorflow("2.16.1"), PROFILES, "gpu", overrides={}).overrides == ()


def test_an_override_replaces_what_the_run_had():
    pins = (("nvidia-cublas-cu12", "12.3.4.1"), ("nvidia-cudnn-cu12", "8.9.7.29"), ("nvidia-nccl-cu12", "2.19.3"))
    stack = match(tensorflow("2.16.1", *pins), PROFILES, overrides={"cuda": "12.2", "cudnn": "8.9.6.50"})
    assert changed(stack)[:2] == [
        ("nvidia-cublas-cu12==12.3.4.1", "nvidia-cublas-cu12==12.2.5.6"),
        ("nvidia-cudnn-cu12==8.9.7.29", "nvidia-cudnn-cu12==8.9.6.50"),
    ]
    assert (stack.cudnn, stack.cuda) == ("8.9.6.50", "12.2")
    assert "nvidia-nccl-cu12==2.19.3" in stack.requirements


def test_an_override_of_the_built_cuda_pins_what_the_wheel_leaves_open():
    stack = match(tensorflow("2.20.0"), PROFILES, "gpu", overrides={"cuda": "12.5.1"})
    assert "nvidia-cublas-cu12==12.5.3.2" in stack.requirements
    assert "not pinned" in said(match(tensorflow("2.20.0"), PROFILES, "gpu"), "cuda").reason
    assert "not pinned" not in said(stack, "cuda").reason
    assert match(tensorflow("2.15.1"), PROFILES, "gpu", overrides={"cuda": "12.2"}).requirements == (
        match(tensorflow("2.15.1"), PROFILES, "gpu").requirements
    )


@pytest.mark.parametrize(
    ("version", "given", "source", "cuda"),
    [
        ("2.8.0", {"cuda": "11.8"}, "wheels", "11.8"),
        ("2.8.0", {"cuda": "11.2"}, "base", "11.2"),
        ("2.8.0", {"cudnn": "8.7.0.84"}, "wheels", "11.8"),
        ("2.8.0", {"cudnn": "8.7"}, "wheels", "11.8"),
        ("2.8.0", {"base": "docker.io/nvidia/cuda:11.4.3-cudnn8-runtime-ubuntu20.04"}, "base", "11.4.3"),
    ],
)
def test_an_override_can_choose_the_source(version, given, source, cuda):
    stack = match(tensorflow(version, python="3.8.10"), PROFILES, "gpu", overrides=given)
    assert (stack.cuda_source, stack.cuda) == (source, cuda)
    if "cudnn" in given:
        assert (
            f"nvidia-cudnn-cu11=={given['cudnn']}{'' if given['cudnn'].count('.') == 3 else '.*'}" in stack.requirements
        )


@pytest.mark.parametrize(
    ("version", "variant", "given", "reason"),
    [
        ("2.15.1", "gpu", {"cuda": "12.4"}, "no wheels of that CUDA are known for nvidia-cuda-nvcc-cu12"),
        ("2.15.1", "gpu", {"cuda": "11.8"}, "built with 12.2, and opens libraries of that major version"),
        ("2.8.0", "gpu", {"cuda": "11.4"}, "no wheels and no base of that CUDA are known for tensorflow==2.8.0"),
        ("2.15.1", "gpu", {"cudnn": "8.8.1.3"}, "takes 8.9 or a later one of the same major version"),
        ("2.15.1", "gpu", {"cudnn": "9.1.0.70"}, "takes 8.9 or a later one"),
        ("2.8.0", "gpu", {"cuda": "11.2", "cudnn": "8.1.1.33"}, "cuDNN comes with the base"),
        *(("2.15.1", "cpu", it, "the cpu variant has no CUDA") for it in ({"cuda": "12.2"}, {"driver_minimum": "535"})),
        ("2.15.1", "gpu", {"python": "3.12.1"}, "not for 3.12"),
    ],
)  # fmt: skip
def test_an_override_that_cannot_be_had_is_refused_with_the_reason(version, variant, given, reason):
    with pytest.raises(MatchError) as caught:
        match(
            tensorflow(version, python="3.8.10" if version == "2.8.0" else "3.11.7"), PROFILES, variant, overrides=given
        )
    assert reason in caught.value.what
    assert caught.value.todo


def test_an_override_outside_of_what_the_framework_requires_is_refused_by_the_requirement():
    run = ran("jax", "jax", "0.6.0", ("jaxlib", "0.6.0"))
    with pytest.raises(MatchError, match=r"jax==0\.6\.0 requires nvidia-cuda-nvcc-cu12>=12\.6\.85\n"):
        match(run, PROFILES, "gpu", overrides={"cuda": "12.2"})
    with pytest.raises(MatchError, match="of that CUDA are known for"):
        match(run, PROFILES, "gpu", overrides={"cuda": "12.6"})
    with pytest.raises(MatchError, match=r"that CUDA .* tensorflow==2\.4\.1"):
        match(tensorflow("2.4.1", python="3.8.10"), PROFILES, "gpu", overrides={"cuda": "11.2"})


@pytest.mark.parametrize(("tag", "cudnn", "told"), [("cudnn8", "8", False), ("cudnn9", "9", True)])
def test_a_base_whose_name_says_another_cudnn_is_told(tag, cudnn, told):
    given = {"base": f"docker.io/nvidia/cuda:12.3.2-{tag}-runtime-ubuntu22.04"}
    stack = match(tensorflow("2.16.1"), PROFILES, "gpu", overrides=given)
    assert stack.cudnn == cudnn
    assert [it[0] for it in warned(stack)] == (["cudnn", "base"] if told else ["base"])
    assert ("the base has another one" in said(stack, "cudnn").reason) == told


def test_a_base_with_cuda_that_is_named_is_the_one_source():
    given = {"base": "docker.io/nvidia/cuda:12.2.2-cudnn8-runtime-ubuntu22.04"}
    stack = match(tensorflow("2.15.1", ("nvidia-cudnn-cu12", "8.9.4.25")), PROFILES, "gpu", overrides=given)
    assert (stack.cuda_source, stack.cuda, stack.requirements) == ("base", "12.2.2", ("tensorflow==2.15.1",))
    assert changed(stack) == [("nvidia-cudnn-cu12==8.9.4.25", None)]
    with pytest.raises(MatchError, match="one source"):
        match(tensorflow("2.15.1"), PROFILES, "gpu", overrides=given, cuda_source="wheels")
    for asked in ({"overrides": given}, {"cuda_source": "base"}):
        with pytest.raises(MatchError, match=r"torch==2\.5\.1 takes its CUDA from wheels"):
            match(ran("torch", "torch", "2.5.1"), PROFILES, "gpu", **asked)


@pytest.mark.parametrize(
    "given", [{"numpy": "1.26"}, {"cuda": "newest"}, {"cuda": ""}, {"python": "3.11.x"}, {"base": "bad ref with space"}]
)
def test_an_override_that_cannot_be_meant_is_a_usage_error(given):
    with pytest.raises(UsageError) as caught:
        match(tensorflow("2.15.1"), PROFILES, "gpu", overrides=given)
    assert "--set" in caught.value.where


@pytest.mark.parametrize("base", ["debian:bookworm", "docker://debian:12", "oci:My Base", "./My Base", "/srv/Base"])
def test_a_base_need_not_be_a_registry_s(base):
    assert match(tensorflow("2.15.1"), PROFILES, "cpu", overrides={"base": base}).base == base


def test_pairs_are_read_as_the_command_line_has_them():
    assert pairs_of(["cuda=12.2", "base=example.com/a:b=c"]) == {"cuda": "12.2", "base": "example.com/a:b=c"}
    for wrong in (["cuda"], ["cuda="], ["cuda=1", "cuda=2"]):
        with pytest.raises(UsageError) as caught:
            pairs_of(wrong)
        assert all(key in caught.value.todo for key in KEYS)
