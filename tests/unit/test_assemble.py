"""Wheels to layers: what pip installs, the same bytes everywhere, and everything hostile refused."""

import base64
import csv
import errno
import gzip
import hashlib
import io
import json
import os
import random
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from zlib_ng import zlib_ng

from envbuild.errors import BaseError, BuildError, WheelError
from envbuild.image import assembler
from envbuild.image.assembler import assemble, wheels_to_read
from envbuild.image.layers import maker
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import AssemblyOptions
from envbuild.image.layers.writer import LayerFile, write_layer
from envbuild.lock.model import LockedWheel, Target
from envbuild.oci import deflate
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json, manifest_bytes
from envbuild.recipe import Base, Recipe
from envbuild.wheel.archive import WheelArchive
from envbuild.wheel.install import InstalledFile
from tests.corpus import LEAVES, OWN, POINT, UNKNOWN
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.fakes.zips import Part, archive, deflated
from tests.layers import WheelFiles, entries_of

TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")
SITE = "opt/env/lib/python3.11/site-packages"
CHECK = ("opt/env/bin/envbuild-check", "opt/env/share/envbuild/lock.json")
CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["PATH=/usr/bin", "LANG=C.UTF-8"], "Cmd": ["bash"]},
    "rootfs": {"type": "layers", "diff_ids": []},
}


def base() -> Base:
    config = canonical_json(CONFIG)
    return Base(
        name="scratch",
        image=Image(manifest_bytes(config, (), {}), config, ()),
        target=TARGET,
        python_path="/usr/bin/python3.11",
    )


def locked(wheel: FakeWheel) -> LockedWheel:
    name, version = wheel.filename.split("-")[:2]
    return LockedWheel(
        name=name.replace("_", "-").lower(),
        version=version,
        filename=wheel.filename,
        sha256=Digest.of(wheel.data),
        size=len(wheel.data),
        url="",
    )


def recipe(*wheels: FakeWheel, **changes) -> Recipe:
    values: dict[str, Any] = {
        "base_name": "scratch",
        "base_digest": base().digest,
        "python_path": "/usr/bin/python3.11",
        "target": TARGET,
        "wheels": tuple(sorted(map(locked, wheels), key=lambda wheel: wheel.name)),
        "variables": (("TF_X", "1"),),
        "labels": (("a", "b"),),
    }
    return Recipe(**values | changes)


def built(folder: Path, *wheels: FakeWheel, on_start=None):
    paths = {}
    for wheel in wheels:
        path = folder / "wheels" / wheel.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wheel.data)
        paths[Digest.of(wheel.data)] = path
    cache = LayerCache(folder / "cache")
    options = AssemblyOptions(wheels_to_verify=paths, on_start=on_start)
    return assemble(recipe(*wheels), base(), WheelFiles(paths), cache, options)


def tree(image: Image) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """All entries of all layers, upper ones last; every digest, size and diff id recomputed on the way."""
    found: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for layer in image.layers:
        with layer.open() as file:
            blob = file.read()
        assert (Digest.of(blob), len(blob)) == (layer.descriptor.digest, layer.descriptor.size)
        content = gzip.GzipFile(fileobj=io.BytesIO(blob)).read()
        assert Digest.of(content) == layer.diff_id
        members = tarfile.open(fileobj=io.BytesIO(content)).getmembers()
        names = [member.name for member in members]
        assert len(set(names)) == len(names), "a path twice in one layer"
        for name in names:
            parents = [str(parent) for parent in Path(name).parents if parent.name]
            assert all(names.index(parent) < names.index(name) for parent in parents), (
                "a parent that is missing or late"
            )
        reader = tarfile.open(fileobj=io.BytesIO(content))
        for member in members:
            assert (member.uid, member.gid, member.mtime, member.uname, member.gname) == (0, 0, 315532800, "", "")
            data = reader.extractfile(member) if member.isfile() else None
            found[member.name] = (member, data.read() if data else b"")
    return found


