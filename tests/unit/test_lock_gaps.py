"""Locking a record that leaves things out: they are added, and nothing of the record is moved."""

import platform
from dataclasses import replace

import pytest

from envbuild.errors import LockError
from envbuild.lock.lock import lock
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolvers import PipToolsResolver, Resolver, UvResolver
from envbuild.manifest.packages import Distribution, Origin
from envbuild.match.rows import Limit
from envbuild.match.stack import Gaps
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel

HERE = Target(python=platform.python_version(), machine=platform.machine(), glibc=platform.libc_ver()[1])
RESOLVERS = [UvResolver(), PipToolsResolver()]
WHEELS = [
    make_wheel("app", "1.0", requires=["lib>=1", "Zope.Helper"]),
    make_wheel("conflict", "1.0", requires=["lib<2"]),
    make_wheel("lib", "1.5"),
    make_wheel("lib", "2.0"),
    make_wheel("zope.helper", "1.0"),
    make_wheel("zope.helper", "3.0", requires=["gpu-part"]),
    make_wheel("gpu-part", "1.0"),
]


@pytest.fixture(autouse=True)
def index(monkeypatch, tmp_path):
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "UV_CACHE_DIR", "PIP_TOOLS_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with serving(*WHEELS) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def versions(locked: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in locked.wheels}


@pytest.mark.parametrize("resolver", RESOLVERS, ids=["uv", "pip-tools"])
def test_what_is_required_in_turn_is_added(resolver: Resolver):
    assert versions(resolver.resolve(("app==1.0",), HERE)) == {"app": "1.0"}
    assert versions(resolver.resolve(("app==1.0",), HERE, Gaps())) == {
        "app": "1.0", "gpu-part": "1.0", "lib": "2.0", "zope-helper": "3.0",
    }  # fmt: skip


@pytest.mark.parametrize("resolver", RESOLVERS, ids=["uv", "pip-tools"])
def test_what_conda_had_decides_the_version_of_what_is_added(resolver: Resolver):
    gaps = Gaps(versions=("lib==1.5", "zope-helper==1.0", "absent==7"))
    assert versions(resolver.resolve(("app==1.0",), HERE, gaps)) == {"app": "1.0", "lib": "1.5", "zope-helper": "1.0"}


def test_the_run_s_own_pins_win_over_what_others_declare():
    found = UvResolver().resolve(("conflict==1.0", "lib==2.0"), HERE, Gaps())
    assert versions(found) == {"conflict": "1.0", "lib": "2.0"}
    with pytest.raises(LockError, match="conflict"):
        PipToolsResolver().resolve(("conflict==1.0", "lib==2.0"), HERE, Gaps())


def test_what_the_variant_excludes_is_not_added():
    gaps = Gaps(without=("gpu-part",))
    assert versions(UvResolver().resolve(("zope-helper==3.0",), HERE, gaps)) == {"zope-helper": "3.0"}
    with pytest.raises(LockError, match=r"gpu-part==1.0: another requirement asks for it(?s:.*)--resolver uv"):
        PipToolsResolver().resolve(("zope-helper==3.0",), HERE, gaps)


def test_what_is_added_fits_the_version_of_what_was_replaced(monkeypatch):
    """The cpu variant has tensorflow-cpu: tensorflow-hub's tf-keras has to be of the same release all the same."""
    plain, part = make_wheel("gpu-part", "2.0", requires=["lib"]), make_wheel("cpu-part", "1.0", requires=["lib"])
    with serving(
        plain,
        part,
        make_wheel("lib", "1.5"),
        make_wheel("hub", "1.0", requires=["tf-part"]),
        *(make_wheel("tf-part", version, requires=[f"gpu-part=={version}"]) for version in ("1.0", "2.0")),
    ) as served:
        gaps = Gaps(without=("gpu-part",), replaced=(("gpu-part==1.0", "cpu-part==1.0"),))
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        found = UvResolver().resolve(("cpu-part==1.0", "hub==1.0"), HERE, gaps)
    assert versions(found) == {"cpu-part": "1.0", "hub": "1.0", "lib": "1.5", "tf-part": "1.0"}


def test_a_wheel_has_to_be_one_of_those_that_the_record_allows():
    right = next(it.sha256 for it in WHEELS if it.filename.startswith("lib-2.0"))
    allowed = Distribution(name="Lib", version="2.0", origin=Origin(kind="index", hashes=("ab" * 32, right)))
    assert versions(lock(("lib==2.0",), HERE, UvResolver(), [allowed])) == {"lib": "2.0"}
    other = Distribution(name="Lib", version="2.0", origin=Origin(kind="index", hashes=("ab" * 32,)))
    with pytest.raises(LockError, match=f"{right}, which is not among"):
        lock(("lib==2.0",), HERE, UvResolver(), [other])


def test_gaps_are_filled_through_lock_too():
    unknown = Distribution(name="elsewhere", version=None, origin=Origin(kind="vcs"))
    assert set(versions(lock(("app==1.0",), HERE, UvResolver(), [unknown], Gaps()))) == {
        "app", "gpu-part", "lib", "zope-helper",
    }  # fmt: skip


APP_NEEDS_OLD_LIB = Limit(
    distributions=("app", "app-cpu"),
    first="1.0",
    last="1.9",
    requirement="lib<2",
    reason="it was built for lib 1",
    source="import of app 1.0",
    breaks="import app",
)


def test_where_no_versions_fit_the_records_own_distributions_are_those_to_leave_out(index):
    index.add(make_wheel("outer", "1.0", requires=["app==7"]))
    with pytest.raises(LockError) as refused:
        lock(("outer==1.0", "lib==1.5"), HERE, UvResolver(), (), Gaps())
    assert "leave one out by --drop outer (not the framework), or" in refused.value.todo
    assert set(versions(lock(("lib==1.5",), HERE, UvResolver(), (), Gaps()))) == {"lib"}


def test_a_pair_that_is_known_to_fail_is_refused_with_both_names_and_what_to_do():
    gaps = Gaps(limits=(APP_NEEDS_OLD_LIB,))
    with pytest.raises(LockError) as refused:
        lock(("app==1.0", "lib==2.0"), HERE, UvResolver(), (), gaps)
    assert (
        "app==1.0: `import app` fails with lib==2.0: it was built for lib 1\n    do: take lib out" in refused.value.what
    )
    bounded = replace(gaps, versions=("lib<2",))  # as `match` has it of a record without lib
    assert versions(lock(("app==1.0",), HERE, UvResolver(), (), bounded))["lib"] == "1.5"
    assert versions(lock(("app==1.0", "lib==1.5"), HERE, UvResolver(), (), gaps))["lib"] == "1.5"
    warned_of = replace(APP_NEEDS_OLD_LIB, breaks=None)
    assert versions(lock(("app==1.0", "lib==2.0"), HERE, UvResolver(), (), Gaps(limits=(warned_of,))))["lib"] == "2.0"
