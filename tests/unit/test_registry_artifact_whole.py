"""The whole command on Artifact Registry: its API, and its registry behind a name of Google's and TLS."""

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from envbuild.oci.image import image_index
from envbuild.oci.layout import write_layout
from tests.fakes.artifact_registry import FakeArtifactRegistry
from tests.fakes.index import FakeIndex, serving
from tests.fakes.registry import FakeRegistry, _Handler
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import make_wheel
from tests.running import run_envbuild
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site, manifest_of

HOST = "europe-west1-docker.pkg.dev"
REPOSITORY = f"{HOST}/proj/images/app"
NAME = "projects/proj/locations/europe-west1/repositories/images"


class _Settled(_Handler):
    """A registry whose tags may not move, and that does not even take the same again."""

    def _manifest_put(self, name: str, target: str) -> None:
        if target in self.registry.repositories[name].tags:
            self._error(400, "DENIED", "The repository has enabled tag immutability.")
        else:
            super()._manifest_put(name, target)


class _Tunnel(BaseRequestHandler):
    """What follows CONNECT is TLS, whose other end is the registry, whatever host was asked for."""

    context: ssl.SSLContext
    registry: FakeRegistry

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.request.recv(1)
        assert head.startswith(b"CONNECT ")
        self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with suppress(OSError), self.context.wrap_socket(self.request, server_side=True) as inside:
            type("Handler", (_Settled,), {"registry": self.registry})(inside, self.client_address, self.server)


class _Proxy(ThreadingTCPServer):
    daemon_threads = True


