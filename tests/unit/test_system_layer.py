"""Debian packages as a layer: read as deb(5) says, placed as dpkg places them, the same bytes every time."""

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import BuildError
from envbuild.image.debian.layer import (
    Alternative,
    BaseSystem,
    Folder,
    SystemLayer,
    left_undone,
    place_of,
    read_alternatives,
)
from envbuild.image.debian.package import Deb, fields, open_deb, stanzas
from envbuild.lock.model import SystemPackage
from envbuild.oci.digest import Digest
from tests.fakes.debs import ar_of, deb_of, entry, folder, link, tar_of

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 2.36-9
Description: the C library
 with a line
 .
 that goes on

Package: libold1
Status: install ok installed
Architecture: amd64
Version: 0.9-1
Description: old

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
ROOT = Folder(mode=0o755, owner=(0, 0))
GROUND = BaseSystem(
    status=STATUS,
    folders={
        **dict.fromkeys(
            ("usr", "usr/lib", "usr/lib/x86_64-linux-gnu", "etc", "var", "var/lib", "var/lib/dpkg", "run"), ROOT
        ),
        "var/mail": Folder(mode=0o2775, owner=(0, 8)),
    },
    links={"lib": "usr/lib", "var/run": "/run", "var/loop": "loop"},
    settings=frozenset({"etc/kept.conf"}),
)
SOUND = deb_of(
    "new", [folder("./usr"), ("./usr/a", b"content" * 99), link("./b", "usr/a")], packed="", scripts={"postinst": b"x"}
)
LIBRARY = "./lib/x86_64-linux-gnu/libnew.so.1"


def opened(data: bytes, tmp_path: Path, stack: ExitStack) -> Deb:
    path = tmp_path / f"{hashlib.sha256(data).hexdigest()}.deb"
    path.write_bytes(data)
    return open_deb(path, Digest.of(data), stack)


REFUSED = "a Debian package is refused"


def refusal(data: bytes, tmp_path: Path) -> str:
    with ExitStack() as stack, pytest.raises(BuildError) as caught:
        opened(data, tmp_path, stack)
    assert caught.value.todo
    return caught.value.what


def layer(
    tmp_path: Path, *debs: bytes, ground: BaseSystem = GROUND, threads: int = 1
) -> tuple[dict[str, tarfile.TarInfo], dict[str, bytes], list[str], bytes]:
    """The members and contents of the layer, what was said of it, and its bytes."""
    packages, paths = [], {}
    for data in debs:
        digest = Digest.of(data)
        paths[digest] = tmp_path / f"{digest.hex}.deb"
        paths[digest].write_bytes(data)
        with ExitStack() as stack:
            name = fields(open_deb(paths[digest], digest, stack).control)["Package"]
        packages.append(
            SystemPackage(name=name, version="1", architecture="amd64", filename="x.deb", sha256=digest, size=len(data))
        )
    sink, told = io.BytesIO(), list[str]()
    with ThreadPoolExecutor(threads) as pool:
        unpacker = SystemLayer(base=ground, find=lambda it: paths[it.sha256])
        result = unpacker.write(packages, sink, pool, told.extend)
    blob = sink.getvalue()
    plain = gzip.decompress(blob)
    assert (result.digest, result.size, result.diff_id) == (Digest.of(blob), len(blob), Digest.of(plain))
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        members = archive.getmembers()
        contents = {it.name: archive.extractfile(it).read() for it in members if it.isfile()}  # type: ignore[union-attr]
    assert len({it.name for it in members}) == len(members)
    for at, member in enumerate(members):
        parent = member.name.rpartition("/")[0]
        assert not parent or any(it.name == parent and it.isdir() for it in members[:at]), member.name
    return {it.name: it for it in members}, contents, told, blob


