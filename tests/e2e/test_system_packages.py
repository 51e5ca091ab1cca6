"""Libraries of Debian packages that a run had loaded are in its image: found by apt, unpacked, known to dpkg, usable."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.base.system import System, copy_debs, lock_system
from envbuild.engine.load import load_into
from envbuild.errors import LockError
from envbuild.image.assembler import Assembled, assemble
from envbuild.image.debian.package import open_deb
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.model import Lock
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.report import SILENT, SilentReporter
from tests.e2e.docker_builds import Builds, wheel_folder
from tests.e2e.services import Engine, command_output
from tests.layers import WheelFiles
from tests.unit.test_from_manifest import manifest_of

pytestmark = pytest.mark.real

RUN = ("libsndfile1 1.2.0-1 libsndfile.so.1.0.35", "libgomp1 12.2.0-14+deb12u1 libgomp.so.1.0.0")
BLAS = ("libblas3 3.11.0-2 libblas.so.3.11.0", "libpq5 15.0-1 libpq.so.5.15")
LEFT_OUT = r"missing +/usr/share/(?:doc|man|info|locale|lintian)/"
LOADING = "import ctypes, sys; [ctypes.CDLL(name) for name in sys.argv[1:]]; print('loaded')"


class Told(SilentReporter):
    """A Report that remembers nothing."""

    def step(self, text: str) -> None:
        pass

    note = step

    def progress(self, label: str, done: int, total: int | None) -> None:
        pass


def no_registry(*_: object) -> NoReturn:
    raise AssertionError("a Debian base needs no registry")


def manifest(rows: Sequence[str], system: str = "debian 12") -> TrainingManifest:
    """A run that had loaded these libraries."""
    return read_manifest(manifest_text(rows, system), "manifest.json")


def manifest_text(rows: Sequence[str], system: str = "debian 12") -> bytes:
    os_id, os_version = system.split()
    libraries = [
        {
            "name": file,
            "path": f"/usr/lib/x86_64-linux-gnu/{file}",
            "owner": {"kind": "debian", "name": name, "version": version},
        }
        for name, version, file in (row.split() for row in rows)
    ]
    value = {
        "schema_version": "1.1",
        "created": "2026-01-02T03:04:05Z",
        "python": {"version": "3.11.2", "implementation": "cpython"},
        "platform": {"system": "Linux", "machine": "x86_64", "os_id": os_id, "os_version": os_version},
        "distributions": [],
        "native": {"process": "run", "libraries": libraries},
    }
    return json.dumps(value).encode()


@pytest.fixture(scope="module")
def base(cache) -> Base:
    return resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=no_registry, report=SILENT)


def assembled(base: Base, system: System, folder: Path) -> Assembled:
    recipe = Recipe(
        base_name=base.name,
        base_digest=base.digest,
        python_path=base.python_path,
        target=base.target,
        wheels=(),
        variables=(),
        labels=(),
        packages=system.packages,
    )
    return assemble(recipe, base, WheelFiles({}), LayerCache(folder), system=system.layer)


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def system(base, first) -> System:
    return lock_system(manifest(RUN + BLAS), base, first, SILENT)


@pytest.fixture
def lists(system, first, tmp_path) -> Path:
    """A cache that has what apt and the base say, and no package."""
    for kind in ("apt", "bases"):
        shutil.copytree(first / kind, tmp_path / "cache" / kind)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def made(base, system, tmp_path_factory) -> Assembled:
    return assembled(base, system, tmp_path_factory.mktemp("layers"))


@pytest.fixture(scope="module")
def name(engine, made) -> str:
    load_into(engine.client, made.image, [Reference("example.com", "system", "v1")], Told())
    return "example.com/system:v1"


class TestLock:
    def test_apt_adds_what_they_need_and_the_base_lacks(self, system, base):
        names = [it.name for it in system.packages]
        assert names == sorted(set(names))
        assert {"libsndfile1", "libgomp1", "libflac12", "libogg0", "libblas3", "libpq5", "libldap-2.5-0"} <= set(names)
        assert not {"libc6", "zlib1g", "libstdc++6"} & set(names)  # the base's own
        assert all(it.filename.startswith("pool/") and it.size > 1000 for it in system.packages)

    def test_another_version_than_the_run_s_is_said(self, system):
        assert any(
            re.match(r"libsndfile1 \S+ of debian bookworm is taken; the run on debian 12", it) for it in system.warnings
        )
        assert not any("libgomp1" in it for it in system.warnings)

    def test_what_no_suite_has_is_said_and_the_rest_locked(self, base, lists):
        found = lock_system(manifest(["libnosuch7 1.0 libnosuch.so.7", RUN[1]], "ubuntu 20.04"), base, lists, SILENT)
        assert [it.name for it in found.packages] == ["libgomp1"]
        (line,) = found.warnings
        assert "libnosuch.so.7" in line
        assert "ubuntu 20.04" in line

    def test_a_run_without_any_reads_nothing_and_asks_nobody(self, base, tmp_path):
        own = [
            "libc6 2.31-13 libc.so.6",
            "libpython3.11 3.11.2-6 libpython3.11.so.1.0",
            "libcudnn8 8.9.7.29-1 libcudnn.so.8",
        ]
        assert lock_system(manifest(own), base, tmp_path, SILENT) == System()
        assert not list(tmp_path.iterdir())

    def test_offline_takes_what_was_fetched_before_and_else_refuses(self, base, system, tmp_path):
        with pytest.raises(LockError, match="not in the cache"):
            lock_system(manifest(RUN), base, tmp_path, SILENT, offline=True)
        online = lock_system(manifest(RUN), base, tmp_path, SILENT)
        assembled(base, online, tmp_path)
        again = lock_system(manifest(RUN), base, tmp_path, SILENT, offline=True)
        assert again.packages == online.packages
        assert assembled(base, again, tmp_path / "other").image.digest == assembled(base, online, tmp_path).image.digest

    def test_files_for_a_build_context_are_the_locked_ones(self, base, lists, tmp_path):
        found = lock_system(manifest(RUN[1:]), base, lists, SILENT)
        lock = Lock(target=base.target, wheels=(), packages=found.packages)
        with pytest.raises(LockError) as caught:
            copy_debs(lock, lists, tmp_path / "context")
        assert caught.value.where.endswith(".deb")
        assembled(base, found, lists)
        copy_debs(lock, lists, tmp_path / "context")
        (file,) = (tmp_path / "context" / "debs").iterdir()
        assert (file.name, file.stat().st_size) == (found.packages[0].basename, found.packages[0].size)


class TestImage:
    def test_twice_from_empty_caches_is_the_same_image(self, made, base, tmp_path):
        again = lock_system(manifest(RUN + BLAS), base, tmp_path, SILENT)
        assert assembled(base, again, tmp_path).image.digest == made.image.digest

    def test_it_is_the_layer_on_the_base(self, made, base):
        count = len(base.image.layers)
        assert [it.created_by.split(":")[0] for it in made.image.layers[count:]] == [
            "system packages",
            "virtual environment",
            "start-up check",
        ]

    def test_the_loader_finds_the_libraries(self, engine, name):
        files = ["libsndfile.so.1", "libgomp.so.1", "libblas.so.3", "libpq.so.5"]
        assert engine.run(name, ["python3", "-c", LOADING, *files]).strip() == "loaded"

    def test_dpkg_knows_them_and_finds_them_whole(self, engine, name, system):
        command = "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'"
        said = dict(line.split(" ", 1) for line in engine.run(name, ["sh", "-c", command]).splitlines())
        assert {it.name: said[it.name].strip() for it in system.packages} == {
            it.name: f"{it.version} ii" for it in system.packages
        }
        names = [it.name for it in system.packages]
        broken = engine.run(name, ["sh", "-c", 'dpkg --verify "$@"; dpkg --audit', "sh", *names])
        assert not [it for it in broken.splitlines() if not re.match(LEFT_OUT, it)]
        assert "libgomp1" in engine.run(name, ["dpkg", "-S", "/usr/lib/x86_64-linux-gnu/libgomp.so.1"])

    def test_apt_finds_nothing_to_mend(self, engine, name):
        assert engine.run(name, ["apt-get", "check", "-qq"], user="0") == ""

    def test_a_name_for_several_files_is_one_that_its_program_knows(self, engine, name):
        said = engine.run(name, ["update-alternatives", "--query", "libblas.so.3-x86_64-linux-gnu"])
        assert "Status: auto" in said
        assert "Value: /usr/lib/x86_64-linux-gnu/blas/libblas.so.3" in said

    def test_the_base_s_folders_and_links_are_as_they_were(self, engine, name, base):
        told = engine.run(name, ["stat", "-c", "%a %F %n", "/lib", "/tmp", "/var/lib/dpkg", "/usr/lib", "/etc"])
        assert told.splitlines() == [
            "777 symbolic link /lib",
            "1777 directory /tmp",
            "755 directory /var/lib/dpkg",
            "755 directory /usr/lib",
            "755 directory /etc",
        ]


def test_what_dpkg_packs_with_zstd_as_ubuntu_does_is_read(tmp_path):
    (tmp_path / "new/DEBIAN").mkdir(parents=True)
    (tmp_path / "new/DEBIAN/control").write_text(
        "Package: new\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@example.com>\nDescription: made here\n"
    )
    (tmp_path / "new/opt").mkdir()
    (tmp_path / "new/opt/x").write_bytes(b"content" * 1000)
    command_output(
        "dpkg-deb", "--build", "--root-owner-group", "-Zzstd", str(tmp_path / "new"), str(tmp_path / "new.deb")
    )
    with ExitStack() as stack:
        deb = open_deb(tmp_path / "new.deb", Digest.of((tmp_path / "new.deb").read_bytes()), stack)
        assert b"".join(deb.items[-1].content()) == b"content" * 1000


def test_a_changed_file_in_the_cache_is_fetched_again(base, lists):
    found = lock_system(manifest(RUN[1:]), base, lists, SILENT)
    assert found.layer is not None
    path = found.layer.find(found.packages[0])
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")
    assembled(base, replace(found), lists)
    assert path.read_bytes() == data


class TestCommand:
    """The whole command on small wheels, with the real apt."""

    LISTING = (
        "find / -xdev -not -path '/proc/*' -not -path '/var/*' -not -type d -printf '%p %y %m %U:%G %s %l\\n' | sort"
    )

    @pytest.fixture
    def builds(self, tmp_path, engine, cache):
        return self.of(tmp_path, engine, cache, "buildkit")

    def of(self, folder: Path, engine: Engine, cache: Path, builder: str) -> Builds:
        """A folder with a run that had loaded libraries of its system."""
        found = Builds(folder, engine, cache, builder)
        more = {key: it for key, it in json.loads(manifest_text(RUN + BLAS)).items() if key in ("native", "platform")}
        (folder / "manifest.json").write_text(json.dumps(manifest_of() | more | {"schema_version": "1.1"}))
        return found

    @pytest.mark.slow
    @pytest.mark.parametrize("builder", ["classic", "buildkit"])
    def test_what_an_engine_builds_is_what_is_assembled(self, tmp_path, engine, cache, builder):
        builds = self.of(tmp_path, engine, cache, builder)
        wheels = ("--offline", "--find-links", wheel_folder(builds.folder / "wheels"))
        online = builds.run(
            "--builder", "assemble", "--out", builds.folder / "first", *wheels[1:], "--load", "example.com/made:1"
        )
        assert online.returncode == 0, online.stderr
        assert "libsndfile1" in online.stderr  # another version than the run's
        done = builds.run(*wheels, "--load", "example.com/built:1")
        try:
            assert done.returncode == 0, done.stderr
            names = {it.name.partition("_")[0] for it in (builds.folder / "out/context/debs").iterdir()}
            lock = tomllib.loads((builds.folder / "out/context/pylock.toml").read_text())
            assert names == {it["name"] for it in lock["tool"]["envbuild"]["packages"]}
            assert {"libsndfile1", "libogg0", "libgomp1"} <= names
            listings = [
                set(builds.engine.run(it, ["sh", "-c", self.LISTING], user="0").splitlines())
                for it in ("example.com/made:1", "example.com/built:1")
            ]
            other = {
                line.split()[0]
                for line in listings[0] ^ listings[1]
                if not line.startswith(("/opt/", "/dev/", "/sys/"))
            }
            assert other <= {"/etc/ld.so.cache", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/.dockerenv"}
            command = "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'"
            said = [
                builds.engine.run(it, ["sh", "-c", command]) for it in ("example.com/made:1", "example.com/built:1")
            ]
            assert said[0] == said[1]
        finally:
            for it in ("example.com/made:1", "example.com/built:1"):
                builds.forget(it)

    def test_without_is_without(self, builds):
        done = builds.run(
            "--builder", "assemble", "--no-system-packages", "--find-links", wheel_folder(builds.folder / "wheels")
        )
        assert done.returncode == 0, done.stderr
        lock = tomllib.loads((builds.folder / "out/context/pylock.toml").read_text())
        assert "packages" not in lock["tool"]["envbuild"]
        assert not (builds.folder / "cache/apt").exists()

    def test_the_image_is_made_anew_from_its_lock(self, builds):
        wheels = wheel_folder(builds.folder / "wheels")
        done = builds.run("--builder", "assemble", "--find-links", wheels)
        assert done.returncode == 0, done.stderr
        command = [sys.executable, "-m", "envbuild", "verify", "out", "--lock", "out/context/pylock.toml", "--deep"]
        verified = subprocess.run(
            [*command, "--base", "debian:bookworm"], cwd=builds.folder, env=builds.environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert "made anew" in verified.stdout
