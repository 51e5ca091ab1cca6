"""Which Debian packages a run's libraries ask for, and how they are locked."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import LockError
from envbuild.lock.formats import pylock_text, read_pylock
from envbuild.lock.model import Lock, SystemPackage, Target, package_of
from envbuild.lock.system import (
    BaseContents,
    RunPackage,
    choose_packages,
    distribution_name,
    find_missing,
    spellings,
    wanted_packages,
)
from envbuild.manifest.hardware import Library, Native, Owner
from envbuild.manifest.model import Platform
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe

TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")
SNDFILE = SystemPackage(
    name="libsndfile1",
    version="1.2.0-1+deb12u1",
    architecture="amd64",
    filename="pool/main/libs/libsndfile/libsndfile1_1.2.0-1+deb12u1_amd64.deb",
    sha256=Digest("ab" * 32),
    size=196540,
)


def native(*rows: str) -> Native:
    """Libraries from rows such as `debian libgomp1 12.2.0-14 libgomp.so.1.0.0`."""
    libraries = []
    for row in rows:
        kind, name, version, file = row.split()
        owner = Owner(kind=kind, name=name, version=version)  # type: ignore[arg-type]
        libraries.append(Library(name=file, path=f"/usr/lib/{file}", owner=owner))
    return Native(process="run", libraries=tuple(libraries))


class TestWanted:
    def test_packages_come_once_each_with_their_libraries_by_name(self):
        found = wanted_packages(
            native(
                "debian libvorbis0a 1.3.7-1 libvorbis.so.0",
                "debian libgl1 1.6.0-1 libGL.so.1",
                "debian libgl1 1.6.0-1 libGL.so.1.7.0",
            )
        )
        assert found == (
            RunPackage(name="libgl1", version="1.6.0-1", libraries=("libGL.so.1", "libGL.so.1.7.0")),
            RunPackage(name="libvorbis0a", version="1.3.7-1", libraries=("libvorbis.so.0",)),
        )

    @pytest.mark.parametrize(
        "name",
        [
            "libc6", "libc-bin", "libpython3.11", "libpython3.11-stdlib", "python3.11-minimal", "python3-numpy",
            "libcudnn8", "libcublas-12-4", "cuda-cudart-12-4", "libnvidia-compute-535", "libcuda1", "libnccl2", "libnvinfer8",
        ],
    )  # fmt: skip
    def test_the_interpreter_s_and_nvidia_s_are_no_matter_of_the_system(self, name):
        assert wanted_packages(native(f"debian {name} 1.0-1 libx.so.1")) == ()

    @pytest.mark.parametrize(
        "name", ["libcurl4", "libcairo2", "libnvme1", "libnuma1", "libcups2", "libcrypt1", "libpython2.7"]
    )
    def test_what_only_begins_like_those_is(self, name):
        assert [it.name for it in wanted_packages(native(f"debian {name} 1.0-1 libx.so.1"))] == [name]

    @pytest.mark.parametrize(
        ("name", "file"),
        [
            ("libnss-systemd", "libnss_systemd.so.2"), ("google-compute-engine-oslogin", "libnss_oslogin-20230831.so"),
            ("libssl1.1", "libssl.so.1.1"), ("libffi7", "libffi.so.7.1.0"), ("libdb5.3", "libdb-5.3.so"),
            ("libsqlite3-0", "libsqlite3.so.0.8.6"), ("zlib1g", "libz.so.1"),
        ],
    )  # fmt: skip
    def test_neither_are_what_the_host_s_accounts_and_python_s_own_modules_need(self, name, file):
        assert wanted_packages(native(f"debian {name} 1.0-1 {file}")) == ()
        assert find_missing(native(f"rpm {name} 1.0-1 {file}"), BaseContents(installed={})).warnings == ()

    @pytest.mark.parametrize("file", ["libzmq.so.5", "libsslcommon.so.1", "libdbus-1.so.3", "libuuid-extra.so"])
    def test_what_only_begins_like_those_counts(self, file):
        assert [it.libraries for it in wanted_packages(native(f"debian libx1 1.0-1 {file}"))] == [(file,)]

    @pytest.mark.parametrize("kind", ["wheel", "conda", "none"])
    def test_other_owners_are_others_matter(self, kind):
        assert wanted_packages(native(f"{kind} libgomp1 12 libgomp.so.1")) == ()

    @pytest.mark.parametrize(
        ("name", "version"), [("-oDir=x", "1"), ("libx;id", "1"), ("libx1", "$(id)"), ("libx1", "-1")]
    )
    def test_what_is_no_name_or_version_never_gets_to_apt(self, name, version):
        assert wanted_packages(native(f"debian {name} {version} libx.so.1")) == ()

    def test_a_run_without_libraries_wants_nothing(self):
        assert wanted_packages(None) == ()


class TestMissing:
    def test_what_the_base_has_is_not_missing_and_another_version_is_noted(self):
        run = native(
            "debian libpng16-16 1.6.39 libpng16.so.16",
            "debian libgomp1 12.2 libgomp.so.1",
            "debian libgl1 1.6 libGL.so.1",
        )
        found = find_missing(run, BaseContents(installed={"libpng16-16": "1.6.39", "libgomp1": "14.2"}))
        assert [it.name for it in found.packages] == ["libgl1"]
        (note,) = found.notes
        assert "libgomp1 14.2 (the run had 12.2)" in note
        assert "libpng16-16" not in note

    def test_a_package_with_the_mark_of_64_bit_time_is_the_same(self):
        found = find_missing(
            native("debian libpng16-16 1.6.39 libpng16.so.16"), BaseContents(installed={"libpng16-16t64": "1.6.48"})
        )
        assert found.packages == ()

    def test_a_library_of_another_family_is_said_where_the_base_lacks_it(self):
        run = native(
            "rpm libsndfile 1.0.31-8 libsndfile.so.1.0.31",
            "rpm libpng 1.6.37 libpng16.so.16.37.0",
            "rpm glibc 2.34 libc.so.6",
        )
        found = find_missing(
            run, BaseContents(installed={}, libraries=frozenset({"libpng16.so.16", "libpng16.so.16.39.0", "libc.so.6"}))
        )
        (line,) = found.warnings
        assert "libsndfile.so.1.0.31" in line
        assert "RPM package libsndfile" in line


class TestChoice:
    WANTED = (RunPackage(name="libsndfile1", version="1.2.0-1", libraries=("libsndfile.so.1.0.35",)),)

    def test_the_run_s_version_is_taken_without_a_word(self):
        found = choose_packages(
            self.WANTED, {"libsndfile1": ("1.2.0-1+deb12u1", "1.2.0-1")}, "debian 12", "debian bookworm"
        )
        assert (found.requests, found.warnings) == ((("libsndfile1", "1.2.0-1"),), ())

    def test_another_version_is_apt_s_choice_and_said_with_both(self):
        found = choose_packages(self.WANTED, {"libsndfile1": ("1.2.2-2", "1.2.2-1")}, "ubuntu 20.04", "debian trixie")
        assert found.requests == (("libsndfile1", "1.2.2-2"),)
        (line,) = found.warnings
        assert line == "libsndfile1 1.2.2-2 of debian trixie is taken; the run on ubuntu 20.04 had libsndfile1 1.2.0-1"

    def test_another_spelling_is_said_though_the_version_is_the_same(self):
        found = choose_packages(self.WANTED, {"libsndfile1t64": ("1.2.0-1",)}, "a", "b")
        assert found.requests == (("libsndfile1t64", "1.2.0-1"),)
        assert "libsndfile1t64 1.2.0-1" in found.warnings[0]

    def test_what_nobody_has_is_said_with_its_libraries(self):
        found = choose_packages(self.WANTED, {"libsndfile1": ()}, "ubuntu 20.04", "debian trixie")
        assert found.requests == ()
        assert "libsndfile.so.1.0.35" in found.warnings[0]

    @given(st.text(string.ascii_lowercase, min_size=2).map(lambda it: f"lib{it}"))
    def test_spellings_are_the_same_set_for_both(self, name):
        assert set(spellings(name)) == set(spellings(spellings(name)[1]))
        assert spellings(name)[0] == name

    def test_a_run_of_unknown_distribution_has_a_name_for_sentences(self):
        assert distribution_name(Platform(os_id="ubuntu", os_version="20.04")) == "ubuntu 20.04"
        assert distribution_name(Platform()) == "an unknown distribution"


class TestLock:
    def test_packages_are_written_and_read_again_without_a_mirror(self):
        lock = Lock(target=TARGET, wheels=(), packages=(SNDFILE,))
        text = pylock_text(lock)
        assert read_pylock(text, "pylock.toml") == lock
        assert b"://" not in text.split(b"[[tool.envbuild.packages]]")[1]

    def test_a_lock_without_is_as_it_was(self):
        assert b"packages]]" not in pylock_text(Lock(target=TARGET, wheels=()))

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("name", '"lib x"'), ("name", '"-y"'), ("version", '"1.0; rm"'), ("version", '"$(id)"'), ("architecture", '"a/b"'),
            ("filename", '"/etc/x.deb"'), ("filename", '"pool/../../x.deb"'), ("filename", '"pool/x.sh"'),
            ("filename", '"pool/$(id).deb"'), ("sha256", '"ab"'), ("size", "0"), ("size", '"1"'),
        ],
    )  # fmt: skip
    def test_what_cannot_be_a_package_is_refused(self, key, value):
        text = pylock_text(Lock(target=TARGET, wheels=(), packages=(SNDFILE,))).decode()
        start = text.index("[[tool.envbuild.packages]]")
        lines = [f"{key} = {value}" if line.startswith(f"{key} =") else line for line in text[start:].splitlines()]
        with pytest.raises(LockError, match=rf"\.{key}: "):
            read_pylock((text[:start] + "\n".join(lines)).encode(), "pylock.toml")

    def test_one_that_stands_there_twice_is_refused(self):
        with pytest.raises(LockError, match="twice"):
            read_pylock(pylock_text(Lock(target=TARGET, wheels=(), packages=(SNDFILE, SNDFILE))), "pylock.toml")

    @pytest.mark.parametrize("value", ["1", '["x"]', '"text"'])
    def test_a_list_of_anything_else_is_refused(self, value):
        text = pylock_text(Lock(target=TARGET, wheels=())).decode() + f"packages = {value}\n"
        with pytest.raises(LockError, match="packages"):
            read_pylock(text.encode(), "pylock.toml")

    def test_a_name_of_a_file_is_the_end_of_its_path(self):
        assert SNDFILE.basename == "libsndfile1_1.2.0-1+deb12u1_amd64.deb"
        with pytest.raises(ValueError, match="size"):
            package_of({**_values(SNDFILE), "size": True})


def _values(package: SystemPackage) -> dict[str, Any]:
    texts = {key: getattr(package, key) for key in ("name", "version", "architecture", "filename", "size")}
    return texts | {"sha256": package.sha256.hex}


class TestRecipe:
    def recipe(self, *packages: SystemPackage) -> Recipe:
        return Recipe(
            base_name="base",
            base_digest=Digest("cd" * 32),
            python_path="/usr/bin/python3.11",
            target=TARGET,
            wheels=(),
            variables=(),
            labels=(),
            packages=packages,
        )

    def test_a_recipe_without_packages_has_the_id_that_it_always_had(self):
        assert "packages" not in self.recipe().to_dict()

    def test_packages_decide_the_id_and_their_place_does_not(self):
        moved = SystemPackage(**{**_values(SNDFILE), "sha256": SNDFILE.sha256, "filename": "pool/other/x.deb"})
        assert self.recipe(SNDFILE).environment != self.recipe().environment
        assert self.recipe(SNDFILE).environment == self.recipe(moved).environment
