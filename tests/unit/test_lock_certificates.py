"""`--ca-bundle`: checked before any work, and believed alone."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from envbuild.errors import LockError, UsageError
from envbuild.lock.index import check_bundle, make_client, trust_context
from envbuild.lock.resolvers import PipToolsResolver, UvResolver
from envbuild.lock.settings import IndexSettings
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.unit.locking import HERE, forget_settings
from tests.unit.test_from_manifest import Site

PURE = make_wheel("pure", "1.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority, its key, and a folder with its certificate as SSL_CERT_DIR wants it."""

    bundle: Path
    key: Path
    folder: Path


def certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """Make a certificate and its key."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    command = ["openssl", "req", *kind, "-keyout", str(key), "-out", str(made), "-subj", f"/CN={name}", *options]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


def authority(place: Path) -> Authority:
    folder = place / "hashed"
    folder.mkdir(parents=True)
    bundle, key = certificate(place, place.name)
    asked = ["openssl", "x509", "-hash", "-noout", "-in", str(bundle)]
    name = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    (folder / f"{name}.0").write_bytes(bundle.read_bytes())
    return Authority(bundle=bundle, key=key, folder=folder)


@pytest.fixture
def ours(tmp_path):
    return authority(tmp_path / "ours")


@pytest.fixture
def other(tmp_path):
    return authority(tmp_path / "other")


@pytest.fixture
def index(ours, tmp_path):
    signed = ("-CA", str(ours.bundle), "-CAkey", str(ours.key), "-addext", "subjectAltName=IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path, "index", *signed, "-addext", "basicConstraints=critical,CA:FALSE"))
    with serving(PURE, tls=context) as served:
        yield served


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def revoked(key: Authority, folder: Path) -> Path:
    """A list of revoked certificates, which is PEM, and no certificate."""
    settings = "[ca]\ndefault_ca=it\n[it]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=2\n"
    written(folder / "ca.cnf", settings)
    written(folder / "index", "")
    command = ["openssl", "ca", "-config", "ca.cnf", "-gencrl", "-keyfile", str(key.key), "-cert", str(key.bundle)]
    subprocess.run([*command, "-out", "crl.pem"], cwd=folder, check=True, capture_output=True)
    return folder / "crl.pem"


def bad_bundles(ours: Authority, folder: Path) -> list[Path]:
    half = ours.bundle.read_text()[:300] + "\n-----END CERTIFICATE-----\n"
    made = [written(folder / "a.txt", "certificates\n"), written(folder / "empty", ""), written(folder / "half", half)]
    return [*made, ours.key, revoked(ours, folder), folder, folder / "absent"]


def test_a_bundle_without_certificates_is_refused_up_front(ours, tmp_path):
    for path in bad_bundles(ours, tmp_path):
        with pytest.raises(UsageError) as caught:
            check_bundle(path)
        assert caught.value.where == f"--ca-bundle {path}"
    check_bundle(ours.bundle)


def test_a_bundle_that_is_bad_later_is_named_by_its_option(ours):
    with pytest.raises(LockError, match="the CA bundle cannot be read") as caught:
        trust_context(IndexSettings(default=None, ca_bundle=str(ours.key)))
    assert caught.value.where == f"--ca-bundle {ours.key}"
    assert "SSL_CERT_FILE" not in str(caught.value)


@pytest.mark.parametrize("options", [("--dry-run",), ("--builder", "docker", "--out", "out"), ("--out", "out")])
def test_the_command_refuses_a_key_before_anything_is_asked(ours, tmp_path, options):
    with serving() as index:
        site = Site(tmp_path, index.url)
        done = site.build("--ca-bundle", ours.key, *options, DOCKER_HOST="unix:///nowhere.sock")
        assert (done.returncode, done.stdout, index.requests) == (2, "", [])
    assert f"--ca-bundle {ours.key}" in done.stderr


def test_an_authority_in_ssl_cert_dir_is_believed_without_a_bundle_only(monkeypatch, index, ours, other):
    monkeypatch.setenv("SSL_CERT_DIR", str(ours.folder))
    with make_client(IndexSettings(default=None)) as client:
        assert client.get(f"{index.url}/pure/").status_code == 200
    with (
        make_client(IndexSettings(default=None, ca_bundle=str(other.bundle))) as client,
        pytest.raises(httpx.ConnectError, match="certificate verify failed"),
    ):
        client.get(f"{index.url}/pure/")


@pytest.mark.parametrize("resolver", [UvResolver, PipToolsResolver])
def test_resolvers_believe_the_bundle_and_nothing_else(monkeypatch, index, ours, other, resolver):
    good = IndexSettings(default=index.url, ca_bundle=str(ours.bundle))
    bad = IndexSettings(default=index.url, ca_bundle=str(other.bundle))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other.bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(other.folder))
    [wheel] = resolver(settings=good).resolve(("pure==1.0",), HERE).wheels
    assert wheel.url == index.file_url(PURE.filename)
    index.requests.clear()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ours.bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(ours.folder))
    monkeypatch.setenv("UV_SYSTEM_CERTS", "true")
    with pytest.raises(LockError):
        resolver(settings=bad).resolve(("pure==1.0",), HERE)
    assert index.requests == []
