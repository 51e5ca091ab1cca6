"""What commands that were killed left in an engine is removed; what others still use is not."""

import os
import subprocess
import sys
import time

import pytest

from envbuild.engine.container import is_leftover, owner_suffix, remove_leftovers
from tests.fakes.engine import client_of, serving_engine
from tests.unit.test_gate import reporter

DAY = 24 * 60 * 60


@pytest.fixture(scope="module")
def dead() -> str:
    """The mark of a process that is gone."""
    program = "from envbuild.engine.container import owner_suffix; print(owner_suffix())"
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_only_what_a_process_made_that_is_gone_is_leftover(dead):
    now = time.time()
    mine, kernel = owner_suffix(), dead.partition("-")[0]
    another = dead.replace(kernel, "0badcafe")
    again = mine.split("-")
    again[2] = "1"  # the number of a process that ended is given again
    for mark, at, left in (
        (dead, now, True),
        (mine, now + 9 * DAY, False),
        ("-".join(again), now, True),
        (dead.replace(f"-{dead.split('-')[1]}-", "-99999999999999999999-"), now, True),
        (another, now, False),
        (another, now + 2 * DAY, True),
    ):
        names = (f"/envbuild-gate-{mark}", f"localhost/envbuild-base:0123456789ab-{mark}", f"envbuild-run-{mark}")
        assert {is_leftover(name, at) for name in names} == {left}, (mark, left)
    for name in ("/envbuild-gate-b68c6a1b1814", "envbuild-base:latest", f"/mine-{dead}", "<none>:<none>"):
        assert not is_leftover(name, now + 9 * DAY)


def test_a_process_that_nobody_has_waited_for_is_gone(dead):
    del dead
    program = "from envbuild.engine.container import owner_suffix; print(owner_suffix())"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mark = process.stdout.read().strip()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_leftover(f"/envbuild-gate-{mark}", time.time())


def test_the_engine_loses_what_is_left_and_nothing_else(dead):
    mine, told = owner_suffix(), list[str]()
    with serving_engine() as engine, client_of(engine) as client:
        engine.images = {"sha256:a", "sha256:b"}
        engine.names = {
            f"envbuild-base:0123456789ab-{dead}": "sha256:a",
            f"envbuild-base:0123456789ab-{mine}": "sha256:b",
            "mine:1": "sha256:b",
        }
        engine.containers = {f"envbuild-gate-{dead}", f"envbuild-gate-{mine}", "others"}
        remove_leftovers(client, reporter(told))
        assert engine.containers == {f"envbuild-gate-{mine}", "others"}
        assert engine.images == {"sha256:b"}
        assert sorted(engine.names) == [f"envbuild-base:0123456789ab-{mine}", "mine:1"]
        engine.dead = True
        remove_leftovers(client, reporter(told))
    assert [line.split("-")[1].partition(":")[0] for line in told] == ["gate", "base"]