@contextmanager
def proxied(certificate: Path, key: Path, registry: FakeRegistry) -> Iterator[str]:
    """A proxy behind which the registry has every name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with _Proxy(("127.0.0.1", 0), type("Tunnel", (_Tunnel,), {"context": context, "registry": registry})) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    said = ("-subj", "/CN=fake", "-addext", f"subjectAltName=DNS:{HOST}")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run(["openssl", "req", *kind, *said, *files], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


class Cloud:
    """A site, and both halves of Artifact Registry."""

    def __init__(
        self, site: Site, api: FakeArtifactRegistry, registry: FakeRegistry, env: dict[str, str], index: FakeIndex
    ) -> None:
        self.site, self.api, self.registry, self.env, self.index = site, api, registry, env, index

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.site.build("--json", *arguments, **self.env)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        env = os.environ | self.env | {"ENVBUILD_CACHE": str(self.site.folder / "cache")}
        return run_envbuild(*arguments, env=env)

    @property
    def tags(self) -> dict[str, str]:
        """Digest by tag, of images."""
        found = self.registry.repositories["proj/images/app"].tags
        return {tag: digest for tag, digest in found.items() if not tag.startswith(("layer-", "fact-"))}


@pytest.fixture
def cloud(tmp_path, certificate):
    with (
        serving(TENSORFLOW, TOOL) as index,
        FakeArtifactRegistry() as api,
        FakeRegistry() as registry,
        proxied(certificate[0], certificate[1], registry) as proxy,
    ):
        env = {"HTTPS_PROXY": proxy, "SSL_CERT_FILE": str(certificate[0]), "NO_PROXY": "", "HOME": str(tmp_path)}
        env |= {"ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT": api.url, "NO_GCE_CHECK": "true"}
        yield Cloud(Site(tmp_path, index.url), api, registry, env, index)


def immovable(first: Any) -> str:
    """What is said where the tag of the first push would move."""
    return f"the tag names {json.loads(first.stdout)['digest']} already, and may not move"


def test_a_repository_is_created_pushed_to_and_stamped(cloud):
    done = cloud.build("--push", REPOSITORY, "--create-repository", "--stamp", "model")
    assert done.returncode == 0, done.stderr
    assert f"created {NAME}" in done.stderr
    digest = json.loads(done.stdout)["digest"]
    stamped = f"stamped-{digest.removeprefix('sha256:')[:12]}"
    assert cloud.tags[stamped] == digest
    assert list(cloud.api.repositories) == [NAME]


def test_without_the_option_the_error_names_it_before_the_work(cloud):
    done = cloud.build("--push", REPOSITORY)
    assert done.returncode == 14
    assert "--create-repository" in done.stderr
    assert "gcloud artifacts repositories create images" in done.stderr
    assert "locking" not in done.stderr
    assert cloud.api.repositories == {}


def test_the_same_environment_is_pushed_again_where_tags_may_not_move(cloud):
    cloud.api.add(NAME, dockerConfig={"immutableTags": True})
    first = cloud.build("--push", f"{REPOSITORY}:v7", "--stamp", "model")
    again = cloud.build("--push", f"{REPOSITORY}:v7", "--stamp", "model", "--no-remote-cache")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert json.loads(first.stdout)["digest"] == json.loads(again.stdout)["digest"]
    assert sorted(tag.partition("-")[0] for tag in cloud.tags) == ["env", "sha256", "stamped", "v7"]


def test_another_environment_is_refused_a_tag_that_may_not_move_before_the_work(cloud):
    cloud.api.add(NAME, dockerConfig={"immutableTags": True})
    first = cloud.build("--push", f"{REPOSITORY}:v7")
    before = cloud.tags
    cloud.site.manifest.write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"))))
    other = cloud.build("--push", f"{REPOSITORY}:v7")
    assert (first.returncode, other.returncode) == (0, 14), first.stderr + other.stderr
    assert immovable(first) in other.stderr
    assert "assembling" not in other.stderr
    assert cloud.tags == before


def test_a_registry_that_refuses_the_stamped_tag_is_told_and_the_model_is_stamped(cloud):
    cloud.api.add(NAME)
    cloud.registry.fail("PUT", "manifests/stamped-", status=403)
    done = cloud.build("--push", REPOSITORY, "--stamp", "model")
    assert done.returncode == 0, done.stderr
    assert "warning: cannot set the tag stamped-" in done.stderr
    assert json.loads(done.stdout)["stamped"]


def test_an_image_that_is_not_stamped_has_no_such_tag(cloud):
    cloud.api.add(NAME)
    assert cloud.build("--push", REPOSITORY).returncode == 0
    assert [tag.partition("-")[0] for tag in cloud.tags] == ["sha256", "env"]


def test_a_repository_that_another_makes_with_tags_that_may_not_move_is_treated_as_such(cloud):
    cloud.api.add(NAME, dockerConfig={"immutableTags": True})
    cloud.api.fail("repository", 404)  # it is made after the first question
    first = cloud.build("--push", f"{REPOSITORY}:v7", "--create-repository")
    assert first.returncode == 0, first.stderr
    before = cloud.tags
    cloud.site.manifest.write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"))))
    cloud.api.fail("repository", 404)
    other = cloud.build("--push", f"{REPOSITORY}:v7", "--create-repository")
    assert other.returncode == 14
    assert "may not move" in other.stderr
    assert "assembling" not in other.stderr
    assert cloud.tags == before


@pytest.fixture
def both(cloud):
    """Base and wheels for two platforms."""
    for name in ("tensorflow", "tensorflow-cpu-aws"):
        cloud.index.add(make_wheel(name, "2.15.1", tags=["cp311-cp311-manylinux_2_17_aarch64"], purelib=False))
    arm = {path.replace("x86_64", "aarch64"): what for path, what in BASE.items()}
    images = [image_of_trees(BASE), image_of_trees(arm, architecture="arm64", variant="v8")]
    shutil.rmtree(cloud.site.folder / "base")
    write_layout(image_index(images), cloud.site.folder / "base")
    return cloud


PLATFORMS = ("--platform", "linux/amd64,linux/arm64")


def test_several_platforms_are_pushed_again_into_a_new_repository_where_tags_may_not_move(both):
    first = both.build(*PLATFORMS, "--push", f"{REPOSITORY}:v7", "--stamp", "model", "--create-repository")
    assert first.returncode == 0, first.stderr
    assert f"created {NAME}" in first.stderr
    both.api.repositories[NAME]["dockerConfig"] = {"immutableTags": True}
    again = both.build(*PLATFORMS, "--push", f"{REPOSITORY}:v7", "--stamp", "model", "--create-repository")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["digest"] == json.loads(first.stdout)["digest"] == both.tags["v7"]
    assert sorted(tag.partition("-")[0] for tag in both.tags) == [
        "env",
        "env",
        "sha256",
        "sha256",
        "stamped",
        "stamped",
        "v7",
    ]


def test_another_index_is_refused_a_tag_that_may_not_move(both):
    both.api.add(NAME, dockerConfig={"immutableTags": True})
    first = both.build(*PLATFORMS, "--push", f"{REPOSITORY}:v7")
    assert first.returncode == 0, first.stderr
    both.site.manifest.write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"))))
    other = both.build(*PLATFORMS, "--push", f"{REPOSITORY}:v7", "--stamp", "model")
    assert other.returncode == 14
    assert immovable(first) in other.stderr
    assert both.tags["v7"] == json.loads(first.stdout)["digest"]
    assert not (both.site.folder / "model/envbuild").exists(), "nothing is stamped"


def test_an_image_is_rebased_into_a_new_repository(cloud):
    cloud.api.add(NAME)
    built = cloud.build("--push", f"{REPOSITORY}:v7")
    assert built.returncode == 0, built.stderr
    folder = cloud.site.folder
    write_layout(image_of_trees(BASE, {"etc/patched": b"yes"}), folder / "patched", name="base")
    asked = ("rebase", f"{REPOSITORY}:v7", "--old-base", folder / "base", "--base", folder / "patched")
    fresh = f"{HOST}/proj/fresh/app"
    refused = cloud.run(*asked, "--push", f"{fresh}:v8")
    assert refused.returncode == 14
    assert "gcloud artifacts repositories create fresh" in refused.stderr
    done = cloud.run(*asked, "--push", f"{fresh}:v8", "--create-repository")
    assert done.returncode == 0, done.stderr
    assert "created projects/proj/locations/europe-west1/repositories/fresh" in done.stderr
    assert done.stdout.strip() == f"{fresh}@{cloud.registry.repositories['proj/fresh/app'].tags['v8']}"
    useless = cloud.run(*asked, "--create-repository")
    assert (useless.returncode, "--push" in useless.stderr) == (2, True)


def test_creating_a_repository_for_nothing_is_refused(cloud):
    done = cloud.build("--create-repository")
    assert done.returncode == 2
    assert "--push" in done.stderr


def test_a_base_is_pushed_into_a_new_repository(cloud, tmp_path):
    write_layout(image_of_trees(BASE), tmp_path / "layout", name="base")
    command = [sys.executable, "-m", "envbuild", "base", "push", str(tmp_path / "layout"), f"{REPOSITORY}:base"]
    env = os.environ | cloud.env
    refused = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert refused.returncode == 14
    assert "--create-repository" in refused.stderr
    done = subprocess.run(
        [*command, "--create-repository"], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{REPOSITORY}@{cloud.tags['base']}"
