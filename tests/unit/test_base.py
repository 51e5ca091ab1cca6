"""Bases: what is read from their files, and what is refused."""

import io
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.base.resolve import KnownFacts, check_base, inspect, suite_for
from envbuild.errors import BaseError
from envbuild.lock.model import Target
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Image
from envbuild.oci.rootfs import Node, read_tree, resolve
from envbuild.recipe import Base
from tests.fakes.trees import BASE, GLIBC, PYTHON, image_of_layers, image_of_trees, layer_of_tree


def inspected(image: Image, tmp_path, machine="x86_64"):
    facts = inspect(image, "a base", machine, KnownFacts(tmp_path))
    return facts.python, facts.glibc, facts.python_path


def without(*paths):
    return {path: what for path, what in BASE.items() if path not in paths}


def test_the_interpreter_and_the_library_say_their_versions_themselves(tmp_path):
    assert inspected(image_of_trees(BASE), tmp_path) == ("3.11.2", "2.36", "/usr/bin/python3.11")


def test_layers_that_are_not_compressed_are_read_too(tmp_path):
    assert inspected(image_of_layers(layer_of_tree(BASE, LAYER_TAR)), tmp_path)[0] == "3.11.2"


def test_what_was_read_once_is_remembered(tmp_path):
    image = image_of_trees(BASE)
    first = inspected(image, tmp_path)
    assert inspected(Image(image.manifest, image.config, ()), tmp_path) == first


def test_remembered_facts_that_are_damaged_are_read_again(tmp_path):
    image = image_of_trees(BASE)
    first = inspected(image, tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(b"{")
    assert inspected(image, tmp_path) == first


def test_the_first_python_on_the_path_wins(tmp_path):
    both = {
        **BASE,
        "usr/local/bin/python3": "-> /usr/local/bin/python3.12",
        "usr/local/bin/python3.12": b"\x003.12.4\0",
    }
    assert inspected(image_of_trees(both), tmp_path)[::2] == ("3.12.4", "/usr/local/bin/python3.12")
    assert inspected(image_of_trees(both, env=["PATH=/usr/bin"]), tmp_path)[::2] == ("3.11.2", "/usr/bin/python3.11")


def test_a_small_interpreter_has_its_version_in_the_shared_library_of_the_same_installation(tmp_path):
    official = {
        **BASE,
        "usr/local/bin/python3": "-> python3.12",
        "usr/local/bin/python3.12": b"a launcher",
        "usr/lib/libpython3.12.so.1.0": b"\x003.12.1\0",
        "usr/local/lib/libpython3.12.so.1.0": b"\x003.12.4\0",
    }
    assert inspected(image_of_trees(official), tmp_path)[0] == "3.12.4"


def test_an_official_python_says_its_version_in_its_environment_where_its_files_do_not(tmp_path):
    official = {**BASE, "usr/local/bin/python3": "-> python3.12", "usr/local/bin/python3.12": b"a launcher"}
    image = image_of_trees(official, env=["PATH=/usr/local/bin", "PYTHON_VERSION=3.12.4"])
    assert inspected(image, tmp_path)[0] == "3.12.4"


def test_the_version_of_another_installation_is_not_taken_from_the_environment(tmp_path):
    entries = {**BASE, "usr/bin/python3.11": b"a launcher"}
    with pytest.raises(BaseError, match=r"version of /usr/bin/python3\.11"):
        inspected(image_of_trees(entries, env=["PYTHON_VERSION=3.11.4"]), tmp_path)


def test_older_libraries_have_their_version_in_their_name_and_a_link(tmp_path):
    old = without("usr/lib/x86_64-linux-gnu/libc.so.6") | {
        "usr/lib/x86_64-linux-gnu/libc-2.31.so": GLIBC.replace(b"2.36", b"2.31"),
        "usr/lib/x86_64-linux-gnu/libc.so.6": "-> libc-2.31.so",
        "opt/conda/sysroot/lib64/libc-2.17.so": GLIBC.replace(b"2.36", b"2.17"),
    }
    assert inspected(image_of_trees(old), tmp_path)[1] == "2.31"


@pytest.mark.parametrize(
    ("image", "why"),
    [
        *(
            (image_of_trees(tree), "no python3 on its PATH")
            for tree in ({}, {**BASE, "usr/bin/python3.11": "-> nowhere"})
        ),
        (image_of_trees({**BASE, "usr/bin/python3": b"pypy"}), "/usr/bin/python3 is not named python3.X"),
        (image_of_trees({**BASE, "opt/": 0o700}), r"/opt is a directory of mode 0700"),
        (image_of_trees({**without("opt/"), "opt": "-> var/opt"}), "/opt is a link"),
        (image_of_trees({**BASE, "opt/env/": 0o755}), "it has an /opt/env already"),
        (image_of_trees(BASE, architecture="arm64"), "linux/arm64, the environment for linux/amd64"),
        (image_of_trees(BASE, os="windows"), "windows/amd64"),
        (image_of_trees(without("usr/lib/x86_64-linux-gnu/libc.so.6")), "no glibc"),
        (
            image_of_trees({**without("usr/lib/x86_64-linux-gnu/libc.so.6"), "lib/ld-musl-x86_64.so.1": b""}),
            "it has musl",
        ),
        (image_of_trees({**BASE, "usr/bin/python3.11": b"no version"}), "exact version"),
    ],
)
def test_bases_that_cannot_carry_the_environment_are_refused(image, why, tmp_path):
    with pytest.raises(BaseError, match=why) as caught:
        inspected(image, tmp_path)
    assert "debian:SUITE" in caught.value.todo
    assert "Dockerfile.base" in caught.value.todo


def test_a_config_that_is_none_is_refused(tmp_path):
    image = image_of_trees(BASE)
    for config in (b"{", b"[]", b'{"architecture":"amd64"}', b'{"architecture":"amd64","os":"linux","config":[1]}'):
        with pytest.raises(BaseError, match="config"):
            inspected(Image(image.manifest, config, image.layers), tmp_path)


def test_a_base_compressed_with_zstd_is_read_as_one_of_gzip(tmp_path):
    zstd = layer_of_tree(BASE, LAYER_ZSTD)
    assert inspected(image_of_layers(zstd), tmp_path / "a") == inspected(image_of_trees(BASE), tmp_path / "b")


@pytest.mark.parametrize("media_type", [LAYER_GZIP, LAYER_ZSTD])
def test_layers_that_cannot_be_read_are_refused(tmp_path, media_type):
    layer = layer_of_tree(BASE, media_type)
    with layer.open() as file:
        data = file.read()
    for broken in (data[:-30], b"no gzip" * 9, data[:300] + b"x" + data[301:]):
        with pytest.raises(BaseError, match="cannot be read"):
            inspected(image_of_layers(replace(layer, open=partial(io.BytesIO, broken))), tmp_path)


def test_content_that_is_not_the_configs_diff_id_is_refused(tmp_path):
    with pytest.raises(BaseError, match="diff id"):
        inspected(image_of_layers(replace(layer_of_tree(BASE), diff_id=Digest.of(b""))), tmp_path)


def test_whiteouts_hide_what_lies_below_and_not_what_lies_beside_them():
    lower = {
        "a/": 0o755,
        "a/x": b"",
        "b/": 0o755,
        "b/x": b"",
        "b/y/": 0o755,
        "b/y/z": b"",
        "c": b"",
        "d/": 0o755,
        "d/x": b"",
    }
    upper = {"a/new": b"", "a/.wh..wh..opq": b"", "b/.wh.y": b"", ".wh.c": b"", "d": "-> a"}
    assert set(read_tree(image_of_trees(lower, upper), "x")) == {"a", "a/new", "b", "b/x", "d"}


def test_upper_layers_win():
    tree = read_tree(image_of_trees(BASE, {"usr/bin/python3.11": PYTHON.replace(b"3.11.2", b"3.11.9")}), "x")
    assert tree["usr/bin/python3.11"].version == "3.11.9"


def test_hard_links_and_links_through_folders_are_followed():
    tree = read_tree(image_of_trees({**BASE, "usr/bin/python": "=> ./usr/bin/python3.11"}), "x")
    assert resolve(tree, "/bin/python") == "/usr/bin/python3.11"
    assert resolve(tree, "/lib/../bin/./python3") == "/usr/bin/python3.11"
    assert resolve(tree, "/nothing") is None


def test_links_in_circles_lead_nowhere():
    assert resolve({"a": Node("link", target="b"), "b": Node("link", target="/a")}, "/a") is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2_100_000))
