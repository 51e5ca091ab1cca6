"""Matching: every row of every framework, on every Python, for either variant, gives a stack or a reasoned refusal."""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import permutations, product
from pathlib import Path
from typing import Any, Literal

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import MatchError, UsageError
from envbuild.files import data_folder
from envbuild.manifest.hardware import Accelerator, Gpu, Library, Native, Owner
from envbuild.manifest.importers.environment import RecordOptions, supplement
from envbuild.manifest.model import Framework, Model, Numerics, Platform, Python, Source, TrainingManifest, Writer
from envbuild.manifest.packages import Distribution, Origin
from envbuild.manifest.reader import known_framework
from envbuild.match.match import match
from envbuild.match.profiles import load_profiles
from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from envbuild.match.stack import Stack
from tests.unit.converting import read

PROFILES = load_profiles(data_folder("profiles"))
TENSORFLOW, TORCH, JAX = PROFILES.frameworks
VARIANTS: tuple[Literal["gpu", "cpu"], ...] = ("gpu", "cpu")
RELEASES = [(profile, release) for profile in PROFILES.frameworks for release in profile.releases]


def ran(
    framework: str, distribution: str, version: str, *pins: tuple[str, str], python: str = "3.11.7",
    machine: str = "x86_64", system: str = "Linux", gpus: tuple[Gpu, ...] = (),
) -> TrainingManifest:  # fmt: skip
    own = (distribution, version)
    return TrainingManifest(
        schema_version="1.1",
        created="2026-01-01T00:00:00Z",
        python=Python(version=python, implementation="cpython"),
        platform=Platform(system=system, machine=machine),
        distributions=tuple(
            Distribution(name=name, version=it, origin=Origin(kind="index")) for name, it in (own, *pins)
        ),
        framework=Framework(name=framework, distribution=distribution, version=version),
        accelerator=Accelerator(gpus=gpus) if gpus else None,
    )


def decided(stack: Stack, what: str) -> str:
    (found,) = [it.value for it in stack.decisions if it.what == what]
    return found


def changed(stack: Stack) -> list[tuple[str | None, str | None]]:
    return [(it.before, it.after) for it in stack.changes]


def names(stack: Stack) -> list[str]:
    return [canonicalize_name(Requirement(it).name) for it in stack.requirements]


def is_nvidia(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in (*PROFILES.nvidia_wheels, *PROFILES.cuda_only))


def runs(profile: FrameworkProfile, release: Release) -> Iterator[tuple[FrameworkWheel, TrainingManifest]]:
    for wheel in release.wheels:
        plugins = (
            [(f"jax-{wheel.extra}-{it}", str(release.version)) for it in ("plugin", "pjrt")] if wheel.jaxlib else []
        )
        for python in wheel.pythons:
            pins = plugins if wheel.extra else []
            yield (
                wheel,
                ran(
                    profile.name, wheel.distribution, wheel.version, *pins, python=f"{python}.9", machine=wheel.machine
                ),
            )


@pytest.mark.parametrize(
    ("profile", "release"), RELEASES, ids=[f"{profile.name}-{release.version}" for profile, release in RELEASES]
)
def test_every_row_gives_a_stack_or_a_reasoned_refusal_for_every_python_and_variant(profile, release):
    served = 0
    for wheel, run in runs(profile, release):
        for variant in VARIANTS:
            if served_by_rule(profile, release, wheel, run, variant):
                check(match(run, PROFILES, variant), run, variant)
                served += 1
            else:
                with pytest.raises(MatchError) as caught:
                    match(run, PROFILES, variant)
                assert all((caught.value.what, caught.value.where, caught.value.todo))
    assert served


def served_by_rule(
    profile: FrameworkProfile, release: Release, wheel: FrameworkWheel, run: TrainingManifest, variant: str
) -> bool:
    """Which of the questions have an answer; the others are refused."""
    minor = run.python.version.rpartition(".")[0]
    if wheel.stands_for and not wheel.jaxlib:
        code = next((it for it in release.wheels if it.pin == wheel.stands_for), None)
        return variant == "cpu" and code is not None and minor in code.pythons
    if variant == "cpu":
        return minor in wheel.pythons
    if profile.name == "tensorflow":
        return wheel.machine == "x86_64"
    return any(it.cuda and it.machine == wheel.machine and minor in it.pythons for it in release.wheels)


