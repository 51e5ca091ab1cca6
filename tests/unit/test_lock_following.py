"""A newer release with what must follow it, extras under a lock, and what distributions declare that does not hold."""

import pytest

from envbuild.errors import LockError, UsageError
from envbuild.lock.model import Lock
from envbuild.lock.run import lock_extras, lock_run
from envbuild.manifest.packages import Distribution, Origin
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import make_wheel
from tests.unit.locking import TARGET, forget_settings, options

WHEELS = [
    make_wheel("web", "1.0", requires=["transport<2", "cert"]),
    make_wheel("web", "1.1", requires=["transport>=2,<3", "cert", "idn>=1"]),
    make_wheel("web", "2.0rc1", requires=["transport>=3"]),
    make_wheel("transport", "1.5"),
    make_wheel("transport", "2.0"),
    make_wheel("transport", "2.1"),
    make_wheel("cert", "2020.1"),
    make_wheel("cert", "2026.1"),
    make_wheel("idn", "1.0"),
    make_wheel("frame", "3.0", requires=["web<2", "numbers<2"]),
    make_wheel("frame", "4.0", requires=["numbers>=2"]),
    make_wheel("numbers", "1.0"),
    make_wheel("numbers", "2.0"),
    make_wheel("odd", "1.0", requires=["cert>=2025", "absent>=1"]),
    make_wheel("odd", "2.0", requires=["cert>=2025"]),
    make_wheel("serve", "0.9", requires=["transport>=1", "router[fast]"]),
    make_wheel("serve", "1.0", requires=["transport>=2", "router"]),
    make_wheel("router", "1.0", requires=["fastpart; extra == 'fast'", "windows; sys_platform == 'win32'"]),
    make_wheel("fastpart", "1.0"),
    make_wheel("picky", "1.0", requires=["numbers>=2"]),
    make_wheel("stranded", "1.0", requires=["nothing-has-this"]),
]
RUN = ("cert==2020.1", "frame==3.0", "numbers==1.0", "transport==1.5", "web==1.0")


@pytest.fixture(autouse=True)
def index(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)
    with serving(*WHEELS) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def locked(tmp_path, *pins: str, **more):
    return lock_run(pins or RUN, TARGET, (), options(tmp_path, **more))


def pins(lock: Lock) -> list[str]:
    return [f"{it.name}=={it.version}" for it in lock.wheels]


def test_an_upgrade_moves_what_must_follow_and_nothing_else_and_says_why(tmp_path):
    run = locked(tmp_path, upgrade=("web",))
    assert pins(run.lock) == ["cert==2020.1", "frame==3.0", "idn==1.0", "numbers==1.0", "transport==2.1", "web==1.1"]
    assert [str(it) for it in run.changes] == [
        "idn (not there) -> 1.0: web 1.1 requires idn>=1",
        "transport 1.5 -> 2.1: web 1.1 requires transport<3,>=2",
        "web 1.0 -> 1.1: it was asked for",
    ]
    assert set(map(str, run.changes)) <= set(run.notes())


def test_an_upgrade_to_one_version_or_of_a_leaf_changes_only_that(tmp_path):
    run = locked(tmp_path, upgrade=("transport==2.0", "Web==1.1"))
    assert {str(it).partition(":")[0] for it in run.changes} == {
        "transport 1.5 -> 2.0", "web 1.0 -> 1.1", "idn (not there) -> 1.0",
    }  # fmt: skip
    run = locked(tmp_path, upgrade=("cert",))
    assert [str(it) for it in run.changes] == ["cert 2020.1 -> 2026.1: it was asked for"]


def test_an_upgrade_that_changes_nothing_says_nothing(tmp_path):
    assert locked(tmp_path, upgrade=("numbers==1.0",)).changes == ()


def test_the_framework_does_not_follow(tmp_path):
    assert pins(locked(tmp_path, upgrade=("numbers==2.0",)).lock)[1] == "frame==4.0"
    with pytest.raises(LockError) as caught:
        locked(tmp_path, upgrade=("numbers==2.0",), not_upgraded=("frame",))
    assert "frame==3.0" in str(caught.value)
    assert "numbers" in str(caught.value)


