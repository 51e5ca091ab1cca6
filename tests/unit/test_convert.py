"""`envbuild convert` and records given to `envbuild from-manifest`: where they lie, what is told, and what is written."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from envbuild.capture.golden import golden_facts
from envbuild.manifest.reader import read_manifest
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.running import run_envbuild
from tests.unit.modelling import MODELS
from tests.unit.test_formats_runs import FOLDER, LISTED, wandb
from tests.unit.test_from_manifest import TENSORFLOW, Site

FREEZE = "idna==3.20\nsix==1.16.0\n"


class Desk:
    """A folder, and the command run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run(
        self, *arguments: str | Path, data: bytes = b"", code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        variables = os.environ | {"ENVBUILD_GCS_TIMEOUT": "2"} | env
        found = run_envbuild("convert", *arguments, cwd=self.folder, env=variables, data=data)
        assert "Traceback" not in found.stderr, found.stderr
        assert found.returncode == code, found.stderr
        return found


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_stdout_is_the_manifest_and_stderr_says_what_is_not_in_it(desk):
    desk.write("freeze.txt", FREEZE)
    done = desk.run("freeze.txt", "--python", "3.11.7", "--ran-on", "linux/amd64")
    manifest = read_manifest(done.stdout.encode(), "stdout")
    assert [it.name for it in manifest.distributions] == ["idna", "six"]
    assert "freeze.txt is read as pip-freeze" in done.stderr
    assert "accelerator (give --gpu)" in done.stderr
    assert "warning: pip freeze leaves out pip" in done.stderr
    assert "platform.machine" not in done.stderr


def test_a_golden_sample_is_added_to_a_record_that_has_none(desk):
    desk.write("freeze.txt", FREEZE)
    desk.write("few.npz", (MODELS / "golden.npz").read_bytes())
    given = ("--python", "3.11.7", "--golden", "few.npz", "--out", "run.json")
    desk.run("freeze.txt", *given)
    golden = read_manifest((desk.folder / "run.json").read_bytes(), "run.json").golden
    assert golden is not None
    facts = golden_facts(str(MODELS / "golden.npz")) or {}
    assert [it.data for it in golden.inputs] == [it["data"] for it in facts["inputs"]]
    assert "the record has a golden sample" in desk.run("run.json", "--golden", "few.npz", code=2).stderr
    assert "--golden freeze.txt" in desk.run("freeze.txt", *given[:2], "--golden", "freeze.txt", code=2).stderr


def test_the_manifest_is_written_whole_or_not_at_all(desk):
    desk.write("freeze.txt", FREEZE)
    done = desk.run("freeze.txt", "--python", "3.11.7", "--model", "gs://models/1", "--out", "m.json")
    assert done.stdout == "m.json\n"
    assert read_manifest((desk.folder / "m.json").read_bytes(), "x").model_uri == "gs://models/1"
    before = (desk.folder / "m.json").read_bytes()
    desk.run("freeze.txt", "--out", "m.json", code=10)
    assert (desk.folder / "m.json").read_bytes() == before
    assert {path.name for path in desk.folder.iterdir()} == {"freeze.txt", "m.json"}


@pytest.mark.parametrize(
    ("out", "code", "says"),
    [
        *((it, 2, "--out is the record itself") for it in ("freeze.txt", "./link")),
        ("s3://bucket/x", 2, "not to s3://"),
        (".", 2, "is a folder"),
        ("", 2, "is empty"),
        ("pipe", 13, "not a regular file"),
    ],
)
def test_where_no_manifest_can_go_nothing_changes(desk, out, code, says):
    desk.write("freeze.txt", FREEZE)
    (desk.folder / "link").symlink_to("freeze.txt")
    os.mkfifo(desk.folder / "pipe")
    assert says in desk.run("freeze.txt", "--python", "3.11.7", "--out", out, code=code).stderr
    assert {path.name for path in desk.folder.iterdir()} == {"freeze.txt", "link", "pipe"}
    assert (desk.folder / "freeze.txt").read_text() == FREEZE
    assert (desk.folder / "pipe").is_fifo()


def test_a_manifest_goes_to_a_bucket_and_keeps_the_mode_of_a_file(desk):
    desk.write("freeze.txt", FREEZE)
    desk.write("m.json", "").chmod(0o600)
    desk.run("freeze.txt", "--python", "3.11.7", "--out", "m.json")
    assert stat.S_IMODE((desk.folder / "m.json").stat().st_mode) == 0o600
    with FakeGcs() as gcs:
        gcs.create_bucket("runs")
        uri = "gs://runs/m.json"
        done = desk.run("freeze.txt", "--python", "3.11.7", "--out", uri, STORAGE_EMULATOR_HOST=gcs.url)
        assert done.stdout == f"{uri}\n"
        assert len(read_manifest(gcs.data("runs", "m.json"), uri).distributions) == 2


def test_what_a_capture_could_not_keep_is_told(desk):
    desk.write("freeze.txt", FREEZE)
    manifest = json.loads(desk.run("freeze.txt", "--python", "3.11.7").stdout)
    manifest["source"] = {"format": "capture", "notes": ["x could not be loaded"]}
    manifest["installation"] = {"unreadable": ["pytz-2004d.dist-info"]}
    desk.write("m.json", json.dumps(manifest))
    said = desk.run("m.json").stderr
    assert "warning: x could not be loaded" in said
    assert "whose name or version is not valid on a package index are left out: pytz-2004d.dist-info" in said


def test_a_manifest_keeps_its_bytes(desk):
    desk.write("freeze.txt", FREEZE)
    text = json.dumps(json.loads(desk.run("freeze.txt", "--python", "3.11.7").stdout), indent=7)
    desk.write("m.json", text)
    assert desk.run("m.json", "--python", "3.11.7").stdout == text
    assert json.loads(desk.run("m.json", "--gpu", "none").stdout)["accelerator"]["kind"] == "none"


def test_a_record_comes_from_stdin(desk):
    done = desk.run("-", "--python", "3.11.7", data="idna==3.20\r\n".encode("utf-16"))
    assert json.loads(done.stdout)["source"]["file"] == "stdin"
    assert "stdin is read as pip-freeze" in done.stderr


def test_folders_of_mlflow_and_wandb_are_read(desk):
    for name, text in FOLDER.items():
        desk.write(f"model/{name}", text)
    assert json.loads(desk.run("model").stdout)["source"]["format"] == "mlflow"
    desk.write("run/files/wandb-metadata.json", wandb())
    desk.write("run/files/requirements.txt", LISTED)
    assert json.loads(desk.run("run").stdout)["source"]["format"] == "wandb"
    assert json.loads(desk.run("run/files").stdout)["python"]["version"] == "3.10.12"
    assert "neither MLmodel nor" in desk.run(".", code=10).stderr


def test_records_and_folders_come_from_a_bucket(desk):
    with FakeGcs() as gcs:
        gcs.create_bucket("runs")
        gcs.put("runs", "1/freeze.txt", FREEZE.encode())
        for name, text in FOLDER.items():
            gcs.put("runs", f"2/model/{name}", text.encode())
        env = {"STORAGE_EMULATOR_HOST": gcs.url}
        freeze = desk.run("gs://runs/1/freeze.txt", "--python", "3.11.7", **env)
        assert json.loads(freeze.stdout)["source"]["file"] == "freeze.txt"
        model = json.loads(desk.run("gs://runs/2/model/", **env).stdout)
        assert [it["name"] for it in model["distributions"]][:2] == ["cloudpickle", "mlflow"]
        assert "there is no such object" in desk.run("gs://runs/3/freeze.txt", code=10, **env).stderr


def test_includes_stay_in_the_folder_of_the_record(desk):
    desk.write("project/requirements.txt", "-r base.txt\n")
    desk.write("project/base.txt", FREEZE)
    done = desk.run("project/requirements.txt", "--python", "3.11.7")
    assert len(json.loads(done.stdout)["distributions"]) == 2
    (desk.folder / "project/base.txt").unlink()
    secret = desk.write("secret.txt", "canary\n")
    (desk.folder / "project/base.txt").symlink_to(secret)
    said = desk.run("project/requirements.txt", "--python", "3.11.7", code=10).stderr
    assert "leads out of the record's folder" in said
    assert "canary" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["missing.txt"], 10, "No such file"),
        ([""], 2, "an empty name"),
        (["s3://b/x"], 2, "s3://b/x"),
        (["freeze.txt"], 10, "--python 3.10.12"),
        (["freeze.txt", "--python", "3.11"], 2, "all three numbers that `python --version` shows"),
        (["freeze.txt", "--python", "3.11.7", "--ran-on", "x"], 2, "linux/arm64"),
        (["freeze.txt", "--python", "3.11.7", "--gpu", ""], 2, "names no GPU"),
        (["freeze.txt", "--from", "poetry"], 2, "poetry"),
        (["freeze.txt", "--from", "pylock", "--python", "3.11.7"], 10, "not TOML"),
        (["nothing.bin"], 10, "conda-environment"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(desk, arguments, code, says):
    desk.write("freeze.txt", FREEZE)
    desk.write("nothing.bin", "<html>")
    done = desk.run(*arguments, code=code)
    assert says in done.stderr
    assert done.stdout == ""


WHEELS = (
    TENSORFLOW,
    make_wheel("tool", "1.0", requires=["helper"]),
    make_wheel("helper", "2.0"),
)


@pytest.fixture
def site(tmp_path):
    with serving(*WHEELS) as index:
        yield Site(tmp_path, index.url)


def test_a_requirements_file_is_built_with_what_it_requires_and_that_is_told(site):
    (site.folder / "requirements.txt").write_text("tensorflow-cpu==2.15.1\ntool==1.0\n")
    options = ["--python", "3.11.7", "--base", site.folder / "base", "--out", "out", "--stamp", "model", "--json"]
    done = site.run("requirements.txt", *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["added"] == ["helper==2.0"]
    assert (
        "warning: the record does not name 1 of 3 wheels, and the run may have had other versions: helper==2.0"
        in done.stderr
    )
    assert "platform: Linux x86_64 - the run's record does not say" in done.stderr
    [stamped] = (site.folder / "model/envbuild").glob("manifest-*.json")
    manifest = read_manifest(stamped.read_bytes(), "stamped")
    assert manifest.source.format == "requirements"
    assert [it.name for it in manifest.distributions] == ["tensorflow-cpu", "tool"]


def test_a_record_that_is_whole_gets_nothing_added(site):
    hashed = "".join(f"{name} --hash=sha256:{wheel.sha256}\n" for name, wheel in (("tensorflow-cpu==2.15.1", WHEELS[0]), ("tool==1.0", WHEELS[1])))  # fmt: skip
    (site.folder / "requirements.txt").write_text(hashed)
    options = [
        "--python",
        "3.11.7",
        "--ran-on",
        "linux/amd64",
        "--base",
        site.folder / "base",
        "--out",
        "out",
        "--json",
    ]
    done = site.run("requirements.txt", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["added"] == []
    assert "warning: 1 of" not in done.stderr
    (site.folder / "requirements.txt").write_text(hashed.replace(WHEELS[1].sha256, "ab" * 32))
    refused = site.run("requirements.txt", *options)
    assert refused.returncode == 12
    assert "not among the record's hashes" in refused.stderr


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--python", "3.10.1"], 2, "the record says Python 3.11.7"),
        (["--gpu", "Tesla T4"], 2, "the record says none"),
        (["--ran-on", "linux/arm64"], 2, "the record says Linux x86_64"),
        (["--python", "3.11.7", "--gpu", "none", "--ran-on", "linux/amd64"], 0, "tensorflow-cpu"),
    ],
)
def test_options_never_contradict_a_captured_manifest(site, options, code, says):
    done = site.build("--dry-run", *options)
    assert done.returncode == code, done.stderr
    assert says in done.stderr


def test_a_gpu_that_nobody_knows_of_is_asked_for(site):
    (site.folder / "freeze.txt").write_text("tensorflow==2.15.1\n")
    asked = site.run("freeze.txt", "--python", "3.11.7", "--dry-run")
    assert asked.returncode == 11
    assert "--gpu none" in asked.stderr
    said = site.run("freeze.txt", "--python", "3.11.7", "--dry-run", "--gpu", "none")
    assert said.returncode == 0, said.stderr
    assert "tensorflow-cpu==2.15.1" in said.stdout
    assert site.run("freeze.txt", "--python", "3.11.7", "--dry-run", "--gpu", "Tesla T4").stdout.count("nvidia-") > 5
