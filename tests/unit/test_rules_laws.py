"""Laws of the rules: what is held against itself agrees, the same question has the same answer, silence is no fault."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.manifest.hardware import Accelerator, Cpu, Gpu
from envbuild.manifest.model import (
    Contract,
    Data,
    Framework,
    Model,
    ModelFile,
    Numerics,
    RequiredVariable,
    Tree,
    Writer,
)
from envbuild.verify.findings import Finding
from envbuild.verify.rules import apply_rules
from envbuild.verify.sources import Kind, Package, Side

NAMES = ("numpy", "scipy", "pandas", "requests", "six", "pip", "nvidia-cublas-cu12", "tf-keras", "triton", "acme")
KINDS: tuple[Kind, ...] = ("model", "image", "manifest", "lock", "context", "host")
HOWEVER = frozenset({"name", "kind", "complete", "variant", "slim", "dropped"})
"""Fields that say how the others are to be read, and are no facts that a record may lack."""


@st.composite
def some_package(draw: st.DrawFn, name: str) -> Package:
    """Files go by one number, as the same wheel has the same content and the same digest."""
    version = draw(st.sampled_from(["1.0", "1.0.0", "1.1", "2.0rc1", "1.0+cpu", "1.0+cu118", None]))
    wheel = draw(st.sampled_from(["", "a" * 64, "b" * 64]))
    return Package(
        name=name,
        version=version,
        content=wheel or None,
        wheels=frozenset({wheel} if wheel else ()),
        build=draw(st.sampled_from(["", "py_0", "py_1"])) if not wheel else "",
    )


@st.composite
def some_packages(draw: st.DrawFn) -> dict[str, Package]:
    return {name: draw(some_package(name)) for name in sorted(draw(st.sets(st.sampled_from(NAMES))))}


@st.composite
def some_framework(draw: st.DrawFn) -> Framework:
    name = draw(st.sampled_from(["tensorflow", "torch", "jax"]))
    others = {"tensorflow": ["tensorflow", "tensorflow-cpu", "tensorflow-gpu"]}
    cuda = draw(st.sampled_from([None, "11.2", "12.2", "12.5.1"]))
    distribution = draw(st.sampled_from(others.get(name, [name])))
    return Framework(
        name=name,
        distribution=distribution,
        version=draw(st.sampled_from(["1.15.0", "2.8.0", "2.8.4", "2.10.0", "2.10.0+cpu", "2.10.0+cu118"])),
        cuda=None if "cpu" in distribution else cuda,
        compute_capabilities=draw(st.sampled_from([(), ("sm_70", "compute_80"), ("7.0",)])),
    )


@st.composite
def some_hardware(draw: st.DrawFn) -> Accelerator:
    """A driver, and the CUDA that it came with."""
    if draw(st.booleans()):
        return Accelerator(kind="none")
    driver, maximum = draw(st.sampled_from([("418.87.01", "10.1"), ("470.57.02", "11.4"), ("575.57.08", "12.9")]))
    gpu = Gpu(name="GPU", memory=draw(st.sampled_from([None, 1 << 34, 1 << 36])), compute_capability="7.5")
    return Accelerator(kind="nvidia", driver=driver, cuda_maximum=maximum, gpus=(gpu,))


@st.composite
def some_contract(draw: st.DrawFn) -> Contract:
    names = draw(st.sets(st.sampled_from(["DATA", "AIP_MODEL_DIR", "OTHER"])))
    return Contract(
        variables=tuple(RequiredVariable(name=it, present=draw(st.booleans())) for it in sorted(names)),
        data=tuple(
            Data(uri=uri, generation=draw(st.sampled_from([None, 1, 2])), checksum=draw(st.sampled_from([None, "a:1"])))
            for uri in sorted(draw(st.sets(st.sampled_from(["gs://a/b", "/data"]))))
        ),
        preprocessing=tuple(
            Tree(path=path, git_tree=draw(st.sampled_from([None, "a" * 40, "b" * 40])))
            for path in sorted(draw(st.sets(st.sampled_from(["src", "prepare.py"]))))
        ),
    )


@st.composite
def some_numerics(draw: st.DrawFn) -> tuple[Numerics, ...] | None:
    asked = Numerics(
        framework="tensorflow",
        seed=draw(st.sampled_from([None, 1, 2])),
        deterministic=draw(st.sampled_from([None, True, False])),
        precision=draw(texts("float32", "mixed_float16")),
        settings=tuple(sorted(draw(st.dictionaries(st.sampled_from(["jit", "onednn"]), st.text("01"))).items())),
    )
    return draw(st.sampled_from([None, (asked,)]))


@st.composite
def some_files(draw: st.DrawFn) -> tuple[ModelFile, ...]:
    names = sorted(draw(st.sets(st.sampled_from(["a", "b", "c"]))))
    return tuple(ModelFile(path=it, size=1, sha256=draw(st.sampled_from(["a" * 64, "b" * 64]))) for it in names)


def texts(*known: str) -> st.SearchStrategy[str | None]:
    return st.sampled_from([None, *known])


@st.composite
def some_side(draw: st.DrawFn) -> Side:
    """A target whose facts fit together: the frameworks are among the packages, as far as both are known."""
    framework = draw(some_framework())
    packages = draw(some_packages())
    packages[framework.distribution] = Package(name=framework.distribution, version=framework.version)
    names = st.sampled_from(["OMP_NUM_THREADS", "XLA_FLAGS", "TZ", "TF_USE_LEGACY_KERAS"])
    variables = draw(st.dictionaries(names, st.text("01", max_size=2)))
    packages["keras"] = Package(name="keras", version=draw(st.sampled_from(["2.8.0", "3.3.3"])))
    written = [Writer(name=framework.name, version=framework.version)]
    written += [Writer(name="keras", version="2.8.0")] if draw(st.booleans()) else []
    files = draw(some_files())
    contract = draw(some_contract())
    names_set = frozenset(draw(st.sets(st.sampled_from(["DATA", "OTHER", "OMP_NUM_THREADS"])))) | variables.keys()
    return Side(
        name=draw(st.sampled_from(["a", "b"])),
        kind=draw(st.sampled_from(KINDS)),
        python=draw(texts("3.10", "3.10.12", "3.10.13", "3.11.7")),
        implementation=draw(texts("cpython", "pypy")),
        system=draw(texts("Linux", "Darwin")),
        machine=draw(texts("x86_64", "amd64", "aarch64")),
        libc=draw(texts("glibc", "musl")),
        libc_version=draw(texts("2.31", "2.36")),
        packages=packages,
        complete=draw(st.booleans()),
        frameworks=(framework,),
        cuda=framework.cuda,
        cudnn=draw(texts("8", "8.6.0", "9.3.0")),
        variant=draw(st.sampled_from([None, "gpu" if framework.cuda else "cpu"])),
        accelerator=draw(some_hardware()),
        cpu=Cpu(flags=tuple(sorted(draw(st.sets(st.sampled_from(["sse2", "avx", "avx2", "fma", "vmx"])))))),
        variables=variables,
        names=names_set,
        unset=frozenset({"OMP_NUM_THREADS", "XLA_FLAGS", "TZ", "TF_USE_LEGACY_KERAS"}) - names_set,
        numerics=draw(some_numerics()),
        contract=contract,
        model=Model(
            uri="m",
            format=draw(texts("saved_model", "hdf5")),
            written_by=tuple(written),
            files=files,
            file_count=len(files),
        ),
        data={it.uri: it for it in contract.data},
        absent_data=frozenset(draw(st.sets(st.sampled_from(["gs://a/b", "/data"])))),
        trees=draw(st.dictionaries(st.sampled_from(["src", "prepare.py"]), st.sampled_from(["a" * 40, "b" * 40]))),
    )


def at_ease(side: Side) -> Side:
    """The side with all that its own program needs: data, variables, code, a GPU that its framework was built for."""
    contract = side.contract
    needed = {it.name for it in contract.variables if it.present}
    gpus = side.accelerator.gpus if side.accelerator else ()
    framework = replace(side.frameworks[0], compute_capabilities=("sm_75",))
    return replace(
        side,
        names=(side.names or frozenset()) | needed | (side.variables or {}).keys(),
        absent_data=frozenset(),
        trees={it.path: it.git_tree for it in contract.preprocessing if it.git_tree},
        frameworks=(framework,),
        model=replace(side.model, written_by=side.model.written_by[:1]) if side.model else None,
        accelerator=Accelerator(
            kind="nvidia", driver="575.57.08", cuda_maximum="12.9", gpus=gpus or (Gpu(name="GPU"),)
        ),
    )


def disagreements(found: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(it.id, it.about) for it in found if not it.agrees}


def shuffled(side: Side) -> Side:
    """The same facts, told in another order."""
    packages = dict(reversed(list((side.packages or {}).items())))
    variables = dict(reversed(list((side.variables or {}).items())))
    return replace(side, packages=packages, variables=variables)


@st.composite
def forgetful(draw: st.DrawFn, side: Side) -> Side:
    """The side with some facts that nobody knows any more."""
    empty: dict[str, Any] = {it.name: None for it in fields(Side) if it.name not in HOWEVER}
    empty |= {"frameworks": (), "contract": Contract()}
    lost = draw(st.sets(st.sampled_from(sorted(empty))))
    side = replace(side, **{name: empty[name] for name in lost})
    known = {name: draw(less(it)) for name, it in (side.packages or {}).items()}
    return replace(side, packages=known if side.packages is not None else None)


@st.composite
def less(draw: st.DrawFn, package: Package) -> Package:
    lost = draw(st.sets(st.sampled_from(["content", "wheels", "build"])))
    empty: dict[str, Any] = {"content": None, "wheels": frozenset(), "build": ""}
    return replace(package, **{name: empty[name] for name in lost})


@given(some_side())
@settings(max_examples=50)
def test_a_side_held_against_itself_agrees(side: Side) -> None:
    side = at_ease(side)
    assert disagreements(apply_rules(side, side)) == set()


@given(st.data(), some_side(), some_side())
@settings(max_examples=75)
def test_what_nobody_knows_is_no_disagreement(data: st.DataObject, wanted: Side, found: Side) -> None:
    before = disagreements(apply_rules(wanted, found))
    less_wanted, less_found = data.draw(forgetful(wanted)), data.draw(forgetful(found))
    assert disagreements(apply_rules(less_wanted, less_found)) <= before


@given(some_side(), some_side())
@settings(max_examples=50)
def test_the_same_question_has_the_same_answer_and_each_disagreement_says_all(wanted: Side, found: Side) -> None:
    findings = apply_rules(wanted, found)
    assert apply_rules(wanted, found) == findings
    assert apply_rules(shuffled(wanted), shuffled(found)) == findings
    told = [(it.id, it.about) for it in findings if not it.agrees]
    assert len(told) == len(set(told))
    for finding in findings:
        assert finding.between == (wanted.name, found.name)
        assert finding.says
        assert "\n" not in str(finding)
        if not finding.agrees:
            assert finding.why.endswith(".")
            assert finding.todo
            assert finding.wanted or finding.found
