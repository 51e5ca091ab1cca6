"""No image has a layer without files or a layer twice, as GKE's image streaming takes no such image.

The check is of what envbuild adds: a base that has such layers keeps them.
"""

import tarfile
from dataclasses import replace

import pytest

from envbuild.image.assembler import assemble
from envbuild.image.child import Addition, add_startup_check, assemble_child
from envbuild.image.content import Content
from envbuild.image.layers.cache import LayerCache
from envbuild.oci.compression import Compression, open_layer
from envbuild.oci.image import Image
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.unit.test_assemble import base, recipe
from tests.unit.test_child import BELOW, compiling, files_of, lock_of, parent_of

PYTHON_2 = "print 'hello'\n"
SAME = {"same/__init__.py": "x = 1\n", "same/data": "data"}
WHEELS: dict[str, tuple[FakeWheel, ...]] = {
    "none": (),
    "metadata alone": (make_wheel("bare", "1.0", {}),),
    "empty files": (make_wheel("hollow", "1.0", {"hollow/__init__.py": "", "hollow/py.typed": ""}),),
    "equal files": (make_wheel("one", "1.0", {"one.py": "", **SAME}), make_wheel("two", "1.0", SAME)),
    "equal paths": (make_wheel("one", "1.0", SAME), make_wheel("two", "1.0", {**SAME, "same/__init__.py": "x = 2\n"})),
    "no module compiles": (make_wheel("old", "1.0", {"old.py": PYTHON_2}),),
}
APPLICATIONS: dict[str, tuple[Content, ...]] = {
    "none": (),
    "an empty file": (Content("application", {"/app/serve.py": b""}),),
    "a link alone": (Content("application", {}, links={"/app/serve.py": "/opt/env/bin/python"}),),
    "empty files in both": (Content("model", {"/model/a": b""}), Content("application", {"/app/a": b""})),
    "no module compiles": (Content("application", {"/app/serve.py": PYTHON_2.encode()}),),
    "equal modules": (Content("server", {"/app/a.py": b"x = 1\n"}), Content("application", {"/app/b.py": b"x = 1\n"})),
}


def check_layers(image: Image) -> None:
    for layer in image.layers:
        with (
            layer.open() as file,
            tarfile.open(fileobj=open_layer(file, layer.descriptor.media_type), mode="r|") as tar,
        ):
            assert [it.name for it in tar if not it.isdir()], layer.created_by
    found = [it.diff_id for it in image.layers]
    assert len(set(found)) == len(found), [it.created_by for it in image.layers]


@pytest.mark.parametrize("wheels", WHEELS.values(), ids=WHEELS)
@pytest.mark.parametrize(
    ("compression", "bytecode", "largest"),
    [("gzip", False, 32 << 20), ("gzip", True, 0), ("zstd", True, 32 << 20), ("zstd", False, 0)],
    ids=["sources", "bytecode, a layer each", "bytecode", "sources, a layer each"],
)
def test_of_an_environment(tmp_path, monkeypatch, wheels, compression, bytecode, largest):
    monkeypatch.setattr("envbuild.image.layers.plan._LARGE", largest)
    monkeypatch.setattr("envbuild.image.bytecode.layers._LARGE", largest)
    by = compiling(tmp_path / "compiled") if bytecode else None
    made = recipe(*wheels, compression=Compression.parse(compression), bytecode="by" if by else "")
    cache = LayerCache(tmp_path / "cache", compression=made.compression)
    check_layers(assemble(made, base(), files_of(tmp_path / "wheels", *wheels), cache, compiling=by).image)


@pytest.mark.parametrize("contents", APPLICATIONS.values(), ids=APPLICATIONS)
@pytest.mark.parametrize("name", ["none", "metadata alone", "no module compiles"])
@pytest.mark.parametrize("bytecode", [False, True], ids=["sources", "bytecode"])
def test_of_what_serves_on_top(tmp_path, contents, name, bytecode):
    by, wheels = compiling(tmp_path / "compiled") if bytecode else None, WHEELS[name]
    parent, above = parent_of(tmp_path, by), lock_of(*wheels)
    addition = add_startup_check(Addition(contents=contents), above, ("serve",))
    files, cache = files_of(tmp_path / "wheels", *BELOW, *wheels), LayerCache(tmp_path / "cache")
    image = assemble_child(parent, above, addition, files, cache, compiling=by).image
    count = len(parent.image.layers)
    assert not {it.diff_id for it in image.layers[:count]} & {it.diff_id for it in image.layers[count:]}
    check_layers(replace(image, layers=image.layers[count:]))
