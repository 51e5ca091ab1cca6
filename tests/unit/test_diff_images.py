"""What counts as a difference, whose it is, and how it is said."""

import io
import json
import tarfile
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from envbuild.diff.comparison import Difference, Rules, compare
from envbuild.errors import BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_TAR, Descriptor, Layer
from tests.fakes.trees import image_of_layers
from tests.fakes.wheels import record_line
from tests.unit.comparing import SITE, Put, file, folder, hard, image, link, tar_of

AS_IS, AS_INSTALLED = Rules(), Rules(as_installed=True)


def said(before: list[Put], after: list[Put], rules: Rules = AS_IS) -> list[str]:
    return [str(it) for it in compare(image(before), image(after), rules).changes]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (file("a", b"1"), file("a", b"2"), "~ /a: content"),
        (file("a", mode=0o644), file("a", mode=0o4755), "~ /a: mode 0644 -> 4755"),
        (folder("a", 0o755), folder("a", 0o1777), "~ /a: mode 0755 -> 1777"),
        (file("a"), file("a", owner=(1000, 5)), "~ /a: owner 0:0 -> 1000:5"),
        (link("a", "b", owner=(1, 1)), link("a", "b"), "~ /a: owner 1:1 -> 0:0"),
        (link("a", "b"), link("a", "../c"), "~ /a: target b -> ../c"),
        (link("a", "b"), file("a"), "~ /a: link -> file"),
        (file("a"), folder("a"), "~ /a: file -> directory"),
        (file("a", b"1"), file("a", b"2", mode=0o600, owner=(1, 2)), "~ /a: content, mode 0644 -> 0600, owner 0:0 -> 1:2"),
        (file("a"), file("a", extended=(("security.capability", "\x01"),)), "~ /a: extended attributes"),
        (replace(file("a", b""), kind=tarfile.FIFOTYPE), replace(file("a", b""), kind=tarfile.CHRTYPE), "~ /a: pipe -> device"),
        (folder("", 0o755), folder("", 0o700), "~ /: mode 0755 -> 0700"),
    ],
)  # fmt: skip
def test_what_differs_at_a_path_is_said(before, after, line):
    assert said([before], [after]) == [line]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([file("a", b"same")], [file("./a", b"same", mtime=1)]),
        ([file("a"), hard("b", "a")], [file("a"), file("b")]),
        ([file("a", b"same"), hard("b", "a")], [file("b", b"same"), hard("a", "b")]),
        ([folder("d"), file("d/a")], [file("d/a")]),
        ([link("a", "b", mode=0o777)], [link("a", "b", mode=0o644)]),
    ],
)
def test_what_is_the_same_for_whoever_looks_at_it_is_no_difference(before, after):
    found = compare(image(before), image(after))
    assert found.equal
    assert found.summary.startswith("equal: ")


def test_times_count_where_they_are_asked_for():
    before, after = [file("a", mtime=5)], [file("a", mtime=6)]
    assert said(before, after) == []
    assert said(before, after, Rules(mtimes=True)) == ["~ /a: time 5 -> 6"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("var/cache", ["var/cached", "x.pyc"]),
        ("/var/cache/", ["var/cached", "x.pyc"]),
        ("*.pyc", ["var/cache", "var/cached"]),
        ("var/*", ["x.pyc"]),
        ("var/cache?", ["var/cache", "var/cache/a.pyc", "x.pyc"]),
        (".", ["var/cache", "var/cache/a.pyc", "var/cached", "x.pyc"]),
        ("nothing", ["var/cache", "var/cache/a.pyc", "var/cached", "x.pyc"]),
    ],
)
def test_paths_that_fit_are_left_out_and_counted(pattern, left):
    files = [folder("var/cache", 0o700), file("var/cache/a.pyc"), file("var/cached"), file("x.pyc")]
    found = compare(image([folder("var")]), image([folder("var"), *files]), Rules(ignore=(pattern,)))
    assert [it.path for it in found.changes] == left
    assert found.left_out == 4 - len(left)


def dist(
    name: str, version: str, *files: tuple[str, bytes], extra: Sequence[tuple[str, bytes]] = (), lines: str = ""
) -> list[Put]:
    """A distribution as it lies in site-packages; RECORD has `files` and then `lines`."""
    info = f"{name}-{version}.dist-info"
    listed = [*files, (f"{info}/METADATA", f"Name: {name}\nVersion: {version}\n".encode())]
    record = "".join(f"{record_line(path, data)}\n" for path, data in listed) + lines + f"{info}/RECORD,,\n"
    everything = [*listed, (f"{info}/RECORD", record.encode()), *extra]
    return [file(f"{SITE}/{path}".replace(f"{SITE}/../../../", "opt/env/"), data) for path, data in everything]


