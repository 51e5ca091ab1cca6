"""What capture says of installed packages: where they came from, what was changed in them, and who owns what."""

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.capture import capture
from envbuild.capture.conda import conda_facts, conda_files
from envbuild.capture.distributions import find_distributions
from envbuild.capture.files import present
from envbuild.capture.integrity import installation_facts
from envbuild.manifest.reader import read_manifest
from tests.unit.capturing import Environment

SECRET = "hunter2SuperSecretValue99"
HOUR = 3600


@cache
def whole_manifest() -> dict:
    return capture()


class Packages(Environment):
    """An environment that this process is asked about, as if it ran in it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefix, self.folder, self.patches = root / "prefix", root / "work", monkeypatch
        self.site = self.prefix / "lib" / "python3.11" / "site-packages"
        self.site.mkdir(parents=True)
        self.folder.mkdir()
        self.variables = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def capture(self, *arguments: str, path: tuple[Path, ...] = ()) -> dict:
        library = [entry for entry in sys.path if Path(entry).name in ("lib-dynload", f"python3.{sys.version_info[1]}")]
        with self.patches.context() as patches:
            patches.setattr(sys, "path", [*map(str, path), str(self.site), *library])
            patches.setattr(sys, "prefix", str(self.prefix))
            patches.setattr(sys, "base_prefix", str(self.prefix))
            for name, value in self.variables.items():
                patches.setenv(name, value)
            found = find_distributions("--patch" in arguments)
            parts = {"installation": installation_facts(found, "--deep" in arguments), "conda": conda_facts()}
        manifest = present(whole_manifest() | {"distributions": list(found.values())} | parts)
        read_manifest(json.dumps(manifest).encode(), "captured")
        return manifest


@pytest.fixture
def env(tmp_path, monkeypatch):
    return Packages(tmp_path, monkeypatch)


@pytest.fixture
def real(tmp_path):
    return Environment(tmp_path)


def digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def install(env: Environment, name: str, files: dict[str, str], version: str = "1.0", **others: str) -> Path:
    """Lay files down, then metadata with a RECORD that lists them, as an installer does."""
    for path, text in files.items():
        (env.site / path).parent.mkdir(parents=True, exist_ok=True)
        (env.site / path).write_text(text)
    record = io.StringIO()
    csv.writer(record, lineterminator="\n").writerows(
        [path, digest(text.encode()), len(text.encode())] for path, text in files.items()
    )
    return env.install(name, version, RECORD=record.getvalue(), **others)


def installed(env: Environment, name: str, *arguments: str) -> dict:
    found = {item["name"]: item for item in env.capture(*arguments)["distributions"]}
    return {key: found[name][key] for key in ("modified", "missing", "changed_files") if key in found[name]}


def later(path: Path, seconds: float = 60) -> None:
    """As if the file had changed that much later than it did."""
    moment = path.stat().st_mtime + seconds
    os.utime(path, (moment, moment))


def age(env: Environment, seconds: float = 7 * 24 * HOUR) -> None:
    """As if everything had been installed long ago."""
    for path in env.site.rglob("*"):
        later(path, -seconds)


# What was changed after it was installed


def test_what_is_as_it_was_installed_is_not_mentioned(real):
    install(real, "x", {"x/__init__.py": "1\n", "x/data,of 'a' kind.txt": "", '../../../bin/"x"': "#!python\n"})
    manifest = real.capture()
    assert (installed(real, "x"), manifest["installation"]) == (
        {},
        {"method": "size and time", "files": 3, "unchecked": 0, "pth": [], "unowned": []},
    )


def test_edited_and_removed_files_are_named(env):
    install(env, "x", {f"x/{name}.py": "1\n" for name in ("a", "b", "c", "d")})
    install(env, "y", {"y.py": "1\n"})
    (env.site / "x" / "b.py").write_text("12\n")
    (env.site / "x" / "d.py").write_text("2\n")
    later(env.site / "x" / "d.py")
    (env.site / "x" / "c.py").unlink()
    assert installed(env, "x") == {"modified": ["x/b.py", "x/d.py"], "missing": ["x/c.py"], "changed_files": 3}
    assert installed(env, "y") == {}


def test_a_folder_or_pipe_in_place_of_a_file_is_a_change(env):
    folder = install(env, "x", {"x/b.py": "", "y/c.py": "1\n"})
    with (folder / "RECORD").open("a") as record:
        record.write(f"x/a.py,{digest(b'')},\n")
    (env.site / "x" / "b.py").unlink()
    (env.site / "x" / "a.py").mkdir()
    os.mkfifo(env.site / "x" / "b.py")
    shutil.rmtree(env.site / "y")
    (env.site / "y").write_text("")
    assert installed(env, "x") == {"modified": ["x/a.py", "x/b.py"], "missing": ["y/c.py"], "changed_files": 3}


def test_bytecode_and_files_without_a_digest_never_count(env):
    folder = install(env, "x", {"x/__init__.py": "1\n", "x/old.pyc": "1"})
    with (folder / "RECORD").open("a") as record:
        record.write("x/__pycache__/__init__.cpython-311.pyc,,\nx/gone.txt,,\nx-1.0.dist-info/RECORD,,\n")
    (env.site / "x" / "old.pyc").write_text("22")
    assert installed(env, "x") == {}


def test_only_the_deep_way_sees_an_edit_that_kept_size_and_time(env):
    install(env, "x", {"x.py": "1\n", "y.py": "1\n"})
    before = (env.site / "x.py").stat()
    (env.site / "x.py").write_text("2\n")
    os.utime(env.site / "x.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert installed(env, "x") == {}
    assert installed(env, "x", "--deep") == {"modified": ["x.py"], "changed_files": 1}
    assert env.capture("--deep")["installation"]["method"] == "sha256"


@pytest.mark.parametrize("options", [(), ("--deep",)], ids=["quick", "deep"])
@pytest.mark.parametrize("text", ["two\n", "later\n"], ids=["same size", "another size"])
def test_a_file_that_another_distribution_overwrote_is_that_one_s_and_not_modified(env, text, options):
    install(env, "one", {"cv2/so": "one\n", "cv2/same": "", "cv2/edited": "1\n", "one.py": "1\n", "gone.py": ""})
    install(env, "two", {"cv2/so": text, "cv2/same": "", "cv2/edited": "2\n", "two.py": "1\n"})
    age(env)
    (env.site / "cv2/edited").write_text("3\n")
    found = {it["name"]: it for it in env.capture(*options)["distributions"]}
    assert found["one"]["overwritten"] == {"cv2/so": "two"}
    assert (found["one"]["modified"], found["two"]["modified"]) == (["cv2/edited"], ["cv2/edited"])
    assert found["one"]["changed_files"] == 1
    assert "overwritten" not in found["two"]


def test_of_three_distributions_with_one_path_two_may_have_the_file(env):
    for name, text in (("one", "1\n"), ("two", "2\n"), ("three", "2\n")):
        install(env, name, {"shared.py": text})
    found = {it["name"]: it.get("overwritten") for it in env.capture()["distributions"]}
    assert (found["one"], found["two"], found["three"]) in (
        ({"shared.py": "two"}, None, None),
        ({"shared.py": "three"}, None, None),
    )
    assert [installed(env, name) for name in ("one", "two", "three")] == [{}, {}, {}]


@pytest.mark.parametrize("options", [(), ("--deep",)], ids=["quick", "deep"])
def test_the_owner_counts_for_all_that_list_the_path_and_equal_files_have_none(env, options):
    """Of two with equal files, the second was called modified where a third one overwrote both."""
    for name, text in (("aaa", ""), ("bbb", ""), ("ccc", "third\n")):
        install(env, name, {"tests/__init__.py": text, "data/same": "same\n", f"{name}.py": "1\n"})
    age(env)
    found = {it["name"]: it for it in env.capture(*options)["distributions"]}
    assert [found[it].get("overwritten") for it in ("aaa", "bbb", "ccc")] == [{"tests/__init__.py": "ccc"}] * 2 + [None]
    assert not any("modified" in it for it in found.values())


@pytest.mark.parametrize("count", [2, 5, 200])
def test_what_was_edited_in_the_cache_of_an_installer_is_seen(env, count):
    # uv links what it unpacked before: an edit in another environment is older than the RECORD of this one
    folder = install(env, "x", {f"x/{number}.py": "1\n" for number in range(count)}, **{"uv.json": ""})
    with (folder / "RECORD").open("a") as record:
        record.write(f"x-1.0.dist-info/INSTALLER,{digest(b'pip')},4\nx-1.0.dist-info/uv.json,{digest(b'')},0\n")
    age(env)
    (env.site / "x" / "1.py").write_text("2\n")
    later(env.site / "x" / "1.py", -24 * HOUR)
    for path in folder.iterdir():
        later(path, 6.5 * 24 * HOUR)
    assert installed(env, "x") == {"modified": ["x-1.0.dist-info/INSTALLER", "x/1.py"], "changed_files": 2}


def test_an_older_file_that_took_the_place_of_another_is_seen(env):
    install(env, "x", {f"x/{number}.py": "1\n" for number in range(5)})
    (env.site / "x" / "1.py").write_text("2\n")
    later(env.site / "x" / "1.py", -24 * HOUR)
    assert installed(env, "x") == {"modified": ["x/1.py"], "changed_files": 1}


def test_equal_times_of_an_image_are_no_edits_and_edits_on_top_are_seen(env):
    install(env, "x", {f"x/{number}.py": "1\n" for number in range(200)})
    for path in env.site.rglob("*"):
        os.utime(path, (315532800, 315532800))
    (env.site / "x" / "7.py").write_text("2\n")
    assert installed(env, "x") == {"modified": ["x/7.py"], "changed_files": 1}


def test_an_environment_copied_without_its_times_is_not_all_edited(env):
    install(env, "x", {f"x/{number}.py": f"{number}\n" for number in range(200)})
    age(env)
    for path in (env.site / "x").iterdir():
        path.touch()
    (env.site / "x" / "7.py").write_text("8\n")
    assert installed(env, "x") == {"modified": ["x/7.py"], "changed_files": 1}


def test_too_little_time_leaves_files_unchecked_and_says_so(env):
    folder = install(env, "x", {f"x/{number}.py": "1\n" for number in range(9)})
    facts = {str(folder): {"name": "x", "version": "1.0"}}
    assert installation_facts(facts, deep=False, seconds=-1)["unchecked"] == 9
    assert facts == {str(folder): {"name": "x", "version": "1.0"}}
    assert installation_facts(facts, deep=True, seconds=-1)["unchecked"] == 0


def test_files_that_cannot_be_read_are_unchecked(env):
    name = "x" * 300
    env.install("x", RECORD=f"{name},sha256=x,1\nloop,sha256=x,1\n")
    (env.site / "loop").symlink_to("loop")
    assert (installed(env, "x"), env.capture()["installation"]["unchecked"]) == ({}, 2)


def test_fifty_names_are_enough(env):
    install(env, "x", {f"x/{number:03}.py": "1\n" for number in range(120)})
    for number in range(60):
        (env.site / "x" / f"{number:03}.py").unlink()
        (env.site / "x" / f"{number + 60:03}.py").write_text("22\n")
    found = installed(env, "x")
    assert (len(found["modified"]), len(found["missing"]), found["changed_files"]) == (50, 50, 120)
    assert (found["missing"][0], found["modified"][-1]) == ("x/000.py", "x/109.py")


def test_names_from_a_record_are_one_line_without_secrets(env):
    install(env, "x", {"x/line\nend.py": "", f"x/ghp_{SECRET}": ""})
    shutil.rmtree(env.site / "x")
    found = installed(env, "x")["missing"]
    assert found == ["x/[redacted]", "x/line\\nend.py"]


EMPTY = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


@pytest.mark.parametrize(
    ("record", "files"),
    [
        (f"x.py,sha256={EMPTY},0,more\n", 1),
        (f"x.py,sha256={hashlib.sha256().hexdigest()},0\n", 1),
        (f"x.py,sha512={base64.urlsafe_b64encode(hashlib.sha512().digest()).decode()},0\n", 1),
        (f"x.py,sha256={EMPTY},\n", 1),
        (f"x.py,sha256={EMPTY}\n", 1),
        (f"x.py,sha256={EMPTY},{'9' * 5000}\nx.py,sha256={EMPTY},0\n", 2),
        (f"x.py,sha256={EMPTY},²\r\nx.py,sha256={EMPTY},0\r\n", 2),
        ("x.py,md5=1B2M2Y8AsgTpgAmY7PhCfg,0\n", 0),
        ("x.py\n", 0),
        ('\n\nx.py,"unclosed', 0),
        (f'x.py,sha256={EMPTY},0\n"{"x" * 200_000}', 1),
        ("\0,sha256=x,1\nx.py,,\n", 1),
        ("\ufffd" * 10, 0),
        ("", 0),
    ],
)
@pytest.mark.parametrize("way", [[], ["--deep"]])
def test_every_sort_of_record_is_read_as_far_as_it_can_be(env, record, files, way):
    (env.site / "x.py").write_text("")
    env.install("x", RECORD=record)
    assert installed(env, "x", *way) == {}
    assert env.capture(*way)["installation"]["files"] == files


@pytest.mark.parametrize("link", ["lib", "site"])
def test_scripts_are_found_where_folders_are_links(env, link):
    install(env, "x", {"../../../bin/x": "1\n"})
    linked = {"lib": env.prefix / "lib", "site": env.folder / "link"}[link]
    if link == "lib":
        (env.folder / "a" / "b").mkdir(parents=True)
        linked.rename(env.folder / "a" / "b" / "lib")
        linked.symlink_to(env.folder / "a" / "b" / "lib")
    else:
        linked.symlink_to(env.site)
        env.site = linked
    assert installed(env, "x") == {}
    (env.prefix / "bin" / "x").write_text("22\n")
    assert installed(env, "x")["changed_files"] == 1


def test_absolute_paths_of_a_record_are_followed(env, tmp_path):
    (tmp_path / "there.txt").write_text("1")
    env.install("x", RECORD=f"{tmp_path}/there.txt,{digest(b'1')},1\n{tmp_path}/gone.txt,{digest(b'1')},1\n")
    assert installed(env, "x") == {"missing": [f"{tmp_path}/gone.txt"], "changed_files": 1}


@pytest.mark.parametrize("installer", ["", "debian\n", "rpm\n"])
def test_the_record_of_an_operating_system_s_package_is_that_of_its_build(env, installer):
    folder = install(env, "x", {"x.py": "1\n"}, INSTALLER=installer)
    (env.site / "x.py").unlink()
    assert installed(env, "x") == {}
    (folder / "INSTALLER").write_text("pip\n")
    assert installed(env, "x") == {"missing": ["x.py"], "changed_files": 1}


# What lies in the site folders


def test_pth_files_are_described_with_their_owner(env):
    code = "import os; os.environ.setdefault('A', 'b')\n"
    install(env, "Hack", {"hack.pth": code})
    (env.site / "plain.pth").write_text("# import nothing\nimported/code\n")
    (env.site / "bom.pth").write_bytes(b"\xef\xbb\xbfimport\tos\n")
    found = env.capture()["installation"]["pth"]
    assert [(item["name"], item["code"], item.get("owner")) for item in found] == [
        ("bom.pth", True, None), ("hack.pth", True, "Hack"), ("plain.pth", False, None),
    ]  # fmt: skip
    assert found[1]["sha256"] == hashlib.sha256(code.encode()).hexdigest()


def test_modules_that_nobody_lists_are_named(env):
    install(env, "x", {"six.py": "", "x/__init__.py": "", "space/x/y.py": "", "_c.cpython-311-x86_64-linux-gnu.so": ""})
    (env.site / "installed.egg-info").mkdir()
    (env.site / "installed.egg-info" / "PKG-INFO").write_text("Name: installed\nVersion: 1.0\n")
    (env.site / "installed.egg-info" / "installed-files.txt").write_text("../old.py\n../older/__init__.py\nPKG-INFO\n")
    ours = ["old.py", "older/__init__.py", "_virtualenv.py", "README.txt", "data/x.csv", ".hidden/a.py", "no-module.py"]
    strange = ["sitecustomize.py", "helpers/a.py", "deep/er/b.py", "c.abi3.so", "six/__init__.py", "compiled.pyc"]
    for name in (*ours, *strange, "__pycache__/a.py", "~umpy/a.py", "gone/__pycache__/a.pyc", "x.libs/a.so"):
        (env.site / name).parent.mkdir(parents=True, exist_ok=True)
        (env.site / name).write_text("")
    expected = ["c.abi3.so", "compiled.pyc", "deep", "helpers", "sitecustomize.py", "six"]
    assert env.capture()["installation"]["unowned"] == expected


@pytest.mark.parametrize("silent", ["plain file", "operating system"])
def test_where_a_distribution_lists_nothing_nobody_is_a_stranger(env, silent):
    if silent == "plain file":
        (env.site / "old-1.0.egg-info").write_text("Name: old\nVersion: 1.0\n")
    else:
        install(env, "x", {"x.py": ""}, INSTALLER="")
    (env.site / "stranger.py").write_text("")
    assert env.capture()["installation"]["unowned"] == []


def test_only_folders_that_packages_are_installed_into_have_strangers(env):
    (env.folder / "mine.py").write_text("")
    assert env.capture(path=(env.folder,))["installation"]["unowned"] == []


def test_metadata_that_names_no_distribution_is_told(env):
    install(env, "good", {"good.py": ""})
    heads = {
        "no_version-1.dist-info": "Name: no-version\nVersion: not one\n",
        "no_name-1.dist-info": "Name: ?\nVersion: 1.0\n",
        "pytz-2004d.dist-info": "Metadata-Version: 2.1\n",
    }
    for folder, text in heads.items():
        (env.site / folder).mkdir()
        (env.site / folder / "METADATA").write_text(text)
    (env.site / "empty-1.0.dist-info").mkdir()
    (env.site / "loop-1.0.dist-info").symlink_to("loop-1.0.dist-info")
    (env.site / "file-1.0.dist-info").write_bytes(b"\xff\xfe\x00")
    manifest = env.capture()
    assert [item["name"] for item in manifest["distributions"]] == ["good"]
    expected = sorted([*heads, "empty-1.0.dist-info", "loop-1.0.dist-info", "file-1.0.dist-info"])
    assert manifest["installation"]["unreadable"] == expected


def test_versions_that_no_index_can_have_are_told_on_stderr(real):
    real.install("good")
    real.install("pytz", "2004d")
    real.install("mylib", "1.0-SNAPSHOT-x")
    names = "mylib-1.0-SNAPSHOT-x.dist-info, pytz-2004d.dist-info"
    done = real.run()
    what = "these metadata folders have no valid name or version, so they count as no distribution"
    assert done.stderr == f"warning: {what}: {names}\n"
    assert ", ".join(json.loads(done.stdout)["installation"]["unreadable"]) == names


# Which distributions there are


def test_metadata_in_any_encoding_is_read(env):
    for number, head in enumerate(
        [b"\xef\xbb\xbfName: a0\nVersion: 1.0\n", b"Author: Ren\xe9\r\nName: a1\r\nVersion: 1.0\r\n\r\nName: b\r\n"]
    ):
        folder = env.site / f"b{number}-2.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_bytes(head)
    long = "Name: a2\nVersion: 1.0\nLicense: first\n        Name: b\nName: c\n\n" + "x" * (1 << 20)
    (env.install("a2") / "METADATA").write_text(long)
    assert [item["name"] for item in env.capture()["distributions"]] == ["a0", "a1", "a2"]


def test_later_versions_on_the_path_are_shadowed(env):
    for place, version in (("early", "2.0"), ("late", "2.0")):
        (env.folder / place / "x-2.0.dist-info").mkdir(parents=True)
        (env.folder / place / "x-2.0.dist-info" / "METADATA").write_text(f"Name: X\nVersion: {version}\n")
    env.install("x", "1.0")
    early, late = env.folder / "early", env.folder / "late"
    (item,) = env.capture(path=(early, late, early))["distributions"]
    assert (item["version"], item["shadowed"]) == ("2.0", ["2.0", "1.0"])


def test_what_pip_was_about_to_remove_is_no_distribution(env):
    (env.install("ame") / "METADATA").write_text("Name: name\nVersion: 1.0\n")
    (env.site / "ame-1.0.dist-info").rename(env.site / "~ame-1.0.dist-info")
    (env.site / ".hidden-1.0.dist-info").mkdir()
    manifest = env.capture()
    assert (manifest["distributions"], "unreadable" in manifest["installation"]) == ([], False)


def test_an_interrupted_upgrade_leaves_two_of_a_name(env):
    old = install(env, "x", {"x/__init__.py": "1\n", "x/only_old.pth": ""}, "1.0")
    age(env)
    install(env, "x", {"x/__init__.py": "2\n"}, "2.0")
    (item,) = env.capture()["distributions"]
    assert (item["version"], item["shadowed"]) == ("2.0", ["1.0"])
    later(old, 30 * 24 * HOUR)
    (item,) = env.capture()["distributions"]
    assert (item["version"], item["shadowed"]) == ("1.0", ["2.0"])


def test_a_link_to_a_folder_of_the_path_is_the_same_folder(env):
    env.install("x")
    (env.folder / "link").symlink_to(env.site)
    (item,) = env.capture(path=(env.folder / "link",))["distributions"]
    assert "shadowed" not in item


def test_the_egg_info_of_an_editable_s_sources_is_no_second_version(env):
    source = env.folder / "source"
    (source / "x.egg-info").mkdir(parents=True)
    (source / "x.egg-info" / "PKG-INFO").write_text("Name: x\nVersion: 1.0\n")
    url = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    install(env, "x", {"x.pth": f"{source}\n"}, direct_url=url)
    for path in ((source,), ()):
        (item,) = env.capture(path=path)["distributions"]
        assert (item["origin"]["kind"], "shadowed" in item) == ("editable", False)
    (env.site / "x.egg-info").write_text("Name: x\nVersion: 0.9\n")
    (item,) = env.capture()["distributions"]
    assert (item["version"], item["shadowed"]) == ("1.0", ["0.9"])


def test_a_folder_of_an_egg_is_a_distribution(env):
    egg = env.site / "x-1.0-py3.11.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO" / "PKG-INFO").write_text("Name: x\nVersion: 1.0\n")
    (egg / "x.py").write_text("")
    manifest = env.capture(path=(egg,))
    assert [item["name"] for item in manifest["distributions"]] == ["x"]
    assert manifest["installation"]["unowned"] == []


def test_two_thousand_distributions_are_recorded(env):
    for number in range(2000):
        env.install(f"x{number:04}", RECORD=f"x{number:04}-1.0.dist-info/METADATA,,\n")
    manifest = env.capture()
    assert [item["name"] for item in manifest["distributions"]] == [f"x{number:04}" for number in range(2000)]


def in_process(env: Environment, code: str) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": str(env.bin)}
    command = [str(env.prefix / "bin" / "python"), "-c", code]
    return subprocess.run(command, cwd=env.folder, env=variables, capture_output=True, text=True, check=True)


def test_a_working_directory_that_is_gone_is_passed_over(real):
    real.install("x")
    code = 'import os; gone = "gone"; os.mkdir(gone); os.chdir(gone); os.rmdir("../gone"); '
    done = in_process(real, code + "from envbuild.capture import capture; print(len(capture()['distributions']))")
    assert done.stdout == "1\n"


def test_an_interpreter_that_ends_can_still_be_asked(real):
    install(real, "x", {f"x/{number}.py": "1\n" for number in range(100)})
    (real.site / "x" / "7.py").write_text("2\n")
    code = "import atexit; from envbuild.capture import capture\n"
    code += "@atexit.register\ndef last(): print(capture(deep=True)['distributions'][0]['modified'])"
    done = in_process(real, code)
    assert (done.stdout, "Traceback" in done.stderr) == ("['x/7.py']\n", False)


# Where each came from


def editable(env: Environment, folder: Path, *, in_place: bool = True) -> dict:
    url = json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True} if in_place else {}})
    env.install("x", direct_url=url)
    return env.origins()["x"]


def project(env: Environment) -> Path:
    folder = env.folder / "a repo" / "python"
    folder.mkdir(parents=True)
    (folder / "x.py").write_text("1\n")
    env.git("init", "-q", "a repo")
    env.git("-C", "a repo", "add", ".")
    env.git("-C", "a repo", "commit", "-qm", "x")
    env.git("-C", "a repo", "remote", "add", "origin", f"https://u:{SECRET}@git.example.com/x.git")
    return folder


def test_an_editable_install_is_its_checkout(env):
    folder = project(env)
    commit = env.git("-C", "a repo", "rev-parse", "HEAD").strip()
    origin = {
        "kind": "editable", "url": folder.as_uri(), "commit": commit, "dirty": False, "untracked": 0,
        "subdirectory": "python", "remote": "https://git.example.com/x.git",
    }  # fmt: skip
    assert editable(env, folder) == origin
    (folder / "x.py").write_text("2\n")
    (folder / "y.py").write_text("")
    changed = env.origins()["x"]
    diff = env.git("-C", str(folder), "diff", "HEAD", "--binary", "--full-index", "--", ".")
    expected = {"dirty": True, "untracked": 1, "diff_sha256": hashlib.sha256(diff.encode()).hexdigest()}
    assert changed == {**origin, **expected}
    (item,) = env.capture("--patch")["distributions"]
    assert item["origin"] == {**changed, "patch": diff}


def test_a_copied_folder_s_commit_is_unknown(env):
    folder = project(env)
    assert editable(env, folder, in_place=False) == {"kind": "editable", "url": folder.as_uri()}


@pytest.mark.parametrize("url", ["https://example.com%s", "file://host%s", "file:///nowhere%s", "%s"])
def test_an_editable_of_a_folder_that_is_not_here_is_only_its_address(env, url):
    url = url % project(env).as_uri()[len("file://") :]
    env.install("x", direct_url=json.dumps({"url": url, "dir_info": {"editable": True}}))
    assert env.origins()["x"] == {"kind": "editable", "url": url}


def test_a_develop_link_leads_to_the_project(env):
    folder = project(env)
    (folder / "src" / "dev.egg-info").mkdir(parents=True)
    (folder / "src" / "dev.egg-info" / "PKG-INFO").write_text("Name: dev\nVersion: 3.0\n")
    (env.site / "dev.egg-link").write_text(f"{folder}/src\n../")
    (env.site / "broken.egg-link").write_text("\0\n..")
    (item,) = env.capture(path=(folder / "src",))["distributions"]
    origin = item["origin"]
    assert (origin["kind"], origin["url"], origin["subdirectory"]) == ("editable", folder.as_uri(), "python")


@pytest.mark.parametrize(
    "direct",
    [
        "[]", "null", "{}", '{"url": 5}', '{"url": "x", "vcs_info": {}}', '{"url": "x", "vcs_info": {"commit_id": 5}}',
        '{"url": "x", "archive_info": []}', '{"url": "x", "vcs_info": "git"}', "[" * 100000,
        '{"url": "x"}', '{"url": "x", "dir_info": []}',
    ],
)  # fmt: skip
def test_a_direct_url_of_another_shape_tells_nothing(env, direct):
    env.install("x", direct_url=direct)
    assert env.origins()["x"]["kind"] == "unknown"


def test_what_is_no_digest_or_text_is_left_out(env):
    archive = {"url": "https://example.com/x", "subdirectory": 5, "archive_info": {"hashes": {"sha256": "short"}}}
    env.install("x", direct_url=json.dumps(archive))
    vcs = {"vcs": "git", "commit_id": "abc\n", "requested_revision": ["x"]}
    env.install("y", direct_url=json.dumps({"url": "https://example.com/y\n", "vcs_info": vcs}))
    assert env.origins() == {
        "x": {"kind": "archive", "url": "https://example.com/x"},
        "y": {"kind": "vcs", "url": "https://example.com/y\\n", "commit": "abc\\n"},
    }


# conda


def conda_package(env: Environment, name: str, files: dict[str, str], **fields) -> Path:
    """Lay down a package and what conda writes of it."""
    paths = []
    for path, text in files.items():
        (env.prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (env.prefix / path).write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        row = {"_path": path, "path_type": "hardlink", "sha256": digest, "sha256_in_prefix": digest}
        paths.append({**row, "size_in_bytes": len(text)})
    written = {
        "build": "py311_0",
        "channel": f"https://conda.example.com/t/{SECRET}/team/sub/linux-64",
        "depends": ["python >=3.11,<3.12.0a0"],
        "files": list(files),
        "fn": f"{name}-1.0-py311_0.conda",
        "link": {"source": f"/opt/pkgs/{name}-1.0-py311_0", "type": 1},
        "name": name,
        "paths_data": {"paths": paths, "paths_version": 1},
        "sha256": "a" * 64,
        "subdir": "linux-64",
        "url": f"https://conda.example.com/t/{SECRET}/team/sub/linux-64/{name}-1.0-py311_0.conda",
        "version": "1.0",
        **fields,
    }
    record = env.prefix / "conda-meta" / f"{name}-1.0-py311_0.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(written, indent=2))
    return record


def rewrite(record: Path, path: str, **changes) -> None:
    content = json.loads(record.read_text())
    (row,) = (row for row in content["paths_data"]["paths"] if row["_path"] == path)
    row.update(changes)
    record.write_text(json.dumps(content, indent=2))


def python_files(env: Environment, name: str) -> dict[str, str]:
    site = env.site.relative_to(env.prefix)
    record = f"{name}/__init__.py,{digest(b'as it was built')},15\nbin/gone,{digest(b'')},0\n"
    return {
        f"{site}/{name}/__init__.py": "1\n",
        f"{site}/{name}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n",
        f"{site}/{name}-1.0.dist-info/RECORD": record,
        f"{site}/{name}-1.0.dist-info/INSTALLER": "conda\n",
        f"bin/{name}": "#!/opt/placeholder/bin/python\n",
    }


def test_every_package_of_conda_is_recorded(env):
    conda_package(env, "x", python_files(env, "x"))
    conda_package(env, "cudatoolkit", {"lib/libcudart.so": ""}, version="11.8.0", channel="conda-forge", build="h1_0")
    conda_package(env, "bare", {}, channel=f"t/{SECRET}/own", url=None)
    conda_package(env, "local", {}, channel="<unknown>", url="file:///srv/local.conda", sha256=None)
    (env.prefix / "conda-meta" / "history").write_text(
        f"==> 2026-11-02 09:30:00 <==\n# cmd: /opt/conda/bin/conda create -n train -c https://conda.example.com/t/{SECRET}/team"
        " --channel=conda-forge python=3.11 x\n# conda version: 24.1\n+conda-forge::x-1.0-py311_0\n"
        "# update specs: ['x']\n==> 2026-11-03 09:30:00 <==\n# cmd: conda install -c conda-forge --channel other"
        f" --channel=t/{SECRET}/zz -c t/{SECRET} y\n"
    )
    for name, text in {
        "broken.json": "{",
        "empty.json": "",
        "other.json": "[1]",
        "nameless.json": '{"name": 5}',
    }.items():
        (env.prefix / "conda-meta" / name).write_text(text)
    url = "https://conda.example.com/team/sub/linux-64/"
    common = {"subdir": "linux-64", "sha256": "a" * 64}
    manifest = env.capture()
    assert manifest["conda"] == {
        "packages": [
            {**common, "name": "bare", "version": "1.0", "build": "py311_0", "channel": "own"},
            {**common, "name": "cudatoolkit", "version": "11.8.0", "build": "h1_0", "channel": "conda-forge",
             "url": url + "cudatoolkit-1.0-py311_0.conda"},
            {"name": "local", "version": "1.0", "build": "py311_0", "subdir": "linux-64", "channel": "<unknown>",
             "url": "file:///srv/local.conda"},
            {**common, "name": "x", "version": "1.0", "build": "py311_0", "channel": "team/sub",
             "url": url + "x-1.0-py311_0.conda"},
        ],
        "channels": ["https://conda.example.com/team", "conda-forge", "other", "zz"],
    }  # fmt: skip
    (item,) = manifest["distributions"]
    assert item["origin"] == {
        "kind": "conda", "channel": "team/sub", "build": "py311_0", "sha256": "a" * 64,
        "url": url + "x-1.0-py311_0.conda",
    }  # fmt: skip
    assert SECRET not in json.dumps(manifest)


def test_modules_that_conda_brought_without_metadata_are_distributions_of_their_projects(env):
    """They were in no lock, and nothing said so: the image could not import what the run imported."""
    site = env.site.relative_to(env.prefix)
    fields = {"version": "4.6.0", "url": None, "channel": "conda-forge"}
    conda_package(env, "py-opencv", {f"{site}/cv2/__init__.py": "1\n", f"{site}/cv2/cv2.so": "2\n"}, **fields)
    conda_package(env, "pyqt", {f"{site}/PyQt5/QtCore.so": "1\n"}, **fields)
    conda_package(env, "backports", {f"{site}/backports/__init__.py": ""}, **fields)
    conda_package(env, "onlydata", {f"{site}/onlydata/words.txt": "", f"{site}/onlydata.pth": ""}, **fields)
    conda_package(env, "elsewhere", {"lib/python2.7/site-packages/elsewhere.py": ""}, **fields)
    env.install("PyQt5", "5.15.10", INSTALLER="pip\n")
    (env.site / "cv2/cv2.so").write_text("edited\n")
    found = {it["name"]: it for it in env.capture()["distributions"]}
    assert {name: it["version"] for name, it in found.items()} == {"opencv-python": "4.6.0", "PyQt5": "5.15.10"}
    origin = {"kind": "conda", "channel": "conda-forge", "build": "py311_0", "sha256": "a" * 64}
    assert found["opencv-python"]["origin"] == origin
    assert found["opencv-python"]["modified"] == ["cv2/cv2.so"]


def test_an_environment_of_conda_has_the_name_of_its_folder(env):
    env.prefix = env.folder / "envs" / "train"
    (env.prefix / "conda-meta").mkdir(parents=True)
    assert env.capture()["conda"] == {"packages": [], "name": "train", "channels": []}


def test_the_installation_of_conda_itself_is_base(env):
    (env.prefix / "conda-meta").mkdir()
    (env.prefix / "condabin").mkdir()
    assert env.capture()["conda"]["name"] == "base"


def test_files_of_conda_are_held_against_what_conda_wrote(env):
    record = conda_package(env, "x", python_files(env, "x"))
    assert installed(env, "x") == {}
    (env.site / "x" / "__init__.py").write_text("2\n")
    later(env.site / "x" / "__init__.py")
    (env.prefix / "bin" / "x").unlink()
    assert installed(env, "x") == {"modified": ["x/__init__.py"], "missing": ["../../../bin/x"], "changed_files": 2}
    for kind in ("unix_python_entry_point", "softlink"):
        rewrite(record, "bin/x", path_type=kind)
        assert installed(env, "x") == {"modified": ["x/__init__.py"], "changed_files": 1}


def test_what_conda_changed_itself_is_right_and_not_what_others_did_then(env):
    record = conda_package(env, "x", python_files(env, "x"))
    script = env.prefix / "bin" / "x"
    script.write_text("#!/env/bin/python\n")
    changed = hashlib.sha256(script.read_bytes()).hexdigest()
    rewrite(record, "bin/x", prefix_placeholder="/opt/placeholder", file_mode="text", sha256_in_prefix=changed)
    assert installed(env, "x", "--deep") == {}
    script.write_text("#!/usr/bin/python\n")
    assert installed(env, "x", "--deep") == {"modified": ["../../../bin/x"], "changed_files": 1}


def test_times_of_building_do_not_make_conda_s_files_suspicious(env):
    others = {f"{env.site.relative_to(env.prefix)}/x/{number}.py": "" for number in range(3)}
    record = conda_package(env, "x", python_files(env, "x") | others)
    (env.site / "x" / "__init__.py").write_text("2\n")
    later(env.site / "x" / "__init__.py", -365 * 24 * HOUR)
    later(env.site / "x-1.0.dist-info" / "RECORD", -400 * 24 * HOUR)
    assert record.stat().st_mtime > (env.site / "x" / "__init__.py").stat().st_mtime
    assert installed(env, "x") == {}
    assert installed(env, "x", "--deep")["modified"] == ["x/__init__.py"]


def test_modules_that_conda_brought_without_metadata_are_no_strangers(env):
    site = env.site.relative_to(env.prefix)
    conda_package(env, "x", {f"{site}/bare.py": "", f"{site}/whole/__init__.py": "", f"{site}/x.pth": ""})
    (env.site / "stranger.py").write_text("")
    installation = env.capture()["installation"]
    assert (installation["unowned"], [item["name"] for item in installation["pth"]]) == (["stranger.py"], ["x.pth"])


def test_brackets_and_braces_in_names_do_not_hide_a_package(env):
    site = env.site.relative_to(env.prefix)
    record = conda_package(env, "x", {**python_files(env, "x"), f"{site}/x/[slug]{{a}}.js": "", "lib/é": ""})
    assert [item["name"] for item in env.capture()["conda"]["packages"]] == ["x"]
    assert {"lib/é", "bin/x"} <= {file["path"] for file in conda_files(str(record))}


def test_a_virtual_environment_knows_the_conda_that_it_was_made_from(env, tmp_path):
    base = tmp_path / "base"
    (base / "conda-meta").mkdir(parents=True)
    (base / "conda-meta" / "x-1.0-0.json").write_text('{"name": "x", "version": "1.0"}')
    code = f"import sys; sys.base_prefix = {str(base)!r}; "
    code += "from envbuild.capture.conda import conda_facts; print(conda_facts()['packages'][0]['name'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout == "x\n"


# Whatever lies there


def texts(*parts: str):
    """Texts made of parts that mean something, with anything between them."""
    return (
        st.lists(st.sampled_from(parts) | st.text(max_size=6), max_size=12).map("".join).map(str.encode) | st.binary()
    )


FILES = {
    "lib/python3.11/site-packages/x-1.0.dist-info/METADATA": texts("Name", "Version", ": ", "x", "1.0", "\n", "\r\n", "é"),
    "lib/python3.11/site-packages/x-1.0.dist-info/RECORD": texts("x.py", ",", "sha256=", "md5=", '"', "\n", "../", "\0", "9"),
    "lib/python3.11/site-packages/x-1.0.dist-info/INSTALLER": texts("pip", "conda", "debian", "\n"),
    "lib/python3.11/site-packages/x-1.0.dist-info/direct_url.json": texts(
        "{", "}", '"url": ', '"file:///nowhere"', '"https://u:p@h/x"', ", ", '"dir_info": ', '"editable": true', '"vcs_info": ',
        '"commit_id": ', '"archive_info": ', '"hashes": ', '"subdirectory": ', "null", "[", "]", '"x"',
    ),
    "lib/python3.11/site-packages/y.egg-info": texts("Name: y\n", "Version: 2\n"),
    "lib/python3.11/site-packages/y.egg-link": texts("/nowhere", "\n", "..", "\0"),
    "lib/python3.11/site-packages/z.pth": texts("import ", "os", "\n", "/nowhere"),
    "lib/python3.11/site-packages/w.egg": texts("PK"),
    "conda-meta/x-1.0-0.json": texts(
        "{", "}", '"name": ', '"version": ', '"x"', '"1.0"', ", ", '"paths": ', '"files": ', "[", "]", '"_path": ', '"url": ',
        '"lib/python3.11/site-packages/x-1.0.dist-info"', '"sha256_in_prefix": ', '"size_in_bytes": ', "null", "7", "true",
    ),
    "conda-meta/history": texts("# cmd: conda", " -c ", "--channel=", "x", "\n", "https://h/t/abc/"),
}  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries({}, optional=FILES))
def test_whatever_lies_in_an_environment_gives_a_manifest(tmp_path, monkeypatch, files):
    env = Packages(Path(tempfile.mkdtemp(dir=tmp_path)), monkeypatch)
    for path, content in files.items():
        (env.prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (env.prefix / path).write_bytes(content)
    env.capture("--deep", path=(env.site / "w.egg",))


# Interpreter and operating system


def test_the_interpreter_says_what_built_it_and_where_it_runs(real):
    manifest = real.capture()
    python = manifest["python"]
    assert (python["environment"], python["compiler"] in sys.version) == ("venv", True)
    assert manifest["platform"]["kernel"] == os.uname().release


@pytest.mark.parametrize("conda", [False, True])
def test_outside_a_virtual_environment_it_is_conda_s_or_the_system_s(tmp_path, conda):
    prefix = tmp_path / "python"
    (prefix / ("conda-meta" if conda else "etc")).mkdir(parents=True)
    code = f"import sys; sys.prefix = sys.base_prefix = {str(prefix)!r}; "
    code += "from envbuild.capture.host import python_facts; print(python_facts()['environment'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout == ("conda\n" if conda else "system\n")
