"""What a notebook server is started with, and when its address is told."""

import dataclasses
import platform
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from urllib.parse import parse_qs, urlsplit

import pytest

from envbuild.build.extend import child_name, extend
from envbuild.errors import UsageError
from envbuild.image.child import Addition
from envbuild.local import notebook
from envbuild.local.model import Launch, Port
from envbuild.lock.model import Lock, LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from tests.fakes.wheels import make_wheel
from tests.making import make_venv
from tests.reporting import Calling
from tests.unit.locking import HERE, options

REPORTER = Calling(step=print, note=print, warn=print)


class Server(BaseHTTPRequestHandler):
    """Answers whom the token is known to, as Jupyter Server does."""

    token = "t-1"

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == f"token {self.token}"
        self.send_response(200 if known and self.path == "/api/status" else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_) -> None:
        """Say nothing."""


@pytest.fixture
def port():
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_the_token_is_in_a_variable_and_nowhere_else():
    before = Launch(
        image="below", command=notebook.COMMAND, variables={"BUCKET": "b"}, ports=(Port(host=1, container=2),)
    )
    token = notebook.new_token()
    launch = notebook.notebook_launch(before, "above", token, 8890)
    assert (launch.image, launch.ports) == ("above", (*before.ports, Port(host=8890, container=8888)))
    assert launch.variables.items() > {"BUCKET": "b", "JUPYTER_TOKEN": token}.items()
    assert not any(token in word for word in launch.command)
    assert token != notebook.new_token()
    assert len(token) >= 32


def test_the_address_is_told_once_the_server_answers_to_this_token(port):
    told: Queue[str] = Queue()
    with notebook.announced(port, "t-1", told.put):
        url = told.get(timeout=10)
    assert parse_qs(urlsplit(url).query) == {"token": ["t-1"]}
    with notebook.announced(port, "another", told.put), pytest.raises(Empty):
        told.get(timeout=0.4)


def test_a_port_that_somebody_listens_on_is_not_taken(port):
    other = notebook.free_port(port)
    assert other != port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", other))
    assert notebook.free_port(other) == other


def test_a_server_beside_an_environment_has_its_own_packages_first_and_then_the_environments(tmp_path):
    environment = tmp_path / "an env"
    server = notebook.server_folder(environment)
    for folder in (environment, server):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        [site] = folder.glob("lib/python*/site-packages")
        (site / "both.py").write_text(f"HERE = {folder.name!r}")
    [site] = environment.glob("lib/python*/site-packages")
    (site / "only.py").write_text("")
    (site / "path.pth").write_text("import sys; sys.marked = True\n")
    notebook.link_packages(server, environment)
    code = "import both, only, sys; print(both.HERE, sys.marked)"
    done = subprocess.run([server / "bin/python", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["an", "env-notebook", "True"]


def test_a_server_that_is_there_is_not_resolved_again_and_one_for_another_lock_is(tmp_path):
    server, wheel = tmp_path / "env-notebook", make_wheel("tool", "1.0", {"tool.py": ""})
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    digest, url = Digest(wheel.sha256), (tmp_path / wheel.filename).as_uri()
    one = LockedWheel(name="tool", version="1.0", filename=wheel.filename, sha256=digest, size=len(wheel.data), url=url)
    here = dataclasses.replace(HERE, machine=platform.machine(), python=platform.python_version())
    below, above = Lock(target=here, wheels=()), Lock(target=here, wheels=(one,))
    make_venv(server, above, here.python, REPORTER, cache=tmp_path / "cache")
    assert notebook.read_note(server, below) is None
    notebook.write_note(server, below, above)
    assert notebook.read_note(server, below) == above
    assert notebook.read_note(server, above) is None
    with notebook.held_server(tmp_path / "env", below, options(tmp_path / "none"), REPORTER) as python:
        assert subprocess.run([python, "-c", "import tool"], check=False).returncode == 0
    (server / "lib/envbuild-notebook.json").write_text("[]")
    assert notebook.read_note(server, below) is None


def test_an_image_that_may_be_another_tomorrow_is_no_ground(tmp_path):
    parent, below = Reference.parse("registry.example.com/team/env:1"), Lock(target=HERE, wheels=())
    with pytest.raises(UsageError, match="has to be named by digest"):
        extend(None, parent, ["six"], below, notebook.ADDITION, options(tmp_path), REPORTER)


def test_a_child_has_a_name_for_each_parent_and_whatever_is_put_on_it():
    here, there, below = Digest.of(b"1"), Digest.of(b"2"), Lock(target=HERE, wheels=())
    asked = [(here, ["six"], "a"), (there, ["six"], "a"), (here, ["seven"], "a"), (here, ["six"], "b")]
    names = {str(child_name(parent, named, below, notebook.ADDITION, label)) for parent, named, label in asked}
    assert len(names) == 4
    assert {str(child_name(here, ["six"], below, Addition(), "a"))}.isdisjoint(names)
