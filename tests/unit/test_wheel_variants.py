"""Wheel variants (PEP 825) from the run's installer to the image: names, the record, the lock, its files, the image."""

import json
import platform
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import InvalidWheelFilename

from envbuild.errors import LockError
from envbuild.lock.formats import pylock_text, read_pylock, requirements_text, write_lock
from envbuild.lock.model import best_wheel
from envbuild.lock.run import LockResult, lock_run
from envbuild.lock.settings import IndexSettings, uv_program
from envbuild.manifest.packages import Distribution, Origin, WheelVariant
from envbuild.match.stack import Variant
from envbuild.oci.layout import read_layout
from envbuild.report import SILENT
from envbuild.verify.sources.context import context_findings
from envbuild.wheel.name import WheelName, parsed_wheel
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import FakeWheel, make_wheel, variants_json
from tests.making import make_venv
from tests.unit.capturing import Environment
from tests.unit.converting import read
from tests.unit.locking import HERE, TARGET, forget_settings, installed, options
from tests.unit.test_from_manifest import TENSORFLOW, Site, manifest_of

LABELS = {
    "cu128": {"nvidia": {"cuda_version_lower_bound": ["12.8"], "sm_arch": ["120_real", "90_real"]}},
    "v3": {"x86_64": {"level": ["v3"]}},
    "null": {},
}
CUDA, V3, NULL = (make_wheel("demo", "1.0", {"demo.py": f"IS = {it!r}\n"}, variant=(it, LABELS[it])) for it in LABELS)
PLAIN = make_wheel("demo", "1.0", {"demo.py": "IS = 'plain'\n"})
BESIDE = FakeWheel(filename="demo-1.0-variants.json", data=variants_json(LABELS).encode())
NEEDS = {
    "cu128": (
        "nvidia :: cuda_version_lower_bound :: 12.8", "nvidia :: sm_arch :: 120_real", "nvidia :: sm_arch :: 90_real"
    ),
    "v3": ("x86_64 :: level :: v3",),
    "null": (),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)


@pytest.fixture
def index(monkeypatch):
    """An index of which each test says what it has."""
    with serving() as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def had(wheel: FakeWheel, *, properties: bool = True) -> Distribution:
    label = WheelName.parse(wheel.filename).label
    known = WheelVariant(label=label, properties=NEEDS[label] if properties else None) if label else None
    return installed(wheel, wheel_variant=known)


def locked(folder: Path, *run: Distribution, variant: Variant = "gpu", **more) -> LockResult:
    pins = tuple(f"{it.name}=={it.version}" for it in run)
    return lock_run(pins, TARGET, run, options(folder, variant=variant, **more))


def names(found: LockResult) -> list[str]:
    return [it.filename for it in found.lock.wheels]


# File names


@pytest.mark.parametrize(
    ("filename", "label", "build", "plain"),
    [
        ("a-1-py3-none-any.whl", None, (), "a-1-py3-none-any.whl"),
        ("a-1-2b-py3-none-any.whl", None, (2, "b"), "a-1-2b-py3-none-any.whl"),
        ("a-1-py3-none-any-null.whl", "null", (), "a-1-py3-none-any.whl"),
        ("a-1-2b-py3-none-any-x86_64_v3.1.whl", "x86_64_v3.1", (2, "b"), "a-1-2b-py3-none-any.whl"),
    ],
)
def test_a_label_is_a_part_of_its_own(filename, label, build, plain):
    found = WheelName.parse(filename)
    assert (found.label, found.build, found.plain) == (label, build, plain)
    assert (found.name, str(found.version), {str(it) for it in found.tags}) == ("a", "1", {"py3-none-any"})


@pytest.mark.parametrize(
    "filename",
    [
        "a-1-py3-none-any-Cu128.whl", "a-1-py3-none-any-.whl", "a-1-py3-none-any-cu128-x.whl", "a-b-1-py3-none-any.whl",
        "a-1-py3-none-any-cu128", "a-1-py3-none-any-cu128.tar.gz", "a-1-2-py3-none-any-cu128-x.whl", "a-1-py3-none.whl",
        "a-x-py3-none-any-cu128.whl", "a-1-py3-none-any-cu\n128.whl", "a-1-py3-none-any-cu128\n.whl",
    ],
)  # fmt: skip
def test_other_names_are_refused_as_before(filename):
    assert parsed_wheel(filename) is None
    with pytest.raises(InvalidWheelFilename):
        WheelName.parse(filename)


