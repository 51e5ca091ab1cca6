"""The command `envbuild lock`: what it writes, prints and refuses, and that it repeats itself to the byte."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.formats import read_pylock
from envbuild.oci.layout import write_layout
from tests.fakes.index import FakeIndex, closed_port, serving
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.running import run_envbuild
from tests.unit.locking import installed
from tests.unit.test_lock_build import project, sdist

TENSORFLOW = make_wheel(
    "tensorflow-cpu", "2.15.1", tags=["cp311-cp311-manylinux_2_17_x86_64"], requires=["tool<2"], purelib=False
)  # fmt: skip
TOOL = make_wheel("tool", "1.0", requires=["numbers"])
NEWER = make_wheel("tool", "1.1", requires=["numbers", "helper"])
NEEDED = [make_wheel("numbers", "1.0"), make_wheel("helper", "3.0"), make_wheel("serve", "1.0", requires=["tool"])]


def manifest_of(*wheels: FakeWheel, **changes) -> dict:
    facts = [installed(wheel) for wheel in wheels or (TENSORFLOW, TOOL)]
    return {
        "schema_version": "1.1",
        "created": "2026-11-21T12:00:00Z",
        "python": {"version": "3.11.7", "implementation": "cpython"},
        "platform": {"system": "Linux", "machine": "x86_64", "libc": "glibc", "libc_version": "2.36"},
        "distributions": [
            {"name": it.name, "version": it.version, "origin": {"kind": "index"}, "content_sha256": it.content_sha256}
            for it in facts
        ],
        "framework": {"name": "tensorflow", "distribution": "tensorflow-cpu", "version": "2.15.1"},
        "accelerator": {"kind": "none", "source": "driver"},
        "cpu": {},
        "variables": {},
    } | changes


class Site:
    """A folder with a manifest, and the command run in it."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder, self.index, self.out = folder, index, folder / "envbuild-lock"
        self.tell(manifest_of())

    def tell(self, manifest: dict) -> None:
        (self.folder / "manifest.json").write_text(json.dumps(manifest))

    def lock(
        self, *arguments: str | Path, before: Sequence[str] = (), record: str = "manifest.json", **env: Any
    ) -> subprocess.CompletedProcess[str]:
        variables = os.environ | {
            "UV_DEFAULT_INDEX": self.index,
            "UV_CACHE_DIR": str(self.folder / "uv"),
            "PIP_FIND_LINKS": "",
            "ENVBUILD_CACHE": str(self.folder / "cache"),
            "UV_HTTP_RETRIES": "1",
            **env,
        }
        if before:
            command = [*before, sys.executable, "-m", "envbuild", "lock", record, *map(str, arguments)]
            done = subprocess.run(
                command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False, timeout=120
            )
        else:
            done = run_envbuild("lock", record, *arguments, cwd=self.folder, env=variables)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def locked(self, *arguments: str | Path, **env: Any) -> dict[str, Any]:
        done = self.lock(*arguments, "--json", **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, *arguments: str | Path, code: int = 12, **env: Any) -> str:
        done = self.lock(*arguments, **env)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        return done.stderr

    def pins(self) -> list[str]:
        packages = tomllib.loads((self.out / "pylock.toml").read_text())["packages"]
        return [f"{it['name']}=={it['version']}" for it in packages]


@pytest.fixture
def index():
    with serving(TENSORFLOW, TOOL, NEWER, *NEEDED) as served:
        yield served


@pytest.fixture
def site(tmp_path, index: FakeIndex):
    return Site(tmp_path, index.url)


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_writes_two_files_prints_one_path_and_repeats_itself_to_the_byte(site):
    done = site.lock()
    assert (done.returncode, done.stdout) == (0, "envbuild-lock/pylock.toml\n"), done.stderr
    assert "locking 2 distributions with uv\n" in done.stderr
    assert "  2 of 2 wheels are the run's own files\n" in done.stderr
    assert "tool 1.0 requires numbers; numbers is not there, as in the run" in done.stderr
    first = written(site.out)
    assert first.keys() == {"pylock.toml", "requirements.txt"}
    site.lock()
    assert written(site.out) == first
    site.lock("--out", "elsewhere", ENVBUILD_CACHE=str(site.folder / "other"))
    assert written(site.folder / "elsewhere") == first


