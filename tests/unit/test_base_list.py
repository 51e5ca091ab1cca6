"""Which bases are known, what each would serve, and which are missing."""

import json
import os
from dataclasses import replace

import pytest

from envbuild.base.catalogue import KnownBase, known_bases, missing, remember, serves, tagged_bases
from envbuild.base.resolve import Facts, KnownFacts, cuda_of
from envbuild.files import data_folder
from envbuild.match.profiles import load_profiles
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_MANIFEST, MANIFEST, canonical_json
from envbuild.oci.reference import Reference
from tests.fakes.images import docker_manifest_of
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, image_of_trees
from tests.running import run_envbuild

PROFILES = load_profiles(data_folder("profiles"))
DIGEST = "sha256:" + "1" * 64
BOOKWORM = KnownBase(
    name="debian:bookworm", how="bootstrapped", digest=DIGEST, python="3.11.2", glibc="2.36", machine="x86_64"
)


def line_of(base: KnownBase, title: str) -> str:
    return next((it for it in serves(base, PROFILES) if it.startswith(title)), "")


@pytest.mark.parametrize(
    ("changes", "title", "line"),
    [
        ({}, "TensorFlow", "TensorFlow 2.12 - 2.21 gpu and cpu"),
        ({"python": "3.9.2", "glibc": "2.31"}, "TensorFlow", "TensorFlow 2.5 - 2.20 gpu and cpu"),
        ({"python": "3.9.2", "glibc": "2.16"}, "TensorFlow", "TensorFlow 2.5 - 2.8 gpu and cpu"),
        ({"python": "3.13.5", "machine": "aarch64"}, "TensorFlow", "TensorFlow 2.20 - 2.21 cpu"),
        ({"python": "3.9.18", "cuda": "11.2.2"}, "TensorFlow", "TensorFlow 2.5 - 2.11 gpu, 2.5 - 2.20 cpu"),
        ({"python": "3.9.18", "cuda": "11.2.2"}, "PyTorch", "PyTorch 1.8 - 2.8 cpu"),
        ({"python": "3.9.18", "cuda": "12.9"}, "TensorFlow", "TensorFlow 2.5 - 2.20 cpu"),
        ({"python": "3.4.1"}, "TensorFlow", ""),
        ({"python": ""}, "TensorFlow", ""),
    ],
)
def test_a_base_serves_what_has_its_python_glibc_and_cuda(changes, title, line):
    assert line_of(replace(BOOKWORM, **changes), title) == line


def test_the_matrix_has_each_python_and_each_cuda_and_what_is_here_is_not_missing():
    rows = {it.what: it for it in missing((), PROFILES, "x86_64")}
    assert {"Python 3.9", "Python 3.13", "CUDA 11.2, Python 3.9", "CUDA 11.8, Python 3.11"} <= set(rows)
    assert rows["Python 3.11"].command == "envbuild base show debian:bookworm"
    assert rows["Python 3.10"].command.startswith("envbuild base mirror docker.io/library/python:3.10-slim-")
    assert "--parent docker.io/nvidia/cuda:11.2.2-" in rows["CUDA 11.2, Python 3.9"].command
    # NVIDIA has deleted the tags of CUDA 10.
    for what in ("CUDA 10.0, Python 3.7", "CUDA 10.1, Python 3.8"):
        _, cuda, _, python = what.replace(",", "").split()
        assert rows[what].command.startswith(f"envbuild base build --cuda {cuda} --python {python} --push ")
    here = (BOOKWORM, replace(BOOKWORM, python="3.9.18", cuda="11.2.2"))
    left = {it.what for it in missing(here, PROFILES, "x86_64")}
    assert set(rows) - left == {"Python 3.11", "CUDA 11.2, Python 3.9"}
    other = {it.what for it in missing(here, PROFILES, "aarch64")}
    assert "Python 3.11" in other, "it is of another machine"
    assert not any(it.startswith("CUDA") for it in other)


def test_a_record_comes_back_and_a_later_one_takes_its_place(tmp_path):
    built = replace(BOOKWORM, name="mine:1", how="built", parent="debian:bookworm", cuda="11.8")
    remember(built, tmp_path)
    remember(replace(built, python="3.12.0"), tmp_path)
    remember(replace(built, name="another:1"), tmp_path)
    assert known_bases(tmp_path) == (replace(built, name="another:1"), replace(built, python="3.12.0"))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"name": 1}', b'{"surprise": "x"}', b"\xff", b'"x"'])
def test_what_is_no_record_is_passed_over(tmp_path, data):
    folder = tmp_path / "bases/known"
    folder.mkdir(parents=True)
    (folder / "0123456789ab.json").write_bytes(data)
    remember(BOOKWORM, tmp_path)
    assert known_bases(tmp_path) == (BOOKWORM,)


