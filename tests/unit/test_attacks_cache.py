"""Damage in the cache: a flipped bit is found or changes nothing, and the same or the next run repairs it."""

import hashlib
import json
import math
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, BinaryIO

import pytest

from envbuild.base.apt import Suite
from envbuild.base.catalogue import KnownBase, known_bases, remember
from envbuild.base.resolve import Facts, KnownFacts
from envbuild.base.system import DebFiles, deb_path
from envbuild.cache import read_entry, write_entry
from envbuild.errors import LockError
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.writer import LayerResult
from envbuild.lock.download import forget_damaged, wheel_path
from envbuild.lock.model import SystemPackage
from envbuild.oci.digest import Digest
from envbuild.oci.layout import write_layout
from envbuild.trust import Voucher
from tests.damage import DEEP, IMPOSSIBLE, damages, fresh_copy
from tests.environ import UNTRIED
from tests.fakes.index import FakeIndex, serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import GLIBC, image_of_layers, layer_of_tree
from tests.fakes.wheels import make_wheel
from tests.running import run_envbuild
from tests.unit.compiling import MINOR, VERSION
from tests.unit.test_bytecode_interpreter import own_files
from tests.unit.test_from_manifest import Site, manifest_of

TAG = f"cp{MINOR.replace('.', '')}"
TENSORFLOW = make_wheel("tensorflow-cpu", "2.15.1", tags=[f"{TAG}-{TAG}-manylinux_2_17_x86_64"], purelib=False)
TOOL = make_wheel("tool", "1.0", entry_points={"console_scripts": {"tool": "tool:main"}})
DIGEST = Digest.of(b"digest")


class Machine:
    """A cache in which a build has left everything, and the same build again and again."""

    def __init__(self, folder: Path, index: FakeIndex) -> None:
        self.folder, self.cache, self.good = folder, folder / "cache", folder / "good"
        self.site = Site(folder, index.url)
        self.site.manifest.write_text(json.dumps(manifest_of(python={"version": VERSION, "implementation": "cpython"})))
        shutil.rmtree(folder / "base")
        below = {"usr/lib/x86_64-linux-gnu/libc.so.6": GLIBC, "usr/local/bin/python3": f"-> python{MINOR}"}
        write_layout(image_of_layers(layer_of_tree(below), layer_of_tree(own_files())), folder / "base", name="base")
        self.env = {"UV_DEFAULT_INDEX": index.url, "ENVBUILD_CACHE": str(self.cache)} | UNTRIED
        self.digest = self.digest_of(self.build())
        fresh_copy(self.cache, self.good)

    def build(self, *more: str | Path) -> CompletedProcess[str]:
        """Build into a new layout."""
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        options = ("--base", self.folder / "base", "--bytecode", "--out", "out", "--json", *more)
        return run_envbuild("from-manifest", self.site.manifest, *options, cwd=self.folder, env=os.environ | self.env)

    def damage(self, *paths: Path, way: str = "bit in the middle", fresh: bool = True) -> None:
        """Damage these files of the cache; if it is to be `fresh`, the others are as the first build left them."""
        if fresh:
            fresh_copy(self.good, self.cache)
        for path in paths:
            dict(damages(self.good / path))[way](self.cache / path)

    def digest_of(self, ran: CompletedProcess[str]) -> str:
        """The digest of an image whose blobs all are what their names say."""
        assert ran.returncode == 0, ran.stderr
        for path in (self.folder / "out/blobs/sha256").iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        return str(json.loads(ran.stdout)["digest"])

    def files(self) -> list[Path]:
        """The files of the cache, relative to it; of an interpreter two and what is noted of it."""
        paths = (path.relative_to(self.good) for path in sorted(self.good.rglob("*")) if path.is_file())
        some = ("facts.json", "abc.py", "ld.so")
        return [path for path in paths if path.parts[0] != "interpreters" or path.name in some]


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Machine]:
    with serving(TENSORFLOW, TOOL) as index:
        yield Machine(tmp_path_factory.mktemp("machine"), index)


def is_entry(path: Path) -> bool:
    return path.suffix == ".json"


