"""Distributions above a lock: new wheels alone, nothing moved, both sides named where that cannot be."""

import pytest

from envbuild.errors import LockError
from envbuild.lock.run import find_unused, lock_above, lock_run
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.unit.locking import TARGET, forget_settings, options

WHEELS = [
    make_wheel("frame", "3.0", requires=["numbers<2", "board", "nowhere>=1"]),
    make_wheel("numbers", "1.0"),
    make_wheel("numbers", "2.0"),
    make_wheel("book", "1.0", requires=["numbers>=1", "page"]),
    make_wheel("book", "2.0", requires=["numbers>=2"]),
    make_wheel("page", "1.0", requires=["frame", "numbers; extra == 'dark-mode'"]),
    make_wheel("page", "2.0", requires=["frame>=4"]),
    make_wheel("pinned", "1.0", requires=["board>=2", "frame"]),
    make_wheel("board", "1.0"),
    make_wheel("board", "2.5", requires=["nail"]),
    make_wheel("nail", "1.0"),
]
RUN = ("frame==3.0", "numbers==1.0")


@pytest.fixture
def below(monkeypatch, tmp_path):
    """The lock of a run that had neither of two requirements of its framework."""
    forget_settings(monkeypatch, tmp_path)
    with serving(*WHEELS) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield lock_run(RUN, TARGET, (), options(tmp_path)).lock


def pins(lock):
    return [f"{it.name}=={it.version}" for it in lock.wheels]


def test_only_what_the_environment_lacks_is_locked_and_nothing_in_it_moves(below, tmp_path):
    above = lock_above(["book", "numbers"], below, options(tmp_path))
    assert pins(above) == ["book==1.0", "page==1.0"]
    assert above.target == below.target
    files = {(it.filename, it.sha256.hex, it.size) for it in above.wheels}
    assert files == {(it.filename, it.sha256, len(it.data)) for it in (WHEELS[3], WHEELS[5])}
    assert lock_above(["numbers>=1"], below, options(tmp_path)).wheels == ()


def test_both_sides_are_named_where_one_has_to_move(below, tmp_path):
    with pytest.raises(LockError) as caught:
        lock_above(["book==2.0"], below, options(tmp_path))
    assert "book 2.0 requires numbers>=2; numbers 1.0 is there" in str(caught.value)


def test_what_adds_nothing_is_said(below, tmp_path):
    wanted = ["page[Dark_Mode,high-res]", "board; sys_platform == 'win32'", "book[old]", "numbers"]
    above = lock_above(wanted, below, options(tmp_path))
    assert list(find_unused(wanted, below, above, options(tmp_path))) == [
        "page 1.0 has no extra high-res: page[Dark_Mode,high-res] adds nothing for it",
        'board; sys_platform == "win32" adds nothing: its marker does not hold in this image',
        "book 1.0 has no extra old: book[old] adds nothing for it",
    ]


def test_what_the_run_was_without_is_added_where_a_new_wheel_needs_it(below, tmp_path):
    assert pins(lock_above(["pinned"], below, options(tmp_path))) == ["board==2.5", "nail==1.0", "pinned==1.0"]
