import pytest

from envbuild.verify.sources.host import visible
from tests.fakes.gcs import FakeGcs


@pytest.fixture
def gcs(monkeypatch):
    with FakeGcs() as found:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", found.url)
        monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "0.5")
        found.put("data", "2026/part-1.csv", b"1,2")
        yield found


@pytest.mark.parametrize(
    ("uri", "seen"),
    [
        ("gs://data/2026/part-1.csv", True),
        ("gs://data/2026/", True),
        ("gs://data/2026", True),
        ("gs://data/2025/", False),
        ("gs://data/2026/part-2.csv", False),
        ("gs://absent/2026/", False),
        ("/srv/data", None),
        ("gs://", None),
    ],
)
def test_what_lies_in_a_bucket_is_seen(gcs, uri, seen):
    assert visible(uri) is seen


def test_what_may_not_be_read_is_not_seen(gcs):
    gcs.deny("storage.objects.get", "data")
    gcs.deny("storage.objects.list", "data")
    assert visible("gs://data/2026/part-1.csv") is False


def test_where_nobody_answers_nothing_is_known(monkeypatch, gcs):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    assert visible("gs://data/2026/part-1.csv") is None
