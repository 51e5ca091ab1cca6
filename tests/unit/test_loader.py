"""The loader proof: what we say of files is what the machine's own loader does with them."""

import io
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envbuild.verify.cuda.process import Elf, read_cache, read_elf
from tests.unit.loading import MACHINE, PYTHON, Asked, library, loader_says, read_file, we_say

OTHER_MACHINE = {"x86_64": 183, "aarch64": 62}[MACHINE]


def agreed(root: Path, asked: Asked, library_path: str = "") -> tuple[list[bool], list[str]]:
    """Our answers, which must be the loader's."""
    variables = {"LD_LIBRARY_PATH": library_path}
    ours = we_say(root, asked, variables)
    assert ours == loader_says(root, asked, variables)
    return ours[0], sorted(str(Path(path).relative_to(root)) for path in ours[1])


def test_the_runpath_of_the_caller_leads_to_a_library_and_that_of_others_does_not(tmp_path):
    library(tmp_path / "b/libinner.so.1")
    first = library(tmp_path / "a/first.so", runpath="$ORIGIN/../b")
    second = library(tmp_path / "a/second.so")
    asked = [(str(first), None), (str(second), None), ("libinner.so.1", second), ("libinner.so.1", first)]
    assert agreed(tmp_path, asked)[0] == [True, True, False, True]


def test_a_library_that_is_loaded_serves_everyone_by_its_soname(tmp_path):
    library(tmp_path / "b/libinner.so.1")
    first = library(tmp_path / "a/first.so", runpath="$ORIGIN/../b")
    second = library(tmp_path / "a/second.so")
    asked = [(str(first), None), ("libinner.so.1", first), (str(second), None), ("libinner.so.1", second)]
    assert agreed(tmp_path, asked)[0] == [True] * 4


@pytest.mark.parametrize(("kind", "found"), [("rpath", True), ("runpath", False)])
def test_rpath_serves_what_a_library_loads_in_turn_and_runpath_does_not(kind, found, tmp_path):
    innermost = library(tmp_path / "b/libinnermost.so")
    inner = library(tmp_path / "b/libinner.so", [innermost])
    outer = library(tmp_path / "a/outer.so", [inner], **{kind: "$ORIGIN/../b"})
    assert agreed(tmp_path, [(str(outer), None)])[0] == [found]


@pytest.mark.parametrize(("kind", "winner"), [("rpath", "own"), ("runpath", "given")])
def test_ld_library_path_comes_after_rpath_and_before_runpath(kind, winner, tmp_path):
    inner = library(tmp_path / "own/libinner.so")
    library(tmp_path / "given/libinner.so")
    outer = library(tmp_path / "outer.so", [inner], **{kind: "$ORIGIN/own"})
    assert agreed(tmp_path, [(str(outer), None)], f"{tmp_path}/given")[1] == sorted(
        [f"{winner}/libinner.so", "outer.so"]
    )


def test_one_library_that_is_missing_deep_down_takes_all_with_it(tmp_path):
    innermost = library(tmp_path / "b/libinnermost.so")
    inner = library(tmp_path / "b/libinner.so", [innermost])
    outer = library(tmp_path / "b/outer.so", [inner], runpath="$ORIGIN")
    innermost.unlink()
    assert agreed(tmp_path, [(str(outer), None)]) == ([False], [])


def test_origin_is_the_folder_that_a_library_was_opened_in_and_not_the_one_that_links_lead_to(tmp_path):
    inner = library(tmp_path / "real/inner/libinner.so")
    outer = library(tmp_path / "real/outer.so", [inner], runpath="$ORIGIN/inner")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/outer.so").symlink_to(outer)
    (tmp_path / "whole").symlink_to("real")
    assert agreed(tmp_path, [(str(tmp_path / "other/outer.so"), None)])[0] == [False]
    assert agreed(tmp_path, [(str(tmp_path / "whole/outer.so"), None)])[0] == [True]