class TestReading:
    @pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".zst"])
    def test_every_compression_gives_the_same(self, tmp_path, packed):
        data = deb_of(
            "new", [folder("./usr"), ("./usr/a", b"content")], packed=packed, scripts={"postinst": b"exit 0\n"}
        )
        with ExitStack() as stack:
            deb = opened(data, tmp_path, stack)
            assert [(it.path, it.kind, b"".join(it.content()) if it.size else b"") for it in deb.items] == [
                ("usr", "directory", b""),
                ("usr/a", "file", b"content"),
            ]
            assert fields(deb.control)["Package"] == "new"
            assert deb.scripts == {"postinst": b"exit 0\n"}

    def test_a_file_that_is_not_the_locked_one_is_refused(self, tmp_path):
        (tmp_path / "x.deb").write_bytes(deb_of("new", []))
        with ExitStack() as stack, pytest.raises(BuildError, match="not the locked one"):
            open_deb(tmp_path / "x.deb", Digest.of(b"other"), stack)

    def test_damaged_zstd_is_refused(self, tmp_path):
        data = ar_of({"debian-binary": b"2.0\n", "control.tar.zst": b"x", "data.tar.zst": b"x"})
        assert "it is damaged" in refusal(data, tmp_path)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"no archive at all",
            b"!<arch>\nshort",
            ar_of({"debian-binary": b"2.0\n"}),
            ar_of({"control.tar": tar_of([("./control", b"Package: a\n")])}),
            ar_of({"control.tar": tar_of([]), "data.tar": tar_of([])}),
            ar_of({"control.tar.lz4": b"x", "data.tar.lz4": b"x"}),
            ar_of({"control.tar.xz": b"no xz", "data.tar.xz": b""}),
            ar_of({"control.tar.gz": b"no gz", "data.tar.gz": b""}),
            deb_of("new", [("./a", b"x" * 5000)])[:-40],
        ],
    )
    def test_what_is_damaged_is_refused(self, tmp_path, data):
        assert REFUSED in refusal(data, tmp_path)

    @pytest.mark.parametrize(
        "name",
        ["../etc/passwd", "./usr/../../x", "/etc/passwd", "./usr/.wh.lib", "./.wh..wh..opq", "./a\nb", "./usr//x"],
    )
    def test_paths_that_lead_elsewhere_are_refused(self, tmp_path, name):
        assert REFUSED in refusal(deb_of("new", [(name, b"x")]), tmp_path)

    @pytest.mark.parametrize(
        ("name", "target"), [("./a", ".."), ("./usr/a", "../../etc"), ("./a", "/../x"), ("./a", "b\x1b")]
    )
    def test_links_that_lead_above_the_root_are_refused(self, tmp_path, name, target):
        assert "leads to" in refusal(deb_of("new", [link(name, target)]), tmp_path)

    @pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
    def test_devices_are_refused(self, tmp_path, kind):
        assert "neither file, folder nor link" in refusal(deb_of("new", [entry("./x", kind)]), tmp_path)

    def test_a_hard_link_to_nothing_of_the_package_is_refused(self, tmp_path):
        assert "leads to no file" in refusal(deb_of("new", [link("./x", "./etc/shadow", tarfile.LNKTYPE)]), tmp_path)

    @pytest.mark.parametrize("name", ["../../x", "a b", "", "x\n\nPackage: y"])
    def test_what_does_not_say_what_it_is_is_refused(self, tmp_path, name):
        assert re.search("no valid Package|more than one stanza", refusal(deb_of(name, []), tmp_path))

    def test_what_a_script_is_called_leads_nowhere(self, tmp_path):
        with ExitStack() as stack:
            assert opened(deb_of("new", [], scripts={"../x": b"x", "a\nb": b"x"}), tmp_path, stack).scripts == {}

    @given(st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), min_size=1, max_size=8))
    def test_whatever_is_changed_it_is_read_or_refused(self, tmp_path_factory, changes):
        data = bytearray(SOUND)
        for at, byte in changes:
            data[at % len(data)] = byte
        folder = tmp_path_factory.getbasetemp()
        with suppress(BuildError):
            members, _, _, _ = layer(folder, bytes(data))
            assert not [it for it in members if ".." in it.split("/") or it.startswith("/")]

    def test_a_bomb_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr("envbuild.image.debian.package._LIMIT", {"control": 1 << 20, "data": 1 << 20})
        assert "unpacks to more than" in refusal(deb_of("new", [("./zeros", bytes(4 << 20))]), tmp_path)


