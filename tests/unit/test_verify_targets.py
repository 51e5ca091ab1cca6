"""`verify TARGET...`: what trained held against what is stamped, locked, built and here, as people and CI run it."""

import json
import sys
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from envbuild.oci.layout import write_layout
from envbuild.verify.sources import Side
from envbuild.verify.sources.model import read_model, side_of_model
from envbuild.verify.targets import Target, verify_targets
from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import make_wheel
from tests.unit.test_cli_bases import Done, Site
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of
from tests.unit.test_golden_check import KERAS, NUMPY, keras_file

PYTHON = {"version": "3.11.2", "implementation": "cpython"}
"""As the base has it."""
NEWER = make_wheel("tool", "2.0", {"tool.py": "import sys"})


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/saved_model.pb").write_bytes(b"graph")
    with serving(TENSORFLOW, TOOL, NEWER) as index, FakeRegistry() as registry:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        found = Site(tmp_path, registry, capsys)
        manifest(found, "manifest.json")
        yield found


def manifest(site: Site, name: str, *distributions: tuple[str, str], **changes: Any) -> str:
    (site.folder / name).write_text(json.dumps(manifest_of(*distributions, **{"python": PYTHON} | changes)))
    return name


def built(site: Site, record: str = "manifest.json", *options: str) -> dict[str, Any]:
    base = ("--base", f"{site.host}/up/base:1")
    return site.says("from-manifest", record, *base, "--push", f"{site.host}/env:v1", "--out", "out", *options)


def wrong(done: Done) -> list[tuple[str, str, str]]:
    """Rule, about and severity of what does not agree, by --json."""
    found = json.loads(done.stdout)["findings"]
    return [(it["rule"], it["about"], it["severity"]) for it in found if not it["agrees"]]


MOVED = (("tensorflow-cpu", "2.15.1"), ("tool", "2.0"))


def test_a_stamped_model_agrees_with_its_images_lock_and_files(site):
    image = built(site, "manifest.json", "--stamp", "model")["image"]
    done = site("verify", "model")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "model:"
    assert any(
        line.startswith("ok       image train cpu linux/amd64: ") and image.partition("@")[2] in line for line in lines
    )
    assert not [line for line in lines if line.startswith(("error", "warning"))], done.stdout
    done = site(
        "verify",
        "model",
        image,
        f"{site.host}/env:v1",
        "out/context",
        "out/context/pylock.toml",
        "manifest.json",
        "--json",
    )
    assert (done.returncode, json.loads(done.stdout)["agrees"]) == (0, True), done.stdout


def test_of_the_stamped_locks_the_hosts_own_is_compared_and_what_several_say_is_said_once(site):
    built(site, "manifest.json", "--stamp", "model")
    model = read_model("model")
    [(slot, lock)] = model.locks.items()
    arm = ("train", "cpu", "linux/arm64")
    serving = ("serve", "cpu", "linux/amd64")
    locks = {slot: lock, arm: replace(lock, target=replace(lock.target, machine="aarch64")), serving: lock}
    model = replace(model, locks=locks)
    first = Target(side=side_of_model(model), model=model)
    host = Target(side=Side(name="host", kind="host", machine="x86_64", python="3.11.9"))

    def said(*others: Target) -> list[tuple[str, str, str]]:
        found = (it for it in verify_targets([first, *others], lambda *_: None) if "lock" in it.between[1])
        return [(it.between[1].removeprefix("locks of "), it.about, it.says) for it in found]

    both, ours, theirs = "train cpu linux/amd64, serve cpu linux/amd64", *map(" ".join, (slot, arm))
    assert {name for name, *_ in said(host)} == {both}
    every, abouts = f"{ours}, {theirs}, serve cpu linux/amd64", [(name, about) for name, about, _ in said()]
    assert {(every, "python"), (both, "machine"), (f"lock of {theirs}", "machine")} < set(abouts)
    assert len({says for *_, says in said()}) == len(said())
    elsewhere = replace(host, side=replace(host.side, python="3.12.1"))
    assert said(elsewhere) == said(), "no lock is for its Python"


