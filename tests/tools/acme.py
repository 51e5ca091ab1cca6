"""A company for the guides and the pieces for CI: a model in a bucket, a small TensorFlow on an index, a registry, an engine.

What pages call `europe-docker.pkg.dev/acme` is the tests' own registry; `gs://models/churn/7` lies in the fake of Cloud
Storage. `envbuild` and `python`, that of the training environment, are on PATH.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.services import Engine
from tests.environ import cleaned
from tests.fakes.frameworks import CPU, tensorflow
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import make_wheel

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = "europe-docker.pkg.dev"
"""What pages call the registry."""
MODEL = "gs://models/churn/7"
_MODEL = ROOT / "tests/unit/models/saved_model"
NUMPY = make_wheel("numpy", "2.1.3", {"numpy/__init__.py": '__version__ = "2.1.3"\n'})
WHEELS = (
    tensorflow(
        "2.21.0", name="tensorflow-cpu", build=CPU, requires=["numpy>=1.26"], files={"tensorflow/__init__.py": ""}
    ),
    NUMPY,
    make_wheel("numpy", "2.1.2", {"numpy/__init__.py": '__version__ = "2.1.2"\n'}),
    make_wheel("numpy", "2.4.6", {"numpy/__init__.py": '__version__ = "2.4.6"\n'}),
    make_wheel("prometheus-client", "0.25.0", {"prometheus_client.py": ""}),
    make_wheel("polars-stats", "3.1", {"polars_stats.py": ""}, requires=["numpy>=2.3"]),
)
APP = '''"""Answers as Vertex AI asks: a health route and a predict route."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import prometheus_client  # noqa: F401


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        instances = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        self.answer(200, {"predictions": [sum(it) for it in instances]})

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ThreadingHTTPServer(("0.0.0.0", int(os.environ.get("AIP_HTTP_PORT", "8080"))), Handler).serve_forever()
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Acme:
    """A folder of somebody who works there, and what can be reached from it."""

    folder: Path
    """With `app/main.py` in it."""
    host: str
    """The registry's."""
    gcs: FakeGcs
    index: FakeIndex
    environment: dict[str, str]

    def real(self, text: str) -> str:
        """A page's text, with the registry that there is."""
        return text.replace(REGISTRY, self.host)

    def told(self, text: str) -> str:
        """What was printed, as a page has it."""
        return text.replace(self.host, REGISTRY).replace(str(self.folder), "/home/ada/churn")

    def envbuild(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command line in the folder."""
        done = subprocess.run(
            ["envbuild", *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr
        return done

    def train(self) -> str:
        """Capture, build, push and stamp, as after-training does; the training image by digest."""
        self.envbuild("capture", "--python", str(self.python), "--model", MODEL, "--out", "manifest.json")
        words = ("--push", f"{self.host}/acme/ml/churn", "--stamp", MODEL)
        return self.envbuild("from-manifest", "manifest.json", *words).stdout.strip()

    @property
    def python(self) -> Path:
        """The training environment's."""
        return self.folder.parent / "train/bin/python"


@contextmanager
def acme(folder: Path, engine: Engine, host: str, cache: Path) -> Iterator[Acme]:
    """Found the company, and close it."""
    with ExitStack() as stack:
        gcs, index = stack.enter_context(FakeGcs()), stack.enter_context(serving(*WHEELS))
        gcs.create_bucket("models")
        for path in _MODEL.rglob("*"):
            if path.is_file():
                gcs.put("models", f"churn/7/{path.relative_to(_MODEL)}", path.read_bytes())
        (folder / "cache").mkdir(parents=True)
        (folder / "cache/bases").symlink_to(cache / "envbuild/bases")
        work = folder / "churn"
        (work / "app").mkdir(parents=True)
        (work / "app/main.py").write_text(APP)
        environment = _environment(folder, engine, gcs, index)
        _install(folder, environment)
        yield Acme(folder=work, host=host, gcs=gcs, index=index, environment=environment)


def _environment(folder: Path, engine: Engine, gcs: FakeGcs, index: FakeIndex) -> dict[str, str]:
    (folder / "bin").mkdir()
    (folder / "bin/envbuild").symlink_to(Path(sys.executable).parent / "envbuild")
    ours = {
        "PATH": f"{folder}/train/bin:{folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder),
        "NO_COLOR": "1",
        "DOCKER_HOST": engine.url,
        "ENVBUILD_CACHE": str(folder / "cache"),
        "ENVBUILD_FROM_MANIFEST_BASE": "debian:bookworm",  # without Docker Hub
        "STORAGE_EMULATOR_HOST": gcs.url,
        "UV_DEFAULT_INDEX": index.url,
        "PIP_INDEX_URL": index.url,
        "PIP_FIND_LINKS": "",
    }
    return cleaned(os.environ) | ours


def _install(folder: Path, environment: dict[str, str]) -> None:
    """Make the training environment, in which the model was trained."""
    uv, python = str(Path(sys.executable).parent / "uv"), str(folder / "train")
    for words in (
        ("venv", "-q", "--python", "/usr/bin/python3.11", python),
        ("pip", "install", "-q", "--python", python, "tensorflow-cpu==2.21.0", "numpy==2.1.3"),
    ):
        subprocess.run([uv, *words], cwd=folder, env=environment, check=True)
