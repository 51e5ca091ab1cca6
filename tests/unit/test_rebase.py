"""An image on another base: the bytes that building there gives, or a refusal that says why."""

import json
from dataclasses import replace
from typing import Any

import pytest

from envbuild.errors import BaseError, BuildError, VerifyError
from envbuild.image.assembler import assemble
from envbuild.image.bytecode.compiler import compiled_by
from envbuild.image.layers.cache import LayerCache
from envbuild.image.rebase import named_base, rebase
from envbuild.lock.model import Lock, Target
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT, Image, canonical_json, manifest_bytes
from envbuild.recipe import PYTHON_LABEL, Base, Recipe
from tests.fakes.trees import BASE, image_of_trees, layer_of_tree
from tests.fakes.wheels import make_wheel
from tests.layers import WheelFiles
from tests.unit.test_assemble import locked

NAME = "org.opencontainers.image.base.name"
DIGEST = "org.opencontainers.image.base.digest"
PATCH = {"etc/patched": b"yes"}
WHEELS = [make_wheel("one", "1.0"), make_wheel("two", "2.0", files={"two/__init__.py": "x = 1\n" * 999})]
CONFIG = {"Env": ["PATH=/usr/local/bin:/usr/bin", "LANG=C", "SHARED=same"], "Labels": {"of": "old"}, "Cmd": ["python3"]}


def base_of(*trees: Any, config: dict[str, Any] = CONFIG, **changes: Any) -> Base:
    values: dict[str, Any] = {
        "name": "registry.example.com/base@sha256:0",
        "image": image_of_trees(*trees, config=config),
        "target": Target(python="3.11.2", machine="x86_64", glibc="2.36"),
        "python_path": "/usr/bin/python3.11",
        "asked": "registry.example.com/base:1",
        "interpreter": "a" * 64,
    }
    return Base(**values | changes)


OLD = base_of(BASE)
NEW = base_of(
    BASE,
    PATCH,
    config={
        **CONFIG,
        "Env": ["PATH=/sbin:/usr/bin", "LANG=C.UTF-8", "FIXED=1"],
        "Labels": {"of": "new"},
        "Cmd": ["sh"],
    },
    name="registry.example.com/base@sha256:1",
)


def lock_for(base: Base) -> Lock:
    return Lock(target=base.target, wheels=tuple(map(locked, WHEELS)))


def recipe_on(base: Base) -> Recipe:
    return Recipe(
        base_name=base.name,
        base_digest=base.digest,
        base_asked=base.asked,
        python_path=base.python_path,
        target=base.target,
        wheels=lock_for(base).wheels,
        variables=(("TF_X", "1"), ("A", "b=c")),
        labels=(("a", "b"), (PYTHON_LABEL, base.target.python)),
    )


def as_found(image: Image) -> Image:
    """As a registry gives it back: the history says what each layer is."""
    lines = [line["created_by"] for line in json.loads(image.config)["history"]]
    return replace(
        image, layers=tuple(replace(it, created_by=line) for it, line in zip(image.layers, lines, strict=True))
    )


@pytest.fixture
def on(tmp_path):
    """`on(base)` -> the image of the wheels there."""

    def made(base: Base, compression: Compression = GZIP) -> Image:
        paths = {Digest.of(wheel.data): tmp_path / wheel.filename for wheel in WHEELS}
        for wheel in WHEELS:
            (tmp_path / wheel.filename).write_bytes(wheel.data)
        cache, recipe = LayerCache(tmp_path / "cache", compression=compression), recipe_on(base)
        return as_found(assemble(replace(recipe, compression=compression), base, WheelFiles(paths), cache).image)

    return made


def said(image: Image) -> dict[str, str]:
    return json.loads(image.manifest)["annotations"]


def with_annotations(image: Image, **changes: str | None) -> Image:
    value = json.loads(image.manifest)
    value["annotations"] = {key: text for key, text in (value["annotations"] | changes).items() if text is not None}
    return replace(image, manifest=canonical_json(value))


