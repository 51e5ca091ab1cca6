"""The wheel that people install: with templates, profiles and schema, and a command that finds them."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "build", "-q", "--wheel", "--out-dir", folder, ROOT], check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_templates_profiles_and_schema_are_in_the_wheel(installed):
    assert (installed / "envbuild/data/templates/Dockerfile.j2").is_file()
    profiles = {it.name for it in (ROOT / "profiles").glob("*.toml")}
    assert {it.name for it in (installed / "envbuild/data/profiles").iterdir()} == profiles
    assert not (installed / "profiles").exists()
    assert json.loads((installed / "envbuild/manifest/schema.json").read_bytes())
    assert (installed / "envbuild/capture/program.py").is_file()


def test_the_installed_command_plans_a_run(installed, tmp_path):
    manifest = {
        "schema_version": "1.0",
        "created": "2026-11-21T12:00:00Z",
        "python": {"version": "3.11.7", "implementation": "cpython"},
        "platform": {"system": "Linux", "machine": "x86_64"},
        "distributions": [{"name": "tensorflow", "version": "2.15.1", "origin": {"kind": "index"}}],
        "framework": {"name": "tensorflow", "distribution": "tensorflow", "version": "2.15.1", "cuda": "12.2"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    program = "import envbuild, sys; assert envbuild.__file__.startswith(sys.argv.pop(1)); from envbuild.cli import main; main()"
    arguments = ["from-manifest", "manifest.json", "--variant", "gpu", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-c", program, installed, *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nvidia-cudnn-cu12==" in done.stdout
