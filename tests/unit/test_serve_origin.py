"""What a serving image starts from: the stamped image, that image made again, or another variant of it."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from envbuild.capture.files import present
from envbuild.capture.model import model_facts
from envbuild.lock.formats import pylock_text, read_pylock
from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_ZSTD
from envbuild.stamp.history import read_stamp
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, manifest_of
from tests.unit.test_serve_build import PYTHON, RUN, Serving
from tests.unit.test_serve_build import site as site  # noqa: PLC0414 - a fixture

CUDA = ("nvidia-cublas-cu12", "12.2.5.6")
GPU = {"kind": "nvidia", "driver": "535.129.03", "gpus": [{"name": "NVIDIA A100-SXM4-40GB", "memory": 42949672960}]}


def stamped_lock(site: Serving) -> Lock:
    [copy] = (site.folder / "model/envbuild").glob("pylock.*.toml")
    return read_pylock(copy.read_bytes(), "lock", copy.parent)


def stamp_gpu(site: Serving, reference: str, numpy: str = "1.26.4") -> None:
    """Stamp the model as one that was trained on a GPU; the lock is what such a run has."""
    lock = stamped_lock(site)
    named = {it.name: it for it in lock.wheels}
    cpu = named["tensorflow-cpu"]
    gpu = replace(cpu, name="tensorflow", filename=cpu.filename.replace("_cpu", ""))
    cublas = replace(
        named["tool"], name=CUDA[0], version=CUDA[1], filename="nvidia_cublas_cu12-12.2.5.6-py3-none-any.whl"
    )
    other = replace(named["numpy"], version=numpy, filename=f"numpy-{numpy}-py3-none-any.whl")
    wheels = (gpu, cublas, named["tool"], other)
    (site.folder / "model/saved_model.pb").write_bytes(b"graph of a GPU")
    run = manifest_of(("tensorflow", "2.15.1"), *RUN[1:], CUDA, accelerator=GPU, python=PYTHON)
    data = json.dumps(run | {"model": present(model_facts("model"))}).encode()
    digest = Digest.parse(reference.partition("@")[2])
    entry = StampEntry(
        role="train", variant="gpu", platform="linux/amd64", reference=reference, digest=digest, environment=digest
    )
    text = pylock_text(replace(lock, wheels=tuple(sorted(wheels, key=lambda it: it.name))), base=dict(lock.base))
    stamp("model", entry, manifest=data, lock=text, now=datetime.now(UTC))


def test_the_cpu_sibling_of_a_model_of_a_gpu_is_made_from_its_lock_and_not_stamped_for_training(site):
    trained = site.trained()
    stamp_gpu(site, trained["image"])
    result = site.served("--variant", "cpu")
    assert result["parent"] == f"{site.host}/serving@{trained['digest']}"
    assert (result["variant"], result["environment"]) == ("cpu", trained["environment"])
    stamp_now = read_stamp("model")
    assert stamp_now is not None
    assert [it.slot for it in stamp_now.images] == [("serve", "cpu", "linux/amd64"), ("train", "gpu", "linux/amd64")]


def test_a_sibling_with_another_version_of_anything_is_refused(site):
    trained = site.trained()
    stamp_gpu(site, trained["image"], numpy="1.26.3")
    done = site(*site.words("--variant", "cpu", "--push", f"{site.host}/serving:v1"))
    assert (done.returncode, done.stdout) == (16, "")
    assert "numpy 1.26.3 -> 1.26.4" in done.stderr


@pytest.mark.parametrize(("out", "place"), [("trained", "trained"), ("other", "trained"), ("other", "far/away")])
def test_a_training_image_that_was_never_pushed_is_found_at_or_beside_out_or_made_again(site, out, place):
    trained = site.train()
    if place != "trained":
        (site.folder / place).parent.mkdir()
        (site.folder / "trained").rename(site.folder / place)
    first, done = (site(*site.words("--out", out)) for _ in range(2))
    for it in (first, done):  # the first one's image may have taken the training image's place in index.json
        assert it.returncode == 0, it.stderr
        assert (f"training image trained@{trained['digest']}" in it.stderr) == (place == "trained")
    found = json.loads(next((site.folder / out).glob(f"blobs/sha256/{done.stdout.strip()[-64:]}")).read_bytes())
    below = [it["digest"] for it in trained["layers"]]
    assert [it["digest"] for it in found["layers"]][: len(below)] == below


@pytest.mark.parametrize(("trained", "served"), [("zstd:1", "gzip"), ("gzip", "zstd")])
def test_it_is_made_again_with_the_compression_that_it_was_made_with(site, trained, served):
    site.train("--compression", trained)
    [record] = (site.folder / "model/envbuild").glob("record-*.json")
    [image] = json.loads(record.read_bytes())["images"]
    assert image.get("compression", "gzip") == trained
    shutil.rmtree(site.folder / "trained")
    result = site.says(*site.words("--out", "other", "--compression", served))
    assert result["parent"].endswith(image["digest"])


def test_it_is_made_again_with_its_base_compressed_as_it_was(site):
    plain = site.train()
    again = (
        "from-manifest",
        "manifest.json",
        "--base",
        f"{site.host}/up/base:1",
        "--recompress-base",
        "--out",
        "again",
    )
    for compression, there in (("gzip", True), ("zstd", False)):
        done = site(*again, "--compression", compression)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith(plain["digest"]) is there
        assert ("nothing to do: all layers of the base are gzip already" in done.stderr) is there
    packed = site.train("--compression", "zstd", "--recompress-base")
    stamp_now = read_stamp("model")
    assert stamp_now is not None
    assert [str(it.compression) for it in stamp_now.images] == ["zstd:3+base"]
    blob = site.folder / f"trained/blobs/sha256/{packed['digest'][-64:]}"
    assert {it["mediaType"] for it in json.loads(blob.read_bytes())["layers"]} == {LAYER_ZSTD}
    shutil.rmtree(site.folder / "trained")
    assert site.says(*site.words("--out", "other"))["parent"].endswith(packed["digest"])


def test_of_a_manifest_the_training_image_is_stamped_with_its_compression(site):
    site.train()
    shutil.rmtree(site.folder / "model/envbuild")
    words = ("from-manifest", "manifest.json", "--role", "serve", "--gate", "off", "--no-bytecode")
    app = ("--app", str(site.app()), "--cmd", "python /app/serve.py", "--base", f"{site.host}/up/base:1")
    site.says(*words, *app, "--out", "other", "--compression", "zstd", "--stamp", "model")
    found = read_stamp("model")
    assert found is not None
    assert {it.role: str(it.compression) for it in found.images}["train"] == "zstd:3"


def test_an_incomplete_run_is_made_again_as_of_the_same_moment(site, monkeypatch):
    run = manifest_of(("tensorflow-cpu", "2.15.1"), ("needs", "1.0"))["distributions"]
    source = {"format": "requirements", "complete": False}
    with serving() as index:
        index.add(TENSORFLOW, make_wheel("needs", "1.0", requires=["late"]), uploaded="2021-03-01T00:00:00Z")
        index.add(make_wheel("late", "1.0"), uploaded="2022-01-01T12:00:00Z")
        index.add(make_wheel("late", "2.0"), uploaded="2023-03-01T00:00:00Z")
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        site.train("--exclude-newer", "2022-01-01", "--import-check", "never", distributions=run, source=source)
        assert {it.name: it.version for it in stamped_lock(site).wheels}["late"] == "1.0"
        done = site(*site.words("--out", "other", "--import-check", "never"))
    assert done.returncode == 0, done.stderr


def test_an_image_that_cannot_be_made_again_is_refused(site):
    site.train()
    lock = stamped_lock(site)
    data = (site.folder / "manifest.json").read_bytes()
    other = Digest.of(b"other")
    entry = StampEntry(
        role="train", variant="cpu", platform="linux/amd64", reference=None, digest=other, environment=other
    )
    stamp("model", entry, manifest=data, lock=pylock_text(lock, base=dict(lock.base)), now=datetime.now(UTC))
    done = site(*site.words("--out", "out"))
    assert (done.returncode, done.stdout) == (16, "")
    assert f"stamped with {other}, and its manifest now gives" in done.stderr


def test_a_lock_that_was_changed_beside_the_stamp_is_not_used(site):
    site.trained()
    [copy] = (site.folder / "model/envbuild").glob("pylock.*.toml")
    copy.write_text(copy.read_text().replace("1.26.4", "1.26.3"))
    done = site(*site.words("--push", f"{site.host}/serving:v1"))
    assert (done.returncode, done.stdout) == (15, "")
    assert "does not match the record" in done.stderr
