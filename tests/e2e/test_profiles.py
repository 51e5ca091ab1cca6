"""The profiles that are shipped, against the wheels on the real index."""

import pytest

from envbuild.files import data_folder

pytestmark = pytest.mark.real


def test_every_release_on_the_index_has_its_rows_and_every_row_is_what_its_wheel_says(envbuild):
    done = envbuild("profiles", "check")
    assert done.stdout.startswith("tensorflow, torch, jax: every release has its rows")


def test_refresh_writes_again_what_is_shipped(envbuild, tmp_path):
    envbuild("profiles", "refresh", "torch", "--out", tmp_path)
    assert (tmp_path / "torch.toml").read_bytes() == (data_folder("profiles") / "torch.toml").read_bytes()


def test_check_names_what_a_row_has_wrong(envbuild, tmp_path):
    text = (data_folder("profiles") / "torch.toml").read_text()
    (tmp_path / "torch.toml").write_text(text.replace('cuda = "13.0"', 'cuda = "13.1"', 1))
    done = envbuild("profiles", "check", "torch", "--profiles", tmp_path, check=False)
    assert done.returncode == 16
    wrong = [it for it in done.stderr.splitlines() if it.startswith("  - ")]
    assert len(wrong) == 1
    assert "torch 2.11.0, torch for x86_64: cuda: the profile says 13.1, torch-2.11.0-" in wrong[0]
