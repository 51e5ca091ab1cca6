"""`envbuild diff`: where images may lie, what is printed, and which exit code it ends with."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from envbuild.cli import commands
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Image
from envbuild.oci.layout import write_archive, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from tests.fakes.engine import serving_engine
from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import image_of_layers
from tests.fakes.wheels import make_wheel
from tests.running import run_envbuild
from tests.unit.comparing import file, folder, image, layer, link
from tests.unit.test_cli_bases import Done, Site
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

BELOW = [folder("etc"), file("etc/same")]
OLD = image(BELOW, [file("etc/a", b"1"), link("l", "etc")])
NEW = image(BELOW, [file("etc/a", b"2", mode=0o600), link("l", "etc")], config={"User": "x"})
LINES = ["different: 1 path in 0 packages, 2 settings"]
TOOL_2 = make_wheel("tool", "2.0", entry_points={"console_scripts": {"tool": "tool:main"}})


@pytest.fixture
def diff(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_layout(OLD, tmp_path / "old")
    write_layout(NEW, tmp_path / "new", name="mine")
    write_archive(OLD, tmp_path / "old.tar", [Reference.parse("old:1")])

    def run(*arguments: str | Path) -> Done:
        capsys.readouterr()
        code = commands.run(["diff", *map(str, arguments), "--platform", "linux/amd64"])
        return Done(code, *capsys.readouterr())

    return run


def saved(path: Path, image: Image, *, again: dict[int, int] | None = None, **changes) -> Path:
    """What `docker save` of engines before 25 writes; of equal layers the later is a link to the earlier."""
    config = f"{image.config_digest.hex}.json"
    names = [f"{layer.diff_id.hex[::-1]}{number}/layer.tar" for number, layer in enumerate(image.layers)]
    with tarfile.open(path, "w") as archive:
        for number, (name, it) in enumerate(zip(names, image.layers, strict=True)):
            info = tarfile.TarInfo(name)
            if again and number in again:
                info.type, info.linkname = tarfile.SYMTYPE, f"../{names[again[number]]}"
                archive.addfile(info)
            else:
                add(archive, name, it.open().read())
        add(archive, config, image.config)
        value = [{"Config": config, "RepoTags": None, "Layers": names}]
        add(archive, "manifest.json", json.dumps(changes.get("manifest", value)).encode())
    return path


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def plain(*layers) -> Image:
    return image_of_layers(*(layer(*members, media_type=LAYER_TAR) for members in layers))


EQUAL = "equal: all files and settings agree\n"


def test_equal_images_end_with_0_and_a_line(diff):
    done = diff("old", "old")
    assert (done.returncode, done.stdout) == (0, EQUAL)


def test_different_ones_end_with_16_and_say_where_and_what(diff):
    done = diff("old", "new")
    assert done.returncode == 16
    assert done.stdout.splitlines() == [
        "different: 1 path in 0 packages, 2 settings",
        'config   Env PATH: "/usr/local/bin:/usr/bin" -> not set',
        'config   User: not set -> "x"',
        "files    of no package: 1 changed",
    ]
    assert "the images differ" in done.stderr
    assert diff("old", "new", "--files").stdout.splitlines()[-1] == "  ~ /etc/a: content, mode 0644 -> 0600"


def test_as_json_it_names_both_sides(diff):
    done = diff("old", "new", "--json")
    value = json.loads(done.stdout)
    assert done.returncode == 16
    assert value["a"] == {"name": "old", "digest": str(OLD.digest)}
    assert value["b"] == {"name": "new", "digest": str(NEW.digest)}
    assert [it["path"] for it in value["packages"][0]["files"]] == ["/etc/a"]
    assert json.loads(diff("old", "old", "--json").stdout)["equal"] is True


def test_what_is_left_out_is_no_difference(diff, tmp_path):
    write_layout(image(BELOW, [file("etc/a", b"2"), link("l", "etc")]), tmp_path / "other")
    assert diff("old", "other").returncode == 16
    done = diff("old", "other", "--ignore", "etc/a", "--ignore", "tmp")
    assert (done.returncode, done.stdout) == (0, "equal: all files and settings agree (1 path left out)\n")


@pytest.mark.parametrize(
    "name",
    [
        "old",
        "oci:old",
        f"old@{OLD.digest}",
        f"oci:old@{OLD.digest}",
        "old.tar",
        "docker-archive:old.tar",
        "oci-archive:old.tar",
        f"old.tar@{OLD.digest}",
        "./old/../old",
    ],
)
def test_an_image_may_lie_in_a_folder_or_a_file(diff, name):
    done = diff(name, "old")
    assert (done.returncode, done.stdout) == (0, EQUAL), done.stderr
    assert json.loads(diff(name, "new", "--json").stdout)["a"]["digest"] == str(OLD.digest)


def test_of_several_images_in_a_layout_the_name_says_which(diff):
    assert diff("oci:new:mine", "new").returncode == 0
    assert diff("oci:new:other", "new").returncode == 13


@pytest.mark.parametrize("where", ["old", "old.tar"])
def test_a_digest_that_is_not_what_lies_there_is_told(diff, where):
    done = diff(f"{where}@sha256:{'0' * 64}", "old")
    assert done.returncode == 2
    assert str(OLD.digest) in done.stderr


def test_what_older_engines_save_is_read_also_where_a_layer_is_there_twice(diff, tmp_path):
    twice = plain([file("a", b"1")], [file("a", b"2")], [file("a", b"1")])
    write_layout(twice, tmp_path / "twice")
    saved(tmp_path / "twice.tar", twice, again={2: 0})
    assert diff("twice.tar", "twice").stdout == EQUAL
    write_layout(plain([file("a", b"1")], [file("b", b"2")]), tmp_path / "two")
    assert diff("twice.tar", "two", "--files").stdout.splitlines()[2:] == ["  + /b"]


def test_a_packed_layout_is_unpacked_for_as_long_as_it_is_read(diff, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "packed.tar", "w") as archive:
        for it in sorted((tmp_path / "new").rglob("*")):
            archive.add(it, f"./{it.relative_to(tmp_path / 'new')}")
        add(archive, "../../outside", b"x")
        add(archive, f"blobs/sha256/../../../{'a' * 64}", b"x")
    assert diff("packed.tar", "new").stdout == EQUAL
    assert diff("old", "oci-archive:packed.tar", "--files").stdout.splitlines()[-1].startswith("  ~ /etc/a")
    left = [it.name for it in (tmp_path / "cache").rglob("*") if it.is_file() or it.name.startswith(".new-")]
    assert left == []
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"manifest": []}, "it has 0 images"),
        ({"manifest": [{}, {}]}, "it has 2 images"),
        ({"manifest": [{"Config": "none", "Layers": []}]}, "it has no none"),
        ({"manifest": [{"Config": "../../../etc/passwd", "Layers": []}]}, "it has no ../../../etc/passwd"),
        ({"manifest": {"a": 1}}, "not an archive"),
    ],
)
def test_an_archive_that_is_none_is_told(diff, tmp_path, change, says):
    saved(tmp_path / "bad.tar", plain([file("a")]), **change)
    done = diff("bad.tar", "old")
    assert done.returncode == 13
    assert says in done.stderr
    assert "docker save" in done.stderr


def test_a_file_that_is_no_tar_is_told(diff, tmp_path):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "packed.tar.gz").write_bytes(b"\x1f\x8b" + bytes(1000))
    for name in ("text", "packed.tar.gz"):
        done = diff(name, "old")
        assert done.returncode == 13
        assert "do not compress" in done.stderr


def test_a_layer_that_was_changed_in_an_archive_is_told(diff, tmp_path):
    data = saved(tmp_path / "one.tar", plain([file("a", b"canary")])).read_bytes()
    (tmp_path / "one.tar").write_bytes(data.replace(b"canary", b"Canary"))
    done = diff("one.tar", "old")
    assert done.returncode == 13
    assert "diff id" in done.stderr


def test_layers_are_equal_whatever_compresses_them(diff, tmp_path):
    for name, media_type in (("one", LAYER_ZSTD), ("other", LAYER_GZIP)):
        write_layout(image_of_layers(layer(file("a"), media_type=media_type)), tmp_path / name)
    assert diff("one", "other").returncode == 0
    assert diff("one", "old").returncode == 16


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["Not A Reference", "old"], "where: IMAGE Not A Reference"),
        (["old", "new", "--as-installed", "--mtimes"], "--as-installed, --mtimes"),
        (["old", "new", "--ignore", "/"], "leaves out everything"),
        (["old"], "Missing argument"),
        (["old", "x" * 5000], "where: IMAGE xxx"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(diff, arguments, says):
    done = diff(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_names_in_layers_do_not_drive_the_terminal(diff, tmp_path):
    write_layout(image([file("a\x1b[31m\nb")]), tmp_path / "evil")
    write_layout(image([]), tmp_path / "nothing")
    lines = diff("nothing", "evil", "--files").stdout.splitlines()
    assert lines[-1] == r"  + /a\x1b[31m\nb"


def test_an_engine_that_is_not_there_ends_with_17_and_leaves_nothing(tmp_path):
    write_layout(OLD, tmp_path / "old")
    environment = os.environ | {
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
        "ENVBUILD_CACHE": str(tmp_path / "cache"),
    }
    done = run_envbuild("diff", "docker-daemon:x:1", tmp_path / "old", env=environment)
    assert (done.returncode, done.stdout) == (17, ""), done.stderr
    assert [it for it in (tmp_path / "cache").rglob("*") if it.name.startswith(".new-")] == []


@pytest.mark.parametrize("name", ["docker-daemon:", "docker-daemon: "])
def test_the_engines_image_needs_a_name(diff, name):
    done = diff(name, "old")
    assert (done.returncode, done.stdout) == (2, "")
    assert "docker-daemon:" in done.stderr


def test_an_image_that_the_engine_lacks_is_told(diff, monkeypatch):
    with serving_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        done = diff("docker-daemon:none", "old")
    assert (done.returncode, done.stdout) == (13, "")
    assert "the engine has no such image" in done.stderr
    assert "docker images" in done.stderr


@pytest.mark.parametrize("name", ["library", f"library@sha256:{'0' * 64}", "./library", "pipe"])
def test_what_lies_here_and_is_no_image_is_not_looked_for_in_a_registry(diff, tmp_path, name):
    (tmp_path / "library").mkdir()
    os.mkfifo(tmp_path / "pipe")
    done = diff(name, "old")
    assert (done.returncode, done.stdout) == (13, "")
    assert "is not an image" in done.stderr
    assert f"docker://{name}" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "https://u:s3cret@h.example.com/x",
        "u:s3cret@h.example.com/x:1",
        f"u:s3cret@h.example.com/x@sha256:{'0' * 64}",
        "docker://u:s3/cret@h.example.com/x",
        "docker-daemon:u:s3cret@h.example.com/x",
    ],
)
def test_a_password_in_a_reference_is_refused_and_not_shown(diff, name):
    for arguments in ((name, "old"), ("old", name)):
        done = diff(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "docker login" in done.stderr
        assert "s3" not in done.stderr


def test_of_paths_an_at_is_a_letter(diff, tmp_path):
    write_layout(OLD, tmp_path / "u@old")
    for name in ("u@old", "oci:u@old", f"u@old@{OLD.digest}"):
        assert diff(name, "old").returncode == 0


def test_of_equal_images_in_registries_no_layer_is_fetched_and_of_others_only_what_differs(diff, tmp_path):
    with FakeRegistry() as registry:
        names = [f"{registry.host}/team/{it}" for it in ("old:1", "copy:1", "new:1")]
        for name, it in zip(names, (OLD, OLD, NEW), strict=True):
            push(it, Reference.parse(name))
        before = len(registry.seen("GET", "/blobs/"))
        assert diff(names[0], f"docker://{names[1]}").returncode == 0
        assert len(registry.seen("GET", "/blobs/")) == before + 2, "two configs"
        assert diff(names[0], names[2], "--files").stdout.splitlines()[-1].startswith("  ~ /etc/a")
        fetched = [it.path.rpartition("/")[2] for it in registry.seen("GET", "/blobs/")[before + 2 :]]
        wanted = {
            *(str(it.config_digest) for it in (OLD, NEW)),
            *(str(it.layers[1].descriptor.digest) for it in (OLD, NEW)),
        }
        assert set(fetched) == wanted
        assert diff(names[0], f"{registry.host}/team/none:1").returncode == 14


def test_a_layer_that_the_registry_has_wrong_is_told(diff):
    with FakeRegistry() as registry:
        name = f"{registry.host}/team/new:1"
        push(NEW, Reference.parse(name))
        known = NEW.layers[1].descriptor
        registry.fail("GET", str(known.digest), kind="body", body=b"x" * known.size, times=9)
        done = diff("old", name)
    assert done.returncode == 14, done.stderr
    assert done.stdout == ""


def test_an_upgrade_of_an_assembled_image_is_told_by_package(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with serving(TENSORFLOW, TOOL, TOOL_2) as index, FakeRegistry() as registry:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        site = Site(tmp_path, registry, capsys)
        first = site.built(f"{registry.host}/up/base:1", "first")["image"]
        again = site.built(f"{registry.host}/up/base:1", "again")["image"]
        newer = manifest_of(("tensorflow-cpu", "2.15.1"), ("tool", "2.0"))
        (tmp_path / "manifest.json").write_text(json.dumps(newer))
        second = site.built(f"{registry.host}/up/base:1", "second")["image"]
        assert site("diff", first, again).stdout == EQUAL
        done = site("diff", first, second)
        assert done.returncode == 16, done.stderr
        told = [line for line in done.stdout.splitlines()[1:] if not line.startswith("config")]
        assert [line.partition(":")[0] for line in told] == ["envbuild check", "python   tool 1.0 -> 2.0"]
