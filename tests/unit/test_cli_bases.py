"""`base show`, `base mirror` and `rebase`, on small bases in a registry on loopback."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from envbuild.cli import commands
from envbuild.oci.image import DOCKER_MANIFEST, MANIFEST, Image
from envbuild.oci.layout import write_layout
from tests.fakes.images import docker_manifest_of
from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, GLIBC, PYTHON, image_of_trees
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

RELEASE = {"usr/lib/os-release": b'PRETTY_NAME="Debian 12"\n'}
OLD = image_of_trees(BASE, RELEASE)
PATCHED = image_of_trees(BASE, RELEASE, {"etc/patched": b"yes"}, env=["PATH=/usr/bin", "FIXED=1"])
NEWER = image_of_trees({**BASE, "usr/bin/python3.11": PYTHON.replace(b"3.11.2", b"3.11.9")}, RELEASE)
BAD = image_of_trees({**BASE, "usr/lib/x86_64-linux-gnu/libc.so.6": GLIBC.replace(b"2.36", b"2.31")})


class Done(NamedTuple):
    """What a command ended with."""

    returncode: int
    stdout: str
    stderr: str


class Site:
    """A registry with bases under `up/base`, an index, and the command run beside them."""

    def __init__(self, folder: Path, registry: FakeRegistry, output: pytest.CaptureFixture[str]) -> None:
        self.folder, self.registry, self.output = folder, registry, output
        (folder / "manifest.json").write_text(json.dumps(manifest_of()))
        for tag, image in (("1", OLD), ("2", PATCHED), ("3", NEWER), ("bad", BAD)):
            self.store(image, tag)

    def store(self, image: Image, tag: str, data: bytes = b"", media_type: str = MANIFEST) -> str:
        for layer in image.layers:
            with layer.open() as file:
                self.registry.put("up/base", file.read())
        self.registry.put("up/base", image.config)
        return self.registry.put_manifest("up/base", tag, data or image.manifest, media_type)

    def __call__(self, *arguments: str | Path) -> Done:
        self.output.readouterr()
        code = commands.run([*map(str, arguments)])
        out, err = self.output.readouterr()
        return Done(code, out, err)

    def says(self, *arguments: str | Path) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def built(self, base: str, name: str = "env") -> dict[str, Any]:
        """An environment on a base, pushed; its lock lies under `name`."""
        out = self.folder / name
        return self.says(
            "from-manifest", "manifest.json", "--base", base, "--push", f"{self.host}/{name}", "--out", out
        )

    @property
    def host(self) -> str:
        return self.registry.host

    def manifest(self, reference: str) -> dict[str, Any]:
        name, _, digest = reference.removeprefix(f"{self.host}/").partition("@")
        return json.loads(self.registry.repositories[name].manifests[digest][1])


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    with serving(TENSORFLOW, TOOL) as index, FakeRegistry() as registry:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield Site(tmp_path, registry, capsys)


def test_show_says_what_an_environment_would_stand_on(site):
    shown = site.says("base", "show", f"{site.host}/up/base:1", "--platform", "linux/amd64")
    assert shown == {
        "name": f"{site.host}/up/base:1",
        "digest": str(OLD.digest),
        "platform": "linux/amd64",
        "python": "3.11.2",
        "python_path": "/usr/bin/python3.11",
        "glibc": "2.36",
        "distribution": "Debian 12",
        "layers": 2,
        "size": sum(layer.descriptor.size for layer in OLD.layers),
    }
    text = site("base", "show", f"{site.host}/up/base:1").stdout
    assert text.splitlines()[0] == f"{site.host}/up/base@{OLD.digest}"
    for fact in ("3.11.2", "2.36", "Debian 12", "2 layers"):
        assert fact in text


def test_the_second_time_no_layer_is_read(site):
    site.says("base", "show", f"{site.host}/up/base:1")
    before = len(site.registry.seen("GET", "/blobs/"))
    site.says("base", "show", f"{site.host}/up/base:1")
    assert len(site.registry.seen("GET", "/blobs/")) == before + 1, "the config"


def test_a_mirror_has_the_sources_digest_and_is_a_base(site):
    digest = site.store(OLD, "docker", docker_manifest_of(OLD), DOCKER_MANIFEST)
    printed = site("base", "mirror", f"{site.host}/up/base:docker", f"{site.host}/mine").stdout
    assert printed == f"{site.host}/mine@{digest}\n"
    assert site.registry.tags["mine:docker"] == digest
    shown = site.says("base", "show", printed.strip())
    assert (shown["digest"], shown["mirror_of"]) == (digest, f"{site.host}/up/base:docker")
    result = site.built(printed.strip())
    said = site.manifest(result["image"])["annotations"]
    assert said["org.opencontainers.image.base.digest"] == digest
    assert said["org.opencontainers.image.base.name"] == f"{site.host}/mine"


def test_a_layout_is_mirrored_too(site):
    write_layout(OLD, site.folder / "layout", name="x")
    result = site.says("base", "mirror", site.folder / "layout", f"{site.host}/mine:1", "--platform", "linux/amd64")
    assert (result["image"], site.registry.tags["mine:1"]) == (f"{site.host}/mine@{OLD.digest}", str(OLD.digest))


def test_an_image_for_another_machine_is_not_mirrored_as_this_one(site):
    done = site("base", "mirror", f"{site.host}/up/base:1", f"{site.host}/mine:1", "--platform", "linux/arm64")
    assert done.returncode == 14, done.stderr
    assert "linux/arm64" in done.stderr
    assert "mine:1" not in site.registry.tags


@pytest.mark.parametrize(("tag", "same"), [("2", True), ("3", False)])
def test_rebasing_gives_what_building_on_the_new_base_gives(site, tag, same):
    old = site.built(f"{site.host}/up/base:1")
    sent = len(site.registry.seen("PUT", "/blobs/"))
    lock = site.folder / "env/context/pylock.toml"
    result = site.says("rebase", old["image"], "--base", f"{site.host}/up/base:{tag}", "--lock", lock)
    assert len(site.registry.seen("PUT", "/blobs/")) == sent + (1 if same else 2), "the config, and pyvenv.cfg's layer"
    built = site.built(f"{site.host}/up/base:{tag}", "anew")
    assert (result["digest"], result["environment"]) == (built["digest"], built["environment"])
    assert f"env:env-{result['environment'][7:19]}" in site.registry.tags


def test_rebasing_without_a_lock_keeps_the_layers_and_moves_no_tag(site):
    old = site.built(f"{site.host}/up/base:1")
    tags = site.registry.tags
    done = site("rebase", old["image"], "--base", f"{site.host}/up/base:2")
    assert done.returncode == 0, done.stderr
    assert site.registry.tags == tags
    before, after = site.manifest(old["image"]), site.manifest(done.stdout.strip())
    assert after["layers"][3:] == before["layers"][2:]
    assert "dev.envbuild.environment" not in after["annotations"]


def test_a_push_elsewhere_mounts(site):
    old = site.built(f"{site.host}/up/base:1")
    read = len(site.registry.seen("GET", "/blobs/"))
    result = site.says("rebase", old["image"], "--base", f"{site.host}/up/base:1", "--push", f"{site.host}/other:new")
    assert result["digest"] == old["digest"], "the same base changes nothing"
    assert site.registry.tags["other:new"] == old["digest"]
    assert len(site.registry.seen("GET", "/blobs/")) == read + 3, "three configs"
    assert site.registry.seen("POST", "mount=.*from=env")


@pytest.mark.parametrize(
    ("base", "code", "why"),
    [("bad", 13, "glibc 2.31 is older than 2.36"), ("none", 14, "does not exist"), ("X!", 2, "not a base")],
)
def test_a_new_base_that_will_not_do_ends_in_its_code(site, base, code, why):
    old = site.built(f"{site.host}/up/base:1")
    done = site("rebase", old["image"], "--base", f"{site.host}/up/base:{base}")
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr
    assert "  do: " in done.stderr


def test_an_image_whose_base_lies_nowhere_needs_it_named(site):
    write_layout(OLD, site.folder / "layout", name="x")
    old = site.built(str(site.folder / "layout"))
    new = ("--base", f"{site.host}/up/base:2")
    done = site("rebase", old["image"], *new)
    assert done.returncode == 2
    assert "--old-base" in done.stderr
    assert site("rebase", old["image"], *new, "--old-base", f"{site.host}/up/base:2").returncode == 13
    assert site.says("rebase", old["image"], *new, "--old-base", site.folder / "layout")["kept"] >= 2


def test_what_is_no_image_of_envbuild_is_refused(site):
    base = f"{site.host}/up/base:1"
    done = site("rebase", base, "--base", f"{site.host}/up/base:2", "--old-base", base)
    assert done.returncode == 13
    assert "annotations is missing" in done.stderr


def test_the_lock_of_another_environment_is_refused(site):
    old = site.built(f"{site.host}/up/base:1")
    lock = site.folder / "env/context/pylock.toml"
    lock.write_text(lock.read_text().replace("3.11.2", "3.11.3"))
    done = site("rebase", old["image"], "--base", f"{site.host}/up/base:2", "--lock", lock)
    assert (done.returncode, done.stdout) == (16, "")
    missing = site("rebase", old["image"], "--base", f"{site.host}/up/base:2", "--lock", site.folder / "none")
    assert missing.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("base", "mirror", "python:3.11", "mine"), "where: TARGET_REPO mine"),
        (("base", "mirror", "python:3.11", "user:secret@host.example.com/mine"), "docker login"),
        (("base", "mirror", "python:3.11", "h.example.com/m@sha256:" + "0" * 64), "cannot choose its digest"),
        (
            ("base", "mirror", "python:3.11", "h.example.com/m", "--platform", "windows/amd64"),
            "where: --platform windows/amd64",
        ),
        (("base", "mirror", "NO base", "h.example.com/m"), "where: --base NO base"),
        (("base", "show", "NO base"), "where: --base NO base"),
        (("base", "show", "/tmp"), "the folder has no file oci-layout"),
        (("base", "show", "/etc/hostname"), "it is a file, not an OCI layout"),
        (("rebase", "/tmp", "--base", "x"), "only an image in a registry can be rebased"),
        (("rebase", "NO image", "--base", "x"), "where: IMAGE NO image"),
        (("rebase", "image"), "--base"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments, why, site):
    done = site(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert "secret" not in done.stderr
