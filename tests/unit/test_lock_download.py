"""Downloads: verified, whole or not at all, and quick to stop."""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.download import fetch, wheel_path
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest
from envbuild.report import SilentReporter
from envbuild.retry import Retry
from tests.fakes.index import FakeIndex, Fault, closed_port, serving, wait_until
from tests.fakes.wheels import FakeWheel, make_wheel

BIG = make_wheel("big", "1", {"big.bin": bytes(range(256)) * 4096}, method=0)
SMALL = make_wheel("small", "1")


def locked(wheel: FakeWheel, url: str, size: int | None = None) -> LockedWheel:
    name, version = wheel.filename.split("-")[:2]
    size, sha256 = size or len(wheel.data), Digest(wheel.sha256)
    return LockedWheel(name=name, version=version, filename=wheel.filename, url=url, sha256=sha256, size=size)


def entries(index: FakeIndex, *wheels: FakeWheel) -> list[LockedWheel]:
    return [locked(wheel, index.file_url(wheel.filename)) for wheel in wheels]


def settings(index: FakeIndex) -> IndexSettings:
    return IndexSettings(default=index.url)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def path_of(wheel: FakeWheel) -> str:
    return f"/files/{wheel.filename}"


def test_each_wheel_comes_with_its_verified_file_and_progress_reaches_the_total(tmp_path, monkeypatch):
    said: list[tuple[str, int, int | None]] = []
    monkeypatch.setattr(SilentReporter, "progress", lambda _, *all: said.append(all))
    with serving(BIG, SMALL) as index:
        found = dict(fetch(entries(index, BIG, SMALL), tmp_path, settings=settings(index)))
    total = len(BIG.data) + len(SMALL.data)
    assert {wheel.name: path.read_bytes() for wheel, path in found.items()} == {"big": BIG.data, "small": SMALL.data}
    assert said[-1] == ("fetching", total, total)
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said)


def test_what_is_cached_is_not_asked_for_again(tmp_path):
    with serving(SMALL) as index:
        for _ in range(2):
            list(fetch(entries(index, SMALL), tmp_path, settings=settings(index)))
        assert len(index.requests) == 1


def test_a_damaged_cache_file_is_replaced(tmp_path):
    path = wheel_path(tmp_path, Digest(SMALL.sha256))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * len(SMALL.data))
    with serving(SMALL) as index:
        list(fetch(entries(index, SMALL), tmp_path, settings=settings(index)))
    assert path.read_bytes() == SMALL.data


def test_other_bytes_are_refused_with_both_digests_and_nothing_is_left(tmp_path):
    other = FakeWheel(filename=SMALL.filename, data=SMALL.data[::-1])
    with serving(SMALL) as index:
        wheels = entries(index, SMALL)
        index.files[SMALL.filename] = other.data
        with pytest.raises(LockError) as caught:
            list(fetch(wheels, tmp_path, settings=settings(index)))
    assert SMALL.sha256 in str(caught.value)
    assert other.sha256 in str(caught.value)
    assert files(tmp_path) == []


def test_a_file_that_is_longer_than_locked_is_not_read_to_its_end(tmp_path):
    with serving(BIG) as index:
        wheels = [locked(BIG, index.file_url(BIG.filename), size=1000)]
        with pytest.raises(LockError, match="longer than 1000 bytes"):
            list(fetch(wheels, tmp_path, settings=settings(index)))
    assert files(tmp_path) == []


def test_two_server_errors_are_survived_and_retry_after_is_honoured(tmp_path, monkeypatch):
    monkeypatch.setattr("envbuild.lock.index.RETRY", Retry(first=0.2))
    with serving(SMALL) as index:
        index.fail(path_of(SMALL), Fault(status=500, headers=(("Retry-After", "0"),)), Fault(status=503))
        begun = time.monotonic()
        [(_, path)] = fetch(entries(index, SMALL), tmp_path, settings=settings(index))
        assert 0.4 < time.monotonic() - begun < 4
    assert path.read_bytes() == SMALL.data