def test_json_says_everything(site):
    found = site.locked()
    assert {name: found[name] for name in ("pylock", "requirements", "wheels", "added", "built", "yanked", "changes")} == {
        "pylock": "envbuild-lock/pylock.toml", "requirements": "envbuild-lock/requirements.txt", "wheels": 2,
        "added": [], "built": {}, "yanked": {}, "changes": [],
    }  # fmt: skip
    assert found["identity"]["summary"] == "2 of 2 identical"
    assert found["identity"]["distributions"][1] == {
        "name": "tool",
        "version": "1.0",
        "outcome": "identical",
        "why": "",
    }
    assert found["target"] == {"python": "3.11.7", "machine": "x86_64", "glibc": "2.36"}
    assert found["size"] == len(TENSORFLOW.data) + len(TOOL.data)


@pytest.mark.parametrize(
    ("platform", "arguments", "glibc"),
    [
        ({"libc": "glibc", "libc_version": "2.12"}, (), "2.36"),
        ({"libc": "musl", "libc_version": "1.2"}, (), "2.36"),
        ({}, (), "2.36"),
        ({}, ("--set", "base=docker.io/some/base"), "2.17"),
        ({"libc": "glibc", "libc_version": "2.36"}, ("--glibc", "2.31"), "2.31"),
    ],
)
def test_the_target_has_the_default_base_s_glibc_or_the_lowest_that_serves(site, platform, arguments, glibc):
    site.tell(manifest_of(platform={"system": "Linux", "machine": "x86_64"} | platform))
    assert site.locked(*arguments)["target"]["glibc"] == glibc


def test_a_record_locks_for_the_lowest_glibc_that_serves_all_its_wheels(site, index: FakeIndex):
    newest = make_wheel("newest", "1.0", tags=["cp311-cp311-manylinux_2_39_x86_64"], purelib=False)
    newer = make_wheel("newer", "1.0", tags=["cp311-cp311-manylinux_2_38_x86_64"], purelib=False)
    index.add(newest, newer)
    site.tell(manifest_of(TENSORFLOW, newest, newer))
    done = site.lock("--json")
    assert json.loads(done.stdout)["target"]["glibc"] == "2.39", done.stderr
    assert "for glibc 2.39, the lowest that serves all wheels" in done.stderr
    assert "python:3.11.7-slim-bookworm has glibc 2.36: build on one with 2.39 or later (--base)" in done.stderr
    said = site.refused("--glibc", "2.36", "--out", "other")
    assert "2 distributions cannot be locked" in said
    assert "2.38" not in said
    assert "--glibc 2.39" in said


@pytest.mark.parametrize("base", ["debian:trixie", "python:3.10-slim", "docker://docker.io/library/python:3.9.2"])
def test_a_base_with_another_python_is_refused_before_it_is_fetched(site, index: FakeIndex, base):
    said = site.refused("--base", base, code=13, PATH="/nonexistent")
    assert "the run used 3.11.7" in said
    assert f"where: {base}" in said
    assert index.requests == []


@pytest.mark.parametrize("glibc", ["2.5", "3", "musl", "2.x"])
def test_a_glibc_that_cannot_be_meant_is_refused(site, glibc):
    assert "glibc" in site.refused("--glibc", glibc, code=2)


def test_a_base_gives_the_target(site):
    write_layout(image_of_trees(BASE), site.folder / "base", name="base")
    assert site.locked("--base", "base")["target"]["python"].startswith("3.11.")


def test_what_is_not_proven_fails_on_request_and_writes_nothing(site):
    manifest = manifest_of()
    manifest["distributions"][1] |= {"content_sha256": "0" * 64}
    site.tell(manifest)
    said = site.refused("--require-identical", code=16)
    assert "1 of 2 distributions are not proven to be the run's:\n  tool 1.0: different build" in said
    assert not site.out.exists()
    assert "1 of 2 wheels are the run's own files; tool was built from source" in site.lock().stderr


def test_a_wheel_that_was_replaced_is_not_identical(site):
    manifest = manifest_of(framework={"name": "tensorflow", "distribution": "tensorflow", "version": "2.15.1"})
    manifest["distributions"][0] |= {"name": "tensorflow"}
    site.tell(manifest)
    said = "1 of 2 identical, 1 replaced: tensorflow by tensorflow-cpu 2.15.1"
    assert site.locked()["identity"]["summary"] == said
    assert "tensorflow 2.15.1: replaced by tensorflow-cpu 2.15.1" in site.refused("--require-identical", code=16)


