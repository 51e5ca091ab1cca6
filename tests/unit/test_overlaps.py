"""Files that several wheels install to one path: the image has the run's, else the one that pip leaves."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.image.assembler import assemble, prefetch_layer_keys
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.plan import install_order
from envbuild.lock.formats import pylock_text, read_pylock
from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.layers import WheelFiles
from tests.unit.test_assemble import SITE, TARGET, base, locked, recipe, tree

OPENCV = tuple(f"opencv-{name}" for name in ("python", "python-headless", "contrib-python", "contrib-python-headless"))
CASES: dict[str, tuple[dict[str, list[str]], tuple[str, ...]]] = {
    "opencv": ({it: ["numpy"] for it in OPENCV} | {"numpy": []}, OPENCV),
    "nccl": ({"nvidia-nccl-cu11": [], "nvidia-nccl-cu12": []}, ("nvidia-nccl-cu11", "nvidia-nccl-cu12")),
    "cudnn": (
        {"nvidia-cudnn-cu12": ["nvidia-cublas-cu12"], "nvidia-cudnn-cu13": ["nvidia-cublas"]}
        | {"nvidia-cublas-cu12": [], "nvidia-cublas": ["nvidia-cuda-nvrtc"], "nvidia-cuda-nvrtc": []},
        ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    ),
    "one requires the other": ({"zzz": [], "aaa": [], "mmm": ["zzz", "aaa"]}, ("zzz", "aaa", "mmm")),
    "a cycle and what requires it": (
        {"one": ["two"], "two": ["one", "leaf"], "user": ["one"], "leaf": []},
        ("one", "leaf", "user", "two"),
    ),
    "an extra": (
        {"aaa": ["mid[more]"], "mid": ["leaf; extra == 'more'"], "leaf": [], "zzz": ["leaf"]},
        ("aaa", "mid", "zzz"),
    ),
    "a marker that does not hold": ({"aaa": [], "zzz": ["aaa; python_version < '3'"]}, ("aaa", "zzz")),
}


def wheels_of(requires: dict[str, list[str]], sharing: tuple[str, ...]) -> list[FakeWheel]:
    """Wheels of which some have the file shared/owner.txt, with their own names in it."""
    return [
        make_wheel(name, "1", {"shared/owner.txt": name} if name in sharing else None, requires=needs)
        for name, needs in requires.items()
    ]


def written(folder: Path, wheels: list[FakeWheel]) -> dict[Digest, Path]:
    for wheel in wheels:
        (folder / wheel.filename).write_bytes(wheel.data)
    return {Digest.of(wheel.data): folder / wheel.filename for wheel in wheels}


def assembled(folder: Path, wheels: list[FakeWheel], **changes):
    paths = written(folder, wheels)
    return assemble(recipe(*wheels, **changes), base(), WheelFiles(paths), LayerCache(folder / "cache"))


def owner(folder: Path, wheels: list[FakeWheel], **changes) -> str:
    return tree(assembled(folder, wheels, **changes).image)[f"{SITE}/shared/owner.txt"][1].decode()


_PIP = """
import json, os, sys
from pip._internal.cli.main import main
from pip._internal.commands import install
for words in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os._exit(main(words))
    assert os.waitpid(child, 0)[1] == 0, words
