"""`from-manifest MODEL --role serve` on small things: what is put on top of the training image, pushed and stamped."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.capture.files import present
from envbuild.capture.model import model_facts
from envbuild.oci.image import Layer, canonical_json
from envbuild.oci.layout import read_layout, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from envbuild.stamp.history import read_stamp
from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import image_of_layers, layer_of_tree
from tests.fakes.wheels import make_wheel
from tests.unit.attesting import REPLACED
from tests.unit.test_assemble import SITE, tree
from tests.unit.test_cli_bases import OLD, Site
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

PYTHON = {"version": "3.11.2", "implementation": "cpython"}
"""As the base has it."""
NUMPY = make_wheel("numpy", "1.26.4", {"numpy.py": "VERSION = '1.26.4'\n", "numpy.pyi": "VERSION: str\n"})
NEWER = make_wheel("numpy", "2.1.0", {"numpy/__init__.py": "two = 2"})
WEB = make_wheel("web", "1.0", requires=["wire>=2"])
WIRE = make_wheel("wire", "2.1")
GREEDY = make_wheel("greedy", "3.0", requires=["numpy>=2"])
BOARD = make_wheel("tensorboard", "2.15.1")
CV2 = [
    make_wheel(it, "4.9.0", {"cv2/version.py": f"{it!r}\n", "cv2/extra.py": f"{it!r}\n"})
    for it in ("opencv_python", "opencv_python_headless")
]
RUN = (("tensorflow-cpu", "2.15.1"), ("tool", "1.0"), ("numpy", "1.26.4"), ("tensorboard", "2.15.1"))


class Serving(Site):
    """A model that was trained, pushed and stamped, and an application."""

    def train(self, *options: str, **changes: Any) -> dict[str, Any]:
        (self.folder / "model/variables").mkdir(parents=True, exist_ok=True)
        (self.folder / "model/saved_model.pb").write_bytes(b"graph")
        (self.folder / "model/variables/variables.index").write_bytes(b"weights")
        saved = present(model_facts("model"))
        run = manifest_of(*RUN, **{"python": PYTHON, "model": saved} | changes)
        (self.folder / "manifest.json").write_text(json.dumps(run))
        base = ("--base", f"{self.host}/up/base:1")
        return self.says("from-manifest", "manifest.json", *base, "--stamp", "model", "--out", "trained", *options)

    def trained(self) -> dict[str, Any]:
        return self.train("--push", f"{self.host}/env:v1")

    def app(self) -> Path:
        (self.folder / "app").mkdir(exist_ok=True)
        (self.folder / "app/serve.py").write_text("print('ready')\n")
        return self.folder / "app"

    def words(self, *options: str) -> tuple[str, ...]:
        app = ("--app", str(self.app()), "--cmd", "python /app/serve.py")
        return ("from-manifest", "model", "--role", "serve", "--gate", "off", "--no-bytecode", *app, *options)

    def served(self, *options: str) -> dict[str, Any]:
        return self.says(*self.words("--push", f"{self.host}/serving:v1", *options))

    def image(self, reference: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Manifest and config."""
        manifest = self.manifest(reference)
        name = reference.removeprefix(f"{self.host}/").partition("@")[0]
        return manifest, json.loads(self.registry.repositories[name].blobs[manifest["config"]["digest"]])


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    with serving(TENSORFLOW, TOOL, NUMPY, NEWER, BOARD, WEB, WIRE, GREEDY, *CV2) as index, FakeRegistry() as registry:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield Serving(tmp_path, registry, capsys)


def test_the_training_image_lies_below_by_digest_and_what_serves_on_top(site):
    trained = site.trained()
    result = site.served("--extra", "web")
    manifest, config = site.image(result["image"])
    below = [it["digest"] for it in trained["layers"]]
    assert [it["digest"] for it in manifest["layers"]][: len(below)] == below
    assert result["parent"] == trained["image"]
    assert result["added"] == ["web==1.0", "wire==2.1"]
    inner = config["config"]
    assert (inner["Entrypoint"], inner["Cmd"]) == (["/opt/env/bin/envbuild-check", "--"], ["python", "/app/serve.py"])
    assert inner["WorkingDir"] == "/app"
    on_top = [it["created_by"] for it in config["history"][len(config["history"]) - len(manifest["layers"]) :]]
    assert [line for line in on_top if line.endswith("application")]
    assert [it["rule"] for it in result["findings"]] == ["shared-layers", "shared-added"]
    assert all(it["agrees"] for it in result["findings"])