def test_what_is_dropped_is_recorded_with_what_still_requires_it(site):
    found = site.locked("--drop", "Tool")
    assert site.pins() == ["tensorflow-cpu==2.15.1"]
    assert found["left_out"] == {"tool": "--drop; still required by tensorflow-cpu 2.15.1"}
    assert found["identity"]["summary"] == "1 of 2 identical, 1 left out: tool"
    text = (site.out / "pylock.toml").read_bytes()
    assert b'\ndropped = ["tool"]\n' in text
    assert read_pylock(text, "pylock.toml").dropped == ("tool",)
    assert "tool 1.0: left out: --drop" in site.refused("--drop", "tool", "--require-identical", code=16)
    assert "the run does not have absent" in site.refused("--drop", "absent", code=2)


def test_what_the_run_did_not_import_is_left_out_and_what_the_others_require_is_of_the_run(site):
    manifest = manifest_of(TENSORFLOW, TOOL, *NEEDED, imported=["tensorflow-cpu"])
    absent = {"name": "notebook", "version": "7.0", "origin": {"kind": "index"}}
    odd = {"name": "odd", "origin": {"kind": "vcs", "url": "https://example.com/odd", "commit": "9fceb02d"}}
    site.tell(manifest | {"distributions": [*manifest["distributions"], absent, odd]})
    found = site.locked("--only-imported", "--drop", "serve=trains nothing")
    assert site.pins() == ["numbers==1.0", "tensorflow-cpu==2.15.1", "tool==1.0"]
    unused = dict.fromkeys(("helper", "notebook", "odd"), "--only-imported")
    assert found["left_out"] == {"serve": "trains nothing; nothing that stays requires it"} | unused
    said = "3 distributions left out, as the run did not import them: helper, notebook, odd; pylock.toml names all"
    assert said in found["notes"]
    text = (site.out / "pylock.toml").read_bytes()
    lock = read_pylock(text, "pylock.toml")
    assert lock.dropped == ("helper", "notebook", "odd", "serve")
    assert dict(lock.drop_reasons) == {"serve": "trains nothing"} | unused
    # A lock of serving, or of this machine, leaves out by name what the stamped one has left out.
    site.locked(*(option for it in lock.drops for option in ("--drop", it)))
    assert (site.out / "pylock.toml").read_bytes() == text


def test_a_framework_that_is_only_required_has_the_build_of_the_variant(site, index: FakeIndex):
    gpu, user = make_wheel("tensorflow", "2.15.1"), make_wheel("user", "1.0", requires=["tensorflow"])
    index.add(gpu, user)
    framework = {"name": "tensorflow", "distribution": "tensorflow", "version": "2.15.1"}
    site.tell(manifest_of(gpu, user, imported=["user"], framework=framework))
    site.locked("--only-imported", "--variant", "cpu")
    assert site.pins() == ["tensorflow-cpu==2.15.1", "user==1.0"]


def test_a_reason_that_a_lock_cannot_have_is_refused(site):
    assert "not printable" in site.refused("--drop", "tool=\udcff", code=2)
    assert "without a version" in site.refused("--drop", "tool= =1", code=2)


def test_an_incomplete_record_is_completed_around_what_the_run_imported(site):
    record = {"format": "requirements", "complete": False}
    site.tell(manifest_of(TENSORFLOW, TOOL, NEEDED[1], imported=["tensorflow-cpu"], source=record))
    found = site.locked("--only-imported")
    assert site.pins() == ["numbers==1.0", "tensorflow-cpu==2.15.1", "tool==1.0"], "not the newer tool"
    assert found["left_out"] == {"helper": "--only-imported"}


def test_many_that_were_not_imported_are_one_note_with_the_number_that_is_left_out(site, index: FakeIndex):
    unused = [make_wheel(f"unused{number}", "1.0") for number in range(10)]
    index.add(*unused)
    site.tell(manifest_of(TENSORFLOW, TOOL, *NEEDED, *unused, imported=["tensorflow-cpu"]))
    note = "12 of 15 distributions were not imported by the run, nor required by what was"
    assert [it for it in site.locked()["notes"] if "not imported" in it] == [f"{note}; --only-imported leaves them out"]
    kept = site.locked("--only-imported")
    assert len(kept["left_out"]) == 12
    assert not [it for it in kept["notes"] if "not imported" in it]