def test_an_installer_takes_a_wheel_that_is_no_variant_first():
    names = ["a-1-2-cp311-cp311-linux_x86_64-v3.whl", "a-1-py3-none-any-null.whl", "a-1-py2.py3-none-any.whl"]
    assert best_wheel([(it, it) for it in names], TARGET) == names[2]
    assert best_wheel([(it, it) for it in names[:2]], TARGET) == names[0]


# The record of the run


def test_capture_records_what_uv_has_installed(tmp_path):
    environment = Environment(tmp_path)
    for wheel in (PLAIN, NULL, BESIDE):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / wheel.filename).write_bytes(wheel.data)
    python, folder = str(environment.prefix / "bin/python"), str(tmp_path / "folder")
    command = [uv_program(), "pip", "install", "--no-config", "--no-index", "--find-links", folder, "--python", python]
    command += ["--reinstall", "demo"]
    subprocess.run(command, check=True, capture_output=True)
    assert all("wheel_variant" not in it for it in environment.capture()["distributions"])
    subprocess.run([*command, "--preview-features", "wheel-variants"], check=True, capture_output=True)
    [found] = [it for it in environment.capture()["distributions"] if it["name"] == "demo"]
    assert found["wheel_variant"] == {"label": "null", "properties": []}
    assert found["content_sha256"] == installed(NULL).content_sha256


VALID = {"variants": {"cu128": {"nvidia": {"sm_arch": ["90_real", "100_real"]}}}}
NOT_VALID = (
    "", "[" * 100_000, "\0", "[]", '{"variants": []}', '{"variants": {}}', '{"variants": {"a": {}, "b": {}}}',
    '{"variants": {"A-b": {}}}', '{"variants": {"a": null}}', '{"variants": {"a": {"b": {"c": "12.8"}}}}',
    '{"variants": {"a": {"b": {"c": ["x y"]}}}}', '{"variants": {"a": {"b": {"c": [["d"]]}}}}',
    json.dumps(VALID | {"x": "x" * (1 << 20)}),
)  # fmt: skip


def test_what_is_no_valid_variant_json_is_not_recorded(tmp_path):
    environment = Environment(tmp_path)
    for number, text in enumerate((*NOT_VALID, json.dumps(VALID))):
        environment.install(f"demo{number}", **{"variant.json": text})
    found = {it["name"]: it["wheel_variant"] for it in environment.capture()["distributions"] if "wheel_variant" in it}
    properties = ["nvidia :: sm_arch :: 100_real", "nvidia :: sm_arch :: 90_real"]
    assert found == {f"demo{len(NOT_VALID)}": {"label": "cu128", "properties": properties}}


def pylock_of(*filenames: str) -> str:
    wheels = "".join(
        f'[[packages.wheels]]\nurl = "https://index.invalid/{it}"\nhashes = {{ sha256 = "{"ab" * 32}" }}\n'
        for it in filenames
    )
    return f'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "demo"\nversion = "1.0"\n{wheels}'


def test_the_pylock_of_another_tool_says_which_variant_it_was_where_it_names_one():
    variants = '[packages.variants-json]\n"$schema" = "x"\n[packages.variants-json.variants]\nnull = {}\n'
    given: dict[str, Any] = {"python": "3.11.7", "platform": "linux/amd64"}
    [found] = read("pylock.toml", pylock_of(CUDA.filename) + variants, **given).distributions
    assert (found.version, found.wheel_variant) == ("1.0", WheelVariant(label="cu128"))
    [found] = read("pylock.toml", pylock_of(CUDA.filename, PLAIN.filename), **given).distributions
    assert found.wheel_variant is None


# The lock


def test_the_run_s_own_variant_is_locked_where_an_index_has_it(tmp_path, index: FakeIndex):
    index.add(PLAIN, CUDA, V3, NULL, BESIDE)
    found = locked(tmp_path, had(CUDA))
    assert (names(found), found.warnings) == ([CUDA.filename], ())
    assert found.proof.summary == "1 of 1 identical"
    assert names(locked(tmp_path, had(PLAIN))) == [PLAIN.filename]
    assert names(locked(tmp_path, had(CUDA, properties=False))) == [CUDA.filename]