@pytest.mark.parametrize("entries", [True, False], ids=["entries", "contents"])
@pytest.mark.parametrize("way", ["bit", "folder", "deep"])
def test_damage_of_many_files_gives_the_same_image_and_is_repaired(machine, entries, way):
    """Entries are damaged all at once, or all that they speak of."""
    files = [path for path in machine.files() if is_entry(path) == entries]
    kinds = {"layers", "notes", "facts", "claims", "bases"} if entries else {"wheels", "blobs"}
    assert {path.parts[0] for path in files} == kinds | {"bytecode", "interpreters"}
    for number, path in enumerate(files):
        place = ("bit at 0", "bit in the middle", "bit at the end")[number % 3]
        machine.damage(path, way=place if way == "bit" else way, fresh=not number)
    assert machine.digest_of(machine.build()) == machine.digest
    for path in filter(is_entry, machine.files()):
        if path.parts[0] != "claims":  # of wheels that are here
            assert (machine.cache / path).read_bytes() == (machine.good / path).read_bytes(), path


@pytest.mark.parametrize("kind", [("layers", ".json"), ("blobs", ""), ("bytecode", ".zip"), ("interpreters", "")])
def test_a_kind_damaged_alone_gives_the_same_image(machine, kind):
    files = [path for path in machine.files() if path.parts[0] == kind[0] and path.suffix in (kind[1], ".py", ".so")]
    assert files
    machine.damage(*files)
    if kind[0] in ("bytecode", "interpreters"):  # which are not looked at where the layers are known
        shutil.rmtree(machine.cache / "layers")
    if kind[0] == "interpreters":
        shutil.rmtree(machine.cache / "bytecode")
    assert machine.digest_of(machine.build()) == machine.digest


def folder_and_name(machine: Machine, path: Path) -> tuple[Path, str]:
    """How an entry is asked for."""
    parts = {"facts": 0, "claims": 0, "truths": 0, "bases": 2, "interpreters": 2}.get(path.parts[0], 1)
    return machine.cache.joinpath(*path.parts[:parts]), "/".join(path.parts[parts:])


def test_every_bit_of_every_entry_counts(machine):
    """One bit of each byte, and every other damage, of all entries that a build leaves; a few thousand in all."""
    fresh_copy(machine.good, machine.cache)
    for path in filter(is_entry, machine.files()):
        folder, name = folder_and_name(machine, path)
        origin = Voucher.INDEX if path.parts[0] == "claims" else Voucher.LOCAL
        right = (machine.good / path).read_bytes()
        assert read_entry(folder, name, origin=origin) is not None, path
        for place in range(len(right)):
            (folder / name).write_bytes(right[:place] + bytes([right[place] ^ 1 << place % 8]) + right[place + 1 :])
            assert read_entry(folder, name, origin=origin) is None, (path, place)
            assert not (folder / name).exists()
        for way, damage in damages(machine.good / path):
            (folder / name).write_bytes(right)
            damage(folder / name)
            if way == "unreadable":
                (folder / name).chmod(0o644)  # it stays
                continue
            assert read_entry(folder, name, origin=origin) is None, (path, way)
            assert not (folder / name).exists()


def test_impossible_values_under_a_right_checksum_are_not_found(machine):
    """Who writes entries as envbuild does, but with values that it never has."""
    for turn in range(4):
        fresh_copy(machine.good, machine.cache)
        for number, path in enumerate(filter(is_entry, machine.files()), turn):
            folder, name = folder_and_name(machine, path)
            origin = Voucher.INDEX if path.parts[0] == "claims" else Voucher.LOCAL
            kept: Any = read_entry(folder, name, origin=origin)
            value = IMPOSSIBLE[number * 3 % len(IMPOSSIBLE)]
            keys: list[str] = sorted(kept) if isinstance(kept, dict) else []
            changed = kept | {keys[number % len(keys)]: value} if keys and turn % 2 else value
            write_entry(folder, name, changed, origin)
        assert machine.digest_of(machine.build()) == machine.digest


