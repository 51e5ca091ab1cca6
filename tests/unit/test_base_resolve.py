"""What --base means."""

import pytest

from envbuild.base.resolve import refuse_base, resolve_base
from envbuild.errors import BaseError, RegistryError, UsageError
from envbuild.oci.image import DOCKER_MANIFEST
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.retry import Retry
from tests.fakes.images import docker_manifest_of
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, image_of_trees

IMAGE = image_of_trees(BASE)


def resolved(text, tmp_path, **more):
    asked = []

    def pulling(reference, machine):
        asked.append((str(reference), machine))
        return IMAGE

    base = resolve_base(
        text, **{"machine": "x86_64", "cache": tmp_path / "cache", "pull": pulling, "report": print, **more}
    )
    return base, asked


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("python:3.11.2-slim", "docker.io/library/python:3.11.2-slim"),
        ("docker://debian:bookworm", "docker.io/library/debian:bookworm"),
        ("docker.io/library/debian:bookworm", "docker.io/library/debian:bookworm"),
        ("127.0.0.1:5000/base", "127.0.0.1:5000/base"),
    ],
)
def test_references_are_pulled_and_become_digests(text, meant, tmp_path):
    base, asked = resolved(text, tmp_path)
    assert asked == [(meant, "x86_64")]
    assert base.name == f"{Reference.parse(meant).name}@{IMAGE.digest}"
    assert (base.target.python, base.python_path) == ("3.11.2", "/usr/bin/python3.11")


@pytest.mark.parametrize(
    "text",
    [
        "python:3.11-slim",
        "debian:bookworm",
        "debian:sid",
        "docker://debain:bookworm",
        "debian-mirror:bookworm",
        "python:slim",
        "corp.invalid/python:2.4",
        "docker://debian:trixie",
    ],
)
def test_a_base_is_not_refused_by_a_name_that_does_not_say_its_python(text, tmp_path):
    refuse_base(text, "x86_64", tmp_path / "cache", "3.11.7", "2.17")


def test_a_layout_is_refused_for_its_python_and_its_glibc(tmp_path):
    write_layout(IMAGE, tmp_path / "layout", name="latest")
    with pytest.raises(BaseError, match=r"the base has Python 3\.11\.2, the run used 3\.12\.1"):
        refuse_base(str(tmp_path / "layout"), "x86_64", tmp_path / "cache", "3.12.1", "2.17")
    with pytest.raises(BaseError, match=r"the framework's wheel needs 2\.40"):
        refuse_base(str(tmp_path / "layout"), "x86_64", tmp_path / "cache", "3.11.7", "2.40")


@pytest.mark.parametrize("form", ["{}", "oci:{}", "oci:{}:latest", "oci:{}/"])
def test_a_folder_with_a_layout_is_a_base(form, tmp_path):
    folder = tmp_path / "a:layout"
    write_layout(IMAGE, folder, name="latest")
    base, asked = resolved(form.format(folder), tmp_path)
    assert (base.digest, asked) == (IMAGE.digest, [])


def test_a_name_that_the_layout_does_not_have_is_refused(tmp_path):
    write_layout(IMAGE, tmp_path / "layout", name="latest")
    with pytest.raises(BaseError, match="no image named 'other'"):
        resolved(f"oci:{tmp_path}/layout:other", tmp_path)


def test_a_name_and_a_digest_are_of_one_image(tmp_path):
    write_layout(IMAGE, folder := tmp_path / "layout", name="latest")
    base, _ = resolved(f"oci:{folder}:latest@{IMAGE.digest}", tmp_path)
    assert base.digest == IMAGE.digest
    with pytest.raises(BaseError, match="no image named 'other'"):
        resolved(f"oci:{folder}:other@{IMAGE.digest}", tmp_path)
    write_layout(image_of_trees({**BASE, "etc/other": "x"}), folder, name="latest")
    (folder / f"blobs/sha256/{IMAGE.digest.hex}").write_bytes(IMAGE.manifest)
    with pytest.raises(UsageError, match="the image latest in this folder has another digest"):
        resolved(f"oci:{folder}:latest@{IMAGE.digest}", tmp_path)


