"""What an image says as a side: Python, C library, distributions, frameworks and variables, from its layers."""

import io
import json
from dataclasses import replace

import pytest

from envbuild.capture.distributions import record_content
from envbuild.errors import BuildError
from envbuild.oci.image import LAYER_ZSTD, Image
from envbuild.verify.rules import apply_rules
from envbuild.verify.sources import Side, frameworks_of
from envbuild.verify.sources.image import side_of_image
from tests.fakes.trees import BASE, PYTHON, image_of_trees, layer_of_tree

SITE = "opt/env/lib/python3.11/site-packages"
OWN = "usr/local/lib/python3.11/site-packages"
VENV = {
    "opt/env/pyvenv.cfg": b"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n",
    "opt/env/bin/python3.11": "-> /usr/bin/python3.11",
    "opt/env/bin/python": "-> python3.11",
    "opt/env/bin/python3": "-> python3.11",
}
PATH = ("PATH=/opt/env/bin:/usr/local/bin:/usr/bin", "A=1", "EMPTY=")
RECORD = "six.py,sha256=abc,1\nsix-1.17.0.dist-info/RECORD,,\n../../../bin/six,sha256=x,1\n"


def installed(name: str, version: str, site: str = SITE, *, record: str = "", url: str = "") -> dict[str, bytes]:
    info = f"{site}/{name}-{version}.dist-info"
    found = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: other\n".encode()}
    found |= {f"{info}/RECORD": record.encode()} if record else {}
    return found | ({f"{info}/direct_url.json": url.encode()} if url else {})


def side(*trees: dict, env: tuple[str, ...] = PATH, **config) -> Side:
    made = image_of_trees(BASE, *trees, env=env)
    value = json.loads(made.config)
    value["config"] |= config
    return read(replace(made, config=json.dumps(value).encode()))


def read(image: Image) -> Side:
    return side_of_image(image, "churn:7", machine="x86_64", report=lambda *_: None)


def versions(found: Side) -> dict[str, str | None]:
    return {it.name: it.version for it in (found.packages or {}).values()}


def test_an_assembled_image_says_all_that_its_layers_and_config_have():
    found = side(VENV, installed("six", "1.17.0", record=RECORD), installed("Jinja2", "3.1.4"))
    assert (found.name, found.kind, found.system, found.machine) == ("churn:7", "image", "Linux", "x86_64")
    assert (found.python, found.implementation) == ("3.11.2", "cpython")
    assert (found.libc, found.libc_version) == ("glibc", "2.36")
    assert found.packages
    assert list(found.packages) == ["jinja2", "six"]
    assert found.packages["six"].content == record_content(RECORD)
    assert found.packages["jinja2"].content is None
    assert (found.variables, found.names) == (
        {"PATH": PATH[0][5:], "A": "1", "EMPTY": ""},
        frozenset({"PATH", "A", "EMPTY"}),
    )
    assert (found.frameworks, found.variant, found.cuda, found.accelerator) == ((), None, None, None)


def test_what_the_interpreter_does_not_see_is_not_said():
    """The base's own packages, what a distribution has of others for itself, and the cache of an installer."""
    elsewhere = [installed("pip", "24.0", OWN), installed("yaml", "6.0", "usr/lib/python3/dist-packages")]
    elsewhere += [installed("six", "1.0", f"{SITE}/setuptools/_vendor"), installed("six", "2.0", "root/.cache/uv/a")]
    assert versions(side(VENV, installed("six", "1.17.0"), *elsewhere)) == {"six": "1.17.0"}


def test_an_environment_that_sees_the_systems_packages_has_both_and_its_own_first():
    settings = {"opt/env/pyvenv.cfg": b"home = /usr/bin\ninclude-system-site-packages = true\n"}
    system = [installed(name, "1.0", "usr/lib/python3/dist-packages") for name in ("six", "numpy")]
    assert versions(side(VENV | settings, installed("six", "1.17.0"), *system)) == {"numpy": "1.0", "six": "1.17.0"}


