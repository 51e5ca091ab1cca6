"""What is secret about an index stays out of all that a build leaves: every layer, config, log and file is searched."""

import gzip
import json
import ssl
import tarfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest

from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from tests.e2e.docker_builds import WHEELS, Builds, gateway, variables
from tests.e2e.services import command_output
from tests.fakes.index import serving

pytestmark = pytest.mark.real

PASSWORD, TOKEN = "canary-p@ssword-1", "canary-token-2"


@pytest.fixture(scope="module")
def authority(tmp_path_factory, engine):
    """A certificate authority of a company's own, and what an index on the engine's bridge shows."""
    folder = tmp_path_factory.mktemp("authority")
    address = gateway(engine)
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    command_output(
        "openssl", "req", "-x509", *key, str(folder / "ca.key"), "-out", str(folder / "ca.pem"),
        "-subj", "/CN=canary authority", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE",
    )  # fmt: skip
    command_output(
        "openssl", "req", *key, str(folder / "own.key"), "-out", str(folder / "own.csr"), "-subj", "/CN=index",
    )  # fmt: skip
    (folder / "names").write_text(f"subjectAltName=IP:{address}\n")
    command_output(
        "openssl", "x509", "-req", "-in", str(folder / "own.csr"), "-CA", str(folder / "ca.pem"),
        "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-out", str(folder / "own.pem"), "-days", "2",
        "-extfile", str(folder / "names"),
    )  # fmt: skip
    return folder


@pytest.fixture
def index(authority, engine):
    """An index that wants a password, and whose certificate nobody else believes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "own.pem", authority / "own.key")
    with serving(*WHEELS, host=gateway(engine), tls=context) as index:
        yield index


def of_address(index, folder: Path) -> Mapping[str, str]:
    """User and password in the address, as most have it."""
    index.credentials = ("canary-user", PASSWORD)
    address = index.url.replace(PASSWORD, quote(PASSWORD, safe=""))
    return variables(address)


def of_netrc(index, folder: Path) -> Mapping[str, str]:
    """User and token in a netrc."""
    index.credentials = ("canary-user", TOKEN)
    netrc = folder / "netrc"
    netrc.write_text(f"machine {index.host} login canary-user password {TOKEN}\n")
    netrc.chmod(0o600)
    return variables(f"{index.root}/simple", NETRC=str(netrc))


@pytest.mark.parametrize(("builder", "credentials"), [("buildkit", of_address), ("buildkit", of_netrc)])
def test_no_secret_of_the_index_is_anywhere(builder, credentials, tmp_path, engine, cache, registry, authority, index):
    builds, place = Builds(tmp_path, engine, cache, builder), f"{registry.host}/canaries/small"
    settings = credentials(index, tmp_path)
    name = f"example.com/canary:{builder}"
    done = builds.run(
        "--ca-bundle", authority / "ca.pem", "--push", f"{place}:{builder}", "--load", name, "--json", **settings
    )
    assert done.returncode == 0, done.stderr
    fetched = [it for it in index.requests if it.path.endswith(".whl") and it.method == "GET" and not it.range]
    assert {it.path for it in fetched} == {f"/files/{wheel.filename}" for wheel in WHEELS}
    try:
        image = json.loads(done.stdout)["image"]
        everything = dict(left_by(builds, image, name), log=done.stderr.encode(), result=done.stdout.encode())
        assert len([it for it in everything if it.startswith("layer")]) > 5000  # Debian's files
        certificate = (authority / "ca.pem").read_text().splitlines()
        words = [PASSWORD, quote(PASSWORD, safe=""), TOKEN, "canary authority", certificate[5]]
        words += (authority / "ca.key").read_text().splitlines()[5:6]
        for word in words:
            assert [it for it, data in everything.items() if word.encode() in data] == [], word
        where = f"{index.host}:{index.port}"
        inside = [it for it, data in everything.items() if where.encode() in data and it.startswith(IMAGE)]
        assert inside == []
    finally:
        builds.forget(name)
    assert builds.left() == set()


IMAGE = ("layer", "config", "manifest", "history", "saved")
"""What everybody gets who gets the image."""


def left_by(builds: Builds, image: str, name: str) -> Iterator[tuple[str, bytes]]:
    """All that a build left, unpacked: in the registry, in the engine, and in the folder that it wrote."""
    found = pull(Reference.parse(image), machine="x86_64")
    yield "config", found.config
    yield "manifest", found.manifest
    yield "history", json.dumps(builds.engine.client.images.get(name).history()).encode()
    for number, layer in enumerate(found.layers):
        with layer.open() as file:
            yield from unpacked(f"layer {number}", gzip.decompress(file.read()))
    for part in unpacked("saved", b"".join(builds.engine.client.api.get_image(name))):
        if part[0].endswith((".json", "json", "repositories", "VERSION")):
            yield part
    for path in (builds.folder / "out").rglob("*"):
        if path.is_file():
            yield f"context {path.name}", path.read_bytes()


def unpacked(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Each member's name, which may tell something too, with its content."""
    with tarfile.open(fileobj=BytesIO(data)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            head = f"{member.name}\0{member.linkname}\0{member.pax_headers}".encode()
            yield f"{name} {member.name}", head + (file.read() if file else b"")
