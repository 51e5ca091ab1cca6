"""`deploy-check MODEL IMAGE`: which images may serve a model, and what a deployment's pipeline gets on stdout."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from envbuild.cli import commands
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, manifest_bytes
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import image_of_layers, layer_of_tree
from tests.unit.modelling import MODELS
from tests.unit.test_cli_bases import Site
from tests.unit.test_from_manifest import TENSORFLOW, TOOL
from tests.unit.test_verify_targets import MOVED, NEWER, built, manifest

SITE = "opt/env/lib/python3.11/site-packages"
SERVER = {"app/": 0o755, "app/main.py": b"serve()"}
PATCH = {f"{SITE}/tool.py": b"changed"}


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    """A model that is stamped with its training image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/saved_model.pb").write_bytes(b"graph")
    with serving(TENSORFLOW, TOOL, NEWER) as index, FakeRegistry() as registry:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        found = Site(tmp_path, registry, capsys)
        manifest(found, "manifest.json")
        found.train = built(found, "manifest.json", "--stamp", "model")["image"]  # type: ignore[attr-defined]
        yield found


def pulled(site: Any) -> Image:
    return pull(Reference.parse(site.train), machine="x86_64")


def on_top(image: Image, *trees: dict[str, Any]) -> Image:
    """An image with more layers."""
    layers = (*image.layers, *(layer_of_tree(it) for it in trees))
    config = {"Env": json.loads(image.config)["config"]["Env"], "Cmd": ["/app/main.py"]}
    return image_of_layers(*layers, config=config)


def pushed(site: Any, image: Image, name: str = "serve:1") -> str:
    """Push an image; return its reference by digest."""
    return str(push(image, Reference.parse(f"{site.host}/{name}")).reference)


def stamped(site: Any, reference: str, role: str = "serve", gate: str | None = None) -> str:
    parsed = Reference.parse(reference)
    assert parsed.digest
    entry = StampEntry(
        role=role, variant="cpu", platform="linux/amd64", reference=reference, digest=parsed.digest,
        environment=Digest("e" * 64), tag="1", gate=gate,
    )  # fmt: skip
    lock = (site.folder / "out/context/pylock.toml").read_bytes()
    stamp(
        str(site.folder / "model"), entry, manifest=(site.folder / "manifest.json").read_bytes(), lock=lock,
        now=datetime(2026, 11, 21, tzinfo=UTC),
    )  # fmt: skip
    return reference


def test_an_image_of_two_compressions_is_the_models_by_tag_and_by_each_digest(site):
    done = built(site, "manifest.json", "--stamp", "model", "--compression", "gzip,zstd")
    name = done["image"].partition("@")[0]
    digests = [done["digest"], *(it["digest"] for it in done["compressions"].values())]
    for reference in (f"{name}:v1", *(f"{name}@{digest}" for digest in digests)):
        checked = site("deploy-check", "model", reference, "--json")
        assert checked.returncode == 0, checked.stdout
        assert wrong(checked) == [("deploy-image", "note")]  # that it is the training image


def wrong(done: Any) -> list[tuple[str, str]]:
    found = json.loads(done.stdout)["findings"]
    return [(it["rule"], it["severity"]) for it in found if not it["agrees"]]


def test_a_model_that_its_environment_cannot_load_is_refused_with_the_remedy(site):
    shutil.copy(MODELS / "classifier.pkl", site.folder / "model/scaler.pkl")
    reference = stamped(site, pushed(site, on_top(pulled(site), SERVER)))
    for given in (reference, pushed(site, on_top(pulled(site), SERVER, {"app/v": b"2"}), "other:1")):
        done = site("deploy-check", "model", given, "--json")
        errors = [rule for rule, severity in wrong(done) if severity == "error"]
        assert (done.returncode, errors) == (16, ["artifact-library", "artifact-pickle", "artifact-pickle"]), (
            done.stderr
        )
        assert "install scikit-learn==1.9.1 there" in done.stdout


def test_a_stamped_image_prints_the_reference_to_deploy_and_nothing_else(site):
    reference = stamped(site, pushed(site, on_top(pulled(site), SERVER)))
    for given in (reference, f"{site.host}/serve:1", f"docker://{site.host}/serve:1"):
        done = site("deploy-check", "model", given)
        assert (done.returncode, done.stdout) == (0, f"{reference}\n"), done.stderr
        assert "ok       image: sha256:" in done.stderr
        assert "is the model's image for serve cpu linux/amd64, as stamped at 2026-11-21" in done.stderr
    said = site.says("deploy-check", "model", reference)
    assert (said["image"], said["agrees"]) == (reference, True)