@pytest.mark.parametrize("command", [["/opt/env/bin/python", "serve.py"], ["/opt/env/bin/gunicorn"]])
def test_the_command_says_which_python_it_is(command):
    trees = (VENV, installed("six", "1.17.0"), installed("pip", "24.0", "usr/lib/python3/dist-packages"))
    assert versions(side(*trees, env=())) == {"pip": "24.0"}
    assert versions(side(*trees, env=(), Entrypoint=command)) == {"six": "1.17.0"}
    assert versions(side(*trees, env=(), Entrypoint=None, Cmd=command)) == {"six": "1.17.0"}


def test_an_interpreter_of_its_own_has_its_folder_then_the_users():
    own = {"usr/local/bin/python3.11": PYTHON.replace(b"3.11.2", b"3.11.9"), "usr/local/bin/python": "-> python3.11"}
    trees = (
        own,
        installed("six", "1.17.0", OWN),
        installed("six", "1.16.0", "root/.local/lib/python3.11/site-packages"),
    )
    assert (side(*trees, env=()).python, versions(side(*trees, env=()))) == ("3.11.9", {"six": "1.16.0"})
    assert versions(side(*trees, env=(), User="app")) == {"six": "1.17.0"}
    assert versions(side(*trees, env=("PYTHONPATH=/x",), User="app")) == {"six": "1.17.0"}
    first = installed("six", "1.15.0", "x")
    assert versions(side(*trees, first, env=("PYTHONPATH=/x",))) == {"six": "1.15.0"}


@pytest.mark.parametrize(
    ("files", "env", "python"),
    [
        ({"usr/local/lib/libpython3.11.so.1.0": PYTHON.replace(b"3.11.2", b"3.11.9")}, (), "3.11.9"),
        ({}, ("PYTHON_VERSION=3.11.8",), "3.11.8"),
        ({}, ("PYTHON_VERSION=3.12.1",), "3.11"),
        ({}, (), "3.11"),
    ],
)
def test_the_patch_release_comes_from_whatever_says_it(files, env, python):
    small = {"usr/local/bin/python3.11": b"\x7fELF", "usr/local/bin/python3": "-> python3.11"}
    assert side(small, files, env=env).python == python


def test_an_image_without_python_says_nothing_of_packages():
    found = read(image_of_trees({"bin/sh": b"x", "lib/ld-musl-x86_64.so.1": b"x"}, installed("six", "1.0", "x")))
    assert (found.python, found.packages, found.implementation) == (None, None, None)
    assert (found.libc, found.libc_version) == ("musl", None)


def test_layers_hide_what_lies_below():
    below = installed("six", "1.16.0") | installed("numpy", "1.0") | installed("flask", "3.0")
    above = {f"{SITE}/.wh.six-1.16.0.dist-info": b"", f"{SITE}/flask-3.0.dist-info": b"now a file"}
    found = side(VENV, below, above | installed("six", "1.17.0"))
    assert versions(found) == {"numpy": "1.0", "six": "1.17.0"}
    assert versions(side(VENV, below, {f"{SITE}/.wh..wh..opq": b""} | installed("six", "1.17.0"))) == {"six": "1.17.0"}


def test_a_layer_that_brings_another_interpreter_is_believed():
    assert side(VENV, {"usr/bin/python3.11": PYTHON.replace(b"3.11.2", b"3.11.7")}).python == "3.11.7"


def test_hard_links_are_the_files_that_they_lead_to():
    cached = installed("six", "1.17.0", "root/.cache/uv/a", record=RECORD)
    links = {path.replace("root/.cache/uv/a", SITE): f"=> {path}" for path in cached}
    for trees in ([cached | links], [cached, links]):
        found = side(VENV, *trees)
        assert versions(found) == {"six": "1.17.0"}
        assert found.packages
        assert found.packages["six"].content == record_content(RECORD)


def test_a_checkout_has_its_commit_and_other_origins_none():
    commit = "0123456789" * 4
    urls = {"git": {"vcs_info": {"vcs": "git", "commit_id": commit}}, "tgz": {"archive_info": {}}}
    trees = [installed(name, "1.0", url=json.dumps(url)) for name, url in urls.items()]
    found = side(VENV, *trees, installed("bad", "1.0", url="[]"))
    assert found.packages
    assert {name: it.build for name, it in found.packages.items()} == {"bad": "", "git": commit, "tgz": ""}


