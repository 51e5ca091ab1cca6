"""The wheel that an installer on the target takes."""

import platform

import pytest
from packaging.tags import sys_tags

from envbuild.errors import UsageError
from envbuild.lock.model import Target, best_wheel, ranked_tags
from envbuild.lock.resolvers import uv_platforms
from envbuild.wheel.name import parsed_wheel

BOOKWORM = Target(python="3.11.2", machine="x86_64", glibc="2.36")
BULLSEYE = Target(python="3.9.2", machine="aarch64", glibc="2.31")


def best(target: Target, *tags: str) -> str | None:
    return best_wheel([(f"a-1-{tag}.whl", tag) for tag in tags], target)


def test_the_tags_of_this_machine_are_those_of_packaging():
    here = Target(python=platform.python_version(), machine=platform.machine(), glibc=platform.libc_ver()[1])
    rank = ranked_tags(here)
    assert sorted(rank, key=rank.__getitem__) == list(dict.fromkeys(sys_tags()))


@pytest.mark.parametrize(
    ("target", "tags", "chosen"),
    [
        (BOOKWORM, ["py3-none-any", "cp311-cp311-manylinux_2_17_x86_64"], "cp311-cp311-manylinux_2_17_x86_64"),
        (BOOKWORM, ["cp39-abi3-manylinux_2_28_x86_64", "py3-none-any"], "cp39-abi3-manylinux_2_28_x86_64"),
        (BOOKWORM, ["cp311-cp311-manylinux_2_39_x86_64"], None),
        (BOOKWORM, ["cp311-cp311-manylinux_2_17_aarch64", "cp312-cp312-manylinux_2_17_x86_64"], None),
        (BOOKWORM, ["cp311-cp311-musllinux_1_1_x86_64", "cp311-cp311-win_amd64"], None),
        (BULLSEYE, ["cp39-cp39-manylinux2014_aarch64"], "cp39-cp39-manylinux2014_aarch64"),
        (BULLSEYE, ["cp39-cp39-manylinux1_aarch64"], None),
        (
            BOOKWORM,
            ["cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", "cp311-cp311-manylinux_2_28_x86_64"],
            "cp311-cp311-manylinux_2_28_x86_64",
        ),
        (BOOKWORM, ["py2.py3-none-manylinux1_x86_64", "py3-none-any"], "py2.py3-none-manylinux1_x86_64"),
    ],
)
def test_the_most_specific_wheel_that_fits_is_taken(target, tags, chosen):
    assert best(target, *tags) == chosen
    assert best(target, *tags[::-1]) == chosen


def test_of_equal_tags_the_highest_build_is_taken():
    builds = ["a-1-py3-none-any.whl", "a-1-2-py3-none-any.whl", "a-1-10-py3-none-any.whl"]
    assert best_wheel([(build, build) for build in builds], BOOKWORM) == "a-1-10-py3-none-any.whl"


def test_other_files_are_no_wheels():
    assert parsed_wheel("a-1.tar.gz") is None
    assert parsed_wheel("a-not_a_version-py3-none-any.whl") is None


@pytest.mark.parametrize(
    ("glibc", "level"),
    [("2.17", "2_17"), ("2.27", "2_17"), ("2.28", "2_28"), ("2.30", "2_28"), ("2.36", "2_36"), ("2.41", "2_40")],
)
def test_uv_gets_the_newest_level_that_the_base_reaches(glibc, level):
    target = Target(python="3.11.2", machine="aarch64", glibc=glibc)
    assert uv_platforms(target)[0] == f"aarch64-manylinux_{level}"


@pytest.mark.parametrize(
    ("machine", "glibc"), [("riscv64", "2.36"), ("x86_64", "2.5"), ("x86_64", "1.2"), ("x86_64", "musl")]
)
def test_a_target_that_nobody_makes_wheels_for_is_refused(machine, glibc):
    with pytest.raises(UsageError):
        uv_platforms(Target(python="3.11.2", machine=machine, glibc=glibc))
