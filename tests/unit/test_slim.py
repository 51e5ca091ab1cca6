"""Slim serving images: the rule never takes what something needs, and what is left is the training image's layers."""

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.build.request import BuildRequest
from envbuild.errors import BuildError, UsageError
from envbuild.image.assembler import assemble
from envbuild.image.bytecode.layers import plan_bytecode
from envbuild.image.child import Addition, Parent, assemble_child
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.dependencies import find_needed
from envbuild.lock.formats import pylock_text, read_pylock
from envbuild.lock.model import Lock, LockedWheel
from envbuild.manifest.model import Framework
from envbuild.manifest.packages import Distribution
from envbuild.manifest.packages import Origin as From
from envbuild.oci.image import Image
from envbuild.oci.layout import read_layout, write_layout
from envbuild.recipe import SLIM_FILES_LABEL, SLIM_LABEL, SLIM_OF_LABEL, VARIANT_LABEL
from envbuild.serve.model import Origin, ServeOrder, Server, Slimmed
from envbuild.serve.slim import commanded, find_slimmed, imported, imports_of, proof_of, slim_parent, slimmed
from envbuild.verify.environment import Pattern, file_rules, listed, training_only
from envbuild.verify.findings import Finding
from envbuild.verify.rules import apply_rules
from envbuild.verify.sharing import prove_sharing
from envbuild.verify.sources import side_of_lock
from envbuild.verify.sources.image import side_of_image
from envbuild.wheel.install import read_record
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.reporting import Calling
from tests.unit.test_assemble import SITE, locked, tree
from tests.unit.test_child import files_of, lock_of
from tests.unit.test_rebase import OLD, recipe_on
from tests.unit.test_sides_manifest import a_manifest, wheel

RULE = (Pattern("board*", "only training writes summaries"), Pattern("tests", "tests are run before"))
LINES: list[str] = []
REPORT = Calling(step=print, note=LINES.append, warn=print)


def dist(name: str, *, asked: bool = False) -> Distribution:
    return Distribution(name=name, version="1.0", origin=From(kind="index"), requested=asked)


@cache
def a_wheel(name: str) -> LockedWheel:
    return locked(make_wheel(name.replace("-", "_"), "1.0"))


def rule(declared: dict[str, list[str]], *asked: str, kept: tuple[str, ...] = (), framework: str = "") -> list[str]:
    """The names that are left out of an environment with these requirements."""
    wheels = [a_wheel(name) for name in declared]
    known = Framework(name="torch", distribution=framework, version="1.0") if framework else None
    manifest = a_manifest(*(dist(name, asked=name in asked) for name in declared), framework=known)
    found = slimmed(Lock(target=OLD.target, wheels=tuple(wheels)), manifest, kept, declared, RULE)
    assert {it.name for it in found.lock.wheels} | set(found.lock.slim) == set(declared)
    assert found.saved == sum(it.size for it in wheels if it.name in found.lock.slim)
    assert sorted(it.partition(" ")[0] for it in found.dropped) == list(found.lock.slim)
    return list(found.lock.slim)


TRAINING = {
    "torch": ["tests; extra == 'dev'"],
    "board": ["marks", "numbers"],
    "marks": ["deep"],
    "deep": [],
    "numbers": [],
}


def test_what_is_on_the_list_goes_and_what_only_it_required_goes_with_it():
    assert rule(TRAINING, "torch", "board", "numbers") == ["board", "deep", "marks"]


def test_what_nobody_is_known_to_have_asked_for_stays():
    assert rule(TRAINING) == ["board"]
    assert rule(TRAINING, "numbers") == ["board"], "torch was asked for too, so these marks are not all"


def test_what_something_that_stays_requires_stays_with_all_that_it_requires():
    assert rule(TRAINING | {"torch": ["board>=1"]}, "torch", "numbers") == []
    assert rule(TRAINING | {"torch": ["deep"]}, "torch", "board") == ["board", "marks", "numbers"]