def test_a_record_s_imports_are_named_by_modules_or_distributions_and_by_what_these_require(site, index: FakeIndex):
    (site.folder / "requirements.txt").write_text("tensorflow-cpu==2.15.1\nserve==1.0\nmulti==1.0\n")
    index.add(make_wheel("multi", "1.0", {"multi_py/__init__.py": "", "spaces/one/a.py": ""}))
    variables = os.environ | {"UV_DEFAULT_INDEX": site.index, "ENVBUILD_CACHE": str(site.folder / "cache")}
    facts = ("--python", "3.11.7", "--ran-on", "linux/amd64")

    def named(names: str) -> subprocess.CompletedProcess[str]:
        options = (*facts, "--imported", names)
        return run_envbuild("convert", "requirements.txt", *options, cwd=site.folder, env=variables)

    def imported(names: str) -> list[str]:
        return json.loads(named(names).stdout)["imported"]

    assert imported("tensorflow_cpu,spaces.one") == ["multi", "tensorflow-cpu"]
    assert imported("multi_py") == ["multi"]
    assert imported("numbers") == ["serve", "tensorflow-cpu"], "what requires it"
    said = named("mult_py,tensorflow-cp,nothing")
    assert said.returncode == 2
    assert "nothing in the record brings mult_py, tensorflow-cp, nothing" in said.stderr
    assert "could be read" not in said.stderr
    assert "for mult_py give multi_py or multi; for tensorflow-cp give tensorflow-cpu" in said.stderr
    names, note = ("--imported", "tool", "--gpu", "none", "--json"), "--imported alone leaves nothing out"
    for only, left_out in (((), {}), (("--only-imported",), {"multi": "--only-imported"})):
        done = site.lock(*names, *only, *facts, record="requirements.txt")
        assert json.loads(done.stdout)["left_out"] == left_out
        assert (note in done.stderr) is not bool(only)
    site.tell(manifest_of(imported=["tool"]))
    assert "the record says what the run imported" in site.refused("--imported", "tool", code=2)
    site.tell(manifest_of())
    assert "a name is empty" in site.refused("--imported", "tool,", code=2)
    said = site.refused("--imported", "yaml", "--offline", "--find-links", ".", code=2)
    assert "nothing in the record brings yaml; of 2 of its 2 distributions no wheel could be read" in said
    assert "leave out --offline, or give their wheels' folders" in said


def test_a_version_that_the_record_does_not_say_is_named_with_everything_else_that_fails(site):
    manifest = manifest_of()
    clip = {"name": "clip", "origin": {"kind": "vcs", "url": "https://example.com/clip", "commit": "9fceb02d"}}
    absent = {"name": "absent", "version": "1.0", "origin": {"kind": "index"}}
    site.tell(manifest | {"distributions": [*manifest["distributions"], clip, absent]})
    said = site.refused()
    assert "clip: the record does not say which version it had; it came from https://example.com/clip" in said
    assert "absent==1.0: no index has a project of this name" in said
    assert "or what the run did not import by --only-imported and --imported" in said
    assert "clip: the record does not say" in site.refused("--drop", "absent")
    assert site.locked("--drop", "absent", "--drop", "clip")["wheels"] == 2


def test_the_plan_s_warnings_and_changes_are_shown(site, index: FakeIndex):
    old, gpu = make_wheel("numpy", "2.0.0"), make_wheel("nvidia-cudnn-cu12", "8.9.4.25")
    index.add(old)
    site.tell(manifest_of(TENSORFLOW, TOOL, old, gpu))
    said = site.lock().stderr
    assert "tensorflow-cpu==2.15.1 needs numpy" in said
    assert "nvidia-cudnn-cu12==8.9.4.25 -> dropped: " in said


def test_what_cannot_be_locked_can_be_dropped(site):
    manifest = manifest_of()
    conda = {"name": "mkl-service", "version": "2.4.0", "origin": {"kind": "conda", "build": "py311_1"}}
    site.tell(manifest | {"distributions": [*manifest["distributions"], conda]})
    assert "or leave one out by --drop NAME" in site.refused()
    assert site.locked("--drop", "mkl-service")["wheels"] == 2


def test_which_of_two_frameworks_a_run_used_is_asked(site):
    torch = {"name": "torch", "distribution": "torch", "version": "2.1.0"}
    manifest = manifest_of()
    pins = [*manifest["distributions"], {"name": "torch", "version": "2.1.0", "origin": {"kind": "index"}}]
    site.tell(manifest | {"distributions": pins, "frameworks": [manifest["framework"], torch]})
    said = site.refused(code=11)
    assert "the run had tensorflow, torch" in said
    assert "--framework tensorflow, --framework torch, or --framework none" in said
    assert "for commands without that option, write a manifest with `envbuild convert` first" in said
    assert "torch==2.1.0" in site.refused("--framework", "tensorflow"), "which the index does not have, and not +cpu"
    assert "torch==2.1.0+cpu" not in site.refused("--framework", "none")
    assert site.locked("--framework", "tensorflow", "--drop", "torch")["wheels"] == 2