def test_a_version_is_found_wherever_it_stands(offset):
    content = bytes(offset) + b"3.11.7\0" + bytes(10)
    assert (
        read_tree(image_of_layers(layer_of_tree({"bin/python3.11": content}, LAYER_TAR)), "x")["bin/python3.11"].version
        == "3.11.7"
    )


def test_a_tar_may_name_its_files_with_a_leading_dot():
    dotted = image_of_trees({f"./{path}": what for path, what in BASE.items()})
    assert read_tree(dotted, "x") == read_tree(image_of_trees(BASE), "x")


def base(python="3.11.2", glibc="2.36"):
    target = Target(python=python, machine="x86_64", glibc=glibc)
    return Base(name="debian:bookworm", image=image_of_trees(BASE), target=target, python_path="/usr/bin/python3.11")


def test_the_same_python_needs_no_remark_and_another_patch_release_one():
    assert check_base(base(), "3.11.2", "2.17") == []
    assert "another patch release" in check_base(base(), "3.11.7", "2.17")[0]


@pytest.mark.parametrize(("python", "fitting"), [("3.9.2", "debian:bullseye"), ("3.12.1", "python:3.12-slim")])
def test_another_minor_version_is_refused_and_a_fitting_base_named(python, fitting):
    with pytest.raises(BaseError, match=f"the run used {python}") as caught:
        check_base(base(), python, "2.17")
    assert fitting in caught.value.todo


def test_a_glibc_that_is_too_old_is_refused_by_number_not_by_letter():
    assert check_base(base(glibc="2.36"), "3.11.2", "2.4") == []
    with pytest.raises(BaseError, match=r"needs 2\.37"):
        check_base(base(), "3.11.2", "2.37")


def test_each_python_of_a_debian_release_has_its_suite():
    assert [suite_for(minor) for minor in ("3.9", "3.11", "3.13", "3.12")] == ["bullseye", "bookworm", "trixie", None]
