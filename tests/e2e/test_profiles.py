"""The profiles that are shipped, against the wheels on the real index."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from envbuild.files import data_folder
from envbuild.lock.settings import read_settings
from envbuild.match.profiles import FRAMEWORKS, load_profiles
from profiles.refresh.archive import remote_wheel
from profiles.refresh.index import Index

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]


def refresh(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "profiles.refresh", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_every_release_has_its_rows_and_of_all_rows_only_the_changed_one_differs_from_its_wheel(tmp_path):
    """All wheels are read once. That a refresh writes the shipped text of equal rows is held by the unit tests."""
    for name in FRAMEWORKS:
        shutil.copy(data_folder("profiles") / f"{name}.toml", tmp_path)
    text = (tmp_path / "torch.toml").read_text()
    (tmp_path / "torch.toml").write_text(text.replace('cuda = "13.0"', 'cuda = "13.1"', 1))
    done = refresh("--check", "--folder", tmp_path, code=16)
    wrong = [it for it in done.stderr.splitlines() if it.startswith("  - ")]
    assert len(wrong) == 1, wrong
    assert "torch 2.11.0, torch for x86_64: cuda: the profile says 13.1, torch-2.11.0-" in wrong[0]


@pytest.mark.slow
def test_every_row_of_the_projects_that_open_cuda_matches_its_wheel():
    assert "every row matches its wheel" in refresh("openers", "--check").stdout


def libraries(index: Index, requirement: str) -> set[str]:
    """The files of the exact wheel for Linux x86_64, by their names."""
    name, version = Requirement(requirement).name, requirement.partition("==")[2]
    for file in index.files(name):
        if not file.name.endswith("x86_64.whl"):
            continue
        found, its, _, _ = parse_wheel_filename(file.name)
        if (found, str(its)) == (canonicalize_name(name), version):
            with remote_wheel(index, file) as archive:
                return {it.rpartition("/")[2] for it in archive.namelist()}
    raise AssertionError(f"the index has no wheel of {requirement} for Linux x86_64")


def test_the_sets_of_wheels_are_on_the_index_and_hold_what_the_builds_open():
    profiles = load_profiles(data_folder("profiles"))
    with Index.open(read_settings()) as index:
        for it in profiles.wheel_sets:
            fixed = set().union(*(libraries(index, text) for text in it.requirements))
            wheels = [wheel for release in profiles.frameworks[0].releases for wheel in release.wheels]
            opened = {name for wheel in wheels if wheel.cuda in it.serves for name in wheel.libraries}
            for cudnn in it.cudnn:
                assert opened <= fixed | libraries(index, cudnn)
            assert {"ptxas", "libdevice.10.bc"} <= fixed


def test_show_answers_without_a_network(envbuild):
    shown = envbuild(
        "profiles", "show", "tensorflow==2.15.1", "--python", "3.11", "--variant", "gpu", "--json",
        env={"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
    )  # fmt: skip
    found = json.loads(shown.stdout)
    assert (found["cuda"], found["cudnn"], found["cuda_source"]) == ("12.2", "8.9.4.25", "wheels")
