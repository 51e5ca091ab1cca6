"""`envbuild diff` of models, of this machine, and of locks beside them: what both can know, and nothing else."""

import dataclasses
import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from envbuild.cli.commands import run
from envbuild.diff.facts import (
    PREDICTIONS,
    RUN,
    compare_descriptions,
    compare_facts,
    compare_packages,
    describe_host,
    describe_lock,
    describe_manifest,
    facts_of_manifest,
)
from envbuild.lock.formats import read_pylock
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from envbuild.oci.layout import write_layout
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from tests.fakes.gcs import FakeGcs
from tests.fakes.trees import image_of_layers
from tests.unit.comparing import file, layer
from tests.unit.test_diff_facts import changed, lock_of
from tests.unit.test_from_manifest import manifest_of

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def text_of(value: dict) -> bytes:
    return json.dumps(value).encode()


def model_of(
    folder: Path, manifest: dict | None = None, lock: bytes | None = None, *, saved=b"\x08\1", image="1"
) -> Path:
    """A SavedModel, stamped if a manifest is given."""
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(saved)
    if manifest is not None:
        digest = Digest.of(image.encode())
        entry = StampEntry(
            role="train", variant="cpu", platform="linux/amd64", reference=f"r.example.com/m@{digest}", digest=digest,
            environment=Digest.of(b"environment" + image.encode()),
        )  # fmt: skip
        stamp(str(folder), entry, manifest=text_of(manifest), lock=lock or lock_of(six="1.16"), now=MOMENT)
    return folder