@pytest.mark.parametrize(("wheel", "there"), [(CUDA, (CUDA,)), (V3, (V3, NULL))], ids=["alone", "beside others"])
@pytest.mark.parametrize("place", ["index", "folder"])
def test_no_other_wheel_need_be_there(tmp_path, index: FakeIndex, wheel, there, place):
    (tmp_path / "folder").mkdir()
    if place == "index":
        index.add(*there)
    for it in there:
        (tmp_path / "folder" / it.filename).write_bytes(it.data)
    folder = IndexSettings(default=None, find_links=(str(tmp_path / "folder"),), offline=True)
    found = locked(tmp_path, had(wheel), settings=folder if place == "folder" else None)
    assert (names(found), found.warnings) == ([wheel.filename], ())


@pytest.mark.parametrize(
    ("there", "taken", "properties", "resolver"),
    [
        ((CUDA, PLAIN), PLAIN, True, "uv"),
        ((CUDA, PLAIN), PLAIN, True, "pip-tools"),
        ((CUDA, PLAIN, V3, NULL), NULL, True, "uv"),
        ((CUDA, PLAIN, V3, NULL), NULL, False, "uv"),
    ],
    ids=["no null variant", "pip-tools", "null variant", "unknown properties"],
)
def test_the_cpu_variant_never_takes_one_that_needs_a_gpu(
    tmp_path, index: FakeIndex, there, taken, properties, resolver
):
    index.add(*there, BESIDE)
    run = had(CUDA, properties=properties)
    found = lock_run(("demo==1.0",), HERE, [run], options(tmp_path, variant="cpu", resolver=resolver))
    needs = f" ({', '.join(NEEDS['cu128'])})" if properties else ""
    what = f"the run had demo 1.0 as wheel variant cu128{needs}, and it may need what the cpu variant lacks"
    assert (names(found), found.warnings) == ([taken.filename], (f"{what}: locked is {taken.filename}",))
    assert found.proof.summary == "0 of 1 identical; demo was installed as wheel variant cu128"
    assert names(locked(tmp_path, had(V3), variant="cpu")) == [V3.filename if V3 in there else taken.filename]


def test_a_variant_that_is_not_there_is_named_beside_what_is_locked(tmp_path, index: FakeIndex):
    index.add(PLAIN, V3)
    [warning] = locked(tmp_path, had(CUDA)).warnings
    assert f"wheel variant cu128 ({NEEDS['cu128'][0]}, " in warning
    assert f"no index or folder has it for {TARGET}: locked is {PLAIN.filename}" in warning


def test_without_a_wheel_for_it_the_label_is_named_and_the_advice_works(tmp_path, index: FakeIndex):
    index.add(CUDA)
    with pytest.raises(LockError) as refused:
        locked(tmp_path, had(CUDA), variant="cpu")
    assert f"demo==1.0: all its wheels for {TARGET} are variants (PEP 825): cu128;" in refused.value.what
    assert f"without the label, {PLAIN.filename}: --find-links DIR" in refused.value.what
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / PLAIN.filename).write_bytes(CUDA.data)
    folder = IndexSettings(default=index.url, find_links=(str(tmp_path / "folder"),))
    del index.pages["demo"]
    found = locked(tmp_path, had(CUDA), settings=folder)
    assert (names(found), found.proof.summary, found.warnings) == ([PLAIN.filename], "1 of 1 identical", ())


def test_it_stays_where_others_are_newer_and_is_checked_as_others_are(tmp_path, index: FakeIndex):
    index.add(CUDA, PLAIN, make_wheel("other", "1.0"), make_wheel("other", "2.0"))
    run = had(CUDA), installed(make_wheel("other", "1.0"))
    found = locked(tmp_path, *run, upgrade=("other",))
    assert names(found) == [CUDA.filename, "other-2.0-py3-none-any.whl"]
    allowed = replace(run[0], origin=Origin(kind="index", hashes=(PLAIN.sha256,)))
    with pytest.raises(LockError, match=f"{CUDA.filename} has sha256 {CUDA.sha256}, which is not among"):
        locked(tmp_path, allowed)


def test_the_preview_of_uv_changes_nothing(tmp_path, monkeypatch, index: FakeIndex):
    index.add(PLAIN, NULL, BESIDE)
    monkeypatch.setenv("UV_PREVIEW_FEATURES", "wheel-variants")
    assert names(locked(tmp_path, had(PLAIN))) == [PLAIN.filename]


def test_one_from_an_address_is_fetched_from_there(tmp_path, index: FakeIndex):
    with serving(CUDA) as elsewhere:
        origin = Origin(kind="archive", url=elsewhere.file_url(CUDA.filename), sha256=CUDA.sha256)
        found = locked(tmp_path, replace(had(CUDA), origin=origin))
        assert [it.url for it in found.lock.wheels] == [elsewhere.file_url(CUDA.filename)]
        assert "demo==1.0 " in requirements_text(found.lock).decode()
        index.add(PLAIN)
        found = locked(tmp_path, replace(had(CUDA), origin=origin), variant="cpu")
        assert names(found) == [PLAIN.filename]