def test_an_image_that_nothing_started_says_so_with_what_to_run_and_a_policy_refuses_it(site):
    reference = stamped(site, pushed(site, on_top(pulled(site), SERVER)), gate="untried")
    done = site("deploy-check", "model", reference)
    assert (done.returncode, done.stdout) == (0, f"{reference}\n"), done.stderr
    assert "[serve-untried]" in done.stderr
    assert "`envbuild deploy-check MODEL IMAGE --golden`" in done.stderr
    (site.folder / "policy.toml").write_text('[rules]\nserve-untried = "error"\n')
    assert site("deploy-check", "model", reference, "--policy", "policy.toml").returncode == 16


def test_the_golden_sample_needs_a_record_of_it_and_something_that_runs_images(site, monkeypatch):
    reference = stamped(site, pushed(site, on_top(pulled(site), SERVER)), gate="untried")
    done = site("deploy-check", "model", reference, "--golden", "--json")
    assert (done.returncode, wrong(done)) == (0, [("serve-untried", "warning"), ("golden-sample", "warning")])
    number = {"name": "", "dtype": "float32", "shape": [1], "data": "AACAPw=="}
    sample = {"inputs": [number], "outputs": [number], "rtol": 1e-5, "atol": 1e-6}
    manifest(site, "manifest.json", golden=sample)
    built(site, "manifest.json", "--stamp", "model")
    stamped(site, reference, gate="untried")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("PATH", "/nowhere")
    done = site("deploy-check", "model", reference, "--golden")
    assert (done.returncode, done.stdout) == (17, ""), done.stderr
    assert "bubblewrap is not installed" in done.stderr
    other = on_top(replace(pulled(site), layers=pulled(site).layers[:1]), SERVER)
    done = site("deploy-check", "model", pushed(site, other), "--golden")
    assert done.returncode == 16, "an image that is refused must not run"


def test_an_image_in_a_folder_is_checked_before_it_is_pushed(site):
    image = on_top(pulled(site), SERVER)
    stamped(site, pushed(site, image))
    write_layout(image, site.folder / "serving")
    write_layout(on_top(pulled(site), SERVER, PATCH), site.folder / "other")
    for given in ("serving", f"serving@{image.digest}", str(site.folder / f"serving@{image.digest}"), "oci:serving"):
        done = site("deploy-check", "model", given)
        assert (done.returncode, done.stdout) == (0, f"{given.partition('@')[0]}@{image.digest}\n"), done.stderr
    assert site("deploy-check", "model", f"other@{image.digest}").returncode == 2
    done = site("deploy-check", "model", "other", "--json")
    assert (done.returncode, json.loads(done.stdout)["image"]) == (16, None)


def test_the_training_image_may_be_deployed_and_is_said_to_be_no_server(site):
    done = site("deploy-check", "model", site.train)
    assert (done.returncode, done.stdout) == (0, f"{site.train}\n"), done.stderr
    assert "note     role: it is the image that the model was trained in, and it does not start a server" in done.stderr
    (site.folder / "policy.toml").write_text('[rules]\ndeploy-image = "error"\n')
    assert site("deploy-check", "model", site.train, "--policy", "policy.toml").returncode == 16


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("saved_model.pb", b"other", "saved_model.pb is not the same"),
        ("other.keras", b"graph", "other.keras is there besides"),
    ],
)
def test_an_image_that_holds_another_model_is_refused(site, name, content, says):
    trees = (SERVER, {"model/": 0o755, f"model/{name}": content})
    reference = pushed(site, on_top(pulled(site), *trees), "other:1")
    done = site("deploy-check", "model", reference, "--json")
    assert (done.returncode, wrong(done)) == (16, [("deploy-image", "note"), ("model-files", "error")])
    assert says in done.stdout
    done = site("verify", "model", reference, "--json")
    assert (done.returncode, wrong(done)[-1]) == (16, ("model-files", "error"))


def test_an_image_that_holds_the_model_is_said_to(site):
    trees = (SERVER, {"model/": 0o755, "model/saved_model.pb": b"graph", "model/envbuild/record.json": b"{}"})
    done = site("deploy-check", "model", pushed(site, on_top(pulled(site), *trees), "other:1"))
    assert done.returncode == 0, done.stderr
    assert "ok       model files: 1 file with the same content" in done.stderr