def check(stack: Stack, run: TrainingManifest, variant: str) -> None:
    assert (stack.variant, stack.python, stack.machine) == (variant, run.python.version, run.platform.machine)
    assert Version(stack.version).public == f"{run.framework.version}" if run.framework else False
    assert names(stack) == sorted(set(names(stack)))
    assert all(it.reason and it.source and it.value for it in stack.decisions)
    assert f"{stack.distribution}=={stack.version}" in stack.requirements
    if variant == "cpu":
        nothing = (stack.cuda, stack.cudnn, stack.cuda_source, stack.variables, stack.driver_minimum)
        assert nothing == (None, None, "none", (), None)
        assert not any(is_nvidia(it) for it in names(stack))
        assert "/library/python:" in stack.base
    else:
        inside = stack.framework == "torch" and Version(stack.version) < Version("1.13")
        assert (bool(stack.cuda and stack.driver_minimum), bool(stack.cudnn)) == (True, not inside)
        assert (stack.cuda_source == "wheels" and not inside) == any(is_nvidia(it) for it in names(stack))
        assert (stack.cuda_source == "base") == ("nvidia/cuda" in stack.base)
        majors = {it.rpartition("-cu")[2] for it in names(stack) if "-cu1" in it}
        assert majors <= {f"{stack.cuda}".partition(".")[0]}


@pytest.mark.parametrize(
    ("version", "python", "cuda", "cudnn", "driver"),
    [
        ("1.13.1", "3.10.2", "11.7", "8.5.0.96", "450.80.02"),
        ("2.0.1", "3.11.7", "11.7", "8.5.0.96", "450.80.02"),
        ("2.4.1", "3.12.1", "12.1", "9.1.0.70", "525.60.13"),
        ("2.10.0", "3.14.0", "12.8", "9.10.2.21", "525.60.13"),
        ("2.11.0", "3.14.0", "13.0", "9.19.0.56", "580.65.06"),
        ("2.15.0", "3.15.0", "13.2", "9.26.0.51", "580.65.06"),
    ],
)
def test_torch_brings_its_cuda_as_wheels_and_with_2_11_the_driver_jumps(version, python, cuda, cudnn, driver):
    stack = match(ran("torch", "torch", version, python=python), PROFILES, "gpu")
    assert (stack.cuda, stack.cudnn, stack.driver_minimum, stack.cuda_source) == (cuda, cudnn, driver, "wheels")
    assert (stack.version, stack.variables[0][0]) == (version, "NVIDIA_DRIVER_CAPABILITIES")
    assert ("triton" in names(stack)) == (Version(version) >= Version("2.0"))


def test_cuda_toolkit_of_torch_brings_its_own_wheels_in_turn():
    stack = match(ran("torch", "torch", "2.15.0+cpu", python="3.15.0"), PROFILES, "gpu")
    assert changed(stack)[0] == ("torch==2.15.0+cpu", "torch==2.15.0")
    assert not any(it.startswith("cuda-bindings") for it in stack.requirements), "its marker excludes Python 3.15"
    assert stack.gaps is not None
    run = ran("torch", "torch", "2.15.0", ("cuda-toolkit", "13.2.2"), ("nvidia-cudnn-cu13", "9.26.0.51"))
    whole = match(run, PROFILES)
    assert (whole.variant, whole.gaps, whole.cudnn) == ("gpu", None, "9.26.0.51")
    assert "nvidia-nccl-cu13==2.30.7" in whole.requirements


@pytest.mark.parametrize(
    ("version", "machine", "expected"),
    [
        ("2.5.1", "x86_64", "2.5.1+cpu"),
        ("2.5.1+cu118", "x86_64", "2.5.1+cpu"),
        ("2.5.1+cpu", "x86_64", "2.5.1+cpu"),
        ("2.5.1+cpu.cxx11.abi", "x86_64", "2.5.1+cpu.cxx11.abi"),
        ("2.5.1", "aarch64", "2.5.1"),
        ("2.10.0", "aarch64", "2.10.0"),
        ("2.11.0", "aarch64", "2.11.0+cpu"),
        ("2.5.1+cpu", "aarch64", "2.5.1+cpu"),
    ],
)
def test_torch_for_the_cpu_is_the_labelled_build_where_the_plain_one_has_cuda(version, machine, expected):
    pins = (
        ("nvidia-nccl-cu12", "2.21.5"),
        ("triton", "3.1.0"),
        ("torchvision", "0.20.1"),
        ("torchaudio", "2.5.1+cu118"),
    )
    stack = match(ran("torch", "torch", version, *pins, python="3.12.1", machine=machine), PROFILES, "cpu")
    plain = machine == "aarch64" and "+" not in expected
    label = "" if plain or (machine, expected) == ("aarch64", "2.5.1+cpu") else "+cpu"
    assert set(stack.requirements) == {f"torch=={expected}", f"torchvision==0.20.1{label}", f"torchaudio==2.5.1{label}"}
    assert ("PyTorch's own index" in next(it.reason for it in stack.decisions if it.what == "framework")) == (not plain)


