"""`verify`: a true image passes, and whatever is changed in one is named; what only --deep can find is found by it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.cache import read_entry, write_entry
from envbuild.errors import BuildError
from envbuild.image.layers.writer import LayerResult
from envbuild.image.rebase import derive_recipe, named_environment
from envbuild.lock.formats import read_pylock
from envbuild.lock.model import Lock, Target
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT, Image, Layer, canonical_json, image_index, manifest_bytes
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.recipe import Base
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from envbuild.registry.shared_cache import SharedCache
from envbuild.verify.image import Subject
from tests.fakes.index import Fault, serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, image_of_trees, layer_of_tree
from tests.fakes.wheels import make_wheel
from tests.unit.test_cli_bases import OLD, Done, Site
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

EVIL = layer_of_tree({"opt/env/lib/python3.11/site-packages/tool/__init__.py": b"import os"})
LOCK = "env/context/pylock.toml"
HERE = Base(
    name="up/base:1",
    image=OLD,
    target=Target(python="3.11.2", machine="x86_64", glibc="2.36"),
    python_path="/usr/bin/python3.11",
)
"""The base that the images of these tests stand on."""


@pytest.fixture
def index():
    with serving(TENSORFLOW, TOOL) as index:
        yield index


@pytest.fixture
def site(tmp_path, monkeypatch, capsys, index):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    with FakeRegistry() as registry:
        yield Site(tmp_path, registry, capsys)


@pytest.fixture
def built(site) -> str:
    """An image in the registry, by digest."""
    return site.built(f"{site.host}/up/base:1")["image"]


def verified(site: Site, image: str | Path, *arguments: str | Path) -> Done:
    return site("verify", image, "--lock", LOCK, *arguments)


def differing(done: Done) -> dict[str, str]:
    """What each finding that differs is about, and what it says; the exit code has to fit."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert done.returncode == (16 if lines else 0), done.stderr
    assert all(line.startswith(("ok ", "error ")) for line in done.stdout.splitlines())
    return dict(line.removeprefix("error").strip().partition(": ")[::2] for line in lines)


def pulled(reference: str) -> Image:
    return pull(Reference.parse(reference), machine="x86_64")


def pushed(site: Site, image: Image) -> str:
    return str(push(image, Reference(site.host, "env", "forged")).reference)


def forged(image: Image, config: bytes, layers: tuple[Layer, ...] | None = None, environment: str = "") -> Image:
    annotations = json.loads(image.manifest)["annotations"] | ({ENVIRONMENT: environment} if environment else {})
    layers = image.layers if layers is None else layers
    return Image(manifest_bytes(config, layers, annotations), config, layers)


def with_inner(image: Image, **changes: Any) -> Image:
    """The image with another `config`, all else as it was."""
    config = json.loads(image.config)
    config["config"] |= changes
    return forged(image, canonical_json(config))


def with_layer(image: Image, number: int, layer: Layer) -> Image:
    """The image with one layer put in another's place, under its line in the history."""
    config, layers = json.loads(image.config), list(image.layers)
    config["rootfs"]["diff_ids"][number] = str(layer.diff_id)
    layers[number] = layer
    return forged(image, canonical_json(config), tuple(layers))


def line_of(image: Image, name: str) -> int:
    return next(number for number, it in enumerate(image.layers) if f"{name} " in it.created_by)


def test_a_true_image_passes_and_no_layer_and_no_wheel_is_read(site, built, index):
    del index.requests[:], site.registry.requests[:]
    done = verified(site, built)
    assert differing(done) == {}
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        "base:",
        "environment:",
        "layers:",
        "config:",
        "manifest:",
    ]
    assert index.requests == []
    assert len(site.registry.seen("GET", "/blobs/")) == 2, "two configs"


