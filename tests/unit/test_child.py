"""An image that starts with another's layers: nothing of the parent is read, replaced or hidden without a word."""

import gzip
import importlib.util
import io
import json
import marshal
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.build.extend import compiling_for
from envbuild.errors import BuildError
from envbuild.image.assembler import Assembled, assemble
from envbuild.image.bytecode.compiler import Compiling, Store, Tally
from envbuild.image.child import (
    Addition,
    Parent,
    add_startup_check,
    assemble_child,
    base_of,
    content_keys,
    interpreter_of,
    keys_of_child,
    wheels_of_child,
)
from envbuild.image.config import CREATED
from envbuild.image.content import Content, hash_content
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.writer import write_compressed
from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT, Layer, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.shared_cache import SharedCache
from envbuild.verify.sharing import prove_sharing
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry
from tests.fakes.wheels import make_wheel
from tests.layers import WheelFiles
from tests.reporting import Calling
from tests.unit.compiling import own_interpreter
from tests.unit.test_assemble import locked, recipe, tree
from tests.unit.test_rebase import CONFIG, OLD, as_found, recipe_on, said
from tests.unit.test_registry_shared import FAST

SITE = "lib/python3.11/site-packages"
BELOW = (make_wheel("one", "1.0"), make_wheel("two", "2.0", {"two/__init__.py": "x = 1\n", "shared/a.py": "a = 1\n"}))
SERVE = make_wheel("serve", "0.9", entry_points={"console_scripts": {"serve": "serve:main"}})
ALSO = make_wheel("also", "1.0", {"also.py": "", "shared/a.py": "a = 1\n"})
OTHER = make_wheel("other", "1.0", {"other.py": "", "shared/a.py": "a = 2\n"})
FOLDER = make_wheel("folder", "1.0", {"one.py/inner.py": ""})
APART = Addition(prefix="/opt/apart")


def files_of(folder: Path, *wheels) -> WheelFiles:
    folder.mkdir(exist_ok=True)
    for wheel in wheels:
        (folder / wheel.filename).write_bytes(wheel.data)
    return WheelFiles({Digest.of(wheel.data): folder / wheel.filename for wheel in wheels})


def lock_of(*wheels) -> Lock:
    return Lock(target=OLD.target, wheels=tuple(sorted(map(locked, wheels), key=lambda it: it.name)))


def compiling(folder: Path, find=own_interpreter) -> Compiling:
    return Compiling(identity="own", find=find, store=Store(folder))


def parent_of(folder: Path, by: Compiling | None = None) -> Parent:
    """An image as a registry gives it, most of whose layers nobody may read."""
    made = replace(recipe_on(OLD), wheels=lock_of(*BELOW).wheels, bytecode="by" if by else "")
    wheels, cache = files_of(folder / "wheels", *BELOW), LayerCache(folder / "elsewhere")
    image = as_found(assemble(made, OLD, wheels, cache, compiling=by).image)

    def never():
        raise AssertionError("a layer of the parent was read")

    layers = [it if it.created_by.endswith("virtual environment") else replace(it, open=never) for it in image.layers]
    return Parent(image=replace(image, layers=tuple(layers)), lock=lock_of(*BELOW), name="registry.example.com/env")


@pytest.fixture
def parent(tmp_path):
    return parent_of(tmp_path)


@pytest.fixture
def child(tmp_path, parent):
    """`child(wheel..., addition=, cache=, by=, parent=)` -> what was assembled on the parent."""

    def made(*wheels, addition=Addition(), cache="cache", by=None, parent=parent):  # noqa: B008 - frozen
        found, above, kept = files_of(tmp_path / "wheels", *BELOW, *wheels), lock_of(*wheels), tmp_path / cache
        return assemble_child(parent, above, addition, found, LayerCache(kept), compiling=by)

    return made


def own(parent, image):
    return replace(image, layers=image.layers[len(parent.image.layers) :])