def unreadable(image: Image) -> Image:
    def never() -> Any:
        raise AssertionError("a layer was read")

    return replace(image, layers=tuple(replace(layer, open=never) for layer in image.layers))


@pytest.mark.parametrize("python", ["3.11.2", "3.11.9"])
@pytest.mark.parametrize("asked", ["registry.example.com/base:1", ""])
@pytest.mark.parametrize("compression", [GZIP, Compression(1), Compression(1, base=True)], ids=str)
def test_with_its_lock_the_result_is_the_image_that_building_there_gives(on, python, asked, compression):
    new = replace(NEW, target=replace(NEW.target, python=python), asked=asked)
    result = rebase(unreadable(on(OLD, compression)), OLD, new, lock_for(OLD))
    built = on(new, compression.plain)
    assert (result.image.config, result.image.manifest) == (built.config, built.manifest)
    assert result.recipe is not None
    assert str(result.recipe.environment) == said(built)[ENVIRONMENT]


def test_without_a_lock_only_the_environments_name_is_left_out(on):
    result, built = rebase(on(OLD), OLD, NEW), on(NEW)
    assert (result.recipe, result.image.config) == (None, built.config)
    assert said(result.image) == {NAME: NEW.asked, DIGEST: str(NEW.digest)}
    assert said(built).items() > said(result.image).items()


def test_the_layers_keep_their_digests_and_a_new_patch_version_only_changes_the_environments_own(on):
    image = on(OLD)
    same = rebase(image, OLD, NEW)
    assert [it.descriptor for it in same.image.layers[2:]] == [it.descriptor for it in image.layers[1:]]
    assert same.kept == len(image.layers) - 1
    newer = rebase(image, OLD, replace(NEW, target=replace(NEW.target, python="3.11.9")))
    assert newer.kept == same.kept - 1
    [changed] = [it for it in newer.image.layers if it.created_by == "virtual environment"]
    [check] = [it for it in newer.image.layers if it.created_by == "start-up check"]
    assert check.descriptor in [it.descriptor for it in image.layers]
    with changed.open() as file:
        assert Digest.of(file.read()) == changed.descriptor.digest


def test_variables_of_the_base_are_the_new_bases_and_those_of_the_environment_stay(on):
    inner = json.loads(rebase(on(OLD), OLD, NEW).image.config)["config"]
    variables = dict(entry.partition("=")[::2] for entry in inner["Env"])
    assert variables == {
        "PATH": "/opt/env/bin:/sbin:/usr/bin",
        "LANG": "C.UTF-8",
        "FIXED": "1",
        "VIRTUAL_ENV": "/opt/env",
        "TF_X": "1",
        "A": "b=c",
    }
    assert inner["Labels"] == {"of": "new", "a": "b", PYTHON_LABEL: "3.11.2"}
    assert (inner["Cmd"], inner["User"]) == (["sh"], "65532:65532")


def test_what_somebody_set_on_the_image_stays(on):
    image = on(OLD)
    config = json.loads(image.config)
    config["config"] |= {"Cmd": ["serve"], "ExposedPorts": {"80/tcp": {}}}
    changed = canonical_json(config)
    manifest = manifest_bytes(changed, image.layers, {**said(image), "org.example.note": "mine"})
    result = rebase(replace(image, config=changed, manifest=manifest), OLD, NEW).image
    inner = json.loads(result.config)["config"]
    assert (inner["Cmd"], inner["ExposedPorts"]) == (["serve"], {"80/tcp": {}})
    assert said(result)["org.example.note"] == "mine"


def test_there_and_back_again_is_the_same_image(on):
    image = on(OLD)
    there = rebase(image, OLD, NEW, lock_for(OLD)).image
    back = rebase(as_found(there), NEW, OLD, lock_for(NEW)).image
    assert back.manifest == image.manifest


