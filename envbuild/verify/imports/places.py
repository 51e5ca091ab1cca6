"""Where an image can be tried on this machine: by a container engine, else by bubblewrap."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from envbuild.base.interpreter import runs_here
from envbuild.engine.build import loaded_base
from envbuild.engine.client import connected
from envbuild.engine.confinement import WRITABLE
from envbuild.engine.image import Report, find_image
from envbuild.errors import MissingComponentError
from envbuild.oci.image import Image, platform_name
from envbuild.oci.rootfs import read_tree, resolve, unpack
from envbuild.verify.golden.runners import InBubblewrap, InImage, Runner

_INSTEAD = "install bubblewrap"
_IMAGE = "the image"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOUNTED = ("dev", "proc", *(place[1:] for place in WRITABLE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an image can be tried, or why nowhere."""

    name: str
    """`container engine`, `bubblewrap`; empty for nowhere."""
    runner: Runner | None = None
    why: str = ""
    """Why nowhere, in half a sentence."""


@contextmanager
def place_for(image: Image, machine: str, report: Report) -> Iterator[Place]:
    """Yield where an image for `machine` can be tried; what was put there is gone when the block ends."""
    with ExitStack() as stack:
        try:
            client = stack.enter_context(connected(_INSTEAD))
        except MissingComponentError as error:
            yield stack.enter_context(_bubblewrap(image, machine, error.what))
            return
        version, wanted = client.version(), platform_name(image)
        engine = f"{version['Os']}/{version['Arch']}"
        if not f"{wanted}/".startswith(f"{engine}/"):
            yield Place(name="", why=f"the container engine is {engine}, and the image is for {wanted}")
            return
        name = stack.enter_context(loaded_base(client, image, report))
        runner = InImage(name=name, client=client, image=find_image(client, name, report))
        yield Place(name="container engine", runner=runner)


@contextmanager
def _bubblewrap(image: Image, machine: str, no_engine: str) -> Iterator[Place]:
    """Unpack the image where bubblewrap works here."""
    if other := runs_here(machine):
        yield Place(name="", why=f"{no_engine}, and {other.why}")
        return
    if reason := _why_no_bubblewrap():
        yield Place(name="", why=f"{no_engine}, and {reason}")
        return
    with TemporaryDirectory(prefix="envbuild-unpacked-") as name:
        root = Path(name)
        unpack(image, root, _IMAGE)
        for place in _MOUNTED:
            (root / place).mkdir(parents=True, exist_ok=True)
        variables = _variables(image)
        paths = (f"{folder}/python" for folder in variables["PATH"].split(":"))
        tree = read_tree(image, _IMAGE)
        python, file = next(((path, it) for path in paths if (it := resolve(tree, path))), ("", ""))
        if not file:
            yield Place(name="", why="the image has no python on its PATH")
            return
        if not os.access(root / file.lstrip("/"), os.X_OK):
            yield Place(name="", why=f"nothing may be executed in {root.parent}, where the image was unpacked (noexec)")
            return
        yield Place(name="bubblewrap", runner=InBubblewrap(name=_IMAGE, root=root, variables=variables, python=python))


def _why_no_bubblewrap() -> str:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    done = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return f"bubblewrap does not work here: {done.stderr.strip()[-200:]}" if done.returncode else ""


def _variables(image: Image) -> dict[str, str]:
    config: Mapping[str, Any] = json.loads(image.config).get("config") or {}
    return {"PATH": _USUAL_PATH} | dict(item.partition("=")[::2] for item in config.get("Env") or ())
