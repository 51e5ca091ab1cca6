"""A short run of what `python -m tests.fuzz` does for minutes, and what that once found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import FOUND, TARGETS, checked

CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=12)), max_size=6)


@st.composite
def mutated(draw, name):
    """A seed with some of its bytes removed or replaced."""
    data = draw(st.sampled_from(seeds(name)))
    for where, length, new in draw(CHANGES):
        at = int(where * len(data))
        data = data[:at] + new + data[at + length :]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_read(name):
    for data in seeds(name):
        checked(name, data)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused(name):
    @settings(max_examples=settings().max_examples // 4)
    @given(mutated(name) | st.binary(max_size=200))
    def run(data):
        checked(name, data)

    run()


def test_what_fuzzing_found_is_mended():
    for path in sorted(FOUND.glob("*/*")):
        checked(path.parent.name, path.read_bytes())