def test_a_file_that_two_links_lead_to_is_loaded_once(tmp_path):
    real = library(tmp_path / "lib/libinner.so.1.2", soname="other")
    for name in ("libinner.so.1", "libinner.so"):
        (tmp_path / "lib" / name).symlink_to(real.name)
    outer = library(tmp_path / "outer.so", runpath="${ORIGIN}/lib")
    asked = [(str(outer), None), ("libinner.so", outer), ("libinner.so.1", outer), ("other", outer)]
    assert agreed(tmp_path, asked) == ([True] * 4, ["lib/libinner.so.1.2", "outer.so"])


def test_a_library_for_another_machine_or_width_is_passed_over(tmp_path):
    right = library(tmp_path / "right/libinner.so")
    data = bytearray(right.read_bytes())
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine/libinner.so").write_bytes(data[:18] + OTHER_MACHINE.to_bytes(2, "little") + data[20:])
    (tmp_path / "width").mkdir()
    (tmp_path / "width/libinner.so").write_bytes(data[:4] + b"\x01" + data[5:])
    outer = library(tmp_path / "outer.so", [right], runpath="$ORIGIN/machine:$ORIGIN/width:$ORIGIN/right")
    assert agreed(tmp_path, [(str(outer), None)])[1] == ["outer.so", "right/libinner.so"]


@pytest.mark.parametrize("content", [b"GROUP ( libinner.so.1 )\n" + bytes(2000), b"", b"\x7fELF"])
def test_what_is_found_first_and_is_no_library_ends_the_search(content, tmp_path):
    right = library(tmp_path / "right/libinner.so")
    outer = library(tmp_path / "outer.so", [right], runpath="$ORIGIN/wrong:$ORIGIN/right")
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong/libinner.so").write_bytes(content)
    assert agreed(tmp_path, [(str(outer), None)])[0] == [False]


def test_tokens_name_the_folder_of_libraries_and_the_processor(tmp_path):
    triplet = f"lib/{MACHINE}-linux-gnu"
    inner = library(tmp_path / triplet / "libinner.so")
    other = library(tmp_path / MACHINE / "libother.so")
    (tmp_path / "haswell").symlink_to(MACHINE)  # what glibc has for it on Intel's processors with AVX2
    outer = library(tmp_path / "outer.so", [inner, other], runpath="$ORIGIN/$LIB:$ORIGIN/${PLATFORM}:$ORIGINAL")
    assert agreed(tmp_path, [(str(outer), None)])[1] == sorted(
        [f"{triplet}/libinner.so", f"{MACHINE}/libother.so", "outer.so"]
    )


def test_default_folders_serve_all_libraries_but_those_that_refuse_them(tmp_path):
    plain = library(tmp_path / "plain.so")
    asked = [(str(plain), None), ("libanl.so.1", plain)]
    assert agreed(tmp_path, asked)[0] == [True, True]
    refusing = library(tmp_path / "refusing.so", flags=["-Wl,-z,nodefaultlib", "-nostdlib"])
    asked = [(str(refusing), None), ("libanl.so.1", refusing)]
    assert agreed(tmp_path, asked)[0] == [True, False]


def test_a_soname_decides_and_not_the_name_of_the_file(tmp_path):
    named = library(tmp_path / "b/libnamed.so", soname="libwanted.so.7")
    outer = library(tmp_path / "a/outer.so", [named], runpath="$ORIGIN/../b")
    assert agreed(tmp_path, [(str(outer), None)])[0] == [False]
    assert agreed(tmp_path, [(str(named), None), (str(outer), None)])[0] == [True, True]