def everything() -> FakeWheel:
    """A wheel with a file of every kind."""
    return make_wheel(
        "every-thing",
        "1.0",
        {"every/__init__.py": "x = 1\n" * 500, "every/empty.py": "", "every/native.so": os.urandom(200_000)},
        scripts={"tool": "#!python\nprint('tool')\n", "shell": "#!/bin/sh\necho\n"},
        data={"share/every/data.txt": "data", "etc/every.conf": "conf"},
        headers={"every.h": "#define EVERY\n"},
        platlib={"every_platlib.py": "y = 2\n"},
        entry_points={
            "console_scripts": {"every": "every:main", "every-extra": "every.cli:App.run [color]"},
            "gui_scripts": {"every-gui": "every:gui"},
        },
        executable=["every/native.so"],
    )


def test_the_assembled_tree_is_what_pip_installs(tmp_path):
    wheel = everything()
    found = tree(built(tmp_path, wheel).image)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        tmp_path / "venv/bin/python",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-compile",
    ]
    subprocess.run([*pip, tmp_path / wheel.filename], check=True)
    python = f"python3.{sys.version_info.minor}"
    theirs = {}
    for path in (tmp_path / "venv").rglob("*"):
        if (
            path.is_file()
            and not path.is_symlink()
            and path.name not in ("pyvenv.cfg", "direct_url.json")
            and not path.name.startswith(("activate", "Activate"))
        ):
            content = (
                path.read_bytes()
                .replace(str(tmp_path / "venv").encode(), b"/opt/env")
                .replace(b"/opt/env/bin/python3\n", b"/opt/env/bin/python\n")
            )
            theirs[str(path.relative_to(tmp_path / "venv")).replace(python, "python3.11")] = content
    ours = {
        name.removeprefix("opt/env/"): data
        for name, (member, data) in found.items()
        if member.isfile()
        and not name.endswith("pyvenv.cfg")
        and f"opt/env/{name.removeprefix('opt/env/')}" not in CHECK
    }
    differing = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    info = "lib/python3.11/site-packages/every_thing-1.0.dist-info"
    assert differing <= {f"{info}/INSTALLER", f"{info}/RECORD"}


def test_record_is_true_of_every_file(tmp_path):
    found = tree(built(tmp_path, everything()).image)
    rows = list(csv.reader(io.StringIO(found[f"{SITE}/every_thing-1.0.dist-info/RECORD"][1].decode())))
    paths = {str(Path(os.path.normpath(f"{SITE}/{row[0]}"))) for row in rows}
    own = {"opt/env/pyvenv.cfg", *CHECK}
    assert paths == {name for name, (member, _) in found.items() if member.isfile()} - own
    for name, digest, size in rows:
        content = found[os.path.normpath(f"{SITE}/{name}")][1]
        if digest:
            assert int(size) == len(content)
            assert (
                digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            )


def test_modes_are_fixed_and_scripts_are_executable(tmp_path):
    found = tree(built(tmp_path, everything()).image)
    assert {name for name, (member, _) in found.items() if member.isfile() and member.mode == 0o755} == {
        f"{SITE}/every/native.so", "opt/env/bin/tool", "opt/env/bin/shell", "opt/env/bin/every", "opt/env/bin/every-extra", "opt/env/bin/every-gui", CHECK[0]
    }  # fmt: skip
    assert {member.mode for member, _ in found.values() if member.isfile()} == {0o644, 0o755}


