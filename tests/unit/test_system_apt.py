"""System packages found by apt in a folder of its own: what it is told, what it says, and what is done where it fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.base.apt import Suite, apt_for, find_suite
from envbuild.base.system import DebFiles, System, copy_debs, deb_path, lock_system, read_base_system
from envbuild.errors import BaseError, LockError, MissingComponentError
from envbuild.image.debian.layer import BaseSystem, Folder
from envbuild.lock.model import Lock, SystemPackage, Target
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from envbuild.recipe import Base
from envbuild.report import SILENT
from tests.fakes.debs import deb_of
from tests.fakes.trees import BASE, image_of_trees
from tests.reporting import Calling

STATUS = "Package: libpng16-16\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.6.39\n"
RELEASE = b'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'
DEBIAN = BASE | {
    "etc/os-release": "-> ../usr/lib/os-release",
    "usr/lib/os-release": RELEASE,
    "var/lib/dpkg/status": STATUS.encode(),
    "etc/x.conf": b"x",
    "usr/lib/x86_64-linux-gnu/libz.so.1": "-> libz.so.1.2.13",
}
TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")
DEB = deb_of("libgomp1", [("./usr/lib/x86_64-linux-gnu/libgomp.so.1", b"elf")], version="12.2.0-14")
APT_GET = """#!/bin/sh
echo "$@" >> {folder}/asked; cat "$APT_CONFIG" > {folder}/config
cp {folder}/cache/apt/*/etc/apt/sources.list {folder}/cache/apt/*/status {folder}/ 2>/dev/null
case "$*" in
  *update) mkdir -p {folder}/cache/apt/x; for place in {folder}/cache/apt/*/var/lib/apt/lists; do : > "$place/a_Packages"; done;;
  *--print-uris*) cat {folder}/addresses;;
  *download*) cp {folder}/files/*.deb .;;
esac
exit $(cat {folder}/status_of_apt 2>/dev/null || echo 0)
"""
APT_CACHE = "#!/bin/sh\ncat {folder}/versions\n"


def manifest(*rows: str) -> TrainingManifest:
    libraries = [
        {"name": file, "path": f"/lib/{file}", "owner": {"kind": kind, "name": name, "version": version}}
        for kind, name, version, file in (row.split() for row in rows)
    ]
    value = {
        "schema_version": "1.1",
        "created": "2026-01-02T03:04:05Z",
        "python": {"version": "3.11.2", "implementation": "cpython"},
        "platform": {"os_id": "debian", "os_version": "12"},
        "distributions": [],
        "native": {"process": "run", "libraries": libraries},
    }
    return read_manifest(json.dumps(value).encode(), "manifest.json")


GOMP = manifest("debian libgomp1 12.2.0-14 libgomp.so.1.0.0", "debian libpng16-16 1.6.39 libpng16.so.16")


def base(*trees) -> Base:
    return Base(name="a base", image=image_of_trees(*trees), target=TARGET, python_path="/usr/bin/python3.11")


@pytest.fixture
def apt(tmp_path, monkeypatch) -> Path:
    """apt on PATH, which notes what it is asked and says what lies in files; a mirror in `/etc/apt`'s place."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"apt-get": APT_GET, "apt-cache": APT_CACHE}.items():
        (programs / name).write_text(text.format(folder=tmp_path))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    sources = tmp_path / "etc"
    sources.mkdir()
    (sources / "sources.list").write_text("deb http://user:secret@mirror.invalid/debian trixie main\n")
    (tmp_path / "versions").write_text(
        " libgomp1 | 12.2.0-14 | http://mirror.invalid/debian bookworm/main amd64 Packages\n"
    )
    offer(tmp_path, DEB)
    return tmp_path


def offer(folder: Path, deb: bytes, name: str = "libgomp1", version: str = "12.2.0-14") -> None:
    """What the mirror has."""
    path = f"http://user:secret@mirror.invalid/debian/pool/main/g/gcc/{name}_{version.rpartition('%3a')[2]}_amd64.deb"
    line = f"'{path}' {name}_{version}_amd64.deb {len(deb)} SHA256:{Digest.of(deb).hex}\n"
    (folder / "addresses").write_text(f"Reading package lists...\n{line}")
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / f"{name}_{version}_amd64.deb").write_bytes(deb)


def locked(folder: Path, base: Base, run: TrainingManifest = GOMP, *, offline: bool = False) -> System:
    return lock_system(run, base, folder / "cache", SILENT, offline=offline, sources=folder / "etc")


class TestGround:
    def test_records_folders_links_and_names_are_read(self, tmp_path):
        ground = read_base_system(image_of_trees(DEBIAN), "a base", tmp_path)
        assert ground.status == STATUS
        assert ground.release == {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"}
        assert (ground.links["lib"], ground.folders["opt"]) == ("usr/lib", Folder(mode=0o755, owner=(0, 0)))
        assert ground.settings == {"etc/x.conf"}
        assert ground.libraries == {"libc.so.6", "libz.so.1"}

    def test_the_uppermost_layer_counts_and_a_removed_file_is_gone(self, tmp_path):
        image = image_of_trees(DEBIAN, {"var/lib/dpkg/status": b"Package: a\n", "etc/.wh.x.conf": b""})
        ground = read_base_system(image, "a base", tmp_path)
        assert (ground.status, ground.settings) == ("Package: a\n", frozenset())
        assert (
            read_base_system(image_of_trees(DEBIAN, {"var/lib/dpkg/.wh.status": b""}), "a base", tmp_path).status == ""
        )

    def test_a_second_time_no_layer_is_read(self, tmp_path):
        image = image_of_trees(DEBIAN)
        first = read_base_system(image, "a base", tmp_path)

        def away():
            raise AssertionError("read again")

        unread = replace(image, layers=tuple(replace(it, open=away) for it in image.layers))
        assert read_base_system(unread, "a base", tmp_path) == first

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"folders": {"a": 1}, "settings": [], "libraries": []}'])
    def test_what_somebody_broke_is_read_again(self, tmp_path, text):
        image = image_of_trees(DEBIAN)
        first = read_base_system(image, "a base", tmp_path)
        (kept,) = tmp_path.iterdir()
        kept.write_text(text)
        assert read_base_system(image, "a base", tmp_path) == first

    def test_an_old_release_is_named_in_words_only(self, tmp_path):
        release = {"usr/lib/os-release": b'ID=debian\nVERSION="9 (stretch)"\n'}
        assert (
            read_base_system(image_of_trees(DEBIAN | release), "x", tmp_path).release["VERSION_CODENAME"] == "stretch"
        )


class TestSuite:
    GROUND = BaseSystem(release={"ID": "ubuntu", "VERSION_CODENAME": "jammy"})

    def test_debian_is_where_this_machine_s_own_is(self, apt):
        found = find_suite(BaseSystem(release={"ID": "debian", "VERSION_CODENAME": "bookworm"}), "aarch64", apt / "etc")
        assert (found.distribution, found.codename, found.architecture) == ("debian", "bookworm", "arm64")
        assert all("mirror.invalid/debian bookworm" in line for line in found.lines)
        assert "secret" not in found.key

    def test_ubuntu_is_where_apt_here_says(self, apt):
        (apt / "etc" / "sources.list").write_text(
            "deb [signed-by=/usr/bin/env] http://mirror.invalid/ubuntu noble main universe\n"
        )
        found = find_suite(self.GROUND, "x86_64", apt / "etc")
        assert [line.split("/ubuntu ")[1].split()[0] for line in found.lines] == [
            "jammy",
            "jammy-updates",
            "jammy-security",
        ]
        assert all("signed-by=" in line and "/usr/bin/env]" in line for line in found.lines)

    def test_no_mirror_is_a_missing_part_of_this_machine(self, apt):
        with pytest.raises(MissingComponentError, match="no Ubuntu mirror") as caught:
            find_suite(self.GROUND, "x86_64", apt / "etc")
        assert "--no-system-packages" in caught.value.todo

    @pytest.mark.parametrize(
        "release", [{"ID": "arch"}, {"ID": "debian", "VERSION_CODENAME": "../x"}, {"ID": "debian"}, {}]
    )
    def test_other_distributions_are_refused(self, apt, release):
        with pytest.raises(BaseError, match="Debian and Ubuntu"):
            find_suite(BaseSystem(release=release), "x86_64", apt / "etc")

    def test_without_apt_the_way_out_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MissingComponentError, match="apt-get") as caught:
            locked(tmp_path, base(DEBIAN))
        assert "--no-system-packages" in caught.value.todo


class TestLocking:
    def test_apt_is_told_the_base_s_own_packages_and_nothing_of_this_machine(self, apt):
        found = locked(apt, base(DEBIAN))
        assert found.packages == (
            SystemPackage(
                name="libgomp1",
                version="12.2.0-14",
                architecture="amd64",
                filename="pool/main/g/gcc/libgomp1_12.2.0-14_amd64.deb",
                sha256=Digest.of(DEB),
                size=len(DEB),
            ),
        )
        assert (found.warnings, found.notes) == ((), ())
        asked = (apt / "asked").read_text().splitlines()
        assert asked == ["update", "install --print-uris --yes --no-remove libgomp1=12.2.0-14"]
        assert (apt / "status").read_text() == STATUS
        config = (apt / "config").read_text()
        assert f'Dir "{apt}/cache/apt/debian-bookworm-amd64-' in config
        assert "bookworm-security" not in (apt / "sources.list").read_text()  # this machine names none
        assert 'APT::Architecture "amd64";' in config

    def test_an_epoch_is_in_the_version_and_not_in_the_path(self, apt):
        offer(apt, DEB, version="1%3a12.2.0-14")
        (package,) = locked(apt, base(DEBIAN)).packages
        assert (package.version, package.basename) == ("1:12.2.0-14", "libgomp1_12.2.0-14_amd64.deb")

    def test_what_replaces_the_base_s_own_is_said(self, apt):
        offer(apt, DEB, name="libpng16-16", version="1.7")
        (line,) = locked(apt, base(DEBIAN)).warnings
        assert line == "libpng16-16 1.7 replaces the base's 1.6.39, as the run's packages need it"

    def test_another_c_library_than_the_base_s_is_refused(self, apt):
        offer(apt, DEB, name="libc6")
        with pytest.raises(LockError, match="would replace the base's libc6"):
            locked(apt, base(DEBIAN))

    def test_what_apt_says_against_it_is_passed_on_without_passwords(self, apt):
        (apt / "status_of_apt").write_text("100")
        (apt / "addresses").write_text("E: Failed to fetch http://user:secret@mirror.invalid/debian\n")
        with pytest.raises(LockError) as caught:
            locked(apt, base(DEBIAN))
        assert "secret" not in str(caught.value)
        assert "--no-system-packages" in caught.value.todo

    def test_an_address_that_is_none_of_a_package_is_refused(self, apt):
        offer(apt, DEB, name="libgomp1", version="$(id)")
        with pytest.raises(LockError, match=r"libgomp1\.version"):
            locked(apt, base(DEBIAN))

    def test_a_base_without_packages_of_that_kind_is_said_and_apt_not_asked(self, apt):
        found = locked(apt, base({key: it for key, it in DEBIAN.items() if "dpkg" not in key}))
        assert found.packages == ()
        assert any("libgomp.so.1.0.0" in it for it in found.warnings)
        assert not (apt / "asked").exists()

    def test_what_the_base_has_needs_no_apt(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        found = locked(tmp_path, base(DEBIAN), manifest("debian libpng16-16 1.6.37 libpng16.so.16.37"))
        assert found.packages == ()
        assert "libpng16-16 1.6.39 (the run had 1.6.37)" in found.notes[0]

    def test_without_a_network_the_lists_of_before_are_taken(self, apt):
        with pytest.raises(LockError, match="lists of debian bookworm are not in the cache"):
            locked(apt, base(DEBIAN), offline=True)
        online = locked(apt, base(DEBIAN))
        (apt / "asked").unlink()
        assert locked(apt, base(DEBIAN), offline=True).packages == online.packages
        assert "update" not in (apt / "asked").read_text()


class TestFiles:
    def test_they_are_fetched_once_and_verified(self, apt):
        found = locked(apt, base(DEBIAN))
        found.fetch()
        assert deb_path(apt / "cache", Digest.of(DEB)).read_bytes() == DEB
        (apt / "asked").unlink()
        found.fetch()
        assert not (apt / "asked").exists()
        copy_debs(Lock(target=TARGET, wheels=(), packages=found.packages), apt / "cache", apt / "context")
        assert (apt / "context" / "debs" / "libgomp1_12.2.0-14_amd64.deb").read_bytes() == DEB

    def test_a_mirror_with_other_bytes_is_refused_and_nothing_kept(self, apt):
        found = locked(apt, base(DEBIAN))
        (apt / "files" / "libgomp1_12.2.0-14_amd64.deb").write_bytes(b"other")
        with pytest.raises(LockError, match="another file of libgomp1"):
            found.fetch()
        assert not deb_path(apt / "cache", Digest.of(DEB)).exists()

    def test_a_mirror_that_has_it_no_more_is_said(self, apt):
        found = locked(apt, base(DEBIAN))
        (apt / "status_of_apt").write_text("100")
        with pytest.raises(LockError, match="cannot be downloaded"):
            found.fetch()

    def test_without_a_network_what_lacks_is_named(self, apt):
        found = locked(apt, base(DEBIAN))
        suite = Suite(distribution="debian", codename="bookworm", architecture="amd64", lines=())
        files = DebFiles(packages=found.packages, suite=suite, status="", cache=apt / "cache", offline=True)
        with pytest.raises(LockError, match="not in the cache: libgomp1"):
            files.path(found.packages[0])

    def test_a_changed_file_does_not_get_into_a_context(self, apt):
        found = locked(apt, base(DEBIAN))
        found.fetch()
        deb_path(apt / "cache", Digest.of(DEB)).write_bytes(b"changed")
        with pytest.raises(LockError) as caught:
            copy_debs(Lock(target=TARGET, wheels=(), packages=found.packages), apt / "cache", apt / "context")
        assert caught.value.where.endswith(".deb")

    def test_an_old_suite_may_have_lost_its_updates(self, apt):
        told: list[str] = []
        report = Calling(step=told.append)
        suite = Suite(distribution="debian", codename="stretch", architecture="amd64", lines=("deb x stretch main",))
        script = "#!/bin/sh\necho \"E: The repository 'http://x stretch-updates Release' does not have a Release file.\"\nexit 100\n"
        (apt / "bin" / "apt-get").write_text(script)
        with apt_for(suite, STATUS, apt / "cache") as ours:
            with pytest.raises(LockError, match="cannot download"):
                ours.update(report)
            (ours.folder / "var/lib/apt/lists/a_Packages").touch()
            ours.update(report)
        assert "stretch-updates" in told[-1]