def test_a_stamped_image_that_is_gone_fails(site):
    image = built(site, "manifest.json", "--stamp", "model")["image"]
    name, _, digest = image.removeprefix(f"{site.host}/").partition("@")
    site.registry.repositories[name].manifests.pop(digest)
    done = site("verify", "model", "--json")
    assert (done.returncode, wrong(done)) == (16, [("digest-gone", "image train cpu linux/amd64", "error")])


def test_a_model_that_was_replaced_fails(site):
    built(site, "manifest.json", "--stamp", "model")
    (site.folder / "model/saved_model.pb").write_bytes(b"other")
    done = site("verify", "model", "--json")
    assert (done.returncode, wrong(done)) == (16, [("artifact-stamp", "stamp", "error")])
    [finding] = [it for it in json.loads(done.stdout)["findings"] if not it["agrees"]]
    assert finding["says"].startswith("the model was replaced or copied after it was stamped at 20")
    assert finding["wanted"].startswith("saved_model.pb at generation ")


def test_records_of_another_model_in_the_folder_are_not_of_this_one(site):
    for name in ("one.keras", "two.keras"):
        (site.folder / "model" / name).write_bytes(b"weights")
    built(site, "manifest.json", "--stamp", "model/one.keras")
    done = site("verify", "model/two.keras")
    assert "error    stamp: the model has no stamp" in done.stdout
    assert "[artifact-stamp]" in done.stdout


def test_a_name_with_a_line_end_is_one_line_and_a_uri_in_sarif(site):
    folder = "mo\ndel\x1b[2J"
    (site.folder / folder).mkdir()
    (site.folder / folder / "saved_model.pb").write_bytes(b"graph")
    built(site, "manifest.json", "--stamp", folder)
    done = site("verify", folder)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "mo\\ndel\\x1b[2J:"), done.stderr
    assert "reading model mo\\ndel\\x1b[2J" in done.stderr
    (site.folder / folder / "saved_model.pb").write_bytes(b"other")
    done = site("verify", folder, "--format", "sarif")
    assert "mo%0Adel%1B%5B2J" in done.stdout
    assert done.returncode == 16


def test_a_moved_pin_in_an_image_is_named_with_both_versions(site):
    image = built(site, manifest(site, "moved.json", *MOVED))["image"]
    done = site("verify", "manifest.json", image)
    assert done.returncode == 16
    [line] = [line for line in done.stdout.splitlines() if line.startswith("error    tool")]
    assert "1.0" in line
    assert "2.0" in line
    assert "1 of " in done.stderr
    assert "do: " in done.stderr


def test_another_image_under_the_stamped_tag_is_found(site):
    built(site, "manifest.json", "--stamp", "model")
    built(site, manifest(site, "moved.json", *MOVED))
    done = site("verify", "model", f"{site.host}/env:v1", "--json")
    assert done.returncode == 16
    assert {("tag-moved", "tag", "error"), ("package", "tool", "error")} <= set(wrong(done))


def test_the_host_lacks_a_variable_that_the_run_had(site, monkeypatch):
    contract = {"variables": [{"name": "TRAINING_DATA_PATH", "present": True}]}
    record = manifest(site, "run.json", contract=contract, platform={})
    monkeypatch.delenv("TRAINING_DATA_PATH", raising=False)
    done = site("verify", record, "host", "--json")
    assert (done.returncode, wrong(done)) == (16, [("variable-missing", "TRAINING_DATA_PATH", "error")])
    monkeypatch.setenv("TRAINING_DATA_PATH", "/data")
    done = site("verify", record, "host", "--json")
    assert (done.returncode, wrong(done)) == (0, [])


def test_a_policy_decides_what_fails_and_an_ended_exception_no_longer_counts(site):
    moved = manifest(site, "moved.json", *MOVED)
    policy = site.folder / "policy.toml"
    policy.write_text('[rules]\npackage = "warning"\n')
    done = site("verify", "manifest.json", moved, "--policy", policy, "--json")
    assert (done.returncode, wrong(done)) == (0, [("package", "tool", "warning")])
    policy.write_text('fail-on = "warning"\n[rules]\npackage = "warning"\n')
    assert site("verify", "manifest.json", moved, "--policy", policy).returncode == 16
    accepted = '[[accept]]\nrule = "package"\nabout = "tool"\nreason = "not served"\nuntil = {}\n'
    policy.write_text(accepted.format("9999-12-31"))
    assert site("verify", "manifest.json", moved, "--policy", policy).returncode == 0
    policy.write_text(accepted.format("2020-01-01"))
    assert site("verify", "manifest.json", moved, "--policy", policy).returncode == 16
    policy.write_text('[rules]\nno-such-rule = "note"\n')
    done = site("verify", "manifest.json", moved, "--policy", policy)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown rule no-such-rule" in done.stderr