def test_it_is_stamped_beside_the_training_image_and_the_model_agrees_with_both(site):
    trained = site.trained()
    result = site.served("--extra", "web")
    stamp = read_stamp("model")
    assert stamp is not None
    train, serve = (stamp.image((role, "cpu", "linux/amd64")) for role in ("train", "serve"))
    assert train is not None
    assert serve is not None
    assert (train.reference, serve.reference, serve.tag) == (trained["image"], result["image"], "v1")
    assert (train.gate, serve.gate) == (None, "untried")
    assert serve.environment == train.environment
    lock = (site.folder / "model/envbuild" / f"pylock.{serve.lock_sha256.hex}.toml").read_text()
    assert [name for name in ("numpy", "web", "wire") if f'name = "{name}"' in lock] == ["numpy", "web", "wire"]
    done = site("verify", "model")
    assert done.returncode == 0, done.stdout


def test_the_second_time_nothing_is_made_or_pushed_and_the_stamp_is_the_same(site):
    trained = site.trained()
    site.registry.requests.clear()
    first = site.served("--extra", "web")
    shared = [it for it in site.registry.repositories["serving"].tags if it.startswith("layer-")]
    assert len(shared) == 1, "web and wire, and not the application"
    shutil.rmtree(site.folder / "cache")
    before = len(site.registry.seen("PUT"))
    again = site.served("--extra", "web")
    layers = {it["digest"] for it in trained["layers"]}
    assert not layers & {it.path.rpartition("/")[2] for it in site.registry.seen("GET", "/blobs/")}
    assert (again["digest"], again["found"], first["found"]) == (first["digest"], True, False)
    assert again["stamped"] == first["stamped"]
    assert [it.path for it in site.registry.seen("PUT")[before:]] == []
    (site.folder / "app/serve.py").write_text("print('other')\n")
    done = site("from-manifest", "model", "--role", "serve", "--app", "app", "--cmd", "python /app/serve.py", "--gate", "off", "--no-bytecode",
                "--extra", "web", "--push", f"{site.host}/serving:v2", "--json")  # fmt: skip
    assert json.loads(done.stdout)["digest"] != first["digest"]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("config", "Entrypoint"), ["/opt/env/evil"], "config.config.Entrypoint"),
        (("config", "User"), "0", "config.config.User"),
        (("rootfs", "diff_ids"), [], "cannot be read"),
    ],
)
def test_a_serving_image_that_somebody_changed_is_built_anew(site, path, value, says):
    """On 839437c the first two were found, pushed under the tag and stamped."""
    site.trained()
    first = site.served("--extra", "web", "--no-attest")
    repository = site.registry.repositories["serving"]
    [tag] = [it for it in repository.tags if it.startswith("serve-")]
    manifest, config = site.image(first["image"])
    config[path[0]][path[1]] = value
    data = json.dumps(config).encode()
    described = manifest["config"] | {"digest": site.registry.put("serving", data), "size": len(data)}
    kind = repository.manifests[first["digest"]][0]
    site.registry.put_manifest("serving", tag, json.dumps(manifest | {"config": described}).encode(), kind)
    shutil.rmtree(site.folder / "cache")
    done = site(*site.words("--push", f"{site.host}/serving:v1", "--extra", "web", "--json"))
    assert json.loads(done.stdout)["digest"] == first["digest"] == repository.tags[tag]
    assert "not using the registry's image of these inputs: " in done.stderr
    assert says in done.stderr


EVIL = layer_of_tree({f"opt/env/{SITE}/numpy/__init__.py": b"evil = 1\n", f"opt/env/{SITE}/zz.pth": b"import os\n"})


def forged(site: Serving, layer: Layer) -> dict[str, Any]:
    """The descriptor of a layer that was put into the target's repository."""
    with layer.open() as file:
        site.registry.put("serving", file.read())
    return layer.descriptor.to_dict()


def retag(site: Serving, tag: str, manifest: dict[str, Any]) -> None:
    repository = site.registry.repositories["serving"]
    kind = repository.manifests[repository.tags[tag]][0]
    site.registry.put_manifest("serving", tag, canonical_json(manifest), kind)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_serving_image_whose_layer_is_not_of_its_wheels_is_not_used(site, fresh):
    site.trained()
    first = site.served("--extra", "web")
    [tag] = [it for it in site.registry.repositories["serving"].tags if it.startswith("serve-")]
    manifest, config = site.image(first["image"])
    at = next(n for n, it in enumerate(config["history"]) if "web 1.0" in it["created_by"])
    manifest["layers"][at], config["rootfs"]["diff_ids"][at] = forged(site, EVIL), str(EVIL.diff_id)
    data = canonical_json(config)
    retag(site, tag, manifest | {"config": manifest["config"] | {"digest": site.registry.put("serving", data), "size": len(data)}})  # fmt: skip
    if fresh:
        shutil.rmtree(site.folder / "cache")
    done = site(*site.words("--push", f"{site.host}/serving:v1", "--extra", "web", "--json"))
    result = json.loads(done.stdout)
    assert (result["digest"], result["found"]) == (first["digest"], False), done.stderr
    assert "not using the registry's image" in done.stderr
    assert site.registry.repositories["serving"].tags[tag] == first["digest"]