def test_the_owner_of_a_shared_path_stays_part_of_the_environment(tmp_path):
    """Without it the image claimed the environment in which pip's order decides, whose files are others."""
    cv2 = [make_wheel(it, "4.9.0", {"cv2/version.py": it}) for it in ("opencv_python", "opencv_python_headless")]
    paths = {Digest.of(it.data): tmp_path / it.filename for it in cv2}
    for it in cv2:
        (tmp_path / it.filename).write_bytes(it.data)
    owners = (("cv2/version.py", "opencv-python-headless"),)
    lock = Lock(target=OLD.target, wheels=tuple(map(locked, cv2)), owners=owners)

    def on_base(base: Base) -> Image:
        recipe = replace(recipe_on(base), wheels=lock.wheels, owners=owners)
        return as_found(assemble(recipe, base, WheelFiles(paths), LayerCache(tmp_path / "cache")).image)

    result = rebase(on_base(OLD), OLD, NEW, lock)
    assert result.image.manifest == on_base(NEW).manifest


def test_the_same_base_changes_nothing(on):
    image = on(OLD)
    assert rebase(image, OLD, OLD).image == image


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"target": Target(python="3.12.1", machine="x86_64", glibc="2.36")}, "its Python is 3.12, not 3.11"),
        ({"target": Target(python="3.11.2", machine="x86_64", glibc="2.31")}, "its glibc 2.31 is older than 2.36"),
        ({"target": Target(python="3.11.2", machine="aarch64", glibc="2.36")}, "its machine is aarch64"),
        ({"python_path": "/usr/local/bin/python3.11"}, "its interpreter's path is /usr/local/bin/python3.11"),
        ({"image": image_of_trees(BASE, env=["CUDA_VERSION=12.4.1"])}, "its CUDA is 12.4, not absent"),
    ],
)
def test_a_base_on_which_the_layers_would_not_work_is_refused(on, changes, why):
    with pytest.raises(BaseError, match=why):
        rebase(on(OLD), OLD, replace(NEW, **changes))


def test_glibc_is_compared_as_a_version(on):
    older = replace(OLD, target=replace(OLD.target, glibc="2.9"))
    assert rebase(on(older), older, NEW).image.layers
    with pytest.raises(BaseError, match=r"glibc 2\.9 is older"):
        rebase(on(OLD), OLD, replace(NEW, target=replace(NEW.target, glibc="2.9")))


def test_a_patch_of_cuda_is_no_other_cuda(on):
    old, new = (base_of(BASE, config={"Env": ["PATH=/usr/bin", f"CUDA_VERSION={it}"]}) for it in ("12.4.0", "12.4.1"))
    assert rebase(on(old), old, new).kept


def test_another_base_than_the_image_says_is_refused(on):
    with pytest.raises(BaseError, match="annotations is sha256:") as caught:
        rebase(on(OLD), NEW, OLD)
    assert "--old-base" in caught.value.todo


def test_a_base_of_the_base_is_refused(on):
    """Else the base's own upper layers would be taken for the environment's."""
    below = base_of(BASE)
    image = on(base_of(BASE, PATCH))
    with pytest.raises(BaseError, match="annotations is sha256:"):
        rebase(image, below, NEW)
    with pytest.raises(BaseError, match="not of envbuild"):
        rebase(with_annotations(image, **{DIGEST: str(below.digest)}), below, NEW)


def test_layers_of_another_base_under_the_same_name_are_refused(on):
    other = base_of({**BASE, "etc/x": b"y"})
    with pytest.raises(BaseError, match="do not begin with those of its base"):
        rebase(with_annotations(on(OLD), **{DIGEST: str(other.digest)}), other, NEW)


def test_an_image_that_says_no_base_is_refused(on):
    with pytest.raises(BaseError, match="annotations is missing"):
        rebase(with_annotations(on(OLD), **{DIGEST: None}), OLD, NEW)


def on_top(image: Image, line: str) -> Image:
    """The image with one more layer."""
    layer = replace(layer_of_tree({"opt/env/more": b"1"}), created_by=line)
    config = json.loads(image.config)
    config["rootfs"]["diff_ids"].append(str(layer.diff_id))
    config["history"].append({"created_by": line})
    data, layers = canonical_json(config), (*image.layers, layer)
    return Image(manifest_bytes(data, layers, said(image)), data, layers)