def test_an_entry_answers_its_own_name_and_origin_alone(tmp_path):
    write_entry(tmp_path, "a/1.json", {"size": 1}, Voucher.INDEX)
    assert read_entry(tmp_path, "a/1.json") is None, "an index's word is nothing that was computed here"
    write_entry(tmp_path, "a/1.json", {"size": 1})
    shutil.copy(tmp_path / "a/1.json", tmp_path / "a/2.json")
    assert read_entry(tmp_path, "a/2.json") is None
    assert not (tmp_path / "a/2.json").exists()
    assert read_entry(tmp_path, "a/1.json") == {"size": 1}
    value = json.loads((tmp_path / "a/1.json").read_bytes())
    assert value["entry"]["origin"] == Voucher.LOCAL
    (tmp_path / "a/3.json").mkdir()
    write_entry(tmp_path, "a/3.json", math.pi)
    assert read_entry(tmp_path, "a/3.json") == math.pi


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let nothing be opened, as in a process that has too many files open: EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_entry_that_cannot_be_read_now_stays(tmp_path):
    write_entry(tmp_path, "a", 1)
    with no_more_files():
        assert read_entry(tmp_path, "a") is None
    assert read_entry(tmp_path, "a") == 1
    (tmp_path / "b").symlink_to("b")
    assert read_entry(tmp_path, "b") is None
    assert not (tmp_path / "b").is_symlink()


def test_a_layer_that_cannot_be_read_now_stays_and_a_used_one_is_marked(tmp_path):
    told: list[str] = []
    cache = LayerCache(tmp_path, on_damage=told.append)

    def write(sink: BinaryIO) -> LayerResult:
        sink.write(b"layer")
        return LayerResult(Digest.of(b"layer"), 5, DIGEST)

    path = cache.make(DIGEST, write).path
    os.utime(path, (1, 1))
    layer = cache.get(DIGEST)
    assert layer
    assert path.stat().st_mtime > 1, "prune drops what was not used for the longest time"
    with no_more_files():
        assert not cache.is_intact(layer)
    assert path.read_bytes() == b"layer"
    assert cache.is_intact(layer)
    assert [line for line in told if "damaged" in line] == []
    path.chmod(0o644)
    path.write_bytes(b"other")
    assert not cache.is_intact(layer)
    assert not path.exists()


def test_a_wheel_is_said_to_be_damaged_only_where_its_bytes_are_wrong(tmp_path):
    path = wheel_path(tmp_path, DIGEST)
    path.parent.mkdir(parents=True)
    assert not forget_damaged(tmp_path, DIGEST), "another run removed it"
    path.write_bytes(b"digest")
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        forget_damaged(tmp_path, DIGEST)
    assert not forget_damaged(tmp_path, DIGEST)
    path.unlink()
    path.write_bytes(b"other")
    assert forget_damaged(tmp_path, DIGEST)
    assert not path.exists()


def test_deep_nesting_under_a_right_checksum_is_no_traceback(tmp_path):
    body = b'{"format":1,"name":"x","origin":"%s","value":%s}' % (Voucher.LOCAL.encode(), DEEP + b"]" * len(DEEP))
    checksum = hashlib.sha256(body).hexdigest().encode()
    (tmp_path / "x").write_bytes(b'{"entry":' + body + b',"sha256":"' + checksum + b'"}')
    assert read_entry(tmp_path, "x") is None


def test_damaged_layers_are_told_and_made_again_wherever_the_image_goes(machine):
    layers = [path for path in machine.files() if path.parts[0] == "blobs"]
    told = "a layer in the cache was damaged and is made again"
    machine.damage(*layers)
    ran = machine.build()
    assert (machine.digest_of(ran), ran.stderr.count(told)) == (machine.digest, len(layers))
    machine.damage(*layers)
    ran = machine.build("--archive", "image.tar")
    assert (ran.returncode, ran.stderr.count(told)) == (0, len(layers)), ran.stderr
    machine.damage(*layers)
    with FakeRegistry() as registry:
        ran = machine.build("--push", f"{registry.host}/team/model:v1")
        assert (ran.returncode, ran.stderr.count(told)) == (0, len(layers)), ran.stderr
        machine.damage(*layers)
        again = machine.build("--push", f"{registry.host}/team/model:v2", "--no-remote-cache")
        assert (again.returncode, again.stderr.count(told)) == (0, 0), "what the registry has is not even read"
    assert json.loads(ran.stdout)["digest"] == json.loads(again.stdout)["digest"] == machine.digest


