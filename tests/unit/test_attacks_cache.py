"""Damage in the cache: a flipped bit is found or changes nothing, and the same or the next run repairs it."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.base.debs import DebFiles, deb_path
from envbuild.base.facts import Facts, KnownFacts
from envbuild.base.known import KnownBase, known_bases, remember
from envbuild.base.suites import Suite
from envbuild.cache import read_entry, write_entry
from envbuild.errors import LockError
from envbuild.lock.download import wheel_path
from envbuild.lock.model import SystemPackage
from envbuild.oci.digest import Digest
from envbuild.oci.layout import write_layout
from envbuild.trust import Voucher
from tests.damage import DEEP, IMPOSSIBLE, Commands, Ran, damages, fresh_copy
from tests.fakes.index import FakeIndex, serving
from tests.fakes.trees import GLIBC, image_of_layers, layer_of_tree
from tests.fakes.wheels import make_wheel
from tests.unit.compiling import MINOR, VERSION
from tests.unit.test_bytecode_interpreter import own_files
from tests.unit.test_from_manifest import Site, manifest_of

TAG = f"cp{MINOR.replace('.', '')}"
TENSORFLOW = make_wheel("tensorflow-cpu", "2.15.1", tags=[f"{TAG}-{TAG}-manylinux_2_17_x86_64"], purelib=False)
TOOL = make_wheel("tool", "1.0", entry_points={"console_scripts": {"tool": "tool:main"}})
DIGEST = Digest.of(b"digest")


class Machine:
    """A cache in which a build has left everything, and the same build again and again."""

    def __init__(self, folder: Path, index: FakeIndex, commands: Commands) -> None:
        self.commands = commands
        self.folder, self.cache, self.good = folder, folder / "cache", folder / "good"
        self.site = Site(folder, index.url)
        self.site.manifest.write_text(json.dumps(manifest_of(python={"version": VERSION, "implementation": "cpython"})))
        shutil.rmtree(folder / "base")
        below = {"usr/lib/x86_64-linux-gnu/libc.so.6": GLIBC, "usr/local/bin/python3": f"-> python{MINOR}"}
        write_layout(image_of_layers(layer_of_tree(below), layer_of_tree(own_files())), folder / "base", name="base")
        self.env = {"UV_DEFAULT_INDEX": index.url, "ENVBUILD_CACHE": str(self.cache)}
        self.digest = self.digest_of(self.build())
        fresh_copy(self.cache, self.good)

    def build(self) -> Ran:
        """Build into a new layout."""
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        more = ("--base", self.folder / "base", "--bytecode", "--out", "out", "--json")
        return self.commands.run(["from-manifest", self.site.manifest, *more], self.folder, self.env)

    def digest_of(self, ran: Ran) -> str:
        """The digest of an image whose blobs all are what their names say."""
        assert ran.code == 0, ran.err
        for path in (self.folder / "out/blobs/sha256").iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        return str(json.loads(ran.out)["digest"])

    def files(self) -> list[Path]:
        """The files of the cache, relative to it; of an interpreter two and what is noted of it."""
        paths = (path.relative_to(self.good) for path in sorted(self.good.rglob("*")) if path.is_file())
        some = ("facts.json", "abc.py", "ld.so")
        return [path for path in paths if path.parts[0] != "interpreters" or path.name in some]


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Machine]:
    with serving(TENSORFLOW, TOOL) as index, Commands() as commands:
        yield Machine(tmp_path_factory.mktemp("machine"), index, commands)


def is_entry(path: Path) -> bool:
    return path.suffix == ".json"


@pytest.mark.parametrize("entries", [True, False], ids=["entries", "contents"])
def test_damage_of_whole_files_gives_the_same_image_and_is_repaired(machine, entries):
    """All entries are damaged at once, then all that they speak of, each in every way that a file can be damaged."""
    files = [path for path in machine.files() if is_entry(path) == entries]
    kinds = {path.parts[0] for path in files}
    assert kinds == (
        {"layers", "notes", "facts", "claims", "bases", "bytecode", "interpreters"}
        if entries
        else {"wheels", "blobs", "bytecode", "interpreters"}
    )
    ways = ("bit at 0", "bit in the middle", "bit at the end", "empty", "deep", "folder", "dangling link", "unreadable")
    for way in ways:
        fresh_copy(machine.good, machine.cache)
        for path in files:
            found = dict(damages(machine.cache / path))
            found[way](machine.cache / path)
        assert machine.digest_of(machine.build()) == machine.digest, way
    for path in machine.files():
        if is_entry(path):
            assert (machine.cache / path).read_bytes() == (machine.good / path).read_bytes(), path


def test_each_kind_damaged_alone_gives_the_same_image(machine):
    files = machine.files()
    for kind in {(path.parts[0], path.suffix) for path in files}:
        fresh_copy(machine.good, machine.cache)
        for path in files:
            if (path.parts[0], path.suffix) == kind:
                dict(damages(machine.cache / path))["bit in the middle"](machine.cache / path)
        assert machine.digest_of(machine.build()) == machine.digest, kind


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
            if way == "unreadable" and os.geteuid() == 0:
                continue
            assert read_entry(folder, name, origin=origin) is None, (path, way)
            assert not (folder / name).exists()


def test_impossible_values_under_a_right_checksum_are_not_found(machine):
    """Who writes entries as envbuild does, but with values that it never has."""
    for number, value in enumerate(IMPOSSIBLE):
        fresh_copy(machine.good, machine.cache)
        for path in filter(is_entry, machine.files()):
            folder, name = folder_and_name(machine, path)
            origin = Voucher.INDEX if path.parts[0] == "claims" else Voucher.LOCAL
            kept = read_entry(folder, name, origin=origin)
            keys = sorted(kept) if isinstance(kept, dict) else []
            changed = kept | {keys[number % len(keys)]: value} if keys and number % 2 else value
            write_entry(folder, name, changed, origin)
        assert machine.digest_of(machine.build()) == machine.digest, value


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


def test_deep_nesting_under_a_right_checksum_is_no_traceback(tmp_path):
    body = b'{"format":1,"name":"x","origin":"%s","value":%s}' % (Voucher.LOCAL.encode(), DEEP + b"]" * len(DEEP))
    checksum = hashlib.sha256(body).hexdigest().encode()
    (tmp_path / "x").write_bytes(b'{"entry":' + body + b',"sha256":"' + checksum + b'"}')
    assert read_entry(tmp_path, "x") is None


def test_a_damaged_layer_and_wheel_are_told_once(machine):
    fresh_copy(machine.good, machine.cache)
    for path in (next(machine.cache.glob("blobs/sha256/*")), wheel_path(machine.cache, Digest.of(TOOL.data))):
        dict(damages(path))["bit in the middle"](path)
    ran = machine.build()
    assert machine.digest_of(ran) == machine.digest
    assert ran.err.count("in the cache was damaged and is made again") == 1
    fresh_copy(machine.good, machine.cache)
    shutil.rmtree(machine.cache / "layers")
    shutil.rmtree(machine.cache / "facts")
    path = wheel_path(machine.cache, Digest.of(TOOL.data))
    path.unlink()
    (path / "in it").mkdir(parents=True)
    ran = machine.build()
    assert machine.digest_of(ran) == machine.digest
    assert path.read_bytes() == TOOL.data


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
