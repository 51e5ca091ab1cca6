"""What is asked of apt and mmdebstrap, and what is kept."""

import io
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.base import apt, debian
from envbuild.base.apt import Mirror, find_mirror, read_sources, source_lines
from envbuild.base.debian import debian_base
from envbuild.errors import BaseError, MissingComponentError
from envbuild.oci.digest import Digest
from envbuild.oci.layout import write_layout
from envbuild.process import running
from tests.fakes.trees import BASE, image_of_trees, tar_of
from tests.reporting import Calling

DEB822 = """\
Types: deb
# the archive as it was on some day
URIs: http://mirror.invalid/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/a.gpg

Types: deb
URIs: http://mirror.invalid/debian-security
Suites: bookworm-security
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .

Types: deb deb-src
Enabled: no
URIs: http://off.invalid/debian
Suites: bookworm
Components: main
"""


def sources(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "sources.list.d").mkdir(parents=True)
    for name, text in files.items():
        path = "sources.list" if name == "main" else f"sources.list.d/{name.replace('_', '.')}"
        (tmp_path / path).write_text(text)
    return tmp_path


def test_the_mirror_is_the_machines_own(tmp_path):
    mirror = find_mirror(sources(tmp_path, debian_sources=DEB822))
    assert mirror.archive == "http://mirror.invalid/debian"
    assert mirror.security == "http://mirror.invalid/debian-security"
    assert mirror.keyrings == ("/usr/share/keyrings/a.gpg",)


def test_the_old_form_of_sources_is_read_too(tmp_path):
    text = """\
# deb http://commented.invalid/debian bookworm main
deb-src http://mirror.invalid/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.invalid/debian/ bookworm main contrib # ours
deb http://mirror.invalid/security bookworm-security main
"""
    assert find_mirror(sources(tmp_path, main=text)) == Mirror(
        archive="http://mirror.invalid/debian/", security="http://mirror.invalid/security", keyrings=("/k.gpg",)
    )


def test_another_archive_with_the_same_suite_is_not_taken_for_debian(tmp_path):
    text = "deb http://other.invalid/debian/12/prod bookworm main\ndeb http://a.invalid/for-debian bookworm main\n"
    folder = sources(tmp_path, a_list=text, b_list="deb http://mirror.invalid/debian bookworm main\n")
    assert find_mirror(folder).archive == "http://mirror.invalid/debian"


def test_a_private_mirror_may_have_another_name(tmp_path):
    folder = sources(tmp_path, a_list="deb https://repo.invalid/artifactory/debian-remote bookworm main\n")
    assert find_mirror(folder) == Mirror(archive="https://repo.invalid/artifactory/debian-remote", security=None)