def test_torch_of_another_cuda_keeps_its_label_and_its_own_wheels():
    run = ran("torch", "torch", "2.1.0+cu118", ("torchvision", "0.16.0+cu118"), ("nvidia-cudnn-cu11", "8.7.0.84"))
    stack = match(run, PROFILES)
    assert (stack.variant, stack.version, stack.cuda, stack.cuda_source) == ("gpu", "2.1.0+cu118", "11.8", "wheels")
    assert (stack.changes, stack.gaps, stack.driver_minimum) == ((), None, "450.80.02")
    assert "torchvision==0.16.0+cu118" in stack.requirements


def test_projects_of_torch_get_the_label_of_torch_and_labels_that_differ_are_told():
    pins = (("torchvision", "0.16.0+cu121"), ("torchaudio", "2.1.0+cpu"))
    stack = match(ran("torch", "torch", "2.1.0+cu118", *pins), PROFILES)
    assert changed(stack) == [("torchaudio==2.1.0+cpu", "torchaudio==2.1.0+cu118")]
    (told,) = [it for it in stack.decisions if it.warning]
    assert told.what == "labels"
    assert told.value == "torch==2.1.0+cu118, torchaudio==2.1.0+cu118, torchvision==0.16.0+cu121"
    alike = match(ran("torch", "torch", "2.1.0+cu118", ("torchvision", "0.16.0+cu118")), PROFILES)
    cpu = match(ran("torch", "torch", "2.1.0+cu118", *pins), PROFILES, "cpu")
    assert [it for stack in (alike, cpu) for it in stack.decisions if it.warning] == []


@pytest.mark.parametrize(
    ("version", "pins", "gpus", "variant", "reason"),
    [
        ("2.5.1", (("nvidia-cublas-cu12", "12.4.5.8"),), (), "gpu", "CUDA from wheels"),
        ("2.5.1", (), (), "cpu", "no GPU"),
        ("2.5.1", (), ("A100",), "gpu", "1 GPU(s)"),
        ("2.5.1+cpu", (), ("A100",), "cpu", "no CUDA build"),
        ("2.5.1+cu118", (), (), "gpu", "+cu118"),
    ],
)
def test_the_variant_of_a_torch_run_follows_its_build_and_its_gpus(version, pins, gpus, variant, reason):
    stack = match(ran("torch", "torch", version, *pins, gpus=tuple(Gpu(name=it) for it in gpus)), PROFILES)
    assert stack.variant == variant
    assert reason in next(it.reason for it in stack.decisions if it.what == "variant")


@pytest.mark.parametrize(
    ("pins", "extra", "cuda", "driver"),
    [
        ((("jax-cuda12-plugin", "0.8.0"),), "cuda12", "12", "525.60.13"),
        ((("jax-cuda13-pjrt", "0.8.0"),), "cuda13", "13", "580.65.06"),
        ((("nvidia-cuda-runtime", "13.0.48"),), "cuda13", "13", "580.65.06"),
        ((), "cuda12", "12", "525.60.13"),
    ],
)
def test_jax_gets_the_plug_in_that_the_run_had_else_the_one_for_most_drivers(pins, extra, cuda, driver):
    stack = match(ran("jax", "jax", "0.8.0", ("jaxlib", "0.8.0"), *pins), PROFILES, "gpu")
    assert (decided(stack, "extra"), stack.cuda, stack.driver_minimum) == (extra, cuda, driver)
    assert {f"jax-{extra}-plugin==0.8.0", f"jax-{extra}-pjrt==0.8.0", "jaxlib==0.8.0"} <= set(stack.requirements)


def test_jax_for_the_cpu_has_neither_plug_ins_nor_nvidia_wheels():
    pins = (
        ("jaxlib", "0.8.0"),
        ("jax-cuda12-plugin", "0.8.0"),
        ("jax-cuda12-pjrt", "0.8.0"),
        ("nvidia-cudnn-cu12", "9.10"),
    )
    stack = match(ran("jax", "jax", "0.8.0", *pins), PROFILES, "cpu")
    assert stack.requirements == ("jax==0.8.0", "jaxlib==0.8.0")
    assert match(ran("jax", "jax", "0.8.0", *pins), PROFILES).variant == "gpu"
    assert match(ran("jax", "jax", "0.8.0", *pins[:1]), PROFILES).variant == "cpu"


def test_an_extra_of_jax_that_cannot_be_installed_is_said():
    with pytest.raises(MatchError) as caught:
        match(ran("jax", "jax", "0.4.20", ("jaxlib", "0.4.20")), PROFILES, "gpu")
    assert "cuda12-pip: the index has no jaxlib==0.4.20+cuda12.cudnn89" in caught.value.what
    stack = match(ran("jax", "jax", "0.7.1", ("jaxlib", "0.7.1")), PROFILES, "gpu")
    reason = next(it.reason for it in stack.decisions if it.what == "extra")
    assert "cuda13: the index has no jax-cuda13-plugin" in reason