def test_the_parents_layers_history_and_environment_stay_what_they_are(parent, child):
    image = child(SERVE, addition=APART).image
    count = len(parent.image.layers)
    assert [it.descriptor for it in image.layers[:count]] == [it.descriptor for it in parent.image.layers]
    config, before = json.loads(image.config), json.loads(parent.image.config)
    assert config["history"][: len(before["history"])] == before["history"]
    assert config["rootfs"]["diff_ids"][:count] == before["rootfs"]["diff_ids"]
    assert config["config"] == before["config"]
    assert config["history"][-2:] == [
        {"created": CREATED, "created_by": "envbuild: serve 0.9"},
        {"created": CREATED, "created_by": "envbuild: virtual environment /opt/apart"},
    ]
    assert said(image) == {
        ENVIRONMENT: said(parent.image)[ENVIRONMENT],
        "org.opencontainers.image.base.name": "registry.example.com/env",
        "org.opencontainers.image.base.digest": str(parent.image.digest),
    }


def test_an_environment_of_its_own_sees_its_packages_and_then_the_parents(parent, child):
    files = tree(own(parent, child(SERVE, addition=APART).image))
    site = f"opt/apart/{SITE}"
    assert f"{site}/serve.py" in files
    assert files[f"{site}/envbuild-parent.pth"][1] == f'import site; site.addsitedir("/opt/env/{SITE}")\n'.encode()
    assert files["opt/apart/bin/serve"][1].startswith(b"#!/opt/apart/bin/python\n")
    assert files["opt/apart/bin/python3.11"][0].linkname == "/usr/bin/python3.11"
    assert b"home = /usr/bin\n" in files["opt/apart/pyvenv.cfg"][1]
    assert not any(name.startswith("opt/env") for name in files)


def test_in_the_parents_environment_only_the_wheels_are_added_with_the_keys_of_any_build(parent, child, tmp_path):
    made = child(SERVE)
    whole = recipe(SERVE, prefix="/opt/env")
    plain = assemble(whole, OLD, files_of(tmp_path / "wheels", SERVE), LayerCache(tmp_path / "other"))
    assert [it.descriptor for it in own(parent, made.image).layers] == [plain.image.layers[1].descriptor]


def test_equal_inputs_give_equal_bytes_and_nothing_is_made_twice(parent, child, tmp_path):
    first, second = child(SERVE, ALSO, addition=APART), child(SERVE, ALSO, addition=APART, cache="another")
    assert first.image.digest == second.image.digest
    known = LayerCache(tmp_path / "cache")
    assert wheels_of_child(parent, lock_of(SERVE, ALSO), APART, known) == ()
    nothing = assemble_child(parent, lock_of(SERVE, ALSO), APART, WheelFiles({}), known)
    assert nothing.image.digest == first.image.digest


def test_the_config_is_the_parents_with_what_is_added(child):
    added = Addition(
        variables=(("PORT", "8080"), ("LANG", "C.UTF-8")), labels=(("role", "serve"),), entrypoint=("/opt/env/bin/serve",),
        ports=(8080,), user="1000:1000", folder="/app",
    )  # fmt: skip
    inner = json.loads(child(SERVE, addition=added).image.config)["config"]
    assert {"PORT=8080", "LANG=C.UTF-8", "SHARED=same", "TF_X=1", "VIRTUAL_ENV=/opt/env"} < set(inner["Env"])
    assert "LANG=C" not in inner["Env"]
    assert (inner["Entrypoint"], inner.get("Cmd")) == (["/opt/env/bin/serve"], None)
    assert (inner["ExposedPorts"], inner["User"], inner["WorkingDir"]) == ({"8080/tcp": {}}, "1000:1000", "/app")
    assert inner["Labels"].items() > {"of": "old", "role": "serve"}.items()
    changed = json.loads(child(SERVE, addition=Addition(cmd=("serve",))).image.config)["config"]
    assert changed["Cmd"] == ["serve"] != CONFIG["Cmd"]