@pytest.mark.parametrize("form", ["sarif", "junit", "json", "text"])
def test_every_format_names_the_package_and_ends_alike(site, form):
    done = site("verify", "manifest.json", manifest(site, "moved.json", *MOVED), "--format", form)
    assert done.returncode == 16
    if form == "sarif":
        [result] = json.loads(done.stdout)["runs"][0]["results"]
        assert (result["ruleId"], result["level"]) == ("package", "error")
    elif form == "junit":
        [failure] = ET.fromstring(done.stdout).iter("failure")
        assert "2.0" in (failure.get("message") or "")
    elif form == "json":
        assert wrong(done) == [("package", "tool", "error")]
    else:
        assert "error    tool: wanted 1.0, found 2.0 [package]" in done.stdout.splitlines()
    assert " failed: tool\n" in done.stderr


def test_equal_targets_of_every_kind_agree(site):
    built(site)
    site.says("from-manifest", "manifest.json", "--base", f"{site.host}/up/base:1", "--out", "image")
    for target in ("manifest.json", "out/context/pylock.toml", "out/context", "oci:image"):
        done = site("verify", "manifest.json", target)
        assert (done.returncode, "error" in done.stdout) == (0, False), done.stdout + done.stderr


def test_what_was_left_out_on_purpose_is_one_note_wherever_it_is_not_there(site):
    built(site, "manifest.json", "--stamp", "model", "--drop", "tool")
    site.says("from-manifest", "manifest.json", "--base", f"{site.host}/up/base:1", "--out", "image", "--drop", "tool")
    note, absent = ("package-missing", "dropped", "note"), ("package-missing", "tool", "error")
    found = wrong(site("verify", "model", "host", "--python", sys.executable, "--json"))
    assert (found.count(note), absent in found) == (2, False), "of the lock, and of the host"
    assert wrong(site("verify", "manifest.json", "oci:image", "--json")) == [absent]
    assert wrong(site("verify", "manifest.json", "out/context/pylock.toml", "oci:image", "--json")) == [note, note]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Missing argument"),
        (("manifest.json", "absent.json"), "where: TARGET absent.json"),
        (("host",), "where: TARGET host"),
        (("example.com/churn:7",), "where: TARGET example.com/churn:7"),
        (("manifest.json", "--deep"), "these go with --lock"),
        (("manifest.json", "--run"), "where: --run"),
        (("a", "b", "--lock", "pylock.toml"), "--lock is for one image"),
        (("manifest.json", "--lock", "pylock.toml"), "--lock is for an image, and this is a manifest"),
        (("model", "--lock", "pylock.toml"), "this is a model\n  where: "),
        (("host", "--lock", "pylock.toml"), "this is a machine\n  where: "),
        (("manifest.json", "manifest.json", "--python", "python3"), "no target is host"),
        (("manifest.json", "host", "--python", ""), "names no interpreter"),
        (("manifest.json", "host", "--format", "sarif", "--json"), "another format"),
        (("gs://acme/mo\ndel", "host"), "not a model's path or URI"),
        (("host", "manifest.json", "--golden"), "where: --golden"),
        (("manifest.json", "host", "--policy", "absent.toml"), "where: --policy absent.toml"),
        (("manifest.json", "host", "--python", "/absent/python"), "where: --python /absent/python"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(site, arguments, says):
    done = site("verify", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert says in done.stderr


def test_a_model_without_a_stamp_says_what_to_do(site):
    done = site("verify", "model")
    assert done.returncode == 16
    assert "error    stamp: the model has no stamp" in done.stdout
    assert "--stamp" in done.stdout


def test_a_run_without_a_sample_says_how_to_record_one(site):
    built(site, "manifest.json", "--stamp", "model")
    done = site("verify", "model", "--golden", "--json")
    assert (done.returncode, wrong(done)) == (0, [("golden-sample", "golden", "warning")])
    [finding] = [it for it in json.loads(done.stdout)["findings"] if it["rule"] == "golden-sample"]
    assert "--golden FILE" in finding["do"]


def sampled(site: Site, *, by: float = 2.0) -> str:
    """A model that an interpreter with our small Keras runs, and the manifest of a run that recorded 2 * x."""
    keras_file(site.folder / "saved" / "model.keras", by=by)
    numbers = [{"name": "", "dtype": "float32", "shape": [1], "data": it} for it in ("AACAPw==", "AAAAQA==")]
    golden = {"inputs": numbers[:1], "outputs": numbers[1:], "rtol": 1e-5, "atol": 1e-6}
    return manifest(site, "sampled.json", golden=golden, model_uri=str(site.folder / "saved/model.keras"))


@pytest.fixture
def small_keras(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/numpy.py").write_text(NUMPY)
    (tmp_path / "site/keras.py").write_text(KERAS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def golden_lines(done: Done) -> list[str]:
    return [line for line in done.stdout.splitlines() if " golden: " in line]


def test_the_sample_is_run_by_the_interpreter_of_the_host(site, small_keras):
    words = ("host", "--python", sys.executable, "--golden")
    [line] = golden_lines(site("verify", sampled(site), *words))
    assert line == f"ok       golden: a sample of 1 output is recorded; with --run it is run in {sys.executable}"
    [line] = golden_lines(site("verify", sampled(site), *words, "--run"))
    assert line.startswith("ok       golden: the model gives what was recorded: 1 output, 1 number, exactly")
    done = site("verify", sampled(site, by=3.0), *words, "--run")
    assert done.returncode == 16
    [line] = golden_lines(done)
    assert line.startswith("error    golden: 1 of 1 number of output is further off than")


def test_a_sample_with_nothing_to_run_it_in_is_refused_with_what_to_give(site):
    for words in (("host",), ()):
        done = site("verify", sampled(site), *words, "--golden", "--run")
        assert (done.returncode, done.stdout) == (2, "")
        assert "where: --golden --run" in done.stderr
        assert "host and --python" in done.stderr


@pytest.mark.parametrize("form", ["text", "json", "sarif", "junit"])
def test_what_ends_the_golden_part_leaves_what_was_found(site, monkeypatch, form):
    """There is no engine, and no bubblewrap."""
    image = built(site)["image"]
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("PATH", "/nowhere")
    done = site("verify", sampled(site), image, "--golden", "--run", "--format", form)
    assert done.returncode == 17
    assert "envbuild local MODEL --venv DIR --golden" in done.stderr
    if form == "text":
        assert "ok       tool" in done.stdout or "ok       packages: " in done.stdout
    elif form == "json":
        told = json.loads(done.stdout)
        assert (told["agrees"], bool(told["failed"]), len(told["findings"]) > 5) == (False, True, True)
    elif form == "sarif":
        assert not json.loads(done.stdout)["runs"][0]["invocations"][0]["executionSuccessful"]
    else:
        assert len(list(ET.fromstring(done.stdout).iter("error"))) == 1


def test_no_target_is_read_before_all_are_known_to_be_some(site):
    """An image may have gigabytes."""
    done = site("verify", "manifest.json", "./absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no such file")


@pytest.mark.parametrize("lies", ["a.pub", "m.json"])
def test_nothing_is_read_where_there_is_no_key(site, lies):
    (site.folder / "m.json").write_text("no key")
    done = site("verify", "manifest.json", f"{site.host}/up/absent:1", "--signed", lies)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"where: --signed {lies}" in done.stderr


def test_a_layout_of_another_platform_names_the_option(site):
    write_layout(image_of_trees(BASE, architecture="arm64", variant="v8"), site.folder / "arm", name="x")
    done = site("verify", "manifest.json", "arm", "--platform", "linux/amd64")
    assert (done.returncode, done.stdout) == (13, "")
    assert "no images for linux/amd64, only for linux/arm64" in done.stderr
    assert "--platform linux/arm64" in done.stderr
    assert "skopeo" not in done.stderr