def test_an_upgrade_is_made_and_told(site):
    found = site.locked("--upgrade-package", "tool")
    assert found["changes"] == [
        {"name": "helper", "before": None, "after": "3.0", "reason": "tool 1.1 requires helper"},
        {"name": "tool", "before": "1.0", "after": "1.1", "reason": "it was asked for"},
    ]
    assert site.pins() == ["helper==3.0", "tensorflow-cpu==2.15.1", "tool==1.1"]
    assert "the run does not have absent" in site.refused("--upgrade-package", "absent", code=2)


def test_the_framework_does_not_follow_an_upgrade(site, index: FakeIndex):
    index.add(make_wheel("tool", "2.0"))
    index.add(make_wheel("tensorflow-cpu", "2.16.0", tags=["cp311-cp311-manylinux_2_17_x86_64"], requires=["tool>=2"]))
    said = site.refused("--upgrade-package", "tool==2.0")
    assert "tensorflow-cpu==2.15.1" in said
    assert "tool<2" in said


def test_extras_are_added(site):
    assert site.locked("--extra", "serve")["added"] == ["serve==1.0"]
    assert "serve==1.0" in site.pins()
    assert "tool 1.0" in site.refused("--extra", "tool>=1.1")


def test_a_wheelhouse_serves_without_any_index(site, index: FakeIndex):
    site.locked("--download", "house")
    assert {path.name for path in (site.folder / "house").iterdir()} == {TENSORFLOW.filename, TOOL.filename}
    requirements = (site.out / "requirements.txt").read_text().splitlines()
    asked = len(index.requests)
    offline = {
        "UV_DEFAULT_INDEX": f"http://127.0.0.1:{closed_port()}/simple",
        "ENVBUILD_CACHE": str(site.folder / "empty"),
    }
    found = site.locked("--find-links", "house", "--offline", "--out", "again", **offline)
    assert found["identity"]["summary"] == "2 of 2 identical"
    again = (site.folder / "again/requirements.txt").read_text().splitlines()
    assert [line for line in again if line not in requirements] == ["--find-links wheels"]
    assert (site.folder / "again/wheels" / TOOL.filename).read_bytes() == TOOL.data
    assert len(index.requests) == asked


def test_what_only_has_sources_is_built_on_request(site, index: FakeIndex):
    index.add(sdist(project()))
    manifest = manifest_of()
    manifest["distributions"].append({"name": "my-thing", "version": "1.0", "origin": {"kind": "index"}})
    site.tell(manifest)
    assert "--build" in site.refused()
    assert site.locked("--build")["built"].keys() == {"my-thing"}
    assert (site.out / "wheels/my_thing-1.0-py3-none-any.whl").is_file()


def test_a_changed_index_is_refused_and_the_old_lock_stays(site, index: FakeIndex):
    site.locked()
    before = written(site.out)
    index.pages["tool"].clear()
    index.add(make_wheel("tool", "1.0", {"tool.py": "import evil\n"}))
    said = site.refused(UV_CACHE_DIR=str(site.folder / "fresh"))
    assert f"{TOOL.filename}: locked as sha256:{TOOL.sha256}" in said
    assert written(site.out) == before


def test_nothing_is_left_where_the_lock_fails(site):
    manifest = manifest_of()
    manifest["distributions"].append({"name": "absent", "version": "1", "origin": {"kind": "index"}})
    site.tell(manifest)
    before = {path.name for path in site.folder.iterdir()}
    assert "absent==1: no index has a project of this name" in site.refused()
    assert {path.name for path in site.folder.iterdir()} - before <= {"cache", "uv"}


@pytest.mark.parametrize(("path", "code"), [("manifest.json", 2), ("manifest.json/x", 2)])
def test_an_output_that_is_no_folder_is_refused(site, path, code):
    site.refused("--out", path, code=code)


@pytest.mark.parametrize("name", ["pylock.toml", "requirements.txt"])
def test_a_folder_with_the_name_of_a_written_file_is_refused_before_anything_is_asked(site, name, index: FakeIndex):
    (site.out / name).mkdir(parents=True)
    assert str(Path("envbuild-lock") / name) in site.refused(code=2)
    assert index.requests == []


