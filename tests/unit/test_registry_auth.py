import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.reference import Reference
from envbuild.registry.auth import Credentials, find_credentials
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from envbuild.retry import Retry
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry

FAST = Retry(first=0, longest=0.01)
GOOD = Credentials(username="user", password="letmein")
BAD = Credentials(username="user", password="s3cret-and-wrong")


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch, tmp_path):
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def helper(tmp_path, monkeypatch, script):
    program = tmp_path / "bin" / "docker-credential-fake"
    write(program, f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.mark.parametrize("login", ["basic", "bearer"])
def test_push_and_pull_log_in(login):
    image = image_of()
    with FakeRegistry(login=login) as registry:
        reference = Reference(registry.host, "team/app", "v1")
        push(image, reference, credentials=GOOD, retry=FAST)
        pulled = pull(reference, machine="x86_64", credentials=GOOD, retry=FAST)
        assert pulled.digest == image.digest
        assert pulled.layers[0].open().read()


@pytest.mark.parametrize("login", ["basic", "bearer"])
@pytest.mark.parametrize("credentials", [BAD, None])
def test_a_refused_login_says_what_to_do_and_shows_no_secret(login, credentials):
    with FakeRegistry(login=login) as registry, pytest.raises(RegistryError, match="does not let this") as caught:
        push(image_of(), Reference(registry.host, "team/app", "v1"), credentials=credentials, retry=FAST)
    assert caught.value.status == 401
    assert f"docker login {registry.host}" in caught.value.todo
    shown = str(caught.value) + repr(caught.value) + repr(credentials)
    assert BAD.password not in shown
    assert BAD.basic.split()[1] not in shown
    assert registry.tags == {}


def test_tokens_are_asked_for_by_scope_and_kept():
    with FakeRegistry(login="bearer") as registry:
        push(image_of(), Reference(registry.host, "team/app", "v1"), credentials=GOOD, retry=FAST)
    asked = [one.path for one in registry.seen("GET", "/token")]
    assert len(set(asked)) == 2, "one to read, one to write"
    assert len(asked) == 4, "for the image, and for its tags"
    assert all("service=fake+registry" in path or "service=fake%20registry" in path for path in asked)
    assert any("pull%2Cpush" in path or "pull,push" in path for path in asked)


def test_a_token_that_ended_is_renewed_once():
    image = image_of()
    with FakeRegistry(login="bearer") as fake, Registry(fake.host, credentials=GOOD, retry=FAST) as registry:
        assert not registry.has_manifest("app", image.digest)
        fake.tokens.clear()
        layer = image.layers[0]
        registry.put_blob("app", layer.descriptor, layer.open)
        fake.tokens.clear()
        assert registry.has_blob("app", layer.descriptor.digest)


def test_a_token_that_ends_while_a_blob_is_sent_is_renewed():
    layer = image_of().layers[0]
    with FakeRegistry(login="bearer") as fake, Registry(fake.host, credentials=GOOD, retry=FAST) as registry:
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{fake.host}/token",service="s"'}
        fake.fail("PUT", "uploads", status=401, headers=challenge)
        registry.put_blob("app", layer.descriptor, layer.open)
        assert len(fake.seen("PUT")) == 2


def test_an_identity_token_is_exchanged():
    with FakeRegistry(login="bearer", identity_token="refresh-me") as registry:
        credentials = Credentials(identity_token="refresh-me")
        push(image_of(), Reference(registry.host, "app", "v1"), credentials=credentials, retry=FAST)
    assert registry.tags
    assert registry.seen("POST", "/token")
    assert not registry.seen("GET", "/token")


def test_what_anyone_may_read_needs_no_credentials():
    image = image_of()
    with FakeRegistry(login="bearer", anonymous_pull=True) as registry:
        reference = Reference(registry.host, "app", "v1")
        push(image, reference, credentials=GOOD, retry=FAST)
        assert pull(reference, machine="x86_64", retry=FAST).digest == image.digest
        with pytest.raises(RegistryError, match="push other"):
            push(image, Reference(registry.host, "other", "v1"), retry=FAST)


def test_a_token_server_that_fails_is_tried_again_and_one_that_lies_is_named():
    with FakeRegistry(login="bearer") as fake, Registry(fake.host, credentials=GOOD, retry=FAST) as registry:
        fake.fail("GET", "/token", times=2, status=503)
        assert registry.manifest_digest("app", "v1") is None
    with FakeRegistry(login="bearer") as fake, Registry(fake.host, credentials=GOOD, retry=FAST) as registry:
        fake.fail("GET", "/token", status=200, body=b'{"token": ["x"]}')
        with pytest.raises(RegistryError, match="sent no valid token"):
            registry.manifest("app", "v1")


def test_a_login_that_is_unknown_is_said():
    with FakeRegistry() as fake, Registry(fake.host, retry=FAST) as registry:
        fake.fail("GET", "/v2/$", status=401, headers={"WWW-Authenticate": "Negotiate abc"})
        with pytest.raises(RegistryError, match="no authentication that envbuild"):
            registry.manifest("app", "v1")


def test_docker_and_podman_files_are_read_in_order(tmp_path):
    entry = {"auth": base64.b64encode(b"docker:one:two").decode()}
    write(tmp_path / ".docker" / "config.json", {"auths": {"https://r.example/v1/": entry}})
    write(
        tmp_path / "run/containers/auth.json",
        {"auths": {"r.example": {"username": "no", "password": "x"}, "p.example/team": entry}},
    )
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert find_credentials("r.example", "app", environ=environ).credentials == Credentials(
        username="docker", password="one:two"
    )
    assert find_credentials("p.example", "team/app", environ=environ).credentials is not None
    assert find_credentials("p.example", "other/app", environ=environ).credentials is None
    environ["REGISTRY_AUTH_FILE"] = str(tmp_path / "mine.json")
    write(tmp_path / "mine.json", {"auths": {"p.example": {"identitytoken": "t"}}})
    assert find_credentials("p.example", "team/app", environ=environ).credentials == Credentials(identity_token="t")


def test_docker_hub_has_its_own_key(tmp_path):
    write(tmp_path / "config.json", {"auths": {"https://index.docker.io/v1/": {"username": "u", "password": "p"}}})
    environ = {"HOME": "/nowhere", "DOCKER_CONFIG": str(tmp_path)}
    assert find_credentials("docker.io", "library/python", environ=environ).credentials == Credentials(
        username="u", password="p"
    )


@pytest.mark.parametrize("config", [{"credHelpers": {"r.example": "fake"}}, {"credsStore": "fake"}])
def test_a_helper_is_asked_with_the_host_on_stdin(tmp_path, monkeypatch, config):
    script = 'read host; printf \'{"Username":"%s","Secret":"%s"}\' "$1" "$host"'
    helper(tmp_path, monkeypatch, script)
    write(tmp_path / ".docker" / "config.json", config)
    assert find_credentials("r.example", "app").credentials == Credentials(username="get", password="r.example")


def test_a_helpers_identity_token_is_one(tmp_path, monkeypatch):
    helper(tmp_path, monkeypatch, 'printf \'{"Username":"<token>","Secret":"t"}\'')
    write(tmp_path / ".docker" / "config.json", {"credsStore": "fake"})
    assert find_credentials("r.example", "app").credentials == Credentials(identity_token="t")


def test_a_helper_that_has_none_leaves_it_to_the_file(tmp_path, monkeypatch):
    helper(tmp_path, monkeypatch, "echo credentials not found in native keychain; exit 1")
    entry = {"username": "u", "password": "p"}
    write(tmp_path / ".docker" / "config.json", {"credsStore": "fake", "auths": {"r.example": entry}})
    assert find_credentials("r.example", "app").credentials == Credentials(username="u", password="p")


@pytest.mark.parametrize("config", ["{", {"credsStore": "absent"}, {"auths": {"r.example": {"auth": "%%%"}}}])
def test_a_source_that_fails_is_a_hint(tmp_path, config):
    write(tmp_path / ".docker" / "config.json", config)
    found = find_credentials("r.example", "app")
    assert found.credentials is None
    assert len(found.hints) == 1


def test_hints_stand_in_the_error(tmp_path):
    write(tmp_path / ".docker" / "config.json", {"credsStore": "absent"})
    with FakeRegistry(login="bearer") as registry, pytest.raises(RegistryError) as caught:
        push(image_of(), Reference(registry.host, "app", "v1"), retry=FAST)
    assert "docker-credential-absent could not be run" in caught.value.todo


def test_google_without_credentials_is_a_hint():
    found = find_credentials("europe-docker.pkg.dev", "project/repo/app")
    assert found.credentials is None
    assert "gcloud auth application-default login" in found.hints[0]


class _Metadata(BaseHTTPRequestHandler):
    """The part of Google's metadata server that gives access tokens."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        answers = {"token": {"access_token": "ya29.token", "expires_in": 3000, "token_type": "Bearer"}}
        info = {"email": "a@b", "aliases": ["default"], "scopes": []}
        last = self.path.partition("?")[0].rstrip("/").rpartition("/")[2]
        value = b"project" if "project" in self.path else json.dumps(answers.get(last, info)).encode()
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/text" if value == b"project" else "application/json")
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)


def test_google_gives_an_access_token():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Metadata)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    host = f"127.0.0.1:{server.server_port}"
    # google-auth reads these variables when it is imported.
    environ = {key: value for key, value in os.environ.items() if key != "NO_GCE_CHECK"}
    environ |= dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"), host)
    script = (
        "from envbuild.registry.auth import find_credentials; found = find_credentials('us-docker.pkg.dev', 'p/r/a');"
        "assert found.credentials, found; print(found.credentials.username, found.credentials.password)"
    )
    try:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.shutdown()
        server.server_close()
    assert done.stdout == "oauth2accesstoken ya29.token\n", done.stderr