def test_what_is_no_metadata_is_no_distribution():
    broken = {
        f"{SITE}/empty-1.0.dist-info/METADATA": b"",
        f"{SITE}/odd-1.0.dist-info/METADATA": b"Name: odd\nVersion: $(rm -r)\n",
        f"{SITE}/raw-1.0.dist-info/METADATA": b"\xff\xfe",
        f"{SITE}/old-0.1.egg-info": b"Metadata-Version: 1.0\nName: old\nVersion: 0.1\n",
        f"{SITE}/older.egg-info/PKG-INFO": b"Name: older\r\nVersion: 0.2\r\n",
    }
    assert versions(side(VENV, broken)) == {"old": "0.1", "older": "0.2"}


INFO = b"""import collections
build_info = collections.OrderedDict([("is_cuda_build", True), ("cuda_version", "12.5.1"), ("cudnn_version", "9"),
  ("cuda_compute_capabilities", ["sm_80", "compute_90"])])
"""


def test_tensorflow_says_itself_how_it_was_built():
    wheels = [installed("nvidia-cudnn-cu12", "9.3.0.75"), installed("nvidia-cuda-runtime-cu12", "12.5.82")]
    tensorflow = installed("tensorflow", "2.21.0") | {f"{SITE}/tensorflow/python/platform/build_info.py": INFO}
    found = side(VENV, tensorflow, installed("keras", "3.6.0"), *wheels)
    assert (found.variant, found.cuda, found.cudnn) == ("gpu", "12.5.82", "9.3.0")
    assert [it.name for it in found.frameworks] == ["tensorflow", "keras"]
    assert found.framework
    assert (found.framework.cuda, found.framework.cudnn) == ("12.5.1", "9")
    assert found.framework.compute_capabilities == ("sm_80", "compute_90")


def test_cuda_of_the_base_is_known_by_its_packages():
    status = "".join(
        f"Package: {name}\nStatus: install ok installed\nMaintainer: x\nVersion: {version}\n\n"
        for name, version in (("cuda-cudart-11-2", "11.2.152-1"), ("libcudnn8", "8.1.1.33-1+cuda11.2"), ("libc6", "2"))
    )
    trees = (VENV, {"var/lib/dpkg/status": status.encode()})
    found = side(*trees, installed("tensorflow", "2.8.0"))
    assert (found.variant, found.cuda, found.cudnn) == ("gpu", "11.2.152", "8.1.1")
    assert side(*trees, installed("six", "1.0")).variant is None


@pytest.mark.parametrize("variant", ["gpu", "cpu"])
def test_labels_of_our_own_say_variant_and_build(variant):
    labels = {"dev.envbuild.variant": variant, "dev.envbuild.framework": "torch==2.3.1", "dev.envbuild.cuda": "12.1"}
    found = side(VENV, installed("torch", "2.3.1"), Labels=labels)
    assert found.framework
    assert (found.variant, found.framework.cuda) == (variant, "12.1")