@pytest.mark.parametrize("option", ["--out", "--download"])
@pytest.mark.parametrize("path", ["manifest.json", "manifest.json/x", "nowhere", "nowhere/x", "/proc/x"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_asked(site, option, path, index: FakeIndex):
    (site.folder / "nowhere").symlink_to("nothing")
    assert option in site.refused(option, path, code=2)
    assert index.requests == []


def test_a_pipe_with_the_name_of_a_written_file_is_not_waited_for(site, index: FakeIndex):
    site.out.mkdir()
    os.mkfifo(site.out / "pylock.toml")
    assert "pylock.toml" in site.refused(code=2)
    assert index.requests == []


def test_a_whole_wheelhouse_need_not_be_writable(site):
    site.locked("--download", "house")
    (site.folder / "house").chmod(0o500)
    unable = () if os.getuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    done = site.lock("--download", "house", "--out", "again", before=unable)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("glibc", ["2.99999999999", "2.\N{SUPERSCRIPT TWO}", "2", "3.1"])
def test_a_glibc_that_is_none_is_refused(site, glibc):
    assert glibc in site.refused("--glibc", glibc, code=2)


@pytest.mark.parametrize("option", ["--upgrade-package", "--extra"])
def test_what_is_no_requirement_is_refused_by_its_option(site, option, index: FakeIndex):
    assert f"where: {option} " in site.refused(option, "", code=2)
    assert index.requests == []


def test_a_cache_that_cannot_be_made_is_told(site):
    unset = dict.fromkeys(("ENVBUILD_CACHE", "UV_CACHE_DIR", "XDG_CACHE_HOME"), "")
    assert "set ENVBUILD_CACHE" in site.refused(code=13, HOME="/proc/nowhere", **unset)


def test_closed_standard_output_is_refused_before_anything_is_asked(site, index: FakeIndex):
    command = f"exec {sys.executable} -m envbuild lock manifest.json >&-"
    done = subprocess.run(["sh", "-c", command], cwd=site.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, index.requests) == (13, [])
    assert "standard output is closed" in done.stderr


def test_offline_without_a_folder_says_which_option_is_missing(site):
    done = site.lock("--offline")
    assert done.returncode == 12
    assert "--find-links DIR" in done.stderr


def test_an_extra_that_is_no_requirement_is_a_fault_of_the_command_line(site):
    done = site.lock("--extra", "!!bad")
    assert (done.returncode, "--extra !!bad" in done.stderr) == (2, True)


@pytest.mark.parametrize("resolver", ["uv", "pip-tools"])
def test_offline_the_advice_is_about_folders_and_not_about_indexes(site, resolver):
    (site.folder / "house").mkdir()
    (site.folder / "house" / TOOL.filename).write_bytes(TOOL.data)
    manifest = manifest_of()
    manifest["distributions"].append({"name": "absent", "version": "1", "origin": {"kind": "index"}})
    site.tell(manifest)
    asked = ("--find-links", "house", "--resolver", resolver)
    assert "extra-index-url" in site.refused(*asked)
    said = site.refused(*asked, "--offline")
    advice = [line for line in said.splitlines() if line.strip().startswith("do:")]
    assert [("--find-links" in line, "leave out --offline" in line) for line in advice[:2]] == [(True, True)] * 2
    assert not [line for line in advice if "index" in line]


def test_offline_an_upgrade_that_no_folder_has_is_told_so_too(site):
    site.locked("--download", "house")
    said = site.refused("--find-links", "house", "--offline", "--upgrade-package", "tool==2.0")
    assert "index settings" not in said
    assert "--offline" in said


@pytest.mark.parametrize(
    ("lines", "warned"),
    [("pip==23.0\ntensorflow-cpu==2.15.1\n", True), ("pip==23.0\ntensorflow-cpu==2.15.1\ntool==1.0\n", False)],
)
def test_a_list_that_looks_like_a_freeze_and_lacks_what_the_framework_requires_is_doubted(site, index, lines, warned):
    """On 6aa7f22 a note says `as in the run, tensorflow-cpu 2.15.1 requires tool<2`, and nothing what to do."""
    index.add(make_wheel("pip", "23.0"))
    (site.folder / "deps.txt").write_text(lines)
    done = site.lock("--python", "3.11.7", "--gpu", "none", record="deps.txt")
    assert done.returncode == 0, done.stderr
    says = "the record has tensorflow-cpu without tool, which it requires; if it does not list everything"
    assert (says in done.stderr, "--from requirements" in done.stderr) == (warned, warned)