def test_a_requirement_of_an_extra_counts_for_what_is_not_on_the_list_and_where_the_extra_is_named():
    extra = TRAINING | {"torch": ["board; extra == 'tb'", "deep; extra == 'x'", "tests; extra == 'tb'"], "tests": []}
    assert rule(extra, "torch", "board", "tests") == ["board", "marks", "numbers", "tests"]
    assert rule(extra | {"server": ["torch[tb]"]}, "server", "board", "tests") == []
    assert rule(extra, "torch", "board", "tests", kept=("torch[tb]",)) == []
    itself = extra | {"torch": ["torch[tb]; extra == 'all'", "board; extra == 'tb'"]}
    assert "board" in rule(itself, "torch", "board", "tests"), "an extra that nobody names leads to no other"


def test_the_framework_stays_even_where_only_a_tool_required_it():
    tuned = {"board-tuner": ["torch"], "torch": []}
    assert rule(tuned, "board-tuner", framework="torch") == ["board-tuner"]
    assert rule(tuned, "board-tuner") == ["board-tuner", "torch"]


NAMES = ("a", "b", "c", "board", "board-x", "tests")
GRAPHS = st.fixed_dictionaries({name: st.lists(st.sampled_from(NAMES), max_size=3) for name in NAMES})


@given(declared=GRAPHS, asked=st.sets(st.sampled_from(NAMES)), kept=st.sets(st.sampled_from(NAMES), max_size=1))
def test_nothing_that_stays_requires_what_is_left_out_and_nothing_goes_but_by_the_list(declared, asked, kept):
    gone = set(rule(declared, *asked, kept=tuple(kept)))
    stays = set(NAMES) - gone
    assert kept <= stays
    assert gone.isdisjoint(it for name in stays for it in declared[name])
    assert gone <= find_needed(set(listed(NAMES, RULE)) & gone, declared, {})


def test_the_list_names_nothing_twice_and_nothing_that_computes():
    names = [it.name for it in training_only()]
    assert len(set(names)) == len(names)
    assert not any(sum(pattern.count("*") for pattern in [name]) > 1 or name == "*" for name in names)
    needed_here = [
        "tensorflow",
        "keras",
        "tf-keras",
        "numpy",
        "torch",
        "jax",
        "nvidia-cuda-nvcc-cu12",
        "triton",
        "scipy",
    ]
    assert listed([*needed_here, "pandas", "pillow", "protobuf", "fastapi", "uvicorn", "pip"], training_only()) == {}
    assert listed(["types-requests"], training_only()) == {"types-requests": "code is checked before"}


def test_the_modules_that_programs_import_are_found():
    source = (
        b"import a.b, c as d\nfrom e.f import g\nfrom . import h\ndef x():\n import i\nimportlib.import_module('j.k')\n"
    )
    assert imported(source) == {"a", "c", "e", "i", "j"}
    assert commanded(["gunicorn", "-k", "uvicorn.workers.W", "/app/main.py", "8080"]) == {"gunicorn", "uvicorn"}
    assert imports_of({"/app/a.py": b"import numpy", "/app/b.txt": b"import six"}) == {"numpy"}
    with pytest.raises(UsageError, match="cannot read the imports of this program") as caught:
        imports_of({"/app/a.py": b"def"})
    assert caught.value.where == "/app/a.py"


@pytest.mark.parametrize(("gate", "severity"), [("auto", "warning"), ("off", "warning"), ("require", "error")])
def test_without_the_golden_sample_nothing_is_proved(gate, severity):
    slim = Slimmed(lock=lock_of(), dropped=("board 1.0: x",), saved=2_000_000)
    held = Finding(about="golden", rule="serve-golden", agrees=True, says="")
    assert proof_of(slim, [held], gate).agrees
    found = proof_of(slim, [replace(held, rule="golden-sample"), replace(held, agrees=False)], gate)
    assert (found.agrees, found.severity) == (False, severity)
    assert found.says.startswith("1 distribution, 2.0 MB of wheels, are left out, and nothing shows")


