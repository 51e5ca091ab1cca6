"""The build context on real builders: both forms give the assembled image, need no network, and leak no secret."""

import datetime as dt
import hashlib
import io
import ipaddress
import json
import os
import shutil
import ssl
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from envbuild.base.apt import find_mirror, source_lines
from envbuild.base.resolve import resolve_base
from envbuild.engine.load import load_into
from envbuild.image.assembler import assemble
from envbuild.image.context import DEBS, build_context
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.formats import WHEELS, pylock_text, requirements_text
from envbuild.lock.model import Lock, LockedWheel, SystemPackage
from envbuild.oci.digest import Digest
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.report import SILENT
from tests.e2e.services import command_output
from tests.fakes.index import serving
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.layers import WheelFiles

pytestmark = pytest.mark.real

BASE = "context/base:latest"
DOCKER = "/usr/bin/docker"
"""Debian's client, which needs no plugin for BuildKit; another may be before it on PATH."""
FORMS = {"Dockerfile": "1", "Dockerfile.classic": "0"}
TOOL = make_wheel("tool", "1.0", entry_points={"console_scripts": {"tool": "tool:main"}}, executable=["tool/run.sh"],
                  files={"tool/__init__.py": "def main(): print('ran')\n", "tool/run.sh": "#!/bin/sh\n"})  # fmt: skip
OTHER = make_wheel("other", "2.0", scripts={"other": "#!python\nprint(1)\n"}, data={"share/other/x": "x"})
WHEELS_HERE = (OTHER, TOOL)
NASTY = {
    "QUOTES": "it's \"quoted\" `id` 'twice'",
    "EXPANDED": "$HOME ${PATH} $(id) $$ \\$HOME %PATH%",
    "ENDS_OPEN": "a \\",
    "COMMENT": "# escape=` # not a comment",
    "HEREDOC": "<<EOF <<-'EOF' 0<<EOF EOF",
    "INSTRUCTION": "x USER 0 RUN id",
    "JSON": '["a", "b"]',
    "UNICODE": "é 語 😀 \u00a0\u202e\ufeff",
    "EMPTY": "",
    "SPACES": "  two  before, after  ",
    "EQUALS": "a=b c=d",
}


@pytest.fixture(scope="module")
def base(cache, engine) -> Base:
    def pull(*_: Any) -> Any:
        raise AssertionError("a bootstrapped base needs no registry")

    found = resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=pull, report=SILENT)
    load_into(engine.client, found.image, [Reference.parse(BASE)], SILENT)
    return found


def locked(wheel: FakeWheel) -> LockedWheel:
    name, version, *_ = wheel.filename.split("-")
    return LockedWheel(
        name=name, version=version, filename=wheel.filename, sha256=Digest(wheel.sha256), size=len(wheel.data),
        url=f"https://index.invalid/{wheel.filename}",
    )  # fmt: skip


def recipe_on(base: Base, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "base_name": base.name,
        "base_digest": base.digest,
        "python_path": base.python_path,
        "target": base.target,
        "wheels": tuple(map(locked, WHEELS_HERE)),
        "variables": tuple(NASTY.items()),
        "labels": tuple((f"dev.envbuild.{name.lower()}", value) for name, value in NASTY.items()),
    }
    return Recipe(**(values | changes))