def test_jaxlib_with_a_label_is_a_build_for_cuda_and_loses_it_for_the_cpu():
    pins = (("jaxlib", "0.4.20+cuda12.cudnn89"), ("nvidia-cudnn-cu12", "8.9.7.29"))
    stack = match(ran("jax", "jax", "0.4.20", *pins), PROFILES)
    assert (stack.variant, stack.cuda, stack.cudnn, stack.changes) == ("gpu", "12", "8.9.7.29", ())
    cpu = match(ran("jax", "jax", "0.4.20", *pins), PROFILES, "cpu")
    assert cpu.requirements == ("jax==0.4.20", "jaxlib==0.4.20")


def test_a_run_with_several_frameworks_gets_what_its_own_one_needs():
    pins = (("torch", "2.5.1"), ("jax", "0.4.35"), ("jaxlib", "0.4.34"), ("nvidia-cudnn-cu12", "9.3.0.75"))
    gpu = match(ran("tensorflow", "tensorflow", "2.18.0", *pins), PROFILES, "gpu")
    assert (gpu.framework, gpu.cuda, gpu.cudnn) == ("tensorflow", "12.5.1", "9.3.0.75")
    assert {"torch==2.5.1", "jax==0.4.35"} <= set(gpu.requirements)
    cpu = match(ran("tensorflow", "tensorflow", "2.18.0", *pins), PROFILES, "cpu")
    assert set(cpu.requirements) == {"tensorflow-cpu==2.18.0", "torch==2.5.1+cpu", "jax==0.4.35", "jaxlib==0.4.34"}


# Two frameworks in one run