def test_variables_that_change_numbers_are_compared_whoever_made_the_image(site):
    manifest(site, "manifest.json", variables={"TF_ENABLE_ONEDNN_OPTS": "1"})
    own = Reference.parse(built(site, "manifest.json", "--stamp", "model")["image"])
    layers, changed = pull(own, machine="x86_64").layers, "TF_ENABLE_ONEDNN_OPTS=0"
    reference = pushed(site, image_of_layers(*layers, layer_of_tree(SERVER), env=[changed]), "other:1")
    for role in ("other", "serve"):
        done = site("deploy-check", "model", reference, "--json")
        assert ("variable-value", "warning") in wrong(done), (role, done.stderr)
        stamped(site, reference)
    (site.folder / "policy.toml").write_text('[rules]\nvariable-value = "error"\n')
    assert site("deploy-check", "model", reference, "--policy", "policy.toml").returncode == 16


def test_an_image_that_another_took_the_place_of_is_said_to_have_been_the_models(site):
    one, other = (pushed(site, on_top(pulled(site), SERVER, {"app/v": it})) for it in (b"1", b"2"))
    for reference in (one, other):
        stamped(site, reference)
    site.registry.requests.clear()
    done = site("deploy-check", "model", one)
    assert len({it.path for it in site.registry.seen("GET", "/blobs/")}) == 4, "the configs, and layers on top"
    assert (done.returncode, done.stdout) == (0, f"{one}\n"), done.stderr
    assert "was the model's image for serve cpu linux/amd64 until another was stamped at 2026-11-21" in done.stderr


def test_an_image_that_another_took_the_place_of_may_hold_the_former_model(site):
    trees = ({"model/": 0o755, "model/saved_model.pb": it} for it in (b"former", b"graph"))
    former, own = (pushed(site, on_top(pulled(site), SERVER, it)) for it in trees)
    for reference in (former, own):
        stamped(site, reference)
    done = site("deploy-check", "model", former, "--json")
    assert (done.returncode, wrong(done)) == (16, [("deploy-image", "note"), ("model-files", "error")])
    assert site("deploy-check", "model", own).returncode == 0


def test_an_image_whose_config_lies_about_a_layer_is_found_out(site):
    image = on_top(pulled(site), SERVER)
    lie = replace(layer_of_tree(PATCH), diff_id=image.layers[-2].diff_id)
    layers = (*image.layers[:-2], lie, image.layers[-1])
    reference = pushed(site, replace(image, manifest=manifest_bytes(image.config, layers, {}), layers=layers), "lie:1")
    for words in (("verify", site.train, reference), ("deploy-check", "model", reference)):
        done = site(*words)
        assert (done.returncode, "does not match the diff id in the config" in done.stderr) == (13, True)


@pytest.mark.parametrize("changes", [{"config": ["a"]}, {"config": {"Env": 5}}, {"config": {"Labels": ["a"]}}], ids=str)
def test_a_config_that_cannot_be_read_is_an_error_without_a_traceback(site, changes):
    image = on_top(pulled(site), SERVER)
    config = json.dumps(json.loads(image.config) | changes).encode()
    odd = replace(image, config=config, manifest=manifest_bytes(config, image.layers, {}))
    reference = pushed(site, odd, "odd:1")
    for words in (("verify", site.train, reference), ("deploy-check", "model", reference)):
        done = site(*words)
        assert (done.returncode, f"where: {reference}" in done.stderr) == (13, True), done.stderr


def test_a_copy_of_it_elsewhere_is_the_same_image(site):
    image = on_top(pulled(site), SERVER)
    stamped(site, pushed(site, image))
    copy = pushed(site, image, "prod/serve:7")
    assert site("deploy-check", "model", f"{site.host}/prod/serve:7").stdout == f"{copy}\n"


def test_an_image_of_somebody_else_on_the_training_image_is_fine_and_that_is_noted(site):
    reference = pushed(site, on_top(pulled(site), SERVER), "other:1")
    done = site("deploy-check", "model", f"{site.host}/other:1")
    assert (done.returncode, done.stdout) == (0, f"{reference}\n"), done.stderr
    assert "note     image: " in done.stderr
    assert "[deploy-image]" in done.stderr
    (site.folder / "policy.toml").write_text('[rules]\ndeploy-image = "error"\n')
    done = site("deploy-check", "model", f"{site.host}/other:1", "--policy", "policy.toml", "--json")
    assert (done.returncode, wrong(done), json.loads(done.stdout)["image"]) == (16, [("deploy-image", "error")], None)


