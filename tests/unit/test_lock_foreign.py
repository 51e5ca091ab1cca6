"""What a laptop's run had of its own system alone: left out where the index proves it, refused where it does not."""

import json
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.run import LockResult, lock_run
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.locking import TARGET, forget_settings, options
from tests.unit.test_cli_lock import Site, manifest_of

MAC, ARM, WINDOWS = "cp311-cp311-macosx_11_0_arm64", "cp311-cp311-macosx_12_0_arm64", "cp311-cp311-win_amd64"
LINUX = "cp311-cp311-manylinux_2_17_x86_64"
SDIST = FakeWheel(filename="gadget-1.0.tar.gz", data=b"no archive, as nobody opens it")


def gadget(*tags: str, version: str = "1.0") -> FakeWheel:
    return make_wheel("gadget", version, tags=tags, purelib=False)


@pytest.fixture
def index(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)
    with serving(make_wheel("pure", "1.0")) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def locked(folder: Path, system: str | None, *requirements: str) -> LockResult:
    return lock_run(requirements or ("gadget==1.0", "pure==1.0"), TARGET, (), options(folder, system=system))


def refused(folder: Path, system: str | None, *requirements: str) -> str:
    with pytest.raises(LockError) as caught:
        locked(folder, system, *requirements)
    return str(caught.value)


@pytest.mark.parametrize(
    ("system", "files", "why"),
    [
        ("Darwin", [gadget(MAC, ARM)], "all wheels of the project are for macOS, and it has no source distribution"),
        ("Windows", [gadget(WINDOWS), gadget("cp36-cp36m-win32", version="0.9")], "are for Windows"),
    ],
)
def test_what_the_index_proves_to_be_for_the_run_s_system_alone_is_left_out_and_told(
    index: FakeIndex, tmp_path, system, files, why
):
    index.add(*files)
    run = locked(tmp_path, system)
    assert [it.name for it in run.lock.wheels] == ["pure"]
    [note] = [it for it in run.notes() if it.startswith("gadget is left out: ")]
    assert why in note


@pytest.mark.parametrize(
    ("system", "files"),
    [
        ("Linux", [gadget(MAC)]),
        (None, [gadget(MAC)]),
        ("Windows", [gadget(MAC)]),
        ("Darwin", [gadget(MAC), gadget(WINDOWS)]),
        ("Darwin", [gadget(MAC), gadget(LINUX, version="0.9")]),
        ("Darwin", [gadget(MAC), gadget("py3-none-any", version="2.0")]),
        ("Darwin", [gadget(MAC), SDIST]),
        ("Darwin", [gadget(MAC, version="0.9"), SDIST]),
    ],
    ids=["linux", "unknown", "of-another", "two", "had-linux", "has-any", "sources", "only-sources"],
)
def test_what_may_belong_to_the_environment_is_refused(index: FakeIndex, tmp_path, system, files):
    index.add(*files)
    assert "gadget==1.0: " in refused(tmp_path, system)


def test_where_it_is_refused_building_is_not_the_first_advice(index: FakeIndex, tmp_path):
    index.add(gadget(MAC), SDIST)
    assert "do: all its wheels are for another system: take it out of the record" in refused(tmp_path, "Linux")


def test_a_wheel_that_cannot_be_read_proves_nothing(index: FakeIndex, tmp_path):
    index.add(FakeWheel(filename=gadget(MAC).filename, data=b"no wheel"), SDIST)
    assert "gadget==1.0: " in refused(tmp_path, "Darwin")


def test_what_else_cannot_be_locked_is_named_and_what_is_left_out_is_not(index: FakeIndex, tmp_path):
    index.add(gadget(MAC))
    said = refused(tmp_path, "Darwin", "gadget==1.0", "absent==1.0")
    assert "1 distribution cannot be locked" in said
    assert "absent==1.0" in said


def test_the_command_leaves_out_what_a_laptop_s_manifest_has_too_much(tmp_path):
    framework = make_wheel("tensorflow-cpu", "2.15.1", tags=[LINUX], purelib=False)
    with serving(framework, gadget(MAC)) as served:
        site = Site(tmp_path, served.url)
        manifest = manifest_of(framework, gadget(MAC))
        manifest["platform"] = {"system": "Darwin", "machine": "x86_64"}
        site.tell(manifest)
        found = site.locked()
        assert site.pins() == ["tensorflow-cpu==2.15.1"]
    assert list(found["left_out"]) == ["gadget"]
    assert json.dumps(found["notes"]).count("gadget is left out") == 1