FOLDERS = ("a", "b", "c")
NAMES = ("libone.so", "libtwo.so", "libthree.so", "libfour.so")
paths = st.lists(st.sampled_from(FOLDERS), max_size=2, unique=True).map(
    lambda found: ":".join(f"$ORIGIN/../{folder}" for folder in found)
)
layouts = st.fixed_dictionaries(
    {
        name: st.tuples(
            st.lists(st.sampled_from(FOLDERS), min_size=1, max_size=2, unique=True),
            st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            st.sampled_from(("rpath", "runpath")),
            paths,
        )
        for name in NAMES
    }
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=layouts, given_folders=st.lists(st.sampled_from(FOLDERS), max_size=1))
def test_of_any_layout_we_say_what_the_loader_does(layout, given_folders, tmp_path_factory):
    """dlopen(3): "the library is searched for as follows"."""
    root = tmp_path_factory.mktemp("layout")
    stubs = {name: library(root / "stubs" / name, flags=["-nostdlib"], source="") for name in NAMES}
    for name, (folders, needs, kind, path) in layout.items():
        made = library(root / "made" / name, [stubs[it] for it in needs], **{kind: path})
        for folder in folders:
            (root / folder).mkdir(exist_ok=True)
            shutil.copy(made, root / folder / name)
    for name in ("stubs", "made"):
        shutil.rmtree(root / name)
    files = [root / folders[-1] / name for name, (folders, *_) in layout.items()]
    asked: Asked = [
        (str(files[0]), None),
        (NAMES[1], files[0]),
        (NAMES[2], files[0]),
        (str(files[3]), None),
        (NAMES[1], files[3]),
    ]
    agreed(root, asked, ":".join(f"{root}/{folder}" for folder in given_folders))


def test_what_is_read_of_a_library_is_what_readelf_says(tmp_path):
    needs = [library(tmp_path / f"lib{number}.so.{number}") for number in range(3)]
    made = library(tmp_path / "libmade.so.4", needs, runpath="/first:" + "/long" * 9000, flags=["-Wl,-z,nodefaultlib"])
    for path in (made, needs[0], Path(PYTHON)):
        found = read_file(str(path))
        assert found is not None
        text = subprocess.run(["readelf", "-dhW", path], capture_output=True, text=True, check=True).stdout
        assert list(found.needed) == [
            line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line
        ]
        assert f"Library soname: [{found.soname}]" in text or not found.soname
        assert f"Library runpath: [{found.runpath}]" in text or not found.runpath
        assert ("NODEFLIB" in text) == found.nodeflib
    assert (read_file(str(made)) or Elf(bits=0, machine="")).runpath.count("/long") == 9000


@settings(max_examples=200, deadline=None)
@example(cut=0, at=296, bits=8)  # names without a table that has them
@given(cut=st.integers(0, 20_000), at=st.integers(0, 20_000), bits=st.integers(0, 255))
def test_a_damaged_library_is_none_or_one_but_never_a_crash(cut, at, bits, damaged_source):
    data = bytearray(damaged_source)
    data[at % len(data)] ^= bits
    whole = bytes(data[: len(data) - cut % len(data)])
    found = read_elf(io.BytesIO(whole))
    assert found is None or isinstance(found, Elf)


@pytest.fixture(scope="module")
def damaged_source(tmp_path_factory) -> bytes:
    return library(tmp_path_factory.mktemp("damaged") / "libwhole.so", runpath="$ORIGIN").read_bytes()


def test_the_loaders_cache_is_read_as_ldconfig_prints_it(tmp_path):
    inner = library(tmp_path / "lib/libinner.so.1")
    (tmp_path / "conf").write_text(f"{inner.parent}\n")
    ldconfig = ["/sbin/ldconfig", "-f", tmp_path / "conf", "-C", tmp_path / "cache"]
    subprocess.run(ldconfig, check=True, capture_output=True)
    printed = subprocess.run(
        [*ldconfig[:1], "-C", tmp_path / "cache", "-p"], check=True, capture_output=True, text=True
    )
    found = read_cache((tmp_path / "cache").read_bytes(), MACHINE)
    assert found["libinner.so.1"] == str(inner)
    assert all(f" => {path}" in printed.stdout for path in found.values())
    assert len(found) > 1
    assert read_cache(b"nothing", MACHINE) == {}
    assert read_cache((tmp_path / "cache").read_bytes()[:100], MACHINE) == {}