TOOL = (("tool/__init__.py", b"pass"), ("../../../bin/tool", b"#!python"))
OURS = dist(
    "tool", "1.0", *TOOL,
    extra=[("tool-1.0.dist-info/INSTALLER", b"envbuild")],
    lines=record_line("tool-1.0.dist-info/INSTALLER", b"envbuild") + "\n",
)  # fmt: skip
PIPS = dist(
    "tool", "1.0", *reversed(TOOL),
    extra=[
        ("tool-1.0.dist-info/INSTALLER", b"pip\n"),
        ("tool-1.0.dist-info/REQUESTED", b""),
        ("tool-1.0.dist-info/direct_url.json", b"{}"),
        ("tool/__pycache__/__init__.cpython-311.pyc", b"made"),
    ],
    lines=(
        record_line("tool-1.0.dist-info/INSTALLER", b"pip\n")
        + "\ntool-1.0.dist-info/REQUESTED,,\ntool-1.0.dist-info/direct_url.json,sha256=AA,2\n"
        + "tool/__pycache__/__init__.cpython-311.pyc,,\n"
    ),
)  # fmt: skip


def test_what_installers_may_do_differently_is_left_out_and_nothing_else():
    assert len(said(OURS, PIPS)) == 6, "INSTALLER, RECORD, REQUESTED, direct_url.json, the folder and the bytecode"
    found = compare(image(OURS), image(PIPS), AS_INSTALLED)
    assert (found.equal, found.left_out) == (True, 5)
    assert found.summary == "equal: all files and settings agree (5 paths left out)"


@pytest.mark.parametrize(
    "more",
    [
        file(f"{SITE}/tool/__pycache__/notes.txt"),
        file("tmp/REQUESTED"),
        file(f"{SITE}/tool/INSTALLER"),
        file(f"{SITE}/tool/__init__.pyc"),
        folder(f"{SITE}/tool-1.0.dist-info/INSTALLER"),
        link(f"{SITE}/tool-1.0.dist-info/REQUESTED", "/etc/passwd"),
        file(f"{SITE}/__pycache__", b"no folder"),
        file(f"{SITE}/tool-1.0.dist-info/direct_url.json.bak"),
    ],
)
def test_what_only_looks_like_an_installers_is_not(more):
    found = compare(image(OURS), image([it for it in OURS if it.path != more.path] + [more]), AS_INSTALLED)
    assert more.path in [it.path for it in found.changes]


@pytest.mark.parametrize(
    "lines",
    ["tool/other.py,sha256=AA,1\n", "tool/__init__.py,sha256=BB,4\n", "tool/__pycache__/x.txt,,\n", '"broken'],
)
def test_a_record_that_names_other_files_or_hashes_differs(lines):
    other = dist("tool", "1.0", *TOOL, lines=lines)
    record = f"~ /{SITE}/tool-1.0.dist-info/RECORD: content"
    assert said(dist("tool", "1.0", *TOOL), other, AS_INSTALLED) == [record]


def test_what_is_ignored_is_so_in_a_record_too():
    pips, uvs = (dist("tool", "1.0", TOOL[0], ("../../../bin/tool", text)) for text in (b"pip's", b"uv's"))
    assert len(said(pips, uvs, AS_INSTALLED)) == 2
    assert said(pips, uvs, Rules(as_installed=True, ignore=("opt/env/bin",))) == []
    assert len(said(pips, uvs, Rules(ignore=("opt/env/bin",)))) == 1


def test_a_record_that_says_the_same_but_is_anothers_file_differs_in_that():
    ours, pips = list(OURS), list(PIPS)
    place = next(number for number, it in enumerate(pips) if it.path.endswith("RECORD"))
    pips[place] = replace(pips[place], mode=0o666)
    assert said(ours, pips, AS_INSTALLED) == [f"~ /{SITE}/tool-1.0.dist-info/RECORD: mode 0644 -> 0666"]


# --- packages --------------------------------------------------------------------------------------------------------


