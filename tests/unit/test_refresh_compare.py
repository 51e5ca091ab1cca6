"""Differences between a profile that is kept and one that was just read, each named with its release, row and field."""

from dataclasses import replace

import pytest
from packaging.version import Version

from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from envbuild.oci.digest import Digest
from profiles.refresh.compare import differences

ROW = FrameworkWheel(
    distribution="jax",
    version="0.8.0",
    machine="x86_64",
    pythons=("3.11", "3.12"),
    glibc="2.27",
    wheel="jax-0.8.0-py3-none-any.whl",
    sha256=Digest.of(b"jax").hex,
    extra="cuda12",
    cuda="12",
    limits=("numpy>=2", "scipy>=1.13"),
)
CPU = replace(ROW, extra=None, cuda=None)


def profile(*releases: Release) -> FrameworkProfile:
    return FrameworkProfile(name="jax", releases=releases)


def release(*wheels: FrameworkWheel, version: str = "0.8.0", notes: tuple[str, ...] = ()) -> Release:
    return Release(version=Version(version), wheels=wheels, notes=notes)


def test_equal_profiles_have_no_difference():
    assert differences(profile(release(CPU, ROW)), profile(release(CPU, ROW))) == ()
    assert differences(profile(release(CPU, ROW)), profile(release(ROW, CPU))) == ()


def test_a_release_without_rows_and_rows_without_a_release_are_named():
    new, old = release(CPU, ROW, version="0.9.0"), release(CPU, version="0.7.0")
    assert differences(profile(old, release(CPU)), profile(release(CPU), new)) == (
        "jax 0.7.0: has rows, and the index has no such release",
        "jax 0.9.0: released, and has no row (jax for x86_64, jax[cuda12] for x86_64)",
    )


def test_a_row_that_is_missing_or_surplus_is_named():
    arm = replace(CPU, machine="aarch64")
    assert differences(profile(release(CPU, ROW)), profile(release(CPU, arm))) == (
        "jax 0.8.0, jax[cuda12] for x86_64: has a row, and the index has no such wheel",
        f"jax 0.8.0, jax for aarch64: released as {arm.wheel}, and has no row",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cuda": "13"}, "cuda: the profile says 12, {} says 13"),
        ({"cuda": None}, "cuda: the profile says 12, {} says nothing"),
        ({"glibc": "2.28"}, "glibc: the profile says 2.27, {} says 2.28"),
        ({"pythons": ("3.12", "3.13")}, "pythons: the profile alone has 3.11; {} alone has 3.13"),
        ({"limits": ("numpy>=2",)}, "limits: the profile alone has scipy>=1.13"),
        ({"limits": ("scipy>=1.13", "numpy>=2")}, "limits: {} has them in another order"),
        ({"parts": ("jaxlib.whl",)}, "parts: {} alone has jaxlib.whl"),
        ({"sha256": Digest.of(b"").hex}, f"sha256: the profile says {ROW.sha256}, {{}} says {Digest.of(b'').hex}"),
    ],
)
def test_every_field_that_differs_is_named(change, says):
    found = differences(profile(release(CPU, ROW)), profile(release(CPU, replace(ROW, **change))))
    assert found == (f"jax 0.8.0, jax[cuda12] for x86_64: {says.format(ROW.wheel)}",)


def test_all_fields_of_a_row_are_compared():
    changed = replace(ROW, cuda="13", cudnn="9", glibc="2.28")
    found = differences(profile(release(ROW)), profile(release(changed)))
    assert [it.split(": ")[1] for it in found] == ["glibc", "cuda", "cudnn"]


def test_notes_are_compared():
    found = differences(profile(release(ROW, notes=("a",))), profile(release(ROW, notes=("a", "b"))))
    assert found == ("jax 0.8.0: notes: the index alone has b",)


def test_a_new_release_without_any_row_says_why():
    new = release(version="0.9.0", notes=("cpu: the index has no jaxlib==0.9.0 for x86_64",))
    (line,) = differences(profile(release(ROW)), profile(release(ROW), new))
    assert line == "jax 0.9.0: released, and has no row (cpu: the index has no jaxlib==0.9.0 for x86_64)"