# Its files, and what installs from them


def test_a_lock_keeps_the_name_and_pip_gets_the_file_under_one_that_it_takes(tmp_path, index: FakeIndex):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / CUDA.filename).write_bytes(CUDA.data)
    folder = IndexSettings(default=None, find_links=(str(tmp_path / "folder"),), offline=True)
    found = locked(tmp_path, had(CUDA), settings=folder)
    write_lock(tmp_path / "lock", found)
    [package] = tomllib.loads((tmp_path / "lock/pylock.toml").read_text())["packages"]
    [wheel] = package["wheels"]
    assert (wheel["name"], wheel["path"]) == (CUDA.filename, f"wheels/{PLAIN.filename}")
    again = read_pylock((tmp_path / "lock/pylock.toml").read_bytes(), "lock", tmp_path / "lock")
    assert [(it.name, it.version, it.filename, it.sha256.hex) for it in again.wheels] == [
        ("demo", "1.0", CUDA.filename, CUDA.sha256)
    ]
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--no-deps", "--no-index", "--require-hashes"]
    subprocess.run([*command, "--target", "site", "-r", "requirements.txt"], cwd=tmp_path / "lock", check=True)
    assert (tmp_path / "lock/site/demo-1.0.dist-info/variant.json").is_file()
    wrong = (tmp_path / "lock/pylock.toml").read_text().replace(f"wheels/{PLAIN.filename}", f"wheels/{CUDA.filename}")
    with pytest.raises(LockError, match="not in wheels/"):
        read_pylock(wrong.encode(), "lock", tmp_path / "lock")


def test_the_requirements_say_what_pip_needs_of_an_index_s_variant(tmp_path, index: FakeIndex):
    index.add(CUDA, PLAIN)
    found = locked(tmp_path, had(CUDA))
    write_lock(tmp_path / "lock", found)
    text = (tmp_path / "lock/requirements.txt").read_text()
    assert f"put {CUDA.filename} into wheels/ as {PLAIN.filename}" in text
    assert read_pylock(pylock_text(found.lock), "lock") == found.lock


def test_a_virtual_environment_has_the_variant(tmp_path, index: FakeIndex):
    index.add(CUDA, PLAIN)
    found = lock_run(("demo==1.0",), HERE, [had(CUDA)], options(tmp_path))
    python = make_venv(tmp_path / "env", found.lock, platform.python_version(), SILENT, cache=tmp_path / "cache")
    said = subprocess.run([python, "-c", "import demo; print(demo.IS)"], capture_output=True, text=True, check=True)
    assert said.stdout == "cu128\n"


def test_an_image_has_the_variant_and_its_context_installs_it(tmp_path, index: FakeIndex):
    index.add(TENSORFLOW, V3, PLAIN)
    site = Site(tmp_path, index.url)
    manifest = manifest_of(("tensorflow-cpu", "2.15.1"), ("demo", "1.0"))
    known = {"label": "v3", "properties": list(NEEDS["v3"])}
    manifest["distributions"][1] |= {"wheel_variant": known, "content_sha256": installed(V3).content_sha256}
    site.manifest.write_text(json.dumps(manifest))
    done = site.build("--out", "out")
    assert done.returncode == 0, done.stderr
    inside: set[str] = set()
    for layer in read_layout(tmp_path / "out", machine="x86_64").layers:
        with tarfile.open(tmp_path / "out/blobs/sha256" / layer.descriptor.digest.hex) as blob:
            inside |= {it.name.rpartition("/site-packages/")[2] for it in blob if it.isfile()}
    assert inside >= {"demo.py", "demo-1.0.dist-info/variant.json", "demo-1.0.dist-info/RECORD"}
    context = tmp_path / "out/context"
    assert [it.name for it in (context / "wheels").iterdir()] == [PLAIN.filename]
    assert "source=wheels,target=/opt/installer/wheels" in (context / "Dockerfile").read_text()
    assert [it for it in context_findings(context) if not it.agrees] == []
    (context / "wheels" / PLAIN.filename).unlink()
    [fault] = [it for it in context_findings(context) if not it.agrees]
    assert f"wheels/{PLAIN.filename} is not there" in fault.says