def test_a_mirror_has_the_facts_that_were_read_of_it_later(tmp_path):
    mirror = KnownBase(name=f"h.example.com/m@{DIGEST}", how="mirrored", digest=DIGEST, machine="x86_64")
    remember(mirror, tmp_path)
    assert known_bases(tmp_path)[0].python == ""
    facts = Facts(
        python="3.11.7", glibc="2.36", python_path="/usr/local/bin/python3.11", distribution="D", interpreter="0" * 64
    )
    KnownFacts(tmp_path / "bases/facts").remember(Digest.parse(DIGEST), facts)
    found = known_bases(tmp_path)[0]
    assert (found.python, found.glibc, found.distribution, found.python_minor) == ("3.11.7", "2.36", "D", "3.11")


@pytest.mark.parametrize(
    ("name", "cuda"),
    [
        ("docker.io/nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04", "11.2.2"),
        ("nvidia/cuda:12.4-base", "12.4"),
        ("python:3.11", ""),
    ],
)
def test_an_images_name_says_its_cuda(name, cuda):
    assert cuda_of(name) == cuda


def stored(registry: FakeRegistry, tag: str, data: bytes = b"", media_type: str = MANIFEST, **config) -> str:
    image = image_of_trees(BASE, **config)
    for layer in image.layers:
        with layer.open() as file:
            registry.put("team/bases", file.read())
    registry.put("team/bases", image.config)
    return registry.put_manifest("team/bases", tag, data or image.manifest, media_type)


def test_a_repository_lists_its_bases_and_neither_environments_nor_what_is_shared(tmp_path):
    with FakeRegistry() as registry:
        plain = stored(registry, "plain")
        cuda = stored(registry, "cuda", env=["CUDA_VERSION=11.2.2", "NV_CUDNN_VERSION=8.1.1.33"])
        stored(registry, "layer-" + "0" * 64)
        stored(registry, "arm", architecture="arm64")
        marked = json.loads(image_of_trees(BASE).manifest) | {"annotations": {"dev.envbuild.environment": DIGEST}}
        stored(registry, "environment", canonical_json(marked))
        found = {it.name: it for it in tagged_bases(Reference.parse(f"{registry.host}/team/bases"), "x86_64", tmp_path)}
        assert set(found) == {
            f"{registry.host}/team/bases:{tag}@{it}" for tag, it in (("plain", plain), ("cuda", cuda))
        }
        assert [(it.cuda, it.cudnn) for it in found.values()] == [("11.2.2", "8.1.1.33"), ("", "")]
        assert not registry.seen("GET", "/blobs/.*layer"), "no layer is read"


@pytest.fixture
def base(tmp_path):
    """`base("list", ...)` -> code, stdout, stderr; without an engine."""
    env = {**os.environ, "ENVBUILD_CACHE": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}

    def run(*arguments: str) -> tuple[int, str, str]:
        done = run_envbuild("base", *arguments, env=env)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_list_says_what_each_base_would_serve_and_how_to_get_the_others(base, tmp_path):
    built = replace(
        BOOKWORM, name="mine:1", how="built", parent="nvidia/cuda:11.8.0-runtime", cuda="11.8.0", cudnn="8.6"
    )
    remember(built, tmp_path)
    code, out, err = base("list", "--platform", "linux/amd64")
    assert code == 0, err
    for part in (
        "mine:1\n  built on nvidia/cuda:11.8.0-runtime, linux/amd64, Python 3.11.2, glibc 2.36, CUDA 11.8.0, cuDNN 8.6",
        "  serves TensorFlow 2.12 - 2.14 gpu, 2.12 - 2.21 cpu\n",
        "not here:\n",
        "  Python 3.10, for TensorFlow 2.8 - 2.21 gpu and cpu; ",
        "    envbuild base show debian:bullseye\n",
    ):
        assert part in out, out
    found = json.loads(base("list", "--json", "--platform", "linux/amd64")[1])
    assert found["bases"][0]["name"] == "mine:1"
    assert found["bases"][0]["serves"][0] == "TensorFlow 2.12 - 2.14 gpu, 2.12 - 2.21 cpu"
    assert {"what", "serves", "command"} == set(found["missing"][0])


@pytest.mark.parametrize("kind", [MANIFEST, DOCKER_MANIFEST])
def test_a_mirror_is_listed_and_has_facts_once_somebody_looked_into_it(base, kind):
    image = image_of_trees(BASE)
    with FakeRegistry() as registry:
        digest = stored(registry, "plain", image.manifest if kind == MANIFEST else docker_manifest_of(image), kind)
        source, mirror = f"{registry.host}/team/bases:plain", f"{registry.host}/mine@{digest}"
        assert base("mirror", source, f"{registry.host}/mine:1")[1] == f"{mirror}\n"
        for looked in (False, True):
            code, out, err = base("list", "--registry", f"{registry.host}/mine", "--platform", "linux/amd64")
            assert code == 0, err
            assert f"{mirror}\n  mirrored from {source}, linux/amd64, " in out
            assert ("Python 3.11.2" in out) == looked
            assert out.count(digest) == 1, "once, though its tag is there too"
            assert base("show", mirror, "--platform", "linux/amd64")[0] == 0


def test_a_registry_that_cannot_be_meant_is_a_usage_error(base):
    code, out, err = base("list", "--registry", "nohost")
    assert (code, out) == (2, "")
    assert "--registry" in err