def test_a_layer_that_is_not_of_its_wheels_is_refused(site):
    site.trained()
    site.served("--extra", "web")
    repository = site.registry.repositories["serving"]
    [tag] = [it for it in repository.tags if it.startswith("layer-")]
    _, data = repository.manifests[repository.tags[tag]]
    layer = json.loads(data)
    layer["annotations"]["dev.envbuild.diff-id"] = str(EVIL.diff_id)
    retag(site, tag, layer | {"layers": [forged(site, EVIL)]})
    del repository.tags[next(it for it in repository.tags if it.startswith("serve-"))]
    shutil.rmtree(site.folder / "cache")
    done = site(*site.words("--push", f"{site.host}/serving:v2", "--extra", "web"))
    assert (done.returncode, done.stdout, "v2" in repository.tags) == (13, "", False)
    assert "the registry has another layer under" in done.stderr


def test_what_the_application_puts_before_trainings_modules_is_an_error(site):
    below = pull(Reference.parse(f"{site.host}/up/base:1"), machine="x86_64")
    env = json.loads(below.config)["config"].get("Env") or []
    push(image_of_layers(*below.layers, env=[*env, "PYTHONPATH=/app"]), Reference.parse(f"{site.host}/up/base:1"))
    site.trained()
    assert site(*site.words("--push", f"{site.host}/serving:v1", "--extra", "web")).returncode == 0
    (site.app() / "numpy.py").write_text("evil = 1\n")
    done = site(*site.words("--push", f"{site.host}/serving:v2", "--extra", "web"))
    assert (done.returncode, "v2" in site.registry.repositories["serving"].tags) == (16, False)
    assert "by PYTHONPATH serving finds /app/numpy.py" in done.stderr


def test_a_serving_image_that_was_found_keeps_what_its_builder_attached(site):
    """On 839437c whoever found it attached a provenance that says it built it."""
    site.trained()
    first = site.served("--no-attest")
    again = site.served()
    assert (again["found"], again["digest"]) == (True, first["digest"])
    assert not [it for it in site.registry.repositories["serving"].tags if it.startswith("sha256-")]


def test_an_extra_that_needs_another_numpy_is_refused_naming_both_sides(site):
    site.trained()
    stamped = read_stamp("model")
    done = site(*site.words("--extra", "greedy", "--push", f"{site.host}/serving:v1"))
    assert (done.returncode, done.stdout) == (12, "")
    assert "greedy" in done.stderr
    assert "numpy>=2" in done.stderr
    assert "1.26.4" in done.stderr
    assert (read_stamp("model"), site.registry.repositories["serving"].manifests) == (stamped, {})


def test_a_model_that_was_changed_is_refused_and_nothing_is_stamped(site):
    site.trained()
    (site.folder / "model/variables/variables.index").write_bytes(b"another")
    done = site(*site.words("--push", f"{site.host}/serving:v1"))
    assert (done.returncode, done.stdout) == (16, "")
    recorded, found = (hashlib.sha256(it).hexdigest()[:12] for it in (b"weights", b"another"))
    said = " ".join(done.stderr.split())
    assert f"recorded variables/variables.index 7 bytes sha256 {recorded}, found variables/variables.index" in said
    assert f"sha256 {found}" in said
    (site.folder / "model/saved_model.pb").write_bytes(b"another")
    done = site(*site.words("--push", f"{site.host}/serving:v1"))
    assert (done.returncode, done.stdout) == (15, "")
    assert REPLACED in done.stderr


def test_an_engine_that_the_gate_requires_is_asked_before_anything_is_made(site, monkeypatch):
    (site.folder / "manifest.json").write_text(json.dumps(manifest_of(*RUN, python=PYTHON)))
    monkeypatch.setenv("DOCKER_HOST", "unix:///none.sock")
    words = ("--role", "serve", "--gate", "require", "--app", str(site.app()), "--cmd", "python /app/serve.py")
    failed = site("from-manifest", "manifest.json", *words, "--base", f"{site.host}/up/base:1", "--out", "served")
    assert (failed.returncode, "where: unix:///none.sock" in failed.stderr) == (17, True)
    assert not any(it in failed.stderr for it in ("locking", "assembling", "adding"))


