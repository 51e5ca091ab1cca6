"""Dockerfile.base, built for real on a Debian that has no Python, and what `envbuild base` says of the results."""

import hashlib
import http.server
import io
import json
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envbuild.base.apt import Mirror, find_mirror
from envbuild.base.build import BaseOrder, Parent, make_base
from envbuild.base.resolve import resolve_base
from envbuild.files import base_dockerfile, data_folder
from envbuild.match.profiles import load_profiles
from envbuild.match.rows import CudaArchive
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from envbuild.report import SILENT
from tests.e2e.services import command_output
from tests.fakes.index import serving
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

pytestmark = pytest.mark.real

STAMP = "20240101T000000Z"


@pytest.fixture(scope="module")
def mirror() -> Mirror:
    return find_mirror(Path("/etc/apt"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory, mirror, engine, registry) -> str:
    """A Debian without Python and certificates, with apt's sources of its own, in a registry."""
    path = tmp_path_factory.mktemp("plain") / "plain.tar"
    command_output("mmdebstrap", "--variant=minbase", "bookworm", str(path), mirror.archive)
    engine.client.api.import_image(str(path), repository=f"{registry.host}/parents/plain", tag="1")
    engine.client.images.push(f"{registry.host}/parents/plain", "1")
    return f"{registry.host}/parents/plain:1"


@pytest.fixture(scope="module")
def old_python(cache, engine, registry) -> str:
    """An image of Debian 11 with a Python 3.9 in /usr/local, as the official images have it."""
    bullseye = resolve_base("debian:bullseye", machine="x86_64", cache=cache / "envbuild", pull=no_pull, report=SILENT)
    pushed = push(bullseye.image, Reference.parse(f"{registry.host}/parents/bullseye:1"))
    copied = "cp -a /usr/bin/python3.9 /usr/local/bin/ && cp -a /usr/lib/python3.9 /usr/local/lib/"
    lines = (f"FROM {pushed.reference}", f"RUN {copied} && ln -s python3.9 /usr/local/bin/python3")
    name = f"{registry.host}/parents/python"
    engine.client.images.build(fileobj=io.BytesIO("\n".join(lines).encode()), tag=f"{name}:3.9", rm=True)
    engine.client.images.push(name, "3.9")
    return f"{name}:3.9"


def no_pull(reference: Reference, machine: str) -> Image:
    raise AssertionError(f"{reference} for {machine} is not to be pulled")


class Bench:
    """The command with the tests' engine and a cache of its own."""

    def __init__(self, folder: Path, engine, envbuild) -> None:
        self.engine, self._envbuild = engine, envbuild
        self.env = {"DOCKER_HOST": engine.url, "ENVBUILD_CACHE": str(folder / "cache")}

    def __call__(self, *arguments: str | Path, check: bool = True, **env: Any) -> subprocess.CompletedProcess[str]:
        return self._envbuild("base", *arguments, env=self.env | env, check=check)

    def built(self, *arguments: str, **env: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("build", *arguments, "--json", **env).stdout)
        return found


@pytest.fixture
def bench(tmp_path, engine, envbuild) -> Bench:
    return Bench(tmp_path, engine, envbuild)


def tree(engine, image: str) -> dict[str, tuple[Any, ...]]:
    """Every path of an image: kind, mode, owner, time, link and content."""
    saved = io.BytesIO(b"".join(engine.client.images.get(image).save(chunk_size=1 << 20)))
    found: dict[str, tuple[Any, ...]] = {}
    with tarfile.open(fileobj=saved) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                found |= {it.name: _of(layer, it) for it in layer}
    return found


def _of(layer: tarfile.TarFile, it: tarfile.TarInfo) -> tuple[Any, ...]:
    file = layer.extractfile(it) if it.isreg() else None
    return it.type, it.mode, it.uid, it.gid, it.mtime, it.linkname, file.read() if file else b""


def unnamed(engine) -> set[str]:
    return {str(it.id) for it in engine.client.images.list(filters={"dangling": True})}


@pytest.mark.slow  # two images from a suite: 100 s
def test_the_suites_python_is_put_in_and_the_same_again_gives_the_same_files(bench, plain, engine):
    before, started = unnamed(engine), int(time.time())
    given = ("--parent", plain, "--python", "3.11", "--tag")
    first = bench.built(*given, "same:1", SOURCE_DATE_EPOCH="86400")
    engine.client.api.prune_builds(all=True)
    assert unnamed(engine) == before
    assert engine.client.containers.list(all=True) == []
    bench.built(*given, "same:2", SOURCE_DATE_EPOCH="86400")
    one, other, below = tree(engine, "same:1"), tree(engine, "same:2"), tree(engine, plain)
    assert {path for path in one | other if one.get(path) != other.get(path)} == set()
    assert first["python"].startswith("3.11.")
    assert first["glibc"] == "2.36"
    assert "@sha256:" in first["parent"]
    names = {it.partition("=")[0] for it in engine.client.images.get("same:1").attrs["Config"]["Env"]}
    assert "CUDA_VERSION" not in names
    added = {path: what for path, what in one.items() if below.get(path) != what}
    times = {what[4] for what in added.values()}
    assert 86400 in times
    assert max(times) < started, "nothing has the time of the build"
    left = ("var/log/", "var/cache/apt/", "var/lib/apt/lists/", "var/cache/ldconfig/", "tmp/", "root/")
    filled = {path for path, what in added.items() if what[6]}
    assert {path for path in filled if path.startswith(left) or path.endswith("-old")} == set()
    script = "import ssl, sys; assert ssl.create_default_context().get_ca_certs(); print(*sys.version_info[:2])"
    assert engine.run("same:1", ["python3", "-c", script]) == "3 11\n"
    assert engine.run("same:1", ["sh", "-c", "python3 -m venv /tmp/made && /tmp/made/bin/pip --version"])


def version_of(engine, image: str, package: str) -> str:
    command = f"apt-get update >/dev/null && apt-cache madison {package}"
    return engine.run(image, ["sh", "-c", command]).split("|")[1].strip()


def test_a_base_with_a_pinned_package_is_pushed_listed_and_built_on(tmp_path, bench, plain, engine, registry, envbuild):
    version = version_of(engine, plain, "libgomp1")
    target, tag = f"{registry.host}/bases/{uuid.uuid4().hex}:1", f"pinned:{uuid.uuid4().hex}"
    package = f"libgomp1={version}"
    result = bench.built("--parent", plain, "--python", "3.11", "--package", package, "--tag", tag)
    assert result["image"] == engine.client.images.get(tag).id
    pushed = bench("push", tag, target).stdout.strip()
    assert pushed == f"{target.rpartition(':')[0]}@{pull(Reference.parse(target), machine='x86_64').found_as}"
    assert bench("push", "no-such:1", target, check=False).returncode == 2
    status = engine.run(tag, ["dpkg-query", "-W", "-f", "${Version}", "libgomp1"])
    assert status == version
    shown = json.loads(bench("show", pushed, "--json").stdout)
    assert (shown["python"], shown["glibc"]) == (result["python"], "2.36")

    (tmp_path / "manifest.json").write_text(json.dumps(manifest_of()))
    with serving(TENSORFLOW, TOOL) as index:
        made = envbuild(
            "from-manifest", tmp_path / "manifest.json", "--base", pushed, "--out", tmp_path / "out",
            "--push", f"{registry.host}/on/base", env={**bench.env, "UV_DEFAULT_INDEX": index.url},
        ).stdout.strip()  # fmt: skip
    engine.pull(made)
    assert engine.run(made, ["python", "-c", "import sys, tool; print(sys.prefix)"]) == "/opt/env\n"

    listed = json.loads(bench("list", "--registry", target.rpartition(":")[0], "--json").stdout)
    known = {it["name"]: it for it in listed["bases"]}
    assert set(known) == {tag, pushed}
    assert known[pushed]["parent"] == result["parent"]
    assert any(it.startswith("TensorFlow 2.12 - ") for it in known[tag]["serves"])
    engine.client.images.remove(tag, force=True)
    assert tag not in bench("list").stdout
    nowhere = bench("list", "--registry", f"{registry.host}/no/such", check=False)
    assert (nowhere.returncode, nowhere.stdout) == (14, "")


def test_another_suites_python_is_taken_from_an_image_with_its_libraries(bench, plain, old_python, engine, registry):
    target = f"{registry.host}/bases/{uuid.uuid4().hex}:1"
    result = bench.built(
        "--parent", plain, "--python", "3.9.2", "--python-image", old_python, "--tag", "old:1", "--push", target
    )
    assert (result["python"], result["glibc"]) == ("3.9.2", "2.36")
    script = "import ctypes, sqlite3, ssl; print(ssl.OPENSSL_VERSION.split()[1][:3])"
    assert engine.run("old:1", ["python3", "-c", script]) == "1.1\n", "Debian 11 has OpenSSL 1.1, Debian 12 has not"
    shown = json.loads(bench("show", result["image"], "--json").stdout)
    assert (shown["python"], shown["python_path"]) == ("3.9.2", "/usr/local/bin/python3.9")


@pytest.fixture
def nvidias(tmp_path) -> Iterator[tuple[CudaArchive, int]]:
    """CUDA 10.0 in packages of the real names and versions, served as NVIDIA serves them."""
    archive = next(it for it in load_profiles(data_folder("profiles"), ()).archives if it.cuda == "10.0")
    folder, index = tmp_path / "archive", []
    folder.mkdir()
    for name, _, version in (it.partition("=") for it in archive.packages):
        about = (
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: N <n@example.com>\nDescription: x\n"
        )
        files = {"DEBIAN/control": about, f"usr/local/cuda-10.0/lib64/{name}.so.10.0": name}
        files |= {"etc/ld.so.conf.d/cuda-10-0.conf": "/usr/local/cuda-10.0/lib64\n"} if "cudart" in name else {}
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        command_output("dpkg-deb", "--root-owner-group", "--build", str(tmp_path / name), str(folder / f"{name}.deb"))
        data = (folder / f"{name}.deb").read_bytes()
        index.append(f"{about}Filename: {name}.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n")
    (folder / "Packages").write_text("\n".join(index))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield archive, server.server_address[1]
        finally:
            server.shutdown()


def test_nvidias_packages_are_put_on_a_python_whose_own_archive_is_gone(nvidias, old_python, engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    archive, port = nvidias
    gateway = engine.client.networks.list(names=["bridge"])[0].attrs["IPAM"]["Config"][0]["Gateway"]
    gone = f"deb http://{gateway}:{port}/debian bullseye main"
    lines = (f"FROM {old_python}", f"RUN echo '{gone}' >/etc/apt/sources.list")
    engine.client.images.build(fileobj=io.BytesIO("\n".join(lines).encode()), tag=f"{old_python}-alone", rm=True)
    engine.client.images.push(*f"{old_python}-alone".rsplit(":", 1))
    order = BaseOrder(
        parent=f"{old_python}-alone",
        python="3.9",
        archive=replace(archive, lines=(f"deb [trusted=yes] http://{gateway}:{port} /",)),
    )
    name = Reference.parse("example.com/gone:1")
    made = make_base(order, Parent(name=order.parent), base_dockerfile(), name, "x86_64", SILENT)
    assert (made.inside.cuda, made.inside.python[:4]) == ("10.0", "3.9.")
    status = engine.run(made.id, ["dpkg-query", "-W", "-f", "${Package}=${Version}\n"])
    assert set(archive.packages) <= set(status.splitlines())
    assert engine.run(made.id, ["sh", "-c", "cat /etc/apt/sources.list; ls /etc/apt/sources.list.d /tmp"]) == (
        f"{gone}\n/etc/apt/sources.list.d:\n\n/tmp:\n"
    ), "the next who installs something gets it from the suite"


def test_a_bootstrapped_debian_is_a_parent_too(bench, engine, cache):
    kept = next((cache / "envbuild/bases").glob("debian-bookworm-x86_64-????????????"))
    folder = Path(bench.env["ENVBUILD_CACHE"]) / "bases"
    folder.mkdir(parents=True)
    (folder / kept.name).symlink_to(kept)
    version = version_of_suite(engine)
    result = bench.built("--parent", "debian:bookworm", "--package", f"libgomp1={version}", "--tag", "boot:1")
    assert result["parent"] == "debian:bookworm"
    assert engine.run("boot:1", ["dpkg-query", "-W", "-f", "${Version}", "libgomp1"]) == version
    assert "debian:bookworm\n  bootstrapped" in bench("list").stdout


def version_of_suite(engine) -> str:
    image = next(it for it in engine.client.images.list() if any("/parents/plain:" in tag for tag in it.tags))
    return version_of(engine, str(image.id), "libgomp1")


@pytest.mark.parametrize(
    ("arguments", "said", "todo"),
    [
        (("--package", "no-such-package=1"), "Unable to locate package no-such-package", "the package's name"),
        (("--package", "libgomp1=0.1"), "Version '0.1' for 'libgomp1' was not found", "apt-cache madison"),
        (("--python", "3.12"), "not 3.12", "--python-image"),
    ],
)
def test_a_step_that_fails_says_why_and_leaves_nothing(bench, plain, engine, arguments, said, todo):
    before = unnamed(engine)
    given = ("--parent", plain, *arguments, "--tag", "failed:1")
    done = bench("build", *given, check=False)
    assert (done.returncode, done.stdout) == (13, "")
    error = done.stderr.partition("error: ")[2]
    assert said in error
    assert todo in error
    assert not engine.client.images.list("failed")
    assert unnamed(engine) == before
    assert engine.client.containers.list(all=True) == []


class Snapshots(http.server.ThreadingHTTPServer):
    """Archives as they were on a day, by sending their readers on to the mirror of today."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(("0.0.0.0", 0), _Sending)
        self.places = {"debian": mirror.archive, "debian-security": mirror.security or mirror.archive}
        self.asked: list[str] = []


class _Sending(http.server.BaseHTTPRequestHandler):
    server: Snapshots

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        _, _, archive, _, rest = self.path.split("/", 4)
        self.send_response(302)
        self.send_header("Location", f"{self.server.places[archive].rstrip('/')}/{rest}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def snapshots(mirror) -> Iterator[Snapshots]:
    with Snapshots(mirror) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield server
        finally:
            server.shutdown()


@pytest.mark.slow  # another image
def test_a_snapshot_takes_the_place_of_the_parents_archive(bench, plain, engine, snapshots):
    gateway = engine.client.networks.list(names=["bridge"])[0].attrs["IPAM"]["Config"][0]["Gateway"]
    host = f"http://{gateway}:{snapshots.server_address[1]}/archive"
    bench.built(
        "--parent", plain, "--python", "3.11", "--snapshot", STAMP, "--snapshot-host", host, "--tag", "snapshot:1"
    )
    prefixes = (f"/archive/debian/{STAMP}/", f"/archive/debian-security/{STAMP}/")
    assert all(path.startswith(prefixes) for path in snapshots.asked)
    asked = {path.partition("/dists/")[2] for path in snapshots.asked}
    assert {"bookworm/InRelease", "bookworm-updates/InRelease", "bookworm-security/InRelease"} <= asked
    assert any("/pool/" in path for path in snapshots.asked), "packages come from there too"
    kept = [path for path, what in tree(engine, "snapshot:1").items() if STAMP.encode() in what[6]]
    assert kept == [], "the next who installs something gets it from the suite"
