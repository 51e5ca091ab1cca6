"""A manifest as a side: all that rules need of a real capture, and nothing that a record does not say."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.manifest.hardware import Accelerator, Component, Cpu, Native
from envbuild.manifest.importers.detect import convert
from envbuild.manifest.importers.environment import RecordOptions
from envbuild.manifest.importers.record import Record
from envbuild.manifest.model import Contract, Framework, Numerics, Platform, Python, Source, TrainingManifest, Tree
from envbuild.manifest.packages import Conda, CondaPackage, Distribution, Origin
from envbuild.manifest.reader import manifest_dict, read_manifest
from envbuild.verify.rules import apply_rules
from envbuild.verify.sources import side_of_manifest
from tests.unit.capturing import Environment

INDEX = Origin(kind="index")
HASH, OTHER = "a" * 64, "b" * 64


def told(manifest: TrainingManifest, name: str) -> Any:
    """Its side, whose fields need not be checked for being there before they are looked at."""
    return side_of_manifest(manifest, name)


def a_manifest(*distributions: Distribution, **facts) -> TrainingManifest:
    known: dict[str, Any] = {
        "schema_version": "1.1",
        "created": "2026-01-31T12:00:00Z",
        "python": Python(version="3.11.7", implementation="cpython"),
        "platform": Platform(system="Linux", machine="x86_64", libc="glibc", libc_version="2.36"),
        "distributions": distributions,
    }
    return TrainingManifest(**(known | facts))


def wheel(name: str, version: str | None = "1.0", **facts) -> Distribution:
    return Distribution(name=name, version=version, **({"origin": INDEX} | facts))


def package(**facts):
    [found] = told(a_manifest(wheel("It", **facts)), "run").packages.values()
    return found


def component(name: str, version: str, source: str, *, loaded: bool = False) -> Component:
    return Component(name=name, version=version, source=source, loaded=loaded)


def test_a_real_capture_loses_nothing_that_rules_go_by(tmp_path):
    environment = Environment(tmp_path)
    environment.variables["OMP_NUM_THREADS"] = "4"
    environment.variables["NEEDED"] = "a value that is not recorded"
    folder = environment.install("Some_Thing", "1.2+cu121")
    (folder / "RECORD").write_text("some_thing.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")
    (environment.site / "some_thing.py").touch()
    (environment.folder / "prepare.py").write_text("x = 1\n")
    taken = environment.capture("--requires=NEEDED", "--preprocessing=prepare.py", "--data=/nowhere")
    manifest: Any = read_manifest(str_bytes(taken), "captured")
    side = told(manifest, "run.json")
    found = side.packages["some-thing"]
    assert (found.name, found.version, found.content) == (
        "some-thing", "1.2+cu121", manifest.distributions[0].content_sha256
    )  # fmt: skip
    assert found.content
    platform = manifest.platform
    assert (side.name, side.kind, side.python, side.implementation) == (
        "run.json", "manifest", taken["python"]["version"], "cpython"
    )  # fmt: skip
    assert (side.system, side.machine, side.libc, side.libc_version) == (
        platform.system, platform.machine, platform.libc, platform.libc_version
    )  # fmt: skip
    assert side.accelerator == manifest.accelerator
    assert side.cpu == manifest.cpu
    assert side.variables == {"OMP_NUM_THREADS": "4"}
    assert side.names is None
    assert side.contract == manifest.contract
    assert side.trees == {"prepare.py": manifest.contract.preprocessing[0].git_tree}
    assert side.complete
    assert side.absent_data is None


def str_bytes(value: dict) -> bytes:
    import json

    return json.dumps(value).encode()


def test_a_converted_record_says_only_what_it_has():
    record = Record(name="requirements.txt", data=b"numpy==1.26.4\ntorch==2.3.1+cu121\n")
    manifest = convert(record, "requirements", RecordOptions(python="3.11.7"), datetime.now(UTC))
    side = told(manifest, "r")
    assert not side.complete
    assert (side.system, side.machine, side.libc, side.libc_version) == (None, None, None, None)
    assert (side.accelerator, side.cpu, side.variables, side.names, side.trees) == (None, None, None, None, None)
    assert side.packages["numpy"].version == "1.26.4"
    assert side.framework == Framework(name="torch", distribution="torch", version="2.3.1+cu121", cuda="12.1")


def test_an_absent_accelerator_of_the_first_schema_means_none():
    side = told(a_manifest(schema_version="1.0"), "run")
    assert side.accelerator == Accelerator(kind="none")


def test_a_cpu_that_nobody_looked_at_is_unknown():
    assert told(a_manifest(), "run").cpu is None
    named = a_manifest(cpu=Cpu(model="x"), source=Source(format="wandb", unknown=("cpu",)))
    assert told(named, "run").cpu is None
    assert told(a_manifest(cpu=Cpu(model="x")), "run").cpu == Cpu(model="x")


@pytest.mark.parametrize(
    ("origin", "wheels", "build"),
    [
        (Origin(kind="index"), set(), ""),
        (Origin(kind="index", hashes=(HASH, OTHER)), {HASH, OTHER}, ""),
        (Origin(kind="archive", url="https://example.com/it-1.0-py3-none-any.whl", sha256=HASH), {HASH}, ""),
        (Origin(kind="archive", url="file:///a/it-1.0-py3-none-any.whl?x#y", sha256=HASH), {HASH}, ""),
        # A wheel was made of it, whose digest nobody has.
        (Origin(kind="archive", url="https://example.com/it-1.0.tar.gz", sha256=HASH), set(), ""),
        (Origin(kind="archive", url="https://example.com/it-1.0-py3-none-any.whl"), set(), ""),
        (Origin(kind="conda", sha256=HASH, build="py311_0"), set(), "py311_0"),
        (Origin(kind="vcs", commit="c" * 40), set(), "c" * 40),
        (Origin(kind="editable", commit="c" * 40, dirty=False), set(), "c" * 40),
        (Origin(kind="editable", commit="c" * 40, dirty=True, diff_sha256=HASH), set(), "c" * 40 + " with changes aaaaaaaaaaaa"),
        (Origin(kind="editable", commit="c" * 40, dirty=True), set(), "c" * 40 + " with changes"),
        (Origin(kind="editable"), set(), ""),
    ],
)  # fmt: skip
def test_where_a_package_came_from_tells_its_files_or_its_build(origin, wheels, build):
    found = package(origin=origin, content_sha256=OTHER)
    assert (found.wheels, found.build, found.content) == (frozenset(wheels), build, OTHER)


def test_of_a_package_that_was_changed_nobody_knows_the_files():
    found = package(origin=Origin(kind="index", hashes=(HASH,)), content_sha256=OTHER, changed_files=1)
    assert (found.version, found.content, found.wheels) == ("1.0", None, frozenset())


def test_a_package_without_a_version_stays():
    assert package(version=None).version is None


def test_the_framework_that_trained_comes_first():
    torch = Framework(name="torch", distribution="torch", version="2.3.1", cuda="12.1")
    tensorflow = Framework(name="tensorflow", distribution="tensorflow-cpu", version="2.15.1")
    side = told(a_manifest(framework=torch, frameworks=(tensorflow, torch)), "run")
    assert side.frameworks == (torch, tensorflow)
    assert told(a_manifest(framework=torch), "run").frameworks == (torch,)


def test_values_that_a_secret_was_cut_out_of_are_unknown():
    pairs = (("A", "1"), ("B", "[redacted]"), ("C", "https://[redacted]@example.com"))
    assert told(a_manifest(variables=pairs), "run").variables == {"A": "1"}


def test_cuda_is_what_was_loaded():
    native = Native(
        process="run",
        components=(
            component("cuda", "11.8", "Debian package cuda-cudart-11-8"),
            component("cuda", "12.5", "cudaRuntimeGetVersion()", loaded=True),
            component("cudnn", "9.3.0", "cudnnGetVersion()", loaded=True),
        ),
    )
    side = told(a_manifest(wheel("nvidia-cuda-runtime-cu12", "12.4.127"), native=native), "run")
    assert (side.cuda, side.cudnn) == ("12.5", "9.3.0")


def test_cuda_that_nobody_loaded_is_that_of_wheels_before_the_systems():
    native = Native(
        process="fresh",
        components=(
            component("cuda", "11.8", "Debian package cuda-cudart-11-8"),
            component("cuda", "12.5.82", "distribution nvidia-cuda-runtime-cu12"),
        ),
    )
    assert told(a_manifest(native=native), "run").cuda == "12.5.82"


def test_without_libraries_cuda_is_what_distributions_and_conda_say():
    wheels = (wheel("nvidia-cuda-runtime-cu12", "12.5.82"), wheel("nvidia-cudnn-cu12", "9.3.0.75"))
    side = told(a_manifest(*wheels), "run")
    assert (side.cuda, side.cudnn) == ("12.5.82", "9.3.0")
    conda = Conda(
        packages=(CondaPackage(name="cudatoolkit", version="11.8.0"), CondaPackage(name="cudnn", version="8.9.7.29"))
    )
    side = told(a_manifest(conda=conda), "run")
    assert (side.cuda, side.cudnn) == ("11.8.0", "8.9.7.29")
    side = told(a_manifest(wheel("numpy")), "run")
    assert (side.cuda, side.cudnn) == (None, None)


def test_code_whose_content_is_unknown_has_no_digest():
    known, unread = Tree(path="a", git_tree="1" * 40), Tree(path="b", unread="it takes too long to read")
    side = told(a_manifest(contract=Contract(preprocessing=(known, unread))), "run")
    assert side.trees == {"a": "1" * 40}
    assert told(a_manifest(contract=Contract(preprocessing=(unread,))), "run").trees is None


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,6}[A-Za-z0-9])?", fullmatch=True)


@given(st.dictionaries(NAMES, st.from_regex(r"[0-9]{1,2}\.[0-9]{1,2}(\+cu12[0-9])?", fullmatch=True), max_size=8))
def test_every_distribution_is_a_package_under_its_normalised_name(versions):
    found = a_manifest(*(wheel(name, version) for name, version in versions.items()))
    normal = {name.lower().replace("_", "-").replace(".", "-") for name in versions}
    side = told(found, "run")
    assert all(name == it.name for name, it in side.packages.items())
    assert {it.version for it in side.packages.values()} <= set(versions.values())
    assert len(side.packages) == len({"-".join(filter(None, name.split("-"))) for name in normal})


def test_the_side_is_that_of_the_manifest_read_again(tmp_path):
    manifest = read_manifest(str_bytes(Environment(tmp_path).capture()), "captured")
    again = read_manifest(str_bytes(manifest_dict(manifest)), "again")
    assert told(manifest, "run") == told(replace(again), "run")


def test_what_a_capture_did_not_record_was_not_set(tmp_path):
    environment = Environment(tmp_path)
    runs = []
    for value in ("1", None):
        environment.variables.pop("TF_DETERMINISTIC_OPS", None)
        if value:
            environment.variables["TF_DETERMINISTIC_OPS"] = value
        runs.append(told(read_manifest(str_bytes(environment.capture()), "captured"), value or "without"))
    for pair, says in ((runs, "wanted 1, found not set"), (runs[::-1], "wanted not set, found 1")):
        found = [(it.rule, it.about, it.says) for it in apply_rules(*pair) if not it.agrees]
        assert found == [("variable-value", "TF_DETERMINISTIC_OPS", says)]


def test_only_of_captures_it_is_known_what_was_not_set():
    by_us = Source(format="capture", tool="envbuild 0.1.0")
    cut = (("TF_XLA_FLAGS", "[redacted]"),)
    unset = told(a_manifest(source=by_us, variables=cut), "run").unset
    assert "TF_DETERMINISTIC_OPS" in unset
    assert "TF_XLA_FLAGS" not in unset
    others = (
        Source(format="capture"),
        Source(format="capture", tool="house 2"),
        Source(format="mlflow", tool="envbuild 0.1.0"),
        replace(by_us, unknown=("variables",)),
    )
    assert {told(a_manifest(source=it), "run").unset for it in others} == {None}


def test_what_frameworks_were_told_is_compared():
    asked = Numerics(framework="tensorflow", precision="float32", seed=1)
    one = told(a_manifest(numerics=(asked,)), "a")
    assert one.numerics == (asked,)
    assert told(a_manifest(), "a").numerics is None
    two = told(a_manifest(numerics=(replace(asked, precision="mixed_float16", seed=2),)), "b")
    found = [(it.rule, it.about, it.severity) for it in apply_rules(one, two) if not it.agrees]
    assert found == [("numerics", "tensorflow precision", "error"), ("numerics", "tensorflow seed", "note")]