"""
"""Runs pip with each list of arguments, and imports it once."""


def test_without_evidence_the_image_has_the_file_that_pip_leaves(tmp_path):
    installs, ours = [], {}
    for case, (requires, sharing) in CASES.items():
        (folder := tmp_path / case).mkdir()
        ours[case] = [owner(folder, wheels_of(requires, sharing))]
        command = ["install", "-q", "--no-index", "--find-links", str(folder), "--no-compile", "--ignore-installed"]
        installs.append([*command, "--prefix", str(folder / "pip"), *sorted(requires)])
    subprocess.run([sys.executable, "-c", _PIP], input=json.dumps(installs), text=True, check=True)
    assert ours == {case: [it.read_text() for it in (tmp_path / case / "pip").rglob("owner.txt")] for case in CASES}


def test_the_pip_that_is_locked_decides(tmp_path):
    """Up to 20.2 it installed by name after dependencies; until 21.3 what many layers lie above came first."""
    requires: dict[str, list[str]] = {"aaa": [], "bbb": [], "old": ["aaa"]}
    orders = {pip: install_order(requires, TARGET, pip) for pip in ("20.2.4", "20.3", "22.0", None)}
    assert orders == {
        "20.2.4": ["aaa", "bbb", "old"],
        "20.3": ["aaa", "old", "bbb"],
        "22.0": ["bbb", "aaa", "old"],
        None: ["bbb", "aaa", "old"],
    }
    wheels = [*wheels_of({"aaa": [], "bbb": []}, ("aaa", "bbb")), make_wheel("pip", "20.2.4", {"pip.py": ""})]
    assert owner(tmp_path, wheels) == "bbb"


@pytest.mark.parametrize("case", ["opencv", "nccl", "cudnn"])
def test_the_file_of_the_run_is_the_image_s(tmp_path, case):
    requires, sharing = CASES[case]
    wheels = wheels_of(requires, sharing)
    for name in sharing:
        owners = (("shared/owner.txt", name),)
        [overlap] = assembled(tmp_path, wheels, owners=owners).overlaps
        assert (overlap.winner.name, {*overlap.losers}) == (name, {*sharing} - {name})
        assert owner(tmp_path, wheels, owners=owners) == name


def test_scripts_are_told_by_their_paths_in_record(tmp_path):
    wheels = [make_wheel(name, "1", scripts={"tool": f"#!/bin/sh\n# {name}\n"}) for name in ("aaa", "zzz")]
    found = tree(assembled(tmp_path, wheels, owners=(("../../../bin/tool", "zzz"),)).image)
    assert b"zzz" in found["opt/env/bin/tool"][1]


def test_whose_file_it_is_is_part_of_the_environment_and_of_the_lock():
    wheels = wheels_of({"aaa": [], "zzz": []}, ("aaa", "zzz"))
    plain, told = recipe(*wheels), recipe(*wheels, owners=(("shared/owner.txt", "zzz"),))
    assert plain.environment != told.environment
    files = tuple(replace(locked(it), url=f"https://example.com/{it.filename}") for it in wheels)
    lock = Lock(target=TARGET, wheels=files, owners=told.owners)
    assert read_pylock(pylock_text(lock), "pylock.toml").owners == told.owners


def test_layers_of_wheels_are_the_same_whoever_has_the_shared_file(tmp_path):
    wheels = wheels_of({"aaa": [], "zzz": []}, ("aaa", "zzz"))
    one = assembled(tmp_path, wheels).image
    other = assembled(tmp_path, wheels, owners=(("shared/owner.txt", "zzz"),)).image
    assert len({it.diff_id for it in one.layers} & {it.diff_id for it in other.layers}) == len(one.layers) - 1
    assert json.loads(one.config) != json.loads(other.config)


def test_a_note_of_a_file_that_its_wheel_lacks_is_ignored(tmp_path, monkeypatch):
    wheels = wheels_of({"aaa": [], "zzz": []}, ("aaa", "zzz"))
    cache, keys = LayerCache(tmp_path / "cache"), []
    monkeypatch.setattr(cache, "prefetch", lambda _, notes: keys.extend(notes))
    prefetch_layer_keys(recipe(*wheels), cache)
    assert keys
    for key in keys:
        cache.store_note(key, [["shared/other.txt", "aaa", "zzz"]])
    [overlap] = assembled(tmp_path, wheels).overlaps
    assert overlap.path == f"{SITE.removeprefix('opt/env/')}/shared/owner.txt"
    assert owner(tmp_path, wheels) == overlap.winner.name
