"""What real manifests and real indexes have: withdrawn and deleted releases, labels, two indexes, passwords, folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.download import fetch
from envbuild.lock.formats import read_existing_lock, requirements_text, write_lock, write_wheelhouse
from envbuild.lock.lock import lock
from envbuild.lock.model import Target
from envbuild.lock.resolvers import PipToolsResolver, UvResolver
from envbuild.lock.run import Options, lock_run, refuse_changed
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.manifest.packages import Distribution, Origin
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.locking import HERE, TARGET, forget_settings, installed, options

PURE = make_wheel("pure", "1.0")
STRANGER = make_wheel("pure", "1.0", {"pure.py": "import evil\n"})


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)


@pytest.fixture
def index(monkeypatch):
    with serving(PURE) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def resolve(*requirements: str, target=TARGET):
    return UvResolver().resolve(requirements, target)


def refusal(*requirements: str) -> str:
    with pytest.raises(LockError) as caught:
        resolve(*requirements)
    return str(caught.value)


def put(folder: Path, *wheels: FakeWheel) -> Path:
    folder.mkdir(exist_ok=True)
    for wheel in wheels:
        (folder / wheel.filename).write_bytes(wheel.data)
    return folder


# withdrawn, deleted, labelled


def test_a_withdrawn_release_is_locked_where_the_run_had_exactly_that_and_it_is_told(index: FakeIndex, tmp_path):
    index.add(make_wheel("bad", "1.1"), yanked='breaks "everything"')
    index.add(make_wheel("bad", "1.0"))
    assert resolve("bad<2").wheels[0].version == "1.0"
    for resolver in (UvResolver(), PipToolsResolver()):
        found = resolver.resolve(("bad==1.1", "pure==1.0"), HERE)
        assert ([it.version for it in found.wheels], found.yanked[0][0]) == (["1.1", "1.0"], "bad")
        assert "breaks" in found.yanked[0][1]
    run = lock_run(("bad==1.1",), TARGET, (), options(tmp_path))
    assert any(note.startswith("bad was withdrawn from its index (breaks") for note in run.notes())


def test_a_deleted_release_is_refused_and_the_nearest_are_named(index: FakeIndex):
    index.add(*[make_wheel("gone", version) for version in ("1.0", "1.1", "1.2", "1.4", "1.5", "2.0")])
    said = refusal("gone==1.3")
    assert "the index does not have this version, or has it no more; the nearest there: 1.1, 1.2, 1.4, 1.5\n" in said


def test_a_glibc_between_the_levels_that_uv_knows_gets_the_wheels_of_its_own_level(index: FakeIndex):
    wheels = {
        level: make_wheel("native", "1.0", tags=[f"cp311-cp311-manylinux_2_{level}_x86_64"]) for level in (27, 28)
    }
    index.add(*wheels.values())
    between = Target(python="3.11.2", machine="x86_64", glibc="2.27")
    assert [it.filename for it in resolve("native==1.0", target=between).wheels] == [wheels[27].filename]
    index.pages["native"] = [it for it in index.pages["native"] if "2_28" in it]
    with pytest.raises(LockError, match="native"):
        resolve("native==1.0", target=between)


@pytest.mark.parametrize("pin", ["Zope.Some_Thing==1.0", "zope-some-thing==1.0.0", "ZOPE_SOME.THING==v1.0"])
def test_a_run_that_spells_a_name_otherwise_than_the_index_is_locked_to_the_same_file(index: FakeIndex, pin):
    renamed = make_wheel("zope.some_thing", "1.0")
    index.add(renamed)
    for resolver in (UvResolver(), PipToolsResolver()):
        assert [it.filename for it in resolver.resolve((pin,), HERE).wheels] == [renamed.filename]


def test_a_project_that_goes_on_under_another_name_is_refused_as_any_that_is_not_there(index: FakeIndex):
    index.add(make_wheel("new-name", "1.0"))
    assert "old-name==1.0: no index has a project" in refusal("old-name==1.0")


@pytest.mark.parametrize("label", ["cu118", "cpu"])
def test_a_label_needs_its_index_and_the_error_says_so(index: FakeIndex, monkeypatch, label):
    index.add(make_wheel("torch", "2.0.1"))
    said = refusal(f"torch==2.0.1+{label}")
    assert f"the index has this version only without the local label +{label}" in said
    assert f"add the index of the +{label} builds" in said
    with serving(make_wheel("torch", f"2.0.1+{label}")) as extra:
        monkeypatch.setenv("UV_INDEX", extra.url)
        [found] = resolve(f"torch==2.0.1+{label}").wheels
    assert (found.version, found.url.startswith(extra.root)) == (f"2.0.1+{label}", True)


def test_pip_and_its_companions_are_kept_as_pins(index: FakeIndex):
    index.add(*[make_wheel(name, "1.0") for name in ("pip", "setuptools", "wheel")])
    requirements = ("pip==1.0", "setuptools==1.0", "wheel==1.0", "pure==1.0")
    locks = [resolver.resolve(requirements, HERE) for resolver in (UvResolver(), PipToolsResolver())]
    assert [it.name for it in locks[0].wheels] == ["pip", "pure", "setuptools", "wheel"]
    assert locks[0] == locks[1]


def test_five_hundred_distributions(index: FakeIndex, tmp_path):
    wheels = [make_wheel(f"part{number:03}", "1.0") for number in range(500)]
    index.add(*wheels)
    pins = tuple(f"part{number:03}==1.0" for number in range(500))
    run = lock_run(pins, TARGET, [installed(wheel) for wheel in wheels], options(tmp_path))
    assert run.proof.summary == "500 of 500 identical"
    assert len(requirements_text(run.lock).splitlines()) == 2 + 2 * 500


# folders


def local(wheel: FakeWheel, **origin) -> Distribution:
    name, version = wheel.filename.split("-")[:2]
    known = {"kind": "archive", "url": f"file:///home/me/{wheel.filename}"}
    return Distribution(name=name, version=version, origin=Origin(**(known | origin)))


def test_a_local_file_needs_its_folder_even_where_the_index_has_its_name(index: FakeIndex, tmp_path):
    run = [local(PURE, sha256=STRANGER.sha256)]
    with pytest.raises(LockError, match="was installed from a local path") as caught:
        lock(("pure==1.0",), TARGET, UvResolver(), run)
    assert "give the folder of its wheel: --find-links DIR" in str(caught.value)
    settings = read_settings([put(tmp_path / "own", STRANGER)])
    [found] = lock(("pure==1.0",), TARGET, UvResolver(settings=settings), run).wheels
    assert found.sha256.hex == STRANGER.sha256
    settings = read_settings([put(tmp_path / "other", PURE)])
    with pytest.raises(LockError, match=f"with sha256 {STRANGER.sha256}, the folder has {PURE.sha256}"):
        lock(("pure==1.0",), TARGET, UvResolver(settings=settings), run)


def test_a_wheel_that_changes_before_it_is_kept_with_the_lock_is_refused(tmp_path):
    own = put(tmp_path / "own", PURE)
    run = lock_run(("pure==1.0",), TARGET, (), options(tmp_path, settings=read_settings([own], offline=True)))
    put(own, STRANGER)
    with pytest.raises(LockError, match="a wheel changed since it was locked"):
        write_lock(tmp_path / "out", run)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(LockError, match="the folder of wheels does not exist"):
        read_settings([tmp_path / "absent"])


def test_a_wheelhouse_needs_no_index_and_gives_the_same_files(index: FakeIndex, tmp_path):
    index.add(make_wheel("other", "2.0"), FakeWheel(filename="pure-1.0.tar.gz", data=b"x"))
    pins, house = ("pure==1.0", "other==2.0"), tmp_path / "house"
    run = lock_run(pins, TARGET, [installed(PURE)], options(tmp_path))
    fetched = {wheel.sha256: path for wheel, path in fetch(run.lock.wheels, tmp_path / "cache")}
    for _ in range(2):
        write_wheelhouse(house, fetched, run.lock.wheels)
    assert sorted(path.name for path in house.iterdir()) == ["other-2.0-py3-none-any.whl", PURE.filename]
    asked = len(index.requests)
    for resolver in ("uv", "pip-tools"):
        settings = read_settings([house], offline=True)
        more = Options(cache=tmp_path / resolver, settings=settings, resolver=resolver)
        again = lock_run(pins, HERE, [installed(PURE)], more)
        list(fetch(again.lock.wheels, tmp_path / resolver, settings=settings))
        assert requirements_text(again.lock).splitlines()[3:] == requirements_text(run.lock).splitlines()[2:]
        assert again.proof.summary == "1 of 2 identical, 1 added: other"
        with pytest.raises(LockError, match="no folder has a project of this name"):
            lock_run(("absent==1",), HERE, (), more)
    assert len(index.requests) == asked


def test_a_wheelhouse_never_replaces_another_file(index: FakeIndex, tmp_path):
    run = lock_run(("pure==1.0",), TARGET, (), options(tmp_path))
    fetched = {wheel.sha256: path for wheel, path in fetch(run.lock.wheels, tmp_path / "cache")}
    house = put(tmp_path / "house", STRANGER)
    with pytest.raises(LockError, match="a file of this name with other content"):
        write_wheelhouse(house, fetched, run.lock.wheels)
    assert (house / PURE.filename).read_bytes() == STRANGER.data


# two indexes


@pytest.mark.parametrize("private_first", [True, False])
def test_one_file_name_with_two_hashes_is_refused_whoever_comes_first(index: FakeIndex, monkeypatch, private_first):
    with serving(STRANGER) as other:
        first, second = (other, index) if private_first else (index, other)
        monkeypatch.setenv("UV_DEFAULT_INDEX", second.url)
        monkeypatch.setenv("UV_INDEX", first.url)
        said = refusal("pure==1.0")
        assert f"{first.file_url(PURE.filename)} with sha256:" in said
        assert f"{second.file_url(PURE.filename)} with sha256:" in said
        assert "find out which is right" in said


def test_one_file_on_two_indexes_is_no_matter(index: FakeIndex, monkeypatch):
    with serving(PURE, make_wheel("mine", "1.0")) as other:
        monkeypatch.setenv("UV_INDEX", other.url)
        found = resolve("pure==1.0", "mine==1.0")
    assert all(wheel.url.startswith(other.root) for wheel in found.wheels)


def test_the_first_index_that_has_a_project_wins(index: FakeIndex, monkeypatch):
    index.add(make_wheel("mine", "9.0"))
    with serving(make_wheel("mine", "1.0")) as private:
        monkeypatch.setenv("UV_INDEX", private.url)
        assert resolve("mine").wheels[0].version == "1.0"


@pytest.mark.parametrize("resolver", [UvResolver, PipToolsResolver])
def test_a_folder_and_an_index_with_other_bytes_under_one_name_are_refused(index: FakeIndex, tmp_path, resolver):
    settings = read_settings([put(tmp_path / "folder", STRANGER)])
    with pytest.raises(LockError, match=STRANGER.sha256):
        resolver(settings=settings).resolve(("pure==1.0",), HERE)


def test_a_single_index_is_not_asked_twice(index: FakeIndex, tmp_path):
    UvResolver(settings=read_settings([put(tmp_path / "folder")])).resolve(("pure==1.0",), TARGET)
    assert [it.path for it in index.requests].count("/simple/pure/") == 1


# a changed index


def test_a_file_that_changed_since_it_was_locked_is_refused(index: FakeIndex, tmp_path):
    run = lock_run(("pure==1.0",), TARGET, (), options(tmp_path))
    write_lock(tmp_path / "out", run)
    index.pages["pure"].clear()
    index.add(STRANGER)
    held = read_existing_lock(tmp_path / "out")
    assert held == run.lock
    with pytest.raises(LockError, match="not what they were when they were locked") as caught:
        refuse_changed(held, resolve("pure==1.0"), "out")
    assert f"{PURE.filename}: locked as sha256:{PURE.sha256}, the index now has sha256:{STRANGER.sha256}" in str(
        caught.value
    )
    refuse_changed(held, held, "out")


def test_changed_bytes_behind_an_unchanged_page_are_refused(index: FakeIndex, tmp_path):
    run = lock_run(("pure==1.0",), TARGET, (), options(tmp_path))
    index.files[PURE.filename] = STRANGER.data
    with pytest.raises(LockError, match="does not match"):
        list(fetch(run.lock.wheels, tmp_path / "cache"))


def test_a_lock_serves_a_machine_with_an_empty_cache(index: FakeIndex, tmp_path):
    write_lock(tmp_path / "out", lock_run(("pure==1.0",), TARGET, (), options(tmp_path)))
    held = read_existing_lock(tmp_path / "out")
    assert held is not None
    [(_, path)] = fetch(held.wheels, tmp_path / "empty")
    assert path.read_bytes() == PURE.data


@pytest.mark.parametrize("text", ["", "lock-version = '1.0'\ncreated-by = 'me'\npackages = []\n", "\xff\x00"])
def test_another_tool_s_lock_is_not_written_over(tmp_path, text):
    (tmp_path / "pylock.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(LockError, match="the folder has another lock"):
        read_existing_lock(tmp_path)


# passwords


def private(index: FakeIndex) -> str:
    """Ask for a password; the index's address without it."""
    index.credentials = ("me", "pa55word")
    return f"{index.root}/simple"