def written(recipe: Recipe, folder: Path, *, wheelhouse: bool, debs: Mapping[str, bytes] | None = None) -> Path:
    """The context in a folder, as from-manifest writes it."""
    lock = Lock(target=recipe.target, wheels=recipe.wheels, packages=recipe.packages)
    files = build_context(recipe, requirements_text(lock), pylock_text(lock), None, wheelhouse=wheelhouse)
    if wheelhouse:
        files |= {f"{WHEELS}/{wheel.filename}": wheel.data for wheel in WHEELS_HERE}
        files |= {f"{DEBS}/{name}": data for name, data in (debs or {}).items()}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def built(engine, folder: Path, form: str, tag: str, *options: str) -> str:
    """Build by the engine's own builder, new or old; return all that it said."""
    command = [
        DOCKER,
        "build",
        "--build-arg",
        f"BASE={BASE}",
        "-f",
        str(folder / form),
        "-t",
        tag,
        *options,
    ]
    env = os.environ | {"DOCKER_HOST": engine.url, "DOCKER_BUILDKIT": FORMS[form], "BUILDKIT_PROGRESS": "plain"}
    done = subprocess.run([*command, str(folder)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tree(engine, image: str) -> dict[str, tuple[Any, ...]]:
    """Every path of an image with kind, mode, owner, link and content."""
    container = engine.client.containers.create(image, ["true"])
    try:
        data = io.BytesIO(b"".join(container.export()))
    finally:
        container.remove()
    with tarfile.open(fileobj=data) as archive:
        return {it.name: (it.type, it.mode, it.uid, it.gid, it.linkname, content(archive, it)) for it in archive}


def content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member) if member.isfile() else None
    return hashlib.sha256(file.read()).hexdigest() if file else ""


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> set[str]:
    return {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}


def settings(engine, image: str) -> dict[str, Any]:
    """How an image is run; `Image` and `Hostname` are left by the classic builder's own containers."""
    found = engine.client.images.get(image).attrs["Config"]
    names = ("Env", "Labels", "User", "Entrypoint", "Cmd", "WorkingDir", "Volumes", "ExposedPorts", "OnBuild")
    return {name: found.get(name) or None for name in names}


@pytest.fixture(scope="module")
def assembled(base, engine, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("assembled")
    for wheel in WHEELS_HERE:
        (folder / wheel.filename).write_bytes(wheel.data)
    files = WheelFiles({Digest(wheel.sha256): folder / wheel.filename for wheel in WHEELS_HERE})
    made = assemble(recipe_on(base), base, files, LayerCache(folder / "cache"))

    load_into(engine.client, made.image, [Reference.parse("context/assembled:latest")], SILENT)
    return "context/assembled:latest"


@pytest.mark.parametrize("form", FORMS)
def test_a_context_of_nasty_values_gives_the_assembled_image_without_a_network(base, engine, assembled, tmp_path, form):
    folder = written(recipe_on(base), tmp_path, wheelhouse=True)
    tag = f"context/{form.lower()}:latest"
    built(engine, folder, form, tag, "--network", "none")
    assert settings(engine, tag) == settings(engine, assembled)
    env = dict(it.partition("=")[::2] for it in settings(engine, tag)["Env"])
    assert {name: env[name] for name in NASTY} == NASTY
    found, expected = tree(engine, tag), tree(engine, assembled)
    others = differing(found, expected)
    # What an installer writes of itself: pip words the scripts of entry points in its own way.
    assert {path.rpartition("/")[2] for path in others} == {"INSTALLER", "RECORD", "tool"}
    assert all(found[path][:-1] == expected[path][:-1] for path in others)
    assert engine.run(tag, ["tool"], network_mode="none") == "ran\n"


@pytest.mark.parametrize("form", ["Dockerfile", pytest.param("Dockerfile.classic", marks=pytest.mark.slow)])
def test_all_files_of_the_environment_have_one_date_which_can_be_chosen(base, engine, tmp_path, form):
    folder = written(recipe_on(base), tmp_path, wheelhouse=True)
    program = "import os; print(*sorted({int(os.lstat(os.path.join(at, it)).st_mtime) for at, _, files in os.walk('/opt/env') for it in files}))"
    for options, dates in (((), "315532800\n"), (("--build-arg", "SOURCE_DATE_EPOCH=1000000000"), "1000000000\n")):
        # A builder's cache does not tell files by their dates.
        built(engine, folder, form, "context/dated:latest", "--no-cache", *options)
        assert engine.run("context/dated:latest", ["python", "-Bc", program]) == dates


@pytest.fixture(scope="module")
def packages(base, engine, tmp_path_factory) -> dict[SystemPackage, bytes]:
    """Two packages of the suite that need nothing but the C library; one has an epoch in its version."""
    folder = tmp_path_factory.mktemp("debs")
    script = 'echo "$SOURCES" > /etc/apt/sources.list; apt-get update; cd /debs; apt-get download libogg0 libxau6'
    engine.run(BASE, ["sh", "-ec", script], environment={"SOURCES": sources()},
               volumes={str(folder): {"bind": "/debs", "mode": "rw"}})  # fmt: skip
    return {package_of(path): path.read_bytes() for path in sorted(folder.iterdir())}


def sources() -> str:
    return "\n".join(source_lines("bookworm", find_mirror(Path("/etc/apt"))).values())


def package_of(path: Path) -> SystemPackage:
    name, version, architecture = path.stem.split("_")
    return SystemPackage(
        name=name, version=version.replace("%3a", ":"), architecture=architecture, filename=f"pool/{path.name}",
        sha256=Digest(hashlib.sha256(path.read_bytes()).hexdigest()), size=path.stat().st_size,
    )  # fmt: skip


@pytest.mark.slow  # four images: 60 s
def test_system_packages_are_the_same_from_a_mirror_and_from_the_context_by_either_builder(
    base, engine, packages, tmp_path
):
    recipe = recipe_on(base, packages=tuple(packages), wheels=())
    debs = {it.basename: data for it, data in packages.items()}
    house = written(recipe, tmp_path / "house", wheelhouse=True, debs=debs)
    online = written(recipe, tmp_path / "online", wheelhouse=False)
    found = []
    for form in FORMS:
        built(engine, house, form, "context/debs:latest", "--network", "none")
        found.append(tree(engine, "context/debs:latest"))
        built(engine, online, form, "context/debs:latest", "--build-arg", f"APT_SOURCES={sources()}")
        found.append(tree(engine, "context/debs:latest"))
    assert all(not differing(found[0], other) for other in found[1:])
    new = found[0].keys() - tree(engine, BASE).keys()
    assert not [
        path
        for path in new
        if path.startswith(("usr/share/man", "usr/share/locale", "var/log", "var/lib/apt", "mnt", "debs"))
    ]
    asked = engine.run(
        "context/debs:latest",
        ["dpkg-query", "-W", "-f", "${Package}=${Version} ${db:Status-Status}\\n", *(it.name for it in packages)],
    )
    assert asked == "".join(f"{it.name}={it.version} installed\n" for it in packages)
    program = "import ctypes; ctypes.CDLL('libogg.so.0'); ctypes.CDLL('libXau.so.6')"
    engine.run("context/debs:latest", ["python", "-c", program])


def test_a_package_that_is_not_the_locked_file_ends_the_build(base, engine, packages, tmp_path):
    other = tuple(SystemPackage(name=it.name, version=it.version, architecture=it.architecture, filename=it.filename,
                                sha256=Digest("0" * 64), size=it.size) for it in packages)  # fmt: skip
    folder = written(recipe_on(base, packages=other, wheels=()), tmp_path, wheelhouse=False)
    with pytest.raises(AssertionError, match="FAILED"):
        built(engine, folder, "Dockerfile", "context/none:latest", "--build-arg", f"APT_SOURCES={sources()}")


class Site:
    """An index behind a password and a certificate that no image knows, and the canaries that must not get out."""

    def __init__(self, folder: Path, address: str, authority: str) -> None:
        self.folder, self.address, self.authority = folder, address, authority

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)


USER, PASSWORD = "canary-user", "canary-password-6f1d"


@pytest.fixture
def site(tmp_path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    authority, context = certified(folder)
    with serving(*WHEELS_HERE, tls=context) as index:
        index.credentials = (USER, PASSWORD)
        yield Site(folder, f"127.0.0.1:{index.port}", authority)


def certified(folder: Path) -> tuple[str, ssl.SSLContext]:
    """A self-signed certificate for loopback, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "canary authority")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    bundle = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(bundle)
    (folder / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return bundle.decode(), context


def everything(engine, image: str) -> Iterator[tuple[str, bytes]]:
    """Config, history, and every name and content of every layer of an image, as it would be pushed."""
    yield "history", json.dumps(engine.client.api.history(image)).encode()
    saved = io.BytesIO(b"".join(engine.client.images.get(image).save()))
    with tarfile.open(fileobj=saved) as archive:
        for member in (it for it in archive if it.isfile()):
            file = archive.extractfile(member)
            assert file
            data = file.read()
            yield member.name, data
            if member.name.endswith("layer.tar"):
                yield from ((f"{member.name}: {it}", text) for it, text in files_of(data))


def files_of(layer: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            yield member.name, file.read() if file else member.linkname.encode()


@pytest.mark.parametrize("way", ["pip.conf", "netrc"])
def test_an_index_with_a_password_and_a_certificate_of_its_own_is_used_and_nowhere_kept(
    base, engine, site, tmp_path, way
):
    folder = written(recipe_on(base), tmp_path / "context", wheelhouse=False)
    secret = {
        "pip.conf": ["--secret", "id=pip,src=" + site.file("pip.conf", f"[global]\nindex-url = https://{USER}:{PASSWORD}@{site.address}/simple/\n")],
        "netrc": ["--secret", "id=netrc,src=" + site.file("netrc", f"machine 127.0.0.1 login {USER} password {PASSWORD}\n"),
                  "--build-arg", f"PIP_INDEX_URL=https://{site.address}/simple/"],
    }[way]  # fmt: skip
    authority = ["--secret", f"id=ca,src={site.folder / 'ca.pem'}"]
    said = built(
        engine, folder, "Dockerfile", "context/secret:latest", "--no-cache", "--network", "host", *secret, *authority
    )
    assert engine.run("context/secret:latest", ["tool"], network_mode="none") == "ran\n"
    key = (site.folder / "key.pem").read_text().splitlines()[1]
    secrets = (PASSWORD, site.authority.splitlines()[1], key)
    assert not [it for it in secrets if it in said]
    sent = {str(it.relative_to(folder)): it.read_bytes() for it in folder.rglob("*") if it.is_file()}
    for name, data in (*sent.items(), *everything(engine, "context/secret:latest")):
        # pip says user and host while it works; they too are in nothing that stays.
        assert not [it for it in (*secrets, USER, site.address) if it.encode() in data or it in name], name


def test_an_index_whose_certificate_nobody_vouches_for_is_not_believed(base, engine, site, tmp_path):
    folder = written(recipe_on(base), tmp_path / "context", wheelhouse=False)
    config = site.file(
        "pip.conf", f"[global]\nindex-url = https://{USER}:{PASSWORD}@{site.address}/simple/\nretries = 0\n"
    )
    with pytest.raises(AssertionError, match="CERTIFICATE_VERIFY_FAILED"):
        built(
            engine,
            folder,
            "Dockerfile",
            "context/none:latest",
            "--no-cache",
            "--network",
            "host",
            "--secret",
            f"id=pip,src={config}",
        )


def test_a_classic_builder_takes_an_index_without_a_password(base, engine, tmp_path):
    folder = written(recipe_on(base), tmp_path, wheelhouse=False)
    with serving(*WHEELS_HERE) as index:
        options = ["--network", "host", "--build-arg", f"PIP_INDEX_URL={index.url}"]
        built(engine, folder, "Dockerfile.classic", "context/classic:latest", *options)
    assert engine.run("context/classic:latest", ["tool"], network_mode="none") == "ran\n"
    assert not any(
        f"127.0.0.1:{index.port}".encode() in data for _, data in everything(engine, "context/classic:latest")
    )


@pytest.mark.slow  # 30 s
def test_buildah_builds_both_forms_and_reads_nasty_values_as_docker_does(base, tmp_path):
    folder = written(recipe_on(base), tmp_path / "context", wheelhouse=True)
    write_layout(base.image, tmp_path / "base", name="base")
    stores = ["--root", str(tmp_path / "root"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs"]
    place = f"containers-storage:[vfs@{tmp_path}/root+{tmp_path}/run]localhost/base:1"
    try:
        command_output("skopeo", "copy", "--quiet", f"oci:{tmp_path}/base:base", place)
        for form in FORMS:
            options = [
                "--isolation",
                "chroot",
                "--build-arg",
                "BASE=localhost/base:1",
                "-f",
                str(folder / form),
                "-t",
                "it",
            ]
            command_output("buildah", *stores, "build", *options, str(folder))
            found = json.loads(command_output("buildah", *stores, "inspect", "--type", "image", "it"))["OCIv1"][
                "config"
            ]
            env = dict(it.partition("=")[::2] for it in found["Env"])
            assert {name: env[name] for name in NASTY} == NASTY
            assert {name: found["Labels"][f"dev.envbuild.{name.lower()}"] for name in NASTY} == NASTY
            assert found["User"] == "65532:65532"
    finally:
        shutil.rmtree(tmp_path / "root", ignore_errors=True)  # gigabytes
