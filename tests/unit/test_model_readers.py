"""What the files of a model say, read from real artifacts in a folder and in a bucket."""

import hashlib
import io
import json
import re
import shutil
import zipfile

import pytest

from envbuild.capture.model import facts_of_place, model_facts
from envbuild.capture.places import RangeReader, local_source
from envbuild.manifest.reader import read_manifest
from tests.fakes.gcs import FakeGcs
from tests.unit.modelling import MODELS, MemoryPlace, read_memory

GIT_215, GIT_221 = "v2.15.0-11-g63f5a65c7cd", "v2.21.0-rc1-5-ga481b10260d"
SAVED = {
    "tags": "serve",
    "singleprint": "10256697850552324428/8933416018011739609/15905004210430669139/9727514176352303218",
}
NAMES, ALIGNED = {"numpy": "1.26.1"}, {"joblib": "1.2"}
ONNX = {"ir_version": "14", "opset": "17", "opset:ai.onnx.ml": "3"}
KERAS_3 = [{"name": "keras", "version": "3.15.1"}]


SKLEARN = [{"name": "scikit-learn", "version": "1.9.1"}]
BOOSTED = [{"name": "xgboost", "version": "3.2.0"}]


def tensorflow(version: str, commit: str) -> list[dict]:
    return [{"name": "tensorflow", "version": version, "git_version": commit}]


READ = {
    "saved_model": ("saved_model", tensorflow("2.21.0", GIT_221), SAVED),
    "saved_model.pbtxt": ("saved_model", tensorflow("2.15.1", GIT_215), {}),
    "model.ckpt-7.meta": ("tf_checkpoint", tensorflow("2.15.1", GIT_215), {}),
    "frozen_graph.pb": ("tf_graph", [], {"producer": "2474"}),
    "model.keras": ("keras", KERAS_3, {}),
    "model.h5": ("hdf5", KERAS_3, {"backend": "tensorflow"}),
    "fixed.h5": ("hdf5", [{"name": "keras", "version": "2.15.0"}], {"backend": "tensorflow"}),
    "model.pt2": ("torch_export", [{"name": "torch", "version": "2.14.1+debian"}], {"schema_version": "8.20"}),
    "older.pt2": ("torch_export", [{"name": "torch", "version": "2.6.0+debian"}], {"schema_version": "8.2"}),
    "script.pt": ("torchscript", [], {}),
    "weights.pt": ("torch", [], {}),
    "legacy.pth": ("torch", [], {}),
    "model.onnx": ("onnx", [{"name": "tests", "version": "1.23.2"}], ONNX),
    "model.safetensors": ("safetensors", [], {}),
    "classifier.joblib": ("joblib", SKLEARN, {"protocol": "4", "modules": "joblib,numpy,sklearn", **ALIGNED}),
    "columns.joblib": (
        "joblib",
        SKLEARN,
        {"protocol": "4", "modules": "joblib,numpy,sklearn", "columns": "named", **NAMES, **ALIGNED},
    ),
    "table.joblib": ("joblib", SKLEARN, {"protocol": "4", "modules": "joblib,numpy,sklearn", **NAMES, **ALIGNED}),
    "classifier.pkl": ("pickle", SKLEARN, {"protocol": "4", "modules": "numpy,sklearn", **NAMES}),
    "old.pickle": ("pickle", SKLEARN, {"protocol": "0", "modules": "_codecs,numpy,sklearn", **NAMES}),
    "classifier.skops": ("skops", [*SKLEARN, {"name": "skops", "version": "0.16.0"}], {}),
    "boosted.ubj": ("xgboost", BOOSTED, {}),
    "boosted.json": ("xgboost", BOOSTED, {}),
    "boosted.pkl": ("pickle", BOOSTED, {"protocol": "4", "modules": "xgboost"}),
    "lightgbm.txt": ("lightgbm", [], {"version": "v4"}),
    "catboost.cbm": ("catboost", [{"name": "catboost", "version": "1.2.10"}], {}),
}