def everything_written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def lock_privately(tmp_path: Path) -> None:
    """Lock, read in place and fetch; the password is in nothing that is written."""
    run = lock_run(("pure==1.0",), TARGET, [installed(PURE)], options(tmp_path))
    write_lock(tmp_path / "out", run)
    list(fetch(run.lock.wheels, tmp_path / "cache"))
    assert run.proof.summary == "1 of 1 identical"
    assert b"pa55word" not in everything_written(tmp_path / "out") + everything_written(tmp_path / "cache")


def test_credentials_of_netrc(index: FakeIndex, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", private(index))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password pa55word\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    lock_privately(tmp_path)


def test_credentials_of_the_environment_for_an_index_by_name(index: FakeIndex, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"my-own={private(index)}")
    monkeypatch.setenv("UV_INDEX_MY_OWN_USERNAME", "me")
    monkeypatch.setenv("UV_INDEX_MY_OWN_PASSWORD", "pa55word")
    lock_privately(tmp_path)


@pytest.mark.parametrize("variable", ["UV_KEYRING_PROVIDER", "PIP_KEYRING_PROVIDER"])
def test_credentials_of_the_keyring(index: FakeIndex, tmp_path, monkeypatch, variable):
    address = private(index)
    program = tmp_path / "bin/keyring"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$2 $3" = "{address} me" ] && echo pa55word\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("UV_DEFAULT_INDEX", address.replace("://", "://me@"))
    with pytest.raises(LockError, match=r"refused access|401"):
        lock_privately(tmp_path)
    monkeypatch.setenv(variable, "subprocess")
    lock_privately(tmp_path)


# settings of pip, read as pip reads them


def where_pip_looks(folder: Path) -> str:
    """What pip says when it looks for something that is nowhere."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--retries", "0", "nothing-has-this"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder).stdout.splitlines()[0]


def where_we_look() -> str:
    settings = read_settings()
    return f"Looking in indexes: {', '.join([settings.default or '', *settings.extra])}"


@pytest.mark.parametrize("stronger", [0, 1, 2, 3, 4])
def test_the_indexes_of_pip_are_those_that_pip_takes(tmp_path, monkeypatch, stronger):
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    files = [
        tmp_path / "XDG_CONFIG_DIRS/pip/pip.conf",
        tmp_path / ".pip/pip.conf",
        tmp_path / "XDG_CONFIG_HOME/pip/pip.conf",
        tmp_path / "chosen.conf",
    ]
    for number, path in enumerate(files[:stronger]):
        path.parent.mkdir(parents=True, exist_ok=True)
        middle = "[install]\n" if number == 1 else ""
        lines = f"extra_index_url =\n  http://a{number}.invalid/\n{middle}index-url = http://{number}.invalid/\n"
        path.write_text(f"[global]\n{lines}")
    if stronger == 4:
        monkeypatch.setenv("PIP_CONFIG_FILE", str(files[3]))
    if stronger != 1:
        monkeypatch.setenv(
            "PIP_EXTRA_INDEX_URL", "http://b.invalid/ http://c.invalid/" if stronger else "http://b.invalid/"
        )
    assert where_we_look().replace("/,", ",") == where_pip_looks(tmp_path).replace("/,", ",")


def test_broken_settings_of_pip_are_named(tmp_path, monkeypatch):
    (tmp_path / "broken.conf").write_text("index-url\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "broken.conf"))
    with pytest.raises(LockError, match="pip's settings cannot be read"):
        read_settings()


def test_broken_settings_of_uv_are_named(tmp_path):
    config = tmp_path / "XDG_CONFIG_HOME/uv/uv.toml"
    config.parent.mkdir(parents=True)
    config.write_text("find-links = 1\n")
    with pytest.raises(LockError, match="uv's settings cannot be read"):
        UvResolver(settings=read_settings())


def test_offline_not_even_the_pages_of_uv_s_own_settings_are_asked(index: FakeIndex, tmp_path):
    config = tmp_path / "XDG_CONFIG_HOME/uv/uv.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'find-links = ["{index.root}/simple/pure/"]\n')
    assert resolve("pure==1.0").wheels
    with pytest.raises(LockError, match="no folder has a project of this name"):
        UvResolver(settings=read_settings(offline=True)).resolve(("pure==1.0",), TARGET)


def test_offline_leaves_only_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", f"{put(tmp_path / 'one')} http://links.invalid/")
    found = read_settings([put(tmp_path / "two")], offline=True)
    assert isinstance(found, IndexSettings)
    assert (found.indexes, found.find_links) == ((), (str(tmp_path / "two"), str(tmp_path / "one")))