def debian(**packages: tuple[str, list[str]]) -> Iterator[Put]:
    """dpkg's own records; `libc6="2.36-9", ["/lib/libc.so.6"]`."""
    status = "".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nDescription: it\n two: lines\n\n"
        for name, (version, _) in packages.items()
    )
    yield file("var/lib/dpkg/status", status.encode())
    for name, (_, files) in packages.items():
        yield file(f"var/lib/dpkg/info/{name}:amd64.list", "".join(f"{it}\n" for it in ("/.", "/usr", *files)).encode())


def numpy(version: str, *modules: str) -> list[Put]:
    return dist("numpy", version, *((f"numpy/{it}.py", version.encode()) for it in modules))


def lines_of(before: list[Put], after: list[Put]) -> list[str]:
    return list(compare(image(before), image(after)).lines())


def test_files_are_grouped_by_the_distribution_that_has_them():
    before = [*numpy("1.23.5", "core", "old", "same"), *dist("six", "1.16.0", ("six.py", b"six"))]
    after = [*numpy("1.26.4", "core", "new", "newer", "same"), *dist("Typing_Ext", "4.0", ("typing_ext.py", b""))]
    assert lines_of(before, after) == [
        "different: 19 paths in 3 packages, 0 settings",
        "python   numpy 1.23.5 -> 1.26.4: 5 added, 4 removed, 2 changed",
        "python   six 1.16.0, gone: 4 removed",
        "python   typing-ext 4.0, new: 4 added",
    ]


def test_a_script_the_bytecode_and_the_folders_are_their_distributions():
    found = compare(image([file("a")]), image([file("a"), *PIPS, file("opt/env/pyvenv.cfg")]))
    packages = {group.package and group.package.name: [it.path for it in group.changes] for group in found.groups}
    assert "opt/env/bin/tool" in packages["tool"]
    assert f"{SITE}/tool/__pycache__/__init__.cpython-311.pyc" in packages["tool"]
    assert f"{SITE}/tool" in packages["tool"]
    assert packages[None] == ["opt/env/pyvenv.cfg"]


def test_bytecode_that_no_record_has_is_its_sources_package():
    compiled = file(f"{SITE}/tool/__pycache__/__init__.cpython-311.pyc", b"made")
    found = compare(image(OURS), image([*OURS, compiled]))
    assert [str(group) for group in found.groups] == ["python   tool 1.0: 2 added"]


def test_debian_packages_have_their_files_through_links_and_their_own_records():
    merged = [link("lib", "usr/lib"), file("usr/lib/libc.so.6", b"1")]
    newer = [link("lib", "usr/lib"), file("usr/lib/libc.so.6", b"2")]
    before = [*merged, *debian(libc6=("2.36-9", ["/lib", "/lib/libc.so.6"]))]
    after = [
        *newer,
        *debian(libc6=("2.36-10", ["/lib", "/lib/libc.so.6"]), bash=("5.2", ["/bin/bash"])),
        file("bin/bash"),
    ]
    assert lines_of(before, after) == [
        "different: 5 paths in 2 packages, 0 settings",
        "debian   bash 5.2, new: 3 added",
        "debian   libc6 2.36-9 -> 2.36-10: 1 changed",
        "files    of no package: 1 changed",
    ]


def test_a_distribution_in_debians_own_folder_is_the_package_that_brought_it():
    path = "usr/lib/python3/dist-packages/yaml/__init__.py"
    before = [*debian(**{"python3-yaml": ("6.0", [f"/{path}"])}), file(path, b"1")]
    after = [*debian(**{"python3-yaml": ("6.0", [f"/{path}"])}), file(path, b"2")]
    assert lines_of(before, after)[1:] == ["debian   python3-yaml 6.0: 1 changed"]


def test_what_was_removed_from_debian_but_for_its_settings_has_no_version():
    status = file("var/lib/dpkg/status", b"Package: x\nStatus: deinstall ok config-files\nVersion: 1\n")
    records = [folder("etc"), status, file("var/lib/dpkg/info/x.list", b"/etc/x\n")]
    assert lines_of(records, [*records, file("etc/x")])[1:] == ["debian   x: 1 added"]


# --- settings --------------------------------------------------------------------------------------------------------


def configured(**inner):
    return image([file("a")], config=inner)