@pytest.fixture
def gcs(monkeypatch):
    with FakeGcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def upload(gcs: FakeGcs, folder, prefix: str) -> None:
    for path in folder.rglob("*") if folder.is_dir() else [folder]:
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder)}" if folder.is_dir() else f"{prefix}/{path.name}"
            gcs.put("models", name, path.read_bytes())


def said(facts: dict) -> tuple:
    details = {name: value for name, value in facts["details"].items() if name != "classes"}
    return facts.get("format"), facts["written_by"], details


def test_every_artifact_is_expected():
    assert {path.name for path in MODELS.iterdir()} - {"golden.npz"} == set(READ)


@pytest.mark.parametrize("name", READ)
def test_a_file_or_folder_is_read(name):
    facts = model_facts(str(MODELS / name))
    assert said(facts) == READ[name]
    assert "unread" not in facts


@pytest.mark.parametrize("name", READ)
def test_the_same_is_read_in_a_bucket(name, gcs):
    upload(gcs, MODELS / name, "runs/1")
    for uri in ("gs://models/runs/1", f"gs://models/runs/1{'' if (MODELS / name).is_dir() else '/' + name}"):
        facts = model_facts(uri)
        assert said(facts) == READ[name]
        assert "unread" not in facts


def test_what_is_read_is_a_valid_model(tmp_path):
    manifest = json.loads((MODELS.parents[2] / "envbuild/manifest/examples.json").read_bytes())[0]
    for name in READ:
        model = model_facts(str(MODELS / name))
        read = read_manifest(json.dumps({**manifest, "model": model}).encode(), name).model
        assert read is not None
        assert read.format == READ[name][0]


