"""Wheels that the run installed from an address, and what its record has from another index than the lock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.formats import pylock_text, read_pylock, requirements_text
from envbuild.lock.model import Target
from envbuild.lock.run import LockResult, lock_above, lock_run
from envbuild.lock.settings import IndexSettings
from envbuild.lock.sources import fetch_direct
from envbuild.manifest.packages import Distribution, Origin
from envbuild.match.stack import Gaps
from envbuild.oci.digest import Digest
from envbuild.report import SILENT
from tests.fakes.index import FakeIndex, Fault, serving
from tests.fakes.wheels import make_wheel
from tests.running import run_envbuild
from tests.unit.locking import HERE, forget_settings, options
from tests.unit.test_cli_lock import TENSORFLOW, Site

OURS = make_wheel("tool", "1.0", requires=["numbers"], files={"tool/__init__.py": "ours = True\n"})
THEIRS = make_wheel("tool", "1.0", files={"tool/__init__.py": "theirs = True\n"})
NUMBERS = make_wheel("numbers", "1.0")
TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)


@pytest.fixture
def elsewhere():
    with serving(OURS) as served:
        yield served


@pytest.fixture
def index(monkeypatch):
    with serving(TENSORFLOW, THEIRS, NUMBERS) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def from_address(server: FakeIndex, sha256: str | None = OURS.sha256, wheel=OURS) -> Distribution:
    origin = Origin(kind="archive", url=server.file_url(wheel.filename), sha256=sha256)
    return Distribution(name="tool", version="1.0", origin=origin)


def locked(folder: Path, distribution: Distribution, gaps: Gaps | None = None, target=TARGET, **more) -> LockResult:
    return lock_run(("tool==1.0",), target, [distribution], options(folder, **more), gaps)


@pytest.mark.parametrize(
    ("gaps", "resolver"), [(None, "uv"), (Gaps(), "uv"), (Gaps(), "pip-tools")], ids=["whole", "gaps", "pip-tools"]
)
def test_a_wheel_is_fetched_from_its_address_whatever_the_index_has_of_its_name(
    tmp_path, elsewhere: FakeIndex, index: FakeIndex, gaps, resolver
):
    found = locked(tmp_path, from_address(elsewhere), gaps, HERE, resolver=resolver)
    tool = next(it for it in found.lock.wheels if it.name == "tool")
    assert (tool.url, tool.sha256.hex, tool.size) == (elsewhere.file_url(OURS.filename), OURS.sha256, len(OURS.data))
    assert [it.name for it in found.lock.wheels] == (["numbers", "tool"] if gaps else ["tool"])
    assert found.proof.summary == ("1 of 2 identical, 1 added: numbers" if gaps else "1 of 1 identical")
    assert not any(it.path.startswith("/simple/tool") for it in index.requests)
    assert "recorded from" not in str(found.notes())
    assert f"tool @ {tool.url} \\\n    --hash=sha256:{OURS.sha256}" in requirements_text(found.lock).decode()


def test_it_is_fetched_once_however_often_what_the_others_require_is_locked(
    tmp_path, elsewhere: FakeIndex, index: FakeIndex
):
    had = [
        from_address(elsewhere, sha256=None),
        Distribution(name="numbers", version="1.0", origin=Origin(kind="index")),
    ]
    found = lock_run(("tool==1.0",), TARGET, had, options(tmp_path, not_imported=("numbers",)))
    assert [it.name for it in found.lock.wheels] == ["numbers", "tool"]
    assert [(it.method, it.path) for it in elsewhere.requests].count(("GET", f"/files/{OURS.filename}")) == 1


def test_a_second_lock_takes_it_from_the_cache_and_an_upgrade_leaves_it(
    tmp_path, elsewhere: FakeIndex, index: FakeIndex
):
    locked(tmp_path, from_address(elsewhere))
    elsewhere.requests.clear()
    index.add(make_wheel("numbers", "2.0"))
    had = [from_address(elsewhere), Distribution(name="numbers", version="1.0", origin=Origin(kind="index"))]
    found = lock_run(("numbers==1.0", "tool==1.0"), TARGET, had, options(tmp_path, upgrade=("numbers",)))
    assert {it.name: (it.version, it.url) for it in found.lock.wheels} == {
        "numbers": ("2.0", index.file_url("numbers-2.0-py3-none-any.whl")),
        "tool": ("1.0", elsewhere.file_url(OURS.filename)),
    }
    assert elsewhere.requests == []


@pytest.mark.parametrize("stranger", [False, True], ids=["no index has it", "an index has a stranger's"])
def test_what_is_added_above_a_lock_takes_its_wheel_for_the_one_from_the_address(
    tmp_path, elsewhere: FakeIndex, index: FakeIndex, stranger
):
    if stranger:
        index.add(make_wheel("tool", "1.0", requires=["web<1"]))
    else:
        del index.pages["tool"]
    index.add(make_wheel("web", "1.0", requires=["tool"]))
    had = [from_address(elsewhere), Distribution(name="numbers", version="1.0", origin=Origin(kind="index"))]
    found = lock_run(("numbers==1.0", "tool==1.0"), TARGET, had, options(tmp_path))
    below = read_pylock(pylock_text(found.lock), "pylock.toml")
    above = lock_above(("web",), below, options(tmp_path))
    assert [it.name for it in above.wheels] == ["web"]
    assert not any(it.path.startswith("/simple/tool") for it in index.requests)


@pytest.mark.parametrize("end", ["\n--index-url=https://evil.invalid/simple", "#${SECRET}"])
def test_an_address_in_a_lock_cannot_say_more_than_an_address(tmp_path, elsewhere: FakeIndex, index: FakeIndex, end):
    text = pylock_text(locked(tmp_path, from_address(elsewhere)).lock).decode()
    written = elsewhere.file_url(OURS.filename)
    assert read_pylock(text.encode(), "pylock.toml").direct == ("tool",)
    changed = read_pylock(text.replace(written, (written + end).replace("\n", "\\n")).encode(), "pylock.toml")
    assert changed.direct == ()
    assert end not in requirements_text(changed).decode()


def test_a_wheel_is_read_once_to_hash_it(tmp_path, monkeypatch, elsewhere: FakeIndex, index: FakeIndex):
    hashed, digest_of = [], Digest.of_file

    def count(file):
        hashed.append(file.name)
        return digest_of(file)

    monkeypatch.setattr(Digest, "of_file", count)
    fetch_direct([from_address(elsewhere)], IndexSettings(default=None), tmp_path, tmp_path, SILENT)
    assert len(hashed) == 1


def test_other_bytes_than_the_recorded_ones_are_refused(tmp_path, elsewhere: FakeIndex, index: FakeIndex):
    with pytest.raises(
        Exception, match=f"tool==1.0: the run installed .* with sha256 {'0' * 64}, that address now has"
    ):
        locked(tmp_path, from_address(elsewhere, "0" * 64))
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / OURS.filename).write_bytes(THEIRS.data)
    house = IndexSettings(default=index.url, find_links=(str(tmp_path / "house"),))
    with pytest.raises(
        Exception, match=r"a file with the recorded sha256: --find-links DIR; another file .* is refused"
    ):
        locked(tmp_path, from_address(elsewhere), settings=house)
    (tmp_path / "house" / OURS.filename).write_bytes(OURS.data)
    assert locked(tmp_path, from_address(elsewhere), settings=house).proof.summary == "1 of 1 identical"
    quoted = Origin(kind="archive", url=elsewhere.file_url(OURS.filename) + "?part=1", sha256="0" * 64)
    with pytest.raises(Exception, match=f"with sha256 {'0' * 64}, that address now has"):
        locked(tmp_path, Distribution(name="tool", version="1.0", origin=quoted))


@pytest.mark.parametrize(
    "name", ["..%2F..%2Ftool-1.0-py3-none-any.whl", "x%2Ftool-1.0-py3-none-any.whl", "other-1.0-py3-none-any.whl",
             "tool-2.0-py3-none-any.whl", "tool.whl"],
)  # fmt: skip
def test_an_address_whose_file_has_not_the_distributions_name_is_refused(
    tmp_path, elsewhere: FakeIndex, index: FakeIndex, name
):
    origin = Origin(kind="archive", url=f"{elsewhere.root}/files/{name}")
    with pytest.raises(LockError, match=r"tool==1\.0: its wheel cannot be fetched from "):
        locked(tmp_path, Distribution(name="tool", version="1.0", origin=origin))
    assert elsewhere.requests == []


def test_without_a_recorded_hash_what_is_there_is_locked_and_told(tmp_path, elsewhere: FakeIndex, index: FakeIndex):
    found = locked(tmp_path, from_address(elsewhere, None))
    url = elsewhere.file_url(OURS.filename)
    assert [it.sha256.hex for it in found.lock.wheels] == [OURS.sha256]
    assert f"the record has no hash of {url}: locked is what is there now, sha256:{OURS.sha256}" in found.notes()


def test_what_cannot_be_fetched_is_named_with_what_to_do_and_a_folder_serves(
    tmp_path, elsewhere: FakeIndex, index: FakeIndex
):
    elsewhere.fail(f"/files/{OURS.filename}", Fault(status=404))
    with pytest.raises(
        Exception, match=r"tool==1\.0: its wheel cannot be fetched from http.*HTTP 404(?s:.*)--find-links"
    ):
        locked(tmp_path, from_address(elsewhere))
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / OURS.filename).write_bytes(OURS.data)
    elsewhere.requests.clear()
    house = IndexSettings(default=index.url, find_links=(str(tmp_path / "house"),))
    assert [it.sha256.hex for it in locked(tmp_path, from_address(elsewhere), settings=house).lock.wheels] == [
        OURS.sha256
    ]
    assert elsewhere.requests == []


def test_a_wheel_that_does_not_fit_the_target_is_refused(tmp_path, elsewhere: FakeIndex, index: FakeIndex):
    macos = make_wheel("tool", "1.0", tags=["cp311-cp311-macosx_11_0_arm64"])
    elsewhere.add(macos)
    with pytest.raises(Exception, match=r"tool==1\.0: the run's wheel http.* does not fit CPython 3\.11\.2"):
        locked(tmp_path, from_address(elsewhere, macos.sha256, macos))
    newer = make_wheel("tool", "1.0", tags=["cp311-cp311-manylinux_2_38_x86_64"])
    elsewhere.add(newer)
    found = locked(tmp_path, from_address(elsewhere, newer.sha256, newer), raise_glibc=True)
    assert found.lock.target.glibc == "2.38"


def test_credentials_come_from_netrc_and_stand_nowhere(tmp_path, monkeypatch, index: FakeIndex):
    with serving(OURS) as private:
        private.credentials = ("me", "canary-1")
        url = private.file_url(OURS.filename).replace("://", "://me:canary-1@")
        record = tmp_path / "freeze.txt"
        record.write_text(f"tensorflow-cpu==2.15.1\npip==24.0\ntool @ {url}?token=canary-2\n")
        site = Site(tmp_path, index.url)
        index.add(make_wheel("pip", "24.0"))
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password canary-1\n")
        command = [
            sys.executable,
            "-m",
            "envbuild",
            "lock",
            "freeze.txt",
            "--python",
            "3.11.2",
            "--gpu",
            "none",
            "--json",
        ]
        monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        written = "".join(it.read_text() for it in site.out.iterdir())
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--index-url", index.url]
        pip += [
            "--dest",
            "got",
            "--platform",
            "manylinux_2_17_x86_64",
            "--python-version",
            "3.11",
            "--only-binary",
            ":all:",
        ]
        subprocess.run([*pip, "-r", "envbuild-lock/requirements.txt"], cwd=tmp_path, check=True)
    assert (tmp_path / "got" / OURS.filename).read_bytes() == OURS.data
    assert refused.returncode == 12, refused.stderr
    assert "~/.netrc" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert f'url = "{private.file_url(OURS.filename)}"' in written
    assert "canary" not in written + done.stdout + done.stderr + refused.stderr


def test_what_is_recorded_from_another_place_is_told_with_both(tmp_path, index: FakeIndex):
    other = "https://other.invalid/whl/cu118"
    for origin in (Origin(kind="index", url=f"{other}/"), Origin(kind="archive", url=f"{other}/tool-1.0.tar.gz")):
        found = locked(tmp_path, Distribution(name="tool", version="1.0", origin=origin))
        assert f"recorded from {origin.url}, taken from {index.url}: tool 1.0" in found.notes()
    same = Origin(kind="index", url=other, hashes=(THEIRS.sha256,))
    for origin in (same, Origin(kind="index", url=f"{index.url}/")):
        found = locked(tmp_path, Distribution(name="tool", version="1.0", origin=origin))
        assert "recorded from" not in str(found.notes())


def test_the_index_of_a_requirements_file_is_told_with_the_one_that_was_asked(tmp_path, monkeypatch, index: FakeIndex):
    index.add(make_wheel("pip", "24.0"))
    record = tmp_path / "freeze.txt"
    record.write_text(
        "--index-url https://user:canary@other.invalid/simple\ntensorflow-cpu==2.15.1\ntool==1.0\npip==24.0\n"
    )
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    done = run_envbuild("lock", "freeze.txt", "--python", "3.11.2", "--gpu", "none", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    three = "pip 24.0, tensorflow-cpu 2.15.1, tool 1.0"
    told = f"recorded from https://other.invalid/simple, taken from {index.url}: {three}"
    assert told in json.loads(done.stdout)["notes"]
    assert "canary" not in done.stdout + done.stderr
