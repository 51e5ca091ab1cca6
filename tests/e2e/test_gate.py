"""The gate with a real engine: tiny servers in an assembled image, one that is right and many that are wrong."""

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.engine.client import find_image
from envbuild.engine.container import inspect_base, run_file
from envbuild.engine.load import load_into
from envbuild.errors import VerifyError
from envbuild.manifest.model import Golden
from envbuild.oci.image import Image, canonical_json, manifest_bytes
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.serve.gate import Patience, gate
from envbuild.serve.model import Server
from envbuild.verify.findings import Finding
from tests.e2e.services import command_output
from tests.e2e.test_local_run import podman, short_folder
from tests.e2e.test_local_run import served as podman_served
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of
from tests.unit.test_gate import order_of, origin_of, reporter
from tests.unit.test_golden_check import KERAS, NUMPY, array_of, golden_of, keras_file, manifest_with

pytestmark = pytest.mark.real

PYTHON = "/opt/env/bin/python"
FRAMEWORK = (make_wheel("numpy", "1.26.4", {"numpy.py": NUMPY}), make_wheel("keras", "2.15.0", {"keras.py": KERAS}))
SERVER = """
import http.server, json, os, signal, sys, threading, time
DO = {"start": "", "health": "", "predict": "", "stop": ""} | json.loads(os.environ["DO"])
factor = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status = 200
        if self.path != os.environ["AIP_HEALTH_ROUTE"]:
            return self.answer(404, b"")
        said = {"status": 200}
        exec(DO["health"], globals(), said)
        self.answer(said["status"], b"health")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"status": 200, "predictions": [factor * it for it in body["instances"]]}
        try:
            exec(DO["predict"], globals(), said)
        except Exception as error:
            said = {"status": 500, "predictions": str(error)}
        self.answer(said.pop("status"), json.dumps(said).encode())
    def answer(self, status, data):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", int(os.environ["AIP_HTTP_PORT"])), Handler)
def stop(*_):
    exec(DO["stop"])
    threading.Thread(target=server.shutdown).start()
signal.signal(signal.SIGTERM, stop)
print("starting as", os.getuid(), flush=True)
exec(DO["start"])
factor = float(open(os.environ["AIP_STORAGE_URI"] + "/factor.txt").read())
server.serve_forever()
"""
ROUTES = Server(health="/healthz", predict="/v1:predict", ports=(9090,))
DOUBLED = golden_of([array_of([1.0, 2.0])], [array_of([2.0, 4.0])])
SOON = Patience(start=4, health=1, predict=3, stop=2, calm=2, output=1 << 20)


@pytest.fixture(scope="module")
def train(tmp_path_factory, envbuild, engine) -> Iterator[Image]:
    """A training image with a framework as small as it can be, which the engine has, so that it is sent once."""
    folder = tmp_path_factory.mktemp("train")
    for wheel in (TENSORFLOW, TOOL, *FRAMEWORK):
        (folder / wheel.filename).write_bytes(wheel.data)
    distributions = (("tensorflow-cpu", "2.15.1"), ("tool", "1.0"), ("numpy", "1.26.4"), ("keras", "2.15.0"))
    (folder / "manifest.json").write_text(json.dumps(manifest_of(*distributions)))
    done = envbuild(
        *("from-manifest", folder / "manifest.json", "--base", "debian:bookworm", "--offline", "--find-links", folder),
        *("--out", folder / "out", "--json"),
    )
    image = read_layout(Path(json.loads(done.stdout)["layout"]), machine="x86_64")
    load_into(engine.client, image, [Reference.parse("gate:train")], reporter([]))
    yield image
    engine.client.images.remove("gate:train", force=True)


def served(train: Image, program: str = SERVER, **do: str) -> Image:
    """The training image with a server as its program, which runs as nobody in particular."""
    value = json.loads(train.config)
    variables = [*value["config"].get("Env", ()), f"DO={json.dumps(do)}"]
    value["config"] |= {"Entrypoint": [PYTHON, "-u", "-c", program], "Cmd": [], "Env": variables, "User": "4711"}
    config = canonical_json(value)
    return Image(manifest_bytes(config, train.layers, {}), config, train.layers)