def with_cuda(profile: FrameworkProfile, pin: str, *pins: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """A build with everything that it requires for CUDA."""
    rows = (it for release in profile.releases for it in release.wheels if it.pin == pin and it.machine == "x86_64")
    needed = map(Requirement, next(it.cuda_requirements for it in rows if it.cuda_requirements))
    name, _, version = pin.partition("==")
    return ((name, version), *((it.name, next(iter(it.specifier)).version.removesuffix(".*")) for it in needed), *pins)


BUILDS = {
    "tensorflow": {
        "gpu": with_cuda(TENSORFLOW, "tensorflow==2.18.0"),
        "cpu": (("tensorflow-cpu", "2.18.0"),),
    },
    "torch": {
        "gpu": with_cuda(TORCH, "torch==2.5.1", ("torchvision", "0.20.1"), ("triton", "3.1.0")),
        "cpu": (("torch", "2.5.1+cpu"), ("torchvision", "0.20.1+cpu")),
    },
    "jax": {
        "gpu": with_cuda(JAX, "jax==0.4.35", ("jaxlib", "0.4.34")),
        "cpu": (("jax", "0.4.35"), ("jaxlib", "0.4.34")),
    },
}
"""What a run has of each framework, the distribution that brings it first."""
MODELS = {"tensorflow": "saved_model", "torch": "torchscript", "jax": "orbax"}


def two(
    used: str, kind: str, other: str, other_kind: str, *, listed_first: str, **facts: Any
) -> tuple[TrainingManifest, set[str]]:
    """A run that has both, as captures of all times list them, and its pins; `facts` say which it used."""
    kinds = {used: kind, other: other_kind}
    pins = list({pin[0]: pin for name, build in kinds.items() for pin in BUILDS[name][build]}.values())
    found = {name: Framework(name=name, distribution=pin[0], version=pin[1]) for name, build in kinds.items()
             for pin in BUILDS[name][build][:1]}  # fmt: skip
    order = (listed_first, used if listed_first == other else other)
    run = ran(used, *pins[0], *pins[1:], gpus=facts.pop("gpus", ()))
    run = replace(run, framework=found[order[0]], frameworks=tuple(found[it] for it in order), **facts)
    return run, {f"{name}=={version}" for name, version in pins}


@pytest.mark.parametrize("used_first", [True, False], ids=["used first", "used second"])
@pytest.mark.parametrize(("used", "other"), list(permutations(BUILDS, 2)), ids=lambda it: it)
def test_of_two_frameworks_the_used_one_decides_and_the_other_keeps_its_build(used, other, used_first):
    first = used if used_first else other
    facts = (
        {"numerics": (Numerics(framework=used),)},
        {"model": Model(uri="gs://m/1", format=MODELS[used])},
        {"native": Native(process="fresh", libraries=(library(used),))},
    )
    for kind, other_kind in product(("gpu", "cpu"), repeat=2):
        for known in facts:
            run, pins = two(used, kind, other, other_kind, listed_first=first, **known)
            stack = match(run, PROFILES)
            assert (stack.framework, stack.variant) == (used, kind)
            assert pins - set(stack.requirements) == set(), "nothing is dropped, and no build is another"
            assert decided(stack, "used") == used

        unknown, pins = two(used, kind, other, other_kind, listed_first=first)
        with pytest.raises(MatchError) as caught:
            match(unknown, PROFILES)
        assert f"--framework {used}" in caught.value.todo
        assert f"--framework {other}" in caught.value.todo
        said = match(supplement(unknown, RecordOptions(framework=used), "run"), PROFILES)
        assert (said.framework, said.variant, pins - set(said.requirements)) == (used, kind, set())
        none = match(supplement(unknown, RecordOptions(framework="none"), "run"), PROFILES)
        assert (none.framework, none.cuda, set(none.requirements), none.changes) == ("none", None, pins, ())


def library(framework: str) -> Library:
    owner = {"jax": "jaxlib"}.get(framework, framework)
    return Library(name="libx.so", path="/x/libx.so", owner=Owner(kind="wheel", name=owner))


@pytest.mark.parametrize(
    ("order", "loaded", "model", "used"),
    [
        (("torch", "tensorflow"), {"tensorflow", "torch"}, None, "torch"),  # TensorBoard's writer imports TensorFlow
        (("tensorflow", "torch"), {"tensorflow", "torch"}, None, None),
        (("tensorflow", "torch"), {"tensorflow", "torch"}, "torch", "torch"),
        (("torch", "tensorflow"), {"torch"}, "saved_model", None),
        (("tensorflow", "jax"), set(), "onnx", None),
        (("jax", "tensorflow"), {"tensorflow", "jax"}, None, "jax"),
    ],
)
def test_facts_that_differ_or_say_nothing_are_not_taken_for_an_answer(order, loaded, model, used):
    run, _ = two(
        order[0], "cpu", order[1], "cpu", listed_first=order[0],
        numerics=tuple(Numerics(framework=it) for it in sorted(loaded)),
        model=Model(uri="gs://m/1", format=model) if model else None,
    )  # fmt: skip
    found = known_framework(run)
    assert (found.name if found else None) == used


def test_keras_says_which_backend_wrote_its_model():
    written = Model(uri="m.keras", format="keras", details=(("backend", "torch"),))
    run, _ = two("torch", "cpu", "tensorflow", "cpu", listed_first="tensorflow", model=written)
    assert match(run, PROFILES).framework == "torch"


@pytest.mark.parametrize("other", ["torch", "jax"])
def test_cuda_of_another_framework_is_no_sign_that_the_used_one_ran_on_a_gpu(other):
    found = {name: Framework(name=name, distribution=BUILDS[name]["gpu"][0][0], version=BUILDS[name]["gpu"][0][1])
             for name in ("tensorflow", other)}  # fmt: skip
    run = ran("tensorflow", "tensorflow", "2.18.0", *BUILDS[other]["gpu"])
    run = replace(run, frameworks=tuple(found.values()), numerics=(Numerics(framework="tensorflow"),))
    stack = match(run, PROFILES)
    assert (stack.framework, stack.variant) == ("tensorflow", "cpu")
    assert changed(stack) == [("tensorflow==2.18.0", "tensorflow-cpu==2.18.0")], "and nothing of the other one"
    asked = match(run, PROFILES, "cpu")
    assert [it for it in names(asked) if is_nvidia(it)] == [], "an image without CUDA was asked for"
    unsure = replace(run, source=Source(format="capture", unknown=("accelerator",)))
    with pytest.raises(MatchError, match="where: accelerator"):
        match(unsure, PROFILES)


def test_jax_that_tensorflow_requires_is_no_second_framework():
    run = ran("tensorflow", "tensorflow-cpu", "2.12.0", ("jax", "0.4.20"), ("jaxlib", "0.4.20"))
    jax = Framework(name="jax", distribution="jax", version="0.4.20")
    both = replace(run, framework=None, frameworks=(jax, *filter(None, [run.framework])))
    assert match(both, PROFILES).framework == "tensorflow"


def test_a_run_without_a_framework_keeps_every_pin_and_gets_no_cuda():
    run = replace(ran("torch", "torch", "2.5.1", ("xgboost", "2.1.0")), framework=None, framework_source="--framework")
    stack = match(run, PROFILES)
    assert (stack.title, stack.variant, stack.variables) == ("no framework", "cpu", ())
    assert stack.requirements == ("torch==2.5.1", "xgboost==2.1.0")
    assert stack.base.startswith("docker.io/library/python:3.11.7-slim-")
    assert match(run, PROFILES, "gpu").variables
    with pytest.raises(UsageError, match="--set cuda"):
        match(run, PROFILES, overrides={"cuda": "12.2"})


def test_a_run_that_had_no_framework_needs_no_option():
    run = replace(ran("none", "numpy", "1.26.4", ("requests", "2.32.3")), framework=None)
    stack = match(run, PROFILES)
    assert (stack.title, stack.variant, stack.requirements) == (
        "no framework",
        "cpu",
        ("numpy==1.26.4", "requests==2.32.3"),
    )
    assert stack.base.startswith("docker.io/library/python:3.11.7-slim-")
    decision = next(it for it in stack.decisions if it.what == "framework")
    assert (decision.value, decision.source) == ("none", "manifest: distributions")


def test_a_record_without_the_framework_that_wrote_the_model_was_taken_elsewhere():
    run = replace(ran("none", "numpy", "1.26.4"), framework=None)
    model = Model(uri="m", format="saved_model", written_by=(Writer(name="tensorflow", version="2.15.1"),))
    with pytest.raises(MatchError, match="tensorflow wrote the model"):
        match(replace(run, model=model), PROFILES)
    assert match(replace(run, model=replace(model, format="onnx")), PROFILES).framework == "none"


def test_envbuild_is_left_out_of_what_it_captured():
    stack = match(ran("torch", "torch", "2.5.1", ("envbuild", "0.1.0"), ("rich", "15.0.0")), PROFILES, "cpu")
    assert {"envbuild", "rich"} & {it.partition("==")[0] for it in stack.requirements} == {"rich"}
    assert ("envbuild==0.1.0", None) in changed(stack)


def test_a_run_without_a_framework_is_told_what_every_run_is():
    pins = [("nvidia-nccl-cu11", "2.14.3"), ("nvidia-nccl-cu12", "2.20.5"), ("nvidia-cublas-cu12", "12.1.3.1")]
    run = replace(ran("torch", "torch", "2.5.1", *pins), framework=None, framework_source="--framework")
    record = replace(run, source=Source(format="pip-freeze", complete=False), platform=Platform())
    stack = match(record, PROFILES)
    told = {it.what: it for it in stack.decisions}
    assert (told["as of"].value, told["platform"].value) == ("2026-01-01T00:00:00Z", "Linux x86_64")
    assert (stack.gaps.before, told["nccl twice"].warning) == ("2026-01-01T00:00:00Z", True) if stack.gaps else False
    assert told["unused cuda"].warning
    assert told["unused cuda"].value == "nvidia-cublas-cu12, nvidia-nccl-cu11, nvidia-nccl-cu12"
    python = next(it for it in match(run, PROFILES, overrides={"python": "3.11.2"}).decisions if it.what == "python")
    assert (python.value, python.reason, python.warning) == ("3.11.2", "overridden: python was set by hand", True)
    assert "--variant cpu leaves them out" in told["unused cuda"].reason
    moved = match(run, PROFILES, machine="linux/arm64")
    assert "it was asked for; the run was on x86_64" in [it.reason for it in moved.decisions]
    assert moved.requirements == ("torch==2.5.1",), "which is a build for the CPU there"


@pytest.mark.parametrize("framework", ["none", "tensorflow"])
def test_an_image_for_the_cpu_that_was_asked_for_has_no_cuda_wheels(framework):
    pins = (("tensorflow-cpu", "2.18.0"), ("xgboost", "2.1.0"), *BUILDS["torch"]["gpu"])
    found = tuple(Framework(name=it, distribution=name, version=version)
                  for it, (name, version) in (("tensorflow", pins[0]), ("torch", BUILDS["torch"]["gpu"][0])))  # fmt: skip
    run = replace(ran("torch", *pins[0], *pins[1:]), framework=None, frameworks=found)
    run = supplement(run, RecordOptions(framework=framework), "run")
    kept = match(run, PROFILES)
    assert kept.variant == "cpu"
    assert decided(kept, "unused cuda").startswith("nvidia-cublas-cu12, ")
    cpu = match(run, PROFILES, "cpu")
    assert set(cpu.requirements) == {
        "tensorflow-cpu==2.18.0",
        "torch==2.5.1+cpu",
        "torchvision==0.20.1+cpu",
        "xgboost==2.1.0",
    }
    assert not [it for it in cpu.decisions if it.what == "unused cuda"]
    assert {f"{name}=={version}" for name, version in pins} == set(match(run, PROFILES, "auto").requirements)


# Left out by hand


def test_what_is_dropped_is_left_out_and_recorded():
    run = ran("torch", "torch", "2.5.1+cpu", ("numpy", "1.26.4"), ("mkl", "2024.0"))
    without_version = replace(run.distributions[-1], version=None, origin=Origin(kind="conda"))
    run = replace(run, distributions=(*run.distributions[:-1], without_version))
    stack = match(run, PROFILES, drop=["MKL"])
    assert (stack.requirements, stack.dropped) == (("numpy==1.26.4", "torch==2.5.1+cpu"), ("mkl",))
    assert changed(stack) == [("mkl", None)]
    incomplete = replace(run, source=Source(format="conda-list", complete=False), framework=run.framework)
    gaps = match(incomplete, PROFILES, "cpu", drop=["mkl"]).gaps
    assert gaps is not None
    assert "mkl" in gaps.without


def test_a_reason_to_drop_is_the_reason_of_the_change():
    stack = match(ran("torch", "torch", "2.5.1+cpu", ("mkl", "2024.0")), PROFILES, drop=["MKL = the index has none"])
    assert [(it.before, it.after, it.reason) for it in stack.changes] == [("mkl==2024.0", None, "the index has none")]


def test_of_several_frameworks_that_one_counts_which_the_run_imported():
    run, _ = two("torch", "gpu", "tensorflow", "gpu", listed_first="tensorflow", gpus=(Gpu(name="Tesla T4"),))
    others = [Distribution(name=it, version="1", origin=Origin(kind="index")) for it in ("requests", "ipykernel")]
    run = replace(run, distributions=(*run.distributions, *others), imported=("Torch", "requests"))
    stack = match(run, PROFILES, imported_only=True)
    assert (stack.framework, stack.distribution) == ("torch", "torch")
    assert {"ipykernel", "tensorflow"} <= set(stack.not_imported)
    assert "requests==1" in stack.requirements
    had = {canonicalize_name(it.name) for it in run.distributions}
    assert set(filter(is_nvidia, had)) == set(filter(is_nvidia, names(stack))) != set()


def test_a_run_that_imported_no_framework_gets_none_and_no_cuda():
    pins = ("nvidia-cudnn-cu12", "9.1.0.70"), ("nvidia-nccl-cu12", "2.21.5"), ("xgboost", "2.1.0")
    run = replace(ran("torch", "torch", "2.5.1", *pins), imported=("xgboost",))
    stack = match(run, PROFILES, imported_only=True)
    assert (stack.framework, stack.requirements) == ("none", ("xgboost==2.1.0",))
    assert stack.not_imported == ("nvidia-cudnn-cu12", "nvidia-nccl-cu12", "torch")
    assert match(run, PROFILES, "cpu", imported_only=True).not_imported == ("torch",), "the variant has no NCCL"
    again = match(run, PROFILES, drop=[f"{it}=--only-imported" for it in stack.not_imported])
    assert (again.framework, again.requirements) == (stack.framework, stack.requirements), "as serving and local do"
    named = match(replace(run, framework_source="--framework"), PROFILES, "cpu", imported_only=True)
    assert (named.framework, named.not_imported) == ("torch", ())


def test_of_a_hosted_notebook_s_freeze_the_stack_has_what_the_run_imported():
    text = (Path(__file__).parents[2] / "benchmarks" / "freezes" / "notebook-py313.txt").read_text()
    run = read("freeze.txt", text, python="3.13.5", gpu="none")
    assert (len(run.distributions), {it.name for it in run.frameworks}) == (
        641,
        {"tensorflow", "torch", "jax", "keras"},
    )
    stack = match(replace(run, imported=("pandas", "scikit-learn")), PROFILES, imported_only=True)
    assert stack.requirements == ("pandas==2.2.3", "scikit-learn==1.6.1")
    assert (stack.framework, stack.variant, len(stack.not_imported)) == ("none", "cpu", 639)


@pytest.mark.parametrize(
    ("imported", "says", "todo"),
    [
        ((), "does not say what the run imported", "--drop NAME"),
        (("sklearn",), "does not have sklearn", "not of modules"),
    ],
)
def test_what_was_imported_has_to_be_known(imported, says, todo):
    with pytest.raises(UsageError, match=says) as caught:
        match(replace(ran("torch", "torch", "2.5.1+cpu"), imported=imported), PROFILES, imported_only=True)
    assert todo in caught.value.todo


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "does not have absent"),
        ("torch", "torch is the run's framework"),
        ("torch==2.5.1", "by its name, without a version"),
    ],
)
def test_what_the_run_did_not_have_or_its_framework_cannot_be_dropped(name, says):
    with pytest.raises(UsageError, match=says) as caught:
        match(ran("torch", "torch", "2.5.1+cpu"), PROFILES, drop=[name])
    assert caught.value.where == f"--drop {name}"


