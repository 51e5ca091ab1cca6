"""A model that its environment may not load: capture and from-manifest warn, and neither stamp nor server is made."""

import io
import json
import shutil
import subprocess
import sys
import zipfile

import pytest

from envbuild.capture import script
from envbuild.capture.files import present
from envbuild.capture.model import model_facts
from envbuild.stamp.history import read_stamp
from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.wheels import make_wheel
from tests.running import run_envbuild
from tests.tools.pairs import PAIRS
from tests.unit.test_cli_bases import Site
from tests.unit.test_from_manifest import manifest_of

MODEL = PAIRS / "scikit-learn-1.4.0-pickle-under-1.4.2/model.pkl"
"""A real one; scikit-learn promises nothing about it to another minor version."""
NUMPY = make_wheel("numpy", "1.26.4")
OLDER, FITTING = (make_wheel("scikit_learn", version) for version in ("1.3.2", "1.4.2"))
WEB = make_wheel("web", "1.0")
SAYS = "model of scikit-learn: 1.4.0 wrote it, and 1.3.2 is to load it [artifact-library]"
REMEDY = "serve it with scikit-learn 1.4"


class Runs(Site):
    """A model, and runs that had scikit-learn in one version or the other."""

    def record(self, version: str, *, model: bool = True) -> str:
        if not model:
            (self.folder / "requirements.txt").write_text(f"scikit-learn=={version}\nnumpy==1.26.4\n")
            return "requirements.txt"
        found = manifest_of(("scikit-learn", version), ("numpy", "1.26.4"), model=present(model_facts("model")))
        del found["framework"]
        (self.folder / "run.json").write_text(json.dumps(found))
        return "run.json"

    def build(self, record: str, *options: str):
        facts = () if record.endswith(".json") else ("--python", "3.11.2", "--ran-on", "linux/amd64")
        base = ("--base", f"{self.host}/up/base:1", "--out", "out")
        return self("from-manifest", record, *facts, *base, "--push", f"{self.host}/env:v1", *options)

    @property
    def pushed(self) -> bool:
        return "env" in self.registry.repositories


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ENVBUILD_SERVE_IMPORT_CHECK", "never")  # the base's Python is a text
    (tmp_path / "model").mkdir()
    shutil.copy(MODEL, tmp_path / "model")
    with serving(NUMPY, OLDER, FITTING, WEB) as index, FakeRegistry() as registry:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield Runs(tmp_path, registry, capsys)


@pytest.mark.parametrize("model", [True, False], ids=["recorded", "only at the place to stamp"])
def test_a_model_that_the_lock_may_not_load_is_neither_pushed_nor_stamped(site, model):
    done = site.build(site.record("1.3.2", model=model), "--stamp", "model")
    assert (done.returncode, done.stdout, site.pushed) == (16, "", False), done.stderr
    assert SAYS in done.stderr
    assert REMEDY in done.stderr
    assert read_stamp("model") is None
    done = site.build(site.record("1.4.2", model=model), "--stamp", "model")
    assert (done.returncode, "artifact-" in done.stderr) == (0, False), done.stderr


def test_it_is_stamped_by_hand_with_a_warning_and_served_only_without_the_gate(site):
    done = site.build(site.record("1.3.2"), "--stamp", "model", "--stamp-anyway")
    assert (done.returncode, site.pushed) == (0, True), done.stderr
    assert f"warning: {SAYS}" in done.stderr
    stamped = read_stamp("model")
    serve = ("serve", "model", "--extra", "web", "--cmd", "web", "--no-bytecode", "--push", f"{site.host}/serving:v1")
    done = site(*serve)
    assert (done.returncode, "serving" in site.registry.repositories) == (16, False), done.stderr
    assert SAYS in done.stderr
    assert "--gate off" in done.stderr
    assert read_stamp("model") == stamped
    for options in ((), ("--gate", "off")):
        done = site(*serve, "--dry-run", *options)
        assert (done.returncode, SAYS in done.stderr) == (0, True), done.stderr
        assert ("without --dry-run this ends with exit code 16" in done.stderr) is (not options)
    done = site(*serve, "--gate", "off")
    assert (done.returncode, f"warning: {SAYS}" in done.stderr) == (0, True), done.stderr


def test_a_dry_run_of_serve_knows_nothing_of_what_is_added_above(site):
    found = manifest_of(("numpy", "1.26.4"), model=present(model_facts("model")))
    del found["framework"]
    (site.folder / "run.json").write_text(json.dumps(found))
    done = site.build("run.json", "--stamp", "model", "--stamp-anyway")
    assert done.returncode == 0, done.stderr
    serve = ("serve", "model", "--cmd", "web", "--push", f"{site.host}/serving:v1", "--dry-run")
    for extras, warns in ((("--extra", "web"), False), ((), True)):
        done = site(*serve, *extras)
        assert (done.returncode, "artifact-" in done.stderr) == (0, warns), done.stderr


