"""Which file of a folder bears the stamp, and names and files that can bear none."""

import os
import socket
from pathlib import Path

import pytest

from envbuild.capture.model import model_facts
from envbuild.cli.commands import run
from envbuild.errors import EnvbuildError, StampError, UsageError
from envbuild.stamp.directory import DirectoryStore
from envbuild.stamp.history import read_history, read_stamp
from envbuild.stamp.stamping import check_stampable, stamper
from envbuild.stamp.store import choose_anchor, parse_model_uri
from tests.unit.test_stamp import InFolder, entry, gcs, write  # noqa: F401 - fixtures

MORE = ["README.md", ".gitattributes", "a.onnx", "b.onnx", "0/saved_model.pb"]


class Put:
    """Files of a model, in a folder or in a bucket."""

    def __init__(self, request, tmp_path: Path) -> None:
        self.folder = tmp_path / "hf"
        self.gcs = request.getfixturevalue("gcs") if request.param == "bucket" else None
        self.uri = "gs://models/hf" if self.gcs else str(self.folder)

    def put(self, name: str, data: bytes = b"x") -> None:
        if self.gcs:
            self.gcs.create_bucket("models")
            self.gcs.put("models", f"hf/{name}", data)
        else:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)


@pytest.fixture(params=["folder", "bucket"])
def files(request, tmp_path):
    return Put(request, tmp_path)


@pytest.mark.parametrize("first", ["model.safetensors", "1/saved_model.pb"])
@pytest.mark.parametrize("more", MORE)
def test_a_file_more_moves_no_stamp(files, first, more):
    files.put(first)
    files.put(f"{first}.index")
    names = [write(files.uri).record]
    files.put(more)
    found = read_stamp(files.uri)
    assert found
    assert found.anchor.name == first
    names.append(write(files.uri, entry("serve")).record)
    assert [it.name for it in read_history(files.uri).records] == names[::-1]


def test_a_saved_model_is_not_known_by_the_stamp_of_a_file_beside_it(files):
    files.put("other.keras")
    files.put("notes.txt")
    write(f"{files.uri}/other.keras")
    files.put("saved_model.pb")
    assert read_stamp(files.uri) is None


def test_a_stamp_of_a_folder_below_is_its_own(files):
    files.put("7/saved_model.pb")
    write(f"{files.uri}/7")
    files.put("notes.txt")
    assert read_stamp(files.uri) is None
    assert write(files.uri).stamp.anchor.name == "notes.txt"


def test_of_several_with_a_pointer_the_order_decides():
    assert choose_anchor(["c", "b", "a"], ["c", "b"]) == "b"
    assert choose_anchor(["x.keras", "b"], ["b"]) == "b"


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket, Path.mkdir, lambda path: path.symlink_to("absent")])
def test_a_saved_model_that_is_no_file_is_refused(tmp_path, make, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fingerprint.pb").write_bytes(b"x")
    make(Path("saved_model.pb"))
    with pytest.raises(StampError, match="not a regular file") as caught:
        check_stampable(str(tmp_path))
    assert caught.value.todo


@pytest.mark.parametrize("name", ["pointer.json", ".lock"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path, name):
    model = InFolder(tmp_path)
    write(model.uri)
    path = model.folder / "envbuild" / name
    path.unlink()
    os.mkfifo(path)
    for act in (
        lambda: write(model.uri, entry("serve")),
        lambda: DirectoryStore(str(model.folder)).read(f"envbuild/{name}", limit=9),
    ):
        with pytest.raises(StampError) as caught:
            act()
        assert caught.value.where == str(path)


def test_a_name_that_is_no_utf8_is_refused_before_the_build(tmp_path):
    path = os.fsdecode(bytes(tmp_path) + b"/bad\xff.keras")
    Path(path).write_bytes(b"x")
    for uri in (path, str(tmp_path)):
        with pytest.raises(StampError, match="not UTF-8") as caught:
            check_stampable(uri)
        str(caught.value).encode()
    with pytest.raises(UsageError, match="names no object") as said:
        check_stampable("gs://models/bad\udcff.keras")
    str(said.value).encode()
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/bad\xff"))
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"x")
    assert write(str(folder)).changed


@pytest.mark.parametrize(
    "uri",
    ["gs://user:hunter2@b/x", "https://user:hunter2@h/x", "gs://user:hunter2/x@bucket/x", "file://u:hunter2@h/x"],
)
def test_no_password_is_shown(uri, capsys):
    with pytest.raises(UsageError) as caught:
        parse_model_uri(uri)
    assert "hunter2" not in str(caught.value)
    assert caught.value.todo
    assert run(["inspect", uri]) == 2
    assert "hunter2" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("by", "kept"),
    [
        ("https://u:hunter2@ci/job?token=abcdef", "https://ci/job?token=[redacted]"),
        ("https://u:hunter2" + "x" * 5000 + "@ci/job", "https://ci/job"),
        ("by glpat-abcdefghij0123456789", "by [redacted]"),
        ("ci@example.com", "ci@example.com"),
        ("x" * 5000, "x" * 200),
        ("", None),
    ],
)
def test_who_stamps_is_recorded_without_secrets(monkeypatch, by, kept):
    monkeypatch.setenv("ENVBUILD_BY", by)
    assert stamper(google=False) == kept


@pytest.mark.parametrize("length", [930, 1000, 1020])
def test_a_name_that_leaves_no_room_for_a_record_is_told(gcs, length):  # noqa: F811
    gcs.create_bucket("models")
    folder = "d" * length
    gcs.put("models", f"{folder}/m", b"x")
    for uri in (f"gs://models/{folder}", f"gs://models/{folder}/m"):
        if length == 930:
            assert write(uri)
            continue
        with pytest.raises(StampError, match="of 1024 bytes") as caught:
            check_stampable(uri)
        assert "shorter" in caught.value.todo


def test_a_name_that_the_file_system_has_not_room_for_is_told(tmp_path):
    with pytest.raises(EnvbuildError, match="too long") as caught:
        check_stampable(str(tmp_path / ("x" * 300)))
    assert (caught.value.exit_code, caught.value.todo) == (15, "give a shorter path")


def test_names_that_are_not_utf_8_stay_different():
    assert parse_model_uri("file:///m/q%FF").path != parse_model_uri("file:///m/q%FE").path
    assert os.fsencode(parse_model_uri("file:///m/q%FF").path) == b"/m/q\xff"


def test_a_uri_means_one_folder_where_it_is_stamped_and_where_its_files_are_read(tmp_path):
    for name, files in ((b"q\xff", ("model.keras", "added.keras")), ("q\ufffd".encode(), ("model.keras",))):
        folder = Path(os.fsdecode(bytes(tmp_path) + b"/" + name))
        folder.mkdir()
        for file in files:
            (folder / file).write_bytes(b"x")
    found = model_facts(f"file://{tmp_path}/q%FF")
    assert [it["path"] for it in found["files"]] == ["added.keras", "model.keras"]
