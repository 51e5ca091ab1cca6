"""The golden check, with folders that hold a framework as small as it can be: what is compared, and what is told."""

import base64
import dataclasses
import json
import os
import struct
import subprocess
import sys
import zipfile
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.cli.console import Progress
from envbuild.errors import StampError
from envbuild.manifest.model import Array, Golden
from envbuild.manifest.reader import read_manifest
from envbuild.verify.golden import program
from envbuild.verify.golden.arrays import (
    DamagedError,
    apart,
    categories,
    content,
    deviation,
    elements,
    numbers,
    width_of,
)
from envbuild.verify.golden.check import check, fitted, judged, paired, unfit
from envbuild.verify.golden.runners import InInterpreter
from tests.unit.test_from_manifest import manifest_of

NUMPY = """
import struct
CODES = {"float32": "f", "float64": "d"}
def dtype(name):
    CODES[name]
    return name
class Rows:
    def __init__(self, values, shape=()):
        self.values, self.shape = values, shape
    def reshape(self, shape):
        return Rows(self.values, shape)
    def copy(self):
        return self
def frombuffer(data, code):
    return Rows([value for value, in struct.iter_unpack("<" + CODES[code], data)])
"""
KERAS = """
import json, os, sys, time, zipfile
class Array:
    dtype = type("t", (), {"name": "float32", "str": "<f4", "itemsize": 4})
    def __init__(self, values):
        import array
        self.data, self.shape, self.size = array.array("f", values), (len(values),), len(values)
    def tobytes(self):
        return self.data.tobytes()
class Model:
    def __init__(self, path):
        self.facts = json.loads(zipfile.ZipFile(path).read("config.json"))
    def predict_on_batch(self, rows):
        exec(self.facts.get("do", ""))
        if isinstance(rows, dict):
            return {name: Array(it.values) for name, it in rows.items()}
        return Array([self.facts["by"] * value for value in rows.values])
class models:
    def load_model(path, compile):
        assert not compile
        return Model(path)
"""


def array_of(values, dtype="float32", shape=None, name="") -> Array:
    code = {"float32": "f", "float64": "d", "int64": "q", "bool": "b", "complex64": "f"}[dtype]
    data = array(code, values).tobytes()
    length = len(values) // (2 if dtype == "complex64" else 1)
    return Array(name=name, dtype=dtype, shape=shape or (length,), data=base64.b64encode(data).decode())


def golden_of(inputs, outputs, rtol=1e-5, atol=1e-6) -> Golden:
    return Golden(inputs=tuple(inputs), outputs=tuple(outputs), rtol=rtol, atol=atol)


def manifest_with(golden: Golden | None):
    return dataclasses.replace(read_manifest(json.dumps(manifest_of()).encode(), "m"), golden=golden)