def test_deep_makes_all_of_it_anew_and_leaves_nothing(site, built, index):
    shutil.rmtree(site.folder / "cache")
    done = verified(site, built, "--deep")
    assert differing(done) == {}
    assert f"{built.partition('@')[2]} is the image's" in done.stdout
    assert {it.path for it in index.requests} >= {f"/files/{it.filename}" for it in (TENSORFLOW, TOOL)}
    left = {it.relative_to(site.folder / "cache").parts[0] for it in (site.folder / "cache").rglob("*") if it.is_file()}
    assert left == {"wheels", "bases"}
    assert not list((site.folder / "cache").rglob(".new-*"))


def test_as_json_each_finding_has_both_values(site, built):
    result = site.says("verify", built, "--lock", LOCK, "--deep")
    assert (result["agrees"], result["digest"]) == (True, built.partition("@")[2])
    by = {it["about"]: it for it in result["findings"]}
    assert by["environment"]["wanted"] == by["environment"]["found"] == named_environment(pulled(built))
    assert by["manifest made anew"]["found"] == result["digest"]
    image = pushed(site, with_inner(pulled(built), Cmd=["sh"]))
    done = verified(site, image, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["agrees"]) == (16, False)
    assert {it["about"] for it in told["findings"] if not it["agrees"]} == {"config", "manifest"}


@pytest.mark.parametrize("name", ["oci:layout", "layout", "oci:layout:v1"])
def test_an_image_in_a_layout_is_verified_and_its_base_is_given_where_it_has_no_name(site, name):
    write_layout(OLD, site.folder / "base", name="x")
    site.says("from-manifest", "manifest.json", "--base", "base", "--out", "env")
    made = site.folder / "env"
    index = json.loads((made / "index.json").read_bytes())
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "v1"}
    (made / "index.json").write_text(json.dumps(index))
    shutil.copytree(made, site.folder / "layout")
    assert differing(verified(site, name, "--base", "base", "--deep")) == {}
    unnamed = verified(site, name)
    assert unnamed.returncode == 2
    assert "give --base" in unnamed.stderr


def test_a_damaged_blob_of_a_layout_is_found_by_deep_alone(site, built):
    image = pulled(built)
    write_layout(image, site.folder / "layout")
    done = verified(site, "layout", "--deep")
    assert differing(done) == {}
    assert f"blobs: the bytes of {len(image.layers)} layers in the layout are" in done.stdout
    assert "blobs" not in verified(site, built, "--deep").stdout, "a registry's are checked by whoever pulls"
    layer = image.layers[line_of(image, "tool")]
    blob = site.folder / "layout/blobs/sha256" / layer.descriptor.digest.hex
    data = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    assert differing(verified(site, "layout")) == {}
    found = differing(verified(site, "layout", "--deep"))
    assert found.keys() == {"blobs"}
    assert f"has other content than {layer.descriptor.digest}" in found["blobs"]
    assert "tool 1.0" in found["blobs"]


def test_a_layer_that_somebody_published_for_another_is_found_by_deep_alone(site, built, tmp_path):
    """A build on an empty machine takes the registry's word for the layer; verifying deep takes nobody's."""
    image = pulled(built)
    true = image.layers[line_of(image, "tool")].descriptor
    with EVIL.open() as file:
        site.registry.put("env", file.read())
    lie = LayerResult(EVIL.descriptor.digest, EVIL.descriptor.size, EVIL.diff_id)
    repository = site.registry.repositories["env"]
    keys = [
        Digest(tag.removeprefix("layer-"))
        for tag, digest in repository.tags.items()
        if tag.startswith("layer-") and str(true.digest) in repository.manifests[digest][1].decode()
    ]
    with SharedCache(Reference(site.host, "env", "v1")) as shared:
        shared.publish(dict.fromkeys(keys, lie))
        assert shared.last_error == ""
    for tag in [it for it in repository.tags if it.startswith("env-")]:
        del repository.tags[tag]
    shutil.rmtree(tmp_path / "cache")
    poisoned = site.built(f"{site.host}/up/base:1")["image"]
    assert poisoned != built
    assert differing(verified(site, poisoned)) == {}, "the registry's word is believed"
    found = json.loads(verified(site, poisoned, "--deep", "--json").stdout)["findings"]
    wrong = {it["about"]: it for it in found if not it["agrees"]}
    assert wrong.keys() == {"layer", "manifest made anew"}
    assert "tool 1.0" in wrong["layer"]["packages"]
    assert str(EVIL.descriptor.digest) in wrong["layer"]["found"]
    assert str(true.digest) in wrong["layer"]["wanted"]