CORE = make_wheel("core", "1.0", {"core/big.bin": b"x" * 100}, requires=["helper"])
HELPER = make_wheel("helper", "1.0", {"helper/__init__.py": "h = 1\n"})
BOARD = make_wheel("tensorboard", "2.15.1", {"tensorboard/__init__.py": "b = 1\n"}, requires=["markdown", "helper"])
MARK = make_wheel("markdown", "3.5", {"markdown/__init__.py": "m = 1\n", "shared/a.py": "a = 1\n"})
STUBS = make_wheel("types_six", "1.0", {"six-stubs/__init__.pyi": ""})
TWICE = make_wheel("zwei", "1.0", {"shared/a.py": "a = 2\n"})
ABOVE = make_wheel("server", "1.0", {"server.py": "import helper\n"}, requires=["helper"])
ASKED = ("aaa", "core", "tensorboard", "types-six", "zwei")


@pytest.fixture
def origin(tmp_path):
    """`origin(wheel...)` -> a serving image's start whose image lies in a layout, as a registry would give it."""

    def made(*wheels: FakeWheel, owners: tuple[tuple[str, str], ...] = ()) -> Origin:
        found = files_of(tmp_path / "wheels", *wheels)
        folder = (tmp_path / "wheels").as_uri()
        lock = lock_of(*wheels)
        located = tuple(replace(it, url=f"{folder}/{it.filename}") for it in lock.wheels)
        lock = replace(lock, wheels=located, owners=owners)
        labels = ((VARIANT_LABEL, "cpu"), ("a", "b"))
        whole = replace(recipe_on(OLD), wheels=lock.wheels, owners=owners, labels=labels)
        image = assemble(whole, OLD, found, LayerCache(tmp_path / "elsewhere")).image
        write_layout(image, tmp_path / "layout")
        image = read_layout(tmp_path / "layout", machine="x86_64")
        manifest = a_manifest(*(wheel(it.name, it.version, requested=it.name in ASKED) for it in lock.wheels))
        return Origin(
            parent=Parent(image=image, lock=lock, name="registry.example.com/env"),
            reference=None,
            manifest=manifest,
            manifest_bytes=b"",
            variant="cpu",
            platform="linux/amd64",
            environment=whole.environment,
        )

    return made


@pytest.fixture
def order(tmp_path):
    inner = BuildRequest(
        manifest_bytes=b"", manifest_name="manifest.json", variant="auto", base=None, resolver="uv", out=tmp_path / "out",
        push=None, stamp=None, cache=tmp_path / "cache", offline=True, find_links=(tmp_path / "wheels",),
    )  # fmt: skip
    return ServeOrder(build_request=inner, model=None, slim=True)


def contents(image: Image) -> dict[str, bytes]:
    """What an image has above its base, whose every layer can be opened."""
    own = replace(image, layers=image.layers[len(OLD.image.layers) :])
    return {path: data for path, (_, data) in tree(own).items()}


def slim_of(order: ServeOrder, start: Origin, above: Lock | None = None, **code: bytes) -> Slimmed:
    files = {f"/app/{name}.py": content for name, content in code.items()}
    return find_slimmed(order, start, Server(), above or lock_of(), files, REPORT)


WHEELS = (CORE, HELPER, BOARD, MARK, STUBS)