def test_dropping_the_other_framework_answers_which_one_was_used():
    run, _ = two("torch", "cpu", "tensorflow", "cpu", listed_first="tensorflow")
    stack = match(run, PROFILES, drop=["tensorflow-cpu"])
    assert (stack.framework, stack.dropped) == ("torch", ("tensorflow-cpu",))


@pytest.mark.parametrize(
    ("framework", "version", "parts"),
    [
        ("torch", "2.5.7", ["torch 2.5.7: no release", "torch 2.5.1: another", "torch 2.6.0: another"]),
        ("torch", "2.5.1+rocm6.2", ["somebody's own build"]),
        ("torch", "2.5.1+cu999", ["somebody's own build; the known builds are +cu118, +cu121, +cu124, +cpu"]),
        ("torch", "2.5.1+cu130", ["somebody's own build; the known builds are +cu118, +cu121, +cu124, +cpu"]),
        ("torch", "1.7.1", ["the profiles begin with 1.8.0", "torch 1.8.0: another"]),
        ("jax", "0.4.32", ["jax 0.4.31: another", "jax 0.4.33: another"]),
        ("jax", "0.4.35+dev", ["somebody's own build"]),
    ],
)
def test_a_release_that_is_not_known_names_those_near_it(framework, version, parts):
    with pytest.raises(MatchError) as caught:
        match(ran(framework, framework, version), PROFILES, "cpu")
    assert [part for part in parts if part not in caught.value.what] == []
    helped = caught.value.todo.endswith(f"python -m profiles.refresh {framework}")
    assert helped == ("no release of this version" in caught.value.what), "and not where it would change nothing"


