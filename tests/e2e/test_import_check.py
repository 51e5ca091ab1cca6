"""What an image cannot import is found before it has a name: by a real engine, by bubblewrap, and by metadata alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environ import cleaned
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.faults.site import tags_of

pytestmark = pytest.mark.real

NATIVE = "cp311-cp311-manylinux_2_17_x86_64"
FRAMEWORK = make_wheel(
    "tensorflow-cpu", "2.15.1", {"tensorflow/__init__.py": "import middle\n"}, tags=[NATIVE], requires=["middle"]
)
MIDDLE = make_wheel("middle", "1.0", {"middle/__init__.py": "try:\n    import low\nexcept ImportError as e:\n    raise ImportError('no') from e\n"}, requires=["low"])  # fmt: skip
LOW = make_wheel("low", "0.6.0", {"low.py": "import numpy\nnumpy.dtypes\n"}, requires=["numpy"])
NUMPY = make_wheel(
    "numpy", "1.23.5", {"numpy/__init__.py": "", "tests/test_x.py": "import pytest", "tests/__init__.py": ""}
)
NEWER = make_wheel("numpy", "1.26.4", {"numpy/__init__.py": "dtypes = 1\n"})
DRIVER = make_wheel(
    "driver", "1.0", {"driver.py": "raise ImportError('libcuda.so.1: cannot open shared object file')\n"}
)
HOST = make_wheel(
    "host",
    "1.0",
    {"host.py": "", "host_src/__init__.py": "import matplotlib"},
    requires=["plugin", "extra; extra == 'all'"],
)
SKINNY = make_wheel(
    "kit-skinny",
    "1.0",
    {"kit/__init__.py": "", "kit/core.py": "", "lint_plugins/__init__.py": "import matplotlib"},
)
"""As mlflow-skinny has it: a plug-in of pylint, which nobody has, beside the package itself."""
PLUGIN = make_wheel("plugin", "1.0", {"plugin.py": "import matplotlib"})
CRASHING = make_wheel("crashing", "1.0", {"crashing.py": "import os\nos.kill(os.getpid(), 11)\n"})
KEYLESS = make_wheel("keyless", "1.0", {"keyless.py": "open('/nowhere/kaggle.json')\n"})
SEEING = make_wheel(
    "seeing", "1.0",
    {"seeing.py": """
import errno, os, socket, sys
for place in ("/etc/x", "/opt/env/x", os.path.dirname(__file__) + "/x"):
    try:
        open(place, "w")
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES), error
    else:
        raise AssertionError(place)
open(os.path.expanduser("~/x"), "w").close()
try:
    socket.create_connection(("198.51.100.1", 80), 3)
except OSError as error:
    assert error.errno == errno.ENETUNREACH, error
