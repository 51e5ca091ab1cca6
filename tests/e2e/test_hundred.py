"""The image of a hundred widely used wheels runs: what can be imported where pip installed them, can be here."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.image.assembler import assemble
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import fetch
from envbuild.lock.model import Lock
from envbuild.lock.resolvers import UvResolver
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.registry.push import push
from envbuild.report import SILENT
from tests.layers import WheelFiles

pytestmark = [pytest.mark.real, pytest.mark.slow]

LIST = Path(__file__).with_name("hundred.txt")
PROBE = """
import importlib, importlib.metadata, json, os, signal

def outcome(name):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some greet
    try:
        importlib.import_module(name)
    except BaseException as error:
        return "%s: %s" % (type(error).__name__, error)
    return "imported"

def tried(name):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        os.write(write, outcome(name).encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = file.read()
    status = os.waitpid(pid, 0)[1]
    return told if status == 0 else "status %d" % status

modules = sorted(name for name in importlib.metadata.packages_distributions() if name.isidentifier())
print(json.dumps({
    "distributions": {it.name: it.version for it in importlib.metadata.distributions()},
    "modules": {name: tried(name) for name in modules},
}))
"""
"""Each module in a process of its own, as some end theirs, and some bring others down with them."""
# pip would leave itself out otherwise, as it sees the wheel that it runs from
INSTALL = """set -e
python3 -m venv --without-pip /opt/env
export PYTHONPATH=$(echo /wheels/pip-*.whl)
python3 -m pip --isolated --disable-pip-version-check --python /opt/env/bin/python install --quiet --ignore-installed \
--root-user-action ignore --no-cache-dir --no-deps --no-compile --no-index --find-links /wheels -r /list
unset PYTHONPATH
exec /opt/env/bin/python -c "$PROBE"
"""
ENVIRONMENT = {"PROBE": PROBE, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
SCRIPTS = ("cmake", "cython", "ninja", "pip", "ruff", "uv")
"""Of Python and of machine code; each needs nothing that is not in the list, and says its version."""


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # pytest would keep these gigabytes for three sessions


def no_registry(*_):
    raise AssertionError("a bootstrapped base needs no registry")


def recipe_of(lock: Lock, base: Base) -> Recipe:
    return Recipe(
        base_name=base.name,
        base_digest=base.digest,
        python_path=base.python_path,
        target=base.target,
        wheels=lock.wheels,
        variables=(),
        labels=(),
    )


def named(wheels: Mapping[Any, Path], folder: Path) -> Path:
    """A folder of links that have the names which the files have on the index."""
    folder.mkdir()
    for wheel, path in wheels.items():
        (folder / wheel.filename).symlink_to(path)
    return folder


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    names = sorted(ours.keys() | theirs.keys())
    return [
        f"{name}: {ours.get(name)}; where pip installed it: {theirs.get(name)}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def test_what_pip_makes_importable_is_importable(folder, registry, engine, cache):
    base = resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=no_registry, report=SILENT)
    lock = UvResolver().resolve(tuple(LIST.read_text().split()), base.target)
    wheels = dict(fetch(lock.wheels, cache / "hundred"))
    files = WheelFiles({wheel.sha256: path for wheel, path in wheels.items()})
    built = assemble(recipe_of(lock, base), base, files, LayerCache(folder / "layers")).image
    image = push(built, Reference.parse(f"{registry.host}/hundred/image:latest")).reference
    plain = push(base.image, Reference.parse(f"{registry.host}/hundred/base:latest")).reference
    for reference in (image, plain):
        engine.pull(str(reference))
    ours = engine.run(
        str(image), ["python", "-c", PROBE], environment=ENVIRONMENT, user="0", network_mode="none", timeout=900
    )
    theirs = engine.run(
        str(plain),
        ["sh", "-c", INSTALL],
        environment=ENVIRONMENT,
        network_mode="none",
        timeout=900,
        volumes={
            str(named(wheels, folder / "wheels")): {"bind": "/wheels", "mode": "ro"},
            str(cache / "hundred"): {"bind": str(cache / "hundred"), "mode": "ro"},  # where those links lead
            str(LIST): {"bind": "/list", "mode": "ro"},
        },
    )
    ours, theirs = json.loads(ours), json.loads(theirs)
    differing = [line for part in theirs for line in differences(ours[part], theirs[part])]
    assert not differing, "\n".join(differing)
    assert len(ours["distributions"]) == 100
    assert sum(told == "imported" for told in ours["modules"].values()) > 80  # not every pin fits every other
    versions = {name.lower().replace("_", "-"): version for name, version in ours["distributions"].items()}
    for script in SCRIPTS:
        told = engine.run(str(image), [script, "--version"], environment=ENVIRONMENT, network_mode="none")
        assert versions[script] in told, (script, told)