def test_the_config_has_one_history_entry_and_one_diff_id_a_layer(tmp_path):
    image = built(tmp_path, everything()).image
    config = json.loads(image.config)
    assert config["rootfs"]["diff_ids"] == [str(layer.diff_id) for layer in image.layers]
    assert len(config["history"]) == len(image.layers)
    assert config["config"]["Env"] == ["PATH=/opt/env/bin:/usr/bin", "LANG=C.UTF-8", "VIRTUAL_ENV=/opt/env", "TF_X=1"]
    assert config["config"]["Labels"] == {"a": "b"}
    assert config["config"]["Cmd"] == ["bash"]
    manifest = json.loads(image.manifest)
    assert manifest["layers"] == [layer.descriptor.to_dict() for layer in image.layers]


def test_the_second_build_reuses_every_layer_and_gives_the_same_digest(tmp_path):
    wheels = [everything(), make_wheel("small", "1")]
    first, second = built(tmp_path, *wheels), built(tmp_path, *wheels)
    assert first.image.digest == second.image.digest
    assert not any(layer.reused for layer in first.image.layers)
    assert all(layer.reused for layer in second.image.layers)


def test_a_cached_layer_that_was_cut_short_is_made_again(tmp_path):
    wheel = everything()
    first = built(tmp_path, wheel)
    for path in (tmp_path / "cache/blobs/sha256").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    again = built(tmp_path, wheel)
    assert not any(layer.reused for layer in again.image.layers)
    assert again.image.digest == first.image.digest
    tree(again.image)


def test_a_layer_that_was_found_is_opened_although_its_entry_left_the_cache(tmp_path):
    wheel = everything()
    built(tmp_path, wheel)
    again = assemble(recipe(wheel), base(), WheelFiles({}), LayerCache(tmp_path / "cache"))
    for path in (tmp_path / "cache/layers").iterdir():
        path.unlink()
    assert tree(again.image)


@pytest.mark.parametrize("config", [{"Env": [1, None]}, {"Labels": "x"}])
def test_a_base_whose_config_has_other_types_is_refused(tmp_path, config):
    other = base()
    image = replace(other.image, config=json.dumps({"config": config}).encode())
    with pytest.raises(BaseError):
        assemble(recipe(), replace(other, image=image), WheelFiles({}), LayerCache(tmp_path / "cache"))


def test_no_library_that_inflates_decides_a_byte(tmp_path, monkeypatch):
    assert deflate._library is zlib_ng
    noise = random.Random(0).randbytes(9999)
    wheel = make_wheel("fixed", "1", {"fixed.py": "x = 1\n" * 9999, "large.txt": noise.hex() * 200, "noise": noise})
    own = built(tmp_path / "own", wheel).image.digest
    monkeypatch.setattr(deflate, "_library", zlib)
    assert built(tmp_path / "zlib", wheel).image.digest == own


def test_layers_of_the_cache_need_no_wheel(tmp_path):
    cache = LayerCache(tmp_path / "cache")
    large = make_wheel("large", "1", {"large.bin": random.Random(1).randbytes(5 << 20), "shared.py": "large"})
    wheels = [large, make_wheel("other", "1", {"shared.py": "other"}), make_wheel("small", "1")]
    assert wheels_to_read(recipe(*wheels), cache) == recipe(*wheels).wheels
    first = built(tmp_path, *wheels)
    assert wheels_to_read(recipe(*wheels), cache) == ()
    again = assemble(recipe(*wheels), base(), WheelFiles({}), cache)
    assert (again.image.digest, again.overlaps) == (first.image.digest, first.overlaps)
    assert [it.path.rpartition("/")[2] for it in again.overlaps] == ["shared.py"]


def test_members_that_are_what_record_says_are_noted_and_others_are_not(tmp_path):
    honest = make_wheel("honest", "1", {"honest.py": "a", "big.bin": random.Random(1).randbytes(5 << 20)})
    lines = archived(honest, "honest-1.dist-info/RECORD").decode().replace("honest-1", "forged-1")
    forged = make_wheel("forged", "1", {"honest.py": "b", "big.bin": "other"}, record=lines)
    with pytest.raises(WheelError, match="where its RECORD says"):
        built(tmp_path, forged)
    same_size = make_wheel("forged", "1", {"honest.py": "b", "big.bin": bytes(5 << 20)}, record=lines)
    true = built(tmp_path, honest, same_size).verified_members
    assert true[Digest.of(honest.data)] >= {"honest.py", "big.bin", "honest-1.dist-info/METADATA"}
    assert not true[Digest.of(same_size.data)] & {"honest.py", "big.bin"}