assert os.environ.get("SECRET") is None
print("printed by a module")
"""},
)  # fmt: skip


class Builds:
    """`envbuild from-manifest` of a requirements.txt, as users run it: with the check that it makes by itself."""

    def __init__(self, folder: Path, cache: Path, docker_host: str, index: str, place: str = "") -> None:
        self.place = place
        self.folder, self.cache, self.docker_host, self.index = folder, cache, docker_host, index

    def run(self, *arguments: str, pins: dict[str, str], **env: str) -> subprocess.CompletedProcess[str]:
        """Build of a requirements.txt."""
        record = self.folder / "requirements.txt"
        record.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        (self.folder / "cache").mkdir(exist_ok=True)
        if not (self.folder / "cache/bases").exists():
            (self.folder / "cache/bases").symlink_to(self.cache / "envbuild/bases")
        ours = {"DOCKER_HOST": self.docker_host, "ENVBUILD_CACHE": str(self.folder / "cache"), "NO_COLOR": "1"}
        options = (
            "--from",
            "requirements",
            "--python",
            "3.11.2",
            "--gpu",
            "none",
            "--base",
            "debian:bookworm",
            "--json",
        )
        variables = cleaned(os.environ) | ours | {"UV_DEFAULT_INDEX": self.index, "SECRET": "x"}
        del variables["ENVBUILD_FROM_MANIFEST_IMPORT_CHECK"]
        done = subprocess.run(
            [sys.executable, "-m", "envbuild", "from-manifest", record, "--out", self.folder / "out", *options, *arguments],
            cwd=self.folder, env=variables | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture
def index():
    with serving(
        FRAMEWORK, MIDDLE, LOW, NUMPY, NEWER, DRIVER, CRASHING, SEEING, KEYLESS, HOST, PLUGIN, SKINNY
    ) as served:
        yield served.url


@pytest.fixture(params=["container engine", "bubblewrap"])
def builds(request, tmp_path, cache, engine, index):
    host = engine.url if request.param == "container engine" else "unix:///nowhere/docker.sock"
    return Builds(tmp_path, cache, host, index, request.param)


PINS = {"tensorflow-cpu": "2.15.1"}


def test_what_fails_is_refused_with_its_causes_before_anything_has_a_name(builds, registry):
    name = f"imports/{builds.place.replace(' ', '-')}"
    done = builds.run("--push", f"{registry.host}/{name}:v1", pins=PINS | {"numpy": "1.23.5"})
    assert done.returncode == 16, done.stderr
    assert (
        "tensorflow 2.15.1 -> middle 1.0 -> low 0.6.0: AttributeError: module 'numpy' has no attribute 'dtypes' (numpy 1.23.5)"
        in done.stderr
    )
    assert f"import check, {builds.place}" in done.stderr
    assert not [tag for tag in tags_of(registry.host, name) if not tag.startswith(("layer-", "fact-"))]
    untried = builds.run(
        "--push", f"{registry.host}/{name}:v1", "--import-check", "never", pins=PINS | {"numpy": "1.23.5"}
    )
    assert untried.returncode == 0, untried.stderr
    assert json.loads(untried.stdout)["imports"] is None


def test_what_can_be_imported_is_in_the_report_and_tried_once(builds):
    done = builds.run(pins=PINS | {"seeing": "1.0", "numpy": "1.26.4"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["imports"]
    assert found == {"place": builds.place, "modules": ["tensorflow", "numpy", "seeing"], "untold": {}}
    again = builds.run(pins=PINS | {"seeing": "1.0", "numpy": "1.26.4"})
    assert "importing in the image" not in again.stderr
    assert json.loads(again.stdout)["imports"] == found


def test_what_could_not_be_tried_is_said_again_where_the_rest_is_remembered(builds):
    """On 6aa7f22 the second build is silent about it."""
    for remembered in (False, True):
        done = builds.run(pins=PINS | {"keyless": "1.0", "numpy": "1.26.4"})
        assert done.returncode == 0, done.stderr
        assert (" earlier: " in done.stderr) == remembered
        assert "whether keyless can be imported could not be tried: it needs what is not in the image" in done.stderr


def test_of_a_freeze_that_is_imported_which_nothing_requires(tmp_path, cache, index):
    builds = Builds(tmp_path, cache, "unix:///nowhere/docker.sock", index)
    pins = PINS | {
        "middle": "1.0",
        "low": "0.6.0",
        "numpy": "1.26.4",
        "host": "1.0",
        "plugin": "1.0",
        "kit-skinny": "1.0",
    }
    refused = builds.run(pins=pins)
    assert (refused.returncode, "plugin 1.0: ModuleNotFoundError" in refused.stderr) == (16, True), refused.stderr
    done = builds.run("--from", "pip-freeze", pins=pins)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["imports"]["modules"] == ["tensorflow", "host", "kit"]


def test_without_engine_and_bubblewrap_metadata_is_looked_at_and_one_line_says_so(tmp_path, cache, index):
    builds = Builds(tmp_path, cache, "unix:///nowhere/docker.sock", index)
    (tmp_path / "bin").mkdir()
    done = builds.run(pins=PINS | {"numpy": "1.26.4"}, PATH=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["imports"] == {"place": "metadata", "modules": [], "untold": {}}
    [line] = [it for it in done.stderr.splitlines() if "no module was imported" in it]
    assert line.endswith(
        "no module was imported, only metadata was looked at: no container engine answers, and bubblewrap is not installed"
    )


def test_an_image_that_an_engine_built_is_tried_before_it_is_pushed(tmp_path, cache, engine, index, registry):
    builds = Builds(tmp_path, cache, engine.url, index)
    pins = PINS | {"numpy": "1.23.5"}
    done = builds.run("--builder", "docker", "--push", f"{registry.host}/imports/docker:v1", pins=pins)
    assert done.returncode == 16, done.stderr
    assert "low 0.6.0: AttributeError" in done.stderr
    assert "pushing" not in done.stderr
    assert not engine.client.images.list("envbuild-build")