def test_an_image_with_another_environment_is_refused_and_prints_nothing(site):
    changed = pushed(site, on_top(pulled(site), SERVER, PATCH), "other:1")
    done = site("deploy-check", "model", changed)
    assert (done.returncode, done.stdout) == (16, "")
    assert "error    layers: serving begins with training's" in done.stderr
    assert "error    tool: " in done.stderr
    assert "this image must not be deployed: 2 of " in done.stderr
    manifest(site, "moved.json", *MOVED)
    base = ("--base", f"{site.host}/up/base:1")
    moved = site.says("from-manifest", "moved.json", *base, "--push", f"{site.host}/moved:1", "--out", "moved")["image"]
    layers = {str(it.descriptor.digest) for it in pulled(site).layers}
    site.registry.requests.clear()
    done = site("deploy-check", "model", moved, "--json")
    assert (done.returncode, wrong(done)) == (16, [("deploy-image", "note"), ("shared-layers", "error")])
    assert "its command is that of the training image, and it does not start a server" in done.stdout
    assert "and has other distributions than training: tool 1.0 -> 2.0" in done.stdout
    read = {it.path.rpartition("/")[2] for it in site.registry.seen("GET", "/blobs/")}
    assert len(read) == 2, "the configs"
    assert not read & layers
    (site.folder / "policy.toml").write_text('[rules]\ndeploy-image = "note"\n')
    assert site("deploy-check", "model", moved, "--policy", "policy.toml").returncode == 16


def test_verify_reads_layers_that_both_images_begin_with_only_where_others_may_change_them(site):
    layers = [str(it.descriptor.digest) for it in pulled(site).layers]
    shutil.rmtree(site.folder / "cache")  # it has those that were made here
    plain, model, patched = (
        pushed(site, on_top(pulled(site), SERVER, tree), f"{name}:1")
        for name, tree in (
            ("plain", {"app/v": b"2"}),
            ("model", {"model/": 0o755, "model/a.pb": b"a"}),
            ("patched", PATCH),
        )
    )
    for given, code, count in (((plain,), 0, 0), ((plain, model), 0, 1), ((patched,), 16, 1)):
        site.registry.requests.clear()
        done = site("verify", site.train, *given)
        assert done.returncode == code, done.stderr
        assert "layers: serving begins with training's" in done.stdout
        read = [it.path.rpartition("/")[2] for it in site.registry.seen("GET", "/blobs/")]
        assert [read.count(it) for it in layers] == [count] * len(layers)


def test_a_tag_that_has_moved_is_refused_and_the_digest_still_serves(site):
    image = on_top(pulled(site), SERVER)
    reference = stamped(site, pushed(site, image))
    pushed(site, on_top(image, {"app/more.py": b""}))
    done = site("deploy-check", "model", f"{site.host}/serve:1", "--json")
    assert (done.returncode, wrong(done)[0]) == (16, ("tag-moved", "error"))
    done = site("deploy-check", "model", reference, "--json")
    assert (done.returncode, wrong(done)) == (0, [("tag-moved", "warning")])


def test_a_model_that_is_another_is_refused_whatever_the_image(site):
    (site.folder / "model/saved_model.pb").write_bytes(b"other")
    done = site("deploy-check", "model", site.train)
    assert (done.returncode, done.stdout) == (16, "")
    assert "[artifact-stamp]" in done.stderr


def test_without_a_training_image_for_the_platform_nothing_speaks_for_another_image(site):
    reference = pushed(site, image_of_layers(*pulled(site).layers, architecture="arm64"), "other:arm")
    done = site("deploy-check", "model", reference, "--platform", "linux/arm64", "--json")
    assert (done.returncode, wrong(done)) == (16, [("deploy-image", "error")])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("manifest.json", "serve:1"), "where: MODEL manifest.json"),
        (("nosuch", "serve:1"), "where: MODEL nosuch"),
        (("", "serve:1"), "MODEL is empty"),
        (("model", " "), "IMAGE is empty"),
        (("model", "./out"), "where: IMAGE ./out"),
        (("model", "image", "--policy", "registries.toml"), "push it, and give HOST/NAME@sha256"),
        (("model", f"image@sha256:{'0' * 64}", "--policy", "registries.toml"), "push it, and give HOST/NAME@sha256"),
        (("model", "image.tar", "--policy", "registries.toml"), "push it, and give HOST/NAME@sha256"),
        (("model", "user:secret@host/serve:1"), "where: IMAGE"),
        (("model", "serve:1", "--platform", "vax"), "where: --platform vax"),
        (("model", "serve:1", "--policy", "none.toml"), "--policy none.toml"),
        (("model", "serve:1", "--signed", "none.pub"), "where: --signed none.pub"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_and_prints_nothing(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "image").mkdir()
    (tmp_path / "image/oci-layout").write_text("{}")
    (tmp_path / "image.tar").write_bytes(b"")
    (tmp_path / "registries.toml").write_text('registries = ["127.0.0.1:5000/ml"]\n')
    code = commands.run(["deploy-check", *arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert says in err
    assert "secret" not in err


def test_an_image_that_is_not_there_is_the_registrys_error(site):
    done = site("deploy-check", "model", f"{site.host}/serve:9")
    assert (done.returncode, done.stdout) == (14, "")