def settings_of(before: dict, after: dict) -> list[str]:
    return [str(it) for it in compare(configured(**before), configured(**after)).settings]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({"Env": ["A=1", "B=2"]}, {"Env": ["B=2", "A=1"]}, []),
        ({"Env": ["A=1", "B=2"]}, {"Env": ["A=3", "C="]}, ['Env A: "1" -> "3"', 'Env B: "2" -> not set', 'Env C: not set -> ""']),
        ({"Cmd": ["a"]}, {"Cmd": ["a", "b"]}, ['Cmd: ["a"] -> ["a", "b"]']),
        ({"Entrypoint": None}, {"Entrypoint": []}, []),
        ({"Entrypoint": None}, {"Entrypoint": ["x"]}, ['Entrypoint: not set -> ["x"]']),
        ({"User": ""}, {"User": "1000"}, ['User: not set -> "1000"']),
        ({"WorkingDir": ""}, {"WorkingDir": "/"}, []),
        ({"WorkingDir": ""}, {"WorkingDir": "/w"}, ['WorkingDir: not set -> "/w"']),
        ({"Labels": {"a": "1", "b": "2"}}, {"Labels": {"a": "3"}}, ['Labels a: "1" -> "3"', 'Labels b: "2" -> not set']),
        ({"ExposedPorts": {"80/tcp": {}}}, {}, ['ExposedPorts: ["80/tcp"] -> not set']),
        ({"Volumes": {"/a": {}, "/b": {}}}, {"Volumes": {"/b": {}, "/a": {}}}, []),
        ({"Volumes": {"/a": {}}}, {"Volumes": {"/b": {}}}, ['Volumes: ["/a"] -> ["/b"]']),
        ({"Hostname": "x", "Image": "sha256:1"}, {}, []),
    ],
)  # fmt: skip
def test_settings_are_compared_by_what_they_mean(before, after, lines):
    assert settings_of(before, after) == lines


def test_another_architecture_is_a_setting():
    found = compare(image([file("a")]), image([file("a")], architecture="arm64"))
    assert list(found.lines()) == [
        "different: 0 paths in 0 packages, 1 setting",
        'config   architecture: "amd64" -> "arm64"',
    ]


@pytest.mark.parametrize("config", [b"", b"[]", b'{"config": [1]}', b'{"config": {"Labels": 3}}'])
def test_a_config_that_is_none_is_told(config):
    with pytest.raises(BuildError, match="config") as caught:
        compare(image(), replace(image(), config=config), names=("x", "the/other"))
    assert caught.value.where == "the/other"


def test_as_json_everything_is_there():
    before = [*numpy("1.23.5", "core"), link("l", "a")]
    after = [*numpy("1.26.4", "core"), link("l", "b")]
    found: Difference = compare(image(before, config={"User": "a"}), image(after, config={"User": "b"}))
    value = json.loads(json.dumps(found.to_dict()))
    assert (value["equal"], value["left_out"]) == (False, 0)
    assert value["config"] == [{"name": "User", "before": "a", "after": "b"}]
    assert [(it["kind"], it["name"], it["before"], it["after"]) for it in value["packages"]] == [
        ("python", "numpy", "1.23.5", "1.26.4"),
        (None, None, None, None),
    ]
    assert value["packages"][1]["files"] == [
        {
            "path": "/l",
            "change": "changed",
            "in": ["target"],
            "before": {"kind": "link", "mode": "0000", "owner": "0:0", "target": "a", "mtime": 0},
            "after": {"kind": "link", "mode": "0000", "owner": "0:0", "target": "b", "mtime": 0},
        }
    ]
    core = next(it for it in value["packages"][0]["files"] if it["path"].endswith("core.py"))
    assert core["after"]["sha256"] == Digest.of(b"1.26.4").hex


class Zeros(io.RawIOBase):
    """A tar of one file of zeros, which nobody has in memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._head = tar_of([file("big", b"")])[:512]
        info = tarfile.TarInfo("big")
        info.size = size
        self._head = info.tobuf(tarfile.PAX_FORMAT)
        self._left = len(self._head) + size + 1024

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        count = min(len(buffer), self._left, len(self._head) or 1 << 16)
        buffer[:count] = self._head[:count] or bytes(count)
        self._head, self._left = self._head[count:], self._left - count
        return count


def test_contents_pass_without_being_kept():
    size = 64 << 20
    whole = Digest.of_file(io.BufferedReader(Zeros(size)))[0]
    big = Layer(Descriptor(LAYER_TAR, whole, size + 1536), whole, lambda: io.BufferedReader(Zeros(size)))
    tracemalloc.start()
    try:
        found = compare(image_of_layers(big), image())
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [str(it) for it in found.changes] == ["- /big"]
    assert most < 8 << 20