@pytest.mark.parametrize(("wheel", "path"), [(OTHER, f"{SITE}/shared/a.py"), (FOLDER, f"{SITE}/one.py/inner.py")])
def test_what_would_replace_a_file_of_the_parent_is_refused(child, wheel, path):
    with pytest.raises(BuildError, match="files of the environment would be replaced") as caught:
        child(wheel, SERVE)
    assert f"{path} of {wheel.filename.split('-')[0]} 1.0 is in " in str(caught.value)


def test_equal_files_are_no_clash(child):
    assert child(ALSO).remarks == ()


def test_what_hides_a_file_of_the_parent_is_told_where_it_is_known(tmp_path, parent, child):
    assert child(OTHER, addition=APART).remarks == ()
    assemble(  # from here on the cache knows the paths of the parent's wheels
        replace(recipe_on(OLD), wheels=parent.lock.wheels), OLD, files_of(tmp_path / "wheels", *BELOW),
        LayerCache(tmp_path / "cache"),
    )  # fmt: skip
    [remark] = child(OTHER, addition=APART).remarks
    assert remark == f"{SITE}/shared/a.py of other 1.0 is in two too, and hides it"


def test_an_image_of_somebody_else_does_not_say_its_interpreter(parent):
    assert interpreter_of(parent.image) == "/usr/bin/python3.11"
    with pytest.raises(BuildError, match="its interpreter is unknown"):
        interpreter_of(image_of())


APP = Content(
    "application",
    {
        "/app/main.py": b"import serve\n",
        "/app/lib/__init__.py": b"",
        "/app/not-one.py": b"",
        "/app/own.py": b"print 1\n",
    },
)
SERVER = Content("server", {"/app/own.py": b"print(1)\n"})
MODEL = Content("model", {"/model/weights.bin": b"weights", "/model/odd\nname.py": b""})


def lines(image) -> list[str]:
    return [it["created_by"].removeprefix("envbuild: ") for it in json.loads(image.config)["history"]]


def content_of(layer: Layer) -> bytes:
    with layer.open() as file:
        return file.read()


def recompressed(blob: bytes) -> bytes:
    with ThreadPoolExecutor(1) as pool:
        write_compressed([gzip.decompress(blob)], sink := io.BytesIO(), pool)
    return sink.getvalue()


def bytecode_of(path: str) -> str:
    return importlib.util.cache_from_source(path)


def test_contents_lie_above_the_wheels_in_their_order_and_the_check_knows_what_is_added(parent, child):
    addition = add_startup_check(Addition(contents=(MODEL, APP)), lock_of(SERVE, ALSO), ("serve", "--all"))
    image = child(SERVE, ALSO, addition=addition).image
    assert lines(image)[-3:] == ["start-up check of what is added", "model", "application"]
    files = tree(own(parent, image))
    assert files["app/main.py"][1] == b"import serve\n"
    assert files["model/weights.bin"][1] == b"weights"
    assert json.loads(files["opt/env/share/envbuild/added.json"][1]) == {"packages": {"also": "1.0", "serve": "0.9"}}
    inner = json.loads(image.config)["config"]
    assert (inner["Entrypoint"], inner["Cmd"]) == (["/opt/env/bin/envbuild-check", "--"], ["serve", "--all"])
    assert add_startup_check(Addition(), lock_of(), ()).contents == ()