def test_what_a_cache_says_of_the_base_is_not_believed_by_deep(site, tmp_path):
    """The interpreter's path ends up in a layer and in the environment id; who writes the cache can say another."""
    site.says("base", "show", f"{site.host}/up/base:1", "--platform", "linux/amd64")
    folder = tmp_path / "cache/bases/facts"
    [name] = [path.name for path in folder.glob("*.json") if '"python_path"' in path.read_text()]
    said: dict[str, str] = read_entry(folder, name) or {}
    assert said["python_path"] == "/usr/bin/python3.11"
    write_entry(folder, name, said | {"python_path": "/tmp/python3.11"})
    image = site.built(f"{site.host}/up/base:1")["image"]
    assert differing(verified(site, image)) == {}
    assert differing(verified(site, image, "--deep")).keys() >= {"environment", "layer", "manifest made anew"}


def test_a_diff_id_that_is_not_the_layers_is_found(site, built):
    image = pulled(built)
    number = line_of(image, "tool")
    layer = replace(image.layers[number], diff_id=EVIL.diff_id)
    found = differing(verified(site, pushed(site, with_layer(image, number, layer)), "--deep"))
    assert found.keys() == {"layer", "manifest made anew"}
    assert f"the image says {EVIL.diff_id}" in found["layer"]


def test_a_layer_too_many_and_a_layer_that_is_gone_are_named(site, built):
    image = pulled(built)
    config = json.loads(image.config)
    config["history"][line_of(image, "tool")]["created_by"] = "envbuild: other 1.0"
    done = verified(site, pushed(site, forged(image, canonical_json(config))), "--deep")
    assert differing(done).keys() == {"layers", "layer", "manifest made anew"}
    lines = [line for line in done.stdout.splitlines() if " layer: " in line]
    assert ["the image has none of" in lines[0], lines[1]] == [True, "error    layer: the lock gives none of other 1.0"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"Cmd": ["sh"]}, "Cmd"),
        ({"Entrypoint": ["evil"], "ExposedPorts": {}}, "Entrypoint, ExposedPorts"),
        ({"User": "0:0"}, "runs as user 0:0"),
        ({"User": ""}, "runs as user root"),
    ],
)
def test_what_was_set_on_the_image_afterwards_is_named(site, built, changes, says):
    image = with_inner(pulled(built), **changes)
    found = differing(verified(site, pushed(site, image)))
    assert says in found["config"]


def test_a_variable_that_was_added_gives_another_environment(site, built):
    image = pulled(built)
    env = json.loads(image.config)["config"]["Env"]
    found = differing(verified(site, pushed(site, with_inner(image, Env=[*env, "LD_PRELOAD=/tmp/x.so"]))))
    assert found.keys() == {"environment", "manifest"}


def test_a_variable_that_the_environment_id_covers_is_found_by_the_manifest(site, built):
    """Whoever changes an image can compute its new id: only the run says what belongs there."""
    image = pulled(built)
    env = json.loads(image.config)["config"]["Env"]
    changed = with_inner(image, Env=[*env, "LD_PRELOAD=/tmp/x.so"])
    lock = read_pylock((site.folder / LOCK).read_bytes(), LOCK, site.folder)
    recipe = derive_recipe(changed, replace(HERE, asked=f"{site.host}/up/base:1"), lock)
    place = pushed(site, forged(changed, changed.config, environment=str(recipe.environment)))
    assert differing(verified(site, place, "--deep")) == {}
    found = differing(verified(site, place, "--manifest", "manifest.json"))
    assert found == {"stack": "LD_PRELOAD is /tmp/x.so, and the run's stack has none"}
    assert differing(verified(site, built, "--manifest", "manifest.json")) == {}


