"""What is known of a base without reading it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from envbuild.base.resolve import Facts, KnownFacts, inspect, resolve_base
from envbuild.cache import write_entry
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.report import SILENT
from tests.fakes.trees import BASE, PYTHON, image_of_trees

RELEASE = {"etc/os-release": "-> ../usr/lib/os-release", "usr/lib/os-release": b'ID=debian\nPRETTY_NAME="Debian 12"\n'}
IMAGE = image_of_trees(BASE, RELEASE)
DIGEST = Digest.of(b"a base")
FACTS = Facts(
    python="3.11.2", glibc="2.36", python_path="/usr/bin/python3.11", distribution="Debian 12", interpreter="0" * 64
)


def without_layers(image: Image) -> Image:
    return Image(image.manifest, image.config, ())


def read(image: Image, folder) -> Facts:
    return inspect(image, "a base", "x86_64", KnownFacts(folder))


def facts_file(folder) -> Path:
    [path] = (it for it in folder.iterdir() if "contents" not in it.name and "system" not in it.name)
    return path


def test_the_distribution_says_its_name_through_a_link(tmp_path):
    assert read(IMAGE, tmp_path).distribution == "Debian 12"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"PRETTY_NAME=Plain\n", "Plain"),
        (b"NAME=x\n", ""),
        (b'PRETTY_NAME="esc\x1b[31m"\n', "esc[31m"),
        (b"MY_PRETTY_NAME=no\n", ""),
    ],
)
def test_other_ways_to_say_it(text, name, tmp_path):
    found = read(image_of_trees(BASE, {"usr/lib/os-release": text}), tmp_path)
    assert found.distribution == name


def test_a_base_without_a_release_file_is_a_base(tmp_path):
    assert read(image_of_trees(BASE), tmp_path).distribution == ""


def test_the_interpreter_is_known_by_its_own_bytes(tmp_path):
    def interpreter(**changes: bytes) -> str:
        return read(
            image_of_trees(BASE | {path.replace("__", "/"): it for path, it in changes.items()}), tmp_path
        ).interpreter

    plain = interpreter()
    assert interpreter(etc__other=b"patched") == plain
    later = BASE | {"usr/bin/python3.11": PYTHON + b"built on another day"}
    assert read(image_of_trees(later), tmp_path).interpreter != plain
    library = "usr/lib/libpython3.11.so.1.0"
    one, two = (read(image_of_trees(BASE | {library: it}), tmp_path).interpreter for it in (b"1", b"2"))
    assert len({plain, one, two}) == 3


def test_what_was_read_here_is_not_read_again(tmp_path):
    facts = read(IMAGE, tmp_path)
    assert read(without_layers(IMAGE), tmp_path) == facts


@pytest.mark.parametrize(
    "change",
    [
        {"python": "3.11.2\nexecutable = /tmp/x"},
        {"python": 3},
        {"python_path": "/usr/bin/python3.11\n"},
        {"python_path": "usr/bin/python3.11"},
        {"python_path": "/bin/sh"},
        {"glibc": ""},
        {"interpreter": "x"},
        {"distribution": "\x1b[31m"},
        {"more": "x"},
    ],
)
def test_kept_facts_that_are_none_are_read_again(change, tmp_path):
    facts = read(IMAGE, tmp_path)
    path = facts_file(tmp_path)
    right = path.read_bytes()
    write_entry(tmp_path, path.name, asdict(facts) | change)
    assert read(IMAGE, tmp_path) == facts
    assert path.read_bytes() == right, "and put right"


@pytest.mark.parametrize("value", [None, [], "text", {}, 3])
def test_kept_facts_of_another_shape_are_read_again(value, tmp_path):
    facts = read(IMAGE, tmp_path)
    path = facts_file(tmp_path)
    write_entry(tmp_path, path.name, value)
    assert read(IMAGE, tmp_path) == facts


def test_a_mirror_is_known_by_what_it_was_copied_from(tmp_path):
    known = KnownFacts(tmp_path)
    known.remember_mirror(DIGEST, "docker.io/library/python:3.11")
    assert known.mirror_of(DIGEST) == "docker.io/library/python:3.11"
    assert known.mirror_of(Digest.of(b"other")) == ""


@pytest.mark.parametrize("value", ["a\nb", "", ["x"], None, "x" * 600, "\x1b[1m"])
def test_a_mirror_of_no_name_is_none(value, tmp_path):
    known = KnownFacts(tmp_path)
    known.remember_mirror(DIGEST, "name")
    path = facts_file(tmp_path)
    path.write_text(json.dumps(value))
    assert known.mirror_of(DIGEST) == ""


def test_a_base_from_a_registry_says_where_it_was_asked_for_and_what_it_mirrors(tmp_path):
    KnownFacts(tmp_path / "bases" / "facts").remember_mirror(IMAGE.digest, "docker.io/library/python:3.11")

    def resolved(text: str):
        return resolve_base(text, machine="x86_64", cache=tmp_path, pull=lambda *_: IMAGE, report=SILENT)

    base = resolved("registry.example.com/base:1")
    assert base.to_dict() == {
        "name": "registry.example.com/base:1",
        "digest": str(IMAGE.digest),
        "mirror_of": "docker.io/library/python:3.11",
    }
    assert resolved("python").asked == "docker.io/library/python:latest"
    assert resolved(f"docker://python@{IMAGE.digest}").asked == "docker.io/library/python"
    assert resolved(f"python:3.11@{IMAGE.digest}").asked == "docker.io/library/python:3.11"
    assert replace(base, asked="", mirror_of="", name="debian:bookworm").to_dict()["name"] == "debian:bookworm"
