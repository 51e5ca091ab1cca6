"""Debian bases, bootstrapped for real from the machine's own mirror."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from envbuild.base.apt import find_mirror
from envbuild.base.resolve import resolve_base
from envbuild.errors import UsageError
from envbuild.oci.image import Image
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.recipe import Base
from envbuild.report import SILENT

pytestmark = pytest.mark.real

BOOTSTRAP = """
import sys
from pathlib import Path
from envbuild.base.resolve import resolve_base
from envbuild.report import SILENT
base = resolve_base("debian:bookworm", machine="x86_64", cache=Path(sys.argv[1]), pull=None, report=SILENT)
print(base.digest)
"""
LEFT = ("etc/resolv.conf", "etc/hostname", "etc/apt/sources.list", "var/log/dpkg.log", "var/cache/ldconfig/aux-cache")


def no_pull(reference: Reference, machine: str) -> Image:
    raise AssertionError(f"{reference} for {machine} is not to be pulled")


def no_registry(*_):
    raise AssertionError("a bootstrapped base needs no registry")


def base_of(suite: str, cache: Path) -> Base:
    return resolve_base(f"debian:{suite}", machine="x86_64", cache=cache, pull=no_pull, report=SILENT)


def bootstrap(cache: Path, folder: str, umask: int, **env: str) -> subprocess.Popen[str]:
    """Start it in an interpreter of its own, as the umask and the working folder are the process's."""
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP, str(cache)],
        cwd=folder, umask=umask, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow  # two Debians: 75 s
def test_umask_time_zone_locale_hash_seed_and_folder_are_no_part_of_the_bytes(tmp_path):
    odd = {"TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "4242"}
    digests = []
    for cache, folder, umask, env in (("a", "/", 0o022, {}), ("b", str(tmp_path), 0o077, odd)):
        out, errors = bootstrap(tmp_path / cache, folder, umask, **env).communicate(timeout=600)
        digests.append(out.splitlines()[-1:])
        assert digests[-1], errors
    assert digests[0] == digests[1]
    [layout] = (tmp_path / "a/bases").glob("debian-bookworm-*/")
    _check_files(layout)


def _check_files(layout: Path) -> None:
    """Nothing of this machine and no device is in it; licences and bytecode are."""
    image = read_layout(layout, machine="x86_64")
    host = find_mirror(Path("/etc/apt")).archive.split("/")[2].encode()
    names, hidden = set(), set()
    with image.layers[0].open() as blob, tarfile.open(fileobj=blob, mode="r:gz") as archive:
        for member in archive:
            path = member.name.removeprefix("./")
            names.add(path)
            assert member.mtime == 315532800, path
            assert not member.isdev(), path
            file = archive.extractfile(member) if member.isreg() and path.startswith(("etc/", "var/")) else None
            if file and host in file.read():
                hidden.add(path)
    assert not names.intersection(LEFT)
    assert hidden == set(), "the mirror's name"
    assert {"dev", "usr/share/doc/libc6/copyright", "usr/lib/python3.11/__pycache__/os.cpython-311.pyc"} <= names
    assert not any(name.startswith("usr/share/man/man1/") for name in names)
    config = json.loads(image.config)
    assert (config["created"], len(config["history"])) == ("1980-01-01T00:00:00Z", 1)


@pytest.mark.parametrize(
    ("suite", "python", "glibc"),
    [("bullseye", "3.9", "2.31"), ("bookworm", "3.11", "2.36"), ("trixie", "3.13", "2.41")],
)
def test_each_suite_has_its_python_and_glibc(suite, python, glibc, cache):
    base = base_of(suite, cache / "envbuild")
    assert (base.target.python_minor, base.target.glibc) == (python, glibc)
    assert base.python_path == f"/usr/bin/python{python}"
    assert base.target.python.count(".") == 2


def test_the_second_time_neither_the_mirror_is_asked_nor_the_base_read(cache):
    base_of("bookworm", cache / "envbuild")
    began = time.monotonic()
    base_of("bookworm", cache / "envbuild")
    assert time.monotonic() - began < 0.5


def test_an_interrupt_leaves_no_process_no_mount_and_no_file(tmp_path):
    process = bootstrap(tmp_path, "/", 0o022)
    marker = str(tmp_path)
    for _ in range(600):
        if list(tmp_path.glob("bases/.new-*/mmdebstrap.*/usr/bin/dpkg")):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert [path.name for path in (tmp_path / "bases").iterdir() if path.suffix != ".lock"] == []
    assert marker not in Path("/proc/mounts").read_text()
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if marker in _text(path)]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_a_suite_that_never_was_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match="'sargelet' is not the name of a Debian suite"):
        base_of("sargelet", tmp_path)