@pytest.fixture
def model(tmp_path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/factor.txt").write_text("2")
    return tmp_path / "model"


@pytest.fixture
def attempt(engine, train, model, tmp_path, monkeypatch):
    """Try a server; return what was found, and see that the engine has nothing of it afterwards."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    before = {it.id for it in engine.client.images.list(all=True)}

    def run(
        image: Image, server: Server = ROUTES, golden: Golden | None = DOUBLED, *, gate_="require", **given: Any
    ) -> tuple[Finding, ...]:
        manifest = dataclasses.replace(manifest_with(golden), model_uri=str(given.pop("model", model)))
        order = order_of(tmp_path, gate=gate_)
        return gate(order, origin_of(train, manifest), image, server, reporter(given.pop("told", [])), **given)

    yield run
    assert engine.client.containers.list(all=True) == []
    assert {it.id for it in engine.client.images.list(all=True)} == before
    assert engine.client.volumes.list() == []


def ids(findings: tuple[Finding, ...]) -> list[tuple[str, bool]]:
    return [(it.id, it.agrees) for it in findings]


GOOD = [("serve-health", True), ("serve-golden", True), ("serve-stop", True)]


SECLUDED = """
import socket
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert [int(status[it], 16) for it in ("CapEff", "CapPrm", "CapBnd")] == [0, 0, 0], status
assert status["NoNewPrivs"].strip() == "1", status
for path in ("/x", "/opt/env/x", "/etc/x"):
    try: open(path, "w"); sys.exit(9)
    except OSError: pass
for path in ("/tmp/x", "/var/tmp/x", *["/run/x"] * (os.getuid() == 0)): open(path, "w").close()
try: socket.create_connection(("192.0.2.1", 80), 1); sys.exit(8)
except OSError as error: assert error.errno == 101, error
assert os.listdir("/sys/class/net") == ["lo"]
"""
"""It has no network and no capability, can gain none, and writes to its folders in memory alone."""


def as_user(image: Image, user: str) -> Image:
    value = json.loads(image.config)
    value["config"]["User"] = user
    config = canonical_json(value)
    return Image(manifest_bytes(config, image.layers, {}), config, image.layers)


def test_a_server_that_serves_passes_confined_and_as_its_own_user(attempt, train):
    found = attempt(served(train, start=f"assert os.getuid() == 4711\n{SECLUDED}"))
    assert ids(found) == GOOD, found
    assert found[1].says == "the model gives what was recorded: 1 output, 2 numbers, exactly"
    assert found[2].says.startswith("the container ended with 0, ")


BOMB = """
children = []
try:
    while len(children) < 6000:
        children.append(os.fork())
        if not children[-1]: signal.pause()
    sys.exit("it may have any number of processes")
except BlockingIOError:
    for child in children: os.kill(child, 9)
    for child in children: os.waitpid(child, 0)
"""


def test_root_in_the_container_has_no_more_and_a_fork_bomb_meets_the_limit(attempt, train):
    found = attempt(as_user(served(train, start=f"assert os.getuid() == 0\n{SECLUDED}{BOMB}"), "0"))
    assert ids(found) == GOOD, found


@pytest.mark.parametrize("where", ["keep.append(b'x' * 2**20)", "file.write(b'x' * 2**20)"], ids=["memory", "tmp"])
def test_a_server_that_takes_memory_without_end_is_killed_and_told(attempt, train, where):
    start = f"keep = []\nfile = open('/tmp/x', 'wb')\nfor _ in range(4096): {where}"
    with pytest.raises(VerifyError) as caught:
        attempt(served(train, start=start), patience=dataclasses.replace(SOON, start=60, memory=256 << 20))
    assert "was killed for using more than 256 MiB of memory, its limit" in caught.value.what


def test_what_an_image_is_asked_for_its_environment_runs_just_so(engine, train):
    heard: list[str] = []
    image = find_image(engine.client, "gate:train", reporter([]))
    program = f"import os, sys\n{SECLUDED}\nimport beside.it\nopen(sys.argv[2], 'w').write('done')"
    done = run_file(engine.client, image, program, (), python=None, on_line=heard.append, files={"beside/it.py": b""})
    assert (done.code, done.result) == (0, b"done"), heard
    assert inspect_base(engine.client, image.id).machine == "x86_64"
    assert engine.client.volumes.list() == []


WRONG = {
    "crash": (
        {"start": "raise SystemExit('no weights')"},
        "serve-startup",
        "the container ended with 1 before GET /healthz on port 9090 answered 200",
        ["| starting as 4711", "| no weights"],
    ),
    "unhealthy": (
        {"health": "status = 500"},
        "serve-health",
        "GET /healthz on port 9090 gave no 200 within 4 s: it answers 500, health",
        ["| starting as 4711"],
    ),
    "never": ({"start": "server.server_close(); time.sleep(60)"}, "serve-health", "nothing listens there", []),
    "silent": ({"health": "time.sleep(60)"}, "serve-health", "no answer came within 1 s", []),
    "off": (
        {"predict": "predictions[1] += 0.5"},
        "serve-golden",
        "the largest deviation is 0.5 at [1]: 4.5, and 4.0 was recorded",
        [],
    ),
    "refused": (
        {"predict": "status = 400; predictions = 'instances'"},
        "serve-golden",
        'POST /v1:predict gave no predictions for the golden sample: it answers 400, {"predictions": "instances"}',
        [],
    ),
    "slow": ({"predict": "time.sleep(60)"}, "serve-golden", "no answer came within 3 s", []),
    "dies": (
        {"predict": "print('bad number', flush=True); os._exit(7)"},
        "serve-startup",
        "the container ended with 7 when POST /v1:predict was asked for the golden sample",
        ["| bad number"],
    ),
    "sickens": ({"predict": "DO['health'] = 'status = 503'"}, "serve-health", "gives no 200 after predictions", []),
    "hangs": ({"stop": "time.sleep(60)"}, "serve-stop", "the container still runs 2 s after SIGTERM", []),
    "prints": (
        {"start": "threading.Thread(target=lambda: [print('again ' * 99) for _ in iter(int, 1)], daemon=True).start()"},
        "serve-output",
        "and was ended for it",
        ["| again again"],
    ),
}


OFTEN = ("crash", "unhealthy", "off", "dies", "hangs")
"""Those that are tried at every change."""


@pytest.mark.parametrize("name", [it if it in OFTEN else pytest.param(it, marks=pytest.mark.slow) for it in WRONG])
def test_a_server_that_is_wrong_is_refused_for_what_it_is(attempt, train, name):
    do, rule, says, lines = WRONG[name]
    with pytest.raises(VerifyError) as caught:
        attempt(served(train, **do), patience=SOON)
    text = caught.value.what
    assert f"[{rule}]" in text
    assert says in text
    assert all(line in text for line in lines), text
    assert text.startswith("the image does not serve as it should, and is neither pushed nor written: 1 of ")


@pytest.mark.slow
def test_a_program_that_is_not_there_is_told(attempt, train):
    image = served(train)
    value = json.loads(image.config)
    value["config"]["Entrypoint"] = ["/none"]
    config = canonical_json(value)
    with pytest.raises(VerifyError, match=r"(?s)the container cannot be started: .*/none.*\[serve-startup\]"):
        attempt(Image(manifest_bytes(config, train.layers, {}), config, train.layers))


@pytest.mark.slow
def test_another_exit_code_is_a_warning_and_the_rest_holds(attempt, train):
    told: list[str] = []
    found = attempt(served(train, stop="os._exit(3)"), told=told)
    assert ids(found) == [*GOOD[:2], ("serve-stop", False)]
    assert (found[2].severity, "ended with 3 after SIGTERM" in found[2].says) == ("warning", True)
    assert any("[serve-stop]" in line for line in told)


@pytest.mark.parametrize("step", ["start", "predict"])
def test_a_server_that_writes_beside_its_program_is_refused_and_told_where_it_may(attempt, train, step):
    with pytest.raises(VerifyError) as caught:
        attempt(as_user(served(train, **{step: "open('/writes', 'w')"}), "0"))
    assert "Read-only file system: '/writes'" in caught.value.what
    assert caught.value.what.count("[serve-writes]") == 1
    assert "let the server write below /tmp" in caught.value.what


@pytest.mark.slow
def test_without_a_sample_it_is_started_and_stopped_and_that_is_told(attempt, train):
    found = attempt(served(train), golden=None)
    assert ids(found) == [("golden-sample", False), GOOD[0], GOOD[2]]


@pytest.mark.slow
def test_a_command_without_routes_is_seen_to_stay_and_the_model_is_run_by_itself(attempt, train, tmp_path):
    keras_file(tmp_path / "model/it.keras", by=2)
    found = attempt(served(train), server=Server(), patience=SOON)
    assert ids(found) == [("golden", True), ("serve-startup", True), ("serve-stop", True)]
    assert found[1].says == "the container still runs 2 s after its start"
    with pytest.raises(VerifyError, match="although a server runs until it gets SIGTERM"):
        attempt(served(train, start="sys.exit()"), server=Server(), patience=SOON)
    keras_file(tmp_path / "model/it.keras", by=3)
    with pytest.raises(VerifyError, match=r"(?s)4\.0 was recorded.*\[golden\]|golden: 2 of 2 numbers"):
        attempt(served(train), server=Server(), patience=SOON)


def test_an_image_for_another_machine_is_not_tried(attempt, train):
    value = json.loads(train.config) | {"architecture": "arm64"}
    config = canonical_json(value)
    image = Image(manifest_bytes(config, train.layers, {}), config, train.layers)
    [finding] = attempt(image, gate_="auto")
    assert (finding.id, finding.severity) == ("serve-untried", "warning")
    assert "the engine is linux/amd64, and the image is for linux/arm64" in finding.says


def test_a_model_that_is_gone_is_told_and_nothing_is_started(attempt, train, tmp_path):
    [finding] = attempt(served(train), model=tmp_path / "none", gate_="auto")
    assert (finding.id, finding.severity) == ("serve-untried", "warning")
    assert "cannot read the model" in finding.says


def test_ctrl_c_leaves_nothing(attempt, train, engine):
    def interrupt() -> None:
        while not engine.client.containers.list():
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        attempt(served(train, health="status = 500"))


@pytest.mark.slow
def test_what_a_gate_left_that_was_killed_is_removed_by_the_next(attempt, train, engine):
    killed = multiprocessing.get_context("fork").Process(target=attempt, args=(served(train, health="status = 500"),))
    killed.start()
    while not engine.client.containers.list():
        time.sleep(0.05)
    killed.kill()
    killed.join()
    [left] = engine.client.containers.list()
    told: list[str] = []
    assert ids(attempt(served(train), told=told)) == GOOD
    assert f"removed {left.name}, which a command that was killed had left in the engine" in told


@pytest.mark.slow
def test_podman_tries_it_just_so_and_keeps_nothing(train, model, tmp_path, monkeypatch):
    manifest = dataclasses.replace(manifest_with(DOUBLED), model_uri=str(model))
    with short_folder() as folder:
        try:
            with podman_served(folder, "/usr/bin/docker-init") as socket:
                monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
                order, origin = order_of(tmp_path, gate="require"), origin_of(train, manifest)
                found = gate(order, origin, served(train, start=SECLUDED), ROUTES, reporter([]))
                assert ids(found) == GOOD, found
                for name in ("prints", "hangs"):
                    do, rule, says, lines = WRONG[name]
                    with pytest.raises(VerifyError) as caught:
                        gate(order, origin, served(train, **do), ROUTES, reporter([]), SOON)
                    assert all(it in caught.value.what for it in (f"[{rule}]", says, *lines)), caught.value.what
                for kind in ("ps", "images", "volume ls"):
                    assert (
                        command_output(*podman(folder, *kind.split(), "--quiet", *["--all"] * (kind != "volume ls")))
                        == ""
                    )
        finally:
            subprocess.run(podman(folder, "system", "reset", "--force"), check=False, capture_output=True)
