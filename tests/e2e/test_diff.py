"""`envbuild diff` beside a real engine: what its containers see is what we read, from wherever the image is had."""

import io
import json
import subprocess
from pathlib import Path

import pytest

from envbuild.base.debian import debian_base
from envbuild.cli.console import Progress
from envbuild.diff.comparison import Rules, compare
from envbuild.diff.images import open_image
from envbuild.diff.layers import read_pair
from envbuild.engine.load import load_into
from envbuild.oci.image import Image
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.report import SILENT
from tests.fakes.trees import image_of_layers

pytestmark = pytest.mark.real

ENGINES = {"dev", "proc", "sys", ".dockerenv", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab"}
"""What an engine puts into a container."""
LIST = r"find / -xdev -printf '%P\t%y\t%m\t%U:%G\t%l\n'; find / -xdev -type f -print0 | xargs -0 sha256sum"
KINDS = {"f": "file", "d": "directory", "l": "link", "p": "pipe", "c": "device", "b": "device"}
FIRST = """
FROM {base}
RUN mkdir -p /d/keep /d/sub/deep && echo 1 > /d/sub/deep/x && echo 2 > /d/keep/y && echo 3 > /d/file
RUN ln /d/file /d/hard && ln -s keep /d/link && mkfifo /d/pipe && chmod 1777 /d/keep && chown 7:8 /d/keep/y
RUN rm /d/sub/deep/x && rm -r /d/sub && mkdir /d/sub && echo 4 > /d/sub/new
RUN rm /d/file && mkdir /d/file && echo 5 > /d/file/inside && chmod 4755 /usr/bin/env
RUN rm -r /usr/share/doc && mkdir /usr/share/doc && touch "/d/ünïcode name" /d/$(printf 'long%.0s' $(seq 60))
ENV A=1
"""
SECOND = (
    FIRST
    + """
RUN rm /d/link && ln -s sub /d/link && chmod 0755 /d/keep && chown 0:8 /d/keep/y && echo 6 > /d/sub/new && rm /d/hard
RUN apt-get purge -y --allow-remove-essential --purge python3-venv >/dev/null 2>&1 || dpkg --purge --force-all python3-venv
ENV A=2
USER 7
"""
)


@pytest.fixture(scope="module")
def base(engine, cache) -> str:
    """Debian, in the engine."""
    image = debian_base("bookworm", "x86_64", cache / "envbuild", SILENT)
    with Progress() as progress:
        load_into(engine.client, image, [Reference.parse("example.com/diff/base:1")], progress)
    return "example.com/diff/base:1"


@pytest.fixture(scope="module")
def images(engine, base) -> tuple[str, str]:
    """Two images that the engine's classic builder made, one on the other's layers."""
    names = ("example.com/diff/first:1", "example.com/diff/second:1")
    for name, text in zip(names, (FIRST, SECOND), strict=True):
        engine.client.images.build(fileobj=io.BytesIO(text.format(base=base).encode()), tag=name, rm=True)
    return names


@pytest.fixture
def image(engine, monkeypatch, tmp_path):
    """Open an image by what the command is given."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    return lambda text: open_image(text, machine="x86_64", cache=tmp_path / "cache", report=Progress())


def seen(engine, name: str) -> dict[str, tuple]:
    """What a container of an image sees, in find's and sha256sum's words."""
    lines = engine.run(name, ["sh", "-c", LIST], user="0", network_mode="none").splitlines()
    found = {it[0]: it[1:] for it in (line.split("\t") for line in lines) if len(it) == 5}
    digests = dict(reversed(line.removeprefix("\\").split("  /", 1)) for line in lines if "\t" not in line)
    return {
        path: (KINDS[kind], 0 if kind == "l" else int(mode, 8), owner, target, digests.get(path, ""))
        for path, (kind, mode, owner, target) in found.items()
        if path and path not in ENGINES and not path.startswith(("dev/", "proc/", "sys/"))
    }


def read(image: Image) -> dict[str, tuple]:
    tree = read_pair(image_of_layers(), image, ("nothing", "image"), lambda *_: None)[1]
    return {
        path: (
            it.kind,
            it.mode,
            f"{it.owner[0]}:{it.owner[1]}",
            "" if it.kind == "device" else it.target,
            it.sha256.hex(),
        )
        for path, it in tree.items()
        if path and path not in ENGINES and not path.startswith(("dev/", "proc/", "sys/"))
    }


def test_what_is_read_is_what_a_container_sees(engine, images, image):
    for name in images:
        with image(f"docker-daemon:{name}") as found:
            ours, theirs = read(found), seen(engine, name)
        assert len(ours) > 5000
        assert {path: it for path, it in ours.items() if theirs.get(path) != it} == {}
        assert theirs.keys() == ours.keys()


def test_wherever_it_is_had_from_an_image_is_the_same(engine, registry, images, image, tmp_path):
    name = images[0]
    pushed, archive = f"{registry.host}/diff/first", tmp_path / "first.tar"
    engine.client.images.get(name).tag(pushed, "1")
    engine.client.images.push(pushed, tag="1")
    with archive.open("wb") as file:
        file.writelines(engine.client.images.get(name).save())
    targets = [f"oci:{tmp_path}/layout", f"oci-archive:{tmp_path}/layout.tar"]
    for target in targets:
        subprocess.run(["skopeo", "copy", "-q", f"docker-archive:{archive}", target], check=True)
    for text in (f"{pushed}:1", str(archive), *targets):
        with image(f"docker-daemon:{name}") as one, image(text) as other:
            assert compare(one, other, Rules(mtimes=True)).equal


def test_the_command_says_what_an_upgrade_changed(engine, images, envbuild, tmp_path):
    names = [f"docker-daemon:{it}" for it in images]
    done = envbuild("diff", *names, "--files", env={"DOCKER_HOST": engine.url}, check=False)
    assert done.returncode == 16, done.stderr
    lines = done.stdout.splitlines()
    for line in (
        'config   Env A: "1" -> "2"',
        'config   User: not set -> "7"',
        "  ~ /d/link: target keep -> sub",
        "  ~ /d/keep: mode 1777 -> 0755",
        "  ~ /d/keep/y: owner 7:8 -> 0:8",
        "  ~ /d/sub/new: content",
        "  - /d/hard",
    ):
        assert line in lines
    assert any(line.startswith("debian   python3-venv 3.11") and ", gone: " in line for line in lines), lines
    value = json.loads(envbuild("diff", *names, "--json", env={"DOCKER_HOST": engine.url}, check=False).stdout)
    told = {it["path"] for group in value["packages"] for it in group["files"]}
    before, after = (seen(engine, name) for name in images)
    differing = {f"/{path}" for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert told == differing
    assert envbuild("diff", names[0], names[0], env={"DOCKER_HOST": engine.url}).stdout.startswith("equal: ")
    assert list(Path(tmp_path).iterdir()) == []


def test_an_image_that_the_engine_does_not_have_is_told(engine, envbuild):
    name = "docker-daemon:example.com/diff/none:1"
    done = envbuild("diff", name, name, env={"DOCKER_HOST": engine.url}, check=False)
    assert (done.returncode, done.stdout) == (13, "")
    assert "example.com/diff/none:1" in done.stderr


def test_a_layout_of_the_base_is_the_engines_base(base, cache, engine, image, tmp_path):
    made = debian_base("bookworm", "x86_64", cache / "envbuild", SILENT)
    write_layout(made, tmp_path / "base")
    with image(f"docker-daemon:{base}") as one, image(str(tmp_path / "base")) as other:
        assert compare(one, other).equal