def test_an_upgrade_leaves_a_run_as_inconsistent_as_it_was(tmp_path):
    run = locked(tmp_path, *RUN, "odd==1.0", upgrade=("web",))
    assert "cert==2020.1" in pins(run.lock)
    assert "absent" not in {it.name for it in run.lock.wheels}
    assert [str(it) for it in run.conflicts] == [
        "odd 1.0 requires cert>=2025; cert 2020.1 is there",
        "odd 1.0 requires absent>=1; absent is not there",
    ]


def test_what_the_run_does_not_have_cannot_be_upgraded(tmp_path):
    with pytest.raises(UsageError, match="idn, nope") as caught:
        locked(tmp_path, upgrade=("nope", "idn", "web"))
    assert caught.value.where == "--upgrade-package"


def test_a_version_that_does_not_exist_cannot_be_upgraded_to(tmp_path):
    with pytest.raises(LockError, match=r"web==9: the index does not have this version.* 1.1, 2.0rc1"):
        locked(tmp_path, upgrade=("web==9",))


def test_extras_are_added_under_the_lock_and_move_nothing(tmp_path):
    run = locked(tmp_path, extras=("serve",))
    assert run.added == ("fastpart==1.0", "router==1.0", "serve==0.9")
    assert sorted([*RUN, *run.added]) == pins(run.lock)
    assert "added: fastpart==1.0, router==1.0, serve==0.9" in run.notes()


def test_extras_may_be_added_to_a_lock_that_is_there(tmp_path):
    before = locked(tmp_path).lock
    after, added = lock_extras(before, ("router",), options(tmp_path))
    assert added == ("router==1.0",)
    assert [it for it in after.wheels if it.name != "router"] == list(before.wheels)
    assert lock_extras(after, ("router", "cert"), options(tmp_path)) == (after, ())


@pytest.mark.parametrize(
    ("extra", "own"),
    [("picky", "numbers 1.0"), ("serve==1.0", "transport 1.5"), ("cert>=2025", "cert 2020.1")],
)
def test_a_conflict_names_both_sides(tmp_path, extra, own):
    with pytest.raises(LockError) as caught:
        locked(tmp_path, extras=(extra,))
    assert extra in str(caught.value)
    assert own in str(caught.value)


def test_an_extra_that_needs_what_nobody_has_is_refused_in_uv_s_words(tmp_path):
    with pytest.raises(LockError, match="nothing-has-this"):
        locked(tmp_path, extras=("stranded",))


def test_extras_for_an_inconsistent_run_leave_it_as_it_is(tmp_path):
    run = locked(tmp_path, *RUN, "odd==1.0", extras=("odd", "serve"))
    assert run.added == ("fastpart==1.0", "router==1.0", "serve==0.9")


def test_a_run_that_pip_would_call_inconsistent_is_locked_as_it_was_and_told(tmp_path):
    wanted = ("web==1.1", "transport==1.5", "router==1.0")
    had = [Distribution(name=pin[:-5], version=pin[-3:], origin=Origin(kind="index")) for pin in wanted]
    run = lock_run(wanted, TARGET, had, options(tmp_path))
    assert pins(run.lock) == ["router==1.0", "transport==1.5", "web==1.1"]
    assert run.notes()[1:] == [
        "web 1.1 requires transport<3,>=2; transport 1.5 is there, as in the run",
        "web 1.1 requires cert; cert is not there, as in the run",
        "web 1.1 requires idn>=1; idn is not there, as in the run",
    ]


def test_a_conflict_that_the_run_did_not_have_is_not_told_as_its_own(tmp_path):
    had = [Distribution(name="web", version="1.1", origin=Origin(kind="index"))]
    run = lock_run(("web==1.1", "transport==1.5"), TARGET, had, options(tmp_path))
    assert "web 1.1 requires transport<3,>=2; transport 1.5 is there, unlike in the run" in run.notes()
    assert "web 1.1 requires cert; cert is not there, as in the run" in run.notes()


def test_unreadable_requirements_count_for_nothing(tmp_path, index: FakeIndex):
    index.add(make_wheel("old", "1.0", requires=["cert (>=2020.*", "numbers; python_version > '2.7'"]))
    assert [str(it) for it in locked(tmp_path, "old==1.0").conflicts] == [
        "old 1.0 requires numbers; numbers is not there"
    ]
