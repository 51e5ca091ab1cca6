"""Cleanup policies as a table: what a repository has, what an image is, and what becomes of it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.registry.artifact_cleanup import Aged, Fate, Policy, counted, fate

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DAY = timedelta(days=1)
DIGEST = "sha256:" + "ab" * 32


def image(*tags: str, days: int = 10, newer: int = 0, package: str = "team/app") -> Aged:
    return Aged(package=package, digest=DIGEST, uploaded=NOW - days * DAY, tags=tags, newer=newer)


def delete(**conditions) -> Policy:
    return Policy(name="old", deletes=True, **conditions)


def keep(**conditions) -> Policy:
    return Policy(name="ours", deletes=False, **conditions)


STAMPED = keep(tag_state="tagged", tag_prefixes=("stamped-",))


@pytest.mark.parametrize(
    ("policies", "what", "days"),
    [
        ((), image(), None),
        ((STAMPED,), image(), None),
        ((delete(),), image(), 0),
        ((delete(),), image("v1"), 0),
        # Tags.
        ((delete(tag_state="untagged"),), image(), 0),
        ((delete(tag_state="untagged"),), image("v1"), None),
        ((delete(tag_state="tagged"),), image(), None),
        ((delete(tag_state="tagged"),), image("v1"), 0),
        ((delete(tag_prefixes=("dev-", "pr-")),), image("v1", "pr-7"), 0),
        ((delete(tag_prefixes=("dev-", "pr-")),), image("v1"), None),
        ((delete(tag_prefixes=("dev-",)),), image(), None),
        # What it is called.
        ((delete(version_prefixes=("sha256:ab",)),), image(), 0),
        ((delete(version_prefixes=("sha256:cd",)),), image(), None),
        ((delete(package_prefixes=("team/",)),), image(), 0),
        ((delete(package_prefixes=("app",)),), image(), None),
        # All conditions have to hold.
        ((delete(package_prefixes=("team/",), tag_state="untagged"),), image("v1"), None),
        # Age.
        ((delete(older_than=7 * DAY),), image(days=10), 0),
        ((delete(older_than=30 * DAY),), image(days=10), 20),
        ((delete(newer_than=30 * DAY),), image(days=10), 0),
        ((delete(newer_than=7 * DAY),), image(days=10), None),
        ((delete(older_than=20 * DAY, newer_than=30 * DAY),), image(days=10), 10),
        ((delete(older_than=30 * DAY, newer_than=20 * DAY),), image(days=10), None),
        ((delete(older_than=timedelta(days=999_999_999)),), image(), (datetime.max.replace(tzinfo=UTC) - NOW).days),
        # Keep wins, whatever else holds, and for as long as it holds.
        ((delete(), STAMPED), image("stamped-abababababab"), None),
        ((delete(), STAMPED), image("env-abababababab"), 0),
        ((delete(), keep()), image(), None),
        ((delete(), keep(newer_than=30 * DAY)), image(days=10), 20),
        ((delete(), keep(older_than=30 * DAY)), image(days=10), 0),
        ((delete(older_than=40 * DAY), keep(older_than=30 * DAY)), image(days=10), None),
        ((delete(older_than=15 * DAY), keep(newer_than=12 * DAY)), image(days=10), 5),
        ((delete(newer_than=15 * DAY), keep(newer_than=12 * DAY)), image(days=10), 2),
        ((delete(), keep(package_prefixes=("other",))), image(), 0),
    ],
)
def test_what_becomes_of_an_image(policies, what, days):
    found = fate(policies, what, NOW)
    assert (found.when - NOW).days == days if found.when else days is None
    assert found.deleted_by == ("" if days is None else "old")
    assert found.recent is None


@pytest.mark.parametrize(
    ("policies", "newer", "recent"),
    [
        ((delete(), keep(most_recent=3)), 2, 3),
        ((delete(), keep(most_recent=3)), 3, None),
        ((delete(), keep(most_recent=3, package_prefixes=("team/",))), 0, 3),
        ((delete(), keep(most_recent=3, package_prefixes=("other",))), 0, None),
        ((delete(), keep(most_recent=1), keep(most_recent=5)), 2, 5),
    ],
)
def test_being_one_of_the_newest_keeps_an_image_for_as_long_as_it_is(policies, newer, recent):
    found = fate(policies, image(newer=newer), NOW)
    assert found.deleted_by == "old"
    assert found.recent == recent


def test_what_is_kept_for_good_need_not_be_one_of_the_newest():
    found = fate((delete(), STAMPED, keep(most_recent=3)), image("stamped-1", newer=9), NOW)
    assert found == Fate(kept_by=("ours",))


def test_what_nothing_deletes_is_kept_by_nothing():
    assert fate((STAMPED,), image("stamped-1"), NOW) == Fate()


def test_versions_are_only_counted_where_a_policy_does():
    assert counted((delete(), STAMPED), "app") == 0
    assert counted((keep(most_recent=3, package_prefixes=("other",)),), "app") == 0
    assert counted((keep(most_recent=3), keep(most_recent=10, package_prefixes=("a",))), "app") == 10


CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "tag_state": st.sampled_from(["any", "tagged", "untagged"]),
        "tag_prefixes": st.lists(st.sampled_from(["v", "env-", "stamped-"]), max_size=2).map(tuple),
        "version_prefixes": st.lists(st.sampled_from(["sha256:ab", "sha256:cd"]), max_size=2).map(tuple),
        "package_prefixes": st.lists(st.sampled_from(["team/", "app"]), max_size=2).map(tuple),
        "older_than": st.integers(0, 40).map(lambda days: days * DAY),
        "newer_than": st.integers(0, 40).map(lambda days: days * DAY),
    },
)
DELETING = st.lists(CONDITIONS.map(lambda it: delete(**it)), max_size=3)
KEEPING = st.lists(CONDITIONS.map(lambda it: keep(**it)), max_size=3)
IMAGES = st.builds(
    lambda tags, days: image(*tags, days=days),
    st.lists(st.sampled_from(["v1", "env-1", "stamped-1"]), max_size=2),
    st.integers(0, 50),
)


@given(DELETING, KEEPING, IMAGES)
def test_the_keep_policy_of_the_documentation_keeps_what_is_stamped(deleting, keeping, what):
    tagged = image(*what.tags, "stamped-abababababab", days=10)
    assert fate([*deleting, STAMPED, *keeping], tagged, NOW).deleted_by == ""


@given(DELETING, KEEPING, IMAGES)
def test_the_first_moment_is_that_of_looking_every_day(deleting, keeping, what):
    found = fate([*deleting, *keeping], what, NOW)
    days = (day for day in range(100) if fate([*deleting, *keeping], what, NOW + day * DAY).when == NOW + day * DAY)
    first = next(days, None)
    assert found.when == (None if first is None else NOW + first * DAY)