def test_another_runs_manifest_is_not_the_images(site, built):
    run = manifest_of(("tensorflow-cpu", "2.16.1"), ("tool", "1.0"))
    (site.folder / "other.json").write_text(json.dumps(run))
    found = differing(verified(site, built, "--manifest", "other.json"))
    assert (
        "dev.envbuild.framework is tensorflow-cpu==2.15.1, and the run's stack has tensorflow-cpu==2.16.1"
        in found["stack"]
    )


def test_the_lock_of_another_environment_is_told_and_deep_names_its_packages(site, built, index):
    index.add(make_wheel("tool", "2.0"))
    (site.folder / "manifest.json").write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"), ("tool", "2.0"))))
    site.built(f"{site.host}/up/base:1", "other")
    found = differing(site("verify", built, "--lock", "other/context/pylock.toml", "--deep"))
    assert found.keys() == {"environment", "layers", "manifest", "layer", "manifest made anew"}
    assert "tool 2.0" in found["layers"]


def test_another_base_ends_it(site, built):
    found = differing(verified(site, built, "--base", f"{site.host}/up/base:2"))
    assert found.keys() == {"base"}
    assert str(OLD.digest) in found["base"]


def test_a_layer_of_the_base_that_was_changed_is_found(site, built):
    image = pulled(built)
    found = differing(
        verified(site, pushed(site, with_layer(image, 1, replace(EVIL, diff_id=image.layers[1].diff_id))))
    )
    assert found.keys() == {"base"}


def test_a_layer_that_somebody_put_on_top_is_shown(site, built):
    image = pulled(built)
    config = json.loads(image.config)
    config["rootfs"]["diff_ids"].append(str(EVIL.diff_id))
    config["history"].append({"created_by": "RUN curl \x1b[2J"})
    found = differing(verified(site, pushed(site, forged(image, canonical_json(config), (*image.layers, EVIL)))))
    assert found["layers"] == "this one is not of envbuild: RUN curl \\x1b[2J"
    assert found.keys() >= {"config", "manifest"}


@pytest.mark.parametrize("changes", [{"Env": 7}, {"Labels": ["a"]}, {"Env": [], "Labels": None}])
def test_a_config_that_is_none_of_ours_is_a_finding(site, built, changes):
    found = differing(verified(site, pushed(site, with_inner(pulled(built), **changes))))
    assert found.keys() == {"environment"}


@pytest.mark.parametrize("history", [["x"], 7, [{"created_by": "\ud800"}]])
def test_a_history_that_is_none_ends_in_its_code(built, history):
    image = pulled(built)
    config = json.dumps(json.loads(image.config) | {"history": history}).encode()
    lock = Lock(target=HERE.target, wheels=())
    with pytest.raises(BuildError, match="not valid JSON"):
        Subject.of(forged(image, config), HERE, lock)


def test_of_several_platforms_the_lock_says_which(site, index):
    index.add(make_wheel("tensorflow-cpu-aws", "2.15.1", tags=["cp311-cp311-manylinux_2_17_aarch64"], purelib=False))
    index.add(make_wheel("tensorflow", "2.15.1", tags=["cp311-cp311-manylinux_2_17_aarch64"], purelib=False))
    arm = {path.replace("x86_64", "aarch64"): what for path, what in BASE.items()}
    images = [image_of_trees(BASE), image_of_trees(arm, architecture="arm64", variant="v8")]
    write_layout(image_index(images), site.folder / "bases")
    both = ("--platform", "linux/amd64,linux/arm64", "--push", f"{site.host}/env:1")
    image = site.says("from-manifest", "manifest.json", "--base", "bases", "--out", "env", *both)["image"]
    told = {}
    for name in ("linux-amd64", "linux-arm64-v8"):
        lock = site.folder / f"env/context/{name}/pylock.toml"
        result = site.says("verify", image, "--lock", lock, "--base", "bases", "--deep")
        assert result["agrees"]
        told[name] = result["digest"]
    assert len(set(told.values())) == 2