@pytest.mark.parametrize("way", ["bit in the middle", "folder", "cut", "dangling link"])
def test_a_damaged_wheel_is_told_and_fetched_again(machine, way):
    path = wheel_path(machine.cache, Digest.of(TOOL.data))
    machine.damage(path.relative_to(machine.cache), way=way)
    for name in ("layers", "notes"):
        shutil.rmtree(machine.cache / name)
    ran = machine.build()
    assert machine.digest_of(ran) == machine.digest
    assert ran.stderr.count(f"{TOOL.filename} in the cache was damaged and is fetched again") == 1
    assert path.read_bytes() == TOOL.data


def test_a_damaged_wheel_in_a_folder_of_the_user_is_an_error_that_names_it(machine):
    folder = machine.folder / "wheelhouse"
    folder.mkdir()
    for wheel in (TENSORFLOW, TOOL):
        (folder / wheel.filename).write_bytes(wheel.data)
    content = TOOL.data.index(b"tool") + 200
    (folder / TOOL.filename).write_bytes(TOOL.data[:content] + b"#" + TOOL.data[content + 1 :])
    ran = machine.build("--find-links", "wheelhouse", "--offline")
    assert ran.returncode in (12, 13)
    assert TOOL.filename in ran.stderr


def test_an_interpreter_with_a_file_more_does_not_run(machine):
    fresh_copy(machine.good, machine.cache)
    shutil.rmtree(machine.cache / "bytecode")
    shutil.rmtree(machine.cache / "notes")
    [home] = machine.cache.glob("interpreters/*/python/lib/python*")
    (home / "linecache.py").write_text("raise SystemExit('planted')\n")
    assert machine.digest_of(machine.build()) == machine.digest
    assert not (home / "linecache.py").exists() or "planted" not in (home / "linecache.py").read_text()


def test_facts_and_names_of_bases_are_entries(tmp_path):
    known = KnownFacts(tmp_path / "bases/facts")
    facts = Facts(
        python="3.11.2", glibc="2.36", python_path="/usr/bin/python3.11", distribution="", interpreter="0" * 64
    )
    base = KnownBase(name="x/y:1", how="pushed", digest=str(DIGEST))
    known.remember(DIGEST, facts)
    known.remember_mirror(DIGEST, "docker.io/library/python:3.11")
    remember(base, tmp_path)
    assert (known.facts(DIGEST), known.mirror_of(DIGEST)) == (facts, "docker.io/library/python:3.11")
    assert [it.name for it in known_bases(tmp_path)] == ["x/y:1"]
    for path in sorted((tmp_path / "bases").rglob("*.json")):
        dict(damages(path))["bit in the middle"](path)
    assert (known.facts(DIGEST), known.mirror_of(DIGEST), known_bases(tmp_path)) == (None, "", ())
    assert not [*(tmp_path / "bases").rglob("*.json")]
    strange: list[Any] = [*IMPOSSIBLE, {**vars_of(base), "digest": "x"}, {**vars_of(base), "name": 1}]
    for value in strange:
        write_entry(tmp_path / "bases/known", "a.json", value)
        assert known_bases(tmp_path) == ()


def vars_of(base: KnownBase) -> dict[str, str]:
    return {name: getattr(base, name) for name in KnownBase.__slots__}


def test_a_damaged_package_of_the_system_is_not_used(tmp_path):
    data = b"deb" * 1000
    package = SystemPackage(
        name="libx", version="1", architecture="amd64", filename="pool/libx_1_amd64.deb", sha256=Digest.of(data),
        size=len(data),
    )  # fmt: skip
    path = deb_path(tmp_path, package.sha256)
    path.parent.mkdir(parents=True)
    suite = Suite(distribution="debian", codename="bookworm", architecture="amd64", lines=())
    files = DebFiles(packages=[package], suite=suite, status="", cache=tmp_path, offline=True)
    path.write_bytes(data)
    assert files.path(package) == path
    for damage in ("bit in the middle", "folder", "empty"):
        if path.is_dir():
            shutil.rmtree(path)
        path.write_bytes(data)
        dict(damages(path))[damage](path)
        with pytest.raises(LockError, match="not in the cache: libx"):
            files.path(package)
        assert not path.exists()