def test_what_is_left_is_assembled_from_the_training_images_own_layers(origin, order, tmp_path):
    start = origin(*WHEELS)
    slim = slim_of(order, start)
    assert slim.dropped == (
        "markdown 3.5: only tensorboard required it",
        "tensorboard 2.15.1: only training writes and shows summaries",
        "types-six 1.0: code is checked before",
    )
    made = slim_parent(start, slim, order, REPORT)
    config, before = json.loads(made.image.config), json.loads(start.parent.image.config)
    assert config["config"]["Labels"].pop(SLIM_LABEL) == "markdown,tensorboard,types-six"
    assert config["config"]["Labels"].pop(SLIM_OF_LABEL) == str(start.environment)
    assert config["config"] == before["config"]
    base = len(OLD.image.layers)
    assert [it.descriptor for it in made.image.layers[:base]] == [
        it.descriptor for it in start.parent.image.layers[:base]
    ]
    fresh = replace(recipe_on(OLD), wheels=slim.lock.wheels, labels=((VARIANT_LABEL, "cpu"), ("a", "b")))
    again = assemble(fresh, OLD, files_of(tmp_path / "wheels", *WHEELS), LayerCache(tmp_path / "new"))
    assert [it.descriptor for it in made.image.layers] == [it.descriptor for it in again.image.layers]
    assert contents(made.image) == contents(again.image)
    assert slim_parent(start, slim, order, REPORT).image.digest == made.image.digest
    assert (made.lock, made.python) == (slim.lock, OLD.python_path)


def test_what_stands_on_it_is_proved_to_share_all_but_what_the_rule_lets_go(origin, order, tmp_path):
    start = origin(*WHEELS)
    slim = slim_of(order, start)
    parent, wheels = slim_parent(start, slim, order, REPORT), files_of(tmp_path / "wheels", *WHEELS, ABOVE)
    serve = assemble_child(parent, lock_of(ABOVE), Addition(), wheels, LayerCache(tmp_path / "cache")).image
    found = {it.id: it for it in prove_sharing(start.parent.image, serve, lambda *_: None)}
    assert {name for name, it in found.items() if not it.agrees} == {"shared-slim"}
    assert found["shared-slim"].severity == "warning"
    assert found["shared-slim"].packages == ("markdown 3.5", "tensorboard 2.15.1", "types-six 1.0")
    side = side_of_image(serve, "serve", machine="x86_64", report=lambda *_: None)
    wrong = [it for it in apply_rules(side_of_lock(start.parent.lock, "train"), side) if not it.agrees]
    assert {(it.id, it.about, it.severity) for it in wrong} == {
        ("package-missing", "slim", "warning"),
        ("package-extra", "packages", "note"),
    }


@pytest.mark.parametrize("missing", [CORE, HELPER])
def test_what_the_rule_does_not_let_go_is_an_error_whatever_the_label_says(origin, order, missing):
    start = origin(*WHEELS)
    left = replace(start.parent.lock, slim=(locked(missing).name,))
    left = replace(left, wheels=tuple(it for it in left.wheels if it.name not in left.slim))
    made = slim_parent(start, Slimmed(lock=left, dropped=("x",), saved=1), order, REPORT)
    found = [it for it in prove_sharing(start.parent.image, made.image, lambda *_: None) if not it.agrees]
    assert {(it.id, it.severity) for it in found} == {("shared-layers", "error"), ("shared-package", "error")}


def test_the_application_keeps_what_it_imports_and_its_server_what_it_requires(origin, order):
    start = origin(*WHEELS)
    assert slim_of(order, start, main=b"import tensorboard").lock.slim == ("types-six",)
    assert "kept, as the application imports it: tensorboard" in LINES
    assert slim_of(order, start, main=b"from markdown import x").lock.slim == ("tensorboard", "types-six")
    assert slim_of(replace(order, extras=("tensorboard>=2",)), start).lock.slim == ("types-six",)
    above = lock_of(make_wheel("server", "1.0", requires=["markdown"]))
    url = order.build_request.find_links[0] / "server-1.0-py3-none-any.whl"
    url.write_bytes(make_wheel("server", "1.0", requires=["markdown"]).data)
    above = replace(above, wheels=tuple(replace(it, url=url.as_uri()) for it in above.wheels))
    assert slim_of(order, start, above).lock.slim == ("tensorboard", "types-six")