@pytest.mark.parametrize("tag", ["2", "3"])
def test_a_rebased_image_is_its_old_locks_on_the_new_base(site, built, tag):
    image = site.says("rebase", built, "--base", f"{site.host}/up/base:{tag}", "--lock", LOCK)["image"]
    assert differing(verified(site, image, "--deep")) == {}
    unsaid = site.says("rebase", built, "--base", f"{site.host}/up/base:{tag}")["image"]
    assert differing(verified(site, unsaid)).keys() == {"environment", "manifest"}


def test_the_base_may_come_from_a_mirror(site, built):
    mirror = site("base", "mirror", f"{site.host}/up/base:1", f"{site.host}/mine:1").stdout.strip()
    assert differing(verified(site, built, "--base", mirror, "--deep")) == {}


@pytest.mark.parametrize(
    ("there", "here", "why"),
    [
        ('"3.11.2"', '"3.12.2"', "the lock is for Python 3.12 on x86_64, and the base has Python 3.11 on x86_64"),
        ('"2.36"', '"2.39"', "the lock is for glibc 2.39, and the base has 2.36"),
    ],
)
def test_a_lock_for_another_base_is_told(site, built, there, here, why):
    lock = site.folder / LOCK
    text = lock.read_text()
    changed = text.replace(there, here)
    assert changed != text
    lock.write_text(changed)
    assert why in differing(verified(site, built))["base"]


def test_a_wheel_that_the_index_has_changed_is_refused_by_deep(site, built, index):
    shutil.rmtree(site.folder / "cache/wheels")
    index.files[TOOL.filename] = make_wheel("tool", "1.0", {"tool/more.py": "x"}).data
    done = verified(site, built, "--deep")
    assert (done.returncode, done.stdout) == (12, "")
    assert "does not match" in done.stderr
    assert not list((site.folder / "cache").rglob(".new-*"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("NO image", "--lock", LOCK), "where: IMAGE NO image"),
        (("oci:none", "--lock", "none.toml"), "there is no such file"),
        (("oci:none",), "--lock"),
        (("image:env/context/pylock.toml", "--lock", LOCK), "no OCI layout"),
        (("docker-daemon:env", "--lock", LOCK), "in no registry"),
        (("oci:none", "--lock", LOCK, "--set", "cuda=12.2"), "where: --set, --cuda-source"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(site, built, arguments, says):
    done = site("verify", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_layout_that_is_not_there_ends_in_13(site, built):
    done = verified(site, "oci:none")
    assert (done.returncode, done.stdout) == (13, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_one_leaves_nothing_on_the_disk(site, built, index, number):
    shutil.rmtree(site.folder / "cache/wheels")
    index.fail(f"/files/{TOOL.filename}", Fault(stall=True))
    command = [sys.executable, "-m", "envbuild", "verify", built, "--lock", LOCK, "--deep"]
    with subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        bases = site.folder / "cache/bases"
        asked = time.monotonic() + 60
        del index.requests[:]
        while not any(it.path.endswith(TOOL.filename) for it in index.requests):
            assert time.monotonic() < asked, "it never asked for the wheel"
            time.sleep(0.02)
        assert list(bases.glob(".new-verify-*"))
        running.send_signal(number)
        out, _ = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, b"")
    assert not list((site.folder / "cache").rglob(".new-*"))
