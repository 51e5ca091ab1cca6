"""Some of what `python -m tests.faults.stamps` does by the thousand, and that what it looks for is found."""

from collections import Counter
from contextlib import suppress

import pytest

from envbuild.errors import StampConflict, StampError
from envbuild.stamp.gcs import GcsStore
from envbuild.stamp.store import Changed, Unsure
from tests.faults import stamped, stampers
from tests.faults.site import FaultError

# Google's client leaves the connection of a download that broke off to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _wait_for_turns(monkeypatch):
    for name, value in stampers.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def without_waits(seeds):
    """Return those in which nothing fails for so long that a stamper gives up."""
    return [seed for seed in seeds if not lasting(seed)]


def lasting(seed):
    return [fault for fault in stampers.schedule_of(seed).faults if fault.times > 9]


def without_answers(seeds):
    """Return those in which somebody sets the pointer and is never told so."""
    return [seed for seed in seeds if any((it.operation, it.kind) == ("patch", "lost") for it in lasting(seed))]


def test_ten_schedules_lose_nothing_and_tell_no_false_success():
    words = Counter[str]()
    for seed in without_waits(range(50))[:10]:
        ended = stamped.check(seed, *stampers.run(seed))[1]
        assert len(ended) == sum(len(jobs) for jobs in stampers.schedule_of(seed).stampers.values())
        words.update(it.word for it in ended)
    assert words["stamped"] > words["conflict"] > 5


def outcome(seed):
    site, ended = stampers.run(seed)
    asked = [(it.client, it.operation) for it in site.gcs.requests if it.operation != "bucket"]
    return asked, sorted((it.job.name, it.word) for it in ended)


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_can_be_run_again(seed):
    first = outcome(seed)
    assert outcome(seed) == first
    assert outcome(seed + 1) != first


class Careless:
    """A store with a fault of its own."""

    def __init__(self, store: GcsStore) -> None:
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)


class WithoutConditions(Careless):
    """Sets the pointer on top of whatever is there."""

    def patch(self, name, values, state):
        now = self.store.state(name)
        self.store.patch(name, values, now if now and now.generation == state.generation else state)


class OnAnyModel(Careless):
    """Sets the pointer on a model that was not looked at."""

    def patch(self, name, values, state):
        self.store.patch(name, values, self.store.state(name) or state)


class AllMetadata(Careless):
    """Writes the others' metadata too, as it was when the model was looked at."""

    def patch(self, name, values, state):
        blob = self.store.client.bucket(self.store.bucket).blob(f"{self.store.folder}/{name}")
        blob.metadata = {**state.metadata, **values}
        blob.update(if_generation_match=int(state.generation))


class LostIsConflict(Careless):
    """Takes each failed condition for somebody else's doing."""

    def patch(self, name, values, state):
        try:
            self.store.patch(name, values, state)
        except Changed:
            raise StampConflict("somebody else was faster", where=name, todo="look") from None


class SureOfAll(Careless):
    """Takes each change without an answer for one that was not made."""

    def patch(self, name, values, state):
        try:
            self.store.patch(name, values, state)
        except Unsure as unsure:
            raise unsure.error from None


class Hopeful(Careless):
    """Takes each change without an answer for one that was made."""

    def patch(self, name, values, state):
        with suppress(Changed, Unsure, StampError):
            self.store.patch(name, values, state)


class Lazy(Careless):
    """Writes no record but the first."""

    def create(self, name, data):
        return len(self.store.names(deep=True)) >= 3 or self.store.create(name, data)


QUICK, SILENT = without_waits(range(1000, 1100)), without_answers(range(3100, 3200))


def look_for(store, seeds):
    for seed in seeds:
        stamped.check(seed, *stampers.run(seed, store))


@pytest.mark.parametrize(
    ("store", "seeds", "found"),
    [
        (WithoutConditions, QUICK, "overwrote what it had not seen|in no history|one record changed|is gone"),
        (OnAnyModel, QUICK, "overwrote what it had not seen|in no history|one record changed|is gone"),
        (AllMetadata, QUICK, "others wrote|in no history"),
        (LostIsConflict, QUICK, "its image is there"),
        (SureOfAll, SILENT, "its image is there"),
        (Hopeful, QUICK, "in no history"),
        (Lazy, QUICK, "there is no envbuild/"),
    ],
)
def test_what_the_schedules_look_for_is_found(store, seeds, found):
    with pytest.raises(FaultError, match=rf"seed \d+.*({found})"):
        look_for(store, seeds)
