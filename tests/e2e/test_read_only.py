"""A cache that cannot be written: what is in it serves, and what is not ends in an error that says so."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.site import Site, make_site

pytestmark = pytest.mark.real

_LOCKED = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
"""Permissions do not stop root, a mount does; it lasts as long as the command, in a name space of its own."""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    return make_site(tmp_path_factory.mktemp("read-only") / "site")


def build(site: Site, command: Sequence[str], locked: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    wrapped = ["unshare", "--mount", "sh", "-c", _LOCKED, "sh", str(locked), *command]
    env = site.environment(locked.name) | variables
    done = subprocess.run(wrapped, cwd=site.folder, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr
    return done


def test_what_a_read_only_cache_has_is_used(site):
    usual = site.build("--out", "usual", cache="full")
    assert usual.returncode == 0, usual.stderr
    done = build(site, site.command("--out", "out", "--archive", "out.tar"), site.folder / "full")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == json.loads(usual.stdout)["digest"]
    assert "no wheel has to be read" in done.stderr


def test_what_a_read_only_cache_lacks_is_an_error_that_names_it(site):
    cache = site.folder / "empty"
    cache.mkdir()
    done = build(site, site.command("--out", "none"), cache)
    assert (done.returncode, done.stdout) == (13, "")
    assert "error: the cache cannot be written: the file system is read-only" in done.stderr
    assert f"where: {cache}/" in done.stderr
    assert "do: set ENVBUILD_CACHE" in done.stderr
    assert not (site.folder / "none").exists()
    assert not list(cache.iterdir())


def test_the_users_own_cache_may_be_read_only_where_another_is_named(site):
    home = site.folder / "home"
    home.mkdir()
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "ENVBUILD_CACHE": str(site.folder / "another")}
    done = build(site, site.command("--out", "out"), home, **places)
    assert done.returncode == 0, done.stderr


def test_a_read_only_cache_is_shown_and_not_pruned(site):
    assert site.build("--out", "shown", cache="shown-cache").returncode == 0
    command = [*site.command()[:3], "cache"]
    cache = site.folder / "shown-cache"
    before = sorted(cache.rglob("*"))
    shown = build(site, [*command, "info", "--json"], cache)
    assert json.loads(shown.stdout)["size"] > 0
    refused = build(site, [*command, "prune"], cache)
    assert (refused.returncode, refused.stdout) == (13, "")
    assert f"where: {cache}\n  do: " in refused.stderr
    assert build(site, [*command, "prune", "--dry-run"], cache).returncode == 0
    assert sorted(cache.rglob("*")) == before


def test_an_archive_on_a_read_only_file_system_is_refused_before_anything_is_made(site):
    folder = site.folder / "locked"
    folder.mkdir()
    done = build(site, site.command("--out", "none", "--archive", "locked/a.tar"), folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "where: --archive locked/a.tar\n  do: " in done.stderr
    assert not (site.folder / "none").exists()
