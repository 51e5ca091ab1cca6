"""Fingerprints of wheels: what they say of overlaps is what reading the wheels says, or too much, never too little."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import BuildError
from envbuild.image.layers.plan import find_overlaps
from envbuild.wheel.install import InstalledFile, find_wheels_to_compare, fingerprint, from_text, to_text
from tests.fakes.wheels import make_wheel
from tests.unit.test_assemble import locked

PATHS = ["a.py", "b.py", "pkg/__init__.py", "pkg/x/y.py", "pkg", "pkg/x"]


def whole(files: dict[str, bytes]) -> bool:
    """Whether no file is a folder too, which no wheel gets away with alone."""
    return not any(other.startswith(f"{path}/") for path in files for other in files)


FILES = st.dictionaries(st.sampled_from(PATHS), st.sampled_from([b"", b"1", b"2"]), max_size=4).filter(whole)


def installed(files: dict[str, bytes]) -> list[InstalledFile]:
    return [InstalledFile(path, executable=False, source=content) for path, content in files.items()]


@given(st.lists(FILES, max_size=5))
def test_wheels_above_suspicion_take_no_part_in_an_overlap(several):
    wheels = {locked(make_wheel(f"w{number}", "1")): installed(files) for number, files in enumerate(several)}
    near = find_wheels_to_compare({wheel: fingerprint(files) for wheel, files in wheels.items()})
    assert outcome(wheels) == outcome({wheel: wheels[wheel] for wheel in near})


def outcome(wheels):
    try:
        return find_overlaps(wheels, {}, lambda: sorted(wheel.name for wheel in wheels))
    except BuildError as error:
        return error.what, error.where


def test_equal_files_and_folders_raise_no_suspicion():
    one, two = (installed({"pkg/__init__.py": b"", f"pkg/{name}.py": name.encode()}) for name in "ab")
    wheels = [locked(make_wheel(name, "1")) for name in ("one", "two")]
    assert find_wheels_to_compare(dict(zip(wheels, map(fingerprint, (one, two)), strict=True))) == []


@given(FILES)
def test_text_and_back(files):
    rows = fingerprint(installed(files))
    assert from_text(to_text(rows)) == rows


@pytest.mark.parametrize("text", ["?", "AAAA", "ä"])
def test_what_is_no_fingerprint_is_refused(text):
    with pytest.raises((ValueError, struct.error)):
        from_text(text)