class TestPlaces:
    def test_links_of_the_base_stay_and_files_go_where_they_lead(self, tmp_path):
        members, contents, _, _ = layer(
            tmp_path, deb_of("new", [folder("./lib"), (LIBRARY, b"elf"), ("./var/run/x", b"pid")])
        )
        assert contents["usr/lib/x86_64-linux-gnu/libnew.so.1"] == b"elf"
        assert contents["run/x"] == b"pid"
        assert not {"lib", "var/run"} & members.keys()

    def test_a_folder_of_the_base_keeps_mode_and_owner(self, tmp_path):
        members, _, _, _ = layer(
            tmp_path, deb_of("new", [folder("./var", 0o700), folder("./var/mail"), ("./var/mail/x", b"")])
        )
        assert (members["var/mail"].mode, members["var/mail"].gid, members["var"].mode) == (0o2775, 8, 0o755)

    def test_own_folders_are_as_the_package_has_them(self, tmp_path):
        owned = entry("./opt/new/bin/tool", tarfile.REGTYPE, mode=0o4755, owner=(0, 5))
        members, _, _, _ = layer(
            tmp_path, deb_of("new", [folder("./opt/new", 0o750), (owned, b"x"), folder("./opt/empty")])
        )
        assert [members[it].mode for it in ("opt", "opt/new", "opt/new/bin/tool")] == [0o755, 0o750, 0o4755]
        assert members["opt/new/bin/tool"].gid == 5
        assert members["opt/empty"].isdir()
        assert {it.mtime for it in members.values()} == {315532800}

    def test_links_of_packages_are_kept_and_followed(self, tmp_path):
        one = deb_of(
            "one",
            [
                ("./usr/lib/x86_64-linux-gnu/libnew.so.1.2", b"elf"),
                link(LIBRARY, "libnew.so.1.2"),
                link("./srv", "opt"),
            ],
        )
        members, contents, _, _ = layer(tmp_path, one, deb_of("two", [("./srv/x", b"x")]))
        assert members["usr/lib/x86_64-linux-gnu/libnew.so.1"].linkname == "libnew.so.1.2"
        assert contents["opt/x"] == b"x"
        assert members["srv"].issym()

    def test_a_hard_link_has_the_content_of_the_other(self, tmp_path):
        deb = deb_of("new", [("./usr/bin/z", b"program"), link("./usr/bin/a", "./usr/bin/z", tarfile.LNKTYPE)])
        _, contents, _, _ = layer(tmp_path, deb)
        assert contents["usr/bin/a"] == contents["usr/bin/z"] == b"program"

    def test_a_link_does_not_take_the_place_of_a_folder(self, tmp_path):
        members, _, _, _ = layer(
            tmp_path, deb_of("new", [link("./usr/lib/x86_64-linux-gnu", "elsewhere"), (LIBRARY, b"elf")])
        )
        assert members["usr/lib/x86_64-linux-gnu"].isdir()

    def test_settings_of_the_base_stay(self, tmp_path):
        lines = b"/etc/kept.conf\n/etc/new.conf\n"
        deb = deb_of("new", [("./etc/kept.conf", b"theirs"), ("./etc/new.conf", b"new")], scripts={"conffiles": lines})
        _, contents, _, _ = layer(tmp_path, deb)
        assert "etc/kept.conf" not in contents
        assert contents["etc/new.conf"] == b"new"
        assert f" /etc/new.conf {hashlib.md5(b'new').hexdigest()}\n" in contents["var/lib/dpkg/status"].decode()

    def test_what_no_program_reads_is_left_out_but_copyrights(self, tmp_path):
        names = [
            "man/man1/x.gz",
            "doc/new/changelog.gz",
            "doc/new/copyright",
            "locale/de/x.mo",
            "info/x.gz",
            "lintian/x",
        ]
        _, contents, _, _ = layer(tmp_path, deb_of("new", [(f"./usr/share/{it}", b"x") for it in names]))
        assert [it for it in contents if it.startswith("usr/share/")] == ["usr/share/doc/new/copyright"]

    @pytest.mark.parametrize(
        "debs",
        [
            [deb_of("new", [("./usr/lib", b"x")])],
            [deb_of("a", [folder("./opt/x")]), deb_of("b", [("./opt/x", b"x")])],
            [deb_of("a", [("./opt/x", b"x")]), deb_of("b", [("./opt/x/y", b"x")])],
            [deb_of("new", [("./var/loop/x", b"x")])],
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path, debs):
        with pytest.raises(BuildError) as caught:
            layer(tmp_path, *debs)
        assert caught.value.todo

    @given(st.lists(st.sampled_from(["a", "b", "c", "..", ".", ""]), min_size=1, max_size=6), st.dictionaries(
        st.sampled_from(["a", "a/b", "b", "c"]), st.sampled_from(["../..", "/", "b", "../../../a", "/c/b", "."]), max_size=4
    ))  # fmt: skip
    def test_no_path_and_no_link_leads_above_the_root(self, parts, links):
        try:
            found = place_of("/".join(parts), links)
        except BuildError:
            return  # in circles
        assert ".." not in found.split("/")
        assert not found.startswith("/")


class TestRecords:
    def test_dpkg_s_database_has_the_packages_and_what_was_there(self, tmp_path):
        _, contents, _, _ = layer(
            tmp_path, deb_of("libnew1", [(LIBRARY, b"elf")], more="Multi-Arch: same\n"), deb_of("libold1", [])
        )
        found = {fields(it)["Package"]: fields(it) for it in stanzas(contents["var/lib/dpkg/status"].decode())}
        assert {name: (it["Version"], it["Status"]) for name, it in found.items()} == {
            "libc6": ("2.36-9", "install ok installed"),
            "libold1": ("1.0-1", "install ok installed"),
            "libnew1": ("1.0-1", "install ok installed"),
            "gone": ("1", "deinstall ok config-files"),
        }
        assert found["libc6"]["Description"] == "the C library\n with a line\n .\n that goes on"

    def test_the_list_has_every_path_and_scripts_are_kept(self, tmp_path):
        deb = deb_of(
            "libnew1",
            [folder("./lib"), (LIBRARY, b"elf")],
            more="Multi-Arch: same\n",
            scripts={"postinst": b"#!/bin/sh\n", "md5sums": b"x"},
        )
        members, contents, _, _ = layer(tmp_path, deb)
        info = "var/lib/dpkg/info/libnew1:amd64"
        assert contents[f"{info}.list"] == b"/.\n/lib\n/lib/x86_64-linux-gnu/libnew.so.1\n"
        assert (members[f"{info}.postinst"].mode, members[f"{info}.md5sums"].mode) == (0o755, 0o644)

    def test_of_a_ground_only_what_is_installed_counts(self):
        assert GROUND.installed == {"libc6": "2.36-9", "libold1": "0.9-1"}


class TestScripts:
    def deb(self, text: str) -> Deb:
        return Deb(control="Package: libx1", scripts={"postinst": text.encode()}, items=())

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "#!/bin/sh\nset -e\nexit 0\n",
            '#!/bin/sh\nset -e\nif [ "$1" = "configure" ]; then\n  ldconfig\nfi\n',
            'case "$1" in\n  configure|triggered)\n    ldconfig\n  ;;\n  *)\n  ;;\nesac\n',
            '# Automatically added\ndpkg-maintscript-helper rm_conffile /etc/drirc 19.0 -- "$@"\n',
        ],
    )
    def test_what_only_tells_the_loader_needs_no_running(self, text):
        assert not left_undone(self.deb(text))

    @pytest.mark.parametrize(
        "text",
        [
            "adduser --system x\n",
            "ldconfig; adduser x\n",
            "update-alternatives --install $LINK a /b 1\n",
            "systemctl start x",
        ],
    )
    def test_what_does_more_is_said(self, text):
        assert left_undone(self.deb(text))

    def test_names_for_several_files_are_read_over_lines(self):
        text = (
            "update-alternatives --install /usr/lib/libblas.so.3 \\\n    libblas.so.3 /usr/lib/blas/libblas.so.3 10\n"
        )
        assert read_alternatives(self.deb(text)) == (
            Alternative(
                link="/usr/lib/libblas.so.3", name="libblas.so.3", path="/usr/lib/blas/libblas.so.3", priority=10
            ),
        )
        assert not left_undone(self.deb(text))

    @pytest.mark.parametrize(
        "words",
        [
            "/../x a /b 1",
            "/a ../b /c 1",
            "/a b/c /d 1",
            "a b /c 1",
            "/a b /c many",
            "/a b /c 1 --slave /d e /f",
            "/a 'b /c 1",
        ],
    )
    def test_names_that_lead_elsewhere_are_not_taken(self, words):
        assert read_alternatives(self.deb(f"update-alternatives --install {words}\n")) == ()

    def test_the_best_of_them_gets_the_name_and_the_record_has_all(self, tmp_path):
        def blas(name: str, priority: int) -> bytes:
            line = f"update-alternatives --install /usr/lib/libblas.so.3 libblas.so.3 /usr/lib/{name}/libblas.so.3 {priority}"
            return deb_of(name, [(f"./usr/lib/{name}/libblas.so.3", b"elf")], scripts={"postinst": line.encode()})

        members, contents, told, _ = layer(tmp_path, blas("blas", 10), blas("openblas", 100))
        assert members["usr/lib/libblas.so.3"].linkname == "/etc/alternatives/libblas.so.3"
        assert members["etc/alternatives/libblas.so.3"].linkname == "/usr/lib/openblas/libblas.so.3"
        assert contents["var/lib/dpkg/alternatives/libblas.so.3"].decode() == (
            "auto\n/usr/lib/libblas.so.3\n\n/usr/lib/blas/libblas.so.3\n10\n/usr/lib/openblas/libblas.so.3\n100\n\n"
        )
        assert told == []

    def test_what_the_base_chose_stays_chosen(self, tmp_path):
        line = b"update-alternatives --install /usr/lib/libblas.so.3 libblas.so.3 /usr/lib/blas/libblas.so.3 10"
        ground = BaseSystem(
            status=STATUS, folders=GROUND.folders, links={"etc/alternatives/libblas.so.3": "/usr/lib/own.so"}
        )
        members, _, _, _ = layer(tmp_path, deb_of("blas", [], scripts={"postinst": line}), ground=ground)
        assert "etc/alternatives/libblas.so.3" not in members

    def test_a_person_is_told_what_was_not_done(self, tmp_path):
        debs: Sequence[bytes] = [
            deb_of("liba1", [], scripts={"postinst": b"adduser --system a\n"}),
            deb_of("libb1", [("./etc/ld.so.conf.d/b.conf", b"/opt/b\n")]),
        ]
        _, _, told, _ = layer(tmp_path, *debs)
        assert [line.split()[0] for line in told] == ["liba1", "libb1"]


class TestBytes:
    def test_they_depend_on_packages_and_base_alone(self, tmp_path):
        one = deb_of("one", [(f"./opt/{number}", bytes([number]) * 70_000) for number in range(40)])
        two = deb_of("two", [(LIBRARY, b"elf" * 500_000)])
        blobs = {
            layer(tmp_path, *order, threads=threads)[3] for order in ((one, two), (two, one)) for threads in (1, 4)
        }
        assert len(blobs) == 1

    def test_the_package_s_own_compression_does_not_show(self, tmp_path):
        blobs = {layer(tmp_path, deb_of("new", [(LIBRARY, b"elf")], packed=packed))[3] for packed in ("", ".gz", ".xz")}
        assert len(blobs) == 1