def test_a_third_server_error_is_the_last(tmp_path):
    with serving(SMALL) as index:
        index.fail(path_of(SMALL), *[Fault(status=502, headers=(("Retry-After", "1"),))] * 3)
        with pytest.raises(LockError, match="HTTP 502"):
            list(fetch(entries(index, SMALL), tmp_path, settings=settings(index)))
    assert files(tmp_path) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_breaks_off_goes_on(tmp_path, ranges):
    with serving(BIG) as index:
        index.ranges = ranges
        index.fail(path_of(BIG), Fault(cut=300_000))
        [(_, path)] = fetch(entries(index, BIG), tmp_path, settings=settings(index))
        assert index.requests[1].range is not None
    assert path.read_bytes() == BIG.data


def test_an_index_that_is_down_is_named_without_its_password(tmp_path):
    port = closed_port()
    wheel = locked(SMALL, f"http://user:pa55@127.0.0.1:{port}/files/{SMALL.filename}")
    with pytest.raises(LockError) as caught:
        list(fetch([wheel], tmp_path, settings=IndexSettings(default=None)))
    assert str(port) in caught.value.where
    assert "pa55" not in str(caught.value)


def test_the_credentials_of_the_index_go_to_its_files(tmp_path):
    with serving(SMALL) as index:
        index.credentials = ("us er", "p@ss")
        chosen = IndexSettings(default=f"http://us%20er:p%40ss@127.0.0.1:{index.port}/simple")
        assert len(list(fetch(entries(index, SMALL), tmp_path, settings=chosen))) == 1


def test_the_credentials_in_netrc_are_used(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password pa55\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serving(SMALL) as index:
        index.credentials = ("user", "pa55")
        plain = IndexSettings(default=f"{index.root}/simple")
        assert len(list(fetch(entries(index, SMALL), tmp_path / "cache", settings=plain))) == 1


def test_a_refused_password_says_where_to_give_one_and_is_not_tried_again(tmp_path):
    with serving(SMALL) as index:
        index.credentials = ("user", "pa55")
        with pytest.raises(LockError, match="refused access") as caught:
            list(fetch(entries(index, SMALL), tmp_path, settings=IndexSettings(default=None)))
        assert len(index.requests) == 1
    assert "netrc" in caught.value.todo


def test_wheels_in_a_folder_are_copied_and_verified(tmp_path):
    source = tmp_path / "my wheels" / SMALL.filename
    source.parent.mkdir()
    source.write_bytes(SMALL.data)
    wheel = locked(SMALL, source.as_uri())
    [(_, path)] = fetch([wheel], tmp_path / "cache")
    assert path.read_bytes() == SMALL.data
    source.unlink()
    with pytest.raises(LockError) as caught:
        list(fetch([wheel], tmp_path / "other"))
    assert caught.value.where == str(source)


def test_the_first_failure_stops_a_stalled_download_at_once(tmp_path):
    with serving(BIG, SMALL) as index:
        index.fail(path_of(BIG), Fault(stall=True))
        index.fail(path_of(SMALL), Fault(status=403))
        begun = time.monotonic()
        with pytest.raises(LockError, match="403"):
            list(fetch(entries(index, BIG, SMALL), tmp_path, settings=settings(index)))
        assert time.monotonic() - begun < 5
    assert files(tmp_path) == []


def interrupted(wheels: Iterable[object]) -> None:
    for _ in wheels:
        raise KeyboardInterrupt


def test_leaving_the_loop_stops_a_stalled_download_and_leaves_no_partial_file(tmp_path):
    with serving(BIG, SMALL) as index:
        index.fail(path_of(BIG), Fault(stall=True))
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            interrupted(fetch(entries(index, BIG, SMALL), tmp_path, settings=settings(index)))
        wait_until(lambda: len(files(tmp_path)) == 1)
        assert time.monotonic() - begun < 5
    assert files(tmp_path) == [wheel_path(tmp_path, Digest(SMALL.sha256))]


def test_two_callers_may_share_a_cache(tmp_path):
    with serving(BIG) as index:
        threads = [
            threading.Thread(target=lambda: list(fetch(entries(index, BIG), tmp_path, settings=settings(index))))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [path.read_bytes() for path in files(tmp_path)] == [BIG.data]