def test_all_that_is_added_has_bytecode_and_what_the_parent_has_none_for(parent, child, tmp_path):
    by, addition = compiling(tmp_path / "bytecode"), Addition(contents=(MODEL, SERVER, APP))
    made = child(SERVE, addition=addition, by=by)
    assert made.bytecode == Tally(compiled=6, refused=1), "that of the server would hide the application's own"
    files = tree(own(parent, made.image))
    sources = ["app/main.py", "app/lib/__init__.py", *(f"opt/env/{SITE}/{it}" for it in ("serve.py", "one.py"))]
    assert {name for name in files if name.endswith(".pyc")} > {bytecode_of(it) for it in sources}
    assert b"/app/main.py" in files[bytecode_of("app/main.py")][1]
    assert files[bytecode_of("app/main.py")][1][4:8] == b"\1\0\0\0", "by hash, not checked (PEP 552)"
    assert lines(made.image)[-4:] == ["model", "server", "application", "bytecode of application"]
    compiled = [content_of(it) for it in made.image.layers if it.created_by.startswith("bytecode of")]
    assert [recompressed(it) == it for it in compiled] == [True] * 3, "it is compressed, and all together"
    of_files = content_keys([hash_content(it) for it in addition.contents], by)
    assert {made.results[it].digest for it in of_files if it in made.results} == {
        it.descriptor.digest for it in made.image.layers[-4:]
    }
    cache = LayerCache(tmp_path / "cache")
    keys = keys_of_child(parent, lock_of(SERVE), addition, cache, by)
    assert cache.blobs(keys) == {it.digest for it in made.results.values()}
    again = child(SERVE, addition=addition, by=compiling(tmp_path / "fresh"), cache="another")
    assert again.image.digest == made.image.digest
    known = child(SERVE, addition=addition, by=compiling(tmp_path / "bytecode", find=lambda: pytest.fail("compiled")))
    assert known.image.digest == made.image.digest


def test_the_parent_s_bytecode_is_the_one_that_building_it_with_bytecode_gives(parent, child, tmp_path):
    by = compiling(tmp_path / "bytecode")
    whole = parent_of(tmp_path, by)
    theirs = {it.descriptor.digest for it in whole.image.layers if "bytecode" in it.created_by}
    ours = {it.descriptor.digest for it in child(SERVE, by=by).image.layers if "bytecode" in it.created_by}
    assert theirs
    assert theirs < ours
    on_top = own(whole, child(SERVE, by=by, parent=whole).image).layers
    assert [it.created_by for it in on_top] == ["serve 0.9", "bytecode of serve 0.9"]


@pytest.mark.parametrize("name", ["opencv-python", "opencv-python-headless"])
def test_bytecode_on_top_is_of_the_file_that_the_run_had(tmp_path, child, name):
    """Of a path that two packages share, the parent has one file: bytecode of the other would hide it."""
    cv2 = [
        make_wheel(it, "4.9.0", {"cv2/version.py": f"{it!r}\n"}) for it in ("opencv_python", "opencv_python_headless")
    ]
    lock = replace(lock_of(*cv2), owners=(("cv2/version.py", name),))
    made = replace(recipe_on(OLD), wheels=lock.wheels, owners=lock.owners)
    wheels, cache = files_of(tmp_path / "wheels", *cv2), LayerCache(tmp_path / "elsewhere")
    train = as_found(assemble(made, OLD, wheels, cache).image)
    below = Parent(image=train, lock=lock, name="registry.example.com/env")
    found = assemble_child(
        below, lock_of(), Addition(), wheels, LayerCache(tmp_path / "cache"), compiling=compiling(tmp_path / "b")
    )
    files, path = tree(replace(found.image, layers=found.image.layers[len(OLD.image.layers) :])), f"opt/env/{SITE}/cv2"
    own = name.replace("-", "_")
    assert files[f"{path}/version.py"][1] == f"{own!r}\n".encode()
    code = marshal.loads(files[bytecode_of(f"{path}/version.py")][1][16:])
    assert own in code.co_consts


def test_bytecode_on_top_shares_the_parent_s_environment(tmp_path, child):
    made, wheels = replace(recipe_on(OLD), wheels=lock_of(*BELOW).wheels), files_of(tmp_path / "wheels", *BELOW)
    train = as_found(assemble(made, OLD, wheels, LayerCache(tmp_path / "elsewhere")).image)
    below = Parent(image=train, lock=lock_of(*BELOW), name="registry.example.com/env")
    by, addition = compiling(tmp_path / "bytecode"), Addition(contents=(APP,))
    serve = as_found(child(SERVE, addition=addition, by=by, parent=below).image)
    # by the hashes of the sources alone, as a copy of the image may have lost its history
    unsaid = replace(serve, config=canonical_json(json.loads(serve.config) | {"history": []}))
    assert [it for it in prove_sharing(train, unsaid, lambda *_: None) if not it.agrees] == []
    assert sum("bytecode" in it.created_by for it in serve.layers) >= 3