def test_without_a_push_there_is_a_layout_and_the_model_is_stamped_by_digest(site):
    site.trained()
    result = site.says(*site.words("--out", "out"))
    image = read_layout(site.folder / "out", machine="x86_64")
    assert (result["image"], result["layout"], result["digest"]) == (None, "out", str(image.digest))
    assert {it.name for it in (site.folder / "out").iterdir()} == {"oci-layout", "index.json", "blobs"}
    stamp = read_stamp("model")
    assert stamp is not None
    found = stamp.image(("serve", "cpu", "linux/amd64"))
    assert found is not None
    assert found.image == str(image.digest)
    plain = site(*site.words("--out", "out"))
    assert plain.stdout == f"out@{image.digest}\n"


def test_in_the_project_s_folder_what_a_run_wrote_changes_nothing(site):
    site.trained()
    site.app()
    words = ("from-manifest", "model", "--role", "serve", "--gate", "off", "--no-bytecode", "--app", ".")
    digests = set()
    for to in ((), (), ("--archive", "image.tar"), ("--archive", "image.tar")):
        digests.add(site.says(*words, "--cmd", "python /app/app/serve.py", *to)["digest"])
    assert len(digests) == 1


def test_extras_that_add_nothing_are_named(site):
    site.trained()
    command = site.words("--extra", "web[nope]", "--extra", "wire; python_version < '3'", "--out", "out")
    done = site(*command)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "web 1.0 has no extra nope" in said
    assert 'wire; python_version < "3" adds nothing' in said


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(site):
    trained = site.trained()
    shutil.rmtree(site.folder / "cache")
    site.app()
    before = {it for it in site.folder.rglob("*") if it.is_file()}
    done = site(*site.words("--extra", "web", "--push", f"{site.host}/serving:v1", "--dry-run"))
    assert done.stdout.splitlines()[:3] == [f"parent {trained['image']}", "variant cpu", "platform linux/amd64"]
    assert "extras web" in done.stdout
    assert {it for it in site.folder.rglob("*") if it.is_file()} == before
    assert site.registry.repositories["serving"].manifests == {}


def test_the_model_goes_in_and_what_only_training_needs_is_left_out_where_that_is_wanted(site):
    trained = site.trained()
    result = site.served("--embed-model", "--slim")
    manifest, config = site.image(result["image"])
    lines = [it["created_by"] for it in config["history"]][-2:]
    assert lines == ["envbuild: model", "envbuild: application"]
    assert [it.partition(":")[0] for it in result["dropped"]] == ["tensorboard 2.15.1"]
    assert result["left_out"] == ["type stubs: 1 file, 0.0 MB: code is checked before"]
    locks = [it.read_text() for it in (site.folder / "model/envbuild").glob("pylock.*.toml")]
    assert [text for text in locks if 'slim-files = ["type stubs"]' in text] == [
        text for text in locks if "slim = " in text
    ]
    assert 'slim = ["tensorboard"]' in "".join(locks)
    [proof] = [it for it in result["findings"] if it["rule"] == "slim-proof"]
    assert (proof["agrees"], proof["severity"]) == (False, "warning")
    below = {it["digest"] for it in trained["layers"]}
    assert below & {it["digest"] for it in manifest["layers"]}
    assert site("verify", "model").returncode == 0


def test_files_that_packages_share_are_the_run_s_in_all_images_and_only_then_said_to_be(site):
    """The run had the first from opencv-python-headless, and the second from a package whose wheel lacks it."""
    run = manifest_of(*RUN, *((it.filename.split("-")[0].replace("_", "-"), "4.9.0") for it in CV2))
    [cv2] = [it for it in run["distributions"] if it["name"] == "opencv-python"]
    cv2["overwritten"] = {"cv2/version.py": "opencv-python-headless", "cv2/extra.py": "tool"}
    trained = site.train("--push", f"{site.host}/env:v1", distributions=run["distributions"])["image"]
    said = site("from-manifest", "manifest.json", "--base", f"{site.host}/up/base:1", "--out", "again").stderr
    assert "version.py is in opencv-python and in opencv-python-headless: the image has that of opencv-python-headless, as in the run" in said  # fmt: skip
    assert "extra.py is in opencv-python-headless and in opencv-python: the image has that of opencv-python, which pip installs last" in said  # fmt: skip
    stacked, slim = (site.served(*more)["image"] for more in ((), ("--slim",)))
    assert [shared_files(it) for it in (trained, stacked, slim)] == [["opencv_python_headless", "opencv_python"]] * 3