def test_of_a_manifest_what_is_added_above_the_training_image_may_be_what_loads_the_model(site):
    found = manifest_of(("numpy", "1.26.4"), model=present(model_facts("model")))
    del found["framework"]
    (site.folder / "run.json").write_text(json.dumps(found))
    options = ("--base", f"{site.host}/up/base:1", "--cmd", "web", "--no-bytecode", "--push", f"{site.host}/serving:v1")
    done = site("serve", "run.json", *options, "--extra", "scikit-learn==1.4.2", "--extra", "web")
    assert (done.returncode, "artifact-" in done.stderr) == (0, False), done.stderr
    done = site("serve", "run.json", *options, "--extra", "scikit-learn==1.3.2", "--extra", "web", "--gate", "off")
    assert (done.returncode, done.stderr.count(f"warning: {SAYS}")) == (0, 1), done.stderr


def test_classes_of_the_program_that_saved_a_pickle_may_be_those_of_the_program_that_serves_it(site):
    (site.folder / "model/model.pkl").write_bytes(b"\x80\x04c__main__\nModel\n)\x81.")
    done = site.build(site.record("1.4.2"), "--stamp", "model")
    assert done.returncode == 0, done.stderr
    assert "warning: pickle of the model: wanted __main__.Model, found no such class" in done.stderr
    serve = ("serve", "model", "--cmd", "web", "--extra", "web", "--no-bytecode", "--push", f"{site.host}/serving:v1")
    done = site(*serve)
    assert (done.returncode, "serving" in site.registry.repositories) == (0, True), done.stderr
    for option in ("--imported", "--framework", "--gpu"):
        done = site(*serve, option, {"--framework": "torch", "--gpu": "none"}.get(option, "pandas"))
        assert (done.returncode, f"model, {option}" in done.stderr) == (2, True), done.stderr


def test_a_lock_with_both_generations_of_keras_needs_the_variable_that_its_image_does_not_set(site, monkeypatch):
    wrote = {"format": "keras", "written_by": [{"name": "keras", "version": "2.15.0"}]}
    model, pins = present(model_facts("model")) | wrote, {"keras": "3.3.3", "tf-keras": "2.16.0"}
    found = manifest_of(*pins.items(), model=model)
    del found["framework"]
    (site.folder / "run.json").write_text(json.dumps(found))
    wheels = [make_wheel(name.replace("-", "_"), version) for name, version in pins.items()]
    with serving(*wheels, WEB) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        done = site.build("run.json", "--framework", "none", "--stamp", "model")
        warning = "warning: model of Keras: Keras 2.15.0 wrote the model, and Keras 3.3.3 is to load it"
        assert (done.returncode, warning in done.stderr) == (0, True), done.stderr
        what = ("run.json", "--framework", "none", "--base", f"{site.host}/up/base:1", "--cmd", "web", "--extra", "web")
        done = site("serve", *what, "--no-bytecode", "--push", f"{site.host}/serving:v1")
        assert (done.returncode, warning in done.stderr) == (0, True), done.stderr


def test_a_dry_run_says_that_the_build_ends_with_16_and_its_heading_has_the_images_version(site):
    done = site.build(site.record("1.3.2"), "--stamp", "model", "--dry-run")
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "scikit-learn 1.3.2 on Python 3.11.7, CPU"), (
        done.stderr
    )
    assert SAYS in done.stderr
    assert "without --dry-run this ends with exit code 16" in done.stderr
    done = site.build(site.record("1.4.2"), "--stamp", "model", "--dry-run")
    assert "exit code" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--dry-run", "--stamp", "model", "--stamp-anyway")])
def test_it_is_a_warning_where_nothing_is_stamped(site, options):
    done = site.build(site.record("1.3.2"), *options)
    assert (done.returncode, f"warning: {SAYS}" in done.stderr, REMEDY in done.stderr) == (0, True, True), done.stderr
    assert read_stamp("model") is None


def test_the_capture_script_warns_of_a_model_of_another_minor_version(site):
    path = site.folder / "site-packages"
    with zipfile.ZipFile(io.BytesIO(OLDER.data)) as wheel:
        wheel.extractall(path)
    (site.folder / "capture.py").write_text(script())
    command = [sys.executable, "-S", "capture.py", "--model", "model", "--out", "captured.json"]
    for version, warns in (("1.3.2", True), ("1.4.2", False)):
        [info] = path.glob("*.dist-info")
        metadata = info / "METADATA"
        metadata.write_text(metadata.read_text().replace("1.3.2", version))
        info.rename(path / f"scikit_learn-{version}.dist-info")
        environment = {"PYTHONPATH": str(path), "PATH": ""}
        done = subprocess.run(command, cwd=site.folder, env=environment, capture_output=True, text=True, check=True)
        assert (f"scikit-learn 1.4.0 wrote the model, and {version} is installed" in done.stderr) == warns, done.stderr


def test_capture_warns_of_a_model_that_its_own_environment_cannot_load(site):
    done = run_envbuild("capture", "--model", "model", "--out", "captured.json", cwd=site.folder)
    assert (done.returncode, done.stdout) == (0, "captured.json\n"), done.stderr
    assert "warning: model of scikit-learn: scikit-learn 1.4.0 wrote it, and none is there" in done.stderr
    assert "install scikit-learn==1.4.0 there" in done.stderr