def test_paths_that_wheels_share_are_settled_anew(origin, order):
    start = origin(*WHEELS, TWICE)
    made = slim_parent(start, slim_of(order, start), order, REPORT)
    before, after = contents(start.parent.image), contents(made.image)
    path = next(it for it in after if it.endswith("shared/a.py"))
    assert (before[path], after[path]) == (b"a = 1\n", b"a = 2\n")  # pip installs markdown after zwei
    assert (b"paths that several" in start.parent.image.config, b"paths that several" in made.image.config) == (
        True,
        False,
    )


@pytest.mark.parametrize("name", ["opencv-python", "opencv-python-headless"])
def test_a_shared_path_keeps_the_run_s_owner(origin, order, name):
    cv2 = [
        make_wheel(it, "4.9.0", {"cv2/version.py": f"{it!r}\n"}) for it in ("opencv_python", "opencv_python_headless")
    ]
    start = origin(*WHEELS, *cv2, owners=(("cv2/version.py", name),))
    made = slim_parent(start, slim_of(order, start), order, REPORT)
    found = [contents(it)[f"{SITE}/cv2/version.py"] for it in (start.parent.image, made.image)]
    assert found == [f"{name.replace('-', '_')!r}\n".encode()] * 2
    assert "tensorboard" in made.lock.slim


def test_a_shared_path_whose_owner_is_left_out_is_what_pip_leaves_of_the_others(origin, order):
    third = make_wheel("aaa", "1.0", {"shared/a.py": "a = 3\n"})
    start = origin(*WHEELS, TWICE, third, owners=(("shared/a.py", "markdown"),))
    made = slim_parent(start, slim_of(order, start), order, REPORT)
    assert "markdown" in made.lock.slim
    found = [contents(it)[f"{SITE}/shared/a.py"] for it in (start.parent.image, made.image)]
    assert found == [b"a = 1\n", b"a = 3\n"]


def test_layers_that_nobody_can_tell_apart_are_refused(origin, order):
    start = origin(*WHEELS)
    slim = slim_of(order, start)
    for line in ("RUN pip install -r requirements.txt", "envbuild: other 1.0"):
        config = json.loads(start.parent.image.config)
        config["history"][-3]["created_by"] = line
        image = replace(start.parent.image, config=json.dumps(config).encode())
        with pytest.raises(BuildError, match="cannot identify a layer"):
            slim_parent(replace(start, parent=replace(start.parent, image=image)), slim, order, REPORT)


def test_a_lock_says_what_was_left_out():
    lock = replace(lock_of(CORE), slim=("tensorboard",))
    lock = replace(lock, wheels=tuple(replace(it, url="https://index.invalid/core.whl") for it in lock.wheels))
    assert read_pylock(pylock_text(lock), "pylock.toml").slim == ("tensorboard",)
    assert side_of_lock(lock, "lock").slim == {"tensorboard"}


KIT = make_wheel(
    "kit",
    "1.0",
    {
        "kit/__init__.py": "from kit.tests.runner import run\nfrom kit.test import case\n",
        "kit/include/kit/core.h": "int core();\n",
        "kit/include/__init__.py": "",
        "kit/include/data.json": "{}",
        "kit/tests/__init__.py": "",
        "kit/tests/runner.py": "run = 1\n",
        "kit/tests/test_core.py": "assert False\n",
        "kit/tests/deep/test_more.py": "assert False\n",
        "kit/tests/test_data/load.py": "load = 1\n",
        "kit/test/__init__.py": "",
        "kit/test/case.py": "case = 1\n",
        "kit/testing/test_tools.py": "tool = 1\n",
        "kit/test_mode.py": "mode = 1\n",
        "kit/kernel.h": "int kernel();\n",
        "kit/tests.py": "tests = 1\n",
        "kit/include.h/__init__.py": "",
        "kit/lib/libkit.a": b"!<arch>\n",
        "kit/lib/archive.a": b"data",
        "kit/_core.pyx": "cdef int core()\n",
        "kit/_core.pyi": "def core() -> int: ...\n",
        "kit/py.typed": "",
        "kit/query.inc": "<data>",
    },
    headers={"kit.h": "int kit();\n"},
    scripts={"test_kit.py": "#!python\n"},
)
LEFT_OUT = {
    "kit/include/kit/core.h",
    "kit/tests/test_core.py",
    "kit/tests/deep/test_more.py",
    "kit/lib/libkit.a",
    "kit/_core.pyx",
    "kit/_core.pyi",
}