def test_what_others_made_is_neither_read_nor_compiled_again(parent, tmp_path):
    above, addition = lock_of(SERVE), Addition(contents=(MODEL, APP))
    wheels = files_of(tmp_path / "wheels", *BELOW, SERVE)

    def made(name: str, found: WheelFiles, by: Compiling, registry: FakeRegistry, *, publish: bool) -> Assembled:
        with SharedCache(Reference(registry.host, "team/app", "v1"), retry=FAST) as others:
            cache = LayerCache(tmp_path / name, others)
            assert publish or wheels_of_child(parent, above, addition, cache, by) == ()
            done = assemble_child(parent, above, addition, found, cache, compiling=by)
            for layer in own(parent, done.image).layers if publish else ():
                with layer.open() as blob:
                    registry.put("team/app", blob.read())
            cache.share(done.results if publish else {})
        return done

    with FakeRegistry() as registry:
        first = made("one", wheels, compiling(tmp_path / "bytecode"), registry, publish=True)
        by = compiling(tmp_path / "none", find=lambda: pytest.fail("compiled"))
        second = made("another", WheelFiles({}), by, registry, publish=False)
    assert second.image.digest == first.image.digest
    assert {it.found for it in own(parent, second.image).layers} == {"registry"}


def test_impossible_numbers_of_modules_are_ignored_and_counted_here(parent, tmp_path):
    """On 839437c a layer of -1 modules was a layer with something in it, and was kept in the cache."""
    wheels, by = files_of(tmp_path / "wheels", *BELOW, SERVE), compiling(tmp_path / "bytecode")
    said: list[str] = []

    def made(name: str, registry: FakeRegistry) -> Assembled:
        with SharedCache(Reference(registry.host, "team/app"), retry=FAST, report=Calling(warn=said.append)) as others:
            cache = LayerCache(tmp_path / name, others)
            done = assemble_child(parent, lock_of(SERVE), Addition(contents=(APP,)), wheels, cache, compiling=by)
            cache.share({})
        return done

    with FakeRegistry() as registry:
        first = made("one", registry)
        repository = registry.repositories["team/app"]
        for tag, digest in repository.tags.items():
            kind, data = repository.manifests[digest]
            falsified = re.sub(rb'(\\"compiled\\":)\d+', rb"\1-1", data)
            repository.tags[tag] = registry.put_manifest("team/app", tag, falsified, kind)
        second = made("two", registry)
    assert second.image.digest == first.image.digest
    assert any("is not usable: numbers of modules cannot be -1 and" in it for it in said)


def test_a_child_of_equal_wheels_is_unchanged_by_contents_that_are_none(child):
    assert child(SERVE, addition=Addition(contents=())).image.digest == child(SERVE).image.digest


def test_what_the_parent_stands_on_is_found_in_its_layers(parent):
    base = base_of(parent)
    assert base.digest == OLD.digest
    assert [it.diff_id for it in base.image.layers] == [it.diff_id for it in OLD.image.layers]
    assert (base.python_path, base.target) == (OLD.python_path, parent.lock.target)
    assert sys.implementation.cache_tag in bytecode_of("a.py")


def test_an_interpreter_of_another_machine_compiles_nothing_and_a_warning_says_so(parent, tmp_path):
    elsewhere = replace(parent, lock=replace(parent.lock, target=replace(parent.lock.target, machine="riscv64")))
    warned: list[str] = []
    report = Calling(step=print, note=print, warn=warned.append)
    assert compiling_for(elsewhere, tmp_path, report) is None
    assert warned[0].startswith("the image has no bytecode and starts slower: the base's interpreter is for riscv64")
