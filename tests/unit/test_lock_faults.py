"""What cannot be locked, and what came from no index."""

import re
from html import escape

import pytest
from packaging.requirements import Requirement

from envbuild.lock.faults import Fault, UnlockableError, diagnose, origin_fault
from envbuild.lock.index import parse_page
from envbuild.lock.model import Target
from envbuild.lock.settings import bare_url
from envbuild.manifest.packages import Distribution, Origin

TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")
PAGE = "https://index.invalid/simple/a/"


def distribution(name: str, origin: Origin) -> Distribution:
    return Distribution(name=name, version="1", origin=origin)


def test_origins_that_no_index_serves_are_listed_together():
    run = [
        distribution("from-git", Origin(kind="vcs", url="https://git.invalid/x", commit="c0ffee")),
        distribution("edited", Origin(kind="editable", url="file:///home/me/x")),
        distribution("wheel", Origin(kind="archive", url="file:///tmp/wheel-1-py3-none-any.whl")),
        distribution("folder", Origin(kind="archive", url="/tmp/folder")),
        distribution("indexed", Origin(kind="index")),
    ]
    said = str(UnlockableError(filter(None, map(origin_fault, run))))
    assert said.startswith("4 distributions cannot be locked:")
    assert "from-git==1: was installed from version control (https://git.invalid/x at c0ffee)" in said
    assert said.count("find-links") == 4
    assert "indexed" not in said


def test_origins_that_an_index_may_serve_pass():
    run = [
        distribution("a", Origin(kind="index")),
        distribution("b", Origin(kind="conda", url="file:///croot/b")),
        distribution("c", Origin(kind="archive", url="https://files.invalid/c-1.tar.gz")),
        distribution("d", Origin(kind="unknown")),
    ]
    assert [*map(origin_fault, run)] == [None] * 4


def test_a_page_is_read_with_its_base_and_without_what_is_no_distribution():
    text = (
        '<base href="https://files.invalid/x/"><a name=top>top</a><a href="mailto:me">me</a><a href="README">r</a>'
        '<a href="a-1-py3-none-any.whl#sha256=' + "A" * 64 + '" data-requires-python="&gt;=3.8">a</a>'
        '<a href="https://u:p@files.invalid/a-2%2Bcu118-py3-none-any.whl#md5=1">a</a>'
        '<a href="/y/a-1.tar.gz#sha256=short">s</a>'
    )
    one, two, three = parse_page(text, PAGE)
    assert (one.url, one.requires_python, one.sha256) == (
        "https://files.invalid/x/a-1-py3-none-any.whl",
        ">=3.8",
        one.sha256,
    )
    assert one.sha256 is not None
    assert one.sha256.hex == "a" * 64
    assert (two.url, str(two.version), two.sha256) == (
        "https://files.invalid/a-2%2Bcu118-py3-none-any.whl",
        "2+cu118",
        None,
    )
    assert (three.url, three.is_wheel, three.sha256) == ("https://files.invalid/y/a-1.tar.gz", False, None)


def test_unreadable_python_bounds_count_as_none():
    files = parse_page('<a href="a-1-py3-none-any.whl" data-requires-python="3.?">a</a>', PAGE)
    assert diagnose(Requirement("a==1"), files, TARGET) is None


@pytest.mark.parametrize(
    ("needs", "of_patch"), [(">=3.11.5", True), ("!=3.11.2", True), (">=3.12", False), ("<3.11", False)]
)
def test_a_release_for_another_patch_of_python_wants_a_base_with_that_and_none_wants_a_wheel(needs, of_patch):
    files = parse_page(f'<a href="a-1-py3-none-any.whl" data-requires-python="{escape(needs)}">a</a>', PAGE)
    fault = diagnose(Requirement("a==1"), files, TARGET)
    assert fault is not None
    assert fault.why.startswith(f"it needs Python {needs}")
    assert ("3.11.2 is another patch release" in fault.why, "--base" in fault.todo) == (of_patch, of_patch)
    assert "an older release" in fault.todo
    assert "--find-links" not in fault.todo


def test_addresses_are_shown_without_credentials():
    assert bare_url("https://user:pa@ss@host:8080/simple/#frag") == "https://host:8080/simple/"
    assert bare_url("/opt/wheels") == "/opt/wheels"


@pytest.mark.parametrize(
    ("tags", "glibc"),
    [
        (("cp311-cp311-manylinux_2_39_x86_64", "cp311-cp311-manylinux_2_38_x86_64"), "2.38"),
        (("cp311-cp311-manylinux_2_40_aarch64",), None),
        (("cp312-cp312-manylinux_2_38_x86_64", "cp311-cp311-manylinux_2_39_x86_64.manylinux_2_41_x86_64"), "2.39"),
        (("cp311-cp311-manylinux_2_200000_x86_64",), None),
        (("cp312-cp312-manylinux_2_17_x86_64",), None),
    ],
)
@pytest.mark.parametrize("source", ["", '<a href="a-1.tar.gz">a</a>'])
def test_a_glibc_that_is_too_old_is_told_apart_from_other_faults(tags, glibc, source):
    files = parse_page(source + "".join(f'<a href="a-1-{tag}.whl">a</a>' for tag in tags), PAGE)
    fault = diagnose(Requirement("a==1"), files, TARGET)
    assert fault is not None
    assert fault.glibc == glibc
    if glibc:
        assert (fault.why, fault.todo) == ("its wheels need a newer glibc", "")
        return
    assert fault.why.startswith("no wheel fits CPython 3.11.2 on x86_64 with glibc 2.36; there are: cp31")
    assert fault.todo.startswith("let it be built from its source" if source else "build a wheel of it")


def test_the_error_names_one_glibc_that_serves_all():
    newer = [
        Fault(requirement=f"a{it}==1", why="its wheels need a newer glibc", todo="", glibc=f"2.{it}") for it in (9, 38)
    ]
    said = str(UnlockableError(newer, TARGET))
    assert re.findall(r"glibc (2\.\d+)", said.partition("do: ")[2]) == ["2.38", "2.38"]
    assert said.count("2.9") == 0
    assert "--drop" not in said
    said = str(UnlockableError([*newer, Fault(requirement="b==1", why="it is lost", todo="find it")], TARGET))
    assert said.index("--glibc 2.38") < said.index("--drop NAME")
    assert "  b==1: it is lost\n    do: find it" in said


def test_only_wheels_for_one_other_system_are_for_another_system():
    for tags, elsewhere in ((["win_amd64"], True), (["win_amd64", "macosx_11_0_arm64"], False)):
        files = parse_page("".join(f'<a href="a-1-cp311-cp311-{tag}.whl">a</a>' for tag in tags), PAGE)
        fault = diagnose(Requirement("a==1"), files, TARGET)
        assert fault is not None
        assert fault.todo.startswith("all its wheels are for another system") == elsewhere