def test_local_files_are_listed_with_their_digests():
    folder = MODELS / "saved_model"
    facts = model_facts(str(folder))
    listed: list[dict] = [
        {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    ]
    assert facts["files"] == listed
    assert facts["file_count"] == 2
    assert facts["size"] == sum(file["size"] for file in listed)


def test_objects_are_listed_with_what_cloud_storage_knows(gcs):
    upload(gcs, MODELS / "saved_model", "runs/1")
    gcs.put("models", "runs/1/envbuild/record-x.json", b"{}")
    gcs.put("models", "runs/10/other", b"x")
    facts = model_facts("gs://models/runs/1/")
    resources = gcs.buckets["models"].objects
    assert [(file["path"], file["size"], file["generation"]) for file in facts["files"]] == [
        (name, len(resources[f"runs/1/{name}"].data), resources[f"runs/1/{name}"].generation)
        for name in ("fingerprint.pb", "saved_model.pb")
    ]
    assert [bool(re.fullmatch(r"[A-Za-z0-9+/]{6}==", str(file["crc32c"]))) for file in facts["files"]] == [True, True]
    assert "sha256" not in facts["files"][0]


def with_unknown_field(model: bytes, size: int) -> bytes:
    """A SavedModel with so many bytes more: a second graph, as protobuf allows it anywhere."""
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
    return model + b"\x12" + length + bytes(size)


def test_of_a_large_object_little_is_transferred(gcs):
    model = (MODELS / "saved_model/saved_model.pb").read_bytes()
    gcs.put("models", "big/saved_model.pb", with_unknown_field(model, 32 << 20))
    facts = model_facts("gs://models/big")
    assert facts["written_by"] == tensorflow("2.21.0", GIT_221)
    (request,) = gcs.seen("media")
    first, last = request.headers["range"].removeprefix("bytes=").split("-")
    assert int(last) - int(first) < 1 << 20


def test_the_end_of_a_large_program_is_searched_first():
    program = b'{"graph_module": "' + b"x" * (64 << 20) + b'", "schema_version": {"major": 8, "minor": 20}, '
    path = {"m/models/model.json": program + b'"torch_version": "2.14.1"}', "m/archive_format": b"pt2"}
    place = MemoryPlace({"model.pt2": zipped(path, zipfile.ZIP_STORED)})
    facts = facts_of_place("memory", place)
    assert facts["written_by"] == [{"name": "torch", "version": "2.14.1"}]
    assert facts["details"] == {"schema_version": "8.20"}
    assert place.read < 1 << 20


def zipped(members: dict[str, bytes], method: int) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def test_a_packed_keras_archive_is_read():
    with zipfile.ZipFile(MODELS / "model.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert said(read_memory("model.keras", zipped(members, zipfile.ZIP_DEFLATED))) == READ["model.keras"]


def test_an_archive_beyond_4_gib_is_read(tmp_path):
    path = tmp_path / "model.pt2"
    with path.open("wb") as file:
        file.truncate(5 << 30)
        file.seek(0, 2)
        with zipfile.ZipFile(file, "a", allowZip64=True) as archive:
            archive.writestr("m/models/model.json", '{"torch_version": "2.9.0"}')
        file.seek(0)
        file.write(b"PK\3\4")

    class Huge(MemoryPlace):
        def open(self, path):
            return local_source(str(tmp_path / path), path)

    assert facts_of_place("memory", Huge({"model.pt2": b""}))["written_by"] == [{"name": "torch", "version": "2.9.0"}]


def test_keras_2_says_its_version_beside_a_saved_model(tmp_path):
    shutil.copytree(MODELS / "saved_model", tmp_path / "model")
    metadata = b'\n\x20\x1a\x04root*\x18{"name": "x", "keras_version": "2.8.0", "backend": "tensorflow"}'
    (tmp_path / "model/keras_metadata.pb").write_bytes(metadata)
    writers = model_facts(str(tmp_path / "model"))["written_by"]
    assert writers == [*tensorflow("2.21.0", GIT_221), {"name": "keras", "version": "2.8.0"}]


def test_an_index_with_its_data_is_a_checkpoint(tmp_path):
    (tmp_path / "ckpt-1.index").write_bytes(b"\0\0")
    assert "format" not in model_facts(str(tmp_path))
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(b"\0\0")
    facts = model_facts(str(tmp_path))
    assert (facts["format"], facts["written_by"]) == ("tf_checkpoint", [])


def test_an_orbax_checkpoint_is_known_by_its_metadata(tmp_path):
    (tmp_path / "_CHECKPOINT_METADATA").write_text("{}")
    facts = model_facts(str(tmp_path))
    assert (facts["format"], facts["details"]) == ("orbax", {})


def test_the_file_that_says_most_is_read_and_the_highest_first(tmp_path):
    (tmp_path / "assets").mkdir()
    shutil.copy(MODELS / "saved_model/saved_model.pb", tmp_path / "assets")
    shutil.copy(MODELS / "weights.pt", tmp_path)
    shutil.copy(MODELS / "model.safetensors", tmp_path)
    assert model_facts(str(tmp_path))["format"] == "safetensors"


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.pickle"])
def test_a_pickle_is_read_and_never_loaded(name, tmp_path):
    target = tmp_path / "touched"
    facts = read_memory(name, b"\x80\x04cos\nsystem\n(S'touch %s'\ntR." % str(target).encode())
    assert (facts["format"], facts["details"]["classes"]) == ("pickle", "os.system")
    assert not target.exists()


def test_a_folder_of_other_files_has_no_format(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    facts = model_facts(str(tmp_path))
    assert "format" not in facts
    assert "unread" not in facts
    assert facts["file_count"] == 1


def test_no_secret_of_an_artifact_is_kept():
    secret = "ghp_0123456789abcdefghij0123456789abcdef"
    model = (MODELS / "model.onnx").read_bytes().replace(b"\x12\x05tests", b"\x12\x28" + secret.encode())
    assert secret not in json.dumps(read_memory("model.onnx", model))
    assert secret not in json.dumps(read_memory(f"{secret}.onnx", b""))


def test_the_classes_of_a_pickle_are_named_and_modules_of_python_are_not():
    facts = model_facts(str(MODELS / "columns.joblib"))
    assert "sklearn.compose._column_transformer.ColumnTransformer" in facts["details"]["classes"]
    assert "builtins" not in facts["details"]["classes"]


@pytest.mark.parametrize(("beside", "lowest"), [("pandas.arrays StringArray", "3.0"), ("pandas Series", None)])
def test_text_of_pandas_3_needs_pandas_3_and_its_type_alone_does_not(beside, lowest, tmp_path):
    lines = ("pandas StringDtype", beside, "pandas.core.indexes.base _new_Index")
    named = "".join("c{}\n{}\n".format(*it.split()) for it in lines)
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04" + named.encode() + b"\x87.")
    assert model_facts(str(tmp_path / "model.pkl"))["details"].get("pandas") == lowest


def test_each_artifact_of_a_folder_is_named_and_weights_of_one_model_count_once(tmp_path):
    for name in ("boosted.ubj", "classifier.joblib"):
        shutil.copyfile(MODELS / name, tmp_path / name)
    for number in range(3):
        shutil.copyfile(MODELS / "model.safetensors", tmp_path / f"model-{number}-of-3.safetensors")
    facts = model_facts(str(tmp_path))
    assert facts["format"] == "safetensors"
    assert [(it["path"], it["format"]) for it in facts["artifacts"]] == [
        ("model-0-of-3.safetensors", "safetensors"),
        ("classifier.joblib", "joblib"),
        ("boosted.ubj", "xgboost"),
    ]


def test_what_lies_in_a_saved_model_is_part_of_it_but_for_pickles_beside_it(tmp_path):
    shutil.copytree(MODELS / "saved_model", tmp_path, dirs_exist_ok=True)
    (tmp_path / "assets").mkdir()
    shutil.copyfile(MODELS / "lightgbm.txt", tmp_path / "assets/vocabulary.txt")
    assert "artifacts" not in model_facts(str(tmp_path))
    shutil.copyfile(MODELS / "classifier.joblib", tmp_path / "scaler.joblib")
    facts = model_facts(str(tmp_path))
    assert facts["format"] == "saved_model"
    assert [it["path"] for it in facts["artifacts"]] == ["saved_model.pb", "scaler.joblib"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("config.json", {"transformers_version": "4.44.2", "architectures": ["BertModel"]}, ("transformers", "4.44.2")),
        ("meta.json", {"lang": "en", "spacy_version": ">=3.7.2,<3.8.0"}, ("spacy", "3.7.2")),
        (
            "config_sentence_transformers.json",
            {"__version__": {"sentence_transformers": "2.2.2"}},
            ("sentence_transformers", "2.2.2"),
        ),
        ("config.json", {"width": 3}, (None, None)),
        ("metrics.json", {"learner": 1}, ("xgboost", None)),
        ("metrics.json", {"accuracy": 1}, (None, None)),
    ],
)
def test_a_description_says_which_library_it_is_of(name, value, expected):
    facts = read_memory(name, json.dumps(value).encode())
    found = facts["written_by"][0]["version"] if facts["written_by"] else None
    assert (facts.get("format"), found) == expected
    assert ("unread" in facts) is (expected == ("xgboost", None))


@pytest.mark.parametrize("name", ["classifier.joblib", "columns.joblib", "classifier.pkl", "old.pickle", "boosted.pkl"])
def test_a_pickle_that_is_cut_short_says_so(name):
    data = (MODELS / name).read_bytes()
    assert "cut short" in read_memory(name, data[: len(data) * 2 // 3])["unread"]


def test_the_inputs_beside_an_onnx_model_are_no_fault_of_it():
    files = {
        "model.onnx": (MODELS / "model.onnx").read_bytes(),
        "test_data_set_0/input_0.pb": b"\x08\x01\x10\x01J\x02ab",
    }
    facts = facts_of_place("memory", MemoryPlace(files))
    assert (facts["format"], facts.get("unread"), facts.get("artifacts")) == ("onnx", None, None)


def test_of_thousands_of_texts_few_are_opened(monkeypatch):
    place = MemoryPlace({f"logs-{number:04}.json": b"{}" for number in range(3000)})
    opened: list[str] = []

    def open_file(path: str) -> RangeReader:
        opened.append(path)
        return MemoryPlace.open(place, path)

    monkeypatch.setattr(place, "open", open_file)
    assert "format" not in facts_of_place("memory", place)
    assert len(opened) <= 50