def archived(wheel: FakeWheel, name: str) -> bytes:
    return zipfile.ZipFile(io.BytesIO(wheel.data)).read(name)


def test_one_changed_wheel_leaves_the_files_of_other_layers_unread(tmp_path):
    cache = LayerCache(tmp_path / "cache")
    large = [make_wheel(name, "1", {f"{name}.bin": random.Random(1).randbytes(5 << 20)}) for name in ("aaa", "bbb")]
    built(tmp_path, *large, make_wheel("small", "1"))
    changed = recipe(*large, make_wheel("small", "2"))
    assert [it.name for it in wheels_to_read(changed, cache)] == ["small"]


def test_a_record_of_another_layer_counts_for_nothing(tmp_path):
    wheels = [make_wheel("aaa", "1", {"x.bin": random.Random(1).randbytes(5 << 20)}), make_wheel("small", "1")]
    first = built(tmp_path, *wheels)
    one, two, *_ = sorted((tmp_path / "cache/layers").iterdir())
    swapped = (one.read_bytes(), two.read_bytes())
    two.write_bytes(swapped[0])
    one.write_bytes(swapped[1])
    assert built(tmp_path, *wheels).image.digest == first.image.digest


@pytest.mark.parametrize("text", ["", "{}", "[[1]]", '[["a", "nobody"]]', "7"])
def test_damaged_notes_of_the_cache_count_for_nothing(tmp_path, text):
    wheels = [make_wheel("aaa", "1", {"shared.py": "a"}), make_wheel("bbb", "1", {"shared.py": "b"})]
    first = built(tmp_path, *wheels)
    for note in (tmp_path / "cache/notes").iterdir():
        note.write_text(text)
    assert built(tmp_path, *wheels).overlaps == first.overlaps


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE])
def test_what_the_machine_lacks_is_no_fault_of_a_wheel(tmp_path, monkeypatch, number):
    def lacking(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("mmap.mmap", lacking)
    with pytest.raises(OSError, match=os.strerror(number)):
        built(tmp_path, make_wheel("small", "1"))


def test_the_number_of_cores_decides_no_byte(tmp_path, monkeypatch):
    # streamed, a batch of its own, shared by a batch, empty, no whole block
    sizes = {"large": 5 << 20, "whole": 2 << 20, "half": 1 << 20, "most": (2 << 20) - 512, "none": 0, "odd": 513}
    files = {f"many/{name}.bin": random.Random(size).randbytes(size) for name, size in sizes.items()}
    wheels = [
        make_wheel("many", "1", files),
        make_wheel("flat", "1", {f"flat/{name}": data for name, data in files.items()}, method=0),
        *[make_wheel(f"small{number}", "1") for number in range(20)],
    ]
    images = []
    for cores in (1, 2, 8):
        monkeypatch.setattr(maker, "_CORES", cores)
        (tmp_path / str(cores)).mkdir()
        images.append(built(tmp_path / str(cores), *wheels).image)
    assert len({it.digest for it in images}) == 1
    found = tree(images[0])
    assert all(found[f"{SITE}/{name}"][1] == data for name, data in files.items())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_all_files_of_a_layer_are_in_one_member(tmp_path, method):
    sizes = {"streamed": 5 << 20, "batch": 1 << 20, "last": 99}  # deflated, all but the last have several blocks
    files = {f"noise/{name}": random.Random(size).randbytes(size) for name, size in sizes.items()}
    image = built(tmp_path, make_wheel("noise", "1", files, method=method)).image
    with image.layers[0].open() as blob:
        assert len(members(blob.read())) == 1
    found = tree(image)
    assert all(found[f"{SITE}/{name}"][1] == data for name, data in files.items())


def test_a_file_that_is_much_larger_compressed_is_never_whole_in_memory(tmp_path):
    """Nothing keeps a compressor from writing empty blocks, and only what a file becomes is bounded."""
    empty, content = b"\0\0\0\xff\xff" * (4 << 20), b"few bytes"
    some = Part(name=b"big/some", data=content, packed=empty + deflated(content))
    parts = [some, Part(name=b"big/other", data=content)]
    (tmp_path / "big.whl").write_bytes(archive(parts))
    with ThreadPoolExecutor(1) as pool, WheelArchive(tmp_path / "big.whl", "big.whl") as wheel:
        files = [LayerFile(InstalledFile(it.name, executable=False, source=it), wheel) for it in wheel.members]
        with (tmp_path / "layer").open("wb") as sink:
            tracemalloc.start()
            write_layer(sink, "/opt/env", files, pool)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
            tracemalloc.stop()
    assert entries_of((tmp_path / "layer").read_bytes())["opt/env/big/some"] == content


def test_a_generated_file_may_be_large():
    """RECORD is, of a wheel with very many files."""
    contents = {"RECORD": random.Random(3).randbytes(3 << 20), "after": b"it"}
    files = [LayerFile(InstalledFile(name, executable=False, source=it), None) for name, it in contents.items()]
    sink = io.BytesIO()
    with ThreadPoolExecutor(1) as pool:
        result = write_layer(sink, "/opt/env", files, pool)
    [content] = members(sink.getvalue())
    assert (result.digest, result.diff_id) == (Digest.of(sink.getvalue()), Digest.of(content))
    found = entries_of(sink.getvalue())
    assert {name: found[f"opt/env/{name}"] for name in contents} == contents


def members(blob: bytes) -> list[bytes]:
    found = []
    while blob:
        reader = zlib.decompressobj(31)
        found.append(reader.decompress(blob))
        blob = reader.unused_data
    return found


def test_equal_files_of_two_wheels_are_no_overlap(tmp_path):
    wheels = [make_wheel(name, "1", {"space/__init__.py": "", f"space/{name}.py": ""}) for name in ("one", "two")]
    assert built(tmp_path, *wheels).overlaps == ()


def test_a_file_in_one_wheel_and_a_folder_in_another_is_refused(tmp_path):
    with pytest.raises(BuildError, match="is a file in one wheel and a folder in another"):
        built(tmp_path, make_wheel("one", "1", {"thing": "x"}), make_wheel("two", "1", {"thing/deep/er.py": "x"}))


def test_pip_gets_the_versioned_names_of_its_python(tmp_path):
    wheel = make_wheel(
        "pip",
        "24.0",
        {"pip/__init__.py": ""},
        entry_points={"console_scripts": {"pip": "pip:main", "pip3": "pip:main", "pip3.9": "pip:main"}},
    )
    names = {
        name.removeprefix("opt/env/bin/")
        for name in tree(built(tmp_path, wheel).image)
        if name.startswith("opt/env/bin/pip")
    }
    assert names == {"pip", "pip3", "pip3.11"}


def test_setuptools_wrappers_give_way_to_entry_points(tmp_path):
    wheel = make_wheel(
        "wrapped",
        "1",
        scripts={"wrapped": "#!python\nold\n"},
        entry_points={"console_scripts": {"wrapped": "wrapped:main"}},
    )
    assert b"from wrapped import main" in tree(built(tmp_path, wheel).image)["opt/env/bin/wrapped"][1]


def test_a_python_without_removesuffix_gets_scripts_that_it_can_run(tmp_path):
    from envbuild.wheel.install import script

    assert b"removesuffix" not in script("x", "a:b", "/opt/env/bin/python", "3.8")


def test_large_wheels_have_their_own_layer_and_small_ones_share(tmp_path):
    def sized(name: str, megabytes: int) -> FakeWheel:
        return make_wheel(name, "1", {f"{name}.bin": bytes(megabytes << 20)}, method=zipfile.ZIP_STORED)

    large = [sized(f"large{n}", 31 + n) for n in (1, 2)]
    medium = [sized(f"medium{n}", 1 + 5 * n) for n in range(6)]
    small = [make_wheel(f"small{n}", "1") for n in range(40)]
    layers = built(tmp_path, *large, *medium, *small).image.layers
    assert [layer.created_by for layer in layers[:2]] == ["large2 1", "large1 1"]
    names = [{name.rstrip("0123456789 ") for name in layer.created_by.split(", ")} for layer in layers[2:-2]]
    assert names == [{"medium"}, {"medium"}, {"small"}]


NO_ZIP = "not a readable zip"
HOSTILE = {
    "absolute": ("/etc/passwd", "absolute"),
    "parent": ("../../evil.py", LEAVES),
    "inner parent": ("pkg/../../evil.py", LEAVES),
    "drive": ("C:/evil.py", "absolute"),
    "backslash": ("pkg\\evil.py", "forbidden"),
    "whiteout": ("pkg/.wh.other", "whiteout"),
    "opaque": (".wh..wh..opq", "whiteout"),
    "dot": ("pkg/./a.py", LEAVES),
    "double slash": ("pkg//a.py", LEAVES),
    "newline": ("pkg/a\nb.py", "forbidden"),
    "unknown scheme": ("hostile-1.data/evil/x", UNKNOWN),
    "interpreter": ("hostile-1.data/scripts/python3", "bin/python3"),
    "interpreter as data": ("hostile-1.data/data/bin/python", OWN),
    "configuration": ("hostile-1.data/data/pyvenv.cfg", OWN),
    "start-up check": ("hostile-1.data/scripts/envbuild-check", OWN),
    "its list": ("hostile-1.data/data/share/envbuild/lock.json", OWN),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_are_refused(case, tmp_path):
    name, why = HOSTILE[case]
    wheel = make_wheel("hostile", "1", extra=[(name, b"x", 0o644)])
    own = assembler._environment_spec(recipe()).key, assembler._startup_check_spec(recipe(wheel)).key
    with pytest.raises(WheelError, match=why):
        built(tmp_path, wheel)
    assert {path.stem for path in (tmp_path / "cache").rglob("*.json")} <= {key.hex for key in own}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_repeat_are_refused(tmp_path):
    with pytest.raises(WheelError, match="twice"):
        built(tmp_path, make_wheel("hostile", "1", extra=[("x.py", b"1", 0o644), ("x.py", b"2", 0o644)]))


def test_links_are_refused(tmp_path):
    wheel = make_wheel("hostile", "1", extra=[("link", b"/etc/passwd", 0o120777)])
    with pytest.raises(WheelError, match="link or device"):
        built(tmp_path, wheel)


def changed(wheel: FakeWheel, change) -> FakeWheel:
    data = bytearray(wheel.data)
    change(data)
    return FakeWheel(filename=wheel.filename, data=bytes(data))


def plain() -> FakeWheel:
    return make_wheel("hostile", "1", {"hostile.py": "x = 1\n" * 100})


def directory(data: bytearray) -> int:
    return data.index(b"PK\x01\x02")


def put(offset: int, form: str, *values: Any):
    return lambda data: struct.pack_into(form, data, offset, *values)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put(30, "<c", b"H"), "disagree on name"),
        (put(8, "<H", 0), "disagree on name or method"),
        *((put(at, "<L", 7), "disagree on size or CRC") for at in (14, 22)),
        (lambda data: put(directory(data) + 8, "<H", 1)(data), "encrypted"),
        (lambda data: (put(directory(data) + 10, "<H", 12)(data), put(8, "<H", 12)(data)), "compression method 12"),
        (lambda data: (put(directory(data) + 16, "<L", 7)(data), put(14, "<L", 7)(data)), "another size or CRC"),
        (lambda data: (put(directory(data) + 24, "<L", 7)(data), put(22, "<L", 7)(data)), "7 bytes where its RECORD says"),
        (put(40, "<Q", 2**64 - 1), r"damaged|does not end|ends before|another size"),
        (lambda data: data.__delitem__(slice(len(data) // 2, None)), NO_ZIP),
        (lambda data: data.__setitem__(slice(None), b""), NO_ZIP),
    ],
    ids=["name", "method", "crc", "size", "encrypted", "bzip2", "directory crc", "directory size", "stream", "half", "empty"],
)  # fmt: skip
def test_damage_and_disagreement_are_refused(change, why, tmp_path):
    with pytest.raises(WheelError, match=why):
        built(tmp_path, changed(plain(), change))
    assert not list((tmp_path / "cache").rglob(".new-*"))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_is_refused(method, tmp_path):
    with pytest.raises(WheelError, match="compression method"):
        built(tmp_path, make_wheel("hostile", "1", method=method))


def test_stored_entries_are_taken(tmp_path):
    wheel = make_wheel("kept", "1", {"kept.py": "x = 1\n" * 30000}, method=zipfile.ZIP_STORED)
    assert tree(built(tmp_path, wheel).image)[f"{SITE}/kept.py"][1] == b"x = 1\n" * 30000


def test_a_deflate_stream_that_goes_on_behind_its_end_is_refused(tmp_path):
    good = plain().data
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        info = archive.infolist()[0]
    longer = bytearray(good)
    longer[30 + len(info.filename) + info.compress_size : 30 + len(info.filename) + info.compress_size] = b"tail"
    struct.pack_into("<L", longer, 18, info.compress_size + 4)
    at = directory(longer)
    struct.pack_into("<L", longer, at + 20, info.compress_size + 4)
    position = at
    while longer[position : position + 4] == b"PK\x01\x02":
        names = struct.unpack_from("<3H", longer, position + 28)
        offset = struct.unpack_from("<L", longer, position + 42)[0]
        struct.pack_into("<L", longer, position + 42, offset + 4 if offset else 0)
        position += 46 + sum(names)
    struct.pack_into("<L", longer, position + 16, at)
    with pytest.raises(WheelError, match=r"ends before|does not end"):
        built(tmp_path, FakeWheel(filename=plain().filename, data=bytes(longer)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dist_info": {"WHEEL": "Wheel-Version: 2.0\n"}}, "Wheel-Version"),
        ({"entry_points": {"console_scripts": {"x": "no-callable"}}}, POINT),
        ({"entry_points": {"console_scripts": {"../x": "a:b"}}}, POINT),
        ({"entry_points": {"console_scripts": {"python3": "a:b"}}}, "interpreter"),
        ({"dist_info": {"entry_points.txt": "no section"}}, "entry_points.txt"),
        ({"extra": [("other-1.dist-info/METADATA", b"", 0o644)]}, "2 .dist-info"),
    ],
)
def test_metadata_that_is_not_the_specifications_is_refused(changes, why, tmp_path):
    with pytest.raises(WheelError, match=why):
        built(tmp_path, make_wheel("hostile", "1", **changes))


def test_a_wheel_of_another_release_is_refused(tmp_path):
    wheel = make_wheel("hostile", "1")
    with pytest.raises(WheelError, match="belongs to another release"):
        built(tmp_path, FakeWheel(filename=wheel.filename.replace("-1-", "-2-"), data=wheel.data))


def test_a_base_with_too_many_layers_is_refused(tmp_path):
    from envbuild.image.layers.plan import check_depth

    with pytest.raises(BuildError, match="more than the 100"):
        check_depth(40, 61)