DOUBLE = (
    KERAS
    + """
class Double:
    def predict(self, rows):
        return Array([2 * value for value in rows.values])
"""
)
"""The module `demo` of the pickle."""
PICKLE = b"cdemo\nDouble\n(tR."
DOUBLED = golden_of([array_of([1.0, 2.0])], [array_of([2.0, 4.0])])


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Path:
    """A folder that this Python imports from, as an environment's."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "numpy.py").write_text(NUMPY)
    (folder / "keras.py").write_text(KERAS)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    return folder


def keras_file(path: Path, **facts) -> Path:
    """A model as Keras saves it, with facts for ours."""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.0.0", "date_saved": "2026-01-01@00:00:00"}))
        archive.writestr("config.json", json.dumps(facts))
    return path


@pytest.fixture
def ask(environment, tmp_path):
    """Run the check on a model that says by what it multiplies; return its findings."""

    def run(golden: Golden | None = DOUBLED, *, name="model.keras", seconds=60.0, python=sys.executable, **facts):
        model = keras_file(tmp_path / "saved" / name, by=facts.pop("by", 2), **facts)
        with Progress() as told:
            runner = InInterpreter(name=str(python))
            return list(
                check(manifest_with(golden), str(model), [runner], cache=tmp_path, report=told, seconds=seconds)
            )

    return run


def test_what_was_recorded_comes_again(ask, tmp_path):
    [finding] = ask()
    assert (finding.agrees, finding.id, finding.between[1]) == (True, "golden", sys.executable)
    assert finding.says == "the model gives what was recorded: 1 output, 2 numbers, exactly"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "site"]


def test_another_prediction_says_how_far_where_and_what(ask):
    [finding] = ask(by=2.5)
    assert (finding.agrees, finding.severity, finding.wanted, finding.found) == (False, "error", "4.0", "5.0")
    assert finding.says == (
        "2 of 2 numbers of output are further off than 1e-06 + 1e-05 * |recorded|; "
        "the largest deviation is 1 at [1]: 5.0, and 4.0 was recorded"
    )
    assert "envbuild verify" in finding.todo


def test_inputs_by_name_reach_the_model_by_name(ask):
    names = golden_of(
        [array_of([1.0], name="b"), array_of([2.0], name="a")], [array_of([2.0], name="a"), array_of([1.0], name="b")]
    )
    [finding] = ask(names)
    assert finding.agrees, finding


@pytest.mark.parametrize(
    ("do", "says"),
    [
        ("raise ValueError('bad shape')", "the model cannot be called\n  | ValueError: bad shape"),
        ("raise SystemExit(3)", "the model cannot be called\n  | SystemExit: 3"),
        ("print('last words', flush=True); os._exit(7)", "ended without an answer: exit code 7\n  | last words"),
        ("os.kill(os.getpid(), 11)", "ended without an answer: it crashed (SIGSEGV)"),
        ("os.kill(os.getpid(), 9)", "most often for want of memory"),
    ],
)
def test_whatever_goes_wrong_in_there_is_a_finding_with_the_last_lines(ask, do, says):
    [finding] = ask(do=do)
    assert (finding.agrees, finding.severity, finding.id) == (False, "error", "golden-run")
    assert says in finding.says


def test_a_model_that_does_not_answer_is_ended(ask, tmp_path):
    mark = tmp_path / "pid"
    [finding] = ask(do=f"open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)", seconds=3.0)
    assert "no answer within 3 s" in finding.says
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_long_words_are_cut(ask):
    [finding] = ask(do="raise ValueError('\\n'.join(['x' * 5000] * 50))")
    lines = finding.says.splitlines()[1:]
    assert (len(lines), {len(line) for line in lines}) == (12, {len("  | ") + 300})


def test_an_environment_without_the_framework_is_a_finding(ask, environment):
    (environment / "keras.py").unlink()
    [finding] = ask()
    assert finding.says.startswith("the model's framework cannot be imported\n  | ModuleNotFoundError: ")


def test_a_model_that_cannot_be_loaded_is_a_finding(ask, environment):
    (environment / "keras.py").write_text("class models:\n    def load_model(path, compile): raise OSError('old')")
    [finding] = ask()
    assert finding.says == "the model cannot be loaded\n  | OSError: old"


def test_an_interpreter_that_is_none_is_a_finding(ask, tmp_path):
    [finding] = ask(python=tmp_path / "none")
    assert (finding.id, finding.severity) == ("golden-run", "error")
    assert "cannot be run" in finding.says


def test_a_format_that_no_program_runs_alone_is_said_plainly(ask):
    [finding] = ask(name="weights.safetensors")
    assert (finding.id, finding.severity) == ("golden-sample", "warning")
    assert "saved_model, keras, hdf5, torchscript, torch_export, onnx" in finding.says


def test_a_pickle_is_not_loaded_by_an_interpreter_of_this_machine(environment, tmp_path):
    touched, model = tmp_path / "touched", tmp_path / "model.pkl"
    model.write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % str(touched).encode())
    with Progress() as told:
        runner = InInterpreter(name=sys.executable)
        [finding] = check(manifest_with(DOUBLED), str(model), [runner], cache=tmp_path, report=told)
    assert (finding.id, finding.severity, touched.exists()) == ("golden-sample", "warning", False)
    assert "envbuild verify MODEL IMAGE --golden --run" in finding.todo


@pytest.fixture
def by_hand(environment, tmp_path):
    """A pickle, and an environment in which only its user may run it."""
    (environment / "demo.py").write_text(DOUBLE)
    return ByHand(tmp_path)


class ByHand:
    def __init__(self, folder: Path) -> None:
        self.folder, self.model, self.kept = folder, folder / "model.pkl", folder / "venv" / "kept"
        self.model.write_bytes(PICKLE)

    def ask(self, golden: Golden = DOUBLED, **more):
        with Progress() as told:
            runner = InInterpreter(name=sys.executable, kept=self.kept, **more)
            [finding] = check(manifest_with(golden), str(self.model), [runner], cache=self.folder, report=told)
        return finding

    def start(self, finding, **variables: str) -> None:
        """Do as the finding says."""
        line = finding.todo.partition("again: ")[2]
        subprocess.run(line, shell=True, check=True, env=os.environ | variables)


def test_a_pickle_is_loaded_by_the_line_that_its_user_starts_and_the_answer_is_judged_once(by_hand):
    first = by_hand.ask()
    assert (first.id, first.severity) == ("golden-sample", "warning")
    assert by_hand.ask() == first
    by_hand.start(first)
    assert by_hand.ask().says == "the model gives what was recorded: 1 output, 2 numbers, exactly"
    assert list(by_hand.kept.iterdir()) == []
    assert by_hand.ask() == first
    by_hand.start(first)
    assert by_hand.ask(golden_of(DOUBLED.inputs, [array_of([2.0, 5.0])])).severity == "error"


class Sandbox:
    """What runs a pickle instead of an interpreter, with variables of its own; its isolation is left out here."""

    name = sys.executable

    def __init__(self, **variables: str) -> None:
        self.interpreter = InInterpreter(name=sys.executable, variables={"PATH": os.defpath, **variables})

    def run(self, program, beside, *, seconds):
        return self.interpreter.run(program, beside, seconds=seconds)


def test_a_pickle_that_loads_in_isolation_needs_no_user(by_hand, environment):
    assert by_hand.ask(sandbox=Sandbox(PYTHONPATH=str(environment))).agrees
    assert not by_hand.kept.exists()


def test_what_does_not_load_in_isolation_says_nothing_of_the_interpreter(by_hand):
    """There it has no packages, as those of an editable install are missing under bubblewrap."""
    first = by_hand.ask(sandbox=Sandbox())
    assert (first.id, first.severity) == ("golden-sample", "warning")
    assert "its own folders alone, the model cannot be loaded: ModuleNotFoundError: No module named 'demo'" in first.why
    by_hand.start(first)
    assert by_hand.ask(sandbox=Sandbox()).agrees


def test_the_answer_of_another_model_or_environment_is_not_taken(by_hand):
    first = by_hand.ask(state=("numpy 1.0",))
    by_hand.model.write_bytes(b"c__main__\nNo\n(tR.")
    by_hand.start(first)  # a copy of what was asked for
    assert by_hand.ask(state=("numpy 1.0",)).id == "golden-sample"
    by_hand.model.write_bytes(PICKLE)
    assert by_hand.ask(state=("numpy 2.0",)).id == "golden-sample"
    assert by_hand.ask(state=("numpy 1.0",)).agrees
    assert len(list(by_hand.kept.iterdir())) == 2


def test_an_answer_for_files_whose_digests_are_unknown_is_not_asked_for(by_hand, monkeypatch):
    monkeypatch.setattr(sys.modules["envbuild.capture.places"], "HASHING", -1.0)
    finding = by_hand.ask()
    assert "model.pkl of the model has no digest" in finding.says
    assert not by_hand.kept.exists()


def test_a_run_by_hand_that_fails_is_told_once_with_the_line_for_another(by_hand, environment):
    first = by_hand.ask()
    (environment / "demo.py").rename(environment / "gone.py")
    by_hand.start(first)
    failed = by_hand.ask()
    assert (failed.id, "No module named 'demo'" in failed.says) == ("golden-run", True)
    (environment / "gone.py").rename(environment / "demo.py")
    assert by_hand.ask() == first
    by_hand.start(failed)
    assert by_hand.ask().agrees
    by_hand.ask()
    [folder] = by_hand.kept.iterdir()
    (folder / "answer.json").write_text("{")
    by_hand.start(by_hand.ask())
    assert by_hand.ask().agrees


def test_the_line_has_the_environments_variables_and_no_secret(by_hand, environment, tmp_path, monkeypatch):
    """Its shell has modules of another Python."""
    (environment / "numpy.py").write_text(NUMPY + "\nimport os\nassert os.environ['MODE'] == 'a b\\'c'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "others"))
    (tmp_path / "others").mkdir()
    (tmp_path / "others/numpy.py").write_text("raise ImportError('of another Python')")
    more = {
        "MODE": "a b'c",
        "DB_PASSWORD": "hunter22",
        "DB": "host hunter22",
        "SITE_TOKEN": "",
        "LINES": "a\nb",
        "-u": "x",
        "PLACE": str(tmp_path),
    }
    finding = by_hand.ask(variables=os.environ | more | {"PYTHONPATH": str(environment)})
    assert "hunter22" not in finding.todo
    assert finding.todo.startswith("export -u, DB, DB_PASSWORD, LINES, whose values are not printed, run it yourself")
    assert f"PLACE={tmp_path}" in finding.todo
    by_hand.start(finding, PYTHONHOME="/nowhere")
    assert by_hand.ask(variables=os.environ | more).agrees
    variables = {name: it for name, it in os.environ.items() if name != "PYTHONPATH"}
    assert "env -u PYTHONPATH -u PYTHONHOME " in by_hand.ask(variables=variables).todo


def test_a_folder_that_cannot_be_written_says_nothing_of_the_environment(by_hand):
    by_hand.kept.parent.write_text("no folder")
    finding = by_hand.ask()
    assert (finding.severity, finding.id) == ("warning", "golden-sample")
    assert str(by_hand.kept) in finding.says


def test_a_manifest_without_a_sample_says_how_to_record_one(ask):
    [finding] = ask(None)
    assert (finding.id, finding.severity) == ("golden-sample", "warning")
    assert "keras_callback(golden_inputs=" in finding.todo


def test_a_damaged_sample_is_told_before_anything_runs(ask):
    broken = dataclasses.replace(DOUBLED.outputs[0], sha256="0" * 64)
    [finding] = ask(dataclasses.replace(DOUBLED, outputs=(broken,)), python="none")
    assert (finding.id, "digest" in finding.says) == ("golden-sample", True)


def test_a_model_that_is_not_there_is_an_error(environment, tmp_path):
    with Progress() as told, pytest.raises(StampError) as caught:
        list(
            check(manifest_with(DOUBLED), str(tmp_path / "no"), [InInterpreter(name="x")], cache=tmp_path, report=told)
        )
    assert caught.value.where == (tmp_path / "no").as_uri()


def test_files_that_are_not_the_records_are_named(environment, tmp_path):
    example = manifest_of() | {
        "model": {"uri": "/m", "files": [{"path": "model.keras", "size": 1, "sha256": "0" * 64}]},
    }
    manifest = dataclasses.replace(read_manifest(json.dumps(example).encode(), "m"), golden=DOUBLED)
    place = str(keras_file(tmp_path / "saved/model.keras", by=3))
    with Progress() as told:
        [finding] = check(manifest, place, [InInterpreter(name=sys.executable)], cache=tmp_path, report=told)
    assert finding.why.endswith("files of the model are not those of the record: model.keras")


def found(golden: Golden, *outputs: Array) -> list:
    return list(judged(golden, outputs))


def test_shape_and_type_count_too():
    [shape] = found(DOUBLED, array_of([2.0, 4.0], shape=(1, 2)))
    assert shape.says == "output has the shape [1, 2], and [2] was recorded"
    kind, fine = found(DOUBLED, array_of([2.0, 4.0], "float64"))
    assert (kind.severity, fine.agrees) == ("warning", True)
    assert "type float64, and float32 was recorded" in kind.says
    [other] = found(DOUBLED, array_of([2, 4], "int64"))
    assert (other.severity, other.agrees) == ("error", False)


def test_outputs_go_by_name_by_number_or_not_at_all():
    two = [array_of([1.0], name="0"), array_of([2.0], name="1")]
    exported = [array_of([2.0], name="output_1"), array_of([1.0], name="output_0")]
    assert [(a.name, b.name) for a, b in paired(two, exported)] == [("0", "output_0"), ("1", "output_1")]
    assert paired(two[:1], exported[:1]) == [(two[0], exported[0])]
    [finding] = found(golden_of([], two), array_of([1.0], name="dense"), array_of([2.0], name="dense_1"))
    assert finding.says == "outputs 0, 1 were recorded, and the model gives dense, dense_1"


def test_more_outputs_than_recorded_do_no_harm():
    wanted = golden_of([], [array_of([1.0], name="p")])
    assert found(wanted, array_of([9.0], name="logits"), array_of([1.0], name="p"))[0].agrees


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (NAN, NAN, 0), (NAN, 1.0, INF), (1.0, NAN, INF), (INF, INF, 0), (INF, -INF, INF), (1.0, INF, INF),
        (2**63 - 1, 2**63, 1), (True, False, 1), (complex(NAN, 1), complex(2, NAN), 0), (3 + 4j, 0j, 5),
        (complex(INF, 0), complex(INF, 0), 0), (complex(INF, 1), complex(INF, 2), INF), (0.0, -0.0, 0),
    ],
)  # fmt: skip
def test_how_far_two_numbers_are_apart(a, b, distance):
    assert apart(a, b) == distance


def test_an_infinite_number_is_only_near_itself_however_large_the_tolerance():
    far = deviation(array_of([INF]), array_of([1.0]), rtol=1.0, atol=1.0)
    assert (far.largest, far.wanted, far.found) == (INF, "inf", "1.0")
    assert deviation(array_of([INF, NAN]), array_of([INF, NAN]), rtol=0, atol=0).largest == 0


def test_types_that_array_has_not():
    halves = Array(name="", dtype="bfloat16", shape=(2,), data=base64.b64encode(bytes.fromhex("803f00c0")).decode())
    assert list(numbers("bfloat16", content(halves))) == [1.0, -2.0]
    assert list(numbers("float16", struct.pack("<2e", 0.5, 65504))) == [0.5, 65504.0]
    assert list(numbers("complex64", struct.pack("<2f", 1, -2))) == [1 - 2j]
    assert list(numbers("bool", b"\1\0")) == [True, False]
    assert [width_of(it) for it in ("complex128", "uint8", "float8_e5m2", "float128")] == [16, 1, None, None]


def test_types_that_cannot_be_read_are_compared_by_their_bytes():
    eights = Array(name="", dtype="float8_e5m2", shape=(1,), data="AA==")
    assert found(golden_of([], [eights]), eights)[0].agrees
    [fault] = found(golden_of([], [eights]), dataclasses.replace(eights, data="AQ=="))
    assert (fault.severity, fault.id) == ("warning", "golden-sample")


def texts(*values, dtype="object", name="", **more) -> Array:
    data = base64.b64encode(json.dumps(values).encode()).decode()
    return Array(name=name, dtype=dtype, shape=(len(values),), data=data, **more)


def test_text_agrees_where_it_is_equal():
    wanted = golden_of([], [texts("ja", "nein", None, name="label"), array_of([1.0, 2.0, 3.0], name="p")])
    [fine] = found(wanted, *wanted.outputs)
    assert (fine.agrees, fine.says) == (True, "the model gives what was recorded: 2 outputs, 6 values, exactly")
    [fault] = found(wanted, texts("ja", "ja", "ja", name="label"), wanted.outputs[1])
    assert (fault.severity, fault.wanted, fault.found) == ("error", "nein", "ja")
    assert (
        fault.says
        == "2 of 3 values of output label are not what was recorded; the first is at [1]: ja, and nein was recorded"
    )
    [other] = found(wanted, array_of([1, 0, 0], "int64", name="label"), wanted.outputs[1])
    assert other.says == "output label has the type int64, and object was recorded"


@pytest.mark.parametrize("data", [b"[", b"{}", b'["a","b"]', b"[[1]]", b"[" * 10_000, b"[%d]" % 2**64])
def test_what_is_no_list_of_texts_is_damaged(data):
    damaged = dataclasses.replace(texts("a"), data=base64.b64encode(data).decode())
    with pytest.raises(DamagedError):
        elements(damaged)
    fault = unfit(manifest_with(golden_of([damaged], [texts("a")])))
    assert fault is not None
    assert fault.id == "golden-sample"
    with pytest.raises(DamagedError):
        categories(dataclasses.replace(texts("a"), categories="A"))


def test_a_model_that_takes_no_table_gets_its_columns_as_one_array(ask):
    columns = [array_of([1.0, 2.0], name="a"), array_of([3, 4], "int64", name="b")]
    table = dataclasses.replace(golden_of(columns, [array_of([0.0])]), table=True)
    assert fitted(table, "joblib") is table
    one = fitted(table, "keras")
    assert (one.table, [(it.name, it.dtype, it.shape) for it in one.inputs]) == (False, [("", "float64", (2, 2))])
    assert list(elements(one.inputs[0])) == [1.0, 3.0, 2.0, 4.0]
    uneven = dataclasses.replace(table, inputs=(columns[0], array_of([1.0], name="b")))
    with pytest.raises(DamagedError):
        fitted(uneven, "keras")
    city = dataclasses.replace(table, inputs=(texts("Ulm", "Bonn", name="city", dtype="str"),))
    [finding] = ask(city)
    assert (finding.id, finding.severity) == ("golden-sample", "warning")
    assert "its column city has the type str" in finding.says


def test_an_array_without_dimensions_has_no_place():
    one = Array(name="y", dtype="float32", shape=(), data=base64.b64encode(struct.pack("<f", 1)).decode())
    [finding] = found(golden_of([], [one]), dataclasses.replace(one, data=base64.b64encode(bytes(4)).decode()))
    assert "deviation is 1: 0.0, and 1.0 was recorded" in finding.says


@pytest.mark.parametrize("data", ["AAAA", "A", "AAAAAAAAAAA="])
def test_data_that_its_shape_does_not_fit_is_damaged(data):
    with pytest.raises(DamagedError):
        content(dataclasses.replace(array_of([1.0]), data=data))


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
    st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip
def test_within_means_what_the_manifest_says(values, shift, rtol, atol):
    wanted, came = array_of(values, "float64"), array_of([value + shift for value in values], "float64")
    pairs = list(zip(numbers("float64", content(came)), numbers("float64", content(wanted)), strict=True))
    beyond = [abs(a - b) > atol + rtol * abs(b) for a, b in pairs]
    far = deviation(wanted, came, rtol=rtol, atol=atol)
    assert far.beyond == sum(beyond)
    if not far.beyond:
        assert far.largest == max(abs(a - b) for a, b in pairs)


def test_the_program_needs_nothing_but_the_standard_library():
    source = Path(program.__file__).read_text()
    assert "envbuild." not in "".join(line for line in source.splitlines() if line.startswith(("import", "from")))
    compile(source, "program.py", "exec", dont_inherit=True, flags=0, _feature_version=7)
