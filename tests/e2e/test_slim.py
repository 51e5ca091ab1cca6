"""Slim images of a real environment: what goes, what has to stay, and that the model predicts the same without it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from envbuild.lock.dependencies import find_conflicts
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolution import open_session
from envbuild.lock.resolvers import Tree, UvResolver, resolve_tree
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.recipe import SLIM_LABEL
from envbuild.registry.pull import pull
from envbuild.serve.slim import slimmed
from envbuild.stamp.history import read_stamp
from envbuild.verify.environment import training_only
from tests.environ import cleaned
from tests.unit.test_sides_manifest import a_manifest, wheel

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")
ASKED = (
    *("tensorflow-cpu==2.15.1", "pandas", "matplotlib", "jupyterlab", "keras-tuner", "wandb", "pytest", "ruff"),
    *("mypy", "black"),
)
TOOLS = ("tensorflow-cpu==2.15.1", "numpy==1.26.4", "ipykernel==6.29.5", "pytest==8.3.3", "matplotlib==3.9.2")
TRAIN = """
import numpy as np, keras, envbuild, matplotlib, pytest
x = np.random.default_rng(7).normal(size=(8, 3)).astype("float32")
inputs = keras.Input((3,), name="x")
model = keras.Model(inputs, keras.layers.Dense(2, name="y")(inputs))
model.save("model")
golden = envbuild.golden_sample({"x": x}, {"y": model.predict_on_batch(x)})
envbuild.capture("model", out="manifest.json", golden=golden)
"""


@pytest.fixture(scope="module")
def lock() -> Lock:
    with open_session(ASKED, TARGET, None, None) as session:
        pins = resolve_tree(session, Tree())
    return UvResolver().resolve(tuple(f"{name}=={version}" for name, version in pins.items()), TARGET)


def test_a_real_environment_loses_its_tools_and_nothing_that_something_needs(lock):
    with open_session((), TARGET, None, None) as session:
        facts = session.reader.all_facts(lock.wheels)
    declared = {it.name: known.requires for it, known in zip(lock.wheels, facts, strict=True) if known}
    asked = {it.partition("==")[0] for it in ASKED}
    manifest = a_manifest(*(wheel(it.name, it.version, requested=it.name in asked) for it in lock.wheels))
    slim = slimmed(lock, manifest, (), declared, training_only())
    left = {it.name for it in slim.lock.wheels}
    assert {"tensorflow-cpu", "tensorboard", "numpy", "pandas", "markdown"} <= left
    assert {"jupyterlab", "pyzmq", "matplotlib", "fonttools", "pytest", "wandb", "mypy", "ruff"} <= set(slim.lock.slim)
    known = [declared_of for it, declared_of in zip(lock.wheels, facts, strict=True) if it.name in left]
    assert find_conflicts(slim.lock.wheels, known, TARGET) == find_conflicts(
        [it for it in lock.wheels if it.name in left], known, TARGET, {it.name: it.version for it in lock.wheels}
    )
    print(f"{len(lock.wheels)} wheels, {sum(it.size for it in lock.wheels) / 1e6:.1f} MB; {slim.saved / 1e6:.1f} less")
    assert slim.saved > 60_000_000


@pytest.mark.slow
def test_a_real_model_predicts_the_same_from_a_slim_image(tmp_path, envbuild, engine, registry, train_env):
    (tmp_path / "train.py").write_text(TRAIN)
    env = cleaned(os.environ) | {"PYTHONPATH": str(ROOT)}
    subprocess.run([train_env("3.11", *TOOLS), "train.py"], cwd=tmp_path, env=env, check=True)
    push, at = (
        f"{registry.host}/slim/{tmp_path.name.replace('_', '-')}",
        {"cwd": tmp_path, "env": {"DOCKER_HOST": engine.url}},
    )
    build = ("--base", "debian:bookworm", "--push", f"{push}:train", "--out", tmp_path / "out")
    train = envbuild("from-manifest", "manifest.json", *build, "--stamp", "model", **at).stdout.strip()
    serve = ("--role", "serve", "--server", "fastapi", "--slim", "--gate", "require", "--push", f"{push}:serve")
    done = envbuild("from-manifest", "model", *serve, "--out", tmp_path / "served", "--json", **at)
    result = json.loads(done.stdout)
    found = {it["rule"]: it for it in result["findings"]}
    assert found["serve-golden"]["agrees"], found
    assert found["slim-proof"]["agrees"], found
    headers = next(it for it in result["left_out"] if it.startswith("headers: "))
    assert int(headers.split()[1]) > 7000, headers  # TensorFlow's
    assert (found["shared-slim"]["agrees"], found["shared-slim"]["severity"]) == (False, "warning")
    before, after = (pull(Reference.parse(it), machine="x86_64") for it in (train, result["image"]))
    gone = json.loads(after.config)["config"]["Labels"][SLIM_LABEL].split(",")
    assert {"ipykernel", "pytest", "matplotlib"} <= set(gone)
    print(f"{(shared := share(before, after)):.0%} of the bytes")
    assert shared > 0.1  # the base, and layers without such files
    stamp = read_stamp(str(tmp_path / "model"))
    assert stamp is not None
    assert {it.role for it in stamp.images} == {"train", "serve"}
    verified = envbuild("verify", "model", **at)
    assert "[shared-slim]" in verified.stdout


def share(before: Image, after: Image) -> float:
    """How much of an image another one has, by its layers' digests."""
    known = {it.descriptor.digest for it in before.layers}
    sizes = [(it.descriptor.size, it.descriptor.digest in known) for it in after.layers]
    print(f"{sum(there for _, there in sizes)} of {len(sizes)} layers")
    return sum(size for size, there in sizes if there) / sum(size for size, _ in sizes)