@pytest.mark.parametrize(
    ("versions", "names", "variant", "cuda"),
    [
        ({"tensorflow-cpu": "2.15.1", "keras": "2.15.0"}, ["tensorflow", "keras"], "cpu", None),
        ({"tensorflow": "2.15.1"}, ["tensorflow"], None, None),
        ({"tensorflow": "2.15.1", "nvidia-cuda-runtime-cu12": "12.2.140"}, ["tensorflow"], "gpu", None),
        ({"tensorflow-gpu": "1.15.5"}, ["tensorflow"], "gpu", None),
        ({"torch": "2.3.1+cu121"}, ["torch"], "gpu", "12.1"),
        ({"torch": "1.9.0+cu102"}, ["torch"], "gpu", "10.2"),
        ({"torch": "1.4.0+cu92"}, ["torch"], "gpu", "9.2"),
        ({"torch": "2.3.1+cpu"}, ["torch"], "cpu", None),
        ({"jax": "0.4.30", "jaxlib": "0.4.30", "jax-cuda12-plugin": "0.4.30"}, ["jax"], "gpu", "12"),
        ({"jax": "0.2.20", "jaxlib": "0.1.69+cuda111"}, ["jax"], "gpu", "11.1"),
        ({"jax": "0.4.7", "jaxlib": "0.4.7+cuda11.cudnn86"}, ["jax"], "gpu", "11"),
        ({"jax": "0.4.30", "jaxlib": "0.4.30"}, ["jax"], None, None),
        ({"xgboost": "2.0", "nvidia-nccl-cu12": "2.20"}, [], None, None),
        ({"torch": None}, [], None, None),
    ],
)
def test_names_and_versions_tell_frameworks_and_variant(versions, names, variant, cuda):
    found = frameworks_of(versions)
    assert ([it.name for it in found.frameworks], found.variant) == (names, variant)
    assert (found.frameworks[0].cuda if found.frameworks else None) == cuda


def test_what_cannot_be_read_is_refused_by_name():
    made = image_of_trees(BASE)
    packed = replace(made.layers[0], descriptor=replace(made.layers[0].descriptor, media_type=LAYER_ZSTD))
    other = replace(made.layers[0], descriptor=replace(made.layers[0].descriptor, media_type="text/plain"))
    damaged = replace(made.layers[0], open=lambda: io.BytesIO(b"\x1f\x8b no"))
    changed = replace(layer_of_tree({"x": b"y"}), diff_id=made.layers[0].diff_id)
    for layer, words in (
        (packed, "cannot be read"),
        (other, "text/plain"),
        (damaged, "cannot be read"),
        (changed, "diff id"),
    ):
        with pytest.raises(BuildError, match=words) as caught:
            read(replace(made, layers=(layer,)))
        assert caught.value.where == "churn:7"
    for config in (b"[]", b"{", b'{"os": "linux"}', b'{"os": "linux", "architecture": "amd64", "config": []}1'):
        with pytest.raises(BuildError, match="config"):
            read(replace(made, config=config))


def test_what_is_read_is_told():
    told = []
    made = image_of_trees(BASE, VENV)
    side_of_image(made, "a", machine="x86_64", report=lambda *it: told.append(it))
    total = sum(it.descriptor.size for it in made.layers)
    assert told[-1] == ("reading layers", total, total)
    assert len(told) == 2


RUN = Side(name="run", kind="manifest", python="3.11.2", system="Linux")


def faults(found: Side) -> list[tuple[str, str]]:
    return [(it.rule, it.says) for it in apply_rules(RUN, found) if not it.agrees]


@pytest.mark.parametrize("trees", [(), ({},), ({"bin/sh": b"x", "usr/lib/python3/": 0o755},)])
def test_an_image_that_has_no_python_at_all_says_so(trees):
    found = read(image_of_trees(*trees))
    assert (found.pythonless, found.packages) == (True, None)
    assert faults(found) == [("python", "wanted 3.11.2, found no Python")]


@pytest.mark.parametrize(
    "files",
    [
        {"opt/conda/bin/python3.12": PYTHON},
        {"opt/pypy/bin/python3": "-> pypy3"},
        {"usr/lib/libpython3.11.so.1.0": PYTHON},
        {"usr/bin/python2.7": b"x"},
    ],
)
def test_a_python_that_nothing_leads_to_may_be_the_one(files):
    found = read(image_of_trees({"bin/sh": b"x"}, files))
    assert (found.pythonless, found.python) == (False, None)
    assert faults(found) == []


@pytest.mark.parametrize(("os", "system"), [("linux", "Linux"), ("windows", "Windows"), ("plan9", None)])
def test_the_system_is_named_as_a_run_names_its_own(os, system):
    found = read(image_of_trees(BASE, os=os))
    assert (found.system, found.pythonless) == (system, False)
    windows = read(image_of_trees({"Files/Python/python.exe": b"MZ"}, os="windows"))
    assert faults(windows) == [("system", "wanted Linux, found Windows")]
