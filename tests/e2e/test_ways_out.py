"""The command's other ways out: bytecode in the image, straight into the engine, and a file for `docker load`."""

import json
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

COMPILED = re.compile(r"code object from '(/opt/env/[^']*\.py)'")
"""What `python -v` says of a module for which it finds no bytecode."""


@pytest.mark.slow  # TensorFlow, twice: 50 s
def test_an_image_with_bytecode_goes_into_the_engine_and_into_a_file(tmp_path, train_env, envbuild, engine):
    python = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
    manifest, archive = tmp_path / "manifest.json", tmp_path / "image.tar"
    envbuild("capture", "--python", python, "--out", manifest)
    done = envbuild(
        "from-manifest", manifest, "--base", "debian:bookworm", "--out", tmp_path / "out", "--json",
        "--bytecode", "--load", "ways/out:1", "--archive", archive, env={"DOCKER_HOST": f"unix://{engine.socket}"},
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert (result["image"], result["layout"], result["archive"]) == (None, None, str(archive))
    assert result["loaded"] == engine.client.images.get("ways/out:1").id
    command = ["sh", "-c", "python -v -c 'import tensorflow' 2>&1 | grep -E \"^import 'tensorflow'|code object\""]
    told = engine.run("ways/out:1", command, network_mode="none")
    assert "import 'tensorflow'" in told
    assert COMPILED.findall(told) == []
    assert digest_of(archive) == result["digest"]


def digest_of(archive: Path) -> str:
    done = subprocess.run(
        ["skopeo", "inspect", "--format", "{{.Digest}}", f"oci-archive:{archive}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