def test_every_cuda_build_that_torch_s_index_is_known_to_have_is_matched():
    assert [it.label for it in PROFILES.builds] == sorted(
        (it.label for it in PROFILES.builds), key=lambda it: int(it[2:])
    )
    for build in PROFILES.builds:
        for release in (it for it in TORCH.releases if build.covers(it.version)):
            python = f"{release.wheels[0].pythons[-1]}.1"
            stack = match(ran("torch", "torch", f"{release.version}+{build.label}", python=python), PROFILES, "gpu")
            assert f"torch=={release.version}+{build.label}" in stack.requirements


def test_torch_before_1_13_brings_its_cuda_inside():
    stack = match(ran("torch", "torch", "1.12.1", python="3.10.8"), PROFILES, "gpu")
    assert (stack.cuda, stack.cuda_source, stack.requirements) == ("10.2", "wheels", ("torch==1.12.1",))
    cpu = match(ran("torch", "torch", "1.12.1", python="3.10.8"), PROFILES, "cpu")
    assert cpu.requirements == ("torch==1.12.1+cpu",)


def test_an_apple_laptop_gets_linux_for_arm64():
    torch = match(ran("torch", "torch", "2.5.1", python="3.12.2", machine="arm64", system="Darwin"), PROFILES)
    assert (torch.machine, torch.variant, torch.requirements) == ("aarch64", "cpu", ("torch==2.5.1",))
    jax = match(ran("jax", "jax", "0.8.0", ("jaxlib", "0.8.0"), machine="arm64", system="Darwin"), PROFILES)
    assert (jax.machine, jax.variant) == ("aarch64", "cpu")