@pytest.fixture
def diff(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def asked(*arguments):
        capsys.readouterr()
        return run(["diff", *map(str, arguments)]), *capsys.readouterr()

    return asked


def test_a_models_stamp_its_run_its_lock_and_its_files_are_compared(diff, tmp_path):
    name = manifest_of()["distributions"][0]["name"]
    one = model_of(tmp_path / "one", manifest_of(), lock_of(six="1.16"))
    other = changed(distributions__0__version="9.9")
    two = model_of(tmp_path / "two", other, lock_of(six="1.17"), saved=b"\x08\2", image="2")
    code, told, said = diff(one, two)
    assert (code, "the models differ" in said) == (16, True)
    predictions, _, rest = told.partition(RUN)
    for fact in (
        f"distributions.{name}.version",
        "stamp.train cpu linux/amd64.environment",
        "lock.train cpu linux/amd64.six",
    ):
        assert fact in predictions
    assert "model.files.saved_model.pb.sha256" in predictions
    assert "stamp.train cpu linux/amd64.image" in rest
    assert "six-1.16" in told


def test_a_model_is_equal_to_itself_and_to_its_copy(diff, tmp_path):
    one = model_of(tmp_path / "one", manifest_of())
    assert diff(one, one)[0] == 0
    shutil.copytree(one, tmp_path / "elsewhere" / "two")
    for name in ("elsewhere/two", "elsewhere/two/", one.as_uri(), str(one)):
        code, told, _ = diff("one", name)
        assert (code, told.startswith("equal: all ")) == (0, True), told
        assert diff(name, "one", "--json")[0] == 0
    (tmp_path / "elsewhere" / "two" / "saved_model.pb").write_bytes(b"\x08\2")
    code, told, _ = diff(one, "elsewhere/two")
    assert code == 16
    assert [line.split()[0] for line in told.splitlines()[1:]] == ["what", "model.files.saved_model.pb.sha256"]


def test_a_bare_model_is_equal_to_its_copy(diff, tmp_path):
    shutil.copytree(model_of(tmp_path / "one"), tmp_path / "two")
    assert diff("one", "two")[0] == 0


def test_a_copy_in_a_bucket_has_digests_of_another_kind(diff, tmp_path, monkeypatch):
    data = b"\x08\1"
    with FakeGcs() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        for bucket in ("one", "two"):
            gcs.put(bucket, "model/saved_model.pb", data)
        gcs.put("two", "model/saved_model.pb", data)
        gcs.put("other", "model/saved_model.pb", b"\x08\2")
        model_of(tmp_path / "here", saved=data)
        assert diff("here", "gs://one/model")[0] == 0
        assert diff("gs://one/model", "gs://two/model")[0] == 0
        code, told, _ = diff("gs://one/model", "gs://other/model")
        assert (code, "model.files.saved_model.pb.crc32c" in told, "generation" in told) == (16, True, False)


def test_where_a_run_wrote_its_model_is_a_fact_of_the_run(diff, tmp_path):
    for name, uri in (("a.json", "gs://b/one"), ("b.json", "gs://b/two")):
        (tmp_path / name).write_bytes(text_of(changed(model_uri=uri)))
    code, told, _ = diff("a.json", "b.json")
    assert (code, "model_uri" in told) == (16, True)


def test_against_a_manifest_a_model_is_its_run_with_its_files_as_they_are(diff, tmp_path):
    model_of(tmp_path / "model", manifest_of())
    (tmp_path / "m.json").write_bytes(text_of(manifest_of()))
    code, told, _ = diff("m.json", "model")
    assert code == 16
    assert [line.split() for line in told.splitlines() if line.startswith("  model ")] == [
        ["model", "not", "there", "->", "there"]
    ]
    (tmp_path / "other.json").write_bytes(text_of(changed(distributions__0__version="9.9")))
    code, told, _ = diff("other.json", "model")
    assert "9.9 -> " in told
    assert not any(it in told for it in ("stamp.", "lock."))


def test_of_a_model_without_a_stamp_only_its_files_are_compared(diff, tmp_path):
    model_of(tmp_path / "bare")
    model_of(tmp_path / "stamped", manifest_of(), saved=b"\x08\2")
    code, told, said = diff("bare", "stamped", "--json")
    assert code == 16
    assert "no stamp" in said
    facts = json.loads(told)["facts"]
    assert {it["name"].partition(".")[0] for it in facts} == {"model"}
    assert json.loads(told)["a"]["digest"] is None


def test_this_machine_is_held_against_what_a_run_had(diff, tmp_path, monkeypatch):
    monkeypatch.delenv("TRAINING_DATA_PATH", raising=False)
    assert diff("host", "host")[0] == 0
    recorded = changed(
        variables={"TRAINING_DATA_PATH": "/gcs/data"},
        contract={"variables": [{"name": "TRAINING_DATA_PATH", "present": True}, {"name": "BATCH", "present": False}]},
        code={"commit": "1234"},
    )
    (tmp_path / "m.json").write_bytes(text_of(recorded))
    code, told, said = diff("m.json", "host")
    assert code == 16
    assert "capturing this machine by the Python that envbuild runs on" in said
    [line] = [line for line in told.splitlines() if "variables.TRAINING_DATA_PATH.present" in line]
    assert line.endswith("yes -> no")
    assert "/gcs/data -> not there" in told
    assert not any(word in told for word in ("BATCH", "code.commit", "created", "source."))
    monkeypatch.setenv("TRAINING_DATA_PATH", "/gcs/data")
    assert "TRAINING_DATA_PATH" not in diff("m.json", "host")[1]


def test_another_interpreter_of_this_machine_can_be_asked(diff, tmp_path):
    (tmp_path / "m.json").write_bytes(text_of(manifest_of()))
    code, told, said = diff("host", "m.json", "--python", sys.executable)
    assert (code, f"by {sys.executable}" in said) == (16, True)
    assert "distributions.pytest.version" in told
    code, told, said = diff("m.json", "m.json", "--python", sys.executable)
    assert (code, told, "host is not compared" in said) == (2, "", True)
    assert diff("host", "m.json", "--python", tmp_path / "none")[:2] == (2, "")


def test_a_lock_is_held_against_a_run_by_packages_only(diff, tmp_path):
    listed = [{"name": "Six", "version": "1.16", "origin": {"kind": "index"}}]
    (tmp_path / "m.json").write_bytes(text_of(changed(distributions=listed)))
    (tmp_path / "pylock.toml").write_bytes(lock_of(six="1.16"))
    (tmp_path / "pylock.new.toml").write_bytes(lock_of(six="1.17", idna="3.7"))
    assert diff("pylock.toml", "m.json")[:2] == (0, "equal: all 1 facts agree\n")
    code, told, _ = diff("m.json", "pylock.new.toml")
    assert code == 16
    assert told.splitlines() == [
        "different: 2 of 2 facts",
        PREDICTIONS,
        "  idna  not there -> 3.7",
        "  six   1.16 -> 1.17",
    ]


def test_a_context_is_its_lock(diff, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text("FROM scratch\n")
        (tmp_path / name / "pylock.toml").write_bytes(lock_of(six="1.16" if name == "one" else "1.17"))
    assert diff("one", "one/pylock.toml")[0] == 0
    assert diff("one", "two")[0] == 16


def test_an_image_and_something_else_are_refused_with_what_compares_them(diff, tmp_path):
    write_layout(image_of_layers(layer(file("a"))), tmp_path / "layout")
    (tmp_path / "m.json").write_bytes(text_of(manifest_of()))
    for pair in (("layout", "m.json"), ("host", "layout")):
        code, told, said = diff(*pair)
        assert (code, told) == (2, "")
        assert f"envbuild verify {' '.join(pair)}" in said


def told_by(**changes):
    return describe_manifest(read_manifest(text_of(changed(**changes)), "m"))


def names(before, after) -> set[str]:
    return {it.name for it in compare_descriptions(before, after).facts}


def test_what_a_record_does_not_know_is_no_difference():
    whole = told_by(accelerator={"kind": "none"}, cpu={"count": 3})
    part = told_by(source={"format": "pip-freeze", "unknown": ["accelerator", "cpu"]})
    assert not {it for it in names(whole, part) if it.startswith(("accelerator", "cpu"))}
    assert {"accelerator.kind", "cpu.count"} <= names(whole, told_by())


def test_what_an_incomplete_record_does_not_list_is_no_difference():
    some = manifest_of()["distributions"]
    more = [*some, {"name": "zipp", "version": "3", "origin": {"kind": "index"}}]
    whole = told_by(distributions=more)
    part = told_by(distributions=some, source={"format": "requirements", "complete": False})
    assert not {it for it in names(whole, part) | names(part, whole) if it.startswith("distributions.zipp")}
    assert "distributions.zipp.version" in names(whole, told_by(distributions=some))
    lock = describe_lock(read_pylock(lock_of(zipp="4"), "l", Path("/")))
    assert {it.name for it in compare_packages(lock, part).facts} == {it["name"].lower() for it in some}
    assert "zipp" in {it.name for it in compare_packages(lock, whole).facts}


def test_a_package_whose_version_nobody_knows_is_left_out():
    odd = [{"name": "zipp", "origin": {"kind": "vcs", "url": "https://git.example.com/z", "commit": "1234"}}]
    lock = describe_lock(read_pylock(lock_of(zipp="4"), "l", Path("/")))
    assert compare_packages(told_by(distributions=odd), lock).compared == 0
    assert compare_packages(lock, told_by(distributions=odd)).compared == 0


def native_of(process: str, *libraries: str) -> dict:
    found = [{"name": it, "path": f"/lib/{it}", "owner": {"kind": "none"}} for it in libraries]
    return {
        "process": process,
        "libraries": found,
        "components": [{"name": "cuda", "version": "12.5", "source": "file name", "loaded": process == "run"}],
    }


def test_what_a_fresh_process_has_not_loaded_is_no_difference():
    run_, fresh = told_by(native=native_of("run", "libcudnn.so.9")), told_by(native=native_of("fresh"))
    assert names(run_, fresh) == set()
    assert names(run_, told_by(native=native_of("run"))) > {"native.libraries.libcudnn.so.9.path"}


def test_a_host_says_nothing_of_what_only_a_run_has():
    ran = told_by(entry={"command": ["train.py"]}, model={"uri": "/m"}, contract={"data": [{"uri": "/d", "size": 1}]})
    host = describe_host(read_manifest(text_of(manifest_of()), "m"))
    assert names(ran, host) <= {"host"}


def lines_of(before: dict, after: dict) -> list[str]:
    one, two = (facts_of_manifest(read_manifest(text_of(it), "m")) for it in (before, after))
    return list(compare_facts(one, two).lines())


def test_many_words_of_a_list_share_a_row():
    lines = lines_of(changed(cpu__flags=["avx", "fma", "sse"]), changed(cpu__flags=["amx", "sse", "vnni", "x"]))
    [row] = [line for line in lines if "cpu.flags" in line]
    assert row.split() == ["cpu.flags", "-avx", "-fma", "+amx", "+vnni", "+x"]


def test_two_things_of_one_name_are_two():
    gpus = [{"name": "Tesla T4", "memory": 1}, {"name": "Tesla T4", "memory": 2}]
    lines = lines_of(changed(accelerator={"gpus": gpus}), changed(accelerator={"gpus": gpus[:1]}))
    assert [line.split("  ")[1] for line in lines[2:]] == ["accelerator.gpus.Tesla T4 (2).memory"]


def test_a_distribution_of_another_version_needs_one_row_and_has_all_in_json():
    before, after = changed(), changed()
    before["distributions"][0] |= {"content_sha256": "1" * 64, "installer": "pip"}
    after["distributions"][0] |= {"version": "9.9", "content_sha256": "2" * 64, "installer": "uv"}
    one, two = (facts_of_manifest(read_manifest(text_of(it), "m")) for it in (before, after))
    found = compare_facts(one, two)
    assert len(found.facts) == 3
    assert len([line for line in found.lines() if line.startswith("  ")]) == 1
    same = dataclasses.replace(found, facts=tuple(it for it in found.facts if not it.name.endswith(".version")))
    rows = [line for line in same.lines() if not line.startswith("different")]
    assert [rows[0], rows[2]] == [PREDICTIONS, RUN]
    assert "content_sha256" in rows[1]
    assert rows[3].endswith("pip -> uv")