@pytest.mark.parametrize("text", ["", "deb http://archive.invalid/ubuntu jammy main\n", "# nothing\n"])
def test_a_machine_without_a_debian_mirror_is_told_so(tmp_path, text):
    with pytest.raises(BaseError, match="no Debian mirror"):
        find_mirror(sources(tmp_path, main=text))


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_read_as_sources(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("apt")
    (folder / "sources.list").write_text(text, errors="replace")
    (folder / "sources.list.d").mkdir()
    (folder / "sources.list.d" / "a.sources").write_text(text, errors="replace")
    read_sources(folder)


def test_a_suite_comes_with_its_updates_and_its_security_archive():
    mirror = Mirror(archive="http://m.invalid/debian", security="http://m.invalid/security")
    assert list(source_lines("bullseye", mirror).values()) == [
        "deb http://m.invalid/debian bullseye main",
        "deb http://m.invalid/debian bullseye-updates main",
        "deb http://m.invalid/security bullseye-security main",
    ]
    assert list(source_lines("sid", mirror)) == ["sid"]


# A stand-in for mmdebstrap: it takes the arguments that we give, and writes what a file beside it says.
PROGRAM = """\
#!/bin/sh
folder=$(dirname "$0")
for last; do :; done
echo "run $*" >>"$folder/log"
cat "$last" >>"$folder/sources"
[ ! -e "$folder/wait" ] || { sleep 600 & echo $! >"$folder/child"; wait; }
if [ -e "$folder/refuse" ] && grep -q "$(cat "$folder/refuse")" "$last"; then
  cat "$folder/messages" >&2
  exit 25
fi
cat "$folder/tree.tar"
"""


@pytest.fixture
def mmdebstrap(tmp_path, monkeypatch):
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "mmdebstrap"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (folder / "tree.tar").write_bytes(tar_of(BASE))
    keyring = folder / "keyring.gpg"
    keyring.touch()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(apt.KEYRINGS, "debian", (str(keyring),))
    monkeypatch.setattr(
        apt, "SOURCES", sources(tmp_path / "apt", debian_sources=DEB822.replace("http://", "http://me:secret@"))
    )
    return folder


def bootstrapped(tmp_path, reports=None, suite="bookworm"):
    report = Calling(note=(reports if reports is not None else []).append)
    return debian_base(suite, "x86_64", tmp_path / "cache", report)


def runs(mmdebstrap):
    return (mmdebstrap / "log").read_text().count("run --variant=minbase")


def left(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache/bases").iterdir() if path.suffix != ".lock")


def test_what_mmdebstrap_writes_becomes_one_layer_with_an_empty_dev(tmp_path, mmdebstrap):
    image = bootstrapped(tmp_path)
    [layer] = image.layers
    with layer.open() as file, tarfile.open(fileobj=file, mode="r:gz") as archive:
        assert archive.getnames() == ["./dev", *(path.rstrip("/") for path in BASE)]
    with layer.open() as file:
        content = subprocess.run(["gzip", "-dc"], input=file.read(), stdout=subprocess.PIPE, check=True).stdout
    assert layer.diff_id == layer.diff_id.of(content)
    assert tarfile.open(fileobj=io.BytesIO(content)).getmember("./dev").mode == 0o755


def test_no_address_and_no_password_is_on_the_command_line(tmp_path, mmdebstrap):
    bootstrapped(tmp_path)
    assert "mirror.invalid" not in (mmdebstrap / "log").read_text()
    assert "deb http://me:secret@mirror.invalid/debian bookworm main" in (mmdebstrap / "sources").read_text()


def test_a_base_is_bootstrapped_once_and_says_so(tmp_path, mmdebstrap):
    reports: list[str] = []
    first = bootstrapped(tmp_path)
    assert bootstrapped(tmp_path, reports).digest == first.digest
    assert runs(mmdebstrap) == 1
    assert "cached by an earlier run; delete" in reports[0]
    assert [name.rpartition("-")[0] for name in left(tmp_path)] == ["debian-bookworm-x86_64"]


def test_a_kept_base_that_is_damaged_is_made_anew(tmp_path, mmdebstrap):
    image = bootstrapped(tmp_path)
    [blob] = (tmp_path / "cache").rglob(image.layers[0].descriptor.digest.hex)
    blob.write_bytes(b"")
    reports: list[str] = []
    assert bootstrapped(tmp_path, reports).digest == image.digest
    assert "damaged" in reports[0]


def test_a_kept_base_that_cannot_be_read_now_stays(tmp_path, mmdebstrap):
    bootstrapped(tmp_path)
    [layer] = bootstrapped(tmp_path).layers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(BaseError, match="cannot be read: Too many open files"):
            layer.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with layer.open() as file:
        assert Digest.of_file(file)[0] == layer.descriptor.digest


def test_updates_and_security_archives_that_are_gone_are_left_out_and_reported(tmp_path, mmdebstrap):
    (mmdebstrap / "refuse").write_text("bullseye-[us]")
    (mmdebstrap / "messages").write_text(
        "E: The repository 'http://mirror.invalid/debian bullseye-updates Release' does not have a Release file.\n"
        "E: Release file for http://mirror.invalid/debian-security/dists/bullseye-security/InRelease is expired (x).\n"
    )
    reports: list[str] = []
    bootstrapped(tmp_path, reports, "bullseye")
    assert reports[1:] == ["the mirror no longer has bullseye-security and bullseye-updates: bootstrapping without"]


def test_a_failure_says_what_the_program_said_without_secrets_and_leaves_nothing(tmp_path, mmdebstrap):
    (mmdebstrap / "refuse").write_text("sarge")
    (mmdebstrap / "messages").write_text("I: fine\nE: no http://me:secret@mirror.invalid/debian sarge\n")
    with pytest.raises(BaseError, match=r"E: no http://mirror\.invalid/debian sarge") as caught:
        bootstrapped(tmp_path, suite="sarge")
    assert "secret" not in str(caught.value)
    assert left(tmp_path) == []


@pytest.mark.parametrize("absent", ["mmdebstrap", "keyring.gpg"])
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path, mmdebstrap, monkeypatch, absent):
    (mmdebstrap / absent).unlink()
    monkeypatch.setattr(debian, "_path", lambda: str(mmdebstrap))
    with pytest.raises(MissingComponentError) as caught:
        bootstrapped(tmp_path)
    assert "apt-get install mmdebstrap" in caught.value.todo


def test_what_a_killed_run_left_behind_goes_with_the_next(tmp_path, mmdebstrap):
    bootstrapped(tmp_path)
    [name] = left(tmp_path)
    stale = tmp_path / "cache/bases" / f".new-{name}-x"
    stale.mkdir()
    bootstrapped(tmp_path)
    assert left(tmp_path) == [name]


def test_an_interrupt_ends_the_whole_process_group_and_leaves_nothing(tmp_path, mmdebstrap):
    (mmdebstrap / "wait").touch()
    code = f"""
from pathlib import Path
from envbuild.base import apt, debian
from envbuild.report import SILENT
apt.KEYRINGS["debian"], apt.SOURCES = ("{mmdebstrap}/keyring.gpg",), Path("{tmp_path}/apt")
debian.debian_base("bookworm", "x86_64", Path("{tmp_path}/cache"), SILENT)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    child = mmdebstrap / "child"
    wait_until(lambda: child.exists() and child.read_text().strip())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert left(tmp_path) == []
    wait_until(lambda: not Path(f"/proc/{int(child.read_text())}").exists())


def wait_until(true):
    for _ in range(200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it never came true")


def test_a_program_does_not_outlive_its_block():
    with running(["sleep", "600"], {"PATH": os.defpath}) as process:
        pass
    assert process.returncode == -signal.SIGTERM


def test_of_two_runs_at_once_one_bootstraps(tmp_path, mmdebstrap):
    code = f"""
from pathlib import Path
from envbuild.base import apt, debian
from envbuild.report import SILENT
apt.KEYRINGS["debian"], apt.SOURCES = ("{mmdebstrap}/keyring.gpg",), Path("{tmp_path}/apt")
print(debian.debian_base("bookworm", "x86_64", Path("{tmp_path}/cache"), SILENT).digest)
"""
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    digests = {process.communicate(timeout=60)[0] for process in both}
    assert len(digests) == 1
    assert runs(mmdebstrap) == 1


def test_kept_bases_are_plain_layouts(tmp_path, mmdebstrap):
    image = bootstrapped(tmp_path)
    write_layout(image, tmp_path / "copy")
    [name] = left(tmp_path)
    kept = tmp_path / "cache/bases" / name
    assert (kept / "oci-layout").read_bytes() == (tmp_path / "copy/oci-layout").read_bytes()
    assert image_of_trees(BASE).config != image.config
