"""What is known of a base without reading it."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from envbuild.base import resolve_base
from envbuild.base.facts import Facts, KnownFacts
from envbuild.base.inspect import inspect
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from tests.fakes.trees import BASE, PYTHON, image_of_trees

RELEASE = {"etc/os-release": "-> ../usr/lib/os-release", "usr/lib/os-release": b'ID=debian\nPRETTY_NAME="Debian 12"\n'}
IMAGE = image_of_trees(BASE, RELEASE)
DIGEST = Digest.of(b"a base")
FACTS = Facts(
    python="3.11.2", glibc="2.36", python_path="/usr/bin/python3.11", distribution="Debian 12", interpreter="0" * 64
)


class Shared:
    """Notes in memory, as JSON."""

    def __init__(self) -> None:
        self.values: dict[Digest, str] = {}
        self.asked = 0

    def get(self, key: Digest) -> Any | None:
        self.asked += 1
        return json.loads(self.values.get(key, "null"))

    def put(self, key: Digest, value: Any) -> None:
        self.values[key] = json.dumps(value)


def without_layers(image: Image) -> Image:
    return Image(image.manifest, image.config, ())


def read(image: Image, folder, others=None) -> Facts:
    return inspect(image, "a base", "x86_64", KnownFacts(folder, others))


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


def test_what_one_machine_read_no_other_has_to_read(tmp_path):
    shared = Shared()
    facts = read(IMAGE, tmp_path / "one", shared)
    assert read(without_layers(IMAGE), tmp_path / "two", shared) == facts
    asked = shared.asked
    assert read(without_layers(IMAGE), tmp_path / "two", shared) == facts
    assert shared.asked == asked, "kept here since"


def test_who_trusts_nobody_reads_for_himself(tmp_path):
    shared = Shared()
    read(IMAGE, tmp_path / "one", shared)
    for key in shared.values:
        shared.put(key, json.loads(shared.values[key]) | {"python": "3.11.99"})
    assert read(IMAGE, tmp_path / "two", shared).python == "3.11.99"
    assert read(IMAGE, tmp_path / "three").python == "3.11.2"


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
def test_notes_that_are_no_facts_are_read_again(change, tmp_path):
    shared = Shared()
    facts = read(IMAGE, tmp_path / "one", shared)
    for key in shared.values:
        shared.put(key, json.loads(shared.values[key]) | change)
    assert read(IMAGE, tmp_path / "two", shared) == facts
    assert [json.loads(it) for it in shared.values.values()] == [asdict(facts)], "and put right"


@pytest.mark.parametrize("value", [None, [], "text", {}, 3])
def test_notes_of_another_shape_are_read_again(value, tmp_path):
    shared = Shared()
    facts = read(IMAGE, tmp_path / "one", shared)
    for key in shared.values:
        shared.put(key, value)
    assert read(IMAGE, tmp_path / "two", shared) == facts


def test_a_mirror_is_known_by_what_it_was_copied_from(tmp_path):
    shared = Shared()
    KnownFacts(tmp_path / "one", shared).remember_mirror(DIGEST, "docker.io/library/python:3.11")
    for known in (KnownFacts(tmp_path / "one"), KnownFacts(tmp_path / "two", shared)):
        assert known.mirror_of(DIGEST) == "docker.io/library/python:3.11"
        assert known.mirror_of(Digest.of(b"other")) == ""


@pytest.mark.parametrize("value", ["a\nb", "", ["x"], None, "x" * 600, "\x1b[1m"])
def test_a_mirror_of_no_name_is_none(value, tmp_path):
    shared = Shared()
    known = KnownFacts(tmp_path, shared)
    known.remember_mirror(DIGEST, "name")
    for path in tmp_path.iterdir():
        path.unlink()
    for key in shared.values:
        shared.put(key, value)
    assert known.mirror_of(DIGEST) == ""


def test_a_base_from_a_registry_says_where_it_was_asked_for_and_what_it_mirrors(tmp_path):
    KnownFacts(tmp_path / "bases" / "facts").remember_mirror(IMAGE.digest, "docker.io/library/python:3.11")

    def resolved(text: str):
        return resolve_base(text, machine="x86_64", cache=tmp_path, pull=lambda *_: IMAGE, report=print, notes=Shared())

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