def site_files(image: Image) -> dict[str, bytes]:
    return {path.removeprefix(f"{SITE}/"): data for path, data in contents(image).items() if path.startswith(SITE)}


def test_only_files_that_a_rule_names_are_left_out_and_record_lists_what_is_there(origin, order):
    start = origin(CORE, HELPER, KIT)
    slim = slim_of(order, start)
    made = slim_parent(start, slim, order, REPORT)
    before, after = contents(start.parent.image), contents(made.image)
    record = f"{SITE}/kit-1.0.dist-info/RECORD"
    emptied = {"kit/include/kit", "kit/tests/deep"}
    assert before.keys() - after.keys() == {f"{SITE}/{path}" for path in LEFT_OUT | emptied}
    assert {path for path in after if after[path] != before.get(path)} == {record}
    listed_there = {row.path for row in read_record(after[record].decode())}
    assert {row.path for row in read_record(before[record].decode())} - listed_there == LEFT_OUT
    assert {it.rule: (it.count, it.size) for it in slim.files} == {
        "headers": (1, 12),
        "static libraries": (1, 8),
        "tests": (2, 26),
        "type stubs": (1, 23),
        "Cython sources": (1, 16),
    }
    assert slim.dropped == ()
    assert "left out: headers: 1 file, 0.0 MB: only a compiler reads them" in LINES
    labels = json.loads(made.image.config)["config"]["Labels"]
    assert labels[SLIM_FILES_LABEL] == "Cython sources,headers,static libraries,tests,type stubs"
    assert SLIM_LABEL not in labels
    assert slim.losses == "6 files, 0.0 MB,"
    assert read_pylock(pylock_text(at_an_index(slim.lock)), "pylock.toml").slim_files == slim.lock.slim_files


def at_an_index(lock: Lock) -> Lock:
    wheels = tuple(replace(it, url=f"https://index.invalid/{it.filename}") for it in lock.wheels)
    return replace(lock, wheels=wheels)


def test_wheels_without_such_files_keep_their_keys_and_layers(origin, order):
    start = origin(CORE, HELPER, KIT)
    slim = slim_of(order, start)
    keys = {it.name: it.content_key for it in start.parent.lock.wheels}
    assert {it.name for it in slim.lock.wheels if it.content_key != keys[it.name]} == {"kit"}
    assert slim_of(order, origin(CORE, HELPER)).files == ()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("torch", {"kit/include/kit/core.h", "kit/lib/libkit.a"}),
        ("cupy-cuda12x", {"kit/include/kit/core.h", "kit/lib/libkit.a"}),
        ("lazy-loader", {"kit/_core.pyi"}),
        ("tables", {"kit/tests/test_core.py", "kit/tests/deep/test_more.py"}),
    ],
)
def test_a_rule_does_not_apply_where_a_distribution_opens_such_files(origin, order, name, kept):
    start = origin(CORE, HELPER, KIT, make_wheel(name.replace("-", "_"), "1.0", {"that/__init__.py": ""}))
    made = slim_parent(start, slim_of(order, start), order, REPORT)
    assert LEFT_OUT & site_files(made.image).keys() == kept
    above = lock_of(make_wheel("lazy_loader", "0.4"))
    path = order.build_request.find_links[0] / above.wheels[0].filename
    path.write_bytes(make_wheel("lazy_loader", "0.4").data)
    above = replace(above, wheels=(replace(above.wheels[0], url=path.as_uri()),))
    assert "type stubs" not in {it.rule for it in slim_of(order, start, above).files}