@pytest.mark.parametrize("part", [IMAGE.config_digest, IMAGE.layers[0].descriptor.digest])
def test_the_digest_of_a_part_of_an_image_is_no_base(part, tmp_path):
    write_layout(IMAGE, tmp_path / "layout", name="latest")
    with pytest.raises(BaseError, match="this digest is that of a part"):
        resolved(f"oci:{tmp_path}/layout@{part}", tmp_path)


@pytest.mark.parametrize("text", ["NO reference", "", "x" * 5000 + "!", "a\0b", "oci_layout!"])
def test_what_is_no_base_is_a_usage_error(text, tmp_path):
    with pytest.raises(UsageError):
        resolved(text, tmp_path)


@pytest.mark.parametrize("suite", ["bookworm-slim", "12", "", "../x", "bookworm@sha256:0"])
def test_what_is_no_suite_names_the_registrys_way_to_write_it(suite, tmp_path):
    with pytest.raises(UsageError, match="not the name of a Debian suite") as caught:
        resolved(f"debian:{suite}", tmp_path)
    assert "docker://debian:" in caught.value.todo


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("debian:bokworm", "debian:bookworm"),
        ("debian:nosuite", "debian:bookworm"),
        ("debain:trixie", "debian:trixie"),
        ("Debian:sid", "debian:sid"),
    ],
)
def test_a_suite_that_is_none_is_refused_before_a_download_and_a_near_one_is_named(text, near, tmp_path):
    with pytest.raises(UsageError, match=r"not the name of a Debian suite|there is no base") as caught:
        refuse_base(text, "x86_64", tmp_path / "cache", "3.11.7", "2.17")
    assert f"did you mean {near}?" in caught.value.todo


@pytest.mark.parametrize(
    ("python", "way_out"), [("3.9.13", "--base debian:bullseye"), (None, "--base debian:SUITE"), ("3.12.1", None)]
)
def test_a_registry_that_is_away_names_the_base_that_needs_none(python, way_out, tmp_path):
    def away(*_):
        raise RegistryError("docker.io cannot be reached", where="docker.io", todo="check the network")

    with pytest.raises(RegistryError) as caught:
        resolved("python:3.9.13-slim", tmp_path, pull=away, wanted_python=python)
    assert caught.value.todo.startswith("check the network; or give a copy in another registry: --base MIRROR/library/")
    assert (way_out in caught.value.todo) if way_out else ("debian:" not in caught.value.todo)


def test_a_base_that_docker_hub_does_not_have_is_not_looked_for_in_a_mirror(tmp_path):
    def absent(*_):
        raise RegistryError("manifest unknown", where="docker.io", status=404)

    with pytest.raises(RegistryError) as caught:
        resolved("python:3.12.99-slim", tmp_path, pull=absent, wanted_python="3.12.99")
    assert "MIRROR" not in caught.value.todo


@pytest.mark.parametrize(("tag", "cuda"), [("10.1-cudnn7-runtime-ubuntu18.04", "10.1"), ("11.0.3-base", "11.0")])
def test_an_image_of_nvidias_that_cannot_be_pulled_has_two_ways_out(tag, cuda, tmp_path):
    def gone(*_):
        raise RegistryError("manifest unknown", where="docker.io", status=404)

    with pytest.raises(RegistryError) as caught:
        resolved(f"docker.io/nvidia/cuda:{tag}", tmp_path, pull=gone, wanted_python="3.8.10")
    assert f"envbuild base build --cuda {cuda} --python 3.8.10" in caught.value.todo
    assert "--parent MIRROR" in caught.value.todo


def test_a_base_with_dockers_media_types_is_named_by_the_digest_that_its_registry_knows(tmp_path):
    with FakeRegistry() as registry:
        for layer in IMAGE.layers:
            with layer.open() as file:
                registry.put("base", file.read())
        registry.put("base", IMAGE.config)
        digest = registry.put_manifest("base", "v1", docker_manifest_of(IMAGE), DOCKER_MANIFEST)
        base, _ = resolved(
            f"{registry.host}/base:v1",
            tmp_path,
            pull=lambda reference, machine: pull(reference, machine=machine, retry=Retry(first=0, longest=0.01)),
        )
    assert base.name == f"{registry.host}/base@{digest}"
    assert str(base.digest) == digest