@pytest.mark.parametrize(("version", "label"), [("2.5.1", ""), ("2.11.0", "+cpu")])
def test_another_machine_takes_the_builds_of_torch_that_it_has(version, label):
    run = ran("torch", "torch", f"{version}+cpu", ("torchvision", "0.20.1+cpu"))
    stack = match(run, PROFILES, machine="aarch64")
    assert (stack.variant, stack.machine) == ("cpu", "aarch64")
    assert stack.requirements == (f"torch=={version}{label}", f"torchvision==0.20.1{label}")
    assert match(run, PROFILES, machine="x86_64").changes == ()


def test_another_machine_changes_what_it_must_and_says_so():
    run = ran("tensorflow", "tensorflow-cpu", "2.15.1", ("numpy", "1.26.4"))
    stack = match(run, PROFILES, "cpu", machine="linux/arm64")
    assert (stack.machine, decided(stack, "platform")) == ("aarch64", "Linux aarch64")
    assert changed(stack) == [
        ("tensorflow-cpu==2.15.1", "tensorflow==2.15.1"), (None, "tensorflow-cpu-aws==2.15.1"),
    ]  # fmt: skip
    assert "no wheel for Linux aarch64" in stack.changes[0].reason
    assert match(run, PROFILES, "cpu", machine="x86_64").decisions == match(run, PROFILES, "cpu").decisions
    with pytest.raises(MatchError, match=r"tensorflow==2\.18\.0 for aarch64: is a CPU build"):
        match(ran("tensorflow", "tensorflow", "2.18.0"), PROFILES, "gpu", machine="aarch64")
    with pytest.raises(MatchError, match="not for riscv64"):
        match(run, PROFILES, "cpu", machine="riscv64")


@pytest.mark.parametrize("profile", [TORCH, JAX], ids=lambda it: it.name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_matching_a_stack_again_changes_nothing(profile, variant):
    for release in profile.releases[5:]:
        python = f"{release.wheels[0].pythons[-1]}.1"
        own = (profile.name, str(release.version))
        first = match(ran(profile.name, *own, python=python), PROFILES, variant)
        exact = [
            (name, it.partition("==")[2] or "99") for name, it in zip(names(first), first.requirements, strict=True)
        ]
        pins = [it for it in exact if it[0] != profile.name]
        again = match(ran(profile.name, profile.name, first.version, *pins, python=python), PROFILES, variant)
        assert (again.changes, names(again), again.variant) == ((), names(first), variant)
        assert (again.base, again.variables, again.cuda) == (first.base, first.variables, first.cuda)