def test_wheels_of_a_folder_are_found_where_find_links_names_it_again(site):
    """The stamped lock says `wheels/NAME`, and no such folder lies beside it."""
    own = make_wheel("own", "1.0")
    (site.folder / "wheelhouse").mkdir()
    (site.folder / "wheelhouse" / own.filename).write_bytes(own.data)
    run = manifest_of(*RUN, ("own", "1.0"))["distributions"]
    site.train("--push", f"{site.host}/env:v1", "--find-links", "wheelhouse", distributions=run)
    shutil.rmtree(site.folder / "cache")
    without = site(*site.words("--push", f"{site.host}/serving:v1", "--slim"))
    assert without.returncode == 12
    assert "do: give the folder that has this wheel: --find-links DIR" in without.stderr
    assert site.served("--slim", "--find-links", "wheelhouse")["dropped"]


def shared_files(reference: str) -> list[str]:
    """What an image has at the two paths."""
    image = pull(Reference.parse(reference), machine="x86_64")
    files = tree(replace(image, layers=image.layers[len(OLD.layers) :]))
    return [files[f"{SITE}/cv2/{name}.py"][1].decode().strip("'\n") for name in ("version", "extra")]


def test_a_manifest_alone_is_built_first_and_both_images_are_stamped(site):
    site.train()  # for the files; its stamp is another model's
    shutil.rmtree(site.folder / "model/envbuild")
    words = ("--base", f"{site.host}/up/base:1", "--push", f"{site.host}/one:v1", "--stamp", "model")
    command = site.words(*words)
    result = site.says("from-manifest", "manifest.json", *command[2:])
    stamp = read_stamp("model")
    assert stamp is not None
    assert [it.role for it in stamp.images] == ["serve", "train"]
    assert stamp.image(("train", "cpu", "linux/amd64")).reference == result["parent"]  # type: ignore[union-attr]
    assert site("verify", "model").returncode == 0
    other = site.says("from-manifest", "manifest.json", *site.words(*words[:4], "--no-stamp")[2:])
    assert (other["digest"], other["stamped"], other["found"]) == (result["digest"], None, True)


def test_a_training_image_on_a_layout_is_made_again_only_from_that_layout(site):
    write_layout(OLD, site.folder / "layout", name="x")
    site.train("--base", "layout")
    shutil.rmtree(site.folder / "trained")
    words = site.words("--out", "served")
    done = site(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "give that OCI layout by --base" in done.stderr
    assert site(*words, "--base", "layout").returncode == 0


def test_a_server_with_its_own_runtime_is_held_against_the_model_and_stamped_by_digest(site):
    framework = {"name": "tensorflow", "distribution": "tensorflow-cpu", "version": "2.15.1"}
    trained = site.train("--push", f"{site.host}/env:v1", frameworks=[framework])
    image = image_of_layers(*OLD.layers, env=["MODEL_NAME=tf_serving"])
    push(image, Reference(site.host, "up/serving", "1"))
    given = ("--server-image", f"{site.host}/up/serving:1")
    # Nothing is written, so what lies in the place of the output is of no matter.
    server = ("--server", "tf-serving", "--server-version", "2.15.1", "--out", "manifest.json", *given)
    result = site.says("from-manifest", "model", "--role", "serve", *server)
    assert result["image"] == f"{site.host}/up/serving@{image.digest}"
    assert (result["parent"], result["added"]) == (trained["image"], [])
    stamp = read_stamp("model")
    assert stamp is not None
    found = stamp.image(("serve", "cpu", "linux/amd64"))
    assert found is not None
    assert (found.image, found.relation) == (result["image"], "verified-compatible")
    assert "verified-compatible: a runtime of its own" in site("inspect", "model").stdout
    done = site("verify", "model")
    assert done.returncode == 0, done.stdout
    other = ("--server-version", "2.15.1", "--server-image", f"{site.host}/up/base:1")
    done = site("from-manifest", "model", "--role", "serve", "--server", "tf-serving", *other)
    assert (done.returncode, done.stdout) == (16, "")
    assert "names TensorFlow Serving" in done.stderr
    older = ("--server", "tf-serving", "--server-version", "2.11.0", *given)
    done = site("from-manifest", "model", "--role", "serve", *older)
    assert (done.returncode, done.stdout) == (16, "")
    assert "which is older" in done.stderr
