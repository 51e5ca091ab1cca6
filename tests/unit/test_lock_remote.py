"""A file behind range requests reads as a file does, and nothing more is fetched than was asked for."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.errors import LockError
from envbuild.lock.index import LateClient, RemoteFile, UnreadableError, in_parallel, make_client, size_of
from envbuild.lock.settings import IndexSettings
from tests.fakes.index import FakeIndex, Fault, serving
from tests.fakes.wheels import FakeWheel

DATA = bytes(range(251)) * 3000
FILE = FakeWheel(filename="file-1.tar.gz", data=DATA)
HUGE = FakeWheel(filename="huge-1.tar.gz", data=bytes(65 << 20))


@pytest.fixture(scope="module")
def client():
    with make_client(IndexSettings(default=None)) as client:
        yield client


@pytest.fixture
def index():
    with serving(FILE, HUGE) as index:
        yield index


def remote(client, index: FakeIndex, wheel: FakeWheel = FILE) -> RemoteFile:
    return RemoteFile(client, index.file_url(wheel.filename))


moves = st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(-1, 300_000)), max_size=5)


def test_it_reads_as_a_file_does(client):
    with serving(FILE) as index:

        @given(moves)
        @settings(max_examples=30, deadline=None)
        def holds(moves):
            there, here = remote(client, index), io.BytesIO(DATA)
            for place, length in moves:
                assert there.seek(place) == here.seek(place)
                assert there.read(length) == here.read(length)
                assert there.tell() == here.tell()

        holds()


def test_it_ends_and_begins_where_the_file_does(client, index):
    file = remote(client, index)
    assert (file.size, file.seek(0, io.SEEK_END), file.read()) == (len(DATA), len(DATA), b"")
    assert file.seek(-3, io.SEEK_END) == len(DATA) - 3
    assert file.seek(1, io.SEEK_CUR) == len(DATA) - 2
    assert file.read() == DATA[-2:]
    with pytest.raises(ValueError, match="negative"):
        file.seek(-1)


def test_what_was_fetched_is_not_asked_for_again(client, index):
    file = remote(client, index)
    file.prefetch(0, 100_000)
    count = len(index.requests)
    for place in (0, 50_000, len(DATA) - 100):
        file.seek(place)
        assert file.read(50) == DATA[place : place + 50]
    assert len(index.requests) == count == 2


def test_parts_that_no_memory_should_hold_are_not_asked_for(client, index):
    file = remote(client, index, HUGE)
    count = len(index.requests)
    with pytest.raises(UnreadableError):
        file.prefetch(0, 65 << 20)
    assert len(index.requests) == count


def test_a_server_that_forgets_ranges_is_not_read_whole(client, index):
    file = remote(client, index)
    index.ranges = False
    with pytest.raises(UnreadableError):
        file.read(10)
    with pytest.raises(UnreadableError):
        remote(client, index)


def test_a_fault_that_passes_is_survived_and_one_that_stays_is_explained(client, index):
    index.fail(f"/files/{FILE.filename}", Fault(status=503), Fault(cut=1000))
    assert remote(client, index).size == len(DATA)
    with pytest.raises(LockError, match="is not there"):
        RemoteFile(client, index.file_url("absent"))


def test_a_late_client_reads_no_certificates_until_it_asks(tmp_path, index, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    settings = IndexSettings(default=None, certificates=str(tmp_path / "absent"))
    with LateClient(settings) as late, pytest.raises(LockError) as caught:
        late.stream("GET", index.file_url(FILE.filename))
    assert str(tmp_path / "absent") in caught.value.where
    with LateClient(settings):
        pass


def test_threads_share_one_late_client_which_ends_with_its_block(index):
    url = index.file_url(FILE.filename)
    with LateClient(IndexSettings(default=None)) as late:
        sizes = in_parallel(lambda _: size_of(late, url), range(8))
        assert remote(late, index).size == len(DATA)
    assert sizes == [len(DATA)] * 8
    with pytest.raises(RuntimeError, match="closed"):
        size_of(late, url)