def test_an_image_without_such_files_is_proved_and_any_other_difference_is_an_error(origin, order):
    start = origin(*WHEELS, KIT)
    made = slim_parent(start, slim_of(order, start), order, REPORT)
    found = [it for it in prove_sharing(start.parent.image, made.image, lambda *_: None) if not it.agrees]
    assert [(it.id, it.severity) for it in found] == [("shared-slim", "warning")]
    assert found[0].says.endswith(
        "and without Cython sources, headers, static libraries, tests, type stubs of 1 distribution"
    )
    side = side_of_image(made.image, "serve", machine="x86_64", report=lambda *_: None)
    assert side.packages is not None
    assert {it.content for it in side.packages.values()} == {None}
    config = json.loads(made.image.config)
    for names in ("headers,tests", ""):
        config["config"]["Labels"][SLIM_FILES_LABEL] = names
        other = replace(made.image, config=json.dumps(config).encode())
        wrong = [it.id for it in prove_sharing(start.parent.image, other, lambda *_: None) if it.severity == "error"]
        assert "shared-package" in wrong


@pytest.mark.parametrize("path", ["kit/_core.pyi", "kit/__init__.py"])
def test_a_file_of_a_slim_image_that_differs_from_training_s_is_an_error(origin, order, path):
    """The rules let files be missing, and never be others."""
    start = origin(CORE, HELPER, KIT)
    slim = slim_of(order, start)
    made = slim_parent(start, slim, order, REPORT)
    changed = make_wheel("kit", "1.0", {"kit/__init__.py": "", path: "evil = 1\n"})
    wheels = files_of(order.build_request.find_links[0], changed, CORE, HELPER)
    lock = replace(slim.lock, wheels=lock_of(CORE, HELPER, changed).wheels)
    labels = tuple(json.loads(made.image.config)["config"]["Labels"].items())
    recipe = replace(recipe_on(OLD), wheels=lock.wheels, labels=labels)
    other = assemble(recipe, OLD, wheels, LayerCache(order.build_request.cache)).image
    wrong = [it.id for it in prove_sharing(start.parent.image, other, lambda *_: None) if it.severity == "error"]
    assert "shared-package" in wrong


OPENED = (
    *("numpy/testing/__init__.py", "numpy/_core/tests/_natype.py", "numpy/py.typed", "numpy/core/_multiarray_umath.so"),
    *("pandas/_testing/__init__.py", "sklearn/utils/_testing.py", "torch/testing/_internal/common_utils.py"),
    *("tensorflow/_api/v2/test/__init__.py", "tensorflow/python/platform/test.py", "werkzeug/test.py"),
    *("astropy/tests/runner.py", "openpyxl/tests/__init__.py", "gensim/test/utils.py", "joblib/test/data/a.pkl"),
    *("triton/backends/nvidia/bin/ptxas", "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc", "a-1.0.dist-info/RECORD"),
    *("dbt/include/global_project/tests/generic/builtin.sql", "numba/_helperlib.h", "PySpice/libs/diode.lib"),
)


def test_each_rule_names_files_by_their_ends_and_none_takes_modules():
    for rule in file_rules():
        assert rule.why
        assert all(it.count("*") == 1 for it in rule.files)
        assert [it for it in OPENED if rule.pattern.matches(it)] == []
    assert len({it.name for it in file_rules()}) == len(file_rules())


def test_bytecode_is_not_made_of_what_is_left_out(origin, order):
    start = origin(CORE, HELPER, KIT)
    slim = slim_of(order, start)
    recipe = replace(recipe_on(OLD), wheels=start.parent.lock.wheels)
    plans = [list(plan_bytecode(replace(recipe, wheels=it), "x", ())) for it in (recipe.wheels, slim.lock.wheels)]
    assert plans[0][0].key != plans[1][0].key
    no_tests = tuple(
        replace(it, left_out=tuple(one for one in it.left_out if not one.matches("tests/test_a.py")))
        for it in slim.lock.wheels
    )
    assert plans[0][0].key == next(plan_bytecode(replace(recipe, wheels=no_tests), "x", ())).key
