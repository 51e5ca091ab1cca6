"""The folder in which the commands of docs/exit-codes are run: manifests, wheels, a base, an image, a model."""

import json
from pathlib import Path
from typing import Any

from envbuild.oci.layout import write_layout
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import make_wheel

TENSORFLOW = make_wheel(
    "tensorflow-cpu",
    "2.15.1",
    {"tensorflow/__init__.py": ""},
    tags=["cp311-cp311-manylinux_2_17_x86_64"],
    requires=["numpy<2"],
    purelib=False,
)
NUMPY = make_wheel("numpy", "1.26.4", {"numpy/__init__.py": "version = 1\n"})
NEWER = make_wheel("numpy", "2.1.0", {"numpy/__init__.py": "version = 2\n"})
SERVER = make_wheel("server", "1.0", {"server.py": ""}, requires=["numpy>=2"])
EVIL = make_wheel("helper", "0.1", extra=[("../../etc/passwd", b"root", 0o644)])


def manifest_of(*pins: str, **changes: Any) -> dict[str, Any]:
    """A run with these packages and nothing else, the last of which is its framework."""
    distributions = [dict(zip(("name", "version"), pin.split("=="), strict=True)) for pin in pins]
    own = distributions[-1]
    return {
        "schema_version": "1.1",
        "created": "2026-11-21T12:00:00Z",
        "python": {"version": "3.11.2", "implementation": "cpython"},
        "platform": {"system": "Linux", "machine": "x86_64", "libc": "glibc", "libc_version": "2.36"},
        "framework": {"name": "tensorflow", "distribution": own["name"], "version": own["version"]},
        "accelerator": {"kind": "none", "source": "driver"},
        "distributions": [it | {"origin": {"kind": "index"}} for it in distributions],
    } | changes


def make_site(folder: Path) -> None:
    """Put everything there that the pages name."""
    for path in ("wheels", "hostile", "model"):
        (folder / path).mkdir(parents=True)
    for wheel in (TENSORFLOW, NUMPY, NEWER, SERVER):
        (folder / "wheels" / wheel.filename).write_bytes(wheel.data)
    for wheel in (TENSORFLOW, NUMPY, EVIL):
        (folder / "hostile" / wheel.filename).write_bytes(wheel.data)
    write_layout(image_of_trees(BASE, config={"Env": ["PATH=/usr/bin"]}), folder / "base")
    (folder / "model" / "saved_model.pb").write_bytes(b"")
    run = ("numpy==1.26.4", "tensorflow-cpu==2.15.1")
    manifests = {
        "manifest.json": manifest_of(*run),
        "newer.json": manifest_of("numpy==2.1.0", run[1]),
        "hostile.json": manifest_of("helper==0.1", *run),
        "broken.json": manifest_of(*run, python={"version": "3.11"}),
        "future.json": manifest_of(run[0], "tensorflow==2.99.0"),
    }
    for name, value in manifests.items():
        (folder / name).write_text(json.dumps(value))