@pytest.mark.parametrize("line", ["RUN apt-get install curl", ""])
def test_layers_of_others_are_refused(on, line):
    with pytest.raises(BaseError, match="not of envbuild"):
        rebase(on_top(on(OLD), line), OLD, NEW)


def test_a_base_alone_is_refused():
    image = with_annotations(replace(OLD.image, manifest=manifest_bytes(OLD.image.config, OLD.image.layers, {"a": "b"})), **{DIGEST: str(OLD.digest)})  # fmt: skip
    with pytest.raises(BaseError, match="nothing is on its base"):
        rebase(image, OLD, NEW)


@pytest.mark.parametrize(
    ("line", "interpreter", "stays"),
    [
        ("bytecode", "a", True),
        ("bytecode of numpy 2.0", "a", True),
        ("bytecode", "b", False),
        ("bytecode of the base's standard library", "a", False),
        ("bytecode of the base's standard library", "b", False),
    ],
)
def test_bytecode_stays_only_where_the_very_same_interpreter_runs_it(on, line, interpreter, stays):
    image = on_top(on(OLD), f"envbuild: {line}")
    result = rebase(image, OLD, replace(NEW, interpreter=interpreter * 64))
    assert (line in [layer.created_by for layer in result.image.layers]) is stays
    assert result.dropped == (() if stays else (line,))


def test_bytecode_goes_where_nothing_tells_the_interpreters_apart(on):
    image = on_top(on(replace(OLD, interpreter="")), "envbuild: bytecode")
    assert rebase(image, replace(OLD, interpreter=""), replace(NEW, interpreter="")).dropped == ("bytecode",)


@pytest.mark.parametrize("line", ["bytecode of the base's standard library", "bytecode of one 1.0"])
def test_what_may_lack_a_layer_is_not_found_as_its_environment(on, line):
    environment = replace(recipe_on(OLD), bytecode=compiled_by(OLD.interpreter)).environment
    image = with_annotations(on_top(on(OLD), f"envbuild: {line}"), **{ENVIRONMENT: str(environment)})
    result = rebase(image, OLD, NEW, lock_for(OLD))
    assert ENVIRONMENT not in said(result.image)
    assert result.recipe is None


def test_the_lock_of_another_image_is_refused(on):
    lock = lock_for(OLD)
    for other in (
        replace(lock, wheels=lock.wheels[:1]),
        replace(lock, target=replace(lock.target, glibc="2.35", python="3.11.1")),
    ):
        with pytest.raises(VerifyError, match="the lock gives the environment"):
            rebase(on(OLD), OLD, NEW, other)
    with pytest.raises(VerifyError, match="the image has none"):
        rebase(with_annotations(on(OLD), **{ENVIRONMENT: None}), OLD, NEW, lock)


def test_a_path_that_is_not_the_bases_is_refused(on):
    image = on(OLD)
    config = json.loads(image.config)
    config["config"]["Env"][0] = "PATH=/mine"
    with pytest.raises(BaseError, match="PATH"):
        rebase(replace(image, config=canonical_json(config)), OLD, NEW)


def test_too_many_layers_are_refused(on):
    deep = base_of(BASE, *({f"etc/{number}": b""} for number in range(99)))
    with pytest.raises(BuildError, match="every engine can mount"):
        rebase(on(OLD), OLD, deep)


def test_the_base_is_named_by_annotations(on):
    assert named_base(on(OLD)) == (OLD.asked, str(OLD.digest))
    assert named_base(OLD.image) == ("", "")


def test_where_a_base_lies_in_no_registry_the_image_does_not_name_it(on):
    local = replace(OLD, asked="")
    assert NAME not in said(on(local))
    assert "base_name" not in recipe_on(local).to_dict()
    assert recipe_on(local).environment != recipe_on(OLD).environment
